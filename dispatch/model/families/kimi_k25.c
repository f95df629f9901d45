/* Kimi-K2.5, K2.6 and K2.7-Code, the language model: Kimi-K2 (dispatch/model/mla.h) inside of a
 * multimodal release, whose text_config and prefix of tensors dispatch/model/nested.h finds. GGUF
 * files of them are of deepseek_v3's architecture. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "dispatch/model/mla.h"

static kt_status settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers,
                        kt_err *err) {
    const char *type = kt_json_string(kt_json_get(s->json, "model_type"), NULL);

    if (type && strcmp(type, "kimi_k2") != 0 && strcmp(type, "deepseek_v3") != 0 &&
        strcmp(type, "kimi_k25") != 0)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%.200s: text_config: model_type '%.40s', expected kimi_k2 or deepseek_v3",
                       s->where, type);
    ((kt_mla *)numbers)->index_topk = 0;
    return kt_mla_settle(s, m, numbers, err);
}

/* The ids are certain, which text has which is not. */
static const kt_known_token tokens[] = {{163840, NULL, 163584}, {163840, NULL, 163585},
                                        {163840, NULL, 163586}, {163840, NULL, 163601},
                                        {163840, NULL, 163605}, {163840, NULL, 163839}};

static const kt_known_hash hashes[] = {
    {163840, "81212dc7cdb7e0c1074ca62c5aeab0d43c9f52b8a737be7b12a777c953027890", 0, {0}}};

const kt_family kt_family_kimi_k25 = {.name = "kimi_k25",
                                      .models = "Kimi-K2.5, K2.6, K2.7-Code",
                                      .types = "kimi_k25",
                                      .archs = "",
                                      .gguf_as = "deepseek2",
                                      .numbers_bytes = sizeof(kt_mla),
                                      .numbers = kt_mla_numbers,
                                      .n_numbers = KT_MLA_NUMBERS,
                                      .settle = settle,
                                      .layer = kt_mla_layer,
                                      .end = kt_mla_end,
                                      .tokens = tokens,
                                      .n_tokens = sizeof tokens / sizeof *tokens,
                                      .hashes = hashes,
                                      .n_hashes = sizeof hashes / sizeof *hashes};
