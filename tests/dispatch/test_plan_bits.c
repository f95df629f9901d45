/* Plans that keep to one class of bits, on fake variants: each of them is a class of its own,
 * libraries are unstable. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dispatch/cost/cost.h"
#include "dispatch/plan/plan.h"
#include "tests/support/fake_variants.h"

static const kt_problem gemm = {
    .op = KT_OP_GEMM, .weights = KT_W_INT8_CHANNEL, .acts = KT_A_INT8_G32, .n = 768, .k = 2048};

#define BASE "fake_base__scalar"
#define WIDE "fake_wide__avx512vnni"
#define TILE "fake_tile__avx512"
#define LIB "fake_good__lib"

static kt_fingerprint machine(void) {
    return (kt_fingerprint){.vendor = "AuthenticAMD",
                            .microarch = "zen4",
                            .family = 25,
                            .model = 17,
                            .isa = KT_FAKE_ISA,
                            .usable_cores = 2,
                            .numa_nodes = 1,
                            .memory_bytes = (uint64_t)24 << 30};
}

typedef struct bench {
    kt_registry *registry;
    kt_table *table;
} bench;

static bench open_bench(void) {
    bench b;
    cr_assert_eq(
        kt_registry_create(kt_fake_variants, kt_fake_variant_count, KT_FAKE_ISA, &b.registry, NULL),
        KT_OK);
    cr_assert_eq(kt_table_create(&b.table, NULL), KT_OK);
    b.table->fingerprint = machine();
    return b;
}

static void close_bench(bench *b) {
    kt_table_destroy(b->table);
    kt_registry_destroy(b->registry);
}

/* "name" with the initial configuration. */
static void take(const kt_registry *r, const char *name, char variant[64], char config[96],
                 int32_t *version) {
    const kt_variant *v = kt_registry_find(r, name);
    kt_config c;

    cr_assert(v, "%s", name);
    c = kt_config_initial(v);
    snprintf(variant, 64, "%s", name);
    kt_config_format(v, &c, config, 96);
    if (version) *version = v->version;
}

/* For m rows of a problem: the winner takes 100 ns a row, a second one (may be NULL) `times` as
 * long. */
static void put(const bench *b, const kt_problem *p, int64_t m, int threads, const char *winner,
                const char *second, double times) {
    kt_table_row r = {.problem = *p,
                      .threads = threads,
                      .time_ns = 100.0 * (double)m,
                      .ci_low = 1,
                      .ci_high = 1,
                      .rounds = 8,
                      .status = "tuned"};
    kt_err err = {KT_OK, ""};

    r.problem.m = m;
    take(b->registry, winner, r.variant, r.config, &r.version);
    take(b->registry, second ? second : winner, r.default_variant, r.default_config, NULL);
    r.default_ns = r.time_ns * times;
    cr_assert_eq(kt_table_put(b->table, &r, &err), KT_OK, "%s", err.message);
}

static void resolve(const bench *b, int is_kept, int threads, int64_t max_m, kt_choice_map *map,
                    kt_plan_source *source) {
    const kt_fingerprint here = machine();
    kt_planner *p;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_planner_create(b->registry, b->table, &here, NULL, &p, &err), KT_OK, "%s",
                 err.message);
    if (is_kept) kt_planner_keep_bits(p);
    cr_assert_eq(kt_plan_resolve(p, &gemm, threads, max_m, 0.7, map, source, &err), KT_OK, "%s",
                 err.message);
    kt_planner_destroy(p);
}

static int classes_of(const kt_choice_map *map) {
    int n = 0;
    for (int i = 0; i < map->count; i++) {
        int is_new = 1;
        for (int j = 0; j < i; j++)
            is_new &= !kt_variant_same_bits(map->choice[i].variant, map->choice[j].variant);
        n += is_new;
    }
    return n;
}

/* Winners change with m and with the threads; the wide one is the faster of the two on two
 * threads, as many as the machine has. */
