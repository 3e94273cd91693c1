"""The page at / in a real browser, before a real server with the demo model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.browser import POOR_CONTRASTS, opened
from tests.e2e.served import Served, serve, wait_until

GLACIER = "What is a glacier?"
LONG = {"ignore_eos": True, "max_completion_tokens": 1900}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    flags = ("--api-server-count", "2", "--served-model-name", "demo", "other")
    longer = json.dumps({"max_new_tokens": 4000})  # the model's own limit is 128
    with serve(tmp_path_factory.mktemp("e2e"), *flags, "--override-generation-config", longer) as one:
        yield one


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Page]:
    """Nothing may go wrong on it."""
    with opened(browser, served.url) as (one, wrong):
        expect(one.locator("#model")).to_be_enabled()
        yield one
        assert wrong == []


def ask(page: Page, text: str = GLACIER) -> None:
    page.locator("#message").fill(text)
    page.keyboard.press("Enter")


def wait_for_answers(page: Page, count: int) -> None:
    expect(page.locator(".turn.assistant .stats")).to_have_count(count)
    expect(page.locator("#send")).to_be_visible()


def sent(page: Page) -> list[dict[str, Any]]:
    """The bodies of chat requests from now on, as they go out."""
    bodies: list[dict[str, Any]] = []
    page.on(
        "request",
        lambda one: bodies.append(json.loads(one.post_data or "")) if one.url.endswith("/chat/completions") else None,
    )
    return bodies


def more(page: Page, fields: dict[str, Any]) -> None:
    """Fill in the settings' field for other fields of the request."""
    if not page.locator("#settings").is_visible():
        page.get_by_role("button", name="Settings", exact=True).click()
    page.locator("#settings details").evaluate_all("(all) => all.forEach((one) => { one.open = true; })")
    page.locator("#more").fill(json.dumps(fields))


def test_an_answer_streams_and_tells_its_tokens_and_speed(page: Page) -> None:
    ask(page)
    wait_for_answers(page, 1)

    expect(page.locator(".turn.user .body")).to_have_text(GLACIER)
    expect(page.locator(".turn.assistant .prose")).to_contain_text("ice")
    stats = page.locator(".turn.assistant .stats").inner_text()
    assert stats.split()[1] == "tokens"
    assert "first after" in stats
    expect(page.get_by_text("Answer complete")).to_have_count(1)  # for screen readers


def test_the_page_of_the_api_sends_no_request_elsewhere(browser: Browser, served: Served) -> None:
    page, asked = browser.new_page(), list[str]()
    page.on("request", lambda one: asked.append(one.url))
    page.goto(f"{served.url}/docs")

    page.get_by_text("POST /v1/chat/completions", exact=True).click()

    expect(page.get_by_text("Answer one chat turn, whole or as a stream")).to_be_visible()
    assert asked == [f"{served.url}/docs"]
    page.close()


def test_text_is_there_before_the_answer_has_ended_and_stop_ends_it(page: Page, served: Served) -> None:
    more(page, LONG)
    with served.endless(n=64):  # beside it the answer takes several seconds
        ask(page)
        expect(page.locator(".turn.assistant .prose")).not_to_be_empty()
        expect(page.locator("#status")).to_contain_text("tokens/s")

        page.get_by_role("button", name="Stop").click()

        wait_for_answers(page, 1)
    expect(page.locator(".turn.assistant .stats")).to_contain_text("stopped")
    expect(page.locator("#message")).to_be_focused()
    wait_until(lambda: served.running() == 0)


def test_empty_settings_show_what_the_server_takes(page: Page, served: Served) -> None:
    card, _ = served.http.get("/v1/models").json()["data"]
    defaults, details = card["default_sampling_params"], card["details"]
    assert card["tasks"] == ["chat", "completions"]
    assert (details["family"], details["format"]) == ("qwen2", "bfloat16")
    assert 5e6 < details["parameters"] < 7e6
    expect(page.locator("#about")).to_have_text("6M parameters · bfloat16 · context of 2,048 tokens")
    page.get_by_role("button", name="Settings", exact=True).click()

    for label, name in (("Temperature", "temperature"), ("Top p", "top_p"), ("Max tokens", "max_tokens")):
        shown = page.get_by_label(label, exact=True).get_attribute("placeholder")
        assert shown == str(defaults.get(name, "")), name
    assert defaults["max_tokens"] == 4000


