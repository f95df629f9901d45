/* Other shapes of the family than the published ones: odd head counts, one key/value head, sizes
 * that are any multiple of 32, any number of experts, dense layers in between, fused experts,
 * tied embeddings, biases, other stored types. Yardstick: the double reference on the same
 * weights; bound: 1.5 times what the reference itself loses when it rounds where the engine
 * does. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "runtime/exec/engine.h"
#include "tests/support/qwen3_ref.h"
#include "tests/support/random_model.h"
#include "tests/support/temp.h"

#define N_TOKENS 24

static const kt_model_shape shapes[] = {
    {.layers = 2,
     .hidden = 160,
     .vocab = 100,
     .heads = 3,
     .kv_heads = 1,
     .head_dim = 32,
     .experts = 5,
     .topk = 3,
     .expert_size = 96,
     .dense_layer = -1,
     .is_normalised = 1,
     .has_bias = 1,
     .dtype = KT_DTYPE_BF16},
    {.layers = 3,
     .hidden = 96,
     .vocab = 65,
     .heads = 5,
     .kv_heads = 5,
     .head_dim = 96,
     .experts = 7,
     .topk = 2,
     .expert_size = 32,
     .dense_size = 224,
     .dense_layer = 1,
     .dtype = KT_DTYPE_BF16},
    {.layers = 4,
     .hidden = 32,
     .vocab = 33,
     .heads = 9,
     .kv_heads = 3,
     .head_dim = 32,
     .experts = 3,
     .topk = 3,
     .expert_size = 160,
     .dense_size = 32,
     .sparse_step = 2,
     .dense_layer = -1,
     .is_normalised = 1,
     .dtype = KT_DTYPE_BF16},
    {.layers = 2,
     .hidden = 224,
     .vocab = 31,
     .heads = 1,
     .kv_heads = 1,
     .head_dim = 128,
     .experts = 1,
     .topk = 1,
     .expert_size = 64,
     .dense_layer = -1,
     .dtype = KT_DTYPE_BF16},
    {.layers = 2,
     .hidden = 64,
     .vocab = 127,
     .heads = 7,
     .kv_heads = 1,
     .head_dim = 64,
     .experts = 33,
     .topk = 6,
     .expert_size = 32,
     .dense_layer = -1,
     .is_normalised = 1,
     .is_fused = 1,
     .is_tied = 1,
     .dtype = KT_DTYPE_BF16},
    {.layers = 2,
     .hidden = 128,
     .vocab = 96,
     .heads = 6,
     .kv_heads = 2,
     .head_dim = 160,
     .experts = 4,
     .topk = 1,
     .expert_size = 96,
     .dense_size = 96,
     .dense_layer = 0,
     .is_normalised = 1,
     .has_bias = 1,
     .dtype = KT_DTYPE_F32},
    {.layers = 1,
     .hidden = 96,
     .vocab = 64,
     .heads = 2,
     .kv_heads = 2,
     .head_dim = 32,
     .experts = 6,
     .topk = 4,
     .expert_size = 64,
     .dense_layer = -1,
     .is_fused = 1,
     .dtype = KT_DTYPE_F16},
    /* q and v in one format, k between them in another */
    {.layers = 2,
     .hidden = 64,
     .vocab = 64,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 32,
     .experts = 4,
     .topk = 2,
     .expert_size = 64,
     .dense_layer = -1,
     .is_normalised = 1,
     .dtype = KT_DTYPE_BF16,
     .odd_name = "model.layers.0.self_attn.k_proj.weight",
     .odd_dtype = KT_DTYPE_F16},
};

