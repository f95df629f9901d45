/* Latent attention on GPUs, dense and over picked keys, and the indexer that picks them, under the
 * emulator. Attention has the bounds of the CPU's BF16 kernels, the indexer's scores those of
 * kernels/indexer and what rounding of queries adds; what is picked is the same set.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/indexer/index_pick.h"
#include "kernels/indexer/indexer_ref.h"
#include "tests/kernels/cuda_attn_batch.h"

static const attn_case cases[] = {
    {{20, 1, 64, 32, 0, KT_ATTN_BF16, true}, false, 2, {{90, 2}, {0, 3}}},
    {{16, 1, 96, 64, 0, KT_ATTN_INT8, true}, true, 2, {{61, 1}, {120, 2}}},
    {{5, 1, 160, 144, 70, KT_ATTN_FP8, true}, false, 1, {{140, 3}}},
    {{3, 1, 576, 512, 0, KT_ATTN_BF16, true}, false, 1, {{66, 1}}}};

static kt_config config_of(const attn_case *c, int rows, int keys, int stages) {
    return (kt_config){{c->shape.k, c->shape.v, c->shape.cache, rows, keys, stages}};
}

Test(cuda_latent, keys_that_begin_with_their_values, .timeout = 120) {
    static const int configs[][4] = {
        {32, 16, 3, 0}, {16, 32, 2, 64}, {16, 16, 2, 128}, {32, 32, 2, 64}};
    const kt_cuda_kernel *k = attn_kernel("attn_latent");

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t j = 0; j < sizeof configs / sizeof *configs; j++) {
            const int *x = configs[j];
            const kt_config config = config_of(&cases[i], x[0], x[1], x[2]);
            char what[128];
            attn_batch b;
            if (k->refuse(&config, &kt_cuda_targets[0])) continue;
            snprintf(what, sizeof what, "keys of %d, values of %d, tiles of %d by %d, splits of %d",
                     (int)cases[i].shape.k, (int)cases[i].shape.v, x[0], x[1], x[3]);
            attn_make(&b, &cases[i], i * 4 + j + 1);
            attn_run(&b, k, &config, x[0], x[3], (uint32_t)(i * 4 + j + 1));
            attn_expect(&b, what);
            attn_drop(&b);
        }
}

/* ---- picked keys ---- */

/* Every row's list: of the keys up to its position, every third or so. */
static int32_t *pick_some(const attn_batch *b, int topk, kt_rng *rng) {
    int32_t *picked = malloc((size_t)(b->rows * topk) * sizeof *picked);

    for (int r = 0; r < b->rows; r++) {
        int n = 0;
        for (int j = 0; j <= b->position[r] && n < topk; j++)
            if (b->position[r] - j < topk - n || kt_rng_below(rng, 3) == 0)
                picked[r * topk + n++] = j;
        for (; n < topk; n++) picked[r * topk + n] = -1; /* of rows that meet all keys */
    }
    return picked;
}

Test(cuda_latent, only_picked_keys_are_met, .timeout = 120) {
    static const int configs[][4] = {{16, 32, 2, 0}, {32, 16, 3, 64}};
    const kt_cuda_kernel *k = attn_kernel("attn_latent");

    for (size_t i = 0; i < 2; i++)
        for (size_t j = 0; j < sizeof configs / sizeof *configs; j++) {
            const int *x = configs[j];
            const kt_config config = config_of(&cases[i], x[0], x[1], x[2]);
            attn_case plain = cases[i];
            int32_t *picked;
            attn_batch b;
            kt_rng rng;
            plain.has_sinks = false;
            kt_rng_seed(&rng, i + j);
            attn_make(&b, &plain, i * 4 + j + 50);
            b.call.topk = 85;
            b.call.picked = picked = pick_some(&b, b.call.topk, &rng);
            attn_run(&b, k, &config, x[0], x[3], (uint32_t)(i * 4 + j + 1));
            attn_expect(&b, "picked keys");
            free(picked);
            attn_drop(&b);
        }
}

/* ---- the indexer ---- */

enum { TOPK = 37, ROWS = 4, MAX_CONTEXT = 400 };

typedef struct index_batch {
    int heads, dim;
    kt_guard q, w, keys, score, picked;
    uint16_t *plain[2]; /* of both sequences */
    uint32_t table[16];
    int32_t position[ROWS], span_of[ROWS], first_page[2];
    kt_attn_index call;
} index_batch;

