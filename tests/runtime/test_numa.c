/* Whole models whose experts are cut over memory nodes. The nodes are made up (groups of threads, or a topology
 * of HWLOC_SYNTHETIC); what is theirs is which slices and which threads go together.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/exec/engine.h"
#include "runtime/model/node_plan.h"
#include "tests/support/qwen3_ref.h"
#include "tests/support/random_model.h"
#include "tests/support/temp.h"

#define TINY KT_SOURCE_DIR "/datasets/models/tiny-moe"
#define TOKENS 24

/* --- the plan --- */

static kt_node_plan plan_of(int numa, const int *nodes, int n_known, int n_threads) {
    kt_node_plan p;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_node_plan_make(numa, nodes, n_known, n_threads, &p, &err), KT_OK, "%s",
                 err.message);
    return p;
}

Test(numa, auto_follows_the_cores) {
    static const int two[] = {0, 0, 0, 3, 3}, one[] = {2, 2}, mixed[] = {0, 1, 0, 1};
    char line[256];
    kt_node_plan p = plan_of(KT_NUMA_AUTO, two, 5, 5);

    cr_expect(p.n == 2 && p.threads[0] == 3 && p.threads[1] == 2 && p.memory[0] == 0 &&
              p.memory[1] == 3);
    cr_expect_str_eq(kt_node_plan_format(&p, line, sizeof line),
                     "experts cut over memory nodes: 3 threads on node 0, 2 on node 3");
    p = plan_of(KT_NUMA_AUTO, two, 5, 2); /* all on one node */
    cr_expect(p.n == 1 && p.threads[0] == 2 && !*p.note);
    p = plan_of(KT_NUMA_AUTO, one, 2, 2);
    cr_expect(p.n == 1 && p.memory[0] == -1 && !*kt_node_plan_format(&p, line, sizeof line));
    p = plan_of(KT_NUMA_AUTO, mixed, 4, 4);
    cr_expect(p.n == 1 && strstr(p.note, "do not lie together"), "%s", p.note);
    p = plan_of(KT_NUMA_AUTO, two, 5, 8);
    cr_expect(p.n == 1 && p.threads[0] == 8 && strstr(p.note, "more threads than cores"));
    p = plan_of(KT_NUMA_OFF, two, 5, 5);
    cr_expect(p.n == 1 && p.threads[0] == 5 && !*p.note);
    p = plan_of(KT_NUMA_AUTO, NULL, 0, 4); /* nothing is known of the cores */
    cr_expect(p.n == 1 && p.threads[0] == 4 && !*p.note);
}

Test(numa, groups_on_demand) {
    static const int two[] = {0, 0, 0, 3, 3};
    kt_node_plan p = plan_of(3, two, 5, 8);
    kt_err err = {KT_OK, ""};

    cr_expect(p.n == 3 && p.threads[0] == 3 && p.threads[1] == 3 && p.threads[2] == 2);
    cr_expect(p.memory[0] == 0 && p.memory[1] == 3 && p.memory[2] == -1);
    cr_expect_eq(kt_node_plan_make(3, two, 5, 2, &p, &err), KT_E_INVALID);
    cr_expect(strstr(err.message, "3 memory nodes with 2 threads"), "%s", err.message);
    cr_expect_eq(kt_node_plan_make(17, two, 5, 64, &p, &err), KT_E_INVALID);
    cr_expect_eq(kt_node_plan_make(-1, two, 5, 64, &p, &err), KT_E_INVALID);
}

/* --- whole models --- */

static kt_engine *load(const char *folder, kt_quant weights, int numa, int n_threads,
                       bool deterministic) {
    kt_engine_options o = {.model_dir = folder,
                           .weights = weights,
                           .table_path = "",
                           .n_threads = n_threads,
                           .numa = numa,
                           .deterministic = deterministic,
                           .max_context = 64,
                           .tokenizer_optional = true};
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    return e;
}

