/* INT8 weights with a scale per channel times int8 activations on AVX-512 VNNI. Why the integer
 * sums are exact: vnni512.h; many rows: wide512.h; the order of work: p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/wide512.h"

/* f32 sums of `rows` rows and 16 * cols panel rows from `col` on: sum += activation scale * exact
 * integer dot product for each group of 32 inputs, times the weight scale once at the end. */
KT_INLINE void kt_tile_w8c(kt_tile *t, const int rows, const int cols, const int col) {
    const uint8_t *w = t->panel + 64 * col;
    const int64_t k = t->k;
    const uint8_t *a[KT_TILE_ROWS];
    __m512 sum[KT_TILE_ROWS][4];
    __m512i dot[KT_TILE_ROWS][4];

    KT_EACH (r, rows) {
        a[r] = t->a[r];
        KT_EACH (c, cols) sum[r][c] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < k; i += 32, w += KT_P64_CODES8_BYTES) {
        kt_tile_fetch(t);
        KT_EACH (r, rows) {
            __m512i comp = _mm512_set1_epi32(kt_load_i32(a[r] + k + k / 8 + i / 8));
            comp = _mm512_slli_epi32(comp, 4); /* stored for code + 8 */
            KT_EACH (c, cols) dot[r][c] = comp;
        }
        KT_ROLLED for (int j = 0; j < 8; j++) {
            __m512i u[4];
            KT_IN_ORDER();
            KT_EACH (c, cols) {
                if (cols == 4) KT_IN_ORDER(); /* lines ascend */
                u[c] = _mm512_load_si512(w + 256 * j + 64 * c);
            }
            KT_EACH (r, rows) {
                __m512i q = _mm512_set1_epi32(kt_load_i32(a[r] + i + 4 * j));
                KT_EACH (c, cols) dot[r][c] = kt_dpbusd512(dot[r][c], u[c], q);
            }
        }
        KT_IN_ORDER();
        KT_EACH (r, rows) {
            __m512 s = _mm512_set1_ps(kt_load_f32(a[r] + k + i / 8));
            KT_EACH (c, cols) {
                sum[r][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][c]), s, sum[r][c]);
            }
        }
    }
    KT_EACH (c, cols) {
        __m512 ws =
            _mm512_load_ps((const float *)(const void *)(t->panel + 64 * k) + 16 * (col + c));
        KT_EACH (r, rows) {
            _mm512_store_ps(t->c + KT_TILE_WIDTH * r + 16 * (col + c),
                            _mm512_mul_ps(sum[r][c], ws));
        }
    }
}

/* to = fma(dot, scale, to): sums in the result tile. */
KT_INLINE void joined(float *to, __m512i dot, __m512 scale) {
    typedef float sums __attribute__((may_alias, vector_size(64)));
    __m512 sum = _mm512_cvtepi32_ps(dot);

    __asm__ volatile("vfmadd213ps %2, %1, %0"
                     : "+v"(sum)
                     : "v"(scale), "m"(*(const sums *)(const void *)to));
    _mm512_store_ps(to, sum);
}

/* The same sums for four to six rows that are all there are, in one pass of full lines: what a
 * panel takes to arrive from memory is more than what its products take, and half lines, twice, are
 * no stream that prefetchers see. All registers hold integer sums; a row's group joins its sums in
 * the result tile when the next one begins. */
