from __future__ import annotations

from pathlib import Path

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.api.server import Server, StartServer, wait_until

from forearm.api.http.access_log import tidy_path


def test_models_are_listed_and_found_by_name(server: Server) -> None:
    listed = server.http.get("/v1/models").json()

    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ["letters", "org/letters"]
    card = listed["data"][0]
    assert (card["object"], card["max_model_len"], card["parent"]) == ("model", 1000, None)
    assert card["permission"][0]["allow_sampling"] is True
    assert card["default_sampling_params"] == {"temperature": 0.7, "top_k": 20}
    assert card["tasks"] == ["chat", "completions"]
    assert card["details"] == {"family": "echo", "parameters": 7, "format": "int8"}
    assert [model.id for model in server.openai.models.list()] == ["letters", "org/letters"]
    assert server.openai.models.retrieve("org/letters").id == "org/letters"
    with pytest.raises(openai.NotFoundError):
        server.openai.models.retrieve("org/other")


def test_a_models_path_is_accepted_and_its_last_part_is_shown(start_server: StartServer, tmp_path: Path) -> None:
    path = tmp_path / "Tiny-1B-Q4.gguf"
    path.touch()
    server = start_server(model=str(path), served_model_name=())

    (card,) = server.http.get("/v1/models").json()["data"]
    assert (card["id"], card["root"]) == ("Tiny-1B-Q4.gguf", str(path))
    for name in ("Tiny-1B-Q4.gguf", str(path)):
        assert server.openai.completions.create(model=name, prompt="a", max_tokens=1).model == name
    with pytest.raises(openai.NotFoundError):
        server.openai.completions.create(model=str(tmp_path / "other"), prompt="a")


def test_an_id_of_the_hub_stays_whole(start_server: StartServer) -> None:
    server = start_server(model="owner/tiny", served_model_name=())

    assert [card["id"] for card in server.http.get("/v1/models").json()["data"]] == ["owner/tiny"]


def test_texts_and_chats_are_tokenized_and_back(server: Server) -> None:
    text = server.http.post("/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
    chat = server.http.post("/tokenize", json={"messages": [{"role": "user", "content": "h"}]}).json()
    back = server.http.post("/detokenize", json={"tokens": [104, 195, 169, 256]}).json()

    assert text == {
        "count": 3,
        "max_model_len": 1000,
        "tokens": [104, 195, 169],
        "token_strs": ["h", "\u00c3", "\u00a9"],
    }
    assert (chat["tokens"], chat["token_strs"]) == ([104, 256], None)
    assert back == {"prompt": "hé<eos>"}


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": [{"role": "user", "content": "h"}]}])
def test_tokenize_takes_either_a_prompt_or_messages(server: Server, body: dict[str, object]) -> None:
    assert server.http.post("/tokenize", json=body).status_code == 400


@pytest.mark.parametrize("tokens", [[-1], [1 << 31], ["x"], None])
def test_detokenize_refuses_what_is_no_token(server: Server, tokens: object) -> None:
    assert server.http.post("/detokenize", json={"tokens": tokens}).status_code == 400


@pytest.mark.parametrize(
    "path", ["/health", "/livez", "/readyz", "/startupz", "/ping", "/version", "/load", "/metrics", "/"]
)
def test_operators_need_no_key(start_server: StartServer, path: str) -> None:
    server = start_server(api_key=("secret", "other"))

    assert httpx.get(server.url + path, timeout=60).status_code == 200


def test_everything_else_needs_a_key(start_server: StartServer) -> None:
    server = start_server(api_key=("secret", "otherß"))
    document = httpx.get(server.url + "/openapi.json", timeout=60).json()
    paths = document["paths"]  # a route added later needs a key, too
    opened = ("/health", "/livez", "/readyz", "/startupz", "/ping", "/version", "/load", "/metrics")
    guarded = sorted(path for path in paths if path not in opened and not path.startswith(("/docs", "/redoc", "/open")))
    assert len(guarded) >= 6

    for path in [*guarded, "//v1/models", "/v1/models/", "/tokenize/", "/health/../v1/models", "/nowhere"]:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}, {"Authorization": ""}):
            reply = httpx.post(server.url + path, json={"prompt": "x"}, headers=headers, timeout=60)
            assert reply.status_code == 401, path
            assert reply.json()["error"]["type"] in ("AuthenticationError", "authentication_error")  # Anthropic's
            assert reply.headers["www-authenticate"] == "Bearer"
    known = {b"Authorization": "Bearer otherß".encode()}
    assert (
        httpx.post(server.url + "/v1/completions", json={"prompt": "x"}, headers=known, timeout=60).status_code == 200
    )
    assert server.openai.models.list().data
    wrong = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with wrong, pytest.raises(openai.AuthenticationError):
        wrong.models.list()


