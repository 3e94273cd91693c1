"""Names of the executor's tensors in a checkpoint: Llama's names, and the ones that a family changes.

The list of matrices (matrices.py) holds Llama's names of matrices, vector_names.py those of vectors.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from forearm.errors import ConfigError
from forearm.model.checkpoint.mixer_names import heads_of, low_rank
from forearm.model.checkpoint.tensor_part import TensorPart, halves, norm_vectors, pieces, tensors
from forearm.model.checkpoint.vector_names import VECTORS, layer_name, stored_at, vectors
from forearm.model.families.config import Experts, LatentAttention, ModelConfig
from forearm.model.families.indexed import deepseek_v4, qwen4_exp
from forearm.model.families.matrices import matrices
from forearm.model.families.matrix_spec import MatrixPart, MatrixSpec
from forearm.model.families.recurrent.delta import as_computed
from forearm.model.families.recurrent.inkling import PUBLISHED as INKLING_PUBLISHED

# Prefixes of a model's tensors: a causal model, multimodal ones (transformers 5, then 4), encoders, a bare model.
_PREFIXES = (
    "model.", "backbone.", "model.language_model.", "language_model.model.", "model.text_model.", "bert.", "roberta.",
    "distilbert.", "nomic_bert.", "gte.", "mpnet.", "new.", "deberta.", "gpt_neox.", "gpt_neox_japanese.", "model.llm.",
    "transformer.", "thinker.model.", "language_model.backbone.", "text_model.model.", "biogpt.", "electra.", "albert.",
    "ernie.", "rembert.", "esm.", "data2vec_text.", "roberta_prelayernorm.", "",
)  # fmt: skip


def parts(config: ModelConfig, stored: Collection[str]) -> list[TensorPart]:
    """Return every matrix and vector that the executor of `config` needs, with its place in the tensors `stored`.

    Raises: ConfigError if the embedding has none of the known names.
    """
    config = _as_stored(config, stored)
    prefix = _prefix(config, stored)
    # What predicts further tokens stands beside the model, without its prefix.
    beside = {f"{prefix}{name}": name for name in stored if config.fuses and name.startswith("mtp.")}
    stored = {*stored, *beside}
    joint = _fused_experts(config, prefix, stored) | _joint_convolution(config, prefix, stored)
    config = replace(config, names=config.names | joint)
    found: list[TensorPart] = []
    for spec in matrices(config):
        if spec.role == "pooler" or spec.name == "head_dense":
            found += _dense(config, spec, stored, found[0].stored)
        elif spec.role == "mixer_heads":
            found += _heads(config, spec, prefix)
        elif spec.role == "mixer_low_rank":
            at = f"{prefix}{layer_name(config.names, int(spec.name.split('.')[1]))}"
            found += low_rank(config.names, spec, at, f"{prefix}{_stored(config, spec.parts[0])}")
        else:
            found += _matrix(config, spec, prefix, stored)
    found += vectors(config, prefix)
    names = {one.stored for one in found if one.stored not in stored}
    others = ((name, name.replace(old, new)) for old, new in reversed(_OTHERWISE) for name in names)
    renamed = {name: other for name, other in others if other in stored}  # the first of several that the checkpoint has
    renamed |= beside
    return [replace(one, stored=renamed[one.stored]) if one.stored in renamed else one for one in found]


# Names in published files, and those that transformers 5 computes with and writes if save_original_format is False;
# and Llama's names with those of Cosmos 3.
_OTHERWISE = (
    ("mlp.experts.e_score_correction_bias", "mlp.gate.e_score_correction_bias"),
    ("mlp.shared_expert.", "mlp.shared_experts."), ("attention_layer_norm.", "input_layernorm."),
    ("feedforward_layer_norm.", "post_attention_layernorm."), ("post_attention_layernorm.", "feedforward_layer_norm."),
    ("self_attn.gate_proj.", "self_attn.g_proj."), ("self_attn.softmax_offset", "self_attn.sinks"),
    ("self_attn.attention_sink_bias", "self_attn.sinks"), ("attention.dense.bias", "attention.dense_bias"),
    ("attention.dense.", "attention.o_proj."), (".post_mlp_layernorm.", ".mlp.post_mlp_layernorm."),
    *((f"self_attn.{part}_proj.", f"self_attn.to_{part}.") for part in "qkv"),
    *((f"self_attn.{part}_norm.", f"self_attn.norm_{part}.") for part in "qk"),
    *((f"self_attn.index_{of}.", f"self_attn.indexer.{of}.") for of in ("q_proj", "k_proj", "q_norm", "k_norm")),
    (".kv_norm.", ".norm."), ("hc_head.hc_head_", "hc_head.hc_"), ("hc_head_", "hc_head.hc_"),
    ("hc_attn_layer.hc_pre.hc_", "attn_hc."), ("hc_mlp_layer.hc_pre.hc_", "ffn_hc."),
    ("self_attn.linear_gate.", "self_attn.gate_proj."), ("self_attn.learnable_sink_param", "self_attn.sinks"),
    ("moe.router.expert_bias", "mlp.gate.e_score_correction_bias"), ("post_ffn_norm.", "post_mlp_layernorm."),
    ("post_attn_norm.", "post_self_attn_layernorm."),
    ("W_down.", "mlp.fc1."), ("W_up.", "mlp.fc2."), ("self_attn.q_b_proj.", "self_attn.q_gate_proj."),
    ("self_attn.o_proj.", "self_attn.to_out."), ("mlp.up_proj.", "mlp.fc1."), ("mlp.down_proj.", "mlp.fc2."),
)  # fmt: skip


def _matrix(config: ModelConfig, spec: MatrixSpec, prefix: str, stored: Collection[str]) -> Iterator[TensorPart]:
    """Yield the parts of one packed matrix with their biases; parts that share a tensor take its rows in order."""
    row, last = 0, ""
    for part in spec.parts if spec.experts > 1 else ():
        own = config.layers[int(part.name.split(".")[1])].feed_forward
        zeros, always = (own.zeros, own.always) if isinstance(own, Experts) else (0, 0)
        zeros = 0 if isinstance(own, Experts) and own.skips else zeros
        chosen = range(spec.experts - always)
        yield from _experts(spec, part, f"{prefix}{_stored(config, part)}", stored, chosen, zeros)
        if always:
            name = stored_at(config.names, part.name, config.names[part.key.replace("experts.", "always.")])
            yield from _experts(spec, part, f"{prefix}{name}", stored, range(spec.experts - always, spec.experts))
    for part in spec.parts if spec.experts == 1 else ():
        module, _, place = f"{prefix}{_stored(config, part)}".rstrip("]").partition("[")
        if spec.role == "head":
            module = _head(config, stored)
        transposed, module = module.endswith(".T"), module.removesuffix(".T")
        row = int(place) * part.rows if place.isdigit() else row if module == last else 0
        whole = part.rows if spec.role == "head" else None  # a rotated model reads a tied head from the embedding
        if part.key == "ngrams":
            for tensor, first, rows in qwen4_exp.shards(module, part.rows, stored):
                yield TensorPart(part.name, tensor, (rows, spec.k), at=first, matrix=spec.name)
            continue
        if spec.role in ("head", "embedding") and config.stored_vocab:
            whole = config.stored_vocab
        if place.endswith("::2"):
            every = TensorPart(part.name, f"{module}.weight", (part.rows, spec.k), int(place[0]), matrix=spec.name)
            yield replace(every, step=2)
            continue
        if ":" in place or "," in place:
            yield from _in_pieces(config, spec, part, module, place, prefix)
            continue
        if place == "halves":
            yield from halves(part, module, config.head_dim, spec)
            continue
        yield TensorPart(
            part.name, f"{module}.weight", (part.rows, spec.k), row, of_rows=whole, matrix=spec.name,
            transposed=transposed,
        )  # fmt: skip
        if spec.bias:  # an embedding's is that of the head, which it is
            of = _head(config, stored) if spec.role == "embedding" else module
            yield TensorPart(f"{part.name}.bias", f"{of}.bias", (part.rows,), row)
        row, last = row + part.rows, module


def _in_pieces(
    config: ModelConfig, spec: MatrixSpec, part: MatrixPart, module: str, place: str, prefix: str
) -> Iterator[TensorPart]:
    """Yield a part that lies in pieces, or in tensors, with its bias, which may be a vector of its own (DeBERTa 1)."""
    name = f"{part.name}.bias"
    apart = config.names.get(f"{part.key}.bias")
    plain = replace(spec, bias=spec.bias and part.bias and apart is None)
    yield from (pieces if ":" in place else tensors)(part, module, place, plain)
    if apart:
        yield TensorPart(name, f"{prefix}{stored_at(config.names, name, apart)}", (part.rows,))


def _stored(config: ModelConfig, part: MatrixPart) -> str:
    """Return the name of a part's module in the checkpoint, without the model's prefix."""
    stored = config.names.get(part.key, part.stored)
    return stored_at(config.names, part.name, stored) if part.name.startswith("layers.") else stored


def _experts(
    spec: MatrixSpec, part: MatrixPart, name: str, stored: Collection[str], experts: range, zeros: int = 0
) -> Iterator[TensorPart]:
    """Yield a part's rows of these experts, with their biases. name: as in ModelConfig.names, with the layer's prefix.

    zeros: further experts that have rows of no use in a tensor of gates and ups, as transformers computes.
    """
    found = _PLACE.fullmatch(name)
    assert found is not None
    module, transposed, place, every = found[1], bool(found[2]), found[3], bool(found[4])
    of_one = "{expert}" in module  # a tensor for each expert
    at_once = 1 if of_one or transposed or place else len(experts)
    rows, step = at_once * part.rows, len(spec.parts) if every else 1
    of_rows = (len(experts) + zeros) * len(spec.parts) * part.rows if place and zeros else None
    for expert in range(0, len(experts), at_once):
        own = module.replace("{expert}", str(expert))
        first = 0 if of_one else expert * part.rows
        if place:
            first = first * len(spec.parts) + int(place) * (1 if every else part.rows)
        shape, at = (rows, spec.k), (experts.start + expert) * part.rows
        tensor = own if own in stored else f"{own}.weight"
        yield TensorPart(part.name, tensor, shape, first, at, of_rows, spec.name, step, transposed)
        if spec.bias:
            bias = f"{own}_bias" if f"{own}_bias" in stored else f"{own}.bias"
            yield TensorPart(f"{part.name}.bias", bias, (rows,), first, at, step=step)


# A name in ModelConfig.names of experts' matrices. "[1]": of the equal parts of an expert, which follow each other, the
# second; "[1::2]": every second row from 1. ".T", also of other matrices: floats are stored as [k, rows].
_PLACE = re.compile(r"(.+?)(\.T)?(?:\[(\d)(::2)?\])?")


def _joint_convolution(config: ModelConfig, prefix: str, stored: Collection[str]) -> dict[str, str]:
    """Return the names in a checkpoint that has a delta rule's three convolutions in one tensor, as transformers 5."""
    tensor = f"{config.names.get('delta', VECTORS['delta'])}.conv1d.weight"
    layers = (f"{prefix}{layer_name(config.names, i)}.{tensor}" for i in range(len(config.layers)))
    apart = "recurrence.conv_q" in config.names
    return {f"recurrence.conv_{part}": tensor for part in "qkv"} if apart and any(at in stored for at in layers) else {}


