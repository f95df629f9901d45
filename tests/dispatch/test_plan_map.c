/* From rows to a map: what happens between rows, and where decoding ends. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

#include "dispatch/cost/cost.h"
#include "dispatch/plan/plan.h"
#include "dispatch/plan/planner.h"
#include "tests/support/fake_variants.h"

#define ROWS_1 "fake_wide__avx512vnni|rows=1,prefetch=2048"
#define ROWS_8 "fake_wide__avx512vnni|rows=8,prefetch=0"
#define OTHER "fake_other__avx2"

static const kt_problem gemm = {
    .op = KT_OP_GEMM, .weights = KT_W_INT8_CHANNEL, .acts = KT_A_INT8_G32, .n = 768, .k = 2048};

static const kt_fingerprint machine = {.vendor = "AuthenticAMD",
                                       .microarch = "zen4",
                                       .family = 25,
                                       .model = 17,
                                       .stepping = 1,
                                       .isa = KT_FAKE_ISA,
                                       .usable_cores = 2,
                                       .numa_nodes = 1,
                                       .memory_bytes = (uint64_t)24 << 30};

typedef struct bench {
    kt_registry *registry;
    kt_table *table;
    kt_planner *planner;
    kt_log log;
    kt_choice_map map;
    kt_plan_source source;
} bench;

static void open_bench(bench *b) {
    memset(b, 0, sizeof *b);
    b->log.level = KT_LOG_ERROR;
    b->log.stream = stderr;
    cr_assert_eq(kt_registry_create(kt_fake_variants, kt_fake_variant_count, KT_FAKE_ISA,
                                    &b->registry, NULL),
                 KT_OK);
    cr_assert_eq(kt_table_create(&b->table, NULL), KT_OK);
    b->table->fingerprint = machine;
}

static void close_bench(bench *b) {
    kt_planner_destroy(b->planner);
    kt_table_destroy(b->table);
    kt_registry_destroy(b->registry);
}

/* "name" or "name|config" into the parts of a row. */
static void split(const char *choice, char variant[64], char config[96]) {
    sscanf(choice, "%63[^|]|%95s", variant, config);
}

/* A row for m rows on two threads; the runner may be NULL. */
static void put(bench *b, int64_t m, const char *winner, double ns, const char *runner,
                double runner_ns, double default_ns) {
    kt_table_row r = {.problem = gemm, .threads = 2, .time_ns = ns, .ci_low = 1, .ci_high = 1};
    kt_err err;

    r.problem.m = m;
    split(winner, r.variant, r.config);
    r.version = strstr(winner, "fake_wide") ? 3 : 1;
    strcpy(r.default_variant, "fake_base__scalar");
    r.default_ns = default_ns;
    strcpy(r.status, "tuned");
    if (runner) {
        split(runner, r.runner[0].variant, r.runner[0].config);
        r.runner[0].time_ns = runner_ns;
        r.n_runners = 1;
    }
    cr_assert_eq(kt_table_put(b->table, &r, &err), KT_OK, "%s", err.message);
}

static void resolve(bench *b, int64_t max_m, double decode_share) {
    kt_err err;

    kt_planner_destroy(b->planner);
    cr_assert_eq(kt_planner_create(b->registry, b->table, &machine, &b->log, &b->planner, &err),
                 KT_OK, "%s", err.message);
    cr_assert_eq(
        kt_plan_resolve(b->planner, &gemm, 2, max_m, decode_share, &b->map, &b->source, &err),
        KT_OK, "%s", err.message);
}

/* rows of the choice at m */
static int rows_at(const bench *b, int64_t m) {
    return kt_choice_for(&b->map, m)->config.value[0];
}

/* rows=1 is listed at 256 only. Twice the rows take it twice as long, by the roofline, so that at 512 it has
 * 380 ns, which is more than the slowest that is listed there. At 384 this leaves it behind rows=8:
 *            256   384   512
 *   rows=1   190   285   380  (255 if its 190 ns were not moved, or the slowest were taken)
 *   rows=8   250   275   300
 *   default  260   290   320 */
