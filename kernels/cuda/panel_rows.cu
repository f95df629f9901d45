/* Weights as the CPU has packed them (p64 panels) become the records that kernels for GPUs read.
 *
 * So one copy of an expert serves both sides: its panels cross the link as they lie in the host's
 * memory, and are turned here at the rate of the device's memory. No number is touched, but codes
 * change their places: a panel has four inputs of 64 rows in a line, a record all inputs of a row.
 *
 * A thread has 32 inputs of one row; the threads of two warps read whole lines. What belongs to
 * more inputs (scales of large groups, heads of blocks) is copied by the thread of their first.
 *
 *   turn  grid (k / 32 / 4 rounded up, panels of all matrices)
 *   pick  grid (count / 256 rounded up, 1)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev_weights.h"
#include "kernels/cuda/panel_calls.h"

#define FORMAT KT_CONSTANT(0)
#define ROWS 64 /* of a panel */
#define THREADS 256
#define UNIT 32  /* inputs of a thread */
#define LINE 256 /* bytes of four inputs of all rows */

/* Parts of a panel of a block format, in bytes; its terms are those of a record. */
typedef struct panel_parts {
    int span, run;                    /* inputs of a block and of a run */
    int head, planes, scale, minimum; /* bytes of a block's head, 32 inputs, a group's terms */
    int run_bytes, block_bytes;
} panel_parts;

KT_DEVICE panel_parts parts_of(kt_weight_spec s) {
    const int has_head = s.scale == KT_TERM_BYTE || s.scale == KT_TERM_NIBBLE;
    panel_parts p;

    p.run = s.group > UNIT ? s.group : UNIT;
    p.span = has_head ? 256 : p.run;
    p.head = has_head ? (s.minimum ? 256 : 128) : 0;
    p.planes = LINE * (s.low + s.high);
    p.scale = ROWS * kt_term_bytes(s.scale);
    p.minimum = s.minimum == KT_TERM_NIBBLE ? 0 : ROWS * kt_term_bytes(s.minimum);
    p.run_bytes = p.run / UNIT * p.planes + p.run / s.group * (p.scale + p.minimum);
    p.block_bytes = p.head + p.span / p.run * p.run_bytes;
    return p;
}

KT_DEVICE void put_term(int term, const uint8_t *from, int row, uint8_t *to, int group) {
    const int bytes = kt_term_bytes(term);

    if (bytes == 4) ((uint32_t *)to)[group] = ((const uint32_t *)from)[row];
    if (bytes == 2) ((uint16_t *)to)[group] = ((const uint16_t *)from)[row];
    if (bytes == 1) to[group] = from[row];
}

/* Inputs 4 o to 4 o + 3 of a plane, one a byte. */
KT_DEVICE uint32_t quad_of(const uint8_t *plane, int bits, int o, int row) {
    const uint32_t line = ((const uint32_t *)(plane + LINE * (o % bits)))[row];

    return line >> (bits * (o / bits)) & 0x01010101u * ((1u << bits) - 1);
}

/* Four codes as two pairs whose halves are 16 bits apart, and as nibbles in order. */
KT_DEVICE uint32_t pairs_of(uint32_t quad, int bits) {
    return (quad & 255u) | (quad >> 8 & 255u) << 16 | (quad >> 16 & 255u) << bits |
           (quad >> 24) << (16 + bits);
}
KT_DEVICE uint32_t nibbles_of(uint32_t quad) {
    return (quad & 15u) | (quad >> 4 & 0xf0u) | (quad >> 8 & 0xf00u) | (quad >> 12 & 0xf000u);
}

/* 32 codes of a plane as the words of a record. */
KT_DEVICE void put_plane(const uint8_t *plane, int bits, int is_table, int row, uint32_t *to) {
    const int quads = 8 / bits; /* of a word */

    KT_UNROLL
    for (int w = 0; w < bits; w++) {
        uint32_t word = 0;
        KT_UNROLL
        for (int j = 0; j < quads; j++) {
            const uint32_t quad = quad_of(plane, bits, w * quads + j, row);
            word |= bits == 8  ? quad
                    : is_table ? nibbles_of(quad) << (16 * j)
                               : pairs_of(quad, bits) << (2 * j * bits);
        }
        to[w] = word;
    }
}

