/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/shape_fit.h"

#include <string.h>

#include "base/err.h"
#include "dispatch/model/needs.h"
#include "runtime/exec/engine.h"
#include "runtime/model/memory_plan.h"
#include "runtime/model/synthetic_model.h"

/* From the best to the smallest. */
static const struct candidate_weights {
    const char *word;
    kt_quant quant;
    kt_weight_format blocks; /* of a GGUF file's feed-forwards, or KT_W_NONE */
} candidates[] = {{"native", KT_QUANT_NATIVE, KT_W_NONE},
                  {"int8", KT_QUANT_INT8, KT_W_NONE},
                  {"int4", KT_QUANT_INT4, KT_W_NONE},
                  {"w4g128", (kt_quant)(KT_QUANT_FORMAT + KT_W_INT4_G128), KT_W_NONE},
                  {"q3_k", KT_QUANT_NATIVE, KT_W_Q3_K},
                  {"iq3_xxs", KT_QUANT_NATIVE, KT_W_IQ3_XXS},
                  {"q2_k", KT_QUANT_NATIVE, KT_W_Q2_K},
                  {"iq2_s", KT_QUANT_NATIVE, KT_W_IQ2_S},
                  {"iq2_xxs", KT_QUANT_NATIVE, KT_W_IQ2_XXS},
                  {"iq1_m", KT_QUANT_NATIVE, KT_W_IQ1_M}};

static bool is_in_few_bits(const kt_graph *g) {
    for (int i = 0; i < g->n_weights; i++)
        if (kt_weight_is_quantised(&g->weights[i])) return true;
    return false;
}

/* Tell each machine that has no weights yet of these. */
static kt_status try_plan(const kt_shape_fit_request *r, const struct candidate_weights *c,
                          const kt_model_plan *plan, kt_shape_fit *out, kt_err *err) {
    for (int i = 0; i < r->n_machines; i++) {
        kt_machine_fit *m = &out->machine[i];
        const uint64_t all = r->machines[i];
        const kt_memory_request memory = {.plan = plan,
                                          .n_nodes = 1,
                                          .context = out->context,
                                          .logit_rows = r->logit_rows,
                                          .available =
                                              all > KT_FIT_RESERVE ? all - KT_FIT_RESERVE : 0};
        kt_memory_plan p;
        if (m->fits) continue;
        KT_TRY(kt_memory_plan_make(&memory, &p, err));
        if (m->weights && p.weights >= m->weight_bytes && !kt_memory_fits(&p)) continue;
        *m = (kt_machine_fit){.fits = kt_memory_fits(&p),
                              .weights = c->word,
                              .is_gguf = c->blocks != KT_W_NONE,
                              .weight_bytes = p.weights,
                              .needed = p.needed,
                              .longest = p.longest};
    }
    return KT_OK;
}

static kt_status try_weights(kt_planner *planner, const kt_shape_fit_request *r,
                             const struct candidate_weights *c, const kt_graph *g,
                             kt_shape_fit *out, kt_err *err) {
    const int64_t rows = kt_default_chunk(out->context);
    kt_model_plan plan;
    kt_status st = kt_model_plan_make(planner, g, c->quant, r->cache, r->threads, rows,
                                      g->numbers.max_context, &plan, err);

    /* A size that the format cannot have: the model is not to be had so. */
    if (st != KT_OK && st != KT_E_NOMEM && out->published_bytes) return KT_OK;
    KT_TRY(st);
    if (!out->published_bytes) out->published_bytes = kt_model_plan_weight_bytes(&plan);
    st = try_plan(r, c, &plan, out, err);
    kt_model_plan_deinit(&plan);
    return st;
}

static kt_status try_blocks(kt_planner *planner, const kt_shape_fit_request *r,
                            const struct candidate_weights *c, kt_shape_fit *out, kt_err *err) {
    kt_model_dir dir;
    int64_t layers;
    kt_status st;

    KT_TRY(kt_synthetic_dir(r->shape, 0, c->blocks, &dir, &layers, err));
    st = try_weights(planner, r, c, &dir.graph, out, err);
    kt_model_dir_deinit(&dir);
    return st;
}

static bool has_all(const kt_shape_fit_request *r, const kt_shape_fit *out) {
    for (int i = 0; i < r->n_machines; i++)
        if (!out->machine[i].fits) return false;
    return true;
}

kt_status kt_shape_fit_count(kt_planner *planner, const kt_shape_fit_request *r, kt_shape_fit *out,
                             kt_err *err) {
    const int n = (int)(sizeof candidates / sizeof *candidates);
    kt_model_dir dir;
    kt_status st;

    memset(out, 0, sizeof *out);
    KT_TRY(kt_published_dir(r->shape, &dir, err));
    out->family = dir.graph.family->name;
    out->context =
        r->context < dir.graph.numbers.max_context ? r->context : dir.graph.numbers.max_context;
    st = KT_OK;
    for (int i = 0; i < n && st == KT_OK && !has_all(r, out); i++) {
        if (candidates[i].blocks != KT_W_NONE)
            st = try_blocks(planner, r, &candidates[i], out, err);
        else if (i == 0 || !is_in_few_bits(&dir.graph))
            st = try_weights(planner, r, &candidates[i], &dir.graph, out, err);
    }
    kt_model_dir_deinit(&dir);
    return st;
}
