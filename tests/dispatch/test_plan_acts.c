/* Which encoding activations get: by the table's rows, else by the instruction sets; what exact
 * ones rule out. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "dispatch/plan/plan.h"
#include "tests/support/fake_variants.h"

static const kt_problem gemm = {
    .op = KT_OP_GEMM, .weights = KT_W_INT8_CHANNEL, .n = 768, .k = 2048};

static const kt_variant plain = {.name = "plain__scalar",
                                 .op = KT_OP_GEMM,
                                 .weights = 1u << KT_W_INT8_CHANNEL | 1u << KT_W_BF16,
                                 .acts =
                                     1u << KT_A_INT8_G32 | 1u << KT_A_INT8_G16P2 | 1u << KT_A_BF16,
                                 .layout = "p64",
                                 .rank = 1};
static const kt_variant own = {.name = "own__avx512vnni",
                               .op = KT_OP_GEMM,
                               .weights = 1u << KT_W_INT8_CHANNEL,
                               .acts = 1u << KT_A_INT8_G32,
                               .isa = KT_ISA_AVX512VNNI,
                               .layout = "p64",
                               .rank = 1};
static const kt_variant own_wider = {.name = "own_wider__avx512vbmi",
                                     .op = KT_OP_GEMM,
                                     .weights = 1u << KT_W_INT8_CHANNEL,
                                     .acts = 1u << KT_A_INT8_G32,
                                     .isa = KT_ISA_AVX512VBMI,
                                     .layout = "p64",
                                     .rank = 1};
static const kt_variant own_tiles = {.name = "own_tiles__amxint8",
                                     .op = KT_OP_GEMM,
                                     .weights = 1u << KT_W_INT8_CHANNEL,
                                     .acts = 1u << KT_A_INT8_G32,
                                     .isa = KT_ISA_AMXINT8,
                                     .layout = "p64",
                                     .rank = 1};
static const kt_variant fast = {.name = "fast__avx512vnni",
                                .op = KT_OP_GEMM,
                                .weights = 1u << KT_W_INT8_CHANNEL,
                                .acts = 1u << KT_A_INT8_G16P2,
                                .isa = KT_ISA_AVX512VNNI,
                                .layout = "p64",
                                .rank = 1};

static kt_act_format chosen(const kt_variant *const *variants, size_t n, kt_isa isa, kt_op op,
                            kt_weight_format weights) {
    kt_registry *r;
    kt_act_format acts;

    cr_assert_eq(kt_registry_create(variants, n, isa, &r, NULL), KT_OK);
    acts = kt_registry_acts(r, op, weights);
    kt_registry_destroy(r);
    return acts;
}

Test(registry, the_faster_encoding_needs_vector_kernels_as_wide_as_the_own) {
    const kt_variant *const all[] = {&plain, &own, &own_wider, &fast};
    const kt_variant *const tiles[] = {&plain, &own, &own_tiles, &fast};
    const kt_isa vnni = KT_ISA_AVX512VNNI;

    cr_expect_eq(chosen(all, 4, vnni, KT_OP_GEMM, KT_W_INT8_CHANNEL), KT_A_INT8_G16P2);
    cr_expect_eq(chosen(all, 4, vnni | KT_ISA_AVX512VBMI, KT_OP_GEMM, KT_W_INT8_CHANNEL),
                 KT_A_INT8_G32);
    cr_expect_eq(chosen(tiles, 4, vnni | KT_ISA_AMXINT8, KT_OP_GEMM, KT_W_INT8_CHANNEL),
                 KT_A_INT8_G16P2, "few rows go to vectors whatever tiles would like");
    cr_expect_eq(chosen(all, 3, vnni, KT_OP_GEMM, KT_W_INT8_CHANNEL), KT_A_INT8_G32);
    cr_expect_eq(chosen(all, 4, 0, KT_OP_GEMM, KT_W_INT8_CHANNEL), KT_A_INT8_G32);
    cr_expect_eq(chosen(all, 4, vnni, KT_OP_MOE_FFN, KT_W_INT8_CHANNEL), KT_A_INT8_G32);
    cr_expect_eq(chosen(all, 4, vnni, KT_OP_GEMM, KT_W_BF16), KT_A_BF16);
}

/* --- with a table ---------------------------------------------------------------------------- */

static void put(kt_table *t, kt_act_format acts, int64_t m, const char *variant, double ns) {
    kt_table_row r;
    kt_err err;

    memset(&r, 0, sizeof r);
    r.problem = gemm;
    r.problem.acts = acts;
    r.problem.m = m;
    r.threads = 2;
    strcpy(r.variant, variant);
    strcpy(r.default_variant, "plain__scalar");
    strcpy(r.status, "tuned");
    r.time_ns = ns;
    r.default_ns = 50 * ns;
    r.ci_low = r.ci_high = 1;
    cr_assert_eq(kt_table_put(t, &r, &err), KT_OK, "%s", err.message);
}

