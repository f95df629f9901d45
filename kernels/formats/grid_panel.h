/* Plain blocks with a grid (grid.h) to what gates and decoding see of them, and to panels. Each
 * format file says how one block comes apart: take_apart(block, out).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_GRID_PANEL_H
#define KT_KERNELS_GRID_PANEL_H

#include "kernels/formats/blocks.h"
#include "kernels/formats/grid.h"
#include "kernels/formats/p64.h"

/* The block as codes: weights + 64. */
static inline void kt_grid_codes(kt_p64_spec s, const kt_grid_block *b, kt_block *out) {
    const kt_grid *g = kt_grid_of(s.grid);
    const int inputs = kt_grid_inputs(s.grid);

    out->d = b->d;
    for (int i = 0; i < s.span / s.group; i++) out->scale[i] = b->scale[i];
    for (int i = 0; i < s.span; i++) {
        const int size = g->point[inputs * b->index[i / inputs] + i % inputs];
        out->code[i] = (uint8_t)(64 + (b->sign[i / 8] >> i % 8 & 1 ? -size : size));
    }
}

/* One row's block to panel row r: what lies before the units. Rows below 32 come first, and clear
 * what others share with them. */
static inline void kt_grid_put_front(kt_p64_spec s, const kt_grid_block *b, uint8_t *to, int r) {
    const int bits = kt_grid_more_bits(s.grid), place = kt_grid_place(s.grid, r);
    const int points = s.span / kt_grid_inputs(s.grid);
    uint8_t *scales = to + kt_p64_head_bytes(s), *more = to + kt_p64_more_at(s, 0);

    memcpy(to + 2 * r, &b->d, 2);
    for (int g = 0; g < s.span / s.group; g++, scales += 32) {
        if (r < 32)
            scales[r] = b->scale[g];
        else
            scales[r - 32] |= (uint8_t)(b->scale[g] << 4);
    }
    for (int p = 0; p < points; p++)
        for (int bit = 0; bit < bits; bit++, more += 8)
            more[place / 8] |= (uint8_t)((b->index[p] >> (8 + bit) & 1) << place % 8);
}

/* The units of two neighbouring rows, r (even) and r + 1, which share bytes of signs. */
static inline void kt_grid_put_units(kt_p64_spec s, const kt_grid_block b[2], uint8_t *to, int r) {
    const int inputs = kt_grid_inputs(s.grid), place = kt_grid_place(s.grid, r);
    uint8_t *unit = to + kt_p64_front_bytes(s);

    for (int u = 0; u < s.span / 32; u++, unit += kt_p64_run_bytes(s)) {
        for (int p = 0; p < 32 / inputs; p++) {
            uint8_t *line = unit + kt_grid_line_at(s.grid, p) + place;
            line[0] = (uint8_t)b[0].index[32 / inputs * u + p];
            line[1] = (uint8_t)b[1].index[32 / inputs * u + p];
        }
        for (int o = 0; o < 8; o++) {
            uint8_t *signs = unit + kt_grid_signs_at(s.grid, o) + 8 * (r / 16);
            const int first = b[0].sign[4 * u + o / 2] >> o % 2 * 4 & 15;
            const int second = b[1].sign[4 * u + o / 2] >> o % 2 * 4 & 15;
            signs[r % 16 / 2] = (uint8_t)(first | second << 4);
        }
    }
}

/* kt_format.pack_rows. */
static inline void kt_grid_pack_rows(kt_weight_format id, int block_bytes,
                                     void (*take_apart)(const uint8_t *p, kt_grid_block *out),
                                     const kt_matrix *w, int64_t row, int rows, uint8_t *panel,
                                     int at) {
    const kt_p64_spec s = kt_p64_spec_of(id);
    const size_t more_bytes = (size_t)(s.span / 32) * kt_grid_more_bytes(s.grid);

    for (int64_t i = 0; i < w->k / s.span; i++, panel += kt_p64_block_bytes(s)) {
        if (at == 0) memset(panel + kt_p64_more_at(s, 0), 0, more_bytes);
        for (int r = 0; r < rows; r += 2) {
            kt_grid_block b[2] = {{0}};
            for (int j = 0; j < 2; j++) {
                if (row + r + j < w->n)
                    take_apart(kt_gguf_block(w, row + r + j, i, s.span, block_bytes), &b[j]);
                kt_grid_put_front(s, &b[j], panel, at + r + j);
            }
            kt_grid_put_units(s, b, panel, at + r);
        }
    }
}

/* The members of a format file, from its take_apart(). */
#define KT_GRID_MEMBERS(id, bytes)                                                             \
    static void plain_bytes(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes) {   \
        *data_bytes = (size_t)n * (size_t)(k / 256) * (bytes);                                 \
        *scale_bytes = 0;                                                                      \
    }                                                                                          \
    static void unpack(const kt_matrix *w, int64_t row, int64_t b, kt_block *out) {            \
        kt_grid_block block;                                                                   \
        take_apart(kt_gguf_block(w, row, b, 256, bytes), &block);                              \
        kt_grid_codes(kt_p64_spec_of(id), &block, out);                                        \
    }                                                                                          \
    static void pack_rows(const kt_matrix *w, int64_t row, int rows, uint8_t *panel, int at) { \
        kt_grid_pack_rows(id, bytes, take_apart, w, row, rows, panel, at);                     \
    }

/* A word of 32 inputs: seven signs of each eight of them, then a scale. */
static inline void kt_grid_signs_and_scale(const uint8_t *p, uint8_t sign[4], uint8_t *scale) {
    const uint32_t word = kt_load_u16(p) | (uint32_t)kt_load_u16(p + 2) << 16;

    for (int i = 0; i < 4; i++) sign[i] = kt_grid_signs(word >> 7 * i);
    *scale = (uint8_t)(word >> 28);
}

#endif
