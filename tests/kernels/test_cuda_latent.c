/* Latent attention on GPUs, dense and over picked keys, the indexer that picks them, and keys that
 * are gathered, under the emulator. Attention has the bounds of the CPU's BF16 kernels, the indexer's scores those of
 * kernels/indexer and what rounding of queries adds; what is picked is the same set.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/gather_calls.h"
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

enum { TOPK = 37, ROWS = 4, MAX_CONTEXT = 400, MAX_PAGES = 64 };

typedef struct index_batch {
    int heads, dim, ratio;
    kt_guard q, w, keys, score, picked;
    uint16_t *plain[2]; /* of both sequences */
    uint32_t table[MAX_PAGES];
    int32_t position[ROWS], span_of[ROWS], first_page[2];
    kt_attn_index call;
} index_batch;

/* Two sequences of up to 400 keys of `ratio` tokens; row 1 sees no more than TOPK. */
static void make_index(index_batch *b, int heads, int dim, int ratio, uint64_t seed) {
    static const int32_t seen[ROWS] = {400, TOPK, 201, TOPK + 1};
    const int rooms = KT_ATTN_PAGE / ratio;
    uint16_t *keys;
    float *q, *w;
    kt_rng rng;

    *b = (index_batch){.heads = heads, .dim = dim, .ratio = ratio, .first_page = {0, 32}};
    kt_rng_seed(&rng, seed);
    keys = attn_guarded(&b->keys, (size_t)(MAX_PAGES * rooms * dim) * 2, 0xff);
    for (uint32_t i = 0; i < MAX_PAGES; i++) b->table[i] = i * 5 % MAX_PAGES;
    for (int s = 0; s < 2; s++) {
        b->plain[s] = malloc((size_t)(MAX_CONTEXT * dim) * 2);
        for (int t = 0; t < MAX_CONTEXT; t++) {
            uint16_t *row =
                keys + ((int)b->table[b->first_page[s] + t / rooms] * rooms + t % rooms) * dim;
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
        b->position[r] = seen[r] * ratio - 1 + (r == 2 ? ratio - 1 : 0);
        b->span_of[r] = r / 2;
    }
    b->call = (kt_attn_index){.q = q,
                              .w = w,
                              .ldq = heads * dim,
                              .ldw = heads,
                              .k = {.rows = b->keys.data, .page = rooms * dim * 2, .row = dim * 2},
                              .position = b->position,
                              .page = b->table,
                              .span_of = b->span_of,
                              .first_page = b->first_page,
                              .score = b->score.data,
                              .ld_score = MAX_CONTEXT,
                              .picked = b->picked.data,
                              .heads = heads,
                              .topk = TOPK,
                              .ratio = ratio};
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
        const int n = (b->position[r] + 1) / b->ratio;
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
        for (int j = 0; j < (b->position[r] + 1) / b->ratio && r != 2; j++) {
            if (j % 5 == 0) score[j] = j % 2 ? 0.5f : 2.0f;
            if (j == 17) score[j] = NAN;
            if (r == 0) score[j] = j % 20 == 7 ? 1.0f : j % 2 ? 0.0f : -0.0f;
        }
    }
    attn_launch(k, 1, &b->call, 1, ROWS, config, seed);
    for (int r = 0; r < ROWS; r++) {
        const int32_t *got = b->call.picked + r * TOPK;
        if ((b->position[r] + 1) / b->ratio <= TOPK) {
            cr_expect_eq(got[0], -1, "row %d meets all keys, and was picked for", r);
            continue;
        }
        kt_index_pick(b->call.score + r * MAX_CONTEXT, (b->position[r] + 1) / b->ratio, TOPK, want);
        for (int i = 0; i < TOPK; i++)
            cr_assert_eq(got[i], want[i], "row %d: picked key %d is %d, expected %d", r, i,
                         (int)got[i], (int)want[i]);
    }
}

/* Entry 0, scores, or 2, those of units; size: of a block of threads. */
static void score_index(const index_batch *b, const kt_cuda_kernel *k, int entry,
                        const kt_config *config, uint32_t seed) {
    const kt_emulator_options options = {.seed = seed, .lazy = seed % 2 == 0, .races = true};
    const kt_launch l = {.name = k->entry[entry].name,
                         .entry = k->entry[entry].emulated,
                         .parameters = &b->call,
                         .grid_x =
                             (MAX_CONTEXT + 16 * config->value[2] - 1) / (16 * config->value[2]),
                         .grid_y = ROWS,
                         .threads = kt_cuda_threads(k, config, entry),
                         .shared_bytes = k->shared_bytes(config, b->heads),
                         .constant = config->value};
    kt_err err;

    cr_assert_eq(kt_emulate(&l, &options, &err), KT_OK, "%s", err.message);
}

