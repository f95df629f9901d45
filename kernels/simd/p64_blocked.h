/* Panel kernels for vectors of any width: rows of encoded activations times one p64 panel.
 *
 * The including file defines the vector words (words256.h or words512.h) and how four products of an
 * unsigned and a signed byte join a sum:
 *
 *   kt_vi kt_dot_first(kt_vi u8, kt_vi s8, kt_vi start)      begins a group of 32 inputs
 *   kt_vi kt_dot_next(kt_vi sum, kt_vi u8, kt_vi s8)         the other seven steps
 *   kt_vi kt_dot_last(kt_vi sum, kt_vi start)                -> int32, start included once
 *
 * Each function fills one kt_p64_tile. A micro kernel holds the integer sums of up to four rows and
 * KT_V_COLUMNS vectors in registers for one group of 32 inputs, then adds them, scaled, to the f32
 * sums in the tile. Since these lie in memory between groups, the order of work is free: k is cut into
 * chunks, and a chunk of a slice of the panel (KT_V_COLUMNS vectors wide) is unpacked once into L1
 * for all rows of the block. A few rows read the panel as it comes, in one linear pass.
 *
 * The f32 sums of a row run over k in ascending order whatever the number of rows.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_P64_BLOCKED_H
#define KT_SIMD_P64_BLOCKED_H

#include "kernels/simd/p64_glue.h"

#define KT_BLOCK_ROWS 64  /* rows of a block: their sums are 16 KiB */
#define KT_MICRO_ROWS 4   /* rows of a micro kernel */
#define KT_DIRECT_ROWS 8  /* from here on unpacking into L1 pays */
#define KT_CHUNK_GROUPS 8 /* groups of 32 inputs per chunk of INT4; half as many of INT8 */

/* Bytes from row to row of activations widened to 16 bits. */
#define KT_WORDS_STRIDE (KT_CHUNK_GROUPS / 2 * 64)

/* Bytes ahead of the stream: hardware prefetch stops at the end of a 4 KiB page. */
#define KT_BLOCK_PREFETCH 2048

#define KT_SLICE_BYTES (KT_V_BYTES * KT_V_COLUMNS) /* of a 256-byte line of the panel */
#define KT_SLICES (256 / KT_SLICE_BYTES)
#define KT_SLICE_ROWS (KT_SLICE_BYTES / 4) /* panel rows */

/* Where a micro kernel finds its weights. */
typedef enum kt_weights_at {
    KT_AT_NIBBLES, /* a w4g32 panel */
    KT_AT_BYTES,   /* a w8c panel */
    KT_AT_UNPACKED /* KT_SLICE_BYTES per step */
} kt_weights_at;

/* One call of a micro kernel. */
typedef struct kt_micro {
    const kt_p64_tile *tile;
    const uint8_t *w;       /* of the slice at `group` */
    const uint8_t *scales;  /* bfloat16 of the slice, 1152 bytes from group to group */
    const uint8_t *a16;     /* rows of widened activations (kt_widen_rows) */
    int64_t group;          /* first group of the chunk */
    int groups, row, slice; /* their number; first row; slice of the panel */
} kt_micro;

KT_INLINE void kt_fetch_group(const uint8_t *p, int bytes) {
    for (int line = 0; line < bytes; line += 64)
        _mm_prefetch((const char *)p + KT_BLOCK_PREFETCH + line, _MM_HINT_T0);
}

KT_INLINE kt_vi kt_weights_of_step(const uint8_t *w, const kt_weights_at at, int step, int c) {
    if (at == KT_AT_UNPACKED) return kt_v_load(w + KT_SLICE_BYTES * step + KT_V_BYTES * c);
    if (at == KT_AT_BYTES) return kt_v_load(w + 256 * step + KT_V_BYTES * c);
    if (step < 4) return kt_v_low_nibbles(kt_v_load(w + 256 * step + KT_V_BYTES * c));
    return kt_v_high_nibbles(kt_v_load(w + 256 * (step - 4) + KT_V_BYTES * c));
}

/* A row from the first group of the chunk on. Micro kernels read nothing through *x while they store:
 * what they store could be anything. */
typedef struct kt_micro_row {
    const uint8_t *q;
    const float *scale;
    const int32_t *comp;
} kt_micro_row;

