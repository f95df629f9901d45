/* Making engines: what is wrong with a folder, a table or a request is said in one message; what is
 * right keeps its promises. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/json.h"
#include "dispatch/model/resolve.h"
#include "dispatch/plan/plan.h"
#include "runtime/exec/engine.h"
#include "runtime/model/model_dir.h"
#include "tests/support/random_model.h"
#include "tests/support/temp.h"

static const kt_model_shape small = {.layers = 2,
                                     .hidden = 64,
                                     .vocab = 50,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .head_dim = 32,
                                     .experts = 4,
                                     .topk = 2,
                                     .expert_size = 32,
                                     .dense_layer = -1,
                                     .dtype = KT_DTYPE_BF16};

/* What the log wrote, for looking at afterwards. */
typedef struct capture {
    kt_log log;
    char *text;
    size_t size;
} capture;

static void capture_open(capture *c) {
    c->log = (kt_log){.stream = open_memstream(&c->text, &c->size), .level = KT_LOG_WARN};
}

static int capture_warnings(capture *c) {
    int n = 0;
    fclose(c->log.stream);
    for (size_t i = 0; i < c->size; i++) n += c->text[i] == '\n';
    return n;
}

static kt_status create(const char *folder, const char *table, const kt_log *log, kt_engine **out,
                        kt_err *err) {
    kt_engine_options o = {.model_dir = folder,
                           .table_path = table,
                           .n_threads = 2,
                           .tokenizer_optional = true,
                           .log = log};
    return kt_engine_create(&o, out, err);
}

static void expect_refused(const kt_model_shape *shape, kt_status status, const char *words) {
    char folder[PATH_MAX];
    kt_engine *e = NULL;
    kt_err err = {KT_OK, ""};
    kt_status st;

    kt_temp_make(folder, sizeof folder);
    kt_random_model(shape, 1, folder);
    st = create(folder, "", NULL, &e, &err);
    cr_expect(st == status, "%s: got %s (%s)", words, kt_status_name(st), err.message);
    cr_expect_null(e);
    cr_expect(strstr(err.message, words), "'%s' lacks '%s'", err.message, words);
    kt_engine_destroy(e);
    kt_temp_remove(folder);
}

Test(engine, bad_checkpoints_are_named) {
    kt_model_shape s = small;

    s.left_out = "model.layers.1.mlp.experts.3.up_proj.weight";
    expect_refused(&s, KT_E_NOT_FOUND, "'model.layers.1.mlp.experts.3.up_proj.weight' is missing");
    s = small, s.left_out = "model.norm.weight";
    expect_refused(&s, KT_E_NOT_FOUND, "'model.norm.weight' is missing");
    s = small, s.odd_name = "model.layers.0.self_attn.k_proj.weight", s.odd_dtype = KT_DTYPE_I64;
    expect_refused(&s, KT_E_UNSUPPORTED, "k_proj.weight': dtype I64, expected");
    s = small, s.odd_name = "model.layers.0.mlp.gate.weight", s.odd_dtype = KT_DTYPE_I64;
    expect_refused(&s, KT_E_UNSUPPORTED, "gate.weight': dtype I64");
    s = small, s.has_bias = 1, s.left_out = "model.layers.1.self_attn.v_proj.bias";
    expect_refused(&s, KT_E_NOT_FOUND, "v_proj.bias' is missing");
    s = small, s.extra = ",\"vocab_size\":51"; /* a key twice is bad JSON */
    expect_refused(&s, KT_E_FORMAT, "config.json");
}

