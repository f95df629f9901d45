/* Model families: what a checkpoint's config means and which tensors it has.
 *
 * One file runtime/model/families/<name>.c defines `const kt_family kt_family_<name>`; the build
 * writes the table. A family reads its config.json into kt_model_config and names its tensors by
 * role; loading, planning and the forward pass are written in terms of config and roles. The forward
 * order is the pre-norm decoder: embedding; for each layer attention (ATTN_NORM, Q, K, V, Q_NORM,
 * K_NORM, O) and feed-forward (FFN_NORM, then ROUTER and experts or GATE, UP, DOWN), each added to
 * the residual; FINAL_NORM; LM_HEAD.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_FAMILY_H
#define KT_RUNTIME_FAMILY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "kernels/formats/int4_import.h"
#include "kt/status.h"

#define KT_MAX_LAYERS 1024
#define KT_MAX_EOS 8
#define KT_MAX_TOPK 64

/* How a checkpoint stores its linear layers (quantization_config). Embedding, lm_head, norms and routers are
 * floats always. */
typedef struct kt_stored {
    kt_weight_format floats; /* KT_W_BF16 or KT_W_F16 */
    kt_weight_format attention,
        experts; /* w4g*, w4zg* or GGUF blocks; KT_W_NONE = floats. Dense layers as experts */
    kt_int4_packing packing;
    int64_t group;
    bool has_zeros; /* zero points are stored */
} kt_stored;

typedef struct kt_model_config {
    int64_t layers, hidden, vocab, max_context;
    int64_t heads, kv_heads, head_dim, rotary_dim;
    int64_t experts, topk;
    int64_t expert_size; /* intermediate size of one expert */
    int64_t dense_size;  /* intermediate size of a dense layer; 0 when there is none */
    bool is_moe[KT_MAX_LAYERS];
    bool normalise_topk; /* divide the chosen router probabilities by their sum */
    bool tied;           /* lm_head is the embedding */
    bool attention_bias; /* q, k, v and o have one */
    double norm_eps, rope_theta;
    int64_t eos[KT_MAX_EOS];
    int n_eos;
    kt_stored stored;
} kt_model_config;

typedef enum kt_role {
    KT_ROLE_EMBED = 0, /* [vocab, hidden] */
    KT_ROLE_FINAL_NORM,
    KT_ROLE_LM_HEAD, /* [vocab, hidden] */
    KT_ROLE_ATTN_NORM,
    KT_ROLE_Q, /* [heads * head_dim, hidden] */
    KT_ROLE_K,
    KT_ROLE_V,
    KT_ROLE_O,      /* [hidden, heads * head_dim] */
    KT_ROLE_Q_BIAS, /* these four only with attention_bias */
    KT_ROLE_K_BIAS,
    KT_ROLE_V_BIAS,
    KT_ROLE_O_BIAS,
    KT_ROLE_Q_NORM,
    KT_ROLE_K_NORM,
    KT_ROLE_FFN_NORM,
    KT_ROLE_ROUTER, /* [experts, hidden] */
    KT_ROLE_GATE,   /* dense layers: [dense_size, hidden] */
    KT_ROLE_UP,
    KT_ROLE_DOWN, /* [hidden, dense_size] */
    KT_ROLE_EXPERT_GATE,
    KT_ROLE_EXPERT_UP,
    KT_ROLE_EXPERT_DOWN,
    KT_ROLE_EXPERTS_GATE_UP, /* fused form: [experts, 2 * expert_size, hidden], gate rows first */
    KT_ROLE_EXPERTS_DOWN,    /* fused form: [experts, hidden, expert_size] */
    KT_ROLE_COUNT
} kt_role;

typedef struct kt_family {
    const char *name; /* config.json "model_type" */
    /* Tensor name of each role; "{l}" stands for the layer, "{e}" for the expert. */
    const char *tensor[KT_ROLE_COUNT];
    /* Read and check config.json; where names the file in messages. */
    kt_status (*configure)(const kt_json *config, const char *where, kt_model_config *out,
                           kt_err *err);
} kt_family;

extern const kt_family *const kt_builtin_families[];
extern const size_t kt_builtin_family_count;

/* Family of a parsed config.json by its "model_type"; the error lists the known ones. */
kt_status kt_family_find(const kt_json *config, const char *where, const kt_family **out,
                         kt_err *err);

/* Name of a role's tensor in layer and expert (ignored where the pattern has none). */
void kt_family_tensor_name(const kt_family *family, kt_role role, int64_t layer, int64_t expert,
                           char *out, size_t out_bytes);

/* Shape of a role's tensor; returns its rank. */
int kt_role_shape(kt_role role, const kt_model_config *config, int64_t shape[3]);

/* Take torch_dtype and quantization_config of a parsed config: AWQ, GPTQ and compressed-tensors with 4
 * bits. Refuses other methods and settings by name. */
kt_status kt_config_read_stored(const kt_json *root, const char *where, kt_stored *out,
                                kt_err *err);

/* Take eos_token_id (a number or a list) of a parsed config when it has one. */
void kt_config_read_eos(const kt_json *root, kt_model_config *config);

#endif
