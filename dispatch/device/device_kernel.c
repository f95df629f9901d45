/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/device/device_kernel.h"

#include <limits.h>
#include <string.h>

#include "base/err.h"
#include "kernels/cuda/a8_calls.h"
#include "kernels/cuda/kt_dev_weights.h"

enum { FINE = 32, WIDE = 128, QUANTISE_WARPS = 4 };

kt_status kt_device_kernel_make(kt_device *d, const kt_device_choice *c, kt_device_kernel *out,
                                kt_err *err) {
    out->kernel = c->kernel;
    out->config = c->config;
    return kt_device_code_of(d, c->kernel, &out->config, &out->code, err);
}

kt_status kt_device_kernel_named(kt_device *d, const char *name, const int32_t *values,
                                 int n_values, kt_device_kernel *out, kt_err *err) {
    kt_device_choice c = {.kernel = NULL};

    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, name) == 0)
            c.kernel = kt_builtin_cuda_kernels[i];
    if (!c.kernel) return kt_fail(err, KT_E_INTERNAL, "this build has no kernel %s", name);
    c.config = kt_cuda_initial(c.kernel);
    for (int i = 0; i < n_values; i++) c.config.value[i] = values[i];
    return kt_device_kernel_make(d, &c, out, err);
}

kt_status kt_device_kernel_run(kt_device *d, const kt_device_kernel *k, int entry, int64_t grid_x,
                               int64_t grid_y, int64_t size, const void *call, size_t call_bytes,
                               kt_err *err) {
    const kt_device_launch l = {.code = k->code,
                                .entry = entry,
                                .grid_x = (int)grid_x,
                                .grid_y = (int)grid_y,
                                .shared_bytes = k->kernel->shared_bytes(&k->config, size),
                                .parameters = call,
                                .parameter_bytes = call_bytes};

    if (grid_x > INT_MAX || grid_y > INT_MAX)
        return kt_fail(err, KT_E_UNSUPPORTED, "%s: a grid of %lld x %lld blocks", k->kernel->name,
                       (long long)grid_x, (long long)grid_y);
    return kt_device_run(d, KT_STREAM_MAIN, &l, err);
}

kt_device_encoding kt_device_encoding_of(kt_weight_format weights) {
    const kt_weight_spec s = kt_weight_spec_of((int)weights);
    kt_device_encoding e = {.format = KT_A8_INT8, .group = FINE};

    if (s.low == 4) e.format = KT_A8_INT8_NIBBLES;
    if (s.values == KT_CODE_E4M3) e.format = KT_A8_E4M3;
    if (s.group == 0) e.group = 0;
    if (s.group == WIDE && s.low == 8) e.group = WIDE;
    return e;
}

int64_t kt_device_encoding_scales(kt_device_encoding e, int64_t k) {
    return e.group ? (k + WIDE - 1) / WIDE * (WIDE / e.group) : 1;
}

kt_status kt_device_quantiser_make(kt_device *d, kt_device_encoding e, kt_device_kernel *out,
                                   kt_err *err) {
    const int32_t values[] = {QUANTISE_WARPS, e.format, e.group};

    return kt_device_kernel_named(d, "quantise_rows", values, 3, out, err);
}