Test(engine, configs_that_cannot_be_run_are_named) {
    static const struct {
        const char *extra;
        kt_status status;
        const char *words;
    } cases[] = {
        {",\"use_sliding_window\":true", KT_E_UNSUPPORTED, "use_sliding_window"},
        {",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4.0}", KT_E_UNSUPPORTED, "'dynamic'"},
        {",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":0.5}", KT_E_FORMAT,
         "yarn with factor 0.5"},
        {",\"rope_parameters\":{\"rope_theta\":1e4,\"rope_type\":\"linear\"}", KT_E_UNSUPPORTED,
         "'linear'"},
        {",\"quantization_config\":{\"quant_method\":\"bitsandbytes\"}", KT_E_UNSUPPORTED,
         "quantization_config"},
        {",\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[64,64]}",
         KT_E_UNSUPPORTED, "weight_block_size [64, 64], expected [128, 128]"},
    };
    kt_model_shape s = small;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        s.extra = cases[i].extra;
        expect_refused(&s, cases[i].status, cases[i].words);
    }
    s = small, s.heads = 3, s.kv_heads = 2;
    expect_refused(&s, KT_E_FORMAT, "num_attention_heads 3 is not a multiple");
    s = small, s.hidden = 48;
    expect_refused(&s, KT_E_UNSUPPORTED, "hidden_size is 48, expected a multiple of 32");
    s = small, s.topk = 5;
    expect_refused(&s, KT_E_FORMAT, "num_experts_per_tok 5 of 4 experts");
}

/* Logits behind three tokens of a random model. */
static void run_shape(const kt_model_shape *shape, float *logits) {
    static const int32_t tokens[] = {1, 2, 3};
    char folder[PATH_MAX];
    kt_engine *e;
    kt_sequence *q;
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    kt_random_model(shape, 1, folder);
    cr_assert_eq(create(folder, "", NULL, &e, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_sequence_create(e, 3, &q, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, q, tokens, 3, 1, logits, NULL, NULL, NULL, &err), KT_OK, "%s",
                 err.message);
    kt_sequence_destroy(q);
    kt_engine_destroy(e);
    kt_temp_remove(folder);
}

/* Each tensor is read in its own type: matrices stored as F32 become BF16, which holds these
 * values. The declaration of a quantisation that no tensor shows changes nothing. */
Test(engine, single_tensors_may_be_stored_otherwise) {
    static const char *const odd[] = {"lm_head.weight", "model.layers.0.self_attn.k_proj.weight",
                                      "model.layers.1.mlp.experts.3.up_proj.weight"};
    float *want = calloc(2 * (size_t)small.vocab, sizeof *want), *got = want + small.vocab;
    kt_model_shape s = small;

    run_shape(&s, want);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        s = small, s.odd_name = odd[i], s.odd_dtype = KT_DTYPE_F32;
        run_shape(&s, got);
        cr_expect_eq(memcmp(got, want, (size_t)small.vocab * sizeof *got), 0, "%s", odd[i]);
    }
    s = small, s.extra = ",\"quantization_config\":{\"quant_method\":\"fp8\"}";
    run_shape(&s, got);
    cr_expect_eq(memcmp(got, want, (size_t)small.vocab * sizeof *got), 0);
    free(want);
}

/* rope_parameters is the newer spelling of rope_theta. */
Test(engine, newer_spellings_are_read) {
    kt_model_shape s = small;
    char folder[PATH_MAX];
    kt_model_dir *dir = malloc(sizeof *dir);
    kt_err err = {KT_OK, ""};

    s.extra = ",\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"default\"}";
    kt_temp_make(folder, sizeof folder);
    kt_random_model(&s, 1, folder);
    kt_temp_write(folder, "generation_config.json", "{\"eos_token_id\":[7,9]}", 22);
    cr_assert_eq(kt_model_dir_read(folder, dir, &err), KT_OK, "%s", err.message);
    cr_expect_eq(dir->graph.rotations[0].base, 500000.0);
    cr_expect(dir->graph.numbers.n_eos == 2 && dir->graph.numbers.eos[0] == 7 &&
              dir->graph.numbers.eos[1] == 9);
    kt_temp_remove(folder);
    kt_model_dir_deinit(dir);
    free(dir);
}

