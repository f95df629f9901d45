/* Linear attention as kernels for GPUs, under the emulator, for batches of several sequences,
 * against the references in double of the CPU's kernels. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "kernels/cuda/row_calls.h"
#include "kernels/linattn/conv_ref.h"
#include "kernels/linattn/delta_ref.h"
#include "kernels/linattn/linattn_common.h"
#include "tests/kernels/cuda_launch.h"

enum { SLOTS = 8 }; /* of states */

static void expect_near(double got, double want, double bound, const char *what, int64_t row,
                        int64_t i) {
    cr_assert(fabs(got - want) <= bound, "%s: row %d, number %d: %g, expected %g +- %g", what,
              (int)row, (int)i, got, want, bound);
}

/* The span of each row. */
static int32_t *spans_of_rows(cuda_memory *m, const kt_state_span *spans, int n, int *rows) {
    int32_t *of;

    *rows = spans[n - 1].first_row + spans[n - 1].rows;
    of = cuda_bytes(m, (size_t)*rows * sizeof *of, 0);
    for (int s = 0; s < n; s++)
        for (int r = 0; r < spans[s].rows; r++) of[spans[s].first_row + r] = s;
    return of;
}

/* ---- convolution ---- */

/* Shorter than the taps, over the borders of blocks, in place and from a state that others keep. */
static const kt_state_span conv_spans[] = {{0, 5, 3, 0, 0},   {5, 1, 9, 1, 1},  {6, 3, 0, 2, 2},
                                           {9, 18, 64, 4, 3}, {27, 1, 5, 5, 7}, {28, 4, 1, 6, 6}};
enum { CONV_SPANS = 6 };

static void check_conv(int taps, int rows_of_block, uint32_t seed) {
    const kt_cuda_kernel *k = cuda_find("conv");
    const kt_config config = {{taps, rows_of_block, 2}};
    const int channels = 77, ldx = 80, ldy = 79, size = (taps - 1) * channels, stride = size + 5;
    const kt_problem problem = {.n = channels, .k = taps};
    double want[32], bound[32];
    cuda_memory m = {.n = 0};
    kt_conv_rows call;
    int rows;
    kt_rng rng;
    float *before;

    kt_rng_seed(&rng, seed);
    call.span = spans_of_rows(&m, conv_spans, CONV_SPANS, &rows);
    call.x = cuda_floats(&m, rows * ldx, 1, &rng);
    call.w = cuda_floats(&m, taps * channels, 1, &rng);
    call.y = cuda_floats(&m, rows * ldy, 0, &rng);
    call.states = cuda_floats(&m, SLOTS * stride, 1, &rng);
    before = cuda_floats(&m, SLOTS * stride, 0, &rng);
    memcpy(before, call.states, SLOTS * (size_t)stride * sizeof *before);
    call.spans = conv_spans, call.stride = stride, call.ldx = ldx, call.ldy = ldy;
    call.channels = channels, call.rows = rows;
    cuda_launch(k, "conv_rows", &config, &call, cuda_cut(channels, 64),
                cuda_cut(rows, rows_of_block), 0, seed);
    for (int n = 0; n < CONV_SPANS; n++) {
        const kt_state_span *s = &conv_spans[n];
        const kt_conv_call ref = {.problem = &problem,
                                  .x = call.x + s->first_row * ldx,
                                  .ldx = ldx,
                                  .w = call.w,
                                  .state = before + s->from * stride,
                                  .rows = s->rows};
        for (int c = 0; c < channels; c++) {
            kt_conv_ref(&ref, c, 1, want, bound);
            for (int r = 0; r < s->rows; r++)
                expect_near((double)call.y[(s->first_row + r) * ldy + c], want[r], bound[r], "conv",
                            s->first_row + r, c);
            for (int j = 0; j < taps - 1; j++) {
                const int i = s->rows - (taps - 1) + j;
                const float old =
                    i >= 0 ? ref.x[i * ldx + c] : ref.state[(taps - 1 + i) * channels + c];
                cr_assert_eq(call.states[s->to * stride + j * channels + c], old,
                             "span %d, channel %d, state %d", n, c, j);
            }
        }
    }
    for (int i = 0; i < stride; i++) /* only read */
        cr_assert_eq(call.states[4 * stride + i], before[4 * stride + i]);
    cuda_release(&m);
}

Test(cuda_linattn, convolution_of_a_batch, .timeout = 60) {
    static const int cases[][2] = {{4, 8}, {4, 32}, {2, 8}, {8, 8}};

    for (int i = 0; i < 4; i++)
        for (uint32_t seed = 1; seed <= 2; seed++) check_conv(cases[i][0], cases[i][1], seed);
}

/* ---- delta rule ---- */

