#!/usr/bin/env bash
# Fetches allocators of other projects, compiles them as shared libraries, and judges them on a simulated
# device. Needs Rust, a C++ compiler, Python with pip, and a package index. All fetched files stay in the
# target folder.
#   scripts/judge.sh          judges each allocator, and fails if a verdict is not the expected one
#   scripts/judge.sh build    only fetches and compiles
#
# MILLPOND_JUDGE_OPS is the number of operations for each allocator that must pass (1,000,000 without it).
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
out=$target/judge
operations=${MILLPOND_JUDGE_OPS:-1_000_000}
judge=$target/debug/millpond-judge
mkdir -p "$out/wheels"

# Unpacks a wheel of the package index: wheel NAME==VERSION FOLDER [START...]. STARTs choose the files whose
# paths begin so.
wheel() {
    if [[ ! -d $out/$2 ]]; then
        local fetched
        fetched=$(mktemp -d -p "$out/wheels")
        python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$fetched" "$1"
        python3 - "$fetched"/*.whl "$fetched/unpacked" "${@:3}" <<'END'
import sys
import zipfile

wheel, folder, *starts = sys.argv[1:]
with zipfile.ZipFile(wheel) as file:
    file.extractall(folder, [name for name in file.namelist() if name.startswith(tuple(starts) or "")])
END
        rm "$fetched"/*.whl
        mv "$fetched/unpacked" "$out/$2"
    fi
}

# Compiles an adapter: compile LIBRARY SOURCE OPTION...
compile() {
    local library=$out/$1.so source=shim/judge/$2
    shift 2
    if [[ ! $library -nt $source || ! $library -nt shim/judge/allocator.h ]]; then
        "${CXX:-c++}" -std=c++17 -O1 -DNDEBUG -fPIC -shared "$source" -o "$library.new" "$@" \
            -I"$out/cuda-runtime/nvidia/cu13/include" -I"$out/cuda-crt/nvidia/cu13/include"
        mv "$library.new" "$library"
    fi
}

wheel nvidia-cuda-runtime==13.5.37 cuda-runtime
wheel nvidia-cuda-crt==13.5.37 cuda-crt
wheel rapids-logger==0.2.3 rapids-logger
logger=$out/rapids-logger/rapids_logger
for version in 26.6.0 26.8.0 26.10.0; do
    wheel librmm-cu13==$version librmm-$version
    rmm=$out/librmm-$version/librmm
    compile "rmm-$version" rmm_pool.cpp -I"$rmm/include/rapids" -I"$rmm/include" -I"$logger/include" \
        -L"$rmm/lib64" -lrmm -L"$logger/lib64" -lrapids_logger -Wl,-rpath,"$rmm/lib64:$logger/lib64"
done
cub=$out/librmm-26.10.0/librmm/include/rapids
compile cub cub_caching.cpp -I"$cub"

# The same allocator with a fault: it reuses a block of another stream although the block's work is not done.
mkdir -p "$out/planted/cub"
sed 's/if (event_status != cudaErrorNotReady)/if (true)/' "$cub/cub/util_allocator.cuh" \
    >"$out/planted/cub/util_allocator.cuh"
if cmp --quiet "$cub/cub/util_allocator.cuh" "$out/planted/cub/util_allocator.cuh"; then
    echo "the fault cannot be planted: CUB's allocator has changed" >&2
    exit 1
fi
compile cub-planted cub_caching.cpp -I"$out/planted" -I"$cub"

# The wheel has half a gigabyte; three megabytes are kept. The allocator finds CUDA's runtime in this folder.
wheel torch==2.15.0 torch torch/lib/libc10 torch/include/c10/ torch/include/torch/headeronly/
torch=$out/torch/torch
for planted in 0 1; do
    compile "c10_cuda$([[ $planted == 0 ]] || echo -planted)" c10_cuda.cpp -std=c++20 "-DPLANTED=$planted" \
        -I"$torch/include" -Wl,--disable-new-dtags,-rpath,"$out:$torch/lib" -L"$torch/lib" \
        -Wl,--no-as-needed -lc10_cuda -lc10
done

cargo build --quiet --locked -p millpond-shim -p millpond-capi
# Allocators that are linked with CUDA's libraries find the simulated device under these names.
for name in libcudart.so.12 libcudart.so.13 libcuda.so.1 libnvidia-ml.so.1; do
    ln -sf "$target/debug/libmillpond_shim.so" "$out/$name"
done
ln -sf "$target/debug/libmillpond_c.so" "$out/libmillpond.so.0"
for pages in on off; do
    compile "millpond-pages-$pages" millpond.cpp "-DSTACK=\"cuda+pool:pages=$pages\"" -Icapi/include \
        -Wl,--disable-new-dtags,-rpath,"$out" -L"$out" -l:libmillpond.so.0
done
if [[ ${1:-} == build ]]; then
    exit
fi

# Judges a library: expect CODE LIBRARY OPTION...
wrong=0
expect() {
    local expected=$1 library=$2 code=0
    shift 2
    echo "-- $library $*: $([[ $expected == 0 ]] && echo "must pass" || echo "must be found")"
    "$judge" "$@" "$out/$library.so" || code=$?
    if [[ $code != "$expected" ]]; then
        echo "-- the exit code is $code instead of $expected" >&2
        wrong=1
    fi
}

expect 1 rmm-26.6.0
expect 0 rmm-26.8.0 --operations "$operations"
expect 0 rmm-26.10.0 --operations "$operations"
# docs/lab/judge.md describes CUB's three faults.
expect 1 cub
expect 1 cub --keep-streams
expect 1 cub --keep-streams --one-thread --operations 10_000 --races 100
expect 0 cub --keep-streams --one-thread --operations "$operations" --races 0
# docs/lab/judge.md has the limits of PyTorch's allocator. A process has one, so the programs take turns.
expect 1 c10_cuda --workers 1 --one-thread
expect 1 c10_cuda --workers 1 --keep-streams
expect 0 c10_cuda --workers 1 --keep-streams --one-thread --operations "$operations"
expect 1 c10_cuda-planted --workers 1 --keep-streams --one-thread
# Expandable segments take 20 MiB at once, and wait for their streams.
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
expandable=(c10_cuda --workers 1 --scale 8 --keep-streams --one-thread)
expect 1 "${expandable[@]}"
expect 0 "${expandable[@]}" --no-captures --operations "$operations"
expect 1 "${expandable[@]}" --no-captures --plant synchronisations
unset PYTORCH_CUDA_ALLOC_CONF
# The C library has one driver for all programs, too.
expect 0 millpond-pages-on --workers 1 --operations "$operations"
expect 0 millpond-pages-off --workers 1 --operations "$operations"
# A device that is wrong under an allocator must be found, too.
expect 1 rmm-26.10.0 --plant waits
expect 1 cub --keep-streams --one-thread --races 0 --plant queries
expect 1 cub-planted --keep-streams --one-thread --races 0
for plant in waits queries; do
    expect 1 millpond-pages-on --workers 1 --plant "$plant"
done
exit "$wrong"
