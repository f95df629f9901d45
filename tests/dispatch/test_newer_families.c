/* What the numbers of newer families say: which layers of GLM-5 have an indexer, how value heads of
 * Qwen3.5 lie, and what is refused. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch/model/family.h"
#include "dispatch/model/node_problems.h"
#include "tests/support/tiny_gguf.h"

#define COMMON                                                                                  \
    "\"hidden_size\":64,\"vocab_size\":64,\"num_attention_heads\":2,\"num_key_value_heads\":2," \
    "\"num_experts_per_tok\":1,\"moe_intermediate_size\":32,\"max_position_embeddings\":64,"    \
    "\"rms_norm_eps\":1e-6,\"rope_theta\":1e6"
#define LATENT                                                                \
    COMMON ",\"q_lora_rank\":32,\"kv_lora_rank\":32,\"qk_nope_head_dim\":32," \
           "\"qk_rope_head_dim\":16,\"v_head_dim\":32,\"n_routed_experts\":4"
#define GLM(layers, more)                                           \
    "{\"model_type\":\"glm_moe_dsa\",\"num_hidden_layers\":" layers \
    ",\"index_n_heads\":2,\"index_head_dim\":32,\"index_topk\":4," LATENT more "}"
#define QWEN(more)                                                                               \
    "{\"model_type\":\"qwen3_5_moe\",\"num_hidden_layers\":4,\"head_dim\":32,\"num_experts\":4," \
    "\"linear_num_key_heads\":2,\"linear_num_value_heads\":8,\"linear_key_head_dim\":32,"        \
    "\"linear_value_head_dim\":32,\"linear_conv_kernel_dim\":4," COMMON more "}"

static kt_status build(const char *config, kt_graph *out, kt_err *err) {
    kt_json_doc *doc;
    kt_graph_request request = {.checkpoint = NULL};
    kt_status st;

    cr_assert_eq(kt_json_parse(config, strlen(config), NULL, &doc, err), KT_OK, "%s", err->message);
    request.source =
        (kt_config_source){.json = kt_json_root(doc), .arch = "", .where = "config.json"};
    st = kt_graph_build(&request, out, err);
    kt_json_destroy(doc);
    return st;
}

/* "FFSF": layers with an indexer of their own, and the others. */
static const char *kinds_of(const kt_graph *g, char *out) {
    int n = 0;

    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].kind == KT_NODE_ATTEND_SPARSE)
            out[n++] = g->nodes[i].index.repeats ? 'S' : 'F';
    out[n] = '\0';
    return out;
}

Test(newer_families, indexers_are_told_in_every_spelling) {
    static const struct {
        const char *config, *want;
    } cases[] = {
        {GLM("4", ""), "FFFF"},
        {GLM("4", ",\"indexer_types\":[\"full\",\"full\",\"shared\",\"full\",\"shared\"]"), "FFSF"},
        {GLM("4", ",\"index_topk_pattern\":\"FSSF\",\"index_topk_freq\":2"), "FSSF"},
        {GLM("4", ",\"index_topk_pattern\":\"FSSF\",\"indexer_types\":[\"full\",\"full\",\"full\","
                  "\"shared\"]"),
         "FFFS"},
        {GLM("12", ",\"index_topk_freq\":4,\"index_skip_topk_offset\":3"), "FFFSSSFSSSFS"},
        {GLM("5", ",\"index_topk_freq\":2,\"index_skip_topk_offset\":1"), "FSFSF"}};
    char kinds[32];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_graph g;
        kt_err err = {KT_OK, ""};
        int n_planes = 0;
        cr_assert_eq(build(cases[i].config, &g, &err), KT_OK, "case %zu: %s", i, err.message);
        cr_expect_str_eq(kinds_of(&g, kinds), cases[i].want, "case %zu: %s", i, kinds);
        for (int p = 0; p < g.n_planes; p++, n_planes++)
            cr_expect_eq(g.planes[p].index, cases[i].want[p] == 'F' ? 32 : 0, "case %zu", i);
        cr_expect_eq(n_planes, g.numbers.layers);
        kt_graph_deinit(&g);
    }
}

static void put(kt_tiny_gguf *f, const char *key, uint32_t value) {
    char whole[80];

    snprintf(whole, sizeof whole, "glm-dsa.%s", key);
    kt_tiny_gguf_int(f, whole, value);
}

/* GGUF files that do not list indexers are told by their context, and one layer behind the last is
 * of multi-token prediction. 256 experts without groups are one group. */
