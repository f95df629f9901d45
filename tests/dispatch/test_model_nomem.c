/* Checkpoints in GGUF files, descriptions of models and what hangs on them, with every
 * allocation failing once. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch/model/checkpoint_impl.h"
#include "dispatch/model/family.h"
#include "dispatch/model/needs.h"
#include "tests/support/nomem.h"
#include "tests/support/temp.h"
#include "tests/support/tiny_gguf.h"
#include "tuner/space/shapes.h"

static const char config[] =
    "{\"model_type\":\"deepseek_v3\",\"num_hidden_layers\":2,\"hidden_size\":64,\"vocab_size\":64,"
    "\"num_attention_heads\":2,\"q_lora_rank\":32,\"kv_lora_rank\":32,\"qk_nope_head_dim\":32,"
    "\"qk_rope_head_dim\":32,\"v_head_dim\":32,\"first_k_dense_replace\":1,\"intermediate_size\":"
    "64,"
    "\"n_routed_experts\":4,\"n_shared_experts\":1,\"num_experts_per_tok\":2,"
    "\"moe_intermediate_size\":32,\"rope_theta\":10000.0,\"max_position_embeddings\":128,"
    "\"rms_norm_eps\":1e-6}";

static char folder[256];
static kt_json_doc *doc;

static void make_files(void) {
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    kt_tiny_gguf_write(folder, 1);
    kt_tiny_gguf_write(folder, 2);
    cr_assert_eq(kt_json_parse(config, strlen(config), NULL, &doc, &err), KT_OK, "%s", err.message);
}
static void remove_files(void) {
    kt_json_destroy(doc);
    kt_temp_remove(folder);
}
TestSuite(model_nomem, .init = make_files, .fini = remove_files, .timeout = 60);

static kt_status open_gguf(void *out, const void *with, kt_err *err) {
    return kt_checkpoint_open_gguf(with, out, err);
}
static kt_status open_any(void *out, const void *with, kt_err *err) {
    return kt_checkpoint_open(with, out, err);
}
static void close_checkpoint(void *out) {
    kt_checkpoint_close(*(kt_checkpoint **)out);
}

Test(model_nomem, a_gguf_checkpoint_is_open_or_closed) {
    static const char *const files[] = {"m.gguf", "m-00001-of-00002.gguf"};

    for (int i = 0; i < 2; i++) {
        char path[400];
        kt_nomem_case c = {.function = "kt_checkpoint_open_gguf",
                           .make = open_gguf,
                           .unmake = close_checkpoint,
                           .with = path,
                           .out_bytes = sizeof(kt_checkpoint *),
                           .says = "memory"};
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        cr_assert_geq(kt_nomem_check(&c), 5 + 4 * i);
        c.function = "kt_checkpoint_open", c.make = open_any;
        kt_nomem_check(&c);
    }
}

static kt_status make_graph(void *out, const void *with, kt_err *err) {
    return kt_graph_build(with, out, err);
}
static void unmake_graph(void *out) {
    kt_graph_deinit(out);
}

static kt_graph_request of_json(void) {
    return (kt_graph_request){
        .source = {.json = kt_json_root(doc), .arch = "", .where = "config.json"}};
}

Test(model_nomem, a_graph_is_built_or_not) {
    char path[400];
    kt_checkpoint *checkpoint;
    kt_graph_request request = of_json();
    kt_err err = {KT_OK, ""};
    const kt_nomem_case c = {.function = "kt_graph_build",
                             .make = make_graph,
                             .unmake = unmake_graph,
                             .with = &request,
                             .out_bytes = sizeof(kt_graph),
                             .says = "memory"};

    cr_assert_geq(kt_nomem_check(&c), 6);
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    cr_assert_eq(kt_checkpoint_open(path, &checkpoint, &err), KT_OK, "%s", err.message);
    request = (kt_graph_request){
        .source = {.gguf = kt_checkpoint_gguf(checkpoint), .arch = "qwen3moe", .where = path},
        .checkpoint = checkpoint};
    cr_assert_geq(kt_nomem_check(&c), 6);
    kt_checkpoint_close(checkpoint);
}

typedef struct need_list {
    kt_need *list;
    int n;
} need_list;

static kt_status list_needs(void *out, const void *with, kt_err *err) {
    need_list *l = out;
    return kt_graph_needs(with, KT_QUANT_NATIVE, &l->list, &l->n, err);
}
static void unlist_needs(void *out) {
    free(((need_list *)out)->list);
}

static kt_status make_shapes(void *out, const void *with, kt_err *err) {
    return kt_shapes_from_graph(with, out, err);
}
static kt_status read_shapes(void *out, const void *with, kt_err *err) {
    return kt_shapes_from_config(with, "config.json", out, err);
}

Test(model_nomem, needs_and_shapes_are_listed_or_not) {
    const kt_graph_request request = of_json();
    kt_graph graph;
    kt_err err = {KT_OK, ""};
    kt_nomem_case c = {.function = "kt_graph_needs",
                       .make = list_needs,
                       .unmake = unlist_needs,
                       .with = &graph,
                       .out_bytes = sizeof(need_list),
                       .says = "memory"};

    cr_assert_eq(kt_graph_build(&request, &graph, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_nomem_check(&c), 1);
    c.function = "kt_shapes_from_graph", c.make = make_shapes, c.unmake = NULL;
    c.out_bytes = sizeof(kt_shapes);
    cr_assert_eq(kt_nomem_check(&c), 2); /* as stored, and of formats that are asked for */
    kt_graph_deinit(&graph);
    c.function = "kt_shapes_from_config", c.make = read_shapes, c.with = kt_json_root(doc);
    kt_nomem_check(&c);
}
