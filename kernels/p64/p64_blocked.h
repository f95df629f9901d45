/* Panel kernels for vectors of any width: rows of encoded activations times one p64 panel.
 *
 * The including file defines the vector words (words256.h or words512.h) and how four products of an
 * unsigned and a signed byte join a sum:
 *
 *   kt_vi kt_dot_first(kt_vi u8, kt_vi s8, kt_vi start)      begins a group of 32 inputs
 *   kt_vi kt_dot_begin(kt_vi start)                          the same before it (32 bytes alone)
 *   kt_vi kt_dot_next(kt_vi sum, kt_vi u8, kt_vi s8)         the other seven steps
 *   kt_vi kt_dot_last(kt_vi sum, kt_vi start)                -> int32, start included once
 *
 * Each function fills one kt_p64_tile. A micro kernel holds the integer sums of up to four rows and
 * KT_V_COLUMNS vectors in registers for one group of 32 inputs, then adds them, scaled, to the f32
 * sums in the tile. Since these lie in memory between groups, the order of work is free: k is cut into
 * chunks, and a chunk of a slice of the panel (KT_V_COLUMNS vectors wide) is unpacked once into L1
 * for all rows of the block. A few rows read the panel as it comes, in one linear pass; vectors of 32
 * bytes do so by p64_few.h, and AVX2 takes up to KT_PASS_ROWS four at a time that way, from L2.
 *
 * The f32 sums of a row run over k in ascending order whatever the number of rows.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_P64_BLOCKED_H
#define KT_SIMD_P64_BLOCKED_H

#include "kernels/p64/p64_glue.h"
#include "kernels/simd/denormals.h"

#define KT_BLOCK_ROWS 64  /* rows of a block: their sums are 16 KiB */
#define KT_MICRO_ROWS 4   /* rows of a micro kernel */
#define KT_DIRECT_ROWS 8  /* from here on unpacking into L1 pays, or passes do */
#define KT_PASS_ROWS 20   /* AVX2: up to here passes of four rows win over unpacking */
#define KT_CHUNK_GROUPS 8 /* groups of 32 inputs per chunk of INT4 */
#define KT_WORD_GROUPS (KT_V_BYTES == 32 ? 4 : 2) /* of INT8 as words: 8 KiB of a slice */

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

/* What a row brings to KT_OPEN_GROUPS groups beside its codes. Copied side by side, for micro kernels
 * run out of registers for pointers; for several chunks at once, since the rows share few cache sets. */
#define KT_OPEN_GROUPS 32
typedef struct kt_row_groups {
    float scale[KT_OPEN_GROUPS];
    int32_t start[KT_OPEN_GROUPS]; /* of the sum, or what is added to it at the end */
} kt_row_groups;

