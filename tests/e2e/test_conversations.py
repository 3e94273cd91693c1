"""Conversations of the page at /, kept in a real browser, before a real server with the demo model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests.browser import POOR_CONTRASTS, opened
from tests.e2e.served import Served, serve
from tests.e2e.test_playground import LONG, ask, more, sent, wait_for_answers

AXE = Path(__file__).parents[1] / "axe.min.js"  # axe-core 4.14.1 as its npm package has it (MPL-2.0)
WRITTEN = """# Title

$x^2$, a [link](https://a.example) and `code`.

| a | b |
|---|---|
| 1 | 2 |

```py
def f():
    return "a"  # as it is
```
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    longer = json.dumps({"max_new_tokens": 4000})  # the model's own limit is 128
    with serve(tmp_path_factory.mktemp("e2e"), "--override-generation-config", longer) as one:
        yield one


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Page]:
    with opened(browser, served.url) as (one, _):
        expect(one.locator("#model")).to_be_enabled()
        yield one


def chats(page: Page) -> None:
    if not page.locator("#chats").is_visible():
        page.get_by_role("button", name="Chats", exact=True).click()


def test_conversations_are_kept_found_renamed_and_deleted(page: Page) -> None:
    for count, text in enumerate(("What is a glacier?", "What is a harbour?"), 1):
        ask(page, text)
        wait_for_answers(page, 1)
        page.get_by_role("button", name="New chat").click()
        chats(page)
        expect(page.locator("#chat-list .title")).to_have_count(count)
    page.reload()
    chats(page)
    expect(page.locator("#chat-list .title")).to_have_text(["What is a harbour?", "What is a glacier?"])
    assert page.evaluate(POOR_CONTRASTS) == []

    page.get_by_label("Search chats").fill("GLACIER")
    expect(page.locator("#chat-list .title")).to_have_text(["What is a glacier?"])
    page.locator("#chat-list .title").click()
    expect(page.locator(".turn.user .body")).to_have_text("What is a glacier?")
    expect(page.locator(".turn.assistant .prose")).to_contain_text("ice")
    page.get_by_role("button", name="Rename What is a glacier?").click()
    page.get_by_label("New name").fill("Glaciers, and ice")
    page.keyboard.press("Enter")
    expect(page.locator("#chat-list .title")).to_have_text(["Glaciers, and ice"])
    page.get_by_role("button", name="Delete Glaciers, and ice").click()
    expect(page.locator(".turn")).to_have_count(0)
    page.get_by_label("Search chats").fill("")
    page.reload()
    chats(page)
    expect(page.locator("#chat-list .title")).to_have_text(["What is a harbour?"])


def test_conversations_are_exported_and_imported(page: Page, tmp_path: Path) -> None:
    ask(page, "What is a glacier?")
    wait_for_answers(page, 1)
    answer = page.locator(".turn.assistant .prose").inner_text()
    chats(page)
    with page.expect_download() as exported:
        page.get_by_role("button", name="Export all (JSON)").click()
    with page.expect_download() as written:
        page.get_by_role("button", name="Export this one (Markdown)").click()
    file, bad = tmp_path / "all.json", tmp_path / "bad.json"
    exported.value.save_as(file)
    bad.write_text('[{"turns": [{"role": "system", "content": 3}]}]')
    text = written.value.path().read_text()
    assert text.startswith("# What is a glacier?\n\n## You\n\nWhat is a glacier?\n\n## Model\n\n")
    assert answer.split()[0] in text

    page.get_by_role("button", name="Delete What is a glacier?").click()
    page.get_by_label("Import (JSON, Markdown)").set_input_files(bad)
    expect(page.locator("#chats-state")).to_contain_text("bad.json was not imported")
    expect(page.locator("#chat-list .title")).to_have_count(0)
    page.get_by_label("Import (JSON, Markdown)").set_input_files(file)
    page.locator("#chat-list .title").click()
    expect(page.locator(".turn.assistant .prose")).to_have_text(answer, use_inner_text=True)


def test_a_conversation_comes_back_from_markdown_as_it_was(page: Page, tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "a\n\n## Model\n\nb\n\\## You"},
        {"role": "assistant", "content": WRITTEN.strip(), "finish": "stop"},
        {"role": "user", "content": "## You"},
        {"role": "assistant", "content": "c", "finish": "stop"},
    ]
    files = tmp_path / "all.json", tmp_path / "one.md"
    files[0].write_text(json.dumps([{"id": "1", "turns": turns}]))
    chats(page)
    page.get_by_label("Import (JSON, Markdown)").set_input_files(files[0])
    page.locator("#chat-list .title").click()
    expect(page.locator(".turn")).to_have_count(4)
    chats(page)
    with page.expect_download() as written:
        page.get_by_role("button", name="Export this one (Markdown)").click()
    written.value.save_as(files[1])

    page.get_by_label("Import (JSON, Markdown)").set_input_files(files[1])

    expect(page.locator("#chat-list .title")).to_have_count(2)
    kept = page.evaluate("() => JSON.parse(localStorage['forearm.conversations'])")
    told = [[(turn["role"], turn["content"]) for turn in one["turns"]] for one in kept]
    assert told == [[(turn["role"], turn["content"]) for turn in turns]] * 2
    files[1].write_text("# Notes\n\nNothing was said.\n")
    page.get_by_label("Import (JSON, Markdown)").set_input_files(files[1])
    expect(page.locator("#chats-state")).to_contain_text("one.md was not imported: it has no lines “## You”")


