/* Latent attention: keys and values of every head made from one row of the cache, or heads'
 * queries taken into that row's space. The second is grouped-query attention over one kv head
 * whose rows begin with their values. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "base/numeric.h"
#include "base/rng.h"
#include "kernels/attn/attn_common.h"
#include "tests/kernels/variants_of.h"
#include "tests/support/skip.h"

/* DeepSeek-V3 but for the number of heads. */
enum { HEADS = 16, NOPE = 128, ROPE = 64, LATENT = 512, V = 128, CONTEXT = 150, K = LATENT + ROPE };
enum { K_WIDE = NOPE + ROPE }; /* of an expanded head */

typedef struct latent {
    float q[HEADS * K_WIDE];
    float up_k[HEADS][NOPE][LATENT], up_v[HEADS][V][LATENT];
    uint16_t cache[CONTEXT * K]; /* latent, then the rotated part of the keys */
    float expanded[HEADS * V], absorbed[HEADS * V];
} latent;

static const float scale = 0.1f;

static float dot(const float *a, const float *b, int64_t n) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static latent *latent_make(uint64_t seed) {
    latent *x = malloc(sizeof *x);
    kt_rng rng;

    cr_assert(x);
    kt_rng_seed(&rng, seed);
    for (int i = 0; i < HEADS * K_WIDE; i++) x->q[i] = kt_rng_normal(&rng);
    for (int i = 0; i < HEADS * NOPE * LATENT; i++)
        (&x->up_k[0][0][0])[i] = kt_rng_normal(&rng) * 0.05f;
    for (int i = 0; i < HEADS * V * LATENT; i++)
        (&x->up_v[0][0][0])[i] = kt_rng_normal(&rng) * 0.05f;
    for (int i = 0; i < CONTEXT * K; i++) x->cache[i] = kt_f32_to_bf16(kt_rng_normal(&rng));
    return x;
}

/* One head as the model defines it, in f32: o = sum P v. */
static void expand_head(latent *x, int head) {
    const float *q = x->q + (size_t)head * K_WIDE;
    float p[CONTEXT], v[CONTEXT][V], top = -INFINITY, total = 0.0f;

    for (int s = 0; s < CONTEXT; s++) {
        float row[K], key[K_WIDE];
        for (int i = 0; i < K; i++) row[i] = kt_bf16_to_f32(x->cache[s * K + i]);
        for (int i = 0; i < NOPE; i++) key[i] = dot(x->up_k[head][i], row, LATENT);
        for (int i = 0; i < ROPE; i++) key[NOPE + i] = row[LATENT + i];
        for (int i = 0; i < V; i++) v[s][i] = dot(x->up_v[head][i], row, LATENT);
        p[s] = scale * dot(q, key, K_WIDE);
        top = fmaxf(top, p[s]);
    }
    for (int s = 0; s < CONTEXT; s++) total += p[s] = expf(p[s] - top);
    for (int i = 0; i < V; i++) {
        float sum = 0.0f;
        for (int s = 0; s < CONTEXT; s++) sum += p[s] * v[s][i];
        x->expanded[head * V + i] = sum / total;
    }
}

/* All heads over the cache as it is. */
static void absorb(latent *x, const kt_variant *v) {
    const kt_problem p = {.op = KT_OP_ATTN,
                          .weights = KT_W_BF16,
                          .m = 1,
                          .n = HEADS,
                          .k = K,
                          .kv_heads = 1,
                          .context = CONTEXT,
                          .v = LATENT};
    const kt_config config = {{v->params[0].initial}};
    const int32_t position = CONTEXT - 1;
    float *q = calloc(HEADS * K, sizeof *q), *o = malloc(HEADS * LATENT * sizeof *o);
    void *scratch = aligned_alloc(64, (v->workspace_bytes(&p, &config) + 63) / 64 * 64);

    cr_assert(q && o && scratch);
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < NOPE; i++)
            for (int c = 0; c < LATENT; c++)
                q[h * K + c] += x->q[h * K_WIDE + i] * x->up_k[h][i][c];
        for (int i = 0; i < ROPE; i++) q[h * K + LATENT + i] = x->q[h * K_WIDE + NOPE + i];
    }
    v->attn(&(kt_attn_call){.problem = &p,
                            .config = &config,
                            .q = q,
                            .ldq = HEADS * K,
                            .k = x->cache,
                            .v = x->cache,
                            .ldkv = K,
                            .scale = scale,
                            .position = &position,
                            .row_end = 1,
                            .out = o,
                            .ldo = HEADS * LATENT,
                            .scratch = scratch});
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < V; i++)
            x->absorbed[h * V + i] = dot(x->up_v[h][i], o + (size_t)h * LATENT, LATENT);
    free(q);
    free(o);
    free(scratch);
}

ParameterizedTestParameters(attn_latent, absorbed_equals_expanded) {
    return kt_variants_of(KT_OP_ATTN);
}

/* Relative to the size of the result. Kernels that round queries and weights differ by that
 * rounding: the gate's matter. */
ParameterizedTest(size_t *index, attn_latent, absorbed_equals_expanded) {
    const kt_variant *v = kt_builtin_variants[*index];

    kt_skip_without_isa_or_tiles(v->isa, v->name);
    if (v->numerics != KT_NUM_F32) return;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        latent *x = latent_make(seed);
        double error = 0.0, size = 0.0;
        for (int h = 0; h < HEADS; h++) expand_head(x, h);
        absorb(x, v);
        for (int i = 0; i < HEADS * V; i++) {
            double e = (double)x->absorbed[i] - x->expanded[i];
            error += e * e;
            size += (double)x->expanded[i] * x->expanded[i];
        }
        cr_expect(sqrt(error / size) < 1e-5, "%s: relative difference %g", v->name,
                  sqrt(error / size));
        free(x);
    }
}
