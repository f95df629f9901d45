/* The attention job: however the work is cut, the bits are those of one plain call.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/attn/attn_common.h"
#include "kernels/attn/attn_job.h"
#include "kernels/attn/attn_walk.h"
#include "tests/kernels/variants_of.h"
#include "tests/support/guard.h"
#include "tests/support/skip.h"

enum { CONTEXT = 2600, MAX_ROWS = 70 };

/* Heads over kv heads, sizes of keys and values (0 = of keys, in their rows with 48), window. */
typedef struct job_shape {
    int64_t heads, kv_heads, k, v, window;
} job_shape;

static const job_shape shapes[] = {
    {6, 2, 32, 0, 0}, {64, 1, 48, 32, 0}, {6, 2, 32, 16, 1200}, {6, 2, 32, 0, 30}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* One after another; the next that the variant takes. */
static kt_weight_format cache_of(const kt_variant *v, size_t i) {
    static const kt_weight_format caches[] = {KT_W_INT8_CHANNEL, KT_W_BF16, KT_W_FP8_CHANNEL};

    while (!(v->weights & KT_W_BIT(caches[i % 3]))) i++;
    return caches[i % 3];
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

static void fill_rows(kt_rng *rng, kt_weight_format cache, int64_t rows, int64_t d, uint8_t *out,
                      float *scale) {
    float x[48];

    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < d; j++) x[j] = kt_rng_normal(rng);
        kt_attn_store(cache, x, d, out + (size_t)(i * d) * kt_attn_item_bytes(cache), &scale[i]);
    }
}

static void fixture_init(fixture *f, const kt_variant *v, kt_weight_format cache,
                         const job_shape *s, int n_threads) {
    kt_problem p = {.op = KT_OP_ATTN,
                    .weights = cache,
                    .m = 1,
                    .n = s->heads,
                    .k = s->k,
                    .kv_heads = s->kv_heads,
                    .context = CONTEXT,
                    .v = s->v,
                    .window = s->window};
    int64_t rows = s->kv_heads * CONTEXT, dv = kt_attn_value_size(&p);
    size_t q = (size_t)(MAX_ROWS * s->heads * s->k), out = (size_t)(MAX_ROWS * s->heads * dv);
    size_t bytes, item = kt_attn_item_bytes(cache);
    bool is_shared = s->k == 48;
    kt_err err;
    kt_rng rng;

    f->choice = (kt_choice){.variant = v, .config = {{v->params[0].initial}}};
    f->q = malloc(q * sizeof *f->q);
    f->want = malloc(out * sizeof *f->want);
    f->got = malloc(out * sizeof *f->got);
    f->k = malloc((size_t)(rows * s->k) * item);
    f->v = malloc((size_t)(rows * dv) * item);
    f->k_scale = malloc((size_t)rows * sizeof *f->k_scale);
    f->v_scale = malloc((size_t)rows * sizeof *f->v_scale);
    kt_rng_seed(&rng, 3);
    for (size_t i = 0; i < q; i++) f->q[i] = kt_rng_normal(&rng);
    fill_rows(&rng, cache, rows, s->k, f->k, f->k_scale);
    fill_rows(&rng, cache, rows, dv, f->v, f->v_scale);
    f->job = (kt_attn_job){.choice = &f->choice,
                           .problem = p,
                           .q = f->q,
                           .ldq = s->heads * s->k,
                           .k = f->k,
                           .v = is_shared ? f->k : f->v,
                           .head_stride = CONTEXT * s->k,
                           .ldkv = s->k,
                           .v_head_stride = is_shared ? 0 : CONTEXT * dv,
                           .ldv = is_shared ? 0 : dv,
                           .k_scale = f->k_scale,
                           .v_scale = is_shared ? f->k_scale : f->v_scale,
                           .scale_stride = CONTEXT,
                           .scale = 0.18f,
                           .position = f->position,
                           .out = f->got,
                           .ldo = s->heads * dv};
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
    const kt_attn_job *j = &f->job;
    size_t item = kt_attn_item_bytes(j->problem.weights);
    int64_t v_stride = j->ldv ? j->v_head_stride : j->head_stride;
    void *scratch = aligned_alloc(64, j->scratch_bytes);

    for (int64_t h = 0; h < j->problem.kv_heads; h++) {
        kt_attn_call c = {.problem = &j->problem,
                          .config = &f->choice.config,
                          .q = f->q,
                          .ldq = j->ldq,
                          .k = (const char *)j->k + (size_t)(h * j->head_stride) * item,
                          .v = (const char *)j->v + (size_t)(h * v_stride) * item,
                          .k_scale = j->k_scale + h * CONTEXT,
                          .v_scale = j->v_scale + h * CONTEXT,
                          .ldkv = j->ldkv,
                          .ldv = j->ldv,
                          .kv_head = h,
                          .scale = 0.18f,
                          .position = f->position,
                          .row_end = rows,
                          .out = f->want,
                          .ldo = j->ldo,
                          .scratch = scratch};
        f->choice.variant->attn(&c);
    }
    free(scratch);
}

