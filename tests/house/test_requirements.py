"""The wheel asks for ranges, constraints.txt pins one release of each within them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def pinned(name: str, python: str) -> list[str]:
    """Versions that constraints.txt has for a Python."""
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    found = [pin for pin in PINS if pin.name == name and (pin.marker is None or pin.marker.evaluate(environment))]
    return [specifier.version for pin in found for specifier in pin.specifier if specifier.operator == "=="]


@pytest.mark.parametrize("line", PROJECT["dependencies"])
def test_a_requirement_is_a_range_with_one_pin_in_it(line: str) -> None:
    asked = Requirement(line)

    assert {specifier.operator for specifier in asked.specifier} == {">=", "<"}
    for python in PYTHONS:
        versions = pinned(asked.name, python)
        assert len(versions) == 1, f"{asked.name} has {versions} for Python {python} in constraints.txt"
        assert versions[0] in asked.specifier


def test_the_image_installs_the_pins() -> None:
    lock = (ROOT / "deploy" / "image" / "requirements.lock").read_text()

    for line in PROJECT["dependencies"]:
        asked = Requirement(line)
        for python in PYTHONS:
            assert f"{asked.name}=={pinned(asked.name, python)[0]}" in lock
