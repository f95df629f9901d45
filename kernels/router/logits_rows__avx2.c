/* Router logits in tiles of 4 rows by 3 experts, or of a single row by 8 experts.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "base/numeric.h"
#include "kernels/simd/fma256.h"
#include "kernels/simd/fold256.h"
#include "kernels/simd/unroll.h"
#include "kt/variant.h"

/* Every logit has one accumulator of 8 lanes that walks k in order, wherever it is computed: its
 * bits do not depend on the rows and experts beside it. */

KT_INLINE __m256 load_weights(const void *w, int64_t at, int is_bf16) {
    const uint16_t *h = (const uint16_t *)w + at;
    if (!is_bf16) return _mm256_loadu_ps((const float *)w + at);
    return _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)h)), 16));
}

/* The sum of the products behind the last whole vector joins that of the lanes, one by one. */
KT_INLINE float with_rest(const kt_router_call *c, int64_t row, int64_t e, float sum, int is_bf16) {
    const int64_t k = c->problem->k;

    for (int64_t i = k / 8 * 8; i < k; i++) {
        const float x = c->x[row * c->ldx + i];
        sum += x * (is_bf16 ? kt_bf16_to_f32(((const uint16_t *)c->w)[e * k + i])
                            : ((const float *)c->w)[e * k + i]);
    }
    return sum;
}

/* ---- one row ---- */

enum { AT_ONCE = 8 };

/* What follows a block of 8 experts, step by step in ascending order: a single row multiplies eight
 * rows of weights at once, a small page apart from each other, where the hardware prefetchers see
 * no stream (BF16, k = 2048, Zen 4: 15.7 GB/s without, 21.2 with). One expert after the other, as
 * 512-bit vectors do it, waits for its chain of additions (14.2). Inlined always: a call that only
 * prefetches is dropped as one without effect. */
KT_INLINE void fetch_next(const kt_router_call *c, int64_t e, int64_t i, int is_bf16) {
    const int64_t item = is_bf16 ? 2 : 4;
    const char *next = (const char *)c->w + ((e + AT_ONCE) * c->problem->k + AT_ONCE * i) * item;
    for (int64_t at = 0; at < 8 * AT_ONCE * item; at += 64) _mm_prefetch(next + at, _MM_HINT_T1);
}

/* Logits of `experts` experts from e on, AT_ONCE or one. */
KT_INLINE void one_row_tile(const kt_router_call *c, int64_t row, int64_t e, const int experts,
                            int is_bf16) {
    const int64_t k = c->problem->k;
    const float *x = c->x + row * c->ldx;
    __m256 s[AT_ONCE];
    float total[8];

    KT_EACH (j, AT_ONCE) s[j] = _mm256_setzero_ps();
    for (int64_t i = 0; i + 8 <= k; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        if (experts == AT_ONCE) fetch_next(c, e, i, is_bf16);
        KT_EACH (j, experts)
            s[j] = _mm256_fmadd_ps(v, load_weights(c->w, (e + j) * k + i, is_bf16), s[j]);
    }
    _mm256_storeu_ps(total, kt_sum_lanes_256(s, s + 4, 4));
    KT_EACH (j, experts)
        c->logits[row * c->ldl + e + j] = with_rest(c, row, e + j, total[j], is_bf16);
}

KT_INLINE void one_row(const kt_router_call *c, int64_t row, int is_bf16) {
    int64_t e = c->expert_begin;

    for (; e + AT_ONCE <= c->expert_end; e += AT_ONCE) one_row_tile(c, row, e, AT_ONCE, is_bf16);
    for (; e < c->expert_end; e++) one_row_tile(c, row, e, 1, is_bf16);
}

/* ---- many rows ---- */

/* Four rows by three experts are 12 accumulators: enough to hide what a multiply-add takes. Up to
 * ROWS rows meet three experts one tile after the other, so that weights come from far only once
 * for all. Inputs go in chunks, copied side by side: rows that lie a multiple of 4 KiB apart would
 * have the same sets of L1. Of 8 ways of those sets a chunk takes five and three experts take
 * three, so what follows is asked for into L2. Between chunks accumulators are kept in memory, so
 * that each still walks k in order: those of a group of experts, for which inputs are copied
 * once. */
enum { QUAD = 4, ROWS = 12, TRIPLE = 3, GROUP = 128, INPUTS = ROWS * 384, LINE = 16 };

