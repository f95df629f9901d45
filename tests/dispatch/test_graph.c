/* Descriptions of models: names and numbers in both spellings, how weights are stored, what is
 * needed. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "dispatch/model/build_impl.h"
#include "dispatch/model/gqa.h"
#include "dispatch/model/needs.h"
#include "tests/support/temp.h"
#include "tests/support/tiny_gguf.h"

static kt_json_doc *parse(const char *text) {
    kt_json_doc *doc = NULL;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_json_parse(text, strlen(text), NULL, &doc, &err), KT_OK, "%s: %s", text,
                 err.message);
    return doc;
}

static kt_status build_json(const char *text, const kt_checkpoint *c, kt_graph *out, kt_err *err) {
    kt_json_doc *doc = parse(text);
    const kt_graph_request request = {
        .source = {.json = kt_json_root(doc), .arch = "", .where = "config.json"}, .checkpoint = c};
    kt_status st = kt_graph_build(&request, out, err);

    kt_json_destroy(doc);
    return st;
}

/* ---- numbers ---- */

typedef struct numbers {
    int64_t a, b;
    double c;
    bool d;
} numbers;

static const kt_number table[] = {
    {offsetof(numbers, a), KT_NUMBER_INT, "first|second", "x.first", KT_NUMBER_NEEDED, 2, 9},
    {offsetof(numbers, b), KT_NUMBER_INT, "b", NULL, 5, 0, 10},
    {offsetof(numbers, c), KT_NUMBER_DOUBLE, "c", "x.c", 0.25, 0, 1},
    {offsetof(numbers, d), KT_NUMBER_BOOL, "d", "x.d", 1, 0, 1}};

static kt_status read_json(const char *text, numbers *out, kt_err *err) {
    kt_json_doc *doc = parse(text);
    const kt_config_source s = {.json = kt_json_root(doc), .arch = "", .where = "config.json"};
    kt_status st = kt_numbers_read(&s, table, 4, out, err);

    kt_json_destroy(doc);
    return st;
}

Test(graph, numbers_have_aliases_defaults_and_ranges) {
    static const struct {
        const char *text, *says;
    } bad[] = {{"{}", "'first' is missing"},
               {"{\"second\":1}", "'second' is 1"},
               {"{\"first\":10}", "'first' is 10"},
               {"{\"first\":2.5}", "'first'"},
               {"{\"first\":2,\"b\":11}", "'b' is 11"},
               {"{\"first\":2,\"c\":1.5}", "'c' is 1.5, expected 0 to 1"},
               {"{\"first\":2,\"c\":\"x\"}", "'c'"},
               {"{\"first\":2,\"d\":1}", "'d' is number, expected true or false"}};
    numbers n;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(read_json("{\"first\":null,\"second\":3,\"c\":null}", &n, &err), KT_OK, "%s",
                 err.message);
    cr_expect(n.a == 3 && n.b == 5 && n.c == 0.25 && n.d);
    cr_assert_eq(read_json("{\"second\":3,\"first\":9,\"b\":0,\"c\":1,\"d\":false}", &n, &err),
                 KT_OK);
    cr_expect(n.a == 9 && n.b == 0 && n.c == 1 && !n.d);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_eq(read_json(bad[i].text, &n, &err), KT_E_FORMAT, "%s", bad[i].text);
        cr_expect(strstr(err.message, bad[i].says), "%s: '%s' lacks '%s'", bad[i].text, err.message,
                  bad[i].says);
    }
}

/* ---- GGUF metadata ---- */

typedef struct gguf_case {
    kt_tiny_gguf *file;
    kt_gguf_meta meta;
    kt_config_source source;
} gguf_case;

static gguf_case begin_gguf(void) {
    return (gguf_case){.file = calloc(1, sizeof(kt_tiny_gguf))};
}

static void open_gguf(gguf_case *c, const char *arch) {
    const size_t size = kt_tiny_gguf_end(c->file);
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_gguf_meta_init(&c->meta, c->file->file, size, &err), KT_OK, "%s", err.message);
    c->source = (kt_config_source){.gguf = &c->meta, .arch = arch, .where = "m.gguf"};
}

static void end_gguf(gguf_case *c) {
    kt_gguf_meta_deinit(&c->meta);
    free(c->file);
}

