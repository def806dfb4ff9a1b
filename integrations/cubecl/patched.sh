#!/usr/bin/env bash
# Copies cubecl-cuda from cargo's registry into target/, applies upstream.patch, and builds `patched`.
#
#   integrations/cubecl/patched.sh [cargo's command and options]     (default: check)
#
# cubecl-cuda links LLVM, which its build downloads. With DOCS_RS=1 the build needs no LLVM: enough for
# `check`, and for a program that compiles its kernels with NVRTC (cubecl-cuda's feature `cpp`). Then
# `--unresolved-symbols` lets the linker leave out LLVM's functions, which such a program never calls.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=0.11.3
copy=$here/../../target/cubecl-cuda-$version

crate() { echo "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"cubecl-cuda-$version"; }
[[ -d $(crate) ]] || (cd / && cargo info --quiet "cubecl-cuda@$version" >/dev/null) # which unpacks it
rm -rf "$copy"
mkdir -p "$(dirname "$copy")"
cp -r "$(crate)" "$copy"
patch -d "$copy" -p1 --fuzz=0 <"$here/upstream.patch"

[[ $# -gt 0 ]] || set -- check
export DOCS_RS=1
export RUSTFLAGS="-Clink-arg=-Wl,--unresolved-symbols=ignore-all,-z,lazy -Crelro-level=partial"
cd "$here/patched"
exec cargo "$@"
