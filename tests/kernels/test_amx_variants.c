/* AMX variants through the gates of every variant: on the hardware where it is, else by the emulator.
 * The registry refuses them there; here their machine code runs nevertheless.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "dispatch/registry/registry.h"
#include "kernels/formats/gate_inputs.h"
#include "kernels/formats/p64.h"
#include "kernels/gemm/gemm_gate.h"
#include "kernels/moe_ffn/moe_gate.h"
#include "tests/kernels/variant_walk.h"
#include "tests/support/amx_emulator.h"

#define AMX (KT_ISA_AMXINT8 | KT_ISA_AMXBF16)

/* Around tiles of 16, pairs of tiles, blocks of 64. */
static const int64_t rows[] = {1, 7, 15, 16, 17, 31, 33, 49, 64, 65, 81};
#define MOST_ROWS 81

static size_t *amx_variants(kt_op op, size_t *count) {
    size_t all, *index = variants_of(op, &all);
    *count = 0;
    for (size_t i = 0; i < all; i++)
        if (kt_builtin_variants[index[i]]->isa & AMX) index[(*count)++] = index[i];
    return index;
}

/* Besides tiles the variants use AVX-512, which nobody emulates. */
static void start(void) {
    kt_err err = {0};
    if (!(kt_isa_available() & KT_ISA_AVX512)) cr_skip_test("AMX variants also need AVX-512");
    if (kt_amx_start(&err) != KT_OK) cr_skip_test("%s", err.message);
}

/* The smallest sizes from n and k on that the variant's i-th format can have. */
static kt_problem problem_of(const kt_variant *v, int i, int64_t n, int64_t k) {
    kt_problem q = {.op = v->op, .m = MOST_ROWS, .n = n, .k = k};
    int64_t multiple;

    for (int w = 1; w < KT_W_COUNT; w++)
        if (v->weights >> w & 1 && i-- == 0) q.weights = (kt_weight_format)w;
    multiple = kt_p64_k_multiple(q.weights);
    q.k = (k + multiple - 1) / multiple * multiple;
    if (v->op == KT_OP_MOE_FFN) q.n = (n + multiple - 1) / multiple * multiple;
    for (int a = 1; a < KT_A_COUNT; a++)
        if (v->acts >> a & 1) q.acts = (kt_act_format)a;
    if (v->op == KT_OP_MOE_FFN) q.experts = q.topk = 1;
    return q;
}

ParameterizedTestParameters(amx_gemm, matches_the_reference) {
    size_t count;
    size_t *index = amx_variants(KT_OP_GEMM, &count);
    return cr_make_param_array(size_t, index, count);
}

/* Where many formats share one kernel, a few rows and one shape of each will do. */
static bool is_for_many(const kt_variant *v) {
    return __builtin_popcount(v->weights) > 2;
}
static int64_t row_step(const kt_variant *v) {
    return is_for_many(v) ? 4 : 1;
}

ParameterizedTest(size_t *index, amx_gemm, matches_the_reference, .timeout = 120) {
    static const int64_t shapes[][2] = {{65, 96}, {1, 32}, {130, 96}, {17, 320}};
    const kt_variant *v = kt_builtin_variants[*index];
    const int formats = __builtin_popcount(v->weights);
    const size_t n_shapes = is_for_many(v) ? 1 : sizeof shapes / sizeof *shapes;

    start();
    for (size_t s = 0; s < n_shapes * (size_t)formats; s++) {
        const int64_t *shape = shapes[s % n_shapes];
        kt_problem q = problem_of(v, (int)(s / n_shapes), shape[0], shape[1]);
        kt_gemm_case *inputs = NULL;
        kt_err err = {0};

        cr_assert_eq(kt_gemm_case_create(&q, 7 * s + 1, &inputs, &err), KT_OK, "%s", err.message);
        for (int64_t c = 0; c < config_count(v); c++)
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i += (size_t)row_step(v)) {
                kt_config config = config_at(v, c);
                cr_assert_eq(kt_gemm_case_check(inputs, v, &config, rows[i], NULL, &err), KT_OK,
                             "%s", err.message);
            }
        kt_gemm_case_destroy(inputs);
    }
    cr_assert_gt(kt_amx_executed(), 0, "%s ran no tile instruction", v->name);
}

ParameterizedTestParameters(amx_moe_ffn, matches_the_reference) {
    size_t count;
    size_t *index = amx_variants(KT_OP_MOE_FFN, &count);
    return cr_make_param_array(size_t, index, count);
}