def _heads(config: ModelConfig, spec: MatrixSpec, prefix: str) -> Iterator[TensorPart]:
    """Yield each head's rows of kv_b_proj: those of its keys, transposed (they multiply queries), or of its values.

    A name of its own, "[all]" behind it, stands for a tensor with the rows of all heads as the executor has them.
    """
    part, layer = spec.parts[0], int(spec.name.split(".")[1])
    own = config.layers[layer].mixer
    if not isinstance(own, LatentAttention):
        yield from heads_of(own, spec, f"{prefix}{_stored(config, part)}")
        return
    module, _, place = _stored(config, part).partition("[")
    tensor = f"{prefix}{module}.weight"
    keys, a_head, heads = part.key == "k_up", own.plain + own.value, config.heads_of(own)[0]
    if place:
        yield TensorPart(part.name, tensor, (heads * part.rows, spec.k), matrix=spec.name)
    for head in range(0 if place else heads):
        first, at, of_rows = head * a_head + (0 if keys else own.plain), head * part.rows, heads * a_head
        yield TensorPart(part.name, tensor, (part.rows, spec.k), first, at, of_rows, spec.name, turned=keys)


def _fused_experts(config: ModelConfig, prefix: str, stored: Collection[str]) -> dict[str, str]:
    """Return the names in a checkpoint that has all experts of a layer in two tensors; empty for most checkpoints.

    gate_up_proj is [experts, 2 * width, hidden], gate before up, and down_proj [experts, hidden, width]. transformers 5
    computes with these and writes them if save_original_format is False; Mixtral's block is then called mlp.
    Experts without gates (Nemotron-H) have up_proj instead.
    The other way round: quantized checkpoints of Llama 4 and Step 3.5, whose own tensors have all experts, have three
    tensors an expert. And when transformers 5 writes Kimi Linear, dense layers are called as those with experts.
    """
    layers = [f"{prefix}{layer_name(config.names, i)}." for i in range(len(config.layers))]
    own, up = (config.names.get(f"experts.{part}", "") for part in ("gate", "up"))
    blocks = (up.partition("experts.")[0].removesuffix("up_proj"), "mlp.", "block_sparse_moe.")
    single = tuple(f"{at}{blocks[0]}experts.0.gate_proj." for at in layers)
    dense = tuple(f"{at}block_sparse_moe.gate_proj." for at in layers)  # .weight, or what a quantized one has
    if any(name.startswith(dense) for name in stored):
        return {part: f"block_sparse_moe.{part}_proj" for part in ("gate", "up", "down")}
    if any(f"{at}{blocks[0]}experts.up_proj" in stored for at in layers):
        return {f"experts.{part}": f"{blocks[0]}experts.{part}_proj" for part in ("up", "down")}
    if own and "{expert}" not in own and any(name.startswith(single) for name in stored):
        return {f"experts.{part}": f"{blocks[0]}experts.{{expert}}.{part}_proj" for part in ("gate", "up", "down")}
    for block in blocks if "gate_up_proj" not in own else ():  # gpt-oss names its fused tensors
        if any(f"{at}{block}experts.gate_up_proj" in stored for at in layers):
            turned = ".T" if ".T" in own else ""  # Aria's
            joint, shared = f"{block}experts.gate_up_proj{turned}", f"{block}shared_experts"
            names = {
                "experts.gate": f"{joint}[0]",
                "experts.up": f"{joint}[1]",
                "experts.down": f"{block}experts.down_proj{turned}",
            }
            if any(f"{at}{shared}.gate_proj.weight" in stored for at in layers):
                names |= {f"shared.{part}": f"{shared}.{part}_proj" for part in ("gate", "up", "down")}
            for of, module in (("shared.", shared), ("", "mlp")):  # MiniMax M3's
                if any(f"{at}{module}.gate_up_proj.weight" in stored for at in layers):
                    names |= dict.fromkeys((f"{of}gate", f"{of}up"), f"{module}.gate_up_proj")
                    names[f"{of}down"] = f"{module}.down_proj"
            correction = config.names.get("correction", VECTORS["correction"])
            beside = correction.replace("mlp.moe_statics.", "mlp.gate.moe_statics.")  # ERNIE's
            bias = f"{block}e_score_correction_bias", f"{block}gate.e_score_correction_bias"
            router = config.names.get("router", f"{block}gate"), f"{block}router", f"{block}gate"
            names["router"] = _first_of(router, ".weight", layers, stored)
            return names | {"correction": _first_of((beside, *bias), "", layers, stored)}
    return {}


