/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "dispatch/cost/cost.h"

static void expect_work(kt_problem p, double bytes, double operations) {
    double b, o;
    kt_problem_work(&p, &b, &o);
    cr_assert_float_eq(b, bytes, 1e-9 * bytes, "%s: %g bytes, expected %g", kt_op_name(p.op), b,
                       bytes);
    cr_assert_float_eq(o, operations, 1e-9 * operations, "%s: %g operations, expected %g",
                       kt_op_name(p.op), o, operations);
}

Test(cost, counts_bytes_and_operations) {
    /* Qwen3-30B-A3B expert, INT4 in groups of 32: 3 * 768 * 2048 weights of 4.5 bits. */
    expect_work(
        (kt_problem){.op = KT_OP_MOE_FFN, .weights = KT_W_INT4_G32, .m = 4, .n = 768, .k = 2048},
        3.0 * 768 * 2048 * 4.5 / 8, 2.0 * 4 * 3 * 768 * 2048);
    expect_work((kt_problem){.op = KT_OP_GEMM, .weights = KT_W_BF16, .m = 3, .n = 100, .k = 64},
                2.0 * 100 * 64, 2.0 * 3 * 100 * 64);
    expect_work(
        (kt_problem){.op = KT_OP_GEMM, .weights = KT_W_INT8_CHANNEL, .m = 1, .n = 100, .k = 64},
        100.0 * 64 + 4 * 100, 2.0 * 100 * 64);
    /* Gate and up have a scale per intermediate channel, down one per hidden channel. */
    expect_work(
        (kt_problem){.op = KT_OP_MOE_FFN, .weights = KT_W_INT8_CHANNEL, .m = 1, .n = 64, .k = 96},
        3.0 * 64 * 96 + 4 * (64 + 64 + 96), 6.0 * 64 * 96);
    expect_work((kt_problem){.op = KT_OP_ROUTER, .weights = KT_W_F32, .m = 2, .n = 128, .k = 64},
                4.0 * 128 * 64, 2.0 * 2 * 128 * 64);
    expect_work(
        (kt_problem){.op = KT_OP_ATTN, .m = 1, .n = 32, .k = 128, .kv_heads = 4, .context = 1000},
        2.0 * 2 * 1000 * 4 * 128, 2.0 * 2 * 32 * 128 * 1000);
    /* Three rows, the last of which sees 1000 keys; values shorter than keys; the same where they
     * are the beginning of keys. */
    expect_work(
        (kt_problem){
            .op = KT_OP_ATTN, .m = 3, .n = 4, .k = 192, .kv_heads = 4, .v = 128, .context = 1000},
        2.0 * 1000 * 4 * (192 + 128), 2.0 * 4 * (192 + 128) * (1000 + 999 + 998));
    expect_work(
        (kt_problem){
            .op = KT_OP_ATTN, .m = 1, .n = 128, .k = 576, .kv_heads = 1, .v = 512, .context = 1000},
        2.0 * 1000 * 576, 2.0 * 128 * (576 + 512) * 1000);
    expect_work((kt_problem){.op = KT_OP_CONV, .m = 5, .n = 64, .k = 4},
                8.0 * 5 * 64 + 4.0 * 64 * (4 + 2 * 3), 2.0 * 5 * 64 * 4);
    expect_work((kt_problem){.op = KT_OP_DELTA, .m = 5, .n = 4, .k = 64, .kv_heads = 2, .v = 32},
                8.0 * 4 * 64 * 32, 7.0 * 5 * 4 * 64 * 32);
    expect_work((kt_problem){.op = KT_OP_INDEX, .m = 5, .n = 4, .k = 64, .context = 100},
                2.0 * 64 * 100, 2.0 * 5 * 4 * 64 * 100);
    for (int64_t window = 10; window <= 2000;
         window += 1990) /* one that is wider changes nothing */
        expect_work((kt_problem){.op = KT_OP_ATTN,
                                 .m = 1,
                                 .n = 32,
                                 .k = 128,
                                 .kv_heads = 4,
                                 .context = 1000,
                                 .window = window},
                    2.0 * 2 * (window < 1000 ? 10 : 1000) * 4 * 128,
                    2.0 * 2 * 32 * 128 * (window < 1000 ? 10 : 1000));
    /* Down projections of 8 bits beside gate and up of 16. */
    expect_work((kt_problem){.op = KT_OP_MOE_FFN,
                             .weights = KT_W_BF16,
                             .down = KT_W_INT8_CHANNEL,
                             .m = 1,
                             .n = 64,
                             .k = 96},
                2.0 * 2 * 64 * 96 + 64 * 96 + 4 * 96, 6.0 * 64 * 96);
    expect_work((kt_problem){.op = KT_OP_NORM, .m = 5, .n = 1, .k = 64}, 8.0 * 5 * 64,
                4.0 * 5 * 64);
}

Test(cost, takes_the_higher_roof) {
    const kt_variant v = {.name = "v", .op = KT_OP_GEMM, .isa = KT_ISA_AVX512VNNI};
    kt_ceilings c = {.stream_gbs_1t = 20, .stream_gbs_all = 30};
    kt_problem p = {.op = KT_OP_GEMM, .weights = KT_W_BF16, .m = 1, .n = 1000, .k = 1000};

    c.peak_gops[3] = 400;
    cr_assert_float_eq(kt_cost_ns(&p, &v, &c, 1), 2e6 / 20, 1e-6); /* reads */
    cr_assert_float_eq(kt_cost_ns(&p, &v, &c, 2), 2e6 / 30, 1e-6); /* not twice the stream */
    p.m = 100;
    cr_assert_float_eq(kt_cost_ns(&p, &v, &c, 1), 2e8 / 400, 1e-6); /* multiplies */
    cr_assert_float_eq(kt_cost_ns(&p, &v, &c, 2), 2e8 / 400 / 2, 1e-6);
    cr_assert_float_eq(kt_cost_ns(&p, &v, &c, 0), 2e8 / 400, 1e-6); /* as one thread */
}

