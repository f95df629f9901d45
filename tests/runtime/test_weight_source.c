/* Which rows of which tensor a weight is. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "dispatch/model/family.h"
#include "kernels/formats/w8g16m.h"
#include "runtime/model/weight_source.h"

typedef struct model {
    kt_graph graph;
    kt_checkpoint *checkpoint;
    kt_weight_finder finder;
} model;

/* Tensors without data: only their places are looked at. */
static void make(model *m, const char *config, const kt_tensor *tensors, size_t n) {
    kt_json_doc *doc;
    kt_buffer memory;
    kt_graph_request request = {0};
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_json_parse(config, strlen(config), NULL, &doc, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_buffer_create(64, KT_PAGES_SMALL, -1, &memory, &err), KT_OK);
    cr_assert_eq(kt_checkpoint_of_memory("memory", tensors, n, &memory, &m->checkpoint, &err),
                 KT_OK);
    request.source =
        (kt_config_source){.json = kt_json_root(doc), .arch = "", .where = "config.json"};
    request.checkpoint = m->checkpoint;
    cr_assert_eq(kt_graph_build(&request, &m->graph, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_weight_finder_init(&m->finder, m->checkpoint, &m->graph, &err), KT_OK);
    kt_json_destroy(doc);
}

static void unmake(model *m) {
    kt_weight_finder_deinit(&m->finder);
    kt_graph_deinit(&m->graph);
    kt_checkpoint_close(m->checkpoint);
}

#define COMMON                                                                                \
    "\"num_hidden_layers\":1,\"hidden_size\":64,\"vocab_size\":64,\"num_attention_heads\":2," \
    "\"num_experts_per_tok\":1,\"moe_intermediate_size\":32,\"max_position_embeddings\":64,"  \
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0"

/* Gate rows of an expert come first, then its up rows; down lies in a tensor of its own. */
Test(weight_source, fused_experts_lie_one_behind_the_other) {
    static const kt_tensor tensors[] = {{.name = "model.layers.0.mlp.experts.gate_up_proj",
                                         .dtype = KT_DTYPE_BF16,
                                         .rank = 3,
                                         .shape = {4, 64, 64}},
                                        {.name = "model.layers.0.mlp.experts.down_proj",
                                         .dtype = KT_DTYPE_BF16,
                                         .rank = 3,
                                         .shape = {4, 64, 32}}};
    static const int64_t want[3] = {3 * 64, 3 * 64 + 32, 3 * 64}, rows[3] = {32, 32, 64};
    model m;
    kt_matrix_source s;
    kt_err err = {KT_OK, ""};

    make(&m,
         "{\"model_type\":\"qwen3_moe\",\"num_key_value_heads\":1,\"num_experts\":4," COMMON "}",
         tensors, 2);
    for (int i = 0; i < 3; i++) {
        const kt_weight *w = kt_graph_experts(&m.graph, 0);
        cr_assert_eq(kt_weight_source(&m.finder, w, i, 1, 3, &s, &err), KT_OK, "%s", err.message);
        cr_expect(s.n_pieces == 1 && s.rows == rows[i] && s.piece[0].first_row == want[i],
                  "part %d: %d rows from %d", i, (int)s.rows, (int)s.piece[0].first_row);
        cr_expect_str_eq(s.piece[0].tensor->name, tensors[i == 2].name);
    }
    unmake(&m);
}

/* Each head of kv_b has the rows of its keys, then those of its values. */
Test(weight_source, latent_heads_have_rows_of_keys_and_of_values) {
    static const kt_tensor tensor = {.name = "model.layers.0.self_attn.kv_b_proj.weight",
                                     .dtype = KT_DTYPE_BF16,
                                     .rank = 2,
                                     .shape = {2 * (96 + 32), 64}};
    model m;
    kt_matrix_source s;
    kt_err err = {KT_OK, ""};

    make(&m,
         "{\"model_type\":\"deepseek_v3\",\"kv_lora_rank\":64,\"qk_nope_head_dim\":96,"
         "\"qk_rope_head_dim\":32,\"v_head_dim\":32,\"n_routed_experts\":4," COMMON "}",
         &tensor, 1);
    cr_assert_eq(kt_weight_head_source(&m.finder, kt_graph_find(&m.graph, "k_b", 0), 1, &s, &err),
                 KT_OK, "%s", err.message);
    cr_expect(s.rows == 96 && s.k == 64 && s.piece[0].first_row == 128 && s.piece[0].rows == 96);
    cr_assert_eq(kt_weight_head_source(&m.finder, kt_graph_find(&m.graph, "v_b", 0), 1, &s, &err),
                 KT_OK, "%s", err.message);
    cr_expect(s.rows == 32 && s.k == 64 && s.piece[0].first_row == 128 + 96);
    unmake(&m);
}

/* A single expert's tensor is found by its number; what is missing is named. */
Test(weight_source, single_experts_are_found_by_their_number) {
    static const kt_tensor tensor = {.name = "model.layers.0.mlp.experts.2.up_proj.weight",
                                     .dtype = KT_DTYPE_F16,
                                     .rank = 2,
                                     .shape = {32, 64}};
    model m;
    kt_matrix_source s;
    kt_err err = {KT_OK, ""};

    make(&m,
         "{\"model_type\":\"qwen3_moe\",\"num_key_value_heads\":1,\"num_experts\":4," COMMON "}",
         &tensor, 1);
    cr_assert_eq(kt_weight_source(&m.finder, kt_graph_experts(&m.graph, 0), 1, 1, 2, &s, &err),
                 KT_OK, "%s", err.message);
    cr_expect_str_eq(s.piece[0].tensor->name, tensor.name);
    cr_expect_eq(kt_weight_source(&m.finder, kt_graph_experts(&m.graph, 0), 1, 1, 1, &s, &err),
                 KT_E_NOT_FOUND);
    cr_expect(strstr(err.message, "experts.1.up_proj.weight' is missing"), "%s", err.message);
    unmake(&m);
}

/* ---- NVFP4 blocks with a factor beside them ---- */

static uint8_t nvfp4_blocks[4 * 32 * 36];
static float nvfp4_factors[4] = {1, 2, -0.375f, 3};

/* Gates of four experts, and an embedding; numbers of type `dtype` beside each. */
static void make_nvfp4(model *m, kt_dtype dtype, int64_t n_factors) {
    const kt_tensor tensors[] = {{.name = "blk.0.ffn_gate_exps.weight",
                                  .dtype = KT_DTYPE_U8,
                                  .rank = 3,
                                  .shape = {4, 32, 64},
                                  .data = nvfp4_blocks,
                                  .bytes = sizeof nvfp4_blocks,
                                  .blocks = KT_W_NVFP4},
                                 {.name = "blk.0.ffn_gate_exps.scale",
                                  .dtype = dtype,
                                  .rank = 1,
                                  .shape = {n_factors},
                                  .data = (const uint8_t *)nvfp4_factors,
                                  .bytes = sizeof nvfp4_factors},
                                 {.name = "token_embd.weight",
                                  .dtype = KT_DTYPE_U8,
                                  .rank = 2,
                                  .shape = {64, 64},
                                  .data = nvfp4_blocks,
                                  .bytes = 64 * 36,
                                  .blocks = KT_W_NVFP4},
                                 {.name = "token_embd.scale",
                                  .dtype = KT_DTYPE_F32,
                                  .rank = 1,
                                  .shape = {1},
                                  .data = (const uint8_t *)nvfp4_factors,
                                  .bytes = 4}};

    make(m, "{\"model_type\":\"qwen3_moe\",\"num_key_value_heads\":1,\"num_experts\":4," COMMON "}",
         tensors, 4);
    m->graph.is_gguf = true;
}

Test(weight_source, nvfp4_blocks_have_the_factor_of_their_expert) {
    enum { FIRST = 4, ROWS = 5, AT = 2 * 32 + FIRST };
    uint8_t data[ROWS * 36];
    float factors[ROWS], terms[2][ROWS * 8];
    int8_t codes[2][ROWS * 64];
    const kt_matrix plain = {KT_W_NVFP4, ROWS, 64, nvfp4_blocks + AT * 36, factors};
    kt_matrix_source s;
    kt_matrix borrowed;
    model m;
    kt_err err = {KT_OK, ""};

    for (size_t i = 0; i < sizeof nvfp4_blocks; i++) nvfp4_blocks[i] = (uint8_t)(i * 29 + 3);
    make_nvfp4(&m, KT_DTYPE_F32, 4);
    cr_assert_eq(kt_weight_source(&m.finder, kt_graph_experts(&m.graph, 0), 0, 1, 2, &s, &err),
                 KT_OK, "%s", err.message);
    cr_assert(s.piece[0].has_factor && s.piece[0].factor == -0.375f);
    cr_assert_eq(kt_matrix_source_borrow(&s, KT_W_NVFP4, &borrowed), 0);
    cr_assert_eq(kt_matrix_source_encode_rows(&s, kt_format_find(KT_W_NVFP4), FIRST, FIRST + ROWS,
                                              data, factors, NULL, &err),
                 KT_OK, "%s", err.message);
    cr_expect_eq(memcmp(data, plain.data, sizeof data), 0);
    for (int r = 0; r < ROWS; r++) cr_expect_eq(factors[r], -0.375f);
    cr_assert_eq(kt_matrix_source_encode_rows(&s, kt_format_find(KT_W_INT8_G16M), FIRST,
                                              FIRST + ROWS, codes[0], terms[0], NULL, &err),
                 KT_OK, "%s", err.message);
    cr_assert_eq(kt_w8g16m_from(&plain, 0, ROWS, codes[1], terms[1], &err), KT_OK);
    cr_expect_eq(memcmp(codes[0], codes[1], sizeof codes[0]), 0);
    cr_expect_eq(memcmp(terms[0], terms[1], sizeof terms[0]), 0);
    unmake(&m);
}

Test(weight_source, refuses_factors_of_nvfp4_that_it_cannot_use) {
    static const struct {
        kt_dtype dtype;
        int64_t n;
        const char *message;
    } cases[] = {{KT_DTYPE_F32, 3, "3 numbers of type F32 beside NVFP4 blocks, expected 1 or 4"},
                 {KT_DTYPE_F16, 4, "4 numbers of type F16 beside NVFP4 blocks, expected 1 or 4"},
                 {KT_DTYPE_F32, 4, "number 2 is inf, expected finite"}};

    nvfp4_factors[2] = INFINITY;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_matrix_source s;
        model m;
        kt_err err = {KT_OK, ""};
        make_nvfp4(&m, cases[i].dtype, cases[i].n);
        cr_assert_neq(kt_weight_source(&m.finder, kt_graph_experts(&m.graph, 0), 0, 1, 2, &s, &err),
                      KT_OK);
        cr_expect(strstr(err.message, cases[i].message), "%s", err.message);
        unmake(&m);
    }
}