Test(plan_map, times_of_the_unlisted_move_along_the_roofline) {
    const kt_variant *wide = NULL;
    kt_problem low = gemm, high = gemm;
    bench b;

    open_bench(&b);
    wide = kt_registry_find(b.registry, "fake_wide__avx512vnni");
    low.m = 256, high.m = 512;
    cr_assert_float_eq(kt_cost_ns(&high, wide, &machine.ceilings, 2),
                       2 * kt_cost_ns(&low, wide, &machine.ceilings, 2), 1e-3);
    for (int i = 0; kt_m_buckets[i] < 256; i++)
        put(&b, kt_m_buckets[i], ROWS_8, 0.9 * kt_m_buckets[i], NULL, 0, kt_m_buckets[i]);
    put(&b, 256, ROWS_1, 190, ROWS_8, 250, 260);
    put(&b, 512, ROWS_8, 300, NULL, 0, 320);
    resolve(&b, 512, 0.5);
    cr_expect_eq(rows_at(&b, 256), 1);
    cr_expect_eq(rows_at(&b, 512), 8);
    cr_expect_eq(rows_at(&b, 384), 8, "rows=%d", rows_at(&b, 384));
    /* They meet at 384 - 128 + 256 * 60 / 140 = 365.7. */
    cr_expect_eq(rows_at(&b, 365), 1, "rows=%d", rows_at(&b, 365));
    cr_expect_eq(rows_at(&b, 366), 8, "rows=%d", rows_at(&b, 366));
    close_bench(&b);
}

/* What is not listed at 256 lost there to everything that is: 267 ns by the roofline are less than the 300 of the
 * slowest, so it is taken to need 300. */
Test(plan_map, the_unlisted_are_no_faster_than_the_slowest_listed) {
    bench b;

    open_bench(&b);
    for (int i = 0; kt_m_buckets[i] < 192; i++)
        put(&b, kt_m_buckets[i], ROWS_8, 0.9 * kt_m_buckets[i], NULL, 0, kt_m_buckets[i]);
    put(&b, 192, ROWS_1, 200, ROWS_8, 220, 230);
    put(&b, 256, ROWS_8, 221, NULL, 0, 300);
    resolve(&b, 256, 0.5);
    /* rows=1 from 200 to 300, rows=8 from 220 to 221: they meet at 192 + 64 * 20 / 99 = 204.9. */
    cr_expect_eq(rows_at(&b, 204), 1, "rows=%d", rows_at(&b, 204));
    cr_expect_eq(rows_at(&b, 205), 8, "rows=%d", rows_at(&b, 205));
    close_bench(&b);
}

/* Up to eight rows are decoding. p64 takes half the time of q8 there and three times as long above: its score
 * is 3 (1 - s) + s, that of q8 (1 - s) + 2 s, equal at s = 2/3. Were the buckets 12 and 16 decoding, too, it
 * would be 0.89; were 6 and 8 prefill, 0.63. */
Test(plan_map, eight_rows_are_decoding_and_twelve_are_not) {
    static const struct {
        double share;
        const char *layout;
    } cases[] = {{0.5, "q8"}, {0.65, "q8"}, {0.68, "p64"}, {0.85, "p64"}};
    bench b;

    open_bench(&b);
    for (int i = 0; i < kt_m_bucket_count; i++) {
        const int64_t m = kt_m_buckets[i];
        const double ns = 100.0 * (double)m;
        if (m <= 8)
            put(&b, m, ROWS_8, ns, OTHER, 2 * ns, 50 * ns);
        else
            put(&b, m, OTHER, ns, ROWS_8, 3 * ns, 50 * ns);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        resolve(&b, KT_M_DENSE, cases[i].share);
        cr_expect_str_eq(b.source.layout, cases[i].layout, "decode share %g: %s", cases[i].share,
                         b.source.layout);
    }
    close_bench(&b);
}

