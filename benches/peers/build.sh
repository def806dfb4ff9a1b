#!/usr/bin/env bash
# Makes a folder with what the peers need, to be copied to a machine with a GPU. Needs Python with pip, g++ 11
# or later, Rust, and the network; no GPU and no CUDA.
#
#   benches/peers/build.sh [FOLDER]    # default: benches/peers/out
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
python=${PYTHON:-python3}

# The CUDA runtime is that of the oldest driver that runs CUDA 13; crt holds headers that it includes.
# RMM brings the headers of CCCL along.
wheels=("librmm-cu13==26.10.*" "rapids-logger==0.3.*" "nvidia-cuda-runtime==13.0.*" "nvidia-cuda-crt==13.0.*")

echo "== wheels: ${wheels[*]}"
"$python" -m pip download --quiet --no-deps --only-binary :all: --dest "$out/wheels" "${wheels[@]}"
rm -rf "$out/unpacked"
for wheel in "$out"/wheels/*.whl; do
    "$python" -m zipfile -e "$wheel" "$out/unpacked"
done

mkdir -p "$out/lib"
cp "$out"/unpacked/librmm/lib64/*.so "$out"/unpacked/rapids_logger/lib64/*.so "$out/lib/"
cp "$out"/unpacked/nvidia/cu13/lib/libcudart.so.13 "$out/lib/"

headers=()
for folder in librmm/include librmm/include/rapids rapids_logger/include nvidia/cu13/include; do
    headers+=(-isystem "$out/unpacked/$folder")
done

compile() {
    local name=$1
    shift
    echo "== $name"
    # shellcheck disable=SC2016 # $ORIGIN is for the loader
    "${CXX:-g++}" -std=c++20 -O3 -Wall -Wextra -pthread "${headers[@]}" "$here/$name.cpp" -o "$out/$name" \
        "$@" -Wl,--disable-new-dtags,-rpath,'$ORIGIN/lib' # so that the libraries find each other, too
}
compile async "$out/lib/libcudart.so.13"
compile rmm "$out/lib/librmm.so" "$out/lib/librapids_logger.so" "$out/lib/libcudart.so.13" -ldl

echo "== millpond-replay"
cargo build --release --locked --manifest-path "$here/../../Cargo.toml" -p millpond-replay
target=${CARGO_TARGET_DIR:-$here/../../target}
cp "$target/release/millpond-replay" "$out/"

# What the GPU machine compiles and runs itself.
cp "$here"/{workloads.hpp,torch.cpp,cupy_bench.py,merge.py,run.sh} "$out/"
rm -rf "$out/unpacked" "$out/wheels"
echo "== done: copy $out to the machine with the GPU, and give the command run.sh there"