Test(graph, numbers_of_gguf_files_stand_behind_the_architecture) {
    gguf_case c = begin_gguf(), empty = begin_gguf(), wide = begin_gguf();
    numbers n;
    kt_err err;

    kt_tiny_gguf_int(c.file, "arch.x.first", 4);
    kt_tiny_gguf_int(c.file, "arch.b", 7); /* not of GGUF */
    kt_tiny_gguf_real(c.file, "arch.x.c", 0.5f);
    open_gguf(&c, "arch");
    cr_assert_eq(kt_numbers_read(&c.source, table, 4, &n, &err), KT_OK, "%s", err.message);
    cr_expect(n.a == 4 && n.b == 5 && n.c == 0.5 && n.d);
    kt_tiny_gguf_int(empty.file, "other.x.first", 4);
    open_gguf(&empty, "arch");
    cr_expect_eq(kt_numbers_read(&empty.source, table, 4, &n, &err), KT_E_FORMAT);
    cr_expect(strstr(err.message, "m.gguf: no 'arch.x.first'"), "%s", err.message);
    kt_tiny_gguf_int(wide.file, "arch.x.first", 99);
    open_gguf(&wide, "arch");
    cr_expect_eq(kt_numbers_read(&wide.source, table, 4, &n, &err), KT_E_FORMAT);
    cr_expect(strstr(err.message, "'arch.x.first' is 99, expected 2 to 9"), "%s", err.message);
    end_gguf(&c), end_gguf(&empty), end_gguf(&wide);
}

static kt_status build_gguf(gguf_case *c, kt_graph *out, kt_err *err) {
    const kt_graph_request request = {.source = c->source};
    return kt_graph_build(&request, out, err);
}

Test(graph, a_gguf_model_is_described_by_its_metadata) {
    gguf_case c = begin_gguf();
    kt_graph g;
    char name[200];
    kt_err err = {KT_OK, ""};

    kt_tiny_gguf_qwen3(c.file);
    open_gguf(&c, "qwen3moe");
    cr_assert_eq(build_gguf(&c, &g, &err), KT_OK, "%s", err.message);
    cr_expect(g.is_gguf && g.numbers.layers == 1 && g.numbers.vocab == 64);
    cr_expect_eq(g.numbers.n_eos, 2);
    cr_expect(g.numbers.eos[0] == 7 && g.numbers.eos[1] == 9);
    cr_expect(g.n_rotations == 1 && g.rotations[0].base == 10000 &&
              g.rotations[0].rotary_dim == 32);
    kt_weight_name(&g, kt_graph_find(&g, "qkv", 0), 1, 0, false, name, sizeof name);
    cr_expect_str_eq(name, "blk.0.attn_k");
    kt_weight_name(&g, kt_graph_find(&g, "qkv", 0), 1, 0, true, name, sizeof name);
    cr_expect_str_eq(name, "model.layers.0.self_attn.k_proj");
    kt_weight_name(&g, kt_graph_experts(&g, 0), 2, 13, true, name, sizeof name);
    cr_expect_str_eq(name, "model.layers.0.mlp.experts.13.down_proj");
    kt_weight_name(&g, kt_graph_experts(&g, 0), 2, 13, false, name, sizeof name);
    cr_expect_str_eq(name, "blk.0.ffn_down_exps");
    cr_expect_null(kt_graph_experts(&g, 1));
    cr_expect_null(kt_graph_find(&g, "qkv", -1));
    cr_expect_str_eq(kt_graph_find(&g, "embedding", -1)->part[0].name.gguf, "token_embd");
    kt_graph_deinit(&g);
    end_gguf(&c);
}

/* Layers that predict further tokens are kept aside; more of them than there are layers is no
 * model. */
Test(graph, layers_kept_aside_are_counted_and_checked) {
    static const int32_t aside[] = {-100000, 1, 2, INT32_MAX};
    kt_graph g;
    kt_err err;

    for (size_t i = 0; i < sizeof aside / sizeof *aside; i++) {
        gguf_case c = begin_gguf();
        kt_tiny_gguf_qwen3(c.file);
        kt_tiny_gguf_int(c.file, "qwen3moe.nextn_predict_layers", aside[i]);
        open_gguf(&c, "qwen3moe");
        cr_expect_eq(build_gguf(&c, &g, &err), KT_E_FORMAT, "%d", aside[i]);
        cr_expect(strstr(err.message, "nextn_predict_layers"), "%s", err.message);
        end_gguf(&c);
    }
}

