#!/usr/bin/env bash
# Emulate an arm64 host for tests of the deployment: Debian 12 with systemd and sshd, two NUMA nodes of HOST_NODE_CORES (2)
# cores each.
#
#   tools/arm/host.sh image              make disk, kernel and initramfs in build/arm/host; takes minutes the first time
#   tools/arm/host.sh start [CPU]        boot a fresh copy of the disk (neoverse-v1: Graviton3) and wait for ssh; files of
#                                        build/arm/host/media, if it exists, are on a second disk at /media
#   tools/arm/host.sh ssh COMMAND...     run a command on it as root
#   tools/arm/host.sh forward PORT       forward 127.0.0.1:PORT of this machine to its localhost:PORT, until it is stopped
#   tools/arm/host.sh inventory          print an Ansible inventory of it
#   tools/arm/host.sh program FILE [ARGUMENT...]   run a static program alone on HOST_CPU (neoverse-v1), from an initramfs
#   tools/arm/host.sh stop               power off and delete the copy
#
# Needs root on x86-64 Debian 12; installs no package. Times under emulation say nothing about Graviton.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
lab=$root/build/arm/host
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
port=${HOST_SSH_PORT:-2222}
memory_mib=${HOST_MEMORY_MIB:-4096}
cores=${HOST_NODE_CORES:-2}
ssh_options=(-i "$lab/key" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR
  -o ConnectTimeout=20 -o ServerAliveInterval=20)
packages=systemd,systemd-sysv,udev,dbus,openssh-server,python3,python3-apt,sudo,iproute2,ca-certificates,kmod,procps,netbase,curl

# Run apt with its own lists and state.
apt_of() {
  local suite=$1 arch=$2 state=$lab/apt/$1-$2
  shift 2
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$state/etc"
  : >>"$state/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$state/etc/sources.list"
  apt-get -qq -o Dir::State="$state" -o Dir::State::lists="$state/lists" -o Dir::State::status="$state/status" \
    -o Dir::Cache="$state/cache" -o Dir::Etc::sourcelist="$state/etc/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::Etc::preferencesparts=/dev/null -o APT::Architecture="$arch" -o APT::Architectures="$arch" "$@"
}

# unpacked FOLDER SUITE ARCH PACKAGE...: unpack packages without installing them.
unpacked() {
  local folder=$1 suite=$2 arch=$3 deb
  shift 3
  [ -e "$lab/$folder.complete" ] && return
  apt_of "$suite" "$arch" update
  mkdir -p "$lab/$folder" "$lab/debs"
  (cd "$lab/debs" && apt_of "$suite" "$arch" download "$@" && for deb in *.deb; do dpkg-deb -x "$deb" "$lab/$folder"; done)
  rm -rf "$lab/debs"
  touch "$lab/$folder.complete"
}

kernel_package() {
  apt_of bookworm arm64 update
  apt-cache -o Dir::State="$lab/apt/bookworm-arm64" -o Dir::State::lists="$lab/apt/bookworm-arm64/lists" \
    -o Dir::State::status="$lab/apt/bookworm-arm64/status" -o Dir::Cache="$lab/apt/bookworm-arm64/cache" \
    -o APT::Architecture=arm64 -o APT::Architectures=arm64 depends linux-image-cloud-arm64 |
    grep -o 'linux-image-[0-9][^ ]*' | head -n 1
}

fetch() {
  unpacked machine bookworm-backports amd64 qemu-system-arm qemu-system-common qemu-system-data
  # Libraries of that program that a minimal Debian lacks.
  unpacked libraries bookworm amd64 libcapstone4 libpmem1 libndctl6 libdaxctl1 libfdt1 librdmacm1 libibverbs1 libslirp0 \
    libvdeplug2 libfuse3-3 libaio1 liburing2 libnl-3-200 libnl-route-3-200 libkeyutils1
  unpacked tools bookworm amd64 mmdebstrap
  unpacked busybox bookworm arm64 busybox-static
  [ -e "$lab/kernel.complete" ] || unpacked kernel bookworm arm64 "$(kernel_package)"
}