def _first_of(names: Sequence[str], end: str, layers: Sequence[str], stored: Collection[str]) -> str:
    """Return the first of these names that a layer has in the checkpoint, or else the first."""
    return next((name for name in names if any(f"{at}{name}{end}" in stored for at in layers)), names[0])


def _dense(config: ModelConfig, spec: MatrixSpec, stored: Collection[str], embed: str) -> Iterator[TensorPart]:
    """Yield the parts of a layer after pooling or before the output head, whose name has no prefix.

    Rows of a tied output head are taken from the embedding.
    """
    number = spec.name.rpartition(".")[2]
    dense = config.dense[int(number)] if number.isdigit() else config.head_dense
    assert dense is not None
    if dense.rows:
        head = f"{_head(config, stored)}.weight"
        at = head if head in stored else embed
        for place, row in enumerate(dense.rows):
            yield TensorPart(spec.name, at, (1, spec.k), row, place, config.vocab_size, matrix=spec.name)
    else:
        yield TensorPart(spec.name, f"{dense.stored}.weight", (dense.outputs, spec.k), matrix=spec.name)
    if dense.bias:
        yield TensorPart(f"{spec.name}.bias", f"{dense.stored}.bias", (dense.outputs,))
    if dense.norm:
        yield from norm_vectors(f"{spec.name}.norm", dense.norm, dense.outputs, config.norm_bias)