/* Does the cut job, its tasks in reverse, give the bits of one call for `rows` rows that end at
 * `end`? */
static void expect_plain_bits(fixture *f, int64_t rows, int64_t end, int n_threads) {
    size_t bytes = (size_t)(rows * f->job.ldo) * sizeof *f->got;
    int64_t tasks;

    for (int64_t r = 0; r < rows; r++) f->position[r] = (int32_t)(end - rows + r);
    f->job.rows = rows;
    memset(f->got, 0, bytes);
    plain(f, rows);
    tasks = kt_attn_job_prepare(&f->job, n_threads);
    for (int64_t task = tasks; task-- > 0;)
        kt_attn_job_run(&f->job, task, task + 1, (int)(task % n_threads));
    kt_attn_job_merge(&f->job, 0, kt_attn_job_merge_count(&f->job, n_threads), 0);
    cr_assert(memcmp(f->want, f->got, bytes) == 0,
              "%s: %lld rows to %lld on %d threads, values %lld, window %lld",
              f->choice.variant->name, (long long)rows, (long long)end, n_threads,
              (long long)f->job.problem.v, (long long)f->job.problem.window);
}

ParameterizedTestParameters(attn_job, repeats_the_bits_of_one_call) {
    return kt_variants_of(KT_OP_ATTN);
}

ParameterizedTest(size_t *index, attn_job, repeats_the_bits_of_one_call) {
    static const int64_t cases[][2] = {{1, 1},    {1, 1024}, {1, 2600},
                                       {3, 1026}, {4, 2050}, {70, 1100}};
    static const int threads[] = {1, 2, 3, 16};
    const kt_variant *v = kt_builtin_variants[*index];

    kt_skip_without_isa_or_tiles(v->isa, v->name);
    for (size_t t = 0; t < N_SHAPES * sizeof threads / sizeof *threads; t++) {
        int n_threads = threads[t / N_SHAPES];
        fixture f;
        fixture_init(&f, v, cache_of(v, t / N_SHAPES), &shapes[t % N_SHAPES], n_threads);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            expect_plain_bits(&f, cases[i][0], cases[i][1], n_threads);
            if (t % N_SHAPES == 0)
                cr_assert_eq(f.job.whole.split,
                             n_threads > 1 && cases[i][0] <= 4 && cases[i][1] > 1024);
        }
        fixture_deinit(&f);
    }
}

/* ---- pages ---- */

enum { PAGES = (CONTEXT + KT_ATTN_BLOCK - 1) / KT_ATTN_BLOCK, COPIES = 2 };

/* The fixture's cache twice over, in pages that are dealt like cards. */
typedef struct paged {
    uint8_t *rows;
    float *scales;
    uint32_t table[COPIES][PAGES];
} paged;

static void copy_page(const fixture *f, paged *p, int64_t key, uint32_t number) {
    const kt_attn_job *j = &f->job;
    const size_t item = kt_attn_item_bytes(j->problem.weights);
    const int64_t heads = j->problem.kv_heads, k = j->problem.k, v = j->ldv;
    const int64_t n = CONTEXT - key < KT_ATTN_BLOCK ? CONTEXT - key : KT_ATTN_BLOCK;
    uint8_t *to = p->rows + (size_t)(number * heads * KT_ATTN_BLOCK * (k + v)) * item;
    float *scales = p->scales + number * 2 * heads * KT_ATTN_BLOCK;

    for (int64_t h = 0; h < heads; h++) {
        memcpy(to + (size_t)(h * KT_ATTN_BLOCK * k) * item,
               f->k + (size_t)((h * CONTEXT + key) * k) * item, (size_t)(n * k) * item);
        memcpy(to + (size_t)((heads * k + h * v) * KT_ATTN_BLOCK) * item,
               f->v + (size_t)((h * CONTEXT + key) * v) * item, (size_t)(n * v) * item);
        memcpy(scales + h * KT_ATTN_BLOCK, f->k_scale + h * CONTEXT + key, (size_t)n * 4);
        memcpy(scales + (heads + h) * KT_ATTN_BLOCK, f->v_scale + h * CONTEXT + key, (size_t)n * 4);
    }
}

