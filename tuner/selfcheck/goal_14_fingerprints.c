/* What happens to a table of another machine? SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/plan/plan.h"
#include "tuner/selfcheck/forgeries.h"
#include "tuner/selfcheck/goal.h"

/* A table whose every row names a variant of the build, usable here or not. */
static kt_status fill(kt_table *t, kt_err *err) {
    int64_t n = 64;
    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        kt_table_row row = {.problem = {.op = KT_OP_GEMM,
                                        .weights = KT_W_INT8_CHANNEL,
                                        .acts = KT_A_INT8_G32,
                                        .m = 1,
                                        .k = 1024},
                            .threads = 1,
                            .version = v->version,
                            .time_ns = 1000,
                            .ci_low = 1,
                            .ci_high = 1,
                            .rounds = 60,
                            .default_ns = 1100,
                            .status = "tuned"};
        kt_config config = kt_config_initial(v);
        if (v->op != KT_OP_GEMM || strlen(v->name) >= sizeof row.variant) continue;
        row.problem.n = n += 64;
        snprintf(row.variant, sizeof row.variant, "%s", v->name);
        snprintf(row.default_variant, sizeof row.default_variant, "%s", v->name);
        kt_config_format(v, &config, row.config, sizeof row.config);
        kt_config_format(v, &config, row.default_config, sizeof row.default_config);
        KT_TRY(kt_table_put(t, &row, err));
    }
    return KT_OK;
}

/* Would serving with this table run what a machine of this instruction set lacks? The registry
 * is made as serving makes it: of all variants of the build. */
static kt_status plan_all(const kt_check *c, const kt_table *t, kt_isa isa, int *n, int *illegal,
                          kt_err *err) {
    kt_fingerprint machine = *c->machine;
    kt_choice_map *map = calloc(1, sizeof *map);
    kt_registry *registry = NULL;
    kt_planner *planner = NULL;
    kt_status st = map ? KT_OK : kt_fail(err, KT_E_NOMEM, "selfcheck: no memory");

    machine.isa = isa;
    if (st == KT_OK)
        st = kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, isa, &registry, err);
    if (st == KT_OK) st = kt_planner_create(registry, t, &machine, NULL, &planner, err);
    for (size_t i = 0; st == KT_OK && i < t->n_rows; i++) {
        kt_plan_source source;
        if (kt_plan_resolve(planner, &t->rows[i].problem, 1, 64, KT_DECODE_SHARE, map, &source,
                            NULL) != KT_OK)
            continue; /* refused: nothing runs */
        for (int k = 0; k < map->count; k++, ++*n)
            *illegal += (map->choice[k].variant->isa & ~isa) != 0;
    }
    kt_planner_destroy(planner);
    kt_registry_destroy(registry);
    free(map);
    return st;
}

/* This machine, and this machine without each of its instruction sets. */
static kt_status plan_everywhere(const kt_check *c, const kt_table *t, int *n, int *illegal,
                                 kt_err *err) {
    const kt_isa all = c->topology->cpu.isa;

    KT_TRY(plan_all(c, t, all, n, illegal, err));
    for (int bit = 0; bit < 64; bit++)
        if (all >> bit & 1) KT_TRY(plan_all(c, t, all & ~((kt_isa)1 << bit), n, illegal, err));
    return KT_OK;
}

static kt_status measure(kt_check *c, kt_err *err) {
    kt_table *t = NULL;
    kt_forgery forgery;
    int n = 0, right = 0, n_choices = 0, illegal = 0;
    kt_status st;

    st = kt_table_create(&t, err);
    if (st == KT_OK) st = fill(t, err);
    for (int i = 0; st == KT_OK && kt_forge(c->machine, i, &forgery); i++) {
        if (!forgery.is_possible) continue;
        right += kt_fingerprint_compare(&forgery.fingerprint, c->machine, NULL) == forgery.want;
        n++;
    }
    if (st == KT_OK) {
        t->fingerprint = *c->machine;
        st = plan_everywhere(c, t, &n_choices, &illegal, err);
    }
    kt_table_destroy(t);
    if (st != KT_OK) return st;
    kt_check_at_least(c, "forged fingerprints judged as specified", 100.0 * right / n, 100, "%",
                      "%d forgeries of this machine's fingerprint: refused, stale or the same", n);
    kt_check_at_most(c, "choices outside an instruction set", illegal, 0, "choices",
                     "%d choices of plans from a table whose rows name every GEMM variant of the "
                     "build, on this machine and without each of its instruction sets",
                     n_choices);
    return KT_OK;
}

const kt_goal kt_goal_14_fingerprints = {14, "tables of other machines", measure, false};
