/* Shapes from a shipped workload (datasets/workloads/README.md). SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/resolve.h"
#include "tuner/space/shapes.h"

static const int64_t most = (int64_t)1 << 24;

/* Formats that no kernel here reads yet are served as BF16. */
static kt_weight_format native_format(const kt_json *workload) {
    const char *name = kt_json_string(kt_json_get(workload, "native_weights"), NULL);
    int format = name ? kt_weight_format_parse(name) : -1;
    return format > 0 ? (kt_weight_format)format : KT_W_BF16;
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
    s.native = native_format(w);
    s.shape_id = kt_model_shape_id(kt_json_get(w, "config"));
    *out = s;
    return KT_OK;
}
