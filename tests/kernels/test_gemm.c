/* Every dense GEMM variant against the double reference. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/formats/p64.h"
#include "kernels/gemm/gemm_gate.h"
#include "tests/kernels/variant_walk.h"
#include "tests/support/skip.h"

/* Outputs around the panel of 64, primes; inputs from one group to a real row. */
static const int64_t shapes[][2] = {
    {1, 32},   {63, 64},  {64, 96},   {65, 224},  {127, 32},  {128, 64},  {131, 96},
    {257, 32}, {17, 768}, {192, 768}, {64, 2048}, {67, 2048}, {320, 224},
};
/* Formats of more kinds than shapes: outputs, and inputs in blocks of the format. */
static const int64_t block_shapes[][2] = {{1, 1}, {63, 2}, {65, 3}, {128, 1}, {17, 8}};
static const int64_t rows[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 17, 31, 32, 33, 64, 65, 129};
#define MOST_ROWS 65
#define MOST_ROWS_BF16 129 /* whose blocks are of up to 128 rows */

ParameterizedTestParameters(gemm, every_variant_matches_the_reference) {
    size_t count;
    size_t *index = variants_of(KT_OP_GEMM, &count);
    return cr_make_param_array(size_t, index, count);
}

/* All m and all configurations over one case; configurations share its inputs and reference. */
static int64_t walk(const kt_variant *v, const kt_problem *q, uint64_t seed) {
    kt_gemm_case *inputs = NULL;
    kt_err err = {0};
    int64_t checked = 0;

    cr_assert_eq(kt_gemm_case_create(q, seed, &inputs, &err), KT_OK, "%s", err.message);
    for (int64_t c = 0; c < config_count(v); c++) {
        kt_config config = config_at(v, c);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            kt_problem call = *q;
            call.m = rows[i];
            if (call.m > q->m || !config_takes_row(c, i)) continue;
            if (kt_gate_accepts(v, &call, &config, NULL) != KT_OK) continue;
            cr_assert_eq(kt_gemm_case_check(inputs, v, &config, rows[i], NULL, &err), KT_OK, "%s",
                         err.message);
            checked++;
        }
    }
    kt_gemm_case_destroy(inputs);
    return checked;
}

/* The first formats meet every shape. The others share their kernels' loops and get fewer; plain
 * C, which has one kernel for all of them, the fewest. */
static int64_t walk_shapes(const kt_variant *v, kt_weight_format weights, kt_act_format acts) {
    const int first = weights <= KT_W_F32;
    const size_t block_count =
        v->isa == KT_ISA_SCALAR ? 3 : sizeof block_shapes / sizeof *block_shapes;
    const size_t count = first ? sizeof shapes / sizeof *shapes : block_count;
    int64_t checked = 0;

    for (size_t s = (size_t)weights % KT_SHAPE_STEP; s < count; s += KT_SHAPE_STEP) {
        const int64_t *shape = first ? shapes[s] : block_shapes[s];
        kt_problem q = {.op = KT_OP_GEMM,
                        .weights = weights,
                        .acts = acts,
                        .m = weights == KT_W_BF16      ? MOST_ROWS_BF16
                             : first                   ? MOST_ROWS
                             : v->isa == KT_ISA_SCALAR ? 9
                                                       : 17,
                        .n = shape[0],
                        .k = first ? shape[1] : shape[1] * kt_p64_k_multiple(weights)};
        checked += walk(v, &q, 7 * s + 1);
    }
    return checked;
}

ParameterizedTest(size_t *index, gemm, every_variant_matches_the_reference, .timeout = 300) {
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

/* Without VNNI oneDNN multiplies bytes with VPMADDUBSW, whose sums of two products it lets
 * saturate. Such a machine is one setting away on any other. Of what is usable all the same, the
 * bytes at the end of their range come out right. */
Test(gemm, libraries_without_vnni_are_right_or_refused) {
    cr_assert_eq(setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1), 0);
    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        kt_err err = {0};
        if (v->op != KT_OP_GEMM || !v->usable || v->isa & ~kt_isa_available() ||
            !(v->weights & KT_W_BIT(KT_W_INT8_CHANNEL)) || !(v->acts & 1u << KT_A_INT8_G32) ||
            v->usable(&err) != KT_OK)
            continue;
        cr_expect_gt(walk_shapes(v, KT_W_INT8_CHANNEL, KT_A_INT8_G32), 0, "%s", v->name);
    }
}

/* --- the gate itself: it must refuse what is wrong ----------------------------------------- */

extern const kt_variant kt_variant_any_any_p64__scalar;

typedef enum fault {
    FAULT_NONE,
    FAULT_NIBBLES,      /* low and high nibbles exchanged */
    FAULT_SCALE,        /* scales of the next group */
    FAULT_COMPENSATION, /* codes read without taking out the offset */
    FAULT_COLUMN,       /* one column past n */
    FAULT_BEFORE,       /* one float before the first column */
    FAULT_LAST_K,       /* the last four inputs left out */
    FAULT_M,            /* sums rounded once more when m > 1 */
    FAULT_OVERWRITE,    /* accumulate ignored */
    FAULTS
} fault;

