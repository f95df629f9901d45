/* The tables of the bench suites: what the runner and the report take for granted.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "kernels/formats/format.h"
#include "tuner/session/suite.h"

static void check_spec(const kt_suite *suite, const kt_suite_spec *spec) {
    kt_suite_row row;
    const kt_format *format = kt_format_find(spec->weights);

    cr_assert(strlen(spec->name) < sizeof row.name, "%s: %s", suite->name, spec->name);
    cr_assert_not_null(format, "%s: no format %d", spec->name, spec->weights);
    cr_assert(format->block == 0 ||
                  (spec->hidden % format->block == 0 && spec->intermediate % format->block == 0),
              "%s: sizes are not whole blocks", spec->name);
    cr_assert((spec->m > 0) != (spec->spread_tokens > 0), "%s: rows or tokens", spec->name);
    cr_assert(spec->spread_tokens * spec->topk % spec->experts == 0, "%s: uneven", spec->name);
    cr_assert(spec->bar >= 0 && spec->bar < 1, "%s: bar %g", spec->name, spec->bar);
    for (const kt_suite_spec *other = suite->specs; other < spec; other++)
        cr_assert_neq(strcmp(other->name, spec->name), 0, "%s twice", spec->name);
}

Test(suite, tables_are_complete) {
    const kt_suite *suites[] = {&kt_suite_line, &kt_suite_cpu};
    for (size_t i = 0; i < 2; i++) {
        cr_assert(suites[i]->n_specs > 0 && suites[i]->n_specs <= KT_SUITE_ROWS);
        for (int j = 0; j < suites[i]->n_specs; j++) check_spec(suites[i], &suites[i]->specs[j]);
    }
}

Test(suite, found_by_name) {
    cr_assert_eq(kt_suite_find("line"), &kt_suite_line);
    cr_assert_eq(kt_suite_find("cpu"), &kt_suite_cpu);
    cr_assert_null(kt_suite_find("moon"));
}
