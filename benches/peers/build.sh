#!/usr/bin/env bash
# Gathers the peers in a folder to copy to a machine with a GPU. Needs Python with pip, g++ 11 or later, Rust,
# and the network, but no GPU and no CUDA.
#
#   benches/peers/build.sh [FOLDER] [--logs DIR]    # default: benches/peers/out, examples/logs
set -euo pipefail

usage() {
    echo "usage: benches/peers/build.sh [FOLDER] [--logs DIR]" >&2
    exit 2
}

here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
out=$here/out
logs=$repository/examples/logs
while (($#)); do
    case $1 in
        --logs) [[ $# -ge 2 ]] || usage; logs=$(cd "$2" && pwd); shift 2 ;;
        -*) usage ;;
        *) out=$1; shift ;;
    esac
done
mkdir -p "$out"
out=$(cd "$out" && pwd)
python=${PYTHON:-python3}
cxx=${CXX:-g++}
downloads=$(mktemp -d)
trap 'rm -rf "$downloads"' EXIT

# This CUDA runtime works with the oldest driver for CUDA 13; crt holds headers that the runtime includes.
# RMM's wheel contains the headers of CCCL.
wheels=("librmm-cu13==26.10.*" "rapids-logger==0.3.*" "nvidia-cuda-runtime==13.0.*" "nvidia-cuda-crt==13.0.*")

echo "== wheels: ${wheels[*]}"
"$python" -m pip download --quiet --no-deps --only-binary :all: --dest "$downloads" "${wheels[@]}"
for wheel in "$downloads"/*.whl; do
    "$python" -m zipfile -e "$wheel" "$downloads/unpacked"
done
wheel=$downloads/unpacked
mkdir -p "$out/lib" "$out/logs"
libraries=(librmm/lib64/librmm.so rapids_logger/lib64/librapids_logger.so nvidia/cu13/lib/libcudart.so.13)
for library in "${libraries[@]}"; do
    strip -o "$out/lib/$(basename "$library")" "$wheel/$library"
done

headers=()
for folder in librmm/include librmm/include/rapids rapids_logger/include nvidia/cu13/include; do
    headers+=(-isystem "$wheel/$folder")
done

compile() {
    local name=$1
    shift
    echo "== $name"
    # shellcheck disable=SC2016 # $ORIGIN is for the loader
    "$cxx" -std=c++20 -O3 -Wall -Wextra -pthread "${headers[@]}" "$here/$name.cpp" -o "$out/$name" \
        "$@" -s -Wl,--disable-new-dtags,-rpath,'$ORIGIN/lib' # so that the libraries find each other too
}
compile async "$out/lib/libcudart.so.13" -ldl
compile rmm "$out/lib/librmm.so" "$out/lib/librapids_logger.so" "$out/lib/libcudart.so.13" -ldl

echo "== millpond-replay"
cd "$repository"
cargo build --release --locked -p millpond-replay --bin millpond-replay
strip -o "$out/millpond-replay" "${CARGO_TARGET_DIR:-$repository/target}/release/millpond-replay"

# The GPU machine compiles and runs these files itself.
cp "$here"/{plan,workloads,log,busy,logs}.hpp "$here"/{torch.cpp,cupy_bench.py,run.sh} "$out/"
cp "$logs"/*.csv.gz "$out/logs/"
git describe --always --dirty >"$out/COMMIT" 2>/dev/null || echo unknown >"$out/COMMIT"
echo "== done, $(du -sh "$out" | cut -f1): copy $out to the machine with the GPU, and start run.sh there"
