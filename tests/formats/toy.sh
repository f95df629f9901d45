#!/usr/bin/env bash
# A tree with one format more: toy.sh SOURCE_DIR BUILD_DIR. wtoy3.c counts among kernels/formats, the build's lists are
# written anew, what reads them is compiled again and linked before the libraries; nothing else is said of the format.
# Then the uses of a format and the tests that walk all formats run. Before, the build must refuse a number that is
# taken, and one that leaves a gap. SPDX-License-Identifier: Apache-2.0
set -uo pipefail
src=$(cd "$1" && pwd)
build=$(cd "$2" && pwd)
here=$src/tests/formats
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
gold=
! command -v ld.gold >/dev/null || gold=-fuse-ld=gold

fail() {
    echo "toy: $1"
    [ ! -s "$work/log" ] || tail -n 20 "$work/log"
    exit 1
}

# says TEXT: did the build say it, whose lines break anywhere?
says() {
    tr -s ' \n' ' ' <"$work/log" | grep -q "$1"
}

# lists TOY_FILE: what the build writes of the tree's formats and this one.
lists() {
    cp "$1" "$work/formats/wtoy3.c"
    cmake "-DFILES=$work/formats/w*.c" "-DOUT=$work/kt/weight_formats.h" -P "$src/cmake/formats.cmake" >"$work/log" 2>&1
}
mkdir "$work/formats"
ln -s "$src"/kernels/formats/w*.c "$work/formats/"

# The number that wtoy3.c says is the next one of the tree's own formats: the copy has it.
next=$(($(cat "$src"/kernels/formats/w*.c | grep -c '^KT_FORMAT_IS') + 1))
sed "s/TOY3, [0-9]*/TOY3, $next/" "$here/wtoy3.c" >"$work/wtoy3.c"
sed "s/TOY3, [0-9]*/TOY3, 3/" "$here/wtoy3.c" >"$work/taken.c"
sed "s/TOY3, [0-9]*/TOY3, $((next + 1))/" "$here/wtoy3.c" >"$work/gap.c"
sed '/^KT_FORMAT_IS/d' "$here/wtoy3.c" >"$work/unsaid.c"
lists "$work/taken.c" && fail "a number that is taken is not refused"
says 'number 3 belongs to' || fail "a number that is taken is not told"
lists "$work/gap.c" && fail "a gap in the numbers is not refused"
says "expected $next" || fail "the next free number is not told"
lists "$work/unsaid.c" && fail "a format without a number is not refused"
lists "$work/wtoy3.c" || fail "the lists are not written"
stems=$(cd "$work/formats" && printf '%s\n' w*.c | sed 's/[.]c$//' | tr '\n' ' ')
cat >"$work/table.cmake" <<END
include($src/cmake/tables.cmake)
kt_write_table(OUT $work/format_table.c HEADER kernels/formats/format.h TYPE kt_format PREFIX kt_format_
               ARRAY kt_builtin_formats COUNT kt_builtin_format_count STEMS $stems)
END
cmake -P "$work/table.cmake" >"$work/log" 2>&1 || fail "the table of formats is not written"

# compile OBJECT COMMAND_OF [SOURCE]: as the build compiles a file, with the new lists before its own.
compile() {
    local command
    command=$(awk -v file="$2" '/"command":/ { line = $0 } /"file":/ && index($0, "\"" file "\"") { print line; exit }' \
        "$build/compile_commands.json" |
        sed -e 's/^ *"command": "//' -e 's/",$//' -e 's/\\"/"/g' -e 's/\\\\/\\/g' -e 's/ -o [^ ]* -c .*//')
    [ -n "$command" ] || { echo "no command for $2"; return 1; }
    (cd "$build" && eval "${command/ -I/ -I$work -I} -O1 -g0 -o $work/$1 -c ${3:-$2}")
}

units="base/names.c dispatch/registry/variant_config.c kernels/p64/any_any__scalar.c kernels/gemm/gemm_ref.c
kernels/gemm/gemm_gate.c kernels/cuda/device_weights.c kernels/cuda/panel_rows.cu $(cd "$src" && ls kernels/formats/*.c |
    grep -v /w)"
{
    compile toy.o "$src/kernels/formats/wq4_0.c" "$work/wtoy3.c" &&
        compile table.o "$build/generated/format_table.c" "$work/format_table.c" &&
        compile uses.o "$src/tests/kernels/test_device_weights.c" "$here/toy_uses.c" &&
        compile device.o "$src/tests/kernels/test_device_weights.c" &&
        compile panels.o "$src/tests/kernels/test_formats_p64.c"
} >"$work/log" 2>&1 || fail "the format does not compile"
for unit in $units; do
    compile "$(echo "$unit" | tr / _).o" "$src/$unit" >"$work/log" 2>&1 || fail "$unit does not compile with it"
done

# link OUTPUT PROGRAM OBJECT: the program's own link line with OBJECT for its own, and the new objects.
link() {
    local line own
    line=$(ninja -C "$build" -t commands "tests/$2" | tail -n 1)
    own=$(echo "$line" | grep -oE "[^ ]*/$2[.]c[.]o")
    line=${line/ $own / $work/$3 $others }
    line=${line/ -o tests\/$2/ $gold -Wl,--allow-multiple-definition -o $work/$1}
    (cd "$build" && eval "$line") >"$work/log" 2>&1 || fail "$1 does not link"
}
others=$(ls "$work"/*.o | grep -v -e /uses.o -e /device.o -e /panels.o | tr '\n' ' ')
link uses test_device_weights uses.o
link device test_device_weights device.o
link panels test_formats_p64 panels.o
for program in uses device panels; do
    (cd "$build/tests" && "$work/$program") >"$work/log" 2>&1 || fail "$program"
done
echo "toy: a format of one file, number $next, is read, packed, multiplied and kept on devices"
