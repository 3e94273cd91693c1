"""Families that are written as .gguf files: their architectures, and the keys that only they have.

A key that follows from all models' sizes is in gguf_keys.py, and what a family takes for granted needs none:
`difference` there refuses a model that differs from it.
Source: the converter (convert_hf_to_gguf.py, conversion/) of ggml-org/llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from forearm.array_types import Float64Array
from forearm.config.number_formats import INTEGERS
from forearm.errors import ConfigError
from forearm.model.families.config import Experts, ModelConfig
from forearm.model.families.keys import Keys
from forearm.model.gguf.conversion import written_dense as dense
from forearm.model.gguf.conversion import written_experts as experts
from forearm.model.gguf.conversion import written_gemma as gemma
from forearm.model.gguf.conversion import written_states as states
from forearm.model.gguf.conversion.written_dense import GgufKeys


@dataclass(frozen=True)
class GgufFamily:
    """A family that is written. own: keys beside the common ones, or other values of these; None: it has none.

    names: of tensors that differ from those of the architecture, where a file may have either. factors: returns the
    model without multipliers that files have no keys for, and what its matrices are multiplied with instead: one
    number, or one for each row, by the executor's name in a layer. unused: returns the shapes of tensors that
    llama.cpp asks for and does not use, which are zeros.
    """

    architecture: str
    own: Callable[[ModelConfig, Keys], GgufKeys] = lambda config, keys: {}
    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    factors: Callable[[ModelConfig, Keys], tuple[ModelConfig, dict[str, Float64Array]]] = lambda config, keys: (
        config,
        {},
    )
    unused: Callable[[ModelConfig], dict[str, tuple[int, ...]]] = lambda config: {}


def family_of(config: ModelConfig) -> GgufFamily:
    """Return how a family is written. Raises: ConfigError if it is not."""
    routed = any(isinstance(layer.feed_forward, Experts) for layer in config.layers)
    if routed and config.model_type == "nemotron_h":
        return _NEMOTRON_H_MOE
    if config.model_type not in GGUF_FAMILIES:
        raise ConfigError(
            f"{config.model_type}: forearm writes no GGUF files of this family (docs/models.md lists those it writes); "
            f"take llama.cpp's convert_hf_to_gguf.py and requantize what it writes, or choose --format {INTEGERS[4]}"
        )
    return GGUF_FAMILIES[config.model_type]


_JOINT = dict.fromkeys("qkv", "attn_qkv")
_GATE_UP = {"experts.gate": "ffn_gate_up_exps[0]", "experts.up": "ffn_gate_up_exps[1]"}
_NEMOTRON_H_MOE = GgufFamily("nemotron_h_moe", states.nemotron_h_moe)
GGUF_FAMILIES: dict[str, GgufFamily] = {
    "llama": GgufFamily("llama"), "mistral": GgufFamily("llama"), "internlm3": GgufFamily("llama"),
    "qwen2": GgufFamily("qwen2"), "qwen3": GgufFamily("qwen3"), "phi3": GgufFamily("phi3", dense.phi3),
    "smollm3": GgufFamily("smollm3"), "granite": GgufFamily("granite", dense.granite), "olmo2": GgufFamily("olmo2"),
    "olmo3": GgufFamily("olmo2", dense.windows), "exaone4": GgufFamily("exaone4", dense.windows),
    "seed_oss": GgufFamily("seed_oss"), "glm4": GgufFamily("glm4"), "glm": GgufFamily("chatglm"),
    "hunyuan_v1_dense": GgufFamily("hunyuan-dense"), "ernie4_5": GgufFamily("ernie4_5"),
    "starcoder2": GgufFamily("starcoder2", dense.window), "cohere": GgufFamily("command-r", dense.cohere),
    "cohere2": GgufFamily("cohere2", dense.cohere2), "nemotron": GgufFamily("nemotron"), "arcee": GgufFamily("arcee"),
    "stablelm": GgufFamily("stablelm", dense.residual), "phi": GgufFamily("phi2"),
    "olmo": GgufFamily("olmo", dense.clipped), "gpt2": GgufFamily("gpt2", names=_JOINT),
    "gpt_bigcode": GgufFamily("starcoder", names=_JOINT), "gptj": GgufFamily("gptj"),
    "gpt_neox": GgufFamily("gptneox", dense.residual, _JOINT), "falcon": GgufFamily("falcon", dense.falcon, _JOINT),
    "bloom": GgufFamily("bloom", names=_JOINT), "mpt": GgufFamily("mpt", dense.mpt, _JOINT),
    "jais2": GgufFamily("jais2"), "ministral3": GgufFamily("mistral3", dense.ministral3),
    "gemma": GgufFamily("gemma"), "gemma2": GgufFamily("gemma2", gemma.gemma2),
    **dict.fromkeys(("gemma3_text", "gemma3"), GgufFamily("gemma3", gemma.gemma3)),
    **dict.fromkeys(("gemma3n_text", "gemma3n"), GgufFamily("gemma3n", gemma.gemma3n, unused=gemma.unused_by_gemma3n)),
    **dict.fromkeys(("gemma4_text", "gemma4"), GgufFamily("gemma4", gemma.gemma4, _GATE_UP)),
    # with experts
    "mixtral": GgufFamily("llama"), "qwen2_moe": GgufFamily("qwen2moe"), "qwen3_moe": GgufFamily("qwen3moe"),
    "olmoe": GgufFamily("olmoe"), "gpt_oss": GgufFamily("gpt-oss", dense.window),
    "granitemoe": GgufFamily("granitemoe", dense.granite), "granitemoeshared": GgufFamily("granitemoe", dense.granite),
    "glm4_moe": GgufFamily("glm4moe", experts.routed), "ernie4_5_moe": GgufFamily("ernie4_5-moe", experts.ernie),
    "minimax_m2": GgufFamily("minimax-m2", experts.scored), "dots1": GgufFamily("dots1", experts.routed),
    "hunyuan_v1_moe": GgufFamily("hunyuan-moe", experts.hunyuan), "phimoe": GgufFamily("phimoe", experts.phimoe),
    "exaone_moe": GgufFamily("exaone-moe", experts.exaone),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu"), GgufFamily("deepseek2", experts.latent)),
    # with layers that keep a state
    "lfm2": GgufFamily("lfm2", states.lfm2), "lfm2_moe": GgufFamily("lfm2moe", states.lfm2_moe),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5"), GgufFamily("qwen35", states.qwen)),
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_5_moe"), GgufFamily("qwen35moe", states.qwen)),
    "qwen3_next": GgufFamily("qwen3next", states.qwen),
    "granitemoehybrid": GgufFamily("granitehybrid", states.granite), "bamba": GgufFamily("granitehybrid", states.bamba),
    "nemotron_h": GgufFamily("nemotron_h", states.nemotron_h), "mamba2": GgufFamily("mamba2", states.mamba2),
    "mamba": GgufFamily("mamba", states.mamba), "falcon_mamba": GgufFamily("mamba", states.mamba),
    "jamba": GgufFamily("jamba", states.jamba),
    "falcon_h1": GgufFamily("falcon-h1", states.falcon_h1, factors=states.falcon_factors),
}  # fmt: skip