Test(weight_source, a_table_of_nvfp4_has_no_factor) {
    const kt_tensor *t;
    model m;
    kt_err err = {KT_OK, ""};
    int n_tables = 0;

    make_nvfp4(&m, KT_DTYPE_F32, 4);
    for (int i = 0; i < m.graph.n_weights; i++) {
        if (m.graph.weights[i].kind != KT_WEIGHT_TABLE) continue;
        n_tables++;
        cr_assert_neq(kt_weight_tensor(&m.finder, &m.graph.weights[i], &t, &err), KT_OK);
        cr_expect(strstr(err.message, "NVFP4 with a scale of its own ('token_embd.scale')"), "%s",
                  err.message);
    }
    cr_assert_eq(n_tables, 1);
    unmake(&m);
}

/* ---- NVFP4 of safetensors ---- */

#define UP "model.layers.0.mlp.experts.1.up_proj"
#define UP_OF_FIRST "model.layers.0.mlp.experts.0.up_proj"

/* U8 codes are NVFP4 where scales are E4M3 or a factor is there, and MXFP4 where neither is. */
Test(weight_source, nvfp4_is_told_by_its_scales_or_its_factor) {
    static const kt_tensor cases[][2] = {
        {{.name = UP_OF_FIRST ".weight", KT_DTYPE_U8, 2, {32, 32}},
         {.name = UP_OF_FIRST ".weight_scale", KT_DTYPE_F8_E4M3, 2, {32, 4}}},
        {{.name = UP_OF_FIRST ".weight_packed", KT_DTYPE_U8, 2, {32, 32}},
         {.name = UP_OF_FIRST ".weight_scale", KT_DTYPE_F8_E4M3, 2, {32, 4}}},
        {{.name = UP_OF_FIRST ".weight", KT_DTYPE_U8, 2, {32, 32}},
         {.name = UP_OF_FIRST ".weight_scale_2", KT_DTYPE_F32}},
        {{.name = UP_OF_FIRST ".weight_packed", KT_DTYPE_U8, 2, {32, 32}},
         {.name = UP_OF_FIRST ".weight_global_scale", KT_DTYPE_F32, 1, {1}}},
        {{.name = UP_OF_FIRST ".weight_packed", KT_DTYPE_U8, 2, {32, 32}},
         {.name = UP_OF_FIRST ".weight_scale", KT_DTYPE_U8, 2, {32, 2}}}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kt_weight_part *part;
        model m;
        make(&m,
             "{\"model_type\":\"qwen3_moe\",\"num_key_value_heads\":1,\"num_experts\":4," COMMON
             "}",
             cases[i], 2);
        part = &kt_graph_experts(&m.graph, 0)->part[1];
        cr_expect_eq(part->encoding, i < 4 ? KT_STORED_NVFP4 : KT_STORED_MXFP4, "case %zu", i);
        cr_expect_eq(part->stored, i < 4 ? KT_W_NVFP4 : KT_W_MXFP4, "case %zu", i);
        unmake(&m);
    }
}

