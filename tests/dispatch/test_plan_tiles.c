/* What a machine with tiles would run, by the registry and the roofline alone: vectors while
 * memory is what takes the time, tiles from some number of rows on. The machine is forged;
 * nothing is executed. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdbool.h>
#include <string.h>

#include "base/cpu.h"
#include "dispatch/cost/cost.h"
#include "dispatch/plan/plan.h"
#include "tests/support/own_variants.h"

#define TILES (KT_ISA_AMXINT8 | KT_ISA_AMXBF16)

static const kt_isa sapphire_rapids = KT_ISA_AVX2 | KT_ISA_AVXVNNI | KT_ISA_AVX512 |
                                      KT_ISA_AVX512VNNI | KT_ISA_AVX512BF16 | KT_ISA_AVX512VBMI |
                                      KT_ISA_AVX512FP16 | TILES;

/* One core of many, whose peaks were not measured. */
static kt_fingerprint machine(void) {
    kt_fingerprint m = {.vendor = "GenuineIntel",
                        .microarch = "sapphire_rapids",
                        .family = 6,
                        .model = 143,
                        .isa = sapphire_rapids,
                        .usable_cores = 32,
                        .numa_nodes = 1,
                        .memory_bytes = (uint64_t)256 << 30};
    m.ceilings.stream_gbs_1t = 12;
    m.ceilings.stream_gbs_all = 250;
    return m;
}

/* One core of Granite Rapids as measured (peaks with real data, stream with its best prefetch). */
static kt_fingerprint granite_rapids(void) {
    kt_fingerprint m = {.vendor = "GenuineIntel",
                        .microarch = "graniterapids-v",
                        .family = 6,
                        .model = 167,
                        .isa = sapphire_rapids,
                        .usable_cores = 2,
                        .numa_nodes = 1,
                        .memory_bytes = (uint64_t)16 << 30};
    m.ceilings.stream_gbs_1t = 18.6;
    m.ceilings.stream_gbs_all = 37.4;
    m.ceilings.peak_scalar_gops = 49.2;
    for (int bit = 0; bit < KT_ISA_COUNT; bit++) {
        static const struct {
            const char *isa;
            double gops;
        } peaks[] = {{"avx2", 134},       {"avxvnni", 536},    {"avx512", 249},
                     {"avx512vnni", 996}, {"avx512bf16", 125}, {"avx512fp16", 498},
                     {"amxint8", 6792},   {"amxbf16", 3351}};
        for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
            if (kt_isa_parse(peaks[i].isa) == bit) m.ceilings.peak_gops[bit] = peaks[i].gops;
    }
    return m;
}

static kt_problem problem_of(kt_op op, kt_weight_format weights, int64_t k) {
    kt_problem p = {.op = op, .weights = weights, .n = 768, .k = k};
    if (op == KT_OP_MOE_FFN) {
        p.experts = 128;
        p.topk = 8;
    }
    return p;
}

typedef struct bench {
    kt_registry *registry;
    kt_planner *planner;
    kt_log log;
} bench;

static void open_bench(bench *b, const kt_fingerprint *m) {
    kt_err err = {0};

    memset(b, 0, sizeof *b);
    b->log.level = KT_LOG_ERROR;
    b->log.stream = stderr;
    b->registry = kt_test_own_variants(sapphire_rapids);
    cr_assert_eq(kt_planner_create(b->registry, NULL, m, &b->log, &b->planner, &err), KT_OK, "%s",
                 err.message);
}

static void close_bench(bench *b) {
    kt_planner_destroy(b->planner);
    kt_registry_destroy(b->registry);
}

/* The first m that tiles take, or 0. */
static int64_t crossover(const kt_choice_map *map, int64_t most) {
    for (int64_t m = 1; m <= most; m++)
        if (kt_choice_for(map, m)->variant->isa & TILES) return m;
    return 0;
}

static const kt_weight_format formats[] = {
    KT_W_INT4_G32, KT_W_INT4_G128, KT_W_INT4Z_G64, KT_W_INT8_CHANNEL, KT_W_INT8_G128,
    KT_W_BF16,     KT_W_F16,       KT_W_FP8_B128,  KT_W_FP8_CHANNEL,  KT_W_Q4_0,
    KT_W_Q4_K,     KT_W_Q6_K,      KT_W_MXFP4};

