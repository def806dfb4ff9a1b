#!/usr/bin/env bash
# Runs on a GPU the files that build.sh gathered next to this script.
#
#   ./run.sh [STEP]...      every step of `all` by default
#
#   tests      every test that needs a GPU, except the soak and the faults
#   soak       the soak, in which kernels write and check tags: 10^6 operations on each stack; and its canary
#   long_soak  processes with soaks on every GPU, each soak with a seed of its own, until the time is over
#   faults     every public operation that calls the driver, with each of its calls failing in five ways
#   sanitizer  compute-sanitizer's memcheck over a short soak, and over errors in blocks, which it must find
#   checked    the tests under compute-sanitizer's memcheck, without those that it cannot run
#   tools      the soak under each of compute-sanitizer's four tools, at the same time
#   replay     the logs through the standard stacks, on the GPU and, to compare, on the simulated device
#   plan       the logs through the pool with and without a plan: 20 passes, then with kernels running
#   numba      numba-cuda's own tests of memory, over millpond's plug-in and, with CuPy, over CuPy's pool
#   thrust     the example of Thrust, with each kind of default stream; needs nvcc
#   integrations  the examples of the packages for cuda-core, OpenVM and allocator-api2
#
# A step that fails or hangs does not stop the others; the exit code is 0 if every step passed. Output goes to
# the folder $OUT (gpu-out by default): gpu.log, summary.tsv and the replays' tables and JSON. Environment:
# STEP_SECONDS limits one command (240), REPEAT is the passes of a replay on the GPU (3), SANITIZER_OPS the
# operations under the sanitizer (20000), TOOLS the tools (all four), TOOLS_OPS the operations under each of
# them (1000000), RACECHECK_PROCESSES the processes that share racecheck's operations (4), and BUSY_FIRST the
# operations of each log with kernels (16000). The soaks read MILLPOND_SOAK_*. After SOAK_SECONDS (300), no
# long soak starts; SOAK_PROCESSES (4) is their number on each GPU.
set -uo pipefail

