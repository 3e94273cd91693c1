#!/usr/bin/env bash
# Cross-compile the native checks for aarch64 and run them on emulated cores, one for each kind of Graviton.
#
#   tests/native/run_arm.sh [CHECK...]     kernel_check and model_check unless named
#
# Emulation shows that results and the choice of tier are right; it says nothing about speed.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
checks=("$@")
[ $# -gt 0 ] || checks=(kernel_check model_check)
build=build/arm/native

# core                 stands for                  its tiers, best first
cores="
cortex-a72             Armv8.0,Graviton1           neon,scalar
neoverse-n1            Graviton2                   neon_dot,neon,scalar
neoverse-v1            Graviton3                   neon_mm,neon_dot,neon,scalar
neoverse-n2            Graviton4                   neon_mm,neon_dot,neon,scalar
max,sve=off,sme=off    bf16,i8mm,no,SVE            neon_mm,neon_dot,neon,scalar
"

tools/system_packages.sh python3 test
PATH="$root/.venv/bin:$PATH"
qemu=$(tools/arm/get_qemu.sh)
sysroot=/
toolchain=()
if [ "$(uname -m)" != aarch64 ]; then
  sysroot=/usr/aarch64-linux-gnu
  toolchain=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
    -DCMAKE_FIND_ROOT_PATH=$sysroot -DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=ONLY)
fi
echo "--- building ${checks[*]} for aarch64"
mkdir -p "$build"
cmake -S native -B "$build" -G Ninja "${toolchain[@]}" > "$build/configure.log" || { cat "$build/configure.log"; exit 1; }
ninja -C "$build" "${checks[@]}" > "$build/build.log" || { cat "$build/build.log"; exit 1; }

failed=0
while read -r cpu stands_for tiers; do
  [ -n "$cpu" ] || continue
  for check in "${checks[@]}"; do
    echo "--- $check on $cpu (${stands_for//,/ })"
    log=$build/$check-${cpu%%,*}.log
    if "$qemu" -L "$sysroot" -cpu "$cpu" "$build/$check" > "$log" 2>&1; then
      tail -n 1 "$log"
    else
      echo "FAIL $check on $cpu: exit status $?; the end of $log:"
      tail -n 30 "$log"
      failed=1
    fi
    if [ "$check" = kernel_check ] && ! grep -qx "tiers: ${tiers//,/ }" "$log"; then
      echo "FAIL $cpu should run the tiers ${tiers//,/ }; kernel_check says: $(grep -m 1 '^tiers' "$log")"
      failed=1
    fi
  done
done <<< "$cores"
[ $failed = 0 ] && echo "run_arm: ${checks[*]} hold on every core" || echo "run_arm: FAILED"
exit $failed
