/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/row_code.h"

#include <string.h>

#include "base/err.h"

enum { SCORES = 0 };                 /* entry of router.cu */
enum { WARPS = 1, TOKENS, EXPERTS }; /* of its config */

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

kt_status kt_score_code_find(kt_device_step *s, bool is_bf16, kt_score_code *out, kt_err *err) {
    const int32_t format = is_bf16;

    KT_TRY(kt_row_code_find(s, "router", &format, &out->many, err));
    out->few = out->many;
    out->few.config.value[TOKENS] = out->few.config.value[EXPERTS] = 1;
    return kt_device_step_code(s, "router", &out->few.config, &out->few.code, err);
}

const kt_row_code *kt_score_code_for(const kt_score_code *code, int64_t rows) {
    return rows <= code->many.config.value[TOKENS] / 2 ? &code->few : &code->many;
}

kt_status kt_score_code_put(kt_device_step *s, const kt_score_code *code,
                            const kt_router_scores *call, kt_err *err) {
    const kt_row_code *c = kt_score_code_for(code, call->rows);
    const int32_t *v = c->config.value;

    return kt_device_put(s, c->code, SCORES, kt_row_blocks(call->experts, v[WARPS] * v[EXPERTS]),
                         kt_row_blocks(call->rows, v[TOKENS]), 0, call, sizeof *call, err);
}
