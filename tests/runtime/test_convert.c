/* kt convert and folders of packed panels: the same bits as a direct load, for every container,
 * family and format. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/cpu.h"
#include "dispatch/plan/plan.h"
#include "kernels/formats/format.h"
#include "runtime/exec/engine.h"
#include "runtime/model/convert.h"
#include "runtime/model/model_dir.h"
#include "runtime/model/node_plan.h"
#include "runtime/model/weights.h"
#include "tests/support/folder.h"
#include "tests/support/guard.h"
#include "tests/support/random_model.h"
#include "tests/support/temp.h"

enum { TOKENS = 9 };

typedef struct convert_case {
    char name[64]; /* below data/: "golden/x", or "gguf/x/model.gguf" */
    kt_quant quant;
} convert_case;

#define AS(format) ((kt_quant)(KT_QUANT_FORMAT + KT_W_##format))

static const kt_quant formats[] = {KT_QUANT_BF16,  KT_QUANT_INT8,   KT_QUANT_INT4, AS(F16),
                                   AS(INT4_G64),   AS(INT4_G128),   AS(INT4Z_G32), AS(INT4Z_G64),
                                   AS(INT4Z_G128), AS(INT8_G128),   AS(FP8_B128),  AS(FP8_CHANNEL),
                                   AS(INT4_G32),   AS(INT8_CHANNEL)};

ParameterizedTestParameters(convert, loads_to_the_same_bits) {
    static convert_case cases[80] = {
        {"golden/qwen3_moe-a", KT_QUANT_NATIVE},
        {"golden/qwen3_moe-b", KT_QUANT_NATIVE},
        {"golden/qwen3_moe-c", KT_QUANT_NATIVE},
        {"golden/qwen3_moe-fp8", KT_QUANT_NATIVE},
        {"golden/minimax_m2", KT_QUANT_NATIVE},
        {"golden/minimax_m2-fp8", KT_QUANT_NATIVE},
        {"golden/glm4_moe", KT_QUANT_NATIVE},
        {"golden/glm4_moe-fp8", KT_QUANT_NATIVE},
        {"golden/deepseek_v3", KT_QUANT_NATIVE},
        {"golden/deepseek_v3-fp8", KT_QUANT_NATIVE},
        {"golden/deepseek_v32", KT_QUANT_NATIVE},
        {"golden/kimi_k2-int4", KT_QUANT_NATIVE},
        {"golden/qwen3_next", KT_QUANT_NATIVE},
        {"golden/gpt_oss", KT_QUANT_NATIVE},
        {"golden/gpt_oss-mxfp4", KT_QUANT_NATIVE},
        {"gguf/gpt-oss-mxfp4/model.gguf", KT_QUANT_NATIVE},
        {"golden/qwen3_5_moe", KT_QUANT_NATIVE},
        {"golden/glm_moe_dsa", KT_QUANT_NATIVE},
        {"golden/kimi_k25-int4", KT_QUANT_NATIVE},
        {"gguf/qwen3moe-bf16-split/model-00001-of-00002.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3moe-f16-tied/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3moe-f32/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3moe-q4_0/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3moe-q4_1/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3moe-q5_0/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3moe-q5_1/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3moe-q8_0/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3moe-q2_k/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3moe-q3_k_m/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3moe-q4_k_m/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3moe-q5_k_m/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3moe-q6_k/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3moe-iq4_nl/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3moe-iq4_xs/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3moe-mxfp4/model.gguf", KT_QUANT_NATIVE},
        {"gguf/minimax-m2-q3_k_m/model.gguf", KT_QUANT_NATIVE},
        {"gguf/glm4moe-mtp-bf16/model.gguf", KT_QUANT_NATIVE},
        {"gguf/glm4moe-mixed/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3next-bf16/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3next-fused-q8_0/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3next-mtp-q4_k_m/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen3next-old-q8_0/model.gguf", KT_QUANT_NATIVE},
        {"gguf/deepseek2-f16/model.gguf", KT_QUANT_NATIVE},
        {"gguf/deepseek2-mxfp4/model.gguf", KT_QUANT_NATIVE},
        {"gguf/deepseek2-old-q5_0/model.gguf", KT_QUANT_NATIVE},
        {"gguf/deepseek2-q4_k_m/model.gguf", KT_QUANT_NATIVE},
        {"gguf/deepseek32-bf16/model.gguf", KT_QUANT_NATIVE},
        {"gguf/qwen35moe-bf16/model.gguf", KT_QUANT_INT8},
        /* FP8 is decoded, F16 read from GGUF; heads of MLA; linear attention */
        {"golden/glm4_moe-fp8", KT_QUANT_INT8},
        {"golden/deepseek_v3", KT_QUANT_INT4},
        {"golden/qwen3_next", KT_QUANT_INT4},
        {"golden/gpt_oss", KT_QUANT_INT4},
        {"gguf/deepseek2-f16/model.gguf", KT_QUANT_INT8},
    };
    size_t n = 0;

    while (*cases[n].name) n++;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        cases[n++] = (convert_case){"golden/qwen3_moe-a", formats[i]};
    return cr_make_param_array(convert_case, cases, n);
}

