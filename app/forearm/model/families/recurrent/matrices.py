"""The matrices of mixers that keep a state (families/matrices.py has those of all others)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from forearm.model.families.config import Experts, ModelConfig
from forearm.model.families.matrix_spec import MatrixPart, MatrixSpec, single
from forearm.model.families.recurrences import GatedDelta, Lightning, RgLru, SelectiveScan
from forearm.model.families.recurrent.time_mixing import Rwkv7


def _delta(config: ModelConfig, own: GatedDelta, at: str) -> Iterator[MatrixSpec]:
    """Yield the matrices of a gated delta rule."""
    key, value, rank = own.key_heads * own.key_dim, own.value_heads * own.value_dim, own.gate_rank
    of = "_latent" if rank else ""  # gates of channels are made of latents
    sizes = (("q", "qkv", key), ("k", "qkv", key), ("v", "qkv", value), (f"z{of}", "z", rank or value))
    joint = tuple(MatrixPart(f"{at}delta_{name}", f"linear_attn.in_proj_{stored}", r) for name, stored, r in sizes)
    yield MatrixSpec(f"{at}delta_in", joint, config.hidden, "mixer_in", config.centred)
    two = (("b", "b", own.value_heads), (f"a{of}", "a", rank or own.decays))
    gates = tuple(MatrixPart(f"{at}delta_{name}", f"linear_attn.in_proj_{stored}", r) for name, stored, r in two)
    yield MatrixSpec(f"{at}delta_gates", gates, config.hidden, "router", config.centred)
    if rank:
        yield single(f"{at}delta_z", "linear_attn.z_up_proj", value, rank, "mixer_inner")
        yield single(f"{at}delta_a", "linear_attn.a_up_proj", own.decays, rank, "router")
    yield single(f"{at}delta_out", "linear_attn.out_proj", config.hidden, value, "mixer_out")


def _lightning(config: ModelConfig, own: Lightning, at: str) -> Iterator[MatrixSpec]:
    """Yield the matrices of lightning attention."""
    joint = tuple(MatrixPart(f"{at}lightning_{name}", "self_attn.qkv_proj", own.inner) for name in "vkq")
    yield MatrixSpec(f"{at}lightning_in", joint, config.hidden, "mixer_in", config.centred)
    yield single(f"{at}lightning_gate", "self_attn.output_gate", own.inner, config.hidden, "mixer_in", config.centred)
    yield single(f"{at}lightning_out", "self_attn.out_proj", config.hidden, own.inner, "mixer_out")


def _scan(config: ModelConfig, own: SelectiveScan, at: str) -> Iterator[MatrixSpec]:
    """Yield the matrices of Mamba: x and gates, then dt's latent, b and c of x, and dt of its latent."""
    width, sizes = config.hidden, (("latent", own.dt_rank), ("b", own.state_dim), ("c", own.state_dim))
    joint = tuple(MatrixPart(f"{at}scan_{name}", "mamba.in_proj", own.inner) for name in "xz")
    select = tuple(MatrixPart(f"{at}scan_{name}", "mamba.x_proj", rows) for name, rows in sizes)
    yield MatrixSpec(f"{at}scan_in", joint, width, "mixer_in", own.bias or config.centred)
    yield MatrixSpec(f"{at}scan_select", select, own.inner, "mixer_inner")
    yield single(f"{at}scan_dt", "mamba.dt_proj", own.inner, own.dt_rank, "mixer_inner", bias=True)
    yield single(f"{at}scan_out", "mamba.out_proj", width, own.inner, "mixer_out", own.bias)


def _rg_lru(config: ModelConfig, own: RgLru, at: str) -> Iterator[MatrixSpec]:
    """Yield the matrices of an RG-LRU, which all have biases; of the gates each head has one."""
    joint = tuple(MatrixPart(f"{at}lru_{name}", f"temporal_block.linear_{name}", own.inner) for name in "xy")
    yield MatrixSpec(f"{at}lru_in", joint, config.hidden, "mixer_in", bias=True)
    heads, width = own.gate_heads, own.inner // own.gate_heads
    for name, stored in (("input_gate", "input_gate"), ("recurrence_gate", "recurrent_gate")):
        part = MatrixPart(f"{at}lru_{name}", f"temporal_block.rg_lru.{stored}", width)
        yield MatrixSpec(part.name, (part,), width, "mixer_heads", bias=True, experts=heads, active=heads)
    yield single(f"{at}lru_out", "temporal_block.linear_out", config.hidden, own.inner, "mixer_out", bias=True)


def _rwkv7(config: ModelConfig, own: Rwkv7, at: str) -> Iterator[MatrixSpec]:
    """Yield the matrices of RWKV-7's time mixing; the second of a pair has a bias, but for that of the gates."""
    for name in "rkv":
        yield single(f"{at}rwkv_{name}", f"attn.{name}_proj", own.inner, config.hidden, "mixer_shifted")
    ranks = {"w": own.decay_rank, "a": own.rate_rank, "v": own.value_rank, "g": own.gate_rank}
    for name, rank in ranks.items():
        if rank:
            module = f"attn.{name}_lora.lora"
            yield single(f"{at}rwkv_{name}_down", f"{module}.0", rank, config.hidden, "mixer_low_rank")
            yield single(f"{at}rwkv_{name}_up", f"{module}.2", own.inner, rank, "mixer_low_rank", name != "g")
    yield single(f"{at}rwkv_out", "attn.o_proj", config.hidden, own.inner, "mixer_out")


OF_MIXER: dict[type, Callable[[ModelConfig, Any, str], Iterator[MatrixSpec]]] = {
    GatedDelta: _delta, Lightning: _lightning, SelectiveScan: _scan, RgLru: _rg_lru,
    Rwkv7: _rwkv7,
}  # fmt: skip


def router_mlp(config: ModelConfig, own: Experts, at: str) -> Iterator[MatrixSpec]:
    """Yield the matrices of a router that is an MLP."""
    assert own.router is not None
    rank = own.router.rank
    yield single(f"{at}router_down", "mlp.gate.down_proj", rank, config.hidden, "router", bias=True)
    yield single(f"{at}router_first", "mlp.gate.router_mlp.fc1", rank, rank, "router", bias=True)
    yield single(f"{at}router_second", "mlp.gate.router_mlp.fc2", rank, rank, "router", bias=True)
    yield single(f"{at}router", "mlp.gate.router_mlp.out_proj", own.count + own.zeros, rank, "router")
