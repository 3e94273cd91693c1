"""Names, configuration classes and settings of further cases (cases.py)."""

from __future__ import annotations

from typing import Any

ROWS: list[tuple[str, str, dict[str, Any]]] = [
    # the GPTs: fused tensors stored by columns, by head or by shares of the heads
    ("gpt2", "GPT2Config", {}),
    ("gpt2-untied", "GPT2Config", {
        "n_inner": 100, "activation_function": "relu", "tie_word_embeddings": False, "scale_attn_weights": False,
        "num_hidden_layers": 3,
    }),
    ("gpt_bigcode", "GPTBigCodeConfig", {}),
    ("gpt_bigcode-by-head", "GPTBigCodeConfig", {
        "n_inner": 100, "multi_query": False, "tie_word_embeddings": False, "num_hidden_layers": 3,
    }),
    ("gptj", "GPTJConfig", {"rotary_dim": 6}),
    ("gptj-n-inner", "GPTJConfig", {"rotary_dim": 12, "n_inner": 100, "num_hidden_layers": 3}),
    ("codegen", "CodeGenConfig", {"rotary_dim": 4, "num_attention_heads": 4, "hidden_size": 48}),
    ("codegen-8", "CodeGenConfig", {"rotary_dim": 10, "num_attention_heads": 8, "hidden_size": 80, "n_inner": 100}),
    ("gpt_neox", "GPTNeoXConfig", {"hidden_size": 96, "intermediate_size": 100}),
    ("gpt_neox-in-turn", "GPTNeoXConfig", {
        "intermediate_size": 100, "use_parallel_residual": False, "attention_bias": False, "num_hidden_layers": 3,
        "tie_word_embeddings": True, "rope_parameters": {
            "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0,
        },
    }),
]  # fmt: skip