/* Run the scalar kernel on inputs damaged the way a wrong kernel would read them. */
static void faulty(const kt_gemm_call *call, fault f) {
    static _Alignas(64) unsigned char weights[1 << 17], acts[1 << 17];
    const kt_problem *q = call->problem;
    size_t bytes = kt_variant_any_any_p64__scalar.packed_bytes(q);
    kt_gemm_call bad = *call;

    memcpy(weights, call->weights, bytes);
    memcpy(acts, call->a, (size_t)call->m * call->a_stride);
    bad.weights = weights;
    bad.a = acts;
    for (size_t block = 0; block + 1152 <= bytes; block += 1152) {
        for (size_t i = 0; i < 1024 && f == FAULT_NIBBLES; i++)
            weights[block + i] = (unsigned char)(weights[block + i] >> 4 | weights[block + i] << 4);
        if (f == FAULT_SCALE && block + 2304 <= bytes)
            memcpy(weights + block + 1024, (const char *)call->weights + block + 1152 + 1024, 128);
    }
    for (int64_t i = 0; i < call->m; i++) {
        unsigned char *row = acts + (size_t)i * call->a_stride;
        if (f == FAULT_COMPENSATION) memset(row + q->k + q->k / 32 * 4, 0, (size_t)q->k / 32 * 4);
        if (f == FAULT_LAST_K) memset(row + q->k - 4, 0, 4);
    }
    if (f == FAULT_OVERWRITE) bad.accumulate = 0;
    kt_variant_any_any_p64__scalar.gemm(&bad);
    if (f == FAULT_COLUMN) call->c[q->n] = 0;
    if (f == FAULT_BEFORE) call->c[-1] = 0;
    for (int64_t i = 0; i < call->m && f == FAULT_M && call->m > 1; i++)
        for (int64_t j = 64 * call->panel_begin; j < 64 * call->panel_end && j < q->n; j++)
            call->c[i * call->ldc + j] *= 1 + 0x1p-22f;
}

#define FAULTY(f)                                   \
    static void faulty_##f(const kt_gemm_call *c) { \
        faulty(c, f);                               \
    }
FAULTY(FAULT_NONE)
FAULTY(FAULT_NIBBLES)
FAULTY(FAULT_SCALE)
FAULTY(FAULT_COMPENSATION)
FAULTY(FAULT_COLUMN)
FAULTY(FAULT_BEFORE)
FAULTY(FAULT_LAST_K)
FAULTY(FAULT_M)
FAULTY(FAULT_OVERWRITE)

static void (*const faults[FAULTS])(const kt_gemm_call *) = {
    faulty_FAULT_NONE,         faulty_FAULT_NIBBLES, faulty_FAULT_SCALE,
    faulty_FAULT_COMPENSATION, faulty_FAULT_COLUMN,  faulty_FAULT_BEFORE,
    faulty_FAULT_LAST_K,       faulty_FAULT_M,       faulty_FAULT_OVERWRITE};

Test(gemm_gate, refuses_every_planted_fault_and_names_the_place) {
    for (int f = FAULT_NONE; f < FAULTS; f++) {
        kt_variant v = kt_variant_any_any_p64__scalar;
        kt_problem q = {.op = KT_OP_GEMM,
                        .weights = KT_W_INT4_G32,
                        .acts = KT_A_INT8_G32,
                        .m = 9,
                        .n = 70,
                        .k = 768};
        kt_config config = {{0}};
        kt_gate_report report = {0};
        kt_err err = {0};
        kt_status st;

        v.gemm = faults[f];
        st = kt_gemm_gate(&v, &config, &q, 5, &report, &err);
        if (f == FAULT_NONE) {
            cr_assert_eq(st, KT_OK, "%s", err.message);
            cr_assert_lt(report.rel_rms, 1e-6);
        } else {
            cr_assert_eq(st, KT_E_MISMATCH, "fault %d passed: %s", f, report.detail);
            cr_assert_not_null(strstr(err.message, "n=70 k=768 seed=5"), "%s", err.message);
        }
    }
}

Test(gemm_gate, reports_the_error_of_a_correct_variant) {
    kt_problem q = {
        .op = KT_OP_GEMM, .weights = KT_W_BF16, .acts = KT_A_BF16, .m = 2, .n = 64, .k = 96};
    kt_config config = {{0}};
    kt_gate_report report = {0};
    kt_err err = {0};
    cr_assert_eq(kt_gemm_gate(&kt_variant_any_any_p64__scalar, &config, &q, 1, &report, &err),
                 KT_OK, "%s", err.message);
    cr_assert_gt(report.rel_rms, 0);
    cr_assert_lt(report.rel_rms, 1e-6);
    q.acts = KT_A_INT8_G32;
    cr_assert_eq(kt_gemm_gate(&kt_variant_any_any_p64__scalar, &config, &q, 1, &report, &err),
                 KT_E_UNSUPPORTED);
}
