"""The supervisor when its processes die, hang or leave files and processes behind."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.e2e.served import ENDLESS, UNLIMITED, Served, series, serve, wait_until
from tests.e2e.test_orphans import gone


def master_of(served: Served) -> psutil.Process:
    """gunicorn's first process."""
    parent = served.workers()[0].parent()
    assert parent is not None
    return parent


def test_workers_die_with_gunicorns_master_and_others_serve_on(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"name": "one", "key": "key-number-one"}]}))
    with serve(
        tmp_path, *UNLIMITED, "--api-keys-file", str(keys), "--api-server-count", "2", key="key-number-one"
    ) as served:
        with served.endless(n=64) as lines:
            master, workers = master_of(served), served.workers()
            master.kill()
            rest = list(lines)
        wait_until(lambda: all(map(gone, [master, *workers])))
        assert '"code":503' in rest[-2]
        wait_until(lambda: answers(served) and served.connections() > 0, say=served.log.read_text)
        assert served.chat(max_tokens=3).status_code == 200

        keys.write_text(json.dumps({"keys": [{"name": "two", "key": "key-number-two"}]}))
        served.process.send_signal(signal.SIGHUP)
        wait_until(lambda: served.chat(max_tokens=3).status_code == 401)

        started = psutil.Process(served.process.pid).children(recursive=True)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0
        assert all(map(gone, started))


def test_requests_of_a_killed_api_are_not_in_flight_for_ever(tmp_path: Path) -> None:
    """Killed with its group, as by the watchdog, gunicorn's master keeps no account of its workers."""
    with serve(tmp_path, *UNLIMITED) as served:
        with served.endless() as lines:
            assert served.http.get("/load").json() == {"server_load": 1}
            os.killpg(master_of(served).pid, signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                list(lines)
        wait_until(lambda: answers(served) and served.connections() > 0, say=served.log.read_text)

        assert served.http.get("/load").json() == {"server_load": 0}
        assert in_flight(served) == 0


def answers(served: Served) -> bool:
    """Return whether a worker accepts a connection."""
    try:
        return served.http.get("/livez").status_code == 200
    except httpx.TransportError:
        return False


LONG: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": ENDLESS,
    "/v1/completions": {"prompt": "Ice is", "ignore_eos": True, "max_tokens": 1900},
    "/v1/responses": {"input": "What is ice?", "ignore_eos": True, "max_output_tokens": 1900},
    "/v1/messages": {"messages": ENDLESS["messages"], "ignore_eos": True, "max_tokens": 1900},
}


def test_the_end_of_a_drain_is_told_to_every_client_in_its_apis_form(tmp_path: Path) -> None:
    flags = (*UNLIMITED, "--shutdown-timeout", "0.5", "--max-num-seqs", "2", "--max-num-queued-reqs", "200")
    with serve(tmp_path, *flags) as served:
        with served.endless(n=128):  # half a minute of work in front of the others, so that none of them is done
            replies: dict[tuple[str, bool], tuple[int, str, str]] = {}
            begun: list[str] = []
            asking = [
                threading.Thread(target=ask, args=(served, path, stream, begun, replies))
                for path in LONG
                for stream in (False, True)
            ]
            for one in asking:
                one.start()
            # A stream's head is sent once the engine has taken its request; the others are told the same either way.
            wait_until(lambda: len(begun) == len(LONG) and in_flight(served) == 1 + len(asking), 60)
            served.process.send_signal(signal.SIGTERM)
            for one in asking:
                one.join()
        assert served.process.wait(60) == 0

    for path in LONG:
        status, kind, text = replies[path, False]
        assert (status, kind) == (503, "application/json"), (path, status, kind, text)
        assert "shutting down" in json.loads(text)["error"]["message"]
        status, kind, text = replies[path, True]
        assert status == 200
        last = text.strip().split("\n\n")
        if path.startswith(("/v1/chat", "/v1/completions")):
            assert last.pop() == "data: [DONE]"
        assert "shutting down" in last[-1], (path, last[-1])


def in_flight(served: Served) -> float:
    """Return how many requests with a body are being answered."""
    return series(served.http.get("/metrics").text)["forearm:http_requests_in_flight"]


def ask(
    served: Served, path: str, stream: bool, begun: list[str], replies: dict[tuple[str, bool], tuple[int, str, str]]
) -> None:
    """Add to `begun` when an answer's head has come, to `replies` its end; a broken connection is status 0."""
    try:
        with httpx.stream("POST", f"{served.url}{path}", json={**LONG[path], "stream": stream}, timeout=60) as reply:
            begun.append(path)
            text = reply.read().decode()
    except httpx.TransportError as error:
        replies[path, stream] = 0, "", repr(error)
    else:
        replies[path, stream] = reply.status_code, reply.headers["content-type"], text


def test_an_engine_that_hangs_is_killed_and_its_clients_are_told(tmp_path: Path) -> None:
    with serve(tmp_path, *UNLIMITED, env={"FOREARM_ANSWER_TIMEOUT": "5"}) as served, ThreadPoolExecutor(4) as pool:
        with served.endless(n=64) as lines:
            hung = served.engine()
            hung.suspend()
            waiting = [pool.submit(served.chat, max_tokens=3) for _ in range(4)]
            rest = list(lines)
        assert '"code":503' in rest[-2]
        for one in waiting:
            assert one.result().status_code == 503
            assert one.result().json()["error"]["code"] == 503
        assert "engine hangs: it has not answered for 5 s" in served.log.read_text()
        wait_until(lambda: served.http.get("/readyz").status_code == 200, 60)
        assert served.engine().pid != hung.pid
        assert served.chat(max_tokens=3).status_code == 200


def test_a_stopped_master_of_the_workers_is_replaced(tmp_path: Path) -> None:
    with serve(tmp_path, env={"FOREARM_ANSWER_TIMEOUT": "3"}) as served:
        stopped = master_of(served)
        stopped.suspend()
        wait_until(lambda: gone(stopped))
        wait_until(lambda: answers(served) and served.connections() > 0, say=served.log.read_text)
        assert served.chat(max_tokens=3).status_code == 200


def test_a_workers_heartbeats_come_every_few_seconds_whatever_the_clock_on_the_wall_says(tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        files = Path(f"/proc/{served.workers()[0].pid}/fd")
        beating = next(one for one in files.iterdir() if "wgunicorn-" in str(one.readlink()))
        seen = beating.stat().st_mtime

        wait_until(lambda: beating.stat().st_mtime > seen, 20)  # by uvicorn's clock they would come after 30 s

        assert abs(beating.stat().st_mtime - time.monotonic()) < 20