typedef struct delta_case {
    int heads, key_heads, keys, values, n_spans, rows_from;
    bool is_gated;
    kt_state_span spans[4];
} delta_case;

/* From rows_from rows on by chunks. */
static const delta_case deltas[] = {
    {4,
     2,
     16,
     36,
     4,
     64,
     true,
     {{0, 1, 5, 0, 0}, {1, 66, 30, 1, 1}, {67, 3, 0, 2, 3}, {70, 64, 64, 4, 4}}},
    {2, 1, 128, 128, 2, 64, true, {{0, 2, 0, 0, 0}, {2, 65, 7, 2, 2}}},
    {2, 2, 20, 8, 2, 1000, false, {{0, 33, 3, 0, 0}, {33, 1, 8, 1, 5}}},
    {3, 1, 8, 40, 1, 64, false, {{0, 150, 100, 1, 2}}}};

typedef struct delta_inputs {
    kt_delta_batch call;
    cuda_memory m;
    float *before;
    int width; /* of results */
} delta_inputs;

static void fill_rates(const delta_case *c, float *rates, int rows, kt_rng *rng) {
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < c->heads; h++) {
            rates[r * 2 * c->heads + h] = kt_rng_normal(rng) * (r % 7 == 3 ? 20.0f : 2.0f);
            rates[(r * 2 + 1) * c->heads + h] =
                r % 41 == 5 ? 95.0f : kt_rng_normal(rng) * 3.0f - (r % 3 ? 4.0f : 0.0f);
        }
}

static void make_delta(delta_inputs *d, const delta_case *c, uint32_t seed) {
    static const float size[] = {1.0f, 8.0f, 1e-3f, 1.0f, 0.0f};
    const int keys = c->key_heads * c->keys, ld = 2 * keys + c->heads * c->values + 3;
    const int cells = c->heads * c->keys * c->values, stride = cells + 7;
    kt_delta_batch *call = &d->call;
    int rows;
    kt_rng rng;
    float *x, *rates, *decay;

    *d = (delta_inputs){.width = c->heads * c->values};
    kt_rng_seed(&rng, seed);
    call->span = spans_of_rows(&d->m, c->spans, c->n_spans, &rows);
    x = cuda_floats(&d->m, rows * ld, 1, &rng);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 2 * keys; i++) x[r * ld + i] *= size[r % 5];
    rates = cuda_floats(&d->m, rows * 2 * c->heads, 0, &rng);
    fill_rates(c, rates, rows, &rng);
    decay = cuda_floats(&d->m, c->heads, 1, &rng);
    for (int h = 0; h < c->heads; h++) decay[h] = -expf(decay[h]);
    call->states = cuda_floats(&d->m, SLOTS * stride, 1, &rng);
    d->before = cuda_floats(&d->m, SLOTS * stride, 0, &rng);
    memcpy(d->before, call->states, SLOTS * (size_t)stride * sizeof *d->before);
    call->q = x, call->k = x + keys, call->v = x + 2 * keys, call->ld = ld;
    call->b = rates, call->a = rates + c->heads, call->ldba = 2 * c->heads;
    call->decay = decay, call->dt_bias = cuda_floats(&d->m, c->heads, 1, &rng);
    call->z = c->is_gated ? cuda_floats(&d->m, rows * d->width, 3, &rng) : NULL;
    call->norm = cuda_floats(&d->m, c->values, 1, &rng);
    call->out = cuda_floats(&d->m, rows * (d->width + 1), 0, &rng);
    call->room =
        cuda_floats(&d->m, (int64_t)KT_DELTA_SLOTS(rows) * c->heads * KT_DELTA_ROOM, 0, &rng);
    call->spans = c->spans, call->stride = stride, call->ldz = d->width, call->ldo = d->width + 1;
    call->heads = c->heads, call->key_heads = c->key_heads, call->keys = c->keys;
    call->values = c->values, call->n_spans = c->n_spans, call->rows = rows, call->eps = 1e-6f;
}

static void run_delta(kt_delta_batch *call, int rows_from, int parts, uint32_t seed) {
    const kt_cuda_kernel *steps = cuda_find("delta_steps"), *chunks = cuda_find("delta_chunks");
    const kt_config config = kt_cuda_initial(chunks);

    call->rows_from = 1, call->rows_to = rows_from;
    cuda_launch(steps, "delta_steps", &(kt_config){{parts}}, call, call->heads, call->n_spans, 0,
                seed);
    call->rows_from = rows_from, call->rows_to = 1 << 30;
    cuda_launch(chunks, "delta_chunks_prepare", &config, call, call->heads,
                KT_DELTA_SLOTS(call->rows), 0, seed);
    cuda_launch(chunks, "delta_chunks_walk", &config, call,
                call->heads * cuda_cut(call->values, 32), call->n_spans, 0, seed);
    if (call->z)
        cuda_launch(chunks, "delta_chunks_gate", &config, call, cuda_cut(call->heads, 8),
                    call->rows, 0, seed);
}

