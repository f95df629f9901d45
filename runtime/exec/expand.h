/* Latent attention of many rows with keys and values of every head's own.
 *
 * Absorbed, a pair of a query and a key costs a product of `k` numbers (576) and a sum of `latent`
 * (512); made wide, nope + rope (192) and v (128), but each key has to be multiplied by both halves
 * of kv_b first. That pays from some rows on, which share the wide keys
 * (kt_model_plan.expand_rows).
 * A task is one head of one span: it makes the keys and values of 1024 tokens at a time from the
 * rows of the cache, in BF16, and meets them with the span's rows like a cache of its own. It needs
 * no weights but the packed halves that the absorbed form has: the keys' is turned per task.
 *
 * A row's result depends on its own sequence and on the number of rows of its span only by which of
 * both ways it goes. Its bits are of the class of the products that make keys and values, the same
 * for any number of threads and any other spans, but not those of the absorbed form: deterministic
 * plans do not expand.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_EXPAND_H
#define KT_RUNTIME_EXPAND_H

#include "runtime/exec/step.h"

typedef struct kt_expand {
    kt_exec_node *node; /* the layer's; set before the phase */
    const kt_choice *attn;
    const kt_problem_plan *keys, *values;
    const kt_variant *encode; /* of f32 rows to BF16; NULL = the products take another encoding */
    float item[256];          /* of each 8-bit code of the cache */
    uint8_t *scratch;         /* [threads] */
    size_t scratch_bytes;
    int64_t parts; /* of each span's rows; set when the phase starts */
} kt_expand;

/* Can this node's rows be expanded under this plan (kt_model_plan.expand_rows)? */
bool kt_expand_is_planned(const kt_model_plan *plan, const kt_node *attend);

/* Bytes of all threads. 0 = nothing is expanded. */
size_t kt_expand_bytes(const kt_model_plan *plan, const kt_node *attend, int n_threads);

/* For all nodes of the kind of n; memory is the step's. */
kt_status kt_expand_init(kt_expand *x, kt_exec_node *n, kt_err *err);

/* The phase over the step's spans that are expanded. */
kt_phase kt_expand_phase(kt_expand *x);

/* Operations of the spans that are expanded: products with the halves, and attention. */
double kt_expand_ops(const kt_exec_node *n);

/* What of the current step is absorbed: spans [first, first + count), with their rows. From the
 * first span with few rows to the last one; all others are expanded. */
typedef struct kt_absorbed {
    int first_span, n_spans;
    int64_t first_row, rows;
} kt_absorbed;
kt_absorbed kt_expand_rest(const kt_step *s, const kt_node *attend);

#endif
