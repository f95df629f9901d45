/* Panel kernels for AVX2: FP8 E4M3 (wf8c, wf8b128, wmxfp8) and half (wf16) weights with abf16
 * activations.
 *
 * A code whose magnitude lies 20 bits up, with its sign at the top, is a float of 2^-120 times
 * its value; denormal codes are denormal floats (kt_denormals_on). Activations are taken times
 * 2^112, so products are 2^-8 times what they stand for, as exact as any. Of 16 bits with a code
 * in the upper byte, a shift and a mask make the upper half of that float. So 32 bytes, eight
 * panel rows with four inputs each, become four vectors by nine operations; each holds inputs 0
 * and 2 or 1 and 3 of four rows. VCVTPH2PS would take sixteen. Of halves it makes vectors of four
 * rows with a pair of inputs.
 *
 * Two things do not go this way: the code of NaN, which would be 480, and activations from 2^16
 * on. A run that meets one is done again with weights of 2^-8 and activations as they are
 * (kt_half_again): the same products.
 *
 * A row's sum is two chains over a run of 128 inputs (halves 64, wmxfp8 32), of inputs 4i, 4i + 1
 * and of 4i + 2, 4i + 3; of halves those of even and of odd inputs. They are joined, scaled and
 * added to the tile. Up to eight rows decode as they go, five at a time; more decode a slice of
 * 16 panel rows into L1 once. The order is the same, so a row's bits do not depend on the rows
 * beside it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_FP8X256_H
#define KT_SIMD_FP8X256_H

#include <immintrin.h>
#include <string.h>

#include "kernels/p64/p64_glue.h"
#include "kernels/simd/denormals.h"

#define KT_HALF_ROWS 16    /* rows of a tile: their activations of a run take 16 KiB of L1 */
#define KT_HALF_RUN 128    /* inputs at most */
#define KT_HALF_FEW 8      /* rows up to here decode as they go */
#define KT_HALF_AHEAD 6144 /* bytes of a panel that are asked for before */

/* Inputs [k, k + inputs) of a tile's rows. */
typedef struct kt_half_run {
    const kt_p64_tile *tile;
    int64_t k;
    int inputs;     /* a multiple of 32 */
    const float *a; /* [rows][2 * kt_half_inputs]: of four inputs two vectors of four */
} kt_half_run;

/* Inputs of a run: those that a scale has in common, or 8 KiB of a panel. */
KT_INLINE int kt_half_inputs(kt_weight_format format) {
    return format == KT_W_MXFP8 ? 32 : format == KT_W_F16 ? 64 : KT_HALF_RUN;
}

/* Bytes of four inputs of a panel. */
KT_INLINE int kt_half_quad(kt_weight_format format) {
    return format == KT_W_F16 ? 512 : 256;
}

KT_INLINE const uint8_t *kt_half_panel(const kt_half_run *x, kt_weight_format format, int vector) {
    return x->tile->panel + x->k / 4 * kt_half_quad(format) + 32 * vector;
}

KT_INLINE void kt_half_widen(const uint8_t *p, __m256 w[2]) {
    w[0] = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)p));
    w[1] = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)(p + 16)));
}

/* Operands in memory, since registers are sums: compilers would load these once, and keep sums in
 * memory. */
_Alignas(32) static const int16_t kt_fp8_byte_up[16] = {256, 256, 256, 256, 256, 256, 256, 256,
                                                        256, 256, 256, 256, 256, 256, 256, 256};
_Alignas(32) static const int16_t kt_fp8_word_up[16] = {4096, 0, 4096, 0, 4096, 0, 4096, 0,
                                                        4096, 0, 4096, 0, 4096, 0, 4096, 0};

KT_INLINE __m256i kt_fp8_lower(__m256i x) {
    __asm__("vpmullw %2, %1, %0" : "=x"(x) : "x"(x), "m"(kt_fp8_byte_up));
    return x;
}

/* The upper bytes of lower and of upper words. Zen 3 shifts where it adds and multiplies floats,
 * but multiplies words elsewhere, too: lower words times 2^12 are words moved up by 16 and down
 * by 4. */
