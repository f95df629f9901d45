/* GLM-5, 5.1 and 5.2: latent attention that meets only the keys that a small indexer picks
 * (dispatch/model/mla.h), as DeepSeek-V3.2, but the indexer's rotation is interleaved too, and most
 * layers of GLM-5.2 have no indexer: they meet what the nearest layer before with one picked for
 * the same token. Source: the published GlmMoeDsaForCausalLM.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/mla.h"

/* Files that say nothing of the kinds of layers: with a context of this many tokens they are of
 * GLM-5.2, whose layers 0, 1, 2 and then every fourth have an indexer; others have one in each. */
#define SHARED_FROM_CONTEXT 1048576
#define SHARED_EVERY 4
#define SHARED_OFFSET 3

static bool is_full(int64_t layer, int64_t every, int64_t offset) {
    const int64_t at = layer - offset + 1;

    return (at > 0 ? at : 0) % every == 0;
}

static kt_status refuse_kinds(const kt_config_source *s, const char *key, size_t found,
                              const kt_model_numbers *m, kt_err *err) {
    return kt_fail(err, KT_E_FORMAT, "%.200s: %s has %zu entries for %lld layers", s->where, key,
                   found, (long long)m->layers);
}

/* "indexer_types": ["full", "shared", ...] */
static kt_status read_types(const kt_config_source *s, const kt_model_numbers *m,
                            const kt_json *types, kt_mla *c, kt_err *err) {
    if (kt_json_length(types) < (size_t)m->layers)
        return refuse_kinds(s, "indexer_types", kt_json_length(types), m, err);
    for (int64_t i = 0; i < m->layers; i++) {
        const char *word = kt_json_string(kt_json_at(types, (size_t)i), NULL);
        const char *type = word ? word : "";
        c->repeats_index[i] = strcmp(type, "shared") == 0;
        if (!c->repeats_index[i] && strcmp(type, "full") != 0)
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "%.200s: indexer_types[%lld] is '%.40s', expected 'full' or 'shared'",
                           s->where, (long long)i, type);
    }
    return KT_OK;
}

/* "index_topk_pattern": "FSSF..." */
static kt_status read_pattern(const kt_config_source *s, const kt_model_numbers *m,
                              const char *pattern, kt_mla *c, kt_err *err) {
    if (strlen(pattern) < (size_t)m->layers)
        return refuse_kinds(s, "index_topk_pattern", strlen(pattern), m, err);
    for (int64_t i = 0; i < m->layers; i++) {
        c->repeats_index[i] = pattern[i] == 'S';
        if (pattern[i] != 'S' && pattern[i] != 'F')
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "%.200s: index_topk_pattern has '%c', expected F and S", s->where,
                           pattern[i]);
    }
    return KT_OK;
}

/* By the list, by the pattern, or every freq-th layer; else all layers have an indexer. */
static kt_status read_json_kinds(const kt_config_source *s, const kt_model_numbers *m, kt_mla *c,
                                 kt_err *err) {
    const kt_json *types = kt_json_get(s->json, "indexer_types");
    const char *pattern = kt_json_string(kt_json_get(s->json, "index_topk_pattern"), NULL);
    const int64_t every = kt_json_int(kt_json_get(s->json, "index_topk_freq"), 1);
    const int64_t offset = kt_json_int(kt_json_get(s->json, "index_skip_topk_offset"), 1);

    if (kt_json_type_of(types) != KT_JSON_NULL) return read_types(s, m, types, c, err);
    if (pattern) return read_pattern(s, m, pattern, c, err);
    if (every < 1 || every > KT_MAX_LAYERS || offset < 0 || offset > KT_MAX_LAYERS)
        return kt_fail(err, KT_E_FORMAT,
                       "%.200s: index_topk_freq %lld with offset %lld, expected 1 or more and 0 or "
                       "more",
                       s->where, (long long)every, (long long)offset);
    for (int64_t i = 0; i < m->layers; i++) c->repeats_index[i] = !is_full(i, every, offset);
    return KT_OK;
}

static kt_status read_gguf_kinds(const kt_config_source *s, const kt_model_numbers *m, kt_mla *c,
                                 kt_err *err) {
    const kt_gguf_value *types;
    char key[128];

    snprintf(key, sizeof key, "%.60s.attention.indexer.types", s->arch);
    if (!kt_gguf_find(s->gguf, key)) {
        for (int64_t i = 0; i < m->layers && m->max_context >= SHARED_FROM_CONTEXT; i++)
            c->repeats_index[i] = !is_full(i, SHARED_EVERY, SHARED_OFFSET);
        return KT_OK;
    }
    KT_TRY(kt_gguf_need_array(s->gguf, key, KT_GGUF_BOOL, &types, err));
    if (types->count < (uint64_t)m->layers)
        return refuse_kinds(s, key, (size_t)types->count, m, err);
    for (int64_t i = 0; i < m->layers; i++) c->repeats_index[i] = !types->data[i];
    return KT_OK;
}

static kt_status settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers,
                        kt_err *err) {
    kt_mla *c = numbers;

    if (c->index_topk < 1)
        return kt_fail(err, KT_E_FORMAT, "%.200s: no index_topk, expected how many keys are met",
                       s->where);
    if (c->moe.groups < 1) c->moe.groups = c->moe.top_groups = 1; /* whatever the experts' number */
    KT_TRY(s->json ? read_json_kinds(s, m, c, err) : read_gguf_kinds(s, m, c, err));
    if (c->repeats_index[0])
        return kt_fail(err, KT_E_FORMAT,
                       "%.200s: the first layer has no indexer, and none is before it", s->where);
    c->is_index_interleaved = kt_json_bool(kt_json_get(s->json, "indexer_rope_interleave"), true);
    return kt_mla_settle(s, m, numbers, err);
}

/* The ids that end a text; which text has which is not certain. */
static const kt_known_token tokens[] = {
    {154880, NULL, 154820}, {154880, NULL, 154827}, {154880, NULL, 154829}};

const kt_family kt_family_glm_moe_dsa = {.name = "glm_moe_dsa",
                                         .models = "GLM-5, 5.1, 5.2",
                                         .types = "glm_moe_dsa",
                                         .archs = "glm-dsa",
                                         .numbers_bytes = sizeof(kt_mla),
                                         .numbers = kt_mla_numbers,
                                         .n_numbers = KT_MLA_NUMBERS,
                                         .settle = settle,
                                         .layer = kt_mla_layer,
                                         .end = kt_mla_end,
                                         .draft = kt_mla_draft,
                                         .tokens = tokens,
                                         .n_tokens = sizeof tokens / sizeof *tokens};
