/* Whole models whose rows an emulated device works on: every op of small kernels, against the
 * logits of the reference implementation, within the bounds of the shared data's golden
 * checkpoints. SPDX-License-Identifier: Apache-2.0 */
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
#include "runtime/exec/engine.h"
#include "tests/support/guard.h"
#include "tests/support/qwen3_ref.h"
#include "tests/support/wanted_case.h"

enum { TOKENS = 10, PICKED = 40 /* more than deepseek_v32's indexer picks of them */ };

typedef struct row_model {
    char folder[PATH_MAX];
    kt_checkpoint *file;
    const int32_t *tokens;
    const float *logits;
    int64_t n, vocab;
    double bound;
} row_model;

static row_model open_model(const char *name, int64_t n) {
    char relative[96], path[PATH_MAX + 32], *text;
    row_model m;
    kt_json_doc *doc;
    const kt_tensor *tokens, *logits;
    size_t size;
    kt_err err = {KT_OK, ""};

    snprintf(relative, sizeof relative, "data/golden/%s/expected.safetensors", name);
    if (!kt_shared_path(relative, m.folder, sizeof m.folder))
        cr_skip_test("%s: the shared data is absent", name);
    *strrchr(m.folder, '/') = '\0';
    snprintf(path, sizeof path, "%s/expected.safetensors", m.folder);
    cr_assert_eq(kt_checkpoint_open_file(path, &m.file, &err), KT_OK, "%s", err.message);
    snprintf(path, sizeof path, "%s/bounds.json", m.folder);
    cr_assert_eq(kt_file_read(path, 1 << 20, &text, &size, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_json_parse(text, size, NULL, &doc, &err), KT_OK, "%s", err.message);
    m.bound = 1.5 * kt_json_double(kt_json_get(kt_json_root(doc), "error_bf16_reference"), NAN);
    kt_json_destroy(doc);
    free(text);
    tokens = kt_checkpoint_find(m.file, "tokens");
    logits = kt_checkpoint_find(m.file, "logits");
    cr_assert(tokens && logits, "%s: no tokens or logits", name);
    m.tokens = (const int32_t *)(const void *)tokens->data;
    m.logits = (const float *)(const void *)logits->data;
    cr_assert_geq(tokens->shape[0], n);
    m.n = n;
    m.vocab = logits->shape[1];
    return m;
}

/* What is said while an engine is made. */
typedef struct heard {
    char text[4096];
    size_t n;
} heard;

static void hear(void *arg, kt_log_level level, const char *area, const char *message) {
    heard *h = arg;
    const int n = snprintf(h->text + h->n, sizeof h->text - h->n, "%s: %s\n", area, message);

    (void)level;
    h->n += n > 0 && (size_t)n < sizeof h->text - h->n ? (size_t)n : 0;
}

static kt_engine *load(const row_model *m, const kt_log *log, const char *device,
                       const char *share) {
    kt_engine_options o = {.model_dir = m->folder,
                           .table_path = "",
                           .tokenizer_optional = true,
                           .n_threads = 2,
                           .max_context = 64,
                           .device = device,
                           .gpu_experts = share,
                           .log = log};
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    return e;
}

/* What is left to the CPU, if anything, is told with its reason: none of these kinds. What keeps
 * keys is where attention is. */
static void expect_there(const char *text, const char *const *kinds, const char *name) {
    const char *line = strstr(text, "on the CPU:");

    cr_assert(strstr(text, "device: emulated"), "%s: %s", name, text);
    for (; line && *kinds; kinds++) {
        char word[48];
        if (strncmp(*kinds, "keep", 4) == 0 && strstr(line, " attend")) continue;
        snprintf(word, sizeof word, " %s (", *kinds);
        cr_expect_null(strstr(line, word), "%s:%s in '%s'", name, word, line);
    }
}

/* The first chunk by one sequence, the others by a fork of it. */
static void forward(kt_engine *e, const row_model *m, int64_t chunk, float *logits) {
    const int64_t n = chunk < m->n ? chunk : m->n;
    kt_sequence *s, *fork;
    kt_err err = {KT_OK, ""};

    kt_engine_set_chunk(e, chunk);
    cr_assert_eq(kt_sequence_create(e, m->n, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, m->tokens, n, n, logits, NULL, NULL, NULL, &err), KT_OK,
                 "%s", err.message);
    cr_assert_eq(kt_sequence_fork(s, &fork, &err), KT_OK, "%s", err.message);
    if (n < m->n)
        cr_assert_eq(kt_engine_forward(e, fork, m->tokens + n, m->n - n, m->n - n,
                                       logits + n * m->vocab, NULL, NULL, NULL, &err),
                     KT_OK, "%s", err.message);
    kt_sequence_destroy(fork);
    kt_sequence_destroy(s);
}

static void check_model(const char *name, int64_t n, int64_t chunk, const char *share,
                        const char *const *kinds) {
    const row_model m = open_model(name, n);
    heard h = {.n = 0};
    const kt_log log = {.sink = hear, .sink_arg = &h, .level = KT_LOG_DEBUG};
    kt_engine *e = load(&m, &log, "emulated:lazy,races", share);
    float *got = calloc((size_t)(m.n * m.vocab), sizeof *got);
    double *want = malloc((size_t)(m.n * m.vocab) * sizeof *want), error;

    expect_there(h.text, kinds, name);
    forward(e, &m, chunk, got);
    for (int64_t i = 0; i < m.n * m.vocab; i++) want[i] = (double)m.logits[i];
    error = kt_relative_error(got, want, m.n * m.vocab);
    cr_expect_leq(error, m.bound, "%s in steps of %d: off by %g, bound %g", name, (int)chunk, error,
                  m.bound);
    kt_engine_destroy(e);
    kt_checkpoint_close(m.file);
    free(got), free(want);
}

static const char *const heads[] = {"rms", "rms_heads", "rope", "route", "bias", "keep", NULL};
static const char *const linear[] = {"rms", "rms_heads", "rope",  "route",   "sigmoid_gate",
                                     "dot", "conv",      "delta", "regroup", NULL};
static const char *const sparse[] = {"rms",  "layer_norm_rows", "rope", "route",
                                     "keep", "keep_index",      NULL};
static const char *const blocks[] = {"rms",  "rms_heads",  "rope",          "route",
                                     "keep", "keep_index", "attend_blocks", NULL};
static const char *const entries[] = {
    "rms",       "rms_heads",    "rope",           "route",    "streams",
    "hyper_mix", "hyper_join",   "hyper_end",      "compress", "keep_entry",
    "pack_rows", "pick_entries", "attend_entries", NULL};

static const struct {
    const char *name;
    int64_t n, chunk;
    const char *share;
    const char *const *kinds;
} golden[] = {
    {"qwen3_moe-b", TOKENS, 7, "0", heads},
    {"glm4_moe", TOKENS, TOKENS, "0", heads},
    {"qwen3_next", TOKENS, TOKENS, "0", linear},
    {"qwen3_next", TOKENS, 3, "0", linear},
    {"deepseek_v32", PICKED, PICKED, "0", sparse},
    {"glm_moe_dsa", PICKED, PICKED, "0", sparse}, /* two layers repeat the second's picks */
    {"minimax_m2", TOKENS, TOKENS, "0", sparse},
    {"minimax_m3", 30, 16, "0", blocks},
    {"deepseek_v4", 37, 22, "0", entries},
    {"deepseek_v4", 6, 6, "100%", entries},
};

ParameterizedTestParameters(device_rows, golden_models_have_all_kinds_there) {
    size_t *chosen = cr_malloc(sizeof *chosen * (sizeof golden / sizeof *golden)), n = 0;

    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++)
        if (kt_is_wanted(golden[i].name)) chosen[n++] = i;
    return cr_make_param_array(size_t, chosen, n);
}

