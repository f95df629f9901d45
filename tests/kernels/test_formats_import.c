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
    return (kt_int4_source){N, K, group, c->packed, type, c->scales, zeros ? c->zeros : NULL};
}

static void check(int group, kt_weight_format type, int zeros) {
    checkpoint c;
    kt_int4_source s = make(&c, group, type, zeros);
    const kt_format *f = kt_format_find(kt_int4_import_format(&s));
    size_t data_bytes, scale_bytes;
    kt_matrix w;
    void *data, *scales;
    double row[K];
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
        for (int j = 0; j < K; j++) {
            int code = c.packed[i][j / 8] >> j % 8 * 4 & 15, zero = 8;
            int64_t g = j / group;
            const uint32_t *words = &c.zeros[0][0] + i / 8 * (K / group); /* [n/8, k/group] */
            if (zeros) zero = words[g] >> i % 8 * 4 & 15;
            cr_assert(row[j] == scale_of(i * (K / group) + g) * (code - zero),
                      "%s row %d input %d: %g", f->name, i, j, row[j]);
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
