/* A shared expert that runs as one of the routed ones gives the bits that it gives alone: the same
 * model twice, the second time with channels of zeros in its shared expert, which is then of
 * another size and runs by itself. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "dispatch/model/checkpoint.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/joined.h"
#include "tests/support/guard.h"
#include "tests/support/temp.h"

enum { HIDDEN = 96, ROUTED = 64, SHARED = 96, TOKENS = 23, MAX_TENSORS = 1024 };

/* Where the golden Qwen3-Next lies; skips without it. */
static void find_golden(char *folder, size_t bytes) {
    if (!kt_shared_path("data/golden/qwen3_next/config.json", folder, bytes))
        cr_skip_test("golden/qwen3_next: the shared data is absent");
    *strrchr(folder, '/') = '\0';
}

/* The config with another size of the shared expert. */
static void write_config(const char *golden, const char *to, int size) {
    static const char key[] = "\"shared_expert_intermediate_size\": ";
    char path[PATH_MAX], *text, *at, out[8192];
    size_t bytes;
    int n;

    snprintf(path, sizeof path, "%s/config.json", golden);
    cr_assert_eq(kt_file_read(path, 1 << 20, &text, &bytes, NULL), KT_OK);
    at = strstr(text, key);
    cr_assert(at && bytes < sizeof out - 16);
    at += strlen(key);
    n = snprintf(out, sizeof out, "%.*s%d%s", (int)(at - text), text, size,
                 at + strspn(at, "0123456789"));
    kt_temp_write(to, "config.json", out, (size_t)n);
    free(text);
}

/* Gate and up [SHARED, HIDDEN] or down [HIDDEN, SHARED] of which ROUTED channels are taken; more,
 * up to `size`, are zeros. */
static uint16_t *cut(const kt_tensor *t, bool is_down, int size) {
    const int64_t rows = is_down ? HIDDEN : size, columns = is_down ? size : HIDDEN;
    const uint16_t *from = (const uint16_t *)(const void *)t->data;
    uint16_t *to = calloc((size_t)(rows * columns), sizeof *to);

    cr_assert(to && t->dtype == KT_DTYPE_BF16 && t->shape[is_down] == SHARED);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < columns; i++)
            if ((is_down ? i : r) < ROUTED) to[r * columns + i] = from[r * t->shape[1] + i];
    return to;
}

static void write_model(const char *golden, const char *to, int size) {
    kt_tensor_out out[MAX_TENSORS];
    uint16_t *made[MAX_TENSORS] = {NULL};
    char path[PATH_MAX + 32];
    kt_checkpoint *c;
    kt_err err = {KT_OK, ""};
    size_t n;

    cr_assert_eq(kt_checkpoint_open(golden, &c, &err), KT_OK, "%s", err.message);
    n = kt_checkpoint_count(c);
    cr_assert_leq(n, (size_t)MAX_TENSORS);
    for (size_t i = 0; i < n; i++) {
        const kt_tensor *t = kt_checkpoint_at(c, i);
        const bool is_down = strstr(t->name, "down_proj") != NULL;
        out[i] =
            (kt_tensor_out){.name = t->name, .dtype = t->dtype, .rank = t->rank, .data = t->data};
        memcpy(out[i].shape, t->shape, sizeof out[i].shape);
        if (!strstr(t->name, "mlp.shared_expert.")) continue;
        made[i] = cut(t, is_down, size);
        out[i].data = made[i];
        out[i].shape[is_down] = size;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    cr_assert_eq(kt_safetensors_write(path, out, n, &err), KT_OK, "%s", err.message);
    for (size_t i = 0; i < n; i++) free(made[i]);
    kt_checkpoint_close(c);
    write_config(golden, to, size);
}

/* Logits of all tokens in chunks. */
static float *forward(const char *folder, int64_t chunk, int threads, kt_profile *profile,
                      int64_t *vocab) {
    const kt_engine_options o = {.model_dir = folder,
                                 .table_path = "",
                                 .tokenizer_optional = true,
                                 .deterministic = true,
                                 .max_context = 64,
                                 .n_threads = threads};
    int32_t tokens[TOKENS];
    kt_engine_info info;
    kt_err err = {KT_OK, ""};
    kt_sequence *s;
    kt_engine *e;
    float *logits;

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    kt_engine_describe(e, &info);
    *vocab = info.vocab;
    for (int i = 0; i < TOKENS; i++) tokens[i] = (int32_t)((i * 37 + 5) % info.vocab);
    logits = calloc((size_t)(TOKENS * info.vocab), sizeof *logits);
    kt_engine_set_chunk(e, chunk);
    kt_engine_profile(e, true);
    cr_assert_eq(kt_sequence_create(e, TOKENS, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, tokens, TOKENS, TOKENS, logits, NULL, NULL, NULL, &err),
                 KT_OK, "%s", err.message);
    kt_engine_profile_read(e, profile);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
    return logits;
}

Test(joined, a_shared_expert_gives_the_bits_that_it_gives_alone, .timeout = 120) {
    static const struct {
        int64_t chunk;
        int threads;
    } cases[] = {{1, 1}, {3, 2}, {64, 2}};
    char golden[PATH_MAX], with[PATH_MAX], alone[PATH_MAX];

    find_golden(golden, sizeof golden);
    kt_temp_make(with, sizeof with);
    kt_temp_make(alone, sizeof alone);
    write_model(golden, with, ROUTED);
    write_model(golden, alone, SHARED);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_profile p, q;
        int64_t vocab;
        float *a = forward(with, cases[i].chunk, cases[i].threads, &p, &vocab);
        float *b = forward(alone, cases[i].chunk, cases[i].threads, &q, &vocab);
        cr_expect_arr_eq(a, b, sizeof *a * (size_t)(TOKENS * vocab), "chunks of %lld",
                         (long long)cases[i].chunk);
        /* What is told of routing is about the routed experts alone. */
        cr_expect_eq(p.experts_hit, q.experts_hit);
        cr_expect_eq(p.expert_rows, q.expert_rows);
        cr_expect_eq(p.busiest_rows, q.busiest_rows);
        free(a);
        free(b);
    }
    kt_temp_remove(with);
    kt_temp_remove(alone);
}