/* Encoding with rows of own and fast for m = 1 and 32 that take so many ns; 0 = no such row. */
static kt_act_format on_part(const char *part, const double own_ns[2], const double fast_ns[2],
                             int is_exact) {
    const kt_variant *const all[] = {&plain, &own, &fast};
    kt_fingerprint machine = {.vendor = "V", .isa = KT_FAKE_ISA, .usable_cores = 2};
    kt_registry *registry;
    kt_planner *planner;
    kt_table *table;
    kt_act_format acts;
    kt_err err;

    strcpy(machine.microarch, part);
    cr_assert_eq(kt_registry_create(all, 3, KT_FAKE_ISA, &registry, NULL), KT_OK);
    cr_assert_eq(kt_table_create(&table, NULL), KT_OK);
    table->fingerprint = machine;
    for (int i = 0; i < 2; i++) {
        if (own_ns[i] > 0) put(table, KT_A_INT8_G32, i ? 32 : 1, "own__avx512vnni", own_ns[i]);
        if (fast_ns[i] > 0) put(table, KT_A_INT8_G16P2, i ? 32 : 1, "fast__avx512vnni", fast_ns[i]);
    }
    cr_assert_eq(kt_planner_create(registry, table, &machine, NULL, &planner, &err), KT_OK, "%s",
                 err.message);
    if (is_exact) kt_planner_prefer_exact(planner);
    acts = kt_plan_acts(planner, &gemm);
    kt_planner_destroy(planner);
    kt_table_destroy(table);
    kt_registry_destroy(registry);
    return acts;
}

static kt_act_format with_rows(const double own_ns[2], const double fast_ns[2], int is_exact) {
    return on_part("zen4", own_ns, fast_ns, is_exact);
}

/* Where the encoding with fewer groups is multiplied as fast, it is the default; rows overrule that
 * as they do everywhere. */
Test(plan, parts_that_multiply_faster_with_larger_groups_have_them_by_default) {
    static const char *const larger[] = {"icelake", "emeraldrapids-v", "cascadelake", "zen5"};
    const double none[2] = {0, 0}, some[2] = {100, 1000};

    for (size_t i = 0; i < sizeof larger / sizeof *larger; i++) {
        cr_expect_eq(on_part(larger[i], none, none, 0), KT_A_INT8_G32, "%s", larger[i]);
        cr_expect_eq(on_part(larger[i], none, some, 0), KT_A_INT8_G16P2, "%s", larger[i]);
        cr_expect_eq(on_part(larger[i], some, none, 0), KT_A_INT8_G32, "%s", larger[i]);
    }
    cr_expect_eq(on_part("icelakes", none, none, 0), KT_A_INT8_G16P2);
    cr_expect_eq(on_part("zen4", none, none, 0), KT_A_INT8_G16P2);
}

Test(plan, rows_decide_which_encoding_activations_get) {
    const double none[2] = {0, 0}, some[2] = {100, 1000}, slow_first[2] = {130, 900};
    const double slow_second[2] = {90, 1300}, only_second[2] = {0, 900};

    cr_expect_eq(with_rows(none, none, 0), KT_A_INT8_G16P2);
    cr_expect_eq(with_rows(some, none, 0), KT_A_INT8_G32, "an older table goes on being used");
    cr_expect_eq(with_rows(none, some, 0), KT_A_INT8_G16P2);
    cr_expect_eq(with_rows(some, slow_first, 0), KT_A_INT8_G32, "1.3 * 0.9 > 1");
    cr_expect_eq(with_rows(slow_second, some, 0), KT_A_INT8_G16P2, "0.9 * 1.3 > 1");
    cr_expect_eq(with_rows(some, only_second, 0), KT_A_INT8_G16P2, "only equal cells count");
    cr_expect_eq(with_rows(none, some, 1), KT_A_INT8_G32, "asked to be exact");
}

/* --- weights rounded once more ---------------------------------------------------------------- */

static const kt_variant again = {.name = "again__avx512vnni",
                                 .op = KT_OP_GEMM,
                                 .weights = 1u << KT_W_INT8_CHANNEL,
                                 .acts = 1u << KT_A_INT8_G32,
                                 .isa = KT_ISA_AVX512VNNI,
                                 .numerics = KT_NUM_REQUANT,
                                 .layout = "p64",
                                 .rank = 1};

