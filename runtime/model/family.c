/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/family.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"

kt_status kt_family_find(const kt_json *config, const char *where, const kt_family **out,
                         kt_err *err) {
    const char *type;
    char known[256] = "";

    *out = NULL;
    KT_TRY(kt_json_need_string(config, "model_type", where, &type, err));
    for (size_t i = 0; i < kt_builtin_family_count; i++) {
        size_t used = strlen(known);
        if (strcmp(kt_builtin_families[i]->name, type) == 0) {
            *out = kt_builtin_families[i];
            return KT_OK;
        }
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "",
                 kt_builtin_families[i]->name);
    }
    return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: model_type '%.60s' is not supported (known: %s)",
                   where, type, known);
}

void kt_family_tensor_name(const kt_family *family, kt_role role, int64_t layer, int64_t expert,
                           char *out, size_t out_bytes) {
    const char *p = family->tensor[role];
    size_t used = 0;

    while (*p && used + 1 < out_bytes) {
        int written;
        if (strncmp(p, "{l}", 3) != 0 && strncmp(p, "{e}", 3) != 0) {
            out[used++] = *p++;
            continue;
        }
        written = snprintf(out + used, out_bytes - used, "%lld",
                           (long long)(p[1] == 'l' ? layer : expert));
        used += (size_t)written < out_bytes - used ? (size_t)written : out_bytes - used - 1;
        p += 3;
    }
    if (out_bytes) out[used] = '\0';
}

int kt_role_shape(kt_role role, const kt_model_config *c, int64_t shape[3]) {
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const struct {
        int rank;
        int64_t size[3];
    } shapes[KT_ROLE_COUNT] = {
        [KT_ROLE_EMBED] = {2, {c->vocab, c->hidden, 0}},
        [KT_ROLE_FINAL_NORM] = {1, {c->hidden, 0, 0}},
        [KT_ROLE_LM_HEAD] = {2, {c->vocab, c->hidden, 0}},
        [KT_ROLE_ATTN_NORM] = {1, {c->hidden, 0, 0}},
        [KT_ROLE_Q] = {2, {q, c->hidden, 0}},
        [KT_ROLE_K] = {2, {kv, c->hidden, 0}},
        [KT_ROLE_V] = {2, {kv, c->hidden, 0}},
        [KT_ROLE_O] = {2, {c->hidden, q, 0}},
        [KT_ROLE_Q_BIAS] = {1, {q, 0, 0}},
        [KT_ROLE_K_BIAS] = {1, {kv, 0, 0}},
        [KT_ROLE_V_BIAS] = {1, {kv, 0, 0}},
        [KT_ROLE_O_BIAS] = {1, {c->hidden, 0, 0}},
        [KT_ROLE_Q_NORM] = {1, {c->head_dim, 0, 0}},
        [KT_ROLE_K_NORM] = {1, {c->head_dim, 0, 0}},
        [KT_ROLE_FFN_NORM] = {1, {c->hidden, 0, 0}},
        [KT_ROLE_ROUTER] = {2, {c->experts, c->hidden, 0}},
        [KT_ROLE_GATE] = {2, {c->dense_size, c->hidden, 0}},
        [KT_ROLE_UP] = {2, {c->dense_size, c->hidden, 0}},
        [KT_ROLE_DOWN] = {2, {c->hidden, c->dense_size, 0}},
        [KT_ROLE_EXPERT_GATE] = {2, {c->expert_size, c->hidden, 0}},
        [KT_ROLE_EXPERT_UP] = {2, {c->expert_size, c->hidden, 0}},
        [KT_ROLE_EXPERT_DOWN] = {2, {c->hidden, c->expert_size, 0}},
        [KT_ROLE_EXPERTS_GATE_UP] = {3, {c->experts, 2 * c->expert_size, c->hidden}},
        [KT_ROLE_EXPERTS_DOWN] = {3, {c->experts, c->hidden, c->expert_size}},
    };

    memcpy(shape, shapes[role].size, sizeof shapes[role].size);
    return shapes[role].rank;
}

void kt_config_read_eos(const kt_json *root, kt_model_config *config) {
    const kt_json *eos = kt_json_get(root, "eos_token_id");
    int n = 0;

    if (kt_json_is_integer(eos)) {
        config->eos[0] = kt_json_int(eos, -1);
        config->n_eos = 1;
        return;
    }
    for (size_t i = 0; i < kt_json_length(eos) && n < KT_MAX_EOS; i++) {
        const kt_json *item = kt_json_at(eos, i);
        if (kt_json_is_integer(item)) config->eos[n++] = kt_json_int(item, -1);
    }
    if (n) config->n_eos = n;
}
