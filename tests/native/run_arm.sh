#!/usr/bin/env bash
# Cross-compile the native checks for aarch64 and run them on emulated cores, one for each kind of Graviton.
#
#   tests/native/run_arm.sh [CHECK...]     kernel_check, model_check, and pool_check with WFET, unless named
#
# Each core computes with the tier that is its best; what does not differ from core to core (scalar, and the tiers that
# another core has as its best) runs once. kernel_check takes a share of its cases (--few): all of them take minutes.
# Emulation shows that results and the choice of tier are right; it says nothing about speed.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
checks=("$@")
[ $# -gt 0 ] || checks=(kernel_check model_check)
pool_check=()
[ $# -gt 0 ] || pool_check=(pool_check)
build=build/arm/wheel  # tools/arm_wheel.sh compiles the same objects

# core                 stands for          its tiers, best first                 what computes here; TIER:GROUP where the choice is what counts
cores="
cortex-a72             Armv8.0,Graviton1   neon,scalar                           neon,scalar
neoverse-n1            Graviton2           neon_fp16,neon_dot,neon,scalar        neon_fp16,neon_dot
neoverse-v1            Graviton3           sve256,neon_mm,neon_fp16,neon_dot,neon,scalar  sve256
neoverse-n2            Graviton4           neon_mm,neon_fp16,neon_dot,neon,scalar  neon_mm
max,sve=off,sme=off    bf16,i8mm,no,SVE    neon_mm,neon_fp16,neon_dot,neon,scalar  neon_mm:pack
max,sme=off            SVE,of,512,bits     neon_mm,neon_fp16,neon_dot,neon,scalar  neon_mm:pack
"

tools/system_packages.sh python3 test
PATH="$root/.venv/bin:$PATH"
qemu=$(tools/arm/get_qemu.sh)
sysroot=/
toolchain=()
if [ "$(uname -m)" != aarch64 ]; then
  sysroot=/usr/aarch64-linux-gnu
  toolchain=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
    "-DCMAKE_FIND_ROOT_PATH=$sysroot" -DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=ONLY)
fi
failed=0
echo "--- building ${checks[*]} for aarch64"
mkdir -p "$build"
[ -e "$build/CMakeCache.txt" ] || cmake -S native -B "$build" -G Ninja "${toolchain[@]}" > "$build/configure.log" ||
  { cat "$build/configure.log"; exit 1; }
ninja -C "$build" "${checks[@]}" "${pool_check[@]}" > "$build/build.log" || { cat "$build/build.log"; exit 1; }

# Sums that do not stay in registers halve a tile's speed, and no result shows it: count moves of vectors to and from
# the stack in each tile (two loads in a turn of two steps is what 24 sums and their operands cost). Tiles of codes keep
# float sums in memory from group to group; their inner loops are held by tools/arm/price_loops.py. Tiles of attention
# (attention_microkernel) are not counted.
objdump=$(command -v aarch64-linux-gnu-objdump || command -v objdump)
for object in "$build"/CMakeFiles/forearm_kernels.dir/kernels/tiers/{neon,sve}*.o; do
  "$objdump" -d --no-show-raw-insn "$object" | awk -v object="${object##*/}" -v most=8 '
    /^[0-9a-f]+ </ { name = $2; tile = /[0-9]microkernel/ && !/IntMma/; tiles += tile }
    tile && /\t(ldr|str|ldp|stp)\tq.*\[sp/ { ++moves[name] }
    END {
      for (name in moves) if (moves[name] > most) { print "FAIL " object ": " moves[name] " spills in " name; bad = 1 }
      if (!tiles) { print "FAIL " object ": no tile was found"; bad = 1 }
      exit bad
    }' || failed=1
  # A weak symbol could become everybody's copy of a function (tests/house/test_objects.py, for the host's tiers).
  if "${objdump%objdump}nm" "$object" | grep ' [VWvw] '; then
    echo "FAIL ${object##*/}: weak symbols"
    failed=1
  fi
done

# run_on CPU TIERS COMPUTING CHECK: one check, its output in a log.
run_on() {
  local cpu=$1 tiers=$2 computing=$3 check=$4 log=$build/$4-${1//[,=]/-}.log status=0 tier share=() start=$SECONDS
  [ "$check" != kernel_check ] || share=(--few)
  : > "$log"
  for tier in ${computing//,/ }; do
    # shellcheck disable=SC2086  # a tier, or a tier and a group
    "$qemu" -L "$sysroot" -cpu "$cpu" "$build/$check" "${share[@]}" ${tier/:/ } >> "$log" 2>&1 || status=$?
  done
  if [ $status -ne 0 ]; then
    echo "FAIL $check on $cpu: exit status $status; the end of $log:"
    tail -n 30 "$log"
  elif [ "$check" = kernel_check ] && ! grep -qx "tiers: ${tiers//,/ }" "$log"; then
    echo "FAIL $cpu should run the tiers ${tiers//,/ }; kernel_check says: $(grep -m 1 '^tiers' "$log")"
    status=1
  else
    echo "$cpu: $(tail -n 1 "$log") ($((SECONDS - start)) s)"
  fi
  return $status
}

running=()
reap() {  # wait for the one that began first
  wait "${running[0]}" || failed=1
  running=("${running[@]:1}")
}
while read -r cpu stands_for tiers computing; do
  [ -n "$cpu" ] || continue
  for check in "${checks[@]}"; do
    [[ $check = kernel_check || $computing != *:* ]] || continue
    [ ${#running[@]} -lt "$(nproc)" ] || reap
    echo "--- $check on $cpu (${stands_for//,/ })"
    run_on "$cpu" "$tiers" "$computing" "$check" &
    running+=($!)
  done
done <<< "$cores"
while [ ${#running[@]} -gt 0 ]; do reap; done
# Idle members of the pool wait by WFET on CPUs of Armv8.7 (Graviton5). qemu's `max` has it, its HWCAP2 does not say so.
for check in "${pool_check[@]}"; do
  echo "--- $check on max with WFET"
  "$qemu" -L "$sysroot" -cpu max,sme=off "$build/$check" wfet || failed=1
done
[ $failed = 0 ] && echo "run_arm: ${checks[*]} hold on every core" || echo "run_arm: FAILED"
exit $failed
