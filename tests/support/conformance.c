/* Bounds. Bits must be equal but for: kt_exp2 (2 ulp on a GPU, 1 in the C library), kt_silu
 * (that exponential and a division that rounds), sums over a warp (order is fixed: equal), and
 * products of tensor cores, which align 16 products before they add: 2^-19 of the sum of
 * magnitudes; of 8-bit floats they keep some 13 bits: 2^-12. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/conformance.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"

enum { BLOCKS = 3, ROWS = BLOCKS * KT_CONFORM_THREADS };

typedef enum values { ANY, FLOATS, SMALL_FLOATS, BF16, E4M3 } values;

static const struct {
    const char *name;
    values values;
    float relative; /* of the value, or (magnitudes) of the sum of magnitudes; 0 = equal bits */
    bool magnitudes;
    bool is_number; /* what is not a number may have any bits */
} cases[KT_CONFORM_COUNT] = {
    [KT_CONFORM_PLACE] = {"kt_thread kt_lane kt_warp kt_block_x kt_block_y", ANY, 0, false, false},
    [KT_CONFORM_BITS] = {"kt_float_bits kt_bits_float kt_bf16_low kt_bf16_high kt_and_or", FLOATS,
                         0, false, false},
    [KT_CONFORM_BF16_PAIR] = {"kt_bf16_pair", FLOATS, 0, false, false},
    [KT_CONFORM_FMA] = {"kt_fma", FLOATS, 0, false, true},
    [KT_CONFORM_EXP2] = {"kt_exp2", SMALL_FLOATS, 0x1.8p-22f, false, false},
    [KT_CONFORM_SILU] = {"kt_silu kt_divide", SMALL_FLOATS, 0x1p-20f, false, false},
    [KT_CONFORM_DOT4] = {"kt_dot4", ANY, 0, false, false},
    [KT_CONFORM_LOAD_STREAM] = {"kt_load_stream", ANY, 0, false, false},
    [KT_CONFORM_SHARED_U32] = {"kt_set_shared_u32 kt_shared_u32 kt_sync", ANY, 0, false, false},
    [KT_CONFORM_SHARED_U128] = {"kt_set_shared_u128 kt_shared_u128", ANY, 0, false, false},
    [KT_CONFORM_COPY] = {"kt_copy16 kt_copy_commit KT_COPY_WAIT", ANY, 0, false, false},
    [KT_CONFORM_WARP_XOR] = {"kt_warp_xor", FLOATS, 0, false, false},
    [KT_CONFORM_WARP_FROM] = {"kt_warp_from", ANY, 0, false, false},
    [KT_CONFORM_WARP_SUM] = {"kt_warp_sum", FLOATS, 0, false, true},
    [KT_CONFORM_LDMATRIX] = {"kt_ldmatrix", ANY, 0, false, false},
    [KT_CONFORM_MMA_BF16] = {"kt_mma_bf16", BF16, 0x1p-19f, true, false},
    [KT_CONFORM_MMA_S8] = {"kt_mma_s8", ANY, 0, false, false},
    [KT_CONFORM_ROUNDED] = {"kt_mul kt_max kt_max_nan kt_sqrt kt_turn", FLOATS, 0, false, true},
    [KT_CONFORM_INTEGERS] = {"kt_round kt_bit_count kt_e4m3", FLOATS, 0, false, false},
    [KT_CONFORM_EXPONENTIALS] = {"kt_exp kt_log1p kt_sigmoid kt_exp_double", SMALL_FLOATS, 0x1p-20f,
                                 false, false},
    [KT_CONFORM_SHARED_F32] =
        {"kt_set_shared_f32 kt_shared_f32 kt_shared_f32x2 kt_shared_add kt_set_f32x2", ANY, 0,
         false, false},
    [KT_CONFORM_COPY_SMALL] = {"kt_copy8 kt_copy4", ANY, 0, false, false},
    [KT_CONFORM_VOTES] = {"kt_warp_match kt_warp_ballot kt_warp_max kt_warp_sync", ANY, 0, false,
                          false},
    [KT_CONFORM_LARGEST] = {"kt_warp_max_nan", FLOATS, 0, false, true},
    [KT_CONFORM_BLOCK_SUM] = {"kt_block_sum", FLOATS, 0, false, true},
    [KT_CONFORM_LDMATRIX_TRANS] = {"kt_ldmatrix_trans", ANY, 0, false, false},
    [KT_CONFORM_WEIGHTS] = {"kt_fma_bf16 kt_f16_float kt_bytes kt_load_cached kt_load_stream8", ANY,
                            0, false, true},
    [KT_CONFORM_MMA_E4M3] = {"kt_mma_e4m3", E4M3, 0x1p-12f, true, false}};