/* One call of a micro kernel. */
typedef struct kt_micro {
    const kt_p64_tile *tile;
    const uint8_t *w;          /* of the slice at `group` */
    const uint8_t *scales;     /* bfloat16 of the slice, KT_P64_W4G32_BYTES from group to group */
    const kt_row_groups *rows; /* of the block (kt_open_rows) */
    int opened;                /* the chunk's first group in rows */
    const uint8_t *a16;        /* rows of widened activations (kt_widen_rows) */
    const uint8_t *starts;     /* of float sums: a slice of int32 per group (kt_unpack_words) */
    int64_t group;             /* first group of the chunk */
    int groups, row, slice;    /* their number; first row; slice of the panel */
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

/* Before each chunk: start = times * comp + more. */
KT_INLINE void kt_open_rows(kt_micro *x, const int times, const int more,
                            kt_row_groups *restrict rows) {
    const kt_p64_tile *t = x->tile;
    const int64_t left = t->k / 32 - x->group;
    const int groups = left < KT_OPEN_GROUPS ? (int)left : KT_OPEN_GROUPS;

    x->rows = rows;
    x->opened = (int)(x->group % KT_OPEN_GROUPS);
    if (x->opened) return;
    for (int r = 0; r < t->rows; r++) {
        const float *scale = kt_a8_scales(t->a[r], t->k) + x->group;
        const int32_t *comp = kt_a8_comps(t->a[r], t->k) + x->group;
        for (int g = 0; g < groups; g++) rows[r].scale[g] = scale[g];
        for (int g = 0; g < groups; g++) rows[r].start[g] = times * comp[g] + more;
    }
}

/* A chunk of the panel that is worked on next. */
KT_INLINE void kt_fetch_next(const kt_p64_tile *t, const uint8_t *chunk, int bytes) {
    if (!t->next) return;
    for (int line = 0; line < bytes; line += 64)
        kt_fetch_line(t->next + (chunk - t->panel) + line, t->is_near);
}

/* One step of `rows` rows: four inputs at q[r] join sum[r].
 *
 * Where products are added apart, two rows multiply before any is added: additions may go to any pipe,
 * and right behind their product they take those that multiply (Zen 4: 1.53 VPMADDUBSW of 256 bits a
 * cycle of 2, this way 1.63; of 512 bits the layer gains 2.5 %). */
#define KT_BATCH_ROWS 2

KT_INLINE void kt_dot_step(const uint8_t *const q[KT_MICRO_ROWS], const int at,
                           const kt_vi u[KT_V_COLUMNS], const int rows,
                           kt_vi sum[KT_MICRO_ROWS][KT_V_COLUMNS]) {
    KT_EACH (r, rows) {
#if KT_DOT_APART
        if (r % KT_BATCH_ROWS == 0) {
            const int batch = rows - r < KT_BATCH_ROWS ? rows - r : KT_BATCH_ROWS;
            kt_vi part[KT_BATCH_ROWS][KT_V_COLUMNS];
            KT_EACH (j, batch) {
                const kt_vi x = kt_v_each_now(q[r + j] + at);
                KT_EACH (c, KT_V_COLUMNS) part[j][c] = kt_v_maddubs_now(u[c], x);
            }
            KT_EACH (j, batch) {
                KT_EACH (c, KT_V_COLUMNS) {
                    sum[r + j][c] = kt_v_add16_now(sum[r + j][c], part[j][c]);
                }
            }
        }
#else
        const kt_vi x = kt_v_each(q[r] + at);
        KT_EACH (c, KT_V_COLUMNS) sum[r][c] = kt_dot_next(sum[r][c], u[c], x);
#endif
    }
}

/* Groups by bytes products: `rows` rows, all formats that kt_dot_* can take. Nothing is read through *x
 * while results are stored: what is stored could be anything. */
KT_INLINE void kt_micro_bytes(const kt_micro *x, const int rows, const kt_weights_at at,
                              const int has_scales) {
    const uint8_t *w = x->w, *scales = x->scales, *q[KT_MICRO_ROWS];
    const kt_row_groups *row = x->rows + x->row;
    const int groups = x->groups, first = x->opened;
    float *out = x->tile->tile + 64 * x->row + KT_SLICE_ROWS * x->slice;

    KT_EACH (r, rows) q[r] = (const uint8_t *)x->tile->a[x->row + r] + 32 * x->group;
    for (int g = 0; g < groups; g++) {
        kt_vi sum[KT_MICRO_ROWS][KT_V_COLUMNS];
        kt_vi u[KT_V_COLUMNS];
        kt_vf w_scale[KT_V_COLUMNS];

        KT_EACH (c, KT_V_COLUMNS) u[c] = kt_weights_of_step(w, at, 0, c);
        KT_EACH (r, rows) {
            const kt_vi y = kt_v_each(q[r] + 32 * g), start = kt_v_each(&row[r].start[first + g]);
            KT_EACH (c, KT_V_COLUMNS) sum[r][c] = kt_dot_first(u[c], y, start);
        }
        KT_EACH (i, 7) {
            KT_IN_ORDER();
            KT_EACH (c, KT_V_COLUMNS) u[c] = kt_weights_of_step(w, at, i + 1, c);
            kt_dot_step(q, 32 * g + 4 * i + 4, u, rows, sum);
        }
        KT_IN_ORDER();
        if (has_scales) {
            KT_EACH (c, KT_V_COLUMNS) w_scale[c] = kt_v_load_bf16(scales + KT_V_BYTES / 2 * c);
        }
        KT_EACH (r, rows) {
            const kt_vi start = kt_v_each(&row[r].start[first + g]);
            const kt_vf a_scale = kt_v_each_float(row[r].scale[first + g]);
            KT_EACH (c, KT_V_COLUMNS) {
                const kt_vf scale = has_scales ? kt_v_mul(w_scale[c], a_scale) : a_scale;
                float *to = out + 64 * r + KT_V_BYTES / 4 * c;
                kt_v_store_floats(to, kt_v_fma(kt_v_to_float(kt_dot_last(sum[r][c], start)), scale,
                                               kt_v_load_floats(to)));
            }
        }
        w += at == KT_AT_UNPACKED ? 8 * KT_SLICE_BYTES
             : at == KT_AT_BYTES  ? KT_P64_CODES8_BYTES
                                  : KT_P64_W4G32_BYTES;
        scales += KT_P64_W4G32_BYTES;
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

/* A group's even bytes as words, then its odd ones; + 128 where sums are floats. */
KT_INLINE void kt_widen_group(const uint8_t *codes, const int as_floats, uint8_t *words) {
    const __m256i q = _mm256_loadu_si256((const __m256i *)(const void *)codes);
    __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8), odd = _mm256_srai_epi16(q, 8);

    if (as_floats) {
        const __m256i more = _mm256_xor_si256(q, _mm256_set1_epi8((char)0x80));
        even = _mm256_and_si256(more, _mm256_set1_epi16(255));
        odd = _mm256_srli_epi16(more, 8);
    }
    _mm256_store_si256((__m256i *)(void *)words, even);
    _mm256_store_si256((__m256i *)(void *)(words + 32), odd);
}

#if KT_V_BYTES == 32
#include "kernels/p64/p64_few.h"
#endif

/* --- w4g32 ---------------------------------------------------------------------------------- */

KT_INLINE void kt_unpack_nibbles(const uint8_t *w, int groups, uint8_t *out) {
    for (int g = 0; g < groups; g++, w += KT_P64_W4G32_BYTES, out += 8 * KT_SLICE_BYTES)
        for (int t = 0; t < 4; t++)
            for (int c = 0; c < KT_V_COLUMNS; c++) {
                const kt_vi both = kt_v_load(w + 256 * t + KT_V_BYTES * c);
                uint8_t *to = out + KT_SLICE_BYTES * t + KT_V_BYTES * c;
                kt_v_store(to, kt_v_low_nibbles(both));
                kt_v_store(to + 4 * KT_SLICE_BYTES, kt_v_high_nibbles(both));
            }
}

static inline void kt_tile_w4g32_blocked(const kt_p64_tile *t) {
#if KT_V_BYTES == 32
    if (t->rows < (KT_DOT_APART ? KT_PASS_ROWS + 1 : KT_DIRECT_ROWS)) {
        kt_few_tile(t, KT_FEW_NIBBLES);
        return;
    }
#endif
    const int64_t groups = t->k / 32;
    _Alignas(64) uint8_t unpacked[KT_CHUNK_GROUPS * 8 * KT_SLICE_BYTES];
    const int direct = t->rows < KT_DIRECT_ROWS, most = direct ? 1 : KT_CHUNK_GROUPS;
    kt_row_groups rows[KT_BLOCK_ROWS];
    kt_micro x = {.tile = t};

    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (; x.group < groups; x.group += x.groups) {
        const uint8_t *chunk = t->panel + KT_P64_W4G32_BYTES * x.group;
        x.groups = groups - x.group < most ? (int)(groups - x.group) : most;
        if (direct) kt_fetch_group(chunk, KT_P64_W4G32_BYTES);
        kt_fetch_next(t, chunk, KT_P64_W4G32_BYTES * x.groups);
        kt_open_rows(&x, 1, 0, rows);
        for (x.slice = 0; x.slice < KT_SLICES; x.slice++) {
            const uint8_t *w = chunk + KT_SLICE_BYTES * x.slice;
            x.scales = chunk + KT_P64_CODES4_BYTES + KT_SLICE_BYTES / 2 * x.slice;
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
#if KT_V_BYTES == 32
static inline void kt_tile_w8c_bytes(const kt_p64_tile *t) {
    const int64_t groups = t->k / 32;
    kt_row_groups rows[KT_BLOCK_ROWS];
    kt_micro x = {.tile = t};

    if (t->rows < KT_DIRECT_ROWS) {
        kt_few_tile(t, KT_FEW_BYTES);
        kt_scale_channels(t);
        return;
    }
    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (; x.group < groups; x.group += x.groups) {
        const uint8_t *chunk = t->panel + KT_P64_CODES8_BYTES * x.group;
        x.groups = groups - x.group < KT_CHUNK_GROUPS ? (int)(groups - x.group) : KT_CHUNK_GROUPS;
        kt_fetch_next(t, chunk, KT_P64_CODES8_BYTES * x.groups);
        kt_open_rows(&x, 16, 0, rows);
        x.scales = chunk;
        for (x.slice = 0; x.slice < KT_SLICES; x.slice++) {
            x.w = chunk + KT_SLICE_BYTES * x.slice;
            kt_rows_bytes(&x, KT_AT_BYTES, 0);
        }
    }
    kt_scale_channels(t);
}
#endif

/* Where it would saturate (VPMADDUBSW: 2 * 255 * 127 > 32767): products of 16-bit words. The even and
 * the odd bytes of a lane are two pairs of words; activations are widened the same way once per chunk,
 * eight lanes of even, then eight of odd bytes for each group.
 *
 * Half of the work are additions, and where these go to any pipe they keep multiplications from theirs
 * (Zen 4: 1.6 VPMADDWD a cycle with as many VPADDD, of 2). Floats are added by other pipes. A float
 * whose bits are n < 2^24 is n * 2^-149, denormal or of the first binade, and adding two of them adds
 * n exactly: VADDPS adds integers, as long as none is negative and denormals are numbers
 * (kt_denormals_on). So activations are taken + 128, and sums start at 128 * (8160 - sum u):
 *
 *     sum (w + 128) (q + 128) + 128 * (8160 - sum u) = sum w q + 128 sum q' + 128 * 8160 - 32 * 2^14
 *                                                    = sum w q - 16 comp + 1044480
 *
 * with 8160 = 32 * 255, u = w + 128, q' = q + 128 and comp = -8 sum q; all below 2^22. */
#define KT_WORDS_BIAS 1044480

/* How a variant wants its words added, behind kt_p64_tile.context. */
typedef struct kt_words_how {
    int as_floats;
} kt_words_how;

KT_INLINE void kt_widen_rows(const kt_p64_tile *t, int64_t group, int groups, const int as_floats,
                             uint8_t *rows) {
    for (int r = 0; r < t->rows; r++, rows += KT_WORDS_STRIDE)
        for (int g = 0; g < groups; g++)
            kt_widen_group((const uint8_t *)t->a[r] + 32 * (group + g), as_floats, rows + 64 * g);
}

/* One step of `rows` rows, two words of each, the first row's at `a`: products begin the sums,
 * those of floats at `starts`, or are added. */
KT_INLINE void kt_words_step(const uint8_t *a, const kt_vi u[KT_V_COLUMNS], const int rows,
                             const int as_floats, const uint8_t *starts, const int is_added,
                             kt_vi sum[KT_MICRO_ROWS][KT_V_COLUMNS]) {
    KT_EACH (r, rows) {
        if (r % KT_BATCH_ROWS == 0) {
            const int batch = rows - r < KT_BATCH_ROWS ? rows - r : KT_BATCH_ROWS;
            kt_vi part[KT_BATCH_ROWS][KT_V_COLUMNS];
            KT_EACH (j, batch) {
                const kt_vi q = kt_v_each_now(a + KT_WORDS_STRIDE * (r + j));
                KT_EACH (c, KT_V_COLUMNS) part[j][c] = kt_v_madd16_now(u[c], q);
            }
            KT_EACH (j, batch) {
                KT_EACH (c, KT_V_COLUMNS) {
                    kt_vi *to = &sum[r + j][c];
                    if (as_floats) {
                        const kt_vi start = is_added ? *to : kt_v_load(starts + KT_V_BYTES * c);
                        *to = kt_v_add_floats_now(start, part[j][c]);
                    } else {
                        *to = is_added ? kt_v_add32_now(*to, part[j][c]) : part[j][c];
                    }
                }
            }
        }
    }
}

KT_INLINE void kt_micro_words(const kt_micro *x, const int rows, const kt_weights_at at,
                              const int as_floats) {
    const uint8_t *a = x->a16 + KT_WORDS_STRIDE * x->row, *w = x->w, *starts = x->starts;
    const kt_row_groups *row = x->rows + x->row;
    const int groups = x->groups, first = x->opened;
    float *out = x->tile->tile + 64 * x->row + KT_SLICE_ROWS * x->slice;

    for (int g = 0; g < groups; g++, a += 64) {
        kt_vi sum[KT_MICRO_ROWS][KT_V_COLUMNS];

        KT_EACH (i, 16) { /* words 2 * (i / 2) and the next, of even or odd bytes */
            kt_vi u[KT_V_COLUMNS];
            KT_IN_ORDER();
            KT_EACH (c, KT_V_COLUMNS) {
                if (at == KT_AT_UNPACKED) {
                    u[c] = kt_v_load(w + KT_SLICE_BYTES * i + KT_V_BYTES * c);
                } else {
                    u[c] = kt_v_load(w + 256 * (i / 2) + KT_V_BYTES * c);
                    u[c] = i % 2 ? kt_v_odd_bytes(u[c]) : kt_v_even_bytes(u[c]);
                }
            }
            kt_words_step(a + 32 * (i % 2) + 4 * (i / 2), u, rows, as_floats, i ? NULL : starts,
                          i > 0, sum);
        }
        KT_IN_ORDER();
        KT_EACH (r, rows) {
            const kt_vi rest = kt_v_each(&row[r].start[first + g]);
            const kt_vf scale = kt_v_each_float(row[r].scale[first + g]);
            KT_EACH (c, KT_V_COLUMNS) {
                float *to = out + 64 * r + KT_V_BYTES / 4 * c;
                kt_v_store_floats(to, kt_v_fma(kt_v_to_float(kt_v_add32(sum[r][c], rest)), scale,
                                               kt_v_load_floats(to)));
            }
        }
        w += at == KT_AT_UNPACKED ? 16 * KT_SLICE_BYTES : KT_P64_CODES8_BYTES;
        starts += KT_SLICE_BYTES;
    }
}

KT_INLINE void kt_rows_words(kt_micro *x, const kt_weights_at at, const int as_floats) {
    for (x->row = 0; x->row + 4 <= x->tile->rows; x->row += 4) kt_micro_words(x, 4, at, as_floats);
    switch (x->tile->rows - x->row) {
    case 1: kt_micro_words(x, 1, at, as_floats); return;
    case 2: kt_micro_words(x, 2, at, as_floats); return;
    case 3: kt_micro_words(x, 3, at, as_floats); return;
    default: return;
    }
}

/* Unpack, and note where float sums of each group start. */
KT_INLINE void kt_unpack_words(const uint8_t *w, int groups, uint8_t *out, uint8_t *starts) {
    for (int g = 0; g < groups; g++, starts += KT_SLICE_BYTES) {
        kt_vi all[KT_V_COLUMNS];
        KT_EACH (i, 8) {
            KT_EACH (c, KT_V_COLUMNS) {
                const kt_vi bytes = kt_v_load(w + KT_V_BYTES * c);
                const kt_vi even = kt_v_even_bytes(bytes), odd = kt_v_odd_bytes(bytes);
                kt_v_store(out + KT_V_BYTES * c, even);
                kt_v_store(out + KT_SLICE_BYTES + KT_V_BYTES * c, odd);
                all[c] = i ? kt_v_add32(all[c], kt_v_add32(even, odd)) : kt_v_add32(even, odd);
            }
            w += 256;
            out += 2 * KT_SLICE_BYTES;
        }
        /* Words hold up to 4080: their pairs, times -128, fit int32. */
        KT_EACH (c, KT_V_COLUMNS) {
            const kt_vi sum = kt_v_madd16(all[c], kt_v_each_int((int)0xff80ff80u));
            kt_v_store(starts + KT_V_BYTES * c, kt_v_add32(sum, kt_v_each_int(KT_WORDS_BIAS)));
        }
    }
}

KT_INLINE void kt_tile_w8c_words_how(const kt_p64_tile *t, const int as_floats) {
    enum { CHUNK = KT_WORD_GROUPS };
    const int64_t groups = t->k / 32;
    _Alignas(64) uint8_t unpacked[CHUNK * 16 * KT_SLICE_BYTES], starts[CHUNK * KT_SLICE_BYTES];
    _Alignas(64) uint8_t a16[KT_BLOCK_ROWS * KT_WORDS_STRIDE];
    const int direct = t->rows < KT_DIRECT_ROWS, most = direct ? 1 : CHUNK;
    kt_row_groups rows[KT_BLOCK_ROWS];
    kt_micro x = {.tile = t, .a16 = a16, .starts = starts};

    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (; x.group < groups; x.group += x.groups) {
        const uint8_t *chunk = t->panel + KT_P64_CODES8_BYTES * x.group;
        x.groups = groups - x.group < most ? (int)(groups - x.group) : most;
        kt_widen_rows(t, x.group, x.groups, as_floats, a16);
        kt_fetch_next(t, chunk, KT_P64_CODES8_BYTES * x.groups);
        kt_open_rows(&x, 16, as_floats ? -KT_WORDS_BIAS : 0, rows);
        if (direct) kt_fetch_group(chunk, KT_P64_CODES8_BYTES);
        for (x.slice = 0; x.slice < KT_SLICES; x.slice++) {
            x.w = chunk + KT_SLICE_BYTES * x.slice;
            if (direct) {
                kt_rows_words(&x, KT_AT_BYTES, 0);
                continue;
            }
            kt_unpack_words(x.w, x.groups, unpacked, starts);
            x.w = unpacked;
            kt_rows_words(&x, KT_AT_UNPACKED, as_floats);
        }
    }
    kt_scale_channels(t);
}

static inline void kt_tile_w8c_words(const kt_p64_tile *t) {
    const kt_words_how *how = t->context;
    unsigned before;

#if KT_V_BYTES == 32 /* five to seven rows gain more from reading the panel once */
    if (t->rows <= KT_MICRO_ROWS || (t->rows >= KT_DIRECT_ROWS && t->rows <= KT_PASS_ROWS)) {
        kt_few_tile(t, KT_FEW_WORDS);
        kt_scale_channels(t);
        return;
    }
#endif

    if (!how->as_floats || t->rows < KT_DIRECT_ROWS) {
        kt_tile_w8c_words_how(t, 0);
        return;
    }
    before = kt_denormals_on();
    kt_tile_w8c_words_how(t, 1);
    kt_denormals_restore(before);
}

#endif
