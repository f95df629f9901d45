/* What a machine with tiles would run, by the registry and the roofline alone: vectors while memory is what
 * takes the time, tiles from some number of rows on. The machine is forged; nothing is executed.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "base/cpu.h"
#include "dispatch/cost/cost.h"
#include "dispatch/plan/plan.h"
#include "tests/support/skip.h"

#define TILES (KT_ISA_AMXINT8 | KT_ISA_AMXBF16)

static const kt_isa sapphire_rapids = KT_ISA_AVX2 | KT_ISA_AVXVNNI | KT_ISA_AVX512 |
                                      KT_ISA_AVX512VNNI | KT_ISA_AVX512BF16 | KT_ISA_AVX512VBMI |
                                      KT_ISA_AVX512FP16 | TILES;

/* One core of many: figures of the probe in the terms of kt_ceilings; tiles have no probe yet. */
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

static void open_bench(bench *b) {
    const kt_fingerprint m = machine();
    kt_err err = {0};

    memset(b, 0, sizeof *b);
    b->log.level = KT_LOG_ERROR;
    b->log.stream = stderr;
    kt_skip_without_isa(KT_ISA_AVX512, "self-tests of libraries on such a machine");
    cr_assert_eq(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, sapphire_rapids,
                                    &b->registry, &err),
                 KT_OK, "%s", err.message);
    cr_assert_eq(kt_planner_create(b->registry, NULL, &m, &b->log, &b->planner, &err), KT_OK, "%s",
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
    bench b;

    open_bench(&b);
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
        for (int64_t few = 1; few <= 4; few++)
            cr_expect(kt_choice_for(&map, few)->variant->isa >= KT_ISA_AVX512, "%s %s m=%lld: %s",
                      op, name, (long long)few, kt_choice_for(&map, few)->variant->name);
        cr_expect(m > 4 && m <= 128, "%s %s: tiles from m = %lld", op, name, (long long)m);
        for (int64_t many = m; many <= 2048; many++)
            cr_expect(kt_choice_for(&map, many)->variant->isa & TILES, "%s %s m=%lld: %s", op, name,
                      (long long)many, kt_choice_for(&map, many)->variant->name);
    }
    close_bench(&b);
}

/* One encoding serves every number of rows: the one of the vector kernels, which tiles must take, too. */
Test(plan_tiles, encodings_are_those_that_vectors_are_fast_with) {
    bench b;

    open_bench(&b);
    cr_expect_eq(kt_registry_acts(b.registry, KT_OP_MOE_FFN, KT_W_INT4_G32), KT_A_INT8_G16P2);
    cr_expect_eq(kt_registry_acts(b.registry, KT_OP_MOE_FFN, KT_W_INT8_CHANNEL), KT_A_INT8_G16P2);
    cr_expect_eq(kt_registry_acts(b.registry, KT_OP_MOE_FFN, KT_W_INT4Z_G64), KT_A_INT8_G32);
    cr_expect_eq(kt_registry_acts(b.registry, KT_OP_GEMM, KT_W_Q4_0), KT_A_INT8_G32);
    cr_expect_eq(kt_registry_acts(b.registry, KT_OP_GEMM, KT_W_FP8_B128), KT_A_BF16);
    close_bench(&b);
}

/* Memory gives each of T threads stream / T; vectors keep up to m = peak * bytes per weight / (2 * share). */
Test(plan_tiles, the_crossover_is_where_vectors_become_slower_than_memory) {
    const kt_fingerprint m = machine();
    const kt_variant vector = {.name = "v", .op = KT_OP_GEMM, .isa = KT_ISA_AVX512VNNI};
    const kt_variant tiles = {
        .name = "t", .op = KT_OP_GEMM, .isa = KT_ISA_AMXINT8, .numerics = KT_NUM_REQUANT};
    const double peak = 256, bytes = 4.5 / 8; /* what cost.c takes a core without a probe to do */
    kt_problem p = problem_of(KT_OP_GEMM, KT_W_INT4_G32, 2048);

    for (int threads = 1; threads <= 32; threads *= 2) {
        const double each = threads * 12 < 250 ? 12 : 250.0 / threads;
        const double limit = peak * bytes / (2 * each);
        p.m = (int64_t)limit;
        cr_expect_lt(kt_cost_ns(&p, &vector, &m.ceilings, threads),
                     kt_cost_ns(&p, &tiles, &m.ceilings, threads), "%d threads", threads);
        p.m = (int64_t)limit + 2;
        cr_expect_gt(kt_cost_ns(&p, &vector, &m.ceilings, threads),
                     kt_cost_ns(&p, &tiles, &m.ceilings, threads), "%d threads", threads);
    }
}
