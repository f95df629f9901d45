/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/tensor_map.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

kt_status kt_tensor_map_init(kt_tensor_map *map, const kt_checkpoint *checkpoint,
                             const kt_family *family, const kt_model_config *config, bool native,
                             kt_err *err) {
    *map = (kt_tensor_map){.checkpoint = checkpoint,
                           .family = family,
                           .config = config,
                           .native = native,
                           .used = calloc(kt_checkpoint_count(checkpoint) + 1, 1)};
    return map->used ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for the tensor map");
}

void kt_tensor_map_deinit(kt_tensor_map *map) {
    free(map->used);
    map->used = NULL;
}

kt_status kt_tensor_map_need(kt_tensor_map *map, kt_role role, int64_t layer, int64_t expert,
                             const kt_tensor **out, kt_err *err) {
    char name[160];
    int64_t shape[3];
    int rank = kt_role_shape(role, map->config, shape);

    kt_family_tensor_name(map->family, role, layer, expert, name, sizeof name);
    KT_TRY(kt_checkpoint_need(map->checkpoint, name, rank, shape, out, err));
    if (!kt_dtype_is_float((*out)->dtype))
        return kt_tensor_fail(map->checkpoint, *out, KT_E_UNSUPPORTED, err,
                              "dtype %s, expected BF16, F16 or F32", kt_dtype_name((*out)->dtype));
    map->used[*out - kt_checkpoint_at(map->checkpoint, 0)] = 1;
    return KT_OK;
}

static kt_status check_native(const kt_tensor_map *map, const kt_tensor *t, kt_err *err) {
    if (!map->native || t->dtype == KT_DTYPE_BF16) return KT_OK;
    return kt_tensor_fail(map->checkpoint, t, KT_E_UNSUPPORTED, err,
                          "dtype %s has no kernels of its own; use --weights bf16, int8 or int4",
                          kt_dtype_name(t->dtype));
}

static kt_status add(kt_tensor_map *map, kt_role role, int64_t layer, int64_t expert,
                     kt_matrix_source *s, kt_err *err) {
    const kt_tensor *t;

    KT_TRY(kt_tensor_map_need(map, role, layer, expert, &t, err));
    KT_TRY(check_native(map, t, err));
    kt_matrix_source_add(s, t, 0, t->shape[0]);
    return KT_OK;
}

kt_status kt_tensor_map_linear(kt_tensor_map *map, kt_role role, int64_t layer,
                               kt_matrix_source *out, kt_err *err) {
    memset(out, 0, sizeof *out);
    return add(map, role, layer, 0, out, err);
}

kt_status kt_tensor_map_qkv(kt_tensor_map *map, int64_t layer, kt_matrix_source *out, kt_err *err) {
    memset(out, 0, sizeof *out);
    KT_TRY(add(map, KT_ROLE_Q, layer, 0, out, err));
    KT_TRY(add(map, KT_ROLE_K, layer, 0, out, err));
    return add(map, KT_ROLE_V, layer, 0, out, err);
}

static kt_status fused_expert(kt_tensor_map *map, int64_t layer, int64_t expert,
                              kt_matrix_source out[3], kt_err *err) {
    int64_t size = map->config->expert_size, hidden = map->config->hidden;
    const kt_tensor *gate_up, *down;

    KT_TRY(kt_tensor_map_need(map, KT_ROLE_EXPERTS_GATE_UP, layer, 0, &gate_up, err));
    KT_TRY(kt_tensor_map_need(map, KT_ROLE_EXPERTS_DOWN, layer, 0, &down, err));
    KT_TRY(check_native(map, gate_up, err));
    KT_TRY(check_native(map, down, err));
    kt_matrix_source_add(&out[0], gate_up, expert * 2 * size, size);
    kt_matrix_source_add(&out[1], gate_up, expert * 2 * size + size, size);
    kt_matrix_source_add(&out[2], down, expert * hidden, hidden);
    return KT_OK;
}

kt_status kt_tensor_map_expert(kt_tensor_map *map, int64_t layer, int64_t expert,
                               kt_matrix_source out[3], kt_err *err) {
    static const kt_role roles[2][3] = {
        {KT_ROLE_GATE, KT_ROLE_UP, KT_ROLE_DOWN},
        {KT_ROLE_EXPERT_GATE, KT_ROLE_EXPERT_UP, KT_ROLE_EXPERT_DOWN}};
    bool is_moe = map->config->is_moe[layer];
    char name[160];

    memset(out, 0, 3 * sizeof *out);
    kt_family_tensor_name(map->family, KT_ROLE_EXPERTS_GATE_UP, layer, 0, name, sizeof name);
    if (is_moe && kt_checkpoint_find(map->checkpoint, name))
        return fused_expert(map, layer, expert, out, err);
    for (int i = 0; i < 3; i++) KT_TRY(add(map, roles[is_moe][i], layer, expert, &out[i], err));
    return KT_OK;
}

void kt_tensor_map_report(const kt_tensor_map *map, const kt_log *log) {
    size_t n = kt_checkpoint_count(map->checkpoint), unused = 0;
    const char *first = NULL;

    for (size_t i = 0; i < n; i++) {
        if (map->used[i]) continue;
        if (!first) first = kt_checkpoint_at(map->checkpoint, i)->name;
        unused++;
    }
    if (unused)
        kt_log_write(log, KT_LOG_WARN, "loader",
                     "%zu tensors of the checkpoint are not part of %s and are ignored, first '%s'",
                     unused, map->family->name, first);
}
