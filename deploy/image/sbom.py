"""Print a software bill of materials of this image, CycloneDX 1.6 as JSON: its Python packages and Debian's.

Python packages are those installed beside forearm, with the hashes that requirements.lock allows for each; Debian's are
dpkg's. Nothing else is in the image.
"""

from __future__ import annotations

import json
import re
import subprocess
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

LOCK = Path(__file__).with_name("requirements.lock")
_FORMAT = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n"


def allowed_hashes(lock: str) -> dict[tuple[str, str], list[str]]:
    """Return the SHA-256 of each (name, version) in a requirements file with hashes."""
    found: dict[tuple[str, str], list[str]] = {}
    for entry in re.split(r"\n(?=\S)", lock):
        if pinned := re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", entry):
            found[normal(pinned[1]), pinned[2]] = re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)
    return found


def normal(name: str) -> str:
    """Return a package's name in the form of package URLs (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def python_package(package: Distribution, hashes: dict[tuple[str, str], list[str]]) -> dict[str, Any]:
    """Return a component. Its hashes are properties, because any of them may be that of the installed wheel."""
    name, version = normal(package.metadata["Name"]), package.version
    component: dict[str, Any] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
    }
    for expression in package.metadata.get_all("License-Expression") or []:
        component["licenses"] = [{"expression": expression}]
    allowed = hashes.get((name, version), [])
    if allowed:
        component["properties"] = [{"name": "forearm:allowed-sha256", "value": value} for value in allowed]
    return component


def debian_packages(listing: str) -> list[dict[str, Any]]:
    """Return the components of dpkg-query's lines of installed packages."""
    components = []
    for line in listing.splitlines():
        status, name, version, architecture = line.split("\t")
        if status.startswith("ii"):
            purl = f"pkg:deb/debian/{name}@{version}?arch={architecture}"
            components.append({"type": "library", "name": name, "version": version, "purl": purl})
    return components


def main() -> None:
    """Print the bill of materials."""
    hashes = allowed_hashes(LOCK.read_text())
    packages = sorted(distributions(), key=lambda package: normal(package.metadata["Name"]))
    listing = subprocess.run(["dpkg-query", "-W", "-f", _FORMAT], check=True, capture_output=True, text=True).stdout
    own = next(package for package in packages if package.metadata["Name"] == "forearm")
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": "forearm", "version": own.version}},
        "components": [python_package(package, hashes) for package in packages] + debian_packages(listing),
    }
    print(json.dumps(bill, indent=1))


if __name__ == "__main__":
    main()
