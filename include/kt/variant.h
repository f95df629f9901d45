/* The one extension mechanism of the kernels: a constant descriptor per variant.
 *
 * Adding a variant is adding one file `kernels/<op>/<stem>__<isa>.c` that defines
 * `KT_VARIANT(<stem>__<isa>) = {...};`. The build finds it, applies the flags of its ISA word and
 * writes the table kt_builtin_variants.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_VARIANT_H
#define KT_VARIANT_H

#include "kt/isa.h"
#include "kt/problem.h"
#include "kt/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KT_MAX_PARAMS 6

/* One tunable: its name, the values worth trying and the value used before tuning. */
typedef struct kt_param {
    const char *name;
    const int32_t *values;
    int32_t count;
    int32_t initial;
} kt_param;

/* Values of a variant's parameters, in the order of kt_variant.params. Unused entries are zero. */
typedef struct kt_config {
    int32_t value[KT_MAX_PARAMS];
} kt_config;

/* What the arithmetic promises; the correctness gate picks its bound by it. */
typedef enum kt_numerics {
    KT_NUM_EXACT_INT32 = 0, /* integer sums are exact before scaling; f32 afterwards */
    KT_NUM_F32,             /* f32 products and sums */
    KT_NUM_BF16_F32,        /* bfloat16 inputs, f32 sums; denormals may be flushed */
    KT_NUM_REQUANT,         /* rounds weights once more: kernels/formats/requant8.h */
    KT_NUM_ACTS16, /* rounds activations once more, to 16 bits; exact integers but for that.
                    * Attention: queries in groups of 128, weights in blocks of 64 keys; rows
                    * of a BF16 cache to 14 bits of their largest element */
    KT_NUM_ACTS8,  /* attention: rounds queries and weights to 8 bits in groups of 32 */
    KT_NUM_OPENED  /* rounds codes times scales, and activations, to bfloat16; f32 sums */
} kt_numerics;

/* The class of a variant whose rows may take other bits with other rows beside them, or with
 * another number of them: libraries, which promise nothing of the kind (oneDNN changes its
 * kernel with m where it has AMX). Only the panels' shares, and with them the threads, must not
 * change its bits. Deterministic plans refuse it. Of our own kernels those are unstable that sum
 * over rows (kernels/linattn, in chunks). */
#define KT_BITS_UNSTABLE "unstable"

/* Weights of one matrix [n, k] in the plain form of its format (kernels/formats), before packing.
 *
 * data    KT_W_BF16: uint16 [n, k].  KT_W_INT8_CHANNEL: int8 [n, k].  KT_W_F32: float [n, k].
 *         KT_W_INT4_G32: bytes [n, k/2], low nibble = even k, value = nibble - 8.
 *         GGUF formats: rows of the file's blocks. All others: kernels/formats/README.md.
 * scales  KT_W_INT8_CHANNEL: float [n].  KT_W_INT4_G32: bfloat16 bits [n, k/32].  NULL where the
 *         data holds everything.
 * Borrowed. Any alignment that suits the element type.
 */
typedef struct kt_matrix {
    kt_weight_format format;
    int64_t n, k;
    const void *data;
    const void *scales;
} kt_matrix;

/* Arguments of a dense GEMM share: c[i, 64*p .. ] for panels p in [panel_begin, panel_end).
 *
 * weights  bytes written by the variant's pack_gemm for the same problem; 64-byte aligned.
 * a        encoded rows (problem->acts), a_stride bytes apart, 64-byte aligned.
 * c        f32 rows, ldc elements apart. Written, or added to when accumulate is set. Columns >= n
 *          and rows >= m are not touched.
 * next     the bytes this thread reads next, or NULL: a prefetch hint only.
 * scratch  workspace_bytes(problem, config) bytes of this thread, 64-byte aligned; may be NULL
 *          when that is zero.
 * The result of a row does not depend on m nor on how panels are shared out (kt_variant.bits).
 */
typedef struct kt_gemm_call {
    const kt_problem *problem;
    const kt_config *config;
    const void *weights;
    const void *a;
    size_t a_stride;
    int64_t m;
    int64_t panel_begin, panel_end;
    float *c;
    int64_t ldc;
    int accumulate;
    const void *next;
    void *scratch;
} kt_gemm_call;