KT_INLINE kt_micro_row kt_micro_row_of(const kt_micro *x, int r) {
    const void *a = x->tile->a[x->row + r];
    const kt_micro_row row = {(const uint8_t *)a + 32 * x->group,
                              kt_a8_scales(a, x->tile->k) + x->group,
                              kt_a8_comps(a, x->tile->k) + x->group};
    return row;
}

/* Groups by bytes products: `rows` rows, all formats that kt_dot_* can take. */
KT_INLINE void kt_micro_bytes(const kt_micro *x, const int rows, const kt_weights_at at,
                              const int has_scales) {
    const uint8_t *w = x->w, *scales = x->scales;
    const int groups = x->groups;
    float *out = x->tile->tile + 64 * x->row + KT_SLICE_ROWS * x->slice;
    kt_micro_row row[KT_MICRO_ROWS];

    KT_EACH (r, rows) row[r] = kt_micro_row_of(x, r);
    for (int g = 0; g < groups; g++) {
        kt_vi sum[KT_MICRO_ROWS][KT_V_COLUMNS];
        kt_vi u[KT_V_COLUMNS];

        KT_EACH (c, KT_V_COLUMNS) u[c] = kt_weights_of_step(w, at, 0, c);
        KT_EACH (r, rows) {
            const kt_vi q = kt_v_each(row[r].q + 32 * g);
            kt_vi start = kt_v_each(row[r].comp + g);
            if (!has_scales) start = kt_v_times_16(start);
            KT_EACH (c, KT_V_COLUMNS) sum[r][c] = kt_dot_first(u[c], q, start);
        }
        KT_EACH (i, 7) {
            KT_IN_ORDER();
            KT_EACH (c, KT_V_COLUMNS) u[c] = kt_weights_of_step(w, at, i + 1, c);
            KT_EACH (r, rows) {
                const kt_vi q = kt_v_each(row[r].q + 32 * g + 4 * i + 4);
                KT_EACH (c, KT_V_COLUMNS) sum[r][c] = kt_dot_next(sum[r][c], u[c], q);
            }
        }
        KT_IN_ORDER();
        KT_EACH (c, KT_V_COLUMNS) {
            kt_vf w_scale = kt_v_zero();
            if (has_scales) w_scale = kt_v_load_bf16(scales + KT_V_BYTES / 2 * c);
            KT_EACH (r, rows) {
                kt_vi start = kt_v_each(row[r].comp + g);
                float *to = out + 64 * r + KT_V_BYTES / 4 * c;
                kt_vf scale;
                if (!has_scales) start = kt_v_times_16(start);
                scale = kt_v_each_float(row[r].scale[g]);
                if (has_scales) scale = kt_v_mul(w_scale, scale);
                kt_v_store_floats(to, kt_v_fma(kt_v_to_float(kt_dot_last(sum[r][c], start)), scale,
                                               kt_v_load_floats(to)));
            }
        }
        w += at == KT_AT_UNPACKED ? 8 * KT_SLICE_BYTES : at == KT_AT_BYTES ? 2048 : 1152;
        scales += 1152;
    }
}

/* All rows of the block, four at a time. */
KT_INLINE void kt_rows_bytes(kt_micro *x, const kt_weights_at at, const int has_scales) {
    for (x->row = 0; x->row + 4 <= x->tile->rows; x->row += 4) kt_micro_bytes(x, 4, at, has_scales);
    switch (x->tile->rows - x->row) {
    case 1: kt_micro_bytes(x, 1, at, has_scales); return;
    case 2: kt_micro_bytes(x, 2, at, has_scales); return;
    case 3: kt_micro_bytes(x, 3, at, has_scales); return;
    default: return;
    }
}

/* --- w4g32 ---------------------------------------------------------------------------------- */

KT_INLINE void kt_unpack_nibbles(const uint8_t *w, int groups, uint8_t *out) {
    for (int g = 0; g < groups; g++, w += 1152, out += 8 * KT_SLICE_BYTES)
        for (int t = 0; t < 4; t++)
            for (int c = 0; c < KT_V_COLUMNS; c++) {
                const kt_vi both = kt_v_load(w + 256 * t + KT_V_BYTES * c);
                uint8_t *to = out + KT_SLICE_BYTES * t + KT_V_BYTES * c;
                kt_v_store(to, kt_v_low_nibbles(both));
                kt_v_store(to + 4 * KT_SLICE_BYTES, kt_v_high_nibbles(both));
            }
}

