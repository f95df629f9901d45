/* Shapes from a shipped workload (datasets/workloads/README.md).
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/resolve.h"
#include "tuner/space/shapes.h"

static const int64_t most = (int64_t)1 << 24;

static kt_status read_native(const kt_json *workload, const char *where, kt_weight_format *out,
                             kt_err *err) {
    char known[320] = "";
    size_t used = 0;
    const char *name;
    int format;

    *out = KT_W_BF16;
    if (!kt_json_get(workload, "native_weights")) return KT_OK;
    KT_TRY(kt_json_need_string(workload, "native_weights", where, &name, err));
    format = kt_weight_format_parse(name);
    *out = (kt_weight_format)format;
    if (format > 0) return KT_OK;
    for (int f = 1; f < KT_W_COUNT && used < sizeof known; f++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "",
                                 kt_weight_format_name((kt_weight_format)f));
    return kt_fail(err, KT_E_FORMAT, "%.150s: 'native_weights' is '%.40s', expected one of %s",
                   where, name, known);
}

/* As for a config.json: no kernel takes other sizes. */
static kt_status check_size(const char *where, const char *what, int64_t v, int is_used,
                            kt_err *err) {
    if (!is_used || (v >= 32 && v % 32 == 0)) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "%s: '%s' is %lld, expected a multiple of 32", where, what,
                   (long long)v);
}

static kt_status read_dense(const kt_json *list, const char *where, kt_shapes *s, kt_err *err) {
    size_t n = kt_json_length(list);

    if (n > KT_MAX_DENSE)
        return kt_fail(err, KT_E_FORMAT, "%s: %zu dense matrices, expected at most %d", where, n,
                       KT_MAX_DENSE);
    for (size_t i = 0; i < n; i++) {
        const kt_json *o = kt_json_at(list, i);
        const char *name;
        KT_TRY(kt_json_need_string(o, "name", where, &name, err));
        snprintf(s->dense[i].name, sizeof s->dense[i].name, "%.15s", name);
        KT_TRY(kt_json_need_int(o, "n", 1, most, where, &s->dense[i].n, err));
        KT_TRY(kt_json_need_int(o, "k", 32, most, where, &s->dense[i].k, err));
        KT_TRY(kt_json_need_int(o, "layers", 1, 4096, where, &s->dense[i].layers, err));
    }
    s->n_dense = (int)n;
    return KT_OK;
}

/* FP8 checkpoints hold every matrix of a layer so, the head as BF16. */
static void take_native(kt_shapes *s, kt_weight_format native) {
    const bool is_fp8 =
        native == KT_W_FP8_B128 || native == KT_W_FP8_CHANNEL || native == KT_W_MXFP8;

    s->native = native;
    for (int i = 0; i < s->n_ffn; i++)
        if (is_fp8 || s->ffn[i].experts > 1) s->ffn[i].weights = native;
    for (int i = 0; i < s->n_dense; i++)
        if (is_fp8 && !s->dense[i].is_bf16 && strcmp(s->dense[i].name, "lm_head") != 0)
            s->dense[i].native = native;
}

/* What a model of the published config multiplies, which is what runs: the list in the file says
 * what is stored. */
static kt_status describe(const kt_json *config, const char *where, kt_shapes *s, kt_err *err) {
    kt_shapes known;
    kt_err why = {KT_OK, ""};
    kt_status st;

    if (!config) return KT_OK;
    st = kt_shapes_from_config(config, where, &known, &why);
    if (st == KT_E_UNSUPPORTED) return KT_OK; /* a family of other builds: by the list */
    if (st != KT_OK) return kt_fail(err, st, "%s", why.message);
    take_native(&known, s->native);
    *s = known;
    return KT_OK;
}

kt_status kt_shapes_from_workload(const kt_json *w, const char *where, kt_shapes *out,
                                  kt_err *err) {
    static const char schema[] = "kt-workload-1";
    kt_shapes s = {0};
    const char *found;

    KT_TRY(kt_json_need_string(w, "schema", where, &found, err));
    if (strcmp(found, schema) != 0)
        return kt_fail(err, KT_E_FORMAT, "%s: schema '%s', expected %s", where, found, schema);
    KT_TRY(kt_json_need_int(w, "hidden", 32, most, where, &s.hidden, err));
    KT_TRY(kt_json_need_int(w, "intermediate", 0, most, where, &s.intermediate, err));
    KT_TRY(kt_json_need_int(w, "experts", 0, 65536, where, &s.experts, err));
    KT_TRY(kt_json_need_int(w, "topk", 0, s.experts, where, &s.topk, err));
    KT_TRY(kt_json_need_int(w, "layers", 1, 4096, where, &s.layers, err));
    KT_TRY(kt_json_need_int(w, "dense_layers", 0, s.layers, where, &s.dense_layers, err));
    KT_TRY(kt_json_need_int(w, "dense_intermediate", 0, most, where, &s.dense_intermediate, err));
    KT_TRY(read_dense(kt_json_get(w, "dense"), where, &s, err));
    s.moe_layers = s.experts > 0 ? s.layers - s.dense_layers : 0;
    KT_TRY(read_native(w, where, &s.native, err));
    KT_TRY(check_size(where, "hidden", s.hidden, 1, err));
    KT_TRY(check_size(where, "intermediate", s.intermediate, s.moe_layers > 0, err));
    KT_TRY(check_size(where, "dense_intermediate", s.dense_intermediate,
                      s.dense_layers > 0 && s.dense_intermediate > 0, err));
    KT_TRY(describe(kt_json_get(w, "config"), where, &s, err));
    s.shape_id = kt_model_shape_id(kt_json_get(w, "config"));
    *out = s;
    return KT_OK;
}
