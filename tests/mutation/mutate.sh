#!/usr/bin/env bash
# Plants the faults of mutants.txt one at a time and demands that each is rejected.
# usage: mutate.sh SOURCE_DIR BUILD_DIR [PATTERN [LIST]]
#   PATTERN   only mutants whose line matches
#   LIST      the mutants, instead of mutants.txt beside this script
#
# A mutant is compiled alone, from a copy of the faulty file that precedes the tree in the include path, and
# linked before the libraries, so that nothing else is built and the tree is never touched; the first failed assertion
# ends a test (first_failure.c).  Workers take the next program, then the next mutant, from one queue: some take 50
# times as long as others.  There is one more than there are cores, as faults that hang wait for their time to run out.
#
# A program that has just passed as a whole (BUILD_DIR/passed.txt, of tests/run) is not asked again whether it
# accepts what has no fault.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
src=$(cd "$1" && pwd)
build=$(cd "$2" && pwd)
pattern=${3:-.}
list=${4:-$src/tests/mutation/mutants.txt}
least=${KT_MUTANT_SECONDS:-60} # for any mutant; more where the program itself takes long
all=$(mktemp -d)
trap 'rm -rf "$all"' EXIT
mkdir "$all/sound"
: >"$all/times"
work=$all # of this worker
gold=
! command -v ld.gold >/dev/null || gold=-fuse-ld=gold # half the time of a link

# say WORD [TEXT]: one outcome for the count at the end: rejected, crashed, hung (as expected), skipped (cannot run
# on this machine), late (a time-out, which proves nothing) or wrong (a survivor, or a mutant that cannot be tried).
say() {
    echo "$1" >>"$all/outcomes"
    [ $# = 1 ] || echo "mutate: $2"
}

# timed WORD COMMAND...: the command; its time is added to that of the word, for the count at the end.
timed() {
    local since=$EPOCHREALTIME code
    "${@:2}"
    code=$?
    echo "$1 $(((${EPOCHREALTIME/./} - ${since/./}) / 1000))" >>"$all/times"
    return $code
}

# compile_command FILE: as the build compiles it, without output and source.
compile_command() {
    awk -v file="$src/$1" '/"command":/ { line = $0 } /"file":/ && index($0, "\"" file "\"") { print line; exit }' \
        "$build/compile_commands.json" |
        sed -e 's/^ *"command": "//' -e 's/",$//' -e 's/\\"/"/g' -e 's/\\\\/\\/g' -e 's/ -o [^ ]* -c .*//'
}

# link PROGRAM OBJECT OUTPUT: the program's own link line with one object more; tests end with their first failure.
link() {
    local line first=$all/first_failure.o
    [ "$1" != gate_variant ] || first=
    rm -f "$3"
    line=$(ninja -C "$build" -t commands "tests/$1" 2>"$work/log" | tail -n 1)
    [ -n "$line" ] || return 1
    line=${line/ -o tests\/$1/ $2 $first $gold -Wl,-S -Wl,--allow-multiple-definition -o $3}
    (cd "$build" && eval "$line") >"$work/log" 2>&1
}

# variant_file NAME: its source; of one of the two variants of a file of kernels/p64 that file.
variant_file() {
    local both=${1/_p64__/__}
    (cd "$src" && ls kernels/*/"$1".c 2>/dev/null || ls kernels/p64/"${both/_moe64__/__}".c)
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

# compile UNIT FILE: UNIT with the overlay's FILE. More optimisation takes longer than it saves in a run, and outside
# kernels and emulators any does. Loops of kernels stay loops (kernels/simd/unroll.h).
compile() {
    local command source=$src/$1 level=-O1
    case $1 in base/* | dispatch/* | runtime/* | tuner/*) level=-O0 ;; esac
    [ "$1" = "$2" ] && source=$work/overlay/$1
    command=$(compile_command "$1")
    [ -n "$command" ] || return 1
    (cd "$build" && eval "${command/ -I/ -I$work/overlay -I} $level -DKT_ROLLED_UP -g0 -w -o $work/unit.o -c $source") >"$work/log" 2>&1
}

# end_all PROGRAM: what still runs of it. Tests are processes of their own, side by side: one that a fault keeps busy
# outlives the program, which `timeout` or another test's failure has ended.
end_all() {
    local process
    for process in /proc/[0-9]*; do
        [ "$process/exe" -ef "$1" ] && kill -KILL "${process#/proc/}"
    done 2>/dev/null
}

# verdict HOW SECONDS PROGRAM ARGUMENTS: sets `found` to what the program says of the code that it runs:
#   accepted, rejected (the gate exits with 1; a test's assertion failed), crashed (a signal), late (time ran out),
#   skipped (the gate lacks an instruction set, every test was skipped), broken (anything else).
verdict() {
    local how=$1 limit=$2 code tested failing crashing hanging
    shift 2
    (ulimit -c 0; timeout -k 5 "$limit" "$@") >"$work/log" 2>&1
    code=$?
    case $1 in "$work"/*) end_all "$1" ;; esac
    sed -i 's/\x1b\[[^m]*m//g' "$work/log" # colours
    tested=$(sed -n 's/.*Synthesis: Tested: \([0-9]*\) .*/\1/p' "$work/log")
    case $how$code in
    *124 | *137) found=late ;;
    gate0) found=accepted ;;
    gate1) found=rejected ;;
    gate3) found=skipped ;;
    gate12[89] | gate1[3-9]?) found=crashed ;;
    test0) found=accepted ;;
    test1) found=rejected ;;
    *) found=broken ;;
    esac
    [ "$how" = test ] || return
    [ "$found$tested" = accepted0 ] && found=skipped
    [ -n "$tested" ] || { [ $found = late ] || found=broken; }
    [ $found = rejected ] || return
    failing=$(sed -n 's/.*| Failing: \([0-9]*\) .*/\1/p' "$work/log") # of which some crashed or ran out of time
    crashing=$(sed -n 's/.*| Crashing: \([0-9]*\) .*/\1/p' "$work/log")
    hanging=$(grep -c 'Timed out\.' "$work/log")
    [ "$failing" -gt $((crashing + hanging)) ] && return
    found=crashed
    [ "$crashing" -gt 0 ] || found=late
}