static float *forward(kt_engine *e, const int32_t *tokens, int64_t chunk) {
    kt_engine_info info;
    kt_sequence *s;
    float *logits;
    kt_err err = {KT_OK, ""};

    kt_engine_describe(e, &info);
    logits = calloc((size_t)(TOKENS * info.vocab), sizeof *logits);
    kt_engine_set_chunk(e, chunk);
    cr_assert_eq(kt_sequence_create(e, TOKENS, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, tokens, TOKENS, TOKENS, logits, NULL, NULL, NULL, &err),
                 KT_OK, "%s", err.message);
    kt_sequence_destroy(s);
    return logits;
}

/* Cut in n: as near to the weights in double as whole experts must be (1.5 times what the reference loses when
 * it rounds inputs as engines do; tests/runtime/test_golden.c), and, of a deterministic engine, the same bits in
 * any chunks, on any number of threads, and twice. */
static void check(const char *folder, kt_quant weights, int n) {
    kt_err err = {KT_OK, ""};
    kt_ref_model *m = kt_ref_load(folder, weights, &err);
    kt_engine *e = load(folder, weights, n, n, true),
              *more = load(folder, weights, n, 2 * n + 1, true);
    kt_engine_info info;
    int32_t tokens[TOKENS];
    float *got, *again;
    int64_t decided;
    double error, rounded;
    size_t bytes;

    cr_assert(m, "%s", err.message);
    kt_engine_describe(e, &info);
    cr_assert_eq(info.n_nodes, n);
    bytes = sizeof *got * (size_t)(TOKENS * info.vocab);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (int32_t)((97 * i * i + 31 * i + 5) % info.vocab);
    got = forward(e, tokens, TOKENS);
    error = kt_ref_compare(m, tokens, TOKENS,
                           weights == KT_QUANT_NATIVE ? KT_REF_BF16 : KT_REF_INT8_POWERS, got,
                           &decided, &rounded);
    cr_expect(decided > TOKENS / 4, "only %lld positions are decided", (long long)decided);
    cr_expect_leq(error, 1.5 * rounded, "weights %d over %d nodes: off by %g, bound %g",
                  (int)weights, n, error, 1.5 * rounded);
    for (int i = 0; i < 3; i++) {
        again = forward(i == 2 ? more : e, tokens, i == 1 ? 1 : i == 2 ? 5 : TOKENS);
        cr_expect_eq(memcmp(again, got, bytes), 0, "weights %d over %d nodes: %s differ",
                     (int)weights, n,
                     i == 0   ? "two runs"
                     : i == 1 ? "single tokens"
                              : "threads");
        free(again);
    }
    free(got);
    kt_engine_destroy(e);
    kt_engine_destroy(more);
    kt_ref_free(m);
}

Test(numa, the_bundled_model_over_two_nodes, .timeout = 120) {
    check(TINY, KT_QUANT_NATIVE, 2);
    check(TINY, KT_QUANT_INT8, 2);
    check(TINY, KT_QUANT_INT4, 2);
}

/* Three blocks of channels over two nodes are uneven; a dense layer is cut like an expert. */
Test(numa, uneven_slices_and_dense_layers, .timeout = 120) {
    static const kt_model_shape shape = {.layers = 3,
                                         .hidden = 96,
                                         .vocab = 320,
                                         .heads = 4,
                                         .kv_heads = 2,
                                         .head_dim = 32,
                                         .experts = 8,
                                         .topk = 2,
                                         .expert_size = 192,
                                         .dense_size = 256,
                                         .dense_layer = 1,
                                         .is_normalised = 1,
                                         .dtype = KT_DTYPE_BF16};
    char folder[PATH_MAX];

    kt_temp_make(folder, sizeof folder);
    kt_random_model(&shape, 7, folder);
    check(folder, KT_QUANT_NATIVE, 2);
    check(folder, KT_QUANT_INT8, 3);
    kt_temp_remove(folder);
}

/* Experts of a synthetic model are few, packed once and copied: slice by slice. Cut or whole, sums differ in
 * their last bits, and the final norm's INT8 inputs by a step here and there: far less than one in all. */
