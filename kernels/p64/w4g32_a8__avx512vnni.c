/* INT4 weights in groups of 32 times int8 activations on AVX-512 VNNI. Why the integer sums are
 * exact: vnni512.h; many rows: wide512.h; the order of work: p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/wide512.h"

/* f32 sums of `rows` rows and 16 * cols panel rows from `col` on, for each group of 32 inputs
 *   sum += (weight scale * activation scale) * exact integer dot product.
 * One 64-byte line holds two operands: inputs 4t.. in the low nibbles, 16 + 4t.. in the high ones. */
KT_INLINE void kt_tile_w4g32(kt_tile *t, const int rows, const int cols, const int col) {
    const __m512i low = _mm512_set1_epi8(15);
    const uint8_t *w = t->panel + 64 * col, *scales = t->panel + KT_P64_CODES4_BYTES + 32 * col;
    const int64_t k = t->k;
    const uint8_t *a[KT_TILE_ROWS];
    __m512 sum[KT_TILE_ROWS][4];
    __m512i dot[KT_TILE_ROWS][4];

    KT_EACH (r, rows) {
        a[r] = t->a[r];
        KT_EACH (c, cols) sum[r][c] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < k; i += 32, w += KT_P64_W4G32_BYTES, scales += KT_P64_W4G32_BYTES) {
        kt_tile_fetch(t);
        KT_EACH (r, rows) {
            __m512i start = _mm512_set1_epi32(kt_load_i32(a[r] + k + k / 8 + i / 8));
            KT_EACH (c, cols) dot[r][c] = start;
        }
        KT_EACH (j, 4) {
            __m512i both[4], u[4];
            KT_IN_ORDER();
            KT_EACH (c, cols) {
                both[c] = _mm512_load_si512(w + 256 * j + 64 * c);
                u[c] = _mm512_and_si512(both[c], low);
            }
            KT_EACH (r, rows) {
                __m512i q = _mm512_set1_epi32(kt_load_i32(a[r] + i + 4 * j));
                KT_EACH (c, cols) dot[r][c] = kt_dpbusd512(dot[r][c], u[c], q);
            }
            KT_EACH (c, cols) {
                if (rows * cols > 8) KT_IN_ORDER(); /* no register is left to keep the line in */
                if (rows * cols > 8) both[c] = _mm512_load_si512(w + 256 * j + 64 * c);
                u[c] = _mm512_and_si512(_mm512_srli_epi32(both[c], 4), low);
            }
            KT_EACH (r, rows) {
                __m512i q = _mm512_set1_epi32(kt_load_i32(a[r] + i + 16 + 4 * j));
                KT_EACH (c, cols) dot[r][c] = kt_dpbusd512(dot[r][c], u[c], q);
            }
        }
        KT_EACH (c, cols) {
            KT_IN_ORDER(); /* nor for the activation scales of all rows */
            __m512 ws = kt_load_bf16x16(scales + 32 * c);
            KT_EACH (r, rows) {
                __m512 s = _mm512_mul_ps(ws, _mm512_set1_ps(kt_load_f32(a[r] + k + i / 8)));
                sum[r][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][c]), s, sum[r][c]);
                KT_SETTLE(sum[r][c]);
            }
        }
    }
    KT_EACH (r, rows) {
        KT_EACH (c, cols) {
            _mm512_store_ps(t->c + KT_TILE_WIDTH * r + 16 * (col + c), sum[r][c]);
        }
    }
}

/* Up to three rows take the panel in one pass of full lines; more rows hold 32 panel rows at a time,
 * since both integer and f32 sums must fit the 32 registers. */
static inline void kt_tile_w4g32_run(kt_tile *t) {
    switch (t->rows) {
    case 1: kt_tile_w4g32(t, 1, 4, 0); return;
    case 2: kt_tile_w4g32(t, 2, 4, 0); return;
    case 3: kt_tile_w4g32(t, 3, 4, 0); return;
    default: break;
    }
    for (int col = 0; col < 4; col += 2) {
        if (t->rows == 4) kt_tile_w4g32(t, 4, 2, col);
        if (t->rows == 5) kt_tile_w4g32(t, 5, 2, col);
        if (t->rows == 6) kt_tile_w4g32(t, 6, 2, col);
    }
}

/* A chunk in bytes. */
typedef struct opened {
    _Alignas(64) uint8_t codes[64 * KT_WIDE_CHUNK];
    _Alignas(64) float scales[KT_WIDE_GROUPS][64];
} opened;

static void open_chunk(const uint8_t *panel, int groups, opened *x) {
    const __m512i low = _mm512_set1_epi8(15);
    uint8_t *to = x->codes;

    for (int g = 0; g < groups; g++, panel += KT_P64_W4G32_BYTES, to += KT_P64_CODES8_BYTES) {
        KT_EACH (line, 16) {
            const __m512i both = _mm512_load_si512(panel + 64 * line);
            _mm512_store_si512(to + 64 * line, _mm512_and_si512(both, low));
            _mm512_store_si512(to + 1024 + 64 * line,
                               _mm512_and_si512(_mm512_srli_epi32(both, 4), low));
        }
        KT_EACH (c, 4)
            _mm512_store_ps(x->scales[g] + 16 * c,
                            kt_load_bf16x16(panel + KT_P64_CODES4_BYTES + 32 * c));
    }
}

static __attribute__((noinline)) void chunk_rows(kt_tile *t, kt_wide_span *chunk) {
    kt_wide_chunk(t, chunk, 1);
}

static void many_rows(kt_tile *t) {
    const uintptr_t rows_pace = t->rows_ahead.pace;
    opened x;
    kt_wide_span chunk = {.w = x.codes, .scales = x.scales[0]};

    kt_wide_set_paces(t);
    for (; chunk.i < t->k; chunk.i += KT_WIDE_CHUNK) {
        const int64_t left = t->k - chunk.i;
        chunk.groups = (int)(left < KT_WIDE_CHUNK ? left : KT_WIDE_CHUNK) / 32;
        open_chunk(t->panel + KT_P64_W4G32_BYTES * (chunk.i / 32), chunk.groups, &x);
        chunk_rows(t, &chunk);
    }
    if (t->rows_ahead.pace) t->rows_ahead.pace = rows_pace; /* goes on with the next panel */
}

static const kt_tile_kind kind = {kt_tile_w4g32_run, KT_W_INT4_G32, 3, many_rows, 0, 0};

static const int32_t rows[] = {3, 4, 6};
static const int32_t prefetch[] = {0, 1024, 2048, 4096, 6144, 8192};
static const int32_t many[] = {0, 32, 64};
static const kt_param params[] = {
    {"rows", rows, 3, 6}, {"prefetch", prefetch, 6, 0}, {"many", many, 3, 0}};

static void gemm(const kt_gemm_call *call) {
    kt_p64_gemm_run(call, &kind);
}

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, &kind, KT_A_INT8_G32);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, &kind);
}

KT_P64_KERNEL(w4g32_a8, avx512vnni, 5, 4, .weights = 1u << KT_W_INT4_G32,
              .acts = 1u << KT_A_INT8_G32, .isa = KT_ISA_AVX512VNNI, .numerics = KT_NUM_EXACT_INT32,
              .bits = "a8-groups", .rank = 1, .params = params, .n_params = 3,
              .accepts = kt_p64_accepts);
