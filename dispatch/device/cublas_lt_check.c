/* Is what cuBLASLt computes a product? SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "base/rng.h"
#include "dispatch/device/cublas_lt.h"

/* All different, so that no matrix passes for another one's transpose; multiples of 16, which 8-bit
 * products want. */
enum { ROWS = 48, OUTPUTS = 80, INPUTS = 128 };

/* One product on both sides. */
typedef struct trial {
    kt_lt *lt;
    kt_device *d;
    kt_lt_kind kind;
    uint8_t a[ROWS * INPUTS * 2], w[OUTPUTS * INPUTS * 2]; /* as the device has them */
    double a_value[ROWS * INPUTS], w_value[OUTPUTS * INPUTS];
    uint8_t c[ROWS * OUTPUTS * 4];
    void *on_device[3];
} trial;

static void draw(kt_lt_kind kind, kt_rng *rng, int count, uint8_t *out, double *value) {
    for (int i = 0; i < count; i++) {
        const float x = kt_rng_normal(rng);
        if (kind == KT_LT_E4M3) {
            out[i] = kt_f32_to_f8e4m3(x);
            value[i] = (double)kt_f8e4m3_to_f32(out[i]);
        } else if (kind == KT_LT_INT8) {
            const int8_t code = (int8_t)((int)kt_rng_below(rng, 255) - 127);
            memcpy(out + i, &code, 1);
            value[i] = code;
        } else {
            const uint16_t code = kt_f32_to_bf16(x);
            memcpy(out + 2 * i, &code, 2);
            value[i] = (double)kt_bf16_to_f32(code);
        }
    }
}

static double number_of(const trial *t, int i) {
    const uint8_t *at = t->c + (size_t)i * kt_lt_out_bytes(t->kind);
    uint16_t half;
    int32_t whole;
    float single;

    if (t->kind == KT_LT_INT8) {
        memcpy(&whole, at, sizeof whole);
        return whole;
    }
    if (t->kind == KT_LT_BF16_F32) {
        memcpy(&single, at, sizeof single);
        return (double)single;
    }
    memcpy(&half, at, sizeof half);
    return (double)kt_bf16_to_f32(half);
}

/* Relative, of all outputs together. */
static double error_of(const trial *t) {
    double error = 0, all = 0;

    for (int r = 0; r < ROWS; r++)
        for (int n = 0; n < OUTPUTS; n++) {
            double want = 0, off;
            for (int k = 0; k < INPUTS; k++)
                want += t->a_value[r * INPUTS + k] * t->w_value[n * INPUTS + k];
            off = number_of(t, r * OUTPUTS + n) - want;
            error += off * off;
            all += want * want;
        }
    return sqrt(error / all);
}

/* Integers are exact. Floats: 2^-9 is a rounding to bfloat16, 2^-24 one to float; E4M3 is summed
 * with 14 bits where sums are fast. */
static double limit_of(kt_lt_kind kind) {
    return kind == KT_LT_INT8 ? 0 : kind == KT_LT_BF16_F32 ? 1e-5 : 5e-3;
}

static kt_status run_way(trial *t, const kt_lt_product *p, int way, kt_err *err) {
    const size_t bytes = (size_t)(ROWS * OUTPUTS) * kt_lt_out_bytes(t->kind);
    double error;

    memset(t->c, 0xff, bytes);
    KT_TRY(kt_device_upload(t->d, KT_STREAM_MAIN, t->on_device[2], t->c, bytes, err));
    KT_TRY(kt_lt_product_put(p, way, t->on_device[0], t->on_device[1], t->on_device[2], err));
    KT_TRY(kt_device_download(t->d, KT_STREAM_MAIN, t->c, t->on_device[2], bytes, err));
    KT_TRY(kt_device_sync(t->d, NULL, err));
    error = error_of(t);
    if (error <= limit_of(t->kind)) return KT_OK;
    return kt_fail(err, KT_E_MISMATCH, "%s: a product of %s is off by %.3g, expected at most %.2g",
                   kt_lt_name(t->lt), kt_lt_kind_name(t->kind), error, limit_of(t->kind));
}

static kt_status put_operands(trial *t, kt_err *err) {
    const size_t in = kt_lt_in_bytes(t->kind), out = kt_lt_out_bytes(t->kind);
    const size_t bytes[] = {ROWS * INPUTS * in, OUTPUTS * INPUTS * in, ROWS * OUTPUTS * out};
    const void *from[] = {t->a, t->w};

    for (int i = 0; i < 3; i++) KT_TRY(kt_device_alloc(t->d, bytes[i], &t->on_device[i], err));
    for (int i = 0; i < 2; i++)
        KT_TRY(kt_device_upload(t->d, KT_STREAM_MAIN, t->on_device[i], from[i], bytes[i], err));
    return kt_device_sync(t->d, NULL, err);
}

/* A way that cannot run says so when it is asked for a product, and is never taken then: it is
 * enough that one runs, and all that run are right. */
static kt_status run_ways(trial *t, const kt_lt_product *p, kt_err *err) {
    kt_status last = KT_OK;
    int n_right = 0;

    for (int i = 0; i < kt_lt_product_ways(p); i++) {
        const kt_status st = run_way(t, p, i, err);
        if (st == KT_E_MISMATCH) return st;
        KT_TRY(kt_device_sync(t->d, NULL, err));
        if (st != KT_OK) last = st;
        n_right += st == KT_OK;
    }
    return n_right ? KT_OK : last;
}

kt_status kt_lt_check(kt_lt *lt, kt_lt_kind kind, kt_err *err) {
    trial *t = calloc(1, sizeof *t);
    kt_lt_product *p = NULL;
    kt_status st;
    kt_rng rng;

    if (!t) return kt_fail(err, KT_E_NOMEM, "no memory to check a product");
    t->lt = lt;
    t->d = kt_lt_device(lt);
    t->kind = kind;
    kt_rng_seed(&rng, 1);
    draw(kind, &rng, ROWS * INPUTS, t->a, t->a_value);
    draw(kind, &rng, OUTPUTS * INPUTS, t->w, t->w_value);
    st = kt_lt_product_make(lt, kind, ROWS, OUTPUTS, INPUTS, &p, err);
    if (st == KT_OK) st = put_operands(t, err);
    if (st == KT_OK) st = run_ways(t, p, err);
    for (int i = 0; i < 3; i++) kt_device_free(t->d, t->on_device[i]);
    kt_lt_product_drop(p);
    free(t);
    return st;
}
