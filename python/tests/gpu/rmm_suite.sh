#!/usr/bin/env bash
# Runs RMM's own tests over millpond.compat.rmm.
#
#   rmm_suite.sh TESTS [ARGUMENT OF PYTEST]...
#
# TESTS is the folder `python/rmm/rmm/tests` of RMM's sources. Needs a GPU, pytest, numpy, numba-cuda,
# cuda-core, cuda-bindings, and millpond on PYTHONPATH; CuPy and PyTorch are served where they are installed.
# RMM may be installed or not: `rmm` is millpond.compat.rmm before a test is read.
set -euo pipefail
tests=$(realpath "${1:?usage: rmm_suite.sh TESTS [ARGUMENT OF PYTEST]...}")
shift
plugin=$(mktemp -d)
trap 'rm -rf "$plugin"' EXIT
cat >"$plugin/millpond_as_rmm.py" <<'P'
import millpond.compat.rmm

millpond.compat.rmm.install()


def pytest_report_header():
    return f"rmm is {millpond.compat.rmm.__file__} on {millpond.Device().name}"
P
cd "$tests"
PYTHONPATH="$plugin${PYTHONPATH:+:$PYTHONPATH}" python3 -m pytest -q -p no:cacheprovider -p millpond_as_rmm \
    --rootdir . --import-mode prepend "$@" .