Test(engine, missing_files_are_named) {
    char folder[PATH_MAX], path[PATH_MAX + 32];
    kt_engine *e;
    kt_engine_options o = {.model_dir = folder, .table_path = "", .n_threads = 1};
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    cr_expect_neq(create("/no/such/folder", "", NULL, &e, &err), KT_OK);
    cr_expect(strstr(err.message, "/no/such/folder"), "%s", err.message);
    cr_expect_neq(create(folder, "", NULL, &e, &err), KT_OK);
    cr_expect(strstr(err.message, "config.json"), "%s", err.message);
    kt_random_model(&small, 1, folder);
    cr_expect_eq(kt_engine_create(&o, &e, &err), KT_E_NOT_FOUND);
    cr_expect(strstr(err.message, "tokenizer.json"), "%s", err.message);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    cr_assert_eq(truncate(path, 3000), 0);
    cr_expect_eq(create(folder, "", NULL, &e, &err), KT_E_FORMAT);
    cr_expect(strstr(err.message, "truncated"), "%s", err.message);
    cr_assert_eq(unlink(path), 0);
    cr_expect_neq(create(folder, "", NULL, &e, &err), KT_OK);
    cr_expect(strstr(err.message, "model.safetensors"), "%s", err.message);
    kt_temp_write(folder, "config.json", "{\"model_type\":\"parrot\"}", 23);
    cr_expect_eq(create(folder, "", NULL, &e, &err), KT_E_UNSUPPORTED);
    cr_expect(strstr(err.message, "'parrot'") && strstr(err.message, "qwen3_moe"), "%s",
              err.message);
    kt_temp_remove(folder);
}

Test(engine, tensors_of_nobody_are_reported_once) {
    kt_model_shape s = small;
    char folder[PATH_MAX];
    capture c;
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    s.layers = 3; /* the checkpoint has a layer more than its config says */
    kt_random_model(&s, 1, folder);
    s.layers = 2;
    {
        char text[PATH_MAX], path[PATH_MAX + 32];
        FILE *f;
        size_t n;
        char *at;
        snprintf(path, sizeof path, "%s/config.json", folder);
        f = fopen(path, "rb");
        n = fread(text, 1, sizeof text - 1, f);
        fclose(f);
        text[n] = '\0';
        at = strstr(text, "\"num_hidden_layers\":3");
        cr_assert(at);
        at[strlen("\"num_hidden_layers\":")] = '2';
        kt_temp_write(folder, "config.json", text, n);
    }
    capture_open(&c);
    cr_assert_eq(create(folder, "", &c.log, &e, &err), KT_OK, "%s", err.message);
    kt_engine_destroy(e);
    capture_warnings(&c);
    cr_expect(strstr(c.text, "are not part of qwen3_moe"), "%s", c.text);
    cr_expect(strstr(c.text, "model.layers.2."), "%s", c.text);
    free(c.text);
    kt_temp_remove(folder);
}

/* ---- tables ---- */

/* Of the model in the folder. */
static uint64_t own_shape(const char *folder) {
    char path[PATH_MAX + 32], *text;
    kt_json_doc *doc;
    uint64_t shape;
    size_t size;

    snprintf(path, sizeof path, "%s/config.json", folder);
    cr_assert_eq(kt_file_read(path, 1 << 20, &text, &size, NULL), KT_OK);
    cr_assert_eq(kt_json_parse(text, size, NULL, &doc, NULL), KT_OK);
    shape = kt_model_shape_id(kt_json_root(doc));
    kt_json_destroy(doc);
    free(text);
    return shape;
}

static void save_table(const char *folder, int is_other, uint64_t shape, const char *variant,
                       char *path, size_t bytes) {
    kt_topology topology;
    kt_table *t;
    kt_table_row row = {
        .problem =
            {.op = KT_OP_GEMM, .weights = KT_W_BF16, .acts = KT_A_BF16, .m = 1, .n = 128, .k = 64},
        .threads = 2,
        .version = 1,
        .time_ns = 1000,
        .ci_low = 0.99,
        .ci_high = 1.01,
        .rounds = 8,
        .default_ns = 1000,
        .status = "tuned"};
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_topology_probe(&topology, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_table_create(&t, &err), KT_OK, "%s", err.message);
    kt_fingerprint_make(&topology, NULL, &t->fingerprint);
    if (is_other) { /* another part: other numbers alone make a table stale */
        t->fingerprint.model += 1;
        snprintf(t->fingerprint.microarch, sizeof t->fingerprint.microarch, "another");
    }
    t->shape_id = shape;
    snprintf(t->build, sizeof t->build, "test");
    snprintf(t->workload, sizeof t->workload, "small");
    snprintf(t->created, sizeof t->created, "2025-01-01T00:00:00Z");
    snprintf(row.variant, sizeof row.variant, "%s", variant);
    snprintf(row.default_variant, sizeof row.default_variant, "%s", variant);
    cr_assert_eq(kt_table_put(t, &row, &err), KT_OK, "%s", err.message);
    snprintf(path, bytes, "%s/t.kttable.json", folder);
    cr_assert_eq(kt_table_save(t, path, &err), KT_OK, "%s", err.message);
    kt_table_destroy(t);
}

