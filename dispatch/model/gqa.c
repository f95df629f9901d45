/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/gqa.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

kt_status kt_need_multiple(const kt_config_source *s, const char *key, int64_t value, kt_err *err) {
    if (value >= 32 && value % 32 == 0) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: %s is %lld, expected a multiple of 32", s->where,
                   key, (long long)value);
}

kt_status kt_need_silu(const kt_config_source *s, kt_err *err) {
    const char *act = kt_json_string(kt_json_get(s->json, "hidden_act"), NULL);

    if (!act || strcmp(act, "silu") == 0) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: hidden_act '%.40s', expected 'silu'", s->where,
                   act);
}

/* ---- rotary embeddings ---- */

/* YaRN; attention_factor as Transformers has it by default (models.md 1.3). */
static void read_yarn(const kt_json *scaling, int64_t max_context, kt_rope_rule *out) {
    const kt_json *attention = kt_json_get(scaling, "attention_factor");

    out->scaling = KT_ROPE_YARN;
    out->factor = kt_json_double(kt_json_get(scaling, "factor"), 1);
    out->original_context = kt_json_double(kt_json_get(scaling, "original_max_position_embeddings"),
                                           (double)max_context);
    out->beta_fast = kt_json_double(kt_json_get(scaling, "beta_fast"), 32);
    out->beta_slow = kt_json_double(kt_json_get(scaling, "beta_slow"), 1);
    out->is_exact = !kt_json_bool(kt_json_get(scaling, "truncate"), true);
    out->attention_factor = kt_json_double(attention, kt_yarn_mscale(out->factor, 1));
}

static kt_status read_scaling(const kt_config_source *s, const kt_json *scaling, int is_parameters,
                              kt_rope_rule *out, kt_err *err) {
    const char *type = kt_json_string(kt_json_get(scaling, "rope_type"), NULL);

    if (kt_json_type_of(scaling) == KT_JSON_NULL) return KT_OK;
    if (!type) type = kt_json_string(kt_json_get(scaling, "type"), NULL);
    if (type && strcmp(type, "yarn") == 0) {
        read_yarn(scaling, kt_json_int(kt_json_get(s->json, "max_position_embeddings"), 4096), out);
        if (out->factor >= 1 && out->original_context > 0) return KT_OK;
        return kt_fail(err, KT_E_FORMAT, "%.200s: yarn with factor %g of a context of %g", s->where,
                       out->factor, out->original_context);
    }
    if (type ? strcmp(type, "default") == 0 : is_parameters) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED,
                   "%.200s: rope scaling '%.40s' is not supported; remove rope_scaling to use "
                   "the model within its original context",
                   s->where, type ? type : "without a type");
}

/* rope_theta beside rope_scaling, or both inside rope_parameters. */
static kt_status read_json(const kt_config_source *s, int64_t dim, double factor, kt_rope_rule *out,
                           kt_err *err) {
    const kt_json *j = s->json, *scaling = kt_json_get(j, "rope_scaling");
    const kt_json *parameters = kt_json_get(j, "rope_parameters"), *holder = j;
    const bool has_parameters = kt_json_type_of(parameters) == KT_JSON_OBJECT;

    if (has_parameters) scaling = parameters;
    if (has_parameters && kt_json_type_of(kt_json_get(parameters, "rope_theta")) != KT_JSON_NULL)
        holder = parameters;
    KT_TRY(kt_json_need_double(holder, "rope_theta", s->where, &out->base, err));
    factor = kt_json_double(kt_json_get(j, "partial_rotary_factor"), factor);
    factor = kt_json_double(kt_json_get(scaling, "partial_rotary_factor"), factor);
    out->rotary_dim = kt_json_int(kt_json_get(j, "rotary_dim"), (int64_t)(factor * (double)dim));
    return read_scaling(s, scaling, has_parameters, out, err);
}

static kt_status read_gguf(const kt_config_source *s, int64_t dim, double factor, kt_rope_rule *out,
                           kt_err *err) {
    char key[128];
    const char *type = "";
    size_t size = 0;

    out->base = kt_config_gguf_number(s, "rope.freq_base", 10000);
    out->rotary_dim =
        (int64_t)kt_config_gguf_number(s, "rope.dimension_count", factor * (double)dim);
    snprintf(key, sizeof key, "%.60s.rope.scaling.type", s->arch);
    if (!kt_gguf_find(s->gguf, key)) return KT_OK;
    KT_TRY(kt_gguf_need_string(s->gguf, key, &type, &size, err));
    if (size == 4 && memcmp(type, "none", 4) == 0) return KT_OK;
    if (size != 4 || memcmp(type, "yarn", 4) != 0)
        return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: rope scaling '%.*s' is not supported",
                       s->where, (int)(size < 40 ? size : 40), type);
    out->scaling = KT_ROPE_YARN;
    out->factor = kt_config_gguf_number(s, "rope.scaling.factor", 1);
    out->original_context = kt_config_gguf_number(s, "rope.scaling.original_context_length", 4096);
    out->beta_fast = kt_config_gguf_number(s, "rope.scaling.yarn_beta_fast", 32);
    out->beta_slow = kt_config_gguf_number(s, "rope.scaling.yarn_beta_slow", 1);
    out->attention_factor = kt_yarn_mscale(out->factor, 1);
    return KT_OK;
}

