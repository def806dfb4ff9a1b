#!/usr/bin/env bash
# Runs millpond and its peers, one after another, on the GPU of this machine. build.sh puts this script next
# to the programs. Skips peers that this machine lacks (PyTorch, CuPy), with a note.
#
#   ./run.sh [--quick] [--seed N] [--threads N,…] [--workload NAME,…] [--passes N]
#   ./run.sh --logs [--passes N]
#   ./run.sh --busy [--kernels LO..HI,…] [--host NAME,…] [--passes N] [--first N] [--seed N] [--capacity SIZE]
#
# Replays each log in N passes (5) on one stack, and reports each pass. With --logs, nothing else runs. With
# --busy, only replays with work in flight run, as in `millpond-replay busy`: kernels run for LO to HI
# microseconds (5..25,10..100); the host is ahead, level or sync (all); and each log, or its first N
# operations, is replayed in N passes (3). A capacity (800MiB, 3GiB, or 120% of the log's peak live bytes)
# limits the device memory: the programs reserve the rest, and count allocations that fail.
#
# All results go to results.jsonl, in results/ next to this script, or in $OUT. Environment:
#   STACKS   millpond's stacks ("cuda+pool cuda+pool:pages=off"; with --busy "cuda+pool cuda+pool:reuse=own
#            async"; async is cuMemAllocAsync)
#   PEERS    the programs to run ("millpond async malloc rmm torch cupy"; with --busy "millpond rmm torch")
#   LOGS     the logs to replay, by name without extension (all logs in logs/)
#   DEVICE   millpond's device (cuda:0); the peers run on the first GPU
#   SECONDS_EACH  the time limit of a program (200); results printed before the limit count. Many passes take
#            longer: RMM's pool and cudaMallocAsync need about 0.1 s for each pass of each log
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$here/results}
mkdir -p "$out"
results=$out/results.jsonl
python=${PYTHON:-python3}
limit=${SECONDS_EACH:-200}
device=${DEVICE:-cuda:0}
command="run.sh $*"
# Only logs have passes: `bench` and CuPy do not know the option.
is_busy=0 is_logs=0 options=() mode=() passes=
while (($#)); do
    case $1 in
        --busy) is_busy=1 mode=(--busy) ;;
        --logs) is_logs=1 ;;
        --passes=*) passes=${1#*=} ;;
        --passes) passes=${2:-}; (($# == 1)) || shift ;;
        *) options+=("$1") ;;
    esac
    shift
done
passes=${passes:-$((is_busy ? 3 : 5))}
if ((is_busy)); then
    peers=" ${PEERS:-millpond rmm torch} "
    read -ra specs <<<"${STACKS:-cuda+pool cuda+pool:reuse=own async}"
else
    peers=" ${PEERS:-millpond async malloc rmm torch cupy} "
    read -ra specs <<<"${STACKS:-cuda+pool cuda+pool:pages=off}"
fi
stacks=("${specs[@]/#/--stack=}")

note() { echo "note: $*" >&2; }
wanted() { [[ $peers == *" $1 "* ]]; }
# Prints text as JSON.
quoted() { "$python" -c 'import json, sys; print(json.dumps(sys.stdin.read().strip()))'; }

# Each program runs in its own process, so that it finds the device in a fresh state.
attempt() {
    local start=$SECONDS code
    timeout -k 10 "$limit" "$@" >>"$results"
    code=$?
    [[ -z $(tail -c 1 "$results") ]] || echo >>"$results" # the limit cut a line
    # millpond-replay exits with 1 if a workload did not run; the results tell which one.
    echo "== $((SECONDS - start)) s, exit code $code: ${*##*/}" >&2
}

# benched PROGRAM [FLAG...]: runs the workloads and the logs, or the logs with work in flight.
benched() {
    ((is_busy || is_logs)) || attempt "$@" "${options[@]}"
    ((${#logs[@]} == 0)) ||
        attempt "$@" "${mode[@]}" "${options[@]}" --passes="$passes" "${logs[@]/#/--log=}"
}

build_torch() {
    local torch cuda cudart
    [[ $here/torch -nt $here/torch.cpp ]] && return
    torch=$("$python" -c 'import torch; print(torch.__path__[0])') || return 1
    # CUDA's headers come from an installed toolkit, or from PyTorch's wheels.
    for cuda in "${CUDA_HOME:-/usr/local/cuda}" "$torch"/../nvidia/cu13 "$torch"/../nvidia/cuda_runtime; do
        [[ -e $cuda/include/cuda_runtime_api.h ]] && break
    done
    [[ -e $cuda/include/cuda_runtime_api.h ]] || { note "no CUDA headers; set CUDA_HOME"; return 1; }
    cudart=$(find -L "$cuda" -name 'libcudart.so*' 2>/dev/null | sort | tail -n 1)
    "${CXX:-g++}" -std=c++20 -O3 -pthread -isystem "$torch/include" -isystem "$cuda/include" \
        "$here/torch.cpp" -o "$here/torch" -L"$torch/lib" -Wl,--no-as-needed -lc10_cuda -lc10 -ltorch_cpu \
        -ltorch_cuda -ltorch "$cudart" -Wl,-rpath,"$torch/lib" -Wl,-rpath,"$(dirname "$cudart")" -ldl
}

versions() {
    echo "commit $(cat "$here/COMMIT"), RMM 26.10"
    "$python" -c 'import torch; print("PyTorch", torch.__version__)' 2>/dev/null
    "$python" -c 'import cupy; print("CuPy", cupy.__version__)' 2>/dev/null
}

machine() {
    nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
    grep -m 1 'model name' /proc/cpuinfo | cut -d: -f2-
    echo "$(nproc) CPUs"
}

flags=$(mktemp -d)
trap 'rm -rf "$flags"' EXIT
logs=()
for path in "$here"/logs/*.csv.gz; do
    name=$(basename "$path" .csv.gz)
    [[ -e $path && " ${LOGS:-$name} " == *" $name "* ]] || continue
    gzip -dc "$path" >"$flags/$(basename "$path" .gz)"
    logs+=("$flags/$(basename "$path" .gz)")
done

printf '{"date":"%s","machine":%s,"versions":%s,"command":%s}\n' "$(date -u +%F)" \
    "$(machine 2>&1 | paste -sd';' | quoted)" "$(versions | paste -sd';' | quoted)" \
    "$(echo "$command" | quoted)" >"$results"

if wanted millpond && ((is_busy)); then
    attempt "$here/millpond-replay" busy --device "$device" --format json "${stacks[@]}" \
        "${options[@]}" --passes="$passes" "${logs[@]}"
elif wanted millpond; then
    ((is_logs)) ||
        attempt "$here/millpond-replay" bench --device "$device" --format json "${stacks[@]}" "${options[@]}"
    ((${#logs[@]} == 0)) || attempt "$here/millpond-replay" --device "$device" --threads 1 --format json \
        --repeat="$passes" "${stacks[@]}" "${logs[@]}"
fi
if wanted async; then
    benched "$here/async" cudaMallocAsync
fi
if wanted malloc && ((!is_busy && !is_logs)); then
    # cudaMalloc waits for the device in each call: many blocks, threads and logs would take hours.
    attempt "$here/async" cudaMalloc --most-live=10000 "${options[@]}" --workload=pair,churn,churn_large
fi
if wanted rmm; then
    # The pool and the arena get slower with more live blocks.
    benched "$here/rmm" pool --most-live=100000
    if ((!is_busy)); then
        benched "$here/rmm" arena --most-live=100000
        benched "$here/rmm" binning
    fi
fi
if wanted torch; then
    if build_torch; then
        benched "$here/torch"
        PYTORCH_ALLOC_CONF=expandable_segments:True benched "$here/torch"
    else
        note "PyTorch is skipped"
    fi
fi
if wanted cupy && ((!is_busy && !is_logs)); then
    if "$python" -c 'import cupy' 2>/dev/null; then
        attempt "$python" "$here/cupy_bench.py" "${options[@]}"
    else
        note "CuPy is skipped"
    fi
fi
echo "== $SECONDS s: $(wc -l <"$results") lines in $results" >&2
