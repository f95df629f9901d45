/* Which cells decide between two encodings of activations, and that all cells then take one.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/fake_variants.h"
#include "tuner/session/encodings.h"

/* Both read INT8 per channel as a dense product; one of them reads a8p. BF16 and experts have
 * one encoding. */
static const kt_variant own = {.name = "own__avx512vnni",
                               .op = KT_OP_GEMM,
                               .weights = 1u << KT_W_INT8_CHANNEL | 1u << KT_W_BF16,
                               .acts = 1u << KT_A_INT8_G32 | 1u << KT_A_BF16,
                               .isa = KT_ISA_AVX512VNNI,
                               .layout = "p64",
                               .rank = 1};
static const kt_variant experts = {.name = "experts__avx512vnni",
                                   .op = KT_OP_MOE_FFN,
                                   .weights = 1u << KT_W_INT8_CHANNEL,
                                   .acts = 1u << KT_A_INT8_G32,
                                   .isa = KT_ISA_AVX512VNNI,
                                   .layout = "p64",
                                   .rank = 1};
static const kt_variant fast = {.name = "fast__avx512vnni",
                                .op = KT_OP_GEMM,
                                .weights = 1u << KT_W_INT8_CHANNEL,
                                .acts = 1u << KT_A_INT8_G16P2,
                                .isa = KT_ISA_AVX512VNNI,
                                .layout = "p64",
                                .rank = 1};
static const kt_variant *const all[] = {&own, &experts, &fast};
static const kt_fingerprint machine = {
    .vendor = "V", .microarch = "zen4", .isa = KT_FAKE_ISA, .usable_cores = 2};

static kt_registry *make_registry(void) {
    kt_registry *r;
    cr_assert_eq(kt_registry_create(all, 3, KT_FAKE_ISA, &r, NULL), KT_OK);
    return r;
}

static void add(kt_cell_list *list, kt_op op, kt_weight_format weights, int64_t m, double weight) {
    kt_tune_cell cell = {.problem = {.op = op,
                                     .weights = weights,
                                     .acts = weights == KT_W_BF16 ? KT_A_BF16 : KT_A_INT8_G32,
                                     .m = m,
                                     .n = 768,
                                     .k = 2048},
                         .threads = 2,
                         .weight = weight};
    if (op == KT_OP_MOE_FFN) cell.problem.experts = 8, cell.problem.topk = 2;
    cr_assert_eq(kt_cell_list_add(list, &cell, NULL), KT_OK);
}

/* Few rows: the second is the most valuable; many: the last. */
static void make_cells(kt_cell_list *list) {
    memset(list, 0, sizeof *list);
    strcpy(list->workload, "w");
    add(list, KT_OP_GEMM, KT_W_INT8_CHANNEL, 1, 0.10);
    add(list, KT_OP_GEMM, KT_W_INT8_CHANNEL, KT_FEW_ROWS, 0.15);
    add(list, KT_OP_GEMM, KT_W_INT8_CHANNEL, KT_FEW_ROWS + 1, 0.10);
    add(list, KT_OP_GEMM, KT_W_INT8_CHANNEL, 512, 0.20);
    add(list, KT_OP_GEMM, KT_W_BF16, 1, 0.25);
    add(list, KT_OP_MOE_FFN, KT_W_INT8_CHANNEL, 1, 0.20);
}

Test(encodings, are_decided_by_the_most_valuable_cells_of_few_rows_and_of_many) {
    static const struct {
        int64_t m;
        kt_act_format acts;
    } expected[] = {{KT_FEW_ROWS, KT_A_INT8_G32},
                    {KT_FEW_ROWS, KT_A_INT8_G16P2},
                    {512, KT_A_INT8_G32},
                    {512, KT_A_INT8_G16P2}};
    kt_registry *r = make_registry();
    kt_cell_list cells, probes = {0};
    kt_err err;

    make_cells(&cells);
    cr_assert_eq(kt_encoding_probes(r, &cells, &probes, &err), KT_OK);
    cr_assert_eq(probes.n, 4);
    cr_expect_str_eq(probes.workload, "w");
    for (size_t i = 0; i < 4; i++) {
        const kt_problem *p = &probes.cells[i].problem;
        cr_expect(p->op == KT_OP_GEMM && p->weights == KT_W_INT8_CHANNEL);
        cr_expect_eq(p->m, expected[i].m);
        cr_expect_eq(p->acts, expected[i].acts);
    }
    kt_cell_list_deinit(&probes);
    kt_cell_list_deinit(&cells);
    kt_registry_destroy(r);
}

