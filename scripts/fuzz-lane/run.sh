#!/usr/bin/env bash
# Fuzzes on a machine without Rust: run.sh SECONDS [OUT [JOBS [TARGET...]]]
#
# Spreads JOBS processes (one for each core by default) over the targets, and runs them for SECONDS. Then
# merges and minimises the corpora. OUT (out by default) holds the inputs that failed, the inputs that were
# slow only once, the corpora as one archive, and logs. A process whose input failed starts again. The last
# lines give, for each target, the executions, the seconds of processor time, the covered edges, and the
# inputs that failed. Ends with an error if an input failed, or if a target executed none.
# scripts/fuzz-lane/build.sh makes the folder of this script.
#
# WORK is a folder that keeps the inputs found: a later run with the same folder goes on from them. With
# MERGE=0, the run ends without the merge, and OUT gets no corpora.
set -uo pipefail
cd "$(dirname "$0")"
seconds=${1:?run.sh SECONDS [OUT [JOBS [TARGET...]]]}
out=${2:-out}
jobs=${3:-$(nproc)}
targets=("${@:4}")
if ((${#targets[@]} == 0)); then mapfile -t targets < <(ls corpora); fi
most_failures=20
rm -rf "$out/logs"
mkdir -p "$out/failed" "$out/logs"
out=$(cd "$out" && pwd)
if [[ -n ${WORK:-} ]]; then
    mkdir -p "$WORK"
    work=$(cd "$WORK" && pwd) || exit 2
    rm -rf "$work/merged"
elif [[ ${MERGE:-1} == 0 ]]; then
    echo "MERGE=0 needs WORK, where the inputs stay" >&2
    exit 2
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
deadline=$((SECONDS + seconds))
# SQLite defines two arrays of one name, which is no mistake.
export ASAN_OPTIONS=detect_odr_violation=0
TIMEFORMAT='%U %S'

# A log could otherwise grow by the errors of each input.
flags_of() {
    echo "-rss_limit_mb=2048 -malloc_limit_mb=512 -timeout=20 -max_len=65536"
    if [[ $1 == watch ]]; then echo "-close_fd_mask=2"; fi
}

# fuzz TARGET JOB: runs one process after another until the deadline.
fuzz() {
    local target=$1 log=$out/logs/$1.$2 attempt left
    for ((attempt = 0; attempt < most_failures; attempt++)); do
        left=$((deadline - SECONDS))
        if ((left <= 0)); then break; fi
        # shellcheck disable=SC2046
        { time MILLPOND_FUZZ=$target ./fuzz $(flags_of "$target") -max_total_time="$left" \
            -print_final_stats=1 -artifact_prefix="$out/failed/$target-" "$work/$target" "corpora/$target" \
            >"$log.$attempt" 2>&1 </dev/null; } 2>>"$log.times"
    done
}

# merge TARGET: keeps the smallest inputs that cover as much.
merge() {
    mkdir -p "$work/merged/$1"
    # shellcheck disable=SC2046
    MILLPOND_FUZZ=$1 timeout 150 ./fuzz $(flags_of "$1") -merge=1 "$work/merged/$1" "$work/$1" "corpora/$1" \
        >"$out/logs/$1.merge" 2>&1 </dev/null
}

for target in "${targets[@]}"; do mkdir -p "$work/$target" "corpora/$target"; done
python_jobs=0
if [[ -e tests/fuzz/programs.py ]]; then
    if python3 -c 'import numpy, pytest' 2>/dev/null; then
        python_jobs=$(((jobs + 15) / 16))
    else
        echo "no programs in Python: they need python3 with NumPy and pytest" >&2
    fi
fi
if ((python_jobs > 0)); then
    PYTHONPATH=$PWD/site python3 tests/fuzz/programs.py "$seconds" "$python_jobs" >"$out/logs/python" 2>&1 &
fi
count=$((jobs - python_jobs > ${#targets[@]} ? jobs - python_jobs : ${#targets[@]}))
for ((job = 0; job < count; job++)); do fuzz "${targets[job % ${#targets[@]}]}" "$job" & done
wait
kept=$work
if [[ ${MERGE:-1} != 0 ]]; then
    kept=$work/merged
    for target in "${targets[@]}"; do
        while (($(jobs -rp | wc -l) >= jobs)); do wait -n; done
        { merge "$target" || echo "the merge of $target was not whole" >&2; } &
    done
    wait
    tar -C "$kept" -c . | xz -6 >"$out/corpora.tar.xz"
fi

# On a busy machine, an input may only have waited. So each input that took too long runs again, alone.
mkdir -p "$out/slow"
for input in "$out"/failed/*-{timeout,slow-unit}-*; do
    if [[ ! -e $input ]]; then continue; fi
    target=${input##*/} target=${target%%-*}
    # shellcheck disable=SC2046
    if MILLPOND_FUZZ=$target ./fuzz $(flags_of "$target") "$input" >>"$out/logs/slow" 2>&1 </dev/null; then
        mv "$input" "$out/slow/"
    fi
done

echo "== $(cat COMMIT): $count processes for $seconds s each"
printf '%-10s %12s %10s %8s %8s %8s\n' target executions seconds edges inputs failed
failed=0
for target in "${targets[@]}"; do
    executions=$(cat "$out/logs/$target."*.[0-9]* |
        awk '/stat::number_of_executed_units/ { sum += $2 } END { print sum + 0 }')
    used=$(cat "$out/logs/$target."*.times | awk '{ sum += $1 + $2 } END { printf "%.0f", sum }')
    edges=$(cat "$out/logs/$target.merge" 2>/dev/null | grep -aoE '[0-9]+ new coverage edges' | tail -n 1)
    inputs=$(find "$kept/$target" -type f | wc -l)
    wrong=$(find "$out/failed" -name "$target-*" | wc -l)
    failed=$((failed + wrong + (executions == 0)))
    printf '%-10s %12s %10s %8s %8s %8s\n' "$target" "$executions" "$used" "${edges%% *}" "$inputs" "$wrong"
done
if ((python_jobs > 0)); then
    tail -n 5 "$out/logs/python"
    grep -q ' 0 mistakes' "$out/logs/python" || failed=$((failed + 1))
fi
exit $((failed > 0))
