/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loader/matrix_source.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
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

void kt_matrix_source_add_int4(kt_matrix_source *s, const kt_int4_source *int4,
                               const kt_tensor *packed, const kt_tensor *const others[3]) {
    int i = s->n_pieces++;

    s->piece[i].tensor = packed;
    s->piece[i].first_row = 0;
    s->piece[i].rows = int4->n;
    s->piece[i].int4 = *int4;
    memcpy(s->piece[i].others, others, sizeof s->piece[i].others);
    s->rows += int4->n;
    s->k = int4->k;
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

    if (s->n_pieces != 1 || s->piece[0].int4.packed) return 0;
    if (!(format == KT_W_BF16 && t->dtype == KT_DTYPE_BF16) &&
        !(format == KT_W_F16 && t->dtype == KT_DTYPE_F16))
        return 0;
    data = t->data + 2 * (size_t)(s->piece[0].first_row * s->k);
    if ((uintptr_t)data % sizeof(uint16_t) != 0) return 0;
    *out = (kt_matrix){.format = format, .n = s->rows, .k = s->k, .data = data};
    return 1;
}

/* Rows [begin, end) of the piece, which is placed at row `base` of the matrix. */
static kt_status import_piece(const kt_matrix_source *s, int piece, const kt_format *format,
                              int64_t base, int64_t begin, int64_t end, void *data, void *scales,
                              kt_err *err) {
    const kt_int4_source *int4 = &s->piece[piece].int4;
    size_t row_data, row_scales;

    if (begin >= end) return KT_OK;
    if (kt_int4_import_format(int4) != format->id)
        return kt_fail(err, KT_E_MISMATCH, "tensor '%s': stored as %s, asked for as %s",
                       s->piece[piece].tensor->name,
                       kt_weight_format_name(kt_int4_import_format(int4)), format->name);
    format->plain_bytes(1, s->k, &row_data, &row_scales);
    if (kt_int4_import(int4, begin, end, (char *)data + (size_t)base * row_data,
                       (char *)scales + (size_t)base * row_scales, err) == KT_OK)
        return KT_OK;
    return kt_fail_prefix(err, KT_E_UNSUPPORTED, "tensor '%s'", s->piece[piece].tensor->name);
}

/* The same for floats. */
static kt_status encode_piece(const kt_matrix_source *s, int piece, const kt_format *format,
                              int64_t base, int64_t begin, int64_t end, void *data, void *scales,
                              float *scratch, kt_err *err) {
    const kt_tensor *t = s->piece[piece].tensor;
    size_t row_data, row_scales;
    double error = 0;

    if (format->scale_rows)
        return kt_fail(
            err, KT_E_UNSUPPORTED,
            "tensor '%s': asked for as %s, whose scales are shared by %lld rows: expected "
            "a format that is encoded row by row",
            t->name, format->name, (long long)format->scale_rows);
    format->plain_bytes(1, s->k, &row_data, &row_scales);
    for (int64_t row = begin; row < end;) {
        int64_t n = end - row < KT_SOURCE_BLOCK ? end - row : KT_SOURCE_BLOCK;
        size_t at = (size_t)(base + row);
        kt_tensor_read_f32(t, (s->piece[piece].first_row + row) * s->k, n * s->k, scratch);
        error += format->encode_rows(scratch, n, s->k, NULL, 0, n, (char *)data + at * row_data,
                                     scales ? (char *)scales + at * row_scales : NULL, NULL);
        row += n;
    }
    if (isfinite(error)) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "tensor '%s': a weight is not finite", t->name);
}

kt_status kt_matrix_source_encode(const kt_matrix_source *s, const kt_format *format,
                                  int64_t row_begin, int64_t row_end, void *data, void *scales,
                                  float *scratch, kt_err *err) {
    int64_t base = 0;

    for (int i = 0; i < s->n_pieces; base += s->piece[i++].rows) {
        int64_t begin = row_begin > base ? row_begin - base : 0;
        int64_t end = row_end - base < s->piece[i].rows ? row_end - base : s->piece[i].rows;
        if (s->piece[i].int4.packed)
            KT_TRY(import_piece(s, i, format, base, begin, end, data, scales, err));
        else
            KT_TRY(encode_piece(s, i, format, base, begin, end, data, scales, scratch, err));
    }
    return KT_OK;
}

void kt_matrix_source_release(const kt_matrix_source *s, const kt_checkpoint *c) {
    for (int i = 0; i < s->n_pieces; i++) {
        const kt_tensor *t = s->piece[i].tensor;
        size_t row = (size_t)s->k * kt_dtype_bytes(t->dtype);
        if (s->piece[i].int4.packed)
            kt_checkpoint_release(c, t, 0, t->bytes);
        else
            kt_checkpoint_release(c, t, (size_t)s->piece[i].first_row * row,
                                  (size_t)s->piece[i].rows * row);
    }
}