@pytest.mark.parametrize(
    ("path", "tidy"),
    [("//v1/models", "/v1/models"), ("/v1/models/", "/v1/models"), ("/", "/"), ("///", "/"), ("/a//b//", "/a/b")],
)
def test_paths_are_tidied(path: str, tidy: str) -> None:
    assert tidy_path(path) == tidy


@pytest.mark.parametrize("path", ["//v1/models", "/v1/models/", "/v1//models"])
def test_untidy_base_urls_work(server: Server, path: str) -> None:
    assert server.http.get(server.url + path).status_code == 200


def test_a_proxys_path_is_left_off(start_server: StartServer) -> None:
    server = start_server(root_path="/llm", api_key=("secret",))

    assert server.http.get("/llm/v1/models").status_code == 200
    assert httpx.get(server.url + "/llm/health", timeout=60).status_code == 200
    assert httpx.get(server.url + "/llm/v1/models", timeout=60).status_code == 401


def test_an_engine_that_is_stuck_or_draining_is_not_ready(start_server: StartServer) -> None:
    server = start_server()
    assert server.http.get("/readyz").json() == {"status": "ready", "running": 0, "waiting": 0}

    server.engine.step_age_s = 301.0
    assert "one step for 301 s" in server.http.get("/readyz").json()["error"]["message"]

    server.engine.step_age_s, server.engine.draining = 0.0, True
    assert server.http.get("/health").status_code == 503


def test_metrics_have_the_engines_and_https_numbers(server: Server) -> None:
    server.chat("hello")

    text = server.http.get("/metrics").text

    assert "vllm:num_requests_running 0.0" in text
    assert 'http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"}' in text
    assert "http_request_duration_highr_seconds_bucket" in text
    assert "_created" not in text


def test_paths_that_clients_make_up_are_one_line_of_the_metrics(server: Server) -> None:
    for number in range(5):
        server.http.get(f"/made/up/{number}")

    text = server.http.get("/metrics").text

    assert "made/up" not in text
    assert 'handler="none"' in text


def test_browsers_are_admitted_from_an_allowed_origin(start_server: StartServer) -> None:
    server = start_server(allowed_origins=("https://here",), api_key=("secret",))
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}

    allowed = httpx.options(server.url + "/v1/completions", headers={"Origin": "https://here", **ask})
    other = httpx.options(server.url + "/v1/completions", headers={"Origin": "https://there", **ask})

    assert allowed.headers["access-control-allow-origin"] == "https://here"
    assert "access-control-allow-origin" not in other.headers


def test_docs_describe_the_bodies_and_can_be_switched_off(start_server: StartServer) -> None:
    server = start_server()

    spec = server.http.get("/openapi.json").json()
    body = spec["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]

    assert "messages" in body["properties"]
    assert server.http.get("/docs").status_code == 200


def test_docs_can_be_switched_off(start_server: StartServer) -> None:
    server = start_server(docs=False)

    assert [server.http.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")] == [404] * 3


def test_the_version_is_told(server: Server) -> None:
    assert set(server.http.get("/version").json()) == {"version"}


def test_the_engine_comes_later_than_the_server(start_server: StartServer) -> None:
    server = start_server()
    server.engine.stop()
    wait_until(lambda: server.http.get("/readyz").status_code == 503)

    assert server.http.get("/v1/models").json()["data"][0]["max_model_len"] is None


def test_prompts_are_logged_where_asked_for(start_server: StartServer, caplog: pytest.LogCaptureFixture) -> None:
    server = start_server(log_requests=True, max_log_len=3)

    with caplog.at_level("INFO"):
        server.chat("hello", seed=7)

    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("request ")]
    assert "6 tokens, 'hel', SamplingParams(" in line
    assert "seed=7" in line


HOSTILE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=300).map(
    lambda value: value.strip(" ")  # the client sends no blanks around a value
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_id=HOSTILE, load=HOSTILE, trace=HOSTILE, authorization=HOSTILE)
def test_no_header_breaks_an_answer(server: Server, given_id: str, load: str, trace: str, authorization: str) -> None:
    headers = {
        "X-Request-Id": given_id.encode("latin-1"),
        "endpoint-load-metrics-format": load.encode("latin-1"),
        "traceparent": trace.encode("latin-1"),
        "Authorization": authorization.encode("latin-1"),
        "X-Api-Key": authorization.encode("latin-1"),
    }
    reply = httpx.get(f"{server.url}/v1/models", headers=list(headers.items()), timeout=60)

    assert reply.status_code == 200
    told = reply.headers["x-request-id"]
    assert 0 < len(told) <= 128
    assert told.isascii()
    assert told.isprintable()
