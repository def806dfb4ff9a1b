#!/usr/bin/env bash
# Runs millpond and the peers one after the other on the GPU of this machine, and prints one table. Lies
# beside what build.sh made. Peers that this machine lacks (PyTorch, CuPy) are left out, with a note.
#
#   ./run.sh [--quick] [--seed N] [--threads N,…]    # results: results/ beside it, or $OUT
#   STACKS="cuda+pool cuda+binning" ./run.sh         # millpond's stacks, in place of the default ones
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$here/results}
mkdir -p "$out"
rm -f "$out"/*.json "$out"/*.jsonl
python=${PYTHON:-python3}

note() { echo "note: $*" >&2; }

# Each in a process of its own, so that none finds the device in another's state.
peer() {
    local name=$1
    shift
    echo "== $name" >&2
    "$@" >"$out/$name.jsonl" || note "$name failed"
}

stacks=()
for stack in ${STACKS:-}; do
    stacks+=(--stack "$stack")
done
echo "== millpond" >&2
"$here/millpond-replay" bench --device cuda:0 --format json "${stacks[@]}" "$@" >"$out/millpond.json" ||
    note "a stack of millpond failed"

peer cudaMallocAsync "$here/async" cudaMallocAsync "$@"
# It waits for the device at each call: many blocks would take hours.
peer cudaMalloc "$here/async" cudaMalloc --most-live 10000 "$@"
# A block of the pool and the arena takes longer the more are live.
peer rmm-pool "$here/rmm" pool --most-live 100000 "$@"
peer rmm-arena "$here/rmm" arena --most-live 100000 "$@"
peer rmm-binning "$here/rmm" binning "$@"

build_torch() {
    local torch cuda
    torch=$("$python" -c 'import torch; print(torch.__path__[0])') || return 1
    # CUDA's headers: of an installed toolkit, or of the wheels that PyTorch came with.
    for cuda in "${CUDA_HOME:-/usr/local/cuda}" "$torch"/../nvidia/cu13 "$torch"/../nvidia/cuda_runtime; do
        [[ -e "$cuda/include/cuda_runtime_api.h" ]] && break
    done
    [[ -e "$cuda/include/cuda_runtime_api.h" ]] || { note "no CUDA headers; set CUDA_HOME"; return 1; }
    local cudart
    cudart=$(find -L "$cuda" -name 'libcudart.so*' 2>/dev/null | sort | tail -n 1)
    "${CXX:-g++}" -std=c++20 -O3 -pthread -isystem "$torch/include" -isystem "$cuda/include" \
        "$here/torch.cpp" -o "$here/torch" -L"$torch/lib" -Wl,--no-as-needed -lc10_cuda -lc10 -ltorch_cpu \
        -ltorch_cuda -ltorch "$cudart" -Wl,-rpath,"$torch/lib" -Wl,-rpath,"$(dirname "$cudart")"
}
if build_torch; then
    peer torch "$here/torch" "$@"
    peer torch-expandable env PYTORCH_ALLOC_CONF=expandable_segments:True "$here/torch" "$@"
else
    note "PyTorch is left out"
fi

if "$python" -c 'import cupy' 2>/dev/null; then
    peer cupy "$python" "$here/cupy_bench.py" "$@"
else
    note "CuPy is left out: it is not installed"
fi

"$python" "$here/merge.py" "$out"/*.json "$out"/*.jsonl | tee "$out/table.md"
