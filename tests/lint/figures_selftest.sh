#!/bin/sh
# results/figures.sh notices a figure that was changed by hand, a row that is not filed and a file that is not there,
# --write mends the first, and a guide may show several runs. SPDX-License-Identifier: Apache-2.0
set -eu
tree=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/base" "$work/kernels/gemm"
echo none >"$work/base/README.md"
echo none >"$work/kernels/gemm/README.md"
cat >"$work/run.txt" <<END
int8_decode      0.966 of read stream  (0.905 .. 0.984, 6 placements)  bar 0.95 ok (102 %)  [verified] x
int4_decode      0.913 of peak  (0.795 .. 0.957, 6 placements)  bar 0.95 MISSED (96 %)  [verified] y
copy             2931.220 GB/s  (2930.100 .. 2935.800, 64 rounds)  2931.2 of 2931.2 GB/s  [verified] u
waiting          0.020 of the time  (0.019 .. 0.020, 3 rounds)  bar <= 0.05 ok (253 %)  [verified] z
END
readme() {
    printf '%s\n' "<!-- figures: $1 -->" "| a | \`$2\` | $3 | 90 to 98 % | 95 %, kept |" \
        "| b | \`waiting\` | 2 % of the time | 2 to 2 % | at most 5 %, kept |" \
        '| c | `copy` | 2931 GB/s | 2930 to 2936 | none |' 'Bars kept: 2 of 3.' '<!-- figures end -->' 'int8_decode 0.1' >"$work/README.md"
}
expect() { # exit code, what it is about
    code=0
    sh "$tree/results/figures.sh" "$work" >"$work/said" 2>&1 || code=$?
    [ "$code" = "$1" ] || { echo "$2: exit code $code, expected $1"; cat "$work/said"; exit 1; }
}
readme run.txt int8_decode '97 % of read stream'
expect 0 'figures as filed'
readme run.txt int8_decode '98 % of read stream'
expect 1 'a changed figure'
sh "$tree/results/figures.sh" --write "$work"
expect 0 'after --write'
readme run.txt int9_decode '97 % of read stream'
expect 2 'a row that is not filed'
readme none.txt int8_decode '97 % of read stream'
expect 2 'a run that is not filed'
sed 's/0.966/0.500/' "$work/run.txt" >"$work/other.txt"
readme run.txt int8_decode '97 % of read stream'
mv "$work/README.md" "$work/first"
readme other.txt int8_decode '50 % of read stream'
cat "$work/first" "$work/README.md" >"$work/both" && mv "$work/both" "$work/README.md"
expect 0 'two runs in a guide'
sed -i 's/50 % of/51 % of/' "$work/README.md"
expect 1 'a changed figure of the second run'
sh "$tree/results/figures.sh" --write "$work"
expect 0 'after --write of two runs'