KT_INLINE void kt_fp8_widen(__m256i words, __m256 w[2]) {
    const __m256i mask = _mm256_set1_epi32((int)0x87f00000u);
    __m256i lower;
    __asm__("vpmaddwd %2, %1, %0" : "=x"(lower) : "x"(words), "m"(kt_fp8_word_up));
    w[0] = _mm256_castsi256_ps(_mm256_and_si256(lower, mask));
    w[1] = _mm256_castsi256_ps(_mm256_and_si256(_mm256_srai_epi32(words, 4), mask));
}

/* sum += w * a, in the order of the source: compilers would move products away from their
 * weights, and keep weights and sums in memory. */
KT_INLINE __m256 kt_half_fma(__m256 w, __m256 a, __m256 sum) {
    __asm__ volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(w), "x"(a));
    return sum;
}

/* Eight panel rows at p with four inputs each, half of them: both vectors meet the same
 * activations. codes goes from half 0 to half 1; twice the largest magnitude of a code goes to
 * most. */
KT_INLINE void kt_half_open(kt_weight_format format, const uint8_t *p, const int half,
                            __m256i *codes, __m256i *most, __m256 w[2]) {
    if (format == KT_W_F16) {
        kt_half_widen(p + 256 * half, w);
        return;
    }
    if (half) {
        *codes = kt_fp8_lower(*codes);
    } else {
        *codes = _mm256_load_si256((const __m256i *)(const void *)p);
        *most = _mm256_max_epu8(*most, _mm256_add_epi8(*codes, *codes));
    }
    kt_fp8_widen(*codes, w);
}

KT_INLINE int kt_fp8_has_nan(__m256i most) {
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(most, _mm256_set1_epi8((char)0xfe))) != 0;
}

/* Weights of 2^-120 become such of 2^-8, and those that are no number NaN. */
KT_INLINE __m256 kt_fp8_careful(__m256 w) {
    const __m256i magnitude =
        _mm256_and_si256(_mm256_castps_si256(w), _mm256_set1_epi32(0x7fffffff));
    const __m256i is_nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x07f00000));
    return _mm256_or_ps(_mm256_mul_ps(w, _mm256_set1_ps(0x1p112f)), _mm256_castsi256_ps(is_nan));
}

KT_INLINE __m256 kt_half_each(const float *a) {
    return _mm256_broadcast_ps((const __m128 *)(const void *)a);
}

/* 2^(e - 127) of eight exponents; of 0 the subnormal number. */
KT_INLINE __m256 kt_half_powers(const uint8_t *exponents) {
    const __m256i e =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)exponents));
    return _mm256_castsi256_ps(
        _mm256_max_epi32(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(0x00400000)));
}

/* Scales of a vector's rows, 2^8 included but for wmxfp8, whose scales may be too large to hold
 * it. */
KT_INLINE __m256 kt_half_scale(const kt_half_run *x, kt_weight_format format, int vector) {
    const uint8_t *scales = x->tile->panel + 64 * x->tile->k;
    const float *s = (const float *)(const void *)scales;
    const __m256 power = _mm256_set1_ps(256.0f);

    if (format == KT_W_FP8_CHANNEL) return _mm256_mul_ps(_mm256_load_ps(s + 8 * vector), power);
    if (format == KT_W_FP8_B128)
        return _mm256_mul_ps(_mm256_set1_ps(s[x->k / 128 * 2 + vector / 4]), power);
    if (format == KT_W_MXFP8) return kt_half_powers(scales + 2 * x->k + 8 * vector);
    return _mm256_set1_ps(1.0f);
}