def stored_module(config: ModelConfig, stored: Collection[str], key: str) -> str:
    """Return the name in the checkpoint of the model's "embed" or "layers"."""
    config = _as_stored(config, stored)
    return f"{_prefix(config, stored)}{(VECTORS | config.names)[key].partition('[')[0]}"


def _as_stored(config: ModelConfig, stored: Collection[str]) -> ModelConfig:
    """Return the model with the checkpoint's names: as published or as computed, where these differ."""
    if any(".self_attn.forget_gate." in name for name in stored):
        return replace(config, names=as_computed(config.names))
    if config.conv_taps and any(name.endswith(".attn.wq_du.weight") for name in stored):
        return replace(config, names=config.names | INKLING_PUBLISHED)
    if "rwkv_mix_r" in config.names and any(name.endswith(".attn.x_x") for name in stored):  # a layer's six mixes
        return replace(config, names=config.names | {f"rwkv_mix_{name}": "attn.x_x" for name in "rwkvag"})
    if config.hyper_connections is None or not any(name.endswith("layers.0.attn.wq_a.weight") for name in stored):
        return config
    embed = {} if "embed.weight" in stored else {"embed": VECTORS["embed"]}  # as transformers writes the others
    return replace(config, names=config.names | deepseek_v4.PUBLISHED | embed)


def _prefix(config: ModelConfig, stored: Collection[str]) -> str:
    embed = (VECTORS | config.names)["embed"].partition("[")[0]
    for prefix in _PREFIXES:
        if f"{prefix}{embed}.weight" in stored:
            return prefix
    tried = ", ".join(f"{prefix}{embed}.weight" for prefix in _PREFIXES)
    raise ConfigError(f"the checkpoint has no embedding: none of {tried}")


def _head(config: ModelConfig, stored: Collection[str]) -> str:
    """Return the module of the output head."""
    if "head" in config.names:
        return config.names["head"]
    # of multimodal models, and of GPT-NeoX
    others = ("language_model.lm_head", "thinker.lm_head", "text_model.lm_head", "embed_out")
    return next((module for module in others if f"{module}.weight" in stored), "lm_head")
