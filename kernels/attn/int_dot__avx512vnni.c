/* Grouped-query attention over an INT8 cache with integer products (VPDPBUSD): codes are multiplied as they
 * lie in the cache, by queries and weights rounded to 8 bits in groups of 32, as the model's INT8 products round
 * their activations.
 *
 *   query    signed, step = largest magnitude of the scaled group / 127
 *   weight   times the value's scale, unsigned, step = largest of the group / 255. With the scale in it, a key of
 *            great weight and next to no value, as models like to have one, does not set the step. Weights far
 *            below a step are many and alike: to the nearest they would all be lost. So the threshold of rounding
 *            goes through 32 values from -1/2 to 1/2 of a step, bits of the key reversed: of any run of keys as
 *            many are rounded up as keeps its sum. Zero stays zero.
 *
 * int32 sums of 32 products are exact, and in f32 (below 2^21). Keys are turned round as dwords of four codes and biased
 * by 128 on the way, queries being the signed operand; a group's sum begins at -128 times that of its query.
 *
 * A block of values is interleaved, four keys to a dword, once for all queries of the tile: as `widen`. Both
 * products are then the same: broadcast dwords of rows times lines of such dwords.
 * SPDX-License-Identifier: Apache-2.0 */
#define END_WEIGHTS
#include "kernels/attn/fetch_rows.h"
#include "kernels/attn/soften512.h"
#include "kernels/attn/turn512.h"

#define LINE 64
#define GROUP 32 /* elements of a query, or keys, that share a step */
#define QUERY_TOP 127.0f
#define WEIGHT_TOP 255.0f

/* gcc 12 copies the accumulators of a large tile around its intrinsic. */
KT_INLINE __m512i dpbusd(__m512i sum, __m512i u8, __m512i s8) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u8), "v"(s8));
    return sum;
}

/* Of numbers that are not negative; NaN counts as the largest. */
KT_INLINE float largest(__m512i bits) {
    return _mm_cvtss_f32(
        _mm_castsi128_ps(_mm_cvtsi32_si128((int32_t)_mm512_reduce_max_epu32(bits))));
}

static int64_t padded_to(int64_t d) {
    return (d + LINE - 1) / LINE * LINE;
}

/* A query in scratch: codes, zeros up to a whole line; per group the step, then per group -128 *
 * sum of codes. Where those begin, in floats. */
static int64_t steps_at(int64_t d) {
    return padded_to(d) / 4;
}
static int64_t starts_at(int64_t d) {
    return steps_at(d) + padded_to(d) / GROUP;
}

static void load_query(const float *q, int64_t d, float scale, float *out) {
    uint8_t *codes = (uint8_t *)out;
    float *steps = out + steps_at(d);
    int32_t *starts = (int32_t *)(void *)(out + starts_at(d));
    const __m512 s = _mm512_set1_ps(scale);

    for (int64_t x = 0; x < padded_to(d); x += GROUP) {
        __m512 low = _mm512_mul_ps(s, _mm512_maskz_loadu_ps(kt_lanes512(d - x), q + x));
        __m512 high = _mm512_mul_ps(s, _mm512_maskz_loadu_ps(kt_lanes512(d - x - 16), q + x + 16));
        float size = largest(_mm512_max_epu32(_mm512_castps_si512(_mm512_abs_ps(low)),
                                              _mm512_castps_si512(_mm512_abs_ps(high))));
        __m512 up = _mm512_set1_ps(size < 0x1p-100f ? 0.0f : QUERY_TOP / size);
        __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(low, up));
        __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(high, up));
        _mm_storeu_si128((__m128i *)(void *)(codes + x), _mm512_cvtepi32_epi8(a));
        _mm_storeu_si128((__m128i *)(void *)(codes + x + 16), _mm512_cvtepi32_epi8(b));
        steps[x / GROUP] = size < 0x1p-100f ? 0.0f : size / QUERY_TOP;
        starts[x / GROUP] =
            (int32_t)(-128u * (uint32_t)_mm512_reduce_add_epi32(_mm512_add_epi32(a, b)));
    }
}

/* ---- products ---- */

/* Rows of codes, a step and a start per group, each `stride` floats after the one before; and
 * lines of dwords of four codes, `next_line` bytes from one to the next. */
typedef struct factors {
    const uint8_t *codes, *lines;
    const float *steps;
    const int32_t *starts; /* NULL = 0 */
    int64_t stride, next_line, groups;
} factors;

