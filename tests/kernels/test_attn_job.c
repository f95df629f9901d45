/* The attention job: however the work is cut, the bits are those of one plain call.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/attn/attn_common.h"
#include "kernels/attn/attn_job.h"
#include "tests/kernels/variants_of.h"
#include "tests/support/guard.h"
#include "tests/support/skip.h"

enum { HEADS = 6, KV_HEADS = 2, D = 32, CONTEXT = 2600, MAX_ROWS = 70 };

/* One after another; INT8, which all variants take, where the variant does not take it. */
static kt_weight_format cache_of(const kt_variant *v, size_t i) {
    static const kt_weight_format caches[] = {KT_W_INT8_CHANNEL, KT_W_BF16, KT_W_FP8_CHANNEL};
    return v->weights & 1u << caches[i % 3] ? caches[i % 3] : KT_W_INT8_CHANNEL;
}

typedef struct fixture {
    kt_choice choice;
    kt_attn_job job;
    float *q, *want, *got;
    uint8_t *k, *v;
    float *k_scale, *v_scale;
    int32_t position[MAX_ROWS];
    void *workspace;
} fixture;

static void fixture_init(fixture *f, const kt_variant *v, kt_weight_format cache, int n_threads) {
    kt_problem p = {
        .op = KT_OP_ATTN, .m = 1, .n = HEADS, .k = D, .kv_heads = KV_HEADS, .context = CONTEXT};
    size_t bytes, item = kt_attn_item_bytes(cache);
    kt_err err;
    kt_rng rng;
    float x[D];

    f->choice = (kt_choice){.variant = v, .config = {{v->params[0].initial}}};
    f->q = malloc(MAX_ROWS * HEADS * D * sizeof *f->q);
    f->want = malloc(MAX_ROWS * HEADS * D * sizeof *f->want);
    f->got = malloc(MAX_ROWS * HEADS * D * sizeof *f->got);
    p.weights = cache;
    f->k = malloc(KV_HEADS * CONTEXT * D * item);
    f->v = malloc(KV_HEADS * CONTEXT * D * item);
    f->k_scale = malloc(KV_HEADS * CONTEXT * sizeof *f->k_scale);
    f->v_scale = malloc(KV_HEADS * CONTEXT * sizeof *f->v_scale);
    kt_rng_seed(&rng, 3);
    for (int i = 0; i < MAX_ROWS * HEADS * D; i++) f->q[i] = kt_rng_normal(&rng);
    for (int i = 0; i < KV_HEADS * CONTEXT; i++) {
        for (int j = 0; j < D; j++) x[j] = kt_rng_normal(&rng);
        kt_attn_store(cache, x, D, f->k + (size_t)i * D * item, &f->k_scale[i]);
        for (int j = 0; j < D; j++) x[j] = kt_rng_normal(&rng);
        kt_attn_store(cache, x, D, f->v + (size_t)i * D * item, &f->v_scale[i]);
    }
    f->job = (kt_attn_job){.choice = &f->choice,
                           .problem = p,
                           .q = f->q,
                           .ldq = HEADS * D,
                           .k = f->k,
                           .v = f->v,
                           .head_stride = CONTEXT * D,
                           .k_scale = f->k_scale,
                           .v_scale = f->v_scale,
                           .scale_stride = CONTEXT,
                           .ldkv = D,
                           .scale = 0.18f,
                           .position = f->position,
                           .out = f->got,
                           .ldo = HEADS * D};
    bytes = kt_attn_job_bytes(&f->choice, &p, CONTEXT, n_threads);
    f->workspace = kt_guard_alloc(bytes, 64, 0xff);
    cr_assert(kt_attn_job_init(&f->job, CONTEXT, n_threads, f->workspace, bytes, &err) == KT_OK,
              "%s", err.message);
}

static void fixture_deinit(fixture *f) {
    free(f->q);
    free(f->want);
    free(f->got);
    free(f->k);
    free(f->v);
    free(f->k_scale);
    free(f->v_scale);
    kt_guard_free(f->workspace);
}

