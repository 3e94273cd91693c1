"""Opens a model folder for the transformers executor: the model's modules, their matrices, and how they attend.

The model is built on torch's meta device, without weights, and run once on four tokens: each linear layer that was
called becomes a packed matrix, and each attention call a layer of the KV cache. A model whose attention is more than
causal attention with a window, or which keeps a state of its own, is run with transformers' cache instead.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers import __version__ as transformers_version
from transformers.pytorch_utils import Conv1D

from forearm.config.number_formats import DTypeName
from forearm.errors import ConfigError
from forearm.model.families.config import Attention, FeedForward, Layer, ModelConfig
from forearm.model.families.families import FAMILIES
from forearm.model.families.keys import read_json, text_part
from forearm.model.families.switches import BOUNDS
from forearm.model.modules.attention import NAME, AttentionCall, NotPlainAttentionError, bind, register
from forearm.model.modules.forward import CachedForward
from forearm.model.modules.joint import LinearCall, linears

log = logging.getLogger(__name__)

TORCH_DTYPES: dict[DTypeName, torch.dtype] = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
}  # fmt: skip
TRIAL_TOKENS = 4
# Names of the context length; models without positions say none.
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx", "max_sequence_length")
_MOST_POSITIONS = 1 << 15
_MASKED = "it generates by a masked token behind the text, which it fills in"
_SOUND = "it reads or writes sound; forearm serves text alone"
_DRAFTS = "it drafts tokens of another model, whose keys and values it reads"
# Types of which transformers builds a causal language model that does not generate text from text.
REFUSED = {
    "xlm": _MASKED, "xlnet": _MASKED,
    "whisper": _SOUND, "moshi": _SOUND, "musicgen": _SOUND, "musicgen_melody": _SOUND,
    "moss_transcribe_diarize": _SOUND,
    "gemma4_assistant": _DRAFTS, "gemma4_unified_assistant": _DRAFTS,
    "reformer": "it finds keys by random hashes, so the same text gets other tokens each time",
    "cpmant": "transformers gives other tokens with its cache than without it",
    "blt": "its bytes form patches of varying length, which transformers' own generate ends with an error",
}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """A model as transformers builds it.

    config: the sizes that the engine and the native module need. own_cache: why transformers' own cache is used, one
    per sequence; empty: attention is ours. recomputes: it has no cache; each token computes its whole text again.
    module_bytes: bytes of the tensors that torch keeps. own_code: the model's code is the checkpoint's.
    """

    config: ModelConfig
    own_cache: str
    recomputes: bool
    module_bytes: int
    own_code: bool


@dataclass
class Trial:
    """The calls of attention and linear layers of a run without weights."""

    calls: list[AttentionCall]
    linears: list[LinearCall]
    vocab_size: int


def read_architecture(folder: Path, trust_remote_code: bool = False) -> Architecture:
    """Build the model of `folder` without weights and return what it needs.

    trust_remote_code: transformers may run the Python code that the folder's auto_map names.
    Raises: ConfigError if transformers has no such causal language model.
    """
    register()
    given = configuration(folder, trust_remote_code)
    own_code = type(given).__module__.startswith("transformers_modules.")
    own_cache, recomputes = "", False
    try:
        model = build(given, own_cache=False, own_code=own_code)
        trial = _try(model)
        own_cache = _why_own_cache(model, trial.calls)
    except NotPlainAttentionError as reason:
        own_cache = f"it attends by {reason}"
    except ConfigError:
        raise
    except Exception as problem:  # whatever a model's code raises on the meta device
        log.debug("the trial on the meta device failed", exc_info=True)
        own_cache = f"its attention is not transformers' interface ({type(problem).__name__})"
    if own_cache:
        model = build(given, own_cache=True, own_code=own_code)
        trial, recomputes = _try_empty(model)
    if recomputes:
        own_cache = "it keeps no cache, so each token computes its whole text again"
    config, module_bytes = described(given, model, trial)
    return Architecture(config, own_cache, recomputes, module_bytes, own_code)


def described(given: PretrainedConfig, model: PreTrainedModel, trial: Trial) -> tuple[ModelConfig, int]:
    """Return the sizes that the native module needs after a trial, and the bytes of the tensors that torch keeps."""
    text = given.get_text_config()
    stored: DTypeName = next((name for name, one in TORCH_DTYPES.items() if one is given.dtype), "float32")
    layers = tuple(linears(model, trial.linears))
    packed = {id(call.module) for call in trial.linears}
    left = [m for m in model.modules() if id(m) not in packed]
    kept = {id(t): t for m in left for t in (*m.parameters(recurse=False), *m.buffers(recurse=False))}
    config = ModelConfig(
        model_type=given.model_type,
        dtype=stored,
        vocab_size=trial.vocab_size or int(text.vocab_size),
        hidden=max((one.k for one in layers), default=1),
        max_positions=next((n for key in _POSITIONS if (n := getattr(text, key, 0) or 0) > 0), _MOST_POSITIONS),
        modules=True,
        linears=layers,
        tied_head=True,  # the head is a module like the others
        **_attention(trial.calls, text),
    )
    return config, sum(4 * tensor.numel() for tensor in kept.values())


def _why_own_cache(model: PreTrainedModel, calls: list[AttentionCall]) -> str:
    """Return why the model must keep transformers' cache, after a run with our attention; empty: it need not."""
    if getattr(model, "_is_stateful", False):
        return "it keeps a state of its own"
    if "position_ids" not in signature(model.forward).parameters:
        return "it counts positions itself"
    if not calls:
        return "its attention does not call transformers' attention interface"
    return "its layers differ in attention heads" if len({call.q.shape[0] for call in calls}) > 1 else ""


