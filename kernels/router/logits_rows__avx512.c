/* Router logits in tiles of 6 rows by 4 experts; a single row expert by expert, or eight by eight
 * where their weights are long, as one stream of weights.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "base/cpu.h"
#include "kernels/simd/fetch.h"
#include "kernels/simd/row_ends512.h"
#include "kt/variant.h"

enum { SMALL_PAGE = 4096 };

/* Floats of 16 BF16 values in the low halves of lanes. */
static inline __m512 widen(__m256i v) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

static inline __m512 load_weights(const void *w, int64_t at, int is_bf16) {
    if (!is_bf16) return _mm512_loadu_ps((const float *)w + at);
    return widen(_mm256_loadu_si256((const __m256i *)(const void *)((const uint16_t *)w + at)));
}

static inline __m512 load_rest(const void *w, int64_t at, __mmask16 rest, int is_bf16) {
    if (!is_bf16) return _mm512_maskz_loadu_ps(rest, (const float *)w + at);
    return widen(_mm256_maskz_loadu_epi16(rest, (const uint16_t *)w + at));
}

/* Every logit has one accumulator of 16 lanes that walks k in order, wherever it is computed: its
 * bits do not depend on the rows and experts beside it. */
static inline __attribute__((always_inline)) void one(const kt_router_call *c, int64_t row,
                                                      int64_t e, int is_bf16) {
    const int64_t k = c->problem->k, whole = k / 16 * 16;
    const __mmask16 rest = (__mmask16)((1u << (k - whole)) - 1u);
    const float *x = c->x + row * c->ldx;
    __m512 s = _mm512_setzero_ps();

    for (int64_t i = 0; i < whole; i += 16)
        s = _mm512_fmadd_ps(_mm512_loadu_ps(x + i), load_weights(c->w, e * k + i, is_bf16), s);
    if (rest)
        s = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(rest, x + whole),
                            load_rest(c->w, e * k + whole, rest, is_bf16), s);
    c->logits[row * c->ldl + e] = _mm512_reduce_add_ps(s);
}

/* Eight logits of one row. The lines of the eight experts behind them are asked for in ascending
 * order, as far ahead as these are long, into L2 where is_near does not say otherwise: what is read
 * here lies there. `ask` NULL: there are none. is_near: a constant at each call, as a branch among
 * the sixteen prefetches costs a fifth of the time. The sums are those of one(). */
static inline __attribute__((always_inline)) void
eight(const kt_router_call *c, int64_t row, int64_t e, const char *ask, int is_near, int is_bf16) {
    const int64_t k = c->problem->k, whole = k / 32 * 32, item = is_bf16 ? 2 : 4;
    const float *x = c->x + row * c->ldx;
    __m512 s[8];

    if (!ask) ask = (const char *)c->w + e * k * item;
    for (int j = 0; j < 8; j++) s[j] = _mm512_setzero_ps();
    for (int64_t i = 0; i < whole; i += 32, ask += 8 * 32 * item) {
        for (int64_t line = 0; line < 8 * 32 * item; line += 64) kt_fetch_line(ask + line, is_near);
        for (int u = 0; u < 32; u += 16) {
            const __m512 v = _mm512_loadu_ps(x + i + u);
            for (int j = 0; j < 8; j++)
                s[j] = _mm512_fmadd_ps(v, load_weights(c->w, (e + j) * k + i + u, is_bf16), s[j]);
        }
    }
    for (int64_t i = whole; i < k; i += 16) {
        const __mmask16 m = kt_lanes512(k - i);
        const __m512 v = _mm512_maskz_loadu_ps(m, x + i);
        for (int j = 0; j < 8; j++)
            s[j] = _mm512_fmadd_ps(v, load_rest(c->w, (e + j) * k + i, m, is_bf16), s[j]);
    }
    for (int j = 0; j < 8; j++) c->logits[row * c->ldl + e + j] = _mm512_reduce_add_ps(s[j]);
}

/* One row. Experts of a small page are left to the hardware prefetchers, which want lines in strict
 * order: the chain of additions does not bind, since those of the next expert begin before it ends.
 * Longer ones are no chain to be hidden, and x does not stay in L1 beside them
 * (kernels/router/README.md). */
static inline __attribute__((always_inline)) void one_row(const kt_router_call *c, int64_t row,
                                                          int is_bf16) {
    const int64_t item = is_bf16 ? 2 : 4, bytes = c->problem->k * item;
    const int is_near = kt_cpu_fetches_near();
    int64_t e = c->expert_begin;

    for (; bytes > SMALL_PAGE && e + 8 <= c->expert_end; e += 8) {
        const char *ask = e + 16 <= c->problem->n ? (const char *)c->w + (e + 8) * bytes : NULL;
        if (is_near)
            eight(c, row, e, ask, 1, is_bf16);
        else
            eight(c, row, e, ask, 0, is_bf16);
    }
    for (; e < c->expert_end; e++) one(c, row, e, is_bf16);
}

