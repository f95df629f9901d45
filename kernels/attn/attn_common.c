/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/attn_common.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"

float kt_attn_item(kt_weight_format cache, const void *rows, int64_t index) {
    if (cache == KT_W_INT8_CHANNEL) return ((const int8_t *)rows)[index];
    if (cache == KT_W_FP8_CHANNEL) return kt_f8e4m3_to_f32(((const uint8_t *)rows)[index]);
    return kt_bf16_to_f32(((const uint16_t *)rows)[index]);
}

/* Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the low bits. */
static int8_t round_code(float x) {
    const float magic = 0x1.8p23f;
    float sum = x + magic;
    uint32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    return (int8_t)(bits & 0xff);
}

static bool is_spoilt(const float *x, int64_t d) {
    bool spoilt = false;
    for (int64_t i = 0; i < d; i++) spoilt |= x[i] != x[i];
    return spoilt;
}

/* Rows below 2^-100 are zeros to any model and keep the division in range. */
void kt_attn_store(kt_weight_format cache, const float *x, int64_t d, void *row, float *scale) {
    float largest = 0.0f, top = cache == KT_W_INT8_CHANNEL ? 127.0f : 448.0f, up;

    if (!kt_attn_has_scales(cache)) {
        for (int64_t i = 0; i < d; i++) ((uint16_t *)row)[i] = kt_f32_to_bf16(x[i]);
        return;
    }
    for (int64_t i = 0; i < d; i++) {
        float size = fabsf(x[i]);
        largest = size > largest ? size : largest;
    }
    up = largest >= 0x1p-100f ? top / largest : 0.0f;
    *scale = largest >= 0x1p-100f ? largest / top : 0.0f;
    if (cache == KT_W_INT8_CHANNEL && is_spoilt(x, d)) *scale = NAN;
    if (cache == KT_W_INT8_CHANNEL)
        for (int64_t i = 0; i < d; i++) ((int8_t *)row)[i] = round_code(x[i] * up);
    else
        for (int64_t i = 0; i < d; i++) ((uint8_t *)row)[i] = kt_f32_to_f8e4m3(x[i] * up);
}

/* Compiled once, for the baseline: every variant folds with these very instructions. One of the two
 * factors is exp(0) = 1. */
void kt_attn_fold(float *sum, float *sum_stats, const float *o, const float *o_stats,
                  int64_t head_dim) {
    float top = sum_stats[0] > o_stats[0] ? sum_stats[0] : o_stats[0];
    float keep = expf(sum_stats[0] - top), add = expf(o_stats[0] - top);

    for (int64_t i = 0; i < head_dim; i++) sum[i] = sum[i] * keep + o[i] * add;
    sum_stats[1] = sum_stats[1] * keep + o_stats[1] * add;
    sum_stats[0] = top;
}

/* A sink above all scores keeps the exponentials below 1. */
float kt_attn_factor(const float *sum_stats, const float *sink) {
    float top, keep;

    if (!sink) return 1.0f / sum_stats[1];
    top = *sink > sum_stats[0] ? *sink : sum_stats[0];
    keep = expf(sum_stats[0] - top);
    return keep / (sum_stats[1] * keep + expf(*sink - top));
}

void kt_attn_finish(float *sum, const float *sum_stats, int64_t head_dim, const float *sink) {
    const float r = kt_attn_factor(sum_stats, sink);

    for (int64_t i = 0; i < head_dim; i++) sum[i] *= r;
}

void kt_attn_merge(const float *o, int64_t ldo, const float *stats, int64_t ldstats,
                   int64_t n_chunks, int64_t head_dim, const float *sink, float *out) {
    float total[2] = {stats[0], stats[1]};
    memcpy(out, o, (size_t)head_dim * sizeof *out);
    for (int64_t c = 1; c < n_chunks; c++)
        kt_attn_fold(out, total, o + c * ldo, stats + c * ldstats, head_dim);
    kt_attn_finish(out, total, head_dim, sink);
}

kt_status kt_attn_accepts(const kt_problem *p, const kt_config *config, kt_err *why) {
    (void)config;
    if (p->n < 1 || p->k < 1 || p->kv_heads < 1 || p->n % p->kv_heads != 0)
        return kt_fail(why, KT_E_UNSUPPORTED,
                       "attention: %lld query heads of size %lld over %lld kv heads: expected a "
                       "whole number of query heads per kv head",
                       (long long)p->n, (long long)p->k, (long long)p->kv_heads);
    if (p->v < 0)
        return kt_fail(why, KT_E_UNSUPPORTED,
                       "attention: value heads of size %lld, expected 0 (as keys) or more",
                       (long long)p->v);
    if (p->window < 0)
        return kt_fail(why, KT_E_UNSUPPORTED,
                       "attention: window of %lld keys, expected 0 (all) or more",
                       (long long)p->window);
    return KT_OK;
}
