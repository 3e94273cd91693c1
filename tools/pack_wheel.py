"""Compress a wheel as well as zlib can, in place: scikit-build-core has no setting for the level.

python tools/pack_wheel.py WHEEL
"""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

LEVEL = 9


def pack(wheel: Path) -> None:
    """Write the wheel again. Its files, and so the hashes in its RECORD, stay the same."""
    packed = wheel.with_suffix(".packed")
    with ZipFile(wheel) as source, ZipFile(packed, "w") as target:
        for entry in source.infolist():
            target.writestr(entry, source.read(entry), ZIP_DEFLATED, LEVEL)
    packed.replace(wheel)


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