Test(cuda_latent, index_scores_and_what_they_pick, .timeout = 120) {
    static const int sizes[][5] = {{3, 32, 2, 2, 1}, {17, 64, 1, 4, 1}, {8, 128, 2, 8, 4}};
    const kt_cuda_kernel *k = attn_kernel("attn_index");

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int *x = sizes[i];
        const kt_config config = {{x[1], x[2], x[3]}};
        index_batch b;
        make_index(&b, x[0], x[1], x[4], i + 1);
        score_index(&b, k, 0, &config, (uint32_t)i);
        expect_scores(&b, x[2]);
        expect_picked(&b, k, &config, (uint32_t)i + 1);
        drop_index(&b);
    }
}

/* ---- blocks ---- */

enum { BLOCK = 24, LOCAL = 2, BLOCKS = 5 /* picked */, MOST_BLOCKS = 17 };

/* The largest product of a head's query with a key of the block that the row sees. */
static double best_key(const index_batch *b, int row, int head, int block) {
    const float *q = b->call.q + (row * b->heads + head) * b->dim;
    double most = -INFINITY;

    for (int j = block * BLOCK; j < (block + 1) * BLOCK && j <= b->position[row]; j++) {
        double sum = 0;
        for (int i = 0; i < b->dim; i++)
            sum += (double)q[i] *
                   (double)kt_float_bits((uint32_t)b->plain[b->span_of[row]][j * b->dim + i] << 16);
        if (sum > most) most = sum;
    }
    return most;
}

static void expect_blocks(const index_batch *b, int row) {
    const int n = b->position[row] / BLOCK + 1;
    int32_t want[BLOCKS];

    for (int h = 0; h < b->heads; h++) {
        const int list = row * b->heads + h;
        const float *best = b->call.best + list * MOST_BLOCKS;
        const int32_t *picked = b->call.picked + list * BLOCKS;
        if (n <= BLOCKS) {
            cr_expect(picked[0] == -1 && isnan(best[0]), "row %d meets all blocks", row);
            continue;
        }
        for (int block = 0; block < n - LOCAL; block++)
            cr_assert(fabs((double)best[block] - best_key(b, row, h, block)) < 2e-4,
                      "row %d, head %d: block %d has %g, expected %g", row, h, block,
                      (double)best[block], best_key(b, row, h, block));
        cr_assert(isinf(best[n - LOCAL]) && isinf(best[n - 1]), "row %d: its own blocks", row);
        kt_index_pick(best, n, BLOCKS, want);
        cr_assert_arr_eq(picked, want, sizeof want, "row %d, head %d", row, h);
    }
}

/* Products of two parts of 8 bits each: 2^-16 of sums of 64 numbers of about 1. */
Test(cuda_latent, blocks_of_the_largest_keys_are_picked, .timeout = 120) {
    const kt_cuda_kernel *k = attn_kernel("attn_index");

    for (uint32_t seed = 1; seed <= 2; seed++) {
        const kt_config config = {{64, 2, seed == 1 ? 2 : 8}};
        const int lists = ROWS * (seed == 1 ? 3 : 18), each = 32 * config.value[2];
        kt_guard best, picked, score;
        index_batch b;
        make_index(&b, lists / ROWS, 64, 1, seed);
        b.position[1] = BLOCK * BLOCKS - 1;
        b.call.w = NULL;
        b.call.topk = BLOCKS, b.call.block = BLOCK, b.call.local = LOCAL;
        b.call.score = attn_guarded(&score, (size_t)(lists * MAX_CONTEXT / 8) * 4, 0xff);
        b.call.ld_score = MAX_CONTEXT / 8;
        b.call.best = attn_guarded(&best, (size_t)(lists * MOST_BLOCKS) * 4, 0xff);
        b.call.ld_best = MOST_BLOCKS;
        b.call.picked = attn_guarded(&picked, (size_t)(lists * BLOCKS) * 4, 0xff);
        score_index(&b, k, 2, &config, seed);
        attn_launch(k, 3, &b.call, (MOST_BLOCKS + each - 1) / each, lists, &config, seed);
        attn_launch(k, 1, &b.call, b.heads, ROWS, &config, seed);
        for (int r = 0; r < ROWS; r++) expect_blocks(&b, r);
        kt_guard_destroy(&best), kt_guard_destroy(&picked), kt_guard_destroy(&score);
        drop_index(&b);
    }
}

/* ---- gathered keys ---- */