/* Sizes of heads that only GGUF files give have ranges, too. */
Test(graph, sizes_of_latent_heads_are_checked) {
    static const char *const keys[] = {"block_count",          "embedding_length",
                                       "vocab_size",           "context_length",
                                       "attention.head_count", "attention.kv_lora_rank",
                                       "expert_count",         "expert_feed_forward_length",
                                       "rope.dimension_count", "expert_used_count"};
    static const int32_t sizes[] = {1, 64, 64, 128, 2, 32, 4, 32, 32, 2};
    static const struct {
        int32_t key, value;
        kt_status status;
    } cases[] = {{64, 32, KT_OK},
                 {INT32_MAX, 32, KT_E_FORMAT},
                 {64, INT32_MAX, KT_E_FORMAT},
                 {-64, 32, KT_E_FORMAT},
                 {64, 33, KT_E_UNSUPPORTED}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_case c = begin_gguf();
        char key[80];
        kt_graph g;
        kt_err err = {KT_OK, ""};
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            snprintf(key, sizeof key, "deepseek2.%s", keys[k]);
            kt_tiny_gguf_int(c.file, key, sizes[k]);
        }
        kt_tiny_gguf_real(c.file, "deepseek2.attention.layer_norm_rms_epsilon", 1e-6f);
        kt_tiny_gguf_int(c.file, "deepseek2.attention.key_length_mla", cases[i].key);
        kt_tiny_gguf_int(c.file, "deepseek2.attention.value_length_mla", cases[i].value);
        open_gguf(&c, "deepseek2");
        cr_expect_eq(build_gguf(&c, &g, &err), cases[i].status, "case %zu: %s", i, err.message);
        kt_graph_deinit(&g);
        end_gguf(&c);
    }
}

/* ---- families ---- */

Test(graph, unknown_families_are_told_the_known_ones) {
    gguf_case c = begin_gguf();
    kt_graph g;
    kt_err err;

    cr_expect_eq(build_json("{\"model_type\":\"qwen3\"}", NULL, &g, &err), KT_E_UNSUPPORTED);
    cr_expect(strstr(err.message, "model_type 'qwen3' is not supported") &&
                  strstr(err.message, "qwen3_moe") && strstr(err.message, "kimi_k2") &&
                  !strstr(err.message, "deepseek2"),
              "%s", err.message);
    cr_expect_eq(build_json("{\"model_type\":\"qwen3_moe2\"}", NULL, &g, &err), KT_E_UNSUPPORTED);
    open_gguf(&c, "llama");
    cr_expect_eq(build_gguf(&c, &g, &err), KT_E_UNSUPPORTED);
    cr_expect(strstr(err.message, "general.architecture 'llama' is not supported") &&
                  strstr(err.message, "deepseek2") && !strstr(err.message, "kimi_k2"),
              "%s", err.message);
    end_gguf(&c);
}

/* The config of datasets/workloads/<name>.json as a text; free it. */
static char *published(const char *name) {
    char path[400], *text, *begin;
    size_t size;
    int depth = 0;
    kt_err err = {KT_OK, ""};

    snprintf(path, sizeof path, KT_SOURCE_DIR "/datasets/workloads/%s.json", name);
    cr_assert_eq(kt_file_read(path, 1 << 20, &text, &size, &err), KT_OK, "%s", err.message);
    begin = strchr(strstr(text, "\"config\""), '{');
    for (char *p = begin;; p++) {
        depth += (*p == '{') - (*p == '}');
        if (depth) continue;
        p[1] = '\0';
        break;
    }
    memmove(text, begin, strlen(begin) + 1);
    return text;
}

typedef struct expected {
    const char *role;
    int64_t n, k, experts, topk, times; /* experts 0: a plain matrix */
} expected;

static void expect_needs(const char *name, const expected *want, int n_want) {
    char *text = published(name);
    kt_graph g;
    kt_need *needs;
    int n;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(build_json(text, NULL, &g, &err), KT_OK, "%s: %s", name, err.message);
    cr_assert_eq(kt_graph_needs(&g, KT_QUANT_BF16, &needs, &n, &err), KT_OK);
    cr_expect_eq(n, n_want, "%s: %d needs", name, n);
    for (int i = 0; i < n && i < n_want; i++) {
        const kt_problem *p = &needs[i].problem;
        cr_expect_str_eq(needs[i].role, want[i].role, "%s: %s, expected %s", name, needs[i].role,
                         want[i].role);
        cr_expect(p->n == want[i].n && p->k == want[i].k && p->experts == want[i].experts &&
                      p->topk == want[i].topk && needs[i].times == want[i].times,
                  "%s: %s: [%d, %d] of %d, top %d, %d times", name, needs[i].role, (int)p->n,
                  (int)p->k, (int)p->experts, (int)p->topk, (int)needs[i].times);
        cr_expect_eq(p->op, want[i].experts ? KT_OP_MOE_FFN : KT_OP_GEMM);
        cr_expect(p->weights == KT_W_BF16 && p->down == KT_W_NONE);
    }
    free(needs);
    free(text);
    kt_graph_deinit(&g);
}

