/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/selfcheck/check_layers.h"

#include <stdio.h>

#include "base/err.h"
#include "tuner/measure/cold.h"
#include "tuner/selfcheck/check_duels.h"
#include "tuner/session/layer_cells.h"
#include "tuner/space/roles.h"

static const char model[] = "Qwen3-30B-A3B";

static kt_status measure(kt_check *c, const kt_table *t, const char *name, kt_err *err) {
    static const char *const routings[] = {"zipf:0", "zipf:0.6", "zipf:1"};
    int64_t tokens = c->quick ? 16 : 64;
    kt_shapes shapes;
    kt_serving_role roles[KT_MAX_ROLES];
    kt_layer_session *session = NULL;
    kt_layer_session_setup setup = {.registry = c->registry,
                                    .machine = c->machine,
                                    .table = t,
                                    .shapes = &shapes,
                                    .format = KT_SERVE_INT4,
                                    .threads = c->topology->usable_cores,
                                    .deadline_ns = INT64_MAX,
                                    .seed = c->seed,
                                    .stop = c->stop,
                                    .stop_arg = c->stop_arg};
    kt_status st;

    KT_TRY(kt_shapes_find(model, &shapes, NULL, 0, err));
    kt_roles_list(&shapes, setup.format, roles);
    setup.rotation_bytes = kt_cold_rotation_bytes(&c->machine->ceilings, c->topology->llc_bytes);
    KT_TRY(kt_layer_session_create(&setup, &session, err));
    st = KT_OK;
    for (int i = 0; i < 3 && st == KT_OK && !kt_check_stopped(c); i++) {
        kt_skew_regret r;
        char row[64];
        st = kt_layer_session_skew(session, &roles[0].problem, tokens, routings[i], &r, err);
        if (st != KT_OK) break;
        snprintf(row, sizeof row, "skew regret in the layer, %s", routings[i]);
        kt_check_at_most(c, row, 100 * r.regret, 2, "%",
                         "%lld tokens, %s: its choices by rows against each of them alone; 95 %% "
                         "interval %+.1f to %+.1f %%; best: %s",
                         (long long)tokens, name, 100 * r.low, 100 * r.high, r.best);
        kt_check_bound(c, 100 * r.high);
    }
    kt_layer_session_destroy(session);
    return st;
}

kt_status kt_check_skewed_layers(kt_check *c, kt_err *err) {
    char name[128];
    kt_table *t;
    kt_status st;

    if (kt_check_filed_table(c, model, name, sizeof name, &t) != KT_OK) {
        kt_check_missing(c, "skew regret in the layer", 2, "%",
                         "no table of %s in results/ for this machine class", model);
        return KT_OK;
    }
    st = measure(c, t, name, err);
    kt_table_destroy(t);
    return st;
}
