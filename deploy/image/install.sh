#!/bin/sh
# In the builder: /opt/forearm, a virtual environment for TARGETARCH that stands on the base's Python.
#   install.sh requirements     what forearm needs, by hash
#   install.sh wheel            forearm itself, from ./source; objects stay in ./native for the next time
set -eu
cd "$(dirname "$0")"
PATH=$PWD/tools/bin:$PATH
here=/opt/forearm
glibc=$(getconf GNU_LIBC_VERSION | sed 's/.*[.]//') # 2.x of the base; uv knows platforms up to 2.40
[ "$glibc" -le 40 ] || glibc=40
case $TARGETARCH in arm64) machine=aarch64 ;; amd64) machine=x86_64 ;; esac
# uv asks for the target's markers and wheels, whatever machine this is.
for_target() {
  uv pip install --python $here/bin/python --python-platform $machine-manylinux_2_$glibc --only-binary :all: \
    --link-mode copy --no-progress "$@"
}

requirements() {
  python3 -m venv --without-pip $here
  for_target --compile-bytecode --require-hashes -r requirements.lock
}

# What a cross build must be told: pyconfig.h of both architectures says the same of types (both are LP64).
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

# ninja goes by times, and sources come with those of a checkout or an archive: a file may be older than the object of
# what stood there before. So they get times by content: now where it is not what was built last, else long ago.
date_sources() {
  { echo "$(target-g++ -v 2>&1 | sha256sum | cut -d ' ' -f 1)  compiler"; (cd source && find native -type f -exec sha256sum {} +); } |
    sort >sums
  if comm -23 sums "$built" | grep -q '  compiler$'; then
    rm -rf "native/$TARGETARCH"
  fi
  find source/native -type f -exec touch -d @0 {} +
  comm -23 sums "$built" | sed -n 's|.*  native/|source/native/|p' | tr '\n' '\0' | xargs -0r touch
  : >"$built" # until all of this is
}

wheel() {
  settings="-Cbuild-dir=$PWD/native/$TARGETARCH -Ccmake.define.CMAKE_CXX_COMPILER=/usr/local/bin/target-g++"
  [ "$BUILDARCH" = "$TARGETARCH" ] || cross_settings
  rm -rf dist "native/$TARGETARCH/CMakeCache.txt" # objects are kept, answers to old settings are not
  built=native/$TARGETARCH.sums
  [ -e "$built" ] || : >"$built"
  date_sources
  # shellcheck disable=SC2086  # settings are words
  python -m pip wheel ./source --no-build-isolation --no-deps -w dist $settings
  mv sums "$built"
  for_target --compile-bytecode --no-deps dist/*.whl
  strip=$(target-g++ -print-prog-name=strip)
  "$strip" --strip-unneeded $here/lib/python3*/site-packages/forearm/_native*.so
}

"$1"