# arguments_of HOW TARGET: sets `program` and `arguments`. A target is VARIANT[/FORMAT] or PROGRAM[/SUITE.NAME[#CASE]].
arguments_of() {
    program=$build/tests/gate_variant
    arguments=("$2")
    [ "$1" = test ] || return
    program=$build/tests/${2%%[/#]*}
    arguments=()
    case $2 in */*) arguments=(--filter "$(sed 's:^[^/]*/\([^.]*\)\.:\1/:' <<<"${2%%#*}")") ;; esac
}

# has_test TARGET: its program knows the test, or the filter would leave nothing to run.
has_test() {
    local name=${1##*.}
    case $1 in */*) ;; *) return 0 ;; esac
    [ "$name" = '*' ] || "$build/tests/${1%%/*}" --list | grep -qE "(^| )$name\$"
}

# sound "HOW TARGET": what a program says without a fault, and how long mutants of it may take.
sound() {
    local how=${1% *} target=${1#* } since=$SECONDS program arguments found taken
    taken=$(sed -n "s/^${target%%/*} //p" "$build/passed.txt" 2>/dev/null | tail -n 1)
    # What a whole program took is no measure of how long to wait for one of its tests that hangs.
    ! grep -q "^hang $target[ :#]" "$all/mutants" || taken=
    if [ "$how" = test ] && [ -n "$taken" ] && [ "$build/passed.txt" -nt "$build/tests/${target%%/*}" ] && has_test "$target"; then
        echo "accepted $((least + 4 * taken))" >"$all/sound/${target//\//,}"
        return
    fi
    if [ "$how" = gate ] && ! "$build/tests/gate_variant" --runs "${target%%/*}"; then
        echo "skipped 0" >"$all/sound/${target//\//,}"
        return
    fi
    arguments_of "$how" "$target"
    verdict "$how" 600 "$program" ${arguments[@]+"${arguments[@]}"}
    case $found in
    accepted) ;;
    skipped) [ "$how" = gate ] || has_test "$target" || say wrong "$target: there is no such test" ;;
    *) say wrong "$1 rejects what has no fault ($found): $(tail -n 1 "$work/log")" ;;
    esac
    echo "$found $((least + 4 * (SECONDS - since)))" >"$all/sound/${target//\//,}"
}

# mutant LINE: a line of mutants.txt, "HOW TARGET[:UNIT] FILE @@ BEFORE @@ AFTER".
mutant() {
    local how word target file unit program arguments limit before after found
    read -r word target file <<<"${1%% @@ *}"
    case $1 in
    gate\ *' @@ '*' @@ '* | test\ *' @@ '*' @@ '* | hang\ *' @@ '*' @@ '*) ;;
    *) say wrong "not a mutant: $1"; return ;;
    esac
    after=${1#* @@ }
    before=${after%% @@ *}
    after=${after#* @@ }
    case $target in
    *:*) unit=${target#*:} ;;
    *) unit=$file ;;
    esac
    target=${target%%:*}
    how=${word/hang/test}
    rm -rf "$work/overlay"
    found=${target%%#*}
    read -r found limit <"$all/sound/${found//\//,}"
    [ "$found" = skipped ] && { say skipped; return; }
    case $how:$unit in # a program that tests many variants does not say that it left one out
    test:kernels/*__*.c) "$build/tests/gate_variant" --runs "$(basename "$unit" .c)" || { say skipped; return; } ;;
    esac
    case $target in *#*) "$build/tests/gate_variant" --runs "${target#*#}" || { say skipped; return; } ;; esac
    [ "$word" = hang ] && limit=$((limit - least * 5 / 6))
    [ "$how" = gate ] && case $file in *.h) unit=$(variant_file "${target%%/*}") ;; esac
    arguments_of "$how" "$target"
    plant "$file" "$before" "$after" || { say wrong "$file does not contain: $before"; return; }
    timed compile compile "$unit" "$file" || { say wrong "$file: '$after' does not compile: $(head -n 3 "$work/log")"; return; }
    timed link link "${program##*/}" "$work/unit.o" "$work/mutant" || { say wrong "$file: '$after' does not link: $(head -n 3 "$work/log")"; return; }
    case $how:$unit in # others than the variant with the fault are sound: they need not run
    test:kernels/*__*.c) KT_TEST_VARIANT=$(basename "$unit" .c) ;;
    *) KT_TEST_VARIANT= ;;
    esac
    case $target in *#*) KT_TEST_CASE=${target#*#} ;; *) KT_TEST_CASE= ;; esac # and of some tests other cases
    export KT_TEST_VARIANT KT_TEST_CASE
    [ "$how" = gate ] || arguments+=(--fail-fast) # one failure is proof
    timed "run $target" verdict "$how" "$limit" "$work/mutant" ${arguments[@]+"${arguments[@]}"}
    if [ "$word:$found" = test:late ]; then # but not that a test ran out of time: others may say more
        unset 'arguments[-1]'
        timed "run $target" verdict "$how" "$limit" "$work/mutant" ${arguments[@]+"${arguments[@]}"}
    fi
    if [ "$how:$found" = test:skipped ]; then # as the program without the fault is, which whole programs do not say
        verdict "$how" "$limit" "$program" ${arguments[@]+"${arguments[@]}"}
        [ "$found" != skipped ] || { say skipped; return; }
        found=skipped
    fi
    case $word:$found in
    hang:late) say hung ;;
    *:rejected | *:crashed) say "$found" ;;
    *:late) say late "TIMED OUT, $word $target: $file: '$before' -> '$after'" ;;
    *:accepted) say wrong "SURVIVED $word $target: $file: '$before' -> '$after'" ;;
    *) say wrong "could not run ($found), $word $target: $file: '$before' -> '$after': $(tail -n 1 "$work/log")" ;;
    esac
}

# each COMMAND FILE: the command with every line of the file, on all cores.
each() {
    local id line
    exec 7<"$2" # one place in the file for all of them
    for id in $(seq $(($(nproc) + 1))); do
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

grep -v -e '^#' -e '^$' "$list" | grep -E -e "$pattern" >"$all/mutants" || { echo "mutate: no fault of $list matches '$pattern'" >&2; exit 1; }
sed -n -e 's/^hang /test /' -e '/^gate \|^test /p' "$all/mutants" | cut -d ' ' -f 1,2 | cut -d : -f 1 | cut -d '#' -f 1 | sort -u >"$all/programs"
cc -O1 -c "$src/tests/mutation/first_failure.c" -o "$all/first_failure.o" || exit 1
each sound "$all/programs" # they accept what is right, or rejecting proves nothing
each mutant "$all/mutants"

count() { grep -c "^$1\$" "$all/outcomes"; }
rejected=$(($(count rejected) + $(count crashed) + $(count hung)))
echo "$rejected faults rejected, $(count crashed) of them by a crash and $(count hung) by the hang that was expected;" \
    "$(count late) timed out, $(count skipped) not runnable here, $(count wrong) trouble"
# Where the time went: in all, and the programs that take most of it.
awk '{ sum[$1] += $NF } $1 == "run" { split($2, at, "/"); ran[at[1]] += $NF; n[at[1]]++ }
     END { printf "compiled %.0f s, linked %.0f s, ran %.0f s; most of it:\n", sum["compile"] / 1000, sum["link"] / 1000, sum["run"] / 1000
           for (p in ran) printf "%6.1f s of %d faults, %s\n", ran[p] / 1000, n[p], p | "sort -nr | head -n 8" }' "$all/times"
[ "$(wc -l <"$all/outcomes")" -ge "$(wc -l <"$all/mutants")" ] || { echo "mutate: a worker died"; exit 1; }
[ "$(count wrong)" = 0 ] && [ "$(count late)" = 0 ] && [ "$((rejected + $(count skipped)))" -gt 0 ]
