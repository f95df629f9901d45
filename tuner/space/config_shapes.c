/* Shapes from a model's config.json. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/resolve.h"
#include "kernels/formats/int4_import.h"
#include "tuner/space/shapes.h"

/* First of several names for one thing; fallback when none is there. */
static int64_t first_of(const kt_json *c, const char *const *keys, int64_t fallback) {
    for (; *keys; keys++) {
        const kt_json *v = kt_json_get(c, *keys);
        if (v && kt_json_is_integer(v)) return kt_json_int(v, fallback);
    }
    return fallback;
}

static const char *const expert_keys[] = {"num_experts", "n_routed_experts", "num_local_experts",
                                          NULL};
static const char *const topk_keys[] = {"num_experts_per_tok", "top_k_experts", NULL};
static const char *const expert_size_keys[] = {"moe_intermediate_size", "intermediate_size", NULL};

/* Is layer i a dense one? Qwen lists exceptions and a step; DeepSeek counts the first ones. */
static bool is_dense(const kt_json *c, int64_t layer) {
    const kt_json *only = kt_json_get(c, "mlp_only_layers");
    int64_t step = kt_json_int(kt_json_get(c, "decoder_sparse_step"), 1);

    for (size_t i = 0; i < kt_json_length(only); i++)
        if (kt_json_int(kt_json_at(only, i), -1) == layer) return true;
    if (layer < kt_json_int(kt_json_get(c, "first_k_dense_replace"), 0)) return true;
    return step > 1 && (layer + 1) % step != 0;
}

/* The experts' format in the checkpoint: INT4 of AWQ, GPTQ or compressed-tensors as it is imported, or
 * (all else is decoded) BF16. */
static kt_weight_format native_format(const kt_json *c) {
    const kt_json *q = kt_json_get(c, "quantization_config"), *weights;
    const kt_json *first = kt_json_member(kt_json_get(q, "config_groups"), 0, NULL, NULL);
    const char *method = kt_json_string(kt_json_get(q, "quant_method"), NULL);
    const char *dtype = kt_json_string(kt_json_get(c, "torch_dtype"), NULL);
    kt_int4_source s = {.scale_type = dtype && !strcmp(dtype, "float16") ? KT_W_F16 : KT_W_BF16};
    kt_weight_format format;

    if (!q) return KT_W_BF16;
    weights = first ? kt_json_get(first, "weights") : q;
    if (kt_json_int(kt_json_get(weights, first ? "num_bits" : "bits"), 0) != 4) return KT_W_BF16;
    s.group = kt_json_int(kt_json_get(weights, "group_size"), 0);
    if (method && strcmp(method, "awq") == 0) s.packing = KT_INT4_AWQ;
    if (method && strcmp(method, "gptq") == 0) s.packing = KT_INT4_GPTQ;
    if (first && !kt_json_bool(kt_json_get(weights, "symmetric"), true)) s.zeros = weights;
    format = kt_int4_import_format(&s);
    return format == KT_W_NONE ? KT_W_BF16 : format;
}

static kt_status check_size(const char *where, const char *what, int64_t v, kt_err *err) {
    if (v >= 32 && v <= ((int64_t)1 << 24) && v % 32 == 0) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "%s: %s = %lld, expected a multiple of 32", where, what,
                   (long long)v);
}

static void add_dense(kt_shapes *s, const char *name, int64_t n, int64_t k, int64_t layers) {
    if (s->n_dense == KT_MAX_DENSE) return;
    snprintf(s->dense[s->n_dense].name, sizeof s->dense[s->n_dense].name, "%s", name);
    s->dense[s->n_dense].n = n;
    s->dense[s->n_dense].k = k;
    s->dense[s->n_dense++].layers = layers;
}

/* Latent and linear attention have other matrices than q, k, v of equal heads: their cells come with
 * their kernels. */
static kt_status attention(const kt_json *c, const char *where, kt_shapes *s, kt_err *err) {
    int64_t heads, kv_heads, head_dim;

    if (kt_json_get(c, "kv_lora_rank") || kt_json_get(c, "linear_num_value_heads")) return KT_OK;
    KT_TRY(kt_json_need_int(c, "num_attention_heads", 1, 65536, where, &heads, err));
    kv_heads = kt_json_int(kt_json_get(c, "num_key_value_heads"), heads);
    head_dim = kt_json_int(kt_json_get(c, "head_dim"), s->hidden / heads);
    if (kv_heads < 1 || kv_heads > heads || head_dim < 1 || head_dim > 65536)
        return kt_fail(err, KT_E_FORMAT, "%s: %lld key heads of %lld elements for %lld heads",
                       where, (long long)kv_heads, (long long)head_dim, (long long)heads);
    add_dense(s, "qkv", (heads + 2 * kv_heads) * head_dim, s->hidden, s->layers);
    add_dense(s, "o", s->hidden, heads * head_dim, s->layers);
    return KT_OK;
}

kt_status kt_shapes_from_config(const kt_json *c, const char *where, kt_shapes *out, kt_err *err) {
    kt_shapes s = {0};
    int64_t vocab;

    KT_TRY(kt_json_need_int(c, "hidden_size", 32, 1 << 20, where, &s.hidden, err));
    KT_TRY(kt_json_need_int(c, "num_hidden_layers", 1, 4096, where, &s.layers, err));
    KT_TRY(kt_json_need_int(c, "vocab_size", 1, 1 << 24, where, &vocab, err));
    KT_TRY(check_size(where, "hidden_size", s.hidden, err));
    s.experts = first_of(c, expert_keys, 0);
    s.topk = first_of(c, topk_keys, 0);
    for (int64_t i = 0; i < s.layers; i++)
        if (s.experts == 0 || is_dense(c, i)) s.dense_layers++;
    s.moe_layers = s.layers - s.dense_layers;
    if (s.moe_layers > 0) {
        s.intermediate = first_of(c, expert_size_keys, 0);
        KT_TRY(check_size(where, "moe_intermediate_size", s.intermediate, err));
        if (s.topk < 1 || s.topk > s.experts || s.experts > 65536)
            return kt_fail(err, KT_E_FORMAT, "%s: %lld experts per token of %lld", where,
                           (long long)s.topk, (long long)s.experts);
    }
    if (s.dense_layers > 0) {
        s.dense_intermediate = kt_json_int(kt_json_get(c, "intermediate_size"), 0);
        KT_TRY(check_size(where, "intermediate_size", s.dense_intermediate, err));
    }
    KT_TRY(attention(c, where, &s, err));
    add_dense(&s, "lm_head", vocab, s.hidden, 1);
    s.native = native_format(c);
    s.shape_id = kt_model_shape_id(c);
    *out = s;
    return KT_OK;
}
