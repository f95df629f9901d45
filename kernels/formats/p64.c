/* Packing into p64. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/p64.h"

#include <string.h>

#include "base/err.h"
#include "kernels/formats/format.h"
#include "kernels/formats/p64_turn.h"

/* How the words of a row (four bytes of inputs each) become those of a line. */
typedef enum word_order {
    WORDS_AS_STORED,
    WORDS_PLUS_128, /* w8c: value + 128 */
    WORDS_OF_PAIRS  /* E4M3: four rows with two inputs each, then the same rows with the next two */
} word_order;

/* Rows of a matrix of words that a panel takes as they are. */
typedef struct word_rows {
    const uint8_t *data;
    int64_t row_bytes, words; /* of a row */
    word_order order;
} word_rows;

static word_rows words_of(const kt_matrix *w) {
    const kt_weight_format f = w->format;
    const int64_t bytes = f == KT_W_F32 ? 4 : f == KT_W_BF16 || f == KT_W_F16 ? 2 : 1;
    const word_order order = f == KT_W_INT8_CHANNEL ? WORDS_PLUS_128
                             : bytes == 1           ? WORDS_OF_PAIRS
                                                    : WORDS_AS_STORED;

    return (word_rows){w->data, bytes * w->k, bytes * w->k / 4, order};
}

static inline __m128i reorder(__m128i four, word_order order) {
    if (order == WORDS_PLUS_128) return _mm_xor_si128(four, _mm_set1_epi8((char)0x80));
    if (order == WORDS_AS_STORED) return four;
    four = _mm_shufflelo_epi16(four, _MM_SHUFFLE(3, 1, 2, 0));
    four = _mm_shufflehi_epi16(four, _MM_SHUFFLE(3, 1, 2, 0));
    return _mm_shuffle_epi32(four, _MM_SHUFFLE(3, 1, 2, 0));
}

/* Four rows of which `there` exist, into rows at .. at + 3 of the panel; words come in fours, since
 * k is a multiple of 32. */
static inline __attribute__((always_inline)) void
turn_rows(const word_rows *w, int64_t row, int there, word_order order, uint8_t *panel, int at) {
    const uint8_t *from = w->data + row * w->row_bytes;

    for (int64_t i = 0; i < w->words; i += 4, from += 16) {
        __m128i v[4];
        for (int r = 0; r < 4; r++)
            v[r] = r < there
                       ? _mm_loadu_si128((const __m128i *)(const void *)(from + r * w->row_bytes))
                       : _mm_setzero_si128();
        kt_turn_words(v);
        for (int j = 0; j < 4; j++)
            _mm_storeu_si128((__m128i *)(void *)(panel + (i + j) * (4 * KT_P64_ROWS) + 4 * at),
                             reorder(v[j], order));
    }
}

/* Whole lines are written, sixteen rows at a time, while a part of each source row lies in the
 * first cache. */
static inline __attribute__((always_inline)) void turn_words(const word_rows *w, word_order order,
                                                             int64_t n, int64_t row, int rows,
                                                             uint8_t *panel, int at) {
    enum { PART = 64 }; /* words of a row: four lines */

    for (int64_t i = 0; i < w->words; i += PART) {
        const word_rows part = {w->data + 4 * i, w->row_bytes,
                                w->words - i < PART ? w->words - i : PART, order};
        for (int r = 0; r < rows; r += 4) {
            const int64_t there = n - row - r;
            uint8_t *to = panel + i * (4 * KT_P64_ROWS);
            if (there >= 4)
                turn_rows(&part, row + r, 4, order, to, at + r);
            else
                turn_rows(&part, row + r, there > 0 ? (int)there : 0, order, to, at + r);
        }
    }
}

/* One f32 per row behind the codes; padding has 0. */
static void put_row_scales(const kt_matrix *w, int64_t row, int rows, uint8_t *scales, int at) {
    for (int r = 0; r < rows; r++)
        if (row + r < w->n)
            memcpy(scales + 4 * (at + r), (const char *)w->scales + 4 * (row + r), 4);
        else
            memset(scales + 4 * (at + r), 0, 4);
}

/* Block scales: one for each half of the panel. Every row of a half has the same, and padding none.
 * */
static void put_block_scales(const kt_matrix *w, int64_t row, int rows, uint8_t *scales, int at) {
    const int64_t blocks = (w->k + 127) / 128;

    if (at == 0) memset(scales, 0, (size_t)(blocks * 8 + 63) / 64 * 64);
    for (int r = 0; r < rows; r += 32)
        for (int64_t b = 0; b < blocks && row + r < w->n; b++)
            memcpy(scales + 8 * b + (at + r) / 32 * 4,
                   (const char *)w->scales + 4 * ((row + r) / 128 * blocks + b), 4);
}

/* Exponents by groups of 32 inputs. A group whose exponent says NaN gets codes of NaN instead:
 * kernels need no case for it. */