/* Arguments of one expert's share of a fused MoE layer (hidden = problem->k, intermediate =
 * problem->n).
 *
 * gate_up  for panels p in [panel_begin, panel_end) of 32 intermediate channels:
 *          h[i, 32p..32p+31] = encode(glu(gate . a[rows[i]] + gate_bias, up . a[rows[i]] +
 *          up_bias)), i < m; glu of a call that leaves it zero is silu(gate) * up.
 * down     for panels p of 64 output channels: out[rows[i], 64p..] += route_weight[i] * (down .
 * h[i] + down_bias).
 *          Columns >= problem->k are not touched. rows[] holds each token at most once.
 * *_bias   f32 of this expert, NULL = none: gate and up [problem->n] (both or neither), down
 *          [problem->k].
 * weights  the bytes of this half of the expert, written by pack_expert; 64-byte aligned;
 * borrowed. a        encoded token rows (problem->acts, length hidden), a_stride apart; row
 * rows[i] is read. h        encoded rows (problem->acts, length intermediate), h_stride apart,
 * slot i for rows[i]. next     the bytes this thread reads next, or NULL: a prefetch hint only.
 * scratch  as in kt_gemm_call. */
typedef struct kt_moe_call {
    const kt_problem *problem;
    const kt_config *config;
    const void *weights;
    const void *a;
    size_t a_stride;
    const int32_t *rows;
    const float *route_weight;
    int64_t m;
    int64_t panel_begin, panel_end;
    void *h;
    size_t h_stride;
    float *out;
    int64_t ldo;
    const void *next;
    void *scratch;
    kt_glu_rule glu;
    const float *gate_bias, *up_bias, *down_bias;
} kt_moe_call;

/* What a norm call makes of a row, with r = 1 / sqrt(mean(x^2) + eps), sigmoid(z) = 1 / (1 +
 * e^-z). */
typedef enum kt_norm_kind {
    KT_NORM_RMS = 0,  /* y = x * r * w */
    KT_NORM_RMS_SILU, /* y = x * r * w * z * sigmoid(z) */
    KT_NORM_SIGMOID,  /* y = x * sigmoid(z); w and eps are not used */
    KT_NORM_KIND_COUNT
} kt_norm_kind;

/* Rows [row_begin, row_end) of k floats each. y may be x. z, the gate, is read only by the kinds
 * that name it, and overlaps y in no case. */
typedef struct kt_norm_call {
    const float *x;
    int64_t ldx;
    const float *w;
    float eps;
    float *y;
    int64_t ldy;
    int64_t k;
    int64_t row_begin, row_end;
    kt_norm_kind kind;
    const float *z;
    int64_t ldz;
} kt_norm_call;

/* Rows [row_begin, row_end) of x [rows, ld]: rotate `heads` heads of head_dim floats in place.
 * cos_sin holds, for each position, rotary_dim/2 cosines then rotary_dim/2 sines.
 * interleaved selects pairs (2i, 2i+1) instead of (i, i + rotary_dim/2). */
typedef struct kt_rope_call {
    float *x;
    int64_t ld;
    int64_t heads, head_dim, rotary_dim;
    const float *cos_sin;
    const int32_t *positions;
    int interleaved;
    int64_t row_begin, row_end;
} kt_rope_call;

/* logits[row, e] = x[row] . w[e] in f32 for rows [row_begin, row_end) and experts
 * [expert_begin, expert_end). w is BF16 or F32 [experts, k] as problem->weights says. */
typedef struct kt_router_call {
    const kt_problem *problem;
    const float *x;
    int64_t ldx;
    const void *w;
    float *logits;
    int64_t ldl;
    int64_t row_begin, row_end;
    int64_t expert_begin, expert_end;
} kt_router_call;

/* Encode rows [row_begin, row_end) of k floats into problem->acts (layouts:
 * kernels/formats/acts.h). All variants of one encoding write the same bits. */
typedef struct kt_encode_call {
    const float *x;
    int64_t ldx;
    int64_t k;
    void *out;
    size_t out_stride;
    int64_t row_begin, row_end;
} kt_encode_call;

