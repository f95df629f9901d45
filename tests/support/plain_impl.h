/* Between plain_model.c and plain_forward.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_PLAIN_IMPL_H
#define KT_TESTS_PLAIN_IMPL_H

#include "base/rng.h"
#include "dispatch/model/checkpoint.h"
#include "tests/support/plain_model.h"

#define KT_PLAIN_TENSORS 1024

typedef struct plain_tensor {
    char name[200];
    int64_t rows, k; /* rows 0: a vector */
    kt_dtype dtype;
    double *value;
} plain_tensor;

struct kt_plain_model {
    kt_plain_shape shape;
    plain_tensor tensor[KT_PLAIN_TENSORS];
    int count;
};

/* Weights being drawn; prefix goes before each name. */
typedef struct plain_drawing {
    kt_plain_model *model;
    kt_rng rng;
    char prefix[64];
} plain_drawing;

/* A tensor with numbers of BF16 also where the file says F32; rows 0: a vector. I64: ids below
 * `deviation`. */
void kt_plain_draw(plain_drawing *d, const char *name, int64_t rows, int64_t k, double mean,
                   double deviation, kt_dtype dtype);

/* A tensor; aborts when there is none of that name. */
plain_tensor *kt_plain_find(kt_plain_model *m, const char *name);

/* The name that files have for a tensor of the model; returns out. */
const char *kt_plain_published_name(const kt_plain_shape *s, const char *name, char out[240]);
/* Is it a matrix that checkpoints encode? */
bool kt_plain_is_matrix(const plain_tensor *t);
/* A number for what shares an encoding: the same matrix of all experts of a layer and (is_pair) its
 * gate and up. */
uint64_t kt_plain_role(const char *name, bool is_pair);

struct plain_pass;

/* plain_v4.c: DeepSeek-V4's tensors; its config.json, of at most `room` bytes; its logits. */
void kt_plain_v4_draw(plain_drawing *d);
size_t kt_plain_v4_config(const kt_plain_shape *s, char *out, size_t room);
void kt_plain_v4_forward(struct plain_pass *p, const int32_t *tokens, double *logits);

/* Its numbers; aborts when there is none of that name. */
const double *kt_plain_tensor(const kt_plain_model *m, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* DeltaNet layers, one-plus norms, softmax router, gated shared expert. */
static inline bool kt_plain_is_hybrid(const kt_plain_shape *s) {
    return s->family == KT_PLAIN_QWEN3_NEXT || s->family == KT_PLAIN_QWEN3_5;
}

/* A softmax over the experts, and no bias. */
static inline bool kt_plain_is_softmax(const kt_plain_shape *s) {
    return kt_plain_is_hybrid(s) || s->family == KT_PLAIN_QWEN3_MOE;
}

/* Has layer l an indexer of its own? */
static inline bool kt_plain_has_indexer(const kt_plain_shape *s, int64_t l) {
    return s->index_topk && (!s->indexers || s->indexers[l] == 'F');
}

/* Is layer l of a hybrid model a DeltaNet layer? */
bool kt_plain_is_delta(const kt_plain_shape *s, int64_t l);

#endif
