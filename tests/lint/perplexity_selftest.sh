#!/bin/sh
# results/perplexity.sh notices a figure that was changed by hand and a run that is not filed, and --write mends the
# first. SPDX-License-Identifier: Apache-2.0
set -eu
tree=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/results/box"
printf '%s\n' '# what' 'bf16; 2000000; 10.0; 2.3' 'int4; 600000; 10.5; 2.35' >"$work/results/box/perplexity.txt"
guide() {
    printf '%s\n' before "<!-- perplexity: $1 -->" '| weights | MB of files | perplexity | over BF16 |' '|---|---|---|---|' \
        '| bf16 | 2.00 | 10.0000 | +0.00 % |' "| int4 | 0.60 | $2 | +5.00 % |" '<!-- perplexity end -->' \
        behind >"$work/results/FIGURES.md"
}
expect() { # exit code, what it is about
    code=0
    sh "$tree/results/perplexity.sh" "$work" >"$work/said" 2>&1 || code=$?
    [ "$code" = "$1" ] || { echo "$2: exit code $code, expected $1"; cat "$work/said"; exit 1; }
}
guide results/box/perplexity.txt 10.5000
expect 0 'figures as filed'
guide results/box/perplexity.txt 10.4000
expect 1 'a changed figure'
sh "$tree/results/perplexity.sh" --write "$work"
expect 0 'after --write'
guide results/none/perplexity.txt 10.5000
expect 2 'a run that is not filed'