static void put_changing_rows(const bench *b) {
    for (int i = 0; i < kt_m_bucket_count; i++)
        for (int threads = 1; threads <= 3; threads++) {
            const int is_wide = threads == 2 ? i % 3 != 0 : i % 2;
            put(b, &gemm, kt_m_buckets[i], threads, is_wide ? WIDE : BASE, is_wide ? BASE : WIDE,
                is_wide ? 2 : 1.1);
        }
}

Test(plan_bits, one_class_for_every_m_and_number_of_threads) {
    static const int threads[] = {1, 2, 3, 8};
    static const int64_t most[] = {1, 17, 512, 4096};
    bench b = open_bench();
    kt_choice_map map;
    kt_plan_source source;

    put_changing_rows(&b);
    for (int t = 0; t < 4; t++)
        for (int m = 0; m < 4; m++) {
            resolve(&b, 0, threads[t], most[m], &map, &source);
            cr_expect_str_eq(source.bits, "");
            if (most[m] > 1)
                cr_expect_gt(classes_of(&map), 1, "the rows change no class: nothing is tested");
            resolve(&b, 1, threads[t], most[m], &map, &source);
            cr_expect_eq(classes_of(&map), 1, "%d threads, m up to %d", threads[t], (int)most[m]);
            cr_expect_str_eq(source.bits, "wide", "%d threads, m up to %d: %s", threads[t],
                             (int)most[m], source.bits);
            for (int i = 0; i < map.count; i++)
                cr_expect_str_eq(map.choice[i].variant->bits, source.bits);
        }
    close_bench(&b);
}

/* The other way round the other class wins: it is the times that decide. */
Test(plan_bits, the_faster_class_is_taken) {
    bench b = open_bench();
    kt_choice_map map;
    kt_plan_source source;

    for (int i = 0; i < kt_m_bucket_count; i++)
        put(&b, &gemm, kt_m_buckets[i], 2, i % 3 ? BASE : WIDE, i % 3 ? WIDE : BASE,
            i % 3 ? 2 : 1.1);
    resolve(&b, 1, 1, 4096, &map, &source);
    cr_expect_str_eq(source.bits, "narrow");
    close_bench(&b);
}

/* Tables have rows for some buckets: a class that no row knows is not taken for what lies
 * between. */
Test(plan_bits, a_class_without_a_time_is_never_taken) {
    bench b = open_bench();
    kt_choice_map map;
    kt_plan_source source;

    for (int i = 0; i < kt_m_bucket_count; i += 3)
        put(&b, &gemm, kt_m_buckets[i], 2, BASE, NULL, 1);
    resolve(&b, 1, 2, 4096, &map, &source);
    cr_expect_str_eq(source.bits, "narrow");
    cr_expect_eq(classes_of(&map), 1);
    close_bench(&b);
}

Test(plan_bits, unstable_variants_serve_by_default_only) {
    bench b = open_bench();
    kt_choice_map map;
    kt_plan_source source;

    for (int i = 0; i < kt_m_bucket_count; i++)
        put(&b, &gemm, kt_m_buckets[i], 2, LIB, i % 2 ? BASE : NULL, 1.5);
    resolve(&b, 0, 2, 4096, &map, &source);
    cr_expect_str_eq(map.choice[0].variant->name, LIB);
    resolve(&b, 1, 2, 4096, &map, &source);
    cr_expect_str_eq(source.bits, "narrow", "what the rows know besides the library: %s",
                     source.bits);
    close_bench(&b);

    b = open_bench(); /* rows that know nothing else: an estimate answers */
    put(&b, &gemm, 1, 2, LIB, NULL, 1);
    resolve(&b, 1, 2, 4096, &map, &source);
    cr_expect_eq(classes_of(&map), 1);
    cr_expect(kt_variant_is_stable(map.choice[0].variant), "%s", map.choice[0].variant->name);
    close_bench(&b);
}

