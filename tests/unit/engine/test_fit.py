"""The memory plan covers the executor's memory: a model that fits by the plan starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bench.executors import formats_of
from bench.shapes import SHAPES

from forearm import _native
from forearm.config.engine_config import EngineConfig
from forearm.engine.host.kv_memory import kv_blocks
from forearm.engine.host.memory_plan import Fit, fit, scratch_bytes
from forearm.engine.host.placement import Memory
from forearm.engine.scheduler import StepLimits
from forearm.errors import ConfigError
from forearm.model.checkpoint.calibration import calibration_bytes
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.model.checkpoint.weights import load_native
from forearm.model.families.matrices import matrices

SIZES = {name: shape.cut(2) for name, shape in SHAPES.items()}
MIB = 1 << 20
BOX = Memory(1 << 33, 1 << 33, "a box")


def limits(step_tokens: int, rows: int) -> StepLimits:
    return StepLimits(step_tokens=step_tokens, running=rows, step_rows=rows, slice_tokens=0, whole_prompts=False)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "int4", "int4-g32", "int8-float", "fp8"])
@pytest.mark.parametrize("shape", SIZES)
def test_scratch_is_counted_as_it_is_and_for_any_tier_not_much_larger(shape: str, name: str) -> None:
    config = SIZES[shape].model
    formats = formats_of(config, name)
    for threads, step_tokens, rows, length in ((1, 2048, 128, 131072), (3, 64, 32, 2048)):
        native = _native.Executor(
            config, matrices(config), formats, "bfloat16", step_tokens, rows, rows, length, [], threads
        )
        checkpoint = Checkpoint(Path(), config, "bfloat16", "bfloat16", length, (), formats)

        counted = scratch_bytes(checkpoint, limits(step_tokens, rows), threads)
        at_most = scratch_bytes(checkpoint, limits(step_tokens, rows), threads, any_tier=True)

        assert native.scratch_bytes == counted
        # An upper bound: floats count four bytes each, even where this tier uses two.
        assert native.scratch_bytes <= at_most <= 1.6 * native.scratch_bytes + 4 * MIB


@pytest.mark.parametrize(
    ("settings", "step_tokens"),
    [({}, 512), ({"max_num_seqs": 1000}, 1000), ({"max_num_batched_tokens": 2048}, 2048)],
)
def test_a_step_has_512_tokens_or_one_for_each_sequence_or_what_is_asked(
    settings: dict[str, int], step_tokens: int
) -> None:
    planned = fit(EngineConfig(kv_cache_memory_bytes=64 * MIB, **settings), DEMO_MODEL, BOX, 1)

    assert planned.limits.step_tokens == step_tokens


def test_packed_weights_and_blocks_are_counted_as_the_executor_counts_them() -> None:
    config = EngineConfig(max_num_seqs=4, kv_cache_memory_bytes=64 * MIB)
    planned = fit(config, DEMO_MODEL, BOX, 1)

    native = load_native(
        planned.checkpoint,
        step_tokens=planned.limits.step_tokens,
        step_sequences=4,
        step_logit_rows=planned.limits.step_rows,
        cores=(),
        threads=1,
        progress=False,
    )

    assert native.packed_bytes <= planned.checkpoint.packed_bytes <= native.packed_bytes + MIB
    assert native.scratch_bytes == planned.scratch_bytes
    assert native.kv_bytes_per_block == planned.block_bytes
    needed = native.packed_bytes + native.scratch_bytes
    assert kv_blocks(config, 2048, native.kv_bytes_per_block, needed, BOX) == planned.blocks


def test_what_does_not_fit_is_refused_with_the_arithmetic() -> None:
    tight = Memory(30 * MIB, 30 * MIB, "a small box")

    with pytest.raises(ConfigError, match=r"one sequence of 2048 tokens needs .* free of 0.03 GiB \(a small box\)"):
        fit(EngineConfig(), DEMO_MODEL, tight, 1)


def test_calibration_that_does_not_fit_beside_the_weights_is_refused_and_its_remedy_fits() -> None:
    def planned(name: str, memory: Memory) -> Fit:
        asked = EngineConfig(quantization=name, max_num_seqs=1, max_model_len=64, kv_cache_memory_bytes=MIB)
        return fit(asked, DEMO_MODEL, memory, 1)

    most = planned("int4", BOX)
    needed = most.checkpoint.packed_bytes + most.scratch_bytes + calibration_bytes(most.checkpoint.config, 1)
    needed += most.blocks * most.block_bytes
    enough, short = (Memory(size, size, "a box") for size in (int(needed / 0.92) + MIB, int(needed / 0.92) - MIB))

    planned("int4", enough)
    with pytest.raises(ConfigError, match=r"does not fit"):
        planned("int4", short)
    planned("int4-fast", short)


def test_calibration_takes_no_more_memory_than_is_counted() -> None:
    """Compare peak resident memory with calibration and without, in separate processes."""
    program = (
        "import resource, sys\n"
        "from forearm.model.checkpoint.checkpoint import open_checkpoint\n"
        "from forearm.model.checkpoint.calibration import calibration_tokens\n"
        "from forearm.model.checkpoint.hub import DEMO_MODEL\n"
        "from forearm.model.checkpoint.weights import load_native\n"
        "from forearm.model.quantization.quantization import Asked\n"
        "calibration_tokens(DEMO_MODEL, 1)\n"
        "checkpoint = open_checkpoint(DEMO_MODEL, quantization=Asked(sys.argv[1]))\n"
        "load_native(checkpoint, step_tokens=8, step_sequences=1, step_logit_rows=8, cores=(), threads=1,"
        " progress=False)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )

    def peak_bytes(name: str) -> int:
        command = [sys.executable, "-c", program, name]
        return 1024 * int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    counted = calibration_bytes(fit(EngineConfig(), DEMO_MODEL, BOX, 1).checkpoint.config, 1)

    assert peak_bytes("int4") - peak_bytes("int4-fast") <= counted + 2 * MIB


def test_auto_takes_the_longest_context_that_fits() -> None:
    most = fit(EngineConfig(max_num_seqs=1), DEMO_MODEL, Memory(1 << 33, 1 << 33, "a large box"), 1)
    needed = most.checkpoint.packed_bytes + most.scratch_bytes + most.vocabulary_bytes
    free = int((needed + 10 * most.block_bytes) / 0.92) + MIB

    found = fit(EngineConfig(max_num_seqs=1, max_model_len="auto"), DEMO_MODEL, Memory(free, free, "a box"), 1)

    assert 0 < found.checkpoint.max_model_len < most.checkpoint.max_model_len
    assert found.blocks * 32 >= found.checkpoint.max_model_len


def test_what_grammars_need_of_a_vocabulary_is_counted_no_smaller_than_it_is() -> None:
    """Compare resident memory before and after the first grammar, in a separate process."""
    planned = fit(EngineConfig(max_num_seqs=4, kv_cache_memory_bytes=64 * MIB), DEMO_MODEL, BOX, 1)
    program = (
        "import re, sys, llguidance, numpy\n"
        "from pathlib import Path\n"
        "from forearm.engine.constraints.grammar import Grammars\n"
        "import forearm.text.tokenizer.tokenizer\n"  # code, which is part of every process's memory
        "rss = lambda: int(re.search(r'VmRSS:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "before = rss()\n"
        "made = Grammars(Path(sys.argv[1]), int(sys.argv[2]), [1])\n"
        'made.start(\'{"grammars":[{"lark_grammar":"start: /a+/"}]}\').result()\n'
        "print(rss() - before)\n"
    )
    vocab_size = planned.checkpoint.config.vocab_size
    command = [sys.executable, "-c", program, str(DEMO_MODEL), str(vocab_size)]

    held = 1024 * int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert held <= planned.vocabulary_bytes <= 2 * held
