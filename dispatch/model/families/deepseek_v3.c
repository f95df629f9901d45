/* DeepSeek-V3, V3-0324, V3.1, R1 and Kimi-K2: latent attention (dispatch/model/mla.h). GGUF
 * files of Kimi-K2.5 and GLM-4.7-Flash are of this architecture too, and those of V3.2 that were
 * converted without its indexer: they attend to every key. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/mla.h"

/* No indexer, whatever the file says. */
static kt_status settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers,
                        kt_err *err) {
    ((kt_mla *)numbers)->index_topk = 0;
    return kt_mla_settle(s, m, numbers, err);
}

/* Of Kimi-K2 the ids are certain, which text has which is not. */
static const kt_known_token tokens[] = {{129280, "<｜begin▁of▁sentence｜>", 0},
                                        {129280, "<｜end▁of▁sentence｜>", 1},
                                        {163840, NULL, 163584},
                                        {163840, NULL, 163586},
                                        {163840, NULL, 163601},
                                        {163840, NULL, 163839},
                                        {154880, NULL, 154820}, /* GLM-4.7-Flash as GGUF */
                                        {154880, NULL, 154827},
                                        {154880, NULL, 154829}};

static const kt_known_hash hashes[] = {
    {129280, "877081d19cf6996e2c4ff0e1236341e9b7bde288f5311a56a937f0afbbb3aeb5", 1, {0}},
    {163840, "81212dc7cdb7e0c1074ca62c5aeab0d43c9f52b8a737be7b12a777c953027890", 0, {0}},
    {154880,
     "cdf5f35325780597efd76153d4d1c16778f766173908894c04afc20108536267",
     2,
     {154822, 154824}}};

const kt_family kt_family_deepseek_v3 = {
    .name = "deepseek_v3",
    .models = "DeepSeek-V3, V3-0324, V3.1, R1, Kimi-K2-Instruct, Kimi-K2-Thinking",
    .types = "deepseek_v3|kimi_k2",
    .archs = "deepseek2",
    .numbers_bytes = sizeof(kt_mla),
    .numbers = kt_mla_numbers,
    .n_numbers = KT_MLA_NUMBERS,
    .settle = settle,
    .layer = kt_mla_layer,
    .end = kt_mla_end,
    .draft = kt_mla_draft,
    .tokens = tokens,
    .n_tokens = sizeof tokens / sizeof *tokens,
    .hashes = hashes,
    .n_hashes = sizeof hashes / sizeof *hashes};