/* Join the chains of eight panel rows and add them to row r of the tile. */
KT_INLINE void kt_half_join(const kt_half_run *x, kt_weight_format format, int r, int vector,
                            const __m256 sum[2]) {
    float *out = x->tile->tile + 64 * r + 8 * vector;
    __m256 joined =
        _mm256_add_ps(_mm256_unpacklo_ps(sum[0], sum[1]), _mm256_unpackhi_ps(sum[0], sum[1]));
    if (format == KT_W_F16) {
        joined = _mm256_hadd_ps(sum[0], sum[1]); /* 0 1 4 5 2 3 6 7 */
        joined = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(joined), 0xd8));
    }
    if (format == KT_W_MXFP8) joined = _mm256_mul_ps(joined, _mm256_set1_ps(256.0f));
    _mm256_store_ps(out,
                    _mm256_fmadd_ps(joined, kt_half_scale(x, format, vector), _mm256_load_ps(out)));
}

/* What a pass over one in `passes` of the panel's rows asks for: its share of the lines ahead, in
 * order of memory, since panel rows are read a few lines in four, which hardware prefetchers do
 * not follow. */
KT_INLINE const char *kt_half_ahead(const kt_half_run *x, kt_weight_format format, int pass,
                                    int passes) {
    const int bytes = x->inputs / 4 * kt_half_quad(format);
    return (const char *)kt_half_panel(x, format, 0) + KT_HALF_AHEAD + bytes / passes * pass;
}

/* Rows [r, r + rows) and `vectors` times eight panel rows from `first` on: at least eight chains,
 * which cover the latency of FMA, and at most twelve. False, and nothing is added, if there is a
 * NaN among the weights. */
