/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cpu.h"
#include "dispatch/plan/plan.h"
#include "tests/support/fake_variants.h"
#include "tests/support/skip.h"
#include "tests/support/temp.h"

static const kt_problem gemm = {
    .op = KT_OP_GEMM, .weights = KT_W_INT8_CHANNEL, .acts = KT_A_INT8_G32, .n = 768, .k = 2048};

static kt_fingerprint this_machine(void) {
    return (kt_fingerprint){.vendor = "AuthenticAMD",
                            .microarch = "zen4",
                            .family = 25,
                            .model = 17,
                            .stepping = 1,
                            .isa = KT_FAKE_ISA,
                            .usable_cores = 2,
                            .numa_nodes = 1,
                            .memory_bytes = (uint64_t)24 << 30};
}

/* A registry, a table and a log in memory. */
typedef struct bench {
    kt_registry *registry;
    kt_table *table;
    kt_planner *planner;
    kt_log log;
    char *said;
    size_t said_bytes;
    kt_choice_map map;
    kt_plan_source source;
} bench;

static void open_bench(bench *b) {
    memset(b, 0, sizeof *b);
    cr_assert_eq(kt_registry_create(kt_fake_variants, kt_fake_variant_count, KT_FAKE_ISA,
                                    &b->registry, NULL),
                 KT_OK);
    cr_assert_eq(kt_table_create(&b->table, NULL), KT_OK);
    b->table->fingerprint = this_machine();
    strcpy(b->table->workload, "tiny-moe");
    b->log.stream = open_memstream(&b->said, &b->said_bytes);
    b->log.level = KT_LOG_INFO;
}

static void close_bench(bench *b) {
    kt_planner_destroy(b->planner);
    kt_table_destroy(b->table);
    kt_registry_destroy(b->registry);
    fclose(b->log.stream);
    free(b->said);
}

static void start(bench *b, const kt_table *table, const kt_fingerprint *machine) {
    kt_err err;
    cr_assert_eq(kt_planner_create(b->registry, table, machine, &b->log, &b->planner, &err), KT_OK,
                 "%s", err.message);
}

static void start_here(bench *b) {
    const kt_fingerprint machine = this_machine();
    start(b, b->table, &machine);
}

/* A row of gemm for m rows on two threads. "name" or "name|config"; runner may be NULL. */
static kt_table_row row(int64_t m, const char *winner, double ns, const char *runner,
                        double runner_ns) {
    kt_table_row r;

    memset(&r, 0, sizeof r);
    r.problem = gemm;
    r.problem.m = m;
    r.threads = 2;
    sscanf(winner, "%63[^|]|%95s", r.variant, r.config);
    r.version = strstr(winner, "fake_wide") ? 3 : 1;
    r.time_ns = ns;
    r.ci_low = r.ci_high = 1;
    strcpy(r.default_variant, "fake_base__scalar");
    r.default_ns = ns * 50;
    strcpy(r.status, "tuned");
    if (runner) {
        sscanf(runner, "%63[^|]|%95s", r.runner[0].variant, r.runner[0].config);
        r.runner[0].time_ns = runner_ns;
        r.n_runners = 1;
    }
    return r;
}

static void put(bench *b, kt_table_row r) {
    kt_err err;
    cr_assert_eq(kt_table_put(b->table, &r, &err), KT_OK, "%s", err.message);
}

static void resolve(bench *b, const kt_problem *p, int64_t max_m, double decode_share) {
    kt_err err;
    cr_assert_eq(kt_plan_resolve(b->planner, p, 2, max_m, decode_share, &b->map, &b->source, &err),
                 KT_OK, "%s", err.message);
    if (max_m < 1) max_m = 1;
    cr_assert(b->map.count >= 1 && b->map.count <= KT_MAX_CHOICES);
    for (int64_t m = 0; m <= KT_M_DENSE; m++) {
        const kt_choice *c = &b->map.choice[b->map.index[m]];
        kt_problem q = *p;
        q.m = m < 1 ? 1 : m < max_m ? m : max_m;
        cr_assert_lt(b->map.index[m], b->map.count, "m=%lld", (long long)m);
        cr_assert_str_eq(c->variant->layout, b->source.layout, "m=%lld", (long long)m);
        cr_assert_eq(kt_variant_accepts(c->variant, &q, &c->config, NULL), KT_OK, "m=%lld: %s",
                     (long long)m, c->variant->name);
    }
}

static void expect(const bench *b, int64_t m, const char *name, int32_t first_value) {
    const kt_choice *c = kt_choice_for(&b->map, m);
    cr_assert_str_eq(c->variant->name, name, "m=%lld: %s, expected %s", (long long)m,
                     c->variant->name, name);
    cr_assert_eq(c->config.value[0], first_value, "m=%lld: %d, expected %d", (long long)m,
                 (int)c->config.value[0], (int)first_value);
}

