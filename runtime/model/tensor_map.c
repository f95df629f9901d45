/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/tensor_map.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

kt_status kt_tensor_map_init(kt_tensor_map *map, const kt_checkpoint *checkpoint,
                             const kt_family *family, const kt_model_config *config, bool native,
                             kt_err *err) {
    uint8_t *used = calloc(kt_checkpoint_count(checkpoint) + 1, 1);

    *map = (kt_tensor_map){0};
    if (!used) return kt_fail(err, KT_E_NOMEM, "no memory for the tensor map");
    *map = (kt_tensor_map){.checkpoint = checkpoint,
                           .family = family,
                           .config = config,
                           .native = native,
                           .used = used};
    return KT_OK;
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
    bool is_half = map->config->stored.floats == KT_W_F16;

    if (!map->native || t->dtype == (is_half ? KT_DTYPE_F16 : KT_DTYPE_BF16)) return KT_OK;
    return kt_tensor_fail(map->checkpoint, t, KT_E_UNSUPPORTED, err,
                          "dtype %s has no kernels of its own; use --weights bf16, int8 or int4",
                          kt_dtype_name(t->dtype));
}

/* ---- matrices stored as INT4 or in blocks ---- */

static kt_weight_format stored_format(const kt_tensor_map *map, kt_role role) {
    const kt_stored *stored = &map->config->stored;

    if (role >= KT_ROLE_Q && role <= KT_ROLE_O) return stored->attention;
    return role >= KT_ROLE_GATE && role <= KT_ROLE_EXPERT_DOWN ? stored->experts : KT_W_NONE;
}

/* The tensor named after the matrix, of a type and size. */
static kt_status need_part(kt_tensor_map *map, const char *matrix, const char *part, int64_t d0,
                           int64_t d1, const kt_tensor **out, kt_err *err) {
    const int64_t shape[2] = {d0, d1};
    char name[200];

    snprintf(name, sizeof name, "%s.%s", matrix, part);
    KT_TRY(kt_checkpoint_need(map->checkpoint, name, d1 ? 2 : 1, shape, out, err));
    map->used[*out - kt_checkpoint_at(map->checkpoint, 0)] = 1;
    return KT_OK;
}

static kt_status need_words(kt_tensor_map *map, const char *matrix, const char *part, int64_t d0,
                            int64_t d1, const kt_tensor **out, kt_err *err) {
    KT_TRY(need_part(map, matrix, part, d0, d1, out, err));
    if ((*out)->dtype == KT_DTYPE_I32) return KT_OK;
    return kt_tensor_fail(map->checkpoint, *out, KT_E_UNSUPPORTED, err, "dtype %s, expected I32",
                          kt_dtype_name((*out)->dtype));
}

static kt_status need_scales(kt_tensor_map *map, const char *matrix, const char *part, int64_t d0,
                             int64_t d1, kt_int4_source *s, const kt_tensor **out, kt_err *err) {
    KT_TRY(need_part(map, matrix, part, d0, d1, out, err));
    if (!kt_dtype_is_float((*out)->dtype))
        return kt_tensor_fail(map->checkpoint, *out, KT_E_UNSUPPORTED, err,
                              "dtype %s, expected BF16, F16 or F32", kt_dtype_name((*out)->dtype));
    s->scale_type = (*out)->dtype == KT_DTYPE_BF16  ? KT_W_BF16
                    : (*out)->dtype == KT_DTYPE_F16 ? KT_W_F16
                                                    : KT_W_F32;
    s->scales = (*out)->data;
    return KT_OK;
}