/* Causal grouped-query attention of one kv head for query rows [row_begin, row_end).
 *
 * q        f32 [rows, ldq]; query head j of a row starts at j * problem->k. Heads
 *          [kv_head * group, (kv_head + 1) * group) are computed, group = n / kv_heads.
 * k, v     this kv head's cache: rows of problem->k, and of problem->v (0 = k), elements in
 *          problem->weights, ldkv and ldv (0 = ldkv) apart: BF16 (also KT_W_NONE), or codes of
 *          KT_W_INT8_CHANNEL or KT_W_FP8_CHANNEL. v may be k, and ldv 0: a key's row then begins
 *          with its value, as in absorbed latent attention. Rows that no row of the call sees are
 *          not read.
 * k_scale, v_scale  the codes' scales, one f32 per row; NULL with BF16.
 * page     NULL: cache row j lies behind row j - 1. Else rows lie in pages of 64: row j is row j
 * mod 64 of page number page[j / 64], which begins that many times page_stride elements behind k
 * and v, and scale_page_stride floats behind k_scale and v_scale. Entries are read up to that of
 * the last row's position. position query row r attends to cache rows first .. position[r]
 * inclusive: first is 0, or with a window max(0, position[r] - problem->window + 1). out      f32
 * [rows, ldo]; head j starts at j * (size of a value). Written. scratch  workspace_bytes bytes of
 * this thread, 64-byte aligned. key_begin, key_end  both 0 = every key. Else only keys of that
 * range, which lies in one chunk (kernels/attn/attn_common.h) and starts where the chunk starts;
 * rows without a key in it are not written, and stats must be set. stats    NULL, or f32 [rows,
 * ldstats]: out gets sums that are not yet divided, and head j's largest score and sum of
 * exponentials go to 2 * j and 2 * j + 1. kt_attn_merge joins chunks. A row's result depends
 * neither on the other rows of the call nor on the thread count nor on splitting by chunks: the
 * cache is walked in blocks and chunks that start at multiples of constants.
 * sink     NULL, or f32 [n]: head j's score of a key that every row sees besides and that has no
 *          value (not scaled). With stats it is not looked at: kt_attn_merge adds it, once.
 */
typedef struct kt_attn_call {
    const kt_problem *problem;
    const kt_config *config;
    const float *q;
    int64_t ldq;
    const void *k, *v;
    const float *k_scale, *v_scale;
    const uint32_t *page;
    int64_t page_stride, scale_page_stride;
    int64_t ldkv, ldv;
    int64_t kv_head;
    float scale;
    const int32_t *position;
    int64_t row_begin, row_end;
    float *out;
    int64_t ldo;
    void *scratch;
    int64_t key_begin, key_end;
    float *stats;
    int64_t ldstats;
    const float *sink;
} kt_attn_call;

/* Causal convolution of each channel by itself, then SiLU, for rows of one sequence and channels
 * [channel_begin, channel_end), which begin and end at multiples of 16 or at problem->n:
 *   y[r, c] = silu(sum over j < taps of w[j, c] * x[r - (taps - 1) + j, c]),   taps = problem->k
 *
 * x, y     f32 [rows, ldx], [rows, ldy]; y may be x.
 * w        f32 [taps, n]; the last tap meets the row itself.
 * state    f32 [taps - 1, n], the caller's: the inputs before the first row, oldest first, zeros
 *          where a sequence begins. Left as the inputs before the row after the last. Each call
 *          touches its own channels.
 * A row's result does not depend on how rows are shared out over calls, nor channels over threads.
 */
typedef struct kt_conv_call {
    const kt_problem *problem;
    const float *x;
    int64_t ldx;
    const float *w;
    float *state;
    float *y;
    int64_t ldy;
    int64_t rows;
    int64_t channel_begin, channel_end;
} kt_conv_call;

/* Gated delta rule for rows of one sequence and value heads [head_begin, head_end). Value head h
 * has key head h / (n / kv_heads), a state S [k, v] and for each row
 *   q' = q / sqrt(|q|^2 + 1e-6) / sqrt(k),  k' = k / sqrt(|k|^2 + 1e-6),  beta = sigmoid(b),
 *   g = decay * softplus(a + dt_bias)
 *   S <- exp(g) S;  d = beta (v - S^T k');  S <- S + k' d^T;  o = S^T q'
 *
 * q, k, v  f32 rows, ld floats apart; key head j at j * problem->k of q and k, value head h at h *
 *          problem->v of v.
 * b, a     f32 rows [n], ldba apart.
 * decay, dt_bias  f32 [n]; decay = -exp(A_log).
 * state    f32 [n, k, v], the caller's; zeros where a sequence begins. Read and written.
 * z        NULL: out is o. Else f32 rows, ldz apart, value head h at h * problem->v, and
 *          out = norm o / sqrt(mean(o^2) + eps) silu(z); norm f32 [v].
 * out      f32 rows, ldo apart, value head h at h * problem->v. Not any of the inputs.
 * position of the first row in its sequence: variants of KT_BITS_UNSTABLE take their chunks by it.
 * scratch  workspace_bytes bytes of this thread, 64-byte aligned.
 */