static int lines_said(bench *b) {
    int n = 0;
    fflush(b->log.stream);
    for (size_t i = 0; i < b->said_bytes; i++) n += b->said[i] == '\n';
    return n;
}

#define ROWS_1 "fake_wide__avx512vnni|rows=1,prefetch=2048"
#define ROWS_4 "fake_wide__avx512vnni|rows=4,prefetch=0"
#define ROWS_8 "fake_wide__avx512vnni|rows=8,prefetch=0"

static void fill_all_buckets(bench *b) {
    for (int i = 0; i < kt_m_bucket_count; i++) {
        int64_t m = kt_m_buckets[i];
        if (m < 4)
            put(b, row(m, ROWS_1, 1000.0 * (double)m, ROWS_4, 3000));
        else if (m < 64)
            put(b, row(m, ROWS_4, 3000 + 100.0 * (double)m, ROWS_1, 1000.0 * (double)m));
        else
            put(b, row(m, "fake_tile__avx512|rows=16", 50.0 * (double)m, ROWS_8, 60.0 * (double)m));
    }
}

/* --- rows that answer --- */

Test(plan, every_bucket_gets_its_winner) {
    bench b;
    open_bench(&b);
    fill_all_buckets(&b);
    start_here(&b);
    resolve(&b, &gemm, KT_M_DENSE, 0.5);
    for (int i = 0; i < kt_m_bucket_count; i++) {
        kt_problem q = gemm;
        const kt_table_row *r;
        char config[96];
        const kt_choice *c = kt_choice_for(&b.map, kt_m_buckets[i]);
        q.m = kt_m_buckets[i];
        r = kt_table_find(b.table, &q, 2);
        cr_assert_str_eq(c->variant->name, r->variant);
        cr_assert_str_eq(kt_config_format(c->variant, &c->config, config, sizeof config),
                         r->config);
    }
    cr_assert_eq(b.source.tuned_cells, kt_m_bucket_count);
    cr_assert_eq(b.source.untuned_cells, 0);
    cr_assert_str_eq(b.source.note, "");
    cr_assert_eq(lines_said(&b), 0, "%s", b.said);
    cr_assert_eq(kt_choice_for(&b.map, 1 << 20), kt_choice_for(&b.map, KT_M_DENSE));
    cr_assert_eq(b.map.index[0], b.map.index[1]);
    close_bench(&b);
}

Test(plan, between_buckets_the_smaller_interpolated_time_wins) {
    bench b;
    open_bench(&b);
    /* From m = 8 to 16 rows=1 climbs 10 ns a row from 80, rows=8 by 1.25 from 90. */
    for (int i = 0; kt_m_buckets[i] < 8; i++)
        put(&b, row(kt_m_buckets[i], ROWS_1, 10.0 * kt_m_buckets[i], NULL, 0));
    put(&b, row(8, ROWS_1, 80, ROWS_8, 90));
    put(&b, row(16, ROWS_8, 100, ROWS_1, 160));
    start_here(&b);
    resolve(&b, &gemm, 16, 0.5);
    /* They meet between 9 and 10. */
    expect(&b, 8, "fake_wide__avx512vnni", 1);
    expect(&b, 9, "fake_wide__avx512vnni", 1);
    for (int64_t m = 10; m <= 16; m++) expect(&b, m, "fake_wide__avx512vnni", 8);
    cr_assert_eq(b.source.tuned_cells, 7);
    cr_assert_eq(b.source.untuned_cells, 1); /* 12 is answered by 8 and 16 */
    cr_assert_eq(kt_planner_totals(b.planner).between, 1);
    cr_assert_eq(kt_planner_totals(b.planner).estimated, 0);
    cr_assert(strstr(b.source.note, "1 of 8 m buckets"), "%s", b.source.note);
    cr_assert(strstr(b.source.note, "kttune run --model tiny-moe"), "%s", b.source.note);
    close_bench(&b);
}

