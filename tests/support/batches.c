/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/batches.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/exec/engine_impl.h"
#include "tests/support/guard.h"

static void find_model(const char *model, char *out, size_t out_bytes) {
    char relative[160];

    snprintf(out, out_bytes, KT_SOURCE_DIR "/datasets/models/%s", model);
    if (strncmp(model, "golden/", 7) != 0) return;
    snprintf(relative, sizeof relative, "data/%s/config.json", model);
    if (!kt_shared_path(relative, out, out_bytes))
        cr_skip_test("%s: the shared data is absent", model);
    *strrchr(out, '/') = '\0';
}

/* Pages come in the order in which they were given back: these are out of order. */
static void shuffle_pages(kt_batches *b) {
    kt_sequence *s[5];

    for (int i = 0; i < 5; i++) s[i] = kt_batches_sequence(b, 64 * (i % 3 + 1));
    for (int i = 0; i < 5; i++) kt_sequence_destroy(s[(i * 3 + 1) % 5]);
}

void kt_batches_init(kt_batches *b, const char *model, kt_weight_format kv, int threads,
                     int64_t pages) {
    char path[KT_MODEL_PATH_BYTES];
    kt_engine_options o = {.table_path = "",
                           .kv = kv,
                           .tokenizer_optional = true,
                           .deterministic = true,
                           .max_context = 256,
                           .max_chunk = KT_BATCH_ROWS,
                           .n_threads = threads};
    kt_engine_info info;
    kt_err err = {KT_OK, ""};

    find_model(model, path, sizeof path);
    o.model_dir = path;
    cr_assert_eq(kt_engine_create(&o, &b->e, &err), KT_OK, "%s", err.message);
    if (pages) { /* again, now that the size of a page is known */
        o.kv_memory = (size_t)pages * kt_kv_page_bytes(&b->e->kv) +
                      KT_LEAST_SLOTS * sizeof(float) * (size_t)b->e->state_floats;
        if (o.max_context > pages * KT_PAGE_TOKENS) o.max_context = pages * KT_PAGE_TOKENS;
        kt_engine_destroy(b->e);
        cr_assert_eq(kt_engine_create(&o, &b->e, &err), KT_OK, "%s", err.message);
    }
    kt_engine_describe(b->e, &info);
    b->vocab = info.vocab;
    for (int t = 0; t < KT_TEXTS; t++) {
        kt_sequence *s = kt_batches_sequence(b, KT_TEXT_TOKENS);
        for (int i = 0; i < KT_TEXT_TOKENS; i++)
            b->text[t][i] = (int32_t)((97 * i * (i + t) + 31 * i + 5 + 7 * t) % info.vocab);
        b->want[t] = calloc((size_t)(KT_TEXT_TOKENS * info.vocab), sizeof *b->want[t]);
        cr_assert_eq(kt_engine_forward(b->e, s, b->text[t], KT_TEXT_TOKENS, KT_TEXT_TOKENS,
                                       b->want[t], NULL, NULL, NULL, &err),
                     KT_OK, "%s", err.message);
        kt_sequence_destroy(s);
        kt_engine_drop_cache(b->e);
    }
    if (!pages) shuffle_pages(b);
}

void kt_batches_deinit(kt_batches *b) {
    kt_engine_destroy(b->e);
    for (int t = 0; t < KT_TEXTS; t++) free(b->want[t]);
}

kt_sequence *kt_batches_sequence(kt_batches *b, int64_t capacity) {
    kt_sequence *s;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_sequence_create(b->e, capacity, &s, &err), KT_OK, "%s", err.message);
    return s;
}

void kt_batches_expect(const kt_batches *b, const float *logits, int t, int64_t at,
                       const char *where) {
    const size_t bytes = (size_t)b->vocab * sizeof *logits;

    cr_assert(memcmp(logits, b->want[t] + at * b->vocab, bytes) == 0,
              "%s: logits after token %lld of text %d differ, the first is %g, expected %g", where,
              (long long)at, t, (double)logits[0], (double)b->want[t][at * b->vocab]);
}

void kt_batches_continue(kt_batches *b, kt_sequence *s, int t, int64_t rows) {
    const int64_t length = kt_sequence_length(s);
    const int32_t last = (int32_t)(rows - 1);
    const kt_span span = {s, 0, rows, true};
    const kt_batch batch = {.rows = rows,
                            .token = b->text[t] + length,
                            .n_spans = 1,
                            .spans = &span,
                            .n_out = 1,
                            .out_row = &last};
    float *logits = malloc((size_t)b->vocab * sizeof *logits);
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_step(b->e, &batch, logits, NULL, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_sequence_length(s), length + rows);
    kt_batches_expect(b, logits, t, length + rows - 1, "alone");
    free(logits);
}

void kt_batches_prefill(kt_batches *b, kt_sequence *s, int t, int64_t end) {
    while (kt_sequence_length(s) < end) {
        int64_t rows = kt_sequence_chunk(s, end - kt_sequence_length(s));
        kt_batches_continue(b, s, t, rows < KT_BATCH_ROWS ? rows : KT_BATCH_ROWS);
    }
}
