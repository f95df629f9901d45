/* Cells of every workload and of config files; filters; contenders.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "dispatch/plan/plan.h"
#include "tests/support/fake_variants.h"
#include "tests/support/guard.h"
#include "tests/support/temp.h"
#include "tuner/space/candidates.h"
#include "tuner/space/cell_filter.h"
#include "tuner/space/roles.h"
#include "tuner/space/shapes.h"

static const int both_counts[] = {1, 2};

static kt_json_doc *parse(const char *text) {
    kt_json_doc *doc;
    kt_err err;
    cr_assert_eq(kt_json_parse(text, strlen(text), NULL, &doc, &err), KT_OK, "%s", err.message);
    return doc;
}

static kt_status from_config(const char *text, kt_shapes *out, kt_err *err) {
    kt_json_doc *doc = parse(text);
    kt_status st = kt_shapes_from_config(kt_json_root(doc), "config.json", out, err);
    kt_json_destroy(doc);
    return st;
}

static void check_cells(const kt_cell_list *list, const char *what) {
    double sum = 0;
    for (size_t i = 0; i < list->n; i++) {
        const kt_tune_cell *c = &list->cells[i];
        const kt_problem *p = &c->problem;
        int is_bucket = 0;
        for (int b = 0; b < kt_m_bucket_count; b++) is_bucket |= kt_m_buckets[b] == p->m;
        cr_assert(is_bucket, "%s: m=%lld", what, (long long)p->m);
        cr_assert(p->k > 0 && p->n > 0, "%s", what);
        if (kt_problem_is_packed(p)) cr_assert(p->k % 32 == 0, "%s", what);
        cr_assert(c->weight > 0 && *c->role, "%s", what);
        if (p->op == KT_OP_MOE_FFN) cr_assert(p->topk >= 1 && p->topk <= p->experts);
        sum += c->weight;
        for (size_t j = 0; j < i; j++)
            cr_assert(list->cells[j].threads != c->threads || list->cells[j].problem.m != p->m ||
                          !kt_same_weights(&list->cells[j].problem, p),
                      "%s: %s and %s are one cell", what, list->cells[j].role, c->role);
    }
    cr_assert(fabs(sum - 1) < 1e-9, "%s: weights sum to %g", what, sum);
}

/* What models keep of sequences has cells of its own: one row and as many as a step takes; the
 * indexer's by keys, since plans ask for one row. */
Test(space, kept_sequences_have_cells) {
    static const struct {
        const char *workload;
        kt_problem problem; /* m = 0 */
        int n;
    } want[] = {
        {"Qwen3-Next-80B-A3B", {.op = KT_OP_CONV, .n = 8192, .k = 4}, 2},
        {"Qwen3-Next-80B-A3B", {.op = KT_OP_DELTA, .n = 32, .k = 128, .kv_heads = 16, .v = 128}, 2},
        {"DeepSeek-V3.2",
         {.op = KT_OP_INDEX, .weights = KT_W_BF16, .n = 64, .k = 128, .context = 8192},
         1},
        {"DeepSeek-V3.2",
         {.op = KT_OP_INDEX, .weights = KT_W_BF16, .n = 64, .k = 128, .context = 32768},
         1},
        {"GLM-5.2",
         {.op = KT_OP_INDEX, .weights = KT_W_BF16, .n = 32, .k = 128, .context = 8192},
         1},
        {"Qwen3.5-397B-A17B", {.op = KT_OP_DELTA, .n = 64, .k = 128, .kv_heads = 16, .v = 128}, 2},
        {"Qwen3-30B-A3B",
         {.op = KT_OP_ATTN,
          .weights = KT_W_BF16,
          .n = 32,
          .k = 128,
          .kv_heads = 4,
          .context = 8192},
         1},
        {"DeepSeek-V3.2",
         {.op = KT_OP_ATTN,
          .weights = KT_W_BF16,
          .n = 128,
          .k = 576,
          .kv_heads = 1,
          .v = 512,
          .context = 2048},
         1},
        {"Qwen3-30B-A3B", {.op = KT_OP_DELTA, .n = 32, .k = 128, .kv_heads = 16, .v = 128}, 0}};
    static const int one[] = {1};

    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        kt_cell_list list = {0};
        kt_shapes s;
        kt_err err;
        int n = 0;
        cr_assert_eq(kt_shapes_find(want[i].workload, &s, NULL, 0, &err), KT_OK, "%s", err.message);
        cr_assert_eq(kt_cells_of_shapes(&s, KT_SERVE_INT4, KT_PROFILE_FULL, one, 1, &list, &err),
                     KT_OK, "%s", err.message);
        for (size_t c = 0; c < list.n; c++)
            n += kt_same_weights(&list.cells[c].problem, &want[i].problem);
        cr_expect_eq(n, want[i].n, "%s: %d cells of %s", want[i].workload, n,
                     kt_op_name(want[i].problem.op));
        kt_cell_list_deinit(&list);
    }
}

