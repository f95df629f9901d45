/* What the attention kernels share: a warp meets 16 pairs of a row and a head (attn_calls.h) with
 * up to 64 keys of a page at a time, by an online softmax in powers of two.
 *
 * A lane has two of the pairs, number g = lane / 4 and g + 8, of which it holds columns 2t, 2t + 1
 * of every eight (t = lane % 4), as the sums of mma do. Rows in shared memory are one 16-byte chunk
 * longer than their numbers: an odd number of chunks keeps ldmatrix free of bank conflicts for
 * every head size that is a multiple of 16. Sizes are constants of the caller's build.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEV_ATTN_H
#define KT_DEV_ATTN_H

#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/attn_calls.h"

enum {
    KT_ATTN_MAX_KEYS = 64,   /* of a step */
    KT_ATTN_MAX_VALUE = 256, /* numbers of a value that a warp has the sums of */
    KT_ATTN_MAX_HELD = 192   /* numbers of a query that fit registers */
};

#define KT_ATTN_LOG2_E 1.4426950408889634f
#define KT_ATTN_NOTHING kt_float_bits(0xff800000u) /* -infinity: no key was seen */

/* Bytes of a row of n bfloat16 in shared memory. */
#define KT_ATTN_PITCH(n) (2 * (n) + 16)

/* What a block works on. */
typedef struct kt_attn_block {
    kt_attn_tile tile;
    const uint32_t *page;
    const uint8_t *k, *v; /* of the kv head */
    const float *k_scale, *v_scale;
    int number, kv_head, group; /* of the tile; heads of the kv head */
    int begin, end;             /* keys that one of the pairs sees */
} kt_attn_block;

/* A lane's two pairs. */
typedef struct kt_attn_pairs {
    int first[2], last[2];  /* keys that each sees; last -1 = there is no such pair */
    float top[2], total[2]; /* largest score; sum of weights, of the lane's own columns */
} kt_attn_pairs;

KT_DEVICE int kt_attn_row(const kt_attn_block *b, int pair) {
    return b->tile.row + (b->tile.head + pair) / b->group;
}

KT_DEVICE int kt_attn_head(const kt_attn_block *b, int pair) {
    return b->kv_head * b->group + (b->tile.head + pair) % b->group;
}

KT_DEVICE int kt_attn_first_seen(const kt_attn_paged *p, int position) {
    return p->window > 0 && position >= p->window ? position - p->window + 1 : 0;
}

KT_DEVICE kt_attn_block kt_attn_block_of(const kt_attn_paged *p, int tile, int kv_head) {
    kt_attn_block b;

    b.tile = p->tile[tile];
    b.number = tile;
    b.page = p->page + b.tile.page;
    b.kv_head = kv_head;
    b.group = p->heads / p->kv_heads;
    b.k = p->k.rows + kv_head * p->k.head;
    b.v = p->v.rows + kv_head * p->v.head;
    b.k_scale = p->k.scale ? p->k.scale + kv_head * p->k.scale_head : 0;
    b.v_scale = p->v.scale ? p->v.scale + kv_head * p->v.scale_head : 0;
    b.begin = kt_attn_first_seen(p, p->position[b.tile.row]);
    b.end = p->position[kt_attn_row(&b, b.tile.pairs - 1)] + 1;
    return b;
}

/* Pairs first_pair + g and first_pair + g + 8, before any key. */
KT_DEVICE kt_attn_pairs kt_attn_pairs_of(const kt_attn_paged *p, const kt_attn_block *b,
                                         int first_pair) {
    kt_attn_pairs r;

    KT_UNROLL
    for (int i = 0; i < 2; i++) {
        const int pair = first_pair + kt_lane() / 4 + 8 * i;
        const int is = pair < b->tile.pairs;
        r.last[i] = is ? p->position[kt_attn_row(b, pair)] : -1;
        r.first[i] = is ? kt_attn_first_seen(p, r.last[i]) : 0;
        r.top[i] = KT_ATTN_NOTHING;
        r.total[i] = 0;
    }
    return r;
}

/* ---- queries ---- */

/* Two numbers of a pair's query, times the scale of scores in powers of two; zeros where there is
 * no such pair. */
