#!/usr/bin/env bash
# Runs on a GPU the files that python.sh gathered next to this script.
#
#   ./run.sh [gpu|tests|sanitizer|threads|training|predictions|costs|ranks]...
#
#   gpu          the tests of python/tests/gpu: PyTorch, CuPy, Numba, cuda.core (the default)
#   tests        the package's own tests on the GPU, with the bridge to RMM compiled there
#   sanitizer    compute-sanitizer's memcheck over tests of buffers, stream order and errors
#   threads      16 threads that allocate and drop at random for a minute
#   training     python/examples/training.py with each allocator, 200 steps (STEPS)
#   predictions  runs programs that fail at a capacity, with the line that `tune` prints for it
#   costs        the cost of an allocation, through millpond and through the libraries' own allocators
#   ranks        on two GPUs: a job of two ranks (DDP, FSDP, NCCL) with each allocator, 300 steps (STEPS), and
#                which devices each library touches; under six minutes
#
# A step that fails does not stop the others. Output goes to the folder $OUT (gpu-out by default). WORKERS is
# the number of pytest-xdist processes that run the package's own tests; the default is one, without xdist.
set -uo pipefail
out=${OUT:-gpu-out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")" || exit 2
here=$PWD
export PYTHONPATH=$here/site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS=0
export LD_LIBRARY_PATH=$here/site/librmm/lib64:$here/site/rapids_logger/lib64:${LD_LIBRARY_PATH:-}
export MILLPOND_RMM_BRIDGE=$out/bridge
pytest=(python3 -m pytest -p no:cacheprovider -q -rs --tb=short)
failures=0

# attempt NAME COMMAND...: runs the command and keeps its output.
attempt() {
    local name=$1 start=$SECONDS code
    shift
    "$@" >"$out/$name.txt" 2>&1 </dev/null
    code=$?
    echo "== $name: exit code $code, $((SECONDS - start)) s"
    tail -n 15 "$out/$name.txt" | sed 's/^/   /'
    ((code == 0)) || failures=$((failures + 1))
}

gpu() { attempt gpu "${pytest[@]}" python/tests/gpu; }

tests() {
    attempt bridge python3 -m millpond.rmm_bridge build
    attempt tests "${pytest[@]}" ${WORKERS:+--numprocesses "$WORKERS"} python/tests --ignore python/tests/gpu
}

sanitizer() {
    local tool file files=(python/tests/gpu/test_order_gpu.py)
    for tool in "$(command -v compute-sanitizer)" /usr/local/cuda/bin/compute-sanitizer; do
        [[ -x $tool ]] && break
    done
    for file in device_buffer out_of_memory; do
        files+=("python/tests/test_$file.py")
    done
    local -x MILLPOND_ORDER_CALLS="${SANITIZER_CALLS:-5000}"
    # The tests make calls that the driver refuses; such calls are not memory errors.
    attempt sanitizer timeout -k 10 480 "$tool" --tool memcheck --report-api-errors no --error-exitcode 99 \
        --target-processes all "${pytest[@]}" ${WORKERS:+--numprocesses "$WORKERS"} "${files[@]}"
    grep -a 'ERROR SUMMARY' "$out/sanitizer.txt" | sort | uniq -c | sed 's/^/   /'
}

threads() {
    local -x MILLPOND_THREAD_SECONDS=60
    attempt threads "${pytest[@]}" python/tests/test_processes.py -k test_threads
}

training() {
    attempt training python3 python/examples/training.py --compare --steps "${STEPS:-200}"
}

predictions() { (cd snapshot/tests/snapshots && attempt predictions python3 confirm.py); }

costs() { attempt costs python3 python/benches/frameworks.py --json "$out/costs.json"; }

ranks() {
    local job=(python3 python/tests/gpu/ddp_job.py --steps "${STEPS:-300}")
    attempt ranks timeout 420 "${job[@]}" --json "$out/ranks.jsonl"
}

cat COMMIT
for step in "${@:-gpu}"; do
    case $step in
        gpu | tests | sanitizer | threads | training | predictions | costs | ranks) "$step" ;;
        *) echo "unknown step '$step'; the top of this script lists the steps" >&2; exit 2 ;;
    esac
done
echo "$failures of the commands failed, after $SECONDS s"
exit $((failures > 0))
