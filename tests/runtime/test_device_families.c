/* Families and formats on the emulated device against logits of the reference implementation: the
 * first rows of the shared data's golden checkpoints, in steps of many and of few rows, with all
 * that the device can run there; every family with every share of its experts, and its published
 * sizes. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/json.h"
#include "dispatch/model/checkpoint.h"
#include "dispatch/model/resolve.h"
#include "runtime/device/device_op.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/place.h"
#include "runtime/model/memory_plan.h"
#include "runtime/model/synthetic_model.h"
#include "tests/support/guard.h"

enum {
    TOKENS = 11,
    FEW = 2 /* rows of the last step: kernels of few rows behind those of tiles */
};

typedef struct golden {
    char model[PATH_MAX];
    kt_checkpoint *file;
    const kt_tensor *tokens, *logits;
    double bound;
    int n; /* tokens that are run */
} golden;

static bool open_golden(const char *name, int n, golden *g) {
    char relative[160], path[PATH_MAX], folder[PATH_MAX - 80], *text;
    kt_json_doc *bounds;
    const kt_json *root;
    size_t size;
    kt_err err = {KT_OK, ""};

    snprintf(relative, sizeof relative, "data/%s", name);
    if (strstr(name, ".gguf")) *strrchr(relative, '/') = '\0';
    strcat(relative, "/expected.safetensors");
    if (!kt_shared_path(relative, path, sizeof path)) return false;
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    snprintf(g->model, sizeof g->model, "%s%s", folder,
             strstr(name, ".gguf") ? strrchr(name, '/') : "");
    cr_assert_eq(kt_checkpoint_open_file(path, &g->file, &err), KT_OK, "%s", err.message);
    snprintf(path, sizeof path, "%s/bounds.json", folder);
    cr_assert_eq(kt_file_read(path, 1 << 20, &text, &size, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_json_parse(text, size, NULL, &bounds, &err), KT_OK, "%s", err.message);
    root = kt_json_root(bounds);
    /* Where the reference rounds activations to 8 bits, what that loses is in its logits. */
    g->bound = 1.5 * fmax(kt_json_double(kt_json_get(root, "error_bf16_reference"), 0),
                          kt_json_double(kt_json_get(root, "error_llama_cpp"), 0));
    kt_json_destroy(bounds);
    free(text);
    g->tokens = kt_checkpoint_find(g->file, "tokens");
    g->logits = kt_checkpoint_find(g->file, "logits");
    g->n = n;
    cr_assert(g->tokens && g->logits && g->bound > 0, "%s: incomplete", name);
    cr_assert_geq(g->tokens->shape[0], n);
    return true;
}

/* ||got - want|| / ||want|| over all positions but one (-1 = none); *worst = the furthest off. */
static double error_of(const float *got, const golden *g, int except, int *worst) {
    const float *want = (const float *)(const void *)g->logits->data;
    const int64_t vocab = g->logits->shape[1];
    double difference = 0, norm = 0, most = 0;

    for (int t = 0; t < g->n; t++) {
        double here = 0, size = 0;
        for (int64_t i = t * vocab; i < (t + 1) * vocab; i++) {
            here += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
            size += (double)want[i] * want[i];
        }
        if (t == except) continue;
        if (here / size > most) most = here / size, *worst = t;
        difference += here;
        norm += size;
    }
    return sqrt(difference / norm);
}

/* Within the bound; or one position chose another expert, where two are nearer to each other than
 * the rounding moves them, and all others are within what the reference itself loses (the rule of
 * test_families). */
static void expect_near(const golden *g, const char *name, const float *logits) {
    int worst = -1, unused;
    const double error = error_of(logits, g, -1, &worst);
    const double others = error_of(logits, g, worst, &unused);

    cr_expect(error <= g->bound || others <= g->bound / 1.5,
              "%s: logits are off by %g, without position %d by %g, bound %g", name, error, worst,
              others, g->bound);
}

/* Logits of the first g->n tokens, the last FEW of them in a step of their own; malloc'd. */
static float *run(const golden *g, kt_engine_options o, const char *name) {
    float *logits = calloc((size_t)(g->n * g->logits->shape[1]), sizeof *logits);
    kt_engine *e;
    kt_sequence *s;
    kt_err err = {KT_OK, ""};

    o.model_dir = g->model;
    o.table_path = "";
    o.tokenizer_optional = true;
    o.n_threads = 2;
    o.max_context = 64;
    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s: %s", name, err.message);
    kt_engine_set_chunk(e, g->n - FEW);
    cr_assert_eq(kt_sequence_create(e, g->n, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, (const int32_t *)(const void *)g->tokens->data, g->n, g->n,
                                   logits, NULL, NULL, NULL, &err),
                 KT_OK, "%s: %s", name, err.message);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
    return logits;
}

/* crosses: half of the experts lie there, and the others cross; else all lie on two devices,
 * but for a model of one layer. */
static void check(const char *name, bool crosses) {
    const kt_engine_options o = {
        .device = crosses || strstr(name, "q2_k") ? "emulated:lazy,races" : "emulated*2:lazy,races",
        .expert_placement = crosses ? "random" : NULL,
        .prefill_offload = crosses ? "2:100%" : NULL,
        .gpu_experts = crosses ? "50%" : "100%"};
    float *logits;
    golden g;

    if (!open_golden(name, TOKENS, &g)) cr_skip_test("%s: the shared data is absent", name);
    logits = run(&g, o, name);
    expect_near(&g, name, logits);
    kt_checkpoint_close(g.file);
    free(logits);
}

Test(device_families, checkpoints_and_gguf_blocks_give_the_reference_logits, .timeout = 240) {
    static const char *const names[] = {"golden/qwen3_moe-fp8",
                                        "golden/minimax_m2",
                                        "golden/glm4_moe-fp8",
                                        "golden/deepseek_v3",
                                        "golden/kimi_k2-int4",
                                        "golden/qwen3_next",
                                        "golden/gpt_oss",
                                        "golden/gpt_oss-mxfp4",
                                        "golden/minimax_m3-mxfp8",
                                        "golden/glm_moe_dsa",
                                        "gguf/qwen35moe-bf16/model.gguf",
                                        "gguf/qwen3moe-q4_k_m/model.gguf",
                                        "gguf/qwen3moe-q5_1/model.gguf",
                                        "gguf/qwen3moe-q2_k/model.gguf",
                                        "gguf/qwen3moe-mxfp4/model.gguf",
                                        "golden/deepseek_v4"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) check(names[i], i % 3 != 1);
}

/* ---- every family, every share ---- */

typedef struct family_case {
    char name[32];
    int n; /* tokens: more than an indexer picks, where there is one */
} family_case;

/* Of DeepSeek-V4 position 35 is near two ties. Its third layer has experts 0 and 6 0.0002 apart
 * where the CPU computes the experts before in INT8, and 0.03 where their rows are exact: then this
 * position alone is beyond the bound. Its fourth layer picks 8 of 9 entries, of which the two that
 * are worst are 0.5 of 13 apart. */
static family_case families[] = {
    {"deepseek_v3", TOKENS},   {"deepseek_v32", 28},      {"deepseek_v4", 38},
    {"glm4_moe", TOKENS},      {"glm4_moe_lite", TOKENS}, {"glm_moe_dsa", 28},
    {"gpt_oss-mxfp4", TOKENS}, {"kimi_k25-int4", TOKENS}, {"minimax_m2", TOKENS},
    {"minimax_m3", 30},        {"qwen3_5_moe", TOKENS},   {"qwen3_moe-b", TOKENS},
    {"qwen3_next", TOKENS}};

/* Without the shared data, too. */
Test(device_families, each_is_run_with_every_share) {
    for (size_t f = 0; f < kt_builtin_family_count; f++) {
        const char *family = kt_builtin_families[f]->name;
        size_t n = 0;
        for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
            const char *rest = strstr(families[i].name, family);
            const size_t size = strlen(family);
            n += rest == families[i].name && (rest[size] == '\0' || rest[size] == '-');
        }
        cr_expect_eq(n, 1, "%zu cases of %s", n, family);
    }
}

