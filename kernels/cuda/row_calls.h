/* Parameters of the kernels of rows: what happens between the matrix products. The same for hosts
 * and for devices, where nothing else is included. Pointers are the device's.
 *
 * Rows are f32 and lie `ld` floats apart; nothing is said of their alignment but that of a float.
 * Unless told otherwise a result may be written over its input.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_ROW_CALLS_H
#define KT_CUDA_ROW_CALLS_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

/* ---- rows_norm ---- */

/* y = norm(x) of each of `pieces` pieces of k floats of a row, which follow each other (heads; 1 =
 * whole rows). rms: x / sqrt(mean(x^2) + eps) * w. layer: (x - mean) / sqrt(variance + eps) * w +
 * bias. */
typedef struct kt_rows_norm {
    const float *x, *w, *bias; /* [k]; w of heads may be NULL: ones; bias of layer only */
    float *y;                  /* NULL = not wanted */
    uint16_t *y16;             /* NULL, or the same as bfloat16 */
    int32_t ldx, ldy, ldy16, k, pieces, rows;
    float eps;
    int32_t zero; /* for padding */
} kt_rows_norm;

/* ---- rows_rope ---- */

/* Rotates the first rotary_dim numbers of every head of x in place, with pairs (i, i + rotary_dim /
 * 2) or, interleaved, (2i, 2i + 1); is_inverse: back. */
typedef struct kt_rows_rope {
    float *x;
    const float *cos_sin;    /* [positions, rotary_dim]: cosines, then sines (rope_table.h) */
    const int32_t *position; /* [rows] into cos_sin */
    int32_t ld, heads, head_dim, rotary_dim, rows, is_interleaved, is_inverse;
    int32_t zero; /* for padding */
} kt_rows_rope;

/* ---- rows_keep ---- */

/* Where the rows of a batch have their places in pages of 64 tokens. */
typedef struct kt_row_places {
    const int32_t *position;   /* [rows] in its sequence */
    const int32_t *span;       /* [rows] */
    const int32_t *first_page; /* [spans] index into page of the span's page 0 */
    const uint32_t *page;      /* page numbers of all spans */
} kt_row_places;

enum { KT_KEPT_BF16 = 0, KT_KEPT_INT8, KT_KEPT_FP8 };

/* Head h of page p, place i lies at to + h * head_stride + p * page_stride + i * row_bytes, its
 * scale (INT8, FP8: one a row) at scale + h * scale_head_stride + p * scale_page_stride + i. */
typedef struct kt_kept_heads {
    uint8_t *to;
    float *scale;                                 /* NULL with BF16 */
    int64_t head_stride, page_stride, row_bytes;  /* bytes */
    int64_t scale_head_stride, scale_page_stride; /* floats */
} kt_kept_heads;

/* heads rows of `size` floats of each row of x go to their places. The bytes are those of
 * kt_attn_store. */
typedef struct kt_rows_keep {
    const float *x;
    kt_row_places places;
    kt_kept_heads kept;
    int32_t ldx, heads, size, rows;
} kt_rows_keep;

/* ---- rows_heads ---- */

enum { KT_HEAD_PARTS = 3 };

/* Heads of `size` floats that lie side by side in the rows of x: they are normed, then the first
 * rotary_dim numbers of each are rotated, both in place, then they go to their places. What each of
 * these is, is said above (heads of rows_norm, rows_rope, rows_keep); each may be left out. */
typedef struct kt_head_part {
    float *x;
    const float *w;       /* of the norm; NULL = ones */
    const float *cos_sin; /* NULL = not rotated */
    kt_kept_heads kept;   /* to NULL = not kept */
    int32_t ld, heads, size, rotary_dim, is_interleaved, is_inverse, has_norm;
    float eps;
} kt_head_part;

/* Queries, keys and values between their product and attention. */
typedef struct kt_rows_heads {
    kt_row_places places;
    kt_head_part part[KT_HEAD_PARTS]; /* unused ones have no heads */
    int32_t heads, rows;              /* heads of all parts */
} kt_rows_heads;

/* A row that ends a window of `ratio` tokens is normed and rotated at the window's first position,
 * in place, its last `rotary` numbers (kernels/compress/entries.h); then it goes to place
 * position % 64 / ratio of its page p: to + p * page_bytes + place * row_bytes, its scale (INT8,
 * FP8) at scale + p * page_bytes / 4 + place. Other rows are not touched. */