Test(space, every_workload_has_cells_in_every_format) {
    glob_t files;
    cr_assert_eq(glob(KT_SOURCE_DIR "/datasets/workloads/*.json", 0, NULL, &files), 0);
    cr_assert_geq(files.gl_pathc, 8);
    for (size_t f = 0; f < files.gl_pathc; f++) {
        char name[128];
        kt_shapes s;
        kt_err err;
        size_t n[2] = {0, 0};
        snprintf(name, sizeof name, "%s", strrchr(files.gl_pathv[f], '/') + 1);
        *strstr(name, ".json") = '\0';
        cr_assert_eq(kt_shapes_find(name, &s, NULL, 0, &err), KT_OK, "%s", err.message);
        for (int format = KT_SERVE_NATIVE; format <= KT_SERVE_INT4; format++)
            for (int profile = KT_PROFILE_QUICK; profile <= KT_PROFILE_FULL; profile++) {
                kt_cell_list list = {0};
                cr_assert_eq(kt_cells_of_shapes(&s, (kt_serving_format)format, (kt_profile)profile,
                                                both_counts, 2, &list, &err),
                             KT_OK, "%s: %s", name, err.message);
                check_cells(&list, name);
                cr_expect_str_eq(list.workload, name);
                n[profile] = list.n;
                kt_cell_list_deinit(&list);
            }
        cr_expect_lt(n[KT_PROFILE_QUICK], n[KT_PROFILE_FULL], "%s", name);
    }
    globfree(&files);
}

/* Whatever a shipped workload asks for, some variant of this build takes on any machine. */
Test(space, every_workload_cell_has_a_variant) {
    glob_t files;
    cr_assert_eq(glob(KT_SOURCE_DIR "/datasets/workloads/*.json", 0, NULL, &files), 0);
    for (size_t f = 0; f < files.gl_pathc; f++) {
        char name[128], key[KT_CELL_KEY_BYTES];
        kt_shapes s;
        snprintf(name, sizeof name, "%s", strrchr(files.gl_pathv[f], '/') + 1);
        *strstr(name, ".json") = '\0';
        cr_assert_eq(kt_shapes_find(name, &s, NULL, 0, NULL), KT_OK);
        for (int format = KT_SERVE_NATIVE; format <= KT_SERVE_INT4; format++) {
            kt_cell_list list = {0};
            kt_cells_of_shapes(&s, (kt_serving_format)format, KT_PROFILE_QUICK, both_counts, 2,
                               &list, NULL);
            for (size_t i = 0; i < list.n; i++) {
                const kt_problem *p = &list.cells[i].problem;
                int takers = 0;
                for (size_t v = 0; v < kt_builtin_variant_count; v++)
                    takers += kt_builtin_variants[v]->isa == 0 &&
                              kt_variant_accepts(kt_builtin_variants[v], p, NULL, NULL) == KT_OK;
                cr_expect_gt(takers, 0, "%s: %s", name,
                             kt_cell_key(p, list.cells[i].threads, key, sizeof key));
            }
            kt_cell_list_deinit(&list);
        }
    }
    globfree(&files);
}

/* A list of matrices says nothing of attention: cells of it go, the others share its time. */
static void leave_matrices(kt_cell_list *list) {
    double sum = 0;
    size_t n = 0;

    for (size_t i = 0; i < list->n; i++) {
        if (!kt_problem_is_packed(&list->cells[i].problem)) continue;
        list->cells[n] = list->cells[i];
        sum += list->cells[n++].weight;
    }
    list->n = n;
    for (size_t i = 0; i < n; i++) list->cells[i].weight /= sum;
}

