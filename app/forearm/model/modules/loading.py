"""Loads a model that transformers computes: its linear layers as packed matrices, all other tensors in float32."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, groupby
from typing import Any

import torch
from tqdm import tqdm
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from forearm import _native
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.checkpoint.shards import Files
from forearm.model.checkpoint.weights import MOST_DECODERS, Loader
from forearm.model.modules.architecture import TORCH_DTYPES, build, configuration
from forearm.model.modules.attention import NAME, register
from forearm.model.modules.joint import PANEL, has_code_of, linear_weight
from forearm.model.modules.linear import (
    GatedFeedForward,
    JointProduct,
    PackedLinear,
    PackedNorm,
    PackedProduct,
    Product,
)
from forearm.model.modules.linear_module import LinearModule
from forearm.model.modules.pooled import auto_class, without_pooler
from forearm.model.quantization.codes import CodedMatrix

log = logging.getLogger(__name__)

_PIECE_VALUES = 16 << 20  # of a matrix packed at a time


def load_modules(checkpoint: Checkpoint, native: _native.Executor, step_rows: int) -> PreTrainedModel:
    """Return the model of a checkpoint with its linear layers in `native`, which has all its weights then.

    step_rows: most rows that `native` multiplies at a time.
    Raises: ConfigError if transformers can't load the weights.
    """
    torch.set_num_threads(native.threads)
    register()
    model = _loaded(checkpoint)
    _pack(checkpoint, model, native)
    replace_layers(model, native, checkpoint.config.linears, step_rows)
    native.finish_loading()
    for module in model.modules():
        if has_code_of(module, LlamaRMSNorm):
            module.forward = PackedNorm(native, module)
        if isinstance(module, torch.nn.Embedding):  # keeps its dtype, as the largest table, and widens rows
            module.register_forward_hook(lambda _, __, rows: rows.float() if isinstance(rows, torch.Tensor) else rows)
            continue
        for values in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if values.is_floating_point():
                values.data = values.data.float()
    return model


def _loaded(checkpoint: Checkpoint) -> PreTrainedModel:
    """Return the model of a checkpoint with all weights but those that are quantized.

    Raises: ConfigError if transformers can't load it, or the checkpoint lacks a tensor.
    """
    dtype = TORCH_DTYPES[checkpoint.config.dtype]
    ours = {} if checkpoint.own_cache else {"attn_implementation": NAME}
    try:
        make = auto_class(checkpoint.pooling)
        load: Any = make.from_pretrained
        if checkpoint.sources:
            given = configuration(checkpoint.folder, checkpoint.own_code, checkpoint.config.pooled)
            model = build(given, own_cache=bool(checkpoint.own_cache), own_code=checkpoint.own_code, make=make)
            load = partial(_without_weights(type(model), checkpoint).from_pretrained, config=given)
        elif checkpoint.own_code:
            load = partial(load, trust_remote_code=True)
        model, found = load(checkpoint.folder, dtype=dtype, output_loading_info=True, **ours)
    except (OSError, ValueError, RuntimeError) as problem:
        raise ConfigError(f"{checkpoint.folder}: transformers can't load it: {problem}") from None
    assert isinstance(model, PreTrainedModel)
    model = without_pooler(model, checkpoint.pooling) if checkpoint.pooling else model
    needed = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    if missing := sorted(needed.intersection(found["missing_keys"])):
        raise ConfigError(
            f"{checkpoint.folder}: it has no {missing[0]} and {len(missing) - 1} other tensors of "
            f"{type(model).__name__}, the model that transformers makes of its type"
        )
    model.train(False)
    return model


def _without_weights(model_class: type[PreTrainedModel], checkpoint: Checkpoint) -> Any:
    """Return a class of the same model whose quantized layers have no weights, but their biases."""
    with_bias = {one.name: one.bias for one in checkpoint.config.linears}
    coded = [one for _, one in checkpoint.sources if isinstance(one, CodedMatrix)]
    ends = {tensor.name.rpartition(".")[2] for one in coded for tensor in one.tensors}

    def begin(self: PreTrainedModel, config: PretrainedConfig, *others: Any, **named: Any) -> None:
        model_class.__init__(self, config, *others, **named)
        for part, _ in checkpoint.sources:
            rows, k = part.shape
            empty = PackedLinear(lambda x: x, (rows, k))
            bias = torch.nn.Parameter(torch.empty(rows)) if with_bias[part.name] else None
            empty.register_parameter("bias", bias)
            self.set_submodule(part.name, empty)

    given = {"__init__": begin, "_keys_to_ignore_on_load_unexpected": [rf"\.({'|'.join(sorted(ends))})$"]}
    return type(model_class.__name__, (model_class,), given)


def _pack(checkpoint: Checkpoint, model: PreTrainedModel, native: _native.Executor) -> None:
    """Load the weights and biases of linear layers into `native`: those of the model, and the checkpoint's codes."""
    modules, coded = dict(model.named_modules()), {part.name for part, _ in checkpoint.sources}
    for linear in checkpoint.config.linears:
        bias = modules[linear.name].bias
        if isinstance(bias, torch.Tensor):
            native.load_vector(f"{linear.name}.bias", bias.detach().float().numpy())
        if linear.name in coded:
            continue
        weight, step = linear_weight(modules[linear.name]), max(1, _PIECE_VALUES // linear.k)
        for row in range(0, linear.rows, step):
            piece = weight[row : row + step].detach().float().contiguous()
            native.load_matrix(linear.name, piece.numpy(), "float32", row)
    with tqdm(disable=True) as bar, ThreadPoolExecutor(min(native.threads, MOST_DECODERS), "decode") as decoders:
        loader = Loader(checkpoint, Files(), decoders, bar)
        for part, stored in checkpoint.sources:
            loader.load(native, part, stored)


def replace_layers(
    model: PreTrainedModel, native: _native.Executor, linears: Iterable[LinearModule], step_rows: int
) -> None:
    """Replace linear layers by products with the packed matrices in `native`, and feed-forwards of gate and up."""
    for name, group in groupby(linears, key=lambda one: one.matrix):
        layers = list(group)
        product = PackedProduct(native, name, layers[0].k, step_rows, layers[0].gate)
        if layers[0].gate:
            feed_forward = model.get_submodule(layers[0].name.rpartition(".")[0])
            feed_forward.forward = GatedFeedForward(product, feed_forward)
            for layer in layers:
                model.get_submodule(layer.name).to("meta")  # keeps what other modules may ask for, its shape
            continue
        together: Product = JointProduct(product, len(layers)) if len(layers) > 1 else product
        columns = accumulate((-(-one.rows // PANEL) * PANEL for one in layers), initial=0)
        for layer, column in zip(layers, columns, strict=False):
            first = column if len(layers) > 1 else None
            model.set_submodule(layer.name, PackedLinear(together, (layer.rows, layer.k), first))
