"""The second start maps what the first one packed: the same logits, nothing read; whatever is wrong is made anew."""

from __future__ import annotations

import logging
import os
import random
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch
from tests.model.kept_weights import wait_until_kept
from tests.model.stored_codes import Format, awq, gptq
from tests.unit.model.test_formats import quantized
from tests.unit.model.test_weights import logits, random_llama

from forearm import _native
from forearm.model.checkpoint import calibration, weight_cache, weights
from forearm.model.checkpoint.checkpoint import open_checkpoint, stored_bytes
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.model.checkpoint.shards import StoredTensor
from forearm.model.checkpoint.weight_cache import PAGE_BYTES, check_source, key_of, map_weights, save_weights
from forearm.model.families.matrices import matrices
from forearm.model.quantization.quantization import Asked

AS_IT_IS = Asked()


def run(folder: Path, cache: Path | str, asked: Asked = AS_IT_IS, most_bytes: int | None = None) -> np.ndarray:
    checkpoint = open_checkpoint(folder, quantization=asked)
    executor = weights.load_native(
        checkpoint, step_tokens=8, step_sequences=1, step_logit_rows=8, cores=(), threads=2, progress=False,
        weight_cache=str(cache), weight_cache_bytes=most_bytes,
    )  # fmt: skip
    found = logits(executor)  # while the file is written
    wait_until_kept()
    return found