static kt_delta_call reference_of(const delta_inputs *d, const kt_problem *problem,
                                  const kt_state_span *s) {
    const kt_delta_batch *c = &d->call;
    const int64_t row = s->first_row;

    return (kt_delta_call){.problem = problem,
                           .q = c->q + row * c->ld,
                           .k = c->k + row * c->ld,
                           .v = c->v + row * c->ld,
                           .ld = c->ld,
                           .b = c->b + row * c->ldba,
                           .a = c->a + row * c->ldba,
                           .ldba = c->ldba,
                           .decay = c->decay,
                           .dt_bias = c->dt_bias,
                           .state = d->before + s->from * c->stride,
                           .z = c->z ? c->z + row * c->ldz : NULL,
                           .ldz = c->ldz,
                           .norm = c->norm,
                           .eps = c->eps,
                           .position = s->position,
                           .rows = s->rows};
}

static void expect_delta(const delta_inputs *d, const kt_state_span *s, int head) {
    const kt_delta_batch *c = &d->call;
    const int cells = c->keys * c->values;
    const kt_problem problem = {
        .m = s->rows, .n = c->heads, .k = c->keys, .v = c->values, .kv_heads = c->key_heads};
    const kt_delta_call ref = reference_of(d, &problem, s);
    const size_t results = (size_t)(s->rows * c->values);
    double *want =
        calloc(2 * results + 2 * (size_t)cells + kt_delta_ref_doubles(&problem), sizeof *want);
    double *bound = want + results, *state = bound + results, *state_bound = state + cells;

    kt_delta_ref(&ref, head, c->values, state_bound + cells, want, bound, state, state_bound);
    for (int r = 0; r < s->rows; r++)
        for (int j = 0; j < c->values; j++)
            expect_near((double)c->out[(s->first_row + r) * c->ldo + head * c->values + j],
                        want[r * c->values + j], bound[r * c->values + j], "delta",
                        s->first_row + r, head * c->values + j);
    for (int i = 0; i < cells; i++)
        expect_near((double)c->states[s->to * c->stride + head * cells + i], state[i],
                    state_bound[i], "state", s->first_row, i);
    free(want);
}

static void check_delta(const delta_case *c, int parts, uint32_t seed) {
    delta_inputs d;

    make_delta(&d, c, seed);
    run_delta(&d.call, c->rows_from, parts, seed);
    for (int s = 0; s < c->n_spans; s++) {
        for (int h = 0; h < c->heads; h++) expect_delta(&d, &c->spans[s], h);
        if (c->spans[s].from == c->spans[s].to) continue;
        for (int64_t i = 0; i < d.call.stride; i++) {
            const int64_t at = c->spans[s].from * d.call.stride + i;
            cr_assert_eq(d.call.states[at], d.before[at]);
        }
    }
    for (int r = 0; r < d.call.rows; r++) cr_assert(isnan(d.call.out[r * d.call.ldo + d.width]));
    cuda_release(&d.m);
}

Test(cuda_linattn, delta_rule_of_a_batch, .timeout = 120) {
    for (size_t i = 0; i < sizeof deltas / sizeof *deltas; i++)
        check_delta(&deltas[i], i % 2 ? 2 : 8, (uint32_t)i + 1);
}

/* Prefill in pieces of whole pages: the same bits as at once. */
Test(cuda_linattn, pieces_of_whole_pages_keep_their_bits, .timeout = 60) {
    static const delta_case whole = {2, 1, 8, 8, 1, 64, false, {{0, 192, 64, 0, 0}}};
    static const kt_state_span first = {0, 64, 64, 0, 0}, rest = {64, 128, 128, 0, 0};
    delta_inputs d;
    float *out, *state;
    size_t bytes, state_bytes;

    make_delta(&d, &whole, 3);
    bytes = (size_t)d.call.rows * (size_t)d.call.ldo * sizeof *out;
    state_bytes = (size_t)d.call.stride * sizeof *state;
    run_delta(&d.call, 64, 2, 1);
    out = malloc(bytes), state = malloc(state_bytes);
    memcpy(out, d.call.out, bytes), memcpy(state, d.call.states, state_bytes);
    memcpy(d.call.states, d.before, state_bytes);
    memset(d.call.out, 0xff, bytes);
    d.call.spans = &first, run_delta(&d.call, 64, 2, 2);
    d.call.spans = &rest, run_delta(&d.call, 64, 2, 3);
    cr_assert_eq(memcmp(out, d.call.out, bytes), 0);
    cr_assert_eq(memcmp(state, d.call.states, state_bytes), 0);
    free(out), free(state);
    cuda_release(&d.m);
}
