/* What the importance of inputs is made of (importance.h): called when a phase starts, after its inputs are
 * complete, on one thread. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/acts.h"
#include "runtime/exec/step.h"

static void add_rows(kt_step *s, kt_input kind, int64_t layer, const float *x, int64_t ldx,
                     int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++)
        kt_importance_add(s->importance, kind, layer, 0, x + r * ldx);
}

void kt_step_observe_qkv(kt_step *s, int64_t layer) {
    add_rows(s, KT_INPUT_QKV, layer, s->normed, s->config->hidden, 0, s->rows);
}

void kt_step_observe_o(kt_step *s, int64_t layer) {
    add_rows(s, KT_INPUT_O, layer, s->attended, s->config->heads * s->config->head_dim, 0, s->rows);
}

void kt_step_observe_gate_up(kt_step *s, int64_t layer) {
    const int64_t h = s->config->hidden, topk = s->config->topk;

    if (!s->config->is_moe[layer]) {
        add_rows(s, KT_INPUT_GATE_UP, layer, s->normed, h, 0, s->rows);
        return;
    }
    for (int64_t i = 0; i < s->rows * topk; i++)
        if (s->expert_id[i] >= 0)
            kt_importance_add(s->importance, KT_INPUT_GATE_UP, layer, s->expert_id[i],
                              s->normed + i / topk * h);
}

/* What gate and up left is encoded: those numbers are what down is applied to. */
void kt_step_observe_down(kt_step *s, int64_t layer) {
    const int is_moe = s->config->is_moe[layer];
    const kt_moe_job *job = kt_step_ffn_job(is_moe ? &s->moe : &s->dense);
    const kt_problem *p = &job->layer->problem;

    for (int64_t e = 0; e < p->experts; e++)
        for (int64_t i = 0; i < kt_moe_job_rows(job, e); i++)
            kt_importance_add_encoded(s->importance, layer, e, p->acts, kt_moe_job_h(job, e, i));
}

void kt_step_observe_head(kt_step *s, int64_t layer) {
    (void)layer;
    add_rows(s, KT_INPUT_HEAD, 0, s->normed, s->config->hidden, s->rows - s->n_out, s->rows);
}