/* total[r][c] += products of row r with vector c of the lines. Constants at each call: nq rows,
 * nv vectors, and whether the rows are the signed operand. */
KT_INLINE void add_products(__m512 total[4][2], const factors *f, fetch *ask, const int nq,
                            const int nv, const int is_signed) {
    const uint8_t *line = f->lines;

    for (int64_t g = 0; g < f->groups; g++) {
        __m512i sum[4][2];
        fetch_rows(ask);
        KT_EACH (r, nq) {
            KT_EACH (c, nv)
                sum[r][c] = is_signed ? _mm512_set1_epi32(f->starts[r * f->stride + g])
                                      : _mm512_setzero_si512();
        }
        KT_EACH (i, GROUP / 4) {
            __m512i u[2];
            KT_EACH (c, nv) u[c] = _mm512_load_si512(line + LINE * c);
            line += f->next_line;
            KT_EACH (r, nq) {
                const uint8_t *four = f->codes + 4 * r * f->stride + GROUP * g + 4 * i;
                __m512i x = _mm512_set1_epi32(kt_load_i32(four));
                KT_EACH (c, nv)
                    sum[r][c] = is_signed ? dpbusd(sum[r][c], u[c], x) : dpbusd(sum[r][c], x, u[c]);
            }
        }
        KT_EACH (r, nq) {
            const __m512 step = _mm512_set1_ps(f->steps[r * f->stride + g]);
            KT_EACH (c, nv)
                total[r][c] = _mm512_fmadd_ps(step, _mm512_cvtepi32_ps(sum[r][c]), total[r][c]);
        }
    }
}

/* ---- scores ---- */

static size_t keys_bytes(int64_t d) {
    return (size_t)padded_to(d) * KEYS;
}

static void load_keys(const kt_attn_part *t, void *keys) {
    turn_keys(&t->k, keys, _mm512_set1_epi8(-128), 1);
}

KT_INLINE void score_tile(const kt_attn_part *t, int64_t i, int64_t j, fetch *ask, const int nq,
                          const int nv) {
    const int64_t d = t->k.d;
    const float *q = t->q + i * t->ldq;
    const factors f = {.codes = (const uint8_t *)q,
                       .lines = (const uint8_t *)t->keys + 4 * j,
                       .steps = q + steps_at(d),
                       .starts = (const int32_t *)(const void *)(q + starts_at(d)),
                       .stride = t->ldq,
                       .next_line = TURNED_ROW,
                       .groups = (d + GROUP - 1) / GROUP};
    float *s = t->s + i * KT_ATTN_LDS + j;
    __m512 total[4][2];

    KT_EACH (r, nq) {
        KT_EACH (c, nv) total[r][c] = _mm512_setzero_ps();
    }
    add_products(total, &f, ask, nq, nv, 1);
    KT_EACH (r, nq) {
        KT_EACH (c, nv) _mm512_store_ps(s + r * KT_ATTN_LDS + 16 * c, total[r][c]);
    }
}

KT_INLINE void score_rows(const kt_attn_part *t, int64_t i, fetch *ask, const int nq) {
    int64_t j = 0;
    for (; t->n_keys - j > 16; j += 32) score_tile(t, i, j, ask, nq, 2);
    if (j < t->n_keys) score_tile(t, i, j, ask, nq, 1);
}

static void scores(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    const int64_t tiles = (t->n / 4 + t->n % 4) * 2, groups = (t->k.d + GROUP - 1) / GROUP;
    fetch ask = fetch_from(&t->for_scores, tiles * groups);
    int64_t i = 0;

    for (; i + 4 <= t->n; i += 4) score_rows(t, i, &ask, 4);
    for (; i < t->n; i++) score_rows(t, i, &ask, 1);
}

/* ---- weights: the row of scores becomes 64 codes and two steps ---- */

#define STEPS_AT KT_ATTN_BLOCK /* floats into the row, behind its weights */

#define REVERSED(i) \
    (((i)&1) << 4 | ((i)&2) << 2 | ((i)&4) | ((i)&8) >> 2 | ((i)&16) >> 4) /* of five bits */
