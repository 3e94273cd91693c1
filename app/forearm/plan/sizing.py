"""docs/sizing.md: a few models on a few instance types, as `forearm plan --sizing-table` predicts them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from forearm.config.api_config import ApiConfig
from forearm.config.configs import Configs
from forearm.config.engine_config import EngineConfig
from forearm.config.number_formats import INTEGERS
from forearm.config.serve_config import ServeConfig
from forearm.engine.host.placement import GIB
from forearm.errors import ConfigError
from forearm.plan.host import EngineHost, type_host
from forearm.plan.load import RequestTokens, Slo
from forearm.plan.machines import machine
from forearm.plan.prediction import ModelHeaders, PlannedLoad, Prediction, predict
from forearm.plan.report import NOT_MEASURED, figure, seconds
from forearm.plan.shapes import SHAPES, write_shape

TYPES = (
    "c6g.16xlarge", "r7g.4xlarge", "c7g.16xlarge", "hpc7g.16xlarge", "c8g.4xlarge", "c8g.12xlarge", "c8g.24xlarge",
    "c8g.48xlarge", "c9g.12xlarge", "c9g.48xlarge",
)  # fmt: skip
QUANTIZATIONS = ("none", *INTEGERS.values())
MAX_MODEL_LEN = 8192
LOAD = PlannedLoad(RequestTokens(512, 256), Slo(ttft_s=5.0, tpot_s=0.2))
COLUMNS = (
    "Type", "Weights", "RAM at peak, GiB", "Contexts", "TTFT, 1 client", "Tokens/s, 1 client", "Tokens/s, 16 clients",
    "Requests/s in the SLO",
)  # fmt: skip

INTRODUCTION = f"""# Sizing

Made by `forearm plan --sizing-table`; do not edit it. For your own model, machine and load:
`forearm plan MODEL --machine c8g.12xlarge --input-len 512 --output-len 256`.

**{NOT_MEASURED}**
`bench/results/plan/xeon-bf16-1-core.json` compares the same arithmetic with a measurement.

Prompts have {LOAD.lengths.prompt} tokens and outputs {LOAD.lengths.output}; prompts share no prefix.

- Weights: `none` is bfloat16 as published; the others are values of `--quantization`.
- RAM at peak: memory of all processes with every KV block in use.
- Contexts: number of contexts of {MAX_MODEL_LEN} tokens (or the model's own length) that fit, at most
  `--max-num-seqs` (128) for each engine.
- TTFT: time to first token. Tokens/s: output tokens of all clients together, prompts included.
- Requests/s in the SLO: highest rate with TTFT within {LOAD.slo.ttft_s:g} s and {seconds(LOAD.slo.tpot_s or 0)}
  per token; – if a single request already misses it.
- Models that do not fit a machine are left out."""


def page() -> str:
    """Return the text of docs/sizing.md."""
    configs = Configs(EngineConfig(), ApiConfig(), ServeConfig())  # the defaults, independent of the environment
    hosts = {name: type_host(machine(name), configs) for name in TYPES}
    return "\n".join([INTRODUCTION, *(line for name in SHAPES for line in _model(name, hosts))]) + "\n"


def _model(name: str, hosts: dict[str, EngineHost]) -> Iterator[str]:
    yield ""
    yield f"## {name}"
    yield ""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        write_shape(SHAPES[name], Path(folder))
        length = min(MAX_MODEL_LEN, SHAPES[name]["max_position_embeddings"])
        for host in hosts.values():
            for quantization in QUANTIZATIONS:
                asked = host.with_config(quantization=quantization, max_model_len=length)
                with suppress(ConfigError):  # it does not fit
                    found = predict(asked, ModelHeaders(Path(folder)), LOAD)
                    yield f"| {' | '.join(_cells(host, quantization, found))} |"


def _cells(host: EngineHost, quantization: str, found: Prediction) -> Iterator[str]:
    batches = {batch.sequences // found.engines: batch for batch in found.batches}
    engines = f" ({found.engines} engines)" if found.engines > 1 else ""
    yield f"{host.name}{engines}"
    yield quantization
    yield figure(found.peak_bytes / GIB)
    yield figure(found.contexts * found.engines)
    yield seconds(batches[1].ttft_s) if 1 in batches else "–"
    yield figure(batches[1].output_tokens_s / found.engines) if 1 in batches else "–"
    yield figure(batches[16 // found.engines].output_tokens_s) if 16 // found.engines in batches else "–"
    yield "–" if found.best is None else figure(found.best.requests_s)