/* Which of two choices runs where nothing was measured: the default, unless it loses at both ends. */
Test(plan, between_buckets_what_won_at_one_end_only_gives_way_to_the_default) {
    static const struct {
        double fast_at_16, standard_at_16;
        bool is_fast;
    } cases[] = {{90, 130, true}, {131, 130, false}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool is_won = cases[i].fast_at_16 < cases[i].standard_at_16;
        bench b;
        char standard[160], config[96];
        const kt_choice *c;

        open_bench(&b);
        start_here(&b);
        resolve(&b, &gemm, 16, 0.5); /* without rows: the defaults */
        c = kt_choice_for(&b.map, 12);
        snprintf(standard, sizeof standard, "%s|%s", c->variant->name,
                 kt_config_format(c->variant, &c->config, config, sizeof config));
        cr_assert_str_neq(standard, ROWS_8);
        kt_planner_destroy(b.planner);
        for (int k = 0; kt_m_buckets[k] < 8; k++)
            put(&b, row(kt_m_buckets[k], standard, 10.0 * kt_m_buckets[k], NULL, 0));
        put(&b, row(8, ROWS_8, 50, standard, 110));
        put(&b, is_won ? row(16, ROWS_8, cases[i].fast_at_16, standard, cases[i].standard_at_16)
                       : row(16, standard, cases[i].standard_at_16, ROWS_8, cases[i].fast_at_16));
        start_here(&b);
        resolve(&b, &gemm, 16, 0.5);
        expect(&b, 8, "fake_wide__avx512vnni", 8);
        c = kt_choice_for(&b.map, 12);
        cr_expect_eq(strcmp(c->variant->name, "fake_wide__avx512vnni") == 0 &&
                         c->config.value[0] == 8,
                     cases[i].is_fast, "%zu: %s {%s}", i, c->variant->name,
                     kt_config_format(c->variant, &c->config, config, sizeof config));
        close_bench(&b);
    }
}

/* m = 12 is missing; the neighbours say rows=1, another matrix has a row for 12 that says rows=8. */
Test(plan, inside_the_tuned_range_a_sister_with_the_same_m_is_asked) {
    bench b;
    kt_table_row sister;
    open_bench(&b);
    for (int i = 0; kt_m_buckets[i] <= 16; i++)
        if (kt_m_buckets[i] != 12)
            put(&b, row(kt_m_buckets[i], ROWS_1, 10.0 * kt_m_buckets[i], NULL, 0));
    sister = row(12, ROWS_8, 300, ROWS_1, 400);
    sister.problem.n = 2 * gemm.n;
    put(&b, sister);
    start_here(&b);
    resolve(&b, &gemm, 16, 0.5);
    expect(&b, 8, "fake_wide__avx512vnni", 1);
    expect(&b, 12, "fake_wide__avx512vnni", 8);
    expect(&b, 16, "fake_wide__avx512vnni", 1);
    cr_assert_eq(kt_planner_totals(b.planner).between, 1);
    close_bench(&b);
}

Test(plan, a_quick_table_is_no_reason_to_warn) {
    bench b;
    open_bench(&b);
    for (int i = 0; i < kt_m_bucket_count; i++) {
        int32_t m = kt_m_buckets[i];
        if (m <= 64 || (m <= 512 && (m & (m - 1)) == 0))
            put(&b, row(m, ROWS_4, 100.0 * m, NULL, 0));
    }
    start_here(&b);
    resolve(&b, &gemm, KT_M_DENSE, 0.5);
    cr_assert_eq(b.source.tuned_cells, 15);
    cr_assert_eq(b.source.untuned_cells, 8);
    cr_assert(strstr(b.source.note, "answered by their neighbours"), "%s", b.source.note);
    cr_assert_eq(lines_said(&b), 0, "%s", b.said);
    close_bench(&b);
}

Test(plan, a_gap_among_few_rows_is_said_once) {
    bench b;
    open_bench(&b);
    fill_all_buckets(&b);
    for (size_t i = 0; i < b.table->n_rows; i++) /* take the row of m = 3 out */
        if (b.table->rows[i].problem.m == 3)
            memmove(&b.table->rows[i], &b.table->rows[i + 1],
                    (--b.table->n_rows - i) * sizeof *b.table->rows);
    start_here(&b);
    resolve(&b, &gemm, KT_M_DENSE, 0.5);
    resolve(&b, &gemm, 16, 0.5);
    cr_assert_eq(lines_said(&b), 1, "%s", b.said);
    cr_assert(strstr(b.said, "1 of 23 m buckets have no row, answered by their neighbours"), "%s",
              b.said);
    expect(&b, 2, "fake_wide__avx512vnni", 1);
    close_bench(&b);
}

Test(plan, a_winner_with_full_tiles_is_kept_above_the_last_row) {
    bench b;
    open_bench(&b);
    put(&b, row(1, ROWS_1, 100, NULL, 0));
    put(&b, row(32, ROWS_8, 900, NULL, 0));
    start_here(&b);
    resolve(&b, &gemm, KT_M_DENSE, 0.5);
    expect(&b, 1, "fake_wide__avx512vnni", 1);
    expect(&b, 33, "fake_wide__avx512vnni", 8);
    expect(&b, 4096, "fake_wide__avx512vnni", 8);
    close_bench(&b);
}

