/* Linear attention: convolution and delta rule against their double references; chunks against the
 * recurrence. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "dispatch/registry/registry.h"
#include "kernels/linattn/conv_gate.h"
#include "kernels/linattn/delta_gate.h"
#include "kernels/linattn/linattn_common.h"
#include "tests/kernels/variants_of.h"
#include "tests/support/guard.h"
#include "tests/support/skip.h"

/* ---- convolution ---- */

ParameterizedTestParameters(conv, every_variant_is_within_its_bound) {
    return kt_variants_of(KT_OP_CONV);
}

ParameterizedTest(size_t *index, conv, every_variant_is_within_its_bound) {
    /* rows, channels, taps */
    static const int64_t shapes[][3] = {{1, 16, 4},  {2, 48, 4}, {3, 32, 4},  {5, 160, 4},
                                        {70, 64, 4}, {9, 32, 1}, {11, 16, 2}, {4, 64, 7},
                                        {3, 16, 16}, {5, 7, 4}};
    const kt_variant *v = kt_builtin_variants[*index];
    const kt_config config = {{0}};
    kt_err err;

    kt_skip_without_isa(v->isa, v->name);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (uint64_t seed = 1; seed <= 6; seed++) {
            const kt_problem p = {
                .op = KT_OP_CONV, .m = shapes[i][0], .n = shapes[i][1], .k = shapes[i][2]};
            if (p.n % 16 != 0 && v->accepts(&p, &config, NULL) == KT_E_UNSUPPORTED) continue;
            cr_assert(kt_conv_gate(v, &config, &p, seed, NULL, &err) == KT_OK, "%s", err.message);
        }
}

ParameterizedTestParameters(conv, stays_inside_its_channels) {
    return kt_variants_of(KT_OP_CONV);
}

ParameterizedTest(size_t *index, conv, stays_inside_its_channels) {
    const kt_variant *v = kt_builtin_variants[*index];
    const kt_problem p = {.op = KT_OP_CONV, .m = 3, .n = 64, .k = 4};
    float *x = kt_guard_alloc(3 * 64 * 4, 4, 0x3e), *y = kt_guard_alloc(3 * 64 * 4, 4, 0x11);
    float *w = kt_guard_alloc(64 * 4 * 4, 4, 0x3e), *state = kt_guard_alloc(3 * 64 * 4, 4, 0x11);
    const float canary = y[0];
    const kt_conv_call call = {.problem = &p,
                               .x = x,
                               .ldx = 64,
                               .w = w,
                               .state = state,
                               .y = y,
                               .ldy = 64,
                               .rows = 3,
                               .channel_begin = 16,
                               .channel_end = 48};

    kt_skip_without_isa(v->isa, v->name);
    v->conv(&call);
    for (int i = 0; i < 3 * 64; i++) {
        const int inside = i % 64 >= 16 && i % 64 < 48;
        cr_assert((y[i] != canary) == inside && (state[i] != canary) == inside, "%s: index %d",
                  v->name, i);
    }
    kt_guard_free(x);
    kt_guard_free(y);
    kt_guard_free(w);
    kt_guard_free(state);
}

static void write_inputs(const kt_conv_call *c) {
    for (int64_t i = 0; i < c->rows * c->ldy; i++) c->y[i] = c->x[i];
}

Test(conv, the_gate_rejects_a_wrong_kernel) {
    const kt_variant wrong = {.name = "wrong", .op = KT_OP_CONV, .bits = "w", .conv = write_inputs};
    const kt_problem p = {.op = KT_OP_CONV, .m = 2, .n = 16, .k = 4};
    const kt_config config = {{0}};
    cr_assert_eq(kt_conv_gate(&wrong, &config, &p, 1, NULL, NULL), KT_E_MISMATCH);
}

ParameterizedTestParameters(conv, refuses_by_name) {
    return kt_variants_of(KT_OP_CONV);
}

ParameterizedTest(size_t *index, conv, refuses_by_name) {
    const kt_variant *v = kt_builtin_variants[*index];
    const kt_config config = {{0}};
    kt_problem p = {.op = KT_OP_CONV, .n = 32, .k = 17};
    kt_err err;

    kt_skip_without_isa(v->isa, v->name);
    cr_expect_eq(v->accepts(&p, &config, &err), KT_E_UNSUPPORTED);
    cr_expect_not_null(strstr(err.message, "17 taps"), "%s", err.message);
    p.n = 33, p.k = 4;
    if (v->isa == KT_ISA_SCALAR) return;
    cr_expect_eq(v->accepts(&p, &config, &err), KT_E_UNSUPPORTED);
    cr_expect_not_null(strstr(err.message, "33 channels"), "%s", err.message);
}