KT_DEVICE uint32_t kt_attn_query(const kt_attn_paged *p, const kt_attn_block *b, int pair, int at,
                                 int size) {
    const float scale = p->scale * KT_ATTN_LOG2_E;
    const float *q;

    if (pair >= b->tile.pairs) return 0;
    q = p->q + kt_attn_row(b, pair) * p->ldq + (int64_t)kt_attn_head(b, pair) * size + at;
    return kt_bf16_pair(q[0] * scale, q[1] * scale);
}

/* A warp's 16 queries as words of A, four for each 16 numbers. */
KT_DEVICE void kt_attn_hold_queries(const kt_attn_paged *p, const kt_attn_block *b, int first_pair,
                                    int size, uint32_t *q) {
    const int pair = first_pair + kt_lane() / 4, at = kt_lane() % 4 * 2;

    KT_UNROLL
    for (int i = 0; i < size / 16; i++) {
        q[4 * i] = kt_attn_query(p, b, pair, 16 * i + at, size);
        q[4 * i + 1] = kt_attn_query(p, b, pair + 8, 16 * i + at, size);
        q[4 * i + 2] = kt_attn_query(p, b, pair, 16 * i + 8 + at, size);
        q[4 * i + 3] = kt_attn_query(p, b, pair + 8, 16 * i + 8 + at, size);
    }
}

/* A block's n queries to shared memory, by all its threads. */
KT_DEVICE void kt_attn_put_queries(const kt_attn_paged *p, const kt_attn_block *b, int n, int size,
                                   uint32_t at, int threads) {
    for (int i = kt_thread(); i < n * size / 2; i += threads) {
        const int pair = i / (size / 2), word = i % (size / 2);
        kt_set_shared_u32(at + (uint32_t)(pair * KT_ATTN_PITCH(size) + word * 4),
                          kt_attn_query(p, b, pair, 2 * word, size));
    }
}

/* ---- keys and values on their way ---- */

/* n rows of `chunks` times 16 bytes to shared memory, `pitch` bytes apart there; rows from `valid`
 * on are zeros. Thread `thread` of `threads` does its share. */
KT_DEVICE void kt_attn_fetch(uint32_t at, int pitch, const uint8_t *rows, int64_t row_bytes,
                             int chunks, int n, int valid, int thread, int threads) {
    KT_UNROLL_4
    for (int i = thread; i < n * chunks; i += threads) {
        const int row = i / chunks, chunk = i - row * chunks, is = row < valid;
        kt_copy16(at + (uint32_t)(row * pitch + chunk * 16),
                  rows + (is ? row * row_bytes + chunk * 16 : 0), is ? 16 : 0);
    }
}

/* Where the row of a key in this page begins. */
KT_DEVICE const uint8_t *kt_attn_rows_at(const kt_attn_kept *kept, const uint8_t *rows,
                                         uint32_t page, int key) {
    return rows + page * kept->page + key % KT_ATTN_PAGE * kept->row;
}

/* Four codes as four bfloat16, exactly: two words. FP8 has its exponent four bits further left than
 * float, and 120 less. */
KT_DEVICE void kt_attn_widen4(uint32_t codes, int cache, uint32_t *out) {
    float x[4];

    KT_UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32_t code = codes >> (8 * i) & 0xff;
        if (cache == KT_ATTN_INT8)
            x[i] = (float)(int)(signed char)code;
        else if ((code & 0x7f) == 0x7f)
            x[i] = kt_float_bits(0x7fc00000u);
        else
            x[i] = kt_float_bits((code & 0x80) << 24 | (code & 0x7f) << 20) *
                   kt_float_bits(0x7b800000u); /* 2^120 */
    }
    out[0] = kt_bf16_pair(x[0], x[1]);
    out[1] = kt_bf16_pair(x[2], x[3]);
}

/* n rows of `size` codes, which lie without gaps, as bfloat16 rows of the usual pitch. */
KT_DEVICE void kt_attn_widen(uint32_t to, uint32_t from, int size, int n, int cache, int thread,
                             int threads) {
    const int chunks = size / 16;

    KT_UNROLL_4
    for (int i = thread; i < n * chunks; i += threads) {
        const int row = i / chunks, chunk = i - row * chunks;
        const uint32_t at = to + (uint32_t)(row * KT_ATTN_PITCH(size) + chunk * 32);
        const kt_u128 codes = kt_shared_u128(from + (uint32_t)i * 16);
        uint32_t x[8];
        kt_u128 half;
        kt_attn_widen4(codes.x, cache, x);
        kt_attn_widen4(codes.y, cache, x + 2);
        kt_attn_widen4(codes.z, cache, x + 4);
        kt_attn_widen4(codes.w, cache, x + 6);
        half.x = x[0], half.y = x[1], half.z = x[2], half.w = x[3];
        kt_set_shared_u128(at, half);
        half.x = x[4], half.y = x[5], half.z = x[6], half.w = x[7];
        kt_set_shared_u128(at + 16, half);
    }
}

