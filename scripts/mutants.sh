#!/usr/bin/env bash
# Changes the pool's source in one place at a time, and checks whether a test fails.
#
#   scripts/mutants.sh [--seed TEXT] [--count N] [--shard K/N] [--out DIR] [FILE...]
#
# Draws --count mutants (150) from the files (globs of cargo-mutants; by default the pool's folders below
# resources/src). The same --seed (the first eight digits of the commit) draws the same mutants on every
# machine. --shard 0/4 runs one quarter of them, so several machines or evenings can share the work. A stopped
# run continues: mutants that --out (target/mutants) lists as caught do not run again. Each mutant takes a
# build and the pool's tests, a minute or more. Needs cargo-mutants (cargo install cargo-mutants --locked).
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

# Prints each mutant of this shard as a regular expression that matches only its name.
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

# Fewer operations than usual suffice: a test finds a mutant soon or never.
export MILLPOND_ORDER_OPS=${MILLPOND_ORDER_OPS:-1000000}
mkdir -p "$out"
echo "== seed $seed, shard $shard: ${#names[@]} mutants"
exec cargo mutants "${only[@]}" --no-shuffle --iterate --baseline skip --timeout 240 --output "$out" \
    "${names[@]}" --test-package millpond-resources --test-package millpond-tests -- --locked