typedef struct kt_rows_keep_entry {
    float *x;
    const float *norm, *cos_sin; /* [size]; [positions, rotary] */
    kt_row_places places;
    uint8_t *to;
    float *scale;       /* NULL with BF16 */
    int64_t page_bytes; /* a multiple of 4 */
    int32_t ldx, size, rotary, is_interleaved, ratio, row_bytes, rows;
    float eps;
} kt_rows_keep_entry;

/* Each row as a cache holds it, in a row of ldo floats; INT8, FP8: its scale at float `scale`. */
typedef struct kt_rows_pack {
    const float *x;
    float *out;
    int32_t ldx, ldo, size, scale, rows;
    int32_t zero; /* for padding */
} kt_rows_pack;

/* ---- rows_misc ---- */

typedef struct kt_rows_bias { /* x += bias */
    float *x;
    const float *bias; /* [width] */
    int32_t ldx, width, rows;
    int32_t zero; /* for padding */
} kt_rows_bias;

typedef struct kt_rows_gate { /* x *= sigmoid(gate) */
    float *x;
    const float *gate; /* [rows, ldg]: as wide as x, or one number a row */
    int32_t ldx, ldg, width, gate_width, rows;
    int32_t zero; /* for padding */
} kt_rows_gate;

typedef struct kt_rows_dot { /* out = sigmoid(w . x), one number a row */
    const float *x, *w;
    float *out;
    int32_t ldx, ldo, width, rows;
} kt_rows_dot;

/* Rows of `groups` groups, each of parts[0], parts[1] .. columns: out has all groups' part 0 first,
 * then all groups' part 1. Not in place. */
typedef struct kt_rows_regroup {
    const float *x;
    float *out;
    int32_t ldx, ldo, groups, rows, parts[4]; /* unused parts are 0 */
} kt_rows_regroup;

/* ---- rows_copy ---- */

typedef struct kt_rows_embed { /* out = table[token] */
    const void *table;         /* bfloat16 or f32 [vocabulary, width] */
    const int32_t *token;      /* [rows] */
    float *out;
    int32_t ldo, width, rows;
    int32_t zero; /* for padding */
} kt_rows_embed;

typedef struct kt_rows_add { /* y += x */
    const float *x;
    float *y;
    int32_t ldx, ldy, width, rows;
} kt_rows_add;

typedef struct kt_rows_copy { /* y[r] = x[row[r]] */
    const float *x;
    const int32_t *row; /* [rows]; NULL = row r itself; a negative one makes zeros */
    float *y;           /* NULL = not wanted */
    uint16_t *y16;      /* NULL, or the same as bfloat16 */
    int32_t ldx, ldy, ldy16, width, rows;
    int32_t zero; /* for padding */
} kt_rows_copy;

/* ---- router ---- */

typedef struct kt_router_scores { /* logits[r, e] = x[r] . w[e] + bias[e] */
    const float *x;
    const void *w; /* bfloat16 or f32 [experts, k] */
    float *logits; /* [rows, experts] */
    int32_t ldx, k, experts, rows;
    const float *bias; /* NULL = none */
} kt_router_scores;

enum { KT_CHOSEN_SOFTMAX = 0, KT_CHOSEN_SIGMOID, KT_CHOSEN_SIGMOID_GROUP, KT_CHOSEN_SQRT_SOFTPLUS };

/* The topk experts of each row and their weights, by the rule of kernels/router/router_select.h. A
 * shared expert is one slot more behind the chosen: number `experts`, weight shared_gate or 1.
 * Results are [rows, slots], slots = topk + (has_shared ? 1 : 0). */
typedef struct kt_router_choice {
    const float *logits;      /* [rows, experts] */
    const float *bias;        /* [experts] or NULL: of sigmoids, for the choice only */
    const float *shared_gate; /* NULL, or one number a row, ldg apart */
    const int32_t *map;       /* [experts + has_shared]: number on this device, or -1; NULL = all */
    int32_t *id;              /* of the model; NULL = not wanted */
    int32_t *here;            /* on this device, or -1; NULL = not wanted */
    int32_t *elsewhere;       /* of the model, or -1 where this device has it; NULL = not wanted */
    float *weight;
    int32_t rows, experts, topk, rule, groups, top_groups, is_normalised, has_shared, ldg;
    float scale; /* of the weights; 0 counts as 1 */
    /* NULL, or the token says which: slot j of row r is expert ids[token[r] * topk + j], whole
     * numbers below `experts`. Not with softmax, whose weights want the largest logit first. */
    const float *ids;
    const int32_t *token; /* [rows] */
} kt_router_choice;