/* The bundled model is described twice: by its own config.json and by a workload. Same matrices. */
Test(space, config_and_workload_of_tiny_moe_agree) {
    kt_shapes a, b;
    kt_cell_list x = {0}, y = {0};
    kt_json_doc *doc;
    char *text;
    size_t size;
    kt_err err;

    cr_assert_eq(kt_shapes_find(KT_SOURCE_DIR "/datasets/models/tiny-moe/", &a, NULL, 0, &err),
                 KT_OK, "%s", err.message);
    cr_expect_str_eq(a.name, "tiny-moe");
    cr_assert_eq(kt_file_read(KT_SOURCE_DIR "/datasets/workloads/tiny-moe.json", 1 << 20, &text,
                              &size, NULL),
                 KT_OK);
    doc = parse(text);
    cr_assert_eq(kt_shapes_from_workload(kt_json_root(doc), "w", &b, &err), KT_OK, "%s",
                 err.message);
    kt_cells_of_shapes(&a, KT_SERVE_INT4, KT_PROFILE_FULL, both_counts, 2, &x, &err);
    kt_cells_of_shapes(&b, KT_SERVE_INT4, KT_PROFILE_FULL, both_counts, 2, &y, &err);
    leave_matrices(&x);
    leave_matrices(&y);
    cr_assert_eq(x.n, y.n);
    for (size_t i = 0; i < x.n; i++) {
        cr_expect(kt_same_weights(&x.cells[i].problem, &y.cells[i].problem));
        cr_expect(x.cells[i].problem.m == y.cells[i].problem.m &&
                  fabs(x.cells[i].weight - y.cells[i].weight) < 1e-12);
    }
    kt_cell_list_deinit(&x);
    kt_cell_list_deinit(&y);
    kt_json_destroy(doc);
    free(text);
}

/* A folder that `kt convert` wrote is tuned for the panels it holds, not for what config.json
 * declares. */
Test(space, native_of_a_packed_folder_is_what_was_packed, .timeout = 60) {
    static const struct {
        const char *to;
        kt_weight_format experts, dense;
    } cases[] = {{"int8", KT_W_INT8_CHANNEL, KT_W_INT8_CHANNEL},
                 {"w4g64", KT_W_INT4_G64, KT_W_INT8_CHANNEL}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[512], command[2048];
        kt_shapes s;
        kt_err err = {KT_OK, ""};
        kt_temp_make(folder, sizeof folder);
        snprintf(command, sizeof command,
                 "%s/kt convert %s/datasets/models/tiny-moe -o %s/packed --to %s >%s/said 2>&1",
                 KT_BUILD_DIR, KT_SOURCE_DIR, folder, cases[i].to, folder);
        cr_assert_eq(system(command), 0, "%s", command);
        snprintf(command, sizeof command, "%s/packed", folder);
        cr_assert_eq(kt_shapes_find(command, &s, NULL, 0, &err), KT_OK, "%s", err.message);
        cr_expect_eq(s.native, cases[i].experts, "%s", kt_weight_format_name(s.native));
        cr_expect_eq(s.ffn[0].weights, cases[i].experts);
        cr_expect_neq(s.shape_id, 0);
        for (int d = 0; d < s.n_dense; d++)
            if (s.dense[d].form != KT_DENSE_ASKED && !s.dense[d].is_bf16)
                cr_expect_eq(s.dense[d].native, cases[i].dense, "%s: %s", s.dense[d].name,
                             kt_weight_format_name(s.dense[d].native));
        kt_temp_remove(folder);
    }
}

/* What every config has; the sizes come behind it. */
#define TYPE                                                                             \
    "\"model_type\":\"qwen3_moe\",\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6," \
    "\"rope_theta\":10000.0"
#define QWEN                                                                    \
    TYPE ",\"hidden_size\":256,\"num_hidden_layers\":4,\"vocab_size\":1000,"    \
         "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":64," \
         "\"num_experts\":16,\"num_experts_per_tok\":4,\"moe_intermediate_size\":128"

