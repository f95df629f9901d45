/* Packing of IQ1 blocks (iq1.h), and what decoding sees of them. A format file says where a block
 * has its fields: take_apart(block, out).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_IQ1_PANEL_H
#define KT_KERNELS_IQ1_PANEL_H

#include "kernels/formats/blocks.h"
#include "kernels/formats/iq1.h"
#include "kernels/formats/p64.h"

/* One row's block: d in f16, and of each unit what a panel holds of it. */
typedef struct kt_iq1_block {
    uint16_t d;
    uint16_t field[8];
    uint8_t point[8][4], scale[8];
} kt_iq1_block;

/* Codes are bytes that kernels multiply; scales 2 s + 1. */
static inline void kt_iq1_codes(kt_p64_spec s, const kt_iq1_block *b, kt_block *out) {
    out->d = b->d;
    for (int u = 0; u < 8; u++) {
        _Alignas(16) uint8_t unit[KT_IQ1_SCALES + 64] = {0}; /* of one row */
        for (int p = 0; p < 4; p++) unit[64 * p] = b->point[u][p];
        memcpy(unit + KT_IQ1_FIELDS, &b->field[u], 2);
        unit[KT_IQ1_SCALES] = b->scale[u];
        for (int p = 0; p < 4; p++) {
            uint32_t even, odd;
            kt_iq1_quads(s, unit, p, 0, 1, &even, &odd);
            memcpy(out->code + 32 * u + 8 * p, &even, 4);
            memcpy(out->code + 32 * u + 8 * p + 4, &odd, 4);
        }
        for (int h = 0; h < 32 / s.group; h++)
            out->scale[32 / s.group * u + h] = (uint32_t)kt_iq1_odd(s, unit, h, 0);
    }
}

/* kt_format.pack_rows; rows of padding have d = 0. */
static inline void kt_iq1_pack_rows(kt_weight_format id, int block_bytes,
                                    void (*take_apart)(const uint8_t *p, kt_iq1_block *out),
                                    const kt_matrix *w, int64_t row, int rows, uint8_t *panel,
                                    int at) {
    const kt_p64_spec s = kt_p64_spec_of(id);

    for (int64_t i = 0; i < w->k / s.span; i++, panel += kt_p64_block_bytes(s))
        for (int r = 0; r < rows; r++) {
            uint8_t *unit = panel + kt_p64_head_bytes(s);
            kt_iq1_block b = {0};
            if (row + r < w->n) take_apart(kt_gguf_block(w, row + r, i, s.span, block_bytes), &b);
            memcpy(panel + 2 * (at + r), &b.d, 2);
            for (int u = 0; u < 8; u++, unit += kt_p64_run_bytes(s)) {
                for (int p = 0; p < 4; p++) unit[64 * p + at + r] = b.point[u][p];
                memcpy(unit + KT_IQ1_FIELDS + 2 * (at + r), &b.field[u], 2);
                if (s.group == 16) unit[KT_IQ1_SCALES + at + r] = b.scale[u];
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
        kt_iq1_codes(kt_p64_spec_of(id), &block, out);                                         \
    }                                                                                          \
    static void pack_rows(const kt_matrix *w, int64_t row, int rows, uint8_t *panel, int at) { \
        kt_iq1_pack_rows(id, bytes, take_apart, w, row, rows, panel, at);                      \
    }

#endif
