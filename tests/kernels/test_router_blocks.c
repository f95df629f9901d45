/* Blocks in which threads share a router's logits. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/router/router_blocks.h"

static const int64_t some_rows[] = {1, 2, 4, 5, 8, 12, 13, 31, 64, 100, 512, 2048};
static const int64_t some_experts[] = {1, 6, 12, 16, 17, 64, 72, 128, 160, 256, 384, 512};
static const int some_threads[] = {1, 2, 7, 16, 64, 192};

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

typedef void check(int64_t rows, int64_t experts, int threads);

static void for_all(check *what) {
    for (int r = 0; r < COUNT(some_rows); r++)
        for (int e = 0; e < COUNT(some_experts); e++)
            for (int t = 0; t < COUNT(some_threads); t++)
                what(some_rows[r], some_experts[e], some_threads[t]);
}

/* Taken `together` at a time. */
static void check_covered(int64_t rows, int64_t experts, int threads, int64_t together) {
    const kt_router_blocks b = kt_router_cut(rows, experts, threads);
    uint8_t *times = calloc((size_t)(rows * experts), 1);
    int64_t wrong = 0;

    for (int64_t begin = 0; begin < b.n; begin += together) {
        const int64_t end = begin + together < b.n ? begin + together : b.n;
        kt_router_span s;
        for (int64_t at = begin; at < end; at += kt_router_take(&b, at, end, &s)) {
            kt_router_take(&b, at, end, &s);
            cr_assert(s.row_begin >= 0 && s.row_begin < s.row_end && s.row_end <= rows);
            cr_assert(s.expert_begin >= 0 && s.expert_begin < s.expert_end);
            cr_assert_leq(s.expert_end, experts);
            for (int64_t r = s.row_begin; r < s.row_end; r++)
                for (int64_t e = s.expert_begin; e < s.expert_end; e++) times[r * experts + e]++;
        }
    }
    for (int64_t i = 0; i < rows * experts; i++) wrong += times[i] != 1;
    cr_assert_eq(wrong, 0, "%lld rows, %lld experts, %d threads: %lld logits not once",
                 (long long)rows, (long long)experts, threads, (long long)wrong);
    free(times);
}

static void check_each(int64_t rows, int64_t experts, int threads) {
    check_covered(rows, experts, threads, 1);
    check_covered(rows, experts, threads, 3);
    check_covered(rows, experts, threads, 1000);
}

Test(router_blocks, every_logit_is_in_one_block) {
    for_all(check_each);
}

static void check_share(int64_t rows, int64_t experts, int threads) {
    const kt_router_blocks b = kt_router_cut(rows, experts, threads);
    const int64_t most = ((rows + 11) / 12) * ((experts + 15) / 16);
    const int64_t wanted = most < 2 * threads ? most : 2 * threads;

    cr_assert_geq(b.n, wanted, "%lld rows, %lld experts, %d threads: %lld blocks", (long long)rows,
                  (long long)experts, threads, (long long)b.n);
}

/* Eight rows of a batch do not leave all threads but one idle. */
Test(router_blocks, every_thread_has_two_if_there_are_so_many) {
    for_all(check_share);
}

/* Inputs are read once for 64 experts and weights once for 48 rows. */
Test(router_blocks, few_threads_take_large_blocks) {
    const kt_router_blocks b = kt_router_cut(512, 128, 2);

    cr_expect_eq(b.rows, 48);
    cr_expect_eq(b.experts, 64);
}