def kept(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.weights"))


def loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> None:
        raise AssertionError("the checkpoint was read")

    monkeypatch.setattr(weights, "load_weights", load)


@pytest.mark.parametrize("asked", [Asked(), Asked("int8"), Asked("int4-g32"), Asked("fp8")], ids=str)
def test_the_second_start_maps_the_first_ones_weights(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cache = random_llama(tmp_path, torch.bfloat16), tmp_path / "cache" / "deep"
    first = run(folder, cache, asked)
    assert len(kept(cache)) == 1

    loads_nothing(monkeypatch)

    assert np.array_equal(run(folder, cache, asked), first)
    assert np.abs(first).max() > 0


@pytest.mark.parametrize("format", [gptq(4, 32, sym=False, act_order=True), awq(32)], ids=lambda f: f.name)
def test_quantized_checkpoints_are_kept_with_zeros_and_order(
    format: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = quantized(tmp_path, format)
    first = run(folder, tmp_path / "cache")

    loads_nothing(monkeypatch)

    assert np.array_equal(run(folder, tmp_path / "cache"), first)


def test_calibrated_weights_are_kept_and_made_anew_for_another_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    plain = run(DEMO_MODEL, tmp_path, Asked("int4-fast"))
    first = run(DEMO_MODEL, tmp_path, Asked("int4"))
    assert not np.array_equal(first, plain)
    assert any(line.startswith("weights: calibrated on ") for line in caplog.messages)
    assert len(kept(tmp_path)) == 2

    with monkeypatch.context() as patch:
        loads_nothing(patch)
        assert np.array_equal(run(DEMO_MODEL, tmp_path, Asked("int4")), first)

    monkeypatch.setattr(calibration, "VERSION", "another")
    assert np.array_equal(run(DEMO_MODEL, tmp_path, Asked("int4")), first)
    assert len(kept(tmp_path)) == 3


def test_without_a_tokenizer_weights_are_rounded_plainly_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, cache = random_llama(tmp_path, torch.bfloat16), tmp_path / "cache"

    calibrated = run(folder, cache, Asked("int4"))

    assert any(line.startswith("weights: rounded without calibration") for line in caplog.messages)
    assert np.array_equal(calibrated, run(folder, cache, Asked("int4-fast")))


def test_another_format_is_another_file_and_the_three_used_last_stay(tmp_path: Path) -> None:
    folder, cache = random_llama(tmp_path, torch.bfloat16), tmp_path / "cache"
    for i, name in enumerate(("int8", "int4", "none")):
        run(folder, cache, Asked(name))
        os.utime(next(p for p in kept(cache) if p.stat().st_mtime > time.time() - 600), (i, i))
    before = set(kept(cache))
    assert len(before) == 3
    (oldest,) = (path for path in before if path.stat().st_mtime == 0)

    run(folder, cache, Asked("fp8"))

    assert len(kept(cache)) == 3
    assert oldest not in kept(cache)


def test_a_checkpoint_that_changed_is_read_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = run(random_llama(tmp_path, torch.bfloat16), cache)

    second = run(random_llama(tmp_path, torch.float16), cache)

    assert len(kept(cache)) == 2
    assert not np.array_equal(first, second)


def damage(path: Path, at: float) -> None:
    """Turn a bit of a byte that is not padding."""
    content = bytearray(path.read_bytes())
    used = np.flatnonzero(np.frombuffer(content, np.uint8))
    content[used[int(at * (len(used) - 1))]] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("at", [0.0, 0.3, 0.9])
def test_a_damaged_file_is_made_anew_with_a_warning(
    at: float, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cache = random_llama(tmp_path, torch.bfloat16), tmp_path / "cache"
    first = run(folder, cache)
    damage(kept(cache)[0], at)

    again = run(folder, cache)

    assert np.array_equal(again, first)
    assert [r.levelname for r in caplog.records if "made anew" in r.getMessage()] == ["WARNING"]
    loads_nothing(monkeypatch)
    assert np.array_equal(run(folder, cache), first), "the file that replaced it is whole"


def test_a_file_cut_short_is_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, cache = random_llama(tmp_path, torch.bfloat16), tmp_path / "cache"
    first = run(folder, cache)
    os.truncate(kept(cache)[0], kept(cache)[0].stat().st_size // 2)

    assert np.array_equal(run(folder, cache), first)
    assert "made anew" in caplog.text


def test_a_cache_that_can_not_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "file").write_text("in the way")

    run(random_llama(tmp_path, torch.bfloat16), tmp_path / "file")

    assert "weight cache: nothing is kept" in caplog.text


def test_auto_keeps_weights_beside_the_hubs_downloads_for_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(weight_cache, "LEAST_BYTES", 1)
    folder, cache = random_llama(tmp_path, torch.bfloat16), tmp_path / "home" / "forearm"

    first = run(folder, "auto")

    (file,) = kept(cache)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    loads_nothing(monkeypatch)
    assert np.array_equal(run(folder, "auto"), first)


def test_auto_keeps_no_small_weights_and_goes_on_where_its_folder_can_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = random_llama(tmp_path, torch.bfloat16)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    expected = run(folder, "auto")
    assert not (tmp_path / "home").exists()

    monkeypatch.setattr(weight_cache, "LEAST_BYTES", 1)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file"))

    assert np.array_equal(run(folder, "auto"), expected)
    assert np.array_equal(run(folder, ""), expected)
    # An earlier test's check of its checkpoint may still be running.
    own = [record.message for record in caplog.records if record.threadName != "source check"]
    assert not [message for message in own if "weight cache" in message]


def test_the_least_recently_used_files_make_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cache, models = tmp_path / "cache", [tmp_path / name for name in ("a", "b", "c")]
    for age, model in enumerate(models[:2]):
        model.mkdir()
        run(random_llama(model, torch.bfloat16), cache)
        os.utime(kept(cache)[-1], (age, age))
    size = kept(cache)[0].stat().st_size
    models[2].mkdir()

    run(random_llama(models[2], torch.bfloat16), cache, most_bytes=2 * size)

    assert [path.name[0] for path in kept(cache)] == ["b", "c"]

    run(models[0], cache, most_bytes=1000)

    assert "weight cache: nothing is kept: " in caplog.text
    assert [path.name[0] for path in kept(cache)] == ["b", "c"]


def test_a_full_disk_is_a_warning_and_leaves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def no_space() -> None:
        (tmp_path / "x-0-1.weights.AbCd12").unlink()
        raise RuntimeError("can't write x-0-1.weights: No space left on device")

    save_weights(Writes(no_space), tmp_path / "x-0-1.weights", "")
    wait_until_kept()

    assert "weight cache: nothing is kept: can't write x-0-1.weights: No space left" in caplog.text
    assert not list(tmp_path.iterdir())


def test_servers_that_start_at_once_leave_one_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache = random_llama(tmp_path, torch.bfloat16), tmp_path / "cache"
    with ThreadPoolExecutor(3) as servers:
        found = list(servers.map(lambda _: run(folder, cache), range(3)))
    wait_until_kept()

    assert len(list(cache.glob("*.weights*"))) == 1
    loads_nothing(monkeypatch)
    assert all(np.array_equal(run(folder, cache), one) for one in found)


def replaced(folder: Path, change: Callable[[bytearray, int], None]) -> None:
    """Other bytes in the checkpoint, of the same size and time; `change` gets them and where the data begins."""
    path = folder / "model.safetensors"
    status, content = path.stat(), bytearray(path.read_bytes())
    change(content, 8 + int.from_bytes(content[:8], "little"))
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_another_checkpoint_of_the_same_size_and_time_is_not_served_from_the_old_ones_file(tmp_path: Path) -> None:
    folder, cache = random_llama(tmp_path, torch.bfloat16), tmp_path / "cache"
    first = run(folder, cache)

    def negate(content: bytearray, data: int) -> None:
        for at in range(data + 1, len(content), 2):
            content[at] ^= 0x80

    replaced(folder, negate)
    fresh = run(folder, tmp_path / "empty")

    assert np.array_equal(run(folder, cache), fresh)
    assert not np.array_equal(first, fresh)


def wait_for(path: Path) -> None:
    for _ in range(300):
        if path.exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"{path} is not there after 30 s")


def test_bytes_that_change_between_the_pages_of_the_key_are_found_beside_serving(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, cache = random_llama(tmp_path, torch.bfloat16, hidden_size=384, intermediate_size=512), tmp_path / "cache"
    run(folder, cache)
    (weights_file,) = cache.glob("*.weights")
    wait_for(weights_file.with_suffix(".source"))
    checkpoint = open_checkpoint(folder)
    key = key_of(checkpoint)
    _, largest = max(checkpoint.sources, key=lambda source: stored_bytes(*source))
    assert isinstance(largest, StoredTensor)

    def flip(content: bytearray, data: int) -> None:
        content[largest.begin + PAGE_BYTES + 100] ^= 1

    replaced(folder, flip)
    assert key_of(checkpoint) == key
    outdated = Event()
    check_source(weights_file, checkpoint, outdated.set)

    assert outdated.wait(60)
    assert not weights_file.exists()
    assert "not those that" in caplog.text
    check_source(weights_file, checkpoint, lambda: pytest.fail("nothing is kept that could be outdated"))
    wait_for(weights_file.with_suffix(".source"))


def test_no_bit_of_a_kept_file_can_turn_unseen(tmp_path: Path) -> None:
    folder, cache = random_llama(tmp_path, torch.bfloat16), tmp_path / "cache"
    run(folder, cache)
    (path,) = cache.glob("*.weights")
    checkpoint, content, dice = open_checkpoint(folder), path.read_bytes(), random.Random(1)
    key = key_of(checkpoint)

    for _ in range(100):
        bit = dice.randrange(8 * len(content))
        turned = bytearray(content)
        turned[bit // 8] ^= 1 << bit % 8
        path.write_bytes(turned)
        executor = _native.Executor(
            checkpoint.config, matrices(checkpoint.config), checkpoint.formats, checkpoint.kv_dtype, 8, 1, 8,
            checkpoint.max_model_len, (), 2, (),
        )  # fmt: skip
        assert not map_weights(executor, path, key), f"bit {bit} of {8 * len(content)}"


class Writes:
    """An executor whose weights are a few bytes. While it writes, another process' unfinished file is there."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._meanwhile = meanwhile
        self.packed_bytes = 7

    def save_weights(self, path: str, key: str) -> None:
        partial = Path(f"{path}.AbCd12")
        partial.write_bytes(b"weights")
        self._meanwhile()
        partial.replace(path)

    def map_weights(self, path: str, key: str) -> None:
        raise NotImplementedError


def test_what_a_killed_process_has_begun_to_write_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    left, other = tmp_path / "x-0-1.weights.Zz9Zz9", tmp_path / "notes.weights.txt"
    left.write_bytes(b"half")
    other.write_bytes(b"mine")

    def write_another() -> None:
        save_weights(Writes(), tmp_path / "x-0-3.weights", "")
        while not (tmp_path / "x-0-3.weights").exists():
            time.sleep(0.01)

    save_weights(Writes(write_another), tmp_path / "x-0-2.weights", "")
    wait_until_kept()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.weights.txt", "x-0-2.weights", "x-0-3.weights"]


def test_weights_of_an_older_rotation_are_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = random_llama(tmp_path, torch.bfloat16)
    rotated, plain = (open_checkpoint(folder, quantization=Asked(name)) for name in ("int8", "int4"))
    keys = key_of(rotated), key_of(plain)

    monkeypatch.setattr(weight_cache, "VERSION", weight_cache.VERSION + 1)

    assert key_of(rotated) != keys[0]
    assert key_of(plain) == keys[1]
