/* The one description of a model: its weights, what is computed with them, in which order, and
 * what is kept between steps. A family's file (dispatch/model/families) builds it with the verbs
 * of build.h; tuner cells, plan, memory plan, loader, quality, importance, synthetic models and
 * the step's programs are derived from it, and none of them knows a family or a tensor's name.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_GRAPH_H
#define KT_DISPATCH_GRAPH_H

#include <stdbool.h>
#include <string.h>

#include "base/arena.h"
#include "dispatch/model/checkpoint.h"
#include "kernels/formats/int4_import.h"
#include "kernels/rope/rope_table.h"
#include "kernels/router/router_select.h"
#include "kt/problem.h"

#define KT_MAX_LAYERS 1024
#define KT_MAX_EOS 8
#define KT_MAX_TOPK KT_ROUTER_MAX_TOPK

/* What every family has. */
typedef struct kt_model_numbers {
    int64_t layers, hidden, vocab, max_context;
    int64_t eos[KT_MAX_EOS];
    int n_eos;
} kt_model_numbers;

/* ---- weights ---- */

typedef enum kt_weight_kind {
    KT_WEIGHT_VECTOR,  /* f32 [n] */
    KT_WEIGHT_MATRIX,  /* parts [n_i, k] of one input, stacked where they become one format */
    KT_WEIGHT_HEADS,   /* `count` matrices [n, k], one per head; as MATRIX for the rest */
    KT_WEIGHT_EXPERTS, /* `count` times gate and up [n, k] and down [k, n] */
    KT_WEIGHT_ROUTER,  /* [n, k], BF16 as stored or f32: never quantised */
    KT_WEIGHT_TABLE    /* [n, k], rows picked by token; as stored */
} kt_weight_kind;

/* What a matrix is for: --weights decides by it. */
typedef enum kt_use { KT_USE_LINEAR, KT_USE_EXPERTS, KT_USE_FFN, KT_USE_HEAD } kt_use;

/* A tensor as each container spells it, without ".weight" where it is a matrix; {e} stands for
 * the expert. NULL = that container has none. */
typedef struct kt_name {
    const char *json, *gguf;
} kt_name;

/* How the bytes of a matrix lie in a checkpoint (models.md 9). */
typedef enum kt_encoding {
    KT_STORED_PLAIN = 0, /* one float tensor X.weight */
    KT_STORED_BLOCKS,    /* GGUF blocks */
    KT_STORED_INT4,      /* X.weight_packed or X.qweight with scales */
    KT_STORED_FP8_BLOCK, /* X.weight F8_E4M3, X.weight_scale_inv [n/128, k/128] */
    KT_STORED_FP8_CHANNEL,
    KT_STORED_MXFP8, /* X.weight F8_E4M3, exponents [n, k/32] beside it, U8 or F8_E8M0 */
    KT_STORED_MXFP4, /* E2M1 codes and an E8M0 exponent per 32: X_blocks, X_scales; and others */
    KT_STORED_NVFP4, /* E2M1 codes, an E4M3 scale per 16 and a factor: X.weight_scale_2, and others */
    KT_STORED_PACKED,   /* panels that `kt convert` wrote (packed.h) */
    KT_STORED_ENCODINGS /* how many; people read of them in stored_kinds.h */
} kt_encoding;

typedef struct kt_weight_part {
    kt_name name;
    int64_t n, k;
    kt_encoding encoding;
    kt_weight_format
        stored; /* what it is when loaded as it lies; F32 = plain floats of that type */
    /* What it becomes whatever --weights says, of MATRIX and EXPERTS (gate and up alike); KT_W_NONE
     * = nobody chose. Set before the first plan is made (runtime/model/convert_budget.c). */
    kt_weight_format chosen;
} kt_weight_part;

#define KT_WEIGHT_PARTS 4