/* ---- a step ---- */

/* s = q k^T: scores of the warp's pairs by n keys at k_at, 4 for each 8 keys. Queries are held in
 * `q`, or lie in shared memory at q_at if `q` is NULL. */
KT_DEVICE void kt_attn_scores(float *s, const uint32_t *q, uint32_t q_at, uint32_t k_at, int size,
                              int n) {
    const int lane = kt_lane();
    const uint32_t a_at = q_at + (uint32_t)((lane & 15) * KT_ATTN_PITCH(size) + (lane >> 4) * 16);
    const uint32_t b_at = k_at + (uint32_t)(((lane & 7) + (lane >> 4 << 3)) * KT_ATTN_PITCH(size) +
                                            (lane >> 3 & 1) * 16);

    KT_UNROLL
    for (int i = 0; i < n / 2; i++) s[i] = 0;
    KT_UNROLL
    for (int i = 0; i < size / 16; i++) {
        uint32_t a[4];
        if (q) {
            KT_UNROLL
            for (int x = 0; x < 4; x++) a[x] = q[4 * i + x];
        } else {
            kt_ldmatrix(a, a_at + (uint32_t)i * 32);
        }
        KT_UNROLL
        for (int j = 0; j < n / 16; j++) {
            uint32_t b[4];
            kt_ldmatrix(b, b_at + (uint32_t)(j * 16 * KT_ATTN_PITCH(size) + i * 32));
            kt_mma_bf16(s + 8 * j, a, b[0], b[1]);
            kt_mma_bf16(s + 8 * j + 4, a, b[2], b[3]);
        }
    }
}

/* Multiply columns by the scales of their keys; those past `valid` stay as they are. */
KT_DEVICE void kt_attn_scale_columns(float *s, const float *scale, int n, int valid) {
    KT_UNROLL
    for (int j = 0; j < n / 8; j++) KT_UNROLL
    for (int x = 0; x < 2; x++) {
        const int column = 8 * j + kt_lane() % 4 * 2 + x;
        const float by = column < valid ? scale[column] : 1.0f;
        s[4 * j + x] *= by;
        s[4 * j + 2 + x] *= by;
    }
}

/* Keys that a pair does not see, of n from `key` on. */
KT_DEVICE void kt_attn_mask(const kt_attn_pairs *r, float *s, int key, int n) {
    const int last = r->last[0] < r->last[1] ? r->last[0] : r->last[1];
    const int first = r->first[0] > r->first[1] ? r->first[0] : r->first[1];

    if (key >= first && key + n - 1 <= last) return; /* all are seen */
    KT_UNROLL
    for (int i = 0; i < n / 2; i++) {
        const int at = key + i / 4 * 8 + kt_lane() % 4 * 2 + i % 2, half = i / 2 % 2;
        if (at < r->first[half] || at > r->last[half]) s[i] = KT_ATTN_NOTHING;
    }
}

/* Scores of n keys become weights against the largest score so far; *factor is what sums of earlier
 * keys have to be multiplied by. */
KT_DEVICE void kt_attn_soften(kt_attn_pairs *r, float *s, int n, float *factor) {
    KT_UNROLL
    for (int half = 0; half < 2; half++) {
        float top = r->top[half], base, total = 0;
        KT_UNROLL
        for (int i = 0; i < n / 4; i++) top = kt_max(top, s[i / 2 * 4 + half * 2 + i % 2]);
        top = kt_max(top, kt_warp_xor(top, 1));
        top = kt_max(top, kt_warp_xor(top, 2));
        base = top == KT_ATTN_NOTHING ? 0.0f : top;
        factor[half] = kt_exp2(r->top[half] - base);
        KT_UNROLL
        for (int i = 0; i < n / 4; i++) {
            float *weight = s + i / 2 * 4 + half * 2 + i % 2;
            *weight = kt_exp2(*weight - base);
            total += *weight;
        }
        r->total[half] = r->total[half] * factor[half] + total;
        r->top[half] = top;
    }
}

