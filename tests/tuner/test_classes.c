/* What a row learns of classes of bits from a race. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tuner/session/session_parts.h"

enum { MOST = 12 };

typedef struct race {
    kt_variant variant[MOST];
    kt_contender list[MOST];
    kt_contenders all;
    double ratio[MOST];
    char name[MOST][16];
} race;

static void enter(race *r, const char *bits, double ratio) {
    const int i = r->all.n++;
    snprintf(r->name[i], sizeof r->name[i], "v%d__avx2", i);
    r->variant[i] = (kt_variant){.name = r->name[i], .op = KT_OP_GEMM, .bits = bits, .version = i};
    r->list[i].choice.variant = &r->variant[i];
    r->all.list = r->list;
    r->ratio[i] = ratio;
}

Test(classes, a_row_has_the_fastest_of_each_other_class) {
    static race r;
    kt_table_row row = {.time_ns = 100};

    enter(&r, "slow", 6);
    enter(&r, "own", 2); /* the winner: a default that nobody beat beyond doubt */
    enter(&r, "own", 1);
    enter(&r, "slow", 4);
    enter(&r, "slow", 4); /* as fast, and later */
    enter(&r, NULL, 1.5); /* of another tree: it promises nothing */
    enter(&r, "never", INFINITY);
    kt_session_note_classes(&r.all, r.ratio, 1, &row);
    cr_expect_str_eq(row.bits, "own");
    cr_assert_eq(row.n_others, 2, "%d", row.n_others);
    cr_expect_str_eq(row.other[0].bits, KT_BITS_UNSTABLE);
    cr_expect_str_eq(row.other[0].variant, "v5__avx2");
    cr_expect_float_eq(row.other[0].time_ns, 75, 1e-9, "beside the winner in the race");
    cr_expect_str_eq(row.other[1].bits, "slow");
    cr_expect_str_eq(row.other[1].variant, "v3__avx2");
    cr_expect_eq(row.other[1].version, 3);
    cr_expect_float_eq(row.other[1].time_ns, 200, 1e-9);
}

Test(classes, the_slowest_classes_find_no_room) {
    static const char *const bits[] = {"own", "a", "b", "c", "d", "e", "f", "g"};
    static race r;
    kt_table_row row = {.time_ns = 100};

    for (int i = 0; i < 8; i++) enter(&r, bits[i], i == 0 ? 1 : 10 - i);
    kt_session_note_classes(&r.all, r.ratio, 0, &row);
    cr_assert_eq(row.n_others, KT_TABLE_OTHERS);
    for (int i = 0; i < KT_TABLE_OTHERS; i++) cr_expect_str_eq(row.other[i].bits, bits[7 - i]);
}

/* A class whose name is too long for a row, and a winner without a time of its own: nothing is
 * made up. */
Test(classes, what_cannot_be_said_is_left_out) {
    static race r;
    kt_table_row row = {.time_ns = 100, .bits = "old", .n_others = 3};

    enter(&r, "own", INFINITY);
    enter(&r, "a-class-with-a-name-of-32-letters", 1);
    enter(&r, "other", 1);
    kt_session_note_classes(&r.all, r.ratio, 0, &row);
    cr_expect_str_eq(row.bits, "own");
    cr_expect_eq(row.n_others, 0);
    kt_session_note_classes(&r.all, r.ratio, 2, &row);
    cr_expect_eq(row.n_others, 0, "%s", row.other[0].bits);
    kt_session_note_classes(&r.all, r.ratio, 1, &row);
    cr_expect_str_eq(row.bits, "");
}

Test(classes, rows_of_older_journals_get_their_variants_class) {
    static const kt_variant known = {.name = "known__scalar", .op = KT_OP_GEMM, .bits = "own"};
    static const kt_variant *const list[] = {&known};
    kt_table_row row = {.variant = "known__scalar"}, other = {.variant = "gone__scalar"};
    kt_registry *registry;

    cr_assert_eq(kt_registry_create(list, 1, 0, &registry, NULL), KT_OK);
    kt_session_name_class(registry, &row);
    cr_expect_str_eq(row.bits, "own");
    snprintf(row.bits, sizeof row.bits, "then");
    kt_session_name_class(registry, &row);
    cr_expect_str_eq(row.bits, "then", "what it had is what was tuned");
    kt_session_name_class(registry, &other);
    cr_expect_str_eq(other.bits, "");
    kt_registry_destroy(registry);
}
