#!/usr/bin/env bash
# Install missing build dependencies with apt. Prints and changes nothing if none is missing.
#   tools/system_packages.sh PYTHON [test|loops|deploy]
# test: also the cross compiler of the Arm checks, and a browser; loops: as test, clang 19, and LLVM 22
# (Debian 12 has it among its security updates) for tools/arm/price_loops.py; deploy: as test, and shellcheck
set -euo pipefail

python=$1
for_tests=${2:-}
missing=()

command -v g++ >/dev/null || missing+=(g++)
command -v flock >/dev/null || missing+=(util-linux)
if ! "$python" -c 'import os, sysconfig; assert os.path.exists(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null; then
  missing+=(python3-dev)
fi
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [ -n "$for_tests" ]; then
  command -v curl >/dev/null || missing+=(curl)
  command -v openssl >/dev/null || missing+=(openssl)
  command -v groff >/dev/null || missing+=(groff-base)
  # The playground's tests need a browser. Ubuntu's chromium is a snap, which does not run in containers: there Playwright
  # installs one.
  if [ "$(. /etc/os-release; echo "$ID")" = debian ]; then
    command -v chromium >/dev/null || missing+=(chromium fonts-dejavu-core)
  fi
  [ "$(uname -m)" = aarch64 ] || command -v aarch64-linux-gnu-g++ >/dev/null || missing+=(g++-aarch64-linux-gnu)
fi
if [ "$for_tests" = loops ]; then
  command -v llvm-mca-22 >/dev/null || missing+=(llvm-22)
  command -v clang++-19 >/dev/null || missing+=(clang-19)
fi
[ "$for_tests" != deploy ] || command -v shellcheck >/dev/null || missing+=(shellcheck)
[ ${#missing[@]} -gt 0 ] || exit 0

root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "error: these packages are missing, and installing them needs root or sudo: ${missing[*]}" >&2; exit 1; }
  root=(sudo)
fi
echo "--- installing system packages: ${missing[*]}"
apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
"${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null 2>&1 && exit 0
# The package lists are old or missing: fetch them once and try again, now with error messages.
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null
