/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cli/run_plans.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "tuner/report/plan_words.h"

kt_status kt_run_plans(const kt_layer_session_setup *setup, const kt_plan_cells *cells,
                       kt_table *table, FILE *progress, int *n_decided, kt_layer_spent *spent,
                       kt_err *err) {
    kt_layer_session *s = NULL;
    kt_status st = kt_layer_session_create(setup, &s, err);

    *n_decided = 0;
    if (st == KT_OK && progress)
        fprintf(progress, "deciding how whole layers run (%d decisions at most) ..\n", cells->n);
    for (int i = 0; st == KT_OK && i < cells->n; i++) {
        const kt_plan_cell *cell = &cells->list[i];
        char key[KT_PLAN_KEY_BYTES];
        kt_table_plan plan;
        if (cell->refused) continue;
        st = kt_layer_session_decide(s, cell, &plan, err);
        if (st == KT_E_NOMEM) {
            if (progress)
                fprintf(progress, "%s: passed over: %s\n", kt_plan_cell_key(cell, key, sizeof key),
                        err ? err->message : "no memory");
            st = KT_OK;
            continue;
        }
        if (st == KT_OK) st = kt_table_put_plan(table, &plan, err);
        if (st != KT_OK) break;
        *n_decided += !kt_row_is_undecided(&plan.row);
    }
    if (s) *spent = kt_layer_session_spent(s);
    kt_layer_session_destroy(s);
    return st == KT_E_CANCELLED ? KT_OK : st;
}

static double gain_of(const kt_table_plan *p) {
    return p->row.default_ns / p->row.time_ns - 1;
}

void kt_print_table_plan(const kt_table_plan *p, double noise) {
    const char *about = kt_plan_is_about(p, noise) ? "\u2248" : "";
    char words[KT_LAYER_WORDS_BYTES];

    printf("%-10s %s/%s T=%-4lld %-9s %9.1f us %s%+.1f %%  ", p->cell,
           kt_weight_format_name(p->row.problem.weights), kt_act_format_name(p->row.problem.acts),
           (long long)p->tokens, p->routing, p->row.time_ns * 1e-3, about, 100 * gain_of(p));
    if (strcmp(p->cell, "layer_gain") == 0)
        printf("%s\n", kt_plan_words(p, noise, words, sizeof words));
    else
        printf("%s\n", p->row.config);
}

void kt_write_table_plan(const kt_table_plan *p, double noise, kt_json_writer *w) {
    char key[KT_PLAN_KEY_BYTES], words[KT_LAYER_WORDS_BYTES];

    kt_json_begin_object(w);
    kt_json_add_string(w, "plan", p->cell);
    kt_json_add_string(w, "cell", kt_plan_key(p, key, sizeof key));
    kt_json_add_string(w, "choice", p->row.config);
    kt_json_add_string(w, "default", p->row.default_config);
    kt_json_add_string(w, "status", p->row.status);
    kt_json_add_fixed(w, "time_ns", p->row.time_ns, 1);
    kt_json_add_fixed(w, "default_ns", p->row.default_ns, 1);
    kt_json_add_fixed(w, "gain", gain_of(p), 4);
    kt_json_add_fixed(w, "imbalance", p->imbalance, 4);
    if (strcmp(p->cell, "layer_gain") == 0) {
        kt_json_add_fixed(w, "predicted", p->predicted, 4);
        kt_json_add_fixed(w, "realised", kt_realised_gain(p, noise), 4); /* null within the noise */
    }
    kt_json_add_string(w, "says", kt_plan_words(p, noise, words, sizeof words));
    kt_json_end_object(w);
}
