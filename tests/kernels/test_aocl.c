/* AOCL's loader against libraries made for the purpose: a right one serves, every wrong one is refused
 * with a message that says why. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/gemm/gemm_gate.h"
#include "kernels/gemm/aocl.h"
#include "tests/kernels/variants_of.h"
#include "tests/support/skip.h"

extern const kt_variant kt_variant_w48_a8_aocl__lib, kt_variant_wbf16_abf16_aocl__lib,
    kt_variant_w4g32_bf16_aocl__lib, kt_variant_dense_aocl__lib;

static const kt_variant *const variants[] = {
    &kt_variant_w48_a8_aocl__lib, &kt_variant_wbf16_abf16_aocl__lib,
    &kt_variant_w4g32_bf16_aocl__lib, &kt_variant_dense_aocl__lib};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

static const char *fake(const char *kind) {
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/libfake_aocl_%s.so", KT_BUILD_DIR, kind);
    return path;
}

static void use(const char *kind) {
    setenv("KT_AOCL_LIBRARY", fake(kind), 1);
}

static void expect_refused(const char *kind, kt_status status, const char *words) {
    use(kind);
    for (int i = 0; i < N_VARIANTS; i++) {
        kt_err why = {0};
        cr_expect_neq(variants[i]->usable(&why), KT_OK, "%s took %s", variants[i]->name, kind);
        cr_expect_not_null(strstr(why.message, words), "%s: '%s' lacks '%s'", variants[i]->name,
                           why.message, words);
        cr_expect_eq(why.status, status, "%s: status %d", variants[i]->name, why.status);
    }
}

/* What the library itself needs: AVX-512 VNNI and BF16. */
static void skip_where_it_cannot_run(void) {
    for (int i = 0; i < N_VARIANTS; i++) kt_skip_without_isa(variants[i]->isa, variants[i]->name);
}

Test(aocl, a_right_library_passes_the_gate) {
    static const int64_t shapes[][3] = {{1, 64, 32}, {5, 65, 96}, {70, 130, 64}, {257, 17, 160}};
    skip_where_it_cannot_run();
    use("right");
    for (int i = 0; i < N_VARIANTS; i++) {
        const kt_variant *v = variants[i];
        kt_err err = {0};
        cr_assert_eq(v->usable(&err), KT_OK, "%s: %s", v->name, err.message);
        for (int f = 1; f < KT_W_COUNT && v->op == KT_OP_GEMM; f++)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes && v->weights >> f & 1; s++) {
                const kt_problem q = {.op = KT_OP_GEMM,
                                      .weights = (kt_weight_format)f,
                                      .acts = f == KT_W_BF16 ? KT_A_BF16 : KT_A_INT8_G32,
                                      .m = shapes[s][0],
                                      .n = shapes[s][1],
                                      .k = shapes[s][2]};
                const kt_config config = {{64}};
                cr_assert_eq(kt_gemm_gate(v, &config, &q, s + 1, NULL, &err), KT_OK, "%s",
                             err.message);
            }
    }
}

Test(aocl, a_library_that_is_wrong_is_refused) {
    skip_where_it_cannot_run();
    expect_refused("wrong", KT_E_MISMATCH, "self-test");
}

Test(aocl, a_library_without_a_symbol_is_refused) {
    expect_refused("short", KT_E_UNSUPPORTED, "no symbol aocl_gemm_s8s8s32of32_sym_quant");
}

Test(aocl, an_old_library_is_refused) {
    expect_refused("old", KT_E_UNSUPPORTED, "version 'AOCL-BLAS 4.2.1");
}

Test(aocl, a_library_of_narrow_integers_is_refused) {
    expect_refused("narrow", KT_E_UNSUPPORTED, "integers of 32 bits, expected 64");
}

Test(aocl, a_library_that_is_not_there_is_said_to_be_missing) {
    expect_refused("absent", KT_E_NOT_FOUND, "KT_AOCL_LIBRARY");
}

Test(aocl, the_next_name_is_tried_and_the_last_reason_told) {
    char old[512], absent[512];
    kt_aocl aocl;
    kt_err why = {0};
    snprintf(old, sizeof old, "%s", fake("old"));
    snprintf(absent, sizeof absent, "%s", fake("absent"));
    const char *const bad[] = {absent, old, absent, NULL}, *const good[] = {old, fake("right"),
                                                                            NULL};

    cr_assert_neq(kt_aocl_load(bad, &aocl, &why), KT_OK);
    cr_assert_not_null(strstr(why.message, "4.2.1"), "%s", why.message);
    cr_assert_null(aocl.library);
    cr_assert_eq(kt_aocl_load(good, &aocl, &why), KT_OK, "%s", why.message);
    cr_assert_not_null(aocl.library);
}
