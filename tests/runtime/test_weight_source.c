/* Which rows of which tensor a weight is. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "dispatch/model/family.h"
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