/* The engine runs on without the rows and says why in one line. The table has the shape of the
 * model, plus something; below none it has no shape. */
static void check_table(int is_other, int64_t plus, const char *variant, const char *words) {
    char folder[PATH_MAX], path[PATH_MAX + 32];
    capture c;
    kt_engine *e;
    kt_engine_info info;
    kt_err err = {KT_OK, ""};
    int warnings;

    kt_temp_make(folder, sizeof folder);
    kt_random_model(&small, 1, folder);
    save_table(folder, is_other, plus < 0 ? 0 : own_shape(folder) + (uint64_t)plus, variant, path,
               sizeof path);
    capture_open(&c);
    cr_assert_eq(create(folder, path, &c.log, &e, &err), KT_OK, "%s", err.message);
    kt_engine_describe(e, &info);
    cr_expect(strstr(info.table_line, path), "%s", info.table_line);
    cr_expect(strstr(info.table_line, "cells tuned"), "%s", info.table_line);
    kt_engine_destroy(e);
    warnings = capture_warnings(&c);
    cr_expect_eq(warnings, 1 + (plus != 0), "%d warnings: %s", warnings, c.text);
    cr_expect(strstr(c.text, words), "'%s' lacks '%s'", c.text, words);
    free(c.text);
    kt_temp_remove(folder);
}

Test(engine, a_table_of_another_machine_is_said_once) {
    check_table(1, 0, "any_any_p64__scalar", "another machine's");
}

Test(engine, a_table_with_an_unknown_variant_is_said_once) {
    check_table(0, 0, "w9_a9__scalar", "w9_a9__scalar");
}

/* Beside the line about rows that are missing or not used. */
Test(engine, a_table_of_another_model_is_said_once) {
    check_table(1, 1, "any_any_p64__scalar", "was made for another model, 'small'");
    check_table(1, -1, "any_any_p64__scalar", "has no shape digest; made for 'small' by name only");
}

Test(engine, a_broken_table_that_was_asked_for_is_an_error) {
    char folder[PATH_MAX], path[PATH_MAX + 32];
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    kt_random_model(&small, 1, folder);
    kt_temp_write(folder, "t.kttable.json", "{\"schema\":", 10);
    snprintf(path, sizeof path, "%s/t.kttable.json", folder);
    cr_expect_neq(create(folder, path, NULL, &e, &err), KT_OK);
    cr_expect(strstr(err.message, "t.kttable.json"), "%s", err.message);
    kt_temp_remove(folder);
}

/* ---- sequences ---- */

static int cancel_after(void *arg) {
    int *left = arg;
    return (*left)-- <= 0;
}

