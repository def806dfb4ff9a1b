#!/usr/bin/env bash
# Runs seeded programs over every stack on the simulated device, one process on each core.
#
#   scripts/order.sh OPERATIONS [FIRST_SEED]
#
# OPERATIONS is the least number of operations of all processes together. Each process makes rounds over all
# stacks. A round has ROUND operations (10,000,000), and a first seed of its own: FIRST_SEED (0), and 100,000
# more for each other round. SECONDS_AT_MOST ends the processes earlier; then the round under way does not
# count. Prints the seeds, the totals, and each program that broke a rule, with the command that repeats it.
# The processes' output goes to the folder $OUT (order-out by default). CORES is the number of processes, on
# the first cores. BINARY is the program to run; without it, cargo builds it, optimised and with all
# assertions.
set -euo pipefail
[[ $# -ge 1 && $# -le 2 ]] || { sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }
operations=${1//[_,]/} first=${2:-0}
first=${first//[_,]/}
out=${OUT:-order-out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
rm -f "$out"/[0-9]*.txt
BINARY=${BINARY:+$(realpath "$BINARY")}
cd "$(dirname "$0")/.."

if [[ -z $BINARY ]]; then
    BINARY=$(cargo test --profile checked -p millpond-tests --test it --no-run --locked \
        --message-format=json | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
fi
cores=${CORES:-$(nproc)} round=${ROUND:-10000000} limit=${SECONDS_AT_MOST:-1000000000}
# The texts of some stacks name files by paths from this folder.
[[ ! -d tests ]] || cd tests
rounds=$(((operations + round * cores - 1) / (round * cores)))
last=$((first + 100000 * (cores * rounds - 1)))
echo "$cores processes, $rounds rounds each, seeds $first to $last in steps of 100000"

# The rounds of one process.
process() {
    local number seed left code
    for ((number = 0; number < rounds; number++)); do
        left=$((limit - SECONDS)) code=0
        ((left > 0)) || return 0
        seed=$((first + 100000 * (number * cores + $1)))
        MILLPOND_ORDER_OPS=$round MILLPOND_ORDER_FROM=$seed timeout "$left" taskset -c "$1" "$BINARY" \
            --exact order::programs_on_every_stack_keep_the_order --nocapture || code=$?
        # The test may have ended in the middle of a line.
        case $code in
            0) ;;
            124) return 0 ;;
            *) printf '\nBROKEN: the round with the first seed %s\n' "$seed" ;;
        esac
    done
}

for ((core = 0; core < cores; core++)); do
    process "$core" >"$out/$core.txt" 2>&1 </dev/null &
done
wait
totals=$(sed -n 's/^all: \([0-9]*\) programs, \([0-9]*\) operations.*/\1 \2/p' "$out"/*.txt |
    awk '{ programs += $1; operations += $2 } END { printf "%d %.0f %.0f", NR, programs, operations }')
read -r whole programs done <<<"$totals"
failed=$(cat "$out"/*.txt | grep -c '^BROKEN: ' || true)
echo "$whole whole rounds, $programs programs, $done operations, $failed rounds failed, $SECONDS s"
if ((failed > 0)); then
    grep -ahvE '^(`.* in [0-9.]* s|all: .*|)$' "$out"/*.txt | head -n 200
    exit 1
fi
# Without a whole round, nothing was tested. Fewer operations than asked for are right only at the limit.
((whole > 0 && (done >= operations || SECONDS >= limit)))
