/* Operations that keep something of a sequence instead of weights, under the clock: convolution,
 * delta rule, scores of the indexer. What they keep (taps and last inputs, states, index keys)
 * rotates through memory as packed weights do; rows stay hot, as the step before leaves them. Tasks
 * are cut as in runtime/exec/ops.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "tuner/measure/synthetic.h"
#include "tuner/measure/trial_ops.h"

#define CHANNELS 256 /* of a task of CONV */
#define KEYS 256     /* of a task of INDEX */

typedef struct sequence_state {
    const kt_problem *p;
    const kt_choice *choice; /* the selected one */
    float *x, *y;            /* rows in and out */
    float *rates;            /* DELTA: b and a, z, norm, decay and dt_bias; INDEX: weights */
    float *kept;             /* of the call in hand, a slot of the bank */
    kt_cold_bank bank;       /* owned */
    char *scratch;
    size_t scratch_bytes; /* of a thread */
    kt_phase phase;
} sequence_state;

/* ---- sizes: floats ---- */

static int64_t row_of(const kt_problem *p) {
    if (p->op == KT_OP_DELTA) return 2 * p->kv_heads * p->k + p->n * p->v;
    return p->op == KT_OP_INDEX ? p->n * p->k : p->n;
}

static int64_t result_of(const kt_problem *p) {
    if (p->op == KT_OP_INDEX) return (p->kv_heads ? p->kv_heads : 1) * p->context;
    return p->op == KT_OP_DELTA ? p->n * p->v : p->n;
}

static int64_t rates_of(const kt_problem *p) {
    if (p->op == KT_OP_DELTA) return p->m * (2 * p->n + p->n * p->v) + p->v + 2 * p->n;
    return p->op == KT_OP_INDEX ? p->m * p->n : 0;
}

static int64_t kept_of(const kt_problem *p) {
    if (p->op == KT_OP_DELTA) return p->n * p->k * p->v;
    return p->op == KT_OP_INDEX ? (p->context * p->k + 1) / 2 : (2 * p->k - 1) * p->n;
}

/* ---- tasks ---- */

static void run_conv(void *arg, int64_t begin, int64_t end, int tid) {
    const sequence_state *s = arg;
    kt_conv_call call = {.problem = s->p,
                         .x = s->x,
                         .ldx = s->p->n,
                         .w = s->kept,
                         .state = s->kept + s->p->k * s->p->n,
                         .y = s->y,
                         .ldy = s->p->n,
                         .rows = s->p->m,
                         .channel_begin = begin * CHANNELS,
                         .channel_end = end * CHANNELS};

    (void)tid;
    if (call.channel_end > s->p->n) call.channel_end = s->p->n;
    s->choice->variant->conv(&call);
}

static void run_delta(void *arg, int64_t begin, int64_t end, int tid) {
    const sequence_state *s = arg;
    const kt_problem *p = s->p;
    const float *z = s->rates + p->m * 2 * p->n, *norm = z + p->m * p->n * p->v;
    const kt_delta_call call = {.problem = p,
                                .config = &s->choice->config,
                                .q = s->x,
                                .k = s->x + p->kv_heads * p->k,
                                .v = s->x + 2 * p->kv_heads * p->k,
                                .ld = row_of(p),
                                .b = s->rates,
                                .a = s->rates + p->n,
                                .ldba = 2 * p->n,
                                .decay = norm + p->v,
                                .dt_bias = norm + p->v + p->n,
                                .state = s->kept,
                                .z = z,
                                .ldz = p->n * p->v,
                                .norm = norm,
                                .eps = 1e-6f,
                                .out = s->y,
                                .ldo = p->n * p->v,
                                .rows = p->m,
                                .head_begin = begin,
                                .head_end = end,
                                .scratch = s->scratch + (size_t)tid * s->scratch_bytes};

    s->choice->variant->delta(&call);
}

static void run_index(void *arg, int64_t begin, int64_t end, int tid) {
    const sequence_state *s = arg;
    const kt_problem *p = s->p;
    const int64_t first = begin * KEYS, last = end * KEYS < p->context ? end * KEYS : p->context;
    const kt_index_call call = {.problem = p,
                                .config = &s->choice->config,
                                .q = s->x,
                                .ldq = p->n * p->k,
                                .w = s->rates,
                                .ldw = p->n,
                                .keys = (const uint16_t *)(const void *)s->kept + first * p->k,
                                .ldk = p->k,
                                .n_keys = last - first,
                                .row_end = p->m,
                                .score = s->y + first,
                                .lds = p->context,
                                .scratch = s->scratch + (size_t)tid * s->scratch_bytes};

    s->choice->variant->index(&call);
}