/* The kernel for 128 rows, with a row of the table that `again` won or without a table. */
static const char *product(int has_row, int is_exact) {
    const kt_variant *const all[] = {&own, &again};
    const kt_fingerprint machine = {
        .vendor = "V", .microarch = "zen4", .isa = KT_FAKE_ISA, .usable_cores = 2};
    kt_problem p = gemm;
    kt_registry *registry;
    kt_planner *planner;
    kt_table *table = NULL;
    kt_choice_map map;
    const char *name;
    kt_err err;

    p.acts = KT_A_INT8_G32;
    cr_assert_eq(kt_registry_create(all, 2, KT_FAKE_ISA, &registry, NULL), KT_OK);
    if (has_row) {
        cr_assert_eq(kt_table_create(&table, NULL), KT_OK);
        table->fingerprint = machine;
        put(table, KT_A_INT8_G32, 128, "again__avx512vnni", 100);
    }
    cr_assert_eq(kt_planner_create(registry, table, &machine, NULL, &planner, &err), KT_OK, "%s",
                 err.message);
    if (is_exact) kt_planner_prefer_exact(planner);
    cr_assert_eq(kt_plan_resolve(planner, &p, 2, 128, 0.5, &map, NULL, &err), KT_OK, "%s",
                 err.message);
    name = kt_choice_for(&map, 128)->variant->name;
    kt_planner_destroy(planner);
    kt_table_destroy(table);
    kt_registry_destroy(registry);
    return name;
}

Test(plan, exact_activations_keep_products_off_weights_rounded_once_more) {
    cr_expect_str_eq(product(1, 0), "again__avx512vnni");
    cr_expect_str_eq(product(0, 0), "again__avx512vnni", "from 64 rows on");
    cr_expect_str_eq(product(1, 1), "own__avx512vnni", "whatever the table says");
    cr_expect_str_eq(product(0, 1), "own__avx512vnni");
}

/* --- attention ------------------------------------------------------------------------------- */

static const kt_variant rounding = {.name = "rounding__avx512vnni",
                                    .op = KT_OP_ATTN,
                                    .weights = 1u << KT_W_INT8_CHANNEL,
                                    .isa = KT_ISA_AVX512VNNI,
                                    .numerics = KT_NUM_ACTS8};
static const kt_variant finer = {.name = "finer__scalar",
                                 .op = KT_OP_ATTN,
                                 .weights = 1u << KT_W_INT8_CHANNEL,
                                 .numerics = KT_NUM_BF16_F32};

/* With a row that the rounding variant won, or without a table. */
static const char *attention(int has_row, int is_exact) {
    const kt_variant *const all[] = {&rounding, &finer};
    const kt_fingerprint machine = {
        .vendor = "V", .microarch = "zen4", .isa = KT_FAKE_ISA, .usable_cores = 2};
    const kt_problem p = {.op = KT_OP_ATTN,
                          .weights = KT_W_INT8_CHANNEL,
                          .m = 1,
                          .n = 32,
                          .k = 128,
                          .kv_heads = 4,
                          .context = 4096};
    kt_registry *registry;
    kt_planner *planner;
    kt_table *table = NULL;
    kt_table_row r = {.problem = p, .threads = 2, .time_ns = 10, .default_ns = 20};
    kt_choice choice;
    kt_err err;

    cr_assert_eq(kt_registry_create(all, 2, KT_FAKE_ISA, &registry, NULL), KT_OK);
    if (has_row) {
        cr_assert_eq(kt_table_create(&table, NULL), KT_OK);
        table->fingerprint = machine;
        strcpy(r.variant, "rounding__avx512vnni");
        strcpy(r.default_variant, "finer__scalar");
        strcpy(r.status, "tuned");
        r.ci_low = r.ci_high = 1;
        cr_assert_eq(kt_table_put(table, &r, &err), KT_OK, "%s", err.message);
    }
    cr_assert_eq(kt_planner_create(registry, table, &machine, NULL, &planner, &err), KT_OK, "%s",
                 err.message);
    if (is_exact) kt_planner_prefer_exact(planner);
    cr_assert_eq(kt_plan_resolve_simple(planner, &p, 2, &choice, &err), KT_OK, "%s", err.message);
    kt_planner_destroy(planner);
    kt_table_destroy(table);
    kt_registry_destroy(registry);
    return choice.variant->name;
}

Test(plan, exact_activations_keep_attention_off_8_bit_queries) {
    cr_expect_str_eq(attention(1, 0), "rounding__avx512vnni");
    cr_expect_str_eq(attention(1, 1), "finer__scalar", "whatever the table says");
    cr_expect_str_eq(attention(0, 1), "finer__scalar");
}
