#!/bin/sh
# What the suites skipped and what they had to try again.
#   skips.sh collect STAGE LOG    the lines of one ctest log as STAGE<tab>PROGRAM<tab>KIND<tab>TEST<tab>WORDS
#   skips.sh list LIMITS          lists such lines (from standard input), grouped by stage and reason; exit code 1
#                                 when more tests of a stage are skipped for a reason than LIMITS (skips.txt) allows
# SPDX-License-Identifier: Apache-2.0
set -u
case ${1:-} in
collect)
    awk -v stage="$2" '
    /^[0-9]+\/[0-9]+ Testing: / { program = $3 }
    /^\[(SKIP|RETRY)\] [^ ]+: / {
        kind = tolower(substr($1, 2, length($1) - 2))
        test = substr($2, 1, length($2) - 1)
        words = $0
        sub(/^[^ ]+ [^ ]+ /, "", words)
        print stage "\t" program "\t" kind "\t" test "\t" words
    }' "$3"
    ;;
list)
    awk -F '\t' '
    NR == FNR { # a number or "any", spaces, a pattern
        if ($0 ~ /^#/ || $0 == "") next
        split($0, word, / +/)
        n_rules++
        most[n_rules] = word[1]
        pattern[n_rules] = substr($0, index($0, " ") + 1)
        sub(/^ +/, "", pattern[n_rules])
        next
    }
    !($1 in is_stage) { is_stage[$1] = 1; stage[++n_stages] = $1 }
    $3 == "retry" { retries[$1] = retries[$1] sprintf("         %s, %s: %s\n", $2, $4, $5); next }
    {
        for (rule = 1; rule <= n_rules; rule++) if ($5 ~ pattern[rule]) break
        reason = rule
        if (rule > n_rules) {
            if (!($5 in other)) { other[$5] = n_rules + ++n_others; pattern[other[$5]] = $5 }
            reason = other[$5]
        }
        n[$1, reason]++
        in_program[$1, reason, $2]++
        if (in_program[$1, reason, $2] == 1) programs[$1, reason] = programs[$1, reason] "\t" $2
    }
    END {
        for (s = 1; s <= n_stages; s++) {
            name = stage[s]
            printf "%s\n", name
            for (r = 1; r <= n_rules + n_others; r++) {
                if (!n[name, r]) continue
                line = ""
                count = split(substr(programs[name, r], 2), list, "\t")
                for (p = 1; p <= count; p++)
                    line = line (p > 1 ? ", " : "") list[p] " " in_program[name, r, list[p]]
                printf "  %5d skipped: %s (%s)\n", n[name, r], pattern[r], line
                limit = r <= n_rules ? most[r] : 0
                if (limit != "any" && n[name, r] > limit + 0) {
                    printf "        too many: tests/lint/skips.txt allows %d\n", limit
                    bad = 1
                }
            }
            if (retries[name] != "") printf "        tried again:\n%s", retries[name]
        }
        exit bad
    }' "$2" -
    ;;
*)
    echo "usage: skips.sh collect STAGE LOG, or skips.sh list LIMITS" >&2
    exit 2
    ;;
esac