KT_INLINE int kt_half_direct(const kt_half_run *x, const kt_weight_format format, int r,
                             const int rows, int first, const int vectors) {
    const int step = kt_half_quad(format) / 8 * vectors, row = 2 * kt_half_inputs(format);
    const uint8_t *p = kt_half_panel(x, format, first);
    const char *ahead = kt_half_ahead(x, format, first / vectors, 8 / vectors);
    const float *a = x->a + row * r;
    __m256 sum[5][4][2];
    __m256i most = _mm256_setzero_si256();

    KT_EACH (i, rows) {
        KT_EACH (v, vectors) sum[i][v][0] = sum[i][v][1] = _mm256_setzero_ps();
    }
    for (int k = 0; k < x->inputs; k += 4, a += 8, p += kt_half_quad(format), ahead += step) {
        for (int line = 0; line < step; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
        KT_EACH (v, vectors) {
            __m256i codes;
            KT_EACH (half, 2) {
                __m256 w[2];
                if (rows > 1) KT_IN_ORDER(); /* no registers are left for activations */
                kt_half_open(format, p + 32 * v, half, &codes, &most, w);
                KT_EACH (i, rows) {
                    const __m256 each = kt_half_each(a + row * i + 4 * half);
                    KT_EACH (j, 2) sum[i][v][j] = kt_half_fma(w[j], each, sum[i][v][j]);
                }
            }
        }
    }
    if (kt_fp8_has_nan(most)) return 0;
    KT_EACH (i, rows) {
        KT_EACH (v, vectors) kt_half_join(x, format, r + i, first + v, sum[i][v]);
    }
    return 1;
}

/* A slice of 16 panel rows to f32, [inputs / 4][2 vectors][4][8]. False if there is a NaN among the
 * weights, unless careful. */
KT_INLINE int kt_half_store(const kt_half_run *x, const kt_weight_format format, int slice,
                            const int careful, float *stored) {
    const int step = kt_half_quad(format) / 4;
    const uint8_t *p = kt_half_panel(x, format, 2 * slice);
    const char *ahead = kt_half_ahead(x, format, slice, 4);
    __m256i most = _mm256_setzero_si256();

    for (int i = 0; i < x->inputs; i += 4, p += kt_half_quad(format), ahead += step) {
        KT_EACH (line, step / 64) _mm_prefetch(ahead + 64 * line, _MM_HINT_T0);
        KT_EACH (v, 2) {
            __m256i codes;
            KT_EACH (half, 2) {
                __m256 w[2];
                kt_half_open(format, p + 32 * v, half, &codes, &most, w);
                KT_EACH (j, 2) {
                    if (careful) w[j] = kt_fp8_careful(w[j]);
                    _mm256_store_ps(stored + 16 * i + 32 * v + 16 * half + 8 * j, w[j]);
                }
            }
        }
    }
    return careful || !kt_fp8_has_nan(most);
}

/* Rows [r, r + rows) and one vector of a stored slice. */
KT_INLINE void kt_half_micro(const kt_half_run *x, const kt_weight_format format, int r,
                             const int rows, int vector, const float *stored) {
    const int row = 2 * kt_half_inputs(format);
    const float *w = stored + 32 * (vector % 2), *a = x->a + row * r;
    __m256 sum[6][2];

    KT_EACH (i, rows) sum[i][0] = sum[i][1] = _mm256_setzero_ps();
    for (int k = 0; k < x->inputs; k += 4, w += 64, a += 8) {
        KT_EACH (half, 2) {
            const __m256 w0 = _mm256_load_ps(w + 16 * half), w1 = _mm256_load_ps(w + 16 * half + 8);
            KT_IN_ORDER();
            KT_EACH (i, rows) {
                const __m256 each = kt_half_each(a + row * i + 4 * half);
                sum[i][0] = _mm256_fmadd_ps(w0, each, sum[i][0]);
                sum[i][1] = _mm256_fmadd_ps(w1, each, sum[i][1]);
            }
        }
    }
    KT_EACH (i, rows) kt_half_join(x, format, r + i, vector, sum[i]);
}

/* Rows [r, end), by constant counts, so that loops unroll and sums are registers. */
KT_INLINE void kt_half_multiply(const kt_half_run *x, const kt_weight_format format, int r, int end,
                                int vector, const float *stored) {
    for (int now; r < end; r += now) {
        const int left = end - r;
        now = left > 8 || left == 6 ? 6 : left > 6 ? 4 : left;
        switch (now) {
        case 1: kt_half_micro(x, format, r, 1, vector, stored); break;
        case 2: kt_half_micro(x, format, r, 2, vector, stored); break;
        case 3: kt_half_micro(x, format, r, 3, vector, stored); break;
        case 4: kt_half_micro(x, format, r, 4, vector, stored); break;
        case 5: kt_half_micro(x, format, r, 5, vector, stored); break;
        default: kt_half_micro(x, format, r, 6, vector, stored); break;
        }
    }
}

/* The run's activations times a power of two: of FP8 1 1 3 3 and 0 0 2 2, of halves 0 1 0 1 and
 * 2 3 2 3 of four inputs. */
KT_INLINE void kt_half_acts(const kt_half_run *x, kt_weight_format format, float power, float *a) {
    const __m256i bytes =
        format == KT_W_F16
            ? _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5,
                               -1, -1, 6, 7, -1, -1, 4, 5, -1, -1, 6, 7)
            : _mm256_setr_epi8(-1, -1, 2, 3, -1, -1, 2, 3, -1, -1, 6, 7, -1, -1, 6, 7, -1, -1, 0, 1,
                               -1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 4, 5);
    for (int r = 0; r < x->tile->rows; r++)
        for (int j = 0; j < x->inputs; j += 4) {
            int64_t four;
            memcpy(&four, (const uint8_t *)x->tile->a[r] + 2 * (x->k + j), sizeof four);
            const __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi64x(four), bytes);
            _mm256_store_ps(a + 2 * kt_half_inputs(format) * r + 2 * j,
                            _mm256_mul_ps(_mm256_castsi256_ps(v), _mm256_set1_ps(power)));
        }
}

/* All of the run's activations are below 2^16 (0x4780 in bfloat16): times 2^112 they are finite. */
KT_INLINE int kt_half_is_small(const kt_half_run *x) {
    __m256i most = _mm256_setzero_si256();
    for (int r = 0; r < x->tile->rows; r++)
        for (int j = 0; j < x->inputs; j += 16) {
            const void *from = (const uint8_t *)x->tile->a[r] + 2 * (x->k + j);
            const __m256i v = _mm256_loadu_si256((const __m256i *)from);
            most = _mm256_max_epu16(most, _mm256_and_si256(v, _mm256_set1_epi16(0x7fff)));
        }
    most = _mm256_cmpgt_epi16(most, _mm256_set1_epi16(0x477f));
    return _mm256_testz_si256(most, most);
}

