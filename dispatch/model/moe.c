/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/moe.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

/* Re-saved configs list "dense" and "sparse" by layer instead of first_k_dense_replace. */
static kt_status read_layer_types(const kt_config_source *s, kt_moe_numbers *c, kt_err *err) {
    const kt_json *types = kt_json_get(s->json, "mlp_layer_types");
    int64_t first_sparse = -1;

    for (size_t i = 0; i < kt_json_length(types); i++) {
        const char *word = kt_json_string(kt_json_at(types, i), NULL), *type = word ? word : "";
        const bool is_dense = strcmp(type, "dense") == 0;
        if ((!is_dense && strcmp(type, "sparse") != 0) || (is_dense && first_sparse >= 0))
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "%.200s: mlp_layer_types[%zu] is '%.40s', expected 'dense' of the first "
                           "layers, then 'sparse'",
                           s->where, i, type);
        if (!is_dense && first_sparse < 0) first_sparse = (int64_t)i;
    }
    if (first_sparse >= 0 &&
        kt_json_type_of(kt_json_get(s->json, "first_k_dense_replace")) == KT_JSON_NULL)
        c->first_dense = first_sparse;
    return KT_OK;
}

kt_status kt_glu_limit_read(const kt_config_source *s, double *one, kt_err *err) {
    static const char *const ends[] = {"swiglu_clamp_exp", "swiglu_clamp_shexp"};
    char key[128];

    for (int e = 0; s->gguf && e < 2; e++) {
        const kt_gguf_value *array;
        snprintf(key, sizeof key, "%.60s.%s", s->arch, ends[e]);
        array = kt_gguf_find(s->gguf, key);
        if (!array) continue;
        KT_TRY(kt_gguf_need_array(s->gguf, key, KT_GGUF_F32, &array, err));
        for (uint64_t i = 0; i < array->count; i++) {
            float limit;
            memcpy(&limit, array->data + 4 * i, sizeof limit);
            if (e == 0 && i == 0) *one = limit;
            if (!((double)limit == *one && limit > 0 && isfinite(limit)))
                return kt_fail(err, KT_E_UNSUPPORTED,
                               "%.200s: %s[%llu] is %g, expected one positive limit for all",
                               s->where, key, (unsigned long long)i, (double)limit);
        }
    }
    return KT_OK;
}

kt_status kt_need_score(const kt_config_source *s, const char *score, int number, kt_err *err) {
    const char *named = kt_json_string(kt_json_get(s->json, "scoring_func"), NULL);
    const double gating = s->gguf ? kt_config_gguf_number(s, "expert_gating_func", number) : number;

    if (named && strcmp(named, score) != 0)
        return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: scoring_func '%.40s', expected '%s'",
                       s->where, named, score);
    if (gating == number) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: expert_gating_func %g, expected %d (%s)",
                   s->where, gating, number, score);
}

kt_status kt_moe_settle(const kt_config_source *s, kt_moe_numbers *c, kt_err *err) {
    KT_TRY(read_layer_types(s, c, err));
    if (c->groups < 1) c->groups = c->top_groups = 1;
    KT_TRY(kt_need_multiple(s, "moe_intermediate_size", c->inner, err));
    if (c->first_dense) KT_TRY(kt_need_multiple(s, "intermediate_size", c->dense, err));
    if (c->topk <= c->experts) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "%.200s: num_experts_per_tok %lld of %lld experts", s->where,
                   (long long)c->topk, (long long)c->experts);
}

void kt_moe_half(kt_build *b, kt_view x, kt_view h, const kt_moe_numbers *c, int l) {
    if (l < c->first_dense) {
        kt_ffn(b, x, h, &KT_DENSE_FFN("dense_ffn", "mlp", "", c->dense, x.width));
        return;
    }
    kt_route(b, h, KT_MAT("mlp.gate", "ffn_gate_inp", c->experts, x.width),
             KT_VEC("mlp.gate.e_score_correction_bias", "exp_probs_b.bias", c->experts),
             &(kt_routing_rule){.score = c->groups > 1 ? KT_ROUTER_SIGMOID_GROUP
                                                       : KT_ROUTER_SIGMOID_BIAS,
                                .experts = c->experts,
                                .topk = c->topk,
                                .groups = c->groups,
                                .top_groups = c->top_groups,
                                .is_normalised = c->is_normalised,
                                .scale = c->factor});
    kt_experts(b, x, h, &KT_EXPERTS("mlp.experts", c->experts, c->inner, x.width), c->topk);
    if (c->shared)
        kt_ffn(
            b, x, h,
            &KT_DENSE_FFN("shared", "mlp.shared_experts", "_shexp", c->shared * c->inner, x.width));
}
