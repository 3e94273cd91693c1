#!/usr/bin/env bash
# Print the folder of an unpacked arm64 Python 3.11 with its headers, fetched into build/arm the first time.
#
# Debian 12's packages, verified by checksum, are only unpacked; nothing is installed or run on this machine. Packages that
# have left the archive come from snapshot.debian.org. DEBIAN_MIRROR names another archive.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$root/build/arm/python3.11
if [ -e "$folder/complete" ]; then
  echo "$folder"
  exit
fi

packages="
8dc1976735acf825e3a922d82f171e20feec7394da2b8c616091983e38706275 e/expat/libexpat1_2.5.0-1+deb12u2_arm64.deb
576926b283613db80168ddf76380a3bd877602778cf0d226caa7bfbfa71eacf3 g/gcc-12/libgcc-s1_12.2.0-14+deb12u1_arm64.deb
26e138c677a985775331373828a6c286c551ff397cb735d00e2383cb273d1cb2 g/gcc-12/libstdc++6_12.2.0-14+deb12u1_arm64.deb
01f4330719fd4f65580e16ea5a0527f372fca750e8f588d26deaf09f2d3b1cf4 g/glibc/libc6_2.36-9+deb12u14_arm64.deb
454a191a37dd86674c309691904be69d499f060e643c1f8efc8b82078967cd48 p/python3.11/libpython3.11-dev_3.11.2-6+deb12u8_arm64.deb
c48bac178c0fc43a2bf8ace784c762b5ee83e2b981894a991dc3ccfd3ec7cd4b p/python3.11/libpython3.11-minimal_3.11.2-6+deb12u8_arm64.deb
e79876de55c6c2dca10d044b2fa69ccd863950ea01714220c1982d16008105f9 p/python3.11/libpython3.11-stdlib_3.11.2-6+deb12u8_arm64.deb
6a07dd571f1a15af2f855d64571766fe44b73a57cc3b5ca79502bc89156a5e12 p/python3.11/python3.11-minimal_3.11.2-6+deb12u8_arm64.deb
52b8b8a145bbe1956bba82034f77022cbef0c3d0885c9e32d9817a7932fe1913 z/zlib/zlib1g_1.2.13.dfsg-1_arm64.deb
"

rm -rf "$folder"
"$root/tools/arm/get_debs.sh" "$folder" <<<"$packages"
touch "$folder/complete"
echo "$folder"