/* Shapes as published (models.md), in the order of first use. */
Test(graph, published_models_need_their_matrices) {
    static const expected qwen[] = {{"qkv", 5120, 2048, 0, 0, 48},
                                    {"o", 2048, 4096, 0, 0, 48},
                                    {"experts", 768, 2048, 128, 8, 48},
                                    {"lm_head", 151936, 2048, 0, 0, 1}};
    static const expected glm[] = {
        {"qkv", 14336, 5120, 0, 0, 92},      {"o", 5120, 12288, 0, 0, 92},
        {"dense_ffn", 12288, 5120, 1, 1, 3}, {"experts", 1536, 5120, 160, 8, 89},
        {"shared", 1536, 5120, 1, 1, 89},    {"lm_head", 151552, 5120, 0, 0, 1}};
    static const expected minimax[] = {{"qkv", 8192, 3072, 0, 0, 62},
                                       {"o", 3072, 6144, 0, 0, 62},
                                       {"experts", 1536, 3072, 256, 8, 62},
                                       {"lm_head", 200064, 3072, 0, 0, 1}};
    static const expected deepseek[] = {
        {"qkv", 2112, 7168, 0, 0, 61},       {"q_b", 24576, 1536, 0, 0, 61},
        {"k_b", 512, 128, 0, 0, 61 * 128},   {"v_b", 128, 512, 0, 0, 61 * 128},
        {"o", 7168, 16384, 0, 0, 61},        {"dense_ffn", 18432, 7168, 1, 1, 3},
        {"experts", 2048, 7168, 256, 8, 58}, {"shared", 2048, 7168, 1, 1, 58},
        {"lm_head", 129280, 7168, 0, 0, 1}};

    expect_needs("Qwen3-30B-A3B", qwen, 4);
    expect_needs("GLM-4.7", glm, 6);
    expect_needs("MiniMax-M2", minimax, 4);
    expect_needs("DeepSeek-V3", deepseek, 9);
}

static const kt_node *node_of(const kt_graph *g, kt_node_kind kind, int layer) {
    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].kind == kind && g->nodes[i].layer == layer) return &g->nodes[i];
    return NULL;
}

static void describe(const char *name, kt_graph *g) {
    char *text = published(name);
    kt_err err = {KT_OK, ""};

    cr_assert_eq(build_json(text, NULL, g, &err), KT_OK, "%s: %s", name, err.message);
    free(text);
}

/* What tells the families apart beside their matrices. */
Test(graph, published_models_route_rotate_and_attend_as_they_do) {
    kt_graph g;
    const kt_node *n;

    describe("DeepSeek-V3", &g);
    n = node_of(&g, KT_NODE_ROUTE, 3);
    cr_expect(n && !node_of(&g, KT_NODE_ROUTE, 2));
    cr_expect(kt_graph_experts(&g, 3) && !kt_graph_experts(&g, 2), "a dense layer routes nothing");
    cr_expect(n->routing.score == KT_ROUTER_SIGMOID_GROUP && n->routing.groups == 8 &&
              n->routing.top_groups == 4 && n->routing.scale == 2.5 && n->weight2 >= 0);
    n = node_of(&g, KT_NODE_ATTEND, 0);
    cr_expect(n->attention.k == 576 && n->attention.v == 512 && n->attention.kv_heads == 1);
    /* mscale 0.1 ln 40 + 1 = 1.36889; 1.36889^2 / sqrt(192) = 0.135234 */
    cr_expect_float_eq(n->attention.scale, 0.135234, 1e-6);
    cr_expect(g.rotations[0].interleaved && g.rotations[0].rotary_dim == 64 &&
              g.rotations[0].scaling == KT_ROPE_YARN && g.rotations[0].factor == 40 &&
              g.rotations[0].original_context == 4096 && g.rotations[0].attention_factor == 1);
    cr_expect(g.planes[0].heads == 1 && g.planes[0].k == 576 && g.planes[0].v == 0);
    cr_expect_eq(node_of(&g, KT_NODE_RMS_HEADS, 0)->eps, 1e-6);
    kt_graph_deinit(&g);

    describe("GLM-4.7", &g);
    n = node_of(&g, KT_NODE_ROUTE, 3);
    cr_expect(n->routing.score == KT_ROUTER_SIGMOID_BIAS && n->routing.is_normalised);
    cr_expect(g.rotations[0].rotary_dim == 64 && !g.rotations[0].interleaved);
    cr_expect(node_of(&g, KT_NODE_BIAS, 0) && node_of(&g, KT_NODE_RMS_HEADS, 0)->size == 128);
    cr_expect(g.planes[0].heads == 8 && g.planes[0].k == 128 && g.planes[0].v == 128);
    kt_graph_deinit(&g);

    describe("MiniMax-M2", &g);
    n = node_of(&g, KT_NODE_RMS_HEADS, 0);
    cr_expect_eq(n->size, 6144, "the norm of a whole row");
    cr_expect_eq(g.rotations[0].rotary_dim, 64);
    cr_expect_null(node_of(&g, KT_NODE_BIAS, 0));
    cr_expect_eq(node_of(&g, KT_NODE_ROUTE, 0)->routing.score, KT_ROUTER_SIGMOID_BIAS);
    cr_expect_str_eq(kt_graph_experts(&g, 0)->part[1].name.json, "block_sparse_moe.experts.{e}.w3");
    kt_graph_deinit(&g);

    describe("Qwen3-30B-A3B", &g);
    n = node_of(&g, KT_NODE_ROUTE, 0);
    cr_expect(n->routing.score == KT_ROUTER_SOFTMAX && n->routing.is_normalised &&
              n->weight2 == -1);
    cr_expect_eq(node_of(&g, KT_NODE_RMS_HEADS, 0)->size, 128);
    cr_expect_float_eq(node_of(&g, KT_NODE_ATTEND, 0)->attention.scale, 1 / sqrt(128.0), 1e-12);
    cr_expect_eq(g.n_rotations, 1, "layers share a rotation");
    kt_graph_deinit(&g);
}