static inline void kt_tile_w4g32_blocked(const kt_p64_tile *t) {
    const int64_t groups = t->k / 32;
    _Alignas(64) uint8_t unpacked[KT_CHUNK_GROUPS * 8 * KT_SLICE_BYTES];
    const int direct = t->rows < KT_DIRECT_ROWS, most = direct ? 1 : KT_CHUNK_GROUPS;
    kt_micro x = {.tile = t};

    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (; x.group < groups; x.group += x.groups) {
        const uint8_t *chunk = t->panel + 1152 * x.group;
        x.groups = groups - x.group < most ? (int)(groups - x.group) : most;
        if (direct) kt_fetch_group(chunk, 1152);
        for (x.slice = 0; x.slice < KT_SLICES; x.slice++) {
            const uint8_t *w = chunk + KT_SLICE_BYTES * x.slice;
            x.scales = chunk + 1024 + KT_SLICE_BYTES / 2 * x.slice;
            x.w = w;
            if (direct) {
                kt_rows_bytes(&x, KT_AT_NIBBLES, 1);
                continue;
            }
            kt_unpack_nibbles(w, x.groups, unpacked);
            x.w = unpacked;
            kt_rows_bytes(&x, KT_AT_UNPACKED, 1);
        }
    }
}

/* --- w8c ------------------------------------------------------------------------------------ */

KT_INLINE void kt_scale_channels(const kt_p64_tile *t) {
    const float *scales = (const float *)(const void *)(t->panel + 64 * t->k);
    for (int r = 0; r < t->rows; r++)
        for (int j = 0; j < 64; j += KT_V_BYTES / 4) {
            float *out = t->tile + 64 * r + j;
            kt_v_store_floats(out, kt_v_mul(kt_v_load_floats(out), kt_v_load_floats(scales + j)));
        }
}

/* Where a byte product takes any code: the panel is read as it is. */
static inline void kt_tile_w8c_bytes(const kt_p64_tile *t) {
    const int64_t groups = t->k / 32;
    const int most = t->rows < KT_DIRECT_ROWS ? 1 : KT_CHUNK_GROUPS;
    kt_micro x = {.tile = t};

    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (; x.group < groups; x.group += x.groups) {
        const uint8_t *chunk = t->panel + 2048 * x.group;
        x.groups = groups - x.group < most ? (int)(groups - x.group) : most;
        if (most == 1) kt_fetch_group(chunk, 2048);
        x.scales = chunk;
        for (x.slice = 0; x.slice < KT_SLICES; x.slice++) {
            x.w = chunk + KT_SLICE_BYTES * x.slice;
            kt_rows_bytes(&x, KT_AT_BYTES, 0);
        }
    }
    kt_scale_channels(t);
}

/* Where it would saturate (VPMADDUBSW: 2 * 255 * 127 > 32767): products of 16-bit words. The even and
 * the odd bytes of a lane are two pairs of words; activations are widened the same way once per chunk,
 * eight lanes of even, then eight of odd bytes for each group. */
KT_INLINE void kt_widen_rows(const kt_p64_tile *t, int64_t group, int groups, uint8_t *rows) {
    for (int r = 0; r < t->rows; r++, rows += KT_WORDS_STRIDE)
        for (int g = 0; g < groups; g++) {
            uint8_t *a16 = rows + 64 * g;
            const __m256i q = _mm256_loadu_si256(
                (const __m256i *)(const void *)((const uint8_t *)t->a[r] + 32 * (group + g)));
            _mm256_store_si256((__m256i *)(void *)a16,
                               _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8));
            _mm256_store_si256((__m256i *)(void *)(a16 + 32), _mm256_srai_epi16(q, 8));
        }
}

