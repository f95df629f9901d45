/* gpt-oss as its family describes it: what no other family has, and what is refused.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "dispatch/model/family.h"
#include "tests/support/temp.h"

/* Of a config.json, or of the config of a workload file. */
static kt_status build(const kt_json_doc *doc, kt_graph *out, kt_err *err) {
    const kt_json *root = kt_json_root(doc), *config = kt_json_get(root, "config");
    const kt_graph_request request = {
        .source = {.json = kt_json_type_of(config) == KT_JSON_NULL ? root : config,
                   .arch = "",
                   .where = "config.json"}};

    return kt_graph_build(&request, out, err);
}

static kt_status build_text(const char *text, kt_graph *out, kt_err *err) {
    kt_json_doc *doc = NULL;
    kt_status st;

    cr_assert_eq(kt_json_parse(text, strlen(text), NULL, &doc, err), KT_OK, "%s", err->message);
    st = build(doc, out, err);
    kt_json_destroy(doc);
    return st;
}

static const kt_node *node_of(const kt_graph *g, kt_node_kind kind, int layer) {
    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].kind == kind && g->nodes[i].layer == layer) return &g->nodes[i];
    return NULL;
}

/* Sinks, a window in every other layer, an exact ramp, another activation, biases. */
Test(gpt_oss_graph, is_described_as_published) {
    kt_err err = {KT_OK, ""};
    const kt_node *n = NULL;
    kt_graph g;
    size_t size;
    char *text;

    cr_assert_eq(kt_file_read(KT_SOURCE_DIR "/datasets/workloads/gpt-oss-20b.json", 1 << 20, &text,
                              &size, &err),
                 KT_OK, "%s", err.message);
    cr_assert_eq(build_text(text, &g, &err), KT_OK, "%s", err.message);
    free(text);
    for (int l = 0; l < 24; l++) {
        n = node_of(&g, KT_NODE_ATTEND, l);
        cr_expect(n->weight3 >= 0 && n->attention.window == (l % 2 ? 0 : 128), "layer %d", l);
        n = node_of(&g, KT_NODE_EXPERTS, l);
        cr_expect(n->glu.kind == KT_GLU_OAI && n->glu.limit == 7 && n->glu.alpha == 1.702f);
        cr_expect(n->weight2 >= 0 && n->weight3 >= 0 && n->weight4 >= 0);
    }
    cr_expect_eq(g.weights[n->weight2].at, 0);
    cr_expect(g.weights[n->weight3].at == 1 && g.weights[n->weight3].step == 2 &&
              g.weights[n->weight3].rows == 32 && g.weights[n->weight3].n == 32 * 2880);
    cr_expect_eq(g.weights[n->weight4].n, 32 * 2880);
    n = node_of(&g, KT_NODE_ROUTE, 0);
    cr_expect(n->weight2 >= 0 && n->routing.score == KT_ROUTER_SOFTMAX && n->routing.is_normalised);
    cr_expect(g.n_rotations == 1 && g.rotations[0].is_exact && g.rotations[0].rotary_dim == 64 &&
              g.rotations[0].factor == 32);
    cr_expect_float_eq(g.rotations[0].attention_factor, 1.3465736, 1e-7);
    kt_graph_deinit(&g);
}

#define GPT_OSS(more)                                                                     \
    "{\"model_type\":\"gpt_oss\",\"num_hidden_layers\":3,\"hidden_size\":64,"             \
    "\"vocab_size\":64,\"num_attention_heads\":2,\"num_key_value_heads\":1,"              \
    "\"head_dim\":32,\"num_local_experts\":4,\"num_experts_per_tok\":2,"                  \
    "\"intermediate_size\":64,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5," more \
    "\"rope_theta\":10000}"

Test(gpt_oss_graph, refuses_what_it_does_not_know) {
    static const struct {
        const char *config, *message;
    } cases[] = {
        {GPT_OSS("\"hidden_act\":\"gelu\","), "hidden_act 'gelu'"},
        {GPT_OSS("\"layer_types\":[\"full_attention\",\"linear_attention\",\"full_attention\"],"),
         "layer_types[1] is 'linear_attention', expected 'sliding_attention' or 'full_attention'"},
        {GPT_OSS("\"layer_types\":[\"full_attention\"],"),
         "layer_types has 1 entries for 3 layers"},
        {GPT_OSS("\"layer_types\":[1,2,3],"), "layer_types[0] is ''"},
        {GPT_OSS("\"swiglu_limit\":-7,"), "'swiglu_limit' is -7"},
        {GPT_OSS("\"sliding_window\":0,"), "sliding_window"}};
    kt_graph g;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_err err = {KT_OK, ""};
        cr_expect_neq(build_text(cases[i].config, &g, &err), KT_OK, "case %zu", i);
        cr_expect(strstr(err.message, cases[i].message), "case %zu: %s", i, err.message);
    }
}

/* Without layer_types even layers slide; sliding_window is 128 unless given. */
Test(gpt_oss_graph, slides_in_even_layers_by_default) {
    kt_err err = {KT_OK, ""};
    kt_graph g;

    cr_assert_eq(build_text(GPT_OSS(""), &g, &err), KT_OK, "%s", err.message);
    for (int l = 0; l < 3; l++)
        cr_expect_eq(node_of(&g, KT_NODE_ATTEND, l)->attention.window, l % 2 ? 0 : 128);
    cr_expect(node_of(&g, KT_NODE_BIAS, 0), "biases unless the config says otherwise");
    kt_graph_deinit(&g);
}
