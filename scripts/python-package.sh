#!/usr/bin/env bash
# Installs the Python package as its users do, and tests it: with `pip install .` in a clean clone, and by its
# name from a local package index, as the wheel that is built from the sdist. Each has a separate environment.
# Needs Rust, a C++ compiler, Python 3.11 and a package index. An argument names a checkout to build in,
# instead of the clean clone.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
checkout=${1:-$work/checkout}
if [[ $# == 0 ]]; then
    git clone --quiet . "$checkout"
fi

# Runs the examples of README.md and docs/book/src/python.md, and the replay binary, outside of the sources.
try() {
    (
        cd "$work"
        MILLPOND_STACK=cuda+pool "$1/bin/python" - <<'PYTHON'
import millpond

assert millpond.mr.get_current_device_resource().text == "cuda+pool"
millpond.mr.set_current_device_resource(millpond.stack("cuda+pool:initial=1GiB+statistics"))
buffer = millpond.DeviceBuffer(size=1000, stream=millpond.Stream())
assert "1000B in use in 1 blocks" in str(millpond.memory_report())
assert bytes(millpond.to_device(b"abc")) == b"abc"
# Subpackages travel with the package.
import millpond.compat.rmm

millpond.compat.rmm.install()
from rmm.pylibrmm.device_buffer import DeviceBuffer

assert bytes(DeviceBuffer.to_device(b"abc")) == b"abc"
# The library that is installed has the names of its functions.
tracked = millpond.stack("cuda+tracking:stacks=on")
buffer = millpond.DeviceBuffer(size=1000, mr=tracked)
assert "DeviceMemoryResource" in str(millpond.memory_report(tracked)), millpond.memory_report(tracked)
PYTHON
        "$1/bin/python" -m millpond.replay --version
        "$1/bin/python" -m millpond.replay --format csv "$log" >/dev/null
        # A program in C++ over the installed headers and library.
        local include library
        include=$("$1/bin/python" -c 'import millpond; print(millpond.get_include())')
        library=$("$1/bin/python" -c 'import millpond; print(millpond.library_path())')
        ln --symbolic --force "$library" libmillpond.so.0
        c++ -std=c++17 -I"$include" "$example" libmillpond.so.0 -o stack
        LD_LIBRARY_PATH=. ./stack sim:1GiB | grep --quiet 'the last byte is 7'
    )
}

log=$PWD/examples/logs/rmm_cupy_4streams.csv.gz
example=$PWD/capi/examples/stack.cpp
python=${MILLPOND_PYTHON:-python3}
"$python" -m venv "$work/installed"
(cd "$checkout" && "$work/installed/bin/pip" install --quiet .)
try "$work/installed"

(cd "$checkout" && scripts/wheels.sh "$work/index/millpond")
# A package index in files (PEP 503): a folder for each package, with a page of links.
for file in "$work"/index/millpond/millpond-*; do
    echo "<a href=\"$(basename "$file")\">$(basename "$file")</a>"
done >"$work/index/millpond/index.html"
wheel=$(echo "$work"/index/millpond/millpond-*-cp311-abi3-manylinux_2_28_*.whl)
"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet auditwheel
"$work/tools/bin/auditwheel" show "$wheel" | tr '\n' ' ' |
    grep --only-matching 'platform tag: "manylinux_[^"]*"'
"$python" -m venv "$work/wheel"
from_index=(--no-cache-dir --only-binary millpond --index-url "file://$work/index")
"$work/wheel/bin/pip" install --quiet "${from_index[@]}" millpond
try "$work/wheel"
echo "$(basename "$wheel") works"
