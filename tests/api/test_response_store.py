"""The response store of two workers, which share one file."""

from __future__ import annotations

import contextlib
import json
import resource
import sqlite3
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from forearm.api.responses.store import ResponseStore
from forearm.api.responses.store_schema import ResponseUpdate, StoredResponse
from forearm.config.api_config import ApiConfig
from forearm.errors import ConfigError, InvalidRequest, ResponseNotFound, StoreFull

Open = Callable[..., ResponseStore]
ME, OTHER = "me", "somebody else"


@pytest.fixture
async def open_store(tmp_path: Path) -> AsyncIterator[Open]:
    """Return a function that opens another store on the same file."""
    opened: list[ResponseStore] = []

    def one(**bounds: Any) -> ResponseStore:
        opened.append(ResponseStore(ApiConfig(run_folder=str(tmp_path), **bounds)))
        return opened[-1]

    yield one
    for store in opened:
        await store.close()


def response(number: int, status: str = "completed", text: str = "", previous: str | None = None) -> StoredResponse:
    reply = {"id": f"resp_{number}", "status": status, "output": [{"id": f"msg_{number}", "text": text}]}
    items = [{"id": f"in_{number}", "role": "user", "content": text}]
    return StoredResponse(f"resp_{number}", status, json.dumps(reply).encode(), json.dumps(items).encode(), previous)


def age(tmp_path: Path, seconds: float, what: str = "used") -> None:
    """Move all times in the store this far into the past."""
    with sqlite3.connect(tmp_path / "responses.sqlite") as connection:
        connection.execute(f"UPDATE responses SET {what} = {what} - {seconds}")
    connection.close()


def file_bytes(tmp_path: Path) -> int:
    """Return the bytes of the store, its journal and other files of SQLite beside it."""
    return sum(path.stat().st_size for path in tmp_path.glob("responses.sqlite*"))


