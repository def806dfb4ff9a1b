#!/usr/bin/env bash
# Builds libmillpond and installs it: library, headers, a CMake package and a pkg-config file.
#
#   capi/install.sh PREFIX [LIBRARY]
#
# Installs to lib and include below PREFIX. With LIBRARY it installs that file; without, it builds the
# library in release mode first.
set -euo pipefail
(($# >= 1 && $# <= 2)) || { sed -n '4p' "$0" | sed 's/^# *//' >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
prefix=$(cd "$1" && pwd)
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$here/../Cargo.toml")
library=${2:-}
if [[ -z $library ]]; then
    cargo build --release --locked --manifest-path "$here/Cargo.toml"
    library=${CARGO_TARGET_DIR:-$here/../target}/release/libmillpond_c.so
fi
[[ -f $library ]] || { echo "$library does not exist" >&2; exit 1; }

install -d "$prefix"/{lib/pkgconfig,lib/cmake/millpond,include/millpond}
install -m 755 "$library" "$prefix/lib/libmillpond.so.$version"
ln -sf "libmillpond.so.$version" "$prefix/lib/libmillpond.so.0"
ln -sf libmillpond.so.0 "$prefix/lib/libmillpond.so"
install -m 644 "$here"/include/millpond.h "$prefix/include/"
install -m 644 "$here"/include/millpond/*.hpp "$prefix/include/millpond/"
for file in millpond.pc millpondConfig.cmake millpondConfigVersion.cmake; do
    case $file in *.pc) to=$prefix/lib/pkgconfig ;; *) to=$prefix/lib/cmake/millpond ;; esac
    sed -e "s|@PREFIX@|$prefix|g" -e "s|@VERSION@|$version|g" "$here/install/$file.in" >"$to/$file"
done
echo "installed libmillpond $version below $prefix"
