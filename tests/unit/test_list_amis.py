"""ansible/files/list-amis.sh asks AWS what AWS' own guide asks; a program in the place of `aws` writes down how."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "ansible" / "files" / "list-amis.sh"
AWS = """#!/bin/bash
printf '%s\\n' "$*" >> "$(dirname "$0")/asked"
case "$*" in
  *5.10*) printf 'old-kernel-5.10\\tnew-kernel-5.10\\n' ;;
  *) echo "${NEWER-al2023-kernel-6.1}" ;;
esac
"""


def run(folder: Path, *arguments: str, with_aws: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    if with_aws:
        (folder / "aws").write_text(AWS)
        (folder / "aws").chmod(0o755)
    path = f"{folder}:/usr/bin:/bin"
    return subprocess.run(
        [SCRIPT, *arguments], env={**os.environ, "PATH": path, **variables}, capture_output=True, text=True
    )


def test_it_asks_for_both_kernels_and_writes_a_line_for_each_image(tmp_path: Path) -> None:
    found = run(tmp_path, "--region", "eu-central-1")

    assert (found.returncode, found.stdout) == (
        0,
        "5.10\told-kernel-5.10\n5.10\tnew-kernel-5.10\n6.*\tal2023-kernel-6.1\n",
    )
    asked = (tmp_path / "asked").read_text().splitlines()
    for line, kernel in zip(asked, ("5.10", "6.*"), strict=True):
        assert "ec2 describe-images --owners amazon" in line
        assert f"Name=architecture,Values=arm64 Name=name,Values=*kernel-{kernel}*" in line
        assert "sort_by(Images, &CreationDate)[].Name" in line
        assert line.endswith("--region eu-central-1")


def test_none_found_is_no_line(tmp_path: Path) -> None:
    assert run(tmp_path, NEWER="None").stdout == "5.10\told-kernel-5.10\n5.10\tnew-kernel-5.10\n"


def test_without_the_command_it_says_what_to_install(tmp_path: Path) -> None:
    found = run(tmp_path, with_aws=False)

    assert found.returncode == 1
    assert "install the AWS CLI" in found.stderr
