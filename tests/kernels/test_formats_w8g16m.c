/* w8g16m: its plain form, and that it holds the matrices of every block format exactly.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/numeric.h"
#include "base/rng.h"
#include "kernels/formats/format.h"
#include "kernels/formats/gate_inputs.h"
#include "kernels/formats/p64.h"
#include "kernels/formats/w8g16m.h"
#include "tests/support/guard.h"

/* A matrix in w8g16m, in memory that ends where the format says. */
typedef struct landed {
    int8_t *data;
    float *scales;
    kt_matrix w;
} landed;

static landed landed_make(int64_t n, int64_t k, int fill) {
    const kt_format *f = kt_format_find(KT_W_INT8_G16M);
    size_t data_bytes, scale_bytes;
    landed l;

    cr_assert_eq(kt_format_sizes(f, n, k, &data_bytes, &scale_bytes, NULL), KT_OK);
    cr_assert_eq(data_bytes, (size_t)(n * k));
    cr_assert_eq(scale_bytes, (size_t)(n * k) / 16 * 8);
    l.data = kt_guard_alloc(data_bytes, 4, fill);
    l.scales = kt_guard_alloc(scale_bytes, 4, fill);
    l.w = (kt_matrix){KT_W_INT8_G16M, n, k, l.data, l.scales};
    return l;
}

static void landed_free(landed *l) {
    kt_guard_free(l->data);
    kt_guard_free(l->scales);
}

Test(w8g16m, is_scale_times_code_plus_minimum_of_sixteen_inputs) {
    enum { N = 3, K = 96 };
    landed l = landed_make(N, K, 0);
    double row[K], terms[K];

    for (int i = 0; i < N * K; i++) l.data[i] = (int8_t)(i - 128);
    for (int g = 0; g < N * K / 16; g++) {
        l.scales[2 * g] = (float)(g - 9) * 0x1.8p-7f;
        l.scales[2 * g + 1] = (float)(5 - g) * 3.0f;
    }
    for (int r = 0; r < N; r++) {
        kt_format_find(KT_W_INT8_G16M)->decode_row(&l.w, r, row);
        kt_format_find(KT_W_INT8_G16M)->terms_row(&l.w, r, terms);
        for (int i = 0; i < K; i++) {
            const int at = r * K + i, g = at / 16;
            const double product = (g - 9) * 0x1.8p-7 * (int8_t)(at - 128), minimum = (5 - g) * 3.0;
            cr_assert(row[i] == product + minimum, "row %d input %d: %g", r, i, row[i]);
            cr_assert(terms[i] == fabs(product) + fabs(minimum), "row %d input %d", r, i);
        }
    }
    landed_free(&l);
}

/* Equal numbers, or both not a number. decode_row's sums are exact in double where there is a
 * minimum: a half times up to 11 bits (Q5_K: 6 and 5; zero points: 8) is a multiple of 2^-24
 * below 2^27, the sum of two such has 52 bits at most. */
static void check_equal(const kt_matrix *w, const landed *l) {
    double *want = malloc(sizeof *want * (size_t)w->k), *got = malloc(sizeof *got * (size_t)w->k);

    for (int64_t r = 0; r < w->n; r++) {
        kt_format_find(w->format)->decode_row(w, r, want);
        kt_format_find(KT_W_INT8_G16M)->decode_row(&l->w, r, got);
        for (int64_t i = 0; i < w->k; i++)
            cr_assert(isnan(want[i]) ? isnan(got[i]) : got[i] == want[i],
                      "%s row %lld input %lld: %.17g became %.17g",
                      kt_weight_format_name(w->format), (long long)r, (long long)i, want[i],
                      got[i]);
    }
    free(want), free(got);
}

static void check_matrix(const kt_matrix *w) {
    landed l = landed_make(w->n, w->k, 0xAA);
    kt_err err = {0};

    cr_assert_eq(kt_w8g16m_from(w, 0, w->n, l.data, l.scales, &err), KT_OK, "%s", err.message);
    check_equal(w, &l);
    landed_free(&l);
}

/* Is this one of the formats that the header promises? */
static int is_promised(int id) {
    return id != KT_W_F32 && id != KT_W_BF16 && id != KT_W_F16 && id != KT_W_FP8_B128 &&
           id != KT_W_FP8_CHANNEL && id != KT_W_MXFP8;
}

Test(w8g16m, holds_adversarial_matrices_of_every_format_of_codes) {
    int formats = 0;

    for (int id = 1; id < KT_W_COUNT; id++) {
        cr_assert_eq(!!kt_w8g16m_takes((kt_weight_format)id), is_promised(id), "%s",
                     kt_weight_format_name((kt_weight_format)id));
        if (!is_promised(id)) continue;
        formats++;
        for (uint64_t seed = 1; seed <= 5; seed++) {
            kt_gate_matrix w;
            cr_assert_eq(kt_gate_matrix_create((kt_weight_format)id, 13, 768, seed, &w, NULL),
                         KT_OK);
            if (id == KT_W_NVFP4) w.matrix.scales = NULL; /* factors of 1 */
            check_matrix(&w.matrix);
            kt_gate_matrix_destroy(&w);
        }
    }
    cr_assert_eq(formats, 32); /* 30 of blocks, w4g32, w8c */
}