/* compressed-tensors; weight_shape repeats what the config says. */
static kt_status find_rows(kt_tensor_map *map, const char *matrix, kt_int4_source *s,
                           const kt_tensor *t[4], kt_err *err) {
    const int64_t groups = s->k / s->group;
    char name[200];

    KT_TRY(need_words(map, matrix, "weight_packed", s->n, s->k / 8, &t[0], err));
    KT_TRY(need_scales(map, matrix, "weight_scale", s->n, groups, s, &t[1], err));
    if (map->config->stored.has_zeros)
        KT_TRY(need_words(map, matrix, "weight_zero_point", (s->n + 7) / 8, groups, &t[2], err));
    snprintf(name, sizeof name, "%s.weight_shape", matrix);
    if (kt_checkpoint_find(map->checkpoint, name))
        KT_TRY(need_part(map, matrix, "weight_shape", 2, 0, &t[3], err));
    t[3] = NULL;
    return KT_OK;
}

static kt_status find_transposed(kt_tensor_map *map, const char *matrix, kt_int4_source *s,
                                 const kt_tensor *t[4], kt_err *err) {
    const int64_t groups = s->k / s->group;
    const bool is_awq = s->packing == KT_INT4_AWQ;
    char name[200];

    KT_TRY(need_words(map, matrix, "qweight", is_awq ? s->k : s->k / 8, is_awq ? s->n / 8 : s->n,
                      &t[0], err));
    KT_TRY(need_scales(map, matrix, "scales", groups, s->n, s, &t[1], err));
    KT_TRY(need_words(map, matrix, "qzeros", groups, s->n / 8, &t[2], err));
    snprintf(name, sizeof name, "%s.g_idx", matrix);
    if (is_awq || !kt_checkpoint_find(map->checkpoint, name)) return KT_OK;
    return need_words(map, matrix, "g_idx", s->k, 0, &t[3], err);
}

static kt_status add_int4(kt_tensor_map *map, kt_role role, int64_t layer, int64_t expert,
                          kt_matrix_source *out, kt_err *err) {
    const kt_stored *stored = &map->config->stored;
    const kt_tensor *t[4] = {NULL};
    kt_int4_source s = {.group = stored->group, .packing = stored->packing};
    int64_t shape[3];
    char matrix[160];
    size_t size;

    kt_role_shape(role, map->config, shape);
    kt_family_tensor_name(map->family, role, layer, expert, matrix, sizeof matrix);
    size = strlen(matrix);
    if (size > 7 && strcmp(matrix + size - 7, ".weight") == 0) matrix[size - 7] = '\0';
    s.n = shape[0], s.k = shape[1];
    if (s.k % s.group || s.n % 8)
        return kt_fail(err, KT_E_UNSUPPORTED, "'%s': %lld x %lld weights in groups of %lld", matrix,
                       (long long)s.n, (long long)s.k, (long long)s.group);
    KT_TRY(s.packing == KT_INT4_ROWS ? find_rows(map, matrix, &s, t, err)
                                     : find_transposed(map, matrix, &s, t, err));
    s.packed = t[0]->data;
    s.zeros = t[2] ? t[2]->data : NULL;
    s.group_index = t[3] ? t[3]->data : NULL;
    if (kt_int4_import_format(&s) != stored_format(map, role))
        return kt_tensor_fail(map->checkpoint, t[1], KT_E_MISMATCH, err,
                              "scales of type %s, expected the torch_dtype of config.json",
                              kt_dtype_name(t[1]->dtype));
    kt_matrix_source_add_int4(out, &s, t[0], t + 1);
    return KT_OK;
}

/* Blocks as they lie in GGUF files: rows of bytes. */
static kt_status add_blocks(kt_tensor_map *map, const kt_format *format, kt_role role,
                            int64_t layer, int64_t expert, kt_matrix_source *s, kt_err *err) {
    const kt_tensor *t;
    int64_t shape[3], k;
    char name[160];

    kt_role_shape(role, map->config, shape);
    k = shape[1];
    shape[1] = k / format->block * format->block_bytes;
    kt_family_tensor_name(map->family, role, layer, expert, name, sizeof name);
    KT_TRY(kt_checkpoint_need(map->checkpoint, name, 2, shape, &t, err));
    if (t->dtype != KT_DTYPE_U8)
        return kt_tensor_fail(map->checkpoint, t, KT_E_UNSUPPORTED, err,
                              "dtype %s, expected U8 with blocks of %s", kt_dtype_name(t->dtype),
                              format->name);
    map->used[t - kt_checkpoint_at(map->checkpoint, 0)] = 1;
    kt_matrix_source_add_blocks(s, format->id, t, k);
    return KT_OK;
}

