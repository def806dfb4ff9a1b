#!/usr/bin/env bash
# Proves the rules of stream order for any number of streams, blocks, threads and epochs, and compares the
# proof's formulas with the models in Rust: docs/design/stream-order.md. Needs Python 3.11 and a package
# index.
#
#     scripts/proof.sh [--each] [--full] [STEPS]
#
# A run of the tests writes STEPS.pool and STEPS.clients if MILLPOND_MODEL_STEPS names STEPS. Without this
# argument, the script runs the tests that write them. scripts/proof/prove.py explains the options.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}

options=()
while [[ ${1:-} == --* ]]; do
    options+=("$1")
    shift
done

python=$target/proof/bin/python
if ! "$python" -c "import cvc5, z3" 2>/dev/null; then
    if ! { "${MILLPOND_PYTHON:-python3}" -m venv "$target/proof" &&
        "$python" -m pip install --quiet z3-solver==5.4.1.0 cvc5==1.4.2; }; then
        echo "not checked: the proof of stream order, because z3 and cvc5 could not be installed" >&2
        # A full run is for the proof.
        [[ " ${options[*]} " != *" --full "* ]]
        exit
    fi
fi

steps=${1:-$target/model-steps}
if [[ $# == 0 ]]; then
    MILLPOND_MODEL_STEPS=$steps \
        cargo test --quiet --locked -p millpond-resources --lib all_actions_are_possible
fi
for model in pool clients; do
    "$python" -B scripts/proof/compare.py "$model" "$steps.$model"
done
if [[ " ${options[*]} " == *" --full "* ]]; then
    "$python" -B scripts/proof/traces.py | cmp - resources/src/capture_scopes/traces.txt
fi
"$python" -B scripts/proof/prove.py "${options[@]}"
