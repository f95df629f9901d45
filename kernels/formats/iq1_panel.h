/* Packing of IQ1 blocks (iq1.h), and what decoding sees of them. A format file says where a block
 * has its fields: take_apart(block, out).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_IQ1_PANEL_H
#define KT_KERNELS_IQ1_PANEL_H

#include "kernels/formats/blocks.h"
#include "kernels/formats/iq1.h"
#include "kernels/formats/p64.h"

/* One row's block: d in f16, of each 8 inputs an index of eleven bits and whether they are below,
 * of each group s. */
typedef struct kt_iq1_block {
    uint16_t d;
    uint16_t index[32];
    uint8_t below[32], scale[16];
} kt_iq1_block;

/* Codes are bytes that kernels multiply; scales 2 s + 1. */
static inline void kt_iq1_codes_of(kt_p64_spec s, const kt_iq1_block *b, kt_block *out) {
    out->d = b->d;
    for (int i = 0; i < 32; i++) {
        const uint32_t word = kt_iq1_words[kt_iq1_codes[b->index[i]]];
        for (int j = 0; j < 8; j++)
            out->code[8 * i + j] =
                (uint8_t)((word >> (8 * (j % 4) + j / 4 * 2) & 0x18) + (b->below[i] ? 0u : 2u));
    }
    for (int g = 0; g < s.span / s.group; g++) out->scale[g] = 2u * b->scale[g] + 1;
}

/* One row's block to panel row r. Rows below 32 come first, and clear what others share with
 * them. */
static inline void kt_iq1_put(kt_p64_spec s, const kt_iq1_block *b, uint8_t *to, int r) {
    const int points = s.group / 8;
    uint8_t *scales = to + kt_p64_scales_at(s, 0), *more = to + kt_p64_more_at(s, 0);
    uint8_t *unit = to + kt_p64_front_bytes(s) + kt_iq1_place(r);

    memcpy(to + 2 * r, &b->d, 2);
    for (int g = 0; g < s.span / s.group; g++, scales += 32) {
        const unsigned field = b->scale[g] | (unsigned)b->below[points * g] << 3;
        if (r < 32)
            scales[r] = (uint8_t)field;
        else
            scales[r - 32] |= (uint8_t)(field << 4);
        if (points == 2) more[8 * g + r / 8] |= (uint8_t)(b->below[points * g + 1] << r % 8);
    }
    for (int i = 0; i < 32; i++) {
        const unsigned code = kt_iq1_codes[b->index[i]];
        uint8_t *rank = unit + KT_IQ1_RANKS + i % 4 / 2 * 64;
        unit[64 * (i % 4)] = (uint8_t)(code >> 4);
        *rank = (uint8_t)(i % 2 ? *rank | (code & 15) << 4 : code & 15);
        if (i % 4 == 3) unit += kt_p64_run_bytes(s);
    }
}

/* kt_format.pack_rows; rows of padding have d = 0. */
static inline void kt_iq1_pack_rows(kt_weight_format id, int block_bytes,
                                    void (*take_apart)(const uint8_t *p, kt_iq1_block *out),
                                    const kt_matrix *w, int64_t row, int rows, uint8_t *panel,
                                    int at) {
    const kt_p64_spec s = kt_p64_spec_of(id);
    const size_t more_bytes = kt_p64_front_bytes(s) - kt_p64_more_at(s, 0);

    for (int64_t i = 0; i < w->k / s.span; i++, panel += kt_p64_block_bytes(s)) {
        if (at == 0) memset(panel + kt_p64_more_at(s, 0), 0, more_bytes);
        for (int r = 0; r < rows; r++) {
            kt_iq1_block b = {0};
            if (row + r < w->n) take_apart(kt_gguf_block(w, row + r, i, s.span, block_bytes), &b);
            kt_iq1_put(s, &b, panel, at + r);
        }
    }
}

/* The members of a format file, from its take_apart(). */
#define KT_IQ1_MEMBERS(id, bytes)                                                              \
    static void plain_bytes(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes) {   \
        *data_bytes = (size_t)n * (size_t)(k / 256) * (bytes);                                 \
        *scale_bytes = 0;                                                                      \
    }                                                                                          \
    static void unpack(const kt_matrix *w, int64_t row, int64_t b, kt_block *out) {            \
        kt_iq1_block block;                                                                    \
        take_apart(kt_gguf_block(w, row, b, 256, bytes), &block);                              \
        kt_iq1_codes_of(kt_p64_spec_of(id), &block, out);                                      \
    }                                                                                          \
    static void pack_rows(const kt_matrix *w, int64_t row, int rows, uint8_t *panel, int at) { \
        kt_iq1_pack_rows(id, bytes, take_apart, w, row, rows, panel, at);                      \
    }

#endif