Test(engine, requests_out_of_range_are_refused) {
    const int32_t tokens[4] = {1, 2, 3, 4}, bad[2] = {1, 50}, negative[1] = {-1};
    char folder[PATH_MAX];
    float logits[4 * 50];
    kt_engine *e;
    kt_sequence *s;
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    kt_random_model(&small, 1, folder);
    cr_assert_eq(create(folder, "", NULL, &e, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_sequence_create(e, -1, &s, &err), KT_E_INVALID);
    cr_expect_eq(kt_sequence_create(e, 257, &s, &err), KT_E_INVALID);
    cr_expect(strstr(err.message, "256"), "%s", err.message);
    cr_assert_eq(kt_sequence_create(e, 5, &s, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_engine_forward(e, s, tokens, 0, 0, NULL, NULL, NULL, NULL, &err), KT_E_INVALID);
    cr_expect_eq(kt_engine_forward(e, s, tokens, 4, 5, logits, NULL, NULL, NULL, &err),
                 KT_E_INVALID);
    cr_expect_eq(kt_engine_forward(e, s, bad, 2, 1, logits, NULL, NULL, NULL, &err), KT_E_INVALID);
    cr_expect(strstr(err.message, "token 1 is 50"), "%s", err.message);
    cr_expect_eq(kt_engine_forward(e, s, negative, 1, 1, logits, NULL, NULL, NULL, &err),
                 KT_E_INVALID);
    cr_expect_eq(kt_sequence_length(s), 0);
    cr_expect_eq(kt_engine_forward(e, s, tokens, 4, 4, logits, NULL, NULL, NULL, &err), KT_OK);
    cr_expect_eq(kt_engine_forward(e, s, tokens, 2, 1, logits, NULL, NULL, NULL, &err),
                 KT_E_INVALID);
    cr_expect(strstr(err.message, "do not fit"), "%s", err.message);
    cr_expect_eq(kt_sequence_length(s), 4);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
    kt_temp_remove(folder);
}

/* A cancelled prefill stops between chunks and can go on; a truncated one can be redone: both
 * end in the bits of an undisturbed run. */
Test(engine, cancelled_and_truncated_sequences_go_on) {
    const int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    char folder[PATH_MAX];
    float want[50], got[50];
    int left = 2;
    kt_engine *e;
    kt_sequence *s;
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    kt_random_model(&small, 1, folder);
    cr_assert_eq(create(folder, "", NULL, &e, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_sequence_create(e, 16, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, tokens, 8, 1, want, NULL, NULL, NULL, &err), KT_OK);
    kt_sequence_truncate(s, 0);
    kt_engine_set_chunk(e, 3);
    cr_expect_eq(kt_engine_forward(e, s, tokens, 8, 1, got, NULL, cancel_after, &left, &err),
                 KT_E_CANCELLED);
    cr_assert_eq(kt_sequence_length(s), 6);
    cr_assert_eq(kt_engine_forward(e, s, tokens + 6, 2, 1, got, NULL, NULL, NULL, &err), KT_OK);
    cr_expect_eq(memcmp(got, want, sizeof want), 0);
    kt_sequence_truncate(s, 5);
    cr_assert_eq(kt_engine_forward(e, s, tokens + 5, 3, 1, got, NULL, NULL, NULL, &err), KT_OK);
    cr_expect_eq(memcmp(got, want, sizeof want), 0);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
    kt_temp_remove(folder);
}

/* Two engines in one process do not know of each other. */
Test(engine, two_engines_live_side_by_side) {
    const int32_t tokens[3] = {1, 2, 3};
    char a_folder[PATH_MAX], b_folder[PATH_MAX];
    float a_alone[50], a_again[50], b_logits[50];
    kt_engine *a, *b;
    kt_sequence *s, *t;
    kt_err err = {KT_OK, ""};

    kt_temp_make(a_folder, sizeof a_folder);
    kt_temp_make(b_folder, sizeof b_folder);
    kt_random_model(&small, 1, a_folder);
    kt_random_model(&small, 2, b_folder);
    cr_assert_eq(create(a_folder, "", NULL, &a, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_sequence_create(a, 8, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(a, s, tokens, 3, 1, a_alone, NULL, NULL, NULL, &err), KT_OK);
    cr_assert_eq(create(b_folder, "", NULL, &b, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_sequence_create(b, 8, &t, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(b, t, tokens, 3, 1, b_logits, NULL, NULL, NULL, &err), KT_OK);
    kt_sequence_truncate(s, 0);
    cr_assert_eq(kt_engine_forward(a, s, tokens, 3, 1, a_again, NULL, NULL, NULL, &err), KT_OK);
    cr_expect_eq(memcmp(a_alone, a_again, sizeof a_alone), 0);
    cr_expect_neq(memcmp(a_alone, b_logits, sizeof a_alone), 0);
    kt_sequence_destroy(s);
    kt_sequence_destroy(t);
    kt_engine_destroy(a);
    kt_engine_destroy(b);
    kt_temp_remove(a_folder);
    kt_temp_remove(b_folder);
}