def test_an_answer_that_was_stopped_is_continued_where_it_ended(page: Page) -> None:
    more(page, {**LONG, "max_completion_tokens": 8})
    ask(page, "What is a glacier?")
    wait_for_answers(page, 1)
    begun = page.locator(".turn.assistant .prose").inner_text()
    bodies = sent(page)

    page.get_by_role("button", name="Continue").click()
    wait_for_answers(page, 1)

    expect(page.locator(".turn.assistant")).to_have_count(1)
    whole = page.locator(".turn.assistant .prose").inner_text()
    assert whole.startswith(begun)
    assert len(whole) > len(begun)
    (body,) = bodies
    assert body["continue_final_message"]
    assert [message["role"] for message in body["messages"]] == ["user", "assistant"]


def test_a_cut_stream_says_so_and_a_failed_question_is_not_sent_again(page: Page) -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "A glacier is"}}]}

    def broken(route: Route) -> None:
        route.fulfill(status=200, content_type="text/event-stream", body=f"data: {json.dumps(chunk)}\n\n")

    page.route("**/chat/completions", broken)
    ask(page, "What is a glacier?")
    expect(page.locator(".failed")).to_contain_text("cut off")
    expect(page.locator(".failed")).to_contain_text("The connection to the server broke")
    page.unroute("**/chat/completions")
    page.get_by_role("button", name="Continue").click()
    wait_for_answers(page, 1)
    expect(page.locator(".failed")).to_be_hidden()
    expect(page.locator(".turn.assistant .prose")).to_contain_text("A glacier is")

    page.route("**/chat/completions", lambda route: route.abort())
    ask(page, "And a harbour?")
    expect(page.locator(".failed").last).to_contain_text("cannot be reached")
    page.unroute("**/chat/completions")
    bodies = sent(page)
    ask(page, "What is a harbour?")
    wait_for_answers(page, 2)
    (body,) = bodies
    assert [m["content"] for m in body["messages"] if m["role"] == "user"] == [
        "What is a glacier?",
        "What is a harbour?",
    ]


def test_a_branch_leaves_the_first_conversation_as_it_was(page: Page) -> None:
    for count, text in enumerate(("What is a glacier?", "What is a harbour?"), 1):
        ask(page, text)
        wait_for_answers(page, count)
    page.get_by_role("button", name="Branch").first.click()

    expect(page.locator(".turn.user")).to_have_count(1)
    chats(page)
    expect(page.locator("#chat-list .title")).to_have_count(2)
    page.locator("#chat-list .title").last.click()
    expect(page.locator(".turn.user")).to_have_count(2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_axe_finds_nothing(
    browser: Browser, served: Served, tmp_path: Path, width: int, height: int, scheme: str
) -> None:
    file = tmp_path / "all.json"
    answers = [{"role": "assistant", "content": text, "finish": "stop", "label": text[:7]} for text in (WRITTEN, "b")]
    turns = [{"role": "user", "content": "a"}, {**answers[0], "other": answers[1]}]
    file.write_text(json.dumps([{"id": "1", "turns": turns}]))
    with opened(browser, served.url, width, height, scheme) as (page, _):
        expect(page.locator("#model")).to_be_enabled()

        def violations() -> list[str]:
            page.evaluate(AXE.read_text())
            found = page.evaluate("() => axe.run()")
            assert len(found["passes"]) > 10
            return [f"{one['id']}: {one['nodes'][0]['html'][:100]}" for one in found["violations"]]

        assert violations() == []
        chats(page)
        page.get_by_label("Import (JSON, Markdown)").set_input_files(file)
        expect(page.locator("#chat-list .title")).to_have_count(1)
        assert violations() == []
        page.locator("#chat-list .title").click()
        expect(page.locator(".katex")).to_have_count(1)
        assert violations() == []
        page.get_by_role("button", name="Code", exact=True).click()
        expect(page.locator("#code .hljs-keyword").first).to_be_visible()
        assert violations() == []
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Settings", exact=True).click()
        page.locator("#settings details").evaluate_all("(all) => all.forEach((one) => { one.open = true; })")
        assert violations() == []
        if page.locator("#figures").is_hidden():
            page.get_by_role("button", name="Figures").click()
        expect(page.locator("#figures")).to_be_visible()
        assert violations() == []


def test_a_browser_that_forbids_storage_gets_its_answers(browser: Browser, served: Served) -> None:
    forbid = "Object.defineProperty(window, '{}', {{ get() {{ throw new DOMException('no', 'SecurityError'); }} }});"
    context = browser.new_context()
    context.add_init_script("".join(map(forbid.format, ("localStorage", "sessionStorage"))))
    try:
        page = context.new_page()
        page.goto(served.url + "/")
        ask(page, "What is a glacier?")
        wait_for_answers(page, 1)
        chats(page)
        expect(page.locator("#chats-state")).to_contain_text("no room")
    finally:
        context.close()