def build(
    given: PretrainedConfig, *, own_cache: bool, own_code: bool, make: Any = AutoModelForCausalLM
) -> PreTrainedModel:
    """Return the model of a configuration on the meta device, in evaluation mode. make: transformers' class for it."""
    try:
        with torch.device("meta"):
            model: PreTrainedModel = make.from_config(
                deepcopy(given), dtype=torch.float32, experts_implementation="batched_mm",
                trust_remote_code=own_code,
                **({} if own_cache else {"attn_implementation": NAME}),
            )  # fmt: skip
            model.train(False)
            return model
    except Exception as problem:  # whatever a model's code raises; ImportError: its images or sound need packages
        if not own_cache and not isinstance(problem, ValueError | ImportError):
            raise  # a model may have a table of attention classes, without ours: it is built with its own then
        said = " ".join(str(problem).split())
        raise ConfigError(f"model_type {given.model_type}: transformers can't build its model: {said:.300}") from None


def configuration(folder: Path, trust_remote_code: bool, pooled: bool = False) -> PretrainedConfig:
    """Return the configuration of a model folder, without what it says of quantization, which forearm itself reads.

    Raises: ConfigError in one line, if transformers has no such model, can't read the file, or the model, unless it is
    pooled, generates no text from text.
    """
    keys = read_json(folder / "config.json")
    has_code = "auto_map" in keys and keys.text("model_type") not in CONFIG_MAPPING
    if keys.text("model_type") not in CONFIG_MAPPING and not (has_code and trust_remote_code):
        near = difflib.get_close_matches(keys.text("model_type"), [*FAMILIES, *CONFIG_MAPPING], n=1, cutoff=0.5)
        nearest = f" (the nearest name is {near[0]})" if near else ""
        code = ". Its code is in the checkpoint: --trust-remote-code runs it" if has_code else ""
        raise keys.wrong("model_type", f"one that forearm or transformers {transformers_version} has{nearest}{code}")
    if not pooled and (why := REFUSED.get(keys.text("model_type"))):
        raise ConfigError(f"{folder}: model_type {keys.text('model_type')} can't be served: {why}")
    text = text_part(keys) or keys
    for key, most in BOUNDS.items():  # before modules of any size are built
        if isinstance(size := text.get(key), int) and not -1 <= size <= most:
            raise text.wrong(key, f"at most {most}")
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=has_code)
    except Exception as problem:  # the configuration classes raise whatever their checks do
        said = " ".join(str(problem).split())
        raise ConfigError(f"{folder}: transformers can't read its config.json: {said:.300}") from None
    # BERT and its like, which is_decoder and add_cross_attention turn into decoders. GPT-NeoX has the first alone,
    # GPT-2 the second alone.
    two_sided = hasattr(config, "add_cross_attention") and getattr(config, "is_decoder", True) is False
    why = ""
    if config.is_encoder_decoder and not pooled:
        why = "is_encoder_decoder is true: an encoder reads the prompt, and forearm generates with decoders alone"
    elif two_sided and not pooled:
        why = "is_decoder is false: its tokens see those after them, so that it generates no text"
    if why:
        raise ConfigError(f"{folder}: model_type {config.model_type} can't be served: {why}")
    for one in (config, config.get_text_config()):
        for key in ("quantization_config", "compression_config"):
            if hasattr(one, key):
                delattr(one, key)
    return config