static kt_phase phase_of(sequence_state *s) {
    const kt_problem *p = s->p;
    kt_phase phase = {.run = run_conv, .arg = s, .n_tasks = (p->n + CHANNELS - 1) / CHANNELS};

    if (p->op == KT_OP_DELTA) {
        phase.run = run_delta;
        phase.n_tasks = p->n;
    } else if (p->op == KT_OP_INDEX) {
        phase.run = run_index;
        phase.n_tasks = (p->context + KEYS - 1) / KEYS;
    }
    return phase;
}

/* ---- life ---- */

static void destroy(kt_trial *t) {
    sequence_state *s = t->state;
    if (!s) return;
    kt_cold_bank_destroy(&s->bank);
    free(s->x);
    free(s->y);
    free(s->rates);
    free(s->scratch);
    free(s);
    t->state = NULL;
}

static float *rows_of(int64_t floats, uint64_t seed) {
    const size_t bytes = (size_t)floats * sizeof(float);
    float *x = aligned_alloc(64, bytes / 64 * 64 + 64);
    if (x) kt_synthetic_rows(x, (size_t)floats, seed);
    return x;
}

static kt_status fill_bank(sequence_state *s, size_t rotation_bytes, kt_err *err) {
    const int64_t n = kept_of(s->p);
    float *kept = rows_of(n, 3);
    kt_status st = KT_E_NOMEM;

    for (int64_t i = 0; kept && s->p->op == KT_OP_INDEX && i < n; i++) {
        const uint32_t key = kt_f32_to_bf16(kept[i]);
        const uint32_t pair = key | key << 16;
        memcpy(&kept[i], &pair, sizeof pair);
    }
    if (kept)
        st = kt_cold_bank_create(kept, (size_t)n * sizeof *kept, 1, rotation_bytes, &s->bank, err);
    else
        kt_fail(err, st, "trial: no memory for %lld floats", (long long)n);
    free(kept);
    return st;
}

static kt_status make_scratch(sequence_state *s, const kt_trial_setup *setup, kt_err *err) {
    for (int i = 0; i < setup->n_choices; i++) {
        const kt_variant *v = setup->choices[i].variant;
        const size_t bytes =
            v->workspace_bytes ? v->workspace_bytes(s->p, &setup->choices[i].config) : 0;
        if (bytes > s->scratch_bytes) s->scratch_bytes = bytes;
    }
    s->scratch_bytes = (s->scratch_bytes + 64) / 64 * 64;
    s->scratch = aligned_alloc(64, s->scratch_bytes * (size_t)kt_pool_threads(setup->pool));
    return s->scratch ? KT_OK : kt_fail(err, KT_E_NOMEM, "trial: no memory for scratch");
}

static kt_status create(kt_trial *t, kt_err *err) {
    sequence_state *s = calloc(1, sizeof *s);
    const kt_problem *p = &t->setup.problem;

    if (!s) return kt_fail(err, KT_E_NOMEM, "trial: no memory");
    t->state = s;
    s->p = p;
    s->x = rows_of(p->m * row_of(p), 1);
    s->y = rows_of(p->m * result_of(p), 2);
    s->rates = rows_of(rates_of(p) + 1, 4);
    if (!s->x || !s->y || !s->rates)
        return kt_fail(err, KT_E_NOMEM, "trial: no memory for %lld rows", (long long)p->m);
    if (p->op == KT_OP_DELTA)
        for (int64_t i = 0; i < p->n; i++) {
            float *decay = s->rates + p->m * (2 * p->n + p->n * p->v) + p->v + i;
            *decay = -fabsf(*decay);
        }
    KT_TRY(fill_bank(s, t->setup.banks->rotation_bytes, err));
    KT_TRY(make_scratch(s, &t->setup, err));
    s->phase = phase_of(s);
    return KT_OK;
}

static void select_contender(kt_trial *t, int contender) {
    sequence_state *s = t->state;
    s->choice = &t->setup.choices[contender];
}

/* Slots are written, which kt_cold_bank_next does not offer. */
static void call(kt_trial *t) {
    sequence_state *s = t->state;
    kt_cold_bank *b = &s->bank;

    s->kept = (float *)(void *)((char *)b->buffer.data + (size_t)b->at * b->stride);
    b->at = b->at + 1 == b->n_slots ? 0 : b->at + 1;
    kt_pool_run(t->setup.pool, &s->phase, 1);
}

const kt_trial_ops kt_trial_sequence = {
    .create = create, .destroy = destroy, .select = select_contender, .call = call};
