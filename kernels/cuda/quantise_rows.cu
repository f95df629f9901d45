/* Rows of activations to 8 bits with a float scale per group of inputs or per row.
 *
 * A group's scale is its largest magnitude over 127 (448 for E4M3), and values are rounded to the
 * nearest, halves to even. A group of zeros has scale 0; one with a NaN or an infinity has a scale
 * that is none either, so that what is wrong stays visible. A thread has 4 values side by side: 8
 * lanes make a group of 32 and a warp one of 128. Rows of scales have whole multiples of 128
 * inputs: those of inputs that do not exist are 0.
 *
 * Codes of 4 bits are opened four at once, from the low halves of the bytes of a word and from the
 * high ones (kt_dev_weights.h has their order), and a sum does not mind its order: with
 * KT_A8_INT8_NIBBLES the inputs 8 t + {0, 4, 1, 5} of a group of 32 become its word t, and the
 * inputs 8 t + {2, 6, 3, 7} its word 4 + t.
 *
 *   of_f32, of_bf16, of_swiglu   grid (rows, 1)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/a8_calls.h"
#include "kernels/cuda/kt_dev_weights.h"

#define WARPS KT_CONSTANT(0)
#define FORMAT KT_CONSTANT(1)
#define GROUP KT_CONSTANT(2) /* 0 = the row */
#define THREADS (32 * WARPS)
#define LARGEST (FORMAT == KT_A8_E4M3 ? 448.0f : 127.0f)
KT_REQUIRE(GROUP == 0 || GROUP == 32 || GROUP == 128, "groups");
enum { SOURCE_F32, SOURCE_BF16, SOURCE_SWIGLU };

/* Values i to i + 3 of a row. */
KT_DEVICE void load(const kt_quantise_rows *p, int source, int64_t row, int i, float *v) {
    const int64_t at = row * p->ldx + i;

    if (source == SOURCE_BF16) {
        const uint32_t *x = (const uint32_t *)((const uint16_t *)p->x + at);
        v[0] = kt_bf16_low(x[0]), v[1] = kt_bf16_high(x[0]);
        v[2] = kt_bf16_low(x[1]), v[3] = kt_bf16_high(x[1]);
        return;
    }
    KT_UNROLL
    for (int j = 0; j < 4; j++) v[j] = ((const float *)p->x)[at + j];
    if (source == SOURCE_F32) return;
    KT_UNROLL
    for (int j = 0; j < 4; j++) v[j] = kt_silu(v[j]) * p->up[at + j];
}

KT_DEVICE float magnitude(const float *v) {
    float most = 0;
    KT_UNROLL
    for (int j = 0; j < 4; j++) most = kt_max_nan(most, v[j] < 0 ? -v[j] : v[j]);
    return most;
}

KT_DEVICE uint32_t codes_of(const float *v, float inverse) {
    uint32_t q = 0;

    KT_UNROLL
    for (int j = 0; j < 4; j++)
        q |= (FORMAT == KT_A8_E4M3 ? kt_e4m3(v[j] * inverse)
                                   : (uint32_t)kt_round(v[j] * inverse) & 0xffu)
             << 8 * j;
    return q;
}

/* Lanes 2 t and 2 t + 1 have inputs 8 t to 8 t + 7 of a group: they make words t and 4 + t. */
KT_DEVICE uint32_t nibble_order(uint32_t q, int i, int *at) {
    const uint32_t other = kt_warp_from(q, kt_lane() ^ 1);

    *at = i / 32 * 32 + i % 32 / 8 * 4 + (i & 4) * 4;
    if (i & 4) return kt_bytes(other, q, 0x7362);
    return kt_bytes(q, other, 0x5140);
}

/* Below 1e-30 a group counts as zeros: its inverse would not be a float. */
KT_DEVICE float scale_of(float most) {
    return most < 1e-30f ? 0.0f : most / LARGEST;
}

KT_DEVICE float inverse_of(float most) {
    return most < 1e-30f ? 0.0f : LARGEST / most;
}

/* The largest magnitude of a whole row, for every thread. */
KT_DEVICE float row_magnitude(const kt_quantise_rows *p, int source, int64_t row) {
    float most = 0, v[4];

    for (int i = kt_thread() * 4; i < p->k; i += THREADS * 4) {
        load(p, source, row, i, v);
        most = kt_max_nan(most, magnitude(v));
    }
    most = kt_warp_max_nan(most, 32);
    if (kt_lane() == 0) kt_set_shared_u32((uint32_t)kt_warp() * 4, kt_bits_float(most));
    kt_sync();
    KT_UNROLL
    for (int w = 0; w < WARPS; w++)
        most = kt_max_nan(most, kt_float_bits(kt_shared_u32((uint32_t)w * 4)));
    return most;
}

KT_DEVICE void quantise(const kt_quantise_rows *p, int source) {
    const int64_t to = kt_block_x(), row = p->of ? p->of[to] : to;
    const int groups = GROUP ? (p->k + 127) / 128 * (128 / (GROUP + !GROUP)) : 1;
    float most = GROUP ? 0.0f : row_magnitude(p, source, row);

    if (!GROUP && kt_thread() == 0) p->scale[to] = scale_of(most);
    for (int first = kt_warp() * 128; first < p->k; first += WARPS * 128) {
        const int i = first + kt_lane() * 4;
        float v[4] = {0, 0, 0, 0};
        uint32_t code;
        int at = i;
        if (i < p->k) load(p, source, row, i, v);
        if (GROUP) most = kt_warp_max_nan(magnitude(v), GROUP / 4);
        code = codes_of(v, inverse_of(most));
        if (FORMAT == KT_A8_INT8_NIBBLES) code = nibble_order(code, i, &at);
        if (GROUP && i % (GROUP + !GROUP) == 0)
            p->scale[to * groups + i / (GROUP + !GROUP)] = scale_of(most);
        if (i >= p->k) continue;
        *(uint32_t *)(p->out + to * p->k + at) = code;
    }
}

KT_DEVICE void of_f32(const kt_quantise_rows *p) {
    quantise(p, SOURCE_F32);
}

KT_DEVICE void of_bf16(const kt_quantise_rows *p) {
    quantise(p, SOURCE_BF16);
}

KT_DEVICE void of_swiglu(const kt_quantise_rows *p) {
    quantise(p, SOURCE_SWIGLU);
}

KT_ENTRY(quantise_rows_f32, kt_quantise_rows, of_f32, THREADS)
KT_ENTRY(quantise_rows_bf16, kt_quantise_rows, of_bf16, THREADS)
KT_ENTRY(quantise_rows_swiglu, kt_quantise_rows, of_swiglu, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t warps_values[] = {1, 2, 4, 8},
                     format_values[] = {KT_A8_INT8, KT_A8_INT8_NIBBLES, KT_A8_E4M3},
                     group_values[] = {0, 32, 128};
static const kt_param params[] = {
    {"warps", warps_values, 4, 4}, {"format", format_values, 3, 0}, {"group", group_values, 3, 32}};

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)config, (void)target;
    return NULL;
}

static int threads(const kt_config *config) {
    return 32 * config->value[0];
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    (void)k;
    return (size_t)config->value[0] * 4;
}

KT_CUDA_KERNEL(quantise_rows) = {
    .name = "quantise_rows",
    .about = "rows of activations to INT8 or E4M3 with scales per group or row",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 3,
    .entry_count = 3,
    .entry = {{"quantise_rows_f32", quantise_rows_f32},
              {"quantise_rows_bf16", quantise_rows_bf16},
              {"quantise_rows_swiglu", quantise_rows_swiglu}},
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