ParameterizedTest(size_t *i, device_rows, golden_models_have_all_kinds_there, .timeout = 120) {
    check_model(golden[*i].name, golden[*i].n, golden[*i].chunk, golden[*i].share,
                golden[*i].kinds);
}

/* The most likely token of each row is the CPU's, and logits differ by what BF16 rounds:
 * activations of a product 2^-9 each, as often as four layers have products, well below 2 %. */
Test(device_rows, the_bundled_model_says_what_it_says_on_the_cpu) {
    static const char *const kinds[] = {"rms", "rms_heads", "rope", "route", "keep", NULL};
    static const int32_t tokens[TOKENS] = {5, 300, 17, 42, 511, 7, 90, 1000, 63, 250};
    float *logits[2];
    double *want, error;
    int64_t vocab = 0;

    for (int on_device = 0; on_device < 2; on_device++) {
        row_model m = {.n = TOKENS};
        heard h = {.n = 0};
        const kt_log log = {.sink = hear, .sink_arg = &h, .level = KT_LOG_DEBUG};
        kt_engine_info info;
        kt_sequence *s;
        kt_engine *e;
        kt_err err = {KT_OK, ""};
        snprintf(m.folder, sizeof m.folder, KT_SOURCE_DIR "/datasets/models/tiny-moe");
        e = load(&m, &log, on_device ? "emulated:lazy,races" : "cpu", on_device ? "0" : NULL);
        if (on_device) expect_there(h.text, kinds, "tiny-moe");
        kt_engine_describe(e, &info);
        vocab = info.vocab;
        logits[on_device] = calloc((size_t)(TOKENS * vocab), sizeof(float));
        cr_assert_eq(kt_sequence_create(e, TOKENS, &s, &err), KT_OK, "%s", err.message);
        cr_assert_eq(kt_engine_forward(e, s, tokens, TOKENS, TOKENS, logits[on_device], NULL, NULL,
                                       NULL, &err),
                     KT_OK, "%s", err.message);
        kt_sequence_destroy(s);
        kt_engine_destroy(e);
    }
    want = malloc((size_t)(TOKENS * vocab) * sizeof *want);
    for (int64_t i = 0; i < TOKENS * vocab; i++) want[i] = (double)logits[0][i];
    error = kt_relative_error(logits[1], want, TOKENS * vocab);
    cr_expect(error > 0 && error < 0.02, "off by %g", error);
    for (int t = 0; t < TOKENS; t++) {
        int64_t best[2] = {0, 0};
        for (int side = 0; side < 2; side++)
            for (int64_t i = 0; i < vocab; i++)
                if (logits[side][t * vocab + i] > logits[side][t * vocab + best[side]])
                    best[side] = i;
        cr_expect_eq(best[0], best[1], "row %d: %d, not %d", t, (int)best[1], (int)best[0]);
    }
    free(logits[0]), free(logits[1]), free(want);
}
