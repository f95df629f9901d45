/* Attention kernels for GPUs under the emulator, against double precision with the bounds of the
 * CPU's BF16 kernels (kernels/attn/attn_ref.c): queries and weights are rounded to bfloat16.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/cuda_attn_batch.h"

/* Head sizes 32 to 256, groups of 1 to 16, windows that begin inside a page, ragged ends. */
static const attn_case few[] = {
    {{4, 2, 32, 32, 0, KT_ATTN_BF16, false}, false, 3, {{0, 1}, {70, 3}, {199, 1}}},
    {{8, 1, 64, 64, 0, KT_ATTN_INT8, false}, true, 2, {{130, 2}, {15, 1}}},
    {{3, 3, 48, 32, 50, KT_ATTN_FP8, false}, false, 2, {{150, 2}, {20, 3}}},
    {{5, 1, 128, 128, 100, KT_ATTN_BF16, false}, true, 2, {{333, 2}, {63, 1}}},
    {{16, 1, 208, 208, 0, KT_ATTN_BF16, false}, false, 1, {{40, 1}}},
    {{2, 1, 224, 128, 0, KT_ATTN_INT8, false}, false, 1, {{50, 1}}}};

static void describe(char *what, size_t size, const attn_batch *b, const kt_config *c, int split,
                     uint32_t seed) {
    const kt_attn_shape *h = &b->c.shape;
    snprintf(what, size,
             "%d heads of %d over %d, values of %d, window %d, cache %d; config %d %d %d; "
             "splits of %d, seed %u",
             (int)h->heads, (int)h->k, (int)h->kv_heads, (int)h->v, (int)h->window, (int)h->cache,
             (int)c->value[3], (int)c->value[4], (int)c->value[5], split, seed);
}

static kt_config config_of(const attn_case *c, int a, int b, int d) {
    const kt_attn_shape *h = &c->shape;
    return (kt_config){{h->k, h->v == h->k ? 0 : h->v, h->cache, a, b, d}};
}

static void check(const char *kernel, const attn_case *c, const kt_config *config, int pairs,
                  int split_keys, uint32_t seed) {
    const kt_cuda_kernel *k = attn_kernel(kernel);
    char what[256];
    attn_batch b;

    cr_assert_null(k->refuse(config, &kt_cuda_targets[0]));
    attn_make(&b, c, seed);
    describe(what, sizeof what, &b, config, split_keys, seed);
    attn_run(&b, k, config, pairs, split_keys, seed);
    attn_expect(&b, what);
    attn_drop(&b);
}

Test(cuda_attn, few_rows_over_split_keys, .timeout = 120) {
    static const int configs[][4] = {{16, 2, 2, 64}, {32, 2, 3, 0}, {16, 4, 2, 128}};

    for (size_t i = 0; i < sizeof few / sizeof *few; i++)
        for (size_t j = 0; j < sizeof configs / sizeof *configs; j++) {
            const int *x = configs[j];
            const int stages = few[i].shape.k > 192 ? 2 : x[2];
            const kt_config config = config_of(&few[i], x[0], x[1], stages);
            check("attn_decode", &few[i], &config, 16, x[3], (uint32_t)(i * 3 + j + 1));
        }
}

static const attn_case many[] = {
    {{4, 2, 32, 32, 0, KT_ATTN_BF16, false}, false, 2, {{0, 37}, {70, 20}}},
    {{2, 1, 64, 64, 40, KT_ATTN_INT8, false}, true, 2, {{30, 33}, {128, 1}}},
    {{3, 1, 48, 32, 0, KT_ATTN_FP8, false}, false, 1, {{110, 25}}},
    {{1, 1, 208, 208, 0, KT_ATTN_BF16, false}, true, 1, {{3, 17}}}};

Test(cuda_attn, many_rows, .timeout = 120) {
    static const int configs[][3] = {{64, 32, 2}, {128, 128, 2}, {64, 64, 3}};

    for (size_t i = 0; i < sizeof many / sizeof *many; i++)
        for (size_t j = 0; j < sizeof configs / sizeof *configs; j++) {
            const int *x = configs[j];
            const kt_config config =
                config_of(&many[i], x[0], many[i].shape.v > 128 ? 32 : x[1], x[2]);
            check("attn_prefill", &many[i], &config, x[0], 0, (uint32_t)(i * 3 + j + 1));
        }
}

/* The numbers of one row, with the rows beside it and alone, with more splits than there are. */
static void expect_same_bits(const char *kernel, const attn_case *c, const kt_config *config,
                             int pairs, int split_keys) {
    const kt_cuda_kernel *k = attn_kernel(kernel);
    const size_t row = (size_t)(c->shape.heads * c->shape.v) * sizeof(float);
    float *together;
    attn_batch b;

    attn_make(&b, c, 7);
    together = malloc((size_t)b.rows * row);
    attn_run(&b, k, config, pairs, split_keys, 1);
    for (int r = 0; r < b.rows; r++)
        memcpy((uint8_t *)together + (size_t)r * row, b.call.out + r * b.call.ldo, row);
    for (int r = 0; r < b.rows; r++) {
        const int s = b.of[r];
        attn_batch alone = b;
        alone.c.n = 1;
        alone.sequence[0] = (kt_attn_sequence){r, 1, b.position[r], b.sequence[s].page};
        memset(b.call.out + r * b.call.ldo, 0, row);
        if (split_keys) alone.call.splits = 9;
        attn_run(&alone, k, config, pairs, split_keys, 2);
        cr_expect_arr_eq(b.call.out + r * b.call.ldo, (uint8_t *)together + (size_t)r * row, row,
                         "%s: row %d has other bits alone", kernel, r);
    }
    free(together);
    attn_drop(&b);
}