/* The tile takes 16 rows or more. From 12 to 24 it would be the faster one all the way:
 *            12    13    15    16    24
 *   tile    501   460   378   337    10   (unlisted at 12: the slowest there) What is left below 16 takes 500 ns and more. */
Test(plan_map, nothing_runs_where_it_refuses_however_fast) {
    bench b;

    open_bench(&b);
    for (int i = 0; kt_m_buckets[i] < 12; i++)
        put(&b, kt_m_buckets[i], ROWS_8, 40.0 * kt_m_buckets[i], NULL, 0, 41.0 * kt_m_buckets[i]);
    put(&b, 12, ROWS_8, 500, NULL, 0, 501);
    put(&b, 24, "fake_tile__avx512|rows=16", 10, NULL, 0, 600);
    resolve(&b, 24, 0.5);
    for (int64_t m = 1; m <= 24; m++) {
        const char *name = kt_choice_for(&b.map, m)->variant->name;
        cr_expect_eq(strcmp(name, "fake_tile__avx512") == 0, m >= 16, "m=%d: %s", (int)m, name);
    }
    close_bench(&b);
}

Test(plan_map, the_last_choice_goes_on_above_the_most_rows) {
    bench b;

    open_bench(&b);
    put(&b, 1, ROWS_1, 10, NULL, 0, 500);
    put(&b, 2, ROWS_8, 20, NULL, 0, 1000);
    put(&b, 3, ROWS_8, 30, NULL, 0, 1500);
    resolve(&b, 3, 0.5);
    cr_expect_eq(rows_at(&b, 1), 1);
    cr_expect_eq(rows_at(&b, 3), 8);
    cr_expect_eq(rows_at(&b, 4), 8, "rows=%d", rows_at(&b, 4));
    cr_expect_eq(rows_at(&b, KT_M_DENSE), 8, "rows=%d", rows_at(&b, KT_M_DENSE));
    close_bench(&b);
}

/* Rows 1 to 16 but for 12, of rows=1 mostly; what another matrix or pool says of 12 rows. */
static void put_sister(bench *b, int64_t n, int threads) {
    kt_table_row *r;

    for (int i = 0; kt_m_buckets[i] <= 8; i++)
        put(b, kt_m_buckets[i], ROWS_1, 10.0 * kt_m_buckets[i], ROWS_8, 12.5 * kt_m_buckets[i],
            900);
    put(b, 12, ROWS_8, 200, ROWS_1, 240, 900);
    r = &b->table->rows[b->table->n_rows - 1];
    r->problem.n = n; /* still the last row */
    r->threads = threads;
    put(b, 16, ROWS_1, 160, ROWS_8, 200, 900);
}

/* Twice the matrix, twice the time: its row counts half here. Between 12 and 16, where the rows are few, it is
 *            12    13    14    16
 *   rows=8  100   125   150   200
 *   rows=1  120   130   140   160 */
Test(plan_map, times_of_another_shape_are_scaled_to_this_one) {
    bench b;

    open_bench(&b);
    put_sister(&b, 2 * gemm.n, 2);
    resolve(&b, 16, 0.5);
    cr_expect_eq(rows_at(&b, 12), 8);
    cr_expect_eq(rows_at(&b, 13), 8, "rows=%d", rows_at(&b, 13));
    cr_expect_eq(rows_at(&b, 14), 1, "rows=%d", rows_at(&b, 14));
    cr_expect_eq(rows_at(&b, 16), 1);
    close_bench(&b);
}

Test(plan_map, other_pools_are_not_asked_within_the_rows) {
    bench b;

    open_bench(&b);
    put_sister(&b, gemm.n, 3);
    resolve(&b, 16, 0.5);
    cr_expect_eq(rows_at(&b, 12), 1, "rows=%d", rows_at(&b, 12));
    close_bench(&b);
}

