#!/usr/bin/env bash
# Build the wheel and the sdist as a user's pip does, install each in a clean environment of uv's, and generate text with it.
#   tools/packages.sh    writes dist/forearm-*.whl and dist/forearm-*.tar.gz; PYTHON: the interpreter, python3 by default
#
# The sdist has its commit in native/commit.txt, because a build from it has no git checkout.
set -euo pipefail

cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1
work=$PWD/build/packages
unset FOREARM_COMMIT PYTHONPATH
rm -rf "$work/dist" "$work/clean" "$work/uv" "$work/empty"
mkdir -p "$work/dist" "$work/empty"
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' app/forearm/__init__.py)
commit=$(git rev-parse HEAD)

echo "--- pip wheel ."
"$PYTHON" -m pip wheel . --quiet --no-deps -w "$work/dist" -Cbuild-dir=build/packages/native

echo "--- sdist"
trap 'rm -f native/commit.txt' EXIT
echo "$commit" >native/commit.txt
.venv/bin/python -c "from scikit_build_core.build import build_sdist; print(build_sdist('$work/dist'))"
rm -f native/commit.txt

# check FILE: install it beside its dependencies, and run it from a folder that has no forearm.
check() {
  local said answer
  "$work/clean/bin/python" -m pip install --quiet --force-reinstall --no-deps "$1"
  said=$(cd "$work/empty" && "$work/clean/bin/forearm" --version)
  [ "$said" = "forearm $version ${commit:0:12}" ] || { echo "error: ${1##*/} prints '$said' instead of its version and commit"; exit 1; }
  [ -f "$work/clean/share/man/man1/forearm.1" ] || { echo "error: ${1##*/} installs no manual page"; exit 1; }
  answer=$(cd "$work/empty" && "$work/clean/bin/forearm" generate --prompt "A glacier is" --max-tokens 8 2>"$work/log") ||
    { cat "$work/log"; exit 1; }
  [ -n "$answer" ] || { echo "error: ${1##*/} generates no text"; exit 1; }
  echo "${1##*/}: $said; a glacier is$answer"
}

echo "--- clean environment, by uv"
uv=$(sed -n 's/^\(uv==[0-9.]*\).*/\1/p' deploy/image/build.lock)
"$PYTHON" -m venv "$work/uv"
"$work/uv/bin/python" -m pip install --quiet "$uv"
"$work/uv/bin/uv" --quiet venv "$work/clean" --python "$PYTHON" --seed
wheel=$(ls "$work"/dist/*.whl) sdist=$(ls "$work"/dist/*.tar.gz)
"$work/uv/bin/uv" --quiet pip install --python "$work/clean/bin/python" -c constraints.txt "$wheel"
check "$wheel"
check "$sdist"
mkdir -p dist
cp "$wheel" "$sdist" dist/
echo "packages: ${wheel##*/} and ${sdist##*/} install and answer"
