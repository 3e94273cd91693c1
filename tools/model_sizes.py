"""Compute what published models need: parameters, bytes of packed weights, the smallest machine that serves them.

    python tools/model_sizes.py        writes tools/model_sizes.json, which tools/models_page.py makes a table of

Sizes follow from config.json alone (tests/unit/model/published.py); memory and machines are those of `forearm plan`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.unit.model.published import PUBLISHED
from tools.models_page import SIZES

from forearm.config.api_config import ApiConfig
from forearm.config.configs import Configs
from forearm.config.engine_config import EngineConfig
from forearm.config.serve_config import ServeConfig
from forearm.engine.host.memory_plan import fit
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.quantization.quantization import Asked
from forearm.plan.host import type_host
from forearm.plan.machines import machine
from forearm.plan.shapes import write_shape

QUANTIZATIONS = ("none", "int8", "int4")
# Graviton4 with 4 GiB a vCPU; the last one has 768 GiB.
MACHINES = tuple(
    f"m8g.{size}"
    for size in ("large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge")
)
TEXT_PART = ", its text part alone"
CONTEXT = 8192  # tokens, or the model's own length

Sizes = dict[str, Any]


def sizes_of(config: Mapping[str, Any]) -> Sizes:
    """Return a model's type, parameters, bytes of weights by --quantization, and the smallest machine for each.

    A checkpoint's own quantization and dtype are left out: weights are bfloat16, or quantized while loading.
    """
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    with tempfile.TemporaryDirectory() as made:
        folder = write_shape(plain, Path(made))
        found: Sizes = {"type": config["model_type"], "bytes": {}, "machine": {}}
        for quantization in QUANTIZATIONS:
            opened = open_checkpoint(folder, dtype="bfloat16", quantization=Asked(quantization))
            found["parameters"] = opened.parameters
            found["bytes"][quantization] = opened.packed_bytes
            length = min(CONTEXT, opened.max_model_len)
            found["machine"][quantization] = _smallest(folder, quantization, length, opened.packed_bytes)
    return found


def _smallest(folder: Path, quantization: str, length: int, packed_bytes: int) -> str:
    """Return the smallest machine that holds the weights and one context of `length` tokens; "" if none does."""
    engine = EngineConfig(dtype="bfloat16", quantization=quantization, max_model_len=length)
    configs = Configs(engine, ApiConfig(), ServeConfig())
    for name in MACHINES:
        if machine(name).memory_bytes < packed_bytes:
            continue
        host = type_host(machine(name), configs)
        try:
            fit(host.config, folder, host.memory, host.placed.threads, any_tier=True)
        except ConfigError:
            continue
        return name
    return ""


def main() -> None:
    """Write the file, a line for each model; a text part is called as the model that it is of."""
    found = {name.removesuffix(TEXT_PART): sizes_of(config) for name, config in PUBLISHED.items()}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(sizes)}" for name, sizes in found.items())
    SIZES.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
