/* Language models inside of multimodal releases: configurations in text_config, tensors with a
 * prefix. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch/model/family.h"
#include "dispatch/model/nested.h"
#include "dispatch/model/resolve.h"

#define SIZES                                                                                  \
    "\"num_hidden_layers\":1,\"hidden_size\":128,\"vocab_size\":64,\"num_attention_heads\":2," \
    "\"num_key_value_heads\":1,\"head_dim\":64,\"num_experts\":2,\"num_experts_per_tok\":1,"   \
    "\"moe_intermediate_size\":128,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,"      \
    "\"rope_theta\":10000.0"
#define FP8 "\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}"

static kt_checkpoint *tensors_of(const char *const *names, size_t n) {
    kt_buffer memory;
    kt_tensor *list = calloc(n + 1, sizeof *list);
    kt_checkpoint *c;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_buffer_create(64, KT_PAGES_SMALL, -1, &memory, &err), KT_OK);
    for (size_t i = 0; i < n; i++)
        list[i] = (kt_tensor){.name = names[i], .dtype = KT_DTYPE_BF16, .data = memory.data};
    cr_assert_eq(kt_checkpoint_of_memory("memory", list, n, &memory, &c, &err), KT_OK);
    free(list);
    return c;
}

static kt_status build(const char *config, const kt_checkpoint *c, kt_graph *out, kt_err *err) {
    kt_json_doc *doc;
    kt_graph_request request = {.checkpoint = c};
    kt_status st;

    cr_assert_eq(kt_json_parse(config, strlen(config), NULL, &doc, err), KT_OK, "%s", err->message);
    request.source =
        (kt_config_source){.json = kt_json_root(doc), .arch = "", .where = "config.json"};
    st = kt_graph_build(&request, out, err);
    kt_json_destroy(doc);
    return st;
}

static void expect_name(const kt_graph *g, const char *role, int layer, const char *want) {
    char name[200];

    kt_weight_name(g, kt_graph_find(g, role, layer), 0, 0, false, name, sizeof name);
    cr_expect_str_eq(name, want);
}

Test(nested, text_config_is_read_and_what_is_around_it_fills_in) {
    kt_graph g;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(build("{\"model_type\":\"qwen3_moe\",\"hidden_size\":1,\"eos_token_id\":[7,8],"
                       "\"tie_word_embeddings\":true,\"vision_config\":{\"hidden_size\":9},"
                       "\"text_config\":{\"model_type\":\"some_text\",\"eos_token_id\":5," SIZES
                       "}}",
                       NULL, &g, &err),
                 KT_OK, "%s", err.message);
    cr_expect_eq(g.numbers.hidden, 128);
    cr_expect(g.numbers.n_eos == 3 && g.numbers.eos[0] == 5 && g.numbers.eos[1] == 7 &&
              g.numbers.eos[2] == 8);
    cr_expect(kt_graph_find(&g, "lm_head", -1)->is_tied);
    kt_graph_deinit(&g);
    /* a text part by itself names its own family; an unknown wrapper is refused by its name */
    cr_expect_eq(
        build("{\"text_config\":{\"model_type\":\"qwen3_moe\"," SIZES "}}", NULL, &g, &err), KT_OK,
        "%s", err.message);
    kt_graph_deinit(&g);
    cr_expect_eq(
        build("{\"model_type\":\"parrot\",\"text_config\":{\"model_type\":\"qwen3_moe\"," SIZES
              "}}",
              NULL, &g, &err),
        KT_E_UNSUPPORTED);
    cr_expect(strstr(err.message, "'parrot'"), "%s", err.message);
    cr_expect_eq(build("{\"model_type\":\"qwen3_moe\",\"text_config\":{}}", NULL, &g, &err),
                 KT_E_FORMAT);
    cr_expect(strstr(err.message, "num_hidden_layers"), "%s", err.message);
}

Test(nested, quantization_config_may_lie_in_either_level) {
    static const char *const configs[] = {
        "{\"model_type\":\"qwen3_moe\",\"text_config\":{" SIZES "}," FP8 "}",
        "{\"model_type\":\"qwen3_moe\",\"text_config\":{" SIZES "," FP8 "}}"};
    kt_graph g;
    kt_err err = {KT_OK, ""};

    for (size_t i = 0; i < 2; i++) {
        cr_assert_eq(build(configs[i], NULL, &g, &err), KT_OK, "%s", err.message);
        cr_expect_eq(kt_graph_experts(&g, 0)->part[0].stored, KT_W_FP8_B128, "case %zu", i);
        kt_graph_deinit(&g);
    }
}