def test_a_file_that_cannot_be_made_is_a_setting_to_change(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent/responses\.sqlite for stored responses: .*No such file.*set TMPDIR"):
        ResponseStore(ApiConfig(run_folder=str(tmp_path / "absent")))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # as of a full disk
    try:
        with pytest.raises(ConfigError, match=r"responses\.sqlite for stored responses: .*disk"):
            ResponseStore(ApiConfig(run_folder=str(tmp_path)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


async def test_the_files_hold_no_more_than_the_bound(tmp_path: Path, open_store: Open) -> None:
    bound = 2 << 20
    stores = [open_store(responses_store_bytes=bound) for _ in range(2)]
    most = 0
    for number in range(300):
        store, text = stores[number % 2], "x" * (100 + 977 * number % 90_000)
        await store.add(response(number, "in_progress", text), ME, [b"event: begun\n\n"])
        for event in range(5):
            update = ResponseUpdate(f"resp_{number}", event + 1, [text[:8000].encode() + b"\n\n"])
            assert await store.update([update])
        await store.update([ResponseUpdate(f"resp_{number}", 6, [], "completed", response(number, text=text).reply)])
        most = max(most, file_bytes(tmp_path))
        assert await there(store, range(number, number + 1)), "the newest is there"

    assert bound / 2 < most < 1.1 * bound + 200_000, "a transaction's old pages beside it"
    assert len(await there(stores[0], range(300))) >= 5


async def test_what_runs_may_fill_the_store_and_then_says_so(open_store: Open) -> None:
    store = open_store(responses_store_bytes=1 << 20)
    for number in range(8):
        await store.add(response(number, "in_progress", "x" * 50_000), ME)
    with pytest.raises(StoreFull, match="fill the store"):
        await store.add(response(8, "in_progress", "x" * 50_000), ME)
    assert await there(store, range(9)) == list(range(8)), "none of what runs was let go"
    await store.update([ResponseUpdate("resp_0", 0, [], "completed", response(0).reply)])
    await store.add(response(99), ME)
    assert await there(store, range(99, 100)) == [99]


async def there(store: ResponseStore, numbers: range) -> list[int]:
    found = []
    for number in numbers:
        with contextlib.suppress(ResponseNotFound):
            await store.get(f"resp_{number}", ME)
            found.append(number)
    return found


async def test_what_one_worker_stores_the_other_finds(open_store: Open) -> None:
    one, other = open_store(), open_store()

    await one.add(response(1, text="hello"), ME)

    assert await other.get("resp_1", ME) == response(1, text="hello")
    assert (await other.output_item("msg_1", ME))["text"] == "hello"
    await other.delete("resp_1", ME)
    with pytest.raises(ResponseNotFound):
        await one.get("resp_1", ME)
    with pytest.raises(ResponseNotFound):
        await one.output_item("msg_1", ME)


async def test_to_others_it_is_not_there(open_store: Open) -> None:
    store = open_store()
    await store.add(response(1, "in_progress"), ME)

    for work in (
        store.get,
        store.cancel,
        store.delete,
        lambda i, o: store.chain(i, o, 1000),
        lambda i, o: store.events(i, o, 0),
    ):
        with pytest.raises(ResponseNotFound, match="resp_1"):
            await work("resp_1", OTHER)
    with pytest.raises(ResponseNotFound):
        await store.output_item("msg_1", OTHER)
    assert (await store.get("resp_1", ME)).status == "in_progress"


async def test_the_one_used_longest_ago_goes_first(open_store: Open) -> None:
    store = open_store(responses_store_count=3)
    for number in range(3):
        await store.add(response(number), ME)
    await store.get("resp_0", ME)

    await store.add(response(3), ME)

    assert await there(store, range(4)) == [0, 2, 3]


async def test_bytes_are_bounded_events_included(open_store: Open, tmp_path: Path) -> None:
    store = open_store(responses_store_bytes=100_000)
    for number in range(40):
        await store.add(response(number, "in_progress", "x" * 4000), ME)
        await store.update(
            [ResponseUpdate(f"resp_{number}", 0, [b"y" * 10_000 + b"\n\n"], "completed", response(number).reply)]
        )

    left = await there(store, range(40))
    assert left == list(range(40 - len(left), 40))
    assert 3 <= len(left) <= 6
    files = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert files < 6_000_000  # SQLite's log has 4 MB


async def test_what_is_too_old_goes(open_store: Open, tmp_path: Path) -> None:
    store = open_store(responses_store_age_s=60)
    await store.add(response(1), ME)
    age(tmp_path, 61)

    assert await there(store, range(2)) == []
    await store.add(response(2), ME)
    with sqlite3.connect(tmp_path / "responses.sqlite") as connection:
        rows = [
            connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in ("responses", "contents", "output")
        ]
    connection.close()
    assert rows == [1, 1, 1]


async def test_what_is_still_computed_stays(open_store: Open) -> None:
    store = open_store(responses_store_count=1)
    await store.add(response(1, "in_progress"), ME)
    for number in range(2, 5):
        await store.add(response(number), ME)

    assert await there(store, range(5)) == [1]  # it takes the only place


async def test_what_can_never_fit_is_refused(open_store: Open) -> None:
    store = open_store(responses_store_bytes=1 << 16)

    with pytest.raises(InvalidRequest, match="send store: false"):
        await store.add(response(1, text="x" * (1 << 16)), ME)


async def test_what_a_dead_worker_has_left_has_failed(open_store: Open, tmp_path: Path) -> None:
    one, other = open_store(), open_store()
    await one.add(response(1, "in_progress"), ME, [b"event: a\ndata: 0\n\n"])
    age(tmp_path, 31, "beat")

    found = await other.get("resp_1", ME)
    events, more = await one.events("resp_1", ME, 0)

    assert (found.status, json.loads(found.reply)["error"]["code"]) == ("failed", "server_error")
    [last] = events
    assert not more
    assert last.startswith(b"event: response.failed\n")
    assert json.loads(last.split(b"data: ")[1])["sequence_number"] == 1
    assert not await one.update([ResponseUpdate("resp_1", 0, [], "completed", response(1).reply)])
    assert (await one.get("resp_1", ME)).status == "failed"


@pytest.mark.parametrize("jump_s", [86400.0 * 365, -86400.0])
async def test_a_clock_that_is_set_ends_no_response(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """Boards without a battery begin in 1970, and NTP sets their clock some time after the start."""
    store, clock = open_store(), time.time
    await store.add(response(1, "in_progress"), ME)
    await store.add(response(2), ME)

    monkeypatch.setattr(time, "time", lambda: clock() + jump_s)
    await store.add(response(3), ME)

    assert await there(store, range(1, 4)) == [1, 2, 3]
    assert (await store.get("resp_1", ME)).status == "in_progress"


async def test_a_response_cancelled_elsewhere_is_no_longer_wanted(open_store: Open) -> None:
    one, other = open_store(), open_store()
    await one.add(response(1, "queued"), ME)
    assert await one.update([ResponseUpdate("resp_1", 0, [b"event: a\ndata: 0\n\n"])]) == {"resp_1"}

    cancelled = await other.cancel("resp_1", ME)

    assert json.loads(cancelled.reply)["status"] == "cancelled"
    assert not await one.update([ResponseUpdate("resp_1", 1, [b"event: b\ndata: 1\n\n"])])
    assert await one.events("resp_1", ME, -1) == ([b"event: a\ndata: 0\n\n"], False)
    assert (await one.cancel("resp_1", ME)).status == "cancelled"


async def test_events_come_after_any_number(open_store: Open) -> None:
    store = open_store()
    events = [b"event: x\ndata: %d\n\n" % number for number in range(10)]
    await store.add(response(1, "in_progress"), ME, events[:3])
    await store.update([ResponseUpdate("resp_1", 3, events[3:4])])
    await store.update([ResponseUpdate("resp_1", 4)])
    await store.update([ResponseUpdate("resp_1", 4, events[4:], "completed", response(1).reply)])

    for after in range(-1, 11):
        assert await store.events("resp_1", ME, after) == (events[after + 1 :], False)


async def test_a_conversation_is_found_from_its_end(open_store: Open) -> None:
    store = open_store()
    for number in range(5):
        await store.add(response(number, previous=f"resp_{number - 1}" if number else None), ME)

    assert [one.id for one in await store.chain("resp_3", ME, 100_000)] == [f"resp_{n}" for n in range(4)]
    with pytest.raises(InvalidRequest, match="longer than 100 bytes"):
        await store.chain("resp_3", ME, 100)
    await store.delete("resp_1", ME)
    with pytest.raises(ResponseNotFound, match="resp_1"):
        await store.chain("resp_3", ME, 100_000)


async def test_using_a_conversation_keeps_all_of_it(open_store: Open) -> None:
    store = open_store(responses_store_count=4)
    await store.add(response(0), ME)
    await store.add(response(1, previous="resp_0"), ME)
    await store.add(response(2), ME)
    await store.chain("resp_1", ME, 100_000)
    for number in (3, 4):
        await store.add(response(number), ME)

    assert await there(store, range(5)) == [0, 1, 3, 4]


@pytest.mark.parametrize("name", ["", "' OR 1=1 --", "x" * 100_000, "a\x00b", "../../etc/passwd", "🙂", "%s{}"])
async def test_an_id_is_never_more_than_an_id(open_store: Open, name: str) -> None:
    store = open_store()
    await store.add(response(1), ME)

    with pytest.raises(ResponseNotFound) as error:
        await store.get(name, ME)
    assert len(str(error.value)) < 500
    with pytest.raises(ResponseNotFound):
        await store.delete(name, ME)
    assert await there(store, range(2)) == [1]


async def test_only_the_servers_user_can_read_it_and_it_goes_with_it(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    await store.add(response(1), ME)
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}

    own = ResponseStore(ApiConfig())
    await own.add(response(1), ME)
    assert own._own_folder
    assert stat.S_IMODE(Path(own._own_folder).stat().st_mode) == 0o700
    await own.close()
    assert not Path(own._own_folder).exists()


async def test_a_response_is_stored_and_found_in_a_few_milliseconds_among_thousands(open_store: Open) -> None:
    store = open_store()
    for number in range(2000):
        await store.add(response(number), ME)

    took = []
    for number in range(2000, 2100):
        begun = time.perf_counter()
        await store.add(response(number), ME)
        await store.get(f"resp_{number - 500}", ME)
        took.append(time.perf_counter() - begun)
    assert (
        min(took) < 0.02
    )  # the least: a search through all would take each time what it takes, a busy machine does not