static void plain(fixture *f, int64_t rows) {
    void *scratch = aligned_alloc(64, f->job.scratch_bytes);
    size_t head_bytes = CONTEXT * D * kt_attn_item_bytes(f->job.problem.weights);
    for (int64_t h = 0; h < KV_HEADS; h++) {
        kt_attn_call c = {.problem = &f->job.problem,
                          .config = &f->choice.config,
                          .q = f->q,
                          .ldq = HEADS * D,
                          .k = f->k + (size_t)h * head_bytes,
                          .v = f->v + (size_t)h * head_bytes,
                          .k_scale = f->k_scale + h * CONTEXT,
                          .v_scale = f->v_scale + h * CONTEXT,
                          .ldkv = D,
                          .kv_head = h,
                          .scale = 0.18f,
                          .position = f->position,
                          .row_end = rows,
                          .out = f->want,
                          .ldo = HEADS * D,
                          .scratch = scratch};
        f->choice.variant->attn(&c);
    }
    free(scratch);
}

ParameterizedTestParameters(attn_job, repeats_the_bits_of_one_call) {
    return kt_variants_of(KT_OP_ATTN);
}

ParameterizedTest(size_t *index, attn_job, repeats_the_bits_of_one_call) {
    static const int64_t cases[][2] = {{1, 1},    {1, 1024}, {1, 2600},
                                       {3, 1026}, {4, 2050}, {70, 1100}};
    static const int threads[] = {1, 2, 3, 16};
    const kt_variant *v = kt_builtin_variants[*index];
    size_t bytes;

    kt_skip_without_isa(v->isa, v->name);
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        fixture f;
        fixture_init(&f, v, cache_of(v, t), threads[t]);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            int64_t n = cases[i][0], tasks;
            bytes = (size_t)(n * HEADS * D) * sizeof *f.got;
            for (int64_t r = 0; r < n; r++) f.position[r] = (int32_t)(cases[i][1] - n + r);
            f.job.rows = n;
            memset(f.got, 0, bytes);
            plain(&f, n);
            tasks = kt_attn_job_prepare(&f.job, threads[t]);
            for (int64_t task = tasks; task-- > 0;)
                kt_attn_job_run(&f.job, task, task + 1, (int)(task % threads[t]));
            cr_assert_eq(f.job.split, threads[t] > 2 && n <= 4 && cases[i][1] > 1024);
            kt_attn_job_merge(&f.job, 0, kt_attn_job_merge_count(&f.job, threads[t]), 0);
            cr_assert(memcmp(f.want, f.got, bytes) == 0, "%s: case %zu on %d threads", v->name, i,
                      threads[t]);
        }
        fixture_deinit(&f);
    }
}

Test(attn_job, runs_as_phases_of_a_pool) {
    kt_pool *pool = NULL;
    kt_phase phases[KT_ATTN_PHASES];
    kt_err err;
    kt_pool_options options = {.n_threads = 3, .no_pin = 1};

    cr_assert(kt_pool_create(&options, &pool, &err) == KT_OK, "%s", err.message);
    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        fixture f;
        if (v->op != KT_OP_ATTN || (v->isa & ~kt_isa_available())) continue;
        fixture_init(&f, v, cache_of(v, i), 3);
        kt_attn_job_phases(&f.job, phases);
        for (int64_t n = 1; n <= MAX_ROWS; n += 23) {
            for (int64_t r = 0; r < n; r++) f.position[r] = (int32_t)(2500 - n + r);
            f.job.rows = n;
            plain(&f, n);
            kt_pool_run(pool, phases, KT_ATTN_PHASES);
            cr_assert(memcmp(f.want, f.got, (size_t)(n * HEADS * D) * sizeof *f.got) == 0,
                      "%s: %lld rows", v->name, (long long)n);
        }
        fixture_deinit(&f);
    }
    kt_pool_destroy(pool);
}

Test(attn_job, refuses_a_workspace_that_is_too_small) {
    const kt_variant *scalar = NULL;
    kt_attn_job job = {.problem = {.op = KT_OP_ATTN, .n = 4, .k = 32, .kv_heads = 2}};
    kt_choice choice = {.config = {{32}}};
    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (!strcmp(kt_builtin_variants[i]->name, "bf16_online__scalar"))
            scalar = kt_builtin_variants[i];
    choice.variant = scalar;
    job.choice = &choice;
    size_t bytes = kt_attn_job_bytes(&choice, &job.problem, 5000, 3);
    cr_assert_gt(bytes, 0);
    cr_assert_eq(kt_attn_job_init(&job, 5000, 3, NULL, bytes - 1, NULL), KT_E_INVALID);
    cr_assert_eq(kt_attn_job_bytes(&choice, &job.problem, 0, 3), 0);
    cr_assert_eq(kt_attn_job_bytes(&choice, &job.problem, INT64_MAX, 3), 0);
}
