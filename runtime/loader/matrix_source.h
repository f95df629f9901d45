/* From checkpoint tensors to plain matrices: stacked row ranges, converted or quantised.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_MATRIX_SOURCE_H
#define KT_RUNTIME_MATRIX_SOURCE_H

#include "kernels/formats/format.h"
#include "kernels/formats/int4_import.h"
#include "dispatch/model/checkpoint.h"

#define KT_SOURCE_PIECES 4
#define KT_SOURCE_BLOCK 128 /* most rows converted at a time: those that share scales */
#define KT_SOURCE_FEW 16    /* what a cache holds, where rows share no scales */

/* A matrix [rows, k] whose rows come from up to four tensors, one after the other (q, k and v make
 * one projection). A tensor of rank 3 counts as [d0 * d1, d2]. Borrowed from the checkpoint. */
typedef struct kt_matrix_source {
    int64_t rows, k;
    const float
        *importance; /* NULL, or [k]: how much each input's error counts (kt_format.encode_rows) */
    int allows_nonfinite; /* floats that stay floats may be NaN or infinite */
    int n_pieces;
    struct {
        const kt_tensor *tensor;
        int64_t first_row, rows;
        /* Stored as INT4 (int4.packed not NULL): then tensor holds the words, others what
         * belongs to them; first_row counts in them as elsewhere. */
        kt_int4_source int4;
        const kt_tensor *others[3]; /* scales, zero points, group index; or NULL */
        /* Stored as E4M3 codes: their scales, of wf8b128 one per 128 x 128 block, of wf8c per row
         * or one for all, of wmxfp8 exponents per 32 inputs. NULL = not. */
        const kt_tensor *fp8_scale;
        kt_weight_format fp8_format;
        /* Stored as E2M1 codes, two in a byte: their scales in the order of tensor's rows, of
         * wmxfp4 an E8M0 exponent per 32 inputs, of wnvfp4 an E4M3 scale per 16. NULL = not. Row r
         * of the piece is row first_row + r * row_step of the tensors. */
        const kt_tensor *fp4_scale;
        kt_weight_format fp4_format;
        int64_t row_step; /* 0 counts as 1 */
        /* NVFP4, in blocks or codes, with a factor of its matrix. */
        int has_factor;
        float factor;
        /* Stored turned: input i of row r is number first_row + r * row_step of the tensor's row
         * first_input + i, of `turned` numbers. 0 = not. */
        int64_t turned, first_input;
    } piece[KT_SOURCE_PIECES];
} kt_matrix_source;

/* Append rows [first_row, first_row + rows) of a tensor of floats or GGUF blocks; all pieces
 * have the same k. */
void kt_matrix_source_add(kt_matrix_source *s, const kt_tensor *t, int64_t first_row, int64_t rows);

/* The piece that was appended last is NVFP4, and all its weights have this factor. */
void kt_matrix_source_times(kt_matrix_source *s, float factor);

/* Append a matrix of k inputs whose rows are columns `column`, column + step, ... of rows
 * [first_input, first_input + k) of a tensor of floats. */
void kt_matrix_source_add_turned(kt_matrix_source *s, const kt_tensor *t, int64_t column,
                                 int64_t step, int64_t rows, int64_t first_input, int64_t k);

/* Append a matrix stored as INT4. */
void kt_matrix_source_add_int4(kt_matrix_source *s, const kt_int4_source *int4,
                               const kt_tensor *packed, const kt_tensor *const others[3]);

/* Append a matrix stored as E4M3 codes with scales (float, or exponents as F8_E8M0 or U8) that are
 * shared as in `format`: w = code * scale. */
void kt_matrix_source_add_fp8(kt_matrix_source *s, const kt_tensor *codes, const kt_tensor *scale,
                              kt_weight_format format);

/* Append rows stored as E2M1 codes in the order of checkpoints: byte i of a row holds input 2i in
 * its low nibble, 2i + 1 in its high one; with scales as `format` (wmxfp4 or wnvfp4) has them. k
 * inputs, a multiple of 32 (as wnvfp4 they are taken in multiples of 64 alone); every row_step-th
 * row of the tensors from first_row on. */
void kt_matrix_source_add_fp4(kt_matrix_source *s, kt_weight_format format, const kt_tensor *codes,
                              const kt_tensor *scale, int64_t first_row, int64_t row_step,
                              int64_t rows, int64_t k);

