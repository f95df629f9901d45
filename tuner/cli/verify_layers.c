/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cli/verify_layers.h"

#include <string.h>

#include "base/err.h"
#include "tuner/report/plan_words.h"
#include "tuner/search/contest.h"
#include "tuner/session/encodings.h"

/* The layer's interval is of its own time; it must lie wholly above the default's. */
static bool is_slower(const kt_table_plan *p) {
    return p->row.time_ns * p->row.ci_low > p->row.default_ns * (1 + KT_MIN_GAIN);
}

static kt_status verify_format(const kt_layer_session_setup *setup,
                               void (*each)(void *arg, const kt_table_plan *plan), void *arg,
                               kt_layers_verdict *out, kt_err *err) {
    double noise = setup->machine->ceilings.aa_noise_p95;
    kt_layer_session *session = NULL;
    kt_plan_cells cells;
    kt_status st;

    kt_plan_cells_of(setup->shapes, setup->format, KT_PROFILE_QUICK, setup->threads, &cells);
    KT_TRY(
        kt_take_encodings(setup->registry, setup->machine, setup->table, false, NULL, &cells, err));
    KT_TRY(kt_layer_session_create(setup, &session, err));
    st = KT_OK;
    for (int i = 0; i < cells.n && st == KT_OK; i++) {
        kt_table_plan plan;
        if (strcmp(cells.list[i].cell, "layer_gain") != 0) continue;
        st = kt_layer_session_decide(session, &cells.list[i], &plan, err);
        if (st != KT_OK) break;
        out->checked++;
        out->unconfirmed += kt_realised_gain(&plan, noise) < KT_LEAST_REALISED;
        out->slower += is_slower(&plan);
        each(arg, &plan);
    }
    kt_layer_session_destroy(session);
    return st;
}

/* The first row of each weight format of experts stands for it. */
static bool is_new_format(const kt_table *t, size_t row) {
    if (t->rows[row].problem.op != KT_OP_MOE_FFN) return false;
    for (size_t i = 0; i < row; i++)
        if (t->rows[i].problem.op == KT_OP_MOE_FFN &&
            t->rows[i].problem.weights == t->rows[row].problem.weights)
            return false;
    return true;
}

kt_status kt_verify_layers(const kt_layer_session_setup *given, const char *model,
                           void (*each)(void *arg, const kt_table_plan *plan), void *arg,
                           kt_layers_verdict *out, kt_err *err) {
    kt_layer_session_setup setup = *given;
    kt_shapes shapes;
    kt_status st = kt_shapes_find(model, &shapes, NULL, 0, err);

    memset(out, 0, sizeof *out);
    if (st != KT_OK) return st;
    shapes.layers = KT_VERIFY_LAYERS;
    if (shapes.moe_layers > KT_VERIFY_LAYERS) shapes.moe_layers = KT_VERIFY_LAYERS;
    setup.shapes = &shapes;
    for (size_t i = 0; i < setup.table->n_rows && st == KT_OK; i++) {
        if (!is_new_format(setup.table, i)) continue;
        setup.format = kt_serving_format_of(setup.table->rows[i].problem.weights);
        st = verify_format(&setup, each, arg, out, err);
    }
    if (st == KT_OK && out->checked == 0)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%s: no layer to run end to end: the table or the model has no routed "
                       "experts",
                       model);
    return st;
}
