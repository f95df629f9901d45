/* Latent attention with wide keys and values (runtime/exec/expand.h) against the absorbed form:
 * contexts of several chunks, every cache, spans of all kinds in one step, any number of threads.
 * That both are what the model means is test_plain_families'.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/exec/batch.h"
#include "runtime/exec/engine_impl.h"
#include "tests/support/plain_model.h"
#include "tests/support/temp.h"

enum { TOKENS = 1100, FROM = 48, VOCAB = 37 };

/* No experts to be chosen: a decision near a tie would be neither form's mistake. */
static const kt_plain_shape shape = {
    KT_PLAIN_DEEPSEEK_V3, .layers = 2,   .hidden = 96,      .vocab = VOCAB,    .context = 2048,
    .heads = 3,           .kv_lora = 96, .nope = 32,        .rope = 16,        .v = 64,
    .experts = 4,         .topk = 2,     .expert_size = 32, .shared_size = 32, .dense_size = 96,
    .dense_layers = 2,    .groups = 1,   .top_groups = 1,   .scaling = 1,      .theta = 1e4};

static char folder[PATH_MAX];

static void make_model(void) {
    kt_temp_make(folder, sizeof folder);
    kt_plain_destroy(kt_plain_create(&shape, 3, folder));
}

static void remove_model(void) {
    kt_temp_remove(folder);
}

static int32_t token_at(int64_t i) {
    return (int32_t)((i * i * 7 + i * 3 + i / 5) % VOCAB);
}

static kt_engine *load(kt_weight_format kv, int64_t expand_rows, int n_threads,
                       bool deterministic) {
    const kt_engine_options o = {.model_dir = folder,
                                 .kv = kv,
                                 .expand_rows = expand_rows,
                                 .n_threads = n_threads,
                                 .deterministic = deterministic,
                                 .max_context = TOKENS + 200,
                                 .table_path = "",
                                 .tokenizer_optional = true};
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    cr_assert_eq(e->plan.expand_rows, deterministic || expand_rows < 0 ? 0 : expand_rows);
    return e;
}

/* Logits of n tokens in steps of `chunk`; malloc'd. */
static float *run(kt_engine *e, int64_t n, int64_t chunk) {
    float *logits = malloc((size_t)(n * VOCAB) * sizeof *logits);
    int32_t tokens[TOKENS];
    kt_sequence *s;
    kt_err err = {KT_OK, ""};

    for (int64_t i = 0; i < n; i++) tokens[i] = token_at(i);
    kt_engine_set_chunk(e, chunk);
    cr_assert_eq(kt_sequence_create(e, n, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, tokens, n, n, logits, NULL, NULL, NULL, &err), KT_OK, "%s",
                 err.message);
    kt_sequence_destroy(s);
    return logits;
}

static double distance(const float *got, const float *want, int64_t count) {
    double difference = 0, norm = 0;

    for (int64_t i = 0; i < count; i++) {
        difference += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        norm += (double)want[i] * want[i];
    }
    return sqrt(difference / norm);
}

/* Each row by itself: one that met wrong keys would hide among a thousand. BF16 keys and values
 * differ from absorbed ones by
 * 2^-8, this model's logits by up to twice that. */
static void expect_near(const float *got, const float *want, int64_t rows, const char *what) {
    for (int64_t r = 0; r < rows; r++) {
        const double off = distance(got + r * VOCAB, want + r * VOCAB, VOCAB);
        cr_assert_leq(off, 0.02, "%s: row %d is off by %g", what, (int)r, off);
    }
}

Test(expand, long_contexts_agree_with_the_absorbed_form, .init = make_model, .fini = remove_model,
     .timeout = 120) {
    static const kt_weight_format caches[] = {KT_W_BF16, KT_W_FP8_CHANNEL, KT_W_INT8_CHANNEL};

    for (int i = 0; i < 3; i++) {
        kt_engine *wide = load(caches[i], FROM, 2, false), *narrow = load(caches[i], -1, 2, false);
        float *want = run(narrow, TOKENS, 512), *got = run(wide, TOKENS, 400);
        expect_near(got, want, TOKENS, kt_weight_format_name(caches[i]));
        cr_expect_neq(memcmp(got, want, TOKENS * VOCAB * sizeof *got), 0, "nothing was expanded");
        free(got), free(want);
        kt_engine_destroy(wide), kt_engine_destroy(narrow);
    }
}

