/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loader/matrix_source.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/formats/w8g16m.h"
#include "runtime/loader/finite.h"
#include "runtime/loader/fp4_pairs.h"

void kt_matrix_source_add(kt_matrix_source *s, const kt_tensor *t, int64_t first_row,
                          int64_t rows) {
    int i = s->n_pieces++;

    s->piece[i].tensor = t;
    s->piece[i].first_row = first_row;
    s->piece[i].rows = rows;
    s->rows += rows;
    s->k = t->shape[t->rank - 1];
}

void kt_matrix_source_times(kt_matrix_source *s, float factor) {
    s->piece[s->n_pieces - 1].has_factor = 1;
    s->piece[s->n_pieces - 1].factor = factor;
}

void kt_matrix_source_add_turned(kt_matrix_source *s, const kt_tensor *t, int64_t column,
                                 int64_t step, int64_t rows, int64_t first_input, int64_t k) {
    int i = s->n_pieces;

    kt_matrix_source_add(s, t, column, rows);
    s->piece[i].turned = s->k;
    s->piece[i].first_input = first_input;
    s->piece[i].row_step = step;
    s->k = k;
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

void kt_matrix_source_add_fp8(kt_matrix_source *s, const kt_tensor *codes, const kt_tensor *scale,
                              kt_weight_format format) {
    int i = s->n_pieces;

    kt_matrix_source_add(s, codes, 0, codes->shape[0]);
    s->piece[i].fp8_scale = scale;
    s->piece[i].fp8_format = format;
}

void kt_matrix_source_add_fp4(kt_matrix_source *s, kt_weight_format format, const kt_tensor *codes,
                              const kt_tensor *scale, int64_t first_row, int64_t row_step,
                              int64_t rows, int64_t k) {
    int i = s->n_pieces;

    kt_matrix_source_add(s, codes, first_row, rows);
    s->k = k;
    s->piece[i].fp4_scale = scale;
    s->piece[i].fp4_format = format;
    s->piece[i].row_step = row_step;
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

static size_t block_row_bytes(kt_weight_format blocks, int64_t k) {
    const kt_format *f = kt_format_find(blocks);
    return (size_t)(k / f->block * f->block_bytes);
}

/* Scales as a format's own plain form has them: all, of its type, aligned. Else NULL. */
static const void *borrow_scales(const kt_tensor *t, kt_dtype dtype, int64_t count) {
    const size_t size = kt_dtype_bytes(dtype);

    if (t->dtype != dtype || t->bytes != (size_t)count * size || (uintptr_t)t->data % size != 0)
        return NULL;
    return t->data;
}

/* A whole piece of codes whose scales lie in a tensor of their own. */
static int borrow_codes(const kt_matrix_source *s, kt_weight_format format, kt_matrix *out) {
    const kt_int4_source *int4 = &s->piece[0].int4;
    const kt_tensor *fp8 = s->piece[0].fp8_scale;
    const int64_t n = s->rows, k = s->k;

    *out = (kt_matrix){.format = format, .n = n, .k = k, .data = s->piece[0].tensor->data};
    if (s->piece[0].first_row != 0) return 0;
    if (int4->packed && int4->packing == KT_INT4_ROWS && !int4->zeros &&
        kt_int4_import_format(int4) == format)
        out->scales = borrow_scales(s->piece[0].others[0], KT_DTYPE_BF16, n * (k / int4->group));
    else if (!fp8 || s->piece[0].fp8_format != format)
        return 0;
    else if (format == KT_W_MXFP8)
        out->scales = fp8->data;
    else if (format == KT_W_FP8_B128)
        out->scales = borrow_scales(fp8, KT_DTYPE_F32, (n + 127) / 128 * ((k + 127) / 128));
    else
        out->scales = borrow_scales(fp8, KT_DTYPE_F32, n);
    return out->scales != NULL;
}

int kt_matrix_source_borrow(const kt_matrix_source *s, kt_weight_format format, kt_matrix *out) {
    const kt_tensor *t = s->piece[0].tensor;
    const uint8_t *data;

    if (s->n_pieces != 1 || s->piece[0].fp4_scale || s->piece[0].turned) return 0;
    if (s->piece[0].int4.packed || s->piece[0].fp8_scale) return borrow_codes(s, format, out);
    if (t->blocks != KT_W_NONE) {
        if (t->blocks != format || s->piece[0].has_factor) return 0;
        data = t->data + (size_t)s->piece[0].first_row * block_row_bytes(format, s->k);
        *out = (kt_matrix){.format = format, .n = s->rows, .k = s->k, .data = data};
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

int kt_matrix_source_borrow_rows(const kt_matrix_source *s, kt_weight_format id, int64_t row_begin,
                                 int64_t row_end, kt_matrix *out) {
    const kt_format *format = kt_format_find(id);
    const int64_t shared = format->scale_rows ? format->scale_rows : 1;
    kt_matrix_source one = {.k = s->k, .n_pieces = 1};
    size_t data, scales;
    int64_t base = 0, row;
    int i = 0;

    while (i + 1 < s->n_pieces && base + s->piece[i].rows <= row_begin) base += s->piece[i++].rows;
    row = row_begin - base;
    if (row_end - base > s->piece[i].rows || row % shared != 0) return 0;
    one.piece[0] = s->piece[i];
    one.rows = s->piece[i].rows;
    if (!kt_matrix_source_borrow(&one, id, out)) return 0;
    format->plain_bytes(1, s->k, &data, &scales);
    out->data = (const uint8_t *)out->data + (size_t)row * data;
    if (out->scales) out->scales = (const uint8_t *)out->scales + (size_t)(row / shared) * scales;
    out->n = row_end - row_begin;
    return 1;
}

/* Rows [begin, end) of the piece, which is placed at row `base` of the matrix. */
static kt_status import_piece(const kt_matrix_source *s, int piece, const kt_format *format,
                              int64_t base, int64_t begin, int64_t end, void *data, void *scales,
                              kt_err *err) {
    const kt_int4_source *int4 = &s->piece[piece].int4;
    size_t row_data, row_scales;

    if (begin >= end) return KT_OK;
    format->plain_bytes(1, s->k, &row_data, &row_scales);
    if (kt_int4_import(int4, begin, end, (char *)data + base * (int64_t)row_data,
                       (char *)scales + base * (int64_t)row_scales, err) == KT_OK)
        return KT_OK;
    return kt_fail_prefix(err, KT_E_UNSUPPORTED, "tensor '%s'", s->piece[piece].tensor->name);
}

/* What a piece is, when it is not plain floats; KT_W_NONE = it is. */
static kt_weight_format native_format(const kt_matrix_source *s, int piece) {
    if (s->piece[piece].int4.packed) return kt_int4_import_format(&s->piece[piece].int4);
    if (s->piece[piece].fp8_scale) return s->piece[piece].fp8_format;
    if (s->piece[piece].fp4_scale) return s->piece[piece].fp4_format;
    return s->piece[piece].tensor->blocks;
}

static float read_scale(const kt_tensor *t, int64_t index) {
    float scale;

    if (t->dtype == KT_DTYPE_F8_E8M0 || t->dtype == KT_DTYPE_U8)
        return t->data[index] == 255 ? NAN : ldexpf(1, t->data[index] - 127);
    kt_tensor_read_f32(t, index, 1, &scale);
    return scale;
}

/* The scale of input k of a row of an FP8 piece. */
static float fp8_scale(const kt_matrix_source *s, int piece, int64_t row, int64_t k) {
    const kt_tensor *t = s->piece[piece].fp8_scale;
    const int64_t count = (int64_t)(t->bytes / kt_dtype_bytes(t->dtype));

    if (s->piece[piece].fp8_format == KT_W_MXFP8) return read_scale(t, row * (s->k / 32) + k / 32);
    if (s->piece[piece].fp8_format == KT_W_FP8_B128)
        return read_scale(t, row / 128 * ((s->k + 127) / 128) + k / 128);
    return read_scale(t, count > 1 ? row : 0);
}

static void read_fp8(const kt_matrix_source *s, int piece, int64_t row, float *out) {
    const uint8_t *codes = s->piece[piece].tensor->data + (size_t)(row * s->k);
    float scale = 0;

    for (int64_t i = 0; i < s->k; i++) {
        if (i % 32 == 0) scale = fp8_scale(s, piece, row, i);
        out[i] = kt_f8e4m3_to_f32(codes[i]) * scale;
    }
}

/* Rows [begin, end) of an FP8 piece as they are, at row `base` of the matrix. */
static void copy_fp8(const kt_matrix_source *s, int piece, int64_t base, int64_t begin, int64_t end,
                     void *data, void *to) {
    const uint8_t *codes = s->piece[piece].tensor->data;
    const kt_weight_format format = s->piece[piece].fp8_format;
    const int64_t blocks = (s->k + 127) / 128, groups = s->k / 32;
    float *scales = to;

    if (begin >= end) return;
    memcpy((char *)data + (base + begin) * s->k, codes + begin * s->k,
           (size_t)((end - begin) * s->k));
    if (format == KT_W_MXFP8) {
        memcpy((uint8_t *)to + (base + begin) * groups,
               s->piece[piece].fp8_scale->data + begin * groups, (size_t)((end - begin) * groups));
        return;
    }
    if (format == KT_W_FP8_CHANNEL) {
        for (int64_t r = begin; r < end; r++) scales[base + r] = fp8_scale(s, piece, r, 0);
        return;
    }
    for (int64_t r = begin / 128; r * 128 < end; r++)
        for (int64_t b = 0; b < blocks; b++)
            scales[(base / 128 + r) * blocks + b] = fp8_scale(s, piece, r * 128, b * 128);
}

/* What NVFP4 has for each row [begin, end): the factor of its matrix. */
static void copy_factors(const kt_matrix_source *s, int piece, int64_t base, int64_t begin,
                         int64_t end, float *factors) {
    for (int64_t r = begin; native_format(s, piece) == KT_W_NVFP4 && r < end; r++)
        factors[base + r] = s->piece[piece].has_factor ? s->piece[piece].factor : 1;
}

static void copy_blocks(const kt_matrix_source *s, int piece, int64_t base, int64_t begin,
                        int64_t end, void *data) {
    const size_t row = block_row_bytes(s->piece[piece].tensor->blocks, s->k);

    if (begin < end)
        memcpy((char *)data + (base + begin) * (int64_t)row,
               s->piece[piece].tensor->data + (size_t)(s->piece[piece].first_row + begin) * row,
               (size_t)(end - begin) * row);
}

static kt_status refuse_scale(const kt_tensor *scale, int64_t row, int64_t group, kt_err *err) {
    return kt_fail(err, KT_E_FORMAT,
                   "tensor '%.100s': scale %lld of row %lld is NaN, expected finite numbers",
                   scale->name, (long long)group, (long long)row);
}

/* Row r of a piece of E2M1 codes, in the order of blocks. */
static kt_status take_fp4(const kt_matrix_source *s, int piece, int64_t r, uint8_t *blocks,
                          kt_err *err) {
    const kt_tensor *codes = s->piece[piece].tensor, *scale = s->piece[piece].fp4_scale;
    const int64_t row = kt_matrix_source_row(s, piece, r);
    int64_t bad;

    if (s->piece[piece].fp4_format == KT_W_MXFP4) {
        kt_mxfp4_from_pairs(codes->data + row * (s->k / 2), scale->data + row * (s->k / 32), s->k,
                            blocks);
        return KT_OK;
    }
    bad = kt_nvfp4_from_pairs(codes->data + row * (s->k / 2), scale->data + row * (s->k / 16), s->k,
                              blocks);
    return bad < 0 ? KT_OK : refuse_scale(scale, row, bad, err);
}

static kt_status copy_fp4(const kt_matrix_source *s, int piece, int64_t base, int64_t begin,
                          int64_t end, uint8_t *data, kt_err *err) {
    const size_t row = block_row_bytes(s->piece[piece].fp4_format, s->k);

    for (int64_t r = begin; r < end; r++)
        KT_TRY(take_fp4(s, piece, r, data + (size_t)(base + r) * row, err));
    return KT_OK;
}

/* Rows [first, last) of a turned piece, side by side in each row of the tensor. */
static void read_turned(const kt_matrix_source *s, int piece, int64_t first, int64_t last,
                        float *out) {
    const kt_tensor *t = s->piece[piece].tensor;
    const int64_t width = s->piece[piece].turned;

    for (int64_t i = 0; i < s->k; i++) {
        const int64_t at = (s->piece[piece].first_input + i) * width;
        for (int64_t r = first; r < last; r++)
            kt_tensor_read_f32(t, at + kt_matrix_source_row(s, piece, r), 1,
                               &out[(r - first) * s->k + i]);
    }
}

/* Its numbers: those of all its inputs, whichever rows they belong to. */
static void turned_bytes(const kt_matrix_source *s, int piece, size_t *first, size_t *bytes) {
    const size_t row =
        (size_t)s->piece[piece].turned * kt_dtype_bytes(s->piece[piece].tensor->dtype);

    *first = (size_t)s->piece[piece].first_input * row;
    *bytes = (size_t)s->k * row;
}

/* Row `row` of blocks of a format, block by block, as if each were a row: however long rows are. */
static void read_blocks(kt_weight_format id, const uint8_t *data, int64_t row, int64_t k,
                        float *out) {
    const kt_format *format = kt_format_find(id);
    const int64_t blocks = k / format->block;
    const kt_matrix m = {.format = id, .n = (row + 1) * blocks, .k = format->block, .data = data};
    double decoded[256];

    for (int64_t b = 0; b < blocks; b++, out += format->block) {
        format->decode_row(&m, row * blocks + b, decoded);
        for (int i = 0; i < format->block; i++) out[i] = (float)decoded[i];
    }
}

/* Row r of a piece of NVFP4 codes as w8g16m, whose codes are twice as large: for rows that are no
 * whole blocks. */
static kt_status widen_pairs(const kt_matrix_source *s, int piece, int64_t r, int8_t *data,
                             float *terms, kt_err *err) {
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const int64_t row = kt_matrix_source_row(s, piece, r), groups = s->k / 16;
    const kt_tensor *scale = s->piece[piece].fp4_scale;
    const uint8_t *pairs = s->piece[piece].tensor->data + row * (s->k / 2);

    for (int64_t g = 0; g < groups; g++) {
        const float step = kt_f8e4m3_to_f32(scale->data[row * groups + g]);
        if (!isfinite(step)) return refuse_scale(scale, row, g, err);
        terms[2 * g] = step / 2;
        terms[2 * g + 1] = 0;
    }
    for (int64_t i = 0; i < s->k; i++) data[i] = twice[pairs[i / 2] >> 4 * (i % 2) & 15];
    return KT_OK;
}

/* Row r of a piece of NVFP4 codes, number by number. */
static kt_status read_pairs(const kt_matrix_source *s, int piece, int64_t r, float *out,
                            kt_err *err) {
    static const float value[16] = {0, .5f,  1,  1.5f,  2,  3,  4,  6,
                                    0, -.5f, -1, -1.5f, -2, -3, -4, -6};
    const int64_t row = kt_matrix_source_row(s, piece, r), groups = s->k / 16;
    const kt_tensor *scale = s->piece[piece].fp4_scale;
    const uint8_t *pairs = s->piece[piece].tensor->data + row * (s->k / 2);

    for (int64_t i = 0; i < s->k; i++) {
        const float step = kt_f8e4m3_to_f32(scale->data[row * groups + i / 16]);
        if (!isfinite(step)) return refuse_scale(scale, row, i / 16, err);
        out[i] = value[pairs[i / 2] >> 4 * (i % 2) & 15] * step;
    }
    return KT_OK;
}

/* Row r of a piece of E2M1 codes. Its blocks take less room than its numbers: they lie at the end
 * of these, where each is read before its place is written. */
static kt_status read_fp4(const kt_matrix_source *s, int piece, int64_t r, float *out,
                          kt_err *err) {
    const kt_weight_format format = s->piece[piece].fp4_format;
    uint8_t *blocks = (uint8_t *)(out + s->k) - block_row_bytes(format, s->k);

    if (s->k % kt_format_find(format)->block == 0) {
        KT_TRY(take_fp4(s, piece, r, blocks, err));
        read_blocks(format, blocks, 0, s->k, out);
        return KT_OK;
    }
    return read_pairs(s, piece, r, out, err);
}

static kt_status read_int4(const kt_matrix_source *s, int piece, int64_t row, float *out,
                           kt_err *err) {
    if (kt_int4_decode_row(&s->piece[piece].int4, row, out, err) == KT_OK) return KT_OK;
    return kt_fail_prefix(err, KT_E_UNSUPPORTED, "tensor '%s'", s->piece[piece].tensor->name);
}

/* Row r of a piece that is no plain floats. */
static kt_status read_encoded(const kt_matrix_source *s, int piece, int64_t r, float *out,
                              kt_err *err) {
    const kt_tensor *t = s->piece[piece].tensor;

    if (s->piece[piece].int4.packed)
        return read_int4(s, piece, s->piece[piece].first_row + r, out, err);
    if (s->piece[piece].fp8_scale)
        read_fp8(s, piece, s->piece[piece].first_row + r, out);
    else if (s->piece[piece].fp4_scale)
        KT_TRY(read_fp4(s, piece, r, out, err));
    else
        read_blocks(t->blocks, t->data, s->piece[piece].first_row + r, s->k, out);
    for (int64_t i = 0; s->piece[piece].has_factor && i < s->k; i++)
        out[i] *= s->piece[piece].factor;
    return KT_OK;
}

/* Rows [begin, end) of floats, from whichever pieces have them. */
static kt_status read_rows(const kt_matrix_source *s, const kt_format *format, int64_t begin,
                           int64_t end, float *out, kt_err *err) {
    int64_t base = 0;

    for (int i = 0; i < s->n_pieces; base += s->piece[i++].rows) {
        const kt_tensor *t = s->piece[i].tensor;
        const int64_t first = begin > base ? begin - base : 0;
        const int64_t last = end - base < s->piece[i].rows ? end - base : s->piece[i].rows;
        float *to = first < last ? out + (base + first - begin) * s->k : out;
        if (first >= last) continue;
        if (native_format(s, i) != KT_W_NONE || s->piece[i].int4.packed) {
            for (int64_t r = first; r < last; r++, to += s->k)
                KT_TRY(read_encoded(s, i, r, to, err));
        } else if (s->piece[i].turned) {
            read_turned(s, i, first, last, to);
        } else if (kt_dtype_is_float(t->dtype)) {
            kt_tensor_read_f32(t, (s->piece[i].first_row + first) * s->k, (last - first) * s->k,
                               to);
        } else {
            return kt_fail(err, KT_E_MISMATCH, "tensor '%s': stored as %s, asked for as %s",
                           t->name, kt_dtype_name(t->dtype), format->name);
        }
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

const uint8_t *kt_matrix_source_stored(const kt_matrix_source *s) {
    const kt_tensor *t = s->piece[0].tensor;
    size_t rows = 1;

    for (int i = 0; i + 1 < t->rank; i++) rows *= (size_t)t->shape[i];
    return t->data + t->bytes / rows * (size_t)s->piece[0].first_row;
}

int64_t kt_matrix_source_rows(const kt_format *format) {
    return format->scale_rows ? format->scale_rows : KT_SOURCE_FEW;
}

/* data and scales begin with row `first`. */
static kt_status encode_floats(const kt_matrix_source *s, const kt_format *format, int64_t first,
                               int64_t begin, int64_t end, void *data, void *scales, float *scratch,
                               kt_err *err) {
    const int64_t shared = format->scale_rows ? format->scale_rows : 1;
    const int64_t step = kt_matrix_source_rows(format);
    size_t row_data, row_scales;

    format->plain_bytes(1, s->k, &row_data, &row_scales);
    for (int64_t row = begin; row < end;) {
        int64_t n = end - row < step ? end - row : step;
        double error;
        KT_TRY(read_rows(s, format, row, row + n, scratch, err));
        error = format->encode_rows(
            scratch, n, s->k, s->importance, 0, n, (char *)data + (row - first) * (int64_t)row_data,
            scales ? (char *)scales + (row - first) / shared * (int64_t)row_scales : NULL, NULL);
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

/* Stored as what w8g16m holds, but for a factor: in blocks, or as codes that blocks are made of. */
static int is_blocks(const kt_matrix_source *s, int piece) {
    return s->piece[piece].tensor->blocks != KT_W_NONE || s->piece[piece].fp4_scale;
}

int kt_matrix_source_is_exact(const kt_matrix_source *s, int piece, kt_weight_format format) {
    const kt_tensor *t = s->piece[piece].tensor;

    if (native_format(s, piece) != KT_W_NONE)
        return native_format(s, piece) == format ||
               (format == KT_W_INT8_G16M && is_blocks(s, piece));
    return (format == KT_W_BF16 && t->dtype == KT_DTYPE_BF16) ||
           (format == KT_W_F16 && t->dtype == KT_DTYPE_F16);
}

kt_status kt_matrix_source_loss(const kt_matrix_source *s, const kt_format *format,
                                int64_t row_begin, int64_t row_end, void *out, float *scratch,
                                double *row, kt_format_loss *loss, kt_err *err) {
    kt_matrix w = {.format = format->id, .k = s->k, .data = out};
    size_t data, scales;
    void *scales_at;
    int n_exact = 0;

    for (int i = 0; i < s->n_pieces; i++) n_exact += kt_matrix_source_is_exact(s, i, format->id);
    if (n_exact == s->n_pieces) return KT_OK;
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

kt_status kt_matrix_source_compare(const kt_matrix_source *s, const kt_matrix *w, int64_t first,
                                   int64_t row_begin, int64_t row_end, float *scratch, double *row,
                                   kt_format_loss *loss, kt_err *err) {
    const kt_format *format = kt_format_find(w->format);
    const int64_t step = kt_matrix_source_rows(format);
    const int64_t shared = format->scale_rows ? format->scale_rows : 1;
    size_t row_data, row_scales;

    format->plain_bytes(1, s->k, &row_data, &row_scales);
    for (int64_t at = row_begin; at < row_end; at += step) {
        const int64_t n = row_end - at < step ? row_end - at : step;
        kt_matrix part = *w;
        part.n = n;
        part.data = (const char *)w->data + (at - first) * (int64_t)row_data;
        if (w->scales)
            part.scales = (const char *)w->scales + (at - first) / shared * (int64_t)row_scales;
        KT_TRY(read_rows(s, format, at, at + n, scratch, err));
        kt_format_loss_rows(&part, scratch, s->importance, 0, n, row, loss);
    }
    return KT_OK;
}

/* Row r of a piece as a matrix of blocks; E2M1 codes are put in order in `desk` first. */
static kt_status block_row(const kt_matrix_source *s, int piece, int64_t r, uint8_t *desk,
                           kt_matrix *out, kt_err *err) {
    const kt_weight_format format = native_format(s, piece);
    const kt_tensor *t = s->piece[piece].tensor;

    *out = (kt_matrix){.format = format, .n = 1, .k = s->k, .data = desk};
    if (s->piece[piece].fp4_scale) return take_fp4(s, piece, r, desk, err);
    out->data = t->data + (size_t)(s->piece[piece].first_row + r) * block_row_bytes(format, s->k);
    return KT_OK;
}

static kt_status widen_row(const kt_matrix_source *s, int piece, int64_t r, int8_t *data,
                           float *terms, float *scratch, kt_err *err) {
    const int is_ragged = s->k % kt_format_find(native_format(s, piece))->block != 0;
    kt_matrix w;

    if (is_ragged) {
        KT_TRY(widen_pairs(s, piece, r, data, terms, err));
    } else {
        KT_TRY(block_row(s, piece, r, (uint8_t *)scratch, &w, err));
        KT_TRY(kt_w8g16m_from(&w, 0, 1, data, terms, err));
    }
    if (s->piece[piece].has_factor) kt_w8g16m_times(terms, s->k / 16, s->piece[piece].factor);
    return KT_OK;
}

/* Blocks of any format as the one that holds them all. */
static kt_status widen_blocks(const kt_matrix_source *s, int64_t first, int64_t begin, int64_t end,
                              int8_t *data, float *scales, float *scratch, kt_err *err) {
    int64_t base = 0;

    for (int i = 0; i < s->n_pieces; base += s->piece[i++].rows) {
        const int64_t stop = end < base + s->piece[i].rows ? end : base + s->piece[i].rows;
        for (int64_t r = begin > base ? begin : base; r < stop; r++)
            KT_TRY(widen_row(s, i, r - base, data + (r - first) * s->k,
                             scales + 2 * (r - first) * (s->k / 16), scratch, err));
    }
    return KT_OK;
}

static kt_status encode_from(const kt_matrix_source *s, const kt_format *format, int64_t first,
                             int64_t row_begin, int64_t row_end, void *data, void *scales,
                             float *scratch, kt_err *err) {
    int64_t base = 0;
    int n_native = 0;

    if (format->id == KT_W_INT8_G16M && is_blocks(s, 0))
        return widen_blocks(s, first, row_begin, row_end, data, scales, scratch, err);
    for (int i = 0; i < s->n_pieces; i++) n_native += native_format(s, i) == format->id;
    if (n_native < s->n_pieces)
        return encode_floats(s, format, first, row_begin, row_end, data, scales, scratch, err);
    for (int i = 0; i < s->n_pieces; base += s->piece[i++].rows) {
        int64_t begin = row_begin > base ? row_begin - base : 0;
        int64_t end = row_end - base < s->piece[i].rows ? row_end - base : s->piece[i].rows;
        if (s->piece[i].int4.packed)
            KT_TRY(import_piece(s, i, format, base - first, begin, end, data, scales, err));
        else if (s->piece[i].fp8_scale)
            copy_fp8(s, i, base - first, begin, end, data, scales);
        else if (s->piece[i].fp4_scale)
            KT_TRY(copy_fp4(s, i, base - first, begin, end, data, err));
        else
            copy_blocks(s, i, base - first, begin, end, data);
        copy_factors(s, i, base - first, begin, end, scales);
    }
    return KT_OK;
}

kt_status kt_matrix_source_encode(const kt_matrix_source *s, const kt_format *format,
                                  int64_t row_begin, int64_t row_end, void *data, void *scales,
                                  float *scratch, kt_err *err) {
    return encode_from(s, format, 0, row_begin, row_end, data, scales, scratch, err);
}

kt_status kt_matrix_source_encode_rows(const kt_matrix_source *s, const kt_format *format,
                                       int64_t row_begin, int64_t row_end, void *data, void *scales,
                                       float *scratch, kt_err *err) {
    return encode_from(s, format, row_begin, row_begin, row_end, data, scales, scratch, err);
}

/* Bytes of a row of a piece's tensor. */
static size_t stored_row_bytes(const kt_matrix_source *s, int piece) {
    const kt_tensor *t = s->piece[piece].tensor;

    if (s->piece[piece].int4.packed || s->piece[piece].fp4_scale) return (size_t)s->k / 2;
    if (t->blocks != KT_W_NONE) return block_row_bytes(t->blocks, s->k);
    return (size_t)s->k * kt_dtype_bytes(t->dtype);
}

void kt_matrix_source_populate(const kt_matrix_source *s, const kt_checkpoint *c, int64_t row_begin,
                               int64_t row_end) {
    int64_t base = 0;

    for (int i = 0; i < s->n_pieces; base += s->piece[i++].rows) {
        const kt_tensor *t = s->piece[i].tensor;
        const size_t row = stored_row_bytes(s, i);
        const int64_t first = row_begin > base ? row_begin - base : 0;
        const int64_t last = row_end - base < s->piece[i].rows ? row_end - base : s->piece[i].rows;
        int64_t from, to;
        if (first >= last) continue;
        if (s->piece[i].turned) {
            size_t at, bytes;
            turned_bytes(s, i, &at, &bytes);
            if (first == 0) kt_checkpoint_populate(c, t, at, bytes);
            continue;
        }
        from = kt_matrix_source_row(s, i, first);
        to = kt_matrix_source_row(s, i, last - 1) + 1;
        if (s->piece[i].int4.packed && s->piece[i].int4.packing != KT_INT4_ROWS) {
            if (first == 0) kt_checkpoint_populate(c, t, 0, t->bytes);
        } else {
            kt_checkpoint_populate(c, t, (size_t)from * row, (size_t)(to - from) * row);
        }
    }
}

/* Loads, one of each line: prefetches were measured to be dropped here. */
static void fetch_bytes(const kt_tensor *t, size_t offset, size_t bytes) {
    const volatile uint8_t *at = t->data + offset;

    for (size_t i = 0; i < bytes; i += 64) (void)at[i];
}

/* GPTQ: a row of words holds rows [row_begin, row_end) side by side. */
static void fetch_words(const kt_tensor *t, int64_t row_begin, int64_t row_end) {
    const size_t line = (size_t)t->shape[1] * 4, bytes = 4 * (size_t)(row_end - row_begin);

    for (int64_t i = 0; i < t->shape[0]; i++)
        fetch_bytes(t, (size_t)i * line + 4 * (size_t)row_begin, bytes);
}

void kt_matrix_source_fetch(const kt_matrix_source *s, int64_t row_begin, int64_t row_end) {
    int64_t base = 0;

    for (int i = 0; i < s->n_pieces; base += s->piece[i++].rows) {
        const kt_tensor *t = s->piece[i].tensor;
        const int is_int4 = s->piece[i].int4.packed != NULL;
        const kt_int4_packing packing = s->piece[i].int4.packing;
        const size_t row = stored_row_bytes(s, i);
        const int64_t first = row_begin > base ? row_begin - base : 0;
        const int64_t last = row_end - base < s->piece[i].rows ? row_end - base : s->piece[i].rows;
        if (first >= last || (is_int4 ? packing == KT_INT4_AWQ : !s->piece[i].fp4_scale)) continue;
        if (is_int4 && packing != KT_INT4_ROWS)
            fetch_words(t, first, last);
        else
            for (int64_t r = first; r < last; r++)
                fetch_bytes(t, (size_t)kt_matrix_source_row(s, i, r) * row, row);
    }
}

/* Rows of gate and up lie in turn: what is released twice was read by both, or comes back. */
static void release_fp4(const kt_matrix_source *s, int piece, const kt_checkpoint *c) {
    const size_t first = (size_t)s->piece[piece].first_row, codes = (size_t)s->k / 2;
    const size_t scales = (size_t)s->k / (s->piece[piece].fp4_format == KT_W_MXFP4 ? 32 : 16);
    const size_t rows =
        (size_t)(kt_matrix_source_row(s, piece, s->piece[piece].rows - 1) + 1) - first;

    kt_checkpoint_release(c, s->piece[piece].tensor, first * codes, rows * codes);
    kt_checkpoint_release(c, s->piece[piece].fp4_scale, first * scales, rows * scales);
}

void kt_matrix_source_release(const kt_matrix_source *s, const kt_checkpoint *c) {
    for (int i = 0; i < s->n_pieces; i++) {
        const kt_tensor *t = s->piece[i].tensor;
        size_t row = stored_row_bytes(s, i), at, bytes;
        if (s->piece[i].turned) {
            turned_bytes(s, i, &at, &bytes);
            kt_checkpoint_release(c, t, at, bytes);
        } else if (s->piece[i].int4.packed)
            kt_checkpoint_release(c, t, 0, t->bytes);
        else if (s->piece[i].fp4_scale)
            release_fp4(s, i, c);
        else
            kt_checkpoint_release(c, t, (size_t)s->piece[i].first_row * row,
                                  (size_t)s->piece[i].rows * row);
    }
}
