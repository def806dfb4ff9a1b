#!/usr/bin/env bash
# Runs the models: loom runs their threads in every possible order.
#
#   scripts/models.sh [NAME]
#
# With NAME, runs only the models whose names contain it. LOOM_MAX_PREEMPTIONS is the most switches in one
# order at which a thread could have gone on.
set -euo pipefail
cd "$(dirname "$0")/.."

for package in adaptors plan resources; do
    # Only the package itself has the cfg. All other crates are those that `cargo test` builds.
    program=$(cargo rustc --package "millpond-$package" --lib --profile test --locked --message-format json \
        -- --cfg millpond_loom | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
    (cd "$package" && "$program" "models${1:+::$1}")
done