enum { WORDS = 8 /* of a row */, FLOATS = WORDS + 1, LAST = 5 /* tokens of the ring */ };
enum { PER_ENTRY = 4, ENTRY_PAGES = 4, PAGE_WORDS = 16 * FLOATS, KEYS_OF_ROW = 64 };

/* Two sequences: the first goes on in slot 1 from 70 tokens on, the second begins with 2 known. */
static const kt_state_span gathered_span[] = {{0, 2, 70, 0, 1}, {2, 4, 2, 2, 2}};
static const int32_t gathered_position[] = {70, 71, 2, 3, 4, 5}, gathered_of[] = {0, 0, 1, 1, 1, 1},
                     gathered_first_page[] = {0, 2};
static const uint32_t gathered_page[] = {3, 0, 1};

/* A word of token or entry `number` of a sequence; word 8 is its scale. */
static float word_of(int sequence, int is_entry, int number, int word) {
    return (float)(((sequence * 2 + is_entry) * 200 + number) * 16 + word);
}

/* Entries that a row sees; of more than 3 it picks the first, the third .. */
static int entry_of(int row, int i) {
    const int seen = (gathered_position[row] + 1) / PER_ENTRY;
    return seen > 3 ? 2 * i : i;
}

static void fill_kept(float *packed, float *rings, float *entries) {
    for (int s = 0; s < 2; s++) {
        const kt_state_span *span = &gathered_span[s];
        for (int t = 0; t < span->position + span->rows; t++)
            for (int w = 0; w < FLOATS; w++) {
                float *row = t < span->position
                                 ? rings + (span->from * LAST + t % LAST) * FLOATS
                                 : packed + (span->first_row + t - span->position) * (FLOATS + 2);
                row[w] = word_of(s, 0, t, w);
            }
        for (int e = 0; (e + 1) * PER_ENTRY <= span->position + span->rows; e++) {
            const int end = (e + 1) * PER_ENTRY - 1, room = end % 64 / PER_ENTRY;
            float *page = entries + gathered_page[gathered_first_page[s] + end / 64] * PAGE_WORDS;
            for (int w = 0; w < WORDS; w++) page[room * WORDS + w] = word_of(s, 1, e, w);
            page[16 * WORDS + room] = word_of(s, 1, e, WORDS);
        }
    }
}

static void expect_gathered(const float *keys, const float *scale, const int32_t *row, int n) {
    for (int g = 0; g < n; g++) {
        const int r = row[g], position = gathered_position[r], s = gathered_of[r];
        const int tokens = position + 1 < LAST ? position + 1 : LAST;
        const int seen = (position + 1) / PER_ENTRY, all = tokens + (seen > 3 ? 3 : seen);
        for (int i = 0; i < KEYS_OF_ROW; i++)
            for (int w = 0; w < FLOATS; w++) {
                const int at = g * KEYS_OF_ROW + i;
                const float got = w < WORDS ? keys[at * WORDS + w] : scale[at];
                if (i >= all)
                    cr_assert(isnan(got), "row %d, key %d is written", r, i);
                else
                    cr_assert_eq(got,
                                 i < tokens ? word_of(s, 0, position + 1 - tokens + i, w)
                                            : word_of(s, 1, entry_of(r, i - tokens), w),
                                 "row %d, key %d, word %d: %g", r, i, w, (double)got);
            }
    }
}

static void expect_rings(const float *rings) {
    for (int s = 0; s < 2; s++)
        for (int t = 0; t < gathered_span[s].position + gathered_span[s].rows; t++)
            for (int w = 0; w < FLOATS; w++)
                if (t >= gathered_span[s].position + gathered_span[s].rows - LAST)
                    cr_assert_eq(rings[(gathered_span[s].to * LAST + t % LAST) * FLOATS + w],
                                 word_of(s, 0, t, w), "sequence %d, token %d", s, t);
}

