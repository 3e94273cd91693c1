#!/bin/sh
# Make /opt/forearm in the build stage: a virtual environment for TARGETARCH that uses the base image's Python.
#   install.sh requirements     install forearm's requirements, verified by hash
#   install.sh transformers     install torch, from TORCH_INDEX, and transformers beside them
#   install.sh wheel            build and install forearm and forearm-demo from ./source; object files stay for the next build
set -eu
cd "$(dirname "$0")"
PATH=$PWD/tools/bin:$PATH
here=/opt/forearm
glibc=$(getconf GNU_LIBC_VERSION | sed 's/.*[.]//') # minor version of the base image's glibc; uv knows platforms up to 2.40
[ "$glibc" -le 40 ] || glibc=40
case $TARGETARCH in arm64) machine=aarch64 ;; amd64) machine=x86_64 ;; esac
# Install packages for the target: uv evaluates the target's markers and downloads its wheels on any build machine.
for_target() {
  uv pip install --python $here/bin/python --python-platform $machine-manylinux_2_$glibc --only-binary :all: \
    --link-mode copy --no-progress "$@"
}

requirements() {
  python3 -m venv --without-pip $here
  for_target --compile-bytecode --require-hashes -r requirements.lock
}

# Set the variables of a cross build. The host's pyconfig.h serves both architectures: types have equal sizes (LP64).
cross_settings() {
  version=$(python3 -c 'import sys; print("{}{}".format(*sys.version_info))')
  suffix=.cpython-$version-$machine-linux-gnu.so
  export _PYTHON_HOST_PLATFORM=linux-$machine SETUPTOOLS_EXT_SUFFIX="$suffix"
  include=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')
  other=$(dirname "$(find /usr/include -path "*-linux-gnu/*/pyconfig.h" | head -n 1)")
  mkdir -p "include/$machine-linux-gnu"
  ln -sfn "$other" "include/$machine-linux-gnu/$(basename "$include")"
  export CPATH=$PWD/include
  settings="$settings -Ccmake.define.CMAKE_SYSTEM_NAME=Linux -Ccmake.define.CMAKE_SYSTEM_PROCESSOR=$machine
    -Ccmake.define.CMAKE_AR=/usr/bin/$machine-linux-gnu-ar -Ccmake.define.CMAKE_RANLIB=/usr/bin/$machine-linux-gnu-ranlib
    -Ccmake.define.Python_INCLUDE_DIR=$include -Ccmake.define.PYTHON_MODULE_EXTENSION=$suffix"
}

# Set the sources' modification times by their content. ninja compares times, but those of a checkout or an archive can be
# older than object files of an earlier version. Changed files get the current time, unchanged ones the epoch.
date_sources() {
  { echo "$(target-g++ -v 2>&1 | sha256sum | cut -d ' ' -f 1)  compiler"; (cd source && find native -type f -exec sha256sum {} +); } |
    sort >sums
  if comm -23 sums "$built" | grep -q '  compiler$'; then
    rm -rf "native/$TARGETARCH"
  fi
  find source/native -type f -exec touch -d @0 {} +
  comm -23 sums "$built" | sed -n 's|.*  native/|source/native/|p' | tr '\n' '\0' | xargs -0r touch
  : >"$built" # the sums are valid only after a complete build
}

wheel_of() { uv build --wheel --no-build-isolation --python tools/bin/python --out-dir dist --no-progress "$@"; }

wheel() {
  settings="-Cbuild-dir=$PWD/native/$TARGETARCH -Ccmake.define.CMAKE_CXX_COMPILER=/usr/local/bin/target-g++"
  [ "$BUILDARCH" = "$TARGETARCH" ] || cross_settings
  rm -rf dist "native/$TARGETARCH/CMakeCache.txt" # keep object files, but not the settings of an earlier build
  built=native/$TARGETARCH.sums
  [ -e "$built" ] || : >"$built"
  date_sources
  # shellcheck disable=SC2086  # word splitting is intended
  wheel_of ./source $settings # pip has config settings from 22.1 on, Ubuntu 22.04 an older one
  wheel_of ./source/packages/forearm-demo
  mv sums "$built"
  for_target --compile-bytecode --no-deps dist/*.whl
  strip=$(target-g++ -print-prog-name=strip)
  "$strip" --strip-unneeded $here/lib/python3*/site-packages/forearm/_native*.so
}

transformers() {
  torch=$(sed -n 's/^transformers = \["\(torch==[^"]*\)".*/\1/p' source/pyproject.toml)
  for_target --compile-bytecode --index-url "$TORCH_INDEX" "$torch"
  for_target --compile-bytecode -c constraints.txt transformers
}

"$1"
