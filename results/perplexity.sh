#!/bin/sh
# What each weight format costs the bundled model: measure it, and keep the table of a guide as it was filed.
#
#     results/perplexity.sh --measure KT FOLDER     write FOLDER/perplexity.txt, and its line of FOLDER/SHA256SUMS
#     results/perplexity.sh [--write] [TREE]        fill the table of results/FIGURES.md from the filed run, or check it
#
# KT is the built program, FOLDER one of results/. A line of the file is: format, bytes of the converted folder's
# shards, perplexity and mean negative log-likelihood of datasets/models/tiny-moe/sample.txt in windows of 512 tokens.
# "budget N" is `kt convert --budget N`, with the importance of the same text's inputs in the lines that say so. Without
# --write nothing is changed; a difference is shown, and exit code 1 says so.
# SPDX-License-Identifier: Apache-2.0
set -eu
formats='bf16 f16 int8 w8g128 fp8 wf8c wmxfp8 int4 w4g64 w4g128 w4zg32 w4zg64 w4zg128'
budgets='6500K 6968K 7256K 7448K 8M 10M' # three of them what w4g128, int4 and w4zg32 take
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

measure() { # KT FOLDER
    tree=$(dirname "$0")/..
    model=$tree/datasets/models/tiny-moe
    out=$2/perplexity.txt
    "$1" importance "$model" --text "$model/sample.txt" --out "$work/importance" --table '' >/dev/null
    {
        echo "# tiny-moe, sample.txt, windows of 512 tokens; $("$1" version | head -n 1)"
        echo "# format; bytes of shards; perplexity; nll"
        for f in $formats; do line "$1" "$f" --to "$f"; done
        for b in $budgets; do
            line "$1" "budget $b" --budget "$b"
            line "$1" "budget $b, importance" --budget "$b" --importance "$work/importance"
        done
    } >"$work/out"
    cat "$work/out" >"$out"
    (cd "$2" && {
        grep -v '  perplexity.txt$' SHA256SUMS 2>/dev/null || true
        sha256sum perplexity.txt
    } | sort -k 2 >"$work/sums" && cat "$work/sums" >SHA256SUMS)
}

line() { # KT NAME CONVERT-OPTIONS
    kt=$1 name=$2
    shift 2
    rm -rf "$work/model"
    bytes=$("$kt" convert "$model" -o "$work/model" "$@" --json | sed "s/^{[^[]*\"bytes\":\\([0-9]*\\).*/\\1/")
    "$kt" bench "$work/model" -p 0 -n 0 --table '' --perplexity "$model/sample.txt" |
        awk -v name="$name" -v bytes="$bytes" '/^perplexity / { printf "%s; %s; %s; %s\n", name, bytes, $2, $4 }'
}

# The filed lines as rows of a table; the loss is over the BF16 line.
table_of() {
    awk -F '; ' '
    BEGIN {
        print "| weights | MB of files | perplexity | over BF16 |"
        print "|---|---|---|---|"
    }
    /^#/ { next }
    $1 == "bf16" { least = $3 }
    { printf "| %s | %.2f | %.4f | %+.2f %% |\n", $1, $2 / 1e6, $3, 100 * ($3 / least - 1) }' "$1"
}

fill() { # FILED GUIDE
    table_of "$1" >"$work/table"
    awk -v table="$work/table" '
    /^<!-- perplexity: / {
        print
        while ((getline row < table) > 0) print row
        inside = 1
    }
    /^<!-- perplexity end -->$/ { inside = 0 }
    !inside { print }' "$2"
}

if [ "${1:-}" = --measure ]; then
    measure "$2" "$3"
    exit 0
fi
write=no
if [ "${1:-}" = --write ]; then
    write=yes
    shift
fi
tree=${1:-$(dirname "$0")/..}
guide=$tree/results/FIGURES.md
filed=$tree/$(sed -n 's/^<!-- perplexity: \(.*\) -->$/\1/p' "$guide")
if [ ! -f "$filed" ] || [ "$(grep -cx -e '<!-- perplexity end -->' "$guide")" != 1 ]; then
    echo "$guide: expected <!-- perplexity: FILE --> of a filed run, and its end" >&2
    exit 2
fi
fill "$filed" "$guide" >"$work/filled"
if [ "$write" = yes ]; then
    cmp -s "$work/filled" "$guide" || cat "$work/filled" >"$guide"
elif ! diff -u "$guide" "$work/filled"; then
    echo "$guide: not what $filed says; fill it: results/perplexity.sh --write" >&2
    exit 1
fi