typedef struct kt_delta_call {
    const kt_problem *problem;
    const kt_config *config;
    const float *q, *k, *v;
    int64_t ld;
    const float *b, *a;
    int64_t ldba;
    const float *decay, *dt_bias;
    float *state;
    const float *z;
    int64_t ldz;
    const float *norm;
    float eps;
    float *out;
    int64_t ldo;
    int64_t position, rows;
    int64_t head_begin, head_end;
    void *scratch;
} kt_delta_call;

/* Scores of keys for rows [row_begin, row_end) of sparse attention:
 *   score[r, i] = sum over heads h of w[r, h] * max(0, q[r, h] . key[i])
 *
 * q, w     f32 rows, ldq and ldw apart: head h of a query at h * problem->k; w has problem->n
 * weights. keys     BF16 rows of problem->k numbers, ldk apart; n_keys of them. score    f32 rows,
 * lds apart; n_keys are written. scratch  workspace_bytes bytes of this thread, 64-byte aligned.
 * NaN of a product counts as 0. A score depends neither on the rows nor on the keys beside it.
 *
 * Where problem->kv_heads is problem->n, each head has scores of its own, without weights (w is not
 * read) and of either sign, NaN included: score[r * n + h, i] = q[r, h] . key[i].
 */
typedef struct kt_index_call {
    const kt_problem *problem;
    const kt_config *config;
    const float *q;
    int64_t ldq;
    const float *w;
    int64_t ldw;
    const uint16_t *keys;
    int64_t ldk, n_keys;
    int64_t row_begin, row_end;
    float *score;
    int64_t lds;
    void *scratch;
} kt_index_call;

/* A ceiling probe: do `repeats` passes over `bytes` bytes at data (streams) or `repeats`
 * thousand blocks of the instruction (peaks); returns operations done (2 per multiply-add) or
 * bytes read. config holds values of the variant's parameters; NULL = their initial ones.
 *
 * Probes that have pack_gemm multiply with a library, in the form that suits it best: one call
 * over the whole matrix, on dense rows, without the scales that our own formats must apply. c[m,
 * n] = a[m, k] * w[n, k]^T, `repeats` times; data = the bytes of pack_gemm. The problem's
 * weights say which: of KT_W_INT8_CHANNEL the codes are taken, a is bytes 0..127 and c int32;
 * KT_W_BF16 has a of bfloat16 and c of float. a and c are 64-byte aligned. They return 0 when
 * the library refuses the shape.
 *
 * session: where a library keeps its engine, stream and primitive between calls of one problem.
 * NULL = made and ended within each call. Else *session is NULL before the first call, and a
 * call with repeats 0 ends it. */
typedef struct kt_probe_call {
    const void *data;
    size_t bytes;
    int64_t repeats;
    const kt_problem *problem;
    const void *a;
    void *c;
    const kt_config *config;
    void **session;
} kt_probe_call;

