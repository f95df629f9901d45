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

/* What it says; to be set before fake_init. */
static const char *fake_says = FAKE_TEXT;

typedef struct fake_engine {
    kt_tokenizer *tokenizer;
    int32_t *script; /* the tokens of fake_says, then the end token, then again */
    size_t n_script;
    atomic_int prefill_us; /* per row of a prompt, in slices that look at the stop flag */
    atomic_int decode_us;  /* per step with generated tokens only */
    atomic_int fail_open;  /* refuse sequences for lack of memory */
    atomic_int n_open;
    atomic_llong n_pages, n_pages_used; /* 0 = no limit; pages of 64 tokens */
    atomic_int n_steps, most_spans, most_rows;
    int64_t n_computed;  /* rows */
    int64_t step_row_us; /* per row of any step */
    int64_t vocab;   /* 4096; tests that bring their own logits may set less, and the backend's */
    bool has_states; /* goes back to where the last guess began, and no less */
    /* NULL = the script; else logits [vocab] of a row, given the tokens up to it. */
    void (*logits)(struct fake_engine *f, const int32_t *tokens, int64_t n, float *logits);
} fake_engine;

typedef struct fake_sequence {
    int32_t *tokens;
    int64_t length, pages;
    int64_t prompt;          /* length after the first rows with logits; where the script begins */
    int64_t mark, n_guesses; /* where the last step with guesses began; of the next step */
} fake_sequence;

static inline void fake_sleep(int us) {
    const struct timespec t = {us / 1000000, us % 1000000 * 1000L};
    nanosleep(&t, NULL);
}

static inline fake_sequence *fake_of(const kt_sequence *s) {
    return (fake_sequence *)(uintptr_t)s;
}

static inline kt_status fake_open(void *self, kt_sequence **out, kt_err *err) {
    fake_engine *f = self;
    fake_sequence *s = NULL;
    *out = NULL;
    if (!atomic_load(&f->fail_open)) s = calloc(1, sizeof *s);
    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for a sequence");
    *out = (kt_sequence *)(void *)s;
    atomic_fetch_add(&f->n_open, 1);
    return KT_OK;
}

static inline void fake_close(void *self, kt_sequence *sequence) {
    fake_engine *f = self;
    fake_sequence *s = fake_of(sequence);
    atomic_fetch_sub(&f->n_pages_used, s->pages);
    free(s->tokens);
    free(s);
    atomic_fetch_sub(&f->n_open, 1);
}

static inline kt_status fake_reserve(void *self, kt_sequence *sequence, int64_t tokens,
                                     kt_err *err) {
    fake_engine *f = self;
    fake_sequence *s = fake_of(sequence);
    int64_t pages = (tokens + 63) / 64, all = atomic_load(&f->n_pages);
    int32_t *grown;
    if (pages <= s->pages) return KT_OK;
    if (all && atomic_load(&f->n_pages_used) + pages - s->pages > all)
        return kt_fail(err, KT_E_NOMEM, "no pages for %lld tokens", (long long)tokens);
    grown = realloc(s->tokens, (size_t)pages * 64 * sizeof *grown);
    if (!grown) return kt_fail(err, KT_E_NOMEM, "no memory for %lld tokens", (long long)tokens);
    s->tokens = grown;
    atomic_fetch_add(&f->n_pages_used, pages - s->pages);
    s->pages = pages;
    return KT_OK;
}

static inline int64_t fake_reuse(void *self, kt_sequence *s, const int32_t *tokens, int64_t n) {
    (void)self, (void)s, (void)tokens, (void)n;
    return 0;
}

static inline int64_t fake_chunk(void *self, const kt_sequence *s, int64_t left) {
    (void)self, (void)s;
    return left;
}

static inline kt_status fake_fork(void *self, const kt_sequence *from, kt_sequence **out,
                                  kt_err *err) {
    const fake_sequence *a = fake_of(from);
    KT_TRY(fake_open(self, out, err));
    if (fake_reserve(self, *out, a->pages * 64, err) != KT_OK) {
        fake_close(self, *out);
        *out = NULL;
        return KT_E_NOMEM;
    }
    memcpy(fake_of(*out)->tokens, a->tokens, (size_t)a->length * sizeof *a->tokens);
    fake_of(*out)->length = a->length;
    fake_of(*out)->prompt = a->prompt;
    return KT_OK;
}

static inline int64_t fake_length(void *self, const kt_sequence *s) {
    (void)self;
    return fake_of(s)->length;
}