/* ---- hyper_streams ---- */

enum { KT_STREAMS_MOST = 8 };

typedef struct kt_streams_begin { /* `count` copies of x, side by side */
    const float *x;
    float *out;
    int32_t ldx, ldo, hidden, count, rows;
    int32_t zero; /* for padding */
} kt_streams_begin;

/* kernels/hyper/hyper.h before half a layer: out [0, hidden) = the streams as one row. Behind it,
 * unless is_end, pre, post and C (2 count + count^2 numbers), and from `result` on `hidden` zeros.
 * product: fn X, rows of `outputs` numbers; with is_end the first `count` are all. */
typedef struct kt_streams_mix {
    const float *x; /* streams */
    const float *product, *base, *scale;
    float *out;
    int32_t ldx, ldo, hidden, count, iterations, outputs, result, is_end, rows;
    float eps, norm_eps;
    int32_t zero; /* for padding */
} kt_streams_mix;

/* The streams behind half a layer, in place, with its result y; outputs: what mix left. */
typedef struct kt_streams_join {
    float *streams;
    const float *y, *outputs;
    float *mean; /* of the streams; NULL = not wanted */
    int32_t lds, ldy, ldm, ldmean, hidden, count, rows;
    int32_t zero; /* for padding */
} kt_streams_join;

/* ---- conv, delta ---- */

/* Rows of one sequence in a batch, and where it keeps its states: at states + from * stride before
 * the step, at states + to * stride behind it; they may be the same. */
typedef struct kt_state_span {
    int32_t first_row, rows, position, from, to;
} kt_state_span;

/* Causal convolution of each channel over the last `taps` rows of its sequence, then SiLU:
 * kt_conv_call of kt/variant.h for all spans of a batch. taps is a constant of the build. Not in
 * place. */
typedef struct kt_conv_rows {
    const float *x, *w; /* w [taps, channels] */
    float *y;
    const kt_state_span *spans;
    const int32_t *span; /* [rows] */
    float *states;       /* of this node: [taps - 1, channels] each */
    int64_t stride;      /* floats from a sequence's states to the next one's */
    int32_t ldx, ldy, channels, rows;
} kt_conv_rows;

/* Gated delta rule: kt_delta_call of kt/variant.h for the spans of a batch that have
 * [rows_from, rows_to) rows; keys and values are multiples of 4 up to 128. */
typedef struct kt_delta_batch {
    const float *q, *k, *v; /* rows ld apart; key head j at j * keys, value head h at h * values */
    const float *b, *a;     /* [rows, heads], ldba apart */
    const float *decay, *dt_bias; /* [heads] */
    const float *z, *norm;        /* z NULL: the result is not gated; norm [values] */
    float *out;                   /* none of the inputs */
    const kt_state_span *spans;
    const int32_t *span; /* [rows] */
    float *states;       /* of this node: [heads, keys, values] each */
    int64_t stride;      /* floats from a sequence's states to the next one's */
    float *room;         /* of delta_chunks: KT_DELTA_SLOTS * heads * KT_DELTA_ROOM floats, aligned
                            to 16 bytes */
    int32_t ld, ldba, ldz, ldo, heads, key_heads, keys, values, n_spans, rows;
    int32_t rows_from, rows_to;
    float eps;
    int32_t zero; /* for padding */
} kt_delta_batch;

enum {
    KT_DELTA_MOST = 128,            /* keys and values */
    KT_DELTA_PIECE = 64,            /* rows of a chunk; delta_chunks takes spans from as many on */
    KT_DELTA_ROOM = 2 * 4096 + 256, /* floats that a chunk and head leave for the walk */
    KT_DELTA_STEPS_SHARED = 9472,   /* bytes of a block */
    KT_DELTA_PREPARE_SHARED = 69376,
    KT_DELTA_CHUNKS_SHARED = 84480
};
/* Chunks that spans of `rows` rows together may have. */
#define KT_DELTA_SLOTS(rows) (3 * ((rows) / KT_DELTA_PIECE))

#endif
