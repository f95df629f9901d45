/* Checkpoints that a test writes tensor by tensor beside those of a random model, and what an
 * engine makes of them. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_WRITTEN_MODEL_H
#define KT_TESTS_WRITTEN_MODEL_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/exec/engine.h"
#include "tests/support/random_model.h"

enum { KT_WRITTEN_MOST = 2048 };

/* Tensors to be written. Zero-initialise; kt_written_finish ends it. */
typedef struct kt_written_model {
    kt_tensor_out out[KT_WRITTEN_MOST];
    size_t n;
} kt_written_model;

/* One more tensor. name is copied; data, from malloc, is transferred. */
static inline void kt_written_put(kt_written_model *w, const char *name, kt_dtype dtype, int rank,
                                  const int64_t *dims, void *data) {
    kt_tensor_out *t = &w->out[w->n++];
    char *copy = malloc(strlen(name) + 1);

    cr_assert_lt(w->n, KT_WRITTEN_MOST);
    strcpy(copy, name);
    *t = (kt_tensor_out){.name = copy, .dtype = dtype, .rank = rank, .data = data};
    memcpy(t->shape, dims, sizeof *dims * (size_t)rank);
}

/* One more tensor, as it is in another checkpoint. */
static inline void kt_written_copy(kt_written_model *w, const kt_tensor *t) {
    void *data = malloc(t->bytes);

    memcpy(data, t->data, t->bytes);
    kt_written_put(w, t->name, t->dtype, t->rank, t->shape, data);
}

/* All of them into folder/model.safetensors, in place of what is there. */
static inline void kt_written_finish(kt_written_model *w, const char *folder) {
    char path[600];
    kt_err err = {0};

    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    cr_assert_eq(kt_safetensors_write(path, w->out, w->n, &err), KT_OK, "%s", err.message);
    for (size_t i = 0; i < w->n; i++) {
        free((void *)(uintptr_t)w->out[i].name);
        free((void *)(uintptr_t)w->out[i].data);
    }
    w->n = 0;
}

/* An engine without a table and a tokenizer, on two threads. */
static inline kt_status kt_written_load(const char *folder, kt_quant weights, kt_engine **e,
                                        kt_err *err) {
    const kt_engine_options o = {.model_dir = folder,
                                 .weights = weights,
                                 .table_path = "",
                                 .n_threads = 2,
                                 .tokenizer_optional = true};
    return kt_engine_create(&o, e, err);
}

/* Logits [n, vocab] of n tokens. */
static inline void kt_written_forward_as(const char *folder, kt_quant weights,
                                         const int32_t *tokens, int64_t n, float *logits) {
    kt_engine *e = NULL;
    kt_sequence *s = NULL;
    kt_err err = {0};

    cr_assert_eq(kt_written_load(folder, weights, &e, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_sequence_create(e, n, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, tokens, n, n, logits, NULL, NULL, NULL, &err), KT_OK, "%s",
                 err.message);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
}

/* The same with the weights as they are stored. */
static inline void kt_written_forward(const char *folder, const int32_t *tokens, int64_t n,
                                      float *logits) {
    kt_written_forward_as(folder, KT_QUANT_NATIVE, tokens, n, logits);
}

#endif