/* fake_tile refuses fewer than 16 rows: a class of tiles alone serves no single token. */
Test(plan_bits, a_class_has_a_variant_for_every_m) {
    bench b = open_bench();
    kt_choice_map map;
    kt_plan_source source;

    for (int i = 0; i < kt_m_bucket_count; i++) {
        const int is_tile = kt_m_buckets[i] >= 16;
        put(&b, &gemm, kt_m_buckets[i], 2, is_tile ? TILE : BASE, BASE, 5);
    }
    resolve(&b, 0, 2, 4096, &map, &source);
    cr_expect_str_eq(kt_choice_for(&map, 64)->variant->name, TILE);
    resolve(&b, 1, 2, 4096, &map, &source);
    cr_expect_str_eq(source.bits, "narrow");
    cr_expect_str_eq(kt_choice_for(&map, 64)->variant->name, BASE);
    close_bench(&b);
}

/* Of one class configurations still change with m. */
Test(plan_bits, inside_the_class_the_fastest_runs) {
    bench b = open_bench();
    kt_choice_map map;
    kt_plan_source source;

    for (int i = 0; i < kt_m_bucket_count; i++) {
        kt_table_row r = {.problem = gemm,
                          .threads = 1,
                          .version = 3,
                          .time_ns = 100,
                          .ci_low = 1,
                          .ci_high = 1,
                          .rounds = 8,
                          .default_ns = 900,
                          .default_variant = BASE,
                          .status = "tuned",
                          .variant = WIDE};
        r.problem.m = kt_m_buckets[i];
        strcpy(r.config, i % 2 ? "rows=8,prefetch=0" : "rows=1,prefetch=2048");
        cr_assert_eq(kt_table_put(b.table, &r, NULL), KT_OK);
    }
    resolve(&b, 1, 1, 4096, &map, &source);
    cr_expect_str_eq(source.bits, "wide");
    cr_expect_eq(kt_choice_for(&map, kt_m_buckets[0])->config.value[0], 1);
    cr_expect_eq(kt_choice_for(&map, kt_m_buckets[1])->config.value[0], 8);
    close_bench(&b);
}

Test(plan_bits, simple_ops_do_not_follow_the_threads) {
    static const kt_problem norm = {.op = KT_OP_NORM, .n = 1, .k = 2048};
    const kt_fingerprint here = machine();
    bench b = open_bench();
    const char *names[2][2];

    put(&b, &norm, 1, 1, "fake_norm__scalar", NULL, 1);
    put(&b, &norm, 1, 2, "fake_norm__avx2", NULL, 1);
    for (int is_kept = 0; is_kept < 2; is_kept++) {
        kt_planner *p;
        cr_assert_eq(kt_planner_create(b.registry, b.table, &here, NULL, &p, NULL), KT_OK);
        if (is_kept) kt_planner_keep_bits(p);
        for (int threads = 1; threads <= 2; threads++) {
            kt_choice c;
            cr_assert_eq(kt_plan_resolve_simple(p, &norm, threads, &c, NULL), KT_OK);
            names[is_kept][threads - 1] = c.variant->name;
        }
        kt_planner_destroy(p);
    }
    cr_expect_str_neq(names[0][0], names[0][1]);
    cr_expect_str_eq(names[1][0], names[1][1]);
    close_bench(&b);
}

/* Rows of attention: kv heads and keys say which is nearest, unless bits are kept, when one answer
 * is for all keys; another cache has none. */
