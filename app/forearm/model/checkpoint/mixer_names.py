"""Names of what mixers that keep a state have beside plain matrices: vectors, and matrices of each head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forearm.model.checkpoint.tensor_part import TensorPart, norm_vectors
from forearm.model.families.config import Attention, Layer, Mixer, ModelConfig
from forearm.model.families.matrix_spec import MatrixSpec
from forearm.model.families.recurrences import GatedDelta, Lightning, Mamba2, RgLru, SelectiveScan, ShortConv
from forearm.model.families.recurrent.time_mixing import Rwkv7


def states(config: ModelConfig, own: Layer, layer: str, at: str, names: Mapping[str, str]) -> Iterator[TensorPart]:
    """Yield the vectors of a mixer that keeps a state."""
    mixer, hidden = own.mixer, config.hidden
    if isinstance(mixer, ShortConv):
        taps = f"{at}.{names['conv']}"
        yield TensorPart(f"{layer}.conv", f"{taps}.weight", (hidden * mixer.taps,))
        if mixer.bias:
            yield TensorPart(f"{layer}.conv.bias", f"{taps}.bias", (hidden,))
    if mamba2 := own.mamba2:
        yield from _recurrence(layer, at, names, names["mamba"], _mamba2(mamba2))
    if isinstance(mixer, SelectiveScan):
        yield from _scan(layer, at, names, mixer)
    if isinstance(mixer, RgLru):
        conv = f"{at}.temporal_block.conv_1d"
        yield TensorPart(f"{layer}.conv", f"{conv}.weight", (mixer.inner * mixer.taps,))
        yield TensorPart(f"{layer}.conv.bias", f"{conv}.bias", (mixer.inner,))
        yield TensorPart(f"{layer}.lru_rate", f"{at}.temporal_block.rg_lru.recurrent_param", (mixer.inner,))
    if isinstance(mixer, Rwkv7):
        yield from _rwkv7(layer, at, names, mixer, hidden)
    if isinstance(mixer, Lightning):
        yield from norm_vectors(f"{layer}.gate_norm", f"{at}.self_attn.norm", mixer.inner, False)
    if isinstance(mixer, GatedDelta):
        apart = "recurrence.conv_q" in names
        yield from _recurrence(layer, at, names, names["delta"], _delta(mixer, apart))
        if apart:
            yield from _convolutions(layer, at, names, mixer)
    if isinstance(mixer, Attention) and mixer.convolved:
        heads, kv_heads, head_dim = config.heads_of(mixer)
        channels, conv = (heads + kv_heads) * head_dim, f"{at}.self_attn.qkv_proj.conv_qk_depthwise"
        yield TensorPart(f"{layer}.conv", f"{conv}.weight", (channels * mixer.convolved.taps,))
        yield TensorPart(f"{layer}.conv.bias", f"{conv}.bias", (channels,))
        yield TensorPart(f"{layer}.key_scale", f"{at}.self_attn.qk_norm.temp", (kv_heads,))


def _mamba2(own: Mamba2) -> dict[str, int]:
    """Return the vectors of a layer of Mamba2, with their sizes."""
    sizes = {"conv": own.channels * own.taps, "dt_bias": own.heads, "a_log": own.heads, "d": own.heads}
    norm = {"gate_norm": own.inner} if own.norm else {}
    return sizes | norm | ({"conv.bias": own.channels} if own.conv_bias else {})


def _scan(layer: str, at: str, names: Mapping[str, str], own: SelectiveScan) -> Iterator[TensorPart]:
    """Yield the vectors of Mamba; the norms of dt's latent, b and c, which the executor has as one, come last."""
    sizes = {"conv": own.inner * own.taps, "a_log": own.inner * own.state_dim, "d": own.inner}
    sizes |= {"conv.bias": own.inner} if own.conv_bias else {}
    yield from _recurrence(layer, at, names, names["mamba"], sizes)
    row = 0
    for part, size in (("dt", own.dt_rank), ("b", own.state_dim), ("c", own.state_dim)) if own.norm_weights else ():
        stored = names.get(f"scan_norm.{part}", f"{names['mamba']}.{part}_layernorm")
        yield TensorPart(f"{layer}.scan_norm", f"{at}.{stored}.weight", (size,), at=row)
        row += size