def _try(model: PreTrainedModel) -> Trial:
    """Run the model once on the meta device."""
    calls: list[AttentionCall] = []

    def record(call: AttentionCall) -> torch.Tensor:
        calls.append(call)
        heads, tokens, _ = call.q.shape
        return call.q.new_empty(tokens, heads, call.v.shape[-1])

    bind(model, record)
    ids = torch.zeros((1, TRIAL_TOKENS), dtype=torch.long, device="meta")
    positions = torch.arange(TRIAL_TOKENS, device="meta")[None]
    with called(model) as linears, torch.no_grad():
        out = model(input_ids=ids, position_ids=positions, attention_mask=torch.ones_like(ids), use_cache=False)
    return Trial(calls, linears, out.logits.shape[-1])


def _try_empty(model: PreTrainedModel) -> tuple[Trial, bool]:
    """Run a model that does not run on the meta device on the CPU; return its linear layers, and whether it must
    compute each token's whole text, as it has no cache that a further token goes on from.

    Raises: ConfigError if it computes no token after others in either way.
    """
    empty_on_cpu(model)
    tokens = np.arange(TRIAL_TOKENS, dtype=np.int32)
    for recomputes in (False, True):
        forward = CachedForward(None, model, 1, recomputes)
        try:
            with called(model) as linears, torch.inference_mode():
                logits = forward.compute(0, tokens, tokens)
                forward.compute(0, tokens[:1], tokens[-1:] + np.int32(1))
            return Trial([], linears, logits.shape[-1]), recomputes
        except Exception as problem:  # whatever a model's code raises
            log.debug("the trial on the CPU failed", exc_info=True)
            said = f"{type(problem).__name__}: {' '.join(str(problem).split()):.200}"
    raise ConfigError(f"{type(model).__name__} of transformers computes no token after others ({said})")


def empty_on_cpu(model: PreTrainedModel) -> None:
    """Move a model to the CPU, with weights of memory that was never written, which Linux maps to one page of zeros.

    It takes address space alone. Raises: ConfigError if there is too little of it.
    """
    try:
        model.to_empty(device="cpu")
        for values in model.buffers():
            values.zero_()
    except RuntimeError as problem:  # of torch's allocator
        raise ConfigError(
            f"{type(model).__name__} of transformers needs more memory than there is ({problem})"
        ) from None


@contextmanager
def called(model: PreTrainedModel) -> Iterator[list[LinearCall]]:
    """Collect the calls of linear layers."""
    names = {id(module): name for name, module in _linears(model)}
    called: list[LinearCall] = []

    def keep(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        x = given[0] if given else torch.empty(0)  # an argument by its name: the call stands alone
        version = len(called) if x.is_inference() else x._version  # the former has none, and stands alone, too
        called.append(LinearCall(names[id(module)], module, x, version))

    hooks = [module.register_forward_pre_hook(keep) for _, module in _linears(model)]
    try:
        yield called
    finally:
        for hook in hooks:
            hook.remove()


def _linears(model: PreTrainedModel) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, module in model.named_modules():
        plain = type(module).forward in (torch.nn.Linear.forward, Conv1D.forward)
        if plain and isinstance(module, torch.nn.Linear | Conv1D):
            yield name, module


def _attention(calls: list[AttentionCall], text: PretrainedConfig) -> dict[str, Any]:
    """Return the sizes of the KV cache: a layer for each call, all as large as the largest."""
    layer = Layer(Attention(rope=None), FeedForward(1))
    if not calls:
        layers = int(getattr(text, "num_hidden_layers", 1))
        heads = int(getattr(text, "num_attention_heads", 1) or 1)
        kv_heads = int(getattr(text, "num_key_value_heads", heads) or heads)
        width = int(getattr(text, "hidden_size", heads))
        head_dim = int(getattr(text, "head_dim", 0) or max(1, width // heads))
        return {"heads": kv_heads, "kv_heads": kv_heads, "head_dim": head_dim, "layers": (layer,) * layers}
    return {
        "heads": calls[0].q.shape[0],
        "kv_heads": max(call.k.shape[0] for call in calls),
        "head_dim": max(max(call.q.shape[-1], call.v.shape[-1]) for call in calls),
        "layers": tuple(replace(layer, mixer=Attention(rope=None, window=call.window)) for call in calls),
    }
