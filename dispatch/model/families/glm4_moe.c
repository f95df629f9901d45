/* GLM-4.5, 4.6 and 4.7: grouped-query attention with biases, optional norm of q and k, half of
 * each head rotated; dense layers first, then a sigmoid router over experts beside a shared one.
 * Source: the published Glm4MoeForCausalLM. SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "base/err.h"
#include "dispatch/model/draft_head.h"
#include "dispatch/model/moe.h"

typedef struct glm4 {
    kt_gqa_numbers attention;
    kt_moe_numbers moe;
    bool is_tied, has_qk_norm;
} glm4;

static const kt_number numbers[] = {
    KT_GQA_NUMBERS(glm4, attention),
    KT_MOE_NUMBERS(glm4, moe),
    {offsetof(glm4, is_tied), KT_NUMBER_BOOL, "tie_word_embeddings", NULL, 0, 0, 1},
    {offsetof(glm4, has_qk_norm), KT_NUMBER_BOOL, "use_qk_norm", NULL, 0, 0, 1}};

static kt_status settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers_,
                        kt_err *err) {
    glm4 *c = numbers_;

    KT_TRY(kt_gqa_settle(s, m, &c->attention, err));
    KT_TRY(kt_rotation_read(s, c->attention.dim, 0.5, &c->attention.rotation, err));
    c->attention.qk_norm = c->has_qk_norm ? KT_QK_NORM_HEAD : KT_QK_NORM_NONE;
    KT_TRY(kt_need_score(s, "sigmoid", 2, err));
    KT_TRY(kt_moe_settle(s, &c->moe, err));
    return kt_need_silu(s, err);
}

static void layer(kt_build *b, const void *numbers_, int l) {
    const glm4 *c = numbers_;
    kt_gqa_numbers attention = c->attention;
    kt_view x = kt_residual(b), h, o;

    if (kt_has(b, (kt_name){"self_attn.q_norm.weight", "attn_q_norm.weight"}))
        attention.qk_norm = KT_QK_NORM_HEAD;
    h = kt_rms(b, x, KT_VEC("input_layernorm.weight", "attn_norm.weight", x.width), attention.eps);
    o = kt_gqa(b, h, &attention);
    kt_linear_into(b, "o", x, o, KT_MAT("self_attn.o_proj", "attn_output", x.width, o.width));
    h = kt_rms(b, x,
               KT_VEC("post_attention_layernorm.weight", "post_attention_norm.weight", x.width),
               attention.eps);
    kt_moe_half(b, x, h, &c->moe, l);
}

static void draft(kt_build *b, const void *numbers_, int l, int64_t declared) {
    const kt_draft_head head = kt_draft_head_usual(b, ((const glm4 *)numbers_)->attention.eps);

    if (!kt_draft_head_is_there(b, &head, declared)) return;
    kt_draft_begin(b, &head);
    layer(b, numbers_, l);
    kt_draft_end(b, &head);
}

static void end(kt_build *b, const void *numbers_) {
    const glm4 *c = numbers_;

    kt_head(b, KT_VEC("model.norm.weight", "output_norm.weight", kt_residual(b).width),
            c->attention.eps, c->is_tied);
}

static const kt_known_token tokens[] = {{151552, "<|endoftext|>", 151329},
                                        {151552, "<|user|>", 151336},
                                        {151552, "<|observation|>", 151338}};

static const kt_known_hash hashes[] = {
    {151552,
     "9ca2dd618e8afaf09731a7cf6e2105b373ba6a1821559f258b272fe83e6eb902",
     2,
     {151331, 151333}},
    {151552,
     "a1336059768a55c99a734006ffb02203cd450fed003e9a71886c88acf24fdbc2",
     2,
     {151331, 151333}}};

const kt_family kt_family_glm4_moe = {.name = "glm4_moe",
                                      .models = "GLM-4.5, GLM-4.6, GLM-4.7",
                                      .types = "glm4_moe",
                                      .archs = "glm4moe",
                                      .numbers_bytes = sizeof(glm4),
                                      .numbers = numbers,
                                      .n_numbers = sizeof numbers / sizeof *numbers,
                                      .settle = settle,
                                      .layer = layer,
                                      .end = end,
                                      .draft = draft,
                                      .tokens = tokens,
                                      .n_tokens = sizeof tokens / sizeof *tokens,
                                      .hashes = hashes,
                                      .n_hashes = sizeof hashes / sizeof *hashes};