/* Two sequences of up to 400 keys; row 1 sees no more than TOPK. */
static void make_index(index_batch *b, int heads, int dim, uint64_t seed) {
    static const int32_t positions[ROWS] = {399, TOPK - 1, 200, TOPK};
    uint16_t *keys;
    float *q, *w;
    kt_rng rng;

    *b = (index_batch){.heads = heads, .dim = dim, .first_page = {0, 7}};
    kt_rng_seed(&rng, seed);
    keys = attn_guarded(&b->keys, (size_t)(16 * KT_ATTN_PAGE * dim) * 2, 0xff);
    for (uint32_t i = 0; i < 16; i++) b->table[i] = i * 5 % 16;
    for (int s = 0; s < 2; s++) {
        b->plain[s] = malloc((size_t)(MAX_CONTEXT * dim) * 2);
        for (int t = 0; t < MAX_CONTEXT; t++) {
            uint16_t *row = keys + (b->table[b->first_page[s] + t / KT_ATTN_PAGE] * KT_ATTN_PAGE +
                                    (uint32_t)t % KT_ATTN_PAGE) *
                                       (uint32_t)dim;
            for (int i = 0; i < dim; i++) row[i] = (uint16_t)kt_emulator_bf16(kt_rng_normal(&rng));
            memcpy(b->plain[s] + t * dim, row, (size_t)dim * 2);
        }
    }
    q = attn_guarded(&b->q, (size_t)(ROWS * heads * dim) * sizeof *q, 0);
    w = attn_guarded(&b->w, (size_t)(ROWS * heads) * sizeof *w, 0);
    for (int i = 0; i < ROWS * heads * dim; i++) q[i] = kt_rng_normal(&rng);
    for (int i = 0; i < ROWS * heads; i++) w[i] = kt_rng_normal(&rng);
    attn_guarded(&b->score, (size_t)(ROWS * MAX_CONTEXT) * sizeof(float), 0xff);
    attn_guarded(&b->picked, (size_t)(ROWS * TOPK) * sizeof(int32_t), 0xff);
    for (int r = 0; r < ROWS; r++) {
        b->position[r] = positions[r];
        b->span_of[r] = r / 2;
    }
    b->call =
        (kt_attn_index){.q = q,
                        .w = w,
                        .ldq = heads * dim,
                        .ldw = heads,
                        .k = {.rows = b->keys.data, .page = KT_ATTN_PAGE * dim * 2, .row = dim * 2},
                        .position = b->position,
                        .page = b->table,
                        .span_of = b->span_of,
                        .first_page = b->first_page,
                        .score = b->score.data,
                        .ld_score = MAX_CONTEXT,
                        .picked = b->picked.data,
                        .heads = heads,
                        .topk = TOPK};
}

static void drop_index(index_batch *b) {
    kt_guard *all[] = {&b->q, &b->w, &b->keys, &b->score, &b->picked};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) kt_guard_destroy(all[i]);
    free(b->plain[0]), free(b->plain[1]);
}

/* Rounding of a query's numbers: what each product may be off by, times the heads' weights. */
static double rounding(const index_batch *b, int row, int key, double unit) {
    double sum = 0;

    for (int h = 0; h < b->heads; h++) {
        const float *q = b->call.q + (row * b->heads + h) * b->dim;
        for (int i = 0; i < b->dim; i++)
            sum += fabs(
                (double)b->call.w[row * b->heads + h] * (double)q[i] *
                (double)kt_float_bits((uint32_t)b->plain[b->span_of[row]][key * b->dim + i] << 16));
    }
    return unit * sum;
}

static void expect_scores(const index_batch *b, int parts) {
    const kt_problem problem = {.n = b->heads, .k = b->dim};
    double want[MAX_CONTEXT], bound[MAX_CONTEXT];

    for (int r = 0; r < ROWS; r++) {
        const int n = b->position[r] + 1;
        const float *score = b->call.score + r * MAX_CONTEXT;
        const kt_index_call c = {.problem = &problem,
                                 .q = b->call.q,
                                 .ldq = b->call.ldq,
                                 .w = b->call.w,
                                 .ldw = b->call.ldw,
                                 .keys = b->plain[b->span_of[r]],
                                 .ldk = b->dim,
                                 .n_keys = n};
        if (n > TOPK) kt_index_ref(&c, r, want, bound);
        for (int j = 0; j < MAX_CONTEXT; j++) {
            if (n <= TOPK || j >= n) {
                cr_assert(isnan(score[j]), "row %d: score %d is written", r, j);
                continue;
            }
            bound[j] += rounding(b, r, j, parts == 2 ? 0x1p-17 : 0x1p-9);
            cr_assert(fabs((double)score[j] - want[j]) <= bound[j],
                      "%d parts, row %d, key %d: %g, expected %g +- %g", parts, r, j,
                      (double)score[j], want[j], bound[j]);
        }
    }
}