static void put_exponents(const kt_matrix *w, int64_t row, int rows, uint8_t *panel, int at) {
    uint8_t *exponents = panel + (size_t)w->k * KT_P64_ROWS;

    for (int64_t g = 0; g < w->k / 32; g++)
        for (int r = 0; r < rows; r++) {
            uint8_t *to = exponents + 64 * g + at + r;
            uint8_t *code = panel + 2048 * g + (at + r) / 4 * 16 + (at + r) % 4 * 2;
            *to = row + r < w->n ? ((const uint8_t *)w->scales)[(row + r) * (w->k / 32) + g] : 0;
            if (*to != 255) continue;
            *to = 127;
            for (int i = 0; i < 32; i++) code[i / 4 * 256 + i % 4 / 2 * 8 + i % 2] = 0x7f;
        }
}

/* Rows [row, row + rows) of w, 32 or 64, into rows at, at + 1, ... of a panel. */
static void pack_rows(const kt_matrix *w, int64_t row, int rows, uint8_t *panel, int at) {
    const kt_format *format = kt_format_find(w->format);
    uint8_t *tail = panel + (size_t)w->k * KT_P64_ROWS; /* behind codes of one byte */
    word_rows words;

    if (format->pack_rows) {
        format->pack_rows(w, row, rows, panel, at);
        return;
    }
    words = words_of(w);
    switch (words.order) {
    case WORDS_AS_STORED: turn_words(&words, WORDS_AS_STORED, w->n, row, rows, panel, at); break;
    case WORDS_PLUS_128: turn_words(&words, WORDS_PLUS_128, w->n, row, rows, panel, at); break;
    default: turn_words(&words, WORDS_OF_PAIRS, w->n, row, rows, panel, at); break;
    }
    if (w->format == KT_W_MXFP8)
        put_exponents(w, row, rows, panel, at);
    else if (w->format == KT_W_FP8_B128)
        put_block_scales(w, row, rows, tail, at);
    else if (w->format == KT_W_INT8_CHANNEL || w->format == KT_W_FP8_CHANNEL)
        put_row_scales(w, row, rows, tail, at);
}

static void pack_matrix(const kt_matrix *w, uint8_t *dst) {
    const size_t panel_bytes = kt_p64_panel_bytes(w->format, w->k);

    for (int64_t p = 0; p < kt_p64_panels(w->n); p++, dst += panel_bytes)
        pack_rows(w, KT_P64_ROWS * p, KT_P64_ROWS, dst, 0);
}

kt_status kt_p64_accepts(const kt_problem *q, const kt_config *config, kt_err *why) {
    const kt_format *format = kt_format_find(q->weights);
    const int64_t multiple = kt_p64_k_multiple(q->weights);

    (void)config;
    if (!format)
        return kt_fail(why, KT_E_UNSUPPORTED, "no weight format %s",
                       kt_weight_format_name(q->weights));
    if (q->n <= 0 || q->k <= 0 || q->k % multiple != 0)
        return kt_fail(why, KT_E_UNSUPPORTED, "n=%lld k=%lld: k must be a multiple of %lld",
                       (long long)q->n, (long long)q->k, (long long)multiple);
    if (q->op == KT_OP_MOE_FFN && q->n % multiple != 0)
        return kt_fail(why, KT_E_UNSUPPORTED,
                       "n=%lld: the intermediate size must be a multiple of %lld", (long long)q->n,
                       (long long)multiple);
    if (q->acts != format->acts && !(q->acts == KT_A_INT8_G16P2 && format->acts == KT_A_INT8_G32))
        return kt_fail(why, KT_E_UNSUPPORTED, "%s weights do not go with %s activations",
                       kt_weight_format_name(q->weights), kt_act_format_name(q->acts));
    return KT_OK;
}

kt_status kt_p64_accepts_opened(const kt_problem *q, const kt_config *config, kt_err *why) {
    kt_problem as_codes = *q;

    if (kt_p64_spec_of(q->weights).low || q->weights == KT_W_INT8_CHANNEL)
        if (q->acts == KT_A_BF16) as_codes.acts = KT_A_INT8_G32;
    return kt_p64_accepts(&as_codes, config, why);
}

kt_status kt_p64_accepts_widened(const kt_problem *q, const kt_config *config, kt_err *why) {
    if (q->m < KT_P64_WIDENED_ROWS)
        return kt_fail(why, KT_E_UNSUPPORTED,
                       "m=%lld: fewer than %d rows do not pay for widening a panel",
                       (long long)q->m, KT_P64_WIDENED_ROWS);
    return kt_p64_accepts(q, config, why);
}

size_t kt_p64_gemm_bytes(const kt_problem *q) {
    return (size_t)kt_p64_panels(q->n) * kt_p64_panel_bytes(q->weights, q->k);
}

void kt_p64_pack_gemm(const kt_problem *q, const kt_matrix *w, void *dst) {
    (void)q;
    pack_matrix(w, dst);
}

size_t kt_p64_expert_bytes(const kt_problem *q) {
    return kt_p64_gate_up_bytes(q) + kt_p64_down_bytes(q);
}

void kt_p64_pack_expert(const kt_problem *q, const kt_matrix *gate, const kt_matrix *up,
                        const kt_matrix *down, void *dst) {
    uint8_t *panel = dst;
    size_t panel_bytes = kt_p64_panel_bytes(q->weights, q->k);

    for (int64_t p = 0; gate && p < q->n / 32; p++, panel += panel_bytes) {
        pack_rows(gate, 32 * p, 32, panel, 0);
        pack_rows(up, 32 * p, 32, panel, 32);
    }
    if (down) pack_matrix(down, panel);
}