Test(cost, shuffles_are_not_what_multiplies) {
    const kt_variant bf16 = {.op = KT_OP_ATTN, .isa = KT_ISA_AVX512VBMI | KT_ISA_AVX512BF16};
    const kt_variant int8 = {.op = KT_OP_ATTN, .isa = KT_ISA_AVX512VNNI};
    const kt_ceilings c = {.stream_gbs_1t = 1000, .peak_gops = {[3] = 470, [4] = 235, [5] = 470}};
    const kt_problem p = {.op = KT_OP_ATTN,
                          .weights = KT_W_INT8_CHANNEL,
                          .m = 1,
                          .n = 32,
                          .k = 128,
                          .kv_heads = 4,
                          .context = 1000};

    cr_assert_float_eq(kt_cost_ns(&p, &bf16, &c, 1), 2 * kt_cost_ns(&p, &int8, &c, 1), 1e-6);
}

static kt_status is_there(kt_err *why) {
    (void)why;
    return KT_OK;
}

/* Bytes without VNNI are multiplied three times as fast as floats; what a library does is not known
 * from its instruction set. */
Test(cost, words_are_multiplied_faster_than_floats) {
    const kt_ceilings c = {.stream_gbs_1t = 1e6, .peak_gops = {100}};
    const kt_variant v = {
        .name = "v", .op = KT_OP_GEMM, .isa = KT_ISA_AVX2, .acts = 1u << KT_A_INT8_G32};
    kt_variant lib = v, floats = v;
    kt_problem p = {.op = KT_OP_GEMM,
                    .weights = KT_W_INT4_G32,
                    .acts = KT_A_INT8_G32,
                    .m = 64,
                    .n = 64,
                    .k = 64};
    const double ns = kt_cost_ns(&p, &v, &c, 1);

    lib.usable = is_there;
    cr_assert_float_eq(ns, 2.0 * 64 * 64 * 64 / 300, 1e-9);
    cr_assert_float_eq(kt_cost_ns(&p, &lib, &c, 1), 3 * ns, 1e-9);
    cr_assert_gt(kt_cost_expected_ns(&p, &v, &c, 1), ns);
    p.acts = KT_A_BF16;
    floats.acts = 1u << KT_A_BF16;
    cr_assert_float_eq(kt_cost_ns(&p, &floats, &c, 1), 3 * ns, 1e-9);
}

Test(cost, without_measurements_wider_is_never_slower) {
    const kt_ceilings none = {0};
    const kt_isa order[] = {KT_ISA_SCALAR, KT_ISA_AVX2, KT_ISA_AVX512, KT_ISA_AVX512VNNI,
                            KT_ISA_AMXINT8};
    kt_problem p = {.op = KT_OP_GEMM, .weights = KT_W_INT8_CHANNEL, .m = 512, .n = 768, .k = 2048};
    double before = 1e300;

    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        kt_variant v = {.name = "v", .op = KT_OP_GEMM, .isa = order[i]};
        double ns = kt_cost_ns(&p, &v, &none, 2);
        cr_assert(ns > 0 && ns <= before, "step %zu: %g after %g", i, ns, before);
        before = ns;
    }
}

Test(cost, grows_with_rows_and_shrinks_with_threads) {
    const kt_variant v = {.name = "v", .op = KT_OP_MOE_FFN, .isa = KT_ISA_AVX2};
    const kt_ceilings none = {0};
    kt_problem p = {.op = KT_OP_MOE_FFN, .weights = KT_W_INT4_G32, .m = 1, .n = 768, .k = 2048};
    double before = 0;

    for (p.m = 1; p.m <= 4096; p.m *= 2) {
        double ns = kt_cost_ns(&p, &v, &none, 1);
        cr_assert_geq(ns, before);
        cr_assert_leq(kt_cost_ns(&p, &v, &none, 4), ns);
        before = ns;
    }
}

/* More than the roofline is a claim that needs its reason beside it. */
Test(cost, names_why_something_is_faster_than_its_bound) {
    const kt_variant v = {.name = "v", .op = KT_OP_GEMM, .isa = KT_ISA_AVX512VNNI};
    kt_ceilings c = {.stream_gbs_1t = 20, .stream_gbs_all = 30};
    kt_problem p = {.op = KT_OP_GEMM, .weights = KT_W_BF16, .m = 1, .n = 1000, .k = 1000};

    c.peak_gops[3] = 400;
    cr_expect_str_eq(kt_cost_excess(&p, &v, &c, 1, 1e5), "");
    cr_expect_str_eq(kt_cost_excess(&p, &v, &c, 1, 2e5), "");
    cr_expect_not_null(strstr(kt_cost_excess(&p, &v, &c, 1, 0.99e5), "from a cache"));
    p.m = 1000;
    cr_expect_not_null(strstr(kt_cost_excess(&p, &v, &c, 1, 4.9e6), "lower clock"));
}