static float *run_engine(const char *folder, kt_quant weights, const int32_t *tokens, int64_t vocab,
                         int64_t chunk, bool exact_acts, bool deterministic) {
    kt_engine_options o = {.model_dir = folder,
                           .weights = weights,
                           .exact_acts = exact_acts,
                           .deterministic = deterministic,
                           .table_path = "",
                           .n_threads = 2,
                           .tokenizer_optional = true};
    float *logits = malloc((size_t)(N_TOKENS * vocab) * sizeof *logits);
    kt_engine *e;
    kt_sequence *s;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    kt_engine_set_chunk(e, chunk);
    cr_assert_eq(kt_sequence_create(e, N_TOKENS, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(
        kt_engine_forward(e, s, tokens, N_TOKENS, N_TOKENS, logits, NULL, NULL, NULL, &err), KT_OK,
        "%s", err.message);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
    return logits;
}

static void check(size_t shape_id, kt_quant weights) {
    const kt_model_shape *shape = &shapes[shape_id];
    char folder[PATH_MAX];
    int32_t tokens[N_TOKENS];
    int64_t all_decided = 0;
    kt_err err = {KT_OK, ""};

    for (uint64_t seed = 1; seed <= 4; seed++) {
        kt_rng rng;
        kt_ref_model *m;
        float *got, *whole, *parts;
        int64_t decided;
        double error, rounded;
        const bool exact_acts = seed % 2;
        const kt_ref_rounding rounding = weights <= KT_QUANT_BF16 ? KT_REF_BF16
                                         : exact_acts             ? KT_REF_INT8
                                                                  : KT_REF_INT8_POWERS;
        kt_rng_seed(&rng, seed);
        for (int i = 0; i < N_TOKENS; i++)
            tokens[i] = (int32_t)kt_rng_below(&rng, (uint64_t)shape->vocab);
        kt_temp_make(folder, sizeof folder);
        kt_random_model(shape, seed, folder);
        m = kt_ref_load(folder, weights, &err);
        cr_assert(m, "%s", err.message);
        got = run_engine(folder, weights, tokens, shape->vocab, N_TOKENS, exact_acts, false);
        whole = run_engine(folder, weights, tokens, shape->vocab, N_TOKENS, exact_acts, true);
        parts = run_engine(folder, weights, tokens, shape->vocab, 5, exact_acts, true);
        cr_expect_eq(memcmp(whole, parts, (size_t)(N_TOKENS * shape->vocab) * sizeof *got), 0,
                     "shape %zu, weights %d, seed %d: chunks differ", shape_id, (int)weights,
                     (int)seed);
        error = kt_ref_compare(m, tokens, N_TOKENS, rounding, got, &decided, &rounded);
        if (decided)
            cr_expect_leq(error, 1.5 * rounded,
                          "shape %zu, weights %d, seed %d: off by %g, the reference loses %g "
                          "(%d positions)",
                          shape_id, (int)weights, (int)seed, error, rounded, (int)decided);
        all_decided += decided;
        free(got);
        free(whole);
        free(parts);
        kt_ref_free(m);
        kt_temp_remove(folder);
    }
    cr_expect_geq(all_decided, N_TOKENS, "shape %zu: too few positions are decided", shape_id);
}

ParameterizedTestParameters(shapes, bf16_agrees_with_the_reference) {
    size_t n = sizeof shapes / sizeof *shapes, *index = cr_malloc(sizeof *index * n);
    for (size_t i = 0; i < n; i++) index[i] = i;
    return cr_make_param_array(size_t, index, n);
}

ParameterizedTest(size_t *index, shapes, bf16_agrees_with_the_reference, .timeout = 120) {
    check(*index, KT_QUANT_BF16);
}

ParameterizedTestParameters(shapes, int8_agrees_with_the_reference) {
    size_t n = sizeof shapes / sizeof *shapes, *index = cr_malloc(sizeof *index * n);
    for (size_t i = 0; i < n; i++) index[i] = i;
    return cr_make_param_array(size_t, index, n);
}

ParameterizedTest(size_t *index, shapes, int8_agrees_with_the_reference, .timeout = 120) {
    check(*index, KT_QUANT_INT8);
}

ParameterizedTestParameters(shapes, int4_agrees_with_the_reference) {
    size_t n = sizeof shapes / sizeof *shapes, *index = cr_malloc(sizeof *index * n);
    for (size_t i = 0; i < n; i++) index[i] = i;
    return cr_make_param_array(size_t, index, n);
}

ParameterizedTest(size_t *index, shapes, int4_agrees_with_the_reference, .timeout = 120) {
    check(*index, KT_QUANT_INT4);
}

/* As stored, where one product has parts of two formats. */
Test(shapes, parts_of_two_formats_agree_with_the_reference, .timeout = 120) {
    check(sizeof shapes / sizeof *shapes - 1, KT_QUANT_NATIVE);
}