static const kt_model_shape small = {.layers = 2,
                                     .hidden = 64,
                                     .vocab = 200,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .head_dim = 32,
                                     .experts = 6,
                                     .topk = 2,
                                     .expert_size = 64,
                                     .dense_size = 128,
                                     .dense_layer = 0,
                                     .is_normalised = 1,
                                     .dtype = KT_DTYPE_BF16};

static kt_engine_options options_for(const char *model, kt_quant weights, int groups) {
    return (kt_engine_options){.model_dir = model,
                               .weights = weights,
                               .table_path = "",
                               .tokenizer_optional = true,
                               .deterministic = true,
                               .max_context = 64,
                               .numa = groups,
                               .n_threads = 2};
}

/* Logits of all tokens; malloc'd. */
static float *logits_of(kt_engine *e, size_t *count) {
    kt_engine_info info;
    int32_t tokens[TOKENS];
    kt_sequence *s;
    kt_err err = {KT_OK, ""};
    float *logits;

    kt_engine_describe(e, &info);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (int32_t)((i * 37 + 5) % info.vocab);
    *count = (size_t)(TOKENS * info.vocab);
    logits = calloc(*count, sizeof *logits);
    cr_assert_eq(kt_sequence_create(e, TOKENS, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, tokens, TOKENS, TOKENS, logits, NULL, NULL, NULL, &err),
                 KT_OK, "%s", err.message);
    kt_sequence_destroy(s);
    return logits;
}