Test(space, config_gives_the_matrices_that_are_multiplied) {
    kt_shapes s;
    kt_err err;

    cr_assert_eq(from_config("{" QWEN "}", &s, &err), KT_OK, "%s", err.message);
    cr_expect(s.moe_layers == 4 && s.dense_layers == 0 && s.native == KT_W_BF16);
    cr_expect(s.experts == 16 && s.topk == 4 && s.intermediate == 128);
    cr_assert_eq(s.n_dense, 3);
    cr_expect(s.dense[0].n == (8 + 2 * 2) * 64 && s.dense[0].k == 256, "qkv");
    cr_expect(s.dense[1].n == 256 && s.dense[1].k == 512, "o");
    cr_expect(s.dense[2].n == 1000 && s.dense[2].layers == 1, "lm_head of any vocabulary");
    cr_assert_eq(
        from_config("{" QWEN ",\"mlp_only_layers\":[0,3],\"intermediate_size\":512}", &s, &err),
        KT_OK, "%s", err.message);
    cr_expect(s.moe_layers == 2 && s.dense_layers == 2 && s.dense_intermediate == 512);
    cr_assert_eq(
        from_config("{" QWEN ",\"decoder_sparse_step\":2,\"intermediate_size\":512}", &s, &err),
        KT_OK);
    cr_expect_eq(s.moe_layers, 2);
    cr_assert_eq(from_config("{" QWEN
                             ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
                             "\"format\":\"pack-quantized\",\"config_groups\":{\"group_0\":"
                             "{\"weights\":{\"num_bits\":4,\"group_size\":32}}}}}",
                             &s, &err),
                 KT_OK);
    cr_expect_eq(s.native, KT_W_INT4_G32);
}

/* The role of this name, weights and outputs, or NULL. */
static const kt_serving_role *role_of(const kt_serving_role *roles, int n, const char *name,
                                      kt_weight_format weights, int64_t n_out) {
    for (int i = 0; i < n; i++)
        if (strcmp(roles[i].name, name) == 0 && roles[i].problem.weights == weights &&
            roles[i].problem.n == n_out)
            return &roles[i];
    return NULL;
}

/* What the graph multiplies, not what the file lists: q_a and kv_a as one product, heads' matrices
 * as BF16, a shared expert by itself only where it does not run as one of the routed ones. */
Test(space, workloads_are_tuned_as_their_models_run) {
    kt_serving_role r[KT_MAX_ROLES];
    kt_shapes s;
    int n;

    cr_assert_eq(kt_shapes_find("DeepSeek-V3", &s, NULL, 0, NULL), KT_OK);
    n = kt_roles_list(&s, KT_SERVE_INT8, r);
    cr_expect_str_eq(r[0].name, "experts");
    cr_expect(r[0].shared == 1 && r[0].problem.topk == 8 && r[0].times == 58);
    cr_expect_eq(r[0].bytes, 3.0 * 2048 * 7168 * 9 * 58);
    cr_expect(role_of(r, n, "qkv", KT_W_INT8_CHANNEL, 1536 + 512 + 64));
    cr_expect(role_of(r, n, "k_b", KT_W_BF16, 512) && role_of(r, n, "v_b", KT_W_BF16, 128));
    cr_expect_eq(role_of(r, n, "v_b", KT_W_BF16, 128)->times, 61 * 128);
    cr_expect_not(role_of(r, n, "shared", KT_W_INT8_CHANNEL, 2048));
    cr_expect_not(role_of(r, n, "kv_b", KT_W_INT8_CHANNEL, 32768));
    n = kt_roles_list(&s, KT_SERVE_INT4, r);
    cr_expect(r[0].shared == 0 && r[0].problem.weights == KT_W_INT4_G32);
    cr_expect(role_of(r, n, "shared", KT_W_INT8_CHANNEL, 2048),
              "of another format than the others");
    n = kt_roles_list(&s, KT_SERVE_NATIVE, r);
    cr_expect(r[0].shared == 1 && r[0].problem.weights == KT_W_FP8_B128);
    cr_expect(role_of(r, n, "o", KT_W_FP8_B128, 7168));
    cr_expect(role_of(r, n, "dense_ffn", KT_W_FP8_B128, 18432));
    cr_expect(role_of(r, n, "lm_head", KT_W_BF16, 129280), "the head is not FP8");
    cr_assert_eq(kt_shapes_find("Qwen3-Next-80B-A3B", &s, NULL, 0, NULL), KT_OK);
    n = kt_roles_list(&s, KT_SERVE_BF16, r);
    cr_expect(role_of(r, n, "linear_qkvz", KT_W_BF16, 12288) && r[0].shared == 1);
}

/* A GGUF file has a format of its own for every tensor: q, k and v apart, gate and up of two
 * formats as codes that both have, halves where down has another. */
