#!/usr/bin/env bash
# Runs the models: loom runs their threads in every order with a limited number of preemptions.
#
#   scripts/models.sh [--no-run] [NAME]
#
# With --no-run, the script only builds them. With NAME, it runs only the models whose names contain it.
# LOOM_MAX_PREEMPTIONS is the most switches in one order at which a thread could have gone on.
#
# Only the tests of these packages have the cfg `millpond_loom`, which cargo cannot set for several packages
# at once. So this script is also the wrapper through which cargo calls rustc, and then gets rustc's path
# first. One build of all packages compiles their dependencies once.
set -euo pipefail
packages=(adaptors plan resources)

if [[ -n ${MILLPOND_MODELS_BUILD:-} ]]; then
    for package in "${packages[@]}"; do
        [[ " $* " != *" --crate-name millpond_$package "*" --test "* ]] || set -- "$@" --cfg millpond_loom
    done
    exec "$@"
fi

run=yes
if [[ ${1:-} == --no-run ]]; then
    run=no
    shift
fi

cd "$(dirname "$0")/.."
programs=$(MILLPOND_MODELS_BUILD=1 RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/models.sh cargo test \
    "${packages[@]/#/--package=millpond-}" --lib --no-run --locked --message-format json |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
for package in "${packages[@]}"; do
    program=$(grep "/millpond_$package-[0-9a-f]*$" <<<"$programs")
    [[ $("$program" --list models) == *": test"* ]] || { echo "$package has no models" >&2; exit 1; }
    [[ $run == no ]] || (cd "$package" && "$program" "models${1:+::$1}")
done