typedef struct kt_weight {
    kt_weight_kind kind;
    kt_use use;
    const char *role; /* "qkv", "o", "experts", ...: cells, reports */
    int layer;        /* -1 = outside layers */
    int64_t n,
        k; /* outputs of all parts together and inputs; of experts intermediate and hidden size */
    int64_t count, topk;
    int n_parts; /* of experts gate, up, down */
    kt_weight_part part[KT_WEIGHT_PARTS];
    /* Of experts, when safetensors hold them so: names of [count, 2 n, k] (gate rows first) and
     * [count, k, n]. With "_blocks" and "_scales" behind the names MXFP4, rows of gate and up in
     * turn. */
    kt_name fused, fused_down;
    bool is_fused;
    /* Floats of safetensors are [count, k, 2 n] and [count, n, k] instead, columns of gate and up
     * in turn. */
    bool is_fused_transposed;
    /* HEADS: head h is rows [h * head_rows + head_at, ...) of the tensor, or (head_rows = 0)
     * matrix h of a stack; transposed: the tensor's rows are the columns of the matrix [n, k]. */
    int64_t head_rows, head_at;
    bool is_transposed;
    int64_t rows; /* VECTOR: stored as [rows, n / rows]; 0 = [n] */
    /* VECTOR: safetensors hold `step` times as many numbers, of which those at `at`, at + step, ...
     * are this vector's; 0 = all. */
    int64_t step, at;
    int64_t taps;  /* VECTOR: stored as [n / taps, taps], loaded as [taps, n / taps]; 0 = plain */
    int64_t ids;   /* VECTOR: stored as integers from 0 to ids - 1, loaded as f32; 0 = floats */
    bool one_plus; /* VECTOR: safetensors store w - 1 */
    bool negative_exp; /* VECTOR: safetensors store log(-w) */
    bool is_optional;  /* VECTOR: absent is all zeros */
    bool is_tied;      /* the tensor of part 0 is another weight's (a head that is the embedding) */
} kt_weight;

/* ---- values, planes, nodes ---- */

/* Columns [at, at + width) of a value: f32 [rows, width of the value]. */
typedef struct kt_view {
    int value;
    int64_t at, width;
} kt_view;

/* What attention keeps of each token: `heads` rows of k elements as keys and, unless v is 0
 * (values are the first elements of the key's row), as many of v. */
typedef struct kt_plane {
    int layer;
    int64_t heads, k, v;
    int64_t index; /* numbers of an index key; 0 = none */
    int64_t ratio; /* tokens that one row stands for (kernels/compress); 0 = each has its own */
} kt_plane;