Test(plan_bits, simple_ops_take_the_row_nearest_in_heads_and_keys) {
    static const kt_problem q = {
        .op = KT_OP_NORM, .weights = KT_W_BF16, .n = 32, .k = 128, .kv_heads = 4};
    static const struct {
        int64_t kv_heads, context;
        const char *want[2]; /* default, bits kept */
    } ask[] = {{4, 0, {"fake_norm__scalar", "fake_norm__scalar"}},
               {16, 0, {"fake_norm__avx2", "fake_norm__avx2"}},
               {4, 4096, {"fake_norm__avx2", "fake_norm__scalar"}}};
    const kt_fingerprint here = machine();
    kt_problem p = q;
    bench b = open_bench();

    put(&b, &q, 1, 2, "fake_norm__scalar", NULL, 1);
    p.kv_heads = 32;
    put(&b, &p, 1, 2, "fake_norm__avx2", NULL, 1);
    p.kv_heads = 4;
    p.context = 8192;
    put(&b, &p, 1, 2, "fake_norm__avx2", NULL, 1);
    for (int is_kept = 0; is_kept < 2; is_kept++) {
        kt_planner *planner;
        cr_assert_eq(kt_planner_create(b.registry, b.table, &here, NULL, &planner, NULL), KT_OK);
        if (is_kept) kt_planner_keep_bits(planner);
        for (size_t i = 0; i < sizeof ask / sizeof *ask; i++) {
            kt_choice c;
            p.kv_heads = ask[i].kv_heads;
            p.context = ask[i].context;
            p.weights = KT_W_BF16;
            cr_expect(kt_planner_has_rows(planner, &p));
            cr_assert_eq(kt_plan_resolve_simple(planner, &p, 2, &c, NULL), KT_OK);
            cr_expect_str_eq(c.variant->name, ask[i].want[is_kept], "%zu", i);
        }
        p.weights = KT_W_INT8_CHANNEL;
        cr_expect_not(kt_planner_has_rows(planner, &p), "of another cache");
        kt_planner_destroy(planner);
    }
    close_bench(&b);
}

/* --- encodings of activations and classes, weighed together --------------------------------- */

#define OWN 1u << KT_A_INT8_G32
#define FAST 1u << KT_A_INT8_G16P2
#define A_KERNEL(stem, ISA, ACTS, BITS, NUMERICS)                                                \
    {                                                                                            \
        .name = stem, .op = KT_OP_GEMM, .weights = 1u << KT_W_INT8_CHANNEL, .acts = (ACTS),      \
        .isa = ISA, .bits = BITS, .numerics = NUMERICS, .layout = "p64", .rank = 1, .version = 1 \
    }

/* As INT4 has them on a server with tiles: vectors and exact tiles of one class with the own
 * encoding; with the faster one vectors alone; and tiles that are best at many rows, with both,
 * a class of their own. */
static const kt_variant kernels[] = {
    A_KERNEL("own__avx512vnni", KT_ISA_AVX512VNNI, OWN, "groups", KT_NUM_EXACT_INT32),
    A_KERNEL("fast__avx512vnni", KT_ISA_AVX512VNNI, FAST, "p-groups", KT_NUM_EXACT_INT32),
    A_KERNEL("planes__amxint8", KT_ISA_AMXINT8, OWN | FAST, "planes", KT_NUM_REQUANT),
    A_KERNEL("tiles__amxint8", KT_ISA_AMXINT8, OWN, "groups", KT_NUM_EXACT_INT32),
};

typedef struct server {
    kt_fingerprint machine;
    kt_registry *registry;
    kt_table *table;
} server;

/* Of 16 cores without measured ceilings, as `kt` finds them without a table, with the first n
 * kernels. */
static server open_server(int n) {
    static const kt_variant *list[4] = {&kernels[0], &kernels[1], &kernels[2], &kernels[3]};
    server s = {.machine = machine()};

    s.machine.isa = KT_ISA_AVX512VNNI | KT_ISA_AMXINT8;
    s.machine.usable_cores = 16;
    cr_assert_eq(kt_registry_create(list, (size_t)n, s.machine.isa, &s.registry, NULL), KT_OK);
    cr_assert_eq(kt_table_create(&s.table, NULL), KT_OK);
    s.table->fingerprint = s.machine;
    return s;
}

static void close_server(server *s) {
    kt_table_destroy(s->table);
    kt_registry_destroy(s->registry);
}

