#!/usr/bin/env bash
# Changes the pool's source in one place after the other and asks whether a test fails: how much no test sees.
#
#   scripts/mutants.sh [--seed TEXT] [--count N] [--shard K/N] [--out DIR] [FILE...]
#
# Draws --count mutants (150) of the files (the folders of the pool below resources/src; globs of
# cargo-mutants) with --seed (the first eight digits of the commit), the same ones on every machine.
# --shard 0/4 runs the first quarter of them, so that several machines, or several evenings, share the
# work. A run that was stopped goes on where it was: mutants that --out (target/mutants) names as caught
# are not run again. Each takes a build and the tests of the pool, a minute or more. Needs cargo-mutants
# (cargo install cargo-mutants --locked).
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '4p' "$0" | sed 's/^# *//' >&2; exit 2; }
seed=$(git rev-parse --short=8 HEAD)
count=150
shard=0/1
out=target/mutants
files=()
while (($#)); do
    case $1 in
        --seed | --count | --shard | --out) (($# > 1)) || usage; declare "${1#--}=$2"; shift 2 ;;
        -*) usage ;;
        *) files+=("$1"); shift ;;
    esac
done
[[ $count =~ ^[0-9]+$ && $shard =~ ^[0-9]+/[1-9][0-9]*$ ]] || usage
((${#files[@]})) || files=(resources/src/{pool,store,heap,block_map,stream_order}/'**/*.rs')
cargo mutants --version >/dev/null 2>&1 || {
    echo "cargo-mutants is missing: cargo install cargo-mutants --locked" >&2
    exit 2
}

only=(--package millpond-resources "${files[@]/#/--file=}" --exclude '**/models.rs' --exclude '**/tests.rs')

# One line for each mutant of this shard: its name, as a regular expression that is that name and no other.
chosen() {
    cargo mutants --list "${only[@]}" |
        while IFS= read -r name; do
            printf '%s\t%s\n' "$(sha256sum <<<"$seed $name")" "$name"
        done | sort | cut -f 2 | sed -n "1,${count}p" |
        awk -v k="${shard%/*}" -v n="${shard#*/}" '(NR - 1) % n == k' |
        sed -e 's/[][\.*^$+?(){}|]/\\&/g' -e 's/.*/--re=^&$/'
}
mapfile -t names < <(chosen)
((${#names[@]})) || { echo "no mutants of ${files[*]}" >&2; exit 2; }

# Fewer operations than usual: a mutant is found soon or never.
export MILLPOND_ORDER_OPS=${MILLPOND_ORDER_OPS:-1000000}
mkdir -p "$out"
echo "== seed $seed, shard $shard: ${#names[@]} mutants"
exec cargo mutants "${only[@]}" --no-shuffle --iterate --baseline skip --timeout 240 --output "$out" \
    "${names[@]}" --test-package millpond-resources --test-package millpond -- --locked
