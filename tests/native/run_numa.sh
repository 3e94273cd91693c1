#!/usr/bin/env bash
# Ranks on two NUMA nodes: numa_check, cross-compiled for aarch64, in an emulated machine of two nodes of two cores.
#
#   tests/native/run_numa.sh     as root on an x86-64 Debian 12 (tools/arm/host.sh)
#
# On the nodes that this machine has itself: ninja -C build/native numa_check && build/native/numa_check
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
build=build/arm/wheel  # the same as run_arm.sh's
tools/system_packages.sh python3 test
PATH="$root/.venv/bin:$PATH"
sysroot=/usr/aarch64-linux-gnu

echo "--- building numa_check for aarch64"
mkdir -p "$build"
[ -e "$build/CMakeCache.txt" ] || cmake -S native -B "$build" -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_FIND_ROOT_PATH=$sysroot -DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=ONLY \
  > "$build/configure.log" || { cat "$build/configure.log"; exit 1; }
ninja -C "$build" forearm_model > "$build/build.log" || { cat "$build/build.log"; exit 1; }
# Static: the machine has nothing but this program and busybox.
aarch64-linux-gnu-g++ -std=c++20 -O2 -static -Wall -Wextra -Werror -Inative tests/native/numa_check.cpp \
  "$build"/libforearm_{model,sampling,threads,kernels}.a -o "$build/numa_check_static"

echo "--- running it on two emulated nodes (Neoverse V1)"
if tools/arm/host.sh program "$build/numa_check_static" 2; then
  echo "run_numa: ranks hold on two nodes ($SECONDS s)"
else
  echo "run_numa: FAILED"
  exit 1
fi