Test(newer_families, gguf_files_without_a_list_go_by_their_context) {
    static const struct {
        uint32_t context;
        const char *want;
    } cases[] = {{202752, "FFFFFFFFFFFF"}, {1048576, "FFFSSSFSSSFS"}};
    char kinds[32];

    for (size_t i = 0; i < 2; i++) {
        kt_tiny_gguf *f = calloc(1, sizeof *f);
        kt_gguf_meta meta;
        kt_graph_request request = {.checkpoint = NULL};
        kt_graph g;
        kt_err err = {KT_OK, ""};
        put(f, "context_length", cases[i].context);
        put(f, "block_count", 13), put(f, "nextn_predict_layers", 1);
        put(f, "embedding_length", 64), put(f, "vocab_size", 64);
        put(f, "attention.head_count", 2), put(f, "attention.q_lora_rank", 32);
        put(f, "attention.kv_lora_rank", 32), put(f, "attention.key_length_mla", 48);
        put(f, "attention.value_length_mla", 32), put(f, "rope.dimension_count", 16);
        put(f, "expert_count", 256), put(f, "expert_used_count", 1);
        put(f, "expert_feed_forward_length", 32), put(f, "attention.indexer.head_count", 2);
        put(f, "attention.indexer.key_length", 32), put(f, "attention.indexer.top_k", 4);
        kt_tiny_gguf_real(f, "glm-dsa.attention.layer_norm_rms_epsilon", 1e-5f);
        cr_assert_eq(kt_gguf_meta_init(&meta, f->file, kt_tiny_gguf_end(f), &err), KT_OK, "%s",
                     err.message);
        request.source = (kt_config_source){.gguf = &meta, .arch = "glm-dsa", .where = "m.gguf"};
        cr_assert_eq(kt_graph_build(&request, &g, &err), KT_OK, "%s", err.message);
        cr_expect_str_eq(kinds_of(&g, kinds), cases[i].want, "%s", kinds);
        for (int k = 0; k < g.n_nodes; k++)
            if (g.nodes[k].kind == KT_NODE_ROUTE)
                cr_expect_eq(g.nodes[k].routing.score, KT_ROUTER_SIGMOID_BIAS);
        kt_graph_deinit(&g);
        kt_gguf_meta_deinit(&meta);
        free(f);
    }
}

/* Pairs of the indexer's rotation lie as those of the attention do; DeepSeek-V3.2's do not. */
Test(newer_families, rotations_of_indexers_are_interleaved) {
    kt_graph g;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(build(GLM("2", ""), &g, &err), KT_OK, "%s", err.message);
    cr_expect(g.n_rotations == 1 && g.rotations[0].interleaved);
    kt_graph_deinit(&g);
    cr_assert_eq(build(GLM("2", ",\"indexer_rope_interleave\":false"), &g, &err), KT_OK);
    cr_expect_eq(g.n_rotations, 2);
    kt_graph_deinit(&g);
}

Test(newer_families, what_no_model_has_is_refused_by_name) {
    static const struct {
        const char *config, *says;
    } cases[] = {
        {GLM("2", ",\"indexer_types\":[\"shared\",\"full\"]"), "the first layer has no indexer"},
        {GLM("2", ",\"indexer_types\":[\"full\"]"), "indexer_types has 1 entries for 2 layers"},
        {GLM("2", ",\"indexer_types\":[\"full\",\"half\"]"), "indexer_types[1] is 'half'"},
        {GLM("2", ",\"indexer_types\":[\"full\",7]"), "indexer_types[1] is ''"},
        {GLM("2", ",\"index_topk_pattern\":\"FX\""), "index_topk_pattern has 'X'"},
        {GLM("2", ",\"index_topk_pattern\":\"F\""), "index_topk_pattern has 1 entries"},
        {GLM("2", ",\"index_topk_freq\":0"), "index_topk_freq 0"},
        {GLM("2", ",\"scoring_func\":\"softmax\""), "scoring_func 'softmax'"},
        {GLM("2", ",\"rope_interleave\":false"), "rope_interleave is false"},
        {GLM("2", ",\"mlp_layer_types\":[\"sparse\",\"dense\"]"), "mlp_layer_types[1] is 'dense'"},
        {"{\"model_type\":\"glm_moe_dsa\",\"num_hidden_layers\":1," LATENT "}", "no index_topk"},
        {"{\"model_type\":\"kimi_k25\",\"text_config\":{\"model_type\":\"kimi_k9\","
         "\"num_hidden_layers\":1," LATENT "}}",
         "model_type 'kimi_k9', expected kimi_k2"},
        {QWEN(",\"attn_output_gate\":false"), "attn_output_gate is false"},
        {QWEN(",\"mlp_only_layers\":[1]"), "mlp_only_layers has 1 layers"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_graph g;
        kt_err err = {KT_OK, ""};
        cr_expect_neq(build(cases[i].config, &g, &err), KT_OK, "case %zu", i);
        cr_expect(strstr(err.message, cases[i].says), "case %zu: %s", i, err.message);
    }
}

Test(newer_families, dense_layers_may_be_listed) {
    kt_graph g;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(build(GLM("3", ",\"intermediate_size\":32,\"mlp_layer_types\":[\"dense\","
                                "\"dense\",\"sparse\"]"),
                       &g, &err),
                 KT_OK, "%s", err.message);
    cr_expect(!kt_graph_experts(&g, 0) && !kt_graph_experts(&g, 1) && kt_graph_experts(&g, 2));
    kt_graph_deinit(&g);
}

static const kt_node *delta_of(const kt_graph *g) {
    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].kind == KT_NODE_DELTA) return &g->nodes[i];
    return NULL;
}

/* A tile of value heads is a problem with one to each key head. */
Test(newer_families, tiles_of_value_heads_are_problems_of_their_own) {
    kt_graph g;
    kt_node tiled;
    kt_problem p;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(build(QWEN(""), &g, &err), KT_OK, "%s", err.message);
    cr_assert(delta_of(&g));
    cr_expect_not(delta_of(&g)->delta.is_tiled, "safetensors keep the order");
    cr_expect_eq(kt_delta_problem(delta_of(&g), 5).n, 8);
    tiled = *delta_of(&g);
    tiled.delta.is_tiled = true;
    p = kt_delta_problem(&tiled, 5);
    cr_expect(p.n == 2 && p.kv_heads == 2 && p.m == 5 && p.k == 32 && p.v == 32);
    kt_graph_deinit(&g);
}
