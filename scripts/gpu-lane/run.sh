#!/usr/bin/env bash
# Runs on a GPU what build.sh gathered beside this file.
#
#   ./run.sh [tests|soak|sanitizer|replay|plan|numba|all]...
#
#   tests      every test that needs a GPU, but for the soak
#   soak       tags written and checked by kernels, 10^6 operations on each stack, and its canary
#   sanitizer  compute-sanitizer's memcheck over a short soak
#   replay     the logs through the standard stacks, on the GPU and, to compare, on the simulated device
#   plan       the logs through the pool with and without a plan of each, 20 passes, and beside kernels
#   numba      those of numba-cuda's own tests that have to do with memory, over millpond's plug-in
#
# A step that fails or hangs does not stop the others; the exit code is 0 if none did. Output goes to the
# folder $OUT (gpu-out by default): gpu.log, summary.tsv and the replays' tables and JSON. Environment:
# STEP_SECONDS is the longest that one command may take (240), REPEAT the passes of a replay on the GPU (3),
# SANITIZER_OPS the operations under the sanitizer (20000), BUSY_FIRST those of each log beside kernels
# (16000), and MILLPOND_SOAK_* what the soak reads.
set -uo pipefail

out=${OUT:-gpu-out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")" || exit 2

log=$out/gpu.log
summary=$out/summary.tsv
one=$(mktemp)
trap 'rm -f "$one"' EXIT
if compgen -G "tests/*.gz" >/dev/null; then gunzip --force tests/*.gz || exit 2; fi
limit=${STEP_SECONDS:-240}
failures=0
: >"$log"
printf 'name\tpassed\tfailed\tseconds\n' >"$summary"

say() { echo "$*" | tee -a "$log"; }

# Adds up the numbers before a word in the results that Rust's test harness prints.
count() {
    grep -a '^test result:' "$one" | grep -oE "[0-9]+ $1" | awk '{ sum += $1 } END { print sum + 0 }'
}

# record NAME EXIT_CODE SECONDS: one row of the summary, from the output in $one.
record() {
    local passed failed
    passed=$(count passed)
    failed=$(count failed)
    # A command that is no test passes as a whole; a test binary that ran no test has not passed.
    if (($2 == 0)) && ! grep -aq '^test result:' "$one"; then passed=1; fi
    if (($2 != 0 || passed == 0)) && ((failed == 0)); then failed=1; fi
    printf '%s\t%s\t%s\t%s\n' "$1" "$passed" "$failed" "$3" | tee -a "$summary"
    if ((failed != 0)); then
        failures=$((failures + 1))
        echo "   exit code $2$([[ $2 == 124 || $2 == 137 ]] && echo ": longer than $limit s"); the end of it:"
        tail -n 25 "$one" | sed 's/^/   | /'
    fi
}

# attempt NAME COMMAND...: runs it under the time limit and records it.
attempt() {
    local name=$1 start=$SECONDS code
    shift
    echo "== $name: $*" >>"$log"
    timeout -k 10 "$limit" "$@" >"$one" 2>&1 </dev/null
    code=$?
    cat "$one" >>"$log"
    record "$name" "$code" "$((SECONDS - start))"
}

# The tests of a binary that need a GPU, one name a line.
names_in() { "$1" --list --ignored 2>/dev/null | sed -n 's/: test$//p'; }

# Each file of a crate's tests is a row and has the time limit for itself.
tests() {
    local binary blas module row names
    # cuBLAS of Python's packages, for the matrix product of one test; without any, the log says so.
    blas=$(python3 -c 'import glob, nvidia
found = [lib for path in nvidia.__path__ for lib in glob.glob(path + "/*/lib/libcublas.so.*")]
print(*{lib.rsplit("/", 1)[0] for lib in found}, sep=":")' 2>/dev/null)
    [[ -z $blas ]] || local -x LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$blas
    for binary in tests/*; do
        for module in $(names_in "$binary" | sed 's/::.*//' | sort -u); do
            row=$(basename "$binary" .it).$module
            [[ $row == millpond.soak ]] && continue
            mapfile -t names < <(names_in "$binary" | grep -E "^$module(::|\$)")
            attempt "$row" "$binary" --ignored --test-threads=1 --exact "${names[@]}"
        done
    done
}

