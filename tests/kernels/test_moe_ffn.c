/* Every expert feed-forward variant against the double reference. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <string.h>

#include "kernels/formats/acts.h"
#include "kernels/formats/p64.h"
#include "kernels/moe_ffn/moe_gate.h"
#include "tests/kernels/variant_walk.h"
#include "tests/support/skip.h"

/* Intermediate and hidden sizes around the panels of 32 and 64, primes of them, and slices of real
 * layers (hidden 2048 as in Qwen3-30B, intermediate cut). */
static const int64_t shapes[][2] = {{32, 32},  {32, 64},   {64, 96},  {96, 224}, {224, 96},
                                    {416, 32}, {32, 2048}, {768, 64}, {96, 768}};
/* Formats of more kinds than shapes: both in blocks of the format. */
static const int64_t block_shapes[][2] = {{1, 1}, {1, 3}, {3, 2}, {2, 1}};
static const int64_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 17, 31, 32, 33, 64, 65};
#define MOST_ROWS 65

ParameterizedTestParameters(moe_ffn, every_variant_matches_the_reference) {
    size_t count;
    size_t *index = variants_of(KT_OP_MOE_FFN, &count);
    return cr_make_param_array(size_t, index, count);
}

static int64_t walk(const kt_variant *v, const kt_problem *q, uint64_t seed) {
    kt_moe_case *inputs = NULL;
    kt_err err = {0};
    int64_t checked = 0;

    cr_assert_eq(kt_moe_case_create(q, seed, &inputs, &err), KT_OK, "%s", err.message);
    for (int64_t c = 0; c < config_count(v); c++) {
        kt_config config = config_at(v, c);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            kt_problem call = *q;
            call.m = rows[i];
            if (call.m > q->m || !config_takes_row(c, i)) continue;
            if (kt_gate_accepts(v, &call, &config, NULL) != KT_OK) continue;
            cr_assert_eq(kt_moe_case_check(inputs, v, &config, rows[i], NULL, &err), KT_OK, "%s",
                         err.message);
            checked++;
        }
    }
    kt_moe_case_destroy(inputs);
    return checked;
}

/* As in test_gemm: later formats meet fewer shapes, in plain C the fewest. Blocks of 256 inputs make large
 * matrices: each format meets every other shape, its neighbour the rest. */
static int64_t walk_shapes(const kt_variant *v, kt_weight_format weights, kt_act_format acts) {
    const int first = weights <= KT_W_F32;
    const int64_t multiple = kt_p64_k_multiple(weights);
    const size_t block_count =
        v->isa == KT_ISA_SCALAR ? 1 : sizeof block_shapes / sizeof *block_shapes;
    const size_t count = first ? sizeof shapes / sizeof *shapes : block_count;
    const size_t step = multiple >= 256 && count > 1 ? 2 * KT_SHAPE_STEP : KT_SHAPE_STEP;
    int64_t checked = 0;

    for (size_t s = (size_t)weights % step % count; s < count; s += step) {
        kt_problem q = {.op = KT_OP_MOE_FFN,
                        .weights = weights,
                        .acts = acts,
                        .m = v->isa == KT_ISA_SCALAR ? (first ? 17 : 5)
                             : first                 ? MOST_ROWS
                                                     : 17,
                        .n = first ? shapes[s][0] : block_shapes[s][0] * multiple,
                        .k = first ? shapes[s][1] : block_shapes[s][1] * multiple,
                        .experts = 1,
                        .topk = 1};
        checked += walk(v, &q, 7 * s + 1);
    }
    return checked;
}

ParameterizedTest(size_t *index, moe_ffn, every_variant_matches_the_reference, .timeout = 300) {
    const kt_variant *v = kt_builtin_variants[*index];
    int64_t checked = 0;

    kt_skip_without(v);
    for (int w = 1; w < KT_W_COUNT; w++)
        for (int a = 1; a < KT_A_COUNT; a++) {
            if (!(v->weights & KT_W_BIT(w)) || !(v->acts & 1u << a)) continue;
            checked += walk_shapes(v, (kt_weight_format)w, (kt_act_format)a);
        }
    cr_assert_gt(checked, 0, "%s accepted none of the shapes", v->name);
}

/* --- the gate itself: it must refuse what is wrong ----------------------------------------- */

extern const kt_variant kt_variant_any_any_moe64__scalar;

static void good_gate_up(const kt_moe_call *c) {
    kt_variant_any_any_moe64__scalar.moe_gate_up(c);
}

static void good_down(const kt_moe_call *c) {
    kt_variant_any_any_moe64__scalar.moe_down(c);
}

static char *h_row(const kt_moe_call *c, int64_t i) {
    return (char *)c->h + (size_t)i * c->h_stride;
}