ParameterizedTest(size_t *index, amx_moe_ffn, matches_the_reference, .timeout = 120) {
    static const int64_t shapes[][2] = {{64, 96}, {32, 32}, {96, 160}};
    const kt_variant *v = kt_builtin_variants[*index];
    const int formats = __builtin_popcount(v->weights);
    const size_t n_shapes = is_for_many(v) ? 1 : sizeof shapes / sizeof *shapes;

    start();
    for (size_t s = 0; s < n_shapes * (size_t)formats; s++) {
        const int64_t *shape = shapes[s % n_shapes];
        kt_problem q = problem_of(v, (int)(s / n_shapes), shape[0], shape[1]);
        kt_moe_case *inputs = NULL;
        kt_err err = {0};

        cr_assert_eq(kt_moe_case_create(&q, 7 * s + 1, &inputs, &err), KT_OK, "%s", err.message);
        for (int64_t c = 0; c < config_count(v); c++)
            for (size_t i = 1; i < sizeof rows / sizeof *rows; i += (size_t)(2 * row_step(v) - 1)) {
                kt_config config = config_at(v, c);
                cr_assert_eq(kt_moe_case_check(inputs, v, &config, rows[i], NULL, &err), KT_OK,
                             "%s", err.message);
            }
        kt_moe_case_destroy(inputs);
    }
    cr_assert_gt(kt_amx_executed(), 0, "%s ran no tile instruction", v->name);
}

/* c of a variant over all panels; the caller frees it. */
static float *product_of(const kt_variant *v, const kt_problem *q, const kt_gate_matrix *w,
                         const kt_gate_acts *a) {
    const kt_config config = config_at(v, 0);
    void *packed = aligned_alloc(64, (v->packed_bytes(q) + 63) / 64 * 64);
    float *c = calloc((size_t)(q->m * q->n), sizeof *c);
    kt_gemm_call call = {.problem = q,
                         .config = &config,
                         .weights = packed,
                         .a = a->rows.data,
                         .a_stride = a->stride,
                         .m = q->m,
                         .panel_end = kt_p64_panels(q->n),
                         .c = c,
                         .ldc = q->n};
    cr_assert(packed && c);
    v->pack_gemm(q, &w->matrix, packed);
    v->gemm(&call);
    free(packed);
    return c;
}

extern const kt_variant kt_variant_w4g32_a8_p64__amxint8, kt_variant_w4g32_a8_p64__avx2;
extern const kt_variant kt_variant_w8c_a8_p64__amxint8, kt_variant_w8c_a8_p64__avx2;

/* A table may give one row to vectors and many to tiles: tokens do not notice. */
Test(amx_gemm, integers_have_the_bits_of_the_vector_kernels) {
    static const kt_variant *const pair[2][2] = {
        {&kt_variant_w4g32_a8_p64__amxint8, &kt_variant_w4g32_a8_p64__avx2},
        {&kt_variant_w8c_a8_p64__amxint8, &kt_variant_w8c_a8_p64__avx2}};
    start();
    for (int f = 0; f < 2; f++) {
        kt_problem q = problem_of(pair[f][0], 0, 130, 224);
        kt_gate_matrix w;
        kt_gate_acts a;
        float *tiles, *vectors;

        cr_assert_eq(kt_gate_matrix_create(q.weights, q.n, q.k, 5, &w, NULL), KT_OK);
        cr_assert_eq(kt_gate_acts_create(q.acts, q.m, q.k, 5, &a, NULL), KT_OK);
        tiles = product_of(pair[f][0], &q, &w, &a);
        vectors = product_of(pair[f][1], &q, &w, &a);
        cr_assert_arr_eq(tiles, vectors, sizeof *tiles * (size_t)(q.m * q.n), "%s",
                         pair[f][0]->name);
        free(tiles);
        free(vectors);
        kt_gate_matrix_destroy(&w);
        kt_gate_acts_destroy(&a);
    }
}

Test(amx_variants, are_refused_with_a_reason_where_the_cpu_lacks_tiles) {
    kt_registry *registry = NULL;
    size_t found = 0;
    kt_isa isa = KT_ISA_AVX2 | KT_ISA_AVX512;

    cr_assert_eq(
        kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, isa, &registry, NULL),
        KT_OK);
    for (size_t i = 0; i < kt_registry_refused_count(registry); i++) {
        const char *reason = NULL;
        const kt_variant *v = kt_registry_refused_at(registry, i, &reason);
        if (!(v->isa & AMX)) continue;
        found++;
        cr_assert_not_null(strstr(reason, "amx"), "%s: %s", v->name, reason);
    }
    cr_assert_geq(found, 8);
    kt_registry_destroy(registry);
}
