/* Verdicts by the clock that are tried again. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/attempts.h"

#include <criterion/criterion.h>
#include <stdio.h>

bool kt_attempts_next(kt_attempts *a, bool passed) {
    if (a->done == 0 || (!passed && a->done < a->most)) {
        a->done++;
        return true;
    }
    if (passed && a->done == 1) return false;
    fprintf(stderr, "[RETRY] %s::%s: ", criterion_current_test->category,
            criterion_current_test->name);
    if (passed)
        fprintf(stderr, "attempt %d of %d passed\n", a->done, a->most);
    else
        fprintf(stderr, "all %d attempts failed\n", a->done);
    return false;
}
