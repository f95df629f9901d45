/* kttune selfcheck: rows that say what was measured and how; the exit code follows the bars.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "tests/support/tune_home.h"
#include "tuner/selfcheck/goal.h"

#define KTTUNE KT_BUILD_DIR "/kttune "

/* Each goal of 1 to 16 has a file, and none has two. */
Test(selfcheck, every_goal_has_a_measure) {
    cr_expect_eq(kt_builtin_goal_count, 16);
    for (size_t i = 0; i < kt_builtin_goal_count; i++) {
        const kt_goal *g = kt_builtin_goals[i];
        cr_expect(g->number >= 1 && g->number <= 16 && g->title && g->measure);
        for (size_t j = 0; j < i; j++) cr_expect_neq(kt_builtin_goals[j]->number, g->number);
    }
}

/* Goals that need neither a quiet machine nor filed journals. */
Test(selfcheck, quick_goals_hold_and_say_how, .timeout = 180) {
    kt_tune_home h;
    kt_json_doc *doc;
    const kt_json *rows;
    char *out;
    kt_err err;

    kt_tune_home_make(&h);
    /* Sanitizers report the planted faults on stderr. */
    cr_expect_eq(
        kt_tune_home_run(KTTUNE "selfcheck --quick --goals 7,8,14 --results $XDG_DATA_HOME --json "
                                "2>/dev/null",
                         &out),
        0, "%s", out);
    cr_assert_eq(kt_json_parse(out, strlen(out), NULL, &doc, &err), KT_OK, "%s", out);
    rows = kt_json_get(kt_json_root(doc), "rows");
    cr_expect_eq(kt_json_length(rows), 7);
    for (size_t i = 0; i < kt_json_length(rows); i++) {
        const kt_json *r = kt_json_at(rows, i);
        const char *how = kt_json_string(kt_json_get(r, "how"), NULL);
        cr_expect(kt_json_bool(kt_json_get(r, "ok"), false), "%s: %s",
                  kt_json_string(kt_json_get(r, "name"), NULL), how);
        cr_expect(how && strlen(how) > 10);
        cr_expect(kt_json_string(kt_json_get(r, "unit"), NULL) && kt_json_get(r, "bar") &&
                  kt_json_get(r, "measured"));
    }
    kt_json_destroy(doc);
    free(out);
    kt_tune_home_remove(&h);
}

/* What is not filed is not measured, and not called ok. */
Test(selfcheck, nothing_filed_is_no_success, .timeout = 180) {
    kt_tune_home h;
    char *out;

    kt_tune_home_make(&h);
    cr_expect_eq(kt_tune_home_run(KTTUNE "selfcheck --goals 1,16 --results $XDG_DATA_HOME", &out),
                 5, "%s", out);
    cr_expect(strstr(out, "unmeasured") && strstr(out, "MISSED"), "%s", out);
    free(out);
    cr_expect_eq(kt_tune_home_run(KTTUNE "selfcheck --goals one", &out), 2, "%s", out);
    free(out);
    kt_tune_home_remove(&h);
}