#define CONFIG "{\"model_type\":\"qwen3_moe\"," SIZES "}"

/* Embeddings of towers, of positions and of multi-token prediction are not the model's. */
Test(nested, prefixes_are_found_by_the_embedding) {
    static const struct {
        const char *tensors[5];
        const char *embedding, *layer, *head;
    } cases[] = {
        {{"model.embed_tokens.weight", "lm_head.weight", "model.layers.1.embed_tokens.weight"},
         "model.embed_tokens",
         "model.layers.0.self_attn.q_proj",
         "lm_head"},
        {{"model.language_model.embed_tokens.weight", "lm_head.weight",
          "model.visual.pos_embed.weight", "mtp.embed_tokens.weight"},
         "model.language_model.embed_tokens",
         "model.language_model.layers.0.self_attn.q_proj",
         "lm_head"},
        {{"language_model.model.embed_tokens.weight", "language_model.lm_head.weight",
          "vision_tower.embed.weight", "mtp.lm_head.weight"},
         "language_model.model.embed_tokens",
         "language_model.model.layers.0.self_attn.q_proj",
         "language_model.lm_head"},
        {{"embed.weight", "lm_head.weight", "mtp.0.embed.weight", "pos_embed.weight"},
         "embed",
         "layers.0.self_attn.q_proj",
         "lm_head"}};
    kt_err err = {KT_OK, ""};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = 0;
        kt_checkpoint *c;
        kt_graph g;
        while (n < 5 && cases[i].tensors[n]) n++;
        c = tensors_of(cases[i].tensors, n);
        cr_assert_eq(build(CONFIG, c, &g, &err), KT_OK, "%s", err.message);
        expect_name(&g, "embedding", -1, cases[i].embedding);
        expect_name(&g, "qkv", 0, cases[i].layer);
        expect_name(&g, "lm_head", -1, cases[i].head);
        kt_graph_deinit(&g);
        kt_checkpoint_close(c);
    }
}

Test(nested, two_embeddings_are_refused) {
    static const char *const names[] = {"a.embed_tokens.weight", "b.embed_tokens.weight"};
    kt_checkpoint *c = tensors_of(names, 2);
    kt_graph g;
    kt_err err = {KT_OK, ""};

    cr_expect_eq(build(CONFIG, c, &g, &err), KT_E_FORMAT);
    cr_expect(strstr(err.message, "'a.embed_tokens.weight' and 'b.embed_tokens.weight'"), "%s",
              err.message);
    kt_checkpoint_close(c);
}

/* Importance is filed under names without a prefix, which serve every container of a model. */
Test(nested, names_of_importance_have_no_prefix) {
    static const char *const names[] = {"model.language_model.embed_tokens.weight"};
    kt_checkpoint *c = tensors_of(names, 1);
    char name[200];
    kt_graph g;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(build(CONFIG, c, &g, &err), KT_OK, "%s", err.message);
    kt_weight_name(&g, kt_graph_find(&g, "qkv", 0), 1, 0, true, name, sizeof name);
    cr_expect_str_eq(name, "model.layers.0.self_attn.k_proj");
    cr_expect(kt_graph_find(&g, "lm_head", -1)->is_tied, "without a head of its own");
    expect_name(&g, "lm_head", -1, "model.language_model.embed_tokens");
    kt_graph_deinit(&g);
    kt_checkpoint_close(c);
}

Test(nested, shapes_are_those_of_the_text) {
    static const char flat[] = "{\"hidden_size\":64,\"vocab_size\":96}";
    static const char wrapped[] =
        "{\"hidden_size\":1,\"text_config\":{\"hidden_size\":64,\"vocab_size\":96}}";
    kt_json_doc *one, *two;

    cr_assert_eq(kt_json_parse(flat, strlen(flat), NULL, &one, NULL), KT_OK);
    cr_assert_eq(kt_json_parse(wrapped, strlen(wrapped), NULL, &two, NULL), KT_OK);
    cr_expect_eq(kt_model_shape_id(kt_json_root(one)), kt_model_shape_id(kt_json_root(two)));
    kt_json_destroy(one), kt_json_destroy(two);
}