static inline int64_t fake_guess(void *self, kt_sequence *sequence, int64_t n, int n_spans) {
    (void)self, (void)n_spans;
    fake_of(sequence)->n_guesses = n;
    return n;
}

static inline int64_t fake_go_back(void *self, kt_sequence *sequence, int64_t length) {
    fake_sequence *s = fake_of(sequence);
    s->length = ((fake_engine *)self)->has_states ? s->mark : length;
    return s->length;
}

static inline void fake_usage(void *self, kt_kv_usage *out) {
    fake_engine *f = self;
    *out = (kt_kv_usage){.pages = atomic_load(&f->n_pages),
                         .pages_used = atomic_load(&f->n_pages_used)};
}

/* The script goes on where the sequence's prompt ended, so it must know where that was: where the
 * first logits were asked for. */
static inline void fake_row(fake_engine *f, fake_sequence *s, int64_t length, float *logits) {
    if (f->logits) {
        f->logits(f, s->tokens, length, logits);
        return;
    }
    if (!s->prompt) s->prompt = length;
    for (int i = 0; i < 4096; i++) logits[i] = (float)(i % 7) * 0.01f;
    logits[f->script[(size_t)(length - s->prompt) % f->n_script]] = 50;
}

static inline kt_status fake_step(void *self, const kt_batch *b, float *logits, const kt_stop *stop,
                                  kt_err *err) {
    fake_engine *f = self;
    int64_t left = f->step_row_us * b->rows, out = 0;
    int decodes = 1;

    for (int i = 0; i < b->n_spans; i++) {
        if (fake_of(b->spans[i].seq)->prompt) continue;
        decodes = 0;
        left += (int64_t)atomic_load(&f->prefill_us) * b->spans[i].rows;
    }
    if (decodes) left += atomic_load(&f->decode_us);
    while (left > 0) {
        fake_sleep(left < 2000 ? (int)left : 2000);
        left -= 2000;
        if (stop && kt_stop_is_set(stop)) return kt_fail(err, KT_E_CANCELLED, "stopped");
    }
    for (int i = 0; i < b->n_spans; i++) {
        fake_sequence *s = fake_of(b->spans[i].seq);
        if (s->n_guesses) s->mark = s->length;
        s->n_guesses = 0;
        for (int64_t r = 0; r < b->spans[i].rows; r++) {
            const int64_t row = b->spans[i].first_row + r;
            if (s->length >= s->pages * 64) return kt_fail(err, KT_E_INVALID, "no page reserved");
            s->tokens[s->length++] = b->token[row];
            if (out < b->n_out && b->out_row[out] == row)
                fake_row(f, s, s->length, logits + f->vocab * out++);
        }
    }
    if (out != b->n_out) return kt_fail(err, KT_E_INVALID, "rows of logits that are in no span");
    f->n_computed += b->rows;
    atomic_fetch_add(&f->n_steps, 1);
    if (b->n_spans > atomic_load(&f->most_spans)) atomic_store(&f->most_spans, b->n_spans);
    if (b->rows > atomic_load(&f->most_rows)) atomic_store(&f->most_rows, (int)b->rows);
    return KT_OK;
}

static inline bool fake_init(fake_engine *f, kt_backend *b, const char *tokenizer_path) {
    kt_err err = {0};
    size_t n;

    memset(f, 0, sizeof *f);
    memset(b, 0, sizeof *b);
    if (kt_tokenizer_load(tokenizer_path, &f->tokenizer, &err) != KT_OK) return false;
    if (kt_tokenizer_encode(f->tokenizer, fake_says, strlen(fake_says), true, &f->script, &n,
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
    b->vocab = f->vocab = 4096;
    b->max_context = 2048;
    b->eos[0] = 4095;
    b->n_eos = 1;
    b->defaults = KT_SAMPLING_GREEDY;
    b->max_rows = 512;
    b->open = fake_open;
    b->close = fake_close;
    b->reserve = fake_reserve;
    b->reuse = fake_reuse;
    b->chunk = fake_chunk;
    b->fork = fake_fork;
    b->length = fake_length;
    b->step = fake_step;
    b->usage = fake_usage;
    b->guess = fake_guess;
    b->go_back = fake_go_back;
    return true;
}

static inline void fake_deinit(fake_engine *f) {
    kt_tokenizer_destroy(f->tokenizer);
    free(f->script);
}

#endif