typedef struct kt_variant {
    const char *name; /* the file's stem */
    kt_op op;
    uint64_t weights; /* KT_W_BIT of each format accepted; 0 = op has none */
    uint32_t acts;    /* bit (1u << kt_act_format) likewise */
    kt_isa isa;
    kt_numerics numerics;
    /* The name of the variant's bits: encodings, order of sums, roundings. Variants of one op
     * with one class give the same bits for every row of every problem that both accept, with
     * any configuration, number of rows, rows beside it and share of panels; which NaN a NaN is
     * does not count. NULL, in variants from outside the tree, counts as KT_BITS_UNSTABLE.
     * Probes have none. */
    const char *bits;
    int32_t version;    /* bump when speed or numbers change: tuned rows of other versions lapse */
    const char *layout; /* packed layout id, e.g. "p64"; equal ids = byte-identical packing */
    /* Of variants that an estimate takes for equal, the one of higher rank runs where nothing was
     * measured. 0 = unproven, as `kttune new` writes it: never a default while a variant with a
     * rank accepts the problem. The tuner races it all the same. */
    int32_t rank;
    const kt_param *params;
    int32_t n_params;

    /* Optional run-time check of a library variant (present, initialised, numerically sound).
     * Called once by the registry, after the ISA check. NULL = always usable. Thread-safe. */
    kt_status (*usable)(kt_err *why);

    /* Refuse, with a reason a user can act on, what run cannot do. NULL = accepts all. Asked on any
     * machine, also of variants that it cannot run: the code is of no instruction set, or such a
     * file's does nothing but call some that is of none. */
    kt_status (*accepts)(const kt_problem *problem, const kt_config *config, kt_err *why);

    /* Packed size of one dense matrix (GEMM) or one expert (MOE_FFN); pack writes exactly that
     * many bytes to dst, 64-byte aligned. Never fail for an accepted problem. An expert is two
     * halves, gate with up and then down; gate and up NULL, or down NULL, packs the other half
     * alone to dst. */
    size_t (*packed_bytes)(const kt_problem *problem);
    void (*pack_gemm)(const kt_problem *problem, const kt_matrix *w, void *dst);
    void (*pack_expert)(const kt_problem *problem, const kt_matrix *gate, const kt_matrix *up,
                        const kt_matrix *down, void *dst);

    /* Bytes of scratch per thread for a call with problem->m rows. NULL = none. */
    size_t (*workspace_bytes)(const kt_problem *problem, const kt_config *config);

    /* The work; the member that belongs to op is set. Never fail, allocate, lock or log. */
    void (*gemm)(const kt_gemm_call *call);
    void (*moe_gate_up)(const kt_moe_call *call);
    void (*moe_down)(const kt_moe_call *call);
    void (*norm)(const kt_norm_call *call);
    void (*rope)(const kt_rope_call *call);
    void (*router)(const kt_router_call *call);
    void (*encode)(const kt_encode_call *call);
    void (*attn)(const kt_attn_call *call);
    void (*conv)(const kt_conv_call *call);
    void (*delta)(const kt_delta_call *call);
    void (*index)(const kt_index_call *call);
    double (*probe)(const kt_probe_call *call);
} kt_variant;

#define KT_VARIANT(stem)                       \
    extern const kt_variant kt_variant_##stem; \
    const kt_variant kt_variant_##stem

/* Are two classes of bits the same word? */
static inline int kt_bits_equal(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

/* Does a row's result depend on that row alone? */
static inline int kt_variant_is_stable(const kt_variant *v) {
    return v->bits && !kt_bits_equal(v->bits, KT_BITS_UNSTABLE);
}

/* Do both promise the same bits, where both accept a problem? */
static inline int kt_variant_same_bits(const kt_variant *a, const kt_variant *b) {
    return a->op == b->op && kt_variant_is_stable(a) && b->bits && kt_bits_equal(a->bits, b->bits);
}

/* A variant with its parameter values: the answer of the dispatch. */
typedef struct kt_choice {
    const kt_variant *variant;
    kt_config config;
} kt_choice;

#define KT_M_DENSE 4096 /* rows with an entry of their own in kt_choice_map */
#define KT_MAX_CHOICES 24

/* Dense map from rows (per expert for MOE_FFN) to the choice: one array load on the hot path.
 * All choices of a map share layout and activation encoding. Read-only once made. */
typedef struct kt_choice_map {
    uint8_t index[KT_M_DENSE + 1];
    int32_t count;
    kt_choice choice[KT_MAX_CHOICES];
} kt_choice_map;

static inline const kt_choice *kt_choice_for(const kt_choice_map *map, int64_t m) {
    return &map->choice[map->index[m < KT_M_DENSE ? m : KT_M_DENSE]];
}

/* A variant that this build could not include, with the reason (library missing). */
typedef struct kt_absent_variant {
    const char *name;
    const char *reason;
} kt_absent_variant;

/* Written by the build from the file names. */
extern const kt_variant *const kt_builtin_variants[];
extern const size_t kt_builtin_variant_count;
extern const kt_absent_variant kt_builtin_absent[];
extern const size_t kt_builtin_absent_count;

#ifdef __cplusplus
}
#endif
#endif
