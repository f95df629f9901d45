#!/bin/sh
# The rules of the tree as a program: lint.sh SOURCE_DIR BUILD_DIR [RULE...]; no rule = all.
# Prints one line per violation and exits 1 when there is any. Needs a POSIX shell, awk, cc, c++,
# nm and objdump. SPDX-License-Identifier: Apache-2.0
set -u
root=$1
build=$2
shift 2
[ $# -gt 0 ] || set -- includes headers calls isa length prefix names spdx words journals nomem functions width types twins formats faults
cd "$root" || exit 2
cc=${CC:-cc}
cxx=${CXX:-c++}
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

# Files of the tree with one of the given endings, without build folders and test data.
files() {
    for ending in "$@"; do
        find . \( -name .git -o -path ./build -o -path ./tests/data -o -path ./datasets \
            -o -path ./results \) -prune -o -type f -name "*$ending" -print
    done | sed 's|^\./||' | sort
}

archives() {
    ls "$build"/libkt_*.a 2>/dev/null | grep -v test_support
}

# Floors point downwards; dispatch has an order of its own; third parties have one home each.
rule_includes() {
    files .c .h | grep -v '^tests/' | xargs awk '
    function floor(p) {
        if (p ~ /^include\/kt\// || p ~ /^kt\//) return 0
        if (p ~ /^base\//) return 1
        if (p ~ /^kernels\//) return 2
        if (p ~ /^dispatch\//) return 3
        if (p ~ /^(tuner|runtime)\/cli\//) return 5
        if (p ~ /^(tuner|runtime)\//) return 4
        return -1
    }
    function order(p) {
        if (p ~ /^dispatch\/model\/families\//) return 2
        if (p ~ /^dispatch\/(model|topology|device)\//) return 1
        if (p ~ /^dispatch\/registry\//) return 2
        if (p ~ /^dispatch\/(table|cost)\//) return 3
        return 4
    }
    function folder(p) { sub(/\/[^\/]*$/, "", p); return p }
    function bad(what) { printf "%s:%d: includes: %s\n", FILENAME, FNR, what }
    function home(header, pattern, place) {
        if (target ~ header && FILENAME !~ pattern) bad(target " belongs to " place " only")
    }
    /^[ \t]*#[ \t]*include[ \t]*[<"]/ {
        target = $0
        sub(/^[^<"]*[<"]/, "", target)
        sub(/[>"].*$/, "", target)
        mine = floor(FILENAME)
        if ($0 ~ /include[ \t]*</) {
            home("^hwloc", "^dispatch/topology/", "dispatch/topology")
            home("^(oneapi/|dnnl|libxsmm|blis)", "__lib[.]c$", "*__lib.c")
            home("^(event2/|event[.]h|evhttp)", "^runtime/http/", "runtime/http")
            home("^(pcre2|utf8proc)", "^runtime/token/", "runtime/token")
            home("^zlib[.]h$", "^tuner/store/", "tuner/store")
            home("^(cuda|nvrtc)", "^dispatch/device/", "dispatch/device")
            if (mine == 0 && target !~ /^std(int|def|bool|arg)[.]h$/) bad("the public API includes " target)
            next
        }
        theirs = floor(target)
        if (theirs < 0) { bad("\"" target "\" is not a path from the root of the tree"); next }
        if (theirs > mine) bad(target " lies above")
        if (FILENAME ~ /^tuner\// && target ~ /^runtime\//) bad("tuner includes runtime")
        if (FILENAME ~ /^runtime\// && target ~ /^tuner\//) bad("runtime includes tuner")
        if (mine == 3 && theirs == 3 && folder(FILENAME) != folder(target) &&
            order(target) >= order(FILENAME)) bad(target " comes later in the order of dispatch")
    }'
}

# A header that says what "the including file defines" is a template of code and exempt. One that a source names
# before any other has been compiled alone by the build.
rule_headers() {
    vector="-mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd"
    vector="$vector -mavx512vnni -mavx512bf16 -mavx512vbmi -mavx512vbmi2 -mgfni"
    files .c | grep -v '__lib[.]c$' | xargs awk '
        FNR == 1 { first = 0 }
        !first && /^[ \t]*#[ \t]*(include|define)/ { first = 1; if (/include "/) print }' /dev/null |
        sed 's/^[^"]*"//; s/".*//' | sort -u >"$work/compiled"
    for header in $(files .h | grep -v '^kernels/cuda/'); do
        case $header in
        include/kt/*) ;; # also as C++
        *) grep -qxF "$header" "$work/compiled" && continue ;;
        esac
        grep -q 'The including file defines' "$header" && continue
        flags=
        case $header in
        kernels/*) flags=$vector ;;
        tests/*) # what the tests say first and the build defines for them
            flags='-D_GNU_SOURCE -DKT_TEST_DATA="" -DKT_SOURCE_DIR="" -DKT_BUILD_DIR=""' ;;
        esac
        printf '#include "%s"\n' "$header" >"$work/alone.c"
        # shellcheck disable=SC2086
        $cc -std=c11 -Wall -Wextra -Werror -Wno-unused-function $flags -I. -Iinclude -I"$build/generated" -fsyntax-only \
            "$work/alone.c" 2>"$work/log" ||
            echo "$header: headers: does not compile alone as C11: $(grep -m1 error "$work/log")"
        case $header in include/kt/*) ;; *) continue ;; esac
        $cxx -std=c++17 -Wall -Wextra -Werror -I. -Iinclude -I"$build/generated" -fsyntax-only -x c++ \
            "$work/alone.c" 2>"$work/log" ||
            echo "$header: headers: does not compile alone as C++17: $(grep -m1 error "$work/log")"
    done
}

# Libraries return errors; ending the process or writing to the terminal is for programs. A file
# named *_child.c holds the code of a forked process, which may only leave by _exit.
rule_calls() {
    for archive in $(archives); do
        nm -u "$archive" 2>/dev/null | awk -v lib="${archive##*/}" '
        /:$/ { member = $1 }
        $1 == "U" && $2 ~ /^_exit/ && member ~ /_child[.]c/ { next }
        $1 == "U" && $2 ~ /^(abort|exit|_exit|_Exit|quick_exit|printf|vprintf|puts|putchar|perror|stdout|stderr|__printf_chk|__vprintf_chk)(@.*)?$/ {
            printf "%s: calls: %s uses %s\n", lib, member, $2
        }'
    done
}

# Only files named for an instruction set may contain its code: everything else runs everywhere.
rule_isa() {
    for archive in $(archives); do
        objdump -d --no-show-raw-insn "$archive" 2>/dev/null | awk -v lib="${archive##*/}" '
        /file format/ {
            member = $1; sub(/:$/, "", member); told = 0
            any = member ~ /__(avx|amx|lib)/
            wide = member ~ /__(avx512|amx)/
        }
        told { next }
        !any && (/%[yz]mm/ || /^ *[0-9a-f]+:[ \t]+(\{[a-z]+\} )?v[a-z]/ && $2 !~ /^ver[rw]$/) {
            printf "%s: isa: %s contains %s\n", lib, member, $2; told = 1
        }
        any && !wide && /%zmm/ { printf "%s: isa: %s contains zmm\n", lib, member; told = 1 }'
    done
}

rule_length() {
    files .c .h .cu .sh | xargs wc -l |
        awk '$2 != "total" && $1 > 800 { printf "%s: length: %d lines, limit 800\n", $2, $1 }'
}

rule_prefix() {
    for archive in $(archives); do
        nm -g --defined-only "$archive" 2>/dev/null | awk -v lib="${archive##*/}" '
        NF == 3 && $3 !~ /^(kt_|__asan|__odr_asan|_ZGV)/ {
            printf "%s: prefix: global symbol %s lacks kt_\n", lib, $3
        }'
    done
}

# A public header may have the name of the folder's own that completes it: it is always "kt/name.h".
rule_names() {
    files .c .h .cu .sh | grep -v '^include/kt/' | awk -F/ '
    seen[$NF] { printf "%s: names: also %s\n", $0, seen[$NF] }
    { seen[$NF] = $0 }'
}

rule_spdx() {
    files .c .h .cu .sh .cmake CMakeLists.txt | grep -vx CMakeLists.txt >"$work/sources"
    xargs awk 'FNR <= 40 && /SPDX-License-Identifier: Apache-2.0/ { print FILENAME }' /dev/null <"$work/sources" |
        sort -u | sort - "$work/sources" | uniq -u | sed 's/$/: spdx: no licence line/'
}

# The brackets keep the pattern from matching itself.
rule_words() {
    files .c .h .cu .sh .cmake CMakeLists.txt | xargs grep -nE \
        '\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b|-march=nativ[e]|-ffast-mat[h]|-Ofas[t]|^ *# *if 0( |$)' \
        /dev/null | sed 's/^\([^:]*:[0-9]*\):/\1: words:/'
}

# From this commit on filed journals are only appended to; before it they were filed anew.
filed_since=b8810c3

# The text of journal $2 as it is filed in commit $1, packed or, as once, not.
filed_text() {
    git show "$1:$2" 2>/dev/null | zcat 2>/dev/null || git show "$1:${2%.gz}" 2>/dev/null
}

# Is the journal $2 of commit $1 the beginning of what standard input holds?
begins_with() {
    filed_text "$1" "$2" >"$work/older"
    head -c "$(wc -c <"$work/older")" | cmp -s "$work/older" -
}

# A line of a filed journal never changes: every version of it begins with the one before.
rule_journals() {
    if [ "$(git rev-parse --show-toplevel 2>/dev/null)" != "$(pwd -P)" ]; then
        echo 'lint: journals: skipped: no git history here' >&2
        return
    fi
    since=$filed_since
    git rev-parse -q --verify "$since^{commit}" >/dev/null || since=$(git rev-list --max-parents=0 HEAD | tail -1)
    for journal in $(git ls-tree -r --name-only HEAD results | sed -n 's/\(\.journal\.jsonl\)\(\.gz\)*$/\1.gz/p'); do
        if [ ! -f "$journal" ]; then
            echo "$journal: journals: is filed, and was taken away"
        elif ! zcat "$journal" | begins_with HEAD "$journal"; then
            echo "$journal: journals: differs from what is filed in more than lines at its end"
        fi
        for commit in $(git log --format=%h "$since..HEAD" -- "$journal" "${journal%.gz}"); do
            filed_text "$commit" "$journal" | begins_with "$commit~1" "$journal" ||
                echo "$journal: journals: commit $commit changes lines that were filed"
        done
    done
}

# Whatever a library creates, loads, opens, reads or sets up runs with failing allocations: in a test
# file *_nomem.c that names it, or it is an exception with its reason.
rule_nomem() {
    files .h | grep -v -e '^tests/' -e '^kernels/simd/' -e '/cli/' | xargs awk '
    match($0, /^(KT_API )?(kt_status|int) kt_[a-z0-9_]+_(create|load|open|init|read)(_[a-z0-9_]+)?\(/) {
        name = substr($0, RSTART, RLENGTH - 1); sub(/.* /, "", name); print FILENAME, name
    }' >"$work/makers"
    find tests -name '*_nomem.c' -exec cat {} + 2>/dev/null | grep -oE '\bkt_[a-z0-9_]+' |
        sort -u >"$work/tested"
    grep -v '^#' tests/lint/nomem_exceptions.txt 2>/dev/null >"$work/exceptions"
    awk '
    FILENAME ~ /tested$/ { tested[$1] = 1; next }
    FILENAME ~ /exceptions$/ { if (NF > 1) excepted[$1] = 1; next }
    { declared[$2] = 1 }
    !($2 in tested) && !($2 in excepted) {
        printf "%s: nomem: %s is in no *_nomem.c and no exception with a reason\n", $1, $2
    }
    END {
        for (name in excepted)
            if (!(name in declared) || name in tested)
                printf "tests/lint/nomem_exceptions.txt: nomem: %s is %s\n", name,
                    name in declared ? "tested" : "not declared"
    }' "$work/tested" "$work/exceptions" "$work/makers"
}

# Rules younger than the tree: tests/lint/recorded.txt has the number of violations when the rule came, or fewer.
# recorded RULE: passes the violations on when there are more than that. Of many only the number is told.
recorded() {
    cat >"$work/found"
    found=$(($(wc -l <"$work/found")))
    most=$(awk -v rule="$1" '$1 == rule { print $2 }' tests/lint/recorded.txt 2>/dev/null)
    [ "$found" -gt "${most:-0}" ] || return
    [ "$found" -gt 40 ] || cat "$work/found"
    echo "tests/lint/recorded.txt: $1: $found violations, at most ${most:-0} may be there; look at what you added"
}

# A kernel's inner loop may be longer than 60 lines.
rule_functions() {
    files .c .h | grep -v -E '^tests/|^kernels/simd/|__[a-z0-9]*[.]c$' | xargs awk '
    FNR == 1 { head = inside = 0 }
    /^[A-Za-z_]/ && !inside { head = /^(typedef|struct|union|enum|extern)/ && !/[(]/ || /=/ ? 0 : FNR }
    /[{]$/ && !inside { inside = head }
    /^[}]/ {
        if (inside && FNR - inside >= 60)
            printf "%s:%d: functions: %d lines, limit 60\n", FILENAME, inside, FNR - inside + 1
        inside = head = 0
    }' | recorded functions
}

rule_width() {
    files .c .h .cu | LC_ALL=C xargs awk '
    length($0) > 100 { printf "%s:%d: width: %d columns, limit 100\n", FILENAME, FNR, length($0) }' | recorded width
}

# Types with our prefix that two headers define.
rule_types() {
    files .h | xargs awk '
    function define(name) {
        if (seen[name] && seen[name] != FILENAME)
            printf "%s:%d: types: %s is also in %s\n", FILENAME, FNR, name, seen[name]
        seen[name] = FILENAME
    }
    /^[}] kt_[a-z0-9_]+;/ { name = $2; sub(/;.*/, "", name); define(name); next }
    /^(struct|union|enum) kt_[a-z0-9_]+ [{]/ { define($2) }' | recorded types
}

# One kernel, one file: what multiplies panels is a dense product and an expert at once (kernels/p64), and in no layout
# are there two kernels that differ in the operation alone. Libraries: the tile is in gemm's file, experts only call it.
rule_twins() {
    files .c | grep '^kernels/.*__[a-z0-9]*[.]c$' | grep -v '__lib[.]c$' | xargs awk '
    function member(name,    at, rest) {
        at = match(text, "[.]" name " = [^;]*")
        if (!at) return ""
        rest = substr(text, RSTART, RLENGTH)
        sub(/, [.][a-z_]+ = .*/, "", rest)
        return rest
    }
    function close_variant(    op, key) {
        op = member("op")
        if (op !~ /KT_OP_(GEMM|MOE_FFN)/) return
        if (member("layout") ~ /"p64"/)
            printf "%s: twins: a kernel over p64 panels is one file of kernels/p64, for dense products and experts\n", file
        key = member("weights") member("acts") member("isa") member("bits")
        if (seen[key] && ops[key] != op)
            printf "%s: twins: differs from %s in the operation alone\n", file, seen[key]
        seen[key] = file
        ops[key] = op
    }
    /^KT_VARIANT[(]/ { inside = 1; text = ""; file = FILENAME }
    inside { line = $0; gsub(/[ \t]+/, " ", line); text = text line }
    inside && /^ *[}]?;? *$/ || inside && /[}];/ { inside = 0; close_variant() }' /dev/null
}

# A planted fault changes a text that is there: running them all takes ten minutes, this none.
rule_faults() {
    [ ! -f tests/mutation/mutants.txt ] || awk '
    function holds(file, text,    lines) {
        lines = RS
        RS = "\001"
        if (!(file in texts) && (getline texts[file] < file) > 0) close(file)
        RS = lines
        return index(texts[file], text)
    }
    /^(gate|test|hang) / {
        n = split($0, part, " @@ ")
        file = part[1]
        sub(/.* /, "", file)
        if (n != 3 || !holds(file, part[2]))
            printf "%s:%d: faults: %s does not hold: %s\n", FILENAME, FNR, file, part[2]
    }' tests/mutation/mutants.txt
}

# A format of blocks is one file, kernels/formats/w<name>.c: nothing else names it but kernels (*__<isa>.c), tests, and
# what tests/lint/format_names.txt lists: a file, the names in it, a colon and the reason.
rule_formats() {
    grep -lE '^KT_FORMAT_(BLOCKS|PANEL)[(]' kernels/formats/w*.c 2>/dev/null |
        xargs grep -HoE '^KT_FORMAT_IS[(][A-Z0-9_]+' 2>/dev/null | sed 's|:KT_FORMAT_IS(| |' >"$work/formats"
    files .c .h .cu | grep -v -e '^tests/' -e '^kernels/.*__[a-z0-9]*[.]c$' | xargs awk -v list="$work/formats" '
    BEGIN {
        while ((getline line <list) > 0) {
            split(line, part, " ")
            own[part[2]] = name = part[1]
            gsub(/^.*\/w|[.]c$/, "", name)
            id[name] = id["w" name] = part[2]
        }
    }
    FNR == 1 { inside = 0 }
    {
        line = $0
        if (inside && !sub(/^.*[*]\//, "", line)) next
        inside = 0
        gsub(/\/[*]([^*]|[*]+[^*\/])*[*]+\//, " ", line)
        if (sub(/\/[*].*$/, "", line)) inside = 1
        for (rest = line; match(rest, /"[a-z0-9_]+"/); rest = substr(rest, RSTART + RLENGTH))
            told(id[substr(rest, RSTART + 1, RLENGTH - 2)])
        for (rest = line; match(rest, /[A-Za-z0-9_]+/); rest = substr(rest, RSTART + RLENGTH)) {
            word = substr(rest, RSTART, RLENGTH)
            sub(/^KT_(W|P64|CODE)_/, "", word)
            told(word)
        }
    }
    function told(format) {
        if (!(format in own) || own[format] == FILENAME || seen[FILENAME, format]++) return
        print FILENAME, format
    }' /dev/null | sort >"$work/named"
    grep -v '^#' tests/lint/format_names.txt 2>/dev/null |
        awk -F: 'NF > 1 { n = split($1, part, " "); for (i = 2; i <= n; i++) print part[1], part[i] }' |
        sort >"$work/listed"
    comm -23 "$work/named" "$work/listed" |
        sed 's/\(.*\) \(.*\)/\1: formats: names \2, which is the matter of its own file/'
    comm -13 "$work/named" "$work/listed" |
        sed 's|\(.*\) \(.*\)|tests/lint/format_names.txt: formats: \1 does not name \2|'
}

for rule in "$@"; do "rule_$rule"; done >"$work/violations"
cat "$work/violations"
[ ! -s "$work/violations" ]
