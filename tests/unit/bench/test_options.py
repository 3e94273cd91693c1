"""The command line of forearm bench: vLLM's flags, and what is wrong in them."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import pytest

from forearm.bench import options
from forearm.bench.serve import Bench, address, form
from forearm.cli import main
from forearm.config.flags import CommandParser
from forearm.errors import ConfigError

# Flags of `vllm bench serve` that scripts use (docs.vllm.ai, cli/bench/serve).
VLLM = shlex.split("""--seed 1 --num-prompts 5 --dataset-name random --no-stream --no-oversample --skip-chat-template
--disable-shuffle --label x --backend vllm --base-url http://h:1 --host h --port 1 --endpoint /v1/completions
--header a=b --max-concurrency 2 --model m --input-len 3 --output-len 4 --tokenizer t --tokenizer-mode auto
--logprobs 1 --request-rate 2 --burstiness 0.5 --trust-remote-code --disable-tqdm --num-warmups 1 --profile
--save-result --save-detailed --append-result --metadata a=b --result-dir d --result-filename f --ignore-eos
--percentile-metrics ttft --metric-percentiles 50,99 --goodput ttft:1 tpot:2 e2el:3 --request-id-prefix p
--top-p 0.9 --top-k 5 --min-p 0.1 --temperature 0 --frequency-penalty 0 --presence-penalty 0 --repetition-penalty 1
--served-model-name s --lora-modules a b --lora-assignment round-robin --ready-check-timeout-sec 9
--extra-body '{"a":1}' --insecure --custom-output-len 5 --sonnet-input-len 1 --sonnet-output-len 1 --sonnet-prefix-len 1
--sharegpt-output-len 1 --random-input-len 1 --random-output-len 1 --random-range-ratio 0.1 --random-prefix-len 1
--prefix-repetition-prefix-len 1 --prefix-repetition-suffix-len 1 --prefix-repetition-num-prefixes 1
--prefix-repetition-output-len 1 --random-batch-size 1 --chat-template-kwargs '{"a":1}'""")


def parse(*argv: str) -> argparse.Namespace:
    parser = CommandParser("x", "x")
    parser.add_argument("--seed", type=int, default=0)
    options.add_serve(parser)
    options.add_dataset(parser)
    return parser.parse_args(options.dashed(argv))


def test_vllms_flags_are_taken_with_dashes_and_with_underscores() -> None:
    underscored = [word.replace("-", "_").replace("__", "--", 1) if word[:2] == "--" else word for word in VLLM]

    assert vars(parse(*VLLM)) == vars(parse(*underscored))
    assert parse("--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1", "--ramp-up-end-rps", "2").request_rate


def test_defaults_are_vllms() -> None:
    args = parse()

    assert (args.backend, args.host, args.port, args.num_prompts) == ("openai", "127.0.0.1", 8000, 1000)
    assert (args.dataset_name, args.random_input_len, args.random_output_len) == ("random", 1024, 128)
    assert (args.request_rate, args.burstiness, args.max_concurrency) == (["inf"], 1.0, None)
    assert (args.percentile_metrics, args.metric_percentiles) == (None, "99")
    assert (args.sonnet_input_len, args.sonnet_output_len, args.sonnet_prefix_len) == (550, 150, 200)
    assert (args.custom_output_len, args.sharegpt_output_len) == (256, None)


def test_a_sweep_is_a_list_of_rates() -> None:
    assert options.rates(["0.25,0.5", "4", "inf"]) == [0.25, 0.5, 4.0, float("inf")]


def test_general_lengths_go_to_every_dataset() -> None:
    wanted = options.wanted(parse("--input-len", "7", "--output-len", "5"), seed=3)

    assert (wanted.random_input_len, wanted.sonnet_input_len, wanted.seed) == (7, 7, 3)
    assert (wanted.random_output_len, wanted.custom_output_len, wanted.sharegpt_output_len) == (5, 5, 5)


def test_the_endpoint_follows_from_the_backend_and_random_answers_are_as_long_as_asked_for() -> None:
    assert form(parse()).endpoint == "/v1/completions"
    assert form(parse("--backend", "openai-chat")).endpoint == "/v1/chat/completions"
    assert form(parse()).ignore_eos
    assert not form(parse("--dataset-name", "sonnet")).ignore_eos
    assert form(parse("--temperature", "0", "--extra-body", '{"min_p": 0.5}')).extra == {"temperature": 0, "min_p": 0.5}
    assert address(parse("--host", "::1")) == "http://[::1]:8000"
    assert address(parse("--base-url", "https://h/x/v1/")) == "https://h/x"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--request-rate 0", "--request-rate 0: write numbers above 0, or inf"),
        ("--request-rate nan", "--request-rate nan: write a number"),
        ("--burstiness 0", "0: it must be more than 0"),
        ("--max-concurrency 0", "0: it must be at least 1"),
        ("--num-prompts 0", "0: it must be at least 1"),
        ("--goodput ttft", "--goodput ttft: write ttft:MS or tpot:MS or e2el:MS, in milliseconds"),
        ("--goodput itl:3", "--goodput itl:3"),
        ("--percentile-metrics ttft,x", "x is not one of ttft, tpot, itl, e2el"),
        ("--metric-percentiles 101", "--metric-percentiles 101: they are from 0 to 100"),
        ("--metadata ab", "--metadata 'ab': write KEY=VALUE"),
        ("--extra-body [1]", "[1]: write a JSON object"),
        ("--plot x.png", "--plot x.png: figures are SVG"),
        ("--backend tgi", "invalid choice: 'tgi'"),
        ("--use-beam-search", "--use-beam-search: write --extra-body"),
        ("--plot_timeline", "--plot-timeline: it is not supported"),
        ("--dataset-name hf --hf-split train", "--hf-split: data sets of Hugging Face's hub are not read; write one"),
        ("--ramp-up-strategy linear", "give --ramp-up-start-rps and --ramp-up-end-rps"),
        ("--ramp-up-strategy linear --request-rate 3", "leave out --request-rate"),
        ("--no-such-flag", "unknown flag --no-such-flag"),
    ],
)
def test_a_wrong_flag_is_said_before_anything_is_asked(argv: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Bench(parse(*argv.split()))

    assert message in str(error.value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--backend openai --endpoint /v1/chat/completions", "--endpoint"),
        ("--endpoint /generate", "--endpoint /generate: --backend openai asks /v1/completions"),
        ("--random-batch-size 2", "only openai-embeddings and vllm-pooling take several"),
        ("--backend openai-embeddings --temperature 1", "it takes no sampling parameters"),
    ],
)
def test_what_a_backend_does_not_do_is_refused(argv: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        form(parse(*argv.split()))


@pytest.mark.parametrize("kind", ["serve", "throughput", "latency", "startup", "plot"])
def test_every_kind_has_help(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["bench", kind, "--help"])

    assert f"forearm bench {kind}" in capsys.readouterr().out


def test_no_kind_and_an_unknown_one_say_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["bench"]) == 2
    assert main.main(["bench", "fast"]) == 78
    assert "there is no kind fast" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["--save-result", "--append-result"])
def test_a_folder_for_results_that_cannot_be_written_is_told_before_the_run(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "results"

    assert main.main(["bench", "serve", "--base-url", "http://127.0.0.1:9", kind, "--result-dir", str(folder)]) == 78
    told = f"forearm bench: --result-dir {folder}: Not a directory; name a folder that can be written\n"
    assert capsys.readouterr().err == told