const char *kt_conform_name(kt_conform_case which) {
    return cases[which].name;
}

static uint32_t bits_of(float x) {
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static float float_of(uint32_t b) {
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

/* Floats with what rounding trips over: ties, zeros of both signs, what is not finite. */
static float draw_float(kt_rng *rng) {
    static const float odd[] = {0.0f,         -0.0f,     1.0f,     0x1.01p0f, 0x1.03p0f,
                                -0x1.fep127f, 0x1p-120f, INFINITY, -INFINITY};
    if (kt_rng_below(rng, 8) == 0) return odd[kt_rng_below(rng, sizeof odd / sizeof *odd)];
    return kt_rng_normal(rng) * (kt_rng_below(rng, 4) ? 1.0f : 1000.0f);
}

static uint32_t draw(values v, int i, kt_rng *rng) {
    if (v == FLOATS) return bits_of(draw_float(rng));
    if (v == SMALL_FLOATS) return bits_of(kt_rng_uniform(rng, -60, 60));
    if (v == BF16 && i < 8) /* two finite values, rounded the short way */
        return (bits_of(kt_rng_normal(rng)) & 0xffff0000u) | bits_of(kt_rng_normal(rng)) >> 16;
    if (v == BF16 || (v == E4M3 && i >= 8)) return bits_of(kt_rng_normal(rng) * 4);
    if (v == E4M3)
        return (uint32_t)kt_rng_u64(rng) & 0xf7f7f7f7u; /* none of them is not a number */
    return (uint32_t)kt_rng_u64(rng);
}

/* Magnitudes of a case of products: pairs of bfloat16 or bytes, then floats. */
static void take_magnitudes(values v, const uint32_t *in, uint32_t *out) {
    const uint32_t short_ones = v == E4M3 ? 0x7f7f7f7fu : 0x7fff7fffu;

    for (int i = 0; i < ROWS * KT_CONFORM_IN; i++)
        out[i] = in[i] & (i % KT_CONFORM_IN < 8 ? short_ones : 0x7fffffffu);
}

static kt_status emulate(const kt_cuda_kernel *kernel, kt_conform_case which, const uint32_t *in,
                         uint32_t *out, kt_err *err) {
    const kt_emulator_options how = {.seed = 5, .lazy = true, .races = true};
    const kt_config config = kt_cuda_initial(kernel);
    const kt_conform p = {in, out, (int32_t)which, 0};
    const kt_launch l = {.name = kernel->name,
                         .entry = kernel->entry[0].emulated,
                         .parameters = &p,
                         .grid_x = BLOCKS,
                         .grid_y = 1,
                         .threads = KT_CONFORM_THREADS,
                         .shared_bytes = KT_CONFORM_SHARED,
                         .constant = config.value};
    return kt_emulate(&l, &how, err);
}

static kt_status run(kt_device *d, const kt_cuda_kernel *kernel, kt_conform_case which,
                     const uint32_t *in, uint32_t *out, kt_err *err) {
    const size_t in_bytes = sizeof *in * ROWS * KT_CONFORM_IN;
    const size_t out_bytes = sizeof *out * ROWS * KT_CONFORM_OUT;
    const kt_config config = kt_cuda_initial(kernel);
    kt_conform p = {.which = (int32_t)which};
    kt_device_launch l = {.grid_x = BLOCKS,
                          .grid_y = 1,
                          .shared_bytes = KT_CONFORM_SHARED,
                          .parameters = &p,
                          .parameter_bytes = sizeof p};
    void *there = NULL, *result = NULL;
    kt_status st = kt_device_code_of(d, kernel, &config, &l.code, err);

    if (st == KT_OK) st = kt_device_alloc(d, in_bytes, &there, err);
    if (st == KT_OK) st = kt_device_alloc(d, out_bytes, &result, err);
    p.in = there;
    p.out = result;
    if (st == KT_OK) st = kt_device_upload(d, KT_STREAM_MAIN, there, in, in_bytes, err);
    if (st == KT_OK) st = kt_device_run(d, KT_STREAM_MAIN, &l, err);
    if (st == KT_OK) st = kt_device_download(d, KT_STREAM_MAIN, out, result, out_bytes, err);
    if (st == KT_OK) st = kt_device_sync(d, NULL, err);
    kt_device_free(d, result);
    kt_device_free(d, there);
    return st;
}

void kt_conform_compare(kt_conform_case which, const uint32_t *got, const uint32_t *want,
                        const uint32_t *magnitude, int n, kt_conform_result *out) {
    for (int i = 0; i < n; i++) {
        const double g = (double)float_of(got[i]), w = (double)float_of(want[i]);
        double bound = (double)cases[which].relative * fabs(w), off = 0;
        out->n_values++;
        if (got[i] == want[i]) continue;
        if (cases[which].is_number && isnan(g) && isnan(w)) continue;
        if (cases[which].magnitudes)
            bound = (double)cases[which].relative * (double)float_of(magnitude[i]);
        if (cases[which].relative > 0) off = fabs(g - w) / bound;
        if (off > out->worst) out->worst = off;
        if (cases[which].relative > 0 && off <= 1) continue; /* not a number is not */
        if (out->n_wrong++ == 0)
            snprintf(out->first, sizeof out->first,
                     "block %d, thread %d, word %d: 0x%08x (%g), the emulator has 0x%08x (%g)",
                     i / KT_CONFORM_OUT / KT_CONFORM_THREADS,
                     i / KT_CONFORM_OUT % KT_CONFORM_THREADS, i % KT_CONFORM_OUT, got[i], g,
                     want[i], w);
    }
}

static const kt_cuda_kernel *find_kernel(void) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, "conformance") == 0)
            return kt_builtin_cuda_kernels[i];
    return NULL;
}

