/* The rows of the suite "gpu", and what becomes of them. SPDX-License-Identifier: Apache-2.0 */
#include "tuner/session/gpu_suite.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "tuner/session/gpu_suite_impl.h"

/* Qwen3-30B-A3B; DeepSeek-V3; a part of the latter's experts, which have many rows each. */
#define QWEN .n = 768, .k = 2048, .experts = 128, .topk = 8
#define DEEPSEEK .n = 2048, .k = 7168, .experts = 256, .topk = 8
#define WIDE .n = 2048, .k = 7168, .experts = 32, .topk = 8

/* One token, and eight. */
#define DECODE(text, format, shape)                                                  \
    {"decode_" #text "_1", KT_GPU_OF_COPY, format, shape, .rows = 1, .bar = 0.75}, { \
        "decode_" #text "_8", KT_GPU_OF_COPY, format, shape, .rows = 8, .bar = 0.75  \
    }

/* A query projection, and the head of Qwen3-30B-A3B, of one row. */
#define DENSE(text, format, outputs) \
    { text, KT_GPU_OF_COPY, format, .n = outputs, .k = 2048, .rows = 1 }

#define BF16_BARS .bar = 0.75, .wgmma_bar = 0.85
#define PREFILL(text, format, what, tokens, shape, ...) \
    { "prefill_" #text "_" #tokens, what, format, shape, .rows = tokens, __VA_ARGS__ }
/* INT4 meets the BF16 layer that was raced for before it. */
#define PREFILL_OF(tokens)                                                                \
    PREFILL(bf16, KT_W_BF16, KT_GPU_OF_PRODUCTS, tokens, QWEN, BF16_BARS),                \
        PREFILL(fp8_block, KT_W_FP8_B128, KT_GPU_OF_PRODUCTS, tokens, QWEN, .bar = 0.70), \
        PREFILL(int4_g32, KT_W_INT4_G32, KT_GPU_OVER_BF16, tokens, QWEN, .bar = 1.5),     \
        PREFILL(q4_k, KT_W_Q4_K, KT_GPU_OF_PRODUCTS, tokens, QWEN, .bar = 0)

const kt_gpu_spec kt_gpu_specs[] = {
    {"copy", .kind = KT_GPU_COPY},
    {"peak_bf16", .kind = KT_GPU_PEAK, .weights = KT_W_BF16},
    {"peak_fp8", .kind = KT_GPU_PEAK, .weights = KT_W_FP8_B128},
    {"peak_int8", .kind = KT_GPU_PEAK, .weights = KT_W_INT8_CHANNEL},
    DECODE(int4_g32, KT_W_INT4_G32, QWEN),
    DECODE(fp8_block, KT_W_FP8_B128, QWEN),
    DECODE(bf16, KT_W_BF16, QWEN),
    DECODE(int8, KT_W_INT8_CHANNEL, QWEN),
    DECODE(q4_k, KT_W_Q4_K, QWEN),
    PREFILL_OF(512),
    PREFILL_OF(2048),
    PREFILL_OF(8192),
    PREFILL(wide_bf16, KT_W_BF16, KT_GPU_OF_PRODUCTS, 4096, WIDE, BF16_BARS),
    PREFILL(wide_fp8_block, KT_W_FP8_B128, KT_GPU_OF_PRODUCTS, 4096, WIDE, .bar = 0.70),
    PREFILL(wide_int4_g32, KT_W_INT4_G32, KT_GPU_OVER_BF16, 4096, WIDE, .bar = 1.5),
    DECODE(deepseek_int4_g32, KT_W_INT4_G32, DEEPSEEK),
    DECODE(deepseek_fp8_block, KT_W_FP8_B128, DEEPSEEK),
    DENSE("dense_int4_g32", KT_W_INT4_G32, 4096),
    DENSE("dense_int8", KT_W_INT8_CHANNEL, 4096),
    DENSE("dense_bf16", KT_W_BF16, 4096),
    DENSE("head_int8", KT_W_INT8_CHANNEL, 151936),
    DENSE("head_bf16", KT_W_BF16, 151936),
};
const int kt_gpu_spec_count = sizeof kt_gpu_specs / sizeof *kt_gpu_specs;

bool kt_gpu_needs_library(const kt_gpu_spec *spec) {
    return spec->kind == KT_GPU_PEAK || spec->kind == KT_GPU_OF_PRODUCTS ||
           spec->kind == KT_GPU_OVER_BF16;
}

void kt_gpu_row_name(const kt_gpu_spec *spec, kt_suite_row *row) {
    static const char *const units[] = {[KT_GPU_COPY] = "GB/s",
                                        [KT_GPU_PEAK] = "Top/s",
                                        [KT_GPU_OF_COPY] = "of copy",
                                        [KT_GPU_OF_PRODUCTS] = "of products or copy",
                                        [KT_GPU_OVER_BF16] = "of the rate in BF16"};

    memset(row, 0, sizeof *row);
    snprintf(row->name, sizeof row->name, "%s", spec->name);
    snprintf(row->unit, sizeof row->unit, "%s", units[spec->kind]);
    row->bar = spec->bar;
    row->is_gbs = spec->kind == KT_GPU_COPY || spec->kind == KT_GPU_OF_COPY;
}

double kt_gpu_bar_of(const kt_gpu_spec *spec, const kt_cuda_kernel *kernel) {
    const uint32_t warpgroups = 1u << KT_OPCODE_HGMMA | 1u << KT_OPCODE_QGMMA;

    return spec->wgmma_bar > 0 && kernel->needs_opcodes & warpgroups ? spec->wgmma_bar : spec->bar;
}

double kt_gpu_bar_over_bf16(double bar, double int8_rate, double bf16_rate) {
    return int8_rate >= bar * bf16_rate ? bar : 0;
}

void kt_gpu_row_settle(kt_suite_row *row, kt_status status, const kt_err *why) {
    row->ok = status == KT_OK && row->measured >= row->bar;
    row->skipped = status == KT_E_UNSUPPORTED;
    if (status != KT_OK) snprintf(row->note, sizeof row->note, "%.127s", why->message);
}

kt_status kt_gpu_suite_run(const kt_gpu_options *o, kt_suite_row rows[KT_SUITE_ROWS], int *n_rows,
                           kt_err *err) {
    kt_gpu_plan plan = {.o = o};
    double seconds;

    *n_rows = 0;
    for (int i = 0; i < kt_gpu_spec_count; i++)
        if (!o->rows || fnmatch(o->rows, kt_gpu_specs[i].name, 0) == 0)
            plan.spec[plan.n++] = &kt_gpu_specs[i];
    if (plan.n == 0)
        return kt_fail(err, KT_E_INVALID, "suite gpu: no row matches '%.60s'", o->rows);
    seconds = o->seconds > 0 ? o->seconds : KT_GPU_SUITE_ROW_SECONDS * plan.n;
    plan.end_ns = kt_clock_ns() + (int64_t)(seconds * 1e9);
    return kt_gpu_suite_in_child(&plan, rows, n_rows, err);
}