/* ---- how weights are stored ---- */

#define SIZES                                                                                  \
    "\"num_hidden_layers\":1,\"hidden_size\":128,\"vocab_size\":64,\"num_attention_heads\":2," \
    "\"num_key_value_heads\":1,\"head_dim\":64,\"num_experts\":2,\"num_experts_per_tok\":1,"   \
    "\"moe_intermediate_size\":128,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,"      \
    "\"rope_theta\":10000.0"
#define CONFIG "{\"model_type\":\"qwen3_moe\"," SIZES "}"
#define CONFIG_WITH(more) "{\"model_type\":\"qwen3_moe\"," SIZES "," more "}"

static kt_checkpoint *tensors_of(const kt_tensor *list, size_t n) {
    kt_buffer memory;
    kt_tensor *copy = calloc(n + 1, sizeof *copy);
    kt_checkpoint *c;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_buffer_create(64, KT_PAGES_SMALL, -1, &memory, &err), KT_OK);
    for (size_t i = 0; i < n; i++) copy[i] = list[i], copy[i].data = memory.data;
    cr_assert_eq(kt_checkpoint_of_memory("memory", copy, n, &memory, &c, &err), KT_OK);
    free(copy);
    return c;
}

#define Q "model.layers.0.self_attn.q_proj"

