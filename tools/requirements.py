"""Print the run-time requirements of pyproject.toml and those of the extras named, one a line, for pip's -r; with
--only as the first argument, only those of the extras.

Runs on the bare virtual environment, before anything is installed; pip's copy of tomllib serves Python 3.10.
"""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib


def main(extras: list[str]) -> None:
    """Print the requirements."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    if extras[:1] == ["--only"]:
        extras = extras[1:]
    else:
        print("\n".join(project["dependencies"]))
    for extra in extras:
        print("\n".join(project["optional-dependencies"][extra]))


if __name__ == "__main__":
    main(sys.argv[1:])
