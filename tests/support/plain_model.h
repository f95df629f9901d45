/* Random checkpoints of families in their published spelling, and their forward pass written out in
 * double from the published formulas: plain loops over the numbers that were drawn, no code shared
 * with the engine, its graph or its loader. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_PLAIN_MODEL_H
#define KT_TESTS_PLAIN_MODEL_H

#include <stdbool.h>
#include <stdint.h>

typedef enum kt_plain_family {
    KT_PLAIN_MINIMAX_M2,
    KT_PLAIN_GLM4_MOE,
    KT_PLAIN_DEEPSEEK_V3,
    KT_PLAIN_KIMI_K2,
    KT_PLAIN_DEEPSEEK_V32,
    KT_PLAIN_QWEN3_NEXT,
    KT_PLAIN_GLM4_LITE,
    KT_PLAIN_GLM_DSA,
    KT_PLAIN_KIMI_K25,
    KT_PLAIN_QWEN3_5,
    KT_PLAIN_DEEPSEEK_V4,
    KT_PLAIN_QWEN3_MOE
} kt_plain_family;

/* Sizes; those that a family does not have stay 0. */
typedef struct kt_plain_shape {
    kt_plain_family family;
    int64_t layers, hidden, vocab;
    int64_t context;                           /* max_position_embeddings; 0 = 256 */
    int64_t heads, kv_heads, head_dim, rotary; /* grouped-query attention; rotary: of head_dim */
    int64_t q_lora, kv_lora, nope, rope, v;    /* latent attention; q_lora 0 = none */
    int64_t index_heads, index_dim, index_topk;
    const char *indexers; /* by layer: F has one, S meets what the last one picked; NULL = all F */
    int64_t key_heads, value_heads, key_dim, value_dim; /* DeltaNet, kernel 4 */
    int64_t full_every;                                 /* every so many layers are attention */
    int64_t experts, topk, expert_size, shared_size, dense_size, dense_layers;
    int64_t groups, top_groups;
    double scaling;   /* routed_scaling_factor */
    double theta;     /* of RoPE */
    double yarn;      /* factor, or 0; original length 16, betas 4 and 1 */
    bool has_qk_norm; /* of GLM */
    bool is_tied;
    /* DeepSeek-V4: by layer tokens that an entry stands for; the clamp of SwiGLU; layers whose
     * experts the token says; keys that a row sees as they are; groups and sizes of o's halves. */
    int64_t ratio[4], hash_layers, window, o_groups, o_lora;
    double limit;
    bool has_draft; /* a draft head (MTP), as the release spells it */
} kt_plain_shape;

typedef struct kt_plain_model kt_plain_model;

/* Draw weights (values of BF16) and write config.json and model.safetensors into folder. Never
 * fails (aborts the test process). */
kt_plain_model *kt_plain_create(const kt_plain_shape *shape, uint64_t seed, const char *folder);
void kt_plain_destroy(kt_plain_model *m);
const kt_plain_shape *kt_plain_shape_of(const kt_plain_model *m); /* borrowed */

/* What disturbs the inputs of linear layers, queries, keys and values. */
typedef enum kt_plain_noise {
    KT_PLAIN_EXACT,
    KT_PLAIN_BF16,   /* rounded to BF16, as the engine does */
    KT_PLAIN_COARSE, /* moved at random by up to 2^-7, twice what BF16 does */
    /* Inputs of linear layers as INT8 under a power of two per 16, which is what engines take for
     * weights of few bits; the rest as BF16. And moved at random by up to twice as much. */
    KT_PLAIN_INT8,
    KT_PLAIN_INT8_COARSE
} kt_plain_noise;

/* logits [n, vocab]. choices: a digest of everything that was selected (experts, sparse keys) at
 * each position [n]. */
void kt_plain_forward(const kt_plain_model *m, const int32_t *tokens, int64_t n,
                      kt_plain_noise noise, uint64_t seed, double *logits, uint64_t *choices);
/* The draft head's logits [n - 1, vocab]: of position t, given what the model made of tokens 0 to t
 * and token t + 1. */
void kt_plain_draft(const kt_plain_model *m, const int32_t *tokens, int64_t n, kt_plain_noise noise,
                    uint64_t seed, double *logits, uint64_t *choices);
/* And once more behind its last row, from what the layer made of that: logits [vocab] of position n
 * - 1, given the token `drafted` behind the last of tokens. choices [n]. */
void kt_plain_draft_next(const kt_plain_model *m, const int32_t *tokens, int64_t n, int32_t drafted,
                         kt_plain_noise noise, uint64_t seed, double *logits, uint64_t *choices);

#endif
