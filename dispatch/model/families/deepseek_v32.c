/* DeepSeek-V3.2: DeepSeek-V3 whose attention meets only the keys that a small indexer picks
 * (dispatch/model/mla.h). SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "dispatch/model/mla.h"

static kt_status settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers,
                        kt_err *err) {
    if (((kt_mla *)numbers)->index_topk < 1)
        return kt_fail(err, KT_E_FORMAT, "%.200s: no index_topk, expected how many keys are met",
                       s->where);
    return kt_mla_settle(s, m, numbers, err);
}

static const kt_known_token tokens[] = {{129280, "<｜begin▁of▁sentence｜>", 0},
                                        {129280, "<｜end▁of▁sentence｜>", 1}};

static const kt_known_hash hashes[] = {
    {129280, "877081d19cf6996e2c4ff0e1236341e9b7bde288f5311a56a937f0afbbb3aeb5", 1, {0}}};

const kt_family kt_family_deepseek_v32 = {.name = "deepseek_v32",
                                          .models = "DeepSeek-V3.2-Exp, V3.2",
                                          .types = "deepseek_v32",
                                          .archs = "deepseek32",
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
