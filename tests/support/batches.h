/* Engines, texts and reference logits for tests of batches. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_BATCHES_H
#define KT_TESTS_BATCHES_H

#include "runtime/exec/engine.h"

enum { KT_TEXTS = 3, KT_TEXT_TOKENS = 200, KT_BATCH_ROWS = 128 };

/* A deterministic engine, three texts that differ from the first token on, and what their logits
 * are when each is computed alone in one piece of pages. */
typedef struct kt_batches {
    kt_engine *e;
    int64_t vocab;
    int32_t text[KT_TEXTS][KT_TEXT_TOKENS];
    float *want[KT_TEXTS]; /* [KT_TEXT_TOKENS, vocab] */
} kt_batches;

/* model: a folder under datasets/models, or "golden/x" of the shared data (skips the test where
 * that is absent). pages: of the pool with its slots; 0 = the default. */
void kt_batches_init(kt_batches *b, const char *model, kt_weight_format kv, int threads,
                     int64_t pages);
void kt_batches_deinit(kt_batches *b);

kt_sequence *kt_batches_sequence(kt_batches *b, int64_t capacity);
/* Run tokens [length, length + rows) of text t, alone, and check the logits of the last row. */
void kt_batches_continue(kt_batches *b, kt_sequence *s, int t, int64_t rows);
/* The same up to `end`, as a server does: in steps that end where states are kept. */
void kt_batches_prefill(kt_batches *b, kt_sequence *s, int t, int64_t end);
/* Are these the logits after token `at` of text t? */
void kt_batches_expect(const kt_batches *b, const float *logits, int t, int64_t at,
                       const char *where);

#endif