static void paged_init(paged *p, const fixture *f) {
    const kt_attn_job *j = &f->job;
    const size_t rows = (size_t)(COPIES * PAGES * KT_ATTN_BLOCK * j->problem.kv_heads);
    uint32_t deck[COPIES * PAGES];
    kt_rng rng;

    p->rows = kt_guard_alloc(
        rows * (size_t)(j->problem.k + j->ldv) * kt_attn_item_bytes(j->problem.weights), 64, 0x7f);
    p->scales = kt_guard_alloc(rows * 2 * sizeof *p->scales, 64, 0xff);
    kt_rng_seed(&rng, 9);
    for (uint32_t i = 0; i < COPIES * PAGES; i++) deck[i] = i;
    for (uint32_t i = COPIES * PAGES - 1; i > 0; i--) {
        uint32_t other = (uint32_t)kt_rng_below(&rng, i + 1), was = deck[i];
        deck[i] = deck[other];
        deck[other] = was;
    }
    for (int64_t i = 0; i < COPIES * PAGES; i++) {
        p->table[i / PAGES][i % PAGES] = deck[i];
        copy_page(f, p, i % PAGES * KT_ATTN_BLOCK, deck[i]);
    }
}

static void use_pages(kt_attn_job *j, const paged *p, kt_attn_span *spans, int64_t n) {
    const int64_t heads = j->problem.kv_heads, k = j->problem.k;

    j->spans = spans;
    j->n_spans = n;
    j->k = p->rows;
    j->v = j->ldv ? p->rows +
                        (size_t)(heads * KT_ATTN_BLOCK * k) * kt_attn_item_bytes(j->problem.weights)
                  : p->rows;
    j->head_stride = KT_ATTN_BLOCK * k;
    j->v_head_stride = KT_ATTN_BLOCK * j->ldv;
    j->page_stride = heads * KT_ATTN_BLOCK * (k + j->ldv);
    j->k_scale = p->scales;
    j->v_scale = j->ldv ? p->scales + heads * KT_ATTN_BLOCK : p->scales;
    j->scale_stride = KT_ATTN_BLOCK;
    j->scale_page_stride = 2 * heads * KT_ATTN_BLOCK;
}

ParameterizedTestParameters(attn_job, spans_in_pages_have_the_bits_of_one_call) {
    return kt_variants_of(KT_OP_ATTN);
}

/* A long and a short decode row, a chunk of a prompt, few rows that are split, and a first row; all
 * together have the bits of each alone in one piece. */
