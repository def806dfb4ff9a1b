#!/usr/bin/env bash
# Compares the public API of each published library with its listing in docs/public-api/.
#
#   scripts/public-api.sh           shows the differences; fails if there are any
#   scripts/public-api.sh --write   renews the listings
#
# A listing has the items with default features, without implementations that a derive or the compiler writes.
# Needs cargo-public-api, which .ci/full installs, and a nightly toolchain that it supports.
set -euo pipefail
cd "$(dirname "$0")/.."
listings=docs/public-api

# The library of capi is for C: its header lists it.
mapfile -t crates < <(grep -L '^publish = false' Cargo.toml ./*/Cargo.toml | grep -v '^./capi/' |
    xargs sed -n '/^\[package\]/,/^\[/s/^name = "\(.*\)"/\1/p')

if [[ ${1:-} == --write ]]; then
    mkdir -p "$listings"
    rm -f "$listings"/*.txt
    for crate in "${crates[@]}"; do
        cargo public-api -p "$crate" -sss >"$listings/$crate.txt"
    done
    exit
fi

found=$(mktemp -d)
trap 'rm -r "$found"' EXIT
for crate in "${crates[@]}"; do
    cargo public-api -p "$crate" -sss >"$found/$crate.txt"
done
if ! diff --unified=0 --recursive "$listings" "$found"; then
    echo "the public API differs from $listings: if that is intended, run scripts/public-api.sh --write" >&2
    exit 1
fi
