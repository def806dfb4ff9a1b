#!/usr/bin/env bash
# Builds the programs next to this script, and runs them on the first GPU.
#
#   benches/rules/run.sh [DIR]
#
# Writes one text file per program to DIR (rules-out by default). CUDA names the toolkit (/usr/local/cuda).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-rules-out}
cuda=${CUDA:-/usr/local/cuda}
mkdir -p "$out"
failed=0
for name in capture waits reset memory pools; do
    "${CXX:-g++}" -O1 -std=c++17 -pthread -isystem "$cuda/include" "$here/$name.cpp" -o "$out/$name" \
        -L"$cuda/lib64/stubs" -lcuda || { failed=1; continue; }
    timeout -k 5 150 "$out/$name" >"$out/$name.txt" 2>&1
    code=$?
    echo "== $name: exit code $code, $out/$name.txt"
    ((code == 0)) || failed=1
done
exit $failed