kt_status kt_rotation_read(const kt_config_source *s, int64_t dim, double default_factor,
                           kt_rope_rule *out, kt_err *err) {
    *out = (kt_rope_rule){0};
    KT_TRY(s->json ? read_json(s, dim, default_factor, out, err)
                   : read_gguf(s, dim, default_factor, out, err));
    if (!(out->base > 0) || !isfinite(out->base))
        return kt_fail(err, KT_E_FORMAT, "%.200s: rope_theta is %g, expected a positive number",
                       s->where, out->base);
    if (out->rotary_dim >= 2 && out->rotary_dim <= dim && out->rotary_dim % 2 == 0) return KT_OK;
    return kt_fail(err, KT_E_FORMAT,
                   "%.200s: %lld of %lld elements of a head are rotated, expected an even number",
                   s->where, (long long)out->rotary_dim, (long long)dim);
}

/* ---- attention ---- */

kt_status kt_gqa_settle(const kt_config_source *s, const kt_model_numbers *m, kt_gqa_numbers *a,
                        kt_err *err) {
    if (a->dim == 0) a->dim = m->hidden / a->heads;
    if (a->heads % a->kv_heads != 0)
        return kt_fail(err, KT_E_FORMAT,
                       "%.200s: num_attention_heads %lld is not a multiple of "
                       "num_key_value_heads %lld",
                       s->where, (long long)a->heads, (long long)a->kv_heads);
    KT_TRY(kt_need_multiple(s, "head_dim", a->dim, err));
    a->qk_norm = KT_QK_NORM_HEAD;
    return kt_rotation_read(s, a->dim, 1, &a->rotation, err);
}

static void add_biases(kt_build *b, const kt_view v[3]) {
    kt_bias(b, v[0], KT_VEC("self_attn.q_proj.bias", "attn_q.bias", v[0].width));
    kt_bias(b, v[1], KT_VEC("self_attn.k_proj.bias", "attn_k.bias", v[1].width));
    kt_bias(b, v[2], KT_VEC("self_attn.v_proj.bias", "attn_v.bias", v[2].width));
}

kt_view kt_gqa(kt_build *b, kt_view h, const kt_gqa_numbers *a) {
    const int64_t q = a->heads * a->dim, kv = a->kv_heads * a->dim;
    const kt_mat mats[3] = {KT_MAT("self_attn.q_proj", "attn_q", q, h.width),
                            KT_MAT("self_attn.k_proj", "attn_k", kv, h.width),
                            KT_MAT("self_attn.v_proj", "attn_v", kv, h.width)};
    const bool is_row = a->qk_norm == KT_QK_NORM_ROW;
    kt_vec sinks = {.n = 0};
    kt_view v[3];

    kt_linear(b, "qkv", h, 3, mats, v);
    if (a->has_bias || kt_has(b, (kt_name){"self_attn.q_proj.bias", "attn_q.bias"}))
        add_biases(b, v);
    if (a->qk_norm != KT_QK_NORM_NONE) {
        const int64_t of_q = is_row ? q : a->dim, of_k = is_row ? kv : a->dim;
        kt_rms_heads(b, v[0], of_q, KT_VEC("self_attn.q_norm.weight", "attn_q_norm.weight", of_q),
                     a->eps);
        kt_rms_heads(b, v[1], of_k, KT_VEC("self_attn.k_norm.weight", "attn_k_norm.weight", of_k),
                     a->eps);
    }
    kt_rope(b, v[0], a->dim, &a->rotation);
    kt_rope(b, v[1], a->dim, &a->rotation);
    if (a->has_sinks) sinks = KT_VEC("self_attn.sinks", "attn_sinks.weight", a->heads);
    return kt_attend_sinks(b, v[0], kt_keep(b, v[1], v[2], a->kv_heads),
                           &(kt_attention){.heads = a->heads,
                                           .kv_heads = a->kv_heads,
                                           .k = a->dim,
                                           .v = a->dim,
                                           .scale = 1.0 / sqrt((double)a->dim),
                                           .window = a->window},
                           sinks);
}
