#!/bin/sh
# Fill the tables of models in README.md from what the program says of itself, or check that they stand there.
#
#     results/models.sh [--write] KT [TREE]
#
# KT is the built program. What `kt models --markdown` prints belongs between `<!-- models -->` and
# `<!-- models end -->`. Without --write nothing is changed; a difference is shown, and exit code 1 says so.
# SPDX-License-Identifier: Apache-2.0
set -eu
write=no
if [ "${1:-}" = --write ]; then
    write=yes
    shift
fi
kt=$1
readme=${2:-$(dirname "$0")/..}/README.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$kt" models --markdown >"$work/tables"
for mark in '<!-- models -->' '<!-- models end -->'; do
    if [ "$(grep -cx -e "$mark" "$readme")" != 1 ]; then
        echo "$readme: expected one line $mark" >&2
        exit 2
    fi
done
awk -v tables="$work/tables" '
    /^<!-- models -->$/ {
        print
        while ((getline line < tables) > 0) print line
        inside = 1
    }
    /^<!-- models end -->$/ { inside = 0 }
    !inside { print }' "$readme" >"$work/filled"
if [ "$write" = yes ]; then
    cmp -s "$work/filled" "$readme" || cat "$work/filled" >"$readme"
elif ! diff -u "$readme" "$work/filled"; then
    echo "$readme: not what $kt models says; fill it: results/models.sh --write $kt" >&2
    exit 1
fi