static kt_status add(kt_tensor_map *map, kt_role role, int64_t layer, int64_t expert,
                     kt_matrix_source *s, kt_err *err) {
    const kt_format *format = kt_format_find(stored_format(map, role));
    const kt_tensor *t;

    if (format && format->block_bytes) return add_blocks(map, format, role, layer, expert, s, err);
    if (stored_format(map, role) != KT_W_NONE) return add_int4(map, role, layer, expert, s, err);
    KT_TRY(kt_tensor_map_need(map, role, layer, expert, &t, err));
    KT_TRY(check_native(map, t, err));
    kt_matrix_source_add(s, t, 0, t->shape[0]);
    return KT_OK;
}

/* Find the importance of a matrix's inputs; q stands for k and v, which have the same. */
static kt_status find_importance(const kt_tensor_map *map, kt_role role, int64_t layer,
                                 int64_t expert, kt_matrix_source *s, kt_err *err) {
    const int64_t shape[1] = {s->k};
    const kt_tensor *t;
    const float *x;
    char name[160];

    if (!map->importance) return KT_OK;
    kt_family_tensor_name(map->family, role, layer, expert, name, sizeof name);
    KT_TRY(kt_checkpoint_need(map->importance, name, 1, shape, &t, err));
    if (t->dtype != KT_DTYPE_F32 || (uintptr_t)t->data % sizeof(float) != 0)
        return kt_tensor_fail(map->importance, t, KT_E_FORMAT, err,
                              "dtype %s, expected F32, aligned", kt_dtype_name(t->dtype));
    x = (const float *)(const void *)t->data;
    for (int64_t i = 0; i < s->k; i++)
        if (!(x[i] >= 0 && isfinite(x[i])))
            return kt_tensor_fail(map->importance, t, KT_E_FORMAT, err,
                                  "input %lld has %g, expected a mean of squares", (long long)i,
                                  x[i]);
    s->importance = x;
    return KT_OK;
}

kt_status kt_tensor_map_linear(kt_tensor_map *map, kt_role role, int64_t layer,
                               kt_matrix_source *out, kt_err *err) {
    *out = (kt_matrix_source){.allows_nonfinite = map->allows_nonfinite};
    KT_TRY(add(map, role, layer, 0, out, err));
    return find_importance(map, role, layer, 0, out, err);
}

kt_status kt_tensor_map_qkv(kt_tensor_map *map, int64_t layer, kt_matrix_source *out, kt_err *err) {
    *out = (kt_matrix_source){.allows_nonfinite = map->allows_nonfinite};
    KT_TRY(add(map, KT_ROLE_Q, layer, 0, out, err));
    KT_TRY(add(map, KT_ROLE_K, layer, 0, out, err));
    KT_TRY(add(map, KT_ROLE_V, layer, 0, out, err));
    return find_importance(map, KT_ROLE_Q, layer, 0, out, err);
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

    for (int i = 0; i < 3; i++)
        out[i] = (kt_matrix_source){.allows_nonfinite = map->allows_nonfinite};
    kt_family_tensor_name(map->family, KT_ROLE_EXPERTS_GATE_UP, layer, 0, name, sizeof name);
    if (is_moe && map->config->stored.experts == KT_W_NONE &&
        kt_checkpoint_find(map->checkpoint, name))
        KT_TRY(fused_expert(map, layer, expert, out, err));
    else
        for (int i = 0; i < 3; i++) KT_TRY(add(map, roles[is_moe][i], layer, expert, &out[i], err));
    for (int i = 0; i < 3; i++)
        KT_TRY(find_importance(map, roles[is_moe][i], layer, expert, &out[i], err));
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
