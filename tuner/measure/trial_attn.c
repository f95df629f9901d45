/* Attention under the clock: the job that serving runs, on keys and values that rotate through
 * memory as packed weights do; queries stay hot, as the projection before leaves them. The rows are
 * the last ones of a sequence of problem.context tokens. Where values are the beginning of the
 * keys' rows (kt_attn_is_latent), they are there, too.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "kernels/attn/attn_common.h"
#include "kernels/attn/attn_job.h"
#include "tuner/measure/synthetic.h"
#include "tuner/measure/trial_ops.h"

#define DRAWN_ROWS 509 /* of keys and values; the others repeat them, no two pages alike */

typedef struct attn_state {
    float *q, *out;
    int32_t *position;
    void *workspace;
    size_t workspace_bytes;
    kt_cold_bank bank; /* owned: a slot is keys, values, their scales */
    kt_attn_job job;
    kt_phase phases[KT_ATTN_PHASES];
} attn_state;

/* ---- a slot ---- */

static int64_t rows_of_cache(const kt_problem *p) {
    return p->kv_heads * p->context;
}

static size_t key_bytes(const kt_problem *p) {
    return (size_t)(rows_of_cache(p) * p->k) * kt_attn_item_bytes(p->weights);
}

static size_t value_bytes(const kt_problem *p) {
    if (kt_attn_is_latent(p)) return 0;
    return (size_t)(rows_of_cache(p) * kt_attn_value_size(p)) * kt_attn_item_bytes(p->weights);
}

/* Scales begin at a whole line. */
static size_t scales_at(const kt_problem *p) {
    return (key_bytes(p) + value_bytes(p) + 63) / 64 * 64;
}

static size_t slot_bytes(const kt_problem *p) {
    const size_t scales = kt_attn_has_scales(p->weights) ? 2 * (size_t)rows_of_cache(p) : 0;
    return scales_at(p) + scales * sizeof(float);
}

/* Rows of d elements, n of them, and their scales (NULL = none). */
static void fill_rows(const kt_problem *p, const float *drawn, int64_t d, int64_t n, char *rows,
                      float *scales) {
    const size_t row = (size_t)d * kt_attn_item_bytes(p->weights);

    for (int64_t i = 0; i < n; i++) {
        float *scale = scales ? scales + i : NULL;
        if (i < DRAWN_ROWS) {
            kt_attn_store(p->weights, drawn + i * d, d, rows + (size_t)i * row, scale);
            continue;
        }
        memcpy(rows + (size_t)i * row, rows + (size_t)(i - DRAWN_ROWS) * row, row);
        if (scale) *scale = scales[i - DRAWN_ROWS];
    }
}

static kt_status fill_bank(attn_state *s, const kt_problem *p, size_t rotation_bytes, kt_err *err) {
    const int64_t n = rows_of_cache(p), dv = kt_attn_value_size(p), d = p->k > dv ? p->k : dv;
    const bool has_scales = kt_attn_has_scales(p->weights);
    float *drawn = malloc((size_t)(DRAWN_ROWS * d) * sizeof *drawn);
    kt_status st = KT_E_NOMEM;

    if (drawn)
        st = kt_cold_bank_create(NULL, slot_bytes(p), 1, rotation_bytes, &s->bank, err);
    else
        kt_fail(err, st, "trial: no memory for rows of %lld", (long long)d);
    if (st == KT_OK) {
        char *slot = s->bank.buffer.data;
        float *scales = has_scales ? (float *)(void *)(slot + scales_at(p)) : NULL;
        kt_synthetic_rows(drawn, (size_t)(DRAWN_ROWS * d), 3);
        fill_rows(p, drawn, p->k, n, slot, scales);
        if (!kt_attn_is_latent(p))
            fill_rows(p, drawn, dv, n, slot + key_bytes(p), scales ? scales + n : NULL);
        else if (scales)
            memcpy(scales + n, scales, (size_t)n * sizeof *scales);
        kt_cold_bank_copy(&s->bank);
    }
    free(drawn);
    return st;
}

/* ---- life ---- */