/* ---- which experts join ---- */

typedef struct fixture {
    kt_variant variant[2];
    kt_problem_plan problems[2];
    int of_run[2][KT_WEIGHT_PARTS];
    kt_node nodes[3];
    kt_graph graph;
    kt_model_plan plan;
} fixture;

/* A route, four routed experts and a shared one that may join them. */
static void fixture_init(fixture *f) {
    memset(f, 0, sizeof *f);
    for (int i = 0; i < 2; i++) {
        f->variant[i].layout = "p64";
        f->problems[i].problem = (kt_problem){.op = KT_OP_MOE_FFN,
                                              .weights = KT_W_BF16,
                                              .acts = KT_A_BF16,
                                              .n = 64,
                                              .k = 96,
                                              .experts = i ? 1 : 4,
                                              .topk = i ? 1 : 2};
        f->problems[i].choices.choice[0].variant = &f->variant[i];
        f->problems[i].bytes = 4096;
        f->of_run[i][0] = i;
        f->nodes[1 + i] = (kt_node){.kind = KT_NODE_EXPERTS,
                                    .in = {.value = 1, .width = 96},
                                    .out = {.width = 96},
                                    .weight = i,
                                    .weight2 = -1,
                                    .weight3 = -1,
                                    .weight4 = -1,
                                    .is_routed = i == 0};
    }
    f->nodes[0].kind = KT_NODE_ROUTE;
    f->graph.nodes = f->nodes;
    f->graph.n_nodes = 3;
    f->plan.graph = &f->graph;
    f->plan.problems = f->problems;
    f->plan.n_problems = 2;
    f->plan.of_run = f->of_run;
}

static bool joins(const fixture *f) {
    const kt_node *shared = kt_joined_shared(&f->plan, &f->nodes[1]);

    cr_expect_eq(kt_joined_routed(&f->plan, &f->nodes[2]), shared ? &f->nodes[1] : NULL);
    cr_expect_eq(kt_joined_problem(&f->plan, &f->nodes[1]).experts, shared ? 5 : 4);
    cr_expect_eq(kt_joined_problem(&f->plan, &f->nodes[1]).topk, shared ? 3 : 2);
    return shared != NULL;
}

Test(joined, only_experts_of_one_form_over_one_value_join) {
    fixture f;

    fixture_init(&f);
    cr_expect(joins(&f));
    cr_expect_eq(kt_joined_experts_of(&f.graph, &f.nodes[0]), &f.nodes[1]);
    f.problems[1].problem.n = 96;
    cr_expect_not(joins(&f), "another size");
    fixture_init(&f);
    f.problems[1].problem.weights = KT_W_INT8_CHANNEL;
    cr_expect_not(joins(&f), "another format");
    fixture_init(&f);
    f.problems[1].problem.down = KT_W_Q6_K;
    cr_expect_not(joins(&f), "another format of down");
    fixture_init(&f);
    f.problems[1].problem.acts = KT_A_INT8_G32;
    cr_expect_not(joins(&f), "another encoding");
    fixture_init(&f);
    f.variant[1].layout = "other";
    cr_expect_not(joins(&f), "another layout");
    fixture_init(&f);
    f.problems[1].down_choices = &f.problems[1].choices;
    cr_expect_not(joins(&f), "halves of their own");
    fixture_init(&f);
    f.nodes[2].in.at = 32;
    cr_expect_not(joins(&f), "another input");
    fixture_init(&f);
    f.nodes[2].layer = 1;
    cr_expect_not(joins(&f), "another layer");
    fixture_init(&f);
    f.nodes[1].is_routed = 0;
    cr_expect_not(joins(&f), "nothing is routed");
    fixture_init(&f);
    f.graph.n_nodes = 2;
    cr_expect_null(kt_joined_shared(&f.plan, &f.nodes[1]), "nothing follows");
}
