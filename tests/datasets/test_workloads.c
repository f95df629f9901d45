/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/json.h"

static kt_json_doc *parse_file(const char *path) {
    kt_json_doc *doc;
    char *text;
    size_t size;
    kt_err err;

    cr_assert_eq(kt_file_read(path, 1 << 20, &text, &size, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_json_parse(text, size, NULL, &doc, &err), KT_OK, "%s: %s", path, err.message);
    free(text);
    return doc;
}

static int64_t need(const kt_json *object, const char *key, int64_t min, const char *where) {
    int64_t v;
    kt_err err;
    cr_assert_eq(kt_json_need_int(object, key, min, 1 << 24, where, &v, &err), KT_OK, "%s",
                 err.message);
    return v;
}

/* A size that kernels take. */
static int64_t size_of(const kt_json *object, const char *key, int64_t min, const char *where) {
    int64_t v = need(object, key, min, where);
    cr_assert_eq(v % 32, 0, "%s: %s=%lld is no multiple of 32", where, key, (long long)v);
    return v;
}

static const kt_json *dense(const kt_json *root, const char *name) {
    const kt_json *list = kt_json_get(root, "dense");
    for (size_t i = 0; i < kt_json_length(list); i++) {
        const char *have = kt_json_string(kt_json_get(kt_json_at(list, i), "name"), NULL);
        if (have && strcmp(have, name) == 0) return kt_json_at(list, i);
    }
    return NULL;
}

static void expect_dense(const kt_json *root, const char *name, int64_t n, int64_t k,
                         int64_t layers, const char *where) {
    const kt_json *d = dense(root, name);
    cr_assert(d, "%s: no matrix '%s'", where, name);
    cr_assert_eq(kt_json_int(kt_json_get(d, "n"), 0), n, "%s: n of %s", where, name);
    cr_assert_eq(kt_json_int(kt_json_get(d, "k"), 0), k, "%s: k of %s", where, name);
    cr_assert_eq(kt_json_int(kt_json_get(d, "layers"), 0), layers, "%s: layers of %s", where, name);
}

static void check_dense(const kt_json *root, int64_t layers, const char *where) {
    const kt_json *list = kt_json_get(root, "dense");

    cr_assert_geq(kt_json_length(list), 3, "%s", where);
    for (size_t i = 0; i < kt_json_length(list); i++) {
        const char *name;
        cr_assert_eq(kt_json_need_string(kt_json_at(list, i), "name", where, &name, NULL), KT_OK);
        cr_assert_eq(dense(root, name), kt_json_at(list, i), "%s: two matrices '%s'", where, name);
        size_of(kt_json_at(list, i), "n", 32, where);
        size_of(kt_json_at(list, i), "k", 32, where);
        cr_assert_leq(need(kt_json_at(list, i), "layers", 1, where), layers, "%s: %s", where, name);
    }
    expect_dense(root, "lm_head", size_of(root, "vocab", 32, where),
                 size_of(root, "hidden", 32, where), 1, where);
}

/* The plain matrices follow from the attention's sizes. */
static void check_attention(const kt_json *root, int64_t layers, const char *where) {
    const kt_json *a = kt_json_get(root, "attention");
    int64_t hidden = size_of(root, "hidden", 32, where), heads = need(a, "heads", 1, where);
    const char *kind;

    cr_assert_eq(kt_json_need_string(a, "kind", where, &kind, NULL), KT_OK, "%s", where);
    if (strcmp(kind, "mla") == 0) {
        int64_t q_lora = size_of(a, "q_lora", 32, where),
                kv_lora = size_of(a, "kv_lora", 32, where);
        int64_t nope = need(a, "nope", 1, where), rope = need(a, "rope", 1, where);
        int64_t value = need(a, "value", 1, where);
        expect_dense(root, "q_a", q_lora, hidden, layers, where);
        expect_dense(root, "q_b", heads * (nope + rope), q_lora, layers, where);
        expect_dense(root, "kv_a", kv_lora + rope, hidden, layers, where);
        expect_dense(root, "kv_b", heads * (nope + value), kv_lora, layers, where);
        expect_dense(root, "o", hidden, heads * value, layers, where);
    } else if (strcmp(kind, "compressed") == 0) {
        int64_t d = size_of(a, "head_dim", 32, where), q_lora = size_of(a, "q_lora", 32, where);
        int64_t groups = need(a, "o_groups", 1, where), low = groups * need(a, "o_lora", 1, where);
        int64_t csa = need(a, "csa_layers", 1, where), hca = need(a, "hca_layers", 1, where);
        expect_dense(root, "q_a", q_lora, hidden, layers, where);
        expect_dense(root, "q_b", heads * d, q_lora, layers, where);
        expect_dense(root, "kv", d, hidden, layers, where);
        expect_dense(root, "o_a", low, heads / groups * d, layers, where);
        expect_dense(root, "o", hidden, low, layers, where);
        expect_dense(root, "csa_compressor", 4 * d, hidden, csa, where);
        expect_dense(root, "hca_compressor", 2 * d, hidden, hca, where);
    } else {
        int64_t d = need(a, "head_dim", 1, where), kv = need(a, "kv_heads", 1, where);
        int is_mixed = strcmp(kind, "gated-deltanet") == 0;
        int64_t full = is_mixed ? need(a, "full_layers", 1, where) : layers;
        int64_t gates = is_mixed ? heads : 0; /* each query head brings an output gate */
        cr_assert(is_mixed || strcmp(kind, "gqa") == 0, "%s: attention '%s'", where, kind);
        cr_assert_eq(heads % kv, 0, "%s", where);
        if (is_mixed) cr_assert_eq(full + need(a, "linear_layers", 1, where), layers, "%s", where);
        expect_dense(root, "qkv", (heads + gates + 2 * kv) * d, hidden, full, where);
        expect_dense(root, "o", hidden, heads * d, full, where);
    }
}

static void check_mixes(const kt_json *mixes, const char *where) {
    cr_assert(kt_json_get(mixes, "decode-1") && kt_json_get(mixes, "prefill-2k"), "%s", where);
    for (size_t i = 0; i < kt_json_length(mixes); i++) {
        const char *name;
        const kt_json *steps = kt_json_member(mixes, i, &name, NULL);
        double sum = 0;
        for (size_t s = 0; s < kt_json_length(steps); s++) {
            double share;
            cr_assert_eq(kt_json_need_double(kt_json_at(steps, s), "share", where, &share, NULL),
                         KT_OK);
            cr_assert_gt(share, 0);
            sum += share;
            need(kt_json_at(steps, s), "tokens", 1, where);
            need(kt_json_at(steps, s), "context", 1, where);
        }
        cr_assert(fabs(sum - 1) < 1e-9, "%s: shares of '%s' sum to %g", where, name, sum);
    }
}

/* Where the published config is there too, it says the same. */
static void check_config(const kt_json *root, const char *where) {
    static const char *const keys[][2] = {{"hidden", "hidden_size"},
                                          {"topk", "num_experts_per_tok"},
                                          {"layers", "num_hidden_layers"},
                                          {"vocab", "vocab_size"}};
    static const char *const experts[] = {"num_experts", "n_routed_experts", "num_local_experts"};
    const kt_json *c = kt_json_get(root, "config");
    int64_t n_dense = 0, n_experts = -1,
            size = kt_json_int(kt_json_get(c, "moe_intermediate_size"),
                               kt_json_int(kt_json_get(c, "intermediate_size"), 0));

    if (!c) return;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        cr_assert_eq(need(root, keys[i][0], 1, where), need(c, keys[i][1], 1, where), "%s: %s",
                     where, keys[i][1]);
    for (int i = 0; i < 3; i++) n_experts = kt_json_int(kt_json_get(c, experts[i]), n_experts);
    cr_assert_eq(n_experts, need(root, "experts", 1, where), "%s", where);
    cr_assert_eq(size, need(root, "intermediate", 1, where), "%s", where);
    cr_assert_eq(need(c, "num_attention_heads", 1, where),
                 need(kt_json_get(root, "attention"), "heads", 1, where), "%s", where);
    for (size_t l = 0; l < kt_json_length(kt_json_get(c, "moe_layer_freq")); l++)
        n_dense += kt_json_int(kt_json_at(kt_json_get(c, "moe_layer_freq"), l), 1) == 0;
    cr_assert_eq(kt_json_int(kt_json_get(c, "first_k_dense_replace"), n_dense),
                 need(root, "dense_layers", 0, where), "%s", where);
    if (kt_json_int(kt_json_get(root, "dense_intermediate"), 0) > 0)
        cr_assert_eq(kt_json_int(kt_json_get(c, "dense_intermediate_size"),
                                 kt_json_int(kt_json_get(c, "intermediate_size"), 0)),
                     need(root, "dense_intermediate", 1, where), "%s", where);
}

static void check(const char *path) {
    kt_json_doc *doc = parse_file(path);
    const kt_json *root = kt_json_root(doc);
    const char *schema, *model, *source, *native;
    int64_t layers, dense_layers, shared;
    char file[256];

    cr_assert_eq(kt_json_need_string(root, "schema", path, &schema, NULL), KT_OK, "%s", path);
    cr_assert_str_eq(schema, "kt-workload-1");
    cr_assert_eq(kt_json_need_string(root, "model", path, &model, NULL), KT_OK, "%s", path);
    snprintf(file, sizeof file, "/%s.json", model);
    cr_assert_str_eq(strrchr(path, '/'), file);
    cr_assert_eq(kt_json_need_string(root, "source", path, &source, NULL), KT_OK, "%s", path);
    cr_assert_eq(kt_json_need_string(root, "native_weights", path, &native, NULL), KT_OK);
    cr_assert_eq(native[0], 'w', "%s", path);
    cr_assert_eq(kt_json_type_of(kt_json_get(root, "aliases")), KT_JSON_ARRAY, "%s", path);
    size_of(root, "intermediate", 32, path);
    cr_assert_leq(need(root, "topk", 1, path), need(root, "experts", 1, path), "%s", path);
    shared = need(root, "shared", 0, path);
    cr_assert_eq(size_of(root, "shared_intermediate", 0, path) > 0, shared > 0, "%s", path);
    layers = need(root, "layers", 1, path);
    dense_layers = need(root, "dense_layers", 0, path);
    cr_assert_lt(dense_layers, layers, "%s", path);
    cr_assert_eq(size_of(root, "dense_intermediate", 0, path) > 0, dense_layers > 0, "%s", path);
    cr_assert(kt_json_string(kt_json_get(kt_json_get(root, "routing"), "generator"), NULL));
    check_dense(root, layers, path);
    check_attention(root, layers, path);
    check_config(root, path);
    check_mixes(kt_json_get(root, "mixes"), path);
    kt_json_destroy(doc);
}

Test(workloads, every_file_is_complete_and_consistent) {
    glob_t files;
    cr_assert_eq(glob(KT_SOURCE_DIR "/datasets/workloads/*.json", 0, NULL, &files), 0);
    cr_assert_geq(files.gl_pathc, 9, "only %zu workloads", files.gl_pathc);
    for (size_t i = 0; i < files.gl_pathc; i++) check(files.gl_pathv[i]);
    globfree(&files);
}

Test(workloads, the_bundled_model_is_described_as_it_is) {
    static const char *const keys[][2] = {
        {"hidden", "hidden_size"},       {"intermediate", "moe_intermediate_size"},
        {"experts", "num_experts"},      {"topk", "num_experts_per_tok"},
        {"layers", "num_hidden_layers"}, {"vocab", "vocab_size"}};
    kt_json_doc *ours = parse_file(KT_SOURCE_DIR "/datasets/workloads/tiny-moe.json");
    kt_json_doc *config = parse_file(KT_SOURCE_DIR "/datasets/models/tiny-moe/config.json");

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        cr_assert_eq(need(kt_json_root(ours), keys[i][0], 1, "tiny-moe"),
                     need(kt_json_root(config), keys[i][1], 1, "config.json"), "%s", keys[i][0]);
    kt_json_destroy(ours);
    kt_json_destroy(config);
}
