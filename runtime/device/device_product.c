/* Products of rows and matrices on a device. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/device_product.h"

#include "base/err.h"
#include "dispatch/plan/plan_device.h"
#include "kernels/cuda/device_weights.h"

kt_status kt_device_kernel_find(kt_device_step *s, const char *name, const int32_t *values,
                                int n_values, kt_device_kernel *out, kt_err *err) {
    return kt_device_kernel_named(s->device, name, values, n_values, out, err);
}

kt_status kt_device_kernel_put(kt_device_step *s, const kt_device_kernel *k, int entry, int grid_x,
                               int grid_y, int64_t size, const void *call, size_t call_bytes,
                               kt_err *err) {
    return kt_device_kernel_run(s->device, k, entry, grid_x, grid_y, size, call, call_bytes, err);
}

uint32_t kt_device_step_encodings(const kt_device_step *s, int weight, int run) {
    const kt_problem_plan *p = kt_model_plan_run(s->plan, weight, run);

    return p ? kt_device_job_of(&p->problem, s->is_exact).encodings : KT_CUDA_ROWS_BF16;
}

void kt_device_step_ladder(kt_device_step *s, const kt_device_job *job, kt_device_ladder *out) {
    kt_plan_device_ladder(s->table, kt_device_about(s->device), job, out, &s->advice);
}

const char *kt_device_product_refuse(int64_t k) {
    return k % 8 ? "inputs are no multiple of 8" : NULL;
}

const char *kt_device_weight_refuse(const kt_device_ask *ask, int weight) {
    const kt_weight *w = &ask->graph->weights[weight];

    for (int i = 0; i < w->n_parts && w->kind != KT_WEIGHT_HEADS; i++)
        if (kt_device_weight_format(kt_weight_becomes(w, i, ask->plan->quant)) == KT_W_NONE)
            return "no kernel there reads its weight format";
    return NULL;
}

kt_status kt_device_product_init(kt_device_step *s, const kt_device_pick *pick, int run,
                                 kt_device_gemm *out, kt_err *err) {
    kt_device_matrices w;
    kt_device_ladder ladder;
    kt_device_job job;

    KT_TRY(kt_device_load_matrices(s, pick, &w, err));
    job = kt_device_gemm_job(&w, kt_device_step_encodings(s, pick->weight, run));
    kt_device_step_ladder(s, &job, &ladder);
    KT_TRY(kt_device_gemm_make(s->device, &w, &ladder, s->max_rows, out, err));
    kt_device_step_need(s, kt_device_gemm_scratch(out, s->max_rows));
    return KT_OK;
}

kt_status kt_device_product_put(kt_device_step *s, const kt_device_gemm *g,
                                const kt_device_gemm_call *call, kt_err *err) {
    kt_device_gemm_call c = *call;

    c.scratch = s->scratch;
    return kt_device_gemm_put(s->device, g, &c, err);
}