/* E4M3: a line has two inputs of four rows, then the next two of these rows. */
KT_DEVICE void put_e4m3(const uint8_t *lines, int row, uint32_t *to) {
    KT_UNROLL
    for (int o = 0; o < 8; o++) {
        const uint16_t *at = (const uint16_t *)(lines + LINE * o + row / 4 * 16) + row % 4;
        to[o] = (uint32_t)at[0] | (uint32_t)at[4] << 16;
    }
}

/* Words of a line each: bfloat16 two a word, INT8 four. */
KT_DEVICE void put_words(const uint8_t *lines, int count, int row, uint32_t *to) {
    KT_UNROLL
    for (int i = 0; i < count; i++) to[i] = ((const uint32_t *)(lines + LINE * i))[row];
}

KT_DEVICE void turn_plain(kt_weight_spec s, const kt_weight_row *at, const uint8_t *panel, int k,
                          int unit, int row, uint8_t *to) {
    const int words = UNIT / 32 * s.low;
    const uint8_t *lines = panel + (int64_t)unit * words * LINE,
                  *scales = panel + (int64_t)k * ROWS;
    uint32_t *code = (uint32_t *)to + unit * words;

    if (s.values == KT_CODE_E4M3)
        put_e4m3(lines, row, code);
    else
        put_words(lines, words, row, code);
    if (s.scale == KT_TERM_NONE) return;
    if (s.group == 0 && unit == 0) put_term(s.scale, scales, row, to + at->scale, 0);
    if (s.group == UNIT) /* one for each row */
        put_term(s.scale, scales + ROWS * unit, row, to + at->scale, unit);
    if (s.group > UNIT && unit * UNIT % s.group == 0) /* for each half of the panel's rows */
        put_term(s.scale, scales, unit * UNIT / s.group * 2 + row / 32, to + at->scale,
                 unit * UNIT / s.group);
}

KT_DEVICE void turn_blocks(kt_weight_spec s, const kt_weight_row *at, const uint8_t *panel, int k,
                           int unit, int row, uint8_t *to) {
    const panel_parts p = parts_of(s);
    const int first = unit * UNIT, block = first / p.span, inside = first % p.span;
    const uint8_t *head = panel + (int64_t)block * p.block_bytes;
    const uint8_t *run = head + p.head + inside / p.run * p.run_bytes;
    const uint8_t *plane = run + inside % p.run / UNIT * p.planes;
    const uint8_t *terms = run + p.run / UNIT * p.planes;
    const int groups = p.run / s.group, is_table = s.values != KT_CODE_LINEAR;

    if (s.high) put_plane(plane, s.high, 0, row, (uint32_t *)(to + at->high) + unit * s.high);
    put_plane(plane + LINE * s.high, s.low, is_table, row, (uint32_t *)to + unit * s.low);
    for (int g = 0; g * s.group < UNIT && first % s.group == 0; g++) {
        const int of_run = inside % p.run / s.group + g;
        put_term(s.scale, terms + of_run * p.scale, row, to + at->scale, first / s.group + g);
        if (p.minimum)
            put_term(s.minimum, terms + groups * p.scale + of_run * p.minimum, row,
                     to + at->minimum, first / s.group + g);
    }
    if (s.scale == KT_TERM_E4M3 && unit == 0) /* factors of the rows, behind the blocks */
        *(uint32_t *)(to + at->head) =
            ((const uint32_t *)(panel + (int64_t)(k / UNIT) * p.run_bytes))[row];
    if (p.head == 0 || inside) return;
    if (p.head == 128) {
        ((uint16_t *)(to + at->head))[block] = ((const uint16_t *)head)[row];
    } else {
        ((uint16_t *)(to + at->head))[2 * block] = ((const uint16_t *)head)[row];
        ((uint16_t *)(to + at->head))[2 * block + 1] = ((const uint16_t *)head)[ROWS + row];
    }
}

/* ---- grids ---- */

/* Parts of a block of 256 inputs (kernels/formats/p64_spec.h): after d and the scales come bits of
 * indices, then units of 32 inputs in quarters of lines of indices and one of signs. */
typedef struct grid_parts {
    int inputs, bits;              /* of a point; of its index beyond eight */
    int more, units;               /* where they begin */
    int more_bytes, quarter_bytes; /* of a unit; of its quarters */
} grid_parts;

