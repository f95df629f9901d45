/* Arena: alignment, zeroing, reuse, refusal. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdint.h>
#include <string.h>

#include "base/arena.h"
#include "base/rng.h"

static int is_zero(const unsigned char *p, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (p[i]) return 0;
    return 1;
}

/* Random allocations are aligned, zeroed, disjoint and keep their content; so after a reset too. */
Test(arena, allocations_are_aligned_zeroed_and_disjoint) {
    enum { N = 2000 };
    static unsigned char *block[N];
    static size_t size[N];
    kt_arena arena = {.block_bytes = 1000};
    kt_rng rng;

    kt_rng_seed(&rng, 1);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            size_t align = (size_t)1 << kt_rng_below(&rng, 13);
            size[i] = kt_rng_below(&rng, i % 50 ? 300 : 5000);
            block[i] = kt_arena_alloc(&arena, size[i], align);
            cr_assert_not_null(block[i]);
            cr_assert_eq((uintptr_t)block[i] % align, 0);
            cr_assert(is_zero(block[i], size[i]));
            memset(block[i], i % 255 + 1, size[i]);
        }
        for (int i = 0; i < N; i++)
            for (size_t b = 0; b < size[i]; b++) cr_assert_eq(block[i][b], i % 255 + 1);
        kt_arena_reset(&arena);
    }
    kt_arena_deinit(&arena);
    kt_arena_deinit(&arena);
}

Test(arena, reset_keeps_the_largest_block) {
    kt_arena arena = {.block_bytes = 65536};
    void *large = kt_arena_alloc(&arena, 1 << 20, 64);
    kt_arena_alloc(&arena, 100000, 64);
    kt_arena_reset(&arena);
    cr_assert_eq(kt_arena_alloc(&arena, 1 << 20, 64), large);
    kt_arena_deinit(&arena);
}

Test(arena, going_back_forgets_what_came_since) {
    kt_arena arena = {.block_bytes = 256};
    const kt_arena_mark empty = kt_arena_here(&arena);
    char *kept = kt_arena_alloc(&arena, 10, 1), *first;
    const kt_arena_mark mark = kt_arena_here(&arena);

    memset(kept, 'k', 10);
    first = kt_arena_alloc(&arena, 20, 1);
    for (int i = 0; i < 50; i++) memset(kt_arena_alloc(&arena, 100, 16), 1, 100);
    kt_arena_rewind(&arena, mark);
    cr_expect_eq(kt_arena_alloc(&arena, 20, 1), first, "the same memory again");
    cr_expect(first[0] == 0 && first[19] == 0 && kept[0] == 'k' && kept[9] == 'k');
    kt_arena_rewind(&arena, empty);
    cr_expect_null(arena.head);
    kt_arena_deinit(&arena);
}

/* Blocks grow, and those that going back leaves behind are taken again, in their order. */
Test(arena, what_was_left_behind_is_used_again) {
    enum { N = 20000, SIZE = 1000 };
    static char *place[N];
    kt_arena arena = {0};
    kt_arena_mark begin;
    int jumps = 0;

    kt_arena_alloc(&arena, 1, 1);
    begin = kt_arena_here(&arena);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            char *p = kt_arena_alloc(&arena, SIZE, 8);
            cr_assert(p && is_zero((unsigned char *)p, SIZE));
            cr_assert(round == 0 || p == place[i], "round %d, number %d", round, i);
            jumps += round == 0 && i && p != place[i - 1] + SIZE;
            memset(p, 1, SIZE);
            place[i] = p;
        }
        cr_assert_null(arena.spare);
        kt_arena_rewind(&arena, begin);
        cr_assert_not_null(arena.spare);
    }
    cr_assert(jumps >= 5 && jumps <= 12, "20 MB in %d blocks", jumps + 1);
    kt_arena_deinit(&arena);
}

Test(arena, refuses_nonsense) {
    kt_arena arena = {0};
    cr_assert_null(kt_arena_alloc(&arena, 8, 3));
    cr_assert_null(kt_arena_alloc(&arena, 8, 0));
    cr_assert_null(kt_arena_alloc(&arena, 8, 8192));
    cr_assert_null(kt_arena_alloc(&arena, SIZE_MAX, 8));
    cr_assert_null(kt_arena_alloc(&arena, SIZE_MAX - 64, 4096));
    cr_assert_null(kt_arena_strndup(&arena, "x", SIZE_MAX));
    cr_assert_str_eq(kt_arena_strndup(&arena, "abcd", 3), "abc");
    kt_arena_deinit(&arena);
}
