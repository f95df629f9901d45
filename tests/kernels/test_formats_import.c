/* INT4 imports: values of compressed-tensors words, spelled out. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/numeric.h"
#include "base/rng.h"
#include "kernels/formats/format.h"
#include "kernels/formats/int4_import.h"
#include "tests/support/guard.h"

enum { N = 19, K = 256 };

typedef struct checkpoint {
    uint32_t packed[N][K / 8], zeros[(N + 7) / 8][K / 32];
    unsigned char scales[N * (K / 32) * 4];
} checkpoint;

static void store_scale(checkpoint *c, kt_weight_format type, int64_t i, float v) {
    uint16_t half = type == KT_W_BF16 ? kt_f32_to_bf16(v) : kt_f32_to_f16(v);
    if (type == KT_W_F32)
        memcpy(c->scales + 4 * i, &v, 4);
    else
        memcpy(c->scales + 2 * i, &half, 2);
}

/* Scales are sixteenths: exact in every type. */
static float scale_of(int64_t i) {
    return (float)(i % 37 - 18) / 16;
}

static kt_int4_source make(checkpoint *c, int group, kt_weight_format type, int zeros) {
    kt_rng rng;
    kt_rng_seed(&rng, 77);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < K / 8; j++) c->packed[i][j] = (uint32_t)kt_rng_u64(&rng);
    for (size_t i = 0; i < sizeof c->zeros / 4; i++)
        (&c->zeros[0][0])[i] = (uint32_t)kt_rng_u64(&rng);
    for (int64_t i = 0; i < N * (K / group); i++) store_scale(c, type, i, scale_of(i));
    return (kt_int4_source){.n = N,
                            .k = K,
                            .group = group,
                            .packed = c->packed,
                            .scale_type = type,
                            .scales = c->scales,
                            .zeros = zeros ? c->zeros : NULL};
}