KT_DEVICE grid_parts grid_parts_of(kt_weight_spec s) {
    grid_parts g;

    g.inputs = s.values == KT_CODE_IQ3_XXS || s.values == KT_CODE_IQ3_S ? 4 : 8;
    g.bits = s.values == KT_CODE_IQ2_S ? 2 : s.scale == KT_TERM_ODD;
    g.more_bytes = UNIT / g.inputs * g.bits * 8;
    g.quarter_bytes = 64 * (8 / g.inputs) + 64;
    g.more = 2 * ROWS + 256 / s.group * (ROWS / 2);
    g.units = g.more + 8 * g.more_bytes;
    return g;
}

/* Where the index of a row stands among 64. */
KT_DEVICE int place_of(int inputs, int row) {
    const int column = row / 16, pair = row % 16 / 2;

    if (inputs == 8) return 2 * column + 8 * pair + row % 2;
    return 8 * (column / 2) + 2 * (column % 2) + 16 * (pair / 2) + 4 * (pair % 2) + row % 2;
}

KT_DEVICE uint32_t grid_scale(const uint8_t *block, int group, int row) {
    return (uint32_t)block[2 * ROWS + ROWS / 2 * group + row % 32] >> (row / 32 * 4) & 15u;
}

/* Two halves of a byte, by the thread of the first group's inputs. */
KT_DEVICE void put_grid_scales(kt_weight_spec s, const kt_weight_row *at, const uint8_t *block,
                               int unit, int row, uint8_t *to) {
    const int group = unit % 8 * UNIT / s.group;

    if (unit * UNIT % (2 * s.group)) return;
    to[at->scale + unit * UNIT / (2 * s.group)] =
        (uint8_t)(grid_scale(block, group, row) | grid_scale(block, group + 1, row) << 4);
}

/* Signs of eight inputs. */
KT_DEVICE uint32_t grid_signs(const uint8_t *quarter_end, int row) {
    const uint8_t *at = quarter_end - 64 + row / 16 * 8 + row % 16 / 2;

    return (at[0] >> (row % 2 * 4) & 15u) | (at[32] >> (row % 2 * 4) & 15u) << 4;
}

/* Indices, signs and bits of indices of a unit, as a record has them but for scales. */
typedef struct grid_words {
    uint32_t low[2], signs, seven, more;
} grid_words;

KT_DEVICE void put_points(grid_parts g, const uint8_t *unit, const uint8_t *more, int row,
                          int is_xs, grid_words *to) {
    const int place = place_of(g.inputs, row), lines = 8 / g.inputs;

    to->low[0] = to->low[1] = to->signs = to->seven = to->more = 0;
    KT_UNROLL
    for (int p = 0; p < UNIT / g.inputs; p++) {
        const uint8_t *quarter = unit + p / lines * g.quarter_bytes;
        const uint32_t index = quarter[64 * (p % lines) + place];
        const uint32_t signs = grid_signs(quarter + g.quarter_bytes, row);
        uint32_t high = 0;
        for (int b = 0; b < g.bits; b++)
            high |= (more[8 * (g.bits * p + b) + place / 8] >> place % 8 & 1u) << b;
        to->more |= high << (g.bits * p);
        to->signs |= signs << (p / lines * 8);
        to->seven |= (signs & 127u) << (p / lines * 7);
        if (is_xs)
            to->low[p / 2] |= (index | high << 8 | (signs & 127u) << 9) << (p % 2 * 16);
        else
            to->low[p / 4] |= index << (p % 4 * 8);
    }
}

KT_DEVICE void turn_grid(kt_weight_spec s, const kt_weight_row *at, const uint8_t *panel, int unit,
                         int row, uint8_t *to) {
    const grid_parts g = grid_parts_of(s);
    const int u = unit % 8, block_bytes = g.units + 32 * g.quarter_bytes;
    const uint8_t *block = panel + (int64_t)(unit / 8) * block_bytes;
    const uint32_t scale = grid_scale(block, u * UNIT / s.group, row);
    grid_words w;

    put_points(g, block + g.units + u * 4 * g.quarter_bytes, block + g.more + u * g.more_bytes, row,
               s.values == KT_CODE_IQ2_XS, &w);
    if (s.values == KT_CODE_IQ2_XXS) w.low[1] = w.seven | scale << 28;
    if (s.values == KT_CODE_IQ3_XXS) w.signs = w.seven | scale << 28;
    KT_UNROLL
    for (int i = 0; i < s.low; i++) ((uint32_t *)to)[unit * s.low + i] = w.low[i];
    if (s.high) ((uint32_t *)(to + at->high))[unit] = w.signs;
    if (s.minimum) to[at->minimum + unit] = (uint8_t)w.more;
    if (s.scale == KT_TERM_ODD) put_grid_scales(s, at, block, unit, row, to);
    if (u == 0) ((uint16_t *)(to + at->head))[unit / 8] = ((const uint16_t *)block)[row];
}