/* A factor of a row times its scales, 24 bits times 4, is rounded once. */
Test(w8g16m, multiplies_scales_of_nvfp4_by_the_factors_of_rows) {
    enum { N = 3, K = 128 };
    uint8_t blocks[N * K / 64 * 36];
    const float factors[N] = {0x1.fffffep-3f, -0x1.2468acp-20f, 1};
    const kt_matrix w = {KT_W_NVFP4, N, K, blocks, factors};
    landed l = landed_make(N, K, 0xAA);
    double want[K], got[K];

    for (size_t i = 0; i < sizeof blocks; i++) blocks[i] = (uint8_t)(37 * i + 5);
    cr_assert_eq(kt_w8g16m_from(&w, 0, N, l.data, l.scales, NULL), KT_OK);
    for (int r = 0; r < N; r++) {
        kt_format_find(KT_W_NVFP4)->decode_row(&w, r, want);
        kt_format_find(KT_W_INT8_G16M)->decode_row(&l.w, r, got);
        for (int i = 0; i < K; i++)
            cr_assert(fabs(got[i] - want[i]) <= 0x1p-24 * fabs(want[i]), "row %d input %d", r, i);
    }
    landed_free(&l);
}

/* Any bytes at all: every sub-scale and code, subnormal, infinite and NaN scales and minima. */
Test(w8g16m, holds_random_bytes_of_every_format) {
    enum { N = 64, K = 512 };

    for (int id = 1; id < KT_W_COUNT; id++) {
        const kt_format *f = kt_format_find((kt_weight_format)id);
        size_t data_bytes, scale_bytes;
        uint8_t *bytes[2];
        kt_rng rng;

        if (!is_promised(id)) continue;
        kt_rng_seed(&rng, (uint64_t)id);
        f->plain_bytes(N, K, &data_bytes, &scale_bytes);
        bytes[0] = malloc(data_bytes + 1), bytes[1] = malloc(scale_bytes + 1);
        for (size_t i = 0; i < data_bytes; i++) bytes[0][i] = (uint8_t)kt_rng_below(&rng, 256);
        for (size_t i = 0; i < scale_bytes; i++) bytes[1][i] = (uint8_t)kt_rng_below(&rng, 256);
        kt_matrix w = {f->id, N, K, bytes[0], scale_bytes && id != KT_W_NVFP4 ? bytes[1] : NULL};
        check_matrix(&w);
        free(bytes[0]), free(bytes[1]);
    }
}

/* The f16 members of GGUF blocks at their ends, beside any codes and sub-scales. */
Test(w8g16m, holds_extreme_scales_and_minima_of_blocks) {
    static const uint16_t halves[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x83ff,
                                      0x0400, 0x7bff, 0xfbff, 0x3c00, 0xbc00, 0x7bfe,
                                      0x3555, 0x7c00, 0xfc00, 0x7e00, 0x0200, 0x6bff};
    enum { HALVES = sizeof halves / sizeof *halves, K = 256 };

    for (size_t i = 0; i < kt_builtin_format_count; i++) {
        const kt_format *f = kt_builtin_formats[i];
        const int64_t blocks = f->block ? K / f->block : 0;
        uint8_t data[K / 32 * 34];
        kt_matrix w = {f->id, 1, K, data, NULL};
        kt_rng rng;

        if (!f->block_bytes || f->d_at < 0) continue;
        kt_rng_seed(&rng, i);
        for (int d = 0; d < HALVES; d++)
            for (int m = 0; m < (f->m_at < 0 ? 1 : HALVES); m++) {
                for (int64_t j = 0; j < blocks * f->block_bytes; j++)
                    data[j] = (uint8_t)kt_rng_below(&rng, 256);
                for (int64_t b = 0; b < blocks; b++) {
                    memcpy(data + b * f->block_bytes + f->d_at, &halves[d], 2);
                    if (f->m_at >= 0) memcpy(data + b * f->block_bytes + f->m_at, &halves[m], 2);
                }
                check_matrix(&w);
            }
    }
}

Test(w8g16m, holds_every_exponent_of_mxfp4) {
    uint8_t block[17];
    kt_matrix w = {KT_W_MXFP4, 1, 32, block, NULL};

    for (int i = 0; i < 16; i++) block[1 + i] = (uint8_t)(i | (15 - i) << 4);
    for (int e = 0; e < 256; e++) {
        block[0] = (uint8_t)e;
        check_matrix(&w);
    }
}