Test(numa, copied_experts, .timeout = 180) {
    kt_engine_options o = {.synthetic = "qwen3-30b",
                           .synthetic_layers = 1,
                           .weights = KT_QUANT_INT4,
                           .table_path = "",
                           .n_threads = 2,
                           .numa = 2,
                           .max_context = 64};
    kt_engine *e[2];
    kt_engine_info info;
    int32_t tokens[TOKENS];
    float *logits[2];
    double *want, error;
    kt_err err = {KT_OK, ""};

    for (int i = 0; i < 2; i++) {
        cr_assert_eq(kt_engine_create(&o, &e[i], &err), KT_OK, "%s", err.message);
        kt_engine_describe(e[i], &info);
        for (int t = 0; t < TOKENS; t++) tokens[t] = (int32_t)(7 * t * t % info.vocab);
        logits[i] = forward(e[i], tokens, TOKENS);
        kt_engine_destroy(e[i]);
        o.numa = KT_NUMA_OFF;
    }
    want = malloc(sizeof *want * (size_t)(TOKENS * info.vocab));
    for (int64_t i = 0; i < TOKENS * info.vocab; i++) want[i] = logits[1][i];
    error = kt_relative_error(logits[0], want, TOKENS * info.vocab);
    cr_expect_leq(error, 1e-4);
    free(want);
    free(logits[0]);
    free(logits[1]);
}

/* Too small to be cut: left whole where nobody insists. */
Test(numa, experts_of_one_block, .timeout = 180) {
    static const kt_model_shape shape = {.layers = 1,
                                         .hidden = 64,
                                         .vocab = 64,
                                         .heads = 2,
                                         .kv_heads = 1,
                                         .head_dim = 32,
                                         .experts = 4,
                                         .topk = 2,
                                         .expert_size = 64,
                                         .dense_size = 64,
                                         .dense_layer = -1,
                                         .dtype = KT_DTYPE_BF16};
    kt_engine_options o = {.table_path = "", .n_threads = 2, .numa = 2, .tokenizer_optional = true};
    char folder[PATH_MAX];
    kt_engine *e;
    kt_engine_info info;
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    kt_random_model(&shape, 7, folder);
    o.model_dir = folder;
    cr_expect_eq(kt_engine_create(&o, &e, &err), KT_E_UNSUPPORTED);
    cr_expect(strstr(err.message, "64 intermediate channels"), "%s", err.message);
    setenv("HWLOC_SYNTHETIC", "pack:2 [numa] core:1 pu:1", 1);
    o.numa = KT_NUMA_AUTO;
    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    kt_engine_describe(e, &info);
    cr_expect(info.n_nodes == 1 && strstr(info.node_line, "not split over memory nodes: 64"), "%s",
              info.node_line);
    kt_engine_destroy(e);
    kt_temp_remove(folder);
}

/* A machine of two nodes, as the program finds it. */
Test(numa, a_described_machine, .timeout = 180) {
    kt_engine *e;
    kt_engine_info info;

    setenv("HWLOC_SYNTHETIC", "pack:2 [numa] core:1 pu:1", 1);
    e = load(TINY, KT_QUANT_INT8, KT_NUMA_AUTO, 2, false);
    kt_engine_describe(e, &info);
    cr_expect_eq(info.n_nodes, 2);
    cr_expect_str_eq(info.node_line,
                     "experts cut over memory nodes: 1 thread on node 0, 1 on node 1");
    kt_engine_destroy(e);
    e = load(TINY, KT_QUANT_INT8, KT_NUMA_OFF, 2, false);
    kt_engine_describe(e, &info);
    cr_expect(info.n_nodes == 1 && !*info.node_line, "%s", info.node_line);
    kt_engine_destroy(e);
    /* One thread would find one node there: a deterministic engine asks to be told. */
    e = load(TINY, KT_QUANT_INT8, KT_NUMA_AUTO, 2, true);
    kt_engine_describe(e, &info);
    cr_expect(info.n_nodes == 1 && strstr(info.node_line, "--deterministic"), "%s", info.node_line);
    kt_engine_destroy(e);
}
