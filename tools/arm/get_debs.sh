#!/usr/bin/env bash
# Unpack Debian packages into FOLDER; standard input has lines of `SHA256 PATH-BELOW-pool/main`.
#
# Nothing is installed or run. Packages that have left the archive come from snapshot.debian.org; DEBIAN_MIRROR names
# another archive.
set -euo pipefail

folder=$1
mkdir -p "$folder"
while read -r sum path; do
  [ -n "$sum" ] || continue
  deb=$folder/${path##*/}
  for archive in "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" \
    http://snapshot.debian.org/archive/debian/20261120T000000Z; do
    curl -fsSL --retry 3 -o "$deb" "$archive/pool/main/$path" && echo "$sum  $deb" | sha256sum --check --quiet && break
    rm -f "$deb"
  done
  [ -e "$deb" ] || { echo "error: $path ($sum) was not found; set DEBIAN_MIRROR to an archive that has it" >&2; exit 1; }
  dpkg-deb -x "$deb" "$folder"
  rm "$deb"
done
