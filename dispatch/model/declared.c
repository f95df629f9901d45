/* quantization_config: what a checkpoint says of how its linear layers are stored. It decides
 * only where no tensors are at hand, and what they do not show (AWQ or GPTQ order).
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "dispatch/model/build_impl.h"
#include "dispatch/model/nested.h"

/* What the readers of the methods fill. */
typedef struct int4_form {
    kt_int4_packing packing;
    int64_t group;
    bool has_zeros;
    kt_weight_format format; /* instead of INT4: FP8, MXFP4 */
} int4_form;

static kt_status need_value(const kt_json *q, const char *key, int64_t want, const char *where,
                            kt_err *err) {
    int64_t found;

    KT_TRY(kt_json_need_int(q, key, INT32_MIN, INT32_MAX, where, &found, err));
    if (found == want) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: %s is %lld, expected %lld", where, key,
                   (long long)found, (long long)want);
}

/* Does the list of modules that stay floats, by names or patterns, mention attention? Then only the
 * rest is quantised. */
static bool spares_attention(const kt_json *q) {
    static const char *const lists[] = {"modules_to_not_convert", "ignore", "ignored_layers",
                                        "exclude_modules"};

    for (size_t l = 0; l < sizeof lists / sizeof *lists; l++) {
        const kt_json *names = kt_json_get(q, lists[l]);
        for (size_t i = 0; i < kt_json_length(names); i++) {
            const char *name = kt_json_string(kt_json_at(names, i), NULL);
            if (name && strstr(name, "self_attn")) return true;
        }
    }
    return false;
}

static kt_status read_awq(const kt_json *q, const char *where, int4_form *out, kt_err *err) {
    const char *version = kt_json_string(kt_json_get(q, "version"), NULL);

    KT_TRY(need_value(q, "bits", 4, where, err));
    KT_TRY(kt_json_need_int(q, "group_size", -1, INT32_MAX, where, &out->group, err));
    if (version && strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0)
        return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: AWQ version '%.40s', expected 'gemm'", where,
                       version);
    if (!kt_json_bool(kt_json_get(q, "zero_point"), true))
        return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: zero_point is false, expected true", where);
    out->packing = KT_INT4_AWQ;
    out->has_zeros = true;
    return KT_OK;
}

/* desc_act does not say whether groups really are out of order: g_idx does, when it is read. */
static kt_status read_gptq(const kt_json *q, const char *where, int4_form *out, kt_err *err) {
    const char *form = kt_json_string(kt_json_get(q, "checkpoint_format"), NULL);

    KT_TRY(need_value(q, "bits", 4, where, err));
    KT_TRY(kt_json_need_int(q, "group_size", -1, INT32_MAX, where, &out->group, err));
    if (form && strcmp(form, "gptq") != 0 && strcmp(form, "gptq_v2") != 0)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%.200s: checkpoint_format '%.40s', expected 'gptq' or 'gptq_v2'", where,
                       form);
    out->packing = form && strcmp(form, "gptq_v2") == 0 ? KT_INT4_GPTQ_V2 : KT_INT4_GPTQ;
    out->has_zeros = true;
    return KT_OK;
}

static kt_status read_compressed(const kt_json *q, const char *where, int4_form *out, kt_err *err) {
    const char *form = kt_json_string(kt_json_get(q, "format"), NULL);
    const kt_json *groups = kt_json_get(q, "config_groups");
    const kt_json *w = kt_json_get(kt_json_member(groups, 0, NULL, NULL), "weights");

    if (!form || strcmp(form, "pack-quantized") != 0 || kt_json_length(groups) != 1)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%.200s: compressed-tensors format '%.40s' with %zu groups, expected "
                       "'pack-quantized' with one",
                       where, form ? form : "", kt_json_length(groups));
    KT_TRY(need_value(w, "num_bits", 4, where, err));
    KT_TRY(kt_json_need_int(w, "group_size", -1, INT32_MAX, where, &out->group, err));
    out->packing = KT_INT4_ROWS;
    out->has_zeros = !kt_json_bool(kt_json_get(w, "symmetric"), true);
    return KT_OK;
}

/* "weight_block_size": [128, 128], or none for a scale per channel. */
static kt_status read_fp8(const kt_json *q, const char *where, int4_form *out, kt_err *err) {
    const kt_json *block = kt_json_get(q, "weight_block_size");
    const int64_t n = kt_json_int(kt_json_at(block, 0), 0),
                  k = kt_json_int(kt_json_at(block, 1), 0);

    out->format = kt_json_length(block) ? KT_W_FP8_B128 : KT_W_FP8_CHANNEL;
    if (!kt_json_length(block) || (n == 128 && k == 128)) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED,
                   "%.200s: weight_block_size [%lld, %lld], expected [128, 128]", where,
                   (long long)n, (long long)k);
}

/* What modelopt calls one format; KT_W_NONE = another. */
static kt_weight_format modelopt_format(const char *algorithm) {
    if (algorithm && strcmp(algorithm, "NVFP4") == 0) return KT_W_NVFP4;
    return algorithm && strcmp(algorithm, "FP8") == 0 ? KT_W_FP8_CHANNEL : KT_W_NONE;
}

/* One algorithm for all, or (MIXED_PRECISION) a list of layers with one each: that of experts, or
 * else of the first. Tensors decide where they are at hand. */
