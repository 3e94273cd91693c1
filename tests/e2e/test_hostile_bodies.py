"""Every body of the corpus is answered, beside a worker that goes on: bench/serving/hostile.py has the figures."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from tests.e2e.hostile_bodies import GENERATING, body
from tests.e2e.served import Served, serve

MIB = 1 << 20
# 20 to 100 ms on a free machine; nulls for prompts took a minute, bad_words too. The worker's CPU time counts nothing
# else that the machine does.
MOST_STALL_S, MOST_CPU_S = 15.0, 3.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("bodies"), "--api-server-count", "1") as running:
        (before,) = running.workers()
        yield running
        (after,) = running.workers()
        assert after.pid == before.pid
        assert "Traceback" not in running.log.read_text()


def test_no_body_is_the_servers_fault_or_holds_it_up(served: Served) -> None:
    statuses, longest, busiest = dict[str, int](), dict[str, float](), dict[str, float]()
    (worker,) = served.workers()
    with (
        httpx.Client(base_url=served.url, timeout=60) as bystander,
        httpx.Client(base_url=served.url, timeout=60) as hostile,
    ):
        for name, form in GENERATING.items():
            content = body(form, 4 * MIB)

            def send(name: str = name, path: str = form[0], content: bytes = content) -> None:
                headers = {"Content-Type": "application/json"}
                statuses[name] = hostile.post(path, content=content, headers=headers, timeout=60).status_code

            sending = threading.Thread(target=send)
            sending.start()
            while sending.is_alive():
                begun_s, cpu_s = time.monotonic(), sum(worker.cpu_times()[:2])
                bystander.get("/livez")
                longest[name] = max(longest.get(name, 0.0), time.monotonic() - begun_s)
                busiest[name] = max(busiest.get(name, 0.0), sum(worker.cpu_times()[:2]) - cpu_s)
                time.sleep(0.005)

    assert set(statuses) == set(GENERATING)
    assert {name: status for name, status in statuses.items() if status not in (200, 400)} == {}
    assert {name: seconds for name, seconds in longest.items() if seconds > MOST_STALL_S} == {}
    assert {name: seconds for name, seconds in busiest.items() if seconds > MOST_CPU_S} == {}
