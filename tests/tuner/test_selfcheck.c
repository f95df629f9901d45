/* kttune selfcheck: rows that say what was measured and how; the exit code follows the bars.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "tests/support/tune_home.h"
#include "tuner/selfcheck/forgeries.h"
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

/* A bar of a rate is kept only when the sample can show it. */
Test(selfcheck, small_samples_prove_nothing) {
    static const struct {
        int hits, n;
        double bar;
        bool at_least;
        double bound;
        kt_check_verdict want;
    } cases[] = {
        {0, 24, 1, false, 11.73, KT_CHECK_UNPROVEN}, {0, 300, 1, false, 0.9936, KT_CHECK_OK},
        {1, 24, 1, false, 18.29, KT_CHECK_MISSED},   {24, 24, 95, true, 88.27, KT_CHECK_UNPROVEN},
        {60, 60, 95, true, 95.13, KT_CHECK_OK},      {9, 10, 95, true, 60.58, KT_CHECK_MISSED}};
    kt_check *c = calloc(1, sizeof *c);

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_check_rate(c, "rate", cases[i].hits, cases[i].n, cases[i].bar, cases[i].at_least, "-");
        cr_expect_eq(c->row[i].verdict, cases[i].want, "%d of %d: %s", cases[i].hits, cases[i].n,
                     kt_check_verdict_name(c->row[i].verdict));
        cr_expect_float_eq(c->row[i].bound, cases[i].bound, 0.006, "%d of %d: %g", cases[i].hits,
                           cases[i].n, c->row[i].bound);
    }
    kt_check_rate(c, "rate", 0, 0, 1, false, "-");
    cr_expect_eq(c->row[c->n_rows - 1].verdict, KT_CHECK_UNMEASURED);
    kt_check_at_most(c, "other", 1, 2, "%", "-");
    cr_expect_eq(c->row[c->n_rows - 1].verdict, KT_CHECK_OK);
    kt_check_bound(c, 3);
    cr_expect_eq(c->row[c->n_rows - 1].verdict, KT_CHECK_UNPROVEN);
    free(c);
}

/* Rows of filed data say so, and nothing is measured for them. */
Test(selfcheck, filed_rows_are_named_so, .timeout = 180) {
    kt_tune_home h;
    char *out, *line;

    kt_tune_home_make(&h);
    kt_tune_home_run(KTTUNE "selfcheck --filed zen4-2c-24g --goals 1,2,3,8,16", &out);
    for (line = strtok(out, "\n"); line && !strstr(line, " rows: "); line = strtok(NULL, "\n"))
        cr_expect(strstr(line, "filed: "), "%s", line);
    cr_expect_not_null(line);
    free(out);
    cr_expect_eq(kt_tune_home_run(KTTUNE "selfcheck --filed none", &out), 2, "%s", out);
    cr_expect(strstr(out, "'none'") && strstr(out, "machine class"), "%s", out);
    free(out);
    kt_tune_home_remove(&h);
}

/* Whatever the machine is called, a forgery is not its own value and is judged as specified. */
Test(selfcheck, forgeries_differ_from_every_machine) {
    static const kt_fingerprint machines[] = {{.vendor = "GenuineIntel",
                                               .microarch = "graniterapids-v",
                                               .family = 6,
                                               .model = 167,
                                               .isa = 0x1ff,
                                               .usable_cores = 2,
                                               .numa_nodes = 1,
                                               .memory_bytes = (uint64_t)16 << 30},
                                              {.vendor = "GenuineIntel",
                                               .microarch = "haswell",
                                               .family = 6,
                                               .model = 60,
                                               .isa = 0,
                                               .usable_cores = 1,
                                               .numa_nodes = 1,
                                               .memory_bytes = (uint64_t)4 << 30},
                                              {.vendor = "AuthenticAMD",
                                               .microarch = "zen2",
                                               .family = 23,
                                               .model = 49,
                                               .stepping = 1,
                                               .isa = KT_ISA_AVX2,
                                               .usable_cores = 64,
                                               .numa_nodes = 4,
                                               .memory_bytes = (uint64_t)512 << 30},
                                              {.vendor = "AuthenticAMD",
                                               .microarch = "zen5",
                                               .family = 26,
                                               .model = 2,
                                               .isa = 0x7f,
                                               .usable_cores = 8,
                                               .numa_nodes = 1,
                                               .memory_bytes = (uint64_t)64 << 30},
                                              {.vendor = "HygonGenuine",
                                               .microarch = "dhyana",
                                               .family = 24,
                                               .isa = KT_ISA_AVX2,
                                               .usable_cores = 4,
                                               .numa_nodes = 2,
                                               .memory_bytes = (uint64_t)32 << 30},
                                              {.vendor = "",
                                               .microarch = "x86-64-v",
                                               .isa = KT_ISA_AVX2,
                                               .usable_cores = 1,
                                               .numa_nodes = 1}};

    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        for (int probed = 0; probed < 2; probed++) {
            kt_fingerprint own = machines[i];
            kt_forgery f;
            int n = 0, possible = 0;

            if (probed) own.ceilings = (kt_ceilings){.stream_gbs_1t = 20, .aa_noise_p95 = 0.01};
            for (; kt_forge(&own, n, &f); n++) {
                kt_err why = {KT_OK, ""};
                kt_match match = kt_fingerprint_compare(&f.fingerprint, &own, &why);
                if (!f.is_possible) continue;
                possible++;
                cr_expect_neq(memcmp(&f.fingerprint, &own, sizeof own), 0, "%s: %s is its own",
                              own.microarch, f.what);
                cr_expect_eq(match, f.want, "%s, %s (%d): judged %d: %s", own.microarch, f.what, n,
                             (int)match, why.message);
            }
            cr_expect(n == 31 && possible >= n - 8, "%s: %d of %d", own.microarch, possible, n);
        }
}

/* What is not filed is not measured, and not called ok. */
Test(selfcheck, nothing_filed_is_no_success, .timeout = 180) {
    kt_tune_home h;
    char *out;

    kt_tune_home_make(&h);
    kt_tune_home_run(KTTUNE "selfcheck --goals 1,4,16 --results $XDG_DATA_HOME", &out);
    cr_expect(strstr(out, "3 rows: 0 ok, 0 missed, 0 unproven, 3 not measured"), "%s", out);
    free(out);
    cr_expect_eq(kt_tune_home_run(KTTUNE "selfcheck --goals one", &out), 2, "%s", out);
    free(out);
    kt_tune_home_remove(&h);
}
