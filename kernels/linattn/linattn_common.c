/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/linattn/linattn_common.h"

#include <math.h>

#include "base/err.h"

void kt_delta_rates(const kt_delta_call *call, int64_t head, int64_t row, float *beta, float *g) {
    float b = call->b[row * call->ldba + head];
    float x = call->a[row * call->ldba + head] + call->dt_bias[head];

    *beta = 1.0f / (1.0f + expf(-b));
    *g = call->decay[head] * (fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))));
}

kt_status kt_conv_accepts(const kt_problem *p, int lanes, kt_err *why) {
    if (p->k < 1 || p->k > KT_CONV_TAPS)
        return kt_fail(why, KT_E_UNSUPPORTED, "convolution: %lld taps, expected 1 to %d",
                       (long long)p->k, KT_CONV_TAPS);
    if (p->n < 1 || p->n % lanes != 0)
        return kt_fail(why, KT_E_UNSUPPORTED,
                       "convolution: %lld channels, expected a multiple of %d", (long long)p->n,
                       lanes);
    return KT_OK;
}

kt_status kt_delta_accepts(const kt_problem *p, int lanes, kt_err *why) {
    if (p->n < 1 || p->kv_heads < 1 || p->n % p->kv_heads != 0)
        return kt_fail(why, KT_E_UNSUPPORTED,
                       "delta rule: %lld value heads over %lld key heads: expected a whole number "
                       "of value heads per key head",
                       (long long)p->n, (long long)p->kv_heads);
    if (p->k < 1 || p->v < 1 || p->v % lanes != 0)
        return kt_fail(why, KT_E_UNSUPPORTED,
                       "delta rule: keys of %lld and values of %lld, expected 1 or more and a "
                       "multiple of %d",
                       (long long)p->k, (long long)p->v, lanes);
    return KT_OK;
}