/* ---- delta rule ---- */

ParameterizedTestParameters(delta, every_variant_is_within_its_bound) {
    return kt_variants_of(KT_OP_DELTA);
}

ParameterizedTest(size_t *index, delta, every_variant_is_within_its_bound, .timeout = 60) {
    /* rows, value heads, key heads, size of a key, of a value */
    static const int64_t shapes[][5] = {
        {1, 1, 1, 16, 16},     {3, 4, 2, 16, 32},  {64, 2, 1, 32, 16},
        {65, 3, 3, 24, 48},    {130, 2, 2, 7, 80}, {70, 4, 1, 33, 16},
        {200, 2, 1, 128, 128}, {17, 1, 1, 1, 16},  {20, 2, 1, 5, 3}};
    const kt_variant *v = kt_builtin_variants[*index];
    kt_err err;

    kt_skip_without_isa(v->isa, v->name);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int64_t c = 0; c < kt_config_count(v); c++)
            for (uint64_t seed = 1; seed <= 3; seed++) {
                const int64_t *s = shapes[i];
                const kt_config config = kt_config_at(v, c);
                const kt_problem p = {.op = KT_OP_DELTA,
                                      .m = s[0],
                                      .n = s[1],
                                      .kv_heads = s[2],
                                      .k = s[3],
                                      .v = s[4]};
                if (s[4] % 16 != 0 && v->accepts(&p, &config, NULL) == KT_E_UNSUPPORTED) continue;
                cr_assert(kt_delta_gate(v, &config, &p, seed, NULL, &err) == KT_OK, "chunk %d: %s",
                          (int)config.value[0], err.message);
            }
}

enum { HEADS = 4, KEYS = 2, K = 32, V = 32, MOST = 150, LD = 2 * KEYS * K + HEADS * V };

/* One sequence; everything ends at an inaccessible page. */
typedef struct sequence {
    kt_problem p;
    kt_config config;
    float *x, *rates, *decay, *state, *out;
    void *scratch;
} sequence;

static sequence sequence_make(const kt_variant *v, int64_t rows, int32_t chunk, uint64_t seed) {
    const size_t f = sizeof(float), m = (size_t)rows;
    sequence s = {.p = {.op = KT_OP_DELTA, .m = rows, .n = HEADS, .kv_heads = KEYS, .k = K, .v = V},
                  .config = {{chunk}}};
    kt_rng rng;

    s.x = kt_guard_alloc(m * LD * f, 4, 0);
    s.rates = kt_guard_alloc(m * 2 * HEADS * f, 4, 0);
    s.decay = kt_guard_alloc(2 * HEADS * f, 4, 0);
    s.state = kt_guard_alloc(HEADS * K * V * f, 4, 0);
    s.out = kt_guard_alloc(m * HEADS * V * f, 4, 0x11);
    s.scratch = kt_guard_alloc(v->workspace_bytes(&s.p, &s.config), 64, 0xff);
    kt_rng_seed(&rng, seed);
    for (size_t i = 0; i < m * LD; i++) s.x[i] = kt_rng_normal(&rng);
    for (size_t i = 0; i < m * 2 * HEADS; i++) s.rates[i] = kt_rng_normal(&rng);
    for (int i = 0; i < HEADS; i++) s.decay[i] = -expf(kt_rng_uniform(&rng, -4.0f, 0.0f));
    for (int i = 0; i < HEADS; i++) s.decay[HEADS + i] = kt_rng_normal(&rng);
    for (int i = 0; i < HEADS * K * V; i++) s.state[i] = kt_rng_normal(&rng);
    return s;
}

static void sequence_free(sequence *s) {
    kt_guard_free(s->x);
    kt_guard_free(s->rates);
    kt_guard_free(s->decay);
    kt_guard_free(s->state);
    kt_guard_free(s->out);
    kt_guard_free(s->scratch);
}

static kt_delta_call sequence_call(const sequence *s) {
    return (kt_delta_call){.problem = &s->p,
                           .config = &s->config,
                           .q = s->x,
                           .k = s->x + KEYS * K,
                           .v = s->x + 2 * KEYS * K,
                           .ld = LD,
                           .b = s->rates,
                           .a = s->rates + HEADS,
                           .ldba = 2 * HEADS,
                           .decay = s->decay,
                           .dt_bias = s->decay + HEADS,
                           .state = s->state,
                           .out = s->out,
                           .ldo = HEADS * V,
                           .rows = s->p.m,
                           .head_end = HEADS,
                           .scratch = s->scratch};
}

static const kt_variant *named(const char *name) {
    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (!strcmp(kt_builtin_variants[i]->name, name)) return kt_builtin_variants[i];
    return NULL;
}

