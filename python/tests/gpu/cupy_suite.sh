#!/usr/bin/env bash
# Runs CuPy's own tests with CuPy's pool and with millpond.cupy, and prints what each does alone.
#
#   cupy_suite.sh TESTS [-n WORKERS] [--keep FOLDER]
#
# TESTS is the folder `tests` of CuPy's source distribution, of the version that is installed. Needs a GPU,
# pytest, pytest-xdist, and millpond on PYTHONPATH. Taken are the tests of arrays (core, creation, indexing),
# of DLPack, of the array interface, of streams and of memory. Under millpond each test starts with
# millpond's allocator set, whatever the test before left, and a run in which it served nothing fails.
set -uo pipefail
tests=${1:?usage: cupy_suite.sh TESTS [-n WORKERS] [--keep FOLDER]}
shift
workers=8
keep=$(mktemp -d)
while (($#)); do
    case $1 in
        -n) workers=$2; shift 2 ;;
        --keep) keep=$2; shift 2 ;;
        *) echo "unknown argument: $1" >&2; exit 2 ;;
    esac
done
mkdir -p "$keep"
plugin=$(mktemp -d)
cat >"$plugin/millpond_under_cupy.py" <<'P'
import os

import pytest

import millpond.cupy


@pytest.fixture(autouse=True)
def millpond_allocates():
    import cupy

    if "in_use" not in _state:
        millpond.cupy.use()
        _state["in_use"] = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(_state["in_use"])
    yield
    cupy.cuda.set_allocator(_state["in_use"])


_state = {}


def pytest_sessionfinish(session):
    if "in_use" in _state:
        served = millpond.mr.get_current_device_resource().counts()["allocations"]
        with open(os.environ["SERVED"], "a") as file:
            file.write(f"{served}\n")
P
cat >"$plugin/pytest.ini" <<'P'
[pytest]
addopts = -p no:cacheprovider
markers =
    slow
    multi_gpu
    parallel_threads
    iterations
    thread_unsafe
P
export SERVED=$keep/served
rm -f "$SERVED"
cd "$tests" || exit 2
run() {
    local name=$1
    shift
    PYTHONPATH="$plugin${PYTHONPATH:+:$PYTHONPATH}" python3 -m pytest -q -c "$plugin/pytest.ini" --rootdir . \
        -n "$workers" --timeout 120 -m "not slow and not multi_gpu" --junitxml "$keep/$name.xml" "$@" \
        cupy_tests/core_tests cupy_tests/creation_tests cupy_tests/indexing_tests \
        cupy_tests/cuda_tests/test_stream.py cupy_tests/cuda_tests/test_memory.py \
        >"$keep/$name.log" 2>&1
    echo "$name: $(tail -n 1 "$keep/$name.log")"
}
run cupy
run millpond -p millpond_under_cupy
python3 - "$keep" <<'P'
import sys
import xml.etree.ElementTree as xml


def failed(name):
    cases = xml.parse(f"{sys.argv[1]}/{name}.xml").iter("testcase")
    return {
        f"{case.get('classname')}.{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }


own, ours = failed("cupy"), failed("millpond")
with open(f"{sys.argv[1]}/served") as file:
    served = sum(map(int, file))
print(f"millpond served {served} allocations")
print(f"failed under both {len(own & ours)}, under CuPy's pool alone {len(own - ours)}, "
      f"under millpond alone {len(ours - own)}")
for name in sorted(ours - own):
    print("  under millpond alone:", name)
sys.exit(bool(ours - own) or not served)
P
