/* Families and formats on the emulated device against logits of the reference implementation: the
 * first rows of the shared data's golden checkpoints, in steps of many and of few rows, with all
 * that the device can run there. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/json.h"
#include "dispatch/model/checkpoint.h"
#include "runtime/exec/engine.h"
#include "tests/support/guard.h"

enum { TOKENS = 11, CHUNK = 9 /* then 2: tiles, and kernels of few rows */ };

typedef struct golden {
    char model[PATH_MAX];
    kt_checkpoint *file;
    const kt_tensor *tokens, *logits;
    double bound;
} golden;

static bool open_golden(const char *name, golden *g) {
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
    cr_assert(g->tokens && g->logits && g->bound > 0, "%s: incomplete", name);
    return true;
}

/* ||got - want|| / ||want|| over all positions but one (-1 = none); *worst = the furthest off. */
static double error_of(const float *got, const float *want, int64_t vocab, int except, int *worst) {
    double difference = 0, norm = 0, most = 0;

    for (int t = 0; t < TOKENS; t++) {
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
static void expect_near(const golden *g, const char *name, const float *logits, int64_t vocab) {
    const float *want = (const float *)(const void *)g->logits->data;
    int worst = -1, unused;
    const double error = error_of(logits, want, vocab, -1, &worst);
    const double others = error_of(logits, want, vocab, worst, &unused);

    cr_expect(error <= g->bound || others <= g->bound / 1.5,
              "%s: logits are off by %g, without position %d by %g, bound %g", name, error, worst,
              others, g->bound);
}

/* crosses: half of the experts lie there, and the others cross; else all lie on two devices,
 * but for a model of one layer. */
static void check(const char *name, bool crosses) {
    const kt_engine_options o = {
        .table_path = "",
        .tokenizer_optional = true,
        .n_threads = 2,
        .max_context = 64,
        .device = crosses || strstr(name, "q2_k") ? "emulated:lazy,races" : "emulated*2:lazy,races",
        .expert_placement = crosses ? "random" : NULL,
        .prefill_offload = crosses ? "2:100%" : NULL,
        .gpu_experts = crosses ? "50%" : "100%"};
    kt_engine_options options = o;
    float *logits;
    int64_t vocab;
    kt_engine *e;
    kt_sequence *s;
    kt_err err = {KT_OK, ""};
    golden g;

    if (!open_golden(name, &g)) cr_skip_test("%s: the shared data is absent", name);
    options.model_dir = g.model;
    cr_assert_eq(kt_engine_create(&options, &e, &err), KT_OK, "%s: %s", name, err.message);
    vocab = g.logits->shape[1];
    logits = calloc((size_t)(TOKENS * vocab), sizeof *logits);
    kt_engine_set_chunk(e, CHUNK);
    cr_assert_eq(kt_sequence_create(e, TOKENS, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, (const int32_t *)(const void *)g.tokens->data, TOKENS,
                                   TOKENS, logits, NULL, NULL, NULL, &err),
                 KT_OK, "%s: %s", name, err.message);
    expect_near(&g, name, logits, vocab);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
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
    kt_engine_set_chunk(e, CHUNK);
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
