"""Settings: where a value comes from, how its text is read, and what a wrong one says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from forearm.config import configs, vllm_compat
from forearm.config.api_config import ApiConfig
from forearm.config.configs import engine_config
from forearm.config.engine_config import EngineConfig
from forearm.config.flags import CommandLine, CommandParser, read_line
from forearm.config.settings import from_json, to_json
from forearm.config.speculative import Drafting, drafting_asked
from forearm.engine.host.memory_plan import limits_of
from forearm.engine.host.placement import Plan
from forearm.engine.host.split_engines import EngineShare
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.offline.arguments import for_throughput
from forearm.supervisor.run_folder import RunFolder
from forearm.supervisor.serve import ModelFiles
from forearm.supervisor.supervisor import fill_in


def line(*argv: str) -> CommandLine:
    return read_line(CommandParser("forearm serve", ""), argv)


def test_a_flag_wins_over_the_environment_that_over_the_file_that_over_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    assert line().configs.engine.kv_cache_memory_bytes is None

    file.write_text("kv-cache-memory-bytes: 1G\n")
    assert line("--config", str(file)).configs.engine.kv_cache_memory_bytes == 2**30

    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    assert line("--config", str(file)).configs.engine.kv_cache_memory_bytes == 2 * 2**30

    flags = ("--kv-cache-memory-bytes", "3G")
    assert line("--config", str(file), *flags).configs.engine.kv_cache_memory_bytes == 3 * 2**30


PROFILED = {"profiler": "torch", "torch_profiler_dir": "/t", "delay_iterations": 0, "max_iterations": 0}


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--max-model-len", "4096"], "max_model_len", 4096),
        (["--max-model-len", "4k"], "max_model_len", 4000),
        (["--max-model-len", "8K"], "max_model_len", 8192),
        (["--max-model-len=25.6k"], "max_model_len", 25600),
        (["--max-model-len", "auto"], "max_model_len", "auto"),
        (["--max-model-len", "-1"], "max_model_len", "auto"),
        (["--max_model_len", "16"], "max_model_len", 16),
        (["--dtype", "half"], "dtype", "float16"),
        (["--dtype", "float"], "dtype", "float32"),
        (["--no-enable-prefix-caching"], "enable_prefix_caching", False),
        (["--disable-log-stats"], "log_stats", False),
        (["--gpu-memory-utilization", "0.5"], "memory_utilization", 0.5),
        (["facebook/opt-125m"], "model", "facebook/opt-125m"),
        (["--port", "1", "facebook/opt-125m"], "model", "facebook/opt-125m"),
        (["--model", "facebook/opt-125m"], "model", "facebook/opt-125m"),
        (["--profiler-config", '{"torch_profiler_dir": "/t"}'], "profiler_config", {}),
        (
            [
                "--profiler-config.profiler",
                "torch",
                "--profiler-config.torch_profiler_dir",
                "/t",
                "--profiler-config.torch_profiler_use_gzip",
                "true",
            ],
            "profiler_config",
            PROFILED,
        ),
        (["https://huggingface.co/Qwen/Qwen3-4B/"], "model", "Qwen/Qwen3-4B"),
        (["hf.co/Qwen/Qwen3-4B-GGUF:Q4_K_M"], "model", "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
    ],
)
def test_an_engine_flag_is_read(argv: list[str], field: str, value: object) -> None:
    assert getattr(line(*argv).configs.engine, field) == value


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--port", "8080"], "port", 8080),
        (["--served-model-name", "a", "b"], "served_model_name", ("a", "b")),
        (["--api-key", "one", "two"], "api_key", ("one", "two")),
        (["--allowed-origins", '["http://a", "http://b"]'], "allowed_origins", ("http://a", "http://b")),
        (["--override-generation-config", '{"temperature": 0}'], "override_generation_config", {"temperature": 0}),
        (["--disable-fastapi-docs"], "docs", False),
        (["--root-path", "/llm"], "root_path", "/llm"),
        (["--root-path", "models/llm/"], "root_path", "/models/llm"),
        (["--root-path", "/"], "root_path", ""),
        (["--shutdown-timeout", "2.5"], "shutdown_timeout_s", 2.5),
    ],
)
def test_an_api_flag_is_read(argv: list[str], field: str, value: object) -> None:
    assert getattr(line(*argv).configs.api, field) == value


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("VLLM_CPU_KVCACHE_SPACE", "4.5", "kv_cache_memory_bytes", 4831838208),
        ("VLLM_CPU_KVCACHE_SPACE", "0", "kv_cache_memory_bytes", None),
        ("VLLM_CPU_OMP_THREADS_BIND", "0-29", "omp_threads_bind", "0-29"),
        ("VLLM_CPU_NUM_OF_RESERVED_CPU", "2", "num_of_reserved_cpu", 2),
        ("OMP_NUM_THREADS", "16", "omp_num_threads", 16),
        ("VLLM_LOGGING_LEVEL", "DEBUG", "logging_level", "DEBUG"),
        ("VLLM_TORCH_PROFILER_DIR", "/t", "profiler_config", PROFILED),
    ],
)
def test_a_variable_is_read(monkeypatch: pytest.MonkeyPatch, name: str, text: str, field: str, value: object) -> None:
    monkeypatch.setenv(name, text)

    assert getattr(line().configs.engine, field) == value
    assert getattr(engine_config(), field) == value


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--max-model-len", "12q"], r"--max-model-len 12q: write a whole number such as 4096, 4k"),
        (["--max-model-len", "0"], r"--max-model-len 0: it must be at least 1"),
        (["--dtype", "int3"], r"--dtype int3: write one of auto, bfloat16"),
        (["--kv-cache-dtype", "fp8_inc"], r"--kv-cache-dtype fp8_inc: write one of auto, .*, int8, fp8_e4m3, fp8_e5m2"),
        (["--port", "70000"], r"--port 70000: it must be from 0 to 65535"),
        (["--shutdown-timeout", "inf"], r"--shutdown-timeout inf: it must be at most 1000000000"),
        (["--seed", f"{1 << 63}"], rf"--seed {1 << 63}: it must be at most {(1 << 63) - 1}"),
        (["--max-num-batched-tokens", "2m"], r"--max-num-batched-tokens 2m: it must be from 1 to 1048576"),
        (["--gpu-memory-utilization", "1.5"], r"--gpu-memory-utilization 1.5: it must be from 0.01 to 1"),
        (["--override-generation-config", "{"], r"--override-generation-config \{: it is not JSON"),
        (["--allowed-origins", "[1]"], r"--allowed-origins \[1\]: write a JSON list of strings"),
        (["--profiler-config", '{"profiler": "cuda"}'], r"profiler is 'cuda'; write torch"),
        (["--profiler-config", '{"profiler": "torch"}'], r"torch_profiler_dir is ''; name a folder"),
        (["--profiler-config", '{"profiler": "torch", "wait_iterations": 1}'], r"wait_iterations is not supported"),
        (["--prot", "1"], r"unknown flag --prot; did you mean --port\?"),
        (["-port", "1"], r"unknown flag -port; did you mean --port\?"),
        (["-x", "1"], r"unknown flag -x$"),
        (["--bloc", "1"], r"unknown flag --bloc$"),
        (["-host", "::"], r"unknown flag -host; did you mean --host\?"),  # not -h for a part of the help
        (["--port"], r"--port"),
        (["a", "b"], r"one model is served, not 2: a b"),
    ],
)
def test_a_wrong_flag_names_the_value_and_the_remedy(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        line(*argv)


def test_a_wrong_variable_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "much")

    with pytest.raises(ConfigError, match=r"VLLM_CPU_KVCACHE_SPACE much: write a number, at least 0"):
        line()


def test_a_wrong_key_of_the_file_names_the_one_it_resembles(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("prot: 80\n")
    with pytest.raises(ConfigError, match=r"settings.yaml: unknown key prot; did you mean port\?"):
        line("--config", str(file))

    file.write_text("- port\n")
    with pytest.raises(ConfigError, match=r"write flags without their dashes as keys"):
        line("--config", str(file))

    file.write_bytes(b"port: \xff")
    with pytest.raises(ConfigError, match=r"settings.yaml: it is not YAML: 'utf-8' codec can't decode"):
        line("--config", str(file))

    with pytest.raises(ConfigError, match=rf"--config {tmp_path}: Is a directory; name a YAML file"):
        line("--config", str(tmp_path))


def test_a_flag_of_several_values_that_comes_twice_is_told() -> None:
    """The first key is not accepted, as in vLLM, and its client has a 401."""
    twice = line("--api-key", "a", "--port", "1", "--api-key", "b", "--port", "2")

    assert twice.configs.api.api_key == ("b",)
    assert twice.notes == ["--api-key is given more than once; the last counts: write all values after one"]
    assert line("--api-key", "a", "b").notes == []


def test_a_file_that_is_not_yaml_is_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("port: 80\n- model\n")

    with pytest.raises(ConfigError) as told:
        line("--config", str(file))

    assert str(told.value) == f"--config {file}: it is not YAML: line 2: expected <block end>, but found '-'"


def test_a_key_may_turn_a_switch_off(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("disable-log-stats: true\nno_enable_prefix_caching: true\ndisable-uvicorn-access-log: false\n")

    chosen = line("--config", str(file)).configs

    assert (chosen.engine.log_stats, chosen.engine.enable_prefix_caching, chosen.api.access_log) == (False, False, True)

    file.write_text("disable-log-stats: 3\n")
    with pytest.raises(ConfigError, match="disable-log-stats: 3: it turns a switch off; write true or false"):
        line("--config", str(file))


def test_a_key_without_a_value_is_not_given(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("model:\nport: ~\nmax-num-seqs: 4\n")

    read = line("--config", str(file))

    assert (read.configs.api.model, read.configs.api.port, read.configs.engine.max_num_seqs) == ("", 8000, 4)


def test_a_file_has_switches_lists_and_objects(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "model: m\nenable_prefix_caching: false\nserved-model-name: [a, b]\nenforce-eager: true\n"
        "default-chat-template-kwargs: {thinking: false}\n"
    )

    read = line("--config", str(file))

    assert not read.configs.engine.enable_prefix_caching
    assert read.configs.api.served_model_name == ("a", "b")
    assert read.configs.api.default_chat_template_kwargs == {"thinking": False}
    assert read.notes == ["--enforce-eager has no effect: nothing is compiled at start"]


def test_the_command_of_vllms_page_for_two_nodes_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "40")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-31|32-63")

    read = line("meta-llama/Llama-2-7b-chat-hf", "-tp=2", "--distributed-executor-backend", "mp")

    assert read.notes == []
    engine = read.configs.engine
    assert (engine.tensor_parallel_size, engine.omp_threads_bind) == (2, "0-31|32-63")
    assert engine.kv_cache_memory_bytes == 40 << 30


@pytest.mark.parametrize(
    "argv", [["-tp", "2"], ["--tensor-parallel-size", "2"], ["--tensor-parallel-size=2"], ["--tensor_parallel_size=2"]]
)
def test_ranks_are_asked_for_as_in_vllm(argv: list[str]) -> None:
    assert line("m", *argv).configs.engine.tensor_parallel_size == 2
    assert line("m").configs.engine.tensor_parallel_size == 1
    with pytest.raises(ConfigError, match=r"--tensor-parallel-size 0: it must be from 1 to 64"):
        line("m", "-tp=0")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--device", "cuda"], r"--device cuda: forearm runs on CPUs"),
        (["--distributed-executor-backend", "ray"], r"--distributed-executor-backend ray: .* write mp or uni"),
        (["--kv-transfer-config", "{}"], r"--kv-transfer-config: KV blocks are not moved"),
        (["--enable-lora"], r"--enable-lora: LoRA adapters are not built yet"),
        (["--load-format", "npcache"], r"--load-format npcache: weights come from safetensors"),
        (["--enable_sleep_mode"], r"--enable-sleep-mode"),
    ],
)
def test_what_is_not_there_is_refused_with_the_reason(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        line(*argv)


@pytest.mark.parametrize("flag", [flag for flag, one in vllm_compat.FLAGS.items() if one.allowed is None])
def test_a_flag_without_effect_gives_one_line_and_leaves_the_model_alone(flag: str) -> None:
    read = line("model", flag, *["1", "2"][: vllm_compat.FLAGS[flag].values])

    assert read.notes == [f"{flag} has no effect: {vllm_compat.FLAGS[flag].reason}"]
    assert read.configs.engine.model == "model"


def test_no_flag_is_both_a_setting_and_foreign() -> None:
    own = {flag for setting in configs.SETTINGS.values() for flag in (*setting.flags, *setting.off_flags)}

    assert not own & set(vllm_compat.FLAGS)
    assert not own & set(vllm_compat.REFUSED)
    assert not set(vllm_compat.FLAGS) & set(vllm_compat.REFUSED)


def test_unknown_variables_are_listed_and_those_without_effect_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_NO_SUCH_THING", "1")
    monkeypatch.setenv("FOREARM_NEITHER", "1")
    monkeypatch.setenv("VLLM_CPU_AVX512BF16", "1")
    monkeypatch.setenv("FOREARM_TIER", "scalar")

    assert line().notes == [
        "VLLM_CPU_AVX512BF16 has no effect: instructions are chosen at start from what the CPU has "
        "(FOREARM_TIER forces a tier)",
        "unknown variables, ignored: FOREARM_NEITHER, VLLM_NO_SUCH_THING",
    ]


def test_variables_of_other_servers_are_told_to_have_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:11434")
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "4096")
    monkeypatch.setenv("LLAMA_ARG_MODEL", "model.gguf")

    assert line("--fail-on-environ-validation").notes == [
        "variables without effect: LLAMA_ARG_CTX_SIZE, LLAMA_ARG_MODEL: llama-server's are not read; "
        "docs/from-llama-cpp.md has the flags to write",
        "variables without effect: OLLAMA_HOST: Ollama's are not read; docs/from-ollama.md has the flags to write",
    ]


def test_unknown_variables_end_the_start_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_AVX512BF16", "1")  # accepted without effect
    assert line("--fail-on-environ-validation").notes != []

    monkeypatch.setenv("FOREARM_NEITHER", "1")

    with pytest.raises(ConfigError, match="unknown variables: FOREARM_NEITHER; unset them"):
        line("--fail-on-environ-validation")


def test_a_variable_for_another_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    assert line().notes == ["VLLM_TARGET_DEVICE has no effect: forearm always runs on the CPU"]

    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cuda")
    with pytest.raises(ConfigError, match=r"VLLM_TARGET_DEVICE=cuda: forearm runs on CPUs"):
        line()


def test_configs_travel_to_other_processes_as_they_are() -> None:
    read = line("--api-key", "a", "b", "--override-generation-config", '{"top_p": 0.5}', "--max-model-len", "auto")

    assert from_json(ApiConfig, to_json(read.configs.api)) == read.configs.api
    assert from_json(EngineConfig, to_json(read.configs.engine)) == read.configs.engine


def test_an_offline_engine_reads_texts_as_a_flag_does() -> None:
    assert engine_config(dtype="half", max_num_seqs=3, max_model_len=None).dtype == "float16"
    with pytest.raises(ConfigError, match=r"--dtype bf17"):
        engine_config(dtype="bf17")
    with pytest.raises(TypeError, match="no_such"):
        engine_config(no_such=1)


def test_speculation_is_asked_for_as_a_whole_or_by_its_parts() -> None:
    asked = drafting_asked(
        line(
            "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'
        ).configs.engine
    )

    assert asked == Drafting("ngram", tokens=5, least=4, most=4)
    assert drafting_asked(line("--spec-method", "ngram", "--spec-tokens", "3").configs.engine) == Drafting("ngram", 3)
    by_parts = drafting_asked(line("--spec-model", "org/small", "--spec-tokens", "3").configs.engine)
    assert by_parts == Drafting("draft_model", 3, model="org/small")
    predicting = drafting_asked(line("--speculative-config", '{"method": "qwen3_next_mtp"}').configs.engine)
    assert predicting == Drafting("mtp", quantization="int8")
    assert predicting.predicts
    assert drafting_asked(line().configs.engine) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "eagle3", "model": "m"}, "method eagle3 is not supported; write ngram, draft_model or mtp"),
        ({"method": "medusa"}, "method medusa is not supported"),
        ({"method": "mtp", "model": "org/other"}, "method mtp takes a layer of the model .*, not of org/other"),
        ({"method": "draft_model"}, "method draft_model needs model"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens is 0; it must be .* from 1 to 32"),
        ({"method": "ngram", "num_speculative_tokens": True}, "num_speculative_tokens is True"),
        ({"prompt_lookup_min": 5, "prompt_lookup_max": 4}, "prompt_lookup_min 5 is more than prompt_lookup_max 4"),
        ({"speculative_token_tree": "x"}, "speculative_token_tree is not known; the keys are method, model"),
        ({"draft_tensor_parallel_size": 2, "model": "m"}, "draft_tensor_parallel_size must be 1"),
    ],
)
def test_speculation_that_is_not_built_is_refused_by_name(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match="--speculative-config: " + message):
        drafting_asked(line("--speculative-config", json.dumps(given)).configs.engine)


def test_every_setting_has_a_help_and_a_way_in() -> None:
    for name, setting in configs.SETTINGS.items():
        assert setting.help, name
        assert setting.flags or setting.env, name


def test_every_setting_is_used() -> None:
    folder = Path(configs.__file__).parents[1]
    code = "".join(
        p.read_text() for p in folder.rglob("*.py") if not p.name.endswith(("_config.py", "settings.py", "common.py"))
    )
    fields = {f.name for c in configs.CONFIGS for f in dataclasses.fields(c)}

    unused = {name for name in fields if f".{name}" not in code}

    assert not unused


@pytest.mark.parametrize(
    "argv",
    [
        ["--rope-theta", "1e6"],
        ["--rope-scaling", '{"rope_type": "linear", "factor": 2}'],
        ["--hf-overrides", '{"rope_theta": 1000000}'],
        ["--dtype", "float32"],
        ["-q", "int8"],
        ["--kv-cache-dtype", "int8"],
    ],
)
def test_what_may_change_answers_is_told_to_the_api(argv: list[str], tmp_path: Path) -> None:
    """Settings that may change answers are part of system_fingerprint."""
    plan, parts = Plan(1, (), (), 1, (), (1,)), (EngineShare((), 1, "", 0, (1,)),)
    told = set()
    for given in ([], argv, ["--max-num-seqs", "8"]):
        _, api = fill_in(line(*given).configs, plan, parts, ModelFiles(tmp_path), RunFolder(tmp_path, 0))
        told.add(api.computed_as)
    assert len(told) == 2


def test_offline_prompts_take_whole_steps_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = open_checkpoint(DEMO_MODEL)
    assert limits_of(engine_config(), demo).target_itl_s == 0.15
    assert limits_of(for_throughput(engine_config()), demo).target_itl_s == 0

    # A server's default is a value like others where it is told: by argument, flag or variable.
    assert for_throughput(engine_config(target_itl_s=0.15)).target_itl_s == 0.15
    assert for_throughput(line("--target-inter-token-latency", "0.15").configs.engine).target_itl_s == 0.15
    monkeypatch.setenv("FOREARM_TARGET_INTER_TOKEN_LATENCY", "0.15")
    assert for_throughput(engine_config()).target_itl_s == 0.15
