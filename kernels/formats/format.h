/* Weight formats: exact decoding in double and, where we quantise, encoding.
 * One file kernels/formats/<name>.c is all that the tree knows of a format: `KT_FORMAT(<name>) = {...};`
 * and the lines KT_FORMAT_IS, _BLOCKS or _PANEL, and _DEVICE. The build reads them and writes the table
 * of formats and "kt/weight_formats.h", which has the enumeration, the names and what is constant
 * where kernels are compiled. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_FORMAT_H
#define KT_KERNELS_FORMAT_H

#include "kt/variant.h"

typedef struct kt_block kt_block; /* kernels/formats/blocks.h */

typedef struct kt_format {
    const char *name; /* the file's stem: "w4g32" */
    kt_weight_format id;
    kt_act_format acts; /* activation encoding its kernels use */
    int64_t group;      /* inputs per scale; 0 = whole row or none */
    int64_t block;      /* k is a multiple of this; 0 = any k */
    int64_t scale_rows; /* rows that share a scale, not to be encoded alone; 0 = one */
    double bits;        /* stored bits per weight, scales included, k -> infinity */

    /* Bytes of data and of scales of a plain matrix [n, k] (kt_matrix) that kt_format_sizes accepts. */
    void (*plain_bytes)(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes);
    /* Decode row `row` of w into k doubles: the exact value of each stored weight. */
    void (*decode_row)(const kt_matrix *w, int64_t row, double *out);
    /* For formats that add a minimum to scale * code: |scale * code| + |minimum| of each weight, what
     * error bounds are made of. NULL = |decoded value|. */
    void (*terms_row)(const kt_matrix *w, int64_t row, double *out);
    /* Block formats (kernels/formats/p64_spec.h): take block b of row `row` apart. NULL = others. */
    void (*unpack)(const kt_matrix *w, int64_t row, int64_t b, kt_block *out);
    /* Block formats: rows [row, row + rows) of w (a multiple of 4, at most 64; behind the last row
     * come rows of padding) to rows at, at + 1, ... of a panel. NULL = others. */
    void (*pack_rows)(const kt_matrix *w, int64_t row, int rows, uint8_t *panel, int at);
    /* Quantise rows [row_begin, row_end) of f32 src [n, k] into data/scales (the whole matrix's
     * bases). Callers may share rows out in any parts: rows of one scale are looked at in src. importance,
     * NULL or k numbers >= 0: how much input i's error counts (E[x_i^2] of what the matrix is applied to);
     * formats that search their scales minimise sum importance_i * error_i^2, others ignore it. Returns the sum of squared
     * errors (importance left out) and adds the sum of squares to *energy (may be NULL). NULL = we
     * never encode this format. */
    double (*encode_rows)(const float *src, int64_t n, int64_t k, const float *importance,
                          int64_t row_begin, int64_t row_end, void *data, void *scales,
                          double *energy);
    /* GGUF blocks, for those who make random ones: bytes of a block, and where its f16 scale and f16
     * minimum lie (-1 = none). 0 bytes = not a GGUF block. */
    int block_bytes, d_at, m_at;
    /* Of blocks that hold the bits of an f16 scale apart: that scale. NULL = it lies at d_at. */
    uint16_t (*scale_of)(const uint8_t *block);
    /* Of blocks without an f16 at d_at: write the scales of block `number` of many, whose mean shall
     * be `scale`, or its magnitude where scales have no sign. NULL = others. */
    void (*put_scale)(uint8_t *block, size_t number, double scale);
    /* GGUF files: the number and the name of the type; a NULL name = never in such files. */
    uint32_t ggml_type;
    const char *ggml_name;
    /* Of blocks with a grid: where low, high, scale and minimum of a device's record lie in a block;
     * -1 = it has none, or not as a device reads it. */
    int fields_at[4];
} kt_format;

#define KT_FORMAT(stem)                      \
    extern const kt_format kt_format_##stem; \
    const kt_format kt_format_##stem

/* KT_FORMAT_IS(ID, NUMBER); the enumerator KT_W_<ID> and its number, the next that is free: a number
 * is never given to another format. Each of these is one line of a format's file. */
#define KT_FORMAT_IS(id, number) \
    _Static_assert((int)KT_W_##id == (number), "the build has read this line")
/* Formats of blocks: how their panels are built, in the words of kt_p64_spec and the enumerations
 * before it; behind it the grid, if there is one. What kernels of blocks in general multiply is
 * KT_FORMAT_BLOCKS, what has kernels of its own instead KT_FORMAT_PANEL. */
#define KT_FORMAT_PANEL(low, high, span, group, ...)                                 \
    _Static_assert((low) + (high) <= 8 && (span) % 32 == 0 && (span) % (group) == 0, \
                   "codes of at most 8 bits, blocks of whole units and groups");     \
    enum { KT_THIS_SPAN = (span), KT_THIS_GROUP = (group) }
#define KT_FORMAT_BLOCKS(...) KT_FORMAT_PANEL(__VA_ARGS__)
/* Members of every format of blocks, whose functions its file has under the members' names. */
#define KT_BLOCK_MEMBERS(decode)                                                            \
    .acts = KT_A_INT8_G32, .group = KT_THIS_GROUP, .block = KT_THIS_SPAN, .unpack = unpack, \
    .plain_bytes = plain_bytes, .decode_row = decode, .pack_rows = pack_rows
/* Records of devices in the words of kt_weight_spec (kernels/cuda/kt_dev_weights.h), where they do
 * not follow from the panels. A format with neither line has no kernel on devices. */
#define KT_FORMAT_DEVICE(low, high, ...) _Static_assert((low) + (high) <= 16, "bits of a weight")

extern const kt_format *const kt_builtin_formats[];
extern const size_t kt_builtin_format_count;

const kt_format *kt_format_find(kt_weight_format id); /* NULL when there is none */

/* Bytes of a plain matrix [n, k]. Refuses sizes that the format cannot have (k is no multiple of its
 * block) and sizes whose bytes overflow. */
kt_status kt_format_sizes(const kt_format *format, int64_t n, int64_t k, size_t *data_bytes,
                          size_t *scale_bytes, kt_err *err);

/* What encoding lost. Zero-initialise, add rows (in parts and from threads: add the structs up). */
typedef struct kt_format_loss {
    double error_sq, energy;            /* sums of squares: of the errors, of the source */
    double weighted_sq, weighted_total; /* the same with importance; 0 without */
    double error_max, source_max;       /* largest magnitudes */
} kt_format_loss;

/* Compare rows [row_begin, row_end) of w with the f32 source [n, k] it was made from. row is scratch of
 * k doubles. A weight or source that is not finite makes error_sq not finite. */
void kt_format_loss_rows(const kt_matrix *w, const float *src, const float *importance,
                         int64_t row_begin, int64_t row_end, double *row, kt_format_loss *loss);
void kt_format_loss_add(kt_format_loss *loss, const kt_format_loss *more);
/* Relative root mean square error, 0 for a source of zeros; and the same with importance. */
double kt_format_loss_rms(const kt_format_loss *loss);
double kt_format_loss_weighted_rms(const kt_format_loss *loss);

#endif
