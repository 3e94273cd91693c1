#!/bin/sh
# Install in the build stage: a compiler for TARGETARCH, Python's headers, and the build tools, which are verified by hash.
set -eu
case $TARGETARCH in
  arm64) triplet=aarch64-linux-gnu ;;
  amd64) triplet=x86-64-linux-gnu ;;
  *) echo "error: forearm runs on arm64 and amd64, not on $TARGETARCH" >&2; exit 1 ;;
esac
cross=
[ "$BUILDARCH" = "$TARGETARCH" ] || cross=-$triplet
apt-get update
compiler=
for version in "$GCC" $(seq 20 -1 11); do
  compiler=g++-$version$cross
  # Where there is no such package, apt takes the name for an expression: g++-13 finds clang-13.
  apt-cache show "$compiler" 2>/dev/null | grep -Fqx "Package: $compiler" && break
  compiler=
done
[ -n "$compiler" ] || { echo "error: this base has no g++ from 11 on for $TARGETARCH; choose another BASE" >&2; exit 1; }
echo "compiler: $compiler"
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$compiler" python3-dev python3-venv ca-certificates
rm -rf /var/lib/apt/lists/*
# In the program's name the version stands last; in the package's name it stands before the target.
triplet=$(echo $triplet | sed s/x86-64/x86_64/)
ln -s "/usr/bin/${cross:+$triplet-}g++-${version}" /usr/local/bin/target-g++
target-g++ --version
python3 -m venv /build/tools
/build/tools/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r build.lock
