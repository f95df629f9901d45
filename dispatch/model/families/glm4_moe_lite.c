/* GLM-4.7-Flash: latent attention (dispatch/model/mla.h) without an indexer, one dense layer, then
 * a sigmoid router over small experts beside a shared one. Its config names no scoring_func, which
 * means sigmoid, and no groups. GGUF files are of deepseek_v3's architecture.
 * Source: the published Glm4MoeLiteForCausalLM. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/mla.h"

static kt_status settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers,
                        kt_err *err) {
    ((kt_mla *)numbers)->index_topk = 0;
    return kt_mla_settle(s, m, numbers, err);
}

/* The ids that end a text; which text has which is not certain. */
static const kt_known_token tokens[] = {
    {154880, NULL, 154820}, {154880, NULL, 154827}, {154880, NULL, 154829}};

static const kt_known_hash hashes[] = {
    {154880,
     "cdf5f35325780597efd76153d4d1c16778f766173908894c04afc20108536267",
     2,
     {154822, 154824}}};

const kt_family kt_family_glm4_moe_lite = {.name = "glm4_moe_lite",
                                           .models = "GLM-4.7-Flash",
                                           .types = "glm4_moe_lite",
                                           .archs = "",
                                           .gguf_as = "deepseek2",
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