KT_INLINE void kt_tile_w8c_alone(kt_tile *t, const int rows) {
    const uint8_t *w = t->panel;
    const int64_t k = t->k;
    const uint8_t *a[KT_TILE_ROWS];
    __m512i dot[KT_TILE_ROWS][4];
    int64_t before = k; /* any group's scale: nothing joins at first */

    KT_EACH (r, rows) {
        a[r] = t->a[r];
        KT_EACH (c, 4) {
            _mm512_store_ps(t->c + KT_TILE_WIDTH * r + 16 * c, _mm512_setzero_ps());
            dot[r][c] = _mm512_setzero_si512();
        }
    }
    for (int64_t i = 0; i < k; i += 32, w += KT_P64_CODES8_BYTES) {
        __m512i u[4];

        kt_tile_fetch(t);
        kt_wide_quad(w, u);
        KT_EACH (r, rows) {
            const __m512i q = _mm512_set1_epi32(kt_load_i32(a[r] + i));
            const __m512 s = _mm512_set1_ps(kt_load_f32(a[r] + before));
            __m512i comp = _mm512_set1_epi32(kt_load_i32(a[r] + k + k / 8 + i / 8));
            comp = _mm512_slli_epi32(comp, 4); /* stored for code + 8 */
            KT_EACH (c, 4) joined(t->c + KT_TILE_WIDTH * r + 16 * c, dot[r][c], s);
            KT_EACH (c, 4) dot[r][c] = kt_dpbusd512(comp, u[c], q);
            KT_IN_ORDER();
        }
        KT_ROLLED for (int j = 1; j < 8; j++) {
            kt_wide_quad(w + 256 * j, u);
            KT_EACH (r, rows) {
                const __m512i q = _mm512_set1_epi32(kt_load_i32(a[r] + i + 4 * j));
                KT_EACH (c, 4) dot[r][c] = kt_dpbusd512(dot[r][c], u[c], q);
            }
        }
        before = k + i / 8;
    }
    KT_EACH (r, rows) {
        const __m512 s = _mm512_set1_ps(kt_load_f32(a[r] + before));
        KT_EACH (c, 4) {
            const float *scales = (const float *)(const void *)(t->panel + 64 * k);
            float *to = t->c + KT_TILE_WIDTH * r + 16 * c;
            joined(to, dot[r][c], s);
            _mm512_store_ps(to, _mm512_mul_ps(_mm512_load_ps(to), _mm512_load_ps(scales + 16 * c)));
        }
    }
}

/* Up to three rows take the panel in one pass of full lines, and more if they are alone; others
 * hold 32 panel rows at a time, since both integer and f32 sums must fit the 32 registers. */
static inline void kt_tile_w8c_run(kt_tile *t) {
    switch (t->rows) {
    case 1: kt_tile_w8c(t, 1, 4, 0); return;
    case 2: kt_tile_w8c(t, 2, 4, 0); return;
    case 3: kt_tile_w8c(t, 3, 4, 0); return;
    default: break;
    }
    if (t->is_alone) {
        if (t->rows == 4) kt_tile_w8c_alone(t, 4);
        if (t->rows == 5) kt_tile_w8c_alone(t, 5);
        if (t->rows == 6) kt_tile_w8c_alone(t, 6);
        return;
    }
    for (int col = 0; col < 4; col += 2) {
        if (t->rows == 4) kt_tile_w8c(t, 4, 2, col);
        if (t->rows == 5) kt_tile_w8c(t, 5, 2, col);
        if (t->rows == 6) kt_tile_w8c(t, 6, 2, col);
    }
}

static __attribute__((noinline)) void chunk_rows(kt_tile *t, kt_wide_span *chunk) {
    kt_wide_chunk(t, chunk, 0);
}

static void many_rows(kt_tile *t) {
    const uintptr_t rows_pace = t->rows_ahead.pace;
    const uint8_t *scales = t->panel + 64 * t->k;

    kt_wide_set_paces(t);
    for (int64_t i = 0; i < t->k; i += KT_WIDE_CHUNK) {
        const int64_t left = t->k - i;
        kt_wide_span chunk = {.w = t->panel + 64 * i,
                              .multipliers = left <= KT_WIDE_CHUNK ? scales : NULL,
                              .i = i,
                              .groups = (int)(left < KT_WIDE_CHUNK ? left : KT_WIDE_CHUNK) / 32};
        chunk_rows(t, &chunk);
    }
    if (t->rows_ahead.pace) t->rows_ahead.pace = rows_pace; /* goes on with the next panel */
}

static const kt_tile_kind kind = {kt_tile_w8c_run, KT_W_INT8_CHANNEL, 3, many_rows, 0,
                                  KT_TILE_ROWS};

static const int32_t rows[] = {3, 4, 6};
static const int32_t prefetch[] = {0, 1024, 2048, 4096, 6144, 8192};
static const int32_t many[] = {0, 32, 64};
static const kt_param dense[] = {
    {"rows", rows, 3, 3}, {"prefetch", prefetch, 6, 0}, {"many", many, 3, 0}};
static const kt_param expert[] = {
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

KT_P64_KERNEL_APART(w8c_a8, avx512vnni, (.version = 6, .params = dense),
                    (.version = 4, .params = expert), .weights = 1u << KT_W_INT8_CHANNEL,
                    .acts = 1u << KT_A_INT8_G32, .isa = KT_ISA_AVX512VNNI,
                    .numerics = KT_NUM_EXACT_INT32, .bits = "a8-groups", .rank = 1, .n_params = 3,
                    .accepts = kt_p64_accepts);
