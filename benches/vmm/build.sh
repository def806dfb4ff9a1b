#!/usr/bin/env bash
# Builds alias, costs and memory with nvcc from $CUDA (a toolkit's folder), in the given folder (default:
# out). Links against a stub of libcuda, so the machine needs no driver.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:-$here/out}"
out=$(cd "${1:-$here/out}" && pwd)
cuda=${CUDA:-/usr/local/cuda}
lib=$cuda/lib
[[ -d $cuda/lib64 ]] && lib=$cuda/lib64
include=(-I"$cuda/include")
[[ -d $cuda/include/cccl ]] && include+=(-I"$cuda/include/cccl")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
for program in alias costs memory; do
    "$cuda/bin/nvcc" -std=c++17 -O2 -arch="${ARCH:-sm_90}" "${include[@]}" \
        -c "$here/$program.cu" -o "$tmp/$program.o"
done
nm -u "$tmp"/*.o | awk '$2 ~ /^cu[A-Z]/ { print "void " $2 "(void) {}" }' | sort -u >"$tmp/stub.c"
gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$tmp/libcuda.so" "$tmp/stub.c"
for program in alias costs memory; do
    g++ -o "$out/$program" "$tmp/$program.o" -static-libstdc++ -static-libgcc \
        -L"$lib" -L"$tmp" -lcudart_static -lcuda -ldl -lrt -lpthread
done
cp "$here/run.sh" "$out/"
