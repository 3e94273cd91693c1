"""The page at / over the echo engine, which says what the chat says: a test writes what the model writes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from tests.api.server import Server, StartServer, started
from tests.browser import POOR_CONTRASTS, opened

from forearm.api.ops import playground

WEB = Path(playground.__file__).parent / "web"
# What each event of the chat adds to the page: the model's turn, tool results, and answers after them.
TEMPLATE = (
    "{% for message in messages %}{% if loop.last %}{{ message.content }}{% endif %}{% endfor %}{{ eos_token }}"
    "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% if thinking %}<think></think>{% endif %}"
)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def echoing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("playground")
    with started(folder, chat_template=TEMPLATE, reasoning_parser="qwen3", max_num_bad_words=1) as running:
        yield running


@pytest.fixture
def page(browser: Browser, echoing: Server) -> Iterator[Page]:
    with opened(browser, echoing.url) as (one, wrong):
        expect(one.locator("#model")).to_be_enabled()
        yield one
        assert wrong == []


def ask(page: Page, text: str) -> None:
    page.locator("#message").fill(text)
    page.keyboard.press("Enter")


def answered(page: Page, text: str) -> None:
    before = page.locator(".turn.assistant .stats").count()
    ask(page, text)
    expect(page.locator(".turn.assistant .stats")).to_have_count(before + 1)


@pytest.mark.parametrize(
    "text",
    [
        '<img src="x" onerror="window.hit = 1">',
        "<script>window.hit = 1</script>",
        "[a](javascript:window.hit=1) [b](data:text/html,<script>1</script>) [c](vbscript:x)",
        "```html\n<svg onload=window.hit=1>\n```",
        "| <b onmouseover=hit> | b |\n|---|---|\n| <iframe src=javascript:1> | c |",
        "> # <style>*{display:none}</style>",
        "`<a href=//evil.example>` **<u>** __<i>__ ~~<del>~~ <!-- x -->",
        "![x](https://evil.example/x.png)",
    ],
)
def test_nothing_that_a_model_writes_becomes_markup(page: Page, text: str) -> None:
    answered(page, text)

    prose = page.locator(".turn.assistant .prose")
    assert prose.locator("img, script, svg, iframe, style, u, i, del, b, object").count() == 0
    targets = [link.get_attribute("href") or "" for link in prose.locator("a").all()]
    assert all(target.startswith(("https://", "http://", "mailto:")) for target in targets)
    assert page.evaluate("() => window.hit") is None


def test_the_libraries_are_those_of_their_packages_and_small() -> None:
    lines = (WEB / "vendor/SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    files = {
        path.relative_to(WEB / "vendor").as_posix(): path for path in (WEB / "vendor").rglob("*") if path.is_file()
    }
    del files["SHA256SUMS"]
    notice = (Path(__file__).parents[2] / "NOTICE").read_text()

    assert sums == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    assert sum(path.stat().st_size for path in files.values()) < 1_000_000
    assert [library for library in ("markdown-it", "DOMPurify", "KaTeX", "highlight.js") if library not in notice] == []


def test_no_part_of_the_page_writes_html_or_runs_text() -> None:
    words = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|srcdoc")
    scripts = sorted(WEB.glob("*.js"))
    assert len(scripts) >= 8

    assert [script.name for script in scripts if words.search(script.read_text())] == []


def test_markdown_is_shown_as_it_is_meant(page: Page) -> None:
    answered(
        page,
        "# Title\n\nWith **bold**, *slanted*, `code` and [a link](https://a.example/b_c).\n\n"
        "1. one\n2. two\n   - within\n\n> said\n\n```py\nif 1 < 2:\n    go()\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
    )

    prose = page.locator(".turn.assistant .prose")
    expect(prose.locator("h3")).to_have_text("Title")
    expect(prose.locator("strong")).to_have_text("bold")
    expect(prose.locator("em")).to_have_text("slanted")
    expect(prose.locator("p code")).to_have_text("code")
    expect(prose.locator("a")).to_have_attribute("href", "https://a.example/b_c")
    expect(prose.locator("a")).to_have_attribute("rel", re.compile("noopener"))
    expect(prose.locator("ol > li")).to_have_count(2)
    expect(prose.locator("ol ul li")).to_have_text("within")
    expect(prose.locator("blockquote")).to_have_text("said")
    expect(prose.locator("pre code")).to_have_text("if 1 < 2:\n    go()", use_inner_text=True)
    expect(prose.locator("td")).to_have_count(2)


@pytest.mark.parametrize(
    "piece",
    [
        "*a",
        "**",
        "_x_ ",
        "`",
        "[a](",
        "- ",
        "> ",
        "|a|\n|-|\n",
        "<",
        "\\",
        "~~a",
        "1. ",
        "$",
        "$x$",
        "\\(",
        "$$\n",
        "\\[x\n",
        "```py\nx=1\n```\n",
    ],
)
def test_no_text_keeps_the_page_busy(page: Page, piece: str) -> None:
    took_ms = page.evaluate(
        """async (text) => {
          const { markdown } = await import("/playground/markdown.js"), begun = performance.now();
          markdown(text);
          return performance.now() - begun;
        }""",
        piece * (20_000 // len(piece)),
    )

    assert took_ms < 2000


MIXED = """# Heading
Text with *emphasis*, `code`, $a^2$ and https://a.example/x. Then
#hash goes on.
- one
- two

  within
