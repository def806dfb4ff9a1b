#!/usr/bin/env bash
# Rehearses the publication of all crates, or publishes them on crates.io.
#
#   scripts/publish.sh             packages each crate and builds it from its archive; uploads nothing
#   scripts/publish.sh --execute   uploads the crates; needs CARGO_REGISTRY_TOKEN or `cargo login`
#
# Cargo finds the order of the crates. In a rehearsal it builds them over the archives of one another, so no
# crate has to be on the registry. Further arguments go to Cargo, for example --no-verify.
#
# crates.io accepts a few new crates at once and then one in ten minutes. `--execute` waits for that. If it
# stops for another reason, run it again: it leaves out the crates that have this version on crates.io.
set -euo pipefail
cd "$(dirname "$0")/.."
publish=(cargo publish --workspace --locked)

if [[ ${1:-} != --execute ]]; then
    exec "${publish[@]}" --dry-run "$@"
fi
shift

if [[ -n $(git status --porcelain) ]]; then
    echo "the working tree has changes: commit them, and publish from a clean checkout" >&2
    exit 1
fi
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
mapfile -t crates < <(grep -L '^publish = false' Cargo.toml ./*/Cargo.toml |
    xargs sed -n '/^\[package\]/,/^\[/s/^name = "\(.*\)"/\1/p')

# The crates that crates.io has; asked outside of the workspace, where Cargo would answer from the checkout.
published() {
    local crate
    for crate in "${crates[@]}"; do
        if (cd / && cargo info --quiet "$crate@$version") >/dev/null 2>&1; then
            echo "$crate"
        fi
    done
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
while true; do
    mapfile -t there < <(published)
    if ((${#there[@]} == ${#crates[@]})); then
        echo "crates.io has version $version of all ${#crates[@]} crates"
        exit 0
    fi
    if "${publish[@]}" "${there[@]/#/--exclude=}" "$@" 2>&1 | tee "$log"; then
        exit 0
    fi
    grep --quiet "429 Too Many Requests" "$log" || exit 1
    echo "crates.io accepts the next new crate in ten minutes"
    sleep 600
done