typedef enum kt_node_kind {
    KT_NODE_RMS = 0,   /* out = norm(in) */
    KT_NODE_LINEAR,    /* out = W in, or out += W in */
    KT_NODE_BIAS,      /* out += b */
    KT_NODE_RMS_HEADS, /* out = norm of each `size` elements of out */
    KT_NODE_ROPE,
    KT_NODE_KEEP, /* rows of in (and in2) go to a plane */
    /* out = attention of in over a plane. Of latent attention also, where rows go with wide keys
     * instead: in2 the queries as they were, in3 where results go behind the values' matrices;
     * weight and weight2 the halves for keys and for values. */
    KT_NODE_ATTEND,
    KT_NODE_GATE,  /* out *= sigmoid(in) */
    KT_NODE_ROUTE, /* experts and their weights of each row of in */
    /* out += weighted experts of in; without routing every row goes to expert 0. Biases of gate, up
     * and down [count, outputs] are weight2, weight3 and weight4. */
    KT_NODE_EXPERTS,
    KT_NODE_HEAD,         /* logits = W norm(in) */
    KT_NODE_LINEAR_HEADS, /* each head of in by a matrix of its own */
    KT_NODE_REGROUP,      /* out = columns of in, sorted by part instead of by group */
    KT_NODE_DOT,          /* out = sigmoid(w . in), one number per row */
    KT_NODE_CONV,         /* out = causal convolution of in, channel by channel, with SiLU */
    KT_NODE_DELTA,        /* out = linear attention of in (q, k, v), in2 (b, a), gated by in3 (z) */
    KT_NODE_LAYER_NORM,   /* out = LayerNorm of out */
    KT_NODE_KEEP_INDEX,   /* rows of in go to a plane's index keys */
    /* ATTEND over the keys that in2 (index queries) and in3 (weights of heads) pick, or that the
     * last such node picked (index.repeats) */
    KT_NODE_ATTEND_SPARSE,
    /* ATTEND over the blocks of keys that in2, an index query for each kv head, picks for its heads
     * */
    KT_NODE_ATTEND_BLOCKS,
    KT_NODE_STREAMS, /* out = copies of in, side by side */
    /* out = the streams in as a row; behind it what HYPER_JOIN wants, and zeros */
    KT_NODE_HYPER_MIX,
    /* streams in3 mixed anew with in by in2; out = their mean, for hidden states */
    KT_NODE_HYPER_JOIN,
    KT_NODE_HYPER_END,  /* out = the streams in as one row */
    KT_NODE_COMPRESS,   /* out = values in pooled by gates in2, in rows that end a window */
    KT_NODE_KEEP_ENTRY, /* those rows of in, normed and rotated, go to a plane or its index keys */
    KT_NODE_PACK_ROWS,  /* out = rows of in as the cache holds them */
    KT_NODE_PICK_ENTRIES, /* out = entries that index queries in, weighted by in2, pick */
    /* out = attention of in over the last packed rows (in2, and a slot) and entries of a plane,
     * those that in3 names or all */
    KT_NODE_ATTEND_ENTRIES,
    KT_NODE_KINDS
} kt_node_kind;

typedef struct kt_attention {
    int64_t heads, kv_heads, k, v; /* v: size of a value head */
    double scale;
    int64_t window; /* 0 = all */
} kt_attention;

typedef struct kt_routing_rule {
    kt_router_score score;
    int64_t experts, topk, groups, top_groups;
    bool is_normalised;
    double scale;
    bool is_hashed; /* the token says which experts: weight3 of ROUTE holds them */
} kt_routing_rule;

#define KT_REGROUP_PARTS 4
#define KT_ROPE_BACK_MOST 1024 /* rotated numbers of a head that is rotated back */

/* The lightning indexer: score(key) = sum over heads of weight * max(0, query . index key); topk
 * keys are met.
 *
 * With block > 0 block selection: an index head for each kv head, no weights, score(block) = the
 * largest query . index key among the keys of a block that the row sees. The row's own block and
 * the local - 1 before it are met in any case, and count among the topk blocks that are met. */
typedef struct kt_index_rule {
    kt_view keys, queries, weights;
    int64_t heads, dim, topk;
    bool repeats; /* meets the keys that the last layer before with a rule of its own picked for
                   * the same token: no index keys, queries and weights here */
    int64_t block, local; /* keys of a block, 0 = keys are picked one by one; blocks */
} kt_index_rule;

/* Heads of linear attention: value heads of v, key heads of k numbers. Value head h uses key head
 * h * key_heads / heads, or (tiled) h % key_heads. */
typedef struct kt_delta_rule {
    int64_t heads, key_heads, k, v;
    bool is_tiled;
} kt_delta_rule;

/* Hyper-connections: `count` residual streams side by side (kernels/hyper). */
typedef struct kt_stream_rule {
    int64_t count, iterations;
    double eps, norm_eps;
} kt_stream_rule;

/* Compressed attention (kernels/compress): entries stand for `ratio` tokens each, 0 = there are
 * none; rows see the last `window` tokens as they are. is_index: of the index keys. */
typedef struct kt_entry_rule {
    int64_t window, ratio;
    bool is_index;
} kt_entry_rule;