static void expect_same(const char *model, const char *packed, kt_quant quant, int groups) {
    kt_engine_options direct = options_for(model, quant, groups);
    kt_engine_options mapped = options_for(packed, KT_QUANT_NATIVE, groups);
    kt_err err = {KT_OK, ""};
    kt_engine *a, *b;
    size_t n, m;
    float *want, *got;

    cr_assert_eq(kt_engine_create(&direct, &a, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_create(&mapped, &b, &err), KT_OK, "%s", err.message);
    want = logits_of(a, &n);
    got = logits_of(b, &m);
    cr_assert_eq(n, m);
    cr_expect_arr_eq(want, got, n * sizeof *want, "%s as %d: other logits", model, (int)quant);
    free(want);
    free(got);
    kt_engine_destroy(a);
    kt_engine_destroy(b);
}

static kt_status convert(const char *model, const char *out, kt_quant quant, kt_err *err) {
    const kt_convert_request request = {.model = model, .out = out, .quant = quant, .n_threads = 2};
    kt_convert_result result;
    kt_status st = kt_convert(&request, &result, err);

    if (st == KT_OK) cr_expect_gt(result.bytes, 0);
    return st;
}

/* The folder that holds a path, or itself. */
static void folder_of(const char *path, char *out, size_t out_bytes) {
    snprintf(out, out_bytes, "%s", path);
    if (strstr(out, ".gguf")) *strrchr(out, '/') = '\0';
}

ParameterizedTest(convert_case *c, convert, loads_to_the_same_bits, .timeout = 120) {
    char relative[120], model[PATH_MAX], folder[PATH_MAX], out[256];
    uint64_t before;
    kt_engine_options direct;
    kt_engine *e;
    kt_err err = {KT_OK, ""}, why = {KT_OK, ""};

    snprintf(relative, sizeof relative, "data/%s", c->name);
    if (!kt_shared_path(relative, model, sizeof model))
        cr_skip_test("%s: the shared data is absent", c->name);
    folder_of(model, folder, sizeof folder);
    before = kt_folder_checksum(folder);
    kt_temp_make(out, sizeof out);
    if (convert(model, out, c->quant, &err) == KT_OK) {
        expect_same(model, out, c->quant, KT_NUMA_OFF);
    } else { /* a size that the format cannot have: then a direct load says so, too */
        direct = options_for(model, c->quant, KT_NUMA_OFF);
        cr_expect_neq(kt_engine_create(&direct, &e, &why), KT_OK, "%s as %d: %s", c->name,
                      (int)c->quant, err.message);
        cr_expect_str_eq(err.message, why.message);
    }
    cr_expect_eq(kt_folder_checksum(folder), before, "%s: the source changed", c->name);
    kt_temp_remove(out);
}

Test(convert, experts_are_cut_over_memory_nodes_from_panels, .timeout = 60) {
    static const kt_quant quants[] = {KT_QUANT_NATIVE, KT_QUANT_INT4, AS(FP8_B128)};
    kt_model_shape shape = small;
    char model[256], out[256];
    kt_err err = {KT_OK, ""};

    shape.hidden = 128;
    shape.expert_size = shape.dense_size = 256;
    kt_temp_make(model, sizeof model);
    kt_random_model(&shape, 9, model);
    for (size_t q = 0; q < sizeof quants / sizeof *quants; q++) {
        kt_temp_make(out, sizeof out);
        cr_assert_eq(convert(model, out, quants[q], &err), KT_OK, "%s", err.message);
        expect_same(model, out, quants[q], 2);
        kt_temp_remove(out);
    }
    kt_temp_remove(model);
}

/* ---- another layout ---- */

/* A dense kernel that wants its weights in plain rows; it never runs. */
static size_t rows_bytes(const kt_problem *q) {
    size_t data, scales;

    kt_format_find(q->weights)->plain_bytes(q->n, q->k, &data, &scales);
    return data + scales;
}

static void pack_rows(const kt_problem *q, const kt_matrix *w, void *dst) {
    size_t data, scales;

    kt_format_find(q->weights)->plain_bytes(q->n, q->k, &data, &scales);
    memcpy(dst, w->data, data);
    if (scales) memcpy((char *)dst + data, w->scales, scales);
}

static void never(const kt_gemm_call *call) {
    (void)call;
    abort();
}

static const kt_variant plain_rows = {
    .name = "plain_rows__scalar",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_BF16 | 1u << KT_W_INT8_CHANNEL | 1u << KT_W_INT4_G32 | 1u << KT_W_F16,
    .acts = 1u << KT_A_BF16 | 1u << KT_A_INT8_G32 | 1u << KT_A_INT8_G16P2,
    .bits = "plain",
    .version = 1,
    .rank = 1,
    .layout = "test:rows",
    .packed_bytes = rows_bytes,
    .pack_gemm = pack_rows,
    .gemm = never};

/* Weights of a model with dense kernels of that other layout only. */
static kt_weights *load_rows(const char *model, kt_quant quant, kt_model_dir *dir,
                             kt_model_plan *plan) {
    const kt_variant **list = calloc(kt_builtin_variant_count + 1, sizeof *list);
    const kt_fingerprint machine = {.usable_cores = 2, .numa_nodes = 1};
    const kt_pool_options threads = {.n_threads = 2, .no_pin = 1};
    kt_node_plan nodes;
    kt_registry *registry;
    kt_planner *planner;
    kt_pool *pool;
    kt_weights *weights;
    kt_err err = {KT_OK, ""};
    kt_weights_request request = {.graph = &dir->graph, .plan = plan, .nodes = &nodes};
    size_t n = 0;

    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (kt_builtin_variants[i]->op != KT_OP_GEMM) list[n++] = kt_builtin_variants[i];
    list[n++] = &plain_rows;
    cr_assert_eq(kt_model_dir_read(model, dir, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_registry_create(list, n, kt_isa_available(), &registry, &err), KT_OK);
    cr_assert_eq(kt_planner_create(registry, NULL, &machine, NULL, &planner, &err), KT_OK);
    cr_assert_eq(kt_pool_create(&threads, &pool, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_node_plan_make(KT_NUMA_OFF, NULL, 0, 2, &nodes, &err), KT_OK);
    cr_assert_eq(kt_model_plan_make(planner, &dir->graph, quant, KT_W_BF16, 2, 16, 64, plan, &err),
                 KT_OK, "%s", err.message);
    request.checkpoint = dir->checkpoint;
    request.pool = pool;
    cr_assert_eq(kt_weights_load(&request, &weights, &err), KT_OK, "%s", err.message);
    kt_pool_destroy(pool);
    kt_planner_destroy(planner);
    kt_registry_destroy(registry);
    free(list);
    return weights;
}

Test(convert, panels_are_packed_anew_for_kernels_of_another_layout, .timeout = 60) {
    static const kt_quant quants[] = {KT_QUANT_NATIVE, KT_QUANT_INT8, AS(INT4_G32), AS(F16)};
    char model[256], out[256];

    kt_temp_make(model, sizeof model);
    kt_random_model(&small, 7, model);
    for (size_t q = 0; q < sizeof quants / sizeof *quants; q++) {
        kt_model_dir dirs[2];
        kt_model_plan plans[2];
        kt_weights *direct, *mapped;
        kt_err err = {KT_OK, ""};
        int n_other = 0;
        kt_temp_make(out, sizeof out);
        cr_assert_eq(convert(model, out, quants[q], &err), KT_OK, "%s", err.message);
        direct = load_rows(model, quants[q], &dirs[0], &plans[0]);
        mapped = load_rows(out, KT_QUANT_NATIVE, &dirs[1], &plans[1]);
        for (int i = 0; i < dirs[0].graph.n_weights; i++) {
            kt_run runs[KT_WEIGHT_PARTS];
            const int n = kt_weight_runs(&dirs[0].graph.weights[i], quants[q], runs);
            if (dirs[0].graph.weights[i].kind != KT_WEIGHT_MATRIX) continue;
            for (int r = 0; r < n; r++) {
                const kt_problem_plan *p = kt_model_plan_run(&plans[0], i, r);
                n_other += strcmp(p->choices.choice[0].variant->layout, "test:rows") == 0;
                cr_expect_arr_eq(kt_weights_at(direct, i)->data[r],
                                 kt_weights_at(mapped, i)->data[r], rows_bytes(&p->problem),
                                 "%s of layer %d as %d", dirs[0].graph.weights[i].role,
                                 dirs[0].graph.weights[i].layer, (int)quants[q]);
            }
        }
        cr_expect_eq(n_other, 2 * 2 + 1); /* qkv and o of two layers, head */
        kt_weights_destroy(direct);
        kt_weights_destroy(mapped);
        for (int i = 0; i < 2; i++) kt_model_plan_deinit(&plans[i]), kt_model_dir_deinit(&dirs[i]);
        kt_temp_remove(out);
    }
    kt_temp_remove(model);
}

/* ---- memory that goes while loading ---- */

/* Plenty for the first questions, then next to nothing: another program begins. */
static uint64_t shrinking(void *arg) {
    int *left = arg;
    return (*left)-- > 0 ? UINT64_MAX : 65u << 20;
}

static void expect_stopped(const char *model, int questions, const char *words) {
    const kt_fingerprint machine = {.usable_cores = 2, .numa_nodes = 1};
    const kt_pool_options threads = {.n_threads = 2, .no_pin = 1};
    kt_registry *registry;
    kt_planner *planner;
    kt_model_dir dir;
    kt_model_plan plan;
    kt_node_plan nodes;
    kt_pool *pool;
    kt_weights *weights;
    kt_err err = {KT_OK, ""};
    kt_weights_request request = {.graph = &dir.graph,
                                  .plan = &plan,
                                  .nodes = &nodes,
                                  .available = shrinking,
                                  .available_arg = &questions};

    cr_assert_eq(kt_model_dir_read(model, &dir, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count,
                                    kt_isa_available(), &registry, &err),
                 KT_OK);
    cr_assert_eq(kt_planner_create(registry, NULL, &machine, NULL, &planner, &err), KT_OK);
    cr_assert_eq(kt_pool_create(&threads, &pool, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_node_plan_make(KT_NUMA_OFF, NULL, 0, 2, &nodes, &err), KT_OK);
    cr_assert_eq(
        kt_model_plan_make(planner, &dir.graph, KT_QUANT_NATIVE, KT_W_BF16, 2, 16, 64, &plan, &err),
        KT_OK);
    request.checkpoint = dir.checkpoint;
    request.pool = pool;
    cr_expect_eq(kt_weights_load(&request, &weights, &err), KT_E_NOMEM, "%s", err.message);
    cr_expect_null(weights);
    cr_expect(strstr(err.message, words), "'%s' lacks '%s'", err.message, words);
    kt_model_plan_deinit(&plan);
    kt_model_dir_deinit(&dir);
    kt_pool_destroy(pool);
    kt_planner_destroy(planner);
    kt_registry_destroy(registry);
}

Test(convert, loading_stops_when_memory_goes, .timeout = 60) {
    kt_model_shape shape = small;
    char model[256], out[256];
    kt_err err = {KT_OK, ""};

    shape.vocab = 4000;
    shape.hidden = 256; /* layers and what is outside take more than the reserve leaves */
    shape.experts = 16;
    shape.dense_layer = -1;
    shape.expert_size = 128;
    kt_temp_make(model, sizeof model);
    kt_temp_make(out, sizeof out);
    kt_random_model(&shape, 3, model);
    expect_stopped(model, 0, "stopped at what is outside of layers: it takes 0.00 GiB of memory");
    expect_stopped(model, 1, "stopped at layer 1 of 2");
    expect_stopped(model, 2, "stopped at layer 2 of 2: it takes 0.00 GiB of memory and 0.06");
    cr_assert_eq(convert(model, out, KT_QUANT_INT8, &err), KT_OK, "%s", err.message);
    expect_stopped(out, 0, "stopped at packed weights");
    kt_temp_remove(model);
    kt_temp_remove(out);
}

/* ---- what is wrong with a packed folder ---- */

static void expect_refused(const char *folder, const char *first, const char *second) {
    const kt_engine_options o = options_for(folder, KT_QUANT_NATIVE, KT_NUMA_OFF);
    kt_err err = {KT_OK, ""};
    kt_engine *e;

    cr_expect_neq(kt_engine_create(&o, &e, &err), KT_OK);
    cr_expect(strstr(err.message, first) && strstr(err.message, second), "'%s' lacks '%s' or '%s'",
              err.message, first, second);
}

/* Replace words of a file, which are as long; the last ones where last is set. */
static void change(const char *folder, const char *name, const char *from, const char *to) {
    char path[512], *text, *at;
    size_t size;
    kt_err err = {KT_OK, ""};

    snprintf(path, sizeof path, "%s/%s", folder, name);
    cr_assert_eq(kt_file_read(path, 1 << 26, &text, &size, &err), KT_OK, "%s", err.message);
    at = memmem(text, size, from, strlen(from));
    cr_assert(at, "%s lacks %s", name, from);
    memcpy(at, to, strlen(to));
    cr_assert_eq(kt_file_write(path, text, size, &err), KT_OK, "%s", err.message);
    free(text);
}

#define SHARD "model-00002-of-00003.safetensors"

Test(convert, damage_names_the_tensor, .timeout = 60) {
    static const struct {
        const char *file, *from, *to, *first, *second;
    } cases[] = {
        {SHARD, "format=w4g32", "format=w4g64", "layers.1.experts", "expected 'layout=p64"},
        {SHARD, "version=1 format=w8c", "version=2 format=w8c", "layers.1.qkv", "version=2"},
        {SHARD, "layers.1.router\":\"lay", "layers.1.rooter\":\"lay", "layers.1.router",
         "expected 'layout=rows"},
        {"model.safetensors.index.json", "\"version\":1", "\"version\":7", "version 7",
         "convert the source again"},
        {"model.safetensors.index.json", "\"weights\":\"int4\"", "\"weights\":\"int9\"", "int9",
         "expected a format"},
        {"model.safetensors.index.json", "\"source\":[[", "\"sourse\":[[", "source", "index.json"}};
    char model[256], out[256], path[512], *text;
    size_t size;
    kt_err err = {KT_OK, ""};

    kt_temp_make(model, sizeof model);
    kt_temp_make(out, sizeof out);
    kt_random_model(&small, 3, model);
    cr_assert_eq(convert(model, out, KT_QUANT_INT4, &err), KT_OK, "%s", err.message);
    expect_same(model, out, KT_QUANT_INT4, KT_NUMA_OFF);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        change(out, cases[i].file, cases[i].from, cases[i].to);
        expect_refused(out, cases[i].first, cases[i].second);
        change(out, cases[i].file, cases[i].to, cases[i].from);
    }
    /* one bit of the last expert */
    snprintf(path, sizeof path, "%s/" SHARD, out);
    cr_assert_eq(kt_file_read(path, 1 << 26, &text, &size, &err), KT_OK, "%s", err.message);
    text[size - 77] ^= 16;
    kt_temp_write(out, SHARD, text, size);
    expect_refused(out, "layers.1.experts", "the file is damaged");
    text[size - 77] ^= 16;
    kt_temp_write(out, SHARD, text, size - 64);
    expect_refused(out, SHARD, "truncated");
    kt_temp_write(out, SHARD, text, size);
    expect_same(model, out, KT_QUANT_INT4, KT_NUMA_OFF);
    free(text);
    kt_temp_remove(model);
    kt_temp_remove(out);
}

/* What another program's packed file could mean to ours: nothing is quantised twice. */
Test(convert, packed_folders_are_not_converted_again, .timeout = 60) {
    char model[256], out[256] = "", again[256];
    kt_engine_options o = options_for(out, KT_QUANT_NATIVE, KT_NUMA_OFF);
    kt_engine *e = NULL;
    kt_err err = {KT_OK, ""};

    kt_temp_make(model, sizeof model);
    kt_temp_make(out, sizeof out);
    kt_temp_make(again, sizeof again);
    kt_random_model(&small, 3, model);
    cr_assert_eq(convert(model, out, KT_QUANT_NATIVE, &err), KT_OK, "%s", err.message);
    cr_expect_eq(convert(out, again, KT_QUANT_NATIVE, &err), KT_E_UNSUPPORTED);
    cr_expect(strstr(err.message, "packed weights already"), "%s", err.message);
    o.weights = KT_QUANT_INT8;
    cr_expect_eq(kt_engine_create(&o, &e, &err), KT_E_UNSUPPORTED);
    cr_expect(strstr(err.message, "holds packed weights (wbf16 of"), "%s", err.message);
    kt_temp_remove(model);
    kt_temp_remove(out);
    kt_temp_remove(again);
}

/* ---- formats within a budget ---- */

static const kt_model_shape two_sided = {.layers = 2,
                                         .hidden = 128,
                                         .vocab = 256,
                                         .heads = 2,
                                         .kv_heads = 1,
                                         .head_dim = 64,
                                         .experts = 10,
                                         .topk = 2,
                                         .expert_size = 128,
                                         .dense_layer = -1,
                                         .is_normalised = 1,
                                         .dtype = KT_DTYPE_BF16};

static kt_status fit(const char *model, const char *out, size_t budget, kt_convert_result *result,
                     kt_err *err) {
    const kt_convert_request request = {
        .model = model, .out = out, .budget = budget, .n_threads = 2};
    return kt_convert(&request, result, err);
}

/* How far logits are from those of the weights as they are, relative. */
static double distance(const char *model, const char *packed) {
    kt_engine_options o[2] = {options_for(model, KT_QUANT_NATIVE, KT_NUMA_OFF),
                              options_for(packed, KT_QUANT_NATIVE, KT_NUMA_OFF)};
    float *logits[2];
    double error = 0, all = 0;
    size_t n = 0;

    for (int i = 0; i < 2; i++) {
        kt_err err = {KT_OK, ""};
        kt_engine *e;
        cr_assert_eq(kt_engine_create(&o[i], &e, &err), KT_OK, "%s", err.message);
        logits[i] = logits_of(e, &n);
        kt_engine_destroy(e);
    }
    for (size_t i = 0; i < n; i++) {
        error += pow(logits[1][i] - logits[0][i], 2);
        all += pow(logits[0][i], 2);
    }
    free(logits[0]);
    free(logits[1]);
    return sqrt(error / all);
}

/* More bytes never lose more; all of them lose nothing, and fewer than the least are refused. */
Test(convert, budgets_buy_accuracy, .timeout = 60) {
    static const double parts[] = {0.02, 0.5};
    char model[256], whole[256], out[256];
    kt_convert_result result, all;
    kt_err err = {KT_OK, ""};
    double last = 1, least;

    kt_temp_make(model, sizeof model);
    kt_temp_make(whole, sizeof whole);
    kt_temp_make(out, sizeof out);
    kt_random_model(&two_sided, 21, model);
    cr_assert_eq(fit(model, whole, 1 << 26, &all, &err), KT_OK, "%s", err.message);
    cr_expect_eq(all.tensors, 0);
    expect_same(model, whole, KT_QUANT_NATIVE, KT_NUMA_OFF);
    cr_expect_eq(fit(model, out, 400000, &result, &err), KT_E_INVALID);
    cr_expect(strstr(err.message, "experts 0.000") &&
                  strstr(err.message, "the smallest formats take"),
              "%s", err.message);
    least = (double)all.bytes * 0.32;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const size_t budget = (size_t)(least + parts[i] * ((double)all.bytes * 1.1 - least));
        double now;
        kt_temp_remove(out);
        kt_temp_make(out, sizeof out);
        cr_assert_eq(fit(model, out, budget, &result, &err), KT_OK, "%s", err.message);
        cr_expect_leq(result.bytes, budget);
        cr_expect_gt((double)result.bytes, 0.8 * (double)(budget < all.bytes ? budget : all.bytes),
                     "%zu of %zu bytes", result.bytes, budget);
        now = distance(model, out);
        cr_expect_lt(now, 0.2, "part %g: %g", parts[i], now);
        cr_expect_lt(now, last, "part %g: %g after %g", parts[i], now, last);
        last = now;
    }
    kt_temp_remove(model);
    kt_temp_remove(whole);
    kt_temp_remove(out);
}

static int stop_late(void *arg) {
    static int left = 15;
    (void)arg;
    return --left < 0;
}

/* Formats of the index that are not those of the folder. */
static void damage_formats(const char *folder) {
    static const struct {
        const char *from, *to, *first, *second;
    } cases[] = {{"\"layers.0.qkv\"", "\"layers.0.qkx\"", "'formats' names", "index.json"},
                 {"[\"w4", "[\"x4", "'x4", "expected a format that is encoded"},
                 {"\"version\":2", "\"version\":1", "version 1, expected 2", "again"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        change(folder, "model.safetensors.index.json", cases[i].from, cases[i].to);
        expect_refused(folder, cases[i].first, cases[i].second);
        change(folder, "model.safetensors.index.json", cases[i].to, cases[i].from);
    }
}

/* As if it had been killed while the first two lines of its journal were written. */
static void tear_formats(const char *folder) {
    char path[512], *text, *end;
    size_t size;
    kt_err err = {KT_OK, ""};

    snprintf(path, sizeof path, "%s/" KT_CONVERT_JOURNAL, folder);
    cr_assert_eq(kt_file_read(path, 1 << 26, &text, &size, &err), KT_OK, "%s", err.message);
    end = memchr(text, '\n', size);
    cr_assert(end && memmem(end, size - (size_t)(end - text), "\"formats\"", 9), "%s", text);
    cr_assert_eq(kt_file_write(path, text, (size_t)(end - text) + 40, &err), KT_OK);
    free(text);
}

/* What was chosen is in the journal: going on measures nothing, and ends in the same bytes. */
Test(convert, budgets_are_kept_when_work_goes_on, .timeout = 60) {
    char model[256], whole[256], out[256];
    kt_convert_request request = {.model = model, .out = out, .budget = 830000, .n_threads = 2};
    kt_convert_result result;
    kt_err err = {KT_OK, ""};

    kt_temp_make(model, sizeof model);
    kt_temp_make(whole, sizeof whole);
    kt_temp_make(out, sizeof out);
    kt_random_model(&two_sided, 22, model);
    cr_assert_eq(fit(model, whole, request.budget, &result, &err), KT_OK, "%s", err.message);
    request.cancel = stop_late;
    cr_assert_eq(kt_convert(&request, &result, &err), KT_E_CANCELLED);
    cr_expect(strstr(err.message, "goes on behind shard"), "%s", err.message);
    cr_assert_eq(kt_convert(&request, &result, &err), KT_E_CANCELLED); /* not while measuring */
    cr_expect(strstr(err.message, "goes on behind shard"), "%s", err.message);
    request.budget++;
    cr_expect_eq(kt_convert(&request, &result, &err), KT_E_INVALID);
    cr_expect(strstr(err.message, "to budget"), "%s", err.message);
    request.budget--;
    request.cancel = NULL;
    cr_assert_eq(kt_convert(&request, &result, &err), KT_OK, "%s", err.message);
    cr_expect_gt(result.resumed, 0);
    cr_expect_eq(kt_folder_checksum(out), kt_folder_checksum(whole));
    damage_formats(out);
    tear_formats(out);
    cr_assert_eq(kt_convert(&request, &result, &err), KT_OK, "%s", err.message);
    cr_expect_eq(result.resumed, 0);
    cr_expect_eq(kt_folder_checksum(out), kt_folder_checksum(whole));
    kt_temp_remove(model);
    kt_temp_remove(whole);
    kt_temp_remove(out);
}

/* The model again, with one input of an expert's gate a thousand times as large in every row: four
 * bits cannot hold the inputs beside it. */
static void spoil(const char *model, int layer, int expert) {
    char path[512], name[128];
    kt_checkpoint *c;
    kt_tensor_out *list;
    kt_err err = {KT_OK, ""};

    snprintf(path, sizeof path, "%s/model.safetensors", model);
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.gate_proj.weight", layer, expert);
    cr_assert_eq(kt_checkpoint_open_file(path, &c, &err), KT_OK, "%s", err.message);
    list = calloc(kt_checkpoint_count(c), sizeof *list);
    for (size_t i = 0; i < kt_checkpoint_count(c); i++) {
        const kt_tensor *t = kt_checkpoint_at(c, i);
        uint16_t *data = malloc(t->bytes);
        memcpy(data, t->data, t->bytes);
        if (strcmp(t->name, name) == 0)
            for (int64_t r = 0; r < t->shape[0]; r++)
                for (int64_t k = 5; k < t->shape[1]; k += 16) data[r * t->shape[1] + k] += 5 << 7;
        list[i] = (kt_tensor_out){t->name, t->dtype, t->rank, {t->shape[0], t->shape[1]}, data};
    }
    cr_assert_eq(kt_safetensors_write(path, list, kt_checkpoint_count(c), &err), KT_OK);
    for (size_t i = 0; i < kt_checkpoint_count(c); i++) free((void *)(uintptr_t)list[i].data);
    free(list);
    kt_checkpoint_close(c);
}

static int64_t expert_bytes(const char *folder, const char *shard) {
    char path[512];
    kt_checkpoint *c;
    const kt_tensor *t;
    int64_t bytes;
    kt_err err = {KT_OK, ""};

    snprintf(path, sizeof path, "%s/%s", folder, shard);
    cr_assert_eq(kt_checkpoint_open_panels(path, &c, &err), KT_OK, "%s", err.message);
    t = kt_checkpoint_find(c, strstr(shard, "00002") ? "layers.1.experts" : "layers.2.experts");
    cr_assert(t, "%s has no experts", shard);
    bytes = t->shape[0] * t->shape[1];
    kt_checkpoint_close(c);
    return bytes;
}

/* A load says whether the expert that loses much is one that anybody meets. */
Test(convert, budgets_count_experts_by_their_load, .timeout = 60) {
    static const char head[] = "{\"schema\":\"kt-trace-1\",\"model\":\"m\",\"experts\":10,"
                               "\"topk\":2,\"moe_layers\":2}\n";
    static const char *const steps[] = {
        "{\"decode\":1,\"prefill\":0,\"layers\":[[0,900],[9,900]]}\n",
        "{\"decode\":1,\"prefill\":0,\"layers\":[[0,900],[0,900]]}\n"};
    char model[256], out[256], load[300], text[400];
    int64_t bytes[2];
    kt_convert_result result;
    kt_err err = {KT_OK, ""};

    kt_temp_make(model, sizeof model);
    kt_random_model(&two_sided, 24, model);
    spoil(model, 1, 9);
    snprintf(load, sizeof load, "%s/load.jsonl", model);
    for (int i = 0; i < 2; i++) {
        const kt_convert_request request = {
            .model = model, .out = out, .budget = 830000, .load = load, .n_threads = 2};
        kt_temp_make(out, sizeof out);
        snprintf(text, sizeof text, "%s%s", head, steps[i]);
        kt_temp_write(model, "load.jsonl", text, strlen(text));
        cr_assert_eq(kt_convert(&request, &result, &err), KT_OK, "%s", err.message);
        bytes[i] = expert_bytes(out, "model-00002-of-00003.safetensors");
        kt_temp_remove(out);
    }
    cr_expect_gt(bytes[0], bytes[1], "busy %lld bytes, idle %lld", (long long)bytes[0],
                 (long long)bytes[1]);
    kt_temp_write(model, "load.jsonl", "{}\n", 3);
    kt_temp_make(out, sizeof out);
    {
        const kt_convert_request request = {
            .model = model, .out = out, .budget = 830000, .load = load, .n_threads = 2};
        cr_expect_eq(kt_convert(&request, &result, &err), KT_E_FORMAT);
        cr_expect(strstr(err.message, "not a recorded load"), "%s", err.message);
    }
    kt_temp_remove(out);
    kt_temp_remove(model);
}