/* Row of the tensor that row r of a piece is. */
static inline int64_t kt_matrix_source_row(const kt_matrix_source *s, int piece, int64_t r) {
    return s->piece[piece].first_row +
           r * (s->piece[piece].row_step ? s->piece[piece].row_step : 1);
}

/* Can the type be read as floating point: BF16, F16, F32. */
int kt_dtype_is_float(kt_dtype dtype);
/* Elements [begin, begin + count) of a float tensor as f32. */
void kt_tensor_read_f32(const kt_tensor *t, int64_t begin, int64_t count, float *out);

/* The stored bytes themselves as a matrix of `format`, without a copy: one piece, stored in that
 * format, with scales of its type, and aligned. Returns 0 when they cannot be used as they are. */
int kt_matrix_source_borrow(const kt_matrix_source *s, kt_weight_format format, kt_matrix *out);

/* The same of rows [row_begin, row_end), which lie in one piece, whatever the others are: *out
 * begins with row row_begin. */
int kt_matrix_source_borrow_rows(const kt_matrix_source *s, kt_weight_format format,
                                 int64_t row_begin, int64_t row_end, kt_matrix *out);

/* Where the stored numbers of its first row begin: matrices of one shape with the same address are
 * the same. */
const uint8_t *kt_matrix_source_stored(const kt_matrix_source *s);

/* Rows converted at a time into that format. */
int64_t kt_matrix_source_rows(const kt_format *format);

/* Convert rows [row_begin, row_end) into data and scales (bases of the whole plain matrix).
 * scratch holds kt_matrix_source_rows(format) * k floats. row_begin is a multiple of 128 where rows
 * share scales (kt_format.scale_rows). Rows stored as INT4, FP8, MXFP4, NVFP4 or in blocks are
 * taken as they are where format is theirs (then row_begin and row_end of INT4 are multiples of 8
 * or the last row), else decoded and encoded anew. Fails when a weight is infinite or NaN (but see
 * allows_nonfinite; a scale of NVFP4 never is) or too large for the format, or as kt_int4_import
 * and kt_int4_decode_row. */
kt_status kt_matrix_source_encode(const kt_matrix_source *s, const kt_format *format,
                                  int64_t row_begin, int64_t row_end, void *data, void *scales,
                                  float *scratch, kt_err *err);

/* Likewise, with data and scales that begin with row row_begin. */
kt_status kt_matrix_source_encode_rows(const kt_matrix_source *s, const kt_format *format,
                                       int64_t row_begin, int64_t row_end, void *data, void *scales,
                                       float *scratch, kt_err *err);

/* What encoding rows [row_begin, row_end) as format loses, added to *loss: nothing where all pieces
 * are stored in it. row_begin as above. out holds KT_SOURCE_BLOCK rows of the format and, behind
 * them at the next multiple of 64, their scales. */
kt_status kt_matrix_source_loss(const kt_matrix_source *s, const kt_format *format,
                                int64_t row_begin, int64_t row_end, void *out, float *scratch,
                                double *row, kt_format_loss *loss, kt_err *err);
/* What rows [row_begin, row_end) lost that were encoded as w, which begins with row `first` of the
 * matrix; added to *loss. scratch holds kt_matrix_source_rows floats times k, row k doubles. Rows
 * that share scales begin together, as above. */
kt_status kt_matrix_source_compare(const kt_matrix_source *s, const kt_matrix *w, int64_t first,
                                   int64_t row_begin, int64_t row_end, float *scratch, double *row,
                                   kt_format_loss *loss, kt_err *err);
/* Is a piece taken as it is stored, when the matrix becomes that format? */
int kt_matrix_source_is_exact(const kt_matrix_source *s, int piece, kt_weight_format format);
/* Bytes of `out` above. */
size_t kt_matrix_source_loss_bytes(const kt_format *format, int64_t k);

/* Have rows [row_begin, row_end) in memory before they are read; of transposed INT4 all rows come
 * with the first. */
void kt_matrix_source_populate(const kt_matrix_source *s, const kt_checkpoint *c, int64_t row_begin,
                               int64_t row_end);

/* Bring rows [row_begin, row_end) of INT4 and E2M1 codes into the caches, in the order of the
 * file: packing meets lines of many rows in turn, which no prefetcher follows. AWQ, whose words
 * hold eight rows, is left alone, and so is what kt_matrix_source_check_finite reads. */
void kt_matrix_source_fetch(const kt_matrix_source *s, int64_t row_begin, int64_t row_end);

/* Tell the kernel that the pages behind the source are not needed any more. */
void kt_matrix_source_release(const kt_matrix_source *s, const kt_checkpoint *c);

#endif