Test(cuda_attn, a_rows_bits_depend_on_its_own_sequence_alone, .timeout = 120) {
    const attn_case c = {{4, 2, 32, 32, 100, KT_ATTN_BF16, false}, false, 2, {{110, 6}, {150, 2}}};
    const kt_config few_config = config_of(&c, 16, 4, 2), many_config = config_of(&c, 64, 32, 2);

    expect_same_bits("attn_decode", &c, &few_config, 16, 128);
    expect_same_bits("attn_prefill", &c, &many_config, 64, 0);
}

/* ---- how a batch is cut ---- */

Test(cuda_attn, tiles_cover_every_pair_once) {
    for (int group = 1; group <= 40; group += 3)
        for (int rows = 1; rows <= 33; rows += 4)
            for (int bound = 0; bound < 2; bound++) {
                const kt_attn_shape h = {.heads = 2 * group, .kv_heads = 2};
                const kt_attn_sequence s = {100, rows, 7, 5};
                kt_attn_tile tile[2048];
                const int64_t n = kt_attn_cut_rows(&h, &s, 16, bound, tile);
                int at = 0;
                cr_assert_eq(n, kt_attn_cut_rows(&h, &s, 16, bound, NULL));
                for (int64_t i = 0; i < n; i++) {
                    cr_assert_eq(tile[i].row, 100 + at / group);
                    cr_assert_eq(tile[i].head, at % group);
                    cr_assert_eq(tile[i].page, 5);
                    cr_assert(tile[i].pairs > 0 && tile[i].pairs <= 16);
                    if (bound) cr_assert(tile[i].head + tile[i].pairs <= group);
                    at += tile[i].pairs;
                }
                cr_assert_eq(at, rows * group);
            }
}

Test(cuda_attn, splits_fill_the_device_within_their_limits) {
    static const kt_attn_shape shapes[] = {{.heads = 32, .kv_heads = 4, .v = 128},
                                           {.heads = 1, .kv_heads = 1, .v = 64, .window = 99}};
    enum { PROCESSORS = 132 };

    for (int i = 0; i < 2; i++)
        for (int64_t tiles = 1; tiles <= 256; tiles *= 4)
            for (int64_t longest = 1; longest <= 1 << 20; longest = longest * 3 + 1) {
                const kt_attn_shape *h = &shapes[i];
                const int64_t blocks = tiles * h->kv_heads;
                int32_t keys, splits;
                kt_attn_cut_keys(h, tiles, longest, PROCESSORS, &keys, &splits);
                cr_expect(keys >= 256 && keys % KT_ATTN_PAGE == 0 && (keys & (keys - 1)) == 0);
                cr_expect(splits >= 1 && splits <= KT_ATTN_MAX_SPLITS);
                cr_expect((int64_t)(splits - (splits > 1 && h->window)) * keys >= longest);
                cr_expect(splits == 1 || blocks * (splits - 1 - (h->window > 0)) < 2 * PROCESSORS);
                cr_expect(splits > 1 || longest <= 256 || blocks >= 2 * PROCESSORS);
                cr_expect(kt_attn_part_bytes(h, tiles, 16, splits) <=
                          kt_attn_most_part_bytes(h, 16, PROCESSORS));
            }
}

Test(cuda_attn, every_shape_has_a_config_on_every_device) {
    static const int sizes[][2] = {{32, 32},   {64, 64},   {96, 96},
                                   {128, 128}, {192, 128}, {256, 256}};
    static const char *const kernels[] = {"attn_decode", "attn_prefill"};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int cache = 0; cache < 3; cache++)
            for (size_t t = 0; t < kt_cuda_target_count; t++)
                for (int k = 0; k < 2; k++) {
                    const kt_attn_shape h = {.heads = 8,
                                             .kv_heads = 1,
                                             .k = sizes[i][0],
                                             .v = sizes[i][1],
                                             .cache = cache};
                    kt_config config;
                    cr_expect(
                        kt_attn_config(attn_kernel(kernels[k]), &h, &kt_cuda_targets[t], &config),
                        "%s: head %d, cache %d, sm_%s", kernels[k], sizes[i][0], cache,
                        kt_cuda_targets[t].name);
                }
}

Test(cuda_attn, impossible_sizes_are_refused) {
    static const char *const kernels[] = {"attn_decode", "attn_prefill"};

    for (int k = 0; k < 2; k++) {
        const kt_cuda_kernel *kernel = attn_kernel(kernels[k]);
        kt_config config = kt_cuda_initial(kernel);
        config.value[0] = 40;
        cr_expect_not_null(kernel->refuse(&config, &kt_cuda_targets[0]));
        config.value[0] = 576;
        cr_expect_not_null(kernel->refuse(&config, &kt_cuda_targets[0]));
        config.value[0] = 64;
        config.value[1] = 128;
        cr_expect_not_null(kernel->refuse(&config, &kt_cuda_targets[0]));
    }
}