typedef struct many_rows {
    const kt_router_call *call;
    int64_t row, rows, quads;
    int64_t from, to;             /* inputs of the chunk, whole vectors */
    const float *next;            /* of a row that is copied next, or NULL: not asked for yet */
    int64_t next_rows;            /* this one and those behind it */
    int64_t asked, dose;          /* inputs of it that were; to ask for with each three experts */
    _Alignas(64) float x[INPUTS]; /* [quad][8 inputs][row of the quad][8] */
    __m256 kept[GROUP][ROWS];     /* by expert of the group */
} many_rows;

/* Rows past the last repeat it; nobody looks at their sums. Four rows at a time, as one set of L1
 * holds no more than eight. */
static void copy_inputs(many_rows *t) {
    const int64_t ldx = t->call->ldx, last = t->rows - 1;
    float *out = t->x;

    for (int64_t q = 0; q < QUAD * t->quads; q += QUAD) {
        const float *x[QUAD];
        KT_EACH (r, QUAD) x[r] = t->call->x + (t->row + (q + r < last ? q + r : last)) * ldx;
        for (int64_t i = t->from; i < t->to; i += 8, out += 8 * QUAD)
            KT_EACH (r, QUAD) _mm256_store_ps(out + 8 * r, _mm256_loadu_ps(x[r] + i));
    }
}

/* Some lines of the inputs that are copied next, which lie in pages of their own. */
KT_INLINE void ask_inputs(many_rows *t) {
    for (int64_t i = 0; t->next_rows > 0 && i < t->dose; i += LINE) {
        _mm_prefetch((const char *)(t->next + t->asked), _MM_HINT_T1);
        t->asked += LINE;
        if (t->asked < t->to - t->from) continue;
        t->asked = 0;
        t->next += t->call->ldx;
        t->next_rows--;
    }
}

/* What follows this chunk of this group: its rows' next inputs, their first ones, or other rows. */
static void plan_asking(many_rows *t, int64_t begin, int64_t end) {
    const kt_router_call *c = t->call;
    const int64_t n = t->to - t->from, threes = (end - begin + 2) / 3;
    const float *x = c->x + t->row * c->ldx;

    t->asked = 0;
    t->dose = (n * t->rows + threes - 1) / threes;
    t->next_rows = t->rows;
    t->next = x + t->to;
    if (t->to + n <= c->problem->k) return;
    t->next = x;
    if (end < c->expert_end) return;
    t->next = x + t->rows * c->ldx;
    if (t->row + 2 * t->rows > c->row_end) t->next_rows = 0;
}

/* Weights of some experts, k apart, from an input on. */
typedef struct expert_rows {
    const char *at;
    int64_t ld; /* bytes */
} expert_rows;

/* 8 inputs of a quad meet `experts` experts. */
KT_INLINE void step(const float *x, const expert_rows *w, const int experts, int is_bf16,
                    __m256 s[TRIPLE][QUAD]) {
    __m256 v[TRIPLE];

    KT_EACH (j, experts) v[j] = load_weights(w->at + j * w->ld, 0, is_bf16);
    KT_EACH (r, QUAD) {
        const __m256 input = _mm256_load_ps(x + 8 * r);
        KT_EACH (j, experts) s[j][r] = kt_fma_in_place256(input, v[j], s[j][r]);
        KT_IN_ORDER(); /* 12 sums, 3 weights and an input are all registers: the next one waits */
    }
}

/* The chunk of quad q meets `experts` experts from e on, kept at `slot`. asked: rows of the experts
 * behind them to ask for, a constant; one: that of the tile's number. */
KT_INLINE void tile(many_rows *t, int64_t q, int64_t e, int64_t slot, const int experts,
                    const int asked, int is_bf16) {
    const kt_router_call *c = t->call;
    const int64_t item = is_bf16 ? 2 : 4, ld = c->problem->k * item, n = (t->to - t->from) / 8;
    const int64_t next =
        e + 2 * experts <= c->problem->n ? (experts + (asked == 1 ? q : 0)) * ld : 0;
    expert_rows w = {(const char *)c->w + (e * c->problem->k + t->from) * item, ld};
    const float *x = t->x + q * n * 8 * QUAD;
    __m256(*kept)[ROWS] = t->kept + slot;
    __m256 s[TRIPLE][QUAD];

    KT_EACH (j, experts) {
        KT_EACH (r, QUAD) s[j][r] = t->from ? kept[j][QUAD * q + r] : _mm256_setzero_ps();
    }
    KT_ROLLED
    for (int64_t i = 0; i < n; i++, w.at += 8 * item, x += 8 * QUAD) {
        KT_EACH (j, asked) _mm_prefetch(w.at + next + j * ld, _MM_HINT_T1);
        step(x, &w, experts, is_bf16, s);
    }
    KT_EACH (j, experts) {
        KT_EACH (r, QUAD) kept[j][QUAD * q + r] = s[j][r];
    }
}

