/* Every FP8 variant and all 256 codes: products are exact, codes and exponents of NaN give NaN.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/numeric.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/p64.h"
#include "tests/kernels/variant_walk.h"
#include "tests/support/skip.h"

#define CODES 256
#define INPUTS 160 /* one block of 128 and a part of one */
#define GROUPS (INPUTS / 32)
#define FP8 (1u << KT_W_FP8_B128 | 1u << KT_W_FP8_CHANNEL | 1u << KT_W_MXFP8)
#define ROWS 130 /* more than a tile of many rows takes */

static const int64_t rows[] = {1, 2, 3, 4, 5, 6, 7, 12, 16, 17, 48, 64, ROWS};

/* Panel row c has code c at one input and zeros elsewhere. */
static int64_t place_of(int code) {
    return (code * 7 + 3) % INPUTS;
}

/* Every second row ends in numbers from 2^16 on, which scaled codes would take to infinity. */
static float activation(int64_t row, int64_t i) {
    const float large = row % 2 == 0 && i >= 128 ? 0x1p18f : 1.0f;
    return (float)(1 + (row * 13 + i * 5) % 7) * ((row + i) % 2 ? 0.25f : -0.25f) * large;
}

typedef struct call_memory {
    uint8_t codes[CODES * INPUTS];
    float scales[CODES]; /* of rows or, in order of memory, of 2 x 2 blocks */
    uint8_t exponents[CODES * GROUPS];
    void *packed, *a, *scratch;
    float *c;
} call_memory;

static void *lines(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
    cr_assert_not_null(p);
    return p;
}

/* A group of zeros whose exponent says NaN, in rows of a few codes. */
static bool has_nan_exponent(int code) {
    return code % 64 == 17;
}

static double scale_of(kt_weight_format format, const call_memory *x, int code) {
    if (format == KT_W_MXFP8)
        return has_nan_exponent(code)
                   ? NAN
                   : ldexp(1, x->exponents[code * GROUPS + place_of(code) / 32] - 127);
    return format == KT_W_FP8_CHANNEL ? x->scales[code]
                                      : x->scales[code / 128 * 2 + place_of(code) / 128];
}

/* Of the row with this code, all of whose inputs have one. */
static double largest_scale(kt_weight_format format, const call_memory *x, int code) {
    const float *blocks = x->scales + code / 128 * 2;
    int most = 0;

    if (format == KT_W_FP8_CHANNEL) return fabs(x->scales[code]);
    if (format == KT_W_FP8_B128) return fmax(fabs(blocks[0]), fabs(blocks[1]));
    for (int g = 0; g < GROUPS; g++)
        if (x->exponents[code * GROUPS + g] > most) most = x->exponents[code * GROUPS + g];
    return ldexp(1, most - 127);
}

static void check(const kt_variant *v, const kt_problem *q, const kt_config *config,
                  const call_memory *x) {
    kt_problem of_call = *q;
    kt_gemm_call call = {.problem = &of_call,
                         .config = config,
                         .weights = x->packed,
                         .a = x->a,
                         .a_stride = kt_act_row_bytes(q->acts, INPUTS),
                         .m = q->m,
                         .panel_end = CODES / 64,
                         .c = x->c,
                         .ldc = CODES,
                         .scratch = x->scratch};
    of_call.m = 0;
    v->gemm(&call);
    for (int64_t i = 0; i < q->m; i++) {
        double inputs = 0;
        for (int64_t j = 0; j < INPUTS; j++) inputs += fabs(activation(i, j));
        for (int code = 0; code < CODES; code++) {
            const double got = x->c[i * CODES + code];
            const double want = kt_f8e4m3_to_f32((uint8_t)code) * scale_of(q->weights, x, code) *
                                activation(i, place_of(code));
            /* Tiles that open weights take a zero for 2^-26 of the largest (tiles_lines.h). */
            const double zeros = v->numerics == KT_NUM_OPENED ? 0x1p-26 * 512 * inputs : 0;
            const double lost = zeros * largest_scale(q->weights, x, code);
            cr_assert(isnan(want) ? isnan(got) : fabs(got - want) <= lost,
                      "%s %s m=%lld row %lld code %02x: %g, want %g", v->name,
                      kt_weight_format_name(q->weights), (long long)q->m, (long long)i, code, got,
                      want);
        }
    }
}