/* The kernel's own scores go on into picking, a few of them made equal or NaN; in row 0 the last
 * that are picked are zeros of either sign. */
static void expect_picked(const index_batch *b, const kt_cuda_kernel *k, const kt_config *config,
                          uint32_t seed) {
    int32_t want[TOPK];

    for (int r = 0; r < ROWS; r++) {
        float *score = b->call.score + r * MAX_CONTEXT;
        for (int j = 0; j <= b->position[r] && r != 2; j++) {
            if (j % 5 == 0) score[j] = j % 2 ? 0.5f : 2.0f;
            if (j == 17) score[j] = NAN;
            if (r == 0) score[j] = j % 20 == 7 ? 1.0f : j % 2 ? 0.0f : -0.0f;
        }
    }
    attn_launch(k, 1, &b->call, 1, ROWS, config, seed);
    for (int r = 0; r < ROWS; r++) {
        const int32_t *got = b->call.picked + r * TOPK;
        if (b->position[r] < TOPK) {
            cr_expect_eq(got[0], -1, "row %d meets all keys, and was picked for", r);
            continue;
        }
        kt_index_pick(b->call.score + r * MAX_CONTEXT, b->position[r] + 1, TOPK, want);
        for (int i = 0; i < TOPK; i++)
            cr_assert_eq(got[i], want[i], "row %d: picked key %d is %d, expected %d", r, i,
                         (int)got[i], (int)want[i]);
    }
}

Test(cuda_latent, index_scores_and_what_they_pick, .timeout = 120) {
    static const int sizes[][4] = {{3, 32, 2, 2}, {17, 64, 1, 4}, {8, 128, 2, 8}};
    const kt_cuda_kernel *k = attn_kernel("attn_index");

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int *x = sizes[i];
        const kt_config config = {{x[1], x[2], x[3]}};
        const kt_launch l = {.name = k->entry[0].name, .entry = k->entry[0].emulated};
        index_batch b;
        kt_launch scores = l;
        kt_err err;
        make_index(&b, x[0], x[1], i + 1);
        scores.parameters = &b.call;
        scores.grid_x = (MAX_CONTEXT + 16 * x[3] - 1) / (16 * x[3]);
        scores.grid_y = ROWS;
        scores.threads = k->threads(&config);
        scores.shared_bytes = k->shared_bytes(&config, x[0]);
        scores.constant = config.value;
        cr_assert_eq(kt_emulate(&scores,
                                &(kt_emulator_options){
                                    .seed = (uint32_t)i, .lazy = i % 2 == 0, .races = true},
                                &err),
                     KT_OK, "%s", err.message);
        expect_scores(&b, x[2]);
        expect_picked(&b, k, &config, (uint32_t)i + 1);
        drop_index(&b);
    }
}

Test(cuda_latent, impossible_sizes_are_refused) {
    const kt_cuda_kernel *k = attn_kernel("attn_latent"), *index = attn_kernel("attn_index");
    const kt_cuda_target *ada = &kt_cuda_targets[3];
    kt_config config = kt_cuda_initial(k), scores = kt_cuda_initial(index);

    cr_assert_str_eq(ada->name, "89");
    cr_expect_null(k->refuse(&config, ada), "DeepSeek's sizes fit 99 KiB");
    config.value[4] = 32;
    cr_expect_not_null(k->refuse(&config, ada)); /* 32 by 32 with three stages */
    config.value[0] = 560;
    cr_expect_not_null(k->refuse(&config, &kt_cuda_targets[0]));
    config.value[0] = config.value[1] = 576;
    cr_expect_not_null(k->refuse(&config, &kt_cuda_targets[0]));
    cr_expect_null(index->refuse(&scores, ada));
    scores.value[0] = 256;
    cr_expect_not_null(index->refuse(&scores, ada));
}
