/* What weights become, by what is stored and what is asked, and the problems that follow.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "dispatch/model/needs.h"

static kt_weight three(kt_weight_format a, kt_weight_format b, kt_weight_format c) {
    kt_weight w = {.kind = KT_WEIGHT_MATRIX, .n = 320, .k = 256, .count = 1, .n_parts = 3};

    w.part[0] = (kt_weight_part){.n = 64, .k = 256, .stored = a};
    w.part[1] = (kt_weight_part){.n = 128, .k = 256, .stored = b};
    w.part[2] = (kt_weight_part){.n = 128, .k = 256, .stored = c};
    return w;
}

Test(needs, neighbours_of_one_format_are_one_run) {
    kt_weight w = three(KT_W_BF16, KT_W_F32, KT_W_BF16);
    kt_run runs[KT_WEIGHT_PARTS];

    cr_assert_eq(kt_weight_runs(&w, KT_QUANT_NATIVE, runs), 1); /* F32 becomes BF16 */
    cr_expect(runs[0].first == 0 && runs[0].n == 3 && runs[0].at == 0 && runs[0].problem.n == 320);
    w = three(KT_W_Q4_K, KT_W_Q4_K, KT_W_Q6_K);
    cr_assert_eq(kt_weight_runs(&w, KT_QUANT_NATIVE, runs), 2);
    cr_expect(runs[0].n == 2 && runs[0].problem.n == 192 && runs[0].problem.weights == KT_W_Q4_K);
    cr_expect(runs[1].first == 2 && runs[1].n == 1 && runs[1].at == 192 &&
              runs[1].problem.n == 128 && runs[1].problem.weights == KT_W_Q6_K);
    w = three(KT_W_F16, KT_W_BF16, KT_W_F16);
    cr_expect_eq(kt_weight_runs(&w, KT_QUANT_NATIVE, runs), 3);
    cr_expect_eq(kt_weight_runs(&w, KT_QUANT_INT8, runs), 1);
    cr_expect_eq(runs[0].problem.weights, KT_W_INT8_CHANNEL);
    /* 64 rows end inside a block of 128, 128 rows do not. */
    w = three(KT_W_FP8_B128, KT_W_FP8_B128, KT_W_FP8_B128);
    cr_assert_eq(kt_weight_runs(&w, KT_QUANT_NATIVE, runs), 2);
    cr_expect(runs[0].n == 1 && runs[1].n == 2 && runs[1].at == 64);
    w.kind = KT_WEIGHT_ROUTER;
    cr_expect_eq(kt_weight_runs(&w, KT_QUANT_NATIVE, runs), 0);
}

Test(needs, experts_are_one_run_with_a_format_of_down) {
    kt_weight w = three(KT_W_Q4_K, KT_W_Q4_K, KT_W_Q6_K);
    kt_run run[KT_WEIGHT_PARTS];

    w.kind = KT_WEIGHT_EXPERTS, w.use = KT_USE_EXPERTS, w.count = 8, w.topk = 2;
    cr_assert_eq(kt_weight_runs(&w, KT_QUANT_NATIVE, run), 1);
    cr_expect(run[0].n == 3 && run[0].problem.op == KT_OP_MOE_FFN &&
              run[0].problem.weights == KT_W_Q4_K && run[0].problem.down == KT_W_Q6_K &&
              run[0].problem.experts == 8 && run[0].problem.topk == 2);
    w.part[2].stored = KT_W_Q4_K;
    kt_weight_runs(&w, KT_QUANT_NATIVE, run);
    cr_expect_eq(run[0].problem.down, KT_W_NONE);
}

/* Every number that packing or a kernel depends on tells two problems apart; rows do not. */
Test(needs, needs_are_the_same_when_all_their_numbers_are) {
    const kt_problem p = {.op = KT_OP_MOE_FFN,
                          .weights = KT_W_BF16,
                          .m = 1,
                          .n = 32,
                          .k = 64,
                          .experts = 4,
                          .topk = 2};
    kt_problem other[7] = {p, p, p, p, p, p, p}, rows = p;

    other[0].op = KT_OP_GEMM, other[1].weights = KT_W_F16, other[2].down = KT_W_F16;
    other[3].n = 64, other[4].k = 32, other[5].experts = 5, other[6].topk = 3;
    for (int i = 0; i < 7; i++) cr_expect_not(kt_need_is_same(&p, &other[i]), "number %d", i);
    rows.m = 2;
    cr_expect(kt_need_is_same(&p, &rows));
}

