#!/usr/bin/env bash
# Gathers the fuzz targets and their corpora in one folder, for a run on a machine with many cores.
#
#   scripts/fuzz-lane/build.sh [DIR]
#
# DIR (fuzz-lane by default, which git ignores) then holds the instrumented program of all targets, the
# corpora and run.sh; and DIR.tar.xz holds DIR. Start run.sh on the other machine, which needs a glibc at
# least as new as the one here, and libstdc++, but no Rust. MILLPOND_WHEEL names a wheel of the Python
# package. Then run.sh also runs random programs in Python, if the machine has Python 3.11 or later with NumPy
# and pytest.
#
# Building needs cargo-fuzz and a nightly toolchain: tests/fuzz/run.sh says how to install them.
set -euo pipefail
repository=$(cd "$(dirname "$0")/../.." && pwd)
lane=${1:-$repository/fuzz-lane}
limit_mib=25
source "$repository/scripts/own-folder.sh"
own_folder "$lane"
lane=$(cd "$lane" && pwd)
cd "$repository/tests/fuzz"

toolchain=${MILLPOND_NIGHTLY:-nightly}
./corpora.sh unpack
cargo "+$toolchain" fuzz build --fuzz-dir .
host=$(rustc "+$toolchain" -vV | sed -n 's/^host: //p')
strip -o "$lane/fuzz" "${CARGO_TARGET_DIR:-target}/$host/release/fuzz"
for target in $(./corpora.sh targets); do
    mkdir -p "$lane/corpora/$target"
    find "corpus/$target" -type f -size -64k -exec cp -t "$lane/corpora/$target" {} + 2>/dev/null || true
done
cp "$repository/scripts/fuzz-lane/run.sh" "$lane/"
if [[ -n ${MILLPOND_WHEEL:-} ]]; then
    mkdir -p "$lane/python" "$lane/tests/fuzz"
    python3 -m zipfile -e "$MILLPOND_WHEEL" "$lane/site"
    rm -f "$lane"/site/millpond/{millpond-replay,libmillpond_run.so}
    cp -r "$repository/python/tests" "$lane/python/"
    cp programs.py "$lane/tests/fuzz/"
fi
git describe --always --dirty >"$lane/COMMIT"
tar -C "$(dirname "$lane")" -c "$(basename "$lane")" |
    xz -T0 --block-size=128MiB --lzma2=preset=3,dict=128MiB >"$lane.tar.xz"

bytes=$(stat -c %s "$lane.tar.xz")
echo "== $lane.tar.xz: $((bytes >> 10)) KiB, commit $(cat "$lane/COMMIT")"
if ((bytes > limit_mib << 20)); then
    echo "the archive is larger than $limit_mib MiB" >&2
    exit 1
fi
