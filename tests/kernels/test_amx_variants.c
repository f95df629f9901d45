/* AMX variants through the gates of every variant: on the hardware where it is, else by the emulator.
 * The registry refuses them there; here their machine code runs nevertheless.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/numeric.h"
#include "dispatch/registry/registry.h"
#include "base/rng.h"
#include "kernels/formats/iq1.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/format.h"
#include "kernels/formats/gate_inputs.h"
#include "kernels/formats/p64.h"
#include "kernels/gemm/gemm_gate.h"
#include "kernels/moe_ffn/moe_gate.h"
#include "kernels/probe/peak_tiles.h"
#include "tests/kernels/variant_walk.h"
#include "tests/support/amx_emulator.h"
#include "tests/support/skip.h"

#define AMX (KT_ISA_AMXINT8 | KT_ISA_AMXBF16)

/* Around tiles of 16, pairs of tiles, blocks of 64. */
static const int64_t rows[] = {1, 7, 15, 16, 17, 31, 33, 49, 64, 65, 81};
/* The same for opened tiles, whose ways differ with one tile, a pair, four and six. */
static const int64_t opened_rows[] = {17, 1, 33, 81, 16, 7, 49, 31, 15, 65, 64};
enum { N_ROWS = sizeof rows / sizeof *rows, MOST_ROWS = 81 };

static int64_t rows_for(const kt_variant *v, size_t i) {
    return v->numerics == KT_NUM_OPENED ? opened_rows[i] : rows[i];
}

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
    kt_skip_without_isa(KT_ISA_AVX512, "AMX variants");
    if (kt_amx_start(&err) != KT_OK) cr_skip_test("%s", err.message);
}

/* One case per format and encoding of a variant. */
typedef struct family {
    kt_weight_format weights;
    kt_act_format acts;
} family;

static int families_of(const kt_variant *v, family *out) {
    const int takes_all = __builtin_popcount(v->acts) > 2; /* of those a format meets one */
    int n = 0;
    for (int w = 1; w < KT_W_COUNT; w++)
        for (int a = 1, i = 0; a < KT_A_COUNT; a++)
            if (v->weights >> w & 1 && v->acts >> a & 1 && (!takes_all || i++ == w % 3))
                out[n++] = (family){(kt_weight_format)w, (kt_act_format)a};
    return n;
}

/* The smallest sizes from n and k on that the format can have. */
static kt_problem problem_of(const kt_variant *v, family f, int64_t n, int64_t k) {
    const int64_t multiple = kt_p64_k_multiple(f.weights);
    kt_problem q = {
        .op = v->op, .weights = f.weights, .acts = f.acts, .m = MOST_ROWS, .n = n, .k = k};

    q.k = (k + multiple - 1) / multiple * multiple;
    if (v->op == KT_OP_MOE_FFN) q.n = (n + multiple - 1) / multiple * multiple;
    if (v->op == KT_OP_MOE_FFN) q.experts = q.topk = 1;
    return q;
}

ParameterizedTestParameters(amx_gemm, matches_the_reference) {
    size_t count;
    size_t *index = amx_variants(KT_OP_GEMM, &count);
    return cr_make_param_array(size_t, index, count);
}

/* Where many formats share one kernel, a few rows and one shape of each will do. */
static int64_t row_step(int families) {
    return families > 2 ? 4 : 1;
}

