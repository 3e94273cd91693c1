"""Hooks of mkdocs.yml: what the pages of docs/ need to be read as a site."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^]]*)\]\((?:\.\./)+([^)\s#]+)[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page in which files outside docs/, which the site does not have, are named and not linked."""
    return _OUTSIDE.sub(lambda link: f"{link[1]} (`{link[2]}`)", markdown)
