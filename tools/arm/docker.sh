#!/usr/bin/env bash
# Run a real Docker engine without installing it: unpacked into build/arm/docker, in its own network, on a Unix socket.
#
#   tools/arm/docker.sh start            start it; the first time this downloads Debian's packages, later it takes seconds
#   tools/arm/docker.sh docker ARG...    run the docker command (with buildx and compose) with it
#   tools/arm/docker.sh net COMMAND...   run a command in its network, where containers publish their ports
#   tools/arm/docker.sh binfmt           let the kernel run arm64 programs through qemu, in containers too (needs no package)
#   tools/arm/docker.sh stop             stop it and keep its images
#   tools/arm/docker.sh remove           stop it and delete its images and containers
#
# Needs root on x86-64 Debian 12 (cgroups of version 1 or 2); otherwise `start` prints the reason and exits with status 69
# (EX_UNAVAILABLE). It is meant for tests: on a machine of your own, install a Docker engine.
# Containers reach the network through slirp4netns; this machine's firewall rules, bridges and addresses stay unchanged.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$root/build/arm/docker
bin=$folder/root/usr
run=$folder/run
space=forearm-docker
packages="
ed708deb96fe476a3bce4efa5c0538dfbcf717ab9a7c7944ba7260342c25899c c/containerd/containerd_1.7.24~ds1-6+deb13u1_amd64.deb
fcf8c48204d1603c8f209451d7827eb91bf30759578baf7704e9e1a87e5f1d7f d/docker-buildx/docker-buildx_0.13.1+ds1-3_amd64.deb
47681197cb2b1ab88206b42a1a92fc75f50d9530a6322d03494a473eed0408ea d/docker-compose/docker-compose_2.26.1-4_amd64.deb
e78ac35b7a21652546ca1a739f63e4f31fe52e4385a9baf7020be400c594f23d d/docker.io/docker-cli_26.1.5+dfsg1-9+deb13u1_amd64.deb
142fe32f839a20720b2e6074b8d28d883b01bc45345f7315586b0c2d348dae87 d/docker.io/docker.io_26.1.5+dfsg1-9+deb13u1_amd64.deb
a443b12107331f67836a64cb6efe1dd92d2765e15568eb4567dccb409a8cd2a0 t/tini/tini_0.19.0-3+b8_amd64.deb
aaa78ca236055fedccf637eacf7bda02bf1980b2db668dccd202b04d0d2cfe04 l/lvm2/libdevmapper1.02.1_1.02.185-2_amd64.deb
e21e19f0e99e57f254162f61416ea82f00cbc6ab9eb6bead4f5a5a8944ede27e libs/libslirp/libslirp0_4.7.0-1_amd64.deb
a00351f8c0318de0b424ecf5cd0fdb69880a89f3511cae4f6fff7de3e57881c5 r/runc/runc_1.1.5+ds1-1+deb12u1_amd64.deb
8b198af7a718c78f3dda2dd37017a3505962338716da553469ec45516b7154d5 s/slirp4netns/slirp4netns_1.2.0-1_amd64.deb
2928d3ca6ca8a3dc3f423f6752822b1f3614a5ba609ff7806bcba4449ffe90e1 i/iptables/iptables_1.8.9-2_amd64.deb
f2c48b367f9ec13f9aa577e7ccf81b371ce5d5fe22dddf9d7aa99f1e0bb7cfc4 i/iptables/libip4tc2_1.8.9-2_amd64.deb
be88db3dfa2fe3345ea343207f7c75345602686121e579023d021c348b9b4f4d i/iptables/libip6tc2_1.8.9-2_amd64.deb
cb841d66950a43af4a398625313d2f3da9065299c9738538de6c2c3495857040 i/iptables/libxtables12_1.8.9-2_amd64.deb
4581f42e3373cb72f9ea4e88163b17873afca614a6c6f54637e95aa75983ea7c libm/libmnl/libmnl0_1.0.4-3_amd64.deb
65f1539238f60fcc85d115acd640474f45c77bfddcf402eb7d75965a783c2bc8 libn/libnetfilter-conntrack/libnetfilter-conntrack3_1.0.9-3_amd64.deb
ae5cbba417ea48f34c1f72c27e8146a81f20614c1296bca2cd7234c8215fddcc libn/libnfnetlink/libnfnetlink0_1.0.2-2_amd64.deb
9e619e1470a1915264e906020f3bfc046fd8458043b1342686d997b5078213af libn/libnftnl/libnftnl11_1.2.4-2_amd64.deb
0ecb8da772c8e5b7f73b59cb6d1f02d789f8bcd9a6b5f19ed548fe12c26a76ca m/mmdebstrap/mmdebstrap_1.3.5-7_all.deb
"

unavailable() {
  echo "NOT RUN: no Docker engine on this machine: $*" >&2
  exit 69
}

