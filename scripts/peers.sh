#!/usr/bin/env bash
# Compares the model of PyTorch's allocator with the allocator itself, after each call: random calls, and the
# logs and snapshots of this repository. Needs what scripts/judge.sh needs, which fetches PyTorch.
#
# MILLPOND_PEER_CALLS is the number of random calls for each of the settings and devices (20,000 without it).
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}

scripts/judge.sh build
cargo build --quiet --locked -p millpond-shim
cargo build --quiet --locked -p millpond-snapshot --example beside_pytorch

# The packages in one folder, as pip installs them.
site=$target/judge/site
mkdir -p "$site"
ln -sfn ../torch/torch "$site/torch"
ln -sfn ../cuda-runtime/nvidia "$site/nvidia"
"$target/debug/examples/beside_pytorch" --folder "$site" --calls "${MILLPOND_PEER_CALLS:-20_000}" \
    examples/logs/*.csv.gz snapshot/tests/snapshots/*.pickle.gz snapshot/tests/snapshots/programs/*.pickle.gz