ParameterizedTest(size_t *index, attn_job, spans_in_pages_have_the_bits_of_one_call) {
    static const int64_t span_rows[] = {1, 1, 47, 3, 2, 1}, end[] = {2600, 70, 1100, 2050, 128, 1};
    enum { N = sizeof end / sizeof *end };
    static const int threads[] = {1, 3, 16};
    const kt_variant *v = kt_builtin_variants[*index];

    kt_skip_without_isa_or_tiles(v->isa, v->name);
    for (size_t t = 0; t < 3 * N_SHAPES; t++) {
        const int n_threads = threads[t % 3];
        kt_attn_span spans[N] = {{0}};
        kt_attn_job was;
        fixture f;
        paged p;
        int64_t rows = 0, tasks, n_split = 0;
        fixture_init(&f, v, cache_of(v, t), &shapes[t / 3], n_threads);
        paged_init(&p, &f);
        for (int64_t i = 0; i < N; i++) {
            spans[i] = (kt_attn_span){
                .page = p.table[i % COPIES], .first_row = rows, .rows = span_rows[i]};
            for (int64_t r = 0; r < span_rows[i]; r++)
                f.position[rows++] = (int32_t)(end[i] - span_rows[i] + r);
        }
        plain(&f, rows);
        was = f.job;
        use_pages(&f.job, &p, spans, N);
        f.job.rows = rows;
        tasks = kt_attn_job_prepare(&f.job, n_threads);
        for (int64_t task = tasks; task-- > 0;)
            kt_attn_job_run(&f.job, task, task + 1, (int)(task % n_threads));
        kt_attn_job_merge(&f.job, 0, kt_attn_job_merge_count(&f.job, n_threads), 0);
        for (int64_t i = 0; i < N; i++) n_split += spans[i].split;
        cr_expect(n_threads < 16 || n_split > 0, "contexts are cut for idle threads");
        cr_expect(memcmp(f.want, f.got, (size_t)(rows * f.job.ldo) * sizeof *f.got) == 0,
                  "%s: shape %zu, %d threads, %lld split", v->name, t / 3, n_threads,
                  (long long)n_split);
        f.job = was;
        kt_guard_free(p.rows);
        kt_guard_free(p.scales);
        fixture_deinit(&f);
    }
}

static const kt_variant *attn_named(const char *name) {
    const kt_variant *v = NULL;

    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (!strcmp(kt_builtin_variants[i]->name, name)) v = kt_builtin_variants[i];
    cr_assert_not_null(v, "no variant %s", name);
    return v;
}

/* A decode row by one variant, a prompt by another, in one job: each has the bits of the variant
 * nearest to its size. */
Test(attn_job, spans_are_run_by_the_choice_nearest_in_size) {
    const kt_variant *wide = attn_named("bf16_online__avx2");
    const kt_variant *plain_c = attn_named("bf16_online__scalar");
    kt_attn_choices choices = {.n = 2};
    kt_attn_span spans[] = {{.first_row = 0, .rows = 1}, {.first_row = 1, .rows = 20}};
    float *of_scalar;
    size_t row;
    fixture f;
    int64_t tasks;

    kt_skip_without_isa_or_tiles(wide->isa, wide->name);
    fixture_init(&f, wide, KT_W_BF16, &shapes[0], 2);
    row = (size_t)f.job.ldo * sizeof *f.got;
    of_scalar = malloc(21 * row);
    choices.at[0].rows = 64, choices.at[1].rows = 1;
    choices.at[0].keys = choices.at[1].keys = 1000;
    choices.at[0].choice = f.choice;
    choices.at[1].choice = (kt_choice){.variant = plain_c, .config = {{16}}};
    cr_expect_eq(kt_attn_largest(&choices, &choices.at[1].choice, &f.job.problem),
                 &choices.at[0].choice);
    for (int64_t i = 0; i < 21; i++) f.position[i] = i ? (int32_t)(300 + i) : 700;
    f.choice = choices.at[1].choice;
    plain(&f, 21);
    memcpy(of_scalar, f.want, 21 * row);
    f.choice = choices.at[0].choice;
    plain(&f, 21);
    cr_assert_neq(memcmp(of_scalar, f.want, row), 0, "the variants differ in bits");
    f.job.choices = &choices;
    f.job.spans = spans;
    f.job.n_spans = 2;
    f.job.rows = 21;
    tasks = kt_attn_job_prepare(&f.job, 2);
    kt_attn_job_run(&f.job, 0, tasks, 0);
    kt_attn_job_merge(&f.job, 0, kt_attn_job_merge_count(&f.job, 2), 0);
    cr_expect_eq(memcmp(f.got, of_scalar, row), 0, "one row: by the choice of few");
    cr_expect_eq(memcmp(f.got + f.job.ldo, f.want + f.job.ldo, 20 * row), 0, "20 rows");
    free(of_scalar);
    fixture_deinit(&f);
}

/* Shapes 1 and 2: a token over one kv head keeps 16 threads busy, chunks before the window are no
 * tasks. */
