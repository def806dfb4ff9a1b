# Source this file. `own_folder DIR` makes an empty folder for a script that fills it, and empties an old one.
# Refuses a folder with files that was not made by this function: a name such as MANIFEST proves nothing.
# shellcheck shell=bash

own_folder() {
    local mark=$1/.made-by-millpond
    if [[ -e $1 && ! -e $mark && (! -d $1 || -n $(ls -A "$1")) ]]; then
        echo "$1 is not a folder that this script made; name another one, or delete it" >&2
        exit 2
    fi
    rm -rf "$1"
    mkdir -p "$1"
    touch "$mark"
}
