/* Every weight format on every instruction set, for both ops: a kernel, or the reason why there is none; and
 * the table in kernels/MATRIX.md is the one that the program prints.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/formats/format.h"
#include "kt/variant.h"
#include "tuner/report/kernel_matrix.h"

#define BEGIN "<!-- matrix: kttune list matrix -->\n"
#define END "<!-- end of matrix -->"

static const kt_op ops[2] = {KT_OP_GEMM, KT_OP_MOE_FFN};

Test(matrix, every_cell_has_a_kernel_or_a_reason) {
    size_t filled = 0, refused = 0;

    for (int op = 0; op < 2; op++)
        for (int f = 1; f < KT_W_COUNT; f++)
            for (int isa = KT_MATRIX_SCALAR; isa < KT_ISA_COUNT; isa++) {
                const kt_weight_format format = (kt_weight_format)f;
                const char *reason = kt_cell_gap_reason(ops[op], format, isa);
                const char *step = isa == KT_MATRIX_SCALAR ? "scalar" : kt_isa_name(isa);
                if (kt_cell_is_filled(ops[op], format, isa)) {
                    filled++;
                    cr_expect_null(reason, "%s %s on %s has a kernel and a reason to have none: %s",
                                   kt_op_name(ops[op]), kt_weight_format_name(format), step,
                                   reason);
                } else {
                    refused++;
                    cr_expect(reason && strlen(reason) > 20, "%s %s on %s: no kernel, no reason",
                              kt_op_name(ops[op]), kt_weight_format_name(format), step);
                }
            }
    cr_assert_eq(filled + refused, 2 * (KT_W_COUNT - 1) * (KT_ISA_COUNT + 1));
    cr_assert_gt(filled, refused / 2);
}

/* What a machine can be expected to run fast: each format of experts on each family of CPUs. */
Test(matrix, every_format_of_experts_runs_on_every_family) {
    static const int families[] = {KT_MATRIX_SCALAR, 0 /* avx2 */, 2 /* avx512 */};

    for (int f = 1; f < KT_W_COUNT; f++)
        for (size_t i = 0; i < sizeof families / sizeof *families && f != KT_W_F32; i++)
            cr_expect(kt_cell_is_filled(KT_OP_MOE_FFN, (kt_weight_format)f, families[i]), "%s",
                      kt_weight_format_name((kt_weight_format)f));
    for (int f = 1; f < KT_W_COUNT; f++)
        cr_expect(f == KT_W_F32 || kt_cell_is_filled(KT_OP_MOE_FFN, (kt_weight_format)f, 7) ||
                      kt_cell_is_filled(KT_OP_MOE_FFN, (kt_weight_format)f, 8),
                  "%s has no tiles", kt_weight_format_name((kt_weight_format)f));
}

/* "w48_a8_aocl__lib" -> is it a variant of library "aocl"? */
static int is_of(const kt_variant *v, const char *library) {
    const size_t size = strlen(v->name), tail = strlen("__lib"), word = strlen(library);
    return size > tail + word + 1 && strcmp(v->name + size - tail, "__lib") == 0 &&
           strncmp(v->name + size - tail - word, library, word) == 0 &&
           v->name[size - tail - word - 1] == '_';
}

static uint64_t formats_of(const char *library, kt_op op) {
    uint64_t mask = 0;
    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (kt_builtin_variants[i]->op == op && is_of(kt_builtin_variants[i], library))
            mask |= kt_builtin_variants[i]->weights;
    return mask;
}

/* A library that multiplies a format in gemm does so in moe_ffn, or it is said why not; and never both. */
Test(matrix, what_libraries_are_not_asked_for_has_a_reason) {
    static const char *const libraries[] = {"aocl", "onednn", "libxsmm", "blis"};

    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        const uint64_t gemm = formats_of(libraries[i], KT_OP_GEMM);
        const uint64_t moe = formats_of(libraries[i], KT_OP_MOE_FFN);
        uint64_t refused = 0;
        for (size_t g = 0; g < kt_library_gap_count; g++) {
            const kt_library_gap *gap = &kt_library_gaps[g];
            cr_expect(strlen(gap->reason) > 20 && gap->weights);
            if (gap->op == KT_OP_MOE_FFN && strcmp(gap->library, libraries[i]) == 0)
                refused |= gap->weights;
        }
        cr_expect_eq(gemm & ~(moe | refused), 0u, "%s: formats %#llx", libraries[i],
                     (unsigned long long)(gemm & ~(moe | refused)));
        cr_expect_eq(moe & refused, 0u, "%s: formats %#llx", libraries[i],
                     (unsigned long long)(moe & refused));
    }
    cr_assert_eq(formats_of("aocl", KT_OP_GEMM),
                 1u << KT_W_INT8_CHANNEL | 1u << KT_W_INT4_G32 | 1u << KT_W_BF16);
}

static char *read_readme(void) {
    FILE *file = fopen(KT_SOURCE_DIR "/kernels/MATRIX.md", "r");
    char *text = calloc(1, 1 << 20);

    cr_assert(file && text, "kernels/MATRIX.md cannot be read");
    cr_assert_lt(fread(text, 1, 1 << 20, file), 1 << 20);
    fclose(file);
    return text;
}

Test(matrix, stands_in_the_readme_as_it_is) {
    char *readme = read_readme(), *printed = NULL, *from, *to;
    size_t bytes = 0;
    FILE *out = open_memstream(&printed, &bytes);

    cr_assert_not_null(out);
    kt_matrix_print(out);
    fclose(out);
    from = strstr(readme, BEGIN);
    cr_assert_not_null(from, "kernels/MATRIX.md lacks '%s'", BEGIN);
    from += strlen(BEGIN);
    to = strstr(from, END);
    cr_assert_not_null(to, "kernels/MATRIX.md lacks '%s'", END);
    *to = '\0';
    cr_assert_str_eq(from, printed,
                     "kernels/MATRIX.md: put the output of `kttune list matrix` between the marks");
    free(printed);
    free(readme);
}