/* The encoding and the map of the problem. */
static kt_problem plan_on(const server *s, int is_kept, kt_choice_map *map,
                          kt_plan_source *source) {
    kt_problem p = gemm;
    kt_planner *planner;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_planner_create(s->registry, s->table->n_rows ? s->table : NULL, &s->machine,
                                   NULL, &planner, &err),
                 KT_OK, "%s", err.message);
    if (is_kept) kt_planner_keep_bits(planner);
    p.acts = KT_A_NONE;
    p.acts = kt_plan_acts(planner, &p);
    cr_assert_eq(kt_plan_resolve(planner, &p, 16, KT_M_DENSE, KT_DECODE_SHARE, map, source, &err),
                 KT_OK, "%s", err.message);
    kt_planner_destroy(planner);
    return p;
}

static double expected_ns(const server *s, const kt_choice_map *map, kt_problem p, int64_t m) {
    p.m = m;
    return kt_cost_expected_ns(&p, kt_choice_for(map, m)->variant, &s->machine.ceilings, 16);
}

Test(plan_bits, decode_costs_nothing_where_an_encoding_has_a_class_that_decodes_as_fast) {
    server s = open_server(4);
    kt_choice_map fastest, kept;
    kt_plan_source source;
    const kt_problem p = plan_on(&s, 0, &fastest, NULL), q = plan_on(&s, 1, &kept, &source);

    cr_assert_eq(p.acts, KT_A_INT8_G16P2);
    cr_assert_str_eq(kt_choice_for(&fastest, 1)->variant->name, "fast__avx512vnni");
    cr_assert_str_eq(kt_choice_for(&fastest, 512)->variant->name, "planes__amxint8");
    cr_expect_eq(q.acts, KT_A_INT8_G32, "the pair that has tiles without giving up vectors");
    cr_expect_str_eq(source.bits, "groups");
    cr_expect_str_eq(kt_choice_for(&kept, 1)->variant->name, "own__avx512vnni");
    cr_expect_str_eq(kt_choice_for(&kept, 512)->variant->name, "tiles__amxint8");
    for (int i = 0; kt_m_buckets[i] <= 8; i++)
        cr_expect_leq(expected_ns(&s, &kept, q, kt_m_buckets[i]),
                      expected_ns(&s, &fastest, p, kt_m_buckets[i]) * (1 + 1e-9), "m=%d",
                      (int)kt_m_buckets[i]);
    close_server(&s);
}

/* Without exact tiles the choice is between decode on tiles and prefill on vectors: decode
 * counts more. */
Test(plan_bits, tiles_do_not_decode_where_vectors_can) {
    server s = open_server(3);
    kt_choice_map fastest, kept;
    kt_plan_source source;

    plan_on(&s, 0, &fastest, NULL);
    cr_assert_str_eq(kt_choice_for(&fastest, 512)->variant->name, "planes__amxint8");
    cr_expect_eq(plan_on(&s, 1, &kept, &source).acts, KT_A_INT8_G16P2, "equal: the faster one");
    cr_expect_str_eq(source.bits, "p-groups");
    close_server(&s);
}

/* A row that `variant` won in `ns`, all m alike. */
static void put_won(const server *s, kt_act_format acts, const char *variant, double ns) {
    for (int i = 0; i < kt_m_bucket_count; i++) {
        kt_table_row r = {.problem = gemm,
                          .threads = 16,
                          .version = 1,
                          .ci_low = 1,
                          .ci_high = 1,
                          .rounds = 8,
                          .status = "default"};
        r.problem.acts = acts;
        r.problem.m = kt_m_buckets[i];
        r.time_ns = r.default_ns = ns * (double)kt_m_buckets[i];
        snprintf(r.variant, sizeof r.variant, "%s", variant);
        snprintf(r.default_variant, sizeof r.default_variant, "%s", variant);
        cr_assert_eq(kt_table_put(s->table, &r, NULL), KT_OK);
    }
}