Test(space, a_gguf_file_gives_the_formats_of_its_tensors) {
    kt_serving_role r[KT_MAX_ROLES];
    char path[4096];
    kt_shapes s;
    kt_err err;
    int n;

    if (!kt_shared_path("data/gguf/glm4moe-mixed/model.gguf", path, sizeof path))
        cr_skip_test("the shared glm4moe-mixed is absent");
    cr_assert_eq(kt_shapes_find(path, &s, NULL, 0, &err), KT_OK, "%s", err.message);
    n = kt_roles_list(&s, KT_SERVE_NATIVE, r);
    cr_expect(r[0].problem.experts == 3 && r[0].problem.topk == 2);
    cr_expect(role_of(r, n, "experts", KT_W_INT8_G16M, 256));
    cr_expect(role_of(r, n, "experts", KT_W_Q4_K, 256));
    cr_expect(role_of(r, n, "qkv", KT_W_Q4_K, 512) && role_of(r, n, "qkv", KT_W_Q5_K, 128) &&
              role_of(r, n, "qkv", KT_W_Q8_0, 128));
    cr_expect(role_of(r, n, "o", KT_W_F16, 256));
    n = kt_roles_list(&s, KT_SERVE_INT8, r);
    cr_expect(role_of(r, n, "qkv", KT_W_INT8_CHANNEL, 768), "of one format they are one product");
    cr_expect_not(role_of(r, n, "qkv", KT_W_INT8_CHANNEL, 128));
    for (int format = KT_SERVE_NATIVE; format <= KT_SERVE_INT4; format++) {
        kt_cell_list list = {0};
        cr_assert_eq(kt_cells_of_shapes(&s, (kt_serving_format)format, KT_PROFILE_QUICK,
                                        both_counts, 2, &list, &err),
                     KT_OK, "%s", err.message);
        check_cells(&list, "a GGUF file");
        kt_cell_list_deinit(&list);
    }
}

/* o and lm_head both [256, 256]: one cell that has the weight of both. */
Test(space, matrices_of_one_shape_are_one_cell) {
    static const int one[] = {1};
    kt_shapes s = {.name = "x", .hidden = 256, .layers = 1, .n_dense = 2};
    kt_cell_list list = {0};

    for (int i = 0; i < 2; i++) {
        snprintf(s.dense[i].name, sizeof s.dense[i].name, "%s", i ? "lm_head" : "o");
        s.dense[i].n = s.dense[i].k = 256;
        s.dense[i].layers = 1;
    }
    cr_assert_eq(kt_cells_of_shapes(&s, KT_SERVE_BF16, KT_PROFILE_FULL, one, 1, &list, NULL),
                 KT_OK);
    cr_expect_eq(list.n, (size_t)kt_m_bucket_count);
    check_cells(&list, "two of a shape");
    cr_expect_eq(kt_shapes_weight_bytes(&s, KT_SERVE_BF16), 2 * 256 * 256 * 2);
    cr_expect_eq(kt_shapes_weight_bytes(&s, KT_SERVE_INT8), 2 * 256 * 256);
    kt_cell_list_deinit(&list);
}

#define LAYERS ",\"num_hidden_layers\":1,\"vocab_size\":8"
#define HEADS(kv) ",\"hidden_size\":64,\"num_attention_heads\":2,\"num_key_value_heads\":" kv
#define EXPERTS(topk, size) \
    ",\"num_experts\":4,\"num_experts_per_tok\":" topk ",\"moe_intermediate_size\":" size