/* Experts' matrices that lack something, or have it otherwise, are refused by what they lack. */
Test(weight_source, names_what_nvfp4_of_safetensors_lacks) {
    static const uint8_t bytes[32 * 32];
    static const float values[] = {0, INFINITY, 0.5f, 2};
    static const kt_tensor first = {
        .name = UP_OF_FIRST ".weight_packed", KT_DTYPE_U8, 2, {32, 32}, bytes, 32 * 32};
    static const kt_tensor first_scale = {
        .name = UP_OF_FIRST ".weight_scale", KT_DTYPE_F8_E4M3, 2, {32, 4}, bytes, 32 * 4};
    static const kt_tensor codes = {
        .name = UP ".weight_packed", KT_DTYPE_U8, 2, {32, 32}, bytes, 32 * 32};
    static const kt_tensor scale = {
        .name = UP ".weight_scale", KT_DTYPE_F8_E4M3, 2, {32, 4}, bytes, 32 * 4};
#define NUMBER(part, at, ...) \
    { .name = UP part, KT_DTYPE_F32, __VA_ARGS__, (const uint8_t *)&values[at], 4 }
    const struct {
        kt_tensor tensors[4];
        const char *message; /* NULL = nothing is wrong */
        float factor;
    } cases[] = {
        {{codes, scale, NUMBER(".weight_scale_2", 2, 0, {0})}, NULL, 0.5f},
        {{codes, scale, NUMBER(".weight_global_scale", 3, 1, {1})}, NULL, 0.5f},
        {{codes, scale, NUMBER(".weight_scale_2", 0, 0, {0})}, NULL, 0},
        {{codes, scale}, "NVFP4 without '" UP ".weight_global_scale'", 0},
        {{codes, NUMBER(".weight_scale_2", 2, 0, {0})}, "'" UP ".weight_scale' is missing", 0},
        {{scale, NUMBER(".weight_scale_2", 2, 0, {0})}, "'" UP ".weight' is missing", 0},
        {{codes, scale, NUMBER(".weight_global_scale", 0, 1, {1})},
         "is 0, expected a finite number other than 0",
         0},
        {{codes, scale, NUMBER(".weight_scale_2", 1, 1, {1})}, "is inf, expected a finite", 0},
        {{codes, scale, {.name = UP ".weight_scale_2", KT_DTYPE_F32, 1, {3}, bytes, 12}},
         "3 numbers of type F32, expected one",
         0},
        {{codes, {.name = UP ".weight_scale", KT_DTYPE_F8_E4M3, 2, {32, 2}, bytes, 64}},
         "[32, 2], config.json asks for [32, 4]",
         0},
        {{codes, {.name = UP ".weight_scale", KT_DTYPE_U8, 2, {32, 4}, bytes, 128}},
         "dtype U8, expected F8_E4M3",
         0},
        {{{.name = UP ".weight", KT_DTYPE_F8_E4M3, 2, {32, 32}, bytes, 1024}, scale},
         "dtype F8_E4M3, expected U8 or I8",
         0},
        {{codes, scale, {.name = UP ".pre_quant_scale", KT_DTYPE_F32, 1, {64}, bytes, 256}},
         "pre_quant_scale' scales inputs (NVFP4_AWQ)",
         0}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_tensor tensors[6] = {first, first_scale};
        size_t n = 0;
        kt_matrix_source s;
        model m;
        kt_err err = {KT_OK, ""};
        for (; n < 4 && cases[i].tensors[n].name; n++) tensors[2 + n] = cases[i].tensors[n];
        make(&m,
             "{\"model_type\":\"qwen3_moe\",\"num_key_value_heads\":1,\"num_experts\":4," COMMON
             "}",
             tensors, 2 + n);
        cr_expect_eq(kt_weight_source(&m.finder, kt_graph_experts(&m.graph, 0), 1, 1, 1, &s, &err),
                     cases[i].message ? err.status : KT_OK, "case %zu: %s", i, err.message);
        if (cases[i].message)
            cr_expect(strstr(err.message, cases[i].message), "case %zu: %s", i, err.message);
        else
            cr_expect_eq(s.piece[0].factor, cases[i].factor, "case %zu: %g", i, s.piece[0].factor);
        unmake(&m);
    }
}
