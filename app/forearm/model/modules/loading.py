"""Loads a model that transformers computes: its linear layers as packed matrices, all other tensors in float32."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import accumulate, groupby
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from forearm import _native
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.families.config import LinearModule
from forearm.model.modules.architecture import TORCH_DTYPES
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

log = logging.getLogger(__name__)

_PIECE_VALUES = 16 << 20  # of a matrix packed at a time


def load_modules(checkpoint: Checkpoint, native: _native.Executor, step_rows: int) -> PreTrainedModel:
    """Return the model of a checkpoint with its linear layers in `native`, which has all its weights then.

    step_rows: most rows that `native` multiplies at a time.
    Raises: ConfigError if transformers can't load the weights.
    """
    torch.set_num_threads(native.threads)
    register()
    dtype = TORCH_DTYPES[checkpoint.config.dtype]
    ours = {} if checkpoint.own_cache else {"attn_implementation": NAME}
    try:
        load: Any = AutoModelForCausalLM.from_pretrained
        model, found = load(
            checkpoint.folder, dtype=dtype, output_loading_info=True, trust_remote_code=checkpoint.own_code,
            **ours,
        )  # fmt: skip
    except (OSError, ValueError, RuntimeError) as problem:
        raise ConfigError(f"{checkpoint.folder}: transformers can't load it: {problem}") from None
    if missing := sorted(found["missing_keys"]):
        raise ConfigError(
            f"{checkpoint.folder}: it has no {missing[0]} and {len(missing) - 1} other tensors of "
            f"{type(model).__name__}, the generating model that transformers makes of its type"
        )
    assert isinstance(model, PreTrainedModel)
    model.train(False)
    modules = dict(model.named_modules())
    for linear in checkpoint.config.linears:
        weight, bias = linear_weight(modules[linear.name]), modules[linear.name].bias
        step = max(1, _PIECE_VALUES // linear.k)
        for row in range(0, linear.rows, step):
            piece = weight[row : row + step].detach().float().contiguous()
            native.load_matrix(linear.name, piece.numpy(), "float32", row)
        if isinstance(bias, torch.Tensor):
            native.load_vector(f"{linear.name}.bias", bias.detach().float().numpy())
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
