/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/verify/verdicts.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

static bool is_same(const kt_gate_result *r, const kt_problem *p, const kt_choice *c) {
    return r->choice.variant == c->variant &&
           memcmp(&r->choice.config, &c->config, sizeof c->config) == 0 && r->problem.op == p->op &&
           r->problem.weights == p->weights && r->problem.acts == p->acts && r->problem.n == p->n &&
           r->problem.k == p->k;
}

const kt_gate_result *kt_verdicts_find(const kt_verdicts *v, const kt_problem *problem,
                                       const kt_choice *choice) {
    for (int i = 0; i < v->n; i++)
        if (is_same(&v->list[i], problem, choice)) return &v->list[i];
    return NULL;
}

kt_status kt_verdicts_add(kt_verdicts *v, const kt_gate_result *result, kt_err *err) {
    if (v->n == v->capacity) {
        int capacity = v->capacity ? 2 * v->capacity : 64;
        kt_gate_result *list = realloc(v->list, (size_t)capacity * sizeof *list);
        if (!list) return kt_fail(err, KT_E_NOMEM, "gate: no memory for %d results", capacity);
        v->list = list;
        v->capacity = capacity;
    }
    v->list[v->n++] = *result;
    return KT_OK;
}

void kt_verdicts_deinit(kt_verdicts *v) {
    if (!v) return;
    free(v->list);
    memset(v, 0, sizeof *v);
}
