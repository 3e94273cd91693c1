"""A real Chromium without a window: the system's if there is one, else Playwright's own (Makefile)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, Page, expect, sync_playwright

expect.set_options(timeout=60_000)  # a busy machine shows a page late

# Contrast by WCAG 2.2 of every visible text (1.4.3) and of the borders of fields (1.4.11).
# Returns a line for each text or border below the minimum.
POOR_CONTRASTS = """() => {
  const channels = (color) => {
    const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const light = ([r, g, b]) => [r, g, b]
    .map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.push(channels(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255, 1]);
  };
  const poor = [];
  const check = (node, color, what) => {
    const back = behind(node), style = getComputedStyle(node);
    const [a, b] = [light(over(channels(color), back)), light(back)].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (large ? 3 : 4.5)) poor.push(`${what}: ${ratio.toFixed(2)}`);
    return 1;
  };
  let looked = 0;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement, text = texts.currentNode.textContent.trim();
    if (!text || !node.checkVisibility()) continue;
    if (node.closest(":disabled, script, noscript, option, .hidden, .skip")) continue;
    const svg = node.namespaceURI.endsWith("svg");
    looked += check(node, svg ? getComputedStyle(node).fill : getComputedStyle(node).color, text.slice(0, 30));
  }
  for (const node of document.querySelectorAll("input, textarea, select")) {
    if (!node.checkVisibility()) continue;
    looked += check(node, getComputedStyle(node).color, node.id);
    const edged = node.closest("#composer") ?? node; // whose frame shows where to write
    const edge = getComputedStyle(edged).borderTopColor, around = behind(edged.parentElement);
    const [a, b] = [light(over(channels(edge), around)), light(around)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 3) poor.push(`frame of ${node.id}: ${((a + 0.05) / (b + 0.05)).toFixed(2)}`);
    if (node.placeholder) looked += check(node, getComputedStyle(node, "::placeholder").color, node.placeholder);
  }
  if (looked < 10) poor.push(`only ${looked} texts were found`);
  return poor;
}"""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser and close it at the end."""
    own = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        # Tests run as root in containers, where Chromium has no sandbox; it meets pages of this repository alone.
        browser = playwright.chromium.launch(executable_path=own, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def opened(
    browser: Browser, url: str, width: int = 1280, height: int = 800, scheme: str = "light"
) -> Iterator[tuple[Page, list[str]]]:
    """Yield a page and its faults: errors, lines of the console, requests to other addresses than `url`."""
    wrong: list[str] = []
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,  # type: ignore[arg-type]
        reduced_motion="reduce",
    )
    context.set_default_timeout(60_000)
    page = context.new_page()
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on(
        "console", lambda line: wrong.append(f"console: {line.text}") if line.type in ("error", "warning") else None
    )
    page.on("request", lambda request: None if request.url.startswith(url) else wrong.append(f"asks {request.url}"))
    try:
        page.goto(url + "/")
        yield page, wrong
    finally:
        context.close()