def test_a_turn_can_be_edited_and_an_answer_made_again(page: Page) -> None:
    ask(page, "What is a harbour?")
    wait_for_answers(page, 1)
    ask(page, "And a glacier?")
    wait_for_answers(page, 2)

    page.get_by_role("button", name="Edit").first.click()
    page.get_by_label("Edit your message").fill(GLACIER)
    page.get_by_role("button", name="Send again").click()
    wait_for_answers(page, 1)
    expect(page.locator(".turn.user")).to_have_count(1)
    expect(page.locator(".turn.user .body")).to_have_text(GLACIER)

    bodies = sent(page)
    page.get_by_role("button", name="Regenerate").click()
    wait_for_answers(page, 1)
    assert [message["role"] for message in bodies[0]["messages"]] == ["user"]

    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.locator("#welcome")).to_be_visible()


def test_settings_go_into_the_request_and_are_kept(page: Page) -> None:
    bodies = sent(page)
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("System prompt").fill("You are brief.")
    values = {"Temperature": "0.5", "Top p": "0.9", "Top k": "20", "Min p": "0.05", "Max tokens": "5", "Seed": "7",
              "Presence penalty": "0.1", "Frequency penalty": "0.2", "Repetition penalty": "1.1"}  # fmt: skip
    for label, value in values.items():
        page.get_by_label(label, exact=True).fill(value)
    more(page, {"ignore_eos": True})
    page.get_by_label("Stop strings").fill("###\n@@@")
    page.locator("#model").select_option("other")
    ask(page)
    wait_for_answers(page, 1)

    (body,) = bodies
    assert body["model"] == "other"
    assert body["messages"][0] == {"role": "system", "content": "You are brief."}
    told = ("temperature", "top_p", "top_k", "min_p", "max_completion_tokens", "seed", "presence_penalty")
    assert [body[name] for name in told] == [0.5, 0.9, 20, 0.05, 5, 7, 0.1]
    assert (body["stop"], body["ignore_eos"]) == (["###", "@@@"], True)
    expect(page.locator(".turn.assistant .stats")).to_contain_text("5 tokens")
    expect(page.locator(".turn.assistant .stats")).to_contain_text("length limit")

    page.reload()
    expect(page.locator("#model")).to_have_value("other")
    page.get_by_role("button", name="Settings", exact=True).click()
    expect(page.get_by_label("Seed", exact=True)).to_have_value("7")
    page.get_by_role("button", name="Reset settings").click()
    expect(page.get_by_label("Seed", exact=True)).to_have_value("")


def test_a_field_that_is_no_json_is_told_of_and_nothing_is_sent(page: Page) -> None:
    bodies = sent(page)
    page.get_by_role("button", name="Settings", exact=True).click()
    page.locator("#settings details").evaluate_all("(all) => all.forEach((one) => { one.open = true; })")
    page.locator("#tools").fill("{")
    ask(page)

    expect(page.locator("#tools-error")).to_contain_text("no JSON")
    expect(page.locator("#tools")).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".failed")).to_contain_text("is no JSON")
    assert bodies == []


def test_a_refusal_is_shown_in_the_servers_words(browser: Browser, served: Served) -> None:
    with opened(browser, served.url) as (page, wrong):
        expect(page.locator("#model")).to_be_enabled()
        more(page, {"max_completion_tokens": 999999})
        ask(page)

        expect(page.locator(".failed")).to_contain_text("999999")
        expect(page.get_by_role("button", name="Try again")).to_be_visible()
        assert page.evaluate(POOR_CONTRASTS) == []
        assert all("400" in one for one in wrong)  # Chromium's own line


