#!/usr/bin/env bash
# Tests the package over the simulated device: with openvm-cuda-common as published, and with upstream.patch.
set -euo pipefail
cd "$(dirname "$0")"
source ../toolkit.sh
toolkit simulate
cargo clippy --quiet --locked --all-targets -- -D warnings
cargo test --quiet --locked
cargo run --quiet --locked --example openvm

published=$(cargo metadata --locked --format-version 1 | python3 -c '
import json, pathlib, sys
for package in json.load(sys.stdin)["packages"]:
    if package["name"] == "openvm-cuda-common":
        print(pathlib.Path(package["manifest_path"]).parent)')
patched=$CUDA_LIB_DIR/../openvm-cuda-common
rm -rf "$patched"
cp -r "$published" "$patched"
patch --quiet --strip=3 --directory="$patched" <upstream.patch
# Cargo writes the other source of the crate into the lock file.
lock=$(mktemp)
cp Cargo.lock "$lock"
trap 'cp "$lock" Cargo.lock; rm -f "$lock"' EXIT
cargo test --quiet --features patched --test patched \
    --config "patch.crates-io.openvm-cuda-common.path='$patched'"