static void check(int group, kt_weight_format type, int zeros) {
    checkpoint c;
    kt_int4_source s = make(&c, group, type, zeros);
    const kt_format *f = kt_format_find(kt_int4_import_format(&s));
    size_t data_bytes, scale_bytes;
    kt_matrix w;
    void *data, *scales;
    double row[K];
    float decoded[K];
    kt_err err = {0};

    cr_assert_not_null(f);
    cr_assert_eq(f->group, group);
    cr_assert_eq(kt_format_sizes(f, N, K, &data_bytes, &scale_bytes, &err), KT_OK);
    data = kt_guard_alloc(data_bytes, 4, 0xAA), scales = kt_guard_alloc(scale_bytes, 2, 0xAA);
    cr_assert_eq(kt_int4_import(&s, 7, N, data, scales, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_int4_import(&s, 0, 7, data, scales, &err), KT_OK, "%s", err.message);
    w = (kt_matrix){f->id, N, K, data, scales};
    for (int i = 0; i < N; i++) {
        f->decode_row(&w, i, row);
        cr_assert_eq(kt_int4_decode_row(&s, i, decoded, &err), KT_OK, "%s", err.message);
        for (int j = 0; j < K; j++) {
            int code = c.packed[i][j / 8] >> j % 8 * 4 & 15, zero = 8;
            int64_t g = j / group;
            const uint32_t *words = &c.zeros[0][0] + i / 8 * (K / group); /* [n/8, k/group] */
            if (zeros) zero = words[g] >> i % 8 * 4 & 15;
            cr_assert(row[j] == scale_of(i * (K / group) + g) * (code - zero) &&
                          decoded[j] == row[j],
                      "%s row %d input %d: %g, %g", f->name, i, j, row[j], decoded[j]);
        }
    }
    kt_guard_free(data), kt_guard_free(scales);
}

Test(import, every_group_scale_type_and_symmetry_is_exact) {
    static const kt_weight_format types[] = {KT_W_BF16, KT_W_F16, KT_W_F32};
    for (int group = 32; group <= 128; group *= 2)
        for (int t = 0; t < 3; t++)
            for (int zeros = 0; zeros < 2; zeros++) check(group, types[t], zeros);
}

Test(import, symmetric_bfloat16_stays_in_the_smaller_format) {
    checkpoint c;
    kt_int4_source s = make(&c, 32, KT_W_BF16, 0);
    cr_assert_eq(kt_int4_import_format(&s), KT_W_INT4_G32);
    s.scale_type = KT_W_F16;
    cr_assert_eq(kt_int4_import_format(&s), KT_W_INT4Z_G32);
    s.group = 16;
    cr_assert_eq(kt_int4_import_format(&s), KT_W_NONE);
    s.group = 32, s.scale_type = KT_W_Q4_0;
    cr_assert_eq(kt_int4_import_format(&s), KT_W_NONE);
}

Test(import, scales_that_half_precision_cannot_hold_are_refused_by_place) {
    static const float bad[] = {0x1p-30f, 1e6f, 1.0f + 0x1p-20f};
    for (int b = 0; b < 3; b++) {
        checkpoint c;
        kt_int4_source s = make(&c, 64, KT_W_F32, 1);
        uint8_t data[N * K / 2], scales[3 * N * K / 64];
        kt_err err = {0};
        store_scale(&c, KT_W_F32, 5 * (K / 64) + 2, bad[b]);
        cr_assert_eq(kt_int4_import(&s, 0, N, data, scales, &err), KT_E_UNSUPPORTED);
        cr_assert_not_null(strstr(err.message, "row 5 group 2"), "%s", err.message);
    }
}

Test(import, sizes_that_do_not_fit_are_refused) {
    checkpoint c;
    kt_int4_source s = make(&c, 128, KT_W_BF16, 0);
    kt_err err = {0};
    s.k = 192;
    cr_assert_eq(kt_int4_import(&s, 0, N, NULL, NULL, &err), KT_E_UNSUPPORTED);
    s.k = K, s.group = 48;
    cr_assert_eq(kt_int4_import(&s, 0, N, NULL, NULL, &err), KT_E_UNSUPPORTED);
    s.group = 128;
    cr_assert_eq(kt_int4_import(&s, 0, N + 1, NULL, NULL, &err), KT_E_UNSUPPORTED);
}

/* ---- AWQ and GPTQ: written here the way their own programs pack, read by the import ---- */

enum { ROWS = 24 };

typedef struct transposed {
    uint8_t code[ROWS][K], zero[ROWS][K / 32];
    uint32_t packed[K * ROWS / 8], zeros[K / 32 * ROWS / 8];
    uint16_t scales[K / 32 * ROWS];
    int32_t group_index[K];
} transposed;

/* Every code and, over the groups, every zero point that the packing can hold. */
static kt_int4_source pack_transposed(transposed *t, int group, kt_int4_packing packing) {
    static const int awq[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    const int first = packing == KT_INT4_GPTQ;
    kt_rng rng;

    memset(t, 0, sizeof *t);
    kt_rng_seed(&rng, 5);
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < K; i++) t->code[r][i] = (uint8_t)kt_rng_below(&rng, 16);
    for (int r = 0; r < ROWS; r++)
        for (int g = 0; g < K / group; g++) {
            t->zero[r][g] = (uint8_t)(first + (r + 5 * g) % (16 - first));
            t->scales[g * ROWS + r] = kt_f32_to_f16(scale_of(r * 8 + g));
        }
    for (int i = 0; i < K; i++) t->group_index[i] = i / group;
    for (int w = 0; w < ROWS / 8; w++)
        for (int nibble = 0; nibble < 8; nibble++) {
            int row = 8 * w + (packing == KT_INT4_AWQ ? awq[nibble] : nibble);
            for (int g = 0; g < K / group; g++)
                t->zeros[g * (ROWS / 8) + w] |= (uint32_t)(t->zero[row][g] - first) << 4 * nibble;
            for (int i = 0; packing == KT_INT4_AWQ && i < K; i++)
                t->packed[i * (ROWS / 8) + w] |= (uint32_t)t->code[row][i] << 4 * nibble;
        }
    for (int r = 0; packing != KT_INT4_AWQ && r < ROWS; r++)
        for (int i = 0; i < K; i++)
            t->packed[i / 8 * ROWS + r] |= (uint32_t)t->code[r][i] << 4 * (i % 8);
    return (kt_int4_source){.n = ROWS,
                            .k = K,
                            .group = group,
                            .packed = t->packed,
                            .scale_type = KT_W_F16,
                            .scales = t->scales,
                            .zeros = t->zeros,
                            .packing = packing,
                            .group_index = packing == KT_INT4_AWQ ? NULL : t->group_index};
}

Test(import, awq_and_gptq_keep_every_weight) {
    static transposed t;
    for (int packing = KT_INT4_AWQ; packing <= KT_INT4_GPTQ_V2; packing++)
        for (int group = 32; group <= 128; group *= 2) {
            kt_int4_source s = pack_transposed(&t, group, (kt_int4_packing)packing);
            const kt_format *f = kt_format_find(kt_int4_import_format(&s));
            size_t data_bytes, scale_bytes;
            void *data, *scales;
            kt_matrix w;
            double row[K];
            float decoded[K];
            kt_err err = {0};

            cr_assert(f && f->group == group && strncmp(f->name, "w4zg", 4) == 0);
            cr_assert_eq(kt_format_sizes(f, ROWS, K, &data_bytes, &scale_bytes, &err), KT_OK);
            data = kt_guard_alloc(data_bytes, 4, 0xAA);
            scales = kt_guard_alloc(scale_bytes, 2, 0xAA);
            cr_assert_eq(kt_int4_import(&s, 8, ROWS, data, scales, &err), KT_OK, "%s", err.message);
            cr_assert_eq(kt_int4_import(&s, 0, 8, data, scales, &err), KT_OK, "%s", err.message);
            w = (kt_matrix){f->id, ROWS, K, data, scales};
            for (int r = 0; r < ROWS; r++) {
                f->decode_row(&w, r, row);
                cr_assert_eq(kt_int4_decode_row(&s, r, decoded, &err), KT_OK, "%s", err.message);
                for (int i = 0; i < K; i++) {
                    int g = i / group;
                    double want = scale_of(r * 8 + g) * (t.code[r][i] - t.zero[r][g]);
                    cr_assert(row[i] == want && decoded[i] == want,
                              "packing %d %s row %d input %d: %g, %g, want %g", packing, f->name, r,
                              i, row[i], decoded[i], want);
                }
            }
            kt_guard_free(data), kt_guard_free(scales);
        }
}

Test(import, act_order_and_impossible_zero_points_are_refused_by_place) {
    static transposed t;
    static uint8_t data[ROWS * K / 2], scales[3 * ROWS * K / 32];
    kt_int4_source s = pack_transposed(&t, 64, KT_INT4_GPTQ);
    kt_err err = {0};

    t.group_index[70] = 0;
    cr_assert_eq(kt_int4_import(&s, 0, ROWS, data, scales, &err), KT_E_UNSUPPORTED);
    cr_assert(strstr(err.message, "input 70 is of group 0, expected 1") &&
                  strstr(err.message, "desc_act"),
              "%s", err.message);
    t.group_index[70] = 1;
    t.zeros[2 * (ROWS / 8) + 1] |= 15u << 4 * 3; /* row 11, group 2 */
    cr_assert_eq(kt_int4_import(&s, 0, ROWS, data, scales, &err), KT_E_UNSUPPORTED);
    cr_assert(strstr(err.message, "zero point of row 11 group 2 is 16"), "%s", err.message);
    s.packing = KT_INT4_GPTQ_V2; /* where 15 is 15 */
    cr_assert_eq(kt_int4_import(&s, 0, ROWS, data, scales, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_int4_import(&s, 4, ROWS, data, scales, &err), KT_E_UNSUPPORTED);
    s.zeros = NULL;
    cr_assert_eq(kt_int4_import(&s, 0, ROWS, data, scales, &err), KT_E_UNSUPPORTED);
    cr_assert(strstr(err.message, "without zero points"), "%s", err.message);
}

/* What cannot stay as it is can be decoded: groups out of order, zero points of 16, any scale. */
Test(import, rows_decode_in_any_order_of_groups) {
    static transposed t;
    kt_int4_source s = pack_transposed(&t, 64, KT_INT4_GPTQ);
    float row[K];
    kt_err err = {0};

    for (int i = 0; i < K; i++) t.group_index[i] = (i * 7 + 3) % (K / 64);
    t.zeros[2 * (ROWS / 8) + 1] |= 15u << 4 * 3; /* row 11, group 2 */
    t.zero[11][2] = 16;
    for (int r = 0; r < ROWS; r++) {
        cr_assert_eq(kt_int4_decode_row(&s, r, row, &err), KT_OK, "%s", err.message);
        for (int i = 0; i < K; i++) {
            const int g = t.group_index[i];
            cr_assert_eq(row[i], scale_of(r * 8 + g) * (float)(t.code[r][i] - t.zero[r][g]),
                         "row %d input %d: %g", r, i, (double)row[i]);
        }
    }
    t.group_index[9] = K / 64;
    cr_assert_eq(kt_int4_decode_row(&s, 0, row, &err), KT_E_FORMAT);
    cr_assert(strstr(err.message, "input 9 is of group 4, expected 0 to 3"), "%s", err.message);
    t.group_index[9] = -1;
    cr_assert_eq(kt_int4_decode_row(&s, 0, row, &err), KT_E_FORMAT);
    cr_assert_eq(kt_int4_decode_row(&s, ROWS, row, &err), KT_E_UNSUPPORTED);
}
