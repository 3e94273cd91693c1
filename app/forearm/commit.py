"""The commit that this package was built from."""

from __future__ import annotations

import subprocess
from pathlib import Path

_FILE = Path(__file__).with_name("commit.txt")  # written where a wheel is built (native/CMakeLists.txt)


def commit() -> str:
    """Return 12 digits of the commit of this checkout or wheel; "" where it is not known."""
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / ".git").exists():
        argv = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
        try:
            return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return ""
    return _FILE.read_text(encoding="utf-8").strip() if _FILE.exists() else ""