def _rwkv7(layer: str, at: str, names: Mapping[str, str], own: Rwkv7, hidden: int) -> Iterator[TensorPart]:
    """Yield the vectors of RWKV-7: those that both halves mix a token with the one before it by come last."""
    yield from norm_vectors(f"{layer}.gate_norm", f"{at}.{names['rwkv_norm']}", own.inner, True)
    for name in ("k_k", "k_a", "r_k"):
        yield TensorPart(f"{layer}.rwkv_{name}", f"{at}.{names[f'rwkv_{name}']}", (own.inner,))
    mixes = [names.get(f"rwkv_mix_{name}", names["rwkv_mixes"]) for name in "rwkvag"]
    row = 0
    for i, stored in enumerate(mixes):
        row = row + hidden if stored in mixes[:i] else 0  # one tensor may have all
        yield TensorPart(f"{layer}.rwkv_mixes", f"{at}.{stored}", (hidden,), row, at=i * hidden)
    yield TensorPart(f"{layer}.mlp_mix", f"{at}.{names['mlp_mix']}", (hidden,))


def low_rank(names: Mapping[str, str], spec: MatrixSpec, at: str, module: str) -> Iterator[TensorPart]:
    """Yield a low-rank matrix and its bias, which may have a name of its own in the layer."""
    part = spec.parts[0]
    yield TensorPart(part.name, f"{module}.weight", (part.rows, spec.k), matrix=spec.name)
    if spec.bias:
        own = names.get(f"{part.key}.bias")
        yield TensorPart(f"{part.name}.bias", f"{at}.{own}" if own else f"{module}.bias", (part.rows,))


def _delta(own: GatedDelta, apart: bool) -> dict[str, int]:
    """Return the vectors of a layer of the gated delta rule, with their sizes, but convolutions that are apart."""
    conv = {} if apart else {"conv": own.channels * own.taps}
    return conv | {"dt_bias": own.decays, "a_log": own.value_heads, "gate_norm": own.value_dim}


def _convolutions(layer: str, at: str, names: Mapping[str, str], own: GatedDelta) -> Iterator[TensorPart]:
    """Yield the convolutions of queries, keys and values, which the executor has as one, like some checkpoints."""
    key, row = own.key_heads * own.key_dim * own.taps, 0
    joint = names["recurrence.conv_q"] == names["recurrence.conv_k"]
    for part, size in (("q", key), ("k", key), ("v", own.value_heads * own.value_dim * own.taps)):
        there = names[f"recurrence.conv_{part}"]
        yield TensorPart(f"{layer}.conv", f"{at}.{there}", (size,), row if joint else 0, at=row)
        row += size


def _recurrence(
    layer: str, at: str, names: Mapping[str, str], module: str, vectors: Mapping[str, int]
) -> Iterator[TensorPart]:
    """Yield the vectors of a recurrence, which belong to `module` unless `names` has a name of their own."""
    for name, size in vectors.items():
        there = names.get(f"recurrence.{name}", f"{module}.{_RECURRENCE[name]}")
        stored = there.removeprefix("-exp(").removesuffix(")")
        yield TensorPart(f"{layer}.{name}", f"{at}.{stored}", (size,), negative_exp=stored != there)


_RECURRENCE = {
    "conv": "conv1d.weight", "conv.bias": "conv1d.bias", "dt_bias": "dt_bias", "a_log": "A_log", "d": "D",
    "gate_norm": "norm.weight",
}  # fmt: skip


def heads_of(own: Mixer | None, spec: MatrixSpec, name: str) -> Iterator[TensorPart]:
    """Yield each head's rows of matrices of heads, of a mixer whose matrices are called `name`."""
    if isinstance(own, RgLru):
        yield from _gates(spec, name)
        return
    part = spec.parts[0]  # a convolution's weight, [heads * rows, columns, taps], is the heads' matrices as they are
    rows = spec.experts * part.rows
    yield TensorPart(part.name, f"{name}.weight", (rows, spec.k), matrix=spec.name, joined=True)
    yield TensorPart(f"{part.name}.bias", f"{name}.bias", (rows,))


def _gates(spec: MatrixSpec, name: str) -> Iterator[TensorPart]:
    """Yield each head's rows of a gate of an RG-LRU, whose weight is [heads, k, rows], and their biases."""
    part = spec.parts[0]
    for row in range(0, spec.experts * part.rows, part.rows):
        shape = (part.rows, spec.k)
        yield TensorPart(part.name, f"{name}_weight", shape, row, row, matrix=spec.name, transposed=True)
        yield TensorPart(f"{part.name}.bias", f"{name}_bias", shape[:1], row, row)