Test(expand, threads_change_no_bit, .init = make_model, .fini = remove_model, .timeout = 120) {
    float *want = NULL;

    for (int threads = 1; threads <= 8; threads = 2 * threads + 1) { /* 7: rows are cut too */
        kt_engine *e = load(KT_W_BF16, FROM, threads, false);
        float *got = run(e, 600, 300);
        if (!want) want = run(e, 600, 300);
        cr_expect_eq(memcmp(got, want, 600 * VOCAB * sizeof *got), 0, "%d threads", threads);
        free(got);
        kt_engine_destroy(e);
    }
    free(want);
}

/* Spans with many rows and with few, in every order, each behind what its sequence has. */
Test(expand, spans_of_all_kinds_meet_in_a_step, .init = make_model, .fini = remove_model,
     .timeout = 120) {
    static const int64_t orders[][4] = {{60, 1, 50, 49}, {3, 70, 48, 2}, {1, 9, 90, 0},
                                        {80, 48, 0, 0},  {90, 7, 0, 0},  {47, 2, 0, 0}};
    static const int64_t before[4] = {0, 70, 5, 130};
    kt_engine *e = load(KT_W_BF16, FROM, 2, false);
    float *want = run(e, 300, 300);

    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
        float logits[256 * VOCAB];
        int32_t token[256], out_row[256];
        kt_span spans[4];
        kt_batch b = {.token = token, .spans = spans, .out_row = out_row};
        kt_err err = {KT_OK, ""};
        for (int i = 0; i < 4 && orders[o][i]; i++) {
            int32_t head[130];
            spans[i] = (kt_span){NULL, b.rows, orders[o][i], false};
            for (int64_t t = 0; t < before[i]; t++) head[t] = token_at(t);
            cr_assert_eq(kt_sequence_create(e, 300, &spans[i].seq, &err), KT_OK);
            if (before[i])
                cr_assert_eq(kt_engine_forward(e, spans[i].seq, head, before[i], 0, NULL, NULL,
                                               NULL, NULL, &err),
                             KT_OK, "%s", err.message);
            for (int64_t r = 0; r < orders[o][i]; r++, b.rows++) {
                token[b.rows] = token_at(before[i] + r);
                out_row[b.rows] = (int32_t)b.rows;
            }
            b.n_spans++;
        }
        b.n_out = b.rows;
        cr_assert_eq(kt_engine_step(e, &b, logits, NULL, &err), KT_OK, "%s", err.message);
        for (int i = 0; i < b.n_spans; i++) {
            char what[40];
            snprintf(what, sizeof what, "order %zu, span %d", o, i);
            expect_near(logits + spans[i].first_row * VOCAB, want + before[i] * VOCAB,
                        spans[i].rows, what);
            kt_sequence_destroy(spans[i].seq);
        }
    }
    free(want);
    kt_engine_destroy(e);
}

Test(expand, deterministic_engines_do_not, .init = make_model, .fini = remove_model,
     .timeout = 120) {
    static const int64_t chunks[] = {200, 7, 1};
    kt_engine *e = load(KT_W_BF16, FROM, 2, true), *plain = load(KT_W_BF16, -1, 2, true);
    float *want = run(plain, 200, 200);

    for (int i = 0; i < 3; i++) {
        float *got = run(e, 200, chunks[i]);
        cr_expect_eq(memcmp(got, want, 200 * VOCAB * sizeof *got), 0, "chunks of %d",
                     (int)chunks[i]);
        free(got);
    }
    free(want);
    kt_engine_destroy(e), kt_engine_destroy(plain);
}
