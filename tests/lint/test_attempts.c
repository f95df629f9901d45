/* The helper of verdicts that are tried again: it says so. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/redirect.h>

#include "tests/support/attempts.h"

/* The attempts of a verdict that passes at the given one; 0 = never. */
static int attempts_until(int passes_at) {
    kt_attempts tries = {3, 0};
    while (kt_attempts_next(&tries, passes_at && tries.done >= passes_at)) {
    }
    return tries.done;
}

Test(attempts, a_verdict_at_once_is_not_mentioned, .init = cr_redirect_stderr) {
    cr_assert_eq(attempts_until(1), 1);
    cr_assert_stderr_eq_str("");
}

Test(attempts, a_late_verdict_is_told, .init = cr_redirect_stderr) {
    cr_assert_eq(attempts_until(3), 3);
    cr_assert_stderr_eq_str("[RETRY] attempts::a_late_verdict_is_told: attempt 3 of 3 passed\n");
}

Test(attempts, failing_to_the_end_is_told, .init = cr_redirect_stderr) {
    cr_assert_eq(attempts_until(0), 3);
    cr_assert_stderr_eq_str(
        "[RETRY] attempts::failing_to_the_end_is_told: all 3 attempts failed\n");
}