static double difference(const float *a, const float *b, int64_t n) {
    double error = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(error / size);
}

ParameterizedTestParameters(delta, chunks_equal_the_recurrence) {
    return kt_variants_of(KT_OP_DELTA);
}

/* Chunks of every size after a state that is not zero, and rows that do not fill the last one. */
ParameterizedTest(size_t *index, delta, chunks_equal_the_recurrence) {
    static const int64_t rows[] = {1, 2, 64, 101, MOST};
    const kt_variant *v = kt_builtin_variants[*index], *plain = named("delta_rows__scalar");

    kt_skip_without_isa(v->isa, v->name);
    cr_assert(plain);
    for (int64_t c = 0; c < kt_config_count(v); c++)
        for (int i = 0; i < 5; i++) {
            const int32_t size = kt_config_at(v, c).value[0];
            sequence a = sequence_make(plain, rows[i], size, 11), b;
            b = sequence_make(v, rows[i], size, 11);
            kt_delta_call call = sequence_call(&a);
            plain->delta(&call);
            call = sequence_call(&b);
            v->delta(&call);
            cr_assert_lt(difference(b.out, a.out, rows[i] * HEADS * V), 1e-5, "%s: chunk %d, %d",
                         v->name, (int)size, (int)rows[i]);
            cr_assert_lt(difference(b.state, a.state, HEADS * K * V), 1e-5, "%s: chunk %d, %d",
                         v->name, (int)size, (int)rows[i]);
            sequence_free(&a);
            sequence_free(&b);
        }
}

ParameterizedTestParameters(delta, no_row_meets_a_later_one) {
    return kt_variants_of(KT_OP_DELTA);
}

/* NaN in row 90 and a head of its own: nothing before it, and nothing of other heads, changes. */
ParameterizedTest(size_t *index, delta, no_row_meets_a_later_one) {
    const kt_variant *v = kt_builtin_variants[*index];
    sequence a, b;
    kt_delta_call call;

    kt_skip_without_isa(v->isa, v->name);
    a = sequence_make(v, MOST, kt_config_initial(v).value[0], 5);
    b = sequence_make(v, MOST, kt_config_initial(v).value[0], 5);
    b.x[90 * LD + KEYS * K + 3] = NAN; /* of the first key head */
    call = sequence_call(&a);
    v->delta(&call);
    call = sequence_call(&b);
    v->delta(&call);
    for (int64_t i = 0; i < MOST * HEADS * V; i++) {
        const int64_t row = i / (HEADS * V), head = i % (HEADS * V) / V;
        if (row >= 90 && head < HEADS / KEYS)
            cr_assert(isnan(b.out[i]), "%s: row %d", v->name, (int)row);
        else
            cr_assert(memcmp(&a.out[i], &b.out[i], sizeof *a.out) == 0, "%s: row %d head %d",
                      v->name, (int)row, (int)head);
    }
    sequence_free(&a);
    sequence_free(&b);
}

static void write_values(const kt_delta_call *c) {
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t i = 0; i < c->problem->n * c->problem->v; i++)
            c->out[row * c->ldo + i] = c->v[row * c->ld + i];
}

Test(delta, the_gate_rejects_a_wrong_kernel) {
    const kt_variant wrong = {
        .name = "wrong", .op = KT_OP_DELTA, .bits = "w", .delta = write_values};
    const kt_problem p = {.op = KT_OP_DELTA, .m = 2, .n = 2, .kv_heads = 1, .k = 16, .v = 16};
    const kt_config config = {{0}};
    cr_assert_eq(kt_delta_gate(&wrong, &config, &p, 1, NULL, NULL), KT_E_MISMATCH);
}

ParameterizedTestParameters(delta, refuses_by_name) {
    return kt_variants_of(KT_OP_DELTA);
}

ParameterizedTest(size_t *index, delta, refuses_by_name) {
    const kt_variant *v = kt_builtin_variants[*index];
    const kt_config config = kt_config_initial(v);
    kt_problem p = {.op = KT_OP_DELTA, .n = 3, .kv_heads = 2, .k = 16, .v = 16};
    kt_err err;

    kt_skip_without_isa(v->isa, v->name);
    cr_expect_eq(v->accepts(&p, &config, &err), KT_E_UNSUPPORTED);
    cr_expect_not_null(strstr(err.message, "3 value heads over 2"), "%s", err.message);
    p.n = 4, p.v = v->isa == KT_ISA_SCALAR ? 0 : 20;
    cr_expect_eq(v->accepts(&p, &config, &err), KT_E_UNSUPPORTED);
    cr_expect_not_null(strstr(err.message, "keys of 16"), "%s", err.message);
}