soak() {
    attempt soak tests/millpond.it --ignored --test-threads=1 --nocapture soak::
    grep -aoE '([A-Z][A-Za-z()]*: )?soak of .*' "$one" | sed 's/^/   /'
}

sanitizer() {
    local tool
    for tool in "$(command -v compute-sanitizer)" /usr/local/cuda/bin/compute-sanitizer; do
        [[ -x $tool ]] && break
    done
    attempt memcheck env MILLPOND_SOAK_OPS="${SANITIZER_OPS:-20000}" \
        "$tool" --tool memcheck --error-exitcode 99 \
        tests/millpond.it --ignored --test-threads=1 --nocapture no_block_is_shared
    grep -a 'ERROR SUMMARY' "$one" | sed 's/^/   /'
}

# replay_on DEVICE NAME REPEAT: one JSON object for each log, from that many passes, and tables for people,
# from one pass.
replay_on() {
    local path start code
    for path in logs/*; do
        start=$SECONDS
        echo "== replay $path on $1" >>"$log"
        timeout -k 10 "$limit" ./millpond-replay --device "$1" --format json --repeat "$3" "$path" \
            >>"$out/replay-$2.json" 2>"$one" </dev/null
        code=$?
        # 1 is a log that was replayed, with a stack that could not serve it all.
        if ((code < 2)); then
            timeout -k 10 "$limit" ./millpond-replay --device "$1" --format table --repeat 1 "$path" \
                >>"$out/replay-$2.txt" 2>>"$one" </dev/null || code=$?
        fi
        cat "$one" >>"$log"
        record "replay $(basename "$path") on $1" "$code" "$((SECONDS - start))"
    done
}

replay() {
    rm -f "$out"/replay-{cuda,sim}.{json,txt}
    replay_on cuda:0 cuda "${REPEAT:-3}"
    replay_on sim:h200 sim 1
}

# As long as everything, so only when asked for.
numba() {
    attempt numba python3 numba/suite.py --out "$out/numba"
    sed 's/^/   /' "$one"
}

# The tables of each log go to plan.txt.
plan() {
    local path name stacks=(--stack cuda+pool --stack "cuda+pool+plan:file=$out/log.plan")
    for path in logs/*; do
        name=$(basename "$path" | cut -d . -f 1)
        rm -f "$out/log.plan"
        attempt "plan of $name" ./millpond-replay plan "$path" -o "$out/log.plan"
        attempt "plan $name" ./millpond-replay --device cuda:0 -n 20 "${stacks[@]}" "$path"
        cat "$one" >>"$out/plan.txt"
        attempt "plan $name, busy" ./millpond-replay busy --device cuda:0 -n 6 \
            --first "${BUSY_FIRST:-16000}" --host ahead,sync --kernels 10..100 "${stacks[@]}" "$path"
        cat "$one" >>"$out/plan.txt"
    done
}

say "$({ nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader; } 2>&1)"
say "$(head -n 3 MANIFEST)"
for step in "${@:-all}"; do
    case $step in
        tests | soak | sanitizer | replay | plan | numba) "$step" ;;
        all) tests; soak; sanitizer; replay ;;
        *) echo "no step '$step'; there are tests, soak, sanitizer, replay, plan, numba, all" >&2; exit 2 ;;
    esac
done

echo
awk -F '\t' '{ printf "%-52s %7s %7s %8s\n", $1, $2, $3, $4 }' "$summary" | tee -a "$log"
say "$failures of the commands failed, $SECONDS s; details are in gpu.log"
exit $((failures > 0))