ParameterizedTest(size_t *index, amx_gemm, matches_the_reference, .timeout = 120) {
    /* Inputs: less than a chunk of 128 or a block of 256, more, and an odd number of units of 32. */
    static const int64_t shapes[][2] = {{65, 96}, {17, 544}, {130, 288}, {1, 32}};
    const kt_variant *v = kt_builtin_variants[*index];
    family each[KT_W_COUNT * KT_A_COUNT];
    const int families = families_of(v, each);
    const size_t n_shapes = families > 2 ? 2 : sizeof shapes / sizeof *shapes;

    start();
    for (size_t s = 0; s < n_shapes * (size_t)families; s++) {
        const int64_t *shape = shapes[s % n_shapes];
        kt_problem q = problem_of(v, each[s / n_shapes], shape[0], shape[1]);
        kt_gemm_case *inputs = NULL;
        kt_err err = {0};

        cr_assert_eq(kt_gemm_case_create(&q, 7 * s + 1, &inputs, &err), KT_OK, "%s", err.message);
        for (int64_t c = 0; c < config_count(v); c++)
            for (size_t i = s % 2; i < N_ROWS; i += (size_t)row_step(families)) {
                kt_config config = config_at(v, c);
                cr_assert_eq(kt_gemm_case_check(inputs, v, &config, rows_for(v, i), NULL, &err),
                             KT_OK, "%s", err.message);
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
    static const int64_t shapes[][2] = {{64, 288}, {32, 32}, {96, 160}};
    const kt_variant *v = kt_builtin_variants[*index];
    family each[KT_W_COUNT * KT_A_COUNT];
    const int families = families_of(v, each);
    const size_t n_shapes = families > 2 ? 1 : sizeof shapes / sizeof *shapes;

    start();
    for (size_t s = 0; s < n_shapes * (size_t)families; s++) {
        const int64_t *shape = shapes[s % n_shapes];
        kt_problem q = problem_of(v, each[s / n_shapes], shape[0], shape[1]);
        kt_moe_case *inputs = NULL;
        kt_err err = {0};

        cr_assert_eq(kt_moe_case_create(&q, 7 * s + 1, &inputs, &err), KT_OK, "%s", err.message);
        for (int64_t c = 0; c < config_count(v); c++)
            for (size_t i = 1; i < N_ROWS; i += (size_t)(2 * row_step(families) - 1)) {
                kt_config config = config_at(v, c);
                cr_assert_eq(kt_moe_case_check(inputs, v, &config, rows_for(v, i), NULL, &err),
                             KT_OK, "%s", err.message);
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
    const size_t scratch_bytes = v->workspace_bytes ? v->workspace_bytes(q, &config) : 0;
    void *scratch = aligned_alloc(64, (scratch_bytes + 64) / 64 * 64);
    float *c = calloc((size_t)(q->m * q->n), sizeof *c);
    kt_gemm_call call = {.problem = q,
                         .scratch = scratch,
                         .config = &config,
                         .weights = packed,
                         .a = a->rows.data,
                         .a_stride = a->stride,
                         .m = q->m,
                         .panel_end = kt_p64_panels(q->n),
                         .c = c,
                         .ldc = q->n};
    cr_assert(packed && scratch && c);
    v->pack_gemm(q, &w->matrix, packed);
    v->gemm(&call);
    free(packed);
    free(scratch);
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
        family first[KT_W_COUNT * KT_A_COUNT];
        kt_problem q;
        kt_gate_matrix w;
        kt_gate_acts a;
        float *tiles, *vectors;

        families_of(pair[f][0], first);
        q = problem_of(pair[f][0], first[0], 130, 224);
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

/* --- opened tiles (kernels/p64) --- */

static const kt_variant *opened_variant(kt_op op, kt_weight_format weights) {
    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        if (v->op == op && v->numerics == KT_NUM_OPENED && v->weights >> weights & 1) return v;
    }
    return NULL;
}

/* A matrix of normal numbers in the format; of GGUF formats that nobody encodes, blocks of random
 * codes whose minima make the mean about zero. */
static void fill_normal(kt_gate_matrix *w, kt_rng *rng) {
    const kt_matrix *m = &w->matrix;
    const kt_format *f = kt_format_find(m->format);
    const size_t count = (size_t)(m->n * m->k);
    float *src = malloc(count * sizeof *src);

    cr_assert_not_null(src);
    for (size_t i = 0; i < count; i++) src[i] = 0.03f * kt_rng_normal(rng);
    if (f->encode_rows) {
        f->encode_rows(src, m->n, m->k, NULL, 0, m->n, w->data.data, w->scales.data, NULL);
    } else if (m->format == KT_W_BF16) {
        for (size_t i = 0; i < count; i++) ((uint16_t *)w->data.data)[i] = kt_f32_to_bf16(src[i]);
    } else {
        for (size_t b = 0; b < count / (size_t)f->block; b++) {
            uint8_t *block = (uint8_t *)w->data.data + b * (size_t)f->block_bytes;
            const uint16_t d = kt_f32_to_f16(0.001f), least = kt_f32_to_f16(0.007f);
            for (int i = 0; i < f->block_bytes; i++) block[i] = (uint8_t)kt_rng_below(rng, 256);
            if (f->d_at >= 0) memcpy(block + f->d_at, &d, 2);
            if (f->m_at >= 0) memcpy(block + f->m_at, &least, 2);
            if (m->format == KT_W_IQ1_M) kt_iq1_m_put_d(block, d);
            if (m->format == KT_W_MXFP4) block[0] = (uint8_t)(120 + kt_rng_below(rng, 3));
            for (int i = 0; i < 4 && m->format == KT_W_NVFP4; i++)
                block[i] = (uint8_t)(0x30 + kt_rng_below(rng, 16)); /* 1/2 to 2 */
        }
        for (int64_t r = 0; m->format == KT_W_NVFP4 && r < m->n; r++)
            ((float *)w->scales.data)[r] = 0.01f;
    }
    free(src);
}

/* An expert with its tokens. */
enum { LAYER_ROWS = 33, LAYER_N = 256, LAYER_K = 512 };
typedef struct layer {
    kt_problem problem;
    kt_gate_matrix gate, up, down;
    double *w; /* decoded, one after the other */
    uint16_t a[LAYER_ROWS * LAYER_K];
    double x[LAYER_ROWS * LAYER_K], want[LAYER_ROWS * LAYER_K];
    float got[LAYER_ROWS * LAYER_K];
} layer;

static void layer_reference(layer *l) {
    const double *gate = l->w, *up = gate + LAYER_N * LAYER_K, *down = up + LAYER_N * LAYER_K;
    double h[LAYER_N];

    for (int i = 0; i < LAYER_ROWS; i++) {
        for (int j = 0; j < LAYER_N; j++) {
            double g = 0, u = 0;
            for (int c = 0; c < LAYER_K; c++) {
                g += l->x[i * LAYER_K + c] * gate[j * LAYER_K + c];
                u += l->x[i * LAYER_K + c] * up[j * LAYER_K + c];
            }
            h[j] = g / (1 + exp(-g)) * u;
        }
        for (int c = 0; c < LAYER_K; c++) {
            double sum = 0;
            for (int j = 0; j < LAYER_N; j++) sum += h[j] * down[c * LAYER_N + j];
            l->want[i * LAYER_K + c] = sum;
        }
    }
}

static void layer_run(layer *l, const kt_variant *v) {
    const kt_problem *q = &l->problem;
    const kt_config config = {{0}};
    uint8_t *packed = aligned_alloc(64, v->packed_bytes(q) / 64 * 64 + 64);
    uint8_t *scratch = aligned_alloc(64, v->workspace_bytes(q, &config) / 64 * 64 + 64);
    uint16_t *h = aligned_alloc(64, sizeof *h * LAYER_ROWS * LAYER_N);
    uint16_t *a = aligned_alloc(64, sizeof l->a);
    float weight[LAYER_ROWS];
    int32_t rows_of[LAYER_ROWS];
    kt_moe_call call = {.problem = q,
                        .config = &config,
                        .weights = packed,
                        .a = a,
                        .a_stride = 2 * LAYER_K,
                        .rows = rows_of,
                        .route_weight = weight,
                        .m = LAYER_ROWS,
                        .panel_end = LAYER_N / 32,
                        .h = h,
                        .h_stride = 2 * LAYER_N,
                        .out = l->got,
                        .ldo = LAYER_K,
                        .scratch = scratch};

    cr_assert(packed && scratch && h && a);
    memcpy(a, l->a, sizeof l->a);
    for (int i = 0; i < LAYER_ROWS; i++) rows_of[i] = i, weight[i] = 1;
    v->pack_expert(q, &l->gate.matrix, &l->up.matrix, &l->down.matrix, packed);
    v->moe_gate_up(&call);
    call.weights = packed + kt_p64_gate_up_bytes(q);
    call.panel_end = kt_p64_panels(LAYER_K);
    v->moe_down(&call);
    free(packed);
    free(scratch);
    free(h);
    free(a);
}

static double layer_error(kt_weight_format weights) {
    layer *l = calloc(1, sizeof *l);
    double error = 0, energy = 0;
    kt_rng rng;
    kt_gate_matrix *parts[3];

    cr_assert_not_null(l);
    kt_rng_seed(&rng, 11);
    l->problem = (kt_problem){.op = KT_OP_MOE_FFN,
                              .weights = weights,
                              .acts = KT_A_BF16,
                              .m = LAYER_ROWS,
                              .n = LAYER_N,
                              .k = LAYER_K,
                              .experts = 1,
                              .topk = 1};
    l->w = malloc(sizeof *l->w * 3 * LAYER_N * LAYER_K);
    cr_assert_not_null(l->w);
    parts[0] = &l->gate, parts[1] = &l->up, parts[2] = &l->down;
    for (int i = 0; i < 3; i++) {
        const int64_t n = i < 2 ? LAYER_N : LAYER_K, k = i < 2 ? LAYER_K : LAYER_N;
        double *to = l->w + i * LAYER_N * LAYER_K;
        cr_assert_eq(kt_gate_matrix_create(weights, n, k, 1, parts[i], NULL), KT_OK);
        fill_normal(parts[i], &rng);
        for (int64_t r = 0; r < n; r++, to += k)
            kt_format_find(weights)->decode_row(&parts[i]->matrix, r, to);
    }
    for (int i = 0; i < LAYER_ROWS * LAYER_K; i++) {
        l->a[i] = kt_f32_to_bf16(kt_rng_normal(&rng));
        l->x[i] = kt_bf16_to_f32(l->a[i]);
    }
    layer_reference(l);
    layer_run(l, opened_variant(KT_OP_MOE_FFN, weights));
    for (int i = 0; i < LAYER_ROWS * LAYER_K; i++) {
        error += (l->got[i] - l->want[i]) * (l->got[i] - l->want[i]);
        energy += l->want[i] * l->want[i];
    }
    for (int i = 0; i < 3; i++) kt_gate_matrix_destroy(parts[i]);
    free(l->w);
    free(l);
    return sqrt(error / energy);
}

ParameterizedTestParameters(amx_opened, layer_keeps_the_accuracy_bar) {
    int *format = cr_malloc(sizeof *format * KT_W_COUNT);
    size_t n = 0;
    for (int w = 1; w < KT_W_COUNT; w++)
        if (opened_variant(KT_OP_MOE_FFN, (kt_weight_format)w)) format[n++] = w;
    return cr_make_param_array(int, format, n);
}

/* A whole layer with bfloat16 activations against the formula in double on the weights as they are
 * stored: 0.45 %, of which rounding h to bfloat16 is 0.17 %. */
ParameterizedTest(int *format, amx_opened, layer_keeps_the_accuracy_bar, .timeout = 60) {
    double error;

    start();
    error = layer_error((kt_weight_format)*format);
    cr_log_info("%s: %.5f", kt_weight_format_name((kt_weight_format)*format), error);
    cr_assert(error > 0 && error <= 0.0045, "%s: error %.5f",
              kt_weight_format_name((kt_weight_format)*format), error);
}

extern const kt_variant kt_variant_wrequant8_a8planes_p64__amxint8;
extern const kt_variant kt_variant_a8_rows__scalar, kt_variant_a8p_rows__scalar;

/* Relative error of a whole product: INT4 weights in groups of 32, encoded activations with an outlier in a
 * thousand, tiles; against the same INT4 weights and the activations before they were encoded. */
static double error_of_int4(kt_act_format acts) {
    enum { M = 16, N = 64, K = 1024 };
    const kt_format *format = kt_format_find(KT_W_INT4_G32);
    const kt_variant *encoder =
        acts == KT_A_INT8_G32 ? &kt_variant_a8_rows__scalar : &kt_variant_a8p_rows__scalar;
    const size_t stride = kt_act_row_bytes(acts, K);
    static float x[M * K], src[N * K];
    static double row[K];
    static uint16_t scales[N * K / 32];
    static uint8_t codes[N * K / 2];
    void *encoded = aligned_alloc(64, M * stride);
    const kt_matrix w = {KT_W_INT4_G32, N, K, codes, scales};
    const kt_problem q = {
        .op = KT_OP_GEMM, .weights = KT_W_INT4_G32, .acts = acts, .m = M, .n = N, .k = K};
    const kt_encode_call encode = {
        .x = x, .ldx = K, .k = K, .out = encoded, .out_stride = stride, .row_end = M};
    const kt_gate_matrix matrix = {.matrix = w};
    kt_gate_acts a = {.rows = {.data = encoded}, .stride = stride};
    double error = 0, energy = 0;
    kt_rng rng;
    float *c;

    cr_assert_not_null(encoded);
    kt_rng_seed(&rng, 9);
    for (int i = 0; i < N * K; i++) src[i] = (float)kt_rng_normal(&rng);
    for (int i = 0; i < M * K; i++)
        x[i] = (float)(kt_rng_normal(&rng) * (kt_rng_below(&rng, 1000) ? 1 : 22));
    format->encode_rows(src, N, K, NULL, 0, N, codes, scales, NULL);
    encoder->encode(&encode);
    c = product_of(&kt_variant_wrequant8_a8planes_p64__amxint8, &q, &matrix, &a);
    for (int j = 0; j < N; j++) {
        format->decode_row(&w, j, row);
        for (int i = 0; i < M; i++) {
            double want = 0;
            for (int l = 0; l < K; l++) want += row[l] * (double)x[i * K + l];
            error += (c[i * N + j] - want) * (c[i * N + j] - want);
            energy += want * want;
        }
    }
    free(encoded);
    free(c);
    return sqrt(error / energy);
}

/* The bar of INT4 with INT8 activations against the dequantised weights is 1.5 %. a8 and a8p lose 0.8 and
 * 0.9 % of it before any kernel runs, requant8 adds 0.7 % squared. */
Test(amx_gemm, requantised_int4_keeps_the_accuracy_bar) {
    static const kt_act_format acts[] = {KT_A_INT8_G32, KT_A_INT8_G16P2};

    start();
    for (int i = 0; i < 2; i++) {
        const double error = error_of_int4(acts[i]);
        cr_log_info("%s: %.4f", kt_act_format_name(acts[i]), error);
        cr_assert(error > 0 && error <= 0.015, "%s: error %.4f", kt_act_format_name(acts[i]),
                  error);
    }
}

extern const kt_variant kt_variant_peak_tdpbusd__amxint8, kt_variant_peak_tdpbf16__amxbf16;

/* The share of a peak that a kernel has is wrong by whatever a probe counts wrongly. */
Test(amx_probe, does_the_products_that_it_counts, .timeout = 60) {
    const struct {
        const kt_variant *probe;
        double operations; /* of a product */
    } cases[] = {{&kt_variant_peak_tdpbusd__amxint8, 16 * 16 * 64 * 2},
                 {&kt_variant_peak_tdpbf16__amxbf16, 16 * 16 * 32 * 2}};

    start();
    for (int i = 0; i < 2; i++)
        for (int64_t repeats = 1; repeats <= 2; repeats++) {
            const kt_probe_call call = {.repeats = repeats};
            const int64_t blocks = repeats * KT_PEAK_BLOCKS;
            const uint64_t before = kt_amx_executed();
            const double work = cases[i].probe->probe(&call);

            cr_expect_eq(work, (double)blocks * KT_PEAK_PRODUCTS * cases[i].operations, "%s: %g",
                         cases[i].probe->name, work);
            /* A configuration, four empty sums, a release. */
            if (!kt_amx_is_native())
                cr_expect_eq(kt_amx_executed() - before,
                             (uint64_t)(blocks * KT_PEAK_INSTRUCTIONS + 6), "%s ran %llu",
                             cases[i].probe->name,
                             (unsigned long long)(kt_amx_executed() - before));
        }
}

/* Zeros and denormals let the tile unit run faster than any model does. */
Test(amx_probe, multiplies_many_different_normal_numbers) {
    static kt_peak_operands o;
    static bool seen[1 << 16];
    int n = 0;

    kt_peak_fill(&o, KT_PEAK_BF16_KEEP, KT_PEAK_BF16_SET);
    for (size_t i = 0; i < KT_PEAK_OPERAND_BYTES / 2; i++)
        for (int which = 0; which < 2; which++) {
            uint16_t x;
            memcpy(&x, (which ? o.b : o.a) + 2 * i, 2);
            cr_assert((x >> 7 & 255) >= 112 && (x >> 7 & 255) <= 127, "%zu: %04x", i, x);
            n += !seen[x];
            seen[x] = true;
        }
    /* 8192 draws of 4096 numbers meet all but one in e^2 of them. */
    cr_expect(n > 3400 && n < 3700, "%d different numbers", n);
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
