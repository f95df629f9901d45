/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loader/matrix_source.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "runtime/loader/finite.h"

#define ROWS_AT_ONCE 16 /* what a cache holds, where rows share no scales */

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

void kt_matrix_source_add_blocks(kt_matrix_source *s, kt_weight_format format, const kt_tensor *t,
                                 int64_t k) {
    int i = s->n_pieces++;

    s->piece[i].tensor = t;
    s->piece[i].first_row = 0;
    s->piece[i].rows = t->shape[0];
    s->piece[i].blocks = format;
    s->rows += t->shape[0];
    s->k = k;
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
    if (s->piece[0].blocks != KT_W_NONE) {
        if (s->piece[0].blocks != format) return 0;
        *out = (kt_matrix){.format = format, .n = s->rows, .k = s->k, .data = t->data};
        return 1;
    }
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

/* Rows [begin, end) of floats, from whichever pieces have them. */
static kt_status read_rows(const kt_matrix_source *s, const kt_format *format, int64_t begin,
                           int64_t end, float *out, kt_err *err) {
    int64_t base = 0;

    for (int i = 0; i < s->n_pieces; base += s->piece[i++].rows) {
        const kt_tensor *t = s->piece[i].tensor;
        int64_t first = begin > base ? begin - base : 0;
        int64_t last = end - base < s->piece[i].rows ? end - base : s->piece[i].rows;
        if (first >= last) continue;
        if (s->piece[i].blocks != KT_W_NONE || !kt_dtype_is_float(t->dtype))
            return kt_fail(err, KT_E_MISMATCH, "tensor '%s': stored as %s, asked for as %s",
                           t->name,
                           s->piece[i].blocks ? kt_weight_format_name(s->piece[i].blocks)
                                              : kt_dtype_name(t->dtype),
                           format->name);
        kt_tensor_read_f32(t, (s->piece[i].first_row + first) * s->k, (last - first) * s->k,
                           out + (base + first - begin) * s->k);
    }
    return KT_OK;
}

/* Encoding rows [begin, end) gave no finite error: because of a weight, or of what became of it. */
static kt_status refuse_rows(const kt_matrix_source *s, const kt_format *format, int64_t begin,
                             int64_t end, kt_err *err) {
    kt_status st = kt_matrix_source_check_finite(NULL, s, begin, end, err);

    if (st != KT_OK && s->allows_nonfinite)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "tensor '%.100s': a weight is not finite, which %s cannot hold; expected "
                       "--weights native or bf16",
                       s->piece[0].tensor->name, format->name);
    if (st != KT_OK) return st;
    return kt_fail(err, KT_E_UNSUPPORTED,
                   "tensor '%.100s': rows %lld to %lld have weights too large for %s",
                   s->piece[0].tensor->name, (long long)begin, (long long)end - 1, format->name);
}

/* Formats of plain floats hold what is not finite; a quantised row would be all wrong. */
static int is_accepted(const kt_matrix_source *s, const kt_format *format, double error) {
    const int is_float =
        format->id == KT_W_BF16 || format->id == KT_W_F16 || format->id == KT_W_F32;
    return isfinite(error) || (s->allows_nonfinite && is_float);
}

static kt_status encode_floats(const kt_matrix_source *s, const kt_format *format, int64_t begin,
                               int64_t end, void *data, void *scales, float *scratch, kt_err *err) {
    const int64_t shared = format->scale_rows ? format->scale_rows : 1;
    const int64_t step = format->scale_rows ? format->scale_rows : ROWS_AT_ONCE;
    size_t row_data, row_scales;

    format->plain_bytes(1, s->k, &row_data, &row_scales);
    for (int64_t row = begin; row < end;) {
        int64_t n = end - row < step ? end - row : step;
        double error;
        KT_TRY(read_rows(s, format, row, row + n, scratch, err));
        error = format->encode_rows(
            scratch, n, s->k, s->importance, 0, n, (char *)data + row * (int64_t)row_data,
            scales ? (char *)scales + row / shared * (int64_t)row_scales : NULL, NULL);
        if (!is_accepted(s, format, error)) return refuse_rows(s, format, row, row + n, err);
        row += n;
    }
    return KT_OK;
}

size_t kt_matrix_source_loss_bytes(const kt_format *format, int64_t k) {
    size_t data, scales;

    format->plain_bytes(KT_SOURCE_BLOCK, k, &data, &scales);
    return (data + 63) / 64 * 64 + scales;
}

kt_status kt_matrix_source_loss(const kt_matrix_source *s, const kt_format *format,
                                int64_t row_begin, int64_t row_end, void *out, float *scratch,
                                double *row, kt_format_loss *loss, kt_err *err) {
    kt_matrix w = {.format = format->id, .k = s->k, .data = out};
    size_t data, scales;
    void *scales_at;

    format->plain_bytes(KT_SOURCE_BLOCK, s->k, &data, &scales);
    w.scales = scales_at = scales ? (char *)out + (data + 63) / 64 * 64 : NULL;
    for (int64_t begin = row_begin; begin < row_end; begin += KT_SOURCE_BLOCK) {
        int64_t end = row_end - begin < KT_SOURCE_BLOCK ? row_end : begin + KT_SOURCE_BLOCK;
        double error;
        w.n = end - begin;
        KT_TRY(read_rows(s, format, begin, end, scratch, err));
        error =
            format->encode_rows(scratch, w.n, s->k, s->importance, 0, w.n, out, scales_at, NULL);
        if (!isfinite(error)) return refuse_rows(s, format, begin, end, err);
        kt_format_loss_rows(&w, scratch, s->importance, 0, w.n, row, loss);
    }
    return KT_OK;
}

kt_status kt_matrix_source_encode(const kt_matrix_source *s, const kt_format *format,
                                  int64_t row_begin, int64_t row_end, void *data, void *scales,
                                  float *scratch, kt_err *err) {
    int64_t base = 0;

    if (!s->piece[0].int4.packed)
        return encode_floats(s, format, row_begin, row_end, data, scales, scratch, err);
    for (int i = 0; i < s->n_pieces; base += s->piece[i++].rows) {
        int64_t begin = row_begin > base ? row_begin - base : 0;
        int64_t end = row_end - base < s->piece[i].rows ? row_end - base : s->piece[i].rows;
        KT_TRY(import_piece(s, i, format, base, begin, end, data, scales, err));
    }
    return KT_OK;
}

void kt_matrix_source_release(const kt_matrix_source *s, const kt_checkpoint *c) {
    for (int i = 0; i < s->n_pieces; i++) {
        const kt_tensor *t = s->piece[i].tensor;
        size_t row = (size_t)s->k * kt_dtype_bytes(t->dtype);
        if (s->piece[i].int4.packed || s->piece[i].blocks != KT_W_NONE)
            kt_checkpoint_release(c, t, 0, t->bytes);
        else
            kt_checkpoint_release(c, t, (size_t)s->piece[i].first_row * row,
                                  (size_t)s->piece[i].rows * row);
    }
}
