#!/usr/bin/env bash
# Tests the package over the simulated device.
set -euo pipefail
cd "$(dirname "$0")"
source ../toolkit.sh
toolkit simulate
cargo clippy --quiet --locked --all-targets -- -D warnings
cargo test --quiet --locked
LD_LIBRARY_PATH=$CUDA_LIB_DIR cargo run --quiet --locked --example foreign
