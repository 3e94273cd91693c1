"""Pictures of the playground for docs/playground.md, of a real Chromium before the demo model.

python -m tests.e2e.screenshots
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, expect
from tests.browser import chromium, opened
from tests.e2e.served import serve

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
QUESTION = "What is a glacier?"
GREEDY = {"temperature": "0", "max_completion_tokens": "60"}
LIVELY = [{"name": "lively", "values": {"temperature": "1.5", "seed": "4", "max_completion_tokens": "60"}}]


def take(browser: Browser, url: str, name: str, width: int, height: int, scheme: str, compare: bool) -> None:
    """Ask the question and keep a picture of the page, as PNG."""
    with opened(browser, url, width, height, scheme) as (page, wrong):
        kept = {f"forearm.{field}": value for field, value in GREEDY.items()}
        page.evaluate("(kept) => Object.assign(localStorage, kept)", {**kept, "forearm.presets": json.dumps(LIVELY)})
        page.reload()
        expect(page.locator("#about")).not_to_be_empty()
        if compare:
            page.get_by_role("button", name="Settings", exact=True).click()
            page.locator("#compare").select_option("preset:lively")
        page.locator("#message").fill(QUESTION)
        page.keyboard.press("Enter")
        expect(page.locator(".stats")).to_have_count(2 if compare else 1)
        if compare:
            expect(page.locator("#ttft svg")).to_be_visible()
        page.evaluate("() => document.activeElement.blur()")
        page.screenshot(path=FOLDER / name)
        assert wrong == []


def main() -> None:
    """Write every picture."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder)) as served, chromium() as browser:
        take(browser, served.url, "playground.png", 1280, 720, "light", compare=True)
        take(browser, served.url, "playground-phone.png", 390, 700, "dark", compare=False)


if __name__ == "__main__":
    main()
