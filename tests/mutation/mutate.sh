#!/usr/bin/env bash
# Plants the faults of mutants.txt one at a time and demands that each is rejected.
# usage: mutate.sh SOURCE_DIR BUILD_DIR [PATTERN]      PATTERN: only mutants whose line matches
#
# A mutant is compiled alone, from a copy of the faulty file that precedes the tree in the include path, and
# linked before the libraries, so that nothing else is built and the tree is never touched.  As many workers as
# there are cores take the next program, then the next mutant, from one queue: some take 50 times as long as others.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
src=$(cd "$1" && pwd)
build=$(cd "$2" && pwd)
pattern=${3:-.}
all=$(mktemp -d)
trap 'rm -rf "$all"' EXIT
mkdir "$all/sound"
work=$all # of this worker

# say WORD [TEXT]: one outcome (rejected, skipped or wrong) for the count at the end.
say() {
    echo "$1" >>"$all/outcomes"
    [ $# = 1 ] || echo "mutate: $2"
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

# verdict SECONDS PROGRAM ARGUMENTS: 0 accepted, 3 cannot run here, other = rejected.
verdict() {
    local limit=$1
    shift
    (ulimit -c 0; timeout "$limit" "$@") >"$work/log" 2>&1
}

# sound "HOW NAME": what a program says without a fault, and how long mutants of it may take.
sound() {
    local how=${1% *} name=${1#* } since=$SECONDS code
    if [ "$how" = gate ]; then
        verdict 600 "$build/tests/gate_variant" "$name"
    else
        verdict 600 "$build/tests/$name"
    fi
    code=$?
    case $how$code in
    gate0 | gate3 | test0) ;;
    *) say wrong "$1 rejects what has no fault: $(tail -n 1 "$work/log")" ;;
    esac
    echo "$code $((60 + 4 * (SECONDS - since)))" >"$all/sound/$name"
}

# mutant LINE: a line of mutants.txt, "HOW VARIANT|PROGRAM[:UNIT] FILE @@ BEFORE @@ AFTER".
mutant() {
    local how target file unit program code limit before after arguments=()
    read -r how target file <<<"${1%% @@ *}"
    after=${1#* @@ }
    before=${after%% @@ *}
    after=${after#* @@ }
    case $target in
    *:*) unit=${target#*:} ;;
    *) unit=$file ;;
    esac
    program=${target%%:*}
    rm -rf "$work/overlay"
    read -r code limit <"$all/sound/$program"
    if [ "$how" = gate ]; then
        [ "$code" = 3 ] && { say skipped; return; }
        program=gate_variant
        arguments=("$target")
        case $file in *.h) unit=$(variant_file "$target") ;; esac
    fi
    plant "$file" "$before" "$after" || { say wrong "$file does not contain: $before"; return; }
    compile "$unit" "$file" || { say wrong "$file: '$after' does not compile: $(head -n 3 "$work/log")"; return; }
    link "$program" "$work/unit.o" "$work/mutant" || { say wrong "$file: '$after' does not link: $(head -n 3 "$work/log")"; return; }
    verdict "$limit" "$work/mutant" ${arguments[@]+"${arguments[@]}"}
    case $? in
    0) say wrong "NOT REJECTED by $how $target: $file: '$before' -> '$after'" ;;
    *) say rejected ;;
    esac
}

# each COMMAND FILE: the command with every line of the file, on all cores.
each() {
    local id line
    exec 7<"$2" # one place in the file for all of them
    for id in $(seq "$(nproc)"); do
        (
            work=$all/$id
            mkdir -p "$work"
            exec 8<"$all" # a lock of its own
            while flock 8 && IFS= read -r line <&7; do
                flock -u 8
                $1 "$line"
            done
        ) &
    done
    wait
}

grep -v -e '^#' -e '^$' "$src/tests/mutation/mutants.txt" | grep -E -e "$pattern" >"$all/mutants"
cut -d ' ' -f 1,2 "$all/mutants" | cut -d : -f 1 | sort -u >"$all/programs"
each sound "$all/programs" # they accept what is right, or rejecting proves nothing
each mutant "$all/mutants"

count() { grep -c "^$1" "$all/outcomes"; }
echo "$(count rejected) faults rejected, $(count skipped) not runnable here, $(count wrong) trouble"
[ "$(count wrong)" = 0 ] && [ "$(($(count rejected) + $(count skipped)))" -gt 0 ]
