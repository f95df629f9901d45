/* DeepSeek-V3, V3-0324, V3.1, R1 and Kimi-K2: latent attention (dispatch/model/mla.h). GGUF files of V3.2 that were
 * converted without its indexer are of this architecture too: they attend to every key.
 * SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/mla.h"

/* No indexer, whatever the file says. */
static kt_status settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers,
                        kt_err *err) {
    ((kt_mla *)numbers)->index_topk = 0;
    return kt_mla_settle(s, m, numbers, err);
}

const kt_family kt_family_deepseek_v3 = {.name = "deepseek_v3",
                                         .types = "deepseek_v3|kimi_k2",
                                         .archs = "deepseek2",
                                         .numbers_bytes = sizeof(kt_mla),
                                         .numbers = kt_mla_numbers,
                                         .n_numbers = KT_MLA_NUMBERS,
                                         .settle = settle,
                                         .layer = kt_mla_layer,
                                         .end = kt_mla_end};