KT_INLINE void experts_of_chunk(many_rows *t, int64_t e, int64_t slot, const int experts,
                                int is_bf16) {
    int64_t q = 0;

    ask_inputs(t);
    if (t->quads < experts) tile(t, q++, e, slot, experts, experts, is_bf16);
    for (; t->quads >= experts && q < experts; q++) tile(t, q, e, slot, experts, 1, is_bf16);
    for (; q < t->quads; q++) tile(t, q, e, slot, experts, 0, is_bf16);
}

static void store_logits(const many_rows *t, int64_t begin, int64_t end, int is_bf16) {
    const kt_router_call *c = t->call;
    float total[QUAD];

    for (int64_t e = begin; e < end; e++)
        for (int64_t r = 0; r < t->rows; r++) {
            const __m256 *kept = t->kept[e - begin] + r;
            if (r % QUAD == 0)
                _mm_storeu_ps(total, _mm256_castps256_ps128(kt_sum_lanes_256(kept, kept, QUAD)));
            c->logits[(t->row + r) * c->ldl + e] =
                with_rest(c, t->row + r, e, total[r % QUAD], is_bf16);
        }
}

/* Experts [begin, end), a group. Three at a time, and two at the end unless that leaves one. */
KT_INLINE void group(many_rows *t, int64_t begin, int64_t end, int is_bf16) {
    const int64_t whole = t->call->problem->k / 8 * 8, most = INPUTS / (QUAD * t->quads) / 8 * 8;

    for (t->from = 0; t->from < whole; t->from = t->to) {
        int64_t e = begin;
        t->to = t->from + most < whole ? t->from + most : whole;
        copy_inputs(t);
        plan_asking(t, begin, end);
        for (; end - e == 3 || end - e >= 5; e += 3) experts_of_chunk(t, e, e - begin, 3, is_bf16);
        for (; end - e >= 2; e += 2) experts_of_chunk(t, e, e - begin, 2, is_bf16);
        if (e < end) experts_of_chunk(t, e, e - begin, 1, is_bf16);
    }
    store_logits(t, begin, end, is_bf16);
}

/* Equal groups of whole threes, but for the last one. */
KT_INLINE void walk(const kt_router_call *c, int is_bf16) {
    const int64_t n = c->expert_end - c->expert_begin, groups = (n + GROUP - 1) / GROUP;
    const int64_t equal = groups > 0 ? ((n + groups - 1) / groups + 2) / 3 * 3 : 0;
    const int64_t each = equal < GROUP ? equal : GROUP;
    many_rows t;

    if (c->row_end - c->row_begin == 1 || c->problem->k < 8) {
        for (int64_t row = c->row_begin; row < c->row_end; row++) one_row(c, row, is_bf16);
        return;
    }
    t.call = c;
    for (t.row = c->row_begin; t.row < c->row_end; t.row += t.rows) {
        t.rows = c->row_end - t.row < ROWS ? c->row_end - t.row : ROWS;
        t.quads = (t.rows + QUAD - 1) / QUAD;
        for (int64_t e = c->expert_begin; e < c->expert_end; e += each)
            group(&t, e, e + each < c->expert_end ? e + each : c->expert_end, is_bf16);
    }
}

static void router(const kt_router_call *c) {
    if (c->problem->weights == KT_W_BF16)
        walk(c, 1);
    else
        walk(c, 0);
}

KT_VARIANT(logits_rows__avx2) = {
    .name = "logits_rows__avx2",
    .op = KT_OP_ROUTER,
    .weights = (1u << KT_W_BF16) | (1u << KT_W_F32),
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_F32,
    .bits = "sums256",
    .version = 3,
    .layout = "",
    .rank = 1,
    .router = router,
};