/* ---- many rows ---- */

/* Six rows by four experts are 24 accumulators: a weight is widened once for six products. Inputs
 * go in chunks, copied side by side: rows that lie a multiple of 4 KiB apart would have the same
 * sets of L1. Between chunks accumulators are kept in memory, so that each still walks k in order.
 * The experts of a group stay in L2 while all rows pass, and groups are even, since inputs are
 * copied for each. Chunks are longer where rows are few, so that most weights come from afar, and
 * on Zen 5 (kernels/router/NOTES.md). */
enum { CHUNK = 512, LONG_CHUNK = 1024, ROWS = 6, FEW_ROWS = 24, EXPERTS = 4 };
enum { GROUP = 64, GROUP_BYTES = 768 * 1024, NEAR = 256 };

typedef struct many_rows {
    const kt_router_call *call;
    int64_t row, chunk;
    bool is_first; /* tile of this group of experts, whose weights come from afar */
    _Alignas(64) float x[LONG_CHUNK * ROWS]; /* [16 inputs][row][16] */
    __m512 kept[GROUP][ROWS];                /* by expert of the group */
} many_rows;

/* The sums of four accumulators' lanes, in the order of _mm512_reduce_add_ps. */
static inline __m128 sums_of(__m512 s0, __m512 s1, __m512 s2, __m512 s3) {
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    const __m512 a =
        _mm512_add_ps(_mm512_shuffle_f32x4(s0, s1, 0x44), _mm512_shuffle_f32x4(s0, s1, 0xee));
    const __m512 b =
        _mm512_add_ps(_mm512_shuffle_f32x4(s2, s3, 0x44), _mm512_shuffle_f32x4(s2, s3, 0xee));
    __m512 c = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));

    c = _mm512_add_ps(c, _mm512_permute_ps(c, 0x4e));
    c = _mm512_add_ps(c, _mm512_permute_ps(c, 0xb1));
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, c));
}

static inline __attribute__((always_inline)) void copy_inputs(many_rows *t, int64_t from,
                                                              int64_t to, int rows) {
    const float *x = t->call->x + t->row * t->call->ldx;
    float *out = t->x;

    for (int64_t i = from; i < to; i += 16)
        for (int r = 0; r < rows; r++, out += 16)
            _mm512_store_ps(out, kt_load_lanes512(x + r * t->call->ldx + i, kt_lanes512(to - i)));
}

/* Products with 16 inputs of weights from `at` on; those at `ask` and inputs at ask_x are asked
 * for, the latter into L2 where L1 is full of F32 weights. */
static inline __attribute__((always_inline)) void step(const kt_router_call *c, const float *x,
                                                       const float *ask_x, int64_t at, int64_t ask,
                                                       int rest, int rows, int experts, int is_bf16,
                                                       __m512 s[EXPERTS][ROWS]) {
    const int64_t k = c->problem->k, item = is_bf16 ? 2 : 4;
    __m512 w[EXPERTS];

    kt_fetch_line(ask_x, is_bf16);
    KT_EACH (j, experts) {
        w[j] = rest ? load_rest(c->w, at + j * k, (__mmask16)((1u << rest) - 1u), is_bf16)
                    : load_weights(c->w, at + j * k, is_bf16);
        _mm_prefetch((const char *)c->w + (ask + j * k) * item, _MM_HINT_T0);
    }
    KT_EACH (r, rows)
        KT_EACH (j, experts) s[j][r] = _mm512_fmadd_ps(_mm512_load_ps(x + 16 * r), w[j], s[j][r]);
}

/* The inputs of row j that are copied next, behind `to` or of the tile behind this one: as many
 * lines as a part has steps, so that the first parts of a group ask for a row each. Copying what
 * lies in L3 took a third of the time. Where there are none, what is at hand. */
static inline const float *inputs_to_ask(const many_rows *t, int64_t j, int64_t to, int rows) {
    const kt_router_call *c = t->call;
    const bool is_last = to == c->problem->k;
    const int64_t row = t->row + j + (is_last ? rows : 0);

    if (j >= rows || row >= c->row_end) return t->x;
    return c->x + row * c->ldx + (is_last ? 0 : to);
}

/* Inputs [from, to) of `experts` experts from e on, which are kept at `slot`. Weights that come
 * from afar are asked for as long ahead as these are; those of L2 nearer, since the rows of eight
 * experts may have the same sets of L1. */
