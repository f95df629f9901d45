#!/bin/sh
# results/models.sh notices a table that is not the program's and missing markers, and --write mends the first. With a
# stand-in for the program. SPDX-License-Identifier: Apache-2.0
set -eu
tree=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/kt" <<'END'
#!/bin/sh
[ "$*" = "models --markdown" ] || exit 9
printf '| %s |\n' a b
END
chmod +x "$work/kt"
readme() {
    printf '%s\n' before "$@" after >"$work/README.md"
}
expect() { # exit code, what it is about
    code=0
    sh "$tree/results/models.sh" "$work/kt" "$work" >"$work/said" 2>&1 || code=$?
    [ "$code" = "$1" ] || { echo "$2: exit code $code, expected $1"; cat "$work/said"; exit 1; }
}
readme '<!-- models -->' '| a |' '| b |' '<!-- models end -->'
expect 0 'the program'\''s table'
readme '<!-- models -->' '| a |' '<!-- models end -->'
expect 1 'a missing row'
sh "$tree/results/models.sh" --write "$work/kt" "$work"
expect 0 'after --write'
[ "$(tail -n 1 "$work/README.md")" = after ] || { echo 'what follows the table is lost'; exit 1; }
readme '<!-- models -->' '| a |' '| b |'
expect 2 'no end'
readme none
expect 2 'no table'