# apt and dpkg run natively; only the packages' scripts are emulated (docker.sh binfmt).
tree() {
  "$root/tools/arm/docker.sh" binfmt
  mkdir -p "$lab/bin"
  cat >"$lab/bin/dpkg" <<'X'
#!/bin/bash
words=()
for word in "$@"; do [ "$word" = --force-script-chrootless ] || words+=("$word"); done
TMPDIR=/tmp exec /usr/bin/dpkg "${words[@]}"
X
  chmod +x "$lab/bin/dpkg"
  rm -rf "$lab/tree"
  DEBIAN_FRONTEND=noninteractive PATH="$lab/bin:$PATH" perl "$lab/tools/usr/bin/mmdebstrap" --quiet --arch=arm64 \
    --variant=minbase --mode=chrootless --format=directory --include="usr-is-merged,$packages" \
    --aptopt='Acquire::Check-Valid-Until "false"' --aptopt="Dir::Bin::dpkg \"$lab/bin/dpkg\"" \
    --skip=check/qemu,check/chrootless,cleanup/tmp --hook-dir="$lab/tools/usr/share/mmdebstrap/hooks/merged-usr" \
    bookworm "$lab/tree" "$mirror"
  rm -rf "$lab"/tree/etc/{apt/apt.conf.d,dpkg/dpkg.cfg.d}/99mmdebstrap "$lab"/tree/tmp/*
}

# Turn the tree into a host: SSH key, network, names, kernel modules; disable services that only wait.
settle() {
  local tree=$lab/tree service
  [ -e "$lab/key" ] || ssh-keygen -q -t ed25519 -N '' -f "$lab/key"
  install -D -m 600 "$lab/key.pub" "$tree/root/.ssh/authorized_keys"
  chmod 700 "$tree/root/.ssh"
  echo graviton >"$tree/etc/hostname"
  echo "127.0.0.1 localhost graviton" >"$tree/etc/hosts"
  echo "/dev/vda / ext4 defaults 0 1" >"$tree/etc/fstab"
  printf '[Match]\nName=e*\n[Network]\nDHCP=ipv4\n' >"$tree/etc/systemd/network/10-host.network"
  mkdir -p "$tree/etc/systemd/system/multi-user.target.wants"
  ln -sf /lib/systemd/system/systemd-networkd.service "$tree/etc/systemd/system/multi-user.target.wants/"
  for service in systemd-networkd-wait-online.service systemd-firstboot.service apt-daily.timer apt-daily-upgrade.timer; do
    ln -sf /dev/null "$tree/etc/systemd/system/$service"
  done
  rm -f "$tree/etc/resolv.conf"
  echo "nameserver 10.0.2.3" >"$tree/etc/resolv.conf"
  : >"$tree/etc/machine-id"
  sed -i 's/^root:[^:]*:/root:*:/' "$tree/etc/shadow"
  printf 'deb %s bookworm main\n' "$mirror" >"$tree/etc/apt/sources.list"
  # The host gets this machine's trusted certificates, because networks without registries often inspect TLS.
  cp -L /etc/ssl/certs/ca-certificates.crt "$tree/etc/ssl/certs/ca-certificates.crt"
  mkdir -p "$tree/lib/modules"
  cp -a "$lab"/kernel/lib/modules/* "$tree/lib/modules/"
  chroot "$tree" depmod "$(ls "$lab/kernel/lib/modules")"
}

image() {
  fetch
  [ -e "$lab/tree/etc/debian_version" ] || tree
  settle
  rm -f "$lab/disk.img"
  truncate -s "${HOST_DISK:-12G}" "$lab/disk.img"
  mkfs.ext4 -q -F -d "$lab/tree" -L root "$lab/disk.img"
  python3 "$root/tools/arm/initramfs.py" "$lab/kernel" "$lab/busybox/bin/busybox" "$lab/initramfs"
}

# qemu of backports would load the modules of an installed qemu: mount its own modules there, for this process alone.
machine() {
  local here=$lab/machine/usr modules=/usr/lib/x86_64-linux-gnu/qemu
  export LD_LIBRARY_PATH=$lab/libraries/usr/lib/x86_64-linux-gnu:$lab/libraries/lib/x86_64-linux-gnu
  # shellcheck disable=SC2016  # the inner shell expands
  exec unshare --mount bash -c '[ ! -d "$1" ] || mount --bind "$2" "$1"; shift 2; exec "$@"' _ "$modules" \
    "$here/lib/x86_64-linux-gnu/qemu" "$here/bin/qemu-system-aarch64" -L "$here/share/qemu" -L "$here/share/seabios" "$@"
}

on_host() { ssh "${ssh_options[@]}" -p "$port" root@127.0.0.1 "$@"; }

# Plug in a folder as a disk: copying 593 MB through emulated ssh took more than six minutes.
media() {
  rm -f "$lab/media.img"
  [ -d "$lab/media" ] || return 0
  truncate -s "$(($(du -sm "$lab/media" | cut -f 1) * 11 / 10 + 64))M" "$lab/media.img"
  mkfs.ext4 -q -F -d "$lab/media" -L media "$lab/media.img"
}

start() {
  local cpu=${1:-neoverse-v1} half=$((memory_mib / 2)) plugged=()
  [ -e "$lab/disk.img" ] || image
  rm -f "$lab/now.img"
  cp --sparse=always "$lab/disk.img" "$lab/now.img"
  media
  [ ! -e "$lab/media.img" ] || plugged=(-drive "if=none,id=d1,file=$lab/media.img,format=raw,readonly=on" -device "virtio-blk-pci,drive=d1")
  (machine -M virt,gic-version=3 -cpu "$cpu" -smp "$((2 * cores)),sockets=2,clusters=1,cores=$cores" -m "$memory_mib" \
    -nographic -nodefaults -serial "file:$lab/console.log" -no-reboot -pidfile "$lab/machine.pid" \
    -object "memory-backend-ram,id=m0,size=${half}M" -object "memory-backend-ram,id=m1,size=${half}M" \
    -numa "node,nodeid=0,cpus=0-$((cores - 1)),memdev=m0" -numa "node,nodeid=1,cpus=$cores-$((2 * cores - 1)),memdev=m1" \
    -numa dist,src=0,dst=1,val=20 \
    -drive "if=none,id=d0,file=$lab/now.img,format=raw,cache=unsafe" -device virtio-blk-pci,drive=d0 "${plugged[@]}" \
    -netdev "user,id=n0,hostfwd=tcp:127.0.0.1:$port-:22" -device virtio-net-pci,netdev=n0,romfile= \
    -device virtio-rng-pci -kernel "$(ls "$lab"/kernel/boot/vmlinuz-*)" -initrd "$lab/initramfs" \
    -append "console=ttyAMA0 root=/dev/vda rw quiet systemd.show_status=0 mitigations=off") </dev/null >"$lab/machine.log" 2>&1 &
  # Booting took 81 s on a busy machine.
  for _ in $(seq 100); do
    sleep 3
    on_host true 2>/dev/null || continue
    [ ${#plugged[@]} = 0 ] || on_host mount -o ro /dev/vdb /media
    echo "host: up after $SECONDS s, $cpu"
    return
  done
  echo "error: no ssh after $SECONDS s; $lab/console.log and machine.log tell more" >&2
  exit 1
}

inventory() {
  cat <<X
all:
  hosts:
    graviton:
      ansible_host: 127.0.0.1
      ansible_port: $port
      ansible_user: root
      ansible_ssh_private_key_file: $lab/key
      ansible_ssh_common_args: ${ssh_options[*]:2}
X
}

# Run a static program alone on such a machine without a disk, and print its output; fails unless its exit status is 0.
program() {
  local work
  fetch >&2
  work=$(mktemp -d "$lab/program.XXXXXX")
  python3 "$root/tools/arm/initramfs.py" "$lab/kernel" "$lab/busybox/bin/busybox" "$work/initramfs" "$@"
  (machine -M virt,gic-version=3 -cpu "${HOST_CPU:-neoverse-v1}" -smp 4,sockets=2,clusters=1,cores=2 -m 1024 \
    -nographic -nodefaults -serial "file:$work/output" -no-reboot \
    -object memory-backend-ram,id=m0,size=512M -object memory-backend-ram,id=m1,size=512M \
    -numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1 -numa dist,src=0,dst=1,val=20 \
    -kernel "$(ls "$lab"/kernel/boot/vmlinuz-*)" -initrd "$work/initramfs" -append "console=ttyAMA0 quiet mitigations=off") </dev/null >&2
  tr -d '\r' <"$work/output" | tee "$work/said"
  grep -qx 'exit status 0' "$work/said" && rm -rf "$work"
}

stop() {
  [ ! -e "$lab/machine.pid" ] || { on_host poweroff 2>/dev/null || true; }
  for _ in $(seq 40); do
    [ -e "$lab/machine.pid" ] && kill -0 "$(cat "$lab/machine.pid")" 2>/dev/null || break
    sleep 0.5
  done
  [ ! -e "$lab/machine.pid" ] || kill "$(cat "$lab/machine.pid")" 2>/dev/null || true
  rm -f "$lab/machine.pid" "$lab/now.img" "$lab/media.img"
}

case ${1:-} in
  image) image ;;
  start) start "${2:-}" ;;
  ssh) shift && exec ssh "${ssh_options[@]}" -p "$port" root@127.0.0.1 "$@" ;;
  forward) exec ssh "${ssh_options[@]}" -p "$port" -f -N -o ExitOnForwardFailure=yes -L "127.0.0.1:$2:127.0.0.1:$2" root@127.0.0.1 ;;
  inventory) inventory ;;
  program) shift && program "$@" ;;
  stop) stop ;;
  *)
    sed -n '2,/^set/s/^# \?//p' "$0"
    exit 2
    ;;
esac