Test(attn_job, cuts_heads_and_leaves_out_what_no_row_sees) {
    const kt_variant *scalar = kt_builtin_variants[0];
    fixture f;

    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (!strcmp(kt_builtin_variants[i]->name, "bf16_online__scalar"))
            scalar = kt_builtin_variants[i];
    fixture_init(&f, scalar, KT_W_BF16, &shapes[1], 16);
    f.job.rows = 1;
    f.position[0] = 900;
    cr_expect_eq(kt_attn_job_prepare(&f.job, 16), 16); /* 64 heads by 4 */
    cr_expect_eq(kt_attn_job_prepare(&f.job, 15), 8);
    cr_expect_eq(kt_attn_job_prepare(&f.job, 2), 4); /* by 16 */
    cr_expect_eq(kt_attn_job_prepare(&f.job, 1), 1);
    f.position[0] = 2500;
    cr_expect_eq(kt_attn_job_prepare(&f.job, 16), 12);
    cr_expect_eq(kt_attn_job_prepare(&f.job, 1), 1);
    f.position[0] = 900;
    f.choice.variant = attn_named("bf16_tiles__amxbf16"); /* a tile is as long for 4 as for 16 */
    cr_expect_eq(kt_attn_job_prepare(&f.job, 16), 4);
    fixture_deinit(&f);
    fixture_init(&f, scalar, KT_W_BF16, &shapes[2], 16);
    f.job.rows = 1;
    f.position[0] = 2500; /* keys 1301 .. 2500 */
    cr_expect_eq(kt_attn_job_prepare(&f.job, 16), 4);
    cr_expect_eq(f.job.whole.first_chunk, 1);
    fixture_deinit(&f);
}

/* 12 heads to a kv head: a tile of 128 queries is 10 rows. Two threads have enough tasks when a
 * block is eight of these; sixteen have not until it is five rows. */
Test(attn_job, blocks_of_rows_are_whole_tiles) {
    const kt_variant *v = attn_named("bf16_online__scalar");
    kt_choice choice = {.variant = v, .config = {{v->params[0].initial}}};
    int32_t position[512];
    kt_attn_job job = {.choice = &choice,
                       .problem = {.op = KT_OP_ATTN,
                                   .weights = KT_W_BF16,
                                   .m = 512,
                                   .n = 96,
                                   .k = 32,
                                   .kv_heads = 8,
                                   .context = 512},
                       .rows = 512,
                       .position = position};

    for (int i = 0; i < 512; i++) position[i] = i;
    cr_expect_eq(kt_attn_job_prepare(&job, 2), 8 * 7);    /* 80 rows */
    cr_expect_eq(kt_attn_job_prepare(&job, 4), 8 * 13);   /* 40 */
    cr_expect_eq(kt_attn_job_prepare(&job, 12), 8 * 26);  /* 20 */
    cr_expect_eq(kt_attn_job_prepare(&job, 26), 8 * 52);  /* 10 */
    cr_expect_eq(kt_attn_job_prepare(&job, 27), 8 * 103); /* 5, and no fewer */
}

/* Rows of 130 bytes have three lines. The second rows begin when the first are through. */
Test(attn_job, asks_for_every_line_once) {
    static char memory[512];
    kt_attn_asking a = {
        .of = {{.at = memory, .ld = 192, .bytes = 130, .rows = 2}, {memory, 64, 64, 1, 0, 0}},
        .left = 5};

    kt_attn_ask(&a, 2);
    cr_expect(a.of[0].row == 0 && a.of[0].x == 128 && a.left == 3);
    kt_attn_ask(&a, 100);
    cr_expect(a.of[0].row == 1 && a.of[0].x == 128 && a.of[1].row == 0 && a.left == 0);
    a.left = 100;
    kt_attn_ask(&a, 2);
    cr_expect(a.of[0].row == 2 && a.of[0].x == 0 && a.of[1].row == 1 && a.left == 98);
    kt_attn_ask(&a, 98);
    cr_expect(a.of[0].row == 2 && a.of[1].row == 1, "there is no more");
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
        fixture_init(&f, v, cache_of(v, i), &shapes[i % N_SHAPES], 3);
        kt_attn_job_phases(&f.job, phases);
        for (int64_t n = 1; n <= MAX_ROWS; n += 23) {
            for (int64_t r = 0; r < n; r++) f.position[r] = (int32_t)(2500 - n + r);
            f.job.rows = n;
            plain(&f, n);
            kt_pool_run(pool, phases, KT_ATTN_PHASES);
            cr_assert(memcmp(f.want, f.got, (size_t)(n * f.job.ldo) * sizeof *f.got) == 0,
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
