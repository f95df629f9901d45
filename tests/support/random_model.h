/* Random Qwen3-MoE checkpoints of any shape. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_RANDOM_MODEL_H
#define KT_TESTS_RANDOM_MODEL_H

#include <stdint.h>

#include "dispatch/model/checkpoint.h"

typedef struct kt_model_shape {
    int64_t layers, hidden, vocab, heads, kv_heads, head_dim;
    int64_t experts, topk, expert_size, dense_size;
    int64_t sparse_step;  /* 0 counts as 1 */
    int64_t dense_layer;  /* one entry of mlp_only_layers; -1 = none */
    int is_fused;         /* experts in two tensors per layer */
    int is_tied;          /* no lm_head */
    int is_normalised;    /* norm_topk_prob */
    int has_bias;         /* attention_bias */
    kt_dtype dtype;       /* of all tensors: BF16, F16 or F32 (values are BF16 anyway) */
    const char *extra;    /* more members of config.json, with a comma in front, or NULL */
    const char *left_out; /* a tensor not to write, or NULL */
    kt_dtype odd_dtype;   /* dtype of the tensor odd_name */
    const char *odd_name;
} kt_model_shape;

/* Write config.json and model.safetensors into folder. Never fails (aborts the test process). */
void kt_random_model(const kt_model_shape *shape, uint64_t seed, const char *folder);

#endif
