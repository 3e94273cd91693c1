#!/usr/bin/env bash
# Write the image's requirements with hashes, from pyproject.toml and constraints.txt, for both architectures and Python 3.10
# and newer: deploy/image/requirements.lock (run time) and deploy/image/build.lock (packages that build the wheel).
#   tools/lock.sh [--check]     --check: change nothing, and fail if the files do not match pyproject.toml
set -euo pipefail

cd "$(dirname "$0")/.."
uv=0.13.8
[ -x build/uv/bin/uv ] || { python3 -m venv build/uv && build/uv/bin/pip -q install "uv==$uv"; }
out=deploy/image
if [ "${1:-}" = --check ]; then
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
  cp deploy/image/*.lock "$out/"
fi
compile() {
  build/uv/bin/uv pip compile -q -c constraints.txt --universal --python-version 3.10 --generate-hashes --no-annotate \
    --no-header --no-emit-find-links -o "$out/$1" "${@:2}"
}
compile requirements.lock pyproject.toml
{ .venv/bin/python tools/requirements.py build; echo "uv==$uv"; } > "build/build.in"
# Keep build requirements only: those of run time are in the other file.
sed -n '/^cmake\|^ninja\|^pybind11\|^scikit-build-core\|^uv/p' build/build.in > build/build-only.in
compile build.lock build/build-only.in
[ "$out" = deploy/image ] || for lock in requirements.lock build.lock; do
  cmp -s "$out/$lock" "deploy/image/$lock" || { echo "error: deploy/image/$lock is out of date; run tools/lock.sh" >&2; exit 1; }
done
