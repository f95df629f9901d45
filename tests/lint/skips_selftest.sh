#!/bin/sh
# skips.sh on logs made up here: skips_selftest.sh SKIPS_SH. SPDX-License-Identifier: Apache-2.0
set -u
skips=$1
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
tests=0
failures=0

expect() { # WHAT WANTED: what is in $got
    tests=$((tests + 1))
    [ "$got" = "$2" ] && return
    failures=$((failures + 1))
    printf '%s:\n%s\ninstead of\n%s\n' "$1" "$got" "$2"
}

cat >"$work/log" <<'TEXT'
1/2 Testing: test_gemm
Output:
[SKIP] gemm::every_variant: a__amxint8: needs amxint8
[SKIP] gemm::every_variant: b__amxbf16: needs amxbf16
[RETRY] gemm::is_fast: attempt 2 of 3 passed
2/2 Testing: test_tokenizer
[PASS] tokenizer::ids: (0.1s)
[SKIP] tokenizer::vectors: data/x is not in the shared data
a line that says [SKIP] x::y: in its middle
TEXT
printf '# a comment\n\nany  needs [a-z0-9]+$\n1    is not in the shared data\n' >"$work/limits"
tab=$(printf '\t')
got=$(sh "$skips" collect "release build" "$work/log")
expect collect "release build${tab}test_gemm${tab}skip${tab}gemm::every_variant${tab}a__amxint8: needs amxint8
release build${tab}test_gemm${tab}skip${tab}gemm::every_variant${tab}b__amxbf16: needs amxbf16
release build${tab}test_gemm${tab}retry${tab}gemm::is_fast${tab}attempt 2 of 3 passed
release build${tab}test_tokenizer${tab}skip${tab}tokenizer::vectors${tab}data/x is not in the shared data"
echo "$got" >"$work/notes"

listed="release build
      2 skipped: needs [a-z0-9]+\$ (test_gemm 2)
      1 skipped: is not in the shared data (test_tokenizer 1)
        tried again:
         test_gemm, gemm::is_fast: attempt 2 of 3 passed"
got=$(sh "$skips" list "$work/limits" <"$work/notes"; echo "status $?")
expect 'within the limits' "$listed
status 0"

# The same stage once more is over the limit, another stage is not.
sed 's/^release build/asan/' "$work/notes" >>"$work/notes"
got=$(sh "$skips" list "$work/limits" <"$work/notes" >/dev/null; echo "status $?")
expect 'each stage has its own count' 'status 0'
grep vectors "$work/notes" | grep '^asan' >>"$work/notes"
got=$(sh "$skips" list "$work/limits" <"$work/notes" | grep -A1 '2 skipped: is not'; sh "$skips" list "$work/limits" <"$work/notes" >/dev/null; echo "status $?")
expect 'over a limit' "      2 skipped: is not in the shared data (test_tokenizer 2)
        too many: tests/lint/skips.txt allows 1
status 1"

echo "asan${tab}test_x${tab}skip${tab}x::y${tab}a new reason" >"$work/notes"
got=$(sh "$skips" list "$work/limits" <"$work/notes"; echo "status $?")
expect 'an unlisted reason' "asan
      1 skipped: a new reason (test_x 1)
        too many: tests/lint/skips.txt allows 0
status 1"
got=$(sh "$skips" list "$work/limits" </dev/null; echo "status $?")
expect 'nothing was skipped' 'status 0'

echo "$tests checks, $failures failed"
[ $failures -eq 0 ]
