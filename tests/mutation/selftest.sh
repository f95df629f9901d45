#!/usr/bin/env bash
# mutate.sh tells apart what a mutant can come to: one of each kind, and what it must say of them.
# usage: selftest.sh SOURCE_DIR BUILD_DIR
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/list" <<'END'
test test_pool/pool.what_is_taken_at_once base/pool.c @@ (left + 3) / 4 @@ (left + 1) / 2
test test_pool/pool.what_is_taken_at_once base/pool.c @@ pool->run = p->run; @@ abort();
hang test_pool/pool.what_is_taken_at_once base/pool.c @@ pool->run = p->run; @@ for (;;) pool->run = p->run;
test test_pool/pool.what_is_taken_at_once base/pool.c @@ pool->arg = p->arg; @@ for (;;) pool->arg = p->arg;
test test_pool/pool.what_is_taken_at_once base/pool.c @@ pool->n_tasks = n; @@ pool->n_tasks = n + 0;
test test_pool/pool.what_is_taken_at_once base/pool.c @@ no such text @@ anything
test test_pool/pool.what_is_taken_at_once base/pool.c @@ pool->chunk = chunk; @@ pool->chunk = chink;
test test_pool/pool.what_is_taken_at_once base/pool.c @@ static uint64_t make_span( @@ __attribute__((constructor)) static void quit(void) { _exit(3); } static uint64_t make_span(
test test_pool/pool.no_such_test base/pool.c @@ pool->n_tasks = n; @@ pool->n_tasks = 0;
test test_of_nothing base/pool.c @@ pool->n_tasks = n; @@ pool->n_tasks = 0;
test test_pool/pool.what_is_taken_at_once base/pool.c @ one at
END
TMPDIR=$work KT_MUTANT_SECONDS=12 bash "$1/tests/mutation/mutate.sh" "$1" "$2" . "$work/list" >"$work/out" 2>&1
code=$?
cat "$work/out"
bad=0
for process in /proc/[0-9]*; do
    case $(readlink "$process/exe") in "$work"/*) echo "selftest: a mutant still runs"; bad=1; kill -KILL "${process#/proc/}" ;; esac
done 2>/dev/null
[ "$code" = 1 ] || { echo "selftest: exit status $code, expected 1"; bad=1; }
while read -r line; do
    grep -qF "$line" "$work/out" || { echo "selftest: nothing says: $line"; bad=1; }
done <<'END'
TIMED OUT, test test_pool/pool.what_is_taken_at_once: base/pool.c: 'pool->arg = p->arg;'
SURVIVED test test_pool/pool.what_is_taken_at_once: base/pool.c: 'pool->n_tasks = n;'
base/pool.c does not contain: no such text
base/pool.c: 'pool->chunk = chink;' does not compile
could not run (broken), test test_pool/pool.what_is_taken_at_once: base/pool.c: 'static uint64_t make_span('
test_pool/pool.no_such_test: there is no such test
test test_of_nothing rejects what has no fault (broken)
base/pool.c: 'pool->n_tasks = 0;' does not link
not a mutant: test test_pool/pool.what_is_taken_at_once base/pool.c @ one at
3 faults rejected, 1 of them by a crash and 1 by the hang that was expected; 1 timed out, 1 not runnable here, 8 trouble
END
exit $bad
