/* The suite "cpu": expert layers of every format, from one row per expert to 512; older
 * instruction sets; dense products against libraries; threads; whole layers; accuracy. With the
 * bars that this project sets itself. SPDX-License-Identifier: Apache-2.0 */
#include "tuner/session/suite.h"

/* Qwen3-30B-A3B; and DeepSeek-V3's experts, of which 32 are enough to keep every call cold. */
#define QWEN .hidden = 2048, .intermediate = 768, .experts = 128, .topk = 8
#define DEEPSEEK .hidden = 7168, .intermediate = 2048, .experts = 32, .topk = 8

#define DECODE(text, format, limit) \
    { #text "_decode", format, KT_OF_STREAM, QWEN, .m = 1, .bar = limit }

/* Prefill, 128 rows per expert, with nothing beyond an older instruction set. */
#define OLDER(text, format, isa) \
    { #text "_128rows", format, KT_OF_PEAK, QWEN, .m = 128, .bar = 0.90, .only = isa }
#define WITH_VNNI256 (KT_ISA_AVX2 | KT_ISA_AVXVNNI)
#define WITH_AVX512F (KT_ISA_AVX2 | KT_ISA_AVX512)

/* The query projection: 4096 outputs of 2048 inputs. */
#define DENSE(text, format, rows)                                                      \
    {                                                                                  \
        "dense_" #text "_m" #rows, format, .kind = KT_ROW_DENSE, .hidden = 2048,       \
                                           .intermediate = 4096, .m = rows, .bar = 1.0 \
    }

/* Eight layers of Qwen3-30B-A3B with their attention, INT4; prefill of 512 tokens. */
#define MODEL(text, what, n, limit) \
    { "model_" #text, .kind = KT_ROW_MODEL, .figure = what, .threads = n, .bar = limit }

#define ACCURACY(text, format, what, limit)                                                    \
    {                                                                                          \
        "accuracy_" #text, format, .kind = KT_ROW_ACCURACY, .figure = what, .hidden = 2048,    \
                                   .intermediate = 256, .m = 16, .bar = limit, .at_most = true \
    }

/* What keeps something of a sequence, one thread unless it says: attention over a BF16 cache of so
 * many keys, rows at its end; the latent form of DeepSeek-V3 (sparse attention runs it over the
 * keys that were picked, 2048 of them); the indexer of V3.2; linear attention of Qwen3-Next,
 * whose bytes are those that go in and out, so that with one row it may exceed what can be read. */
#define ATTN(heads, kv, size, value) \
    .op = KT_OP_ATTN, .weights = KT_W_BF16, .n = heads, .kv_heads = kv, .k = size, .v = value
#define ATTN_QWEN ATTN(32, 4, 128, 0)
#define ATTN_GLM ATTN(96, 8, 128, 0)
#define ATTN_NEXT ATTN(16, 2, 256, 0)
#define ATTN_LATENT ATTN(128, 1, 576, 512)
#define ATTN_WIDE ATTN(128, 128, 192, 128)
#define INDEX .op = KT_OP_INDEX, .weights = KT_W_BF16, .n = 64, .k = 128, .context = 8192
#define DELTA .op = KT_OP_DELTA, .n = 32, .k = 128, .kv_heads = 16, .v = 128
#define CONV .op = KT_OP_CONV, .n = 8192, .k = 4
#define KEPT(text, what, limit, ...)                                                               \
    {                                                                                              \
        text, .kind = KT_ROW_KEPT, .of = what, .threads = 1, .bar = limit, .kept = { __VA_ARGS__ } \
    }

/* Norms of so many rows, and routers with the choice of experts: Qwen3-30B, GLM-4.7,
 * DeepSeek-V3. */
#define NORM(text, what, rows, size, limit)                                              \
    {                                                                                    \
        "norm_" text, .kind = KT_ROW_ROWS, .of = KT_OF_COPY, .threads = 1, .norm = what, \
                      .bar = limit, .kept = {                                            \
                          .op = KT_OP_NORM,                                              \
                          .m = rows,                                                     \
                          .n = 1,                                                        \
                          .k = size                                                      \
                      }                                                                  \
    }
#define ROUTER_OF(text, what, rows, limit, format, count, size, ...)                 \
    {                                                                                \
        "router_" text, .kind = KT_ROW_ROWS, .of = what, .threads = 1, .bar = limit, \
                        .kept = {.op = KT_OP_ROUTER,                                 \
                                 .weights = format,                                  \
                                 .m = rows,                                          \
                                 .n = count,                                         \
                                 .k = size,                                          \
                                 .topk = 8},                                         \
                        .rule = {                                                    \
                            .experts = count,                                        \
                            .topk = 8,                                               \
                            .norm_topk_prob = true,                                  \
                            __VA_ARGS__                                              \
                        }                                                            \
    }
#define ROUTER(text, what, rows, limit, shape) ROUTER_OF(text, what, rows, limit, shape)
#define ROUTE_SOFTMAX KT_W_BF16, 128, 2048, .score = KT_ROUTER_SOFTMAX
#define ROUTE_SIGMOID KT_W_F32, 160, 5120, .score = KT_ROUTER_SIGMOID_BIAS
#define ROUTE_GROUPS \
    KT_W_BF16, 256, 7168, .score = KT_ROUTER_SIGMOID_GROUP, .groups = 8, .top_groups = 4

static const kt_suite_spec specs[] = {
    DECODE(int4_g32, KT_W_INT4_G32, 0.92),
    {"int4_g32_decode_deepseek", KT_W_INT4_G32, KT_OF_STREAM, DEEPSEEK, .m = 1, .bar = 0.92},
    DECODE(int8, KT_W_INT8_CHANNEL, 0.95),
    DECODE(fp8_block, KT_W_FP8_B128, 0.95),
    DECODE(fp8_channel, KT_W_FP8_CHANNEL, 0.95),
    DECODE(bf16, KT_W_BF16, 0.95),
    DECODE(q4_0, KT_W_Q4_0, 0.85),
    DECODE(q4_1, KT_W_Q4_1, 0.85),
    DECODE(q5_0, KT_W_Q5_0, 0.85),
    DECODE(q5_1, KT_W_Q5_1, 0.85),
    DECODE(q4_k, KT_W_Q4_K, 0.85),
    DECODE(q5_k, KT_W_Q5_K, 0.85),
    DECODE(q6_k, KT_W_Q6_K, 0.85),
    DECODE(iq4_nl, KT_W_IQ4_NL, 0.85),
    DECODE(iq4_xs, KT_W_IQ4_XS, 0.85),
    DECODE(mxfp4, KT_W_MXFP4, 0.85),
    DECODE(int8_g16m, KT_W_INT8_G16M, 0.80),
    DECODE(iq2_xxs, KT_W_IQ2_XXS, 0.80),
    DECODE(iq2_xs, KT_W_IQ2_XS, 0.80),
    DECODE(iq2_s, KT_W_IQ2_S, 0.80),
    DECODE(iq3_xxs, KT_W_IQ3_XXS, 0.80),
    DECODE(iq3_s, KT_W_IQ3_S, 0.80),
    {"int4_g32_4rows", KT_W_INT4_G32, KT_OF_ROOFLINE, QWEN, .spread_tokens = 64, .bar = 0.75},
    {"int4_g32_32rows", KT_W_INT4_G32, KT_OF_PEAK, QWEN, .spread_tokens = 512, .bar = 0.78},
    {"int8_32rows", KT_W_INT8_CHANNEL, KT_OF_PEAK, QWEN, .spread_tokens = 512, .bar = 0.85},
    {"int4_g32_128rows", KT_W_INT4_G32, KT_OF_PEAK, QWEN, .m = 128, .bar = 0.88},
    {"int8_128rows", KT_W_INT8_CHANNEL, KT_OF_PEAK, QWEN, .m = 128, .bar = 0.93},
    {"bf16_128rows", KT_W_BF16, KT_OF_PEAK, QWEN, .m = 128, .bar = 0.95},
    {"fp8_block_128rows", KT_W_FP8_B128, KT_OF_PEAK, QWEN, .m = 128, .bar = 0.90},
    {"fp8_channel_128rows", KT_W_FP8_CHANNEL, KT_OF_PEAK, QWEN, .m = 128, .bar = 0.90},
    {"q4_k_128rows", KT_W_Q4_K, KT_OF_PEAK, QWEN, .m = 128, .bar = 0.70},
    {"q6_k_128rows", KT_W_Q6_K, KT_OF_PEAK, QWEN, .m = 128, .bar = 0.70},
    {"iq2_xxs_128rows", KT_W_IQ2_XXS, KT_OF_PEAK, QWEN, .m = 128, .bar = 0.50},
    {"iq2_s_128rows", KT_W_IQ2_S, KT_OF_PEAK, QWEN, .m = 128, .bar = 0.50},
    {"iq3_s_128rows", KT_W_IQ3_S, KT_OF_PEAK, QWEN, .m = 128, .bar = 0.50},
    /* A chunk of 8192 tokens. */
    {"int4_g32_512rows", KT_W_INT4_G32, KT_OF_PEAK, QWEN, .m = 512, .bar = 0.88},
    {"int8_512rows", KT_W_INT8_CHANNEL, KT_OF_PEAK, QWEN, .m = 512, .bar = 0.93},
    {"bf16_512rows", KT_W_BF16, KT_OF_PEAK, QWEN, .m = 512, .bar = 0.95},
    {"fp8_block_512rows", KT_W_FP8_B128, KT_OF_PEAK, QWEN, .m = 512, .bar = 0.90},
    OLDER(avx2_int4_g32, KT_W_INT4_G32, KT_ISA_AVX2),
    OLDER(avx2_int8, KT_W_INT8_CHANNEL, KT_ISA_AVX2),
    OLDER(avx2_bf16, KT_W_BF16, KT_ISA_AVX2),
    OLDER(avxvnni_int4_g32, KT_W_INT4_G32, WITH_VNNI256),
    OLDER(avxvnni_int8, KT_W_INT8_CHANNEL, WITH_VNNI256),
    OLDER(avx512f_int4_g32, KT_W_INT4_G32, WITH_AVX512F),
    OLDER(avx512f_int8, KT_W_INT8_CHANNEL, WITH_AVX512F),
    OLDER(avx512f_bf16, KT_W_BF16, WITH_AVX512F),
    DENSE(int8, KT_W_INT8_CHANNEL, 1),
    DENSE(int8, KT_W_INT8_CHANNEL, 16),
    DENSE(int8, KT_W_INT8_CHANNEL, 64),
    DENSE(int8, KT_W_INT8_CHANNEL, 512),
    DENSE(bf16, KT_W_BF16, 1),
    DENSE(bf16, KT_W_BF16, 16),
    DENSE(bf16, KT_W_BF16, 64),
    DENSE(bf16, KT_W_BF16, 512),
    {"dense_int8_shapes", KT_W_INT8_CHANNEL, .kind = KT_ROW_SHAPES, .bar = 1.0},
    {"dense_bf16_shapes", KT_W_BF16, .kind = KT_ROW_SHAPES, .bar = 1.0},
    {"int4_g32_decode_2threads", KT_W_INT4_G32, KT_OF_STREAM, QWEN, .m = 1, .threads = 2},
    {"int8_decode_2threads", KT_W_INT8_CHANNEL, KT_OF_STREAM, QWEN, .m = 1, .threads = 2},
    {"int4_g32_prefill_2threads", KT_W_INT4_G32, KT_OF_PEAK, QWEN, .spread_tokens = 512,
     .kind = KT_ROW_SCALING, .bar = 1.95},
    {"int8_prefill_2threads", KT_W_INT8_CHANNEL, KT_OF_PEAK, QWEN, .spread_tokens = 512,
     .kind = KT_ROW_SCALING, .bar = 1.95},
    {"int4_g32_decode_busy_neighbour", KT_W_INT4_G32, KT_OF_STREAM, QWEN, .m = 1,
     .kind = KT_ROW_NEIGHBOUR, .bar = 1.5, .at_most = true},
    MODEL(prefill_2threads, KT_MODEL_PREFILL_OF_PEAK, 2, 0.60),
    MODEL(decode_1thread, KT_MODEL_DECODE_OF_STREAM, 1, 0.85),
    MODEL(decode_2threads, KT_MODEL_DECODE_OF_STREAM, 2, 0),
    MODEL(prefill_scaling, KT_MODEL_PREFILL_SCALING, 2, 1.95),
    {"model_decode_waiting_2threads", .kind = KT_ROW_MODEL, .figure = KT_MODEL_DECODE_WAITING,
     .threads = 2, .bar = 0.05, .at_most = true},
    KEPT("attn_decode_qwen3_30b", KT_OF_ROOFLINE, 0.85, ATTN_QWEN, .m = 1, .context = 8192),
    KEPT("attn_decode_glm47", KT_OF_ROOFLINE, 0.85, ATTN_GLM, .m = 1, .context = 8192),
    KEPT("attn_decode_qwen3_next", KT_OF_ROOFLINE, 0.85, ATTN_NEXT, .m = 1, .context = 8192),
    KEPT("mla_decode", KT_OF_ROOFLINE, 0.70, ATTN_LATENT, .m = 1, .context = 8192),
    KEPT("mla_sparse_decode", KT_OF_ROOFLINE, 0.70, ATTN_LATENT, .m = 1, .context = 2048),
    {"attn_decode_qwen3_30b_2threads", .kind = KT_ROW_KEPT, .of = KT_OF_STREAM, .threads = 2,
     .bar = 0.85, .kept = {ATTN_QWEN, .m = 1, .context = 8192}},
    {"attn_decode_glm47_2threads", .kind = KT_ROW_KEPT, .of = KT_OF_STREAM, .threads = 2,
     .bar = 0.85, .kept = {ATTN_GLM, .m = 1, .context = 8192}},
    KEPT("attn_prefill_qwen3_30b", KT_OF_PEAK, 0.70, ATTN_QWEN, .m = 512, .context = 512),
    KEPT("attn_prefill_glm47", KT_OF_PEAK, 0.70, ATTN_GLM, .m = 512, .context = 512),
    KEPT("attn_prefill_qwen3_next", KT_OF_PEAK, 0.70, ATTN_NEXT, .m = 512, .context = 512),
    KEPT("mla_prefill_wide", KT_OF_PEAK, 0.70, ATTN_WIDE, .m = 512, .context = 512),
    KEPT("index_decode", KT_OF_PEAK, 0.70, INDEX, .m = 1),
    KEPT("index_prefill", KT_OF_PEAK, 0.70, INDEX, .m = 4),
    KEPT("delta_decode", KT_OF_STREAM, 0.85, DELTA, .m = 1),
    KEPT("delta_prefill", KT_OF_PEAK, 0.70, DELTA, .m = 512),
    KEPT("conv_decode", KT_OF_STREAM, 0.85, CONV, .m = 1),
    KEPT("conv_prefill", KT_OF_STREAM, 0.85, CONV, .m = 256),
    /* Whole rows of DeepSeek-V3 and Qwen3-30B; heads of Qwen3-Next, whose w + 1 is made at load;
     * its gated norm and gate. */
    NORM("decode", KT_NORM_RMS, 1, 7168, 0.85),
    NORM("prefill", KT_NORM_RMS, 512, 2048, 0.80),
    NORM("heads_prefill", KT_NORM_RMS, 8192, 256, 0.85),
    NORM("silu_prefill", KT_NORM_RMS_SILU, 16384, 128, 0.7),
    NORM("sigmoid_prefill", KT_NORM_SIGMOID, 8192, 256, 0.85),
    ROUTER("softmax_decode", KT_OF_STREAM, 1, 0.85, ROUTE_SOFTMAX),
    ROUTER("sigmoid_decode", KT_OF_STREAM, 1, 0.85, ROUTE_SIGMOID),
    ROUTER("groups_decode", KT_OF_STREAM, 1, 0.85, ROUTE_GROUPS),
    ROUTER("softmax_prefill", KT_OF_PEAK, 512, 0.70, ROUTE_SOFTMAX),
    ROUTER("sigmoid_prefill", KT_OF_PEAK, 512, 0.70, ROUTE_SIGMOID),
    ROUTER("groups_prefill", KT_OF_PEAK, 512, 0.70, ROUTE_GROUPS),
    ACCURACY(int4_g32_int8_acts, KT_W_INT4_G32, KT_ERROR_TO_WEIGHTS, 0.015),
    ACCURACY(int4_g32, KT_W_INT4_G32, KT_ERROR_OVER_FORMAT, 1.05),
    ACCURACY(int4_g64, KT_W_INT4_G64, KT_ERROR_OVER_FORMAT, 1.05),
    ACCURACY(int4_g128, KT_W_INT4_G128, KT_ERROR_OVER_FORMAT, 1.05),
    ACCURACY(int4z_g32, KT_W_INT4Z_G32, KT_ERROR_OVER_FORMAT, 1.05),
    ACCURACY(int4z_g128, KT_W_INT4Z_G128, KT_ERROR_OVER_FORMAT, 1.05),
    ACCURACY(int8, KT_W_INT8_CHANNEL, KT_ERROR_OVER_FORMAT, 1.05),
    ACCURACY(int8_g128, KT_W_INT8_G128, KT_ERROR_OVER_FORMAT, 1.05),
    ACCURACY(fp8_block, KT_W_FP8_B128, KT_ERROR_OVER_FORMAT, 1.05),
    ACCURACY(fp8_channel, KT_W_FP8_CHANNEL, KT_ERROR_OVER_FORMAT, 1.05),
    ACCURACY(bf16, KT_W_BF16, KT_ERROR_OVER_FORMAT, 1.05),
};

const kt_suite kt_suite_cpu = {
    .name = "cpu",
    .about = "Qwen3-30B-A3B (experts 2048 x 768, 8 of 128) and DeepSeek-V3's experts (7168 x 2048)",
    .specs = specs,
    .n_specs = sizeof specs / sizeof *specs,
    .seconds_per_row = 1.0,
};
