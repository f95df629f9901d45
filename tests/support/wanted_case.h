/* One case of a parameterised test alone, for a planted fault that only this one shows: the list of
 * mutants names it behind a '#'. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_WANTED_CASE_H
#define KT_TESTS_WANTED_CASE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Does the name hold what KT_TEST_CASE says, with _ for spaces? Any does where it is not set. */
static inline bool kt_is_wanted(const char *name) {
    const char *wanted = getenv("KT_TEST_CASE");

    for (; wanted && *wanted && *name; name++) {
        size_t i = 0;
        while (wanted[i] && (name[i] == wanted[i] || (name[i] == ' ' && wanted[i] == '_'))) i++;
        if (!wanted[i]) return true;
    }
    return !wanted || !*wanted;
}

#endif
