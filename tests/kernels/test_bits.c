/* Classes of bits (kt_variant.bits): variants of one class agree bit for bit, with every
 * configuration and number of rows. Tiles run on the hardware or by the emulator.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/formats/gate_inputs.h"
#include "kernels/formats/p64.h"
#include "kernels/gemm/gemm_gate.h"
#include "kernels/moe_ffn/moe_gate.h"
#include "tests/kernels/variant_walk.h"
#include "tests/support/amx_emulator.h"
#include "tests/support/skip.h"

#define AMX (KT_ISA_AMXINT8 | KT_ISA_AMXBF16)

/* Around tiles of 16 and blocks of 64; with BF16 and narrow matrices beyond blocks of 128. */
static const int64_t rows[] = {1, 2, 3, 7, 16, 17, 64, 65, 129};
enum { N_ROWS = sizeof rows / sizeof *rows, MOST_ROWS = 129 };

Test(bits, every_variant_names_its_class) {
    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        if (v->op == KT_OP_PROBE) continue;
        cr_expect(v->bits && v->bits[0], "%s names no class of bits", v->name);
        cr_expect_eq(kt_variant_is_stable(v),
                     !strstr(v->name, "__lib") && strncmp(v->name, "delta_chunks", 12),
                     "%s: bits '%s'; libraries and sums over rows promise none, other kernels do",
                     v->name, v->bits);
    }
}

/* --- comparing --- */

/* One set of inputs, dense or of an expert. */
typedef struct inputs {
    kt_problem problem;
    kt_gemm_case *gemm;
    kt_moe_case *moe;
    int64_t width; /* floats of a row of results */
} inputs;

static inputs inputs_make(kt_op op, kt_weight_format weights, kt_act_format acts, int shape) {
    static const int64_t sizes[][2] = {{65, 288}, {130, 96}, {17, 768}};
    const int64_t multiple = kt_p64_k_multiple(weights);
    const int is_narrow = sizes[shape][0] < 64;
    inputs in = {.problem = {.op = op,
                             .weights = weights,
                             .acts = acts,
                             .m = weights == KT_W_BF16 || is_narrow ? MOST_ROWS : 65,
                             .n = sizes[shape][0],
                             .k = (sizes[shape][1] + multiple - 1) / multiple * multiple}};
    kt_err err = {0};
    kt_status st;

    if (op == KT_OP_MOE_FFN) {
        in.problem.n = (in.problem.n + multiple - 1) / multiple * multiple;
        in.problem.experts = in.problem.topk = 1;
        st = kt_moe_case_create(&in.problem, 5, &in.moe, &err);
    } else {
        st = kt_gemm_case_create(&in.problem, 5, &in.gemm, &err);
    }
    cr_assert_eq(st, KT_OK, "%s", err.message);
    in.width = op == KT_OP_MOE_FFN ? in.problem.k : in.problem.n;
    return in;
}

static void inputs_free(inputs *in) {
    kt_moe_case_destroy(in->moe);
    kt_gemm_case_destroy(in->gemm);
}

/* The first m rows by a variant, or false when it refuses so many. */
static int run(const inputs *in, const kt_variant *v, const kt_config *config, int64_t m,
               float *out) {
    kt_err err = {0};
    const kt_status st = in->moe ? kt_moe_case_rows(in->moe, v, config, m, out, &err)
                                 : kt_gemm_case_rows(in->gemm, v, config, m, out, &err);
    cr_assert(st == KT_OK || st == KT_E_UNSUPPORTED, "%s: %s", v->name, err.message);
    return st == KT_OK;
}

/* Does b, with every configuration and number of rows, give the rows of a? On a difference
 * `where` tells it. */
