/* Scores of the indexer, key by key: products and sums in the order of the numbers and heads.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/numeric.h"
#include "kernels/indexer/indexer_common.h"

static float product_of(const float *q, const uint16_t *key, int64_t dim) {
    float product = 0;

    for (int64_t i = 0; i < dim; i++) product += q[i] * kt_bf16_to_f32(key[i]);
    return product;
}

static float score(const kt_index_call *c, const float *q, const float *w, const uint16_t *key) {
    const int64_t heads = c->problem->n, dim = c->problem->k;
    float sum = 0;

    for (int64_t h = 0; h < heads; h++, q += dim) {
        const float product = product_of(q, key, dim);
        if (product > 0) sum += w[h] * product;
    }
    return sum;
}

/* Each head for itself. */
static void score_heads(const kt_index_call *c, int64_t row) {
    const int64_t heads = c->problem->n, dim = c->problem->k;

    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < c->n_keys; i++)
            c->score[(row * heads + h) * c->lds + i] =
                product_of(c->q + row * c->ldq + h * dim, c->keys + i * c->ldk, dim);
}

static void index_dots(const kt_index_call *c) {
    if (c->problem->kv_heads) {
        for (int64_t r = c->row_begin; r < c->row_end; r++) score_heads(c, r);
        return;
    }
    for (int64_t r = c->row_begin; r < c->row_end; r++)
        for (int64_t i = 0; i < c->n_keys; i++)
            c->score[r * c->lds + i] =
                score(c, c->q + r * c->ldq, c->w + r * c->ldw, c->keys + i * c->ldk);
}

static kt_status accepts(const kt_problem *p, const kt_config *config, kt_err *why) {
    (void)config;
    return kt_index_accepts(p, 1, why);
}

KT_VARIANT(index_dots__scalar) = {
    .name = "index_dots__scalar",
    .op = KT_OP_INDEX,
    .weights = 1u << KT_W_BF16 | 1u << KT_W_NONE,
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_F32,
    .bits = "index-plain",
    .version = 1,
    .layout = "",
    .rank = 1,
    .accepts = accepts,
    .index = index_dots,
};
