#!/usr/bin/env bash
# Make a Debian base image for tests without access to a registry: from Debian's packages, imported into the Docker engine
# of docker.sh.
#   tools/arm/base_image.sh SUITE ARCH TAG [PACKAGE,PACKAGE...]     ARCH: amd64 or arm64, on x86-64; PACKAGE: additional ones
#
# apt and dpkg run natively, for arm64 too; only the packages' scripts are emulated (docker.sh binfmt). The image gets this
# machine's trusted certificates, because networks without registries often inspect TLS. Debian's own certificates are left
# out: emulated scripts would process them one by one, with three processes each.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
suite=$1 arch=$2 tag=$3 packages=${4:-}
unpacked=$(cd "$here/../.." && pwd)/build/arm/docker/root
"$here/docker.sh" start
work=$(mktemp -d "${TMPDIR:-/tmp}/forearm-base.XXXXXX")
trap 'rm -rf "$work"' EXIT
excludes=('/usr/share/doc/*' '/usr/share/man/*' '/usr/share/locale/*' '/usr/share/ca-certificates/*')
# mmdebstrap lets dpkg run scripts without chroot, but scripts of another architecture are emulated and need a chroot. This
# machine's dpkg then runs, which does not read the settings of the tree.
cat >"$work/dpkg" <<X
#!/bin/bash
words=()
for word in "\$@"; do [ "\$word" = --force-script-chrootless ] || words+=("\$word"); done
TMPDIR=/tmp exec /usr/bin/dpkg $(printf -- "--path-exclude='%s' " "${excludes[@]}") "\${words[@]}"
X
chmod +x "$work/dpkg"
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
options=(--variant=minbase --format=directory --aptopt='Acquire::Check-Valid-Until "false"'
  --include="ca-certificates${packages:+,$packages}" "${excludes[@]/#/--dpkgopt=path-exclude=}")
if [ "$arch" != "$(dpkg --print-architecture)" ]; then
  "$here/docker.sh" binfmt
  options+=(--mode=chrootless --aptopt="Dir::Bin::dpkg \"$work/dpkg\"" "--skip=check/qemu,check/chrootless,cleanup/tmp"
    --hook-dir="$unpacked/usr/share/mmdebstrap/hooks/merged-usr")
  [ "$suite" = bookworm ] && options+=(--include=usr-is-merged)
else
  options+=(--mode=root)
fi
DEBIAN_FRONTEND=noninteractive PATH="$work:$unpacked/usr/bin:$PATH" perl "$unpacked/usr/bin/mmdebstrap" --quiet --arch="$arch" \
  "${options[@]}" "$suite" "$work/tree" "$mirror"
rm -rf "$work"/tree/etc/{apt/apt.conf.d,dpkg/dpkg.cfg.d}/99mmdebstrap "$work"/tree/var/lib/apt/lists/* "$work"/tree/tmp/*
cp -L /etc/ssl/certs/ca-certificates.crt "$work/tree/etc/ssl/certs/ca-certificates.crt"
tar -C "$work/tree" -c . | "$here/docker.sh" docker import --platform "linux/$arch" \
  --change "ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt" --change 'CMD ["/bin/bash"]' - "$tag"