/* Threads count like a dimension: twice the matrix is nearer than 16 times the threads. */
Test(plan_map, the_nearest_shape_is_of_a_pool_alike) {
    bench b;

    open_bench(&b);
    put(&b, 1, ROWS_1, 10, NULL, 0, 500);
    b.table->rows[0].threads = 32;
    put(&b, 1, ROWS_8, 10, NULL, 0, 500);
    b.table->rows[0].problem.n = 2 * gemm.n;
    if (b.table->rows[0].threads == 2) { /* rows are in order of their keys */
        kt_table_row r = b.table->rows[0];
        b.table->rows[0] = b.table->rows[1];
        b.table->rows[1] = r;
    }
    resolve(&b, 1, 0.5);
    cr_expect_eq(rows_at(&b, 1), 8, "rows=%d", rows_at(&b, 1));
    close_bench(&b);
}

/* Of equal estimates the wider instruction set is preferred, what rounds once more and libraries last. */
Test(plan_map, equals_are_ordered) {
    const kt_variant narrow = {.name = "b__avx2", .isa = KT_ISA_AVX2};
    const kt_variant wide = {.name = "c__avx512", .isa = KT_ISA_AVX512};
    const kt_variant lib = {.name = "a__lib", .isa = KT_ISA_AVX512VNNI};
    const kt_variant rounds = {
        .name = "a__avx512vnni", .isa = KT_ISA_AVX512VNNI, .numerics = KT_NUM_REQUANT};
    const kt_variant *const order[] = {&wide, &narrow, &lib, &rounds};

    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        for (size_t j = 0; j < sizeof order / sizeof *order; j++)
            cr_expect_eq(kt_variant_preferred(order[i], order[j]) != 0, i < j, "%s, %s",
                         order[i]->name, order[j]->name);
}

/* Exact products of groups go half as deep as tiles do and are scaled by vectors: of two kernels on tiles the one
 * that sums whole rows is preferred where multiplying takes the time. */
Test(plan_map, exact_kernels_have_a_part_of_the_tiles_peak) {
    static const kt_numerics slow[] = {KT_NUM_EXACT_INT32, KT_NUM_REQUANT, KT_NUM_ACTS16};
    const kt_variant whole = {.op = KT_OP_GEMM, .isa = KT_ISA_AMXINT8, .numerics = KT_NUM_ACTS8};
    kt_problem p = gemm;
    double least;

    p.m = 4096;
    least = kt_cost_ns(&p, &whole, &machine.ceilings, 2);
    for (size_t i = 0; i < sizeof slow / sizeof *slow; i++) {
        kt_variant v = whole;
        double ns;
        v.numerics = slow[i];
        ns = kt_cost_ns(&p, &v, &machine.ceilings, 2);
        cr_expect_gt(ns, 1.4 * least, "numerics %d: %g ns, whole rows %g", (int)slow[i], ns, least);
    }
}

/* Fewer than 16 rows fill a tile no better than 16 do. */
Test(plan_map, few_rows_take_tiles_as_long_as_sixteen) {
    const kt_variant tiles = {.op = KT_OP_GEMM, .isa = KT_ISA_AMXINT8, .numerics = KT_NUM_ACTS8};
    const kt_ceilings fast_memory = {.stream_gbs_1t = 1e6, .stream_gbs_all = 1e6};
    kt_problem p = gemm;
    double sixteen;

    p.m = 16;
    sixteen = kt_cost_ns(&p, &tiles, &fast_memory, 1);
    for (p.m = 1; p.m < 16; p.m++)
        cr_expect_float_eq(kt_cost_ns(&p, &tiles, &fast_memory, 1), sixteen, 1e-6 * sixteen, "m=%d",
                           (int)p.m);
    p.m = 32;
    cr_expect_float_eq(kt_cost_ns(&p, &tiles, &fast_memory, 1), 2 * sixteen, 1e-6 * sixteen);
}