static int same(const inputs *in, const kt_variant *a, const kt_variant *b, char where[200]) {
    const int64_t most = in->problem.m;
    const kt_config first = config_at(a, 0);
    float *want = malloc(sizeof *want * (size_t)(most * in->width));
    float *got = malloc(sizeof *got * (size_t)(most * in->width));
    int equal = 1, compared = 0;

    cr_assert(want && got);
    cr_assert(run(in, a, &first, most, want), "%s refuses %lld rows", a->name, (long long)most);
    for (int64_t c = 0; c < config_count(b); c++)
        for (int i = 0; i < N_ROWS && rows[i] <= most && equal; i++) {
            const kt_config config = config_at(b, c);
            if (!config_takes_row(c, (size_t)i) || !run(in, b, &config, rows[i], got)) continue;
            compared++;
            for (int64_t x = 0; x < rows[i] * in->width && equal; x++) {
                equal = kt_gate_same(&want[x], &got[x]);
                if (!equal)
                    snprintf(where, 200, "configuration %d, m=%d: [%d, %d] is %.9g, of %s %.9g",
                             (int)c, (int)rows[i], (int)(x / in->width), (int)(x % in->width),
                             (double)got[x], a->name, (double)want[x]);
            }
        }
    cr_assert_gt(compared, 0, "%s took no rows", b->name);
    free(want);
    free(got);
    return equal;
}

/* --- the classes --- */

/* May this machine run it, if need be by the emulator? */
static int runs_here(const kt_variant *v) {
    kt_isa have = kt_isa_available();

    if (have & KT_ISA_AVX512 && kt_amx_start(NULL) == KT_OK) have |= AMX | KT_ISA_AVX512FP16;
    return !(v->isa & ~have) && (!v->usable || v->usable(NULL) == KT_OK);
}

/* The first variant here of v's class that takes the formats: v itself when there is no other. */
static const kt_variant *first_of_class(const kt_variant *v, int weights, int acts) {
    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *u = kt_builtin_variants[i];
        if (kt_variant_same_bits(u, v) && u->weights >> weights & 1 && u->acts >> acts & 1 &&
            runs_here(u))
            return u;
    }
    return v;
}

static struct criterion_test_params stable_variants(kt_op op) {
    size_t all, n = 0, *index = variants_of(op, &all);

    for (size_t i = 0; i < all; i++)
        if (kt_variant_is_stable(kt_builtin_variants[index[i]])) index[n++] = index[i];
    return cr_make_param_array(size_t, index, n);
}

/* Variants of many formats have one loop for all: one shape of each. Plain C is compared with
 * itself, slowly: the formats of its own loops will do. */
static void check_class(const kt_variant *v) {
    const int is_plain = v->isa == KT_ISA_SCALAR;
    int checked = 0;

    if (!runs_here(v)) kt_skip_without_isa(v->isa, v->name);
    for (int w = 1; w < KT_W_COUNT; w++)
        for (int a = 1; a < KT_A_COUNT; a++) {
            const kt_variant *first;
            if (!(v->weights >> w & 1) || !(v->acts >> a & 1)) continue;
            if (is_plain && w > KT_W_INT4_G32) continue;
            first = first_of_class(v, w, a);
            for (int shape = 0; shape < (w <= KT_W_INT4_G32 && !is_plain ? 3 : 1); shape++) {
                inputs in;
                const kt_problem q = {.op = v->op,
                                      .weights = (kt_weight_format)w,
                                      .acts = (kt_act_format)a,
                                      .m = 65,
                                      .n = 768,
                                      .k = 768};
                char where[200] = "";
                if (kt_gate_accepts(v, &q, NULL, NULL) != KT_OK) continue;
                in = inputs_make(v->op, (kt_weight_format)w, (kt_act_format)a, shape);
                cr_expect(same(&in, first, v, where), "%s, class '%s', %s x %s, n=%d k=%d: %s",
                          v->name, v->bits, kt_weight_format_name((kt_weight_format)w),
                          kt_act_format_name((kt_act_format)a), (int)in.problem.n,
                          (int)in.problem.k, where);
                inputs_free(&in);
                checked++;
            }
        }
    cr_assert_gt(checked, 0, "%s met no format", v->name);
}

ParameterizedTestParameters(bits, gemm_variants_of_a_class_agree) {
    return stable_variants(KT_OP_GEMM);
}
ParameterizedTest(size_t *index, bits, gemm_variants_of_a_class_agree, .timeout = 300) {
    check_class(kt_builtin_variants[*index]);
}

