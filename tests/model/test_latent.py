"""Latent attention, and chosen keys, through the engine: transformers' tokens, blocks alone, drafts and prefixes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.model.test_states import BOX, SEEDS, served
from tests.model.test_transformers_executor import prompt_of
from tests.model.transformers_types import VOCABULARY, reference_tokens, save_tiny
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from forearm import _native
from forearm.config.engine_config import EngineConfig
from forearm.engine.host.memory_plan import fit
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.quantization.quantization import Asked

TYPES = ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3"]
SHORTCUT = "longcat_flash"  # experts beside two attentions, some of which pass rows on
INDEXED = ["deepseek_v32", "glm_moe_dsa", "hy_v4", "axk2"]
WINDOWED = "dots3_note_text"  # a third layer with a window and other sizes
BLOCKS = "minimax_m3_vl_text"  # attention to blocks that an indexer chooses


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[list[int]]]]:
    """A model of each type with a tokenizer, and what transformers generates for the prompts, greedily."""
    found: dict[str, tuple[Path, list[list[int]]]] = {}
    for model_type in [*TYPES, SHORTCUT, *INDEXED, WINDOWED, BLOCKS]:
        folder = tmp_path_factory.mktemp(model_type)
        model = save_tiny(model_type, folder)
        words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w3"))
        PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(folder)
        found[model_type] = folder, [reference_tokens(model, prompt_of(seed)) for seed in SEEDS]
    return found


@pytest.mark.parametrize("model_type", [*TYPES, SHORTCUT, *INDEXED, WINDOWED, BLOCKS])
@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 4, "threads": 1},
        {"max_num_seqs": 3, "threads": 2, "max_num_batched_tokens": 7},
        {"max_num_seqs": 12, "threads": 2, "enable_prefix_caching": True},
        {"max_num_seqs": 6, "threads": 2, "speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    ],
    ids=["in turns", "in chunks", "together", "with drafts"],
)
def test_an_engine_gives_the_tokens_of_generate(
    made: dict[str, tuple[Path, list[list[int]]]], model_type: str, settings: dict[str, Any]
) -> None:
    folder, wanted = made[model_type]

    found, _ = served(folder, **settings)

    assert found == [tokens[:16] for tokens in wanted for _ in range(2)]


@pytest.mark.parametrize("model_type", ["deepseek_v3", SHORTCUT, "glm_moe_dsa", WINDOWED, BLOCKS])
def test_a_preempted_sequence_gives_the_same_tokens(
    made: dict[str, tuple[Path, list[list[int]]]], model_type: str
) -> None:
    folder, wanted = made[model_type]
    block = _native.kv_block_bytes(open_checkpoint(folder).config, "float32")

    found, llm = served(folder, max_num_seqs=6, threads=1, kv_cache_memory_bytes=4 * block)

    assert found == [tokens[:16] for tokens in wanted for _ in range(2)]
    assert llm._loop.scheduler.preemptions > 0


@pytest.mark.parametrize("model_type", [*TYPES, SHORTCUT])
def test_a_block_holds_one_latent_a_token(made: dict[str, tuple[Path, list[list[int]]]], model_type: str) -> None:
    folder, _ = made[model_type]

    planned = fit(EngineConfig(dtype="float32"), folder, BOX, 1)

    layers = 4 if model_type == SHORTCUT else 2  # that attend
    assert planned.block_bytes == layers * 32 * 32 * 4  # tokens, 16 + 8 numbers padded to 32, float32


@pytest.mark.parametrize("model_type", [*INDEXED, WINDOWED])
def test_a_block_holds_the_keys_of_an_indexer_too(
    made: dict[str, tuple[Path, list[list[int]]]], model_type: str
) -> None:
    folder, _ = made[model_type]

    planned = fit(EngineConfig(dtype="float32"), folder, BOX, 1)

    of_window = 48 if model_type == WINDOWED else 0  # 32 + 16 numbers
    assert planned.block_bytes == 32 * (2 * (32 + 16) + of_window) * 4


def test_a_block_holds_the_keys_that_blocks_are_chosen_by(made: dict[str, tuple[Path, list[list[int]]]]) -> None:
    folder, _ = made[BLOCKS]

    planned = fit(EngineConfig(dtype="float32"), folder, BOX, 1)

    assert planned.block_bytes == (2 * 2 * 2 * 16 + 16) * 32 * 4  # layers, keys and values, kv heads; one layer chooses


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("model_type", [*TYPES, SHORTCUT, *INDEXED, WINDOWED, BLOCKS])
def test_weights_are_quantized_while_loading(
    made: dict[str, tuple[Path, list[list[int]]]], model_type: str, quantization: str
) -> None:
    folder, _ = made[model_type]
    formats = open_checkpoint(folder, quantization=Asked(quantization)).formats

    found, _ = served(folder, max_num_seqs=4, threads=2, quantization=quantization)

    assert found[::2] == found[1::2]
    assert formats["layers.0.qkv" if model_type == BLOCKS else "layers.0.latent_in"].is_quantized
    small = ("k_up", "v_up", "index_in", "gate_down", "gate_up")
    assert {format.dtype for name, format in formats.items() if name.endswith(small)} == {"float32"}