Test(cuda_latent, tokens_and_entries_are_gathered, .timeout = 60) {
    enum { ALL = 6, GATHERED = 4 };
    static const int32_t row[GATHERED] = {0, 1, 2, 5};
    const kt_cuda_kernel *k = attn_kernel("attn_gather");
    kt_guard guard[6];
    int32_t *picked = attn_guarded(&guard[0], ALL * 3 * sizeof *picked, 0xff), last[ALL];
    float *packed = attn_guarded(&guard[1], ALL * (FLOATS + 2) * 4, 0xff);
    float *rings = attn_guarded(&guard[2], 3 * LAST * FLOATS * 4, 0xff);
    float *entries = attn_guarded(&guard[3], ENTRY_PAGES * PAGE_WORDS * 4, 0xff);
    float *keys = attn_guarded(&guard[4], GATHERED * KEYS_OF_ROW * WORDS * 4, 0xff);
    float *scale = attn_guarded(&guard[5], GATHERED * KEYS_OF_ROW * 4, 0xff);

    fill_kept(packed, rings, entries);
    for (int r = 0; r < ALL; r++) {
        const int seen = (gathered_position[r] + 1) / PER_ENTRY, tokens = gathered_position[r] + 1;
        last[r] = (tokens < LAST ? tokens : LAST) + (seen > 3 ? 3 : seen) - 1;
        for (int i = 0; i < 3; i++) picked[r * 3 + i] = seen > 3 ? entry_of(r, i) : 1; /* unused */
    }
    for (uint32_t seed = 1; seed <= 2; seed++) {
        const kt_config config = {{seed == 1 ? 2 : 4, 4}};
        const kt_gather_entries call = {
            .to = {(uint8_t *)keys, scale, row, last, KEYS_OF_ROW, WORDS * 4, GATHERED},
            .places = {gathered_position, gathered_of, gathered_first_page, gathered_page},
            .packed = packed,
            .spans = gathered_span,
            .states = rings,
            .stride = LAST * FLOATS,
            .ldp = FLOATS + 2,
            .entries = (const uint8_t *)entries,
            .scales = entries + 16 * WORDS,
            .page_bytes = PAGE_WORDS * 4,
            .picked = picked,
            .ldpicked = 3,
            .window = LAST,
            .ratio = PER_ENTRY,
            .floats = FLOATS,
            .topk = 3};
        attn_launch(k, 0, &call, 2, GATHERED, &config, seed);
        expect_gathered(keys, scale, row, GATHERED);
        attn_launch(
            k, 2,
            &(kt_keep_ring){packed, gathered_span, rings, LAST * FLOATS, FLOATS + 2, LAST, FLOATS},
            3, 2, &config, seed);
        expect_rings(rings);
        fill_kept(packed, rings, entries);
    }
    for (int i = 0; i < 6; i++) kt_guard_destroy(&guard[i]);
}

Test(cuda_latent, picked_blocks_are_gathered, .timeout = 60) {
    enum { ALL = 3, KV = 2, SIZE = 8, TOP = 2, N_PAGES = 3, ROWS_OF_HEAD = 64 * N_PAGES };
    static const int32_t position[ALL] = {69, 15, 70}, span[ALL] = {0, 1, 0}, row[] = {2, 1},
                         first_page[] = {0, 2}, last[ALL] = {0, 15, 14},
                         picked[ALL * KV * TOP] = {-1, -1, -1, -1, -1, -1, -1, -1, 2, 8, 7, 8};
    static const uint32_t page[] = {1, 2, 0};
    static float from[2][KV * ROWS_OF_HEAD], to[2][KV * 2 * 64], scale[2][KV * 2 * 64];
    const kt_cuda_kernel *k = attn_kernel("attn_gather");
    const kt_gather_blocks call = {.to = {(uint8_t *)to[0], scale[0], row, last, 64, 4, 2},
                                   .values_to = (uint8_t *)to[1],
                                   .value_scale_to = scale[1],
                                   .places = {position, span, first_page, page},
                                   .keys = (const uint8_t *)from[0],
                                   .values = (const uint8_t *)from[1],
                                   .scale = from[1],
                                   .value_scale = from[0],
                                   .head_rows = ROWS_OF_HEAD,
                                   .picked = picked,
                                   .heads = KV,
                                   .block = SIZE,
                                   .topk = TOP};

    for (int i = 0; i < KV * ROWS_OF_HEAD; i++) from[0][i] = (float)i, from[1][i] = (float)-i - 1;
    memset(to, 0xff, sizeof to);
    attn_launch(k, 1, &call, 3, 2 * KV, &(kt_config){{2, 4}}, 3);
    for (int h = 0; h < KV; h++)
        for (int g = 0; g < 2; g++)
            for (int i = 0; i < 64; i++) {
                const int r = row[g], at = (h * 2 + g) * 64 + i;
                const int token =
                    g ? i : picked[(r * KV + h) * TOP + i / SIZE % TOP] * SIZE + i % SIZE;
                const float want =
                    (float)(h * ROWS_OF_HEAD + (int)page[first_page[span[r]] + token / 64] * 64 +
                            token % 64);
                if (i > last[r]) {
                    cr_assert(isnan(to[0][at]) && isnan(to[1][at]));
                    continue;
                }
                cr_assert(to[0][at] == want && scale[1][at] == want, "row %d, head %d, key %d", r,
                          h, i);
                cr_assert(to[1][at] == -want - 1 && scale[0][at] == -want - 1);
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