Test(plan_tiles, decode_goes_to_vectors_and_prefill_to_tiles) {
    static const kt_op ops[2] = {KT_OP_GEMM, KT_OP_MOE_FFN};
    const kt_fingerprint many_cores = machine();
    bench b;

    open_bench(&b, &many_cores);
    for (size_t i = 0; i < 2 * sizeof formats / sizeof *formats; i++) {
        kt_problem p = problem_of(ops[i % 2], formats[i / 2], 2048);
        const char *name = kt_weight_format_name(p.weights), *op = kt_op_name(p.op);
        kt_choice_map map;
        kt_plan_source source;
        kt_err err = {0};
        int64_t m;

        p.acts = kt_plan_acts(b.planner, &p);
        cr_assert_eq(kt_plan_resolve(b.planner, &p, 32, 2048, 0.5, &map, &source, &err), KT_OK,
                     "%s %s: %s", op, name, err.message);
        m = crossover(&map, 2048);
        cr_log_info("%s %s (%s): tiles from m = %lld", op, name, kt_act_format_name(p.acts),
                    (long long)m);
        for (int64_t few = 1; few <= 3; few++)
            cr_expect(kt_choice_for(&map, few)->variant->isa >= KT_ISA_AVX512, "%s %s m=%lld: %s",
                      op, name, (long long)few, kt_choice_for(&map, few)->variant->name);
        cr_expect(m > 3 && m <= 128, "%s %s: tiles from m = %lld", op, name, (long long)m);
        for (int64_t many = m; many <= 2048; many++)
            cr_expect(kt_choice_for(&map, many)->variant->isa & TILES, "%s %s m=%lld: %s", op, name,
                      (long long)many, kt_choice_for(&map, many)->variant->name);
    }
    close_bench(&b);
}

/* One encoding serves every number of rows: the one of the vector kernels, which tiles must
 * take, too. */
Test(plan_tiles, encodings_are_those_that_vectors_are_fast_with) {
    const kt_fingerprint many_cores = machine();
    bench b;

    open_bench(&b, &many_cores);
    cr_expect_eq(kt_registry_acts(b.registry, KT_OP_MOE_FFN, KT_W_INT4_G32), KT_A_INT8_G16P2);
    cr_expect_eq(kt_registry_acts(b.registry, KT_OP_MOE_FFN, KT_W_INT8_CHANNEL), KT_A_INT8_G16P2);
    cr_expect_eq(kt_registry_acts(b.registry, KT_OP_MOE_FFN, KT_W_INT4Z_G64), KT_A_INT8_G32);
    cr_expect_eq(kt_registry_acts(b.registry, KT_OP_GEMM, KT_W_Q4_0), KT_A_INT8_G32);
    cr_expect_eq(kt_registry_acts(b.registry, KT_OP_GEMM, KT_W_FP8_B128), KT_A_BF16);
    close_bench(&b);
}

/* What `kttune bench` measured on that machine, experts 2048 x 768, one thread: the last row count
 * that vectors win and the first that tiles do. */
Test(plan_tiles, the_crossovers_are_those_that_were_measured) {
    static const struct {
        kt_weight_format weights;
        int64_t vectors_at, tiles_at;
    } cases[] = {{KT_W_BF16, 1, 4},
                 {KT_W_FP8_B128, 1, 4},
                 {KT_W_INT8_CHANNEL, 6, 12},
                 {KT_W_INT4_G32, 8, 12},
                 {KT_W_Q4_K, 8, 16}};
    const kt_fingerprint m = granite_rapids();
    bench b;

    open_bench(&b, &m);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_problem p = problem_of(KT_OP_MOE_FFN, cases[i].weights, 2048);
        const char *name = kt_weight_format_name(p.weights);
        kt_choice_map map;
        kt_err err = {0};

        p.acts = kt_plan_acts(b.planner, &p);
        cr_assert_eq(kt_plan_resolve(b.planner, &p, 1, 512, 0.5, &map, NULL, &err), KT_OK, "%s: %s",
                     name, err.message);
        cr_log_info("%s: tiles from m = %lld", name, (long long)crossover(&map, 512));
        cr_expect(!(kt_choice_for(&map, cases[i].vectors_at)->variant->isa & TILES),
                  "%s m=%lld: %s", name, (long long)cases[i].vectors_at,
                  kt_choice_for(&map, cases[i].vectors_at)->variant->name);
        for (int64_t many = cases[i].tiles_at; many <= 512; many++)
            cr_expect(kt_choice_for(&map, many)->variant->isa & TILES, "%s m=%lld: %s", name,
                      (long long)many, kt_choice_for(&map, many)->variant->name);
    }
    close_bench(&b);
}

/* VDPBF16PS is an eighth of VPDPBUSD there and half of it on Zen 4: FMA runs unless it was measured
 * to lose. */