ParameterizedTestParameters(bits, moe_ffn_variants_of_a_class_agree) {
    return stable_variants(KT_OP_MOE_FFN);
}
ParameterizedTest(size_t *index, bits, moe_ffn_variants_of_a_class_agree, .timeout = 300) {
    check_class(kt_builtin_variants[*index]);
}

/* --- that it can fail --- */

extern const kt_variant kt_variant_any_any_p64__scalar, kt_variant_any_any_moe64__scalar;
extern const kt_variant kt_variant_w4g32_a8_p64__avx2, kt_variant_w4g32_a8_moe64__avx2;

/* Plain C adds scaled groups with two roundings, vectors with one: two classes. */
Test(bits, the_comparison_tells_classes_apart) {
    static const kt_variant *const pairs[][2] = {
        {&kt_variant_any_any_p64__scalar, &kt_variant_w4g32_a8_p64__avx2},
        {&kt_variant_any_any_moe64__scalar, &kt_variant_w4g32_a8_moe64__avx2}};

    for (int i = 0; i < 2; i++) {
        inputs in = inputs_make(pairs[i][0]->op, KT_W_INT4_G32, KT_A_INT8_G32, 0);
        char where[200] = "";
        if (!runs_here(pairs[i][1])) cr_skip_test("needs AVX2");
        cr_expect(!kt_variant_same_bits(pairs[i][0], pairs[i][1]));
        cr_expect(!same(&in, pairs[i][0], pairs[i][1], where), "%s equals %s", pairs[i][0]->name,
                  pairs[i][1]->name);
        cr_expect_not_null(strstr(where, pairs[i][0]->name), "%s", where);
        inputs_free(&in);
    }
}

/* A kernel for many rows that moves one output of each panel in the first row by its last bit. */
static void many_rows_differ(const kt_gemm_call *c) {
    kt_variant_any_any_p64__scalar.gemm(c);
    for (int64_t p = c->panel_begin; p < c->panel_end && c->m > 64; p++)
        c->c[64 * p] *= 1 + 0x1p-23f;
}

Test(bits, the_comparison_finds_one_bit_of_one_row) {
    kt_variant fake = kt_variant_any_any_p64__scalar;
    inputs in = inputs_make(KT_OP_GEMM, KT_W_INT8_CHANNEL, KT_A_INT8_G32, 0);
    char where[200] = "";

    cr_expect(same(&in, &kt_variant_any_any_p64__scalar, &fake, where), "%s", where);
    fake.gemm = many_rows_differ;
    cr_expect(!same(&in, &kt_variant_any_any_p64__scalar, &fake, where));
    cr_expect_not_null(strstr(where, "m=65: [0, 0]"), "%s", where);
    inputs_free(&in);
}

/* A variant whose rows differ with m: the gate takes it as unstable and refuses it with a class. */
Test(bits, the_gate_asks_single_rows_only_of_those_who_promise_them) {
    const kt_problem q = {.op = KT_OP_GEMM,
                          .weights = KT_W_INT8_CHANNEL,
                          .acts = KT_A_INT8_G32,
                          .m = 65,
                          .n = 70,
                          .k = 768};
    kt_variant fake = kt_variant_any_any_p64__scalar;
    const kt_config config = {{0}};
    kt_err err = {0};

    fake.gemm = many_rows_differ;
    cr_expect_eq(kt_gemm_gate(&fake, &config, &q, 5, NULL, &err), KT_E_MISMATCH);
    cr_expect_not_null(strstr(err.message, "as a row alone"), "%s", err.message);
    fake.bits = KT_BITS_UNSTABLE;
    cr_expect_eq(kt_gemm_gate(&fake, &config, &q, 5, NULL, &err), KT_OK, "%s", err.message);
    fake.bits = NULL;
    cr_expect_eq(kt_gemm_gate(&fake, &config, &q, 5, NULL, &err), KT_OK, "%s", err.message);
}
