/* Batches: whatever rows stand beside it, wherever its pages lie, whether computed, reused, forked
 * or computed again, a sequence's logits are the same bits. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/exec/engine_impl.h"
#include "tests/support/batches.h"
#include "tests/support/temp.h"

/* ---- every family, every format of the cache ---- */

typedef struct model_case {
    char name[40];
    kt_weight_format kv;
} model_case;

static model_case cases[] = {
    {"tiny-moe", KT_W_BF16},
    {"tiny-moe", KT_W_FP8_CHANNEL},
    {"tiny-moe", KT_W_INT8_CHANNEL},
    {"golden/qwen3_moe-a", KT_W_BF16},
    {"golden/qwen3_moe-b", KT_W_INT8_CHANNEL},
    {"golden/qwen3_moe-c", KT_W_BF16},
    {"golden/qwen3_moe-fp8", KT_W_BF16},
    {"golden/minimax_m2", KT_W_BF16},
    {"golden/minimax_m2-fp8", KT_W_FP8_CHANNEL},
    {"golden/glm4_moe", KT_W_BF16},
    {"golden/glm4_moe-fp8", KT_W_INT8_CHANNEL},
    {"golden/deepseek_v3", KT_W_BF16},
    {"golden/deepseek_v3", KT_W_FP8_CHANNEL},
    {"golden/deepseek_v3-fp8", KT_W_INT8_CHANNEL},
    {"golden/deepseek_v32", KT_W_BF16},
    {"golden/deepseek_v32", KT_W_FP8_CHANNEL},
    {"golden/kimi_k2-int4", KT_W_BF16},
    {"golden/qwen3_next", KT_W_BF16},
    {"golden/deepseek_v4", KT_W_BF16},
    {"golden/deepseek_v4", KT_W_INT8_CHANNEL},
    {"golden/qwen3_next", KT_W_INT8_CHANNEL},
    {"golden/gpt_oss", KT_W_INT8_CHANNEL},
    {"golden/gpt_oss-mxfp4", KT_W_BF16},
    {"golden/qwen3_5_moe", KT_W_BF16},
    {"golden/glm_moe_dsa", KT_W_BF16},
    {"golden/glm_moe_dsa", KT_W_INT8_CHANNEL},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* One step: rows of each text, those of the first one first; every row but each third has logits.
 */
static void run_together(kt_batches *b, kt_sequence *const s[KT_TEXTS],
                         const int64_t rows[KT_TEXTS], int step) {
    int32_t token[KT_BATCH_ROWS], out_row[KT_BATCH_ROWS];
    kt_span spans[KT_TEXTS];
    kt_batch batch = {.token = token, .spans = spans, .out_row = out_row};
    float *logits = malloc((size_t)(KT_BATCH_ROWS * b->vocab) * sizeof *logits);
    int64_t at[KT_BATCH_ROWS];
    int text[KT_BATCH_ROWS];
    char where[80];
    kt_err err = {KT_OK, ""};

    for (int t = 0; t < KT_TEXTS; t++) {
        if (!rows[t]) continue;
        spans[batch.n_spans++] = (kt_span){s[t], batch.rows, rows[t], false};
        for (int64_t r = 0; r < rows[t]; r++, batch.rows++) {
            token[batch.rows] = b->text[t][kt_sequence_length(s[t]) + r];
            text[batch.rows] = t;
            at[batch.rows] = kt_sequence_length(s[t]) + r;
            if ((batch.rows + step) % 3) out_row[batch.n_out++] = (int32_t)batch.rows;
        }
    }
    cr_assert_eq(kt_engine_step(b->e, &batch, logits, NULL, &err), KT_OK, "%s", err.message);
    for (int64_t i = 0; i < batch.n_out; i++) {
        snprintf(where, sizeof where, "step %d, row %d of %d", step, out_row[i], (int)batch.rows);
        kt_batches_expect(b, logits + i * b->vocab, text[out_row[i]], at[out_row[i]], where);
    }
    free(logits);
}

/* Prompts in chunks of unequal size beside rows that are decoded, then all decoded together: few
 * rows and many, pages that fill up at different times. */
static void check_together(kt_batches *b) {
    static const int64_t steps[][KT_TEXTS] = {{100, 7, 0}, {1, 57, 1}, {27, 1, 70}, {1, 1, 1},
                                              {1, 1, 1},   {1, 60, 0}, {2, 1, 1},   {1, 0, 120},
                                              {60, 1, 1},  {1, 2, 1}};
    kt_sequence *s[KT_TEXTS];

    for (int t = 0; t < KT_TEXTS; t++) s[t] = kt_batches_sequence(b, t ? KT_TEXT_TOKENS : 0);
    cr_assert_eq(kt_sequence_reserve(s[0], KT_TEXT_TOKENS, NULL), KT_OK);
    for (int i = 0; i < (int)(sizeof steps / sizeof *steps); i++) run_together(b, s, steps[i], i);
    for (int t = 0; t < KT_TEXTS; t++) kt_sequence_destroy(s[t]);
    kt_engine_drop_cache(b->e);
}

/* What one sequence has computed another takes over, also while the first one is there. */
static void check_reuse(kt_batches *b) {
    kt_sequence *first = kt_batches_sequence(b, KT_TEXT_TOKENS), *s[3];
    int32_t other[KT_TEXT_TOKENS];

    kt_batches_prefill(b, first, 0, 180); /* pages of 64 and 128 tokens, states at the latter */
    for (int i = 0; i < 2; i++) {
        s[i] = kt_batches_sequence(b, i ? 10 : 0);
        cr_assert_eq(kt_sequence_reuse(s[i], b->text[0], 180), 128);
        cr_assert_eq(kt_sequence_reserve(s[i], KT_TEXT_TOKENS, NULL), KT_OK);
        kt_batches_continue(b, s[i], 0, i ? 72 : 1);
        if (i == 0) kt_sequence_destroy(first);
    }
    kt_batches_continue(b, s[0], 0, 71);
    s[2] = kt_batches_sequence(b, 0);
    cr_expect_eq(kt_sequence_reuse(s[2], b->text[0], 200), b->e->state_floats ? 128 : 192,
                 "no state was kept at 192");
    kt_sequence_destroy(s[2]);
    memcpy(other, b->text[0], sizeof other);
    other[127]++; /* differs at the end of the second page */
    s[2] = kt_batches_sequence(b, 0);
    cr_expect_eq(kt_sequence_reuse(s[2], b->text[0], 128), b->e->state_floats ? 0 : 64,
                 "a token is left to compute");
    cr_expect_eq(kt_sequence_truncate(s[2], 0), 0);
    cr_expect_eq(kt_sequence_reuse(s[2], other, 180), b->e->state_floats ? 0 : 64);
    for (int i = 0; i < 3; i++) kt_sequence_destroy(s[i]);
    kt_engine_drop_cache(b->e);
    s[0] = kt_batches_sequence(b, 0);
    cr_expect_eq(kt_sequence_reuse(s[0], b->text[0], 180), 0, "the cache was dropped");
    kt_sequence_destroy(s[0]);
}

/* A fork and its origin go on side by side; each is preempted and computed again. */
static void check_fork(kt_batches *b) {
    kt_sequence *s = kt_batches_sequence(b, KT_TEXT_TOKENS), *f;
    kt_err err = {KT_OK, ""};

    kt_batches_continue(b, s, 1, 100);
    cr_assert_eq(kt_sequence_fork(s, &f, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_sequence_length(f), 100);
    kt_batches_continue(b, f, 1, 29);
    kt_batches_continue(b, s, 1, 1);
    kt_batches_continue(b, s, 1, 60);
    kt_batches_continue(b, f, 1, 1);
    kt_sequence_destroy(s);
    kt_batches_continue(b, f, 1, 70);
    kt_sequence_destroy(f);
    kt_engine_drop_cache(b->e);
    s = kt_batches_sequence(b, KT_TEXT_TOKENS);
    kt_batches_continue(b, s, 1, 100);
    kt_batches_continue(b, s, 1, 100);
    kt_sequence_destroy(s);
    kt_engine_drop_cache(b->e);
}

/* Going back into pages that others, or the cache, have leaves those as they are. */
static void check_truncate(kt_batches *b) {
    kt_sequence *s = kt_batches_sequence(b, KT_TEXT_TOKENS), *f;
    const bool has_states = b->e->state_floats > 0;

    kt_batches_prefill(b, s, 2, 190);
    cr_assert_eq(kt_sequence_fork(s, &f, NULL), KT_OK);
    cr_expect_eq(kt_sequence_truncate(s, 150), has_states ? 128 : 150);
    kt_batches_continue(b, s, 2, 2);
    cr_expect_eq(kt_sequence_truncate(s, 100), has_states ? 0 : 100);
    if (has_states) kt_batches_continue(b, s, 2, 100);
    kt_batches_continue(b, s, 2, 95);
    kt_batches_continue(b, f, 2, 10);
    cr_expect_eq(kt_sequence_truncate(f, 0), 0);
    kt_batches_prefill(b, f, 2, 130);
    kt_sequence_destroy(s);
    kt_sequence_destroy(f);
    kt_engine_drop_cache(b->e);
}

/* A step of s from text 0: rows of it, and behind `right` of them as many guesses that are wrong.
 * The logits of the right rows and of the last token before the wrong ones are as ever. */
static void guess(kt_batches *b, kt_sequence *s, int64_t right, int64_t wrong) {
    const int64_t at = kt_sequence_length(s), rows = right + wrong;
    int32_t token[KT_BATCH_ROWS], out_row[KT_BATCH_ROWS];
    const kt_span span = {s, 0, rows, false};
    const kt_batch batch = {rows, token, 1, &span, right, out_row};
    float *logits = malloc((size_t)(right * b->vocab) * sizeof *logits);
    kt_err err = {KT_OK, ""};

    for (int64_t i = 0; i < rows; i++)
        token[i] = i < right ? b->text[0][at + i] : (b->text[0][at + i] + 1) % (int32_t)b->vocab;
    for (int32_t i = 0; i < right; i++) out_row[i] = i;
    cr_assert_eq(kt_sequence_guess(s, rows - 1, 1), rows - 1);
    cr_assert_eq(kt_engine_step(b->e, &batch, logits, NULL, &err), KT_OK, "%s", err.message);
    for (int64_t i = 0; i < right; i++)
        kt_batches_expect(b, logits + i * b->vocab, 0, at + i, "a step of guesses");
    free(logits);
}

/* Guesses, right and wrong ones, also where they fill a page: what is taken back leaves no trace in
 * pages, states, the cache or a fork. */
static void check_guesses(kt_batches *b) {
    kt_sequence *s = kt_batches_sequence(b, KT_TEXT_TOKENS), *f, *o;
    const bool has_states = b->e->state_floats > 0;
    int32_t wrong[KT_TEXT_TOKENS];

    memcpy(wrong, b->text[0], sizeof wrong);
    for (int i = 63; i < KT_TEXT_TOKENS; i++) wrong[i] = (wrong[i] + 1) % (int32_t)b->vocab;
    kt_batches_prefill(b, s, 0, 60);
    guess(b, s, 3, 9); /* the page is full with the first wrong one */
    o = kt_batches_sequence(b, 0);
    cr_expect_eq(kt_sequence_reuse(o, wrong, 180), 0, "the cache knows what was only guessed");
    cr_assert_eq(kt_sequence_fork(s, &f, NULL), KT_OK);
    cr_expect_eq(kt_sequence_truncate(s, 63), has_states ? 60 : 63);
    kt_batches_continue(b, s, 0, 125 - kt_sequence_length(s));
    cr_expect_eq(kt_sequence_truncate(f, 63), has_states ? 0 : 63);
    kt_batches_continue(b, f, 0, 70);
    kt_sequence_destroy(f);
    cr_expect_eq(kt_sequence_reuse(o, b->text[0], 100), has_states ? 0 : 64);
    kt_sequence_destroy(o);
    guess(b, s, 8, 0); /* all right: nothing is taken back, and the next step says so */
    kt_batches_continue(b, s, 0, 9);
    guess(b, s, 1, 4); /* all wrong */
    cr_expect_eq(kt_sequence_truncate(s, 143), has_states ? 142 : 143);
    kt_batches_continue(b, s, 0, 3);
    kt_sequence_destroy(s);
    o = kt_batches_sequence(b, 0);
    cr_expect_eq(kt_sequence_reuse(o, b->text[0], 180), has_states ? 0 : 128);
    kt_sequence_destroy(o);
    kt_engine_drop_cache(b->e);
}

/* An answer of text 0 up to `end`, token by token. */
static void answer(kt_batches *b, kt_sequence *s, int64_t end) {
    while (kt_sequence_length(s) < end) {
        guess(b, s, 1, 0);
        kt_sequence_keep_recent(s);
    }
}

/* Who begins as `text` with the cache has: so many of its 200 tokens, and then the right bits. */
static void expect_known(kt_batches *b, const int32_t *text, int64_t tokens) {
    kt_sequence *s = kt_batches_sequence(b, 0);

    cr_expect_eq(kt_sequence_reuse(s, text, 200), tokens, "%lld tokens are known, expected %lld",
                 (long long)kt_sequence_length(s), (long long)tokens);
    cr_assert_eq(kt_sequence_reserve(s, KT_TEXT_TOKENS, NULL), KT_OK);
    if (text == b->text[0]) kt_batches_continue(b, s, 0, 1);
    kt_sequence_destroy(s);
}

/* The state at an answer's last page end is kept, and no other of it; that of the prompt stays. */
static void check_recent(kt_batches *b) {
    kt_sequence *s = kt_batches_sequence(b, KT_TEXT_TOKENS);
    const bool has_states = b->e->state_floats > 0;
    int32_t other[KT_TEXT_TOKENS];
    kt_kv_usage u;

    memcpy(other, b->text[0], sizeof other);
    other[150] = (other[150] + 1) % (int32_t)b->vocab;
    kt_batches_prefill(b, s, 0, 70); /* the prompt, with a state at 64 */
    answer(b, s, 130);
    expect_known(b, b->text[0], 128);
    expect_known(b, other, 128);
    answer(b, s, 195);
    expect_known(b, b->text[0], 192);
    expect_known(b, other, has_states ? 64 : 128);
    kt_engine_kv_usage(b->e, &u);
    cr_expect_eq(u.slots_cached, has_states ? 2 : 0);
    cr_expect_eq(kt_sequence_truncate(s, 70), has_states ? 64 : 70);
    answer(b, s, 130); /* another one, whose state takes no other's place */
    expect_known(b, other, 128);
    expect_known(b, b->text[0], 192);
    kt_sequence_destroy(s);
    kt_engine_drop_cache(b->e);
}

static void expect_all_free(const kt_batches *b) {
    kt_kv_usage u;

    kt_engine_kv_usage(b->e, &u);
    cr_expect_eq(u.pages_free, u.pages, "%d of %d pages are free", (int)u.pages_free, (int)u.pages);
    cr_expect_eq(u.slots_free, u.slots, "%d of %d slots are free", (int)u.slots_free, (int)u.slots);
}

ParameterizedTestParameters(batch, rows_have_the_bits_of_a_sequence_alone) {
    return cr_make_param_array(model_case, cases, N_CASES);
}

ParameterizedTest(model_case *c, batch, rows_have_the_bits_of_a_sequence_alone, .timeout = 120) {
    kt_batches b;

    kt_batches_init(&b, c->name, c->kv, 2, 0);
    check_together(&b);
    check_reuse(&b);
    check_fork(&b);
    check_truncate(&b);
    check_guesses(&b);
    check_recent(&b);
    expect_all_free(&b);
    kt_batches_deinit(&b);
}

/* ---- stopping ---- */

typedef struct stopper {
    kt_phase inner;
    kt_stop *stop;
} stopper;

static int64_t stop_now(void *arg, int n_threads) {
    stopper *s = arg;

    kt_stop_set(s->stop, true);
    return s->inner.prepare(s->inner.arg, n_threads);
}
static void run_inner(void *arg, int64_t begin, int64_t end, int tid) {
    stopper *s = arg;

    s->inner.run(s->inner.arg, begin, end, tid);
}

/* Stop when phase `at` has begun; false when the step was complete all the same, as it is from the
 * last phase on. */
static bool stops_at(kt_batches *b, const kt_batch *batch, float *logits, int at) {
    kt_step_program *program = batch->rows <= 4 ? &b->e->step.few : &b->e->step.many;
    kt_stop stop = {false};
    stopper s = {program->phases[at], &stop};
    kt_err err = {KT_OK, ""};
    kt_status st;

    program->phases[at].prepare = stop_now;
    program->phases[at].run = run_inner;
    program->phases[at].arg = &s;
    st = kt_engine_step(b->e, batch, logits, &stop, &err);
    program->phases[at] = s.inner;
    cr_assert(st == KT_OK || st == KT_E_CANCELLED, "%s", err.message);
    return st == KT_E_CANCELLED;
}

static void check_stops(kt_batches *b, int64_t rows) {
    const int64_t other_rows = rows > 2 ? rows / 2 : 1;
    const int n_phases = rows > 2 ? b->e->step.many.count : b->e->step.few.count;
    kt_sequence *s = kt_batches_sequence(b, KT_TEXT_TOKENS);
    kt_sequence *o = kt_batches_sequence(b, KT_TEXT_TOKENS);
    float *logits = malloc((size_t)(2 * b->vocab) * sizeof *logits);
    int stopped = 0;

    kt_batches_continue(b, s, 0, 70);
    kt_batches_continue(b, o, 1, 60);
    for (int at = 0; at < n_phases; at++) {
        const int64_t s_length = kt_sequence_length(s), o_length = kt_sequence_length(o);
        int32_t token[KT_BATCH_ROWS];
        const int32_t out_row[] = {(int32_t)(rows - 1), (int32_t)(rows + other_rows - 1)};
        const kt_span spans[] = {{s, 0, rows, false}, {o, rows, other_rows, false}};
        const kt_batch batch = {rows + other_rows, token, 2, spans, 2, out_row};
        memcpy(token, b->text[0] + s_length, (size_t)rows * sizeof *token);
        memcpy(token + rows, b->text[1] + o_length, (size_t)other_rows * sizeof *token);
        if (!stops_at(b, &batch, logits, at)) break;
        stopped++;
        cr_assert_eq(kt_sequence_length(s), s_length);
        cr_assert_eq(kt_sequence_length(o), o_length);
        if (at % 7) continue; /* most stops are followed by another one, some by a whole step */
        if (s_length + rows + 40 > KT_TEXT_TOKENS) continue;
        kt_batches_continue(b, s, 0, 1);
        kt_batches_continue(b, o, 1, 1);
    }
    cr_expect_geq(stopped, n_phases - 2, "%d of %d phases", stopped, n_phases);
    if (kt_sequence_length(s) + 20 < KT_TEXT_TOKENS) kt_batches_continue(b, s, 0, 20);
    kt_batches_continue(b, o, 1, 20);
    kt_sequence_destroy(s);
    kt_sequence_destroy(o);
    kt_engine_drop_cache(b->e);
    expect_all_free(b);
    free(logits);
}

Test(batch, a_step_stopped_at_any_phase_changes_nothing, .timeout = 120) {
    static const char *const models[] = {"tiny-moe", "golden/deepseek_v32", "golden/qwen3_next",
                                         "golden/deepseek_v4"};

    for (int i = 0; i < 3; i++) {
        kt_batches b;
        kt_batches_init(&b, models[i], KT_W_BF16, 2, 0);
        check_stops(&b, 40);
        check_stops(&b, 1);
        kt_batches_deinit(&b);
    }
}

/* ---- pools that are full ---- */

static int64_t cached(const kt_batches *b) {
    kt_kv_usage u;

    kt_engine_kv_usage(b->e, &u);
    cr_assert_eq(u.pages_used + u.pages_cached + u.pages_free, u.pages);
    return u.pages_cached;
}

Test(batch, pages_that_are_short_are_refused_or_taken_from_the_cache, .timeout = 60) {
    kt_batches b;
    kt_sequence *s, *o, *f;
    kt_err err = {KT_OK, ""};

    kt_batches_init(&b, "tiny-moe", KT_W_BF16, 2, 5);
    s = kt_batches_sequence(&b, 192);
    kt_batches_prefill(&b, s, 0, 130);
    cr_expect_eq(kt_sequence_create(b.e, 192, &o, &err), KT_E_NOMEM);
    cr_expect(strstr(err.message, "3 more pages of 64 tokens are needed, 2 of 5"), "%s",
              err.message);
    cr_expect_eq(kt_sequence_fork(s, &f, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_sequence_reserve(f, 200, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_sequence_reserve(s, 250, &err), KT_E_NOMEM);
    kt_batches_continue(&b, s, 0, 60);
    kt_batches_continue(&b, f, 0, 60);
    cr_expect_eq(cached(&b), 0);
    kt_sequence_destroy(f);
    kt_sequence_destroy(s); /* two whole pages and one that nobody can use are left */
    cr_expect_eq(cached(&b), 2);
    s = kt_batches_sequence(&b, 192); /* takes free ones */
    cr_expect_eq(cached(&b), 2);
    o = kt_batches_sequence(&b, 64); /* and the last page of what is cached */
    cr_expect_eq(cached(&b), 1);
    kt_sequence_destroy(s);
    s = kt_batches_sequence(&b, 0);
    cr_expect_eq(kt_sequence_reuse(s, b.text[0], 200), 64);
    cr_assert_eq(kt_sequence_reserve(s, 200, &err), KT_OK, "%s", err.message);
    kt_batches_prefill(&b, s, 0, 200);
    cr_expect_eq(kt_sequence_truncate(s, 70), 70);
    cr_expect_eq(kt_sequence_reserve(s, 257, &err), KT_E_INVALID);
    kt_batches_continue(&b, s, 0, 100);
    kt_sequence_destroy(s);
    kt_sequence_destroy(o);
    kt_batches_deinit(&b);
}

/* Going back into a page that another sequence has needs one more: without one, to that page's
 * beginning. */
Test(batch, without_a_page_for_a_copy_one_goes_back_further, .timeout = 60) {
    kt_batches b;
    kt_sequence *s, *f;

    kt_batches_init(&b, "tiny-moe", KT_W_BF16, 2, 4);
    s = kt_batches_sequence(&b, 192);
    kt_batches_prefill(&b, s, 0, 150);
    cr_assert_eq(kt_sequence_fork(s, &f, NULL), KT_OK); /* two shared and two of their own */
    cr_expect_eq(kt_sequence_truncate(s, 100), 64);
    cr_expect_eq(kt_sequence_reserve(s, 192, NULL), KT_E_NOMEM, "of its pages one is left");
    kt_batches_continue(&b, f, 0, 40);
    kt_batches_continue(&b, s, 0, 60);
    kt_sequence_destroy(f);
    cr_expect_eq(kt_sequence_reserve(s, 200, NULL), KT_OK);
    kt_batches_continue(&b, s, 0, 30);
    kt_sequence_destroy(s);
    kt_batches_deinit(&b);
}

/* Sequences take one slot each, a step that may be stopped one more for each, and what is left are
 * snapshots. */
Test(batch, slots_for_states_are_shared_out, .timeout = 60) {
    enum { MOST = 16 };
    kt_batches b;
    kt_sequence *s[MOST + 1];
    kt_kv_usage u;
    int n;
    kt_err err = {KT_OK, ""};

    kt_batches_init(&b, "golden/qwen3_next", KT_W_BF16, 2, 16);
    kt_engine_kv_usage(b.e, &u);
    n = (int)u.slots;
    cr_assert(n >= KT_LEAST_SLOTS && n < MOST, "%d slots", n);
    for (int i = 0; i < n; i++) s[i] = kt_batches_sequence(&b, i ? 10 : 130);
    cr_expect_eq(kt_sequence_create(b.e, 10, &s[n], &err), KT_E_NOMEM);
    cr_expect(strstr(err.message, "slots for states of recurrent layers are in use"), "%s",
              err.message);
    cr_expect_eq(kt_sequence_fork(s[1], &s[n], &err), KT_E_NOMEM);
    cr_expect_eq(kt_sequence_guess(s[0], 2, 1), 0, "there is nothing to go back to");
    kt_batches_prefill(&b, s[0], 0, 130); /* no slot for a snapshot: computed all the same */
    for (int i = 1; i < n; i++) kt_sequence_destroy(s[i]);
    cr_expect_eq(kt_sequence_reuse(s[0], b.text[0], 130), 130, "not of one that has tokens");
    s[1] = kt_batches_sequence(&b, 0);
    cr_expect_eq(kt_sequence_reuse(s[1], b.text[0], 130), 0, "pages without a state");
    cr_assert_eq(kt_sequence_reserve(s[1], 130, &err), KT_OK, "%s", err.message);
    kt_batches_prefill(&b, s[1], 0, 130);
    kt_engine_kv_usage(b.e, &u);
    cr_expect_eq(u.slots_cached, 1);
    cr_expect_eq(u.slots_used, 2);
    s[2] = kt_batches_sequence(&b, 0);
    cr_expect_eq(kt_sequence_reuse(s[2], b.text[0], 130), 128);
    for (int i = 0; i < 3; i++) kt_sequence_destroy(s[i]);
    kt_batches_deinit(&b);
}

/* ---- what is told about steps ---- */

/* Two decode rows and six of a prompt: the record and the profile count spans. */
Test(batch, records_and_profiles_see_batches, .timeout = 60) {
    int32_t token[8];
    char folder[300], path[330], *text;
    size_t size;
    kt_batches b;
    kt_sequence *s[3];
    kt_profile profile;
    double alone = 0;
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/steps.jsonl", folder);
    kt_batches_init(&b, "tiny-moe", KT_W_BF16, 2, 0);
    for (int t = 0; t < 3; t++) {
        s[t] = kt_batches_sequence(&b, 100);
        if (t < 2) kt_batches_continue(&b, s[t], t, 70);
    }
    memcpy(token, (int32_t[]){b.text[0][70], b.text[1][70]}, 2 * sizeof *token);
    memcpy(token + 2, b.text[2], 6 * sizeof *token);
    cr_assert_eq(kt_engine_record(b.e, path, 0, &err), KT_OK, "%s", err.message);
    kt_engine_profile(b.e, true);
    {
        const kt_span spans[] = {{s[0], 0, 1, false}, {s[1], 1, 1, false}, {s[2], 2, 6, false}};
        const kt_batch batch = {8, token, 3, spans, 0, NULL};
        cr_assert_eq(kt_engine_step(b.e, &batch, NULL, NULL, &err), KT_OK, "%s", err.message);
    }
    kt_engine_profile_read(b.e, &profile);
    for (int i = 0; i < KT_PROFILE_KINDS; i++)
        if (strcmp(profile.kind[i].name, "attention") == 0) alone = profile.kind[i].ops;
    /* 71 + 71 + (1 + ... + 6) keys; the engine has layers of 4 operations per query element. */
    cr_expect_eq((int64_t)alone % (71 + 71 + 21), 0, "%.0f operations", alone);
    cr_expect_gt(alone, 0);
    cr_assert_eq(kt_engine_record(b.e, NULL, 0, &err), KT_OK);
    cr_assert_eq(kt_file_read(path, 1 << 20, &text, &size, &err), KT_OK, "%s", err.message);
    cr_expect(strstr(text, "{\"decode\":2,\"prefill\":6,\"logits\":0,\"context\":20,"), "%s", text);
    free(text);
    for (int t = 0; t < 3; t++) kt_sequence_destroy(s[t]);
    kt_batches_deinit(&b);
    kt_temp_remove(folder);
}

/* ---- memory that is asked for ---- */

Test(batch, memory_for_the_cache_bounds_the_context, .timeout = 60) {
    kt_engine_options o = {.model_dir = KT_SOURCE_DIR "/datasets/models/tiny-moe",
                           .table_path = "",
                           .max_chunk = 64,
                           .n_threads = 1};
    kt_engine_info info;
    kt_kv_usage u;
    size_t page;
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    kt_engine_describe(e, &info);
    kt_engine_kv_usage(e, &u);
    page = kt_kv_page_bytes(&e->kv);
    cr_expect_geq(u.pages, 2048 / KT_PAGE_TOKENS, "at least one whole context");
    cr_expect_leq(u.pages, 16 * 2048 / KT_PAGE_TOKENS);
    kt_engine_destroy(e);
    o.kv_memory = 3 * page + page / 2;
    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    kt_engine_describe(e, &info);
    kt_engine_kv_usage(e, &u);
    cr_expect_eq(u.pages, 3);
    cr_expect_eq(info.max_context, 192, "cut to what the pages hold");
    kt_engine_destroy(e);
    o.max_context = 193;
    cr_expect_eq(kt_engine_create(&o, &e, &err), KT_E_NOMEM);
    cr_expect(strstr(err.message, "hold 192 tokens, expected room for 193"), "%s", err.message);
    o.max_context = 0;
    o.kv_memory = page - 1;
    cr_expect_eq(kt_engine_create(&o, &e, &err), KT_E_NOMEM);
    cr_expect(strstr(err.message, "hold 0 tokens"), "%s", err.message);
}

/* ---- what is refused ---- */

static void expect_refused(kt_batches *b, const kt_batch *batch, const char *says) {
    static float logits[4 * 4096];
    kt_err err = {KT_OK, ""};

    cr_expect_eq(kt_engine_step(b->e, batch, logits, NULL, &err), KT_E_INVALID, "%s", says);
    cr_expect(strstr(err.message, says), "got '%s', expected '%s'", err.message, says);
}

Test(batch, mistakes_are_named_and_change_nothing, .timeout = 60) {
    const int32_t token[] = {1, 2, 3, 4}, bad_token[] = {1, 2, 3, 1 << 30}, out[] = {0, 3},
                  wrong_out[] = {3, 3}, late_out[] = {0, 4};
    kt_batches b, other;
    kt_sequence *s, *t, *foreign;

    kt_batches_init(&b, "tiny-moe", KT_W_BF16, 1, 0);
    kt_batches_init(&other, "tiny-moe", KT_W_BF16, 1, 5);
    s = kt_batches_sequence(&b, 3);
    t = kt_batches_sequence(&b, 3);
    foreign = kt_batches_sequence(&other, 3);
    {
        const kt_span good[] = {{s, 0, 2, false}, {t, 2, 2, false}},
                      gap[] = {{s, 0, 1, false}, {t, 2, 2, false}},
                      twice[] = {{s, 0, 2, false}, {s, 2, 2, false}},
                      strange[] = {{foreign, 0, 2, false}, {t, 2, 2, false}},
                      none[] = {{s, 0, 4, false}, {t, 4, 0, false}},
                      more[] = {{s, 0, 2, false}, {t, 2, 3, false}}, small[] = {{s, 0, 4, false}};
        const kt_batch ok = {4, token, 2, good, 2, out};

        expect_refused(&b, &(kt_batch){0, token, 0, NULL, 0, NULL}, "batch of 0 rows");
        expect_refused(&b, &(kt_batch){129, token, 2, good, 2, out}, "expected 1 to 128");
        expect_refused(&b, &(kt_batch){4, token, 2, gap, 2, out}, "expected row 1");
        expect_refused(&b, &(kt_batch){4, token, 2, twice, 2, out}, "has another span");
        expect_refused(&b, &(kt_batch){4, token, 2, strange, 2, out}, "not this engine's");
        expect_refused(&b, &(kt_batch){4, token, 1, good, 2, out}, "spans have 2 rows");
        expect_refused(&b, &(kt_batch){4, token, 2, more, 2, out}, "span 1 has 3 rows");
        expect_refused(&b, &(kt_batch){4, token, 1, small, 2, out}, "do not fit");
        expect_refused(&b, &(kt_batch){4, token, 2, none, 2, out}, "do not fit");
        expect_refused(&b, &(kt_batch){4, bad_token, 2, good, 2, out}, "token 3 is 1073741824");
        expect_refused(&b, &(kt_batch){4, token, 2, good, 2, wrong_out}, "logits 1 are of row 3");
        expect_refused(&b, &(kt_batch){4, token, 2, good, 2, late_out}, "logits 1 are of row 4");
        expect_refused(&b, &(kt_batch){4, token, 2, good, 5, out}, "logits of 5");
        cr_expect_eq(kt_sequence_length(s) + kt_sequence_length(t), 0);
        cr_expect_eq(kt_engine_step(b.e, &ok, NULL, NULL, NULL), KT_E_INVALID);
    }
    cr_expect_eq(kt_sequence_reserve(s, 2, NULL), KT_OK, "has more than that");
    kt_sequence_destroy(s);
    kt_sequence_destroy(t);
    kt_sequence_destroy(foreign);
    kt_batches_deinit(&b);
    kt_batches_deinit(&other);
}