Test(plan, a_decode_only_table_says_nothing_about_prefill) {
    bench b;
    open_bench(&b);
    put(&b, row(1, ROWS_1, 100, NULL, 0));
    put(&b, row(2, ROWS_1, 120, NULL, 0));
    start_here(&b);
    resolve(&b, &gemm, 512, 0.5);
    expect(&b, 1, "fake_wide__avx512vnni", 1);
    expect(&b, 2, "fake_wide__avx512vnni", 1);
    expect(&b, 512, "fake_wide__avx512vnni", 4); /* the roofline, with initial values */
    close_bench(&b);
}

/* The output matrix is tuned for the rows that serving asks for; where a sister has rows for the
 * others there is nothing to warn of. */
Test(plan, a_sister_answers_for_rows_that_were_left_out_on_purpose) {
    kt_problem head = gemm;
    bench b;
    kt_table_row r;

    head.n *= 16;
    open_bench(&b);
    fill_all_buckets(&b);
    r = row(1, ROWS_1, 16000, NULL, 0);
    r.problem.n = head.n;
    put(&b, r);
    start_here(&b);
    resolve(&b, &head, 512, 0.7);
    expect(&b, 1, "fake_wide__avx512vnni", 1);
    expect(&b, 512, "fake_tile__avx512", 16);
    cr_expect_eq(lines_said(&b), 0, "%s", b.said);
    close_bench(&b);
}

Test(plan, a_variant_is_never_used_where_it_refuses) {
    bench b;
    open_bench(&b);
    put(&b, row(12, ROWS_4, 500, NULL, 0));
    put(&b, row(24, "fake_tile__avx512|rows=16", 10, NULL, 0)); /* cheap, but only from m = 16 */
    start_here(&b);
    resolve(&b, &gemm, 64, 0.5); /* checks acceptance for every m */
    expect(&b, 15, "fake_wide__avx512vnni", 4);
    expect(&b, 24, "fake_tile__avx512", 16);
    expect(&b, 64, "fake_tile__avx512", 16);
    close_bench(&b);
}

Test(plan, max_m_bounds_the_buckets_that_count) {
    bench b;
    open_bench(&b);
    put(&b, row(1, ROWS_1, 100, NULL, 0));
    start_here(&b);
    resolve(&b, &gemm, 1, 1);
    cr_assert_eq(b.source.tuned_cells, 1);
    cr_assert_eq(b.source.untuned_cells, 0);
    expect(&b, 1, "fake_wide__avx512vnni", 1);
    expect(&b, 4096, "fake_wide__avx512vnni", 1);
    resolve(&b, &gemm, 5, 1); /* buckets 1, 2, 3, 4, 6 */
    cr_assert_eq(b.source.tuned_cells + b.source.untuned_cells, 5);
    resolve(&b, &gemm, -3, 1);
    resolve(&b, &gemm, INT64_MAX, 1);
    cr_assert_eq(b.source.tuned_cells + b.source.untuned_cells, kt_m_bucket_count);
    close_bench(&b);
}

Test(plan, more_choices_than_places_keep_the_map_whole) {
    bench b;
    static const char *const all[] = {"fake_wide__avx512vnni|rows=1,prefetch=0",
                                      "fake_wide__avx512vnni|rows=1,prefetch=2048",
                                      "fake_wide__avx512vnni|rows=4,prefetch=0",
                                      "fake_wide__avx512vnni|rows=4,prefetch=2048",
                                      "fake_wide__avx512vnni|rows=8,prefetch=0",
                                      "fake_wide__avx512vnni|rows=8,prefetch=2048",
                                      "fake_base__scalar"};
    open_bench(&b);
    for (int i = 0; i < kt_m_bucket_count; i++)
        put(&b, row(kt_m_buckets[i], all[i % 7], 1000 + i, all[(i + 1) % 7], 1001 + i));
    start_here(&b);
    resolve(&b, &gemm, KT_M_DENSE, 0.5);
    cr_assert_geq(b.map.count, 7);
    close_bench(&b);
}

/* --- layout --- */

static void two_layouts(bench *b) {
    /* p64 is twice as fast in decode, q8 three times in prefill. */
    for (int i = 0; i < kt_m_bucket_count; i++) {
        int64_t m = kt_m_buckets[i];
        if (m <= 8)
            put(b, row(m, ROWS_4, 100.0 * (double)m, "fake_other__avx2", 200.0 * (double)m));
        else
            put(b, row(m, "fake_other__avx2", 50.0 * (double)m, ROWS_4, 150.0 * (double)m));
    }
}

