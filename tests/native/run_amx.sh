#!/usr/bin/env bash
# The tier for AMX on a machine without it: kernel_check under Linux on a Sapphire Rapids that Bochs emulates.
# qemu emulates neither AVX-512 nor AMX.
#
#   tests/native/run_amx.sh [ARGUMENT...]     kernel_check's arguments (--few avx512_amx); on an x86-64 Debian 12
#
# What it fetches and builds stays in build/amx. Seconds there say nothing about Sapphire Rapids.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
lab=$root/build/amx
build=build/native  # make native compiles the same objects
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
limit_s=500
[ "$(uname -m)" = x86_64 ] || { echo "NOT RUN: an x86-64 machine builds and runs it"; exit 69; }
[ $# -gt 0 ] || set -- --few avx512_amx
tools/system_packages.sh python3
PATH="$root/.venv/bin:$PATH"
mkdir -p "$lab"

# apt's own user could not write here.
packages() { apt-get -qq -o APT::Sandbox::User=root "$@"; }

kernel_package() { apt-cache depends linux-image-cloud-amd64 | grep -o 'linux-image-[0-9][^ ]*' | head -n 1; }

# Packages are unpacked, not installed.
unpacked() {
  local kernel deb
  rm -rf "$lab/debs" "$lab/tree"
  mkdir "$lab/debs" "$lab/tree"
  kernel=$(kernel_package) || return 1
  (cd "$lab/debs" && packages download "$kernel" busybox-static isolinux syslinux-common genisoimage libmagic1) ||
    return 1
  for deb in "$lab"/debs/*.deb; do dpkg-deb -x "$deb" "$lab/tree" || return 1; done
  rm -rf "$lab/debs"
  touch "$lab/tree.complete"
}

# The lists of packages may be old or absent: then they are fetched, and it is tried again.
fetch() {
  [ ! -e "$lab/tree.complete" ] || return 0
  echo "--- fetching Linux and what boots it"
  unpacked 2>"$lab/fetch.log" || { packages update && unpacked; }
}

# Without --disable-show-ips a handler of SIGALRM writes to the log each second, and waits for ever for the log's lock
# where it interrupts a line that is being written.
build_bochs() {
  local folder=$lab/bochs-3.0 patch=$root/tools/bochs_amx.patch script=$root/tests/native/run_amx.sh
  [ ! "$lab/bochs" -nt "$patch" ] || [ ! "$lab/bochs" -nt "$script" ] || return 0
  echo "--- building Bochs"
  /usr/lib/apt/apt-helper -qq -o APT::Sandbox::User=root download-file \
    "$mirror/pool/main/b/bochs/bochs_3.0+dfsg.orig.tar.xz" "$lab/bochs.tar.xz" \
    SHA256:78f6c73d4a6472d5130a87ab9dc306d02c7c71ed8e25b3a8ef642e2a7acd282b
  rm -rf "$folder"
  python3 -m tarfile -e "$lab/bochs.tar.xz" "$lab"
  (cd "$folder" && git apply "$patch" && ./configure --enable-x86-64 --enable-cpu-level=6 --enable-avx --enable-evex \
    --enable-amx --enable-all-optimizations --disable-show-ips --disable-plugins --disable-docbook --with-nogui \
    CFLAGS=-O2 CXXFLAGS=-O2 &&
    make -j"$(nproc)") >"$lab/bochs.log" 2>&1 || { tail -n 50 "$lab/bochs.log"; return 1; }
  cp "$folder"/bios/{bios.bin-1.13.0,vgabios-cirrus.bin-1.13.0} "$lab"
  cp "$folder/bochs" "$lab/bochs"
  rm -rf "$folder"
}

build_check() {
  echo "--- building kernel_check"
  mkdir -p "$build"
  [ -e "$build/CMakeCache.txt" ] || cmake -S native -B "$build" -G Ninja >"$lab/configure.log" ||
    { cat "$lab/configure.log"; return 1; }
  ninja -C "$build" kernel_check >"$lab/build.log" || { tail -n 50 "$lab/build.log"; return 1; }
}

# init ARGUMENT...: the one program. The second that it sleeps is for the serial line, which sends what is left.
init() {
  cat <<X
#!/bin/busybox sh
B=/bin/busybox
\$B mount -t proc p /proc; \$B mount -t sysfs s /sys; \$B mount -t devtmpfs d /dev
/bin/kernel_check$(printf ' %q' "$@")
echo "exit status \$?"
\$B sleep 1
\$B poweroff -f
X
}

# image FOLDER ARGUMENT...: a CD with a boot loader, Linux and an initramfs that runs kernel_check.
# Bochs lacks the MSR that says that fast short moves (FSRM) are on, and cannot leave system management mode with five
# levels of pages. When Linux panics, a triple fault ends the machine.
image() {
  local work=$1 tree=$lab/tree
  shift
  mkdir -p "$work"/cd "$work"/initramfs/{bin,dev,proc,sys}
  cp "$tree/bin/busybox" "$build/kernel_check" "$work/initramfs/bin"
  # shellcheck disable=SC2046  # the libraries that it needs, one a word
  cp --parents --dereference $(ldd "$build/kernel_check" | grep -o '/[^ ]*') "$work/initramfs"
  init "$@" >"$work/initramfs/init"
  chmod +x "$work/initramfs/init"
  (cd "$work/initramfs" && find . | "$tree/bin/busybox" cpio -o -H newc) >"$work/cd/initrd" 2>"$work/image.log"
  cp "$tree"/boot/vmlinuz-* "$work/cd/vmlinuz"
  cp "$tree"/usr/lib/{ISOLINUX/isolinux.bin,syslinux/modules/bios/ldlinux.c32} "$work/cd"
  cat >"$work/cd/isolinux.cfg" <<X
DEFAULT run
LABEL run
  KERNEL vmlinuz
  INITRD initrd
  APPEND console=ttyS0 loglevel=1 mitigations=off clearcpuid=fsrm no5lvl panic=-1 reboot=t
X
  LD_LIBRARY_PATH=$tree/usr/lib/x86_64-linux-gnu "$tree/usr/bin/genisoimage" -quiet -R -o "$work/cd.iso" \
    -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table "$work/cd"
}

# machine FOLDER: all that it prints. A second there is 50 million instructions. Bochs takes power-off for an error and
# ends.
machine() {
  local work=$1
  cat >"$work/bochsrc" <<X
megs: 1024
cpu: model=sapphire_rapids, ips=50000000, ignore_bad_msrs=1, reset_on_triple_fault=0
romimage: file=$lab/bios.bin-1.13.0
vgaromimage: file=$lab/vgabios-cirrus.bin-1.13.0
display_library: nogui
ata0-master: type=cdrom, path=$work/cd.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/said
clock: sync=none
log: $work/bochs.log
panic: action=fatal
X
  timeout --kill-after=10 "$limit_s" "$lab/bochs" -q -f "$work/bochsrc" </dev/null >"$work/machine.log" 2>&1 || true
  tr -d '\r' <"$work/said"
}

tier_of() {
  [ "$1" != --few ] || shift
  echo "${1:-avx512_amx}"
}

fetch
build_bochs
build_check
echo "--- running it on an emulated Sapphire Rapids"
work=$(mktemp -d "$lab/run.XXXXXX")
image "$work" "$@"
machine "$work" | tee "$work/output"
if grep -qE "^tiers:.* $(tier_of "$@")( |$)" "$work/output" && grep -qx 'exit status 0' "$work/output"; then
  rm -rf "$work"
  echo "run_amx: holds on an emulated Sapphire Rapids ($SECONDS s)"
else
  echo "run_amx: FAILED ($work has bochs.log and more)"
  exit 1
fi
