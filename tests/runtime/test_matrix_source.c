/* Fetching codes ahead of packing reads the rows that are asked for and nothing behind the last;
 * what is stored in few bits is decoded when another format is asked for.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/formats/gate_inputs.h"
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
    kt_matrix_source_add_fp4(&s, KT_W_MXFP4, &t, &exponents, 1, 2, ROWS,
                             K); /* ends with the last row */
    fetch(&s);
    kt_guard_free(codes);
}

/* ---- encoded anew ---- */

enum { FEW = 3, WIDE = 68 * 256 }; /* wider than any row of a published model */

/* Rows 1 and 2 of a stack of blocks, then floats: all numbers are those that the blocks define. */
static void decode_blocks(kt_weight_format id) {
    const kt_format *format = kt_format_find(id), *f32 = kt_format_find(KT_W_F32);
    const size_t row = (size_t)(WIDE / format->block * format->block_bytes);
    kt_gate_matrix stored;
    float *plain = malloc(sizeof *plain * WIDE), *out = malloc(sizeof *out * FEW * WIDE);
    float *scratch = malloc(sizeof *scratch * KT_SOURCE_FEW * WIDE);
    double *want = malloc(sizeof *want * WIDE);
    kt_tensor t = {.name = "x",
                   .dtype = KT_DTYPE_U8,
                   .rank = 2,
                   .shape = {FEW, WIDE},
                   .bytes = FEW * row,
                   .blocks = id};
    kt_tensor floats = {.name = "y",
                        .dtype = KT_DTYPE_F32,
                        .rank = 2,
                        .shape = {1, WIDE},
                        .data = (const uint8_t *)plain,
                        .bytes = sizeof *plain * WIDE};
    kt_matrix_source s = {0};
    kt_err err = {0};

    cr_assert_eq(kt_gate_matrix_create(id, FEW, WIDE, 3, &stored, &err), KT_OK, "%s", err.message);
    t.data = stored.matrix.data;
    stored.matrix.scales = NULL; /* NVFP4: a file without factors */
    for (int i = 0; i < WIDE; i++) plain[i] = (float)i;
    kt_matrix_source_add(&s, &t, 1, FEW - 1);
    kt_matrix_source_add(&s, &floats, 0, 1);
    cr_assert_eq(kt_matrix_source_encode(&s, f32, 0, FEW, out, NULL, scratch, &err), KT_OK, "%s",
                 err.message);
    for (int r = 0; r < FEW - 1; r++) {
        format->decode_row(&stored.matrix, 1 + r, want);
        for (int i = 0; i < WIDE; i++)
            cr_assert_eq(out[r * WIDE + i], (float)want[i], "%s row %d input %d", format->name, r,
                         i);
    }
    cr_assert_eq(memcmp(out + (FEW - 1) * WIDE, plain, sizeof *plain * WIDE), 0);
    free(plain), free(out), free(scratch), free(want);
    kt_gate_matrix_destroy(&stored);
}

Test(matrix_source, blocks_are_decoded_for_any_other_format) {
    for (int id = 0; id < KT_W_COUNT; id++)
        if (kt_format_find((kt_weight_format)id) &&
            kt_format_find((kt_weight_format)id)->block_bytes)
            decode_blocks((kt_weight_format)id);
}
