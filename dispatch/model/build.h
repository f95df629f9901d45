/* The verbs with which a family's file writes a model down, in the order of the paper.
 *
 * Names are relative to the layer: "model.layers.{l}." and "blk.{l}." are put before them inside
 * a layer, and ".weight" behind those of matrices. An error sticks: verbs after it do nothing,
 * and kt_graph_build reports it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_BUILD_H
#define KT_DISPATCH_BUILD_H

#include "dispatch/model/family.h"

typedef struct kt_mat {
    kt_name name;
    int64_t n, k;
} kt_mat;

typedef struct kt_vec {
    kt_name name; /* whole: with ".weight" or ".bias" */
    int64_t n;
    bool one_plus, negative_exp;
    int64_t taps;
    int64_t rows, step, at, ids; /* kt_weight */
} kt_vec;

#define KT_MAT(json, gguf, n, k) ((kt_mat){{json, gguf}, n, k})
#define KT_VEC(json, gguf, n_) ((kt_vec){.name = {json, gguf}, .n = (n_)})
/* Rows of numbers that are used as they are: [rows, k]. */
#define KT_VEC_ROWS(json, gguf, rows_, k_) \
    ((kt_vec){.name = {json, gguf}, .n = (rows_) * (k_), .rows = (rows_)})
/* A norm whose safetensors hold w - 1; GGUF files hold w. */
#define KT_VEC_PLUS(json, gguf, n_) ((kt_vec){.name = {json, gguf}, .n = (n_), .one_plus = true})

/* Experts [count] of intermediate size n over inputs k; names with {e}, GGUF's are of the
 * stacks. */
typedef struct kt_expert_set {
    const char *role;
    kt_name gate, up, down;
    kt_name fused_gate_up,
        fused_down; /* one tensor for all experts; NULL = none (down of GGUF: the stack) */
    int64_t count, n, k;
    bool is_fused_transposed;             /* kt_weight */
    kt_glu_rule glu;                      /* left out: silu(gate) * up */
    kt_vec gate_bias, up_bias, down_bias; /* [count * n], [count * n], [count * k]; n = 0: none */
} kt_expert_set;

/* Is the tensor there? False when no checkpoint is known. */
bool kt_has(const kt_build *b, kt_name whole_name);
bool kt_is_gguf(const kt_build *b);

kt_view kt_residual(const kt_build *b);

/* norm(x) * w. */
kt_view kt_rms(kt_build *b, kt_view x, kt_vec w, double eps);

/* n matrices of one input, side by side in one value; out[n] are their columns. */
void kt_linear(kt_build *b, const char *role, kt_view x, int n, const kt_mat *mats, kt_view *out);
/* residual += W x. */
void kt_linear_into(kt_build *b, const char *role, kt_view to, kt_view x, kt_mat w);
void kt_bias(kt_build *b, kt_view x, kt_vec w);
/* Norm of each `size` columns of x; size = x.width: of all together. w.n = 0: without weights. */
void kt_rms_heads(kt_build *b, kt_view x, int64_t size, kt_vec w, double eps);
/* Rotate each head of `size` columns; and back. */
void kt_rope(kt_build *b, kt_view x, int64_t size, const kt_rope_rule *rotation);
void kt_rope_back(kt_build *b, kt_view x, int64_t size, const kt_rope_rule *rotation);
/* Keep rows: heads of k columns each, and of v. v.width = 0: values are the beginning of keys.
 * Returns the plane. */
int kt_keep(kt_build *b, kt_view k, kt_view v, int64_t heads);
kt_view kt_attend(kt_build *b, kt_view q, int plane, const kt_attention *attention);
/* With a score per head that takes part in each row's softmax as a key without a value does. */
kt_view kt_attend_sinks(kt_build *b, kt_view q, int plane, const kt_attention *attention,
                        kt_vec sinks);
/* Each head of x (x.width / heads numbers, the first k of them inputs) by a matrix of its own,
 * then `tail` numbers behind the inputs as they are: heads of n + tail numbers. */
typedef struct kt_head_mats {
    const char *role;
    kt_name name;
    int64_t heads, n, k, tail;
    int64_t head_rows, head_at; /* kt_weight */
    bool is_transposed;
} kt_head_mats;
kt_view kt_linear_heads(kt_build *b, kt_view x, const kt_head_mats *mats);
/* Latent attention: queries through `keys`, attention over the plane's rows, results through
 * `values`; or, of many rows, the same with the keys and values that both make of those rows. */
kt_view kt_attend_latent(kt_build *b, kt_view q, int plane, const kt_attention *attention,
                         const kt_head_mats *keys, const kt_head_mats *values);

/* LayerNorm of x in place. */
void kt_layer_norm(kt_build *b, kt_view x, kt_vec w, kt_vec bias, double eps);
/* Attention over the keys that the index picks; its keys are kept beside the plane's rows. */
kt_view kt_attend_sparse(kt_build *b, kt_view q, int plane, const kt_attention *attention,
                         const kt_index_rule *index);
/* Attention over the plane's rows of those tokens that the last kt_attend_sparse before picked. */
kt_view kt_attend_repeated(kt_build *b, kt_view q, int plane, const kt_attention *attention);

/* Attention over the blocks of keys that the index picks for each kv head. */
kt_view kt_attend_blocks(kt_build *b, kt_view q, int plane, const kt_attention *attention,
                         const kt_index_rule *index);

/* x *= sigmoid(g). */
void kt_gate(kt_build *b, kt_view x, kt_view g);
/* bias.n = 0: none. */
void kt_route(kt_build *b, kt_view x, kt_mat w, kt_vec bias, const kt_routing_rule *rule);
/* The token alone says which experts, `ids` [vocab, topk]; x says their weights. */
void kt_route_hashed(kt_build *b, kt_view x, kt_mat w, kt_vec ids, const kt_routing_rule *rule);
/* to += the routed experts of x. */
void kt_experts(kt_build *b, kt_view to, kt_view x, const kt_expert_set *set, int64_t topk);
/* to += feed-forward of x: one expert that every row goes to. */
void kt_ffn(kt_build *b, kt_view to, kt_view x, const kt_expert_set *set);
/* The same times a number per row (kt_dot). */
void kt_ffn_gated(kt_build *b, kt_view to, kt_view x, kt_view gate, const kt_expert_set *set);
/* sigmoid(w . x) of each row. */
kt_view kt_dot(kt_build *b, kt_view x, kt_vec w);
/* Columns of x, `groups` groups of n parts each, sorted by part; out[n] are the parts' columns. */
void kt_regroup(kt_build *b, kt_view x, int64_t groups, int n, const int64_t *widths, kt_view *out);
/* Causal convolution of each column of x over w.taps rows, then SiLU. */
kt_view kt_conv(kt_build *b, kt_view x, kt_vec w);
/* Gated delta rule (models.md 3.3): qkv are the columns of q, k and v, ba those of b and a;
 * normed, gated by z. */
kt_view kt_delta(kt_build *b, kt_view qkv, kt_view ba, kt_view z, const kt_delta_rule *rule,
                 kt_vec decay, kt_vec dt_bias, kt_vec norm, double eps);
/* The end: norm, and lm_head (the embedding, where there is none). */
void kt_head(kt_build *b, kt_vec norm, double eps, bool is_tied);

/* Refuse the model; the first refusal counts. */
void kt_build_fail(kt_build *b, kt_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