Test(encodings, may_be_asked_for) {
    kt_registry *r = make_registry();
    kt_cell_list cells;
    kt_err err;

    make_cells(&cells);
    cr_assert_eq(kt_give_encoding(r, "a8p", &cells, &err), KT_OK, "%s", err.message);
    for (int i = 0; i < 4; i++) cr_expect_eq(cells.cells[i].problem.acts, KT_A_INT8_G16P2);
    cr_expect_eq(cells.cells[4].problem.acts, KT_A_BF16);
    cr_expect_eq(cells.cells[5].problem.acts, KT_A_INT8_G32, "nothing reads a8p there");
    cr_assert_eq(kt_give_encoding(r, "a8", &cells, &err), KT_OK, "%s", err.message);
    for (int i = 0; i < 4; i++) cr_expect_eq(cells.cells[i].problem.acts, KT_A_INT8_G32);

    cr_expect_eq(kt_give_encoding(r, "abf16", &cells, &err), KT_E_INVALID);
    cr_expect_str_eq(err.message, "--acts 'abf16': w8c is read as a8 or a8p");
    cr_expect_eq(kt_give_encoding(r, "a9", &cells, &err), KT_E_INVALID);
    cells.cells[0] = cells.cells[4], cells.n = 1; /* BF16 */
    cr_expect_eq(kt_give_encoding(r, "a8", &cells, &err), KT_E_INVALID);
    cr_expect_str_eq(err.message, "--acts 'a8': none of 1 cells has two encodings");
    kt_cell_list_deinit(&cells);
    kt_registry_destroy(r);
}

static void put(kt_table *t, const kt_problem *p, kt_act_format acts, double ns) {
    kt_table_row row = {.problem = *p,
                        .threads = 2,
                        .time_ns = ns,
                        .default_ns = ns,
                        .ci_low = 1,
                        .ci_high = 1,
                        .status = "default"};
    row.problem.acts = acts;
    strcpy(row.variant, acts == KT_A_INT8_G32 ? own.name : fast.name);
    strcpy(row.default_variant, row.variant);
    cr_assert_eq(kt_table_put(t, &row, NULL), KT_OK);
}

/* The encoding of all dense INT8 cells and of a layer when a8's times are these shares of a8p's,
 * for few and many rows; 0 = no table. */
static void expect_encoding(double few, double many, kt_act_format expected) {
    kt_registry *r = make_registry();
    kt_plan_cells plans = {.n = 1};
    kt_cell_list cells;
    kt_table *t = NULL;
    kt_err err;

    make_cells(&cells);
    if (few > 0) {
        cr_assert_eq(kt_table_create(&t, NULL), KT_OK);
        t->fingerprint = machine;
        for (int i = 1; i < 4; i += 2) {
            put(t, &cells.cells[i].problem, KT_A_INT8_G32, 1e4 * (i == 1 ? few : many));
            put(t, &cells.cells[i].problem, KT_A_INT8_G16P2, 1e4);
        }
    }
    plans.list[0].problem = cells.cells[0].problem;
    cr_assert_eq(kt_take_encodings(r, &machine, t, false, &cells, &plans, &err), KT_OK, "%s",
                 err.message);
    for (int i = 0; i < 4; i++) cr_expect_eq(cells.cells[i].problem.acts, expected, "cell %d", i);
    cr_expect_eq(plans.list[0].problem.acts, expected);
    cr_expect_eq(cells.cells[4].problem.acts, KT_A_BF16);
    cr_expect_eq(cells.cells[5].problem.acts, KT_A_INT8_G32, "nothing reads a8p there");
    kt_table_destroy(t);
    kt_cell_list_deinit(&cells);
    kt_registry_destroy(r);
}

Test(encodings, all_cells_take_the_faster_one) {
    expect_encoding(0, 0, KT_A_INT8_G16P2);
    expect_encoding(0.9, 0.9, KT_A_INT8_G32);
    expect_encoding(1.1, 1.1, KT_A_INT8_G16P2);
    expect_encoding(1.1, 0.8, KT_A_INT8_G32);
    expect_encoding(0.9, 1.3, KT_A_INT8_G16P2);
}
