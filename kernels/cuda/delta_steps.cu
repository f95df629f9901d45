/* Linear attention by the gated delta rule, row by row, for spans of few rows.
 *
 * With unit keys k, a head's state S [keys, values] meets each row so:
 *   S <- alpha S;  d = beta (v - S^T k);  S <- S + k d^T;  o = S^T q
 *
 * A block has the state of a head in registers: PARTS groups of 128 threads, a thread a column, of
 * which group g has the keys g, g + PARTS .. It waits for the state's bytes, which are read and
 * written once, 128 threads side by side.
 *
 *   delta_steps  grid (heads, spans), KT_DELTA_STEPS_SHARED bytes of shared memory
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev_delta.h"

#define PARTS KT_CONSTANT(0)
#define OWN (KT_DELTA_MOST / PARTS) /* numbers of the state in a thread */
#define THREADS (KT_DELTA_MOST * PARTS)
enum { MAX_PARTS = 8, MAX_OWN = 64 };
KT_REQUIRE(PARTS >= 2 && PARTS <= MAX_PARTS, "a state in registers");

/* Shared memory: a row of 128 floats for the key, one for the query, PARTS for S^T k and for S^T q,
 * then alpha and beta, and the sums of warps. */
enum {
    KEY = 0,
    QUERY = 512,
    MEMORY = 1024,
    RESULT = MEMORY + 512 * MAX_PARTS,
    RATES = RESULT + 512 * MAX_PARTS,
    SUMS = RATES + 16
};

/* Zeros behind the n numbers. */
KT_DEVICE void put_unit(const float *x, int n, float scale, uint32_t at) {
    const float r = kt_delta_unit(x, n) * scale;

    for (int i = kt_lane(); i < KT_DELTA_MOST; i += 32)
        kt_set_shared_f32(at + (uint32_t)i * 4, i < n ? x[i] * r : 0.0f);
}

/* A warp for the key, one for the query, one for the rates. */
KT_DEVICE void load_row(const kt_delta_batch *p, int head, int64_t row) {
    const int64_t at = row * p->ld + (int64_t)kt_delta_key_head(p, head) * p->keys;

    if (kt_warp() == 0) put_unit(p->k + at, p->keys, 1.0f, KEY);
    if (kt_warp() == 1) put_unit(p->q + at, p->keys, 1.0f / kt_sqrt((float)p->keys), QUERY);
    if (kt_warp() == 2 && kt_lane() == 0) {
        kt_set_shared_f32(RATES, kt_exp(kt_delta_log_alpha(p, head, row)));
        kt_set_shared_f32(RATES + 4, kt_delta_beta(p, head, row));
    }
}

/* The sum over the groups of what each has of a column. */
KT_DEVICE float join(uint32_t at, int column) {
    float sum = 0;

    for (int part = 0; part < PARTS; part++)
        sum += kt_shared_f32(at + (uint32_t)(part * KT_DELTA_MOST + column) * 4);
    return sum;
}

/* One row meets the state; the result of this thread's column. */
KT_DEVICE float step(float value, float *state) {
    const int part = kt_thread() / KT_DELTA_MOST, column = kt_thread() % KT_DELTA_MOST;
    const uint32_t mine = (uint32_t)kt_thread() * 4;
    const float alpha = kt_shared_f32(RATES), beta = kt_shared_f32(RATES + 4);
    float sum = 0, d;

    KT_UNROLL
    for (int i = 0; i < OWN; i++) {
        state[i] *= alpha;
        sum = kt_fma(kt_shared_f32(KEY + (uint32_t)(part + PARTS * i) * 4), state[i], sum);
    }
    kt_set_shared_f32(MEMORY + mine, sum);
    kt_sync();
    d = beta * (value - join(MEMORY, column));
    sum = 0;
    KT_UNROLL
    for (int i = 0; i < OWN; i++) {
        const uint32_t key = (uint32_t)(part + PARTS * i) * 4;
        state[i] = kt_fma(kt_shared_f32(KEY + key), d, state[i]);
        sum = kt_fma(kt_shared_f32(QUERY + key), state[i], sum);
    }
    kt_set_shared_f32(RESULT + mine, sum);
    kt_sync();
    return join(RESULT, column);
}

KT_DEVICE void steps(const kt_delta_batch *p) {
    const int part = kt_thread() / KT_DELTA_MOST, column = kt_thread() % KT_DELTA_MOST;
    const int head = kt_block_x(), is_there = column < p->values;
    const kt_state_span s = p->spans[kt_block_y()];
    const int64_t first = ((int64_t)head * p->keys + part) * p->values + column;
    float state[MAX_OWN];

    if (!kt_delta_is_mine(p, &s)) return;
    KT_UNROLL
    for (int i = 0; i < OWN; i++) {
        const int64_t at = s.from * p->stride + first + (int64_t)i * PARTS * p->values;
        state[i] = is_there && part + PARTS * i < p->keys ? p->states[at] : 0.0f;
    }
    for (int64_t row = s.first_row; row < s.first_row + s.rows; row++) {
        const int64_t value = row * p->ld + (int64_t)head * p->values + column;
        float *out = p->out + row * p->ldo + (int64_t)head * p->values + column;
        float o;
        load_row(p, head, row);
        kt_sync();
        o = step(is_there ? p->v[value] : 0.0f, state);
        if (p->z) {
            const float square = kt_block_sum(part == 0 ? o * o : 0.0f, SUMS, THREADS / 32);
            if (is_there) o = kt_delta_gate(p, head, row, column, o, square);
        }
        if (part == 0 && is_there) *out = o;
    }
    KT_UNROLL
    for (int i = 0; i < OWN; i++)
        if (is_there && part + PARTS * i < p->keys)
            p->states[s.to * p->stride + first + (int64_t)i * PARTS * p->values] = state[i];
}

KT_ENTRY(delta_steps, kt_delta_batch, steps, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

_Static_assert((int)SUMS + 128 * MAX_PARTS / 32 * 4 <= (int)KT_DELTA_STEPS_SHARED, "room");

static const int32_t parts_values[] = {2, 8};
static const kt_param params[] = {{"parts", parts_values, 2, 8}};

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)config, (void)target;
    return NULL;
}

static int threads(const kt_config *config) {
    return KT_DELTA_MOST * config->value[0];
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    (void)config, (void)k;
    return KT_DELTA_STEPS_SHARED;
}

KT_CUDA_KERNEL(delta_steps) = {
    .name = "delta_steps",
    .about = "gated delta rule, row by row",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 1,
    .entry_count = 1,
    .entry = {{"delta_steps", delta_steps}},
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