Test(space, bad_configs_are_refused_by_name) {
    static const struct {
        const char *text, *word;
        kt_status status;
    } bad[] = {
        {"{}", "model_type", KT_E_FORMAT},
        {"{\"model_type\":\"parrot\"}",
         "model_type 'parrot' is not supported (known: ", KT_E_UNSUPPORTED},
        {"{" TYPE "}", "num_hidden_layers", KT_E_FORMAT},
        {"{" TYPE LAYERS "}", "hidden_size", KT_E_FORMAT},
        {"{" TYPE LAYERS ",\"hidden_size\":\"x\"}", "hidden_size", KT_E_FORMAT},
        {"{" TYPE LAYERS ",\"hidden_size\":100}", "hidden_size is 100, expected a multiple of 32",
         KT_E_UNSUPPORTED},
        {"{" TYPE LAYERS ",\"hidden_size\":-32}", "hidden_size", KT_E_FORMAT},
        {"{" TYPE LAYERS HEADS("1") EXPERTS("5", "32") "}", "num_experts_per_tok 5 of 4 experts",
         KT_E_FORMAT},
        {"{" TYPE LAYERS HEADS("1") EXPERTS("2", "33") "}", "moe_intermediate_size is 33",
         KT_E_UNSUPPORTED},
        {"{" TYPE LAYERS HEADS("3") EXPERTS("2", "32") "}",
         "num_attention_heads 2 is not a multiple of num_key_value_heads 3", KT_E_FORMAT},
        {"{" TYPE ",\"hidden_size\":64,\"num_hidden_layers\":9999999,\"vocab_size\":8}",
         "num_hidden_layers", KT_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kt_shapes s;
        kt_err err = {0};
        cr_expect_eq(from_config(bad[i].text, &s, &err), bad[i].status, "%s", bad[i].text);
        cr_expect(strstr(err.message, bad[i].word), "'%s' lacks '%s'", err.message, bad[i].word);
    }
}

Test(space, bad_workloads_and_models_are_refused_by_name) {
    char folder[256], path[300];
    kt_json_doc *doc = parse("{\"schema\":\"kt-workload-9\"}");
    kt_shapes s;
    kt_err err;

    cr_expect_eq(kt_shapes_from_workload(kt_json_root(doc), "w", &s, &err), KT_E_FORMAT);
    cr_expect(strstr(err.message, "kt-workload-9") && strstr(err.message, "kt-workload-1"));
    kt_json_destroy(doc);
    cr_expect_eq(kt_shapes_find("no-such-model", &s, NULL, 0, &err), KT_E_NOT_FOUND);
    cr_expect_eq(kt_shapes_find("../workloads/tiny-moe", &s, NULL, 0, &err), KT_E_NOT_FOUND,
                 "a name is no path");
    kt_temp_make(folder, sizeof folder);
    kt_temp_write(folder, "config.json", "{broken", 7);
    cr_expect_eq(kt_shapes_find(folder, &s, NULL, 0, &err), KT_E_FORMAT);
    snprintf(path, sizeof path, "%s/config.json", folder);
    cr_expect(strstr(err.message, path), "%s", err.message);
    kt_temp_remove(folder);
}

static void tiny_cells(kt_cell_list *list) {
    kt_shapes s;
    memset(list, 0, sizeof *list);
    cr_assert_eq(kt_shapes_find("tiny-moe", &s, NULL, 0, NULL), KT_OK);
    cr_assert_eq(kt_cells_of_shapes(&s, KT_SERVE_INT4, KT_PROFILE_FULL, both_counts, 2, list, NULL),
                 KT_OK);
}

Test(space, filters_keep_what_they_say) {
    static const struct {
        const char *text;
        /* 3 roles of 23 buckets, of which 5 up to 6; 8 of lm_head up to 16 rows; attention with 1,
         * 1 and 64 rows; 2 thread counts */
        size_t n;
    } good[] = {{"m<=6", 4 * 5 * 2 + 4}, {"m=1,threads=2", 4 + 2},     {"role=experts", 46},
                {"op=gemm,m>=4096", 4},  {"m<=6,m>=3,threads<=1", 12}, {"role=lm_head", 16},
                {"op=attn", 6}};
    static const char *const bad[] = {"",
                                      "m",
                                      "m<4",
                                      "m<=",
                                      "m<=4x",
                                      "n=3",
                                      "m<=4,",
                                      ",m<=4",
                                      "role<=o",
                                      "role=",
                                      "m==4",
                                      "m=-1",
                                      "role=zz",
                                      "threads=99",
                                      "op=conv",
                                      "mm<=4",
                                      "m<=99999999999999999999999"};
    kt_cell_list list;
    kt_err err;

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        tiny_cells(&list);
        cr_assert_eq(kt_cells_filter(&list, good[i].text, &err), KT_OK, "%s", err.message);
        cr_expect_eq(list.n, good[i].n, "%s: %zu cells", good[i].text, list.n);
        check_cells(&list, good[i].text);
        kt_cell_list_deinit(&list);
    }
    tiny_cells(&list);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_eq(kt_cells_filter(&list, bad[i], &err), KT_E_INVALID, "'%s'", bad[i]);
        cr_expect_eq(list.n, 160, "'%s' changed the list", bad[i]);
    }
    kt_cell_list_deinit(&list);
}

/* --- contenders --- */

typedef struct scene {
    kt_registry *registry;
    kt_planner *planner;
    kt_fingerprint machine;
    kt_tune_cell cell;
    kt_choice standard;
} scene;

