#!/usr/bin/env bash
# Proves the rule of stream order for any number of streams, blocks, threads and epochs, and compares the
# proof's formulas with the model in Rust: docs/design/stream-order.md. Needs Python 3.11 and a package index.
#
#     scripts/proof.sh [--each] [--full] [STEPS]
#
# STEPS is the file that a run of the tests wrote because MILLPOND_MODEL_STEPS named it. Without it, this
# script runs the test that writes it. scripts/proof/prove.py explains the options.
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
        echo "not checked: the proof of stream order, because z3 and cvc5 could not be installed"
        exit
    fi
fi

steps=${1:-$target/model-steps}
if [[ $# == 0 ]]; then
    MILLPOND_MODEL_STEPS=$steps \
        cargo test --quiet --locked -p millpond-resources --lib stream_order::checker::dump
fi
"$python" -B scripts/proof/compare.py "$steps"
"$python" -B scripts/proof/prove.py "${options[@]}"
