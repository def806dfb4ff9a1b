#!/usr/bin/env bash
# Gathers everything that a run on a GPU needs in one folder. The building machine needs no GPU.
#
#   scripts/gpu-lane/build.sh [DIR] [--logs DIR]
#
# DIR (gpu-lane by default, which git ignores) then holds the test binaries with GPU tests, the library that
# makes CUDA's calls fail, the replay binary, the logs, libmillpond and the example of Thrust, the files that
# Numba's own tests need (from pip and the network), run.sh and a MANIFEST. Copy DIR to the GPU machine and
# start run.sh there. That machine needs an NVIDIA driver, xz, and a glibc at least as new as the one
# named in MANIFEST, but no Rust.
set -euo pipefail

usage() {
    echo "usage: scripts/gpu-lane/build.sh [DIR] [--logs DIR]" >&2
    exit 2
}

repository=$(cd "$(dirname "$0")/../.." && pwd)
target_dir=gpu-lane
logs=$repository/examples/logs
while (($#)); do
    case $1 in
        --logs) [[ $# -ge 2 ]] || usage; logs=$(cd "$2" && pwd); shift 2 ;;
        -*) usage ;;
        *) target_dir=$1; shift ;;
    esac
done
[[ "$target_dir" = /* ]] || target_dir=$PWD/$target_dir
limit_mib=64

source "$repository/scripts/own-folder.sh"
own_folder "$target_dir"
mkdir "$target_dir/tests" "$target_dir/logs"
cd "$repository"

# Reads cargo's JSON; prints the package, target and path of each executable.
executables() {
    local line pattern='"package_id":"[^"]*[#/]([^"#@/]+)[#@][^"]*"'
    pattern+='.*"crate_types":[^]]*],"name":"([^"]+)"'
    pattern+='.*"overflow_checks":[a-z]+,"test":'$1'}'
    pattern+='.*"executable":"([^"]+)"'
    while IFS= read -r line; do
        [[ $line =~ $pattern ]] && echo "${BASH_REMATCH[@]:1:3}"
    done
    return 0
}

echo "== building the tests"
cargo test --workspace --tests --no-run --locked --message-format=json | executables true >"$target_dir/built"
while read -r package name path; do
    # Every ignored test needs a GPU; tests/tidy.rs checks that.
    ignored=$("$path" --list --ignored 2>/dev/null || true)
    if grep -q ': test$' <<<"$ignored"; then
        strip -o "$target_dir/tests/$package.$name" "$path"
    fi
done <"$target_dir/built"

echo "== building the replay binary"
cargo build --release --locked -p millpond-replay --bin millpond-replay --message-format=json |
    executables false >"$target_dir/built"
while read -r _package name path; do
    strip -o "$target_dir/$name" "$path"
done <"$target_dir/built"
rm "$target_dir/built"
[[ -x $target_dir/millpond-replay ]] || { echo "cargo named no replay binary" >&2; exit 1; }
"$target_dir/tests/millpond-tests.it" --list --ignored | grep '^soak::' >/dev/null || {
    echo "millpond-tests.it has no soak" >&2
    exit 1
}

echo "== building the program with errors, for the sanitizer"
cargo build --locked -p millpond-tests --example memory_checker --message-format=json |
    executables false >"$target_dir/built"
while read -r _package name path; do
    strip -o "$target_dir/$name" "$path"
done <"$target_dir/built"
rm "$target_dir/built"
[[ -x $target_dir/memory_checker ]] || { echo "cargo named no program memory_checker" >&2; exit 1; }

echo "== building the library that makes CUDA's calls fail"
mkdir "$target_dir/faulty"
sed -n '/^functions! {/,$p' driver/src/cuda/functions.rs >"$target_dir/functions.rs"
MILLPOND_FUNCTIONS=$target_dir/functions.rs "${RUSTC:-rustc}" --crate-type=cdylib --crate-name=faulty \
    --edition=2024 -C strip=symbols -o "$target_dir/faulty/libcuda.so.1" tests/faulty_libcuda/faulty.rs
rm "$target_dir/functions.rs"

echo "== building the plug-in for Numba"
cargo build --release --locked -p millpond-plugin --example millpond_numba --message-format=json |
    grep -oE '"[^"]*/libmillpond_numba\.so"' | tail -n 1 | tr -d '"' >"$target_dir/built"
mkdir -p "$target_dir/numba/site"
strip -o "$target_dir/numba/libmillpond_numba.so" "$(cat "$target_dir/built")"
rm "$target_dir/built"
cp plugin/examples/numba/{millpond_numba,cupy_numba,suite}.py "$target_dir/numba/"
# A machine with Numba and pytest may lack this package, which Numba's tests need.
python3 -m pip install --quiet --no-deps --target "$target_dir/numba/site" "filecheck==1.0.*" ||
    echo "note: cannot get filecheck; Numba's tests run only on a machine that has it" >&2

echo "== building libmillpond for Thrust"
cargo build --release --locked -p millpond-capi
capi/install.sh "$target_dir/thrust" "${CARGO_TARGET_DIR:-target}/release/libmillpond_c.so"
strip "$target_dir"/thrust/lib/libmillpond.so.*.*.*
cp capi/examples/thrust.cu "$target_dir/thrust/"

echo "== building the examples of the integrations"
mkdir "$target_dir/integrations"
for example in cuda-core/foreign openvm/openvm allocator-api2/map_and_vector; do
    (
        cd "integrations/${example%/*}"
        source ../toolkit.sh
        toolkit simulate >&2
        CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$repository/target} cargo build --locked \
            --example "${example#*/}" --message-format=json
    ) | executables false >"$target_dir/built"
    while read -r package _name path; do
        strip -o "$target_dir/integrations/$package" "$path"
    done <"$target_dir/built"
    rm "$target_dir/built"
done
[[ $(find "$target_dir/integrations" -type f | wc -l) == 3 ]] || { echo "an example is missing" >&2; exit 1; }

cp scripts/gpu-lane/run.sh "$target_dir/run.sh"
chmod +x "$target_dir/run.sh"
find "$logs" -maxdepth 1 -type f \( -name '*.csv' -o -name '*.csv.gz' -o -name '*.csv.zst' \) \
    -exec cp {} "$target_dir/logs/" \;

cd "$target_dir"
glibc=$(grep -aoh 'GLIBC_2\.[0-9]*' tests/* millpond-replay | sort -uV | tail -n 1)
# run.sh unpacks the programs.
xz -T0 tests/* integrations/* memory_checker millpond-replay
{
    echo "commit $(git -C "$repository" describe --always --dirty 2>/dev/null || echo unknown)"
    echo "built $(date -u +%Y-%m-%dT%H:%M:%SZ) by $(rustc --version)"
    echo "needs $glibc"
    find . -type f ! -name MANIFEST ! -name .made-by-millpond -printf '%P\n' | sort | xargs sha256sum
} >MANIFEST
cat MANIFEST

bytes=$(du -sb . | cut -f1)
echo "== $target_dir: $((bytes / 1024 / 1024)) MiB"
if ((bytes > limit_mib * 1024 * 1024)); then
    echo "the folder is larger than $limit_mib MiB; use --logs with a folder of fewer logs" >&2
    exit 1
fi
