/* What does a table cost a server? SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "dispatch/plan/plan.h"
#include "tuner/selfcheck/goal.h"

enum { ENTRIES = 2000, LOADS = 9, PASSES = 16, LOOKUPS = 1 << 18, SIZES = 1 << 12 };

static kt_status fill(const kt_check *c, kt_table *t, kt_err *err) {
    t->fingerprint = *c->machine;
    snprintf(t->workload, sizeof t->workload, "selfcheck");
    snprintf(t->build, sizeof t->build, "selfcheck");
    snprintf(t->created, sizeof t->created, "2026-01-01T00:00:00Z");
    for (int i = 0; i < ENTRIES; i++) {
        kt_table_row row = {.problem = {.op = KT_OP_GEMM,
                                        .weights = KT_W_BF16,
                                        .acts = KT_A_BF16,
                                        .m = kt_m_buckets[i % kt_m_bucket_count],
                                        .n = 64 * (1 + i / kt_m_bucket_count),
                                        .k = 1024},
                            .threads = 1,
                            .variant = "any_any_p64__scalar",
                            .version = 1,
                            .time_ns = 1000 + i,
                            .ci_low = 0.99,
                            .ci_high = 1.01,
                            .rounds = 60,
                            .default_variant = "any_any_p64__scalar",
                            .default_ns = 1100 + i,
                            .status = "tuned",
                            .n_runners = 3};
        for (int r = 0; r < 3; r++) {
            snprintf(row.runner[r].variant, sizeof row.runner[r].variant, "any_any_p64__scalar");
            row.runner[r].time_ns = 1200 + r;
        }
        KT_TRY(kt_table_put(t, &row, err));
    }
    return KT_OK;
}

/* Best of some, in ms: the machine's noise only adds. */
static kt_status time_load(const char *path, double *ms, kt_err *err) {
    *ms = INFINITY;
    for (int i = 0; i < LOADS; i++) {
        int64_t start = kt_clock_ns();
        kt_table *t;
        KT_TRY(kt_table_load(path, &t, err));
        *ms = fmin(*ms, (double)(kt_clock_ns() - start) * 1e-6);
        kt_table_destroy(t);
    }
    return KT_OK;
}

/* Row counts in random order, as experts get them; the sum keeps the compiler honest. */
static kt_status time_lookups(kt_check *c, const kt_table *t, double *ns, kt_err *err) {
    kt_choice_map *map = calloc(1, sizeof *map);
    int16_t *m = calloc(SIZES, sizeof *m);
    kt_planner *planner = NULL;
    kt_plan_source source;
    kt_problem q = t->rows[0].problem;
    volatile uintptr_t keep;
    uintptr_t sum = 0;
    kt_status st = map && m ? KT_OK : kt_fail(err, KT_E_NOMEM, "selfcheck: no memory");
    kt_rng rng;

    kt_rng_seed(&rng, c->seed);
    for (int i = 0; m && i < SIZES; i++) m[i] = (int16_t)(1 + kt_rng_below(&rng, 512));
    if (st == KT_OK) st = kt_planner_create(c->registry, t, c->machine, NULL, &planner, err);
    if (st == KT_OK)
        st = kt_plan_resolve(planner, &q, 1, KT_M_DENSE, KT_DECODE_SHARE, map, &source, err);
    if (st == KT_OK) {
        *ns = INFINITY;
        for (int pass = 0; pass < PASSES; pass++) {
            int64_t start = kt_clock_ns();
            for (int i = 0; i < LOOKUPS; i++)
                sum += (uintptr_t)kt_choice_for(map, m[i & (SIZES - 1)])->variant;
            *ns = fmin(*ns, (double)(kt_clock_ns() - start) / LOOKUPS);
        }
    }
    keep = sum;
    (void)keep;
    kt_planner_destroy(planner);
    free(map);
    free(m);
    return st;
}

static kt_status measure(kt_check *c, kt_err *err) {
    char path[2 * KT_CHECK_PATH_BYTES];
    double ms = 0, ns = 0;
    kt_table *t;
    kt_status st;

    snprintf(path, sizeof path, "%s/entries.kttable.json", c->scratch);
    KT_TRY(kt_table_create(&t, err));
    st = fill(c, t, err);
    if (st == KT_OK) st = kt_table_save(t, path, err);
    if (st == KT_OK) st = time_load(path, &ms, err);
    if (st == KT_OK) st = time_lookups(c, t, &ns, err);
    kt_table_destroy(t);
    if (st != KT_OK) return st;
    kt_check_at_most(c, "table load, 2000 entries", ms, 5, "ms",
                     "%d rows with three runners-up each, best of %d loads", ENTRIES, LOADS);
    kt_check_at_most(c, "look-up", ns, 5, "ns",
                     "%d look-ups of random row counts up to 512, best of %d passes", LOOKUPS,
                     PASSES);
    return KT_OK;
}

const kt_goal kt_goal_09_lookup = {9, "table load and look-up", measure, false};