/* o += weights of n keys times `columns` columns of their values, whose first lies at v_at. */
KT_DEVICE void kt_attn_add_values(float *o, const float *s, uint32_t v_at, int size, int columns,
                                  int n) {
    const int lane = kt_lane();
    const uint32_t b_at = v_at + (uint32_t)((lane & 15) * KT_ATTN_PITCH(size) + (lane >> 4) * 16);

    KT_UNROLL
    for (int j = 0; j < n / 16; j++) {
        const uint32_t a[4] = {
            kt_bf16_pair(s[8 * j], s[8 * j + 1]), kt_bf16_pair(s[8 * j + 2], s[8 * j + 3]),
            kt_bf16_pair(s[8 * j + 4], s[8 * j + 5]), kt_bf16_pair(s[8 * j + 6], s[8 * j + 7])};
        KT_UNROLL
        for (int i = 0; i < columns / 16; i++) {
            uint32_t b[4];
            kt_ldmatrix_trans(b, b_at + (uint32_t)(j * 16 * KT_ATTN_PITCH(size) + i * 32));
            kt_mma_bf16(o + 8 * i, a, b[0], b[1]);
            kt_mma_bf16(o + 8 * i + 4, a, b[2], b[3]);
        }
    }
}

KT_DEVICE void kt_attn_rescale(float *o, const float *factor, int columns) {
    KT_UNROLL
    for (int i = 0; i < columns / 2; i++) o[i] *= factor[i / 2 % 2];
}

/* ---- results ---- */

/* Sums of weights over the four lanes that share a pair. */
KT_DEVICE void kt_attn_total(kt_attn_pairs *r) {
    KT_UNROLL
    for (int half = 0; half < 2; half++) {
        r->total[half] += kt_warp_xor(r->total[half], 1);
        r->total[half] += kt_warp_xor(r->total[half], 2);
    }
}

/* What a head's sums have to be multiplied by at the end. */
KT_DEVICE float kt_attn_share(const kt_attn_paged *p, int head, float top, float total) {
    float sink, most;

    if (!p->sink) return 1.0f / total;
    sink = p->sink[head] * KT_ATTN_LOG2_E;
    most = kt_max(sink, top);
    top = kt_exp2(top - most);
    return top / (total * top + kt_exp2(sink - most));
}

/* The cell of a pair for the split of this number, of `pairs` pairs a tile and values of `size`
 * numbers: sums, then the largest score and the sum of weights. */
KT_DEVICE float *kt_attn_cell(const kt_attn_paged *p, const kt_attn_block *b, int pairs, int pair,
                              int split, int size) {
    const int64_t first = ((int64_t)b->number * p->kv_heads + b->kv_head) * pairs + pair;
    return p->part + (first * p->splits + split % p->splits) * (size + 2);
}

/* Join the splits of pair block_x % pairs of kv head block_x / pairs in tile block_y, in order. */
KT_DEVICE void kt_attn_join(const kt_attn_paged *p, int pairs, int size, int threads) {
    const kt_attn_block b = kt_attn_block_of(p, kt_block_y(), kt_block_x() / pairs);
    const int pair = kt_block_x() % pairs, row = kt_attn_row(&b, pair);
    int position, seen, first, last;
    float top = KT_ATTN_NOTHING, total = 0, share, *out;

    if (pair >= b.tile.pairs) return;
    position = p->position[row];
    seen = p->picked && position >= p->topk ? p->topk - 1 : position;
    first = kt_attn_first_seen(p, position) / p->split_keys;
    last = seen / p->split_keys;
    for (int s = first; s <= last; s++)
        top = kt_max(top, kt_attn_cell(p, &b, pairs, pair, s, size)[size]);
    if (top == KT_ATTN_NOTHING) top = 0;
    for (int s = first; s <= last; s++) {
        const float *cell = kt_attn_cell(p, &b, pairs, pair, s, size);
        total += cell[size + 1] * kt_exp2(cell[size] - top);
    }
    share = kt_attn_share(p, kt_attn_head(&b, pair), top, total);
    out = p->out + row * p->ldo + (int64_t)kt_attn_head(&b, pair) * size;
    for (int i = kt_thread(); i < size; i += threads) {
        float sum = 0;
        for (int s = first; s <= last; s++) {
            const float *cell = kt_attn_cell(p, &b, pairs, pair, s, size);
            sum += cell[i] * kt_exp2(cell[size] - top);
        }
        out[i] = sum * share;
    }
}

#endif
