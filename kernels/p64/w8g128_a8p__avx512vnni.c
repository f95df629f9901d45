/* INT8 weights with a scale per 128 inputs times a8p activations on AVX-512 VNNI. The tiles are
 * explained in kernels/p64/biased512.h, the order of work in p64_ops512.h.
 *
 * From three rows on the sums of 128 inputs stay in registers, and those of rows in the result
 * tile: they are wanted once for every 32 products, and so six rows by 32 outputs find room, where
 * groups, runs and rows together leave it to four. The same bits as one or two rows have.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/biased512.h"
#include "kernels/p64/p64_kernel.h"

KT_INLINE void columns(kt_tile *tile, const int rows, const int col) {
    const kt_p64_spec s = kt_p64_spec_of(KT_W_INT8_G128);
    const size_t scales_at = 64 * (size_t)s.group + 32 * (size_t)col;
    const uint8_t *w = tile->panel;
    float *const to = tile->c + 16 * col;
    const uint8_t *a[KT_TILE_ROWS];
    __m512 t[KT_TILE_ROWS][4];

    KT_EACH (r, rows) {
        a[r] = tile->a[r];
        KT_EACH (c, 2) _mm512_store_ps(to + KT_TILE_WIDTH * r + 16 * c, _mm512_setzero_ps());
    }
    for (int64_t i = 0; i < tile->k; i += s.group, w += kt_p64_run_bytes(s)) {
        KT_EACH (r, rows) {
            KT_EACH (c, 2) t[r][c] = _mm512_setzero_ps();
        }
        kt_biased_columns(tile, a, w + 64 * col, i, i + s.group, 0, rows, 2, t);
        KT_EACH (c, 2) {
            const __m512 scale = kt_load_bf16x16(w + scales_at + 32 * c);
            KT_EACH (r, rows) {
                float *at = to + KT_TILE_WIDTH * r + 16 * c;
                _mm512_store_ps(at, _mm512_fmadd_ps(t[r][c], scale, _mm512_load_ps(at)));
            }
        }
    }
}

static void run(kt_tile *t) {
    const kt_p64_spec s = kt_p64_spec_of(KT_W_INT8_G128);

    switch (t->rows) {
    case 1: kt_tile_biased(t, s, 1, 4, 0, 0); return;
    case 2: kt_tile_biased(t, s, 2, 4, 0, 0); return;
    default: break;
    }
    for (int col = 0; col < 4; col += 2) {
        if (t->rows == 3) columns(t, 3, col);
        if (t->rows == 4) columns(t, 4, col);
        if (t->rows == 5) columns(t, 5, col);
        if (t->rows == 6) columns(t, 6, col);
    }
}

static const kt_tile_kind kind = {run, KT_W_INT8_G128, KT_BIASED_FULL_ROWS, NULL, 0, 0};

static const int32_t rows[] = {3, 4, 6};
static const int32_t prefetch[] = {0, 2048, 4096, 8192};
static const kt_param params[] = {{"rows", rows, 3, 6}, {"prefetch", prefetch, 4, 0}};

static void gemm(const kt_gemm_call *call) {
    kt_p64_gemm_run(call, &kind);
}

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, &kind, KT_A_INT8_G16P2);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, &kind);
}

KT_P64_KERNEL(w8g128_a8p, avx512vnni, 1, 1, .weights = 1u << KT_W_INT8_G128,
              .acts = 1u << KT_A_INT8_G16P2, .isa = KT_ISA_AVX512VNNI,
              .numerics = KT_NUM_EXACT_INT32, .bits = "a8p-groups", .rank = 1, .params = params,
              .n_params = 2, .accepts = kt_p64_accepts);