Test(plan, the_layout_follows_the_share_of_decoding) {
    bench b;
    open_bench(&b);
    two_layouts(&b);
    start_here(&b);
    resolve(&b, &gemm, KT_M_DENSE, 0.95); /* p64 costs 0.05 * 3 + 0.95, q8 0.05 + 0.95 * 2 */
    cr_assert_str_eq(b.source.layout, "p64");
    expect(&b, 1, "fake_wide__avx512vnni", 4);
    expect(&b, 512, "fake_wide__avx512vnni", 4);
    resolve(&b, &gemm, KT_M_DENSE, 0.1);
    cr_assert_str_eq(b.source.layout, "q8");
    expect(&b, 1, "fake_other__avx2", 0);
    expect(&b, 512, "fake_other__avx2", 0);
    resolve(&b, &gemm, 8, 0.0); /* nothing but decoding can occur: its weight is all there is */
    cr_assert_str_eq(b.source.layout, "p64");
    resolve(&b, &gemm, KT_M_DENSE, NAN);
    cr_assert_str_eq(b.source.layout, "q8");
    close_bench(&b);
}

Test(plan, a_layout_that_never_made_the_list_pays_for_it) {
    bench b;
    open_bench(&b);
    for (int i = 0; i < kt_m_bucket_count; i++) { /* q8 wins one bucket by a hair, else unlisted */
        int64_t m = kt_m_buckets[i];
        if (m == 48)
            put(&b, row(m, "fake_other__avx2", 4790, ROWS_4, 4800));
        else
            put(&b, row(m, ROWS_4, 100.0 * (double)m, ROWS_8, 130.0 * (double)m));
    }
    start_here(&b);
    resolve(&b, &gemm, KT_M_DENSE, 0.5);
    cr_assert_str_eq(b.source.layout, "p64");
    expect(&b, 48, "fake_wide__avx512vnni", 4);
    close_bench(&b);
}

/* --- nothing tuned --- */

Test(plan, without_a_table_the_widest_instruction_set_is_chosen) {
    const kt_fingerprint machine = this_machine();
    bench b;
    open_bench(&b);
    start(&b, NULL, &machine);
    resolve(&b, &gemm, KT_M_DENSE, 0.5);
    expect(&b, 1, "fake_wide__avx512vnni", 4);
    expect(&b, 4096, "fake_wide__avx512vnni", 4);
    cr_assert_str_eq(b.source.layout, "p64"); /* as fast on paper as fake_good__lib, and ours */
    cr_assert_eq(b.source.tuned_cells, 0);
    cr_assert_eq(b.source.untuned_cells, kt_m_bucket_count);
    cr_assert_eq(kt_planner_totals(b.planner).estimated, kt_m_bucket_count);
    cr_assert(strstr(b.source.note, "kttune run --model NAME"), "%s", b.source.note);
    cr_assert(strstr(b.source.note, "no dispatch table"), "%s", b.source.note);
    resolve(&b, &gemm, 16, 0.5);
    cr_assert_eq(lines_said(&b), 1, "%s", b.said);
    close_bench(&b);
}

/* Without a table too: INT4 is rounded once more where many rows make it pay, never with exact activations
 * and never for INT8, which has no groups. */
Test(plan, many_rows_of_int4_share_their_scales) {
    const kt_fingerprint machine = this_machine();
    kt_problem q = {.op = KT_OP_MOE_FFN,
                    .weights = KT_W_INT4_G32,
                    .acts = KT_A_INT8_G16P2,
                    .n = 768,
                    .k = 2048,
                    .experts = 128,
                    .topk = 8};
    bench b;

    kt_skip_without_isa(KT_ISA_AVX512VNNI, "tuned rows of AVX-512 VNNI");
    open_bench(&b);
    kt_registry_destroy(b.registry);
    cr_assert_eq(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count,
                                    KT_ISA_AVX512VNNI, &b.registry, NULL),
                 KT_OK);
    start(&b, NULL, &machine);
    resolve(&b, &q, KT_M_DENSE, 0.5);
    expect(&b, 32, "wgroups_a8p_moe64__avx512vnni", 4);
    expect(&b, 128, "w4groups_a8p_r8_moe64__avx512vnni", 6);
    q.acts = KT_A_INT8_G32;
    resolve(&b, &q, KT_M_DENSE, 0.5);
    expect(&b, 32, "w4g32_a8_moe64__avx512vnni", 6);
    expect(&b, 128, "wblocks_a8_r8_moe64__avx512vnni", 6);
    q.weights = KT_W_Q4_K;
    resolve(&b, &q, KT_M_DENSE, 0.5);
    expect(&b, 32, "wkquants_a8_moe64__avx512vnni", 4);
    expect(&b, 64, "wblocks_a8_r8_moe64__avx512vnni", 6);
    q.acts = KT_A_INT8_G16P2;
    q.weights = KT_W_INT8_CHANNEL;
    resolve(&b, &q, KT_M_DENSE, 0.5);
    expect(&b, 128, "w8c_a8p_moe64__avx512vnni", 6);
    close_bench(&b);
}

