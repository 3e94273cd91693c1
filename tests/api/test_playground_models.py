"""The playground with each kind of model: what it shows, offers and asks; presets, comparisons, code to copy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests.api.server import Server, started
from tests.api.test_playground import TEMPLATE, answered, ask
from tests.browser import POOR_CONTRASTS, opened

CARD = {"id": "letters", "root": "letters", "max_model_len": 1000, "default_sampling_params": {}, "permission": []}


@pytest.fixture(scope="module")
def echoing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("playground"), chat_template=TEMPLATE) as running:
        yield running


@pytest.fixture
def page(browser: Browser, echoing: Server) -> Iterator[Page]:
    with opened(browser, echoing.url) as (one, wrong):
        expect(one.locator("#model")).to_be_enabled()
        yield one
        assert wrong == []


def listed(page: Page, *cards: dict[str, Any]) -> None:
    """Reload the page over a server that lists these models."""
    details = {"details": {"family": "llama", "parameters": 7_250_000_000, "format": "int4 in groups of 128"}}
    listing = {"object": "list", "data": [{**CARD, **details, **card} for card in cards]}
    page.route("**/v1/models", lambda route: route.fulfill(json=listing))
    page.reload()
    expect(page.locator("#model")).to_be_enabled()


def bodies(page: Page) -> list[tuple[str, dict[str, Any]]]:
    """The path and body of each request that is posted from now on."""
    found: list[tuple[str, dict[str, Any]]] = []
    page.on(
        "request",
        lambda one: found.append((one.url.split("/v1/")[1], one.post_data_json)) if one.method == "POST" else None,
    )
    return found


def settings(page: Page) -> None:
    page.get_by_role("button", name="Settings", exact=True).click()
    page.locator("#settings details").evaluate_all("(all) => all.forEach((one) => { one.open = true; })")


def test_the_card_has_what_the_server_says_of_the_model(page: Page) -> None:
    expect(page.locator("#about")).to_have_text("7 parameters · int8 · context of 1,000 tokens")
    settings(page)

    facts = page.locator("#card div").all_inner_texts()

    assert facts[:4] == ["Family\necho", "Parameters\n7", "Weights\nint8", "Context\n1,000 tokens"]
    assert "Sampling\ntemperature 0.7, top_k 20" in facts
    assert page.evaluate(POOR_CONTRASTS) == []


@pytest.mark.parametrize(
    ("card", "example"),
    [
        ({"tasks": ["chat", "completions"]}, "Plan a day in Oslo"),
        ({"tasks": ["chat", "completions"], "id": "Qwen2.5-Coder-7B"}, "merges two sorted lists"),
        ({"tasks": ["completions"]}, "The capital of Norway is"),
        ({"tasks": ["embed"]}, "A river of ice"),
    ],
)
def test_examples_fit_the_model(page: Page, card: dict[str, Any], example: str) -> None:
    listed(page, card)

    expect(page.locator("#about")).to_contain_text("7.3B parameters")
    expect(page.locator("#examples").get_by_text(example)).to_be_visible()


def test_a_base_model_goes_on_with_the_text(page: Page) -> None:
    listed(page, {"tasks": ["completions"]})
    asked = bodies(page)

    answered(page, "abc")
    answered(page, "de")

    assert [path for path, _ in asked] == ["completions", "completions"]
    first, second = (body for _, body in asked)
    assert (first["prompt"], first["max_tokens"]) == ("abc", 256)
    assert second["prompt"].startswith("abc")
    assert second["prompt"].endswith("de")
    assert len(second["prompt"]) > len("abcde")  # the answer is between them
    expect(page.locator(".turn.assistant .prose").first).to_contain_text("abc")


def test_an_embedding_model_compares_lines(page: Page) -> None:
    vectors = [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]
    data = [{"index": i, "embedding": vector} for i, vector in enumerate(vectors)]
    page.route("**/v1/embeddings", lambda route: route.fulfill(json={"data": data, "usage": {"prompt_tokens": 3}}))
    listed(page, {"tasks": ["embed"]})
    asked = bodies(page)

    page.locator("#message").fill("ice\ntax\n\n*snow*")
    page.locator("#send").click()

    expect(page.locator(".prose tbody td")).to_have_text(["0.600", "*snow*", "0.000", "tax"])
    assert asked == [("embeddings", {"model": "letters", "input": ["ice", "tax", "*snow*"]})]


def test_a_model_that_gives_scores_takes_no_messages(page: Page) -> None:
    listed(page, {"tasks": ["score"]})

    expect(page.locator("#welcome-hint")).to_contain_text("This model answers score")
    expect(page.locator("#message")).to_be_disabled()


def test_a_conversation_is_shown_as_requests_that_run(page: Page, echoing: Server) -> None:
    settings(page)
    page.get_by_label("System prompt").fill("Say “it's”.")
    page.get_by_label("Top k", exact=True).fill("5")
    page.locator("#stop").fill("###")
    answered(page, "What's \"this\" $HOME 'é'?")

    page.get_by_role("button", name="Code").click()

    curl, python = (block.inner_text() for block in page.locator("#code-blocks pre").all())
    shown = page.locator(".turn.assistant .prose").inner_text()
    ended = subprocess.run(["bash", "-ec", curl], capture_output=True, text=True, timeout=60)
    assert json.loads(ended.stdout)["choices"][0]["message"]["content"].startswith(shown), ended.stderr
    quiet = {**os.environ, "NO_PROXY": "*"}
    ended = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, timeout=60, env=quiet)
    assert ended.stdout.startswith(shown), ended.stderr
    assert 'extra_body={"top_k": 5}' in python
    page.keyboard.press("Escape")
    expect(page.locator("#code")).to_be_hidden()


def test_code_reads_the_key_from_the_environment(page: Page) -> None:
    settings(page)
    page.locator("#key").fill("secret")

    page.get_by_role("button", name="Code").click()

    text = page.locator("#code").inner_text()
    assert "secret" not in text
    assert "$OPENAI_API_KEY" in text
    assert page.evaluate(POOR_CONTRASTS) == []


def save_preset(page: Page, name: str) -> None:
    page.get_by_label("Save as").fill(name)
    page.get_by_role("button", name="Save").click()


def test_presets_are_kept_used_deleted_exported_and_imported(page: Page, tmp_path: Path) -> None:
    settings(page)
    page.get_by_label("Seed", exact=True).fill("7")
    page.get_by_label("System prompt").fill("Be brief.")
    save_preset(page, "brief")
    page.get_by_role("button", name="Reset settings").click()
    expect(page.get_by_label("Seed", exact=True)).to_have_value("")
    page.reload()
    settings(page)
    page.locator("#preset").select_option("brief")
    expect(page.get_by_label("Seed", exact=True)).to_have_value("7")
    expect(page.get_by_label("System prompt")).to_have_value("Be brief.")

    page.get_by_role("button", name="Chats", exact=True).click()
    with page.expect_download() as exported:
        page.get_by_role("button", name="Export all (JSON)").click()
    file = tmp_path / "all.json"
    exported.value.save_as(file)
    assert json.loads(file.read_text())["presets"] == [
        {"name": "brief", "values": {"seed": "7", "system": "Be brief."}}
    ]
    settings(page)
    page.get_by_role("button", name="Delete").click()
    expect(page.locator("#preset option")).to_have_count(1)
    page.get_by_role("button", name="Chats", exact=True).click()
    page.get_by_label("Import (JSON, Markdown)").set_input_files(file)
    expect(page.locator("#chats-state")).to_contain_text("1 presets")
    settings(page)
    expect(page.locator("#preset option")).to_have_text(["Choose…", "brief"])


def test_two_answers_stand_side_by_side_and_one_is_gone_on_with(page: Page) -> None:
    settings(page)
    page.get_by_label("Max tokens").fill("3")
    save_preset(page, "short")
    page.get_by_label("Max tokens").fill("")
    page.locator("#compare").select_option("preset:short")
    asked = bodies(page)

    ask(page, "abcdef")

    expect(page.locator(".side .stats")).to_have_count(2)
    expect(page.locator(".side .prose").last).to_have_text("abc")
    expect(page.locator(".side .who").last).to_have_text("letters, short")
    assert page.locator(".side .prose").first.inner_text().startswith("abcdef")
    assert sorted(body.get("max_completion_tokens", 0) for _, body in asked) == [0, 3]
    assert page.evaluate(POOR_CONTRASTS) == []
    page.get_by_role("button", name="Go on with this one").click()
    page.locator("#compare").select_option("")
    answered(page, "ghi")
    assert [one["content"] for one in asked[-1][1]["messages"]] == ["abcdef", "abc", "ghi"]
    page.reload()
    page.get_by_role("button", name="Chats", exact=True).click()
    page.locator("#chat-list .title").click()
    expect(page.locator(".side .prose").first).to_have_text("abc")


def test_another_model_can_be_compared_with(page: Page) -> None:
    listed(page, {}, {"id": "org/letters", "root": "other"})
    settings(page)
    page.locator("#compare").select_option("model:org/letters")
    asked = bodies(page)

    ask(page, "abc")

    expect(page.locator(".side .stats")).to_have_count(2)
    assert sorted(body["model"] for _, body in asked) == ["letters", "org/letters"]


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (502, {}, "A proxy answers in place of the server"),
        (413, {}, "longer than a proxy before the server takes"),
        (429, {"Retry-After": "7"}, "too much to do. Try again after 7 s."),
    ],
)
def test_what_a_proxy_answers_is_said_in_words(
    browser: Browser, echoing: Server, status: int, headers: dict[str, str], words: str
) -> None:
    def proxy(route: Route) -> None:
        route.fulfill(status=status, headers=headers, content_type="text/html", body="<h1>nginx</h1>")

    with opened(browser, echoing.url) as (page, _):
        expect(page.locator("#model")).to_be_enabled()
        page.route("**/chat/completions", proxy)
        ask(page, "abc")

        expect(page.locator(".failed")).to_contain_text(words)


def test_figures_that_cannot_be_had_are_told_in_words(browser: Browser, echoing: Server) -> None:
    with opened(browser, echoing.url, 1300) as (page, _):
        page.route("**/metrics", lambda route: route.abort())

        expect(page.locator("#figures-state")).to_contain_text("The server cannot be reached")