kt_status kt_conform_check(kt_device *d, kt_conform_case which, uint64_t seed,
                           kt_conform_result *out, kt_err *err) {
    const size_t n_in = (size_t)ROWS * KT_CONFORM_IN, n_out = (size_t)ROWS * KT_CONFORM_OUT;
    uint32_t *in = aligned_alloc(256, 2 * n_in * sizeof *in), *magnitudes = in ? in + n_in : NULL;
    uint32_t *got = calloc(3 * n_out, sizeof *got), *want = got + n_out, *sizes = want + n_out;
    const kt_cuda_kernel *kernel = find_kernel();
    kt_status st = KT_OK;
    kt_rng rng;

    *out = (kt_conform_result){.name = cases[which].name};
    if (which == KT_CONFORM_MMA_E4M3 && kt_device_about(d)->target->sm < 89 &&
        strcmp(kt_device_about(d)->class, "cuda") == 0) {
        free(in), free(got);
        return KT_OK; /* it has no such instruction */
    }
    if (!in || !got) st = kt_fail(err, KT_E_NOMEM, "conformance: no memory for its values");
    if (st == KT_OK) {
        kt_rng_seed(&rng, seed * KT_CONFORM_COUNT + which);
        for (size_t i = 0; i < n_in; i++)
            in[i] = draw(cases[which].values, (int)(i % KT_CONFORM_IN), &rng);
        take_magnitudes(cases[which].values, in, magnitudes);
        st = emulate(kernel, which, in, want, err);
    }
    if (st == KT_OK && cases[which].magnitudes) st = emulate(kernel, which, magnitudes, sizes, err);
    if (st == KT_OK) st = run(d, kernel, which, in, got, err);
    if (st == KT_OK) kt_conform_compare(which, got, want, sizes, (int)n_out, out);
    free(in);
    free(got);
    return st;
}
