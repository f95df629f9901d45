#!/usr/bin/env bash
# Plants the faults of mutants.txt one at a time and demands that each is rejected.
# usage: mutate.sh SOURCE_DIR BUILD_DIR [PATTERN [SHARE OF]]
# PATTERN: only mutants whose line matches; SHARE OF: of these every OFth, from the SHAREth (0 ..) on.
#
# A mutant is compiled alone, from a copy of the faulty file that precedes the tree in the include path, and
# linked before the libraries, so that nothing else is built and the tree is never touched.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
src=$(cd "$1" && pwd)
build=$(cd "$2" && pwd)
pattern=${3:-.}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mutants=$work/mutants.txt
grep -v -e '^#' -e '^$' "$src/tests/mutation/mutants.txt" |
    grep -E -e "$pattern" | awk -v share="${4:-0}" -v of="${5:-1}" 'NR % of == share' \
        >"$mutants"
rejected=0 skipped=0 wrong=0

complain() {
    echo "mutate: $*"
    wrong=$((wrong + 1))
}

# compile_command FILE: as the build compiles it, without output and source.
compile_command() {
    awk -v file="$src/$1" '/"command":/ { line = $0 } /"file":/ && index($0, "\"" file "\"") { print line; exit }' \
        "$build/compile_commands.json" |
        sed -e 's/^ *"command": "//' -e 's/",$//' -e 's/\\"/"/g' -e 's/\\\\/\\/g' -e 's/ -o [^ ]* -c .*//'
}

# link PROGRAM OBJECT OUTPUT: the program's own link line with one object more.
link() {
    local line
    line=$(ninja -C "$build" -t commands "tests/$1" | tail -n 1)
    line=${line/ -o tests\/$1/ $2 -Wl,--allow-multiple-definition -o $3}
    (cd "$build" && eval "$line") >"$work/log" 2>&1
}

# variant_file NAME: its source.
variant_file() {
    (cd "$src" && ls kernels/*/"$1".c)
}

# plant FILE BEFORE AFTER: the faulty copy in the overlay. The text must stand in the file.
plant() {
    mkdir -p "$work/overlay/$(dirname "$1")"
    BEFORE=$2 AFTER=$3 awk '
        { text = text $0 "\n" }
        END {
            at = index(text, ENVIRON["BEFORE"])
            if (!at) exit 1
            printf "%s%s%s", substr(text, 1, at - 1), ENVIRON["AFTER"], substr(text, at + length(ENVIRON["BEFORE"]))
        }' "$src/$1" >"$work/overlay/$1"
}

# compile UNIT FILE: UNIT with the overlay's FILE.
compile() {
    local command source=$src/$1
    [ "$1" = "$2" ] && source=$work/overlay/$1
    command=$(compile_command "$1")
    [ -n "$command" ] || return 1
    (cd "$build" && eval "${command/ -I/ -I$work/overlay -I} -w -o $work/unit.o -c $source") >"$work/log" 2>&1
}

# verdict PROGRAM ARGUMENTS: 0 accepted, 3 cannot run here, other = rejected.
verdict() {
    (ulimit -c 0; timeout 120 "$@") >"$work/log" 2>&1
}

mutant() { # how, variant or program[:unit], file, before, after
    local how=$1 target=$2 file=$3 unit=$3 program=$2
    rm -rf "$work/overlay"
    case $target in *:*) program=${target%%:*} unit=${target#*:} ;; esac
    if [ "$how" = gate ]; then
        program=gate_variant
        "$build/tests/gate_variant" "$target" >/dev/null 2>&1
        [ $? = 3 ] && { skipped=$((skipped + 1)); return; }
        case $file in *.h) unit=$(variant_file "$target") ;; esac
    fi
    plant "$file" "$4" "$5" || { complain "$file does not contain: $4"; return; }
    compile "$unit" "$file" || { complain "$file: '$5' does not compile"; sed -n 1,3p "$work/log"; return; }
    link "$program" "$work/unit.o" "$work/mutant" || { complain "$file: '$5' does not link"; sed -n 1,3p "$work/log"; return; }
    if [ "$how" = gate ]; then verdict "$work/mutant" "$target"; else verdict "$work/mutant"; fi
    case $? in
    0) complain "NOT REJECTED by $how $target: $file: '$4' -> '$5'" ;;
    *) rejected=$((rejected + 1)) ;;
    esac
}

# The programs accept what is right, or rejecting proves nothing.
for name in $(sed -n 's/^gate \([^ ]*\).*/\1/p' "$mutants" | sort -u); do
    verdict "$build/tests/gate_variant" "$name"
    case $? in
    0 | 3) ;;
    *) complain "$name is rejected without a fault: $(tail -n 1 "$work/log")" ;;
    esac
done
for name in $(sed -n 's/^test \([^ :]*\).*/\1/p' "$mutants" | sort -u); do
    verdict "$build/tests/$name" || complain "$name fails without a fault"
done

while IFS= read -r line; do
    head=${line%% @@ *}
    rest=${line#* @@ }
    # shellcheck disable=SC2086
    set -- $head
    mutant "$1" "$2" "$3" "${rest%% @@ *}" "${rest#* @@ }"
done <"$mutants"

echo "$rejected faults rejected, $skipped not runnable here, $wrong trouble"
[ "$wrong" = 0 ] && [ "$((rejected + skipped))" -gt 0 ]