static inline __attribute__((always_inline)) void part(many_rows *t, int64_t e, int64_t slot,
                                                       int64_t from, int64_t to, int rows,
                                                       int experts, int is_bf16) {
    const kt_router_call *c = t->call;
    const int64_t k = c->problem->k, whole = to / 16 * 16, length = whole - from;
    const int64_t ahead = t->is_first || length < NEAR ? length : NEAR;
    const int64_t next = (e + 2 * experts <= c->problem->n ? experts * k : 0) - length;
    const float *x = t->x, *ask_x = inputs_to_ask(t, slot / EXPERTS, to, rows);
    __m512 s[EXPERTS][ROWS];

    KT_EACH (j, experts)
        KT_EACH (r, rows) s[j][r] = from ? t->kept[slot + j][r] : _mm512_setzero_ps();
    for (int64_t i = from; i < whole; i += 16, x += 16 * rows, ask_x += 16) {
        const int64_t ask = e * k + i + ahead + (i + ahead < whole ? 0 : next);
        step(c, x, ask_x, e * k + i, ask, 0, rows, experts, is_bf16, s);
    }
    if (to > whole)
        step(c, x, x, e * k + whole, e * k + whole, (int)(to - whole), rows, experts, is_bf16, s);
    if (to < k) {
        KT_EACH (j, experts)
            KT_EACH (r, rows) t->kept[slot + j][r] = s[j][r];
        return;
    }
    KT_EACH (r, rows) {
        float *out = c->logits + (t->row + r) * c->ldl + e;
        if (experts == EXPERTS)
            _mm_storeu_ps(out, sums_of(s[0][r], s[1][r], s[2][r], s[3][r]));
        else
            *out = _mm512_reduce_add_ps(s[0][r]);
    }
}

static inline __attribute__((always_inline)) void tile(many_rows *t, int64_t begin, int64_t end,
                                                       int rows, int is_bf16) {
    const int64_t k = t->call->problem->k;

    for (int64_t from = 0; from < k; from += t->chunk) {
        const int64_t to = from + t->chunk < k ? from + t->chunk : k;
        int64_t e = begin;
        copy_inputs(t, from, to, rows);
        for (; e + EXPERTS <= end; e += EXPERTS)
            part(t, e, e - begin, from, to, rows, EXPERTS, is_bf16);
        for (; e < end; e++) part(t, e, e - begin, from, to, rows, 1, is_bf16);
    }
}

/* Six of `left` rows at once, or four where two or three would be left over, which cost as much
 * as six. */
static inline int tile_rows(int64_t left) {
    const int64_t over = left % ROWS;
    if (left < ROWS) return left < 4 ? 0 : 4;
    return left > ROWS + 1 && (over == 2 || over == 3) ? 4 : ROWS;
}

static inline __attribute__((always_inline)) void walk(const kt_router_call *c, int is_bf16) {
    const int64_t fitting = GROUP_BYTES / (c->problem->k * (is_bf16 ? 2 : 4)) / EXPERTS * EXPERTS;
    const bool is_long = c->row_end - c->row_begin <= FEW_ROWS || kt_cpu_fetches_near();
    const int64_t most = fitting > GROUP ? GROUP : fitting < EXPERTS ? EXPERTS : fitting;
    const int64_t n = c->expert_end - c->expert_begin, groups = (n + most - 1) / most;
    const int64_t group =
        groups ? ((n + groups - 1) / groups + EXPERTS - 1) / EXPERTS * EXPERTS : most;
    int64_t row = c->row_begin;
    many_rows t;

    t.call = c;
    t.chunk = is_bf16 && is_long ? LONG_CHUNK : CHUNK;
    for (int64_t e = c->expert_begin; e < c->expert_end; e += group) {
        const int64_t end = e + group < c->expert_end ? e + group : c->expert_end;
        int rows;
        for (row = c->row_begin; (rows = tile_rows(c->row_end - row)) > 0; row += rows) {
            t.row = row;
            t.is_first = row == c->row_begin;
            if (rows == ROWS)
                tile(&t, e, end, ROWS, is_bf16);
            else
                tile(&t, e, end, 4, is_bf16);
        }
    }
    for (; row < c->row_end; row++) one_row(c, row, is_bf16);
}

static void router(const kt_router_call *c) {
    if (c->problem->weights == KT_W_BF16)
        walk(c, 1);
    else
        walk(c, 0);
}

KT_VARIANT(logits_rows__avx512) = {
    .name = "logits_rows__avx512",
    .op = KT_OP_ROUTER,
    .weights = (1u << KT_W_BF16) | (1u << KT_W_F32),
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_F32,
    .bits = "sums512",
    .version = 4,
    .layout = "",
    .rank = 1,
    .router = router,
};