/* Rows [r, end) times vectors [first, last) with nothing left out. */
static __attribute__((noinline)) void kt_half_again(kt_half_run x, const kt_weight_format format,
                                                    int r, int end, int first, int last) {
    _Alignas(64) float a[KT_HALF_ROWS * 2 * KT_HALF_RUN], stored[16 * KT_HALF_RUN];

    x.a = a;
    kt_half_acts(&x, format, 1.0f, a);
    for (int v = first; v < last; v++) {
        if (v == first || v % 2 == 0) kt_half_store(&x, format, v / 2, 1, stored);
        kt_half_multiply(&x, format, r, end, v, stored);
    }
}

KT_INLINE void kt_half_panel_rows(const kt_half_run *x, const kt_weight_format format, int r,
                                  const int rows, const int vectors) {
    for (int v = 0; v < 8; v += vectors)
        if (!kt_half_direct(x, format, r, rows, v, vectors))
            kt_half_again(*x, format, r, r + rows, v, v + vectors);
}

KT_INLINE void kt_half_few(const kt_half_run *x, const kt_weight_format format) {
    for (int r = 0, now; r < x->tile->rows; r += now) {
        const int left = x->tile->rows - r;
        now = left > 5 ? 4 : left;
        switch (now) {
        case 1: kt_half_panel_rows(x, format, r, 1, 4); break;
        case 2: kt_half_panel_rows(x, format, r, 2, 2); break;
        case 3: kt_half_panel_rows(x, format, r, 3, 1); break;
        case 4: kt_half_panel_rows(x, format, r, 4, 1); break;
        default: kt_half_panel_rows(x, format, r, 5, 1); break;
        }
    }
}

KT_INLINE void kt_half_many(const kt_half_run *x, const kt_weight_format format) {
    _Alignas(64) float stored[16 * KT_HALF_RUN];
    const int rows = x->tile->rows;

    for (int v = 0; v < 8; v += 2) {
        if (!kt_half_store(x, format, v / 2, 0, stored)) {
            kt_half_again(*x, format, 0, rows, v, v + 2);
            continue;
        }
        kt_half_multiply(x, format, 0, rows, v, stored);
        kt_half_multiply(x, format, 0, rows, v + 1, stored);
    }
}

KT_INLINE void kt_tile_half_avx2(const kt_p64_tile *t, const kt_weight_format format) {
    const int run_inputs = kt_half_inputs(format);
    _Alignas(64) float a[KT_HALF_ROWS * 2 * KT_HALF_RUN];
    const unsigned before = kt_denormals_on();

    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (int64_t k = 0; k < t->k; k += run_inputs) {
        const int inputs = t->k - k < run_inputs ? (int)(t->k - k) : run_inputs;
        const kt_half_run x = {t, k, inputs, a};
        if (format != KT_W_F16 && !kt_half_is_small(&x)) {
            kt_half_again(x, format, 0, t->rows, 0, 8);
            continue;
        }
        kt_half_acts(&x, format, format == KT_W_F16 ? 1.0f : 0x1p112f, a);
        if (t->rows <= KT_HALF_FEW)
            kt_half_few(&x, format);
        else
            kt_half_many(&x, format);
    }
    kt_denormals_restore(before);
}

static inline void kt_tile_halves(const kt_p64_tile *t) {
    if (t->weights == KT_W_F16)
        kt_tile_half_avx2(t, KT_W_F16);
    else if (t->weights == KT_W_FP8_B128)
        kt_tile_half_avx2(t, KT_W_FP8_B128);
    else if (t->weights == KT_W_MXFP8)
        kt_tile_half_avx2(t, KT_W_MXFP8);
    else
        kt_tile_half_avx2(t, KT_W_FP8_CHANNEL);
}

#define KT_HALF_MASK (1u << KT_W_F16 | 1u << KT_W_FP8_B128 | 1u << KT_W_FP8_CHANNEL)

#endif
