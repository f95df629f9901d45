/* The vocabulary of the dispatch key: operations, weight formats, activation encodings, problems.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_PROBLEM_H
#define KT_PROBLEM_H

#include <stddef.h>
#include <stdint.h>

#include "kt/weight_formats.h" /* written by the build */

#ifdef __cplusplus
extern "C" {
#endif

/* Operations. One folder of kernels/ each but where it says. */
typedef enum kt_op {
    KT_OP_MOE_FFN = 0, /* fused expert feed-forward: gate, up, SwiGLU, down, weighted sum */
    KT_OP_GEMM,        /* c[m, n] = a[m, k] * w[n, k]^T for dense weights and lm_head */
    KT_OP_ATTN,        /* grouped-query attention; `weights` is the format of the cache */
    KT_OP_NORM,        /* RMSNorm of f32 rows */
    KT_OP_ROPE,        /* rotary position embedding of f32 heads, in place */
    KT_OP_ROUTER,      /* router logits of f32 rows */
    KT_OP_ENCODE,      /* f32 rows -> activation encoding */
    KT_OP_PROBE,       /* machine ceilings: read stream, peak of one instruction */
    KT_OP_CONV,        /* causal depthwise convolution of f32 rows, then SiLU (kernels/linattn) */
    KT_OP_DELTA,       /* linear attention by the gated delta rule (kernels/linattn) */
    KT_OP_INDEX,       /* scores of keys, by which sparse attention picks (kernels/indexer) */
    KT_OP_COUNT
} kt_op;

/* kt_weight_format, how weights are stored: kernels/formats/<name>.c defines each exactly and says its
 * enumerator KT_W_<ID> and its number, which is never another's; KT_W_NONE = 0 and KT_W_COUNT stand
 * around them. Tables and packed files hold names. The bit of a format in a set of formats: */
#define KT_W_BIT(format) (UINT64_C(1) << (format))

/* How activation rows are stored when a GEMM reads them (kernels/encode). */
typedef enum kt_act_format {
    KT_A_NONE = 0,
    KT_A_BF16,     /* abf16 */
    KT_A_INT8_G32, /* a8: int8 with f32 scale and compensation per 32 inputs */
    KT_A_F32,
    KT_A_INT8_G16P2, /* a8p: int8 with a power-of-two scale per 16 inputs, in kernels' own terms */
    KT_A_COUNT
} kt_act_format;

/* What a feed-forward network does between its matrices. */
typedef enum kt_ffn_act {
    KT_FFN_SWIGLU = 0, /* silu(gate) * up */
    KT_FFN_SWIGLU_CLAMPED,
    KT_FFN_ACT_COUNT
} kt_ffn_act;

/* What the feed-forward does with gate g and up u, in f32; g' = min(g, limit), u' = u clamped to
 * [-limit, limit]. Not in the dispatch key: it changes no choice of kernel. */
typedef enum kt_glu {
    KT_GLU_SILU = 0,   /* silu(g) * u, silu(x) = x / (1 + e^-x) */
    KT_GLU_CLAMP_SILU, /* silu(g') * u' */
    KT_GLU_OAI,        /* (u' + 1) * g' / (1 + e^-(alpha g')) */
    KT_GLU_COUNT
} kt_glu;

/* All zeros is plain SwiGLU. limit > 0 and finite in the kinds that name it; alpha > 0 in OAI. */
typedef struct kt_glu_rule {
    kt_glu kind;
    float limit, alpha;
} kt_glu_rule;

/* One problem: the dispatch key without thread count. Fields an op does not use are zero.
 *
 *   op        m                    n                   k               others
 *   MOE_FFN   rows of one expert   intermediate size   hidden size     experts, topk, down, act
 *   GEMM      rows                 outputs             inputs
 *   ATTN      query rows           query heads         head size       kv_heads, context, v, window
 *   NORM      rows                 1                   row length
 *   ROPE      rows                 heads               head size
 *   ROUTER    rows                 experts             hidden size     topk
 *   ENCODE    rows                 1                   row length
 *   CONV      rows                 channels            taps
 *   DELTA     rows                 value heads         size of a key   kv_heads (of keys), v
 *   INDEX     rows                 heads               size of a key   context, kv_heads (= n: each
 *                                                                      head has scores of its own)
 */
typedef struct kt_problem {
    kt_op op;
    kt_weight_format weights;
    kt_act_format acts;
    int64_t m, n, k;
    int64_t experts, topk;
    int64_t kv_heads, context;
    kt_weight_format down; /* format of the down projection; KT_W_NONE = weights */
    kt_ffn_act act;
    int64_t v;      /* size of a value head; 0 = k */
    int64_t window; /* keys that a row sees, itself the last; 0 = all before it */
} kt_problem;

/* Stable lower-case names used in tables, workloads and flags ("moe_ffn", "w4g32", "a8").
 * kt_*_name never returns NULL; kt_*_parse returns -1 for an unknown name. Thread-safe. */
const char *kt_op_name(kt_op op);
int kt_op_parse(const char *name);
const char *kt_weight_format_name(kt_weight_format format);
int kt_weight_format_parse(const char *name);
const char *kt_act_format_name(kt_act_format format);
int kt_act_format_parse(const char *name);
const char *kt_ffn_act_name(kt_ffn_act act); /* "swiglu", "swiglu_clamped" */
int kt_ffn_act_parse(const char *name);

#ifdef __cplusplus
}
#endif
#endif
