#!/usr/bin/env bash
# Unpacks or keeps the corpora of the fuzz targets.
#
#   tests/fuzz/corpora.sh targets          prints the names of the targets
#   tests/fuzz/corpora.sh unpack           writes the first files and the kept files to tests/fuzz/corpus
#   tests/fuzz/corpora.sh keep ARCHIVE     keeps the corpora of an archive from scripts/fuzz-lane/run.sh
#
# The kept files are in tests/fuzz/corpora.tar.xz, which has at most 500 KiB: of each target the smallest
# files, at most 50 KB and 1 KB a file.
set -euo pipefail
cd "$(dirname "$0")"
kept=$PWD/corpora.tar.xz
case ${1:-} in
    targets) find src/targets -name '*.rs' ! -name mod.rs -printf '%f\n' | sed 's/\.rs$//' | sort ;;
    unpack)
        cargo run --quiet --locked --example seeds
        if [[ -e $kept ]]; then tar -C corpus -xJf "$kept"; fi
        ;;
    keep)
        work=$(mktemp -d)
        trap 'rm -rf "$work"' EXIT
        tar -C "$work" -xJf "$2"
        cd "$work"
        for target in *; do
            find "$target" -type f -size -1025c -printf '%s %p\n' | sort -n |
                awk '(sum += $1) <= 50000 { print $2 }'
        done | sort | tar --owner=0 --group=0 --mtime=@0 -cf - -T - | xz -9e >"$kept"
        du -b "$kept"
        ;;
    *) echo "usage: tests/fuzz/corpora.sh targets | unpack | keep ARCHIVE" >&2; exit 2 ;;
esac