static void make_scene(scene *s, int64_t m) {
    kt_choice_map *map = calloc(1, sizeof *map);
    kt_err err;
    memset(s, 0, sizeof *s);
    cr_assert_eq(kt_registry_create(kt_fake_variants, kt_fake_variant_count,
                                    KT_ISA_AVX2 | KT_ISA_AVX512 | KT_ISA_AVX512VNNI, &s->registry,
                                    &err),
                 KT_OK, "%s", err.message);
    s->machine.ceilings = (kt_ceilings){.stream_gbs_1t = 30,
                                        .stream_gbs_all = 40,
                                        .peak_scalar_gops = 4,
                                        .peak_gops = {100, 100, 200, 800},
                                        .threads_all = 2};
    s->cell = (kt_tune_cell){.problem = {.op = KT_OP_GEMM,
                                         .weights = KT_W_INT8_CHANNEL,
                                         .acts = KT_A_INT8_G32,
                                         .m = m,
                                         .n = 1024,
                                         .k = 1024},
                             .threads = 1,
                             .role = "o"};
    cr_assert_eq(kt_planner_create(s->registry, NULL, &s->machine, NULL, &s->planner, &err), KT_OK);
    cr_assert_eq(kt_plan_resolve(s->planner, &s->cell.problem, 1, 4096, 0.7, map, NULL, &err),
                 KT_OK, "%s", err.message);
    s->standard = *kt_choice_for(map, m);
    free(map);
}

static void drop_scene(scene *s) {
    kt_planner_destroy(s->planner);
    kt_registry_destroy(s->registry);
}

Test(space, contenders_are_all_configurations_that_are_accepted) {
    scene s;
    kt_contenders c;
    kt_err err;
    size_t want = 0;

    make_scene(&s, 64);
    for (size_t i = 0; i < kt_registry_count(s.registry); i++) {
        const kt_variant *v = kt_registry_at(s.registry, i);
        for (int64_t j = 0; j < kt_config_count(v); j++) {
            kt_config config = kt_config_at(v, j);
            want += kt_variant_accepts(v, &s.cell.problem, &config, NULL) == KT_OK;
        }
    }
    cr_assert_eq(kt_contenders_make(s.registry, &s.cell, &s.machine.ceilings, &s.standard, NULL,
                                    (kt_prune){0}, &c, &err),
                 KT_OK, "%s", err.message);
    cr_expect_eq((size_t)c.n, want);
    cr_expect_eq(c.n_pruned, 0);
    for (int i = 0; i < c.n; i++) {
        cr_expect_eq(kt_contenders_find(&c, &c.list[i].choice), i, "%s twice", c.list[i].name);
        cr_expect(c.list[i].bound_ns > 0 && strchr(c.list[i].name, '@'));
    }
    cr_expect(kt_choice_equal(&c.list[c.default_index].choice, &s.standard));
    kt_contenders_deinit(&c);
    drop_scene(&s);
}

/* At 512 rows the scalar bound is 200 times the VNNI one; it goes unless it is the default or
 * what a neighbour won with. Libraries stay: nobody knows what they run. */
Test(space, pruning_spares_the_default_the_neighbour_and_libraries) {
    scene s;
    kt_contenders c;
    kt_choice scalar = {.variant = NULL};
    kt_err err;
    int libraries = 0, scalars = 0;

    make_scene(&s, 512);
    for (size_t i = 0; i < kt_registry_count(s.registry); i++) {
        const kt_variant *v = kt_registry_at(s.registry, i);
        if (v->op == KT_OP_GEMM && v->isa == 0 && !strstr(v->name, "__lib")) scalar.variant = v;
    }
    cr_assert(scalar.variant);
    scalar.config = kt_config_initial(scalar.variant);
    cr_assert_eq(kt_contenders_make(s.registry, &s.cell, &s.machine.ceilings, &s.standard, NULL,
                                    (kt_prune){.ratio = 1.5}, &c, &err),
                 KT_OK);
    cr_expect_gt(c.n_pruned, 0);
    cr_expect_eq(kt_contenders_find(&c, &scalar), -1);
    cr_expect_geq(c.default_index, 0);
    for (int i = 0; i < c.n; i++) libraries += strstr(c.list[i].name, "__lib") != NULL;
    cr_expect_eq(libraries, 1);
    kt_contenders_deinit(&c);
    cr_assert_eq(kt_contenders_make(s.registry, &s.cell, &s.machine.ceilings, &s.standard, &scalar,
                                    (kt_prune){.ratio = 1.5}, &c, &err),
                 KT_OK);
    for (int i = 0; i < c.n; i++) scalars += c.list[i].choice.variant == scalar.variant;
    cr_expect_eq(scalars, 1, "what the neighbour won with stays");
    kt_contenders_deinit(&c);
    drop_scene(&s);
}