/* Gate and up exchanged: the panel's halves swapped. */
static void swapped_gate_up(const kt_moe_call *c) {
    static _Alignas(64) unsigned char weights[1 << 17];
    kt_moe_call bad = *c;
    size_t bytes = kt_variant_any_any_moe64__scalar.packed_bytes(c->problem);
    memcpy(weights, c->weights, bytes);
    for (size_t row = 0; row + 256 <= bytes; row += 256) { /* w8c: [k/4][64][4] */
        memcpy(weights + row, (const char *)c->weights + row + 128, 128);
        memcpy(weights + row + 128, (const char *)c->weights + row, 128);
    }
    bad.weights = weights;
    good_gate_up(&bad);
}

/* A code off by one, its compensation right. */
static void inexact_gate_up(const kt_moe_call *c) {
    good_gate_up(c);
    for (int64_t i = 0; i < c->m; i++) {
        int8_t *q = (int8_t *)h_row(c, i) + 32 * c->panel_begin;
        int at = q[3] == 127 || q[3] == -127 ? 4 : 3;
        q[at] = (int8_t)(q[at] + 1);
        kt_a8_comps_mut(h_row(c, i), c->problem->n)[c->panel_begin] -= 8;
    }
}

static void uncompensated_gate_up(const kt_moe_call *c) {
    good_gate_up(c);
    kt_a8_comps_mut(h_row(c, c->m - 1), c->problem->n)[c->panel_begin] += 8;
}

static void wrong_token_gate_up(const kt_moe_call *c) {
    static const int32_t in_order[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    kt_moe_call bad = *c;
    bad.rows = in_order;
    good_gate_up(&bad);
}

static void spilling_gate_up(const kt_moe_call *c) {
    good_gate_up(c);
    h_row(c, c->m - 1)[c->problem->n + c->problem->n / 4] = 0;
}

static void unweighted_down(const kt_moe_call *c) {
    static const float ones[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    kt_moe_call bad = *c;
    bad.route_weight = ones;
    good_down(&bad);
}

static void overwriting_down(const kt_moe_call *c) {
    for (int64_t i = 0; i < c->m; i++)
        memset(c->out + c->rows[i] * c->ldo, 0, sizeof(float) * (size_t)c->problem->k);
    good_down(c);
}

static void touching_down(const kt_moe_call *c) {
    good_down(c);
    c->out[c->problem->k] = 0;
}

static void stray_token_down(const kt_moe_call *c) {
    good_down(c);
    c->out[0] += 1; /* the case leaves some tokens without a row */
    c->out[c->ldo] += 1;
    c->out[2 * c->ldo] += 1;
}

static void misplaced_down(const kt_moe_call *c) {
    kt_moe_call bad = *c;
    bad.h = h_row(c, c->m > 1);
    bad.m = c->m > 1 ? c->m - 1 : 1;
    good_down(&bad);
}

static const struct {
    const char *name;
    void (*gate_up)(const kt_moe_call *);
    void (*down)(const kt_moe_call *);
} faults[] = {
    {"gate and up exchanged", swapped_gate_up, good_down},
    {"a code off by one", inexact_gate_up, good_down},
    {"compensation off by one", uncompensated_gate_up, good_down},
    {"another token's row", wrong_token_gate_up, good_down},
    {"a byte past h", spilling_gate_up, good_down},
    {"routing weight ignored", good_gate_up, unweighted_down},
    {"overwriting out", good_gate_up, overwriting_down},
    {"a column past k", good_gate_up, touching_down},
    {"a token without a row", good_gate_up, stray_token_down},
    {"another row's h", good_gate_up, misplaced_down},
};

static kt_status gate_with(void (*gate_up)(const kt_moe_call *), void (*down)(const kt_moe_call *),
                           kt_gate_report *report, kt_err *err) {
    kt_variant v = kt_variant_any_any_moe64__scalar;
    kt_problem q = {.op = KT_OP_MOE_FFN,
                    .weights = KT_W_INT8_CHANNEL,
                    .acts = KT_A_INT8_G32,
                    .m = 9,
                    .n = 96,
                    .k = 160,
                    .experts = 1,
                    .topk = 1};
    kt_config config = {{0}};
    v.moe_gate_up = gate_up;
    v.moe_down = down;
    return kt_moe_gate(&v, &config, &q, 5, report, err);
}

Test(moe_gate, refuses_every_planted_fault) {
    kt_gate_report report = {0};
    kt_err err = {0};

    cr_assert_eq(gate_with(good_gate_up, good_down, &report, &err), KT_OK, "%s", err.message);
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
        kt_status st = gate_with(faults[f].gate_up, faults[f].down, &report, &err);
        cr_assert_eq(st, KT_E_MISMATCH, "%s passed: %s", faults[f].name, report.detail);
        cr_assert_not_null(strstr(err.message, "n=96 k=160 seed=5"), "%s", err.message);
    }
}
