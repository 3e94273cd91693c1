"""The load generator's HTTP, against a server that says exactly what it is told to."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.bench.raw_server import HANG_UP, chunked, plain, raw_server

from forearm.bench.http import Broken, Http, Reply, reason
from forearm.errors import ConfigError


async def post(http: Http, body: bytes = b"{}") -> tuple[Reply, bytes]:
    parts: list[bytes] = []
    reply = await http.post("/v1/completions", body, {"X-Request-Id": "7"}, lambda part, _: parts.append(part))
    return reply, b"".join(parts)


async def test_a_request_is_what_http_says_and_a_body_comes_in_parts_with_their_times() -> None:
    times: list[float] = []
    async with raw_server(chunked(b"one", b"two")) as raw:
        http = Http(raw.address + "/base/", {"Authorization": "Bearer k"})
        reply = await http.post("/v1/x", b'{"a":1}', {}, lambda _, received_s: times.append(received_s))
        http.close()

    [[request]] = raw.requests
    head, body = request.split(b"\r\n\r\n")
    assert head.startswith(b"POST /base/v1/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert {b"Authorization: Bearer k", b"Content-Length: 7", b"Content-Type: application/json"} <= set(
        head.split(b"\r\n")
    )
    assert (body, reply.status, len(times)) == (b'{"a":1}', 200, 2)
    assert times[0] < times[1]


async def test_a_connection_is_kept_and_several_are_opened_where_several_are_needed() -> None:
    async with raw_server(*[chunked(b"x")] * 5) as raw:
        http = Http(raw.address)
        for _ in range(3):
            await post(http)
        await asyncio.gather(post(http), post(http))
        http.close()

    assert sorted(len(of_connection) for of_connection in raw.requests) == [1, 4]


async def test_a_response_cut_anywhere_is_the_same() -> None:
    whole = b"".join(chunked(b"data: 1\n\n", b"data: 2\n\n"))
    cut = [whole[i : i + 1] for i in range(len(whole))]
    async with raw_server(cut) as raw:
        http = Http(raw.address)
        assert (await post(http))[1] == b"data: 1\n\ndata: 2\n\n"
        http.close()


async def test_a_body_without_length_lasts_until_the_server_hangs_up() -> None:
    async with raw_server([b"HTTP/1.1 200 OK\r\n\r\n", b"all ", b"of it", HANG_UP]) as raw:
        reply, body = await post(Http(raw.address))

    assert (reply.status, body) == (200, b"all of it")


async def test_an_error_has_its_reason() -> None:
    async with raw_server(
        plain("400 Bad Request", b'{"error": {"message": "too long"}}'), plain("502 Bad", b"")
    ) as raw:
        http = Http(raw.address)
        refused, taken = await post(http)
        broken, _ = await post(http)
        http.close()

    assert (reason(refused), taken) == ("HTTP 400: too long", b"")
    assert reason(broken) == "HTTP 502: Bad"


async def test_a_kept_connection_that_the_server_has_closed_is_replaced() -> None:
    async with raw_server(chunked(b"x"), [HANG_UP], chunked(b"again")) as raw:
        http = Http(raw.address)
        await post(http)
        _, body = await post(http)
        http.close()

    assert body == b"again"
    assert [len(of_connection) for of_connection in raw.requests] == [2, 1]


async def test_a_response_that_breaks_off_is_an_error_and_is_not_asked_for_again() -> None:
    async with raw_server(chunked(b"x"), [*chunked(b"half")[:-1], HANG_UP]) as raw:
        http = Http(raw.address)
        await post(http)
        with pytest.raises(Broken, match="the connection was lost"):
            await post(http)

    assert sum(map(len, raw.requests)) == 2


async def test_what_is_not_http_is_said() -> None:
    async with raw_server([b"SSH-2.0-OpenSSH\r\n\r\n"]) as raw:
        with pytest.raises(Broken, match="is not HTTP"):
            await post(Http(raw.address))


async def test_an_exchange_that_is_given_up_hangs_up() -> None:
    async with raw_server(chunked(b"1")[:-1], chunked(b"2")) as raw:
        http = Http(raw.address)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(post(http), 0.05)
        assert (await post(http))[1] == b"2"
        http.close()

    assert [len(of_connection) for of_connection in raw.requests] == [1, 1]


@pytest.mark.parametrize("address", ["localhost:8000", "ftp://x", "http://", ""])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="--base-url"):
        Http(address)