Test(plan, on_a_plain_machine_the_scalar_variant_is_left) {
    const kt_fingerprint machine = this_machine();
    kt_registry *scalar;
    bench b;
    open_bench(&b);
    cr_assert_eq(kt_registry_create(kt_fake_variants, kt_fake_variant_count, 0, &scalar, NULL),
                 KT_OK);
    cr_assert_eq(kt_planner_create(scalar, NULL, &machine, NULL, &b.planner, NULL), KT_OK);
    resolve(&b, &gemm, KT_M_DENSE, 0.5);
    cr_assert_eq(b.map.count, 1);
    expect(&b, 64, "fake_base__scalar", 0);
    kt_planner_destroy(b.planner);
    b.planner = NULL;
    kt_registry_destroy(scalar);
    close_bench(&b);
}

Test(plan, no_variant_is_an_error_that_says_so) {
    const kt_problem rope = {.op = KT_OP_ROPE, .n = 4, .k = 64};
    kt_choice_map untouched, map;
    kt_choice choice;
    kt_err err;
    bench b;
    open_bench(&b);
    start_here(&b);
    memset(&map, 0x5a, sizeof map);
    untouched = map;
    cr_assert_eq(kt_plan_resolve(b.planner, &rope, 2, 64, 0.5, &map, NULL, &err), KT_E_UNSUPPORTED);
    cr_assert(strstr(err.message, "rope") && strstr(err.message, "kttune list"), "%s", err.message);
    cr_assert_arr_eq(&map, &untouched, sizeof map);
    cr_assert_eq(kt_plan_resolve_simple(b.planner, &rope, 2, &choice, &err), KT_E_UNSUPPORTED);
    close_bench(&b);
}

/* --- neighbours --- */

Test(plan, another_shape_is_answered_by_the_nearest) {
    kt_problem near = gemm;
    bench b;
    open_bench(&b);
    for (int i = 0; i < kt_m_bucket_count; i++) {
        kt_table_row r = row(kt_m_buckets[i], ROWS_8, 100.0 * kt_m_buckets[i], NULL, 0);
        kt_table_row far = row(kt_m_buckets[i], ROWS_1, 5.0 * kt_m_buckets[i], NULL, 0);
        far.problem.n = 20000;
        put(&b, r);
        put(&b, far);
    }
    start_here(&b);
    near.n = 1024;
    resolve(&b, &near, KT_M_DENSE, 0.5);
    expect(&b, 1, "fake_wide__avx512vnni", 8);
    expect(&b, 100, "fake_wide__avx512vnni", 8);
    cr_assert_eq(b.source.tuned_cells, 0);
    cr_assert(strstr(b.source.note, "answered by n=768 k=2048 threads=2"), "%s", b.source.note);
    near.n = 16384;
    resolve(&b, &near, KT_M_DENSE, 0.5);
    expect(&b, 1, "fake_wide__avx512vnni", 1);
    near = gemm;
    near.weights = KT_W_BF16; /* another format has no neighbours */
    resolve(&b, &near, KT_M_DENSE, 0.5);
    expect(&b, 1, "fake_wide__avx512vnni", 4);
    cr_assert(strstr(b.source.note, "roofline"), "%s", b.source.note);
    close_bench(&b);
}

/* --- rows that do not count --- */

static void expect_ignored(kt_table_row r, const char *reason) {
    bench b;
    open_bench(&b);
    put(&b, r);
    start_here(&b);
    cr_assert_eq(lines_said(&b), 1, "%s: '%s'", reason, b.said);
    cr_assert(strstr(b.said, reason), "expected '%s' in: %s", reason, b.said);
    cr_assert(strstr(b.said, "row gemm w8c a8 n=768 k=2048 m=1 threads=2"), "%s", b.said);
    cr_assert(strstr(b.said, "1 of 1 rows"), "%s", b.said);
    cr_assert(strstr(b.said, "kttune run --model tiny-moe"), "%s", b.said);
    resolve(&b, &gemm, 4, 0.5);
    cr_assert_eq(b.source.tuned_cells, 0);
    cr_assert(strstr(b.source.note, reason), "%s", b.source.note);
    expect(&b, 1, "fake_wide__avx512vnni", 4);
    cr_assert_eq(lines_said(&b), 1, "warned twice: %s", b.said);
    close_bench(&b);
}

