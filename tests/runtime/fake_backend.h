/* An engine for tests of the server: says a fixed text, as slowly as wanted.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_FAKE_BACKEND_H
#define KT_TESTS_FAKE_BACKEND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "runtime/sched/backend.h"

#define FAKE_TEXT \
    "To be, or not to be: that is the question \xf0\x9f\xa6\x99 \xe6\x88\x91\xc3\xa9 done."

typedef struct fake_engine {
    kt_tokenizer *tokenizer;
    int32_t *script; /* the tokens of FAKE_TEXT, then the end token, then again */
    size_t n_script;
    atomic_int prefill_us; /* per prompt token, in slices that ask for cancellation */
    atomic_int decode_us;  /* per generated token */
    atomic_int fail_open;  /* refuse sequences for lack of memory */
    atomic_int n_open;
} fake_engine;

typedef struct fake_sequence {
    int64_t length, prompt; /* prompt: length after the first forward */
} fake_sequence;

static inline void fake_sleep(int us) {
    const struct timespec t = {us / 1000000, us % 1000000 * 1000L};
    nanosleep(&t, NULL);
}

static inline kt_status fake_open(void *self, int64_t capacity, void **sequence, kt_err *err) {
    fake_engine *f = self;
    *sequence = NULL;
    if (atomic_load(&f->fail_open)) {
        return kt_fail(err, KT_E_NOMEM, "no memory for %lld tokens", (long long)capacity);
    }
    *sequence = calloc(1, sizeof(fake_sequence));
    if (!*sequence) return kt_fail(err, KT_E_NOMEM, "no memory for a sequence");
    atomic_fetch_add(&f->n_open, 1);
    return KT_OK;
}

static inline void fake_close(void *self, void *sequence) {
    fake_engine *f = self;
    free(sequence);
    atomic_fetch_sub(&f->n_open, 1);
}

static inline void fake_truncate(void *self, void *sequence, int64_t length) {
    (void)self;
    ((fake_sequence *)sequence)->length = length;
}

static inline kt_status fake_forward(void *self, void *sequence, const int32_t *tokens, int64_t n,
                                     float *logits, kt_cancel_fn cancel, void *arg, kt_err *err) {
    fake_engine *f = self;
    fake_sequence *s = sequence;
    int us = s->prompt ? atomic_load(&f->decode_us) : atomic_load(&f->prefill_us);
    int64_t left = (int64_t)us * n;
    (void)tokens;

    while (left > 0) {
        fake_sleep(left < 2000 ? (int)left : 2000);
        left -= 2000;
        if (cancel && cancel(arg)) return kt_fail(err, KT_E_CANCELLED, "cancelled");
    }
    s->length += n;
    if (!s->prompt) s->prompt = s->length;
    for (int i = 0; i < 4096; i++) logits[i] = (float)(i % 7) * 0.01f;
    logits[f->script[(size_t)(s->length - s->prompt) % f->n_script]] = 50;
    return KT_OK;
}

static inline bool fake_init(fake_engine *f, kt_backend *b, const char *tokenizer_path) {
    kt_err err = {0};
    size_t n;

    memset(f, 0, sizeof *f);
    memset(b, 0, sizeof *b);
    if (kt_tokenizer_load(tokenizer_path, &f->tokenizer, &err) != KT_OK) return false;
    if (kt_tokenizer_encode(f->tokenizer, FAKE_TEXT, strlen(FAKE_TEXT), true, &f->script, &n,
                            &err) != KT_OK) {
        return false;
    }
    f->script = realloc(f->script, (n + 1) * sizeof *f->script);
    f->script[n] = 4095;
    f->n_script = n + 1;
    b->self = f;
    b->tokenizer = f->tokenizer;
    b->model_name = "fake";
    snprintf(b->fingerprint, sizeof b->fingerprint, "fp_fake");
    b->vocab = 4096;
    b->max_context = 2048;
    b->eos[0] = 4095;
    b->n_eos = 1;
    b->defaults = KT_SAMPLING_GREEDY;
    b->open = fake_open;
    b->close = fake_close;
    b->truncate = fake_truncate;
    b->forward = fake_forward;
    return true;
}

static inline void fake_deinit(fake_engine *f) {
    kt_tokenizer_destroy(f->tokenizer);
    free(f->script);
}

#endif