static void destroy(kt_trial *t) {
    attn_state *s = t->state;
    if (!s) return;
    kt_cold_bank_destroy(&s->bank);
    free(s->q);
    free(s->out);
    free(s->position);
    free(s->workspace);
    free(s);
    t->state = NULL;
}

static void *lines_of(size_t bytes) {
    return aligned_alloc(64, (bytes + 64) / 64 * 64);
}

/* Room for whichever contender needs most. */
static kt_status make_workspace(attn_state *s, const kt_trial_setup *setup, kt_err *err) {
    const int threads = kt_pool_threads(setup->pool);

    for (int i = 0; i < setup->n_choices; i++) {
        const size_t bytes =
            kt_attn_job_bytes(&setup->choices[i], &setup->problem, setup->problem.context, threads);
        if (bytes > s->workspace_bytes) s->workspace_bytes = bytes;
    }
    s->workspace = lines_of(s->workspace_bytes);
    return s->workspace ? KT_OK : kt_fail(err, KT_E_NOMEM, "trial: no memory for attention");
}

static kt_attn_job job_of(const kt_problem *p, const attn_state *s) {
    const int64_t dv = kt_attn_value_size(p);
    const bool is_latent = kt_attn_is_latent(p);

    return (kt_attn_job){.problem = *p,
                         .q = s->q,
                         .ldq = p->n * p->k,
                         .head_stride = p->context * p->k,
                         .ldkv = p->k,
                         .v_head_stride = is_latent ? 0 : p->context * dv,
                         .ldv = is_latent ? 0 : dv,
                         .scale_stride = p->context,
                         .scale = 1 / sqrtf((float)p->k),
                         .position = s->position,
                         .rows = p->m,
                         .out = s->out,
                         .ldo = p->n * dv};
}

static kt_status create(kt_trial *t, kt_err *err) {
    attn_state *s = calloc(1, sizeof *s);
    const kt_problem *p = &t->setup.problem;
    size_t n_q, n_out;

    if (!s) return kt_fail(err, KT_E_NOMEM, "trial: no memory");
    t->state = s;
    if (p->context < p->m)
        return kt_fail(err, KT_E_INVALID, "attention: %lld rows of a context of %lld",
                       (long long)p->m, (long long)p->context);
    n_q = (size_t)(p->m * p->n * p->k);
    n_out = (size_t)(p->m * p->n * kt_attn_value_size(p));
    s->q = lines_of(n_q * sizeof *s->q);
    s->out = lines_of(n_out * sizeof *s->out);
    s->position = lines_of((size_t)p->m * sizeof *s->position);
    if (!s->q || !s->out || !s->position)
        return kt_fail(err, KT_E_NOMEM, "trial: no memory for %lld rows", (long long)p->m);
    kt_synthetic_rows(s->q, n_q, 1);
    for (int64_t i = 0; i < p->m; i++) s->position[i] = (int32_t)(p->context - p->m + i);
    KT_TRY(fill_bank(s, p, t->setup.banks->rotation_bytes, err));
    KT_TRY(make_workspace(s, &t->setup, err));
    s->job = job_of(p, s);
    kt_attn_job_phases(&s->job, s->phases);
    return KT_OK;
}

/* Cannot fail: the workspace is enough for every contender. */
static void select_contender(kt_trial *t, int contender) {
    attn_state *s = t->state;

    s->job.choice = &t->setup.choices[contender];
    (void)kt_attn_job_init(&s->job, t->setup.problem.context, kt_pool_threads(t->setup.pool),
                           s->workspace, s->workspace_bytes, NULL);
}

static void call(kt_trial *t) {
    attn_state *s = t->state;
    const kt_problem *p = &t->setup.problem;
    const char *slot = kt_cold_bank_next(&s->bank);

    s->job.k = slot;
    s->job.v = slot + (kt_attn_is_latent(p) ? 0 : key_bytes(p));
    if (kt_attn_has_scales(p->weights)) {
        s->job.k_scale = (const float *)(const void *)(slot + scales_at(p));
        s->job.v_scale = s->job.k_scale + rows_of_cache(p);
    }
    kt_pool_run(t->setup.pool, s->phases, KT_ATTN_PHASES);
}

const kt_trial_ops kt_trial_attn = {
    .create = create, .destroy = destroy, .select = select_contender, .call = call};