out=${OUT:-gpu-out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")" || exit 2

log=$out/gpu.log
summary=$out/summary.tsv
one=$(mktemp)
trap 'rm -f "$one"' EXIT
find . -name '*.xz' -exec unxz --force {} + || exit 2
limit=${STEP_SECONDS:-240}
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
# The tests make calls that the driver refuses; such calls are not memory errors.
memcheck=("$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 99)
under=()
failures=0
: >"$log"
printf 'name\tpassed\tfailed\tseconds\n' >"$summary"

say() { echo "$*" | tee -a "$log"; }

# Adds up the numbers before a word in the results of Rust's test harness.
count() {
    grep -a '^test result:' "$one" | grep -oE "[0-9]+ $1" | awk '{ sum += $1 } END { print sum + 0 }'
}

# record NAME EXIT_CODE SECONDS: adds a row to the summary, from the output in $one.
record() {
    local passed failed
    passed=$(count passed)
    failed=$(count failed)
    # A command that is not a test counts as one test. A test binary that ran no test fails.
    if (($2 == 0)) && ! grep -aq '^test result:' "$one"; then passed=1; fi
    if (($2 != 0 || passed == 0)) && ((failed == 0)); then failed=1; fi
    printf '%s\t%s\t%s\t%s\n' "$1" "$passed" "$failed" "$3" | tee -a "$summary"
    if ((failed != 0)); then
        failures=$((failures + 1))
        echo "   exit code $2$([[ $2 == 124 || $2 == 137 ]] && echo ": longer than $limit s"); last lines:"
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

# Prints the names of a binary's GPU tests, one a line.
names_in() { "$1" --list --ignored 2>/dev/null | sed -n 's/: test$//p'; }

# Each file of a crate's tests is one row, with its own time limit.
tests() {
    local binary blas module row names
    # One test multiplies matrices with cuBLAS from Python's packages; without cuBLAS, the log says so.
    blas=$(python3 -c 'import glob, nvidia
found = [lib for path in nvidia.__path__ for lib in glob.glob(path + "/*/lib/libcublas.so.*")]
print(*{lib.rsplit("/", 1)[0] for lib in found}, sep=":")' 2>/dev/null)
    [[ -z $blas ]] || local -x LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$blas
    for binary in tests/*; do
        for module in $(names_in "$binary" | sed 's/::.*//' | sort -u); do
            row=$(basename "$binary" .it).$module
            [[ $row == millpond-tests.soak || $row == millpond-tests.fault_operations ]] && continue
            mapfile -t names < <(names_in "$binary" | grep -E "^$module(::|\$)" | grep -vE "${left_out:-^$}")
            ((${#names[@]})) || continue
            attempt "$row${under:+, checked}" ${under:+"${under[@]}"} \
                "$binary" --ignored --test-threads=1 --exact "${names[@]}"
        done
    done
}

soak() {
    attempt soak tests/millpond-tests.it --ignored --test-threads=1 --nocapture soak::
    grep -aoE '([A-Z][A-Za-z()]*: )?soak of .*' "$one" | sed 's/^/   /'
}

# Each soak has 10^6 operations on each stack, so that the time is met. A seed names a soak; its threads take
# the four seeds from there.
long_soak() {
    local folder gpus gpu process ends=$((SECONDS + ${SOAK_SECONDS:-300})) start=$SECONDS code=0
    local count=${SOAK_PROCESSES:-4}
    folder=$(mktemp -d)
    gpus=$(nvidia-smi -L | wc -l)
    for ((gpu = 0; gpu < gpus; gpu++)); do
        for ((process = 0; process < count; process++)); do
            (
                seed=$((${MILLPOND_SOAK_SEED:-1} + 1000000 * (gpu * count + process)))
                for (( ; SECONDS < ends; seed += 4)); do
                    CUDA_VISIBLE_DEVICES=$gpu MILLPOND_SOAK_SEED=$seed timeout -k 10 "$limit" \
                        tests/millpond-tests.it --ignored --nocapture no_block_is_shared ||
                        printf '\nBROKEN: seed %s\n' "$seed"
                done
            ) >"$folder/$gpu-$process" 2>&1 </dev/null &
        done
    done
    wait
    cat "$folder"/* >"$one"
    rm -r "$folder"
    cat "$one" >>"$log"
    grep -aq 'soak of ' "$one" && ! grep -aq '^BROKEN: ' "$one" || code=1
    record long_soak "$code" "$((SECONDS - start))"
    grep -a '^BROKEN: ' "$one"
    grep -aoE 'soak of .* mismatches' "$one" |
        sed 's/^soak of \(.*\): \([0-9]*\) operations, .*, \([0-9]*\) mismatches/\1\t\2\t\3/' |
        awk -F '\t' '{ soaks[$1]++; mismatches += $3; all += $2 }
            END {
                for (stack in soaks) print "   " stack ": " soaks[stack] " soaks"
                printf "   all: %.0f operations, %d mismatches\n", all, mismatches
            }'
}

# Each operation runs in a process of its own, so that a crash ends only that one. All took more than 180 s.
faults() {
    local limit=$((2 * limit))
    attempt faults env MILLPOND_FAULTY_CUDA="$PWD/faulty" MILLPOND_FAULTS_SECONDS=$((limit - 60)) \
        tests/millpond-tests.it --ignored --nocapture --exact \
        fault_operations::every_driver_call_of_a_gpu_may_fail
    grep -aE '^[0-9]+ operations, |^left out: |^  FAILED ' "$one" | sed 's/^/   /'
}

# Takes longer than all other steps together, so `all` omits it. docs/lab/nvtx.md says why the tool cannot run
# some tests.
checked() {
    local under=("${memcheck[@]}") left_out="^decay_gpu::|^reset_gpu::|^same_peak::|^advice::"
    left_out+="|every_slow_path_leaves|a_vector_orders_no_kernel"
    tests
}

# The tools share the GPUs of the machine. racecheck is the slowest: several processes share its operations,
# each with seeds of its own.
tools() {
    local stacks=3 gpus gpu=0 tool job jobs code start=$SECONDS parts=${RACECHECK_PROCESSES:-4}
    gpus=$(nvidia-smi -L | wc -l)
    local -A running=()
    for tool in ${TOOLS:-memcheck synccheck initcheck racecheck}; do
        jobs=1
        if [[ $tool == racecheck ]]; then jobs=$parts; fi
        for ((job = 0; job < jobs; job++)); do
            CUDA_VISIBLE_DEVICES=$gpu MILLPOND_SOAK_SEED=$((${MILLPOND_SOAK_SEED:-1} + 4 * job)) \
                MILLPOND_SOAK_OPS=$(((${TOOLS_OPS:-1000000} + stacks * jobs - 1) / stacks / jobs)) \
                timeout -k 10 "$limit" "$sanitizer" --tool "$tool" --error-exitcode 99 \
                tests/millpond-tests.it --ignored --test-threads=1 --nocapture no_block_is_shared \
                >"$out/$tool.$job.log" 2>&1 </dev/null &
            running[$tool.$job]=$!
            gpu=$(((gpu + 1) % gpus))
        done
    done
    if ((${#running[@]} == 0)); then record tools 1 0; fi
    for job in "${!running[@]}"; do
        wait "${running[$job]}"
        code=$?
        cp "$out/$job.log" "$one"
        record "soak under $job" "$code" "$((SECONDS - start))"
        grep -aE 'ERROR SUMMARY|RACECHECK SUMMARY|^soak of' "$one" | sed 's/^/   /'
    done
}

sanitizer() {
    local stack mode found='"$@" 2>&1 | tee /dev/stderr | grep -ac "Invalid __global__ write"'
    attempt memcheck env MILLPOND_SOAK_OPS="${SANITIZER_OPS:-20000}" "${memcheck[@]}" \
        tests/millpond-tests.it --ignored --test-threads=1 --nocapture no_block_is_shared
    grep -a 'ERROR SUMMARY' "$one" | sed 's/^/   /'
    for stack in cuda+pool cuda+binning cuda+pool+binning managed+pool; do
        attempt "memcheck of $stack" "${memcheck[@]}" ./memory_checker clean "$stack"
        for mode in overflow beyond after-free after-free-busy; do
            # Passes if the tool finds the error.
            attempt "$mode in $stack" bash -c "$found" _ "${memcheck[@]}" ./memory_checker "$mode" "$stack"
        done
    done
}

# replay_on DEVICE NAME REPEAT: writes one JSON object per log, from REPEAT passes, and readable tables, from
# one pass.
replay_on() {
    local path start code
    for path in logs/*; do
        start=$SECONDS
        echo "== replay $path on $1" >>"$log"
        timeout -k 10 "$limit" ./millpond-replay --device "$1" --format json --repeat "$3" "$path" \
            >>"$out/replay-$2.json" 2>"$one" </dev/null
        code=$?
        # 1 means that the log was replayed, but a stack could not serve every request.
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

# Takes as long as all other steps together, so `all` omits it.
numba() {
    local manager
    for manager in millpond_numba cupy_numba; do
        [[ $manager == cupy_numba ]] && ! python3 -c 'import cupy' 2>/dev/null && continue
        attempt "numba, $manager" python3 numba/suite.py --manager "$manager" --out "$out/numba"
        sed 's/^/   /' "$one"
    done
}

# Links do not always survive a copy of the folder, so the library is named by its path.
thrust() {
    local kind nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc) library
    library=$(realpath thrust/lib/libmillpond.so.*.*.*)
    ln -sf "$(basename "$library")" thrust/lib/libmillpond.so.0
    for kind in legacy per-thread; do
        attempt "thrust, $kind: nvcc" "$nvcc" -std=c++17 -arch=native -Xlinker "-rpath=$PWD/thrust/lib" \
            --default-stream="$kind" -I thrust/include thrust/thrust.cu -o "$out/thrust-$kind" "$library"
        attempt "thrust, $kind" "$out/thrust-$kind"
        sed 's/^/   /' "$one"
    done
}

# The examples find CUDA's runtime library next to nvcc. OpenVM's was linked with the simulated device, where
# one library has the functions of driver and runtime. It names only the runtime, so the driver is preloaded.
integrations() {
    local example libraries=/usr/local/cuda/lib64
    for example in integrations/*; do
        attempt "example of $(basename "$example")" \
            env LD_PRELOAD=libcuda.so.1 LD_LIBRARY_PATH="$libraries:${LD_LIBRARY_PATH:-}" "$example"
        sed 's/^/   /' "$one"
    done
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
        tests | soak | long_soak | faults | sanitizer | checked | tools | replay) "$step" ;;
        plan | numba | thrust | integrations) "$step" ;;
        all) tests; integrations; soak; faults; sanitizer; replay; thrust ;;
        *) echo "unknown step '$step'; use one that the top of this script lists" >&2; exit 2 ;;
    esac
done

echo
awk -F '\t' '{ printf "%-52s %7s %7s %8s\n", $1, $2, $3, $4 }' "$summary" | tee -a "$log"
say "$failures of the commands failed, after $SECONDS s; gpu.log has the details"
exit $((failures > 0))
