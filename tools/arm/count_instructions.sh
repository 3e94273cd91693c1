#!/usr/bin/env bash
# Count instructions per token on Arm, beside llama.cpp: the shapes of Qwen2.5-0.5B and 1.5B and, with experts, of
# Qwen3-30B-A3B, under emulation, with a plugin of qemu.
#
#   tools/arm/count_instructions.sh [FOLDER]   write FOLDER/graviton2-like.json and the like, as bench/results/instructions has them
#
# Both engines are built by the same compiler for the same CPU, run with one thread, and counted between the same marks: a
# prompt of 128 tokens, then one more token. Models have 1 and 2 layers; their difference is one layer, of which the models
# have 24 to 48. An instruction count is not a time: it does not show how many instructions a core executes per cycle.
# COUNT_SHAPES names other shapes. llama.cpp has no vector code for BF16 on Arm: it is counted of the smallest shape.
#
# Runs on x86-64 Debian 12 or Ubuntu. From a clean checkout it takes about half an hour, mostly to compile llama.cpp.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
out=$(realpath -m "${1:-build/arm/count/instructions}")
own=tools/arm/count_instructions
work=build/arm/count
prompt=128
read -ra shapes <<< "${COUNT_SHAPES:-qwen2.5-0.5b r1-distill-qwen-1.5b qwen3-30b-a3b}"
mkdir -p "$work"
[ -x .venv/bin/python ] || make native
tools/system_packages.sh python3 test
PATH="$root/.venv/bin:$PATH"

# Each name: the compiler's CPU, the architecture of code outside kernels, qemu's CPU. qemu 7.2 lacks Neoverse V1 and N2:
# `max` with their vector lengths replaces them.
cpus="
graviton2 neoverse-n1 neoverse-n1
graviton3 neoverse-v1 max,sve512=off,sve256=on,sve128=on,sme=off
graviton4 neoverse-n2 max,sve512=off,sve256=off,sve128=on,sme=off
"

# Unpack Debian 12's qemu and its libraries, without installing them; it is linked dynamically and so can load plugins.
qemu=$work/qemu
if [ ! -e "$qemu/complete" ]; then
  rm -rf "$qemu"
  tools/arm/get_debs.sh "$qemu" <<< "
02a7d6a2675a12dd7fdd474924295552470c0c933e0b543975887f493a84219f q/qemu/qemu-user_7.2+dfsg-7+deb12u18+b3_amd64.deb
41277f0388184f6e3b9fc02eda3184afbc999314b25b77ed75e8049428bdfe5e c/capstone/libcapstone4_4.0.2-5_amd64.deb
c23077e3640e6cb4b819c134b3f41d5cf21b3edac099654b1b4142c3069a39a3 libu/liburing/liburing2_2.3-3_amd64.deb
"
  touch "$qemu/complete"
fi
gcc -O2 -shared -fPIC -Wall -Wextra "$own/plugin.c" -o "$work/plugin.so"

# Take llama.cpp from llama-cpp-python's sources. COUNT_LLAMA names a folder with existing builds.
llama=${COUNT_LLAMA:-$work/llama}
source=$llama/llama_cpp_python-0.3.36/vendor/llama.cpp
mkdir -p "$llama"
if [ ! -d "$source" ]; then
  pip --disable-pip-version-check -q download --no-deps --no-binary llama-cpp-python -d "$llama" llama-cpp-python==0.3.36
  tar xzf "$llama"/llama_cpp_python-0.3.36.tar.gz -C "$llama" llama_cpp_python-0.3.36/vendor/llama.cpp
fi
cross=(-G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++)
off=()
for part in BUILD_SHARED_LIBS GGML_NATIVE GGML_OPENMP LLAMA_BUILD_{COMMON,TOOLS,EXAMPLES,TESTS,SERVER,APP} LLAMA_CURL; do
  off+=("-D$part=OFF")
done
# build_llama CPU TARGET: compile llama.cpp's static libraries for this CPU
build_llama() {
  local build=$llama/llama-$1
  [ -e "$build/build.ninja" ] || cmake -S "$source" -B "$build" "${cross[@]}" "${off[@]}" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_C_FLAGS="-mcpu=$1" -DCMAKE_CXX_FLAGS="-mcpu=$1" > "$build.log"
  ninja -C "$build" "$2" > "$build.log"
}
echo "--- building llama.cpp for three CPUs"
build_llama neoverse-n1 llama # code outside kernels is compiled for Neoverse N1 everywhere
common=$llama/llama-neoverse-n1/src/libllama.a

echo "--- building forearm for aarch64"
cmake -S native -B "$work/native" "${cross[@]}" > "$work/native.log"
ninja -C "$work/native" forearm_model > "$work/native.log"
ours=("$work"/native/libforearm_{model,sampling,threads,kernels}.a)
[ "$work/forearm_count" -nt "${ours[3]}" ] && [ "$work/forearm_count" -nt "${ours[0]}" ] ||
  aarch64-linux-gnu-g++ -std=c++20 -O2 -static -w -Inative -Itests/native -I"$own" "$own/forearm.cpp" -o "$work/forearm_count" \
  -Wl,--start-group "${ours[@]}" -Wl,--end-group -pthread

echo "--- writing models"
PYTHONPATH=app python "$own/gguf_models.py" "$work" "${shapes[@]}"

# count NAME CPU PROGRAM...: write the counters at each mark, in the background, unless newer ones than the program exist
count() {
  local name=$1 cpu=$2
  shift 2
  [ "$work/$name.count" -nt "$1" ] && [ "$(wc -l < "$work/$name.count")" = 3 ] && return
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
  echo "--- counting $name"
  LD_LIBRARY_PATH=$qemu/usr/lib/x86_64-linux-gnu "$qemu/usr/bin/qemu-aarch64" -cpu "$cpu" \
    -plugin "$work/plugin.so,out=$work/$name.count" "$@" > "$work/$name.log" 2>&1 || tail -n 5 "$work/$name.log" &
}
while read -r name compiled emulated; do
  [ -n "$name" ] || continue
  build_llama "$compiled" ggml
  theirs=$work/llama_count-$name
  libraries=("$common" "$llama/llama-$compiled"/ggml/src/libggml{,-cpu,-base}.a)
  [ "$theirs" -nt "${libraries[2]}" ] || aarch64-linux-gnu-g++ -O2 -static -w -mcpu="$compiled" \
    -I"$source/include" -I"$source/ggml/include" -I"$own" "$own/llama.cpp" -o "$theirs" \
    -Wl,--start-group "${libraries[@]}" -Wl,--end-group -pthread 2> "$work/link.log"
  for shape in "${shapes[@]}"; do
    for layers in 1 2; do
      for pair in "Q4_0 int4 int4-wide" "Q6_K int6" "BF16 bfloat16"; do
        read -ra formats <<< "$pair"
        file=$work/$shape-${formats[0]}-$layers.gguf
        [ -e "$file" ] || continue
        count "$name-$shape-llama-${formats[0]}-$layers" "$emulated" "$theirs" "$file" "$prompt"
        for format in "${formats[@]:1}"; do
          count "$name-$shape-forearm-$format-$layers" "$emulated" "$work/forearm_count" "$shape" "$format" "$layers" "$prompt"
        done
      done
    done
  done
done <<< "$cpus"
wait
PYTHONPATH=app python "$own/report.py" "$work" "$prompt" "$out" "${shapes[@]}"