/* What is said while an engine is made: which nodes a device has no operation for. */
static void hear_refusals(void *arg, kt_log_level level, const char *area, const char *message) {
    const char *line = strstr(message, "on the CPU:");

    (void)level, (void)area;
    if (line) snprintf(arg, 256, "%s", line);
}

ParameterizedTestParameters(device_families, every_share_gives_the_reference_logits) {
    return cr_make_param_array(family_case, families, sizeof families / sizeof *families);
}

/* Nothing but experts stays on the CPU. */
ParameterizedTest(family_case *c, device_families, every_share_gives_the_reference_logits,
                  .timeout = 240) {
    static const char *const shares[] = {"0", "25%", "50%", "75%", "100%"};
    char relative[64], refusals[256] = "";
    const kt_log log = {.sink = hear_refusals, .sink_arg = refusals, .level = KT_LOG_DEBUG};
    golden g;

    snprintf(relative, sizeof relative, "golden/%s", c->name);
    if (!open_golden(relative, c->n, &g)) cr_skip_test("%s: the shared data is absent", c->name);
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        const kt_engine_options o = {.device = "emulated:lazy",
                                     .expert_placement = "random",
                                     .gpu_experts = shares[i],
                                     .log = &log};
        float *logits = run(&g, o, c->name);
        char what[64];
        snprintf(what, sizeof what, "%s with %s of its experts there", c->name, shares[i]);
        expect_near(&g, what, logits);
        cr_expect_str_empty(refusals, "%s: %s", c->name, refusals);
        free(logits);
    }
    kt_checkpoint_close(g.file);
}