/* For deterministic plans the best variant of a class stays however far it is behind, up to the
 * limit: "tiles" of AVX-512 have a quarter of VNNI's peak, "other" an eighth; "narrow" is plain
 * C. */
Test(space, pruning_spares_the_best_of_each_class_when_asked) {
    static const struct {
        double class_ratio;
        int tiles, other, narrow;
    } cases[] = {{0, 0, 0, 0}, {5, 1, 0, 0}, {9, 1, 1, 0}, {1e6, 1, 1, 0}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kt_prune rule = {1.5, cases[i].class_ratio};
        int tiles = 0, other = 0, narrow = 0;
        kt_contenders c;
        scene s;
        kt_err err;

        make_scene(&s, 512);
        cr_assert_eq(kt_contenders_make(s.registry, &s.cell, &s.machine.ceilings, &s.standard, NULL,
                                        rule, &c, &err),
                     KT_OK, "%s", err.message);
        for (int k = 0; k < c.n; k++) {
            const char *bits = c.list[k].choice.variant->bits;
            tiles += strcmp(bits, "tiles") == 0;
            other += strcmp(bits, "other") == 0;
            narrow += strcmp(bits, "narrow") == 0;
        }
        cr_expect_eq(tiles, cases[i].tiles, "case %zu", i);
        cr_expect_eq(other, cases[i].other, "case %zu", i);
        cr_expect_eq(narrow, cases[i].narrow, "case %zu", i);
        kt_contenders_deinit(&c);
        drop_scene(&s);
    }
}

Test(space, cell_keys_say_what_few_problems_have) {
    kt_problem p = {.op = KT_OP_MOE_FFN,
                    .weights = KT_W_INT4_G32,
                    .acts = KT_A_INT8_G32,
                    .m = 1,
                    .n = 128,
                    .k = 256,
                    .experts = 16,
                    .topk = 4,
                    .down = KT_W_INT4_G32};
    char key[KT_CELL_KEY_BYTES];

    cr_expect_str_eq(kt_cell_key(&p, 1, key, sizeof key),
                     "moe_ffn w4g32/a8 m=1 n=128 k=256 E=16/4 t=1", "%s", key);
    p.down = KT_W_INT8_CHANNEL;
    p.act = KT_FFN_SWIGLU_CLAMPED;
    cr_expect_str_eq(kt_cell_key(&p, 1, key, sizeof key),
                     "moe_ffn w4g32/a8 m=1 n=128 k=256 E=16/4 down=w8c act=swiglu_clamped t=1",
                     "%s", key);
    p = (kt_problem){.op = KT_OP_ATTN,
                     .m = 1,
                     .n = 32,
                     .k = 128,
                     .kv_heads = 8,
                     .context = 4096,
                     .v = 64,
                     .window = 1024};
    cr_expect_str_eq(kt_cell_key(&p, 2, key, sizeof key),
                     "attn none/none m=1 n=32 k=128 kv=8 context=4096 v=64 window=1024 t=2", "%s",
                     key);
    p.v = p.k;
    p.m = p.n = p.kv_heads = p.context = p.window = INT64_MAX;
    kt_cell_key(&p, 1 << 16, key, sizeof key);
    cr_expect(strstr(key, " window=9223372036854775807 t=65536"), "it is cut: %s", key);
    cr_expect_not(strstr(key, " v="), "%s", key);
}

Test(space, cell_keys_are_unique_and_readable) {
    kt_cell_list list;
    char a[KT_CELL_KEY_BYTES], b[KT_CELL_KEY_BYTES];

    tiny_cells(&list);
    for (size_t i = 0; i < list.n; i++)
        for (size_t j = 0; j < i; j++) {
            kt_cell_key(&list.cells[i].problem, list.cells[i].threads, a, sizeof a);
            kt_cell_key(&list.cells[j].problem, list.cells[j].threads, b, sizeof b);
            cr_assert_str_neq(a, b);
        }
    kt_cell_key(&list.cells[0].problem, 1, a, sizeof a);
    cr_expect_str_eq(a, "moe_ffn w4g32/a8 m=1 n=128 k=256 E=16/4 t=1");
    kt_cell_list_deinit(&list);
}