def test_the_keyboard_is_enough(page: Page, served: Served) -> None:
    page.reload()
    expect(page.locator("#message")).to_be_focused()
    page.keyboard.type("What is a")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("glacier?")
    page.keyboard.press("Enter")
    wait_for_answers(page, 1)
    expect(page.locator(".turn.user .body")).to_have_text("What is a\nglacier?", use_inner_text=True)

    more(page, LONG)
    with served.endless(n=64):  # beside it an answer takes several seconds
        page.locator("#message").focus()
        page.keyboard.type("Again")
        page.keyboard.press("Enter")
        expect(page.locator(".turn.assistant .prose").nth(1)).not_to_be_empty()
        page.keyboard.press("Escape")
        wait_for_answers(page, 2)

        page.locator("#message").focus()
        page.keyboard.press("Shift+Tab")
        expect(page.get_by_role("button", name="Regenerate")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#halt")).to_be_visible()
        page.keyboard.press("Escape")
        wait_for_answers(page, 2)


def test_every_control_is_reached_by_tab_and_shows_that_it_is(page: Page) -> None:
    ask(page)
    wait_for_answers(page, 1)
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_role("button", name="Figures").click() if page.locator("#figures").is_hidden() else None
    wanted = page.evaluate("""() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary")]
      .filter((node) => node.checkVisibility() && !node.disabled).length""")
    page.locator("body").evaluate("(body) => { body.tabIndex = -1; body.focus(); }")

    reached, unmarked = set(), []
    for _ in range(wanted + 10):
        page.keyboard.press("Tab")
        name, marked = page.evaluate("""() => {
          const node = document.activeElement, style = getComputedStyle(node);
          const frame = node.closest("#composer") ? getComputedStyle(node.closest("#composer")) : style;
          const all = [...document.querySelectorAll("a[href], button, input, select, textarea, summary")];
          return [all.indexOf(node), [style, frame].some((one) => one.outlineStyle !== "none")];
        }""")
        if name >= 0:
            reached.add(name)
            if not marked:
                unmarked.append(name)

    assert len(reached) == wanted
    assert unmarked == []


def test_every_control_has_a_name(page: Page) -> None:
    ask(page)
    wait_for_answers(page, 1)
    page.get_by_role("button", name="Settings", exact=True).click()
    page.locator("#settings details").evaluate_all("(all) => all.forEach((one) => { one.open = true; })")

    lines = [line.strip() for line in page.locator("body").aria_snapshot().splitlines()]
    roles = ("button", "textbox", "combobox", "spinbutton", "link")
    controls = [line for line in lines if line.startswith(tuple(f"- {role}" for role in roles))]
    assert len(controls) > 20
    assert [line for line in controls if '"' not in line] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_the_contrast_that_wcag_asks_for(browser: Browser, served: Served, scheme: str) -> None:
    with opened(browser, served.url, 1440, 1000, scheme) as (page, wrong):
        expect(page.locator("#model")).to_be_enabled()
        assert page.evaluate(POOR_CONTRASTS) == []
        ask(page)
        wait_for_answers(page, 1)
        page.get_by_role("button", name="Settings", exact=True).click()
        page.locator("#settings details").evaluate_all("(all) => all.forEach((one) => { one.open = true; })")
        expect(page.locator("#ttft svg")).to_be_visible()
        assert page.evaluate(POOR_CONTRASTS) == []

        page.get_by_role("button", name="Theme").click()  # light, whatever the system says
        page.get_by_role("button", name="Theme").click()  # dark
        assert page.evaluate(POOR_CONTRASTS) == []
        assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") in ("rgba(0, 0, 0, 0)", "")
        assert page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor") == "rgb(21, 24, 27)"
        assert wrong == []


@pytest.mark.parametrize("width", [320, 360, 768])
def test_a_narrow_screen_never_scrolls_sideways(browser: Browser, served: Served, width: int) -> None:
    with opened(browser, served.url, width, 640) as (page, wrong):
        expect(page.locator("#model")).to_be_enabled()

        def fits() -> None:
            wide = page.evaluate("""() => [...document.querySelectorAll("body *")].filter((node) =>
              node.checkVisibility() && !node.closest("pre, .scroll, .skip, .hidden, svg, option") &&
              node.getBoundingClientRect().right > innerWidth + 0.5).map((node) => node.outerHTML.slice(0, 80))""")
            assert wide == []
            assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")

        fits()
        ask(page, "What is a " + "very" * 60 + " glacier?")
        wait_for_answers(page, 1)
        fits()
        page.get_by_role("button", name="Settings", exact=True).click()
        page.locator("#settings details").evaluate_all("(all) => all.forEach((one) => { one.open = true; })")
        expect(page.locator("#message")).to_be_hidden()
        fits()
        page.get_by_role("button", name="Figures").click()
        expect(page.locator("#settings")).to_be_hidden()
        expect(page.locator("#ttft svg")).to_be_visible()
        fits()
        page.keyboard.press("Escape")
        expect(page.locator("#message")).to_be_visible()
        assert wrong == []


def test_the_figures_are_those_of_metrics(page: Page, served: Served) -> None:
    if page.locator("#figures").is_hidden():
        page.get_by_role("button", name="Figures").click()
    with served.busy(n=2):
        expect(page.locator("#running")).to_have_text("2")
        expect(page.locator("#generation")).not_to_have_text("0")
        expect(page.locator("#generation-line svg")).to_be_visible()
        expect(page.locator("#kv-bar")).to_be_visible()
    expect(page.locator("#running")).to_have_text("0")
    summary = page.locator("#ttft svg").get_attribute("aria-label") or ""
    assert "median" in summary
    assert page.locator("#ttft rect").count() >= 7
    assert page.locator("#tpot rect").count() >= 7


def test_nothing_works_without_the_server_and_the_page_says_so(browser: Browser, served: Served) -> None:
    with opened(browser, served.url) as (page, _):
        expect(page.locator("#model")).to_be_enabled()
        page.context.set_offline(True)
        ask(page)

        expect(page.locator(".failed")).to_contain_text("cannot be reached")
        page.context.set_offline(False)
        page.get_by_role("button", name="Try again").click()
        wait_for_answers(page, 1)
        expect(page.locator(".turn.assistant .prose")).not_to_be_empty()