# Make devices and mounts that the engine needs and containers often lack.
look() {
  [ "$(id -u)" = 0 ] || unavailable "it needs root"
  mkdir -p "$run"
  unshare --net --mount true 2>/dev/null || unavailable "namespaces are refused (CAP_SYS_ADMIN)"
  { true <>/dev/net/tun; } 2>/dev/null || unavailable "/dev/net/tun can't be opened"
  local groups=/sys/fs/cgroup
  [ -e $groups/cgroup.controllers ] || groups=$groups/memory
  mkdir $groups/forearm-look 2>/dev/null && rmdir $groups/forearm-look || unavailable "$groups can't be written"
  unshare --mount bash -c 'set -e; mount -t tmpfs none "$0"; cd "$0"; mkdir a b c d; mount -t overlay -o lowerdir=a,upperdir=b,workdir=c none d' \
    "$run" 2>/dev/null || unavailable "overlay file systems can't be mounted"
}

# Two stages of .ci/run come here at once: one unpacks while the other waits. A program that is unpacked a second time
# cannot be run meanwhile ("Text file busy").
fetch() {
  [ "$(uname -m)" = x86_64 ] || unavailable "its packages here are for x86-64"
  local complete
  complete=$folder/complete-$(cksum <<<"$packages" | cut -d ' ' -f 1)
  mkdir -p "$folder"
  (
    flock 8
    [ -e "$complete" ] || unpack
    touch "$complete"
  ) 8>"$folder/fetch.lock"
}

unpack() {
  "$root/tools/arm/get_debs.sh" "$folder/root" <<<"$packages"
  # Container names are resolved by rules in each container's own network.
  local tables
  for tables in iptables ip6tables; do
    printf '#!/bin/sh\nXTABLES_LIBDIR=%s exec %s "$@"\n' "$bin/lib/x86_64-linux-gnu/xtables" "$bin/sbin/$tables-nft" >"$bin/sbin/$tables"
    chmod +x "$bin/sbin/$tables"
  done
}

# Let the programs find each other and their libraries by name.
settings() {
  export PATH="$bin/sbin:$bin/bin:$PATH" LD_LIBRARY_PATH="$folder/root/lib/x86_64-linux-gnu:$bin/lib/x86_64-linux-gnu"
  export DOCKER_HOST=unix://$run/docker.sock DOCKER_CONFIG=$folder/config
  mkdir -p "$DOCKER_CONFIG" "$run"
  local config=$DOCKER_CONFIG/config.json
  printf '{"cliPluginsExtraDirs": ["%s"]}\n' "$bin/libexec/docker/cli-plugins" >"$config.$$"
  mv "$config.$$" "$config" # at once: another docker command may be reading it
}

answers() { docker version >/dev/null 2>&1; }

start() {
  look
  fetch
  settings
  answers && return
  # An idle process keeps the network namespace open; slirp4netns connects it to the outside.
  setsid unshare --net sleep infinity </dev/null >/dev/null 2>&1 &
  echo $! >"$run/$space.pid"
  sleep 0.3
  local holder
  holder=$(cat "$run/$space.pid")
  nsenter --net="/proc/$holder/ns/net" ip link set lo up
  setsid slirp4netns --configure --mtu=65520 --disable-host-loopback "$holder" tap0 </dev/null >"$run/slirp.log" 2>&1 &
  echo $! >"$run/slirp.pid"
  sleep 1
  setsid nsenter --net="/proc/$holder/ns/net" dockerd --host "$DOCKER_HOST" --data-root "$folder/data" \
    --exec-root "$run/exec" --pidfile "$run/dockerd.pid" --storage-driver overlay2 --iptables=false --ip6tables=false \
    --ip-masq=false --exec-opt native.cgroupdriver=cgroupfs </dev/null >"$run/dockerd.log" 2>&1 &
  for _ in $(seq 60); do
    answers && return
    sleep 0.5
  done
  echo "error: the engine does not answer; the end of $run/dockerd.log:" >&2
  tail -n 20 "$run/dockerd.log" >&2
  exit 1
}

stop() {
  local name
  for name in dockerd slirp $space; do
    [ -f "$run/$name.pid" ] && kill "$(cat "$run/$name.pid")" 2>/dev/null
    for _ in $(seq 40); do
      [ -f "$run/$name.pid" ] && kill -0 "$(cat "$run/$name.pid")" 2>/dev/null || break
      sleep 0.25
    done
    rm -f "$run/$name.pid"
  done
}

# Flag F: the kernel opens the interpreter now, so that containers do not need it.
binfmt() {
  local qemu table=/proc/sys/fs/binfmt_misc
  qemu=$("$root/tools/arm/get_qemu.sh")
  [ -e $table/register ] || mount -t binfmt_misc none $table 2>/dev/null || unavailable "$table can't be mounted, for emulation"
  if [ -e $table/qemu-aarch64 ]; then
    grep -q '^flags:.*F' $table/qemu-aarch64 && return
    echo -1 >$table/qemu-aarch64
  fi
  printf '%s' ":qemu-aarch64:M::\\x7fELF\\x02\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00\\xb7\\x00:\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x00\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xfe\\xff\\xff\\xff:$qemu:FC" >$table/register
}

case ${1:-} in
  start) start ;;
  docker)
    fetch
    settings
    shift
    exec docker "$@"
    ;;
  net) shift && exec nsenter --net="/proc/$(cat "$run/$space.pid")/ns/net" "$@" ;;
  binfmt) binfmt ;;
  stop) stop || true ;;
  remove)
    stop || true
    rm -rf "$folder/data" "$run"
    ;;
  *)
    sed -n '2,/^set/s/^# \?//p' "$0"
    exit 2
    ;;
esac
