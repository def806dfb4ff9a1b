#!/usr/bin/env bash
# Runs the programs that build.sh put next to this script, on a GPU. Writes one file per section to $OUT
# (default: results). SECTIONS="single batched" runs only these sections. SEED is the seed of the aliasing
# tests.
set -uo pipefail
cd "$(dirname "$0")"
out=${OUT:-results}
mkdir -p "$out"
export CUDA_MODULE_LOADING=EAGER
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | tee "$out/machine"
all="alias info single batched stalls threads reserve others touch filled extra"
failed=0
for section in ${SECTIONS:-$all}; do
    case $section in
        alias) command=(./alias "${SEED:-20261121}") ;;
        info | reserve | others | touch | extra) command=(./memory "$section") ;;
        *) command=(./costs "$section") ;;
    esac
    timeout -k 5 120 "${command[@]}" >"$out/$section" 2>&1 || failed=1
    echo "== $section: $(wc -l <"$out/$section") lines"
    grep -a -E 'FAIL|^time' "$out/$section"
done
exit $failed