Test(graph, each_tensor_says_how_it_is_stored) {
    static const struct {
        kt_tensor tensor[3];
        const char *config;
        kt_encoding encoding;
        kt_weight_format stored;
    } cases[] = {
        {{{.name = Q ".weight", .dtype = KT_DTYPE_BF16}}, CONFIG, KT_STORED_PLAIN, KT_W_BF16},
        {{{.name = Q ".weight", .dtype = KT_DTYPE_F16}}, CONFIG, KT_STORED_PLAIN, KT_W_F16},
        {{{.name = Q ".weight", .dtype = KT_DTYPE_F32}}, CONFIG, KT_STORED_PLAIN, KT_W_F32},
        {{{.name = Q ".weight", .dtype = KT_DTYPE_U8, .blocks = KT_W_Q4_K}},
         CONFIG,
         KT_STORED_BLOCKS,
         KT_W_Q4_K},
        {{{.name = Q ".weight", .dtype = KT_DTYPE_F8_E4M3},
          {.name = Q ".weight_scale_inv", .dtype = KT_DTYPE_F32, .rank = 2, .shape = {1, 1}}},
         CONFIG,
         KT_STORED_FP8_BLOCK,
         KT_W_FP8_B128},
        {{{.name = Q ".weight", .dtype = KT_DTYPE_F8_E4M3},
          {.name = Q ".weight_scale", .dtype = KT_DTYPE_F32, .rank = 2, .shape = {128, 1}}},
         CONFIG,
         KT_STORED_FP8_CHANNEL,
         KT_W_FP8_CHANNEL},
        {{{.name = Q ".weight", .dtype = KT_DTYPE_F8_E4M3},
          {.name = Q ".weight_scale", .dtype = KT_DTYPE_F32, .rank = 2, .shape = {2, 2}}},
         CONFIG,
         KT_STORED_FP8_BLOCK,
         KT_W_FP8_B128},
        {{{.name = Q ".weight_packed", .dtype = KT_DTYPE_I32},
          {.name = Q ".weight_scale", .dtype = KT_DTYPE_BF16, .rank = 2, .shape = {128, 4}}},
         CONFIG,
         KT_STORED_INT4,
         KT_W_INT4_G32},
        {{{.name = Q ".weight_packed", .dtype = KT_DTYPE_I32},
          {.name = Q ".weight_scale", .dtype = KT_DTYPE_BF16, .rank = 2, .shape = {128, 4}},
          {.name = Q ".weight_zero_point", .dtype = KT_DTYPE_I32}},
         CONFIG,
         KT_STORED_INT4,
         KT_W_INT4Z_G32},
        {{{.name = Q ".qweight", .dtype = KT_DTYPE_I32},
          {.name = Q ".scales", .dtype = KT_DTYPE_F16, .rank = 2, .shape = {2, 128}},
          {.name = Q ".qzeros", .dtype = KT_DTYPE_I32}},
         CONFIG_WITH("\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,"
                     "\"group_size\":64}"),
         KT_STORED_INT4,
         KT_W_INT4Z_G64},
        {{{.name = Q ".qweight", .dtype = KT_DTYPE_I32},
          {.name = Q ".scales", .dtype = KT_DTYPE_F16, .rank = 2, .shape = {3, 128}},
          {.name = Q ".qzeros", .dtype = KT_DTYPE_I32}},
         CONFIG_WITH("\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,"
                     "\"group_size\":64}"),
         KT_STORED_INT4,
         KT_W_NONE},
        {{{.name = Q ".weight_packed", .dtype = KT_DTYPE_U8},
          {.name = Q ".weight_scale", .dtype = KT_DTYPE_U8, .rank = 2, .shape = {128, 4}}},
         CONFIG,
         KT_STORED_MXFP4,
         KT_W_MXFP4},
        {{{.name = Q ".weight", .dtype = KT_DTYPE_I8},
          {.name = Q ".scale", .dtype = KT_DTYPE_F8_E8M0, .rank = 2, .shape = {128, 4}}},
         CONFIG,
         KT_STORED_MXFP4,
         KT_W_MXFP4},
        {{{.name = "other", .dtype = KT_DTYPE_F32}},
         CONFIG_WITH("\"torch_dtype\":\"float16\""),
         KT_STORED_PLAIN,
         KT_W_F16}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = 0;
        kt_checkpoint *c;
        kt_graph g;
        const kt_weight *w;
        kt_err err = {KT_OK, ""};
        while (n < 3 && cases[i].tensor[n].name) n++;
        c = tensors_of(cases[i].tensor, n);
        cr_assert_eq(build_json(cases[i].config, c, &g, &err), KT_OK, "%s", err.message);
        w = kt_graph_find(&g, "qkv", 0);
        cr_expect_eq(w->part[0].encoding, cases[i].encoding, "case %zu: encoding %d", i,
                     w->part[0].encoding);
        cr_expect_eq(w->part[0].stored, cases[i].stored, "case %zu: %s", i,
                     kt_weight_format_name(w->part[0].stored));
        cr_expect_eq(w->part[1].encoding, KT_STORED_PLAIN);
        cr_expect_eq(kt_weight_is_quantised(w), cases[i].encoding == KT_STORED_INT4 ||
                                                    cases[i].encoding == KT_STORED_BLOCKS ||
                                                    cases[i].encoding == KT_STORED_MXFP4);
        cr_expect(kt_graph_find(&g, "lm_head", -1)->is_tied, "there is no lm_head");
        kt_graph_deinit(&g);
        kt_checkpoint_close(c);
    }
}

Test(graph, fused_experts_are_found) {
    static const kt_tensor codes = {.name = "model.layers.0.mlp.experts.gate_up_proj_blocks"};
    static const kt_tensor tensors[] = {
        {.name = "model.layers.0.mlp.experts.gate_up_proj", .dtype = KT_DTYPE_F16},
        {.name = "lm_head.weight", .dtype = KT_DTYPE_F32},
        {.name = "model.layers.0.self_attn.q_proj.bias", .dtype = KT_DTYPE_F32}};

    for (int is_mxfp4 = 0; is_mxfp4 < 2; is_mxfp4++) {
        kt_graph g;
        kt_checkpoint *c = is_mxfp4 ? tensors_of(&codes, 1) : tensors_of(tensors, 3);
        cr_assert(build_json(CONFIG, c, &g, NULL) == KT_OK && kt_graph_experts(&g, 0)->is_fused);
        cr_expect_eq(kt_graph_experts(&g, 0)->part[2].stored, is_mxfp4 ? KT_W_MXFP4 : KT_W_F16);
        cr_expect_eq(kt_graph_find(&g, "lm_head", -1)->is_tied, is_mxfp4);
        cr_expect_eq(!node_of(&g, KT_NODE_BIAS, 0), is_mxfp4);
        kt_graph_deinit(&g);
        kt_checkpoint_close(c);
    }
}