/* IQ1 (kernels/formats/iq1.h): after d and the scales of groups which second points of theirs are
 * below (IQ1_M), then units of keys [4][64] and ranks [2][64]. */
KT_DEVICE void turn_iq1(kt_weight_spec s, const kt_weight_row *at, const uint8_t *panel, int unit,
                        int row, uint8_t *to) {
    const int groups = 256 / s.group, more_at = 2 * ROWS + groups * (ROWS / 2);
    const int units_at = more_at + (s.group == 16 ? groups * 8 : 0), u = unit % 8;
    const uint8_t *block = panel + (int64_t)(unit / 8) * (units_at + 8 * 6 * ROWS);
    const uint8_t *from = block + units_at + u * 6 * ROWS + place_of(8, row);
    uint16_t *head = (uint16_t *)(to + at->head + unit / 8 * kt_head_bytes(s));
    uint32_t word = 0, below = 0;

    KT_UNROLL
    for (int p = 0; p < 4; p++) word |= (uint32_t)from[ROWS * p] << (8 * p);
    ((uint32_t *)to)[unit] = word;
    ((uint16_t *)(to + at->minimum))[unit] =
        (uint16_t)((uint32_t)from[4 * ROWS] | (uint32_t)from[5 * ROWS] << 8);
    put_grid_scales(s, at, block, unit, row, to);
    if (u > 0) return;
    head[0] = ((const uint16_t *)block)[row];
    if (s.group != 16) return;
    for (int g = 0; g < groups; g++)
        below |= ((uint32_t)block[more_at + 8 * g + row / 8] >> (row % 8) & 1u) << g;
    head[1] = (uint16_t)below;
}

KT_DEVICE void turn(const kt_panel_rows *p) {
    const kt_weight_spec s = kt_weight_spec_of(FORMAT);
    const kt_weight_row at = kt_weight_row_of(FORMAT, p->k);
    const int r = kt_thread() % ROWS, unit = kt_block_x() * (THREADS / ROWS) + kt_thread() / ROWS;
    const int64_t matrix = kt_block_y() / p->panels;
    const int number = kt_block_y() % p->panels;
    const int row = p->to_odd ? number * (ROWS / 2) + r % (ROWS / 2) : number * ROWS + r;
    const uint8_t *panel = p->panel + matrix * p->matrix_bytes + number * p->panel_bytes;
    uint8_t *to = p->to_odd && r >= ROWS / 2 ? p->to_odd : p->to;

    if (unit * UNIT >= p->k || row >= p->n) return;
    to += matrix * p->record_bytes + (int64_t)row * at.bytes;
    if (s.low == 16 || s.values == KT_CODE_E4M3 || s.group == 0)
        turn_plain(s, &at, panel, p->k, unit, r, to);
    else if (s.values == KT_CODE_IQ1)
        turn_iq1(s, &at, panel, unit, r, to);
    else if (kt_is_grid(s))
        turn_grid(s, &at, panel, unit, r, to);
    else
        turn_blocks(s, &at, panel, p->k, unit, r, to);
}

KT_DEVICE void pick(const kt_pick_ids *p) {
    const int i = kt_block_x() * THREADS + kt_thread();

    if (i >= p->count) return;
    p->out[i] = p->id[i] >= p->first && p->id[i] < p->end ? p->id[i] - p->first : -1;
}

KT_ENTRY(panel_rows_turn, kt_panel_rows, turn, THREADS)
KT_ENTRY(panel_rows_pick, kt_pick_ids, pick, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/weight_values.h"

static const kt_param params[] = {{"format", kt_weight_values, KT_WEIGHT_VALUES, KT_W_INT4_G32}};

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)config, (void)target;
    return NULL;
}

static int threads(const kt_config *config) {
    (void)config;
    return THREADS;
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    (void)config, (void)k;
    return 0;
}

KT_CUDA_KERNEL(panel_rows) = {
    .name = "panel_rows",
    .about = "the CPU's panels become records; numbers of experts within a group",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 1,
    .entry_count = 2,
    .entry = {{"panel_rows_turn", panel_rows_turn}, {"panel_rows_pick", panel_rows_pick}},
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