static int all_rows(const kt_variant *v, kt_weight_format format, kt_act_format acts,
                    const kt_config *config, call_memory *x) {
    int checked = 0;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kt_problem q = {.op = KT_OP_GEMM,
                        .weights = format,
                        .acts = acts,
                        .m = rows[i],
                        .n = CODES,
                        .k = INPUTS};
        const kt_matrix w = {format, CODES, INPUTS, x->codes,
                             format == KT_W_MXFP8 ? (const void *)x->exponents : x->scales};
        if (v->accepts && v->accepts(&q, config, NULL) != KT_OK) continue;
        x->packed = lines(v->packed_bytes(&q));
        x->scratch = lines(v->workspace_bytes ? v->workspace_bytes(&q, config) : 0);
        v->pack_gemm(&q, &w, x->packed);
        check(v, &q, config, x);
        free(x->packed);
        free(x->scratch);
        checked++;
    }
    return checked;
}

static void fill(call_memory *x, kt_act_format acts) {
    const size_t stride = kt_act_row_bytes(acts, INPUTS);

    memset(x, 0, sizeof *x);
    for (int code = 0; code < CODES; code++) {
        x->codes[code * INPUTS + place_of(code)] = (uint8_t)code;
        for (int g = 0; g < GROUPS; g++) {
            const int at = code * GROUPS + g;
            x->exponents[at] = (uint8_t)(110 + at * 5 % 31);
            if (has_nan_exponent(code) && g == (place_of(code) / 32 + 1) % GROUPS)
                x->exponents[at] = 255;
        }
        x->scales[code] = code % 3 == 0 ? 2.0f : code % 3 == 1 ? -0.5f : 0.125f;
    }
    x->a = lines(ROWS * stride);
    x->c = lines(ROWS * CODES * sizeof(float));
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t j = 0; j < INPUTS; j++) {
            char *row = (char *)x->a + (size_t)i * stride;
            if (acts == KT_A_BF16)
                ((uint16_t *)(void *)row)[j] = kt_f32_to_bf16(activation(i, j));
            else
                ((float *)(void *)row)[j] = activation(i, j);
        }
}

ParameterizedTestParameters(fp8_codes, every_code_is_exact_and_nan_stays_nan) {
    size_t count;
    size_t *index = variants_of(KT_OP_GEMM, &count);
    return cr_make_param_array(size_t, index, count);
}

ParameterizedTest(size_t *index, fp8_codes, every_code_is_exact_and_nan_stays_nan, .timeout = 60) {
    const kt_variant *v = kt_builtin_variants[*index];
    call_memory *x = malloc(sizeof *x);
    int checked = 0;

    if (!(v->weights & FP8)) {
        free(x);
        return;
    }
    kt_skip_without(v);
    cr_assert_not_null(x);
    for (int w = 1; w < KT_W_COUNT; w++)
        for (int a = 1; a < KT_A_COUNT; a++) {
            if (!(FP8 & KT_W_BIT(w))) continue;
            if (!(v->weights & KT_W_BIT(w)) || !(v->acts & 1u << a)) continue;
            if (a != KT_A_BF16 && a != KT_A_F32) continue;
            fill(x, (kt_act_format)a);
            for (int64_t c = 0; c < config_count(v); c++) {
                const kt_config config = config_at(v, c);
                checked += all_rows(v, (kt_weight_format)w, (kt_act_format)a, &config, x);
            }
            free(x->a);
            free(x->c);
        }
    free(x);
    cr_assert_gt(checked, 0, "%s accepted no call", v->name);
}
