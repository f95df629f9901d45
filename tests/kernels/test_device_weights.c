/* Weights for devices: every weight of every format comes out of its record as the number that the
 * format says, exactly where it is scaled late, else rounded to bfloat16 once.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/guard_page.h"
#include "kernels/cuda/device_weights.h"
#include "kernels/cuda/kt_dev_weights.h"
#include "kernels/formats/format.h"
#include "kernels/formats/gate_inputs.h"
#include "kernels/formats/p64_spec.h"

/* Half a step of bfloat16; subnormals of float, which a GPU keeps, are rounded coarser. */
static double rounding(double v) {
    return fabs(v) * 0x1p-8 + 0x1p-133;
}

/* Row of a record as doubles, through the device's own code. */
static void open_row(int format, const uint8_t *row, int k, double *out) {
    const kt_weight_row at = kt_weight_row_of(format, k);
    const int inputs = kt_piece_inputs(format);
    uint32_t pair[16];
    kt_piece p;

    for (int i = 0; i < k; i += inputs) {
        const double late = (double)kt_late_scale(format, row, &at, i);
        kt_piece_load(format, row, &at, i, &p);
        kt_piece_open(format, &p, pair);
        for (int j = 0; j < inputs && i + j < k; j++)
            out[i + j] =
                late * (double)(j % 2 ? kt_bf16_high(pair[j / 2]) : kt_bf16_low(pair[j / 2]));
    }
}

static void check_row(const kt_format *f, const kt_matrix *w, int64_t row, const uint8_t *record,
                      double *want, double *terms, double *got) {
    const int format = (int)kt_device_weight_format(f->id);
    const kt_weight_spec s = kt_weight_spec_of(format);

    f->decode_row(w, row, want);
    memcpy(terms, want, (size_t)w->k * sizeof *want);
    if (f->terms_row) f->terms_row(w, row, terms);
    open_row(format, record, (int)w->k, got);
    for (int64_t i = 0; i < w->k; i++) {
        const double step =
            s.is_late || f->id == KT_W_BF16 ? 0 : rounding(want[i]) + fabs(terms[i]) * 0x1p-23;
        if (isnan(want[i]) || (isnan(got[i]) && s.values == KT_CODE_E4M3)) {
            cr_assert(isnan(got[i]), "%s: row %d, input %d: %g, expected NaN", f->name, (int)row,
                      (int)i, got[i]);
            continue;
        }
        cr_assert(fabs(got[i] - want[i]) <= step, "%s: row %d, input %d: %.9g, expected %.9g +- %g",
                  f->name, (int)row, (int)i, got[i], want[i], step);
    }
}

static void check_format(const kt_format *f, int64_t n, int64_t k, uint64_t seed) {
    double *row = malloc(3 * (size_t)k * sizeof *row);
    kt_gate_matrix m;
    kt_guard records;
    size_t bytes;
    kt_err err;

    cr_assert_eq(kt_gate_matrix_create(f->id, n, k, seed, &m, &err), KT_OK, "%s", err.message);
    if (f->id == KT_W_FP8_B128 || f->id == KT_W_FP8_CHANNEL) kt_gate_matrix_spoil(&m, seed);
    cr_assert_eq(kt_device_weights_bytes(f->id, n, k, &bytes, &err), KT_OK, "%s", err.message);
    cr_assert_eq(bytes, (size_t)n * kt_device_row_bytes(f->id, k));
    cr_assert_eq(kt_guard_create(bytes, 16, 0xff, &records, &err), KT_OK);
    /* Backwards, one by one: records stand for themselves. */
    for (int64_t r = n; r-- > 0;)
        cr_assert_eq(kt_device_weights_pack(
                         &m.matrix, r, r + 1,
                         (uint8_t *)records.data + (size_t)r * kt_device_row_bytes(f->id, k), &err),
                     KT_OK, "%s", err.message);
    for (int64_t r = 0; r < n; r++)
        check_row(f, &m.matrix, r,
                  (const uint8_t *)records.data + (size_t)r * kt_device_row_bytes(f->id, k), row,
                  row + k, row + 2 * k);
    kt_guard_destroy(&records);
    kt_gate_matrix_destroy(&m);
    free(row);
}

Test(device_weights, every_format_opens_to_its_numbers, .timeout = 60) {
    static const int64_t sizes[] = {32, 96, 256, 768, 1152};

    for (size_t i = 0; i < kt_builtin_format_count; i++)
        for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
            const kt_format *f = kt_builtin_formats[i];
            if (kt_device_weight_format(f->id) == KT_W_NONE) continue;
            if (sizes[j] % (f->block ? f->block : 8)) continue;
            check_format(f, f->scale_rows && j == 2 ? 140 : 13, sizes[j], i * 10 + j);
        }
}

/* NaN codes of FP8 are NaN for the whole of their group, and for no other. */
Test(device_weights, a_nan_code_spoils_its_group_alone) {
    static uint8_t code[2 * 256], record[2 * 288];
    const float scales[2] = {0.5f, 0.25f};
    const kt_matrix w = {KT_W_FP8_B128, 2, 256, code, scales};
    double out[256];
    kt_err err;

    memset(code, 0x38, sizeof code); /* 1 */
    code[256 + 130] = 0xff;
    cr_assert_eq(kt_device_row_bytes(KT_W_FP8_B128, 256), 272);
    cr_assert_eq(kt_device_weights_pack(&w, 0, 2, record, &err), KT_OK);
    open_row(KT_DEV_FP8_B128, record, 256, out);
    cr_expect(out[0] == 0.5 && out[130] == 0.25);
    open_row(KT_DEV_FP8_B128, record + 272, 256, out);
    cr_expect(out[127] == 0.5 && isnan(out[128]) && isnan(out[255]));
}

Test(device_weights, the_spec_is_that_of_the_panels) {
    for (size_t i = 0; i < kt_builtin_format_count; i++) {
        const kt_format *f = kt_builtin_formats[i];
        const kt_p64_spec p = kt_p64_spec_of(f->id);
        const kt_weight_spec s = kt_weight_spec_of((int)f->id);
        if (p.low == 0) continue;
        cr_expect(s.low == p.low && s.high == p.high && s.group == p.group && s.offset == p.offset,
                  "%s", f->name);
    }
}

Test(device_weights, what_no_device_can_have_is_refused) {
    static const float data[4];
    const kt_matrix odd = {KT_W_BF16, 1, 12, data, NULL};
    size_t bytes = 1;
    kt_err err;

    cr_expect_eq(kt_device_weights_bytes(KT_W_BF16, 2, 12, &bytes, &err), KT_E_UNSUPPORTED);
    cr_expect_eq(bytes, 0);
    cr_expect_not_null(strstr(err.message, "multiple of 8"));
    cr_expect_eq(kt_device_weights_pack(&odd, 0, 1, NULL, &err), KT_E_UNSUPPORTED);
    cr_expect_eq(kt_device_weights_bytes(KT_W_NONE, 2, 8, &bytes, &err), KT_E_UNSUPPORTED);
    cr_expect_eq(kt_device_weights_bytes(KT_W_Q4_K, 2, 128, &bytes, &err), KT_E_INVALID);
    cr_expect_eq(kt_device_weight_format(KT_W_F16), KT_W_BF16);
    cr_expect_eq(kt_device_weight_format(KT_W_MXFP8), KT_W_NONE, "no kernel reads it");
    cr_expect_eq(kt_device_weight_format(KT_W_Q6_K), KT_W_Q6_K);
}
