/* Fetching codes ahead of packing reads the rows that are asked for and nothing behind the last.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "runtime/loader/matrix_source.h"
#include "tests/support/guard.h"

enum { ROWS = 40, K = 96 };

/* All rows, and the last ones alone, of codes that end at an inaccessible page. */
static void fetch(const kt_matrix_source *s) {
    for (int64_t first = 0; first < s->rows; first += 8) {
        kt_matrix_source_fetch(s, first, s->rows);
        kt_matrix_source_fetch(s, first, first + 8);
    }
}

Test(matrix_source, fetching_int4_ends_with_its_last_row) {
    static const kt_int4_packing packings[] = {KT_INT4_ROWS, KT_INT4_AWQ, KT_INT4_GPTQ,
                                               KT_INT4_GPTQ_V2};
    static const int64_t shapes[][2] = {{ROWS, K / 8}, {K, ROWS / 8}, {K / 8, ROWS}, {K / 8, ROWS}};

    for (size_t i = 0; i < sizeof packings / sizeof *packings; i++) {
        kt_tensor t = {.name = "codes",
                       .rank = 2,
                       .shape = {shapes[i][0], shapes[i][1]},
                       .bytes = ROWS * K / 2};
        const kt_tensor *const others[3] = {NULL, NULL, NULL};
        kt_int4_source int4 = {.packing = packings[i], .n = ROWS, .k = K, .group = 32};
        kt_matrix_source s = {0};
        void *codes = kt_guard_alloc(t.bytes, 1, 0);
        t.data = int4.packed = codes;
        kt_matrix_source_add_int4(&s, &int4, &t, others);
        kt_matrix_source_add_int4(&s, &int4, &t, others); /* rows of the second piece, too */
        fetch(&s);
        kt_guard_free(codes);
    }
}

Test(matrix_source, fetching_mxfp4_takes_every_other_row) {
    kt_tensor t = {
        .name = "codes", .rank = 4, .shape = {1, 2 * ROWS, K / 32, 16}, .bytes = ROWS * K};
    kt_tensor exponents = {.name = "exponents", .rank = 3, .shape = {1, 2 * ROWS, K / 32}};
    kt_matrix_source s = {0};
    void *codes = kt_guard_alloc(t.bytes, 1, 0);

    t.data = codes;
    kt_matrix_source_add_mxfp4(&s, &t, &exponents, 1, 2, ROWS, K); /* ends with the last row */
    fetch(&s);
    kt_guard_free(codes);
}