/* ---- published sizes ---- */

static void expect_no_refusal(const char *shape, const kt_device_ask *ask) {
    for (int i = 0; i < ask->graph->n_nodes; i++) {
        const kt_node *n = &ask->graph->nodes[i];
        const kt_device_op *op = kt_device_op_find(n->kind);
        const char *why = !op ? "no operation" : op->refuse ? op->refuse(ask, n) : NULL;
        cr_assert_null(why, "%s on sm_%s with a cache of %s, weights %s: layer %d, %s: %s", shape,
                       ask->target->name, kt_weight_format_name(ask->kv.format),
                       kt_quant_word(ask->plan->quant), n->layer, kt_node_kind_name(n->kind), why);
    }
}

/* Every GPU has an operation for every node of every published model, whatever its cache holds and
 * what its weights become; contexts and steps are the longest that are usual. */
Test(device_families, published_models_leave_nothing_to_the_cpu, .timeout = 60) {
    static const kt_weight_format caches[] = {KT_W_BF16, KT_W_INT8_CHANNEL, KT_W_FP8_CHANNEL};
    static const kt_quant quants[] = {KT_QUANT_NATIVE, KT_QUANT_BF16, KT_QUANT_INT8, KT_QUANT_INT4};
    enum { CACHES = 3, QUANTS = 4 };
    char names[64][64];
    const int n = kt_model_list_shapes(names, 64);
    kt_model_dir *dir = malloc(sizeof *dir);
    size_t n_models = 0;
    kt_err err = {KT_OK, ""};

    for (int i = 0; i < n; i++) {
        if (kt_published_dir(names[i], dir, &err) != KT_OK) continue; /* sizes without a config */
        for (size_t t = 0; t < kt_cuda_target_count; t++)
            for (int c = 0; c < CACHES * QUANTS; c++) {
                const kt_model_plan plan = {.graph = &dir->graph, .quant = quants[c / CACHES]};
                kt_device_ask ask = {.graph = &dir->graph,
                                     .plan = &plan,
                                     .target = &kt_cuda_targets[t],
                                     .max_rows = 4096,
                                     .max_context = 1 << 20};
                cr_assert_eq(kt_model_kv_shape(&dir->graph, caches[c % CACHES], &ask.kv, &err),
                             KT_OK, "%s", err.message);
                expect_no_refusal(names[i], &ask);
            }
        kt_model_dir_deinit(dir);
        n_models++;
    }
    cr_expect_geq(n_models, kt_builtin_family_count);
    free(dir);
}

/* ---- the bundled model ---- */

static float *bundled_logits(const char *device, int64_t *vocab) {
    static const int32_t tokens[TOKENS] = {5, 300, 17, 42, 511, 7, 90, 1000, 63, 250, 4};
    const kt_engine_options o = {.model_dir = KT_SOURCE_DIR "/datasets/models/tiny-moe",
                                 .table_path = "",
                                 .n_threads = 2,
                                 .max_context = 64,
                                 .device = device,
                                 .gpu_experts = strcmp(device, "cpu") == 0 ? NULL : "100%"};
    kt_engine_info info;
    float *logits;
    kt_engine *e;
    kt_sequence *s;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    kt_engine_describe(e, &info);
    *vocab = info.vocab;
    logits = calloc((size_t)(TOKENS * *vocab), sizeof *logits);
    kt_engine_set_chunk(e, TOKENS - FEW);
    cr_assert_eq(kt_sequence_create(e, TOKENS, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, tokens, TOKENS, TOKENS, logits, NULL, NULL, NULL, &err),
                 KT_OK, "%s", err.message);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
    return logits;
}

/* As test_device_rows has it, with all experts there, by tiles and by kernels of few rows. */
Test(device_families, the_bundled_model_with_its_experts_agrees_with_the_cpu) {
    int64_t vocab;
    float *want = bundled_logits("cpu", &vocab), *got = bundled_logits("emulated:lazy", &vocab);
    double difference = 0, norm = 0;

    for (int64_t i = 0; i < TOKENS * vocab; i++) {
        difference += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        norm += (double)want[i] * want[i];
    }
    cr_expect(difference > 0 && difference < 0.02 * 0.02 * norm, "off by %g",
              sqrt(difference / norm));
    free(want), free(got);
}
