#!/usr/bin/env bash
# Run a Debian 12 host of this machine's architecture, for tests of the deployment without emulation: a container in the
# Docker engine of docker.sh with systemd, sshd and the packages of the role, among them its own Docker engine.
#
#   tools/arm/native_host.sh start             make it, start it and wait for ssh; /media has the files of build/arm/host/media
#   tools/arm/native_host.sh ssh COMMAND...    run a command on it as root
#   tools/arm/native_host.sh inventory         print an Ansible inventory of it
#   tools/arm/native_host.sh stop              remove it with everything that was installed there
#
# Needs root on x86-64 Debian 12. It shares this machine's kernel, whose settings stay unchanged, and its NUMA nodes.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
lab=$root/build/arm/host
engine=$root/tools/arm/docker.sh
name=forearm-host
image=forearm-host:bookworm
packages=systemd,systemd-sysv,dbus,openssh-server,python3,python3-apt,sudo,iproute2,kmod,procps,netbase,curl
# sshd serves a single connection through the engine: the host needs no port in this machine's network.
options="-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
proxy="ProxyCommand='$engine' docker exec -i $name /usr/sbin/sshd -i"

# shellcheck disable=SC2086  # word splitting is intended
on_host() { ssh -i "$lab/key" $options -o "$proxy" root@$name "$@"; }

# Turn the tree into a host. It does not own the kernel: it must not change settings, nor register interpreters (binfmt).
# Its Docker engine shares the outer one's network and leaves its bridges and rules unchanged.
# shellcheck disable=SC2016  # the container's shell expands
settings='
for part in fs kernel vm; do mount --bind /proc/sys/$part /proc/sys/$part && mount -o remount,bind,ro /proc/sys/$part; done
install -D -m 600 /host.pub /root/.ssh/authorized_keys
sed -i "s/^root:[^:]*:/root:*:/" /etc/shadow
for unit in proc-sys-fs-binfmt_misc.automount systemd-binfmt.service systemd-sysctl.service systemd-modules-load.service \
  systemd-networkd-wait-online.service systemd-firstboot.service apt-daily.timer apt-daily-upgrade.timer; do
  ln -sf /dev/null /etc/systemd/system/$unit
done
mkdir -p /etc/docker && echo "{\"iptables\": false, \"ip6tables\": false, \"bridge\": \"none\"}" >/etc/docker/daemon.json
exec /sbin/init'

start() {
  "$engine" start
  "$engine" docker image inspect $image >/dev/null 2>&1 || "$root/tools/arm/base_image.sh" bookworm amd64 $image $packages
  mkdir -p "$lab/media"
  [ -e "$lab/key" ] || ssh-keygen -q -t ed25519 -N '' -f "$lab/key"
  stop
  "$engine" docker run -d --name $name --privileged --cgroupns private --network host --tmpfs /run --tmpfs /run/lock \
    --tmpfs /tmp:exec --env container=docker --stop-signal SIGRTMIN+3 --volume $name:/var/lib/docker \
    --volume "$lab/media:/media:ro" --volume "$lab/key.pub:/host.pub:ro" $image sh -c "$settings" >/dev/null
  for _ in $(seq 60); do
    sleep 1
    on_host true 2>/dev/null && echo "host: up after $SECONDS s" && return
  done
  echo "error: no ssh after $SECONDS s; tools/arm/docker.sh docker exec $name journalctl tells more" >&2
  exit 1
}

inventory() {
  cat <<X
all:
  hosts:
    graviton:
      ansible_host: $name
      ansible_user: root
      ansible_ssh_private_key_file: $lab/key
      ansible_ssh_common_args: $options -o "$proxy"
      forearm_architectures: [x86_64]
      forearm_host_settings: false
      forearm_open_files: $(ulimit -Hn)
      forearm_memory: 3g
X
}

stop() {
  "$engine" docker rm -f $name >/dev/null 2>&1 || true
  "$engine" docker volume rm -f $name >/dev/null 2>&1 || true
}

case ${1:-} in
  start) start ;;
  ssh) shift && on_host "$@" ;;
  inventory) inventory ;;
  stop) stop ;;
  *)
    sed -n '2,/^set/s/^# \?//p' "$0"
    exit 2
    ;;
esac
