#!/usr/bin/env bash
# Fuzzes each target for some seconds: tests/fuzz/run.sh [SECONDS [TARGET...]]
# Needs cargo-fuzz and a nightly toolchain; MILLPOND_NIGHTLY names one (default: `nightly`). To install both:
#   rustup toolchain install nightly; cargo install --locked cargo-fuzz
# scripts/fuzz-lane runs the targets on many cores. tests/fuzz/programs.py runs programs in Python.
set -euo pipefail
cd "$(dirname "$0")"
toolchain=${MILLPOND_NIGHTLY:-nightly}
seconds=${1:-60}
targets=("${@:2}")
./corpora.sh unpack
if [[ ${#targets[@]} -eq 0 ]]; then mapfile -t targets < <(./corpora.sh targets); fi
for target in "${targets[@]}"; do
    mkdir -p "corpus/$target" "artifacts/$target"
    # The limit covers twice the memory that an import may take, and the sanitizer's own memory.
    MILLPOND_FUZZ=$target cargo "+$toolchain" fuzz run --fuzz-dir . fuzz "corpus/$target" -- \
        -artifact_prefix="artifacts/$target/" \
        -max_total_time="$seconds" -rss_limit_mb=1024 -malloc_limit_mb=256 -timeout=20 -max_len=1048576
done