KT_INLINE void kt_micro_words(const kt_micro *x, const int rows, const kt_weights_at at) {
    const uint8_t *a = x->a16 + KT_WORDS_STRIDE * x->row, *w = x->w;
    const int groups = x->groups;
    float *out = x->tile->tile + 64 * x->row + KT_SLICE_ROWS * x->slice;
    kt_micro_row row[KT_MICRO_ROWS];

    KT_EACH (r, rows) row[r] = kt_micro_row_of(x, r);
    for (int g = 0; g < groups; g++, a += 64) {
        kt_vi sum[KT_MICRO_ROWS][KT_V_COLUMNS];

        KT_EACH (r, rows) {
            const kt_vi start = kt_v_times_16(kt_v_each(row[r].comp + g));
            KT_EACH (c, KT_V_COLUMNS) sum[r][c] = start;
        }
        KT_EACH (i, 8) {
            KT_EACH (odd, 2) {
                kt_vi u[KT_V_COLUMNS];
                KT_IN_ORDER();
                KT_EACH (c, KT_V_COLUMNS) {
                    if (at == KT_AT_UNPACKED) {
                        u[c] = kt_v_load(w + KT_SLICE_BYTES * (2 * i + odd) + KT_V_BYTES * c);
                    } else {
                        u[c] = kt_v_load(w + 256 * i + KT_V_BYTES * c);
                        u[c] = odd ? kt_v_odd_bytes(u[c]) : kt_v_even_bytes(u[c]);
                    }
                }
                KT_EACH (r, rows) {
                    const kt_vi q = kt_v_each(a + KT_WORDS_STRIDE * r + 32 * odd + 4 * i);
                    KT_EACH (c, KT_V_COLUMNS) {
                        sum[r][c] = kt_v_add32(sum[r][c], kt_v_madd16(u[c], q));
                    }
                }
            }
        }
        KT_IN_ORDER();
        KT_EACH (r, rows) {
            KT_EACH (c, KT_V_COLUMNS) {
                float *to = out + 64 * r + KT_V_BYTES / 4 * c;
                kt_v_store_floats(to,
                                  kt_v_fma(kt_v_to_float(sum[r][c]),
                                           kt_v_each_float(row[r].scale[g]), kt_v_load_floats(to)));
            }
        }
        w += at == KT_AT_UNPACKED ? 16 * KT_SLICE_BYTES : 2048;
    }
}

KT_INLINE void kt_rows_words(kt_micro *x, const kt_weights_at at) {
    for (x->row = 0; x->row + 4 <= x->tile->rows; x->row += 4) kt_micro_words(x, 4, at);
    switch (x->tile->rows - x->row) {
    case 1: kt_micro_words(x, 1, at); return;
    case 2: kt_micro_words(x, 2, at); return;
    case 3: kt_micro_words(x, 3, at); return;
    default: return;
    }
}

KT_INLINE void kt_unpack_words(const uint8_t *w, int groups, uint8_t *out) {
    for (int step = 0; step < 8 * groups; step++, w += 256, out += 2 * KT_SLICE_BYTES)
        for (int c = 0; c < KT_V_COLUMNS; c++) {
            const kt_vi bytes = kt_v_load(w + KT_V_BYTES * c);
            kt_v_store(out + KT_V_BYTES * c, kt_v_even_bytes(bytes));
            kt_v_store(out + KT_SLICE_BYTES + KT_V_BYTES * c, kt_v_odd_bytes(bytes));
        }
}

static inline void kt_tile_w8c_words(const kt_p64_tile *t) {
    enum { CHUNK = KT_CHUNK_GROUPS / 2 };
    const int64_t groups = t->k / 32;
    _Alignas(64) uint8_t unpacked[CHUNK * 16 * KT_SLICE_BYTES];
    _Alignas(64) uint8_t a16[KT_BLOCK_ROWS * KT_WORDS_STRIDE];
    const int direct = t->rows < KT_DIRECT_ROWS, most = direct ? 1 : CHUNK;
    kt_micro x = {.tile = t, .a16 = a16};

    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (; x.group < groups; x.group += x.groups) {
        const uint8_t *chunk = t->panel + 2048 * x.group;
        x.groups = groups - x.group < most ? (int)(groups - x.group) : most;
        kt_widen_rows(t, x.group, x.groups, a16);
        if (direct) kt_fetch_group(chunk, 2048);
        for (x.slice = 0; x.slice < KT_SLICES; x.slice++) {
            x.w = chunk + KT_SLICE_BYTES * x.slice;
            if (direct) {
                kt_rows_words(&x, KT_AT_BYTES);
                continue;
            }
            kt_unpack_words(x.w, x.groups, unpacked);
            x.w = unpacked;
            kt_rows_words(&x, KT_AT_UNPACKED);
        }
    }
    kt_scale_channels(t);
}

#endif
