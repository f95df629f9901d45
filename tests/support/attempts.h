/* Verdicts by the clock, which another process can spoil: tried again, and said so.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_ATTEMPTS_H
#define KT_TESTS_ATTEMPTS_H

#include <stdbool.h>

/* One verdict of the running test: at most `most` attempts, `done` of them so far. */
typedef struct kt_attempts {
    int most, done;
} kt_attempts;

/* Is another attempt due? `passed` is the outcome so far; the first call ignores it:
 *
 *     for (kt_attempts tries = {3, 0}; kt_attempts_next(&tries, times < 10);) times = measure();
 *     cr_assert_lt(times, 10);
 *
 * A verdict that took more than one attempt is told on standard error as "[RETRY] suite::test: attempt 2 of 3
 * passed" or "... all 3 attempts failed"; tests/run lists these lines at its end. */
bool kt_attempts_next(kt_attempts *a, bool passed);

#endif