#define THRESHOLD(i) ((float)(2 * REVERSED(i) - 31) * 0x1p-6f)
#define FOUR(i) THRESHOLD(i), THRESHOLD((i) + 1), THRESHOLD((i) + 2), THRESHOLD((i) + 3)
static const _Alignas(64) float threshold[GROUP] = {FOUR(0),  FOUR(4),  FOUR(8),  FOUR(12),
                                                    FOUR(16), FOUR(20), FOUR(24), FOUR(28)};

/* Weights times the values' scales, and the row's sum without these. */
KT_INLINE __m512 put_weights(const kt_attn_part *t, float *s, int64_t n_keys, float top,
                             const softening how) {
    __m512 v[4], sum = _mm512_setzero_ps();

    load_scores(t, s, n_keys, how, v);
    exp_less(v, top, how.nv);
    KT_EACH (i, 4) {
        if (i >= how.nv) {
            v[i] = _mm512_setzero_ps();
            continue;
        }
        const __m512 scale = _mm512_maskz_loadu_ps(seen(n_keys, i, how), t->v_scale + 16 * i);
        sum = _mm512_add_ps(sum, v[i]);
        v[i] = _mm512_mul_ps(v[i], scale);
    }
    KT_EACH (i, 4) _mm512_store_ps(s + 16 * i, v[i]);
    return sum;
}

KT_INLINE __m512 larger_bits(__m512 a, __m512 b) {
    return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}

/* The largest of group g of each row to its step, and what brings weights to codes, at up[4 r].
 * None is negative; NaN counts as the largest. */
KT_INLINE void put_steps(float *s, const int g, const int nq, float up[16]) {
    const __m512 least = _mm512_set1_ps(0x1p-110f), whole = _mm512_set1_ps(WEIGHT_TOP);
    _Alignas(64) float step[16];
    __m512 size[4], most;
    __mmask16 is_some;

    KT_EACH (r, 4) {
        const float *row = s + (r < nq ? r : 0) * KT_ATTN_LDS + GROUP * g;
        size[r] = larger_bits(_mm512_load_ps(row), _mm512_load_ps(row + 16));
    }
    most = REDUCE_FOUR(size, larger_bits);
    is_some = _mm512_cmp_ps_mask(most, least, _CMP_NLT_UQ);
    _mm512_store_ps(up, _mm512_maskz_div_ps(is_some, whole, most));
    _mm512_store_ps(step, _mm512_maskz_div_ps(is_some, most, whole));
    KT_EACH (r, nq) s[r * KT_ATTN_LDS + STEPS_AT + g] = step[4 * r];
}

KT_INLINE void put_codes(float *s, const float *up) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i n[4];

    KT_EACH (i, 4)
        n[i] = _mm512_cvtps_epi32(_mm512_fmadd_ps(_mm512_load_ps(s + 16 * i),
                                                  _mm512_set1_ps(up[16 * (i / 2)]),
                                                  _mm512_load_ps(threshold + 16 * (i % 2))));
    n[0] = _mm512_packus_epi16(_mm512_packus_epi32(n[0], n[1]), _mm512_packus_epi32(n[2], n[3]));
    _mm512_store_si512(s, _mm512_permutexvar_epi32(order, n[0]));
}

/* Weights become codes. */
KT_INLINE void end_weights(const kt_attn_part *t, int64_t query, const int nq) {
    float *s = t->s + query * KT_ATTN_LDS;
    _Alignas(64) float up[2][16];

    KT_EACH (g, 2) put_steps(s, g, nq, up[g]);
    KT_EACH (r, nq) put_codes(s + r * KT_ATTN_LDS, up[0] + 4 * r);
}

/* ---- values ---- */

/* Row g has the dwords of keys 4 g .. 4 g + 3: of 64 columns from x on, lane l of vector t those
 * of columns x + 16 l + 4 t and the three after. Zeros where there is no key. */
KT_INLINE void interleave_four(const kt_attn_rows *rows, int64_t j, uint8_t *to,
                               const int is_whole) {
    for (int64_t x = 0; x < rows->d; x += LINE, to += 4 * LINE) {
        const __mmask64 m = mask64(rows->d - x);
        __m512i r[4], pair[4];
        KT_EACH (i, 4) {
            const uint8_t *row = rows->at + (j + i) * rows->ld + x;
            r[i] = _mm512_maskz_loadu_epi8(is_whole || j + i < rows->n ? m : 0, row);
        }
        KT_EACH (i, 2) {
            pair[2 * i] = _mm512_unpacklo_epi8(r[2 * i], r[2 * i + 1]);
            pair[2 * i + 1] = _mm512_unpackhi_epi8(r[2 * i], r[2 * i + 1]);
        }
        KT_EACH (i, 2) {
            uint8_t *at = to + 2 * LINE * i;
            _mm512_store_si512(at, _mm512_unpacklo_epi16(pair[i], pair[2 + i]));
            _mm512_store_si512(at + LINE, _mm512_unpackhi_epi16(pair[i], pair[2 + i]));
        }
    }
}

