#!/bin/sh
# Fill the measured figures of guides from filed runs, or check that they stand there as filed.
#
#     results/figures.sh [--write] [TREE]
#
# In a guide, between `<!-- figures: FILE -->` and `<!-- figures end -->`, a table row whose second column is
# the name of a row in FILE (what `kttune bench --suite cpu` or `gpu` printed), in backquotes, gets what FILE says in its
# third to fifth column: the figure, what the process runs had, and the bar. A line `Bars kept: ..` gets how many of
# FILE's were. A guide may show several runs. Without --write nothing is changed; a difference is shown, and exit code 1 says so.
# SPDX-License-Identifier: Apache-2.0
set -eu
write=no
if [ "${1:-}" = --write ]; then
    write=yes
    shift
fi
tree=${1:-$(dirname "$0")/..}

# The filed rows as lines `name|figure|process runs|bar`, and the count of bars.
rows_of() {
    awk '
    function percent(x) { return sprintf("%.0f", 100 * x) }
    / skipped: / { printf "%s|skipped|-|-\n", $1; next }
    $2 ~ /^[0-9.]+$/ && NF > 6 {
        unit = ""
        for (i = 3; i <= NF && $i !~ /^\(/; i++) unit = unit (unit == "" ? "" : " ") $i
        low = substr($i, 2)
        runs = $(i + 1) == ".." ? percent(low) " to " percent($(i + 2) + 0) " %" : "-"
        bar = "none"
        if (match($0, / bar (<= )?[0-9.]+ (ok|MISSED)/)) {
            text = substr($0, RSTART + 5, RLENGTH - 5)
            n = split(text, word, " ")
            bar = (n == 3 ? "at most " : "") percent(word[n - 1]) " %, " (word[n] == "ok" ? "kept" : "**missed**")
            bars++
            kept += word[n] == "ok"
        }
        if (unit ~ /^[A-Za-z]+\/s$/) # a rate, not a part of one
            printf "%s|%.0f %s|%.0f to %.0f|%s\n", $1, $2, unit, low, $(i + 2), bar
        else
            printf "%s|%s %% %s|%s|%s\n", $1, percent($2), unit, runs, bar
    }
    END { printf "Bars kept:|%d of %d.\n", kept, bars }' "$1"
}

fill() { # FILE of rows, README, filed run: only its parts
    awk -v rows="$1" -v run="$3" '
    BEGIN {
        while ((getline line < rows) > 0) {
            n = split(line, f, "|")
            if (n == 2) count = f[2]
            else { figure[f[1]] = f[2]; runs[f[1]] = f[3]; bar[f[1]] = f[4] }
        }
    }
    /^<!-- figures: / { inside = $3 == run }
    /^<!-- figures end -->/ { inside = 0 }
    inside && /^Bars kept:/ { print "Bars kept: " count; next }
    inside && /^\|/ && split($0, c, "|") > 3 && match(c[3], /`[^`]+`/) {
        name = substr(c[3], RSTART + 1, RLENGTH - 2)
        if (!(name in figure)) { print "no row " name " in " run > "/dev/stderr"; exit 2 }
        printf "|%s|%s| %s | %s | %s |\n", c[2], c[3], figure[name], runs[name], bar[name]
        next
    }
    { print }' "$2"
}

code=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for readme in "$tree"/README.md "$tree"/*/README.md "$tree"/*/FIGURES.md "$tree"/kernels/*/README.md; do
    [ -e "$readme" ] || continue
    files=$(sed -n 's/^<!-- figures: \(.*\) -->$/\1/p' "$readme" | sort -u)
    [ -n "$files" ] || continue
    cp "$readme" "$work/filled"
    for file in $files; do
        if [ ! -r "$tree/$file" ]; then
            echo "$readme: expected figures of filed runs that are there, found: $file" >&2
            exit 2
        fi
        rows_of "$tree/$file" >"$work/rows"
        fill "$work/rows" "$work/filled" "$file" >"$work/next"
        mv "$work/next" "$work/filled"
    done
    if [ "$write" = yes ]; then
        cmp -s "$work/filled" "$readme" || cat "$work/filled" >"$readme"
    elif ! diff -u "$readme" "$work/filled"; then
        echo "$readme: figures are not those filed in" $files "; fill them: results/figures.sh --write" >&2
        code=1
    fi
done
exit $code
