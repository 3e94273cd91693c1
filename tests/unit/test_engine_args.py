"""EngineArgs: the arguments of LLM as attributes and as flags of a script's own parser."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import pytest

from forearm import EngineArgs
from forearm.config.engine_config import EngineConfig
from forearm.errors import ConfigError
from forearm.offline.arguments import settings_of


def parsed(*argv: str) -> Any:
    parser = ArgumentParser()
    parser.add_argument("--device", default="cpu")  # a script's own, also a flag of vLLM's former releases
    assert EngineArgs.add_cli_args(parser) is parser
    parser.add_argument("--max-tokens", type=int)
    return parser.parse_args(argv)


def test_nothing_given_asks_for_nothing() -> None:
    args = vars(parsed())

    assert (args["model"], args["gpu_memory_utilization"], args["enforce_eager"], args["swap_space"]) == (
        "",
        0.92,
        False,
        None,
    )
    del args["device"], args["max_tokens"]
    settings = settings_of(args)
    default = EngineConfig()
    assert {name: value for name, value in settings.items() if value not in (None, getattr(default, name))} == {}


def test_a_variable_counts_where_its_flag_is_not_given() -> None:
    """LLM(**vars(args)) must not override VLLM_CPU_INT4_W4A8 with a default."""
    args = parsed()

    assert args.quantization_activations is None
    assert args.kv_cache_memory_bytes is None


def test_flags_have_the_notations_of_the_command_line() -> None:
    args = parsed(
        *("--model", "folder", "--max-model-len", "4k", "-tp", "2", "--no-enable-prefix-caching", "--max-tokens", "3"),
        *("--speculative-config", '{"method": "ngram"}', "--gpu-memory-utilization", "0.5", "--enforce-eager"),
        *("--load-format", "safetensors", "--served-model-name", "a", "b", "--disable-log-stats"),
    )

    settings = settings_of({name: value for name, value in vars(args).items() if name not in ("device", "max_tokens")})

    assert settings["model"] == "folder"
    assert (settings["max_model_len"], settings["tensor_parallel_size"], settings["memory_utilization"]) == (
        4000,
        2,
        0.5,
    )
    assert (settings["enable_prefix_caching"], settings["log_stats"]) == (False, False)
    assert settings["speculative_config"] == {"method": "ngram"}


def test_from_cli_args_leaves_out_what_is_the_scripts_own() -> None:
    args = EngineArgs.from_cli_args(parsed("--seed", "5", "--max-tokens", "3"))

    assert args.seed == 5
    assert "max_tokens" not in vars(args)
    assert (args.load_format, args.enable_lora, args.max_num_seqs) == (None, False, 128)
    with pytest.raises(AttributeError, match="max_tokens"):
        _ = args.max_tokens


def test_attributes_that_are_not_given_read_as_defaults_and_can_be_set() -> None:
    args = EngineArgs(model="folder", gpu_memory_utilization=0.5)

    args.seed = 7

    assert (args.max_num_seqs, args.tensor_parallel_size, args.enable_lora) == (128, 1, None)
    assert vars(args) == {"model": "folder", "gpu_memory_utilization": 0.5, "seed": 7}
    with pytest.raises(AttributeError, match="max_tokens"):
        _ = args.max_tokens


def test_a_wrong_value_names_what_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--max-num-seqs", "many")

    assert "--max-num-seqs: many: write a whole number" in capsys.readouterr().err


def test_what_is_refused_is_refused_by_llm_and_not_by_the_parser() -> None:
    args = vars(EngineArgs.from_cli_args(parsed("--enable-lora")))

    with pytest.raises(ConfigError, match="LoRA adapters are not built yet"):
        settings_of(args)