static kt_status read_modelopt(const kt_json *q, const char *where, int4_form *out, kt_err *err) {
    const char *algorithm = kt_json_string(kt_json_get(q, "quant_algo"), NULL), *name;
    const kt_json *layers = kt_json_get(q, "quantized_layers");
    const kt_json *pick = kt_json_member(layers, 0, NULL, NULL);

    for (size_t i = kt_json_length(layers); i-- > 0;) {
        const kt_json *layer = kt_json_member(layers, i, &name, NULL);
        if (strstr(name, ".experts")) pick = layer;
    }
    if (algorithm && strcmp(algorithm, "MIXED_PRECISION") == 0) {
        q = pick;
        algorithm = kt_json_string(kt_json_get(q, "quant_algo"), NULL);
    }
    out->format = modelopt_format(algorithm);
    if (out->format == KT_W_NONE)
        return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: quant_algo '%.40s', expected NVFP4 or FP8",
                       where, algorithm ? algorithm : "");
    if (out->format != KT_W_NVFP4 || kt_json_type_of(kt_json_get(q, "group_size")) == KT_JSON_NULL)
        return KT_OK;
    return need_value(q, "group_size", 16, where, err);
}

/* "weight_block_size": [1, 32], which the name says already. */
static kt_status read_mxfp8(const kt_json *q, const char *where, int4_form *out, kt_err *err) {
    const kt_json *block = kt_json_get(q, "weight_block_size");
    const int64_t n = kt_json_int(kt_json_at(block, 0), 1),
                  k = kt_json_int(kt_json_at(block, 1), 32);

    out->format = KT_W_MXFP8;
    if (n == 1 && k == 32) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED,
                   "%.200s: mxfp8 with weight_block_size [%lld, %lld], expected [1, 32]", where,
                   (long long)n, (long long)k);
}

static kt_status read_mxfp4(const kt_json *q, const char *where, int4_form *out, kt_err *err) {
    (void)q, (void)where, (void)err;
    out->format = KT_W_MXFP4;
    return KT_OK;
}

static kt_status read_any_compressed(const kt_json *q, const char *where, int4_form *out,
                                     kt_err *err) {
    const char *form = kt_json_string(kt_json_get(q, "format"), NULL);

    if (form && strcmp(form, "mxfp4-pack-quantized") == 0) return read_mxfp4(q, where, out, err);
    if (form && strcmp(form, "nvfp4-pack-quantized") == 0) {
        out->format = KT_W_NVFP4;
        return KT_OK;
    }
    if (!form || strcmp(form, "float-quantized") != 0) return read_compressed(q, where, out, err);
    out->format = KT_W_FP8_CHANNEL;
    return KT_OK;
}

static const struct {
    const char *name;
    kt_status (*read)(const kt_json *q, const char *where, int4_form *out, kt_err *err);
} methods[] = {
    {"awq", read_awq},           {"gptq", read_gptq}, {"compressed-tensors", read_any_compressed},
    {"modelopt", read_modelopt}, {"fp8", read_fp8},   {"mxfp8", read_mxfp8},
    {"mxfp4", read_mxfp4}};

/* A key of the text_config, or of what is around it. */
static const kt_json *get(const kt_json *root, const char *key) {
    const kt_json *v = kt_json_get(kt_nested_text(root), key);

    return kt_json_type_of(v) != KT_JSON_NULL ? v : kt_json_get(root, key);
}

static kt_weight_format read_dtype(const kt_json *root) {
    const char *dtype = kt_json_string(get(root, "torch_dtype"), NULL);

    if (!dtype) dtype = kt_json_string(get(root, "dtype"), NULL);
    return dtype && strcmp(dtype, "float16") == 0 ? KT_W_F16 : KT_W_BF16;
}

kt_status kt_declared_read(const kt_config_source *source, kt_declared *out, kt_err *err) {
    const kt_json *root = source->json, *q = get(root, "quantization_config");
    const bool is_apart = kt_json_type_of(q) == KT_JSON_NULL && source->modelopt;
    const char *where = is_apart ? "hf_quant_config.json" : source->where;
    const char *method =
        is_apart ? "modelopt" : kt_json_string(kt_json_get(q, "quant_method"), NULL);
    const char *expert_dtype = kt_json_string(get(root, "expert_dtype"), NULL);
    int4_form form = {0};
    kt_int4_source shape = {0};
    size_t i = 0;

    out->floats = out->linear = out->experts = out->ffn = read_dtype(root);
    if (is_apart) q = source->modelopt;
    if (kt_json_type_of(q) == KT_JSON_NULL) return KT_OK;
    while (i < sizeof methods / sizeof *methods &&
           (!method || strcmp(methods[i].name, method) != 0))
        i++;
    if (i == sizeof methods / sizeof *methods)
        return kt_fail(
            err, KT_E_UNSUPPORTED,
            "%.200s: quantization_config: quant_method '%.40s', expected awq, gptq or "
            "compressed-tensors with 4 bits, modelopt, fp8, mxfp8 or mxfp4; or use the BF16 "
            "checkpoint",
            where, method ? method : "");
    KT_TRY(methods[i].read(q, where, &form, err));
    out->packing = form.packing;
    shape.group = form.group;
    shape.packing = form.packing;
    shape.scale_type = out->floats;
    shape.zeros = form.has_zeros ? out : NULL; /* only asked whether there are any */
    out->experts = form.format != KT_W_NONE ? form.format : kt_int4_import_format(&shape);
    if (out->experts == KT_W_NONE)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%.200s: quantization_config: group_size %lld, expected 32, 64 or 128",
                       where, (long long)form.group);
    if (!spares_attention(q)) out->linear = out->experts;
    out->ffn = out->experts;
    if (expert_dtype && strcmp(expert_dtype, "fp4") == 0) out->experts = KT_W_MXFP4;
    return KT_OK;
}