typedef struct kt_node {
    kt_node_kind kind;
    int layer; /* -1 behind the last */
    kt_view in, in2, in3, out;
    int weight, weight2,
        weight3; /* -1 = none; RMS of HEAD, bias and ids of ROUTE; decay, dt_bias and norm of DELTA;
                  * weight3: scores of the sinks of ATTEND, ATTEND_SPARSE and ATTEND_BLOCKS
                  * [heads] */
    int weight4;
    int plane, slot, rotation; /* -1 = none */
    double eps;
    int64_t size; /* of a head: RMS_HEADS, ROPE; of a head of in: LINEAR_HEADS */
    int64_t
        tail; /* LINEAR_HEADS: numbers behind the k inputs that are copied behind the n outputs */
    int accumulate;  /* LINEAR: += */
    int latent;      /* LINEAR_HEADS of latent attention: distance to its ATTEND; 0 = of another */
    int is_routed;   /* EXPERTS: by the last ROUTE */
    kt_glu_rule glu; /* EXPERTS */
    int is_inverse;  /* ROPE: rotates back */
    kt_stream_rule streams;
    kt_entry_rule entries;
    kt_attention attention;
    kt_routing_rule routing;
    kt_delta_rule delta;
    kt_index_rule index;
    int64_t groups, parts[KT_REGROUP_PARTS]; /* REGROUP: columns of each part in a group */
} kt_node;

struct kt_family;

/* How the E4M3 codes of a matrix [n, k] are scaled, by the type and shape of their scales:
 * exponents (U8, F8_E8M0) per 32 inputs of a row, scales of any type per 128 x 128, or floats per
 * row or for all. NULL = none: per row. And the scales of matrix X: X.weight_scale_inv,
 * X.weight_scale or X.scale, borrowed, or NULL. */
kt_encoding kt_fp8_encoding(const kt_tensor *scales, int64_t n, int64_t k);
const kt_tensor *kt_fp8_scales(const kt_checkpoint *c, const char *matrix);

/* Immutable once built. */
typedef struct kt_graph {
    const struct kt_family *family;
    kt_model_numbers numbers;
    bool is_gguf;
    kt_int4_packing packing; /* of X.qweight */
    /* In names of safetensors: what stands for "model.", and what before "lm_head" (nested.h); NULL
     * = as usual. */
    const char *body, *above;
    /* The draft head (draft_head.h): the first main_nodes nodes are the model's, those behind them
     * draft, with weights of layer numbers.layers, whose names in safetensors begin with draft_body
     * (NULL = as those of the layers before). draft_hidden: the value that they are given, the
     * normed rows behind the last layer; 0 = the graph has no draft head, and all nodes are the
     * model's. */
    const char *draft_body;
    int main_nodes, draft_hidden;
    kt_weight *weights;
    kt_node *nodes;
    kt_plane *planes;
    kt_rope_rule *rotations;
    int64_t *slots; /* floats that a sequence keeps for each recurrent node */
    int64_t *width; /* of values; value 0 is the residual */
    int n_weights, n_nodes, n_planes, n_slots, n_rotations, n_values;
    int embedding;  /* the TABLE */
    kt_arena arena; /* names, lists */
} kt_graph;

void kt_graph_deinit(kt_graph *g);

/* Full name of a part's tensor, "{l}" and "{e}" filled in, without ".weight"; as the container
 * of the graph spells it, or (is_json) as safetensors without a prefix do. */
char *kt_weight_name(const kt_graph *g, const kt_weight *w, int part, int64_t expert, bool is_json,
                     char *out, size_t out_bytes);

/* The first weight of a role in a layer (-1 = outside), or NULL. */
const kt_weight *kt_graph_find(const kt_graph *g, const char *role, int layer);

/* Is a matrix its draft head's? */
static inline bool kt_weight_is_drafting(const kt_graph *g, const kt_weight *w) {
    return w->layer >= g->numbers.layers || strcmp(w->role, "draft_join") == 0;
}

/* Experts that rows of a layer are routed to: its weight, or NULL. */
const kt_weight *kt_graph_experts(const kt_graph *g, int layer);

#endif
