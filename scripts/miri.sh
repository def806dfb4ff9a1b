#!/usr/bin/env bash
# Runs each unit test of millpond-resources and millpond-plan separately under Miri, and prints each result.
#
#   scripts/miri.sh [SECONDS] [NAME]
#
# Stops a test that takes more processor time than SECONDS (240 by default). With NAME, runs only the tests
# whose names contain it. Needs a nightly toolchain with Miri.
set -euo pipefail
cd "$(dirname "$0")/.."

limit=${1:-240}
name=${2:-}
export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance"

miri() {
    cargo +nightly miri test --locked --quiet --package millpond-resources --package millpond-plan \
        --lib -- "$@" 2>&1
}

tests=$(miri --list | sed -n 's/: test$//p' | grep -F -- "$name")
for test in $tests; do
    said=$(ulimit -t "$limit" && miri --exact "$test") || true
    case $said in
        *"1 passed"*) result="passed" ;;
        *SIGXCPU* | *SIGKILL*) result="ran past $limit s" ;;
        *) result="FAILED" ;;
    esac
    echo "$result: $test"
    if [[ $result == FAILED ]]; then
        echo "$said"
    fi
done
