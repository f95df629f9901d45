/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/int4_import.h"

#include <string.h>

#include "base/err.h"
#include "base/numeric.h"

static int has_known_types(const kt_int4_source *s) {
    return s->scale_type == KT_W_BF16 || s->scale_type == KT_W_F16 || s->scale_type == KT_W_F32;
}

kt_weight_format kt_int4_import_format(const kt_int4_source *s) {
    static const struct {
        int64_t group;
        kt_weight_format symmetric, with_zeros;
    } formats[] = {{32, KT_W_INT4_G32, KT_W_INT4Z_G32},
                   {64, KT_W_INT4_G64, KT_W_INT4Z_G64},
                   {128, KT_W_INT4_G128, KT_W_INT4Z_G128}};
    const int is_symmetric = !s->zeros && s->scale_type == KT_W_BF16;

    for (size_t i = 0; i < sizeof formats / sizeof *formats && has_known_types(s); i++)
        if (formats[i].group == s->group)
            return is_symmetric ? formats[i].symmetric : formats[i].with_zeros;
    return KT_W_NONE;
}

static float scale_at(const kt_int4_source *s, int64_t i) {
    const char *scales = s->scales;
    uint16_t half;
    float single;

    if (s->scale_type == KT_W_F32) {
        memcpy(&single, scales + 4 * i, 4);
        return single;
    }
    memcpy(&half, scales + 2 * i, 2);
    return s->scale_type == KT_W_BF16 ? kt_bf16_to_f32(half) : kt_f16_to_f32(half);
}

static uint8_t zero_at(const kt_int4_source *s, int64_t row, int64_t g) {
    uint32_t word;
    if (!s->zeros) return 8;
    memcpy(&word, (const char *)s->zeros + 4 * (row / 8 * (s->k / s->group) + g), 4);
    return (uint8_t)(word >> 4 * (row % 8) & 15);
}

/* One row of w4zg*: halves, then zero points. */
static kt_status import_row(const kt_int4_source *s, int64_t row, uint8_t *out, kt_err *err) {
    const int64_t groups = s->k / s->group;

    for (int64_t g = 0; g < groups; g++) {
        float scale = scale_at(s, row * groups + g);
        uint16_t bits = kt_f32_to_f16(scale);
        if (kt_f16_to_f32(bits) != scale)
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "scale of row %lld group %lld is %.9g, which half precision cannot hold",
                           (long long)row, (long long)g, (double)scale);
        memcpy(out + 2 * g, &bits, 2);
        out[2 * groups + g] = zero_at(s, row, g);
    }
    return KT_OK;
}

/* Words of eight nibbles, least significant first, are our bytes: even input low. */
kt_status kt_int4_import(const kt_int4_source *s, int64_t row_begin, int64_t row_end, void *data,
                         void *scales, kt_err *err) {
    const kt_weight_format format = kt_int4_import_format(s);
    const size_t row_bytes = (size_t)s->k / 2;
    const int64_t groups = format == KT_W_NONE ? 0 : s->k / s->group;
    const int has_zeros = format >= KT_W_INT4Z_G32 && format <= KT_W_INT4Z_G128;

    if (format == KT_W_NONE || s->k % s->group != 0 || row_begin < 0 || row_end > s->n)
        return kt_fail(
            err, KT_E_UNSUPPORTED,
            "INT4 matrix of %lld x %lld: groups of %lld with %s scales, expected 32, 64 or "
            "128 that divide the inputs, with BF16, F16 or F32 scales",
            (long long)s->n, (long long)s->k, (long long)s->group,
            kt_weight_format_name(s->scale_type));
    for (int64_t row = row_begin; row < row_end; row++) {
        const size_t at = (size_t)row * row_bytes;
        memcpy((char *)data + at, (const char *)s->packed + at, row_bytes);
        if (has_zeros)
            KT_TRY(import_row(s, row, (uint8_t *)scales + 3 * row * groups, err));
        else
            memcpy((uint16_t *)scales + row * groups, (const char *)s->scales + 2 * row * groups,
                   2 * (size_t)groups);
    }
    return KT_OK;
}
