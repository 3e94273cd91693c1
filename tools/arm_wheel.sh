#!/usr/bin/env bash
# Build the aarch64 wheel dist/forearm-*_aarch64.whl; on an x86-64 machine it is cross-compiled.
#   tools/arm_wheel.sh [--check]    --check: also check its content and import it on emulated cores
#
# The wheel is for the version of Python that builds it. Only Python 3.11 can be imported under emulation (get_python.sh).
set -euo pipefail

cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" PIP_DISABLE_PIP_VERSION_CHECK=1
version=$(python -c 'import sys; print("{}.{}".format(*sys.version_info))')
tag=cp${version/./}
suffix=.cpython-${version/./}-aarch64-linux-gnu.so
dist=build/arm/dist
rm -rf "$dist" build/arm/unpacked
mkdir -p "$dist"

# The host's pyconfig.h serves both architectures: types have equal sizes (LP64). For 3.11, the target's own headers are used.
include=$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')
if [ "$version" = 3.11 ]; then
  arm_python=$(tools/arm/get_python.sh)
  include=$arm_python/usr/include/python3.11
  export CPATH=$arm_python/usr/include  # Debian's pyconfig.h includes another one, by architecture
fi
cross=()
if [ "$(uname -m)" != aarch64 ]; then
  export _PYTHON_HOST_PLATFORM=linux-aarch64 SETUPTOOLS_EXT_SUFFIX=$suffix
  for define in CMAKE_SYSTEM_NAME=Linux CMAKE_SYSTEM_PROCESSOR=aarch64 CMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
    "Python_INCLUDE_DIR=$include" "PYTHON_MODULE_EXTENSION=$suffix"; do
    cross+=("--config-settings=cmake.define.$define")
  done
fi
echo "--- building the aarch64 wheel for Python $version"
mkdir -p build/arm/wheel
rm -f build/arm/wheel/CMakeCache.txt  # keep object files, but not the Python settings of tests/native/run_arm.sh
python -m pip wheel . --quiet --no-build-isolation --no-deps -w "$dist" \
  --config-settings=build-dir=build/arm/wheel "${cross[@]}"
wheel=$(ls "$dist"/*.whl)
mkdir -p dist
cp "$wheel" dist/
[ "${1:-}" = --check ] || { echo "arm_wheel: dist/${wheel##*/}"; exit 0; }

echo "--- checking ${wheel##*/}"
[[ $wheel == *-$tag-$tag-*linux*_aarch64.whl ]] || { echo "error: the wheel has the wrong tag: ${wheel##*/}"; exit 1; }
python -m zipfile -e "$wheel" build/arm/unpacked
module=build/arm/unpacked/forearm/_native$suffix
[ -e "$module" ] || { echo "error: the wheel lacks ${module##*/}"; exit 1; }
[ "$(od -An -tu2 -j18 -N2 "$module" | tr -d ' ')" = 183 ] || { echo "error: the module is not for aarch64"; exit 1; }
missing=$(comm -23 <(git ls-files app/forearm ':!app/forearm/demo_model' | sed 's|^app/||' | sort) <(cd build/arm/unpacked && find forearm -type f | sort))
[ -z "$missing" ] || { echo "error: the wheel lacks these files:"; echo "$missing"; exit 1; }
if [ "$version" = 3.11 ]; then
  qemu=$(tools/arm/get_qemu.sh)
  while read -r cpu tier; do
    said=$(PYTHONHOME=$arm_python/usr PYTHONPATH=build/arm/unpacked "$qemu" -L "$arm_python" -cpu "$cpu" \
      "$arm_python/usr/bin/python3.11" -c 'from forearm import _native; print(_native.tier(), len(_native.topology().cpus) > 0)')
    echo "on $cpu: $said"
    [ "$said" = "$tier True" ] || { echo "error: expected tier $tier and at least one CPU"; exit 1; }
  done <<<"cortex-a72 neon
neoverse-n1 neon_fp16
neoverse-v1 sve256"
else
  echo "not imported: the emulated Python is 3.11, and the wheel is for $version"
fi
echo "arm_wheel: dist/${wheel##*/} passed all checks"