Test(plan, rows_that_cannot_be_used_are_ignored_and_explained) {
    kt_table_row r = row(1, "fake_gone__avx2", 10, NULL, 0);
    expect_ignored(r, "variant 'fake_gone__avx2': unknown to this build");
    r = row(1, "fake_amx__amxint8", 10, NULL, 0);
    expect_ignored(r, "needs amxint8; this machine has avx2+avx512+avx512vnni");
    r = row(1, "fake_sick__lib", 10, NULL, 0);
    expect_ignored(r, "self-test: relative error 0.5");
    r = row(1, ROWS_8, 10, NULL, 0);
    r.version = 2;
    expect_ignored(r, "was tuned at version 2, this build has 3");
    r = row(1, "fake_wide__avx512vnni|rows=3,prefetch=0", 10, NULL, 0);
    expect_ignored(r, "parameter 'rows' cannot be 3");
    r = row(1, "fake_tile__avx512|rows=16", 10, NULL, 0);
    expect_ignored(r, "m=1 under 16");
}

Test(plan, unusable_runners_do_not_harm_the_row) {
    bench b;
    open_bench(&b);
    put(&b, row(1, ROWS_8, 10, "fake_gone__avx2", 11));
    start_here(&b);
    resolve(&b, &gemm, 1, 0.5);
    expect(&b, 1, "fake_wide__avx512vnni", 8);
    cr_assert_eq(b.source.tuned_cells, 1);
    cr_assert_eq(lines_said(&b), 0);
    close_bench(&b);
}

Test(plan, a_default_that_was_kept_beats_its_faster_looking_runners) {
    kt_table_row r = row(1, ROWS_4, 100, ROWS_8, 97); /* faster in the race, lost the holdout */
    bench b;
    open_bench(&b);
    strcpy(r.status, "default");
    put(&b, r);
    start_here(&b);
    resolve(&b, &gemm, 1, 0.5);
    expect(&b, 1, "fake_wide__avx512vnni", 4);
    close_bench(&b);
}

/* Times of a busy minute: the winner runs only where its interval leaves the default no chance. */
Test(plan, an_undecided_winner_runs_where_its_interval_excludes_the_default) {
    for (int is_clear = 0; is_clear < 2; is_clear++) {
        bench b;
        kt_table_row r = row(4, ROWS_4, 1000, NULL, 0);
        open_bench(&b);
        r.ci_low = 0.7, r.ci_high = 1.3;
        r.default_ns = is_clear ? 1400 : 1250;
        put(&b, r);
        start_here(&b);
        resolve(&b, &gemm, 4, 1);
        cr_expect_str_eq(kt_choice_for(&b.map, 4)->variant->name,
                         is_clear ? "fake_wide__avx512vnni" : "fake_base__scalar");
        close_bench(&b);
    }
}

Test(plan, a_table_of_another_machine_is_refused_whole) {
    kt_fingerprint other = this_machine();
    bench b;
    open_bench(&b);
    fill_all_buckets(&b);
    strcpy(other.microarch, "zen5");
    other.family = 26;
    start(&b, b.table, &other);
    cr_assert_eq(lines_said(&b), 1);
    cr_assert(strstr(b.said, "CPU: table 'zen4' (family 25 model 17), machine 'zen5'"), "%s",
              b.said);
    cr_assert(strstr(b.said, "23 rows are not used"), "%s", b.said);
    resolve(&b, &gemm, KT_M_DENSE, 0.5);
    cr_assert_eq(b.source.tuned_cells, 0);
    expect(&b, 1, "fake_wide__avx512vnni", 4);
    cr_assert_eq(lines_said(&b), 1, "%s", b.said);
    close_bench(&b);
}

Test(plan, a_stale_table_is_used_with_one_warning) {
    kt_fingerprint grown = this_machine();
    kt_plan_totals totals;
    bench b;
    open_bench(&b);
    fill_all_buckets(&b);
    grown.usable_cores = 4;
    start(&b, b.table, &grown);
    resolve(&b, &gemm, KT_M_DENSE, 0.5);
    expect(&b, 1, "fake_wide__avx512vnni", 1);
    resolve(&b, &gemm, 16, 0.5);
    cr_assert_eq(lines_said(&b), 1, "%s", b.said);
    cr_assert(strstr(b.said, "usable cores: table 2, machine 4"), "%s", b.said);
    totals = kt_planner_totals(b.planner);
    cr_assert_eq(totals.tuned, kt_m_bucket_count + 8);
    cr_assert_eq(totals.between, 0);
    cr_assert_eq(totals.estimated, 0);
    close_bench(&b);
}