static void interleave(const kt_attn_rows *codes, uint16_t *out, int64_t ldo) {
    const kt_attn_rows copy = *codes, *const from = &copy;

    for (int64_t j = 0; j < from->n; j += 4) {
        uint8_t *to = (uint8_t *)out + j * ldo;
        if (from->n - j >= 4)
            interleave_four(from, j, to, 1);
        else
            interleave_four(from, j, to, 0);
    }
}

/* nq queries x 2 vectors of sums from x on; weights past the last key are zeros. */
KT_INLINE void weigh_tile(const kt_attn_part *t, int64_t i, int64_t x, fetch *ask, const int nq) {
    const float *s = t->s + i * KT_ATTN_LDS;
    const factors f = {.codes = (const uint8_t *)s,
                       .lines = t->v.at + 4 * x,
                       .steps = s + STEPS_AT,
                       .stride = KT_ATTN_LDS,
                       .next_line = 4 * t->v.ld,
                       .groups = (t->n_keys + GROUP - 1) / GROUP};
    __m512 total[4][2];

    begin_sums(t, i, x, total, nq);
    add_products(total, &f, ask, nq, 2, 0);
    end_sums(t, i, x, total, nq);
}

static void weigh(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    const int64_t width = padded_to(t->v.d), tiles = (t->n / 4 + t->n % 4) * width / 32;
    fetch ask = fetch_from(&t->for_values, tiles * 2);

    for (int64_t x = 0; x < width; x += 32) {
        int64_t i = 0;
        for (; i + 4 <= t->n; i += 4) {
            if (x == 0 && i % 8 == 0) kt_attn_ask(t->ask, t->ask_eight);
            weigh_tile(t, i, x, &ask, 4);
        }
        for (; i < t->n; i++) weigh_tile(t, i, x, &ask, 1);
    }
}

/* Lane l of vector t is lane t of vector l. */
static void store_sums(const float *o, int64_t d, float factor, float *out) {
    const __m512 f = _mm512_set1_ps(factor);
    for (int64_t x = 0; x < d; x += LINE) {
        __m512 r[4], t[4];
        KT_EACH (i, 4) r[i] = _mm512_mul_ps(f, _mm512_load_ps(o + x + 16 * i));
        KT_EACH (i, 2) {
            t[2 * i] = _mm512_shuffle_f32x4(r[2 * i], r[2 * i + 1], 0x88);
            t[2 * i + 1] = _mm512_shuffle_f32x4(r[2 * i], r[2 * i + 1], 0xdd);
        }
        KT_EACH (i, 2) {
            r[i] = _mm512_shuffle_f32x4(t[i], t[2 + i], 0x88);
            r[2 + i] = _mm512_shuffle_f32x4(t[i], t[2 + i], 0xdd);
        }
        KT_EACH (i, 4) _mm512_mask_storeu_ps(out + x + 16 * i, kt_lanes512(d - x - 16 * i), r[i]);
    }
}

static const kt_attn_inner inner = {.lanes = LINE,
                                    .load_query = load_query,
                                    .widen = interleave,
                                    .keys_bytes = keys_bytes,
                                    .load_keys = load_keys,
                                    .loads_codes = true,
                                    .scores = scores,
                                    .soften_all = soften_all,
                                    .weigh = weigh,
                                    .store_sums = store_sums};

static const int32_t tile_queries[] = {32, 64, 128};
static const kt_param params[KT_ATTN_N_PARAMS] = {{"queries", tile_queries, 3, 128}};

KT_ATTN_VARIANT(int_dot__avx512vnni, .weights = 1u << KT_W_INT8_CHANNEL, .isa = KT_ISA_AVX512VNNI,
                .numerics = KT_NUM_ACTS8, .bits = "dot-int", .version = 2, .rank = 1,
                .params = params, .accepts = kt_attn_accepts);
