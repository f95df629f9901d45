/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/row_code.h"

#include <string.h>

#include "base/err.h"

kt_status kt_row_code_find(kt_device_step *s, const char *name, const int32_t *constant,
                           kt_row_code *out, kt_err *err) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++) {
        const kt_cuda_kernel *k = kt_builtin_cuda_kernels[i];
        if (strcmp(k->name, name) != 0) continue;
        *out = (kt_row_code){.kernel = k, .config = kt_cuda_initial(k)};
        if (constant) out->config.value[0] = *constant;
        out->threads = k->threads(&out->config);
        return kt_device_step_code(s, name, &out->config, &out->code, err);
    }
    return kt_fail(err, KT_E_INTERNAL, "this build has no device kernel '%s'", name);
}
