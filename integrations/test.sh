#!/usr/bin/env bash
# Builds and tests the packages in this folder, which no other build includes. Needs Rust, a C++ compiler,
# Python with pip, and a package index, but no GPU.
#
#   integrations/test.sh             all packages
#   integrations/test.sh cuda-core   these packages
#
# A package with its own test.sh is tested by that script.
set -euo pipefail
cd "$(dirname "$0")"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/../target} CARGO_TERM_COLOR=never

packages=("$@")
if [[ $# == 0 ]]; then
    for folder in */; do
        packages+=("${folder%/}")
    done
fi
for package in "${packages[@]}"; do
    echo "-- $package"
    (
        cd "$package"
        cargo fmt --check
        if [[ -x test.sh ]]; then
            exec ./test.sh
        fi
        cargo clippy --quiet --locked --all-targets -- -D warnings
        cargo test --quiet --locked
    )
done
