/* The memory of a model before it is loaded. SPDX-License-Identifier: Apache-2.0 */
#include "base/buffer.h"
#include "base/err.h"
#include "dispatch/model/resolve.h"
#include "runtime/api/api_options.h"
#include "runtime/api/sized.h"
#include "runtime/model/memory_plan.h"
#include "runtime/model/model_dir.h"
#include "runtime/model/synthetic_model.h"

/* A bundled shape has no checkpoint, and need not have one to be counted. */
static kt_status read_model(const char *model, kt_model_dir *dir, kt_err *err) {
    kt_model_ref ref;
    int64_t layers;

    KT_TRY(kt_model_resolve(model, KT_MODEL_ANY, &ref, err));
    if (ref.kind == KT_MODEL_WORKLOAD)
        return kt_synthetic_dir(model, 0, KT_W_NONE, dir, &layers, err);
    return kt_model_dir_read(model, dir, err);
}

static kt_status plan_model(kt_planner *planner, const kt_model_dir *dir,
                            const kt_engine_options *o, kt_memory_plan *out, kt_err *err) {
    const int64_t most = dir->graph.numbers.max_context;
    const int64_t context = o->max_context ? o->max_context : most;
    const int64_t wanted = o->max_chunk ? o->max_chunk : kt_default_chunk(context);
    kt_model_plan plan = {0};
    kt_memory_request request = {.plan = &plan,
                                 .n_nodes = 1,
                                 .context = context,
                                 .kv_memory = o->kv_memory,
                                 .available = kt_memory_available_bytes()};
    kt_status st;

    if (context > most)
        return kt_fail(err, KT_E_INVALID, "context of %lld tokens: %.200s allows 1 to %lld",
                       (long long)context, dir->name, (long long)most);
    st = kt_model_plan_make(planner, &dir->graph, o->weights, o->kv,
                            o->n_threads ? o->n_threads : kt_usable_cores(),
                            wanted < context ? wanted : context, context, &plan, err);
    if (st == KT_OK) st = kt_memory_plan_make(&request, out, err);
    kt_model_plan_deinit(&plan);
    return st;
}

static void fill(const kt_memory_plan *p, kt_memory_need *out) {
    *out = (kt_memory_need){.weight_bytes = p->weights,
                            .staging_bytes = p->bytes[KT_MEMORY_STAGING],
                            .step_bytes = p->bytes[KT_MEMORY_STEP],
                            .cache_bytes = p->bytes[KT_MEMORY_CACHE],
                            .logits_bytes = p->bytes[KT_MEMORY_LOGITS],
                            .needed_bytes = p->needed,
                            .available_bytes = p->available,
                            .context = p->context,
                            .longest_context = p->longest,
                            .fits = kt_memory_fits(p)};
}

/* Kernels are chosen by estimate: which one runs changes no size. */
kt_status kt_engine_plan(const kt_model_options *options, kt_memory_need *out, kt_err *err) {
    const kt_fingerprint unknown = {0};
    kt_model_options known;
    kt_engine_options o;
    kt_model_dir dir = {0};
    kt_registry *registry = NULL;
    kt_planner *planner = NULL;
    kt_memory_plan plan;
    kt_memory_need need;
    kt_status st;

    KT_TRY(kt_model_options_take(options, &known, &o, err));
    st = read_model(o.model_dir, &dir, err);
    if (st == KT_OK)
        st = kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, kt_isa_available(),
                                &registry, err);
    if (st == KT_OK) st = kt_planner_create(registry, NULL, &unknown, NULL, &planner, err);
    if (st == KT_OK) st = plan_model(planner, &dir, &o, &plan, err);
    if (st == KT_OK) {
        fill(&plan, &need);
        st = kt_sized_give(out, &need, sizeof need, "kt_memory_need", err);
    }
    kt_planner_destroy(planner);
    kt_registry_destroy(registry);
    kt_model_dir_deinit(&dir);
    return st;
}