Test(plan, a_hostile_workload_name_stays_out_of_the_command) {
    bench b;
    open_bench(&b);
    strcpy(b.table->workload, "x; rm -rf ~");
    start_here(&b);
    resolve(&b, &gemm, 4, 0.5);
    cr_assert(strstr(b.source.note, "--model NAME"), "%s", b.source.note);
    cr_assert_null(strstr(b.source.note, "rm -rf"), "%s", b.source.note);
    close_bench(&b);
}

/* --- ops without weights --- */

Test(plan, simple_ops_take_a_row_or_the_widest) {
    const kt_problem norm = {.op = KT_OP_NORM, .n = 1, .k = 2048};
    kt_table_row r;
    kt_choice c;
    bench b;
    open_bench(&b);
    start_here(&b);
    cr_assert_eq(kt_plan_resolve_simple(b.planner, &norm, 2, &c, NULL), KT_OK);
    cr_assert_str_eq(c.variant->name, "fake_norm__avx2");
    kt_planner_destroy(b.planner);
    r = row(1, "fake_norm__scalar", 10, NULL, 0);
    r.problem = norm;
    r.problem.m = 4;
    put(&b, r);
    start_here(&b);
    cr_assert_eq(kt_plan_resolve_simple(b.planner, &norm, 2, &c, NULL), KT_OK);
    cr_assert_str_eq(c.variant->name, "fake_norm__scalar");
    close_bench(&b);
}

/* --- where tables are --- */

static char folder[64];

static void make_folder(void) {
    kt_temp_make(folder, sizeof folder);
    unsetenv("KT_TABLE");
    setenv("XDG_DATA_HOME", folder, 1);
}
static void remove_folder(void) {
    kt_temp_remove(folder);
}
TestSuite(table_path, .init = make_folder, .fini = remove_folder);

Test(table_path, a_written_table_is_found_again) {
    const kt_fingerprint machine = this_machine();
    char written[256], found[256], expected[256];
    kt_table *t;
    kt_err err;

    kt_table_locate(&machine, "no-such-model", 0, found, sizeof found);
    cr_assert_str_eq(found, "");
    cr_assert_eq(
        kt_table_default_path(&machine, "org/Some-Model-7B/", 0, written, sizeof written, &err),
        KT_OK, "%s", err.message);
    snprintf(expected, sizeof expected, "%s/kt/zen4-2c-24g/Some-Model-7B.kttable.json", folder);
    cr_assert_str_eq(written, expected);
    cr_assert_eq(kt_table_create(&t, NULL), KT_OK);
    t->fingerprint = machine;
    cr_assert_eq(kt_table_save(t, written, &err), KT_OK, "%s", err.message);
    kt_table_destroy(t);
    kt_table_locate(&machine, "Some-Model-7B", 0, found, sizeof found);
    cr_assert_str_eq(found, expected);
    setenv("KT_TABLE", "/elsewhere/mine.json", 1);
    kt_table_locate(&machine, "Some-Model-7B", 0, found, sizeof found);
    cr_assert_str_eq(found, "/elsewhere/mine.json");
    kt_table_locate(&machine, "Some-Model-7B", 0, found, 8);
    cr_assert_str_eq(found, "");
}

Test(table_path, names_cannot_leave_the_folder) {
    static const char *const names[] = {"../../x", "..", "a/../..", "/", "", "x\ny", "/abs/"};
    const kt_fingerprint machine = this_machine();
    char out[256], inside[128];

    snprintf(inside, sizeof inside, "%s/kt/zen4-2c-24g/", folder);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        cr_assert_eq(kt_table_default_path(&machine, names[i], 0, out, sizeof out, NULL), KT_OK);
        cr_assert_eq(strncmp(out, inside, strlen(inside)), 0, "%s", out);
        cr_assert_null(strchr(out + strlen(inside), '/'), "%s", out);
        cr_assert_neq(out[strlen(inside)], '.', "%s", out);
    }
}

Test(table_path, without_a_home_there_is_a_message) {
    const kt_fingerprint machine = this_machine();
    char out[256];
    kt_err err;

    setenv("XDG_DATA_HOME", "relative", 1);
    unsetenv("HOME");
    cr_assert_eq(kt_table_default_path(&machine, "m", 0, out, sizeof out, &err), KT_E_NOT_FOUND);
    cr_assert(strstr(err.message, "HOME"), "%s", err.message);
    setenv("HOME", folder, 1);
    cr_assert_eq(kt_table_default_path(&machine, "m", 0, out, sizeof out, &err), KT_OK);
    cr_assert(strstr(out, "/.local/share/kt/zen4-2c-24g/m.kttable.json"), "%s", out);
    cr_assert_eq(kt_table_default_path(&machine, "m", 0, out, 10, &err), KT_E_INVALID);
}