/* Beyond 128 code - zero is no int8: the rest becomes a minimum. */
Test(w8g16m, holds_every_zero_point) {
    static const kt_weight_format ids[] = {KT_W_INT4Z_G32, KT_W_INT4Z_G64, KT_W_INT4Z_G128};
    static const uint16_t halves[] = {0x3c01, 0x87ff, 0x7bff, 0x0001, 0x7c00, 0x7e00};
    enum { K = 128 };

    for (size_t f = 0; f < sizeof ids / sizeof *ids; f++)
        for (size_t s = 0; s < sizeof halves / sizeof *halves; s++)
            for (int zero = 0; zero < 256; zero++) {
                const int64_t groups = K / kt_format_find(ids[f])->group;
                uint8_t data[K / 2], scales[3 * K]; /* more than any has */
                kt_matrix w = {ids[f], 1, K, data, scales};
                for (int i = 0; i < K / 2; i++) data[i] = (uint8_t)(i * 0x1b);
                memset(scales, zero, sizeof scales);
                for (int64_t g = 0; g < groups; g++) memcpy(scales + 2 * g, &halves[s], 2);
                check_matrix(&w);
            }
}

/* What is stored is the block's own step and minimum, not only numbers that happen to give its
 * values. */
Test(w8g16m, keeps_the_scale_minimum_and_code_of_a_block) {
    uint8_t block[144] = {0};
    const uint16_t d = kt_f32_to_f16(0x1.554p-5f), dmin = kt_f32_to_f16(0x1.ffcp-9f);
    kt_matrix w = {KT_W_Q4_K, 1, 256, block, NULL};
    landed l = landed_make(1, 256, 0xAA);

    memcpy(block, &d, 2), memcpy(block + 2, &dmin, 2);
    for (int t = 0; t < 4; t++) block[4 + t] = (uint8_t)(63 - t), block[8 + t] = (uint8_t)(40 + t);
    for (int i = 0; i < 128; i++) block[16 + i] = (uint8_t)(i * 7);
    cr_assert_eq(kt_w8g16m_from(&w, 0, 1, l.data, l.scales, NULL), KT_OK);
    for (int g = 0; g < 8; g++) { /* of 16; the first four groups of the block */
        cr_assert_eq(l.scales[2 * g], 0x1.554p-5f * (float)(63 - g / 2));
        cr_assert_eq(l.scales[2 * g + 1], -0x1.ffcp-9f * (float)(40 + g / 2));
    }
    for (int i = 0; i < 128; i++)
        cr_assert_eq(l.data[i], block[16 + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15);
    landed_free(&l);
}

Test(w8g16m, rows_may_be_shared_out_anywhere) {
    static const kt_weight_format ids[] = {KT_W_Q3_K, KT_W_Q5_1, KT_W_INT8_CHANNEL, KT_W_INT8_G16M};
    enum { N = 11, K = 256 };

    for (size_t f = 0; f < sizeof ids / sizeof *ids; f++) {
        landed whole = landed_make(N, K, 0xAA), parts = landed_make(N, K, 0xAA);
        kt_gate_matrix w;

        cr_assert_eq(kt_gate_matrix_create(ids[f], N, K, 3, &w, NULL), KT_OK);
        kt_w8g16m_from(&w.matrix, 0, N, whole.data, whole.scales, NULL);
        kt_w8g16m_from(&w.matrix, 7, N, parts.data, parts.scales, NULL);
        for (int i = 0; i < 7 * K; i++) cr_assert_eq((uint8_t)parts.data[i], 0xAA);
        for (int i = 0; i < 7 * K / 16 * 8; i++) cr_assert_eq(((uint8_t *)parts.scales)[i], 0xAA);
        kt_w8g16m_from(&w.matrix, 0, 1, parts.data, parts.scales, NULL);
        kt_w8g16m_from(&w.matrix, 1, 7, parts.data, parts.scales, NULL);
        cr_assert_eq(memcmp(whole.data, parts.data, N * K), 0);
        cr_assert_eq(memcmp(whole.scales, parts.scales, N * K / 16 * 8), 0);
        kt_gate_matrix_destroy(&w);
        landed_free(&whole), landed_free(&parts);
    }
}

Test(w8g16m, refuses_floats_by_name_and_sizes_that_it_cannot_have) {
    static const uint8_t bytes[4096];
    kt_err err = {0};
    int8_t data[64];
    float scales[8];

    memset(data, 0x55, sizeof data);
    for (int id = 0; id <= KT_W_COUNT; id++) {
        kt_matrix w = {(kt_weight_format)id, 1, 32, bytes, bytes};
        if (id > 0 && id < KT_W_COUNT && is_promised(id)) continue;
        cr_assert_eq(kt_w8g16m_from(&w, 0, 1, data, scales, &err), KT_E_UNSUPPORTED);
        cr_assert_not_null(strstr(err.message, kt_weight_format_name(w.format)), "%s", err.message);
    }
    kt_matrix w = {KT_W_INT8_CHANNEL, 1, 40, bytes, bytes};
    cr_assert_eq(kt_w8g16m_from(&w, 0, 1, data, scales, &err), KT_E_INVALID);
    cr_assert_not_null(strstr(err.message, "multiple of 32"), "%s", err.message);
    w = (kt_matrix){KT_W_Q4_K, 1, 32, bytes, NULL};
    cr_assert_eq(kt_w8g16m_from(&w, 0, 1, data, scales, &err), KT_E_INVALID);
    cr_assert_not_null(strstr(err.message, "multiple of 256"), "%s", err.message);
    for (size_t i = 0; i < sizeof data; i++) cr_assert_eq(data[i], 0x55);
}