/* Without tensors the declaration decides: attention that is spared stays float. */
Test(graph, declarations_stand_for_missing_tensors) {
#define FP8 "\"quant_method\":\"fp8\""
#define PACKED(symmetric)                                                                       \
    "\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{" \
    "\"group_0\":{\"weights\":{\"num_bits\":4,\"group_size\":32,\"symmetric\":" symmetric "}}}"
    static const struct {
        const char *config;
        kt_weight_format linear, experts;
    } cases[] = {
        {CONFIG_WITH("\"quantization_config\":{" FP8 ",\"weight_block_size\":[128,128]}"),
         KT_W_FP8_B128, KT_W_FP8_B128},
        {CONFIG_WITH("\"quantization_config\":{" FP8 "}"), KT_W_FP8_CHANNEL, KT_W_FP8_CHANNEL},
        {CONFIG_WITH("\"quantization_config\":{" FP8
                     ",\"modules_to_not_convert\":[\"model.layers.0.self_attn\"]}"),
         KT_W_BF16, KT_W_FP8_CHANNEL},
        {CONFIG_WITH("\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
                     "\"format\":\"float-quantized\"}"),
         KT_W_FP8_CHANNEL, KT_W_FP8_CHANNEL},
        {CONFIG_WITH("\"quantization_config\":{" PACKED("false") "}"), KT_W_INT4Z_G32,
         KT_W_INT4Z_G32},
        {CONFIG_WITH("\"quantization_config\":{" PACKED("true") "}"), KT_W_INT4_G32, KT_W_INT4_G32},
        {CONFIG_WITH("\"dtype\":\"float16\""), KT_W_F16, KT_W_F16}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_graph g;
        kt_err err = {KT_OK, ""};
        cr_assert_eq(build_json(cases[i].config, NULL, &g, &err), KT_OK, "%s", err.message);
        cr_expect_eq(kt_graph_find(&g, "qkv", 0)->part[0].stored, cases[i].linear, "case %zu", i);
        cr_expect_eq(kt_graph_experts(&g, 0)->part[2].stored, cases[i].experts, "case %zu", i);
        cr_expect_neq(kt_graph_find(&g, "lm_head", -1)->part[0].stored, KT_W_FP8_CHANNEL);
        cr_expect_neq(kt_graph_find(&g, "router", 0)->part[0].stored, KT_W_FP8_CHANNEL);
        kt_graph_deinit(&g);
    }
}

/* Layer i of Qwen3 has experts when (i + 1) is a multiple of the step. */
Test(graph, sparse_steps_count_from_one) {
    kt_graph g;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(build_json(CONFIG_WITH("\"decoder_sparse_step\":2,\"intermediate_size\":96"), NULL,
                            &g, &err),
                 KT_OK, "%s", err.message);
    cr_expect_null(kt_graph_experts(&g, 0));
    cr_assert(kt_graph_find(&g, "dense_ffn", 0));
    cr_expect_eq(kt_graph_find(&g, "dense_ffn", 0)->n, 96);
    kt_graph_deinit(&g);
}

/* ---- rotation and end tokens ---- */

static kt_status rotation(const char *text, int64_t dim, double factor, kt_rope_rule *out,
                          kt_err *err) {
    kt_json_doc *doc = parse(text);
    const kt_config_source s = {.json = kt_json_root(doc), .arch = "", .where = "config.json"};
    kt_status st = kt_rotation_read(&s, dim, factor, out, err);

    kt_json_destroy(doc);
    return st;
}

Test(graph, rotations_are_read_in_every_spelling) {
    kt_rope_rule r;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(rotation("{\"rope_theta\":5e5}", 128, 0.5, &r, &err), KT_OK, "%s", err.message);
    cr_expect(r.base == 5e5 && r.rotary_dim == 64 && r.scaling == 0);
    cr_assert_eq(rotation("{\"rope_parameters\":{\"rope_theta\":7.0,\"partial_rotary_factor\":0.25,"
                          "\"rope_type\":\"default\"}}",
                          128, 1, &r, &err),
                 KT_OK, "%s", err.message);
    cr_expect(r.base == 7 && r.rotary_dim == 32);
    cr_assert_eq(rotation("{\"rope_theta\":7.0,\"rotary_dim\":96,\"partial_rotary_factor\":0.25}",
                          128, 1, &r, &err),
                 KT_OK);
    cr_expect_eq(r.rotary_dim, 96);
    cr_assert_eq(rotation("{\"rope_theta\":7.0,\"max_position_embeddings\":1000,\"rope_scaling\":"
                          "{\"rope_type\":\"yarn\",\"factor\":4.0}}",
                          128, 1, &r, &err),
                 KT_OK);
    cr_expect(r.scaling == KT_ROPE_YARN && r.factor == 4 && r.original_context == 1000 &&
              r.beta_fast == 32 && r.beta_slow == 1);
    cr_expect_float_eq(r.attention_factor, 0.1 * log(4) + 1, 1e-12);
    cr_expect_eq(rotation("{\"rope_theta\":0.0}", 128, 1, &r, &err), KT_E_FORMAT);
    cr_expect_eq(rotation("{\"rope_theta\":7.0,\"rotary_dim\":63}", 128, 1, &r, &err), KT_E_FORMAT);
    cr_expect_eq(rotation("{\"rope_theta\":7.0,\"rotary_dim\":130}", 128, 1, &r, &err),
                 KT_E_FORMAT);
    cr_expect(strstr(err.message, "130 of 128"), "%s", err.message);
    cr_expect_eq(rotation("{\"rope_theta\":7.0,\"rope_scaling\":{\"factor\":2}}", 128, 1, &r, &err),
                 KT_E_UNSUPPORTED);
}