Test(needs, weights_become_what_is_asked_by_their_use) {
#define ASK(format) ((kt_quant)(KT_QUANT_FORMAT + (format)))
    static const struct {
        kt_quant quant;
        kt_weight_format linear, experts, ffn, head;
    } cases[] = {
        {KT_QUANT_NATIVE, KT_W_F16, KT_W_F16, KT_W_F16, KT_W_F16},
        {KT_QUANT_BF16, KT_W_BF16, KT_W_BF16, KT_W_BF16, KT_W_BF16},
        {KT_QUANT_INT8, KT_W_INT8_CHANNEL, KT_W_INT8_CHANNEL, KT_W_INT8_CHANNEL, KT_W_INT8_CHANNEL},
        {KT_QUANT_INT4, KT_W_INT8_CHANNEL, KT_W_INT4_G32, KT_W_INT8_CHANNEL, KT_W_INT8_CHANNEL},
        {ASK(KT_W_INT4_G128), KT_W_INT8_CHANNEL, KT_W_INT4_G128, KT_W_INT4_G128, KT_W_INT8_CHANNEL},
        {ASK(KT_W_FP8_B128), KT_W_FP8_B128, KT_W_FP8_B128, KT_W_FP8_B128, KT_W_FP8_B128}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kt_weight_format want[] = {[KT_USE_LINEAR] = cases[i].linear,
                                         [KT_USE_EXPERTS] = cases[i].experts,
                                         [KT_USE_FFN] = cases[i].ffn,
                                         [KT_USE_HEAD] = cases[i].head};
        for (int use = 0; use < 4; use++) {
            kt_weight w = three(KT_W_F16, KT_W_F16, KT_W_F16);
            w.use = (kt_use)use;
            cr_expect_eq(kt_weight_becomes(&w, 1, cases[i].quant), want[use],
                         "case %zu, use %d: %s", i, use,
                         kt_weight_format_name(kt_weight_becomes(&w, 1, cases[i].quant)));
            w.kind = KT_WEIGHT_HEADS;
            cr_expect_eq(kt_weight_becomes(&w, 0, cases[i].quant), KT_W_BF16);
        }
    }
}

/* What stands between gate and down has one encoding, so integers on one side alone become BF16. */
Test(needs, integers_meet_floats_as_bf16) {
    static const struct {
        kt_weight_format gate, down, gate_becomes, down_becomes;
    } cases[] = {{KT_W_INT4_G32, KT_W_BF16, KT_W_BF16, KT_W_BF16},
                 {KT_W_BF16, KT_W_INT4_G32, KT_W_BF16, KT_W_BF16},
                 {KT_W_INT8_CHANNEL, KT_W_FP8_B128, KT_W_BF16, KT_W_FP8_B128},
                 {KT_W_FP8_B128, KT_W_INT8_CHANNEL, KT_W_FP8_B128, KT_W_BF16},
                 {KT_W_INT4_G32, KT_W_INT8_CHANNEL, KT_W_INT4_G32, KT_W_INT8_CHANNEL},
                 {KT_W_FP8_B128, KT_W_BF16, KT_W_FP8_B128, KT_W_BF16}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_weight w = three(cases[i].gate, cases[i].gate, cases[i].down);
        w.kind = KT_WEIGHT_EXPERTS;
        for (int part = 0; part < 3; part++) {
            const kt_weight_format got = kt_weight_becomes(&w, part, KT_QUANT_NATIVE);
            cr_expect_eq(got, part < 2 ? cases[i].gate_becomes : cases[i].down_becomes,
                         "case %zu, part %d: %s", i, part, kt_weight_format_name(got));
        }
    }
}

Test(needs, routers_and_tables_keep_their_type) {
    kt_weight w = three(KT_W_BF16, KT_W_NONE, KT_W_NONE);

    w.kind = KT_WEIGHT_ROUTER;
    cr_expect_eq(kt_weight_kept_as(&w), KT_W_BF16);
    w.part[0].stored = KT_W_F16;
    cr_expect_eq(kt_weight_kept_as(&w), KT_W_F32);
    w.kind = KT_WEIGHT_TABLE, w.part[0].stored = KT_W_Q6_K;
    cr_expect_eq(kt_weight_kept_as(&w), KT_W_Q6_K);
    w.kind = KT_WEIGHT_VECTOR, w.part[0].stored = KT_W_BF16;
    cr_expect_eq(kt_weight_kept_as(&w), KT_W_F32);
}
