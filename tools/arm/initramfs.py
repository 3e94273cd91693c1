"""Write an initramfs that mounts /dev/vda and starts the system on it: a static busybox and the virtio modules.

python tools/arm/initramfs.py KERNEL_TREE BUSYBOX OUT [PROGRAM ARGUMENT...]. With a static program it runs that instead,
prints its exit status and powers off. Format: cpio's "newc" (Linux, early-userspace/buffer-format).
"""

from __future__ import annotations

import gzip
import lzma
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

MODULES = (
    "virtio",
    "virtio_ring",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_mmio",
    "virtio_blk",
    "failover",
    "net_failover",
    "virtio_net",
    "virtio-rng",
)
FOLDER, DEVICE, PROGRAM, FILE = 0o40755, 0o20600, 0o100755, 0o100644
# Modules depend on each other: one that can't be loaded yet is loaded in a later round.
INIT = """#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc p /proc; $B mount -t sysfs s /sys; $B mount -t devtmpfs d /dev
for turn in 1 2 3 4; do for module in /modules/*.ko; do $B insmod $module 2>/dev/null; done; done
i=0; while [ ! -b /dev/vda ] && [ $i -lt 100 ]; do $B usleep 100000; i=$((i + 1)); done
$B mount -t ext4 -o rw /dev/vda /newroot || exec $B sh
$B mount --move /dev /newroot/dev; $B umount /proc; $B umount /sys
exec $B switch_root /newroot /sbin/init
"""
RUN = """#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc p /proc; $B mount -t sysfs s /sys; $B mount -t devtmpfs d /dev
echo 0 >/proc/sys/kernel/numa_balancing  # as the role sets it: pages stay where they were touched first
/bin/program {arguments}
echo "exit status $?"
$B poweroff -f
"""


def entry(number: int, name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> bytes:
    """Return one file of the archive: header, name and content, padded with zeros to multiples of 4 bytes."""
    named = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(named), 0)
    head = ("070701" + "".join(f"{field:08X}" for field in fields)).encode() + named
    return head + b"\0" * (-len(head) % 4) + content + b"\0" * (-len(content) % 4)


def module(kernel: Path, name: str) -> bytes | None:
    """Return a module of the kernel, decompressed; None if the kernel has it built in."""
    for path in [*kernel.rglob(f"{name}.ko"), *kernel.rglob(f"{name}.ko.xz")]:
        return lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    return None


def main(kernel: Path, busybox: Path, out: Path, program: Sequence[str]) -> None:
    """Write the initramfs to `out`. program: the static program to run and its arguments; empty: start the system."""
    files: list[tuple[str, int, bytes, tuple[int, int]]] = [
        (name, FOLDER, b"", (0, 0)) for name in ("bin", "dev", "proc", "sys", "tmp", "newroot", "modules")
    ]
    init = INIT
    if program:
        init = RUN.format(arguments=shlex.join(program[1:]))
        files.append(("bin/program", PROGRAM, Path(program[0]).read_bytes(), (0, 0)))
    files += [("dev/console", DEVICE, b"", (5, 1)), ("bin/busybox", PROGRAM, busybox.read_bytes(), (0, 0))]
    for name in MODULES:
        content = module(kernel, name)
        if content is not None:
            files.append((f"modules/{name}.ko", FILE, content, (0, 0)))
    files += [("init", PROGRAM, init.encode(), (0, 0)), ("TRAILER!!!", 0, b"", (0, 0))]
    archive = b"".join(entry(number, *file) for number, file in enumerate(files, 1))
    out.write_bytes(gzip.compress(archive, 1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