Test(graph, end_tokens_are_a_number_or_a_list) {
    kt_json_doc *one = parse("{\"eos_token_id\":5}"),
                *list = parse("{\"eos_token_id\":[7,\"x\",9]}");
    kt_json_doc *none = parse("{}");
    kt_model_numbers n = {0};

    kt_numbers_read_eos(kt_json_root(one), &n);
    cr_expect(n.n_eos == 1 && n.eos[0] == 5);
    kt_numbers_read_eos(kt_json_root(list), &n);
    cr_expect(n.n_eos == 2 && n.eos[0] == 7 && n.eos[1] == 9);
    kt_numbers_read_eos(kt_json_root(none), &n);
    cr_expect_eq(n.n_eos, 2, "what is not said stays");
    kt_json_destroy(one), kt_json_destroy(list), kt_json_destroy(none);
}

/* ---- GGUF checkpoints ---- */

Test(graph, parts_of_a_gguf_are_one_checkpoint) {
    char folder[256], path[400];
    kt_checkpoint *c;
    const kt_tensor *t;
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    kt_tiny_gguf_write(folder, 2);
    cr_assert_eq(kt_checkpoint_open(folder, &c, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_checkpoint_count(c), 14);
    t = kt_checkpoint_find(c, "blk.0.ffn_down_exps.weight");
    cr_assert(t);
    cr_expect(t->rank == 3 && t->shape[0] == 4 && t->shape[1] == 64 && t->shape[2] == 32);
    cr_expect(t->file == 1 && t->blocks == KT_W_Q4_0 && t->dtype == KT_DTYPE_U8);
    t = kt_checkpoint_find(c, "blk.0.ffn_gate_inp.weight");
    cr_expect(t->dtype == KT_DTYPE_F32 && t->blocks == KT_W_NONE && t->shape[0] == 4);
    cr_expect(kt_checkpoint_gguf(c));
    kt_checkpoint_close(c);
    snprintf(path, sizeof path, "%s/m-00002-of-00002.gguf", folder);
    cr_expect_eq(kt_checkpoint_open(path, &c, &err), KT_E_UNSUPPORTED);
    cr_expect(strstr(err.message, "part 2 of 2"), "%s", err.message);
    remove(path);
    cr_expect_neq(kt_checkpoint_open(folder, &c, &err), KT_OK);
    cr_expect(strstr(err.message, "m-00002-of-00002.gguf"), "%s", err.message);
    kt_temp_remove(folder);
}

static kt_status open_split(int32_t no, int32_t tensors, const char *name, kt_err *err) {
    char folder[256], path[400];
    kt_tiny_gguf *f = calloc(1, sizeof *f);
    kt_checkpoint *c;
    kt_status st;

    kt_temp_make(folder, sizeof folder);
    kt_tiny_gguf_int(f, "split.no", no);
    kt_tiny_gguf_qwen3_tensors(f, 1);
    kt_temp_write(folder, "m-00002-of-00002.gguf", f->file, kt_tiny_gguf_end(f));
    memset(f, 0, sizeof *f);
    kt_tiny_gguf_int(f, "split.count", 2);
    kt_tiny_gguf_int(f, "split.tensors.count", tensors);
    kt_tiny_gguf_qwen3_tensors(f, 0);
    kt_temp_write(folder, name, f->file, kt_tiny_gguf_end(f));
    free(f);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    st = kt_checkpoint_open(path, &c, err);
    kt_checkpoint_close(c);
    kt_temp_remove(folder);
    return st;
}

Test(graph, parts_of_a_gguf_that_do_not_fit_are_refused) {
    kt_err err = {KT_OK, ""};

    cr_expect_eq(open_split(1, 14, "m-00001-of-00002.gguf", &err), KT_OK, "%s", err.message);
    cr_expect_eq(open_split(2, 14, "m-00001-of-00002.gguf", &err), KT_E_FORMAT);
    cr_expect(strstr(err.message, "split.no is 2, expected 1"), "%s", err.message);
    cr_expect_eq(open_split(1, 15, "m-00001-of-00002.gguf", &err), KT_E_FORMAT);
    cr_expect(strstr(err.message, "14 tensors in 2 parts, split.tensors.count is 15"), "%s",
              err.message);
    cr_expect_eq(open_split(1, 14, "m.gguf", &err), KT_E_FORMAT);
    cr_expect(strstr(err.message, "should end in '-00001-of-00002.gguf'"), "%s", err.message);
}