+ other
1) first

| a | b |
|:-|-:|
| 1 | 2 |
after
***
> said
> - more
lazy

$$
\\frac{a}{b}
- c
+ d
$$
```py
def f(x):
    return "<b>"

```
    indented

Title
---
\\[ x \\] and [link][l], $5 and $6

[l]: https://l.example
"""


def test_a_growing_text_ends_as_the_whole_one_does(page: Page) -> None:
    unlike = page.evaluate(
        """async (text) => {
          const { Prose, markdown } = await import("/playground/markdown.js"), unlike = [];
          const place = document.createElement("div"), prose = new Prose(place);
          const plain = (node) => { // without the colours of code, which come when it is finished
            const one = node.cloneNode(true);
            for (const code of one.querySelectorAll("code")) code.textContent = code.textContent;
            return one.innerHTML;
          };
          for (let i = 1; i <= text.length; i += 1) {
            prose.show(text.slice(0, i));
            if (text[i - 1] === "\\n" && plain(place) !== plain(markdown(text.slice(0, i)))) unlike.push(i);
          }
          prose.show(text, true);
          if (place.innerHTML !== markdown(text).innerHTML) unlike.push("whole");
          return unlike;
        }""",
        MIXED,
    )

    # the link's target is defined at the end
    assert [at for at in unlike if at == "whole" or at < MIXED.index("[l]: ")] == []


@pytest.mark.parametrize("piece", ["A sentence of some words with **bold** ones.\n\n", "x = [1, 2, 3]  # a line\n"])
def test_a_token_costs_the_same_late_in_an_answer_as_early(page: Page, piece: str) -> None:
    early, late = page.evaluate(
        """async (piece) => {
          const { Prose } = await import("/playground/markdown.js"), prose = new Prose(document.createElement("div"));
          let text = piece.startsWith("x") ? "```py\\n" : "";
          const cost = () => { // median of 200, in ms: other processes may take the core for a while
            const took = [];
            for (let i = 0; i < 200; i += 1) {
              const begun = performance.now();
              prose.show((text += piece));
              took.push(performance.now() - begun);
            }
            return took.sort((a, b) => a - b)[100];
          };
          cost();
          const early = cost();
          for (let i = 0; i < 2000; i += 1) prose.show((text += piece));
          return [early, cost()];
        }""",
        piece,
    )

    assert late < max(4 * early, 2), f"{early:.2f} ms, then {late:.2f} ms for each token"


def test_mathematics_and_code_are_drawn(page: Page) -> None:
    answered(
        page,
        "So $e^{i\\pi} = -1$, \\(x\\) costs $5 or $6:\n\n$$\n\\int_0^1 x\n$$\n\n```python\ndef f(): return 1\n```\n",
    )

    prose = page.locator(".turn.assistant .prose")
    expect(prose.locator(".katex")).to_have_count(3)
    expect(prose.locator(".katex-display")).to_have_count(1)
    expect(prose.locator("p").first).to_contain_text("costs $5 or $6")
    expect(prose.locator(".hljs-keyword").first).to_have_text("def")
    assert page.evaluate(
        "() => document.fonts.ready.then(() => [...document.fonts].some((one) => one.status === 'loaded'))"
    )
    assert page.evaluate(POOR_CONTRASTS) == []
    prose.locator(".code").get_by_role("button", name="Copy").click()
    expect(prose.locator(".code").get_by_role("button", name="Copied")).to_be_visible()


def test_reasoning_is_folded_away(page: Page) -> None:
    answered(page, "<think>\nFirst I consider it.\n</think>\n\nIt is so.")

    folded = page.locator(".turn.assistant .reasoning")
    expect(folded.locator("summary")).to_contain_text("Reasoning")
    expect(folded.locator("div")).to_be_hidden()
    expect(page.locator(".turn.assistant .prose")).to_have_text("It is so.")
    folded.locator("summary").press("Enter")
    expect(folded.locator("div")).to_have_text("First I consider it.")
    assert page.evaluate(POOR_CONTRASTS) == []


def test_a_tool_call_is_shown_and_its_result_goes_back(page: Page) -> None:
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda one: bodies.append(json.loads(one.post_data or "")) if one.method == "POST" else None)
    page.get_by_role("button", name="Settings", exact=True).click()
    page.locator("#settings details").evaluate_all("(all) => all.forEach((one) => { one.open = true; })")
    page.locator("#tools").fill(json.dumps(TOOLS))
    answered(page, f"I look.\n{CALL}")

    call = page.locator(".turn.assistant .call")
    expect(call.locator(".name")).to_have_text("get_weather")
    assert json.loads(call.locator("pre").inner_text()) == {"city": "Oslo", "days": 2}
    assert page.evaluate(POOR_CONTRASTS) == []
    page.get_by_label("What get_weather returns").fill("Rain.")
    page.get_by_role("button", name="Send result").click()
    expect(page.locator(".turn.assistant .stats")).to_have_count(2)

    expect(page.locator(".turn.tool .body")).to_have_text("Rain.")
    user, assistant, tool = bodies[1]["messages"]
    assert user["role"] == "user"
    assert assistant["tool_calls"][0]["function"]["name"] == "get_weather"
    assert (tool["role"], tool["content"], tool["tool_call_id"]) == ("tool", "Rain.", assistant["tool_calls"][0]["id"])


def test_a_key_is_asked_for_and_kept_in_this_tab(browser: Browser, start_server: StartServer) -> None:
    server = start_server(api_key=("secret-key",))
    with opened(browser, server.url) as (page, wrong):
        expect(page.locator("#settings")).to_be_visible()
        expect(page.locator("#model")).to_contain_text("an API key is needed")
        ask(page, "hello")
        expect(page.locator(".failed")).to_contain_text("wants an API key")
        expect(page.locator("#key")).to_be_focused()

        page.keyboard.type("secret-key")
        page.keyboard.press("Tab")
        expect(page.locator("#model")).to_be_enabled()
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".turn.assistant .prose")).to_contain_text("hello")

        kept = page.evaluate(
            "() => [JSON.stringify({...localStorage}), sessionStorage['forearm.key'], document.cookie]"
        )
        assert kept[1] == "secret-key"
        assert "secret-key" not in kept[0] + kept[2]
        assert all("401" in one for one in wrong)  # Chromium's own lines


def test_what_breaks_off_within_a_stream_is_told(browser: Browser, start_server: StartServer) -> None:
    server = start_server()
    server.engine.holds_at = 9
    with opened(browser, server.url) as (page, wrong):
        expect(page.locator("#model")).to_be_enabled()
        ask(page, "a longer text that takes a while")
        expect(page.locator(".turn.assistant .prose")).not_to_be_empty()

        server.engine.stop()

        expect(page.locator(".failed")).to_contain_text("the engine stopped")
        expect(page.get_by_role("button", name="Try again")).to_be_visible()
        assert [one for one in wrong if "503" not in one] == []  # /metrics still answers, without the engine's part


def test_a_frame_that_comes_after_the_answer_leaves_the_focus_where_it_is(browser: Browser, echoing: Server) -> None:
    with opened(browser, echoing.url) as (page, _):
        expect(page.locator("#model")).to_be_enabled()
        page.evaluate("() => { window.late = []; window.requestAnimationFrame = (draw) => window.late.push(draw); }")
        ask(page, "hello")
        page.get_by_role("button", name="Regenerate").focus()

        assert page.evaluate("() => { window.late.forEach((draw) => draw()); return window.late.length; }") > 0

        expect(page.get_by_role("button", name="Regenerate")).to_be_focused()


def test_the_browser_is_told_to_ask_this_server_alone(echoing: Server) -> None:
    page = httpx.get(echoing.url + "/", timeout=60)

    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert page.headers["x-content-type-options"] == "nosniff"
    again = httpx.get(echoing.url + "/", headers={"If-None-Match": page.headers["etag"]}, timeout=60)
    assert (again.status_code, again.content) == (304, b"")
    for path in sorted(playground.PATHS):
        assert httpx.get(echoing.url + path, timeout=60).status_code == (404 if path.endswith("index.html") else 200)
    assert httpx.get(echoing.url + "/playground/..%2f..%2fapp.py", timeout=60).status_code == 404


def test_the_page_works_under_a_proxys_path(browser: Browser, start_server: StartServer) -> None:
    server = start_server(root_path="/llm")

    with opened(browser, server.url + "/llm") as (page, wrong):
        expect(page.locator("#model")).to_be_enabled()
        ask(page, "hello")
        expect(page.locator(".turn.assistant .prose")).to_contain_text("hello")
        assert wrong == []


def test_it_can_be_switched_off(start_server: StartServer) -> None:
    server = start_server(playground=False)

    assert [httpx.get(server.url + path, timeout=60).status_code for path in ("/", "/playground/page.js")] == [404, 404]
