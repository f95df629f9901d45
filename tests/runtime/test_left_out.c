/* Steps without one side's experts, by which `kt bench --hybrid` measures each side alone: what is
 * left out is that side's sum and nothing else, in all the ways in which a step runs.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/exec/engine.h"

enum { TOKENS = 9, LAYER = 1 }; /* hidden states behind the first layer */
static const int32_t tokens[TOKENS] = {5, 17, 3, 42, 8, 29, 11, 2, 36};
static kt_err err;

static kt_engine *load(const char *device, const char *share, const char *prefill,
                       bool experts_only) {
    const kt_engine_options o = {.model_dir = KT_TEST_DATA "/golden/qwen3_moe-a",
                                 .table_path = "",
                                 .tokenizer_optional = true,
                                 .n_threads = 2,
                                 .max_context = 64,
                                 .device = device,
                                 .gpu_experts = share,
                                 .prefill_offload = prefill,
                                 .experts_only = experts_only};
    kt_engine *e;

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    return e;
}

/* Hidden states of all tokens behind the first layer, or (rows of one step) the last logits; owned
 * by the caller. */
static float *run(kt_engine *e, kt_left_out left, bool is_whole, int64_t *count) {
    kt_engine_info info;
    kt_sequence *s;
    float *hidden, *logits;
    int64_t row;

    kt_engine_describe(e, &info);
    row = TOKENS * info.hidden;
    hidden = calloc((size_t)((info.layers + 1) * row), sizeof *hidden);
    logits = calloc((size_t)info.vocab, sizeof *logits);
    kt_engine_set_chunk(e, is_whole ? TOKENS : 1);
    cr_assert_eq(kt_engine_leave_out(e, left, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_sequence_create(e, TOKENS, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, tokens, TOKENS, 1, logits, is_whole ? hidden : NULL, NULL,
                                   NULL, &err),
                 KT_OK, "%s", err.message);
    kt_sequence_destroy(s);
    *count = is_whole ? row : info.vocab;
    if (is_whole) memcpy(hidden, hidden + LAYER * row, (size_t)row * sizeof *hidden);
    free(is_whole ? logits : hidden);
    return is_whole ? hidden : logits;
}

static double distance(const float *a, const float *b, int64_t n) {
    double off = 0, all = 0;

    for (int64_t i = 0; i < n; i++) {
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        all += (double)b[i] * (double)b[i];
    }
    return sqrt(off / all);
}

/* The two sides' sums are what the whole has more than a layer without experts. */
static void check_sums(const char *share, const char *prefill, bool experts_only) {
    kt_engine *e = load("emulated:lazy,races", share, prefill, experts_only),
              *bare = load("emulated", "0", "off", experts_only);
    int64_t n;
    float *whole = run(e, KT_LEFT_NONE, true, &n), *no_cpu = run(e, KT_LEFT_CPU, true, &n),
          *no_device = run(e, KT_LEFT_DEVICE, true, &n), *none = run(bare, KT_LEFT_CPU, true, &n),
          *again = run(e, KT_LEFT_NONE, true, &n), *sum = calloc((size_t)n, sizeof *sum);
    const bool is_all_lent = strcmp(prefill, "off") != 0;

    for (int64_t i = 0; i < n; i++) sum[i] = no_cpu[i] + no_device[i] - none[i];
    cr_expect_lt(distance(sum, whole, n), 1e-5, "%s, %s, %d: off by %g", share, prefill,
                 experts_only, distance(sum, whole, n));
    cr_expect_gt(distance(no_device, whole, n), 1e-3);
    cr_expect_eq(distance(no_cpu, whole, n) < 1e-5, is_all_lent, "%s, %s", share, prefill);
    cr_expect_eq(distance(no_device, none, n) < 1e-5, is_all_lent, "%s, %s", share, prefill);
    cr_expect_arr_eq(again, whole, (size_t)n * sizeof *whole, "nothing is left out any more");
    free(whole), free(no_cpu), free(no_device), free(none), free(again), free(sum);
    kt_engine_destroy(e);
    kt_engine_destroy(bare);
}

Test(left_out, each_side_lacks_its_own_sum, .timeout = 120) {
    for (int only = 0; only < 2; only++) {
        check_sums("25%", "off", only);
        check_sums("50%", "2:100%", only);
    }
}

/* All experts on one side: without that side's there are none, without the other's all. */
Test(left_out, a_side_that_has_none_is_not_missed, .timeout = 120) {
    kt_engine *all = load("emulated", "100%", "off", false),
              *none = load("emulated", "0", "off", false);
    int64_t n;
    float *whole[2] = {run(all, KT_LEFT_NONE, true, &n), run(none, KT_LEFT_NONE, true, &n)},
          *rest[2] = {run(all, KT_LEFT_CPU, true, &n), run(none, KT_LEFT_DEVICE, true, &n)},
          *bare[2] = {run(all, KT_LEFT_DEVICE, true, &n), run(none, KT_LEFT_CPU, true, &n)};

    for (int i = 0; i < 2; i++)
        cr_expect_arr_eq(rest[i], whole[i], (size_t)n * sizeof(float), "side %d", i);
    cr_expect_lt(distance(bare[0], bare[1], n), 1e-5);
    cr_expect_gt(distance(bare[0], whole[0], n), 1e-3);
    for (int i = 0; i < 2; i++) free(whole[i]), free(rest[i]), free(bare[i]);
    kt_engine_destroy(all);
    kt_engine_destroy(none);
}

/* Steps of one row, put whole with letters, and led part by part. */
Test(left_out, whole_steps_leave_out_what_their_parts_do, .timeout = 120) {
    static const char *const ways[] = {"off", "mapped"};
    float *logits[2][3];
    int64_t n = 0;

    for (int w = 0; w < 2; w++) {
        kt_engine *e;
        setenv("KT_MAILBOX", ways[w], 1);
        e = load("emulated", "50%", "off", false);
        for (int left = 0; left < 3; left++) logits[w][left] = run(e, (kt_left_out)left, false, &n);
        kt_engine_destroy(e);
    }
    unsetenv("KT_MAILBOX");
    for (int left = 0; left < 3; left++) {
        cr_expect_arr_eq(logits[1][left], logits[0][left], (size_t)n * sizeof(float), "%d", left);
        cr_expect(left == 0 || distance(logits[0][left], logits[0][0], n) > 1e-3, "%d", left);
    }
    for (int left = 0; left < 3; left++) free(logits[0][left]), free(logits[1][left]);
}

Test(left_out, the_cpu_alone_leaves_nothing_out) {
    kt_engine *e = load(NULL, NULL, NULL, false);

    cr_expect_eq(kt_engine_leave_out(e, KT_LEFT_CPU, &err), KT_E_UNSUPPORTED);
    cr_expect_not_null(strstr(err.message, "no device computes beside the CPU"), "%s", err.message);
    kt_engine_destroy(e);
}
