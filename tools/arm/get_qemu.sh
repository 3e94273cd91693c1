#!/usr/bin/env bash
# Print the path of a qemu-aarch64 that knows Graviton's cores, fetched into build/arm the first time.
#
# The emulators of Debian 12 and Ubuntu 22.04 lack Neoverse V1; Debian 13's is linked statically and runs on both. It comes
# from Debian's archive and is verified by checksum, so that Ubuntu needs no key of Debian; after it has left the archive,
# it comes from snapshot.debian.org. DEBIAN_MIRROR names another archive.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
version=10.0.13+ds-0+deb13u1
case $(uname -m) in
  x86_64) arch=amd64 sum=ca6ede739327a20ae5a3498230c8a3a9a072c586e131bc6bcc1201eb1725e336 ;;
  aarch64) arch=arm64 sum=c73711af02b97cd5e2667e735d9c06890c57165517110ca4e646c95a7083158d ;;
  *) echo "error: no emulator for a host of $(uname -m); x86_64 and aarch64 have one" >&2; exit 1 ;;
esac
folder=$root/build/arm/qemu-$version
if [ -x "$folder/qemu-aarch64" ]; then
  echo "$folder/qemu-aarch64"
  exit
fi

deb=qemu-user_${version}_$arch.deb
mkdir -p "$folder"
work=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
for archive in "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" \
  http://snapshot.debian.org/archive/debian/20261120T000000Z; do
  echo "--- fetching $archive/pool/main/q/qemu/$deb" >&2
  curl -fsSL --retry 3 -o "$work/$deb" "$archive/pool/main/q/qemu/$deb" || continue
  echo "$sum  $work/$deb" | sha256sum --check --quiet || continue
  dpkg-deb --fsys-tarfile "$work/$deb" | tar -x -C "$work" ./usr/bin/qemu-aarch64
  mv "$work/usr/bin/qemu-aarch64" "$folder/qemu-aarch64"
  echo "$folder/qemu-aarch64"
  exit
done
echo "error: $deb ($sum) was not found; set DEBIAN_MIRROR to an archive that has it" >&2
exit 1