Test(plan_tiles, bfloat16_products_are_preferred_where_they_were_measured_to_be_faster) {
    static const struct {
        double fma, bf16;
        bool is_bf16;
    } cases[] = {{0, 0, false}, {223.5, 111.8, false}, {118, 235, true}};
    const kt_isa vectors = sapphire_rapids & ~TILES;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_fingerprint m = {.vendor = "GenuineIntel", .microarch = "any", .isa = vectors};
        kt_problem p = problem_of(KT_OP_MOE_FFN, KT_W_BF16, 2048);
        kt_registry *registry = kt_test_own_variants(vectors);
        kt_planner *planner;
        kt_choice_map map;

        m.ceilings.peak_gops[kt_isa_parse("avx512")] = cases[i].fma;
        m.ceilings.peak_gops[kt_isa_parse("avx512bf16")] = cases[i].bf16;
        cr_assert_eq(kt_planner_create(registry, NULL, &m, NULL, &planner, NULL), KT_OK);
        p.acts = KT_A_BF16;
        cr_assert_eq(kt_plan_resolve(planner, &p, 1, 512, 0.5, &map, NULL, NULL), KT_OK);
        for (int64_t rows = 1; rows <= 512; rows *= 2)
            cr_expect_eq((kt_choice_for(&map, rows)->variant->isa & KT_ISA_AVX512BF16) != 0,
                         cases[i].is_bf16, "case %zu m=%lld: %s", i, (long long)rows,
                         kt_choice_for(&map, rows)->variant->name);
        kt_planner_destroy(planner);
        kt_registry_destroy(registry);
    }
}

/* A product takes 16 cycles whatever its rows are. */
Test(plan_tiles, tiles_take_as_long_with_one_row_as_with_sixteen) {
    const kt_fingerprint m = granite_rapids();
    const kt_variant tiles = {
        .name = "t", .op = KT_OP_GEMM, .isa = KT_ISA_AMXINT8, .numerics = KT_NUM_REQUANT};
    kt_problem p = problem_of(KT_OP_GEMM, KT_W_INT4_G32, 2048);
    double sixteen, expected;

    p.m = 16;
    sixteen = kt_cost_ns(&p, &tiles, &m.ceilings, 1);
    expected = kt_cost_expected_ns(&p, &tiles, &m.ceilings, 1);
    cr_expect_gt(expected, sixteen, "what is expected is above the bound");
    for (p.m = 1; p.m < 16; p.m++) {
        cr_expect_eq(kt_cost_ns(&p, &tiles, &m.ceilings, 1), sixteen);
        cr_expect_eq(kt_cost_expected_ns(&p, &tiles, &m.ceilings, 1), expected);
    }
}

/* A server whose memory was not measured: as if it read one stream whatever its cores, nothing
 * else would show what tiles cost with one row. Deterministic plans decode on vectors all the
 * same, as default ones do. */
Test(plan_tiles, decode_stays_on_vectors_where_memory_was_not_measured) {
    kt_fingerprint m = machine();
    bench b, kept;

    memset(&m.ceilings, 0, sizeof m.ceilings);
    m.usable_cores = 16;
    open_bench(&b, &m);
    open_bench(&kept, &m);
    kt_planner_keep_bits(kept.planner);
    for (int i = 0; i < 2; i++) {
        static const kt_weight_format weights[2] = {KT_W_INT4_G32, KT_W_INT8_CHANNEL};
        kt_problem p = problem_of(KT_OP_MOE_FFN, weights[i], 2048), q = p;
        const char *name = kt_weight_format_name(p.weights);
        static kt_choice_map fastest, one_class;
        kt_plan_source source;

        p.acts = kt_plan_acts(b.planner, &p);
        q.acts = kt_plan_acts(kept.planner, &q);
        cr_assert_eq(kt_plan_resolve(b.planner, &p, 16, 512, 0.7, &fastest, NULL, NULL), KT_OK);
        cr_assert_eq(kt_plan_resolve(kept.planner, &q, 16, 512, 0.7, &one_class, &source, NULL),
                     KT_OK);
        for (int64_t few = 1; few <= 8; few++) {
            cr_expect_eq(kt_choice_for(&fastest, few)->variant->isa & TILES, 0, "%s m=%lld: %s",
                         name, (long long)few, kt_choice_for(&fastest, few)->variant->name);
            cr_expect_eq(kt_choice_for(&one_class, few)->variant->isa & TILES, 0, "%s m=%lld: %s",
                         name, (long long)few, kt_choice_for(&one_class, few)->variant->name);
        }
        cr_expect_str_eq(source.bits, "a8-groups", "%s: of vectors and exact tiles", name);
        cr_expect(kt_choice_for(&one_class, 512)->variant->isa & TILES, "%s", name);
    }
    close_bench(&kept);
    close_bench(&b);
}
