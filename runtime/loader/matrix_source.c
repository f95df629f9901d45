/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loader/matrix_source.h"

#include <math.h>
#include <string.h>

#include "base/numeric.h"

void kt_matrix_source_add(kt_matrix_source *s, const kt_tensor *t, int64_t first_row,
                          int64_t rows) {
    int i = s->n_pieces++;

    s->piece[i].tensor = t;
    s->piece[i].first_row = first_row;
    s->piece[i].rows = rows;
    s->rows += rows;
    s->k = t->shape[t->rank - 1];
}

int kt_dtype_is_float(kt_dtype dtype) {
    return dtype == KT_DTYPE_BF16 || dtype == KT_DTYPE_F16 || dtype == KT_DTYPE_F32;
}

/* IEEE half, exactly. A subnormal is m * 2^-24. */
static float half_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ffu;
    uint32_t bits;
    float f;

    if (exponent == 0) {
        f = (float)mantissa * 0x1p-24f;
        return sign ? -f : f;
    }
    bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* memcpy everywhere: files written by old tools are not aligned. */
void kt_tensor_read_f32(const kt_tensor *t, int64_t begin, int64_t count, float *out) {
    const uint8_t *p = t->data + (size_t)begin * kt_dtype_bytes(t->dtype);
    uint16_t h;

    if (t->dtype == KT_DTYPE_F32) {
        memcpy(out, p, sizeof *out * (size_t)count);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        memcpy(&h, p + 2 * i, sizeof h);
        out[i] = t->dtype == KT_DTYPE_BF16 ? kt_bf16_to_f32(h) : half_to_f32(h);
    }
}

int kt_matrix_source_borrow(const kt_matrix_source *s, kt_weight_format format, kt_matrix *out) {
    const kt_tensor *t = s->piece[0].tensor;
    const uint8_t *data;

    if (s->n_pieces != 1 || format != KT_W_BF16 || t->dtype != KT_DTYPE_BF16) return 0;
    data = t->data + 2 * (size_t)(s->piece[0].first_row * s->k);
    if ((uintptr_t)data % sizeof(uint16_t) != 0) return 0;
    *out = (kt_matrix){.format = format, .n = s->rows, .k = s->k, .data = data};
    return 1;
}

int kt_matrix_source_encode(const kt_matrix_source *s, const kt_format *format, int64_t row_begin,
                            int64_t row_end, void *data, void *scales, float *scratch) {
    size_t row_data, row_scales;
    int64_t base = 0;
    double error = 0;

    format->plain_bytes(1, s->k, &row_data, &row_scales);
    for (int i = 0; i < s->n_pieces; base += s->piece[i++].rows) {
        int64_t begin = row_begin > base ? row_begin : base;
        int64_t end = base + s->piece[i].rows < row_end ? base + s->piece[i].rows : row_end;
        for (int64_t row = begin; row < end;) {
            int64_t n = end - row < KT_SOURCE_BLOCK ? end - row : KT_SOURCE_BLOCK;
            char *row_scale = scales ? (char *)scales + (size_t)row * row_scales : NULL;
            kt_tensor_read_f32(s->piece[i].tensor, (s->piece[i].first_row + row - base) * s->k,
                               n * s->k, scratch);
            error += format->encode_rows(scratch, n, s->k, NULL, 0, n,
                                         (char *)data + (size_t)row * row_data, row_scale, NULL);
            row += n;
        }
    }
    return isfinite(error);
}

void kt_matrix_source_release(const kt_matrix_source *s, const kt_checkpoint *c) {
    for (int i = 0; i < s->n_pieces; i++) {
        const kt_tensor *t = s->piece[i].tensor;
        size_t row = (size_t)s->k * kt_dtype_bytes(t->dtype);
        kt_checkpoint_release(c, t, (size_t)s->piece[i].first_row * row,
                              (size_t)s->piece[i].rows * row);
    }
}