Test(plan_bits, times_of_one_encoding_are_not_weighed_against_an_estimate_of_the_other) {
    server s = open_server(4);
    kt_choice_map kept;
    kt_plan_source source;

    put_won(&s, KT_A_INT8_G16P2, "fast__avx512vnni", 1e6);
    cr_expect_eq(plan_on(&s, 1, &kept, &source).acts, KT_A_INT8_G16P2);
    cr_expect_str_eq(source.bits, "p-groups");
    put_won(&s, KT_A_INT8_G32, "own__avx512vnni", 0.9e6);
    cr_expect_eq(plan_on(&s, 1, &kept, &source).acts, KT_A_INT8_G32, "measured to be faster");
    put_won(&s, KT_A_INT8_G32, "own__avx512vnni", 1.1e6);
    cr_expect_eq(plan_on(&s, 1, &kept, &source).acts, KT_A_INT8_G16P2, "measured to be slower");
    close_server(&s);
}

/* --- rows that know the best of other classes ------------------------------------------------ */

typedef struct other {
    const char *bits, *variant;
    int version;
    double times; /* of the winner's time */
} other;

/* Rows that a library won, unstable and of no class; two others ran beside it. */
static void put_with_others(const bench *b, const other *list) {
    for (int i = 0; i < kt_m_bucket_count; i++) {
        kt_table_row r = {.problem = gemm,
                          .threads = 2,
                          .version = 1,
                          .time_ns = 100.0 * kt_m_buckets[i],
                          .ci_low = 1,
                          .ci_high = 1,
                          .rounds = 8,
                          .status = "default",
                          .variant = LIB,
                          .default_variant = LIB,
                          .bits = KT_BITS_UNSTABLE,
                          .n_others = 2};
        kt_err err = {KT_OK, ""};
        r.default_ns = r.time_ns;
        r.problem.m = kt_m_buckets[i];
        for (int k = 0; k < 2; k++) {
            char variant[64];
            take(b->registry, list[k].variant, variant, r.other[k].config, NULL);
            snprintf(r.other[k].variant, sizeof r.other[k].variant, "%s", variant);
            snprintf(r.other[k].bits, sizeof r.other[k].bits, "%s", list[k].bits);
            r.other[k].version = list[k].version;
            r.other[k].time_ns = list[k].times * r.time_ns;
        }
        cr_assert_eq(kt_table_put(b->table, &r, &err), KT_OK, "%s", err.message);
    }
}

Test(plan_bits, what_was_measured_of_other_classes_decides) {
    static const struct {
        other list[2];
        const char *kept;
        int tuned;
    } cases[] = {
        {{{"narrow", BASE, 1, 1.2}, {"wide", WIDE, 3, 1.5}}, "narrow", 23},
        {{{"narrow", BASE, 1, 1.5}, {"wide", WIDE, 3, 1.2}}, "wide", 23},
        {{{"narrow", BASE, 2, 1.2}, {"wide", WIDE, 3, 1.5}}, "wide", 23}, /* another version */
        {{{"thin", BASE, 1, 1.2}, {"wide", WIDE, 3, 1.5}}, "wide", 23},   /* another class */
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b = open_bench();
        kt_choice_map map;
        kt_plan_source source;

        put_with_others(&b, cases[i].list);
        resolve(&b, 1, 2, 4096, &map, &source);
        cr_expect_str_eq(source.bits, cases[i].kept, "case %zu: %s", i, source.bits);
        cr_expect_eq(source.tuned_cells, cases[i].tuned, "case %zu: %d", i, source.tuned_cells);
        cr_expect_eq(classes_of(&map), 1);
        resolve(&b, 0, 2, 4096, &map, &source);
        cr_expect_eq(map.count, 1, "by default they change nothing");
        cr_expect_str_eq(map.choice[0].variant->name, LIB);
        close_bench(&b);
    }
}

Test(plan_bits, costs_of_classes_are_against_the_fastest_of_all) {
    static const other list[2] = {{"narrow", BASE, 1, 1.2}, {"wide", WIDE, 3, 1.5}};
    const kt_fingerprint here = machine();
    bench b = open_bench();
    kt_class_cost cost[KT_MAX_CLASSES];
    kt_planner *p;
    kt_choice_map map;
    kt_err err = {KT_OK, ""};
    int n;

    put_with_others(&b, list);
    cr_assert_eq(kt_planner_create(b.registry, b.table, &here, NULL, &p, NULL), KT_OK);
    cr_assert_eq(kt_plan_classes(p, &gemm, KT_DECODE_SHARE, cost, &n, &err), KT_OK, "%s",
                 err.message);
    cr_assert_eq(n, 2, "%d: tiles take no single row, and nothing knows 'other'", n);
    for (int i = 0; i < 2; i++) {
        cr_expect_str_eq(cost[i].bits, list[i].bits);
        cr_expect_float_eq(cost[i].decode, list[i].times - 1, 1e-3, "%g", cost[i].decode);
        cr_expect_float_eq(cost[i].prefill, list[i].times - 1, 1e-3, "%g", cost[i].prefill);
        cr_expect_eq(cost[i].n_measured, kt_m_bucket_count);
    }
    cr_assert_eq(kt_plan_resolve(p, &gemm, 2, 4096, KT_DECODE_SHARE, &map, NULL, NULL), KT_OK);
    cr_expect_str_eq(map.choice[0].variant->name, LIB, "it leaves the planner as it was");
    kt_planner_destroy(p);
    close_bench(&b);
}

/* One row and the most: between them both take their time by the line, the library 100 ns a row,
 * the class 150 ns with one row and as long as the library with 4096: 50 ns more with few. */
Test(plan_bits, costs_between_rows_lie_on_the_line) {
    static const other list[2] = {{"narrow", BASE, 1, 1.5}, {"wide", WIDE, 3, 9}};
    const kt_fingerprint here = machine();
    bench b = open_bench();
    kt_table *ends;
    kt_class_cost cost[KT_MAX_CLASSES];
    kt_planner *p;
    double decode = 0;
    int n, few = 0;

    put_with_others(&b, list);
    cr_assert_eq(kt_table_create(&ends, NULL), KT_OK);
    ends->fingerprint = here;
    for (size_t i = 0; i < b.table->n_rows; i += b.table->n_rows - 1) {
        kt_table_row r = b.table->rows[i];
        if (i > 0) r.other[0].time_ns = r.time_ns;
        cr_assert_eq(kt_table_put(ends, &r, NULL), KT_OK);
    }
    for (; kt_m_buckets[few] <= 8; few++) decode += 0.5 / kt_m_buckets[few];
    cr_assert_eq(kt_planner_create(b.registry, ends, &here, NULL, &p, NULL), KT_OK);
    cr_assert_eq(kt_plan_classes(p, &gemm, KT_DECODE_SHARE, cost, &n, NULL), KT_OK);
    cr_assert_geq(n, 1);
    cr_expect_str_eq(cost[0].bits, "narrow");
    cr_expect_float_eq(cost[0].decode, decode / few, 1e-3, "%g", cost[0].decode);
    cr_expect_eq(cost[0].n_measured, 2);
    kt_planner_destroy(p);
    kt_table_destroy(ends);
    close_bench(&b);
}

/* What was tuned had other bits than what this build would run. */
Test(plan_bits, rows_of_a_class_that_has_changed_lapse) {
    bench b = open_bench();
    kt_choice_map map;
    kt_plan_source source;
    kt_table_row r;

    put(&b, &gemm, 1, 2, WIDE, NULL, 1);
    r = b.table->rows[0];
    snprintf(r.bits, sizeof r.bits, "wide");
    cr_assert_eq(kt_table_put(b.table, &r, NULL), KT_OK);
    resolve(&b, 0, 2, 1, &map, &source);
    cr_expect_eq(source.tuned_cells, 1);
    snprintf(r.bits, sizeof r.bits, "wider");
    cr_assert_eq(kt_table_put(b.table, &r, NULL), KT_OK);
    resolve(&b, 0, 2, 1, &map, &source);
    cr_expect_eq(source.tuned_cells, 0);
    cr_expect(strstr(source.note, "had bits 'wider' when it was tuned"), "%s", source.note);
    close_bench(&b);
}
