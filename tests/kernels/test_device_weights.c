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
#include "kernels/cuda/panel_calls.h"
#include "kernels/cuda/weight_values.h"
#include "kernels/formats/format.h"
#include "kernels/formats/gate_inputs.h"
#include "kernels/formats/p64.h"
#include "tests/kernels/cuda_launch.h"

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
    kt_gate_matrix_spoil(&m, seed); /* of FP8 alone */
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
    open_row(KT_W_FP8_B128, record, 256, out);
    cr_expect(out[0] == 0.5 && out[130] == 0.25);
    open_row(KT_W_FP8_B128, record + 272, 256, out);
    cr_expect(out[127] == 0.5 && isnan(out[128]) && isnan(out[255]));
}

Test(device_weights, kernels_take_every_format_of_a_device) {
    for (size_t i = 0; i < kt_builtin_format_count; i++) {
        const kt_weight_format f = kt_device_weight_format(kt_builtin_formats[i]->id);
        int n = 0;
        for (int j = 0; j < KT_WEIGHT_VALUES; j++) n += kt_weight_values[j] == (int32_t)f;
        cr_expect_eq(n, 1, "%s: %d times among the values", kt_builtin_formats[i]->name, n);
    }
}

Test(device_weights, the_spec_is_that_of_the_panels) {
    for (size_t i = 0; i < kt_builtin_format_count; i++) {
        const kt_format *f = kt_builtin_formats[i];
        const kt_p64_spec p = kt_p64_spec_of(f->id);
        const kt_weight_spec s = kt_weight_spec_of((int)f->id);
        if (p.low == 0) continue;
        cr_expect_eq(s.group, p.group, "%s", f->name);
        if (kt_is_grid(s)) continue; /* a record has the bits of the file, not of the codes */
        cr_expect(s.low == p.low && s.high == p.high && s.offset == p.offset, "%s", f->name);
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
    cr_expect_eq(kt_device_weight_format(KT_W_NONE), KT_W_NONE);
    cr_expect_eq(kt_device_weight_format(KT_W_Q6_K), KT_W_Q6_K);
}

/* On a device a block takes the bytes of its file: what K-quants unpack is 4 % of them, codes of
 * IQ1 are 8 %, and five digits in a byte of TQ1_0 are 2 bits each. */
Test(device_weights, blocks_take_the_bytes_of_their_files) {
    for (size_t i = 0; i < kt_builtin_format_count; i++) {
        const kt_format *f = kt_builtin_formats[i];
        const bool is_iq1 = f->id == KT_W_IQ1_S || f->id == KT_W_IQ1_M;
        const double least = f->id == KT_W_TQ1_0 ? 1.22 : is_iq1 ? 1.07 : 1;
        const double file = f->bits / 8 * 4096;
        const double ratio = (double)kt_device_row_bytes(f->id, 4096) / file;
        if (f->block_bytes == 0) continue;
        cr_expect(ratio >= least && ratio <= least + 0.04, "%s: %g times", f->name, ratio);
    }
}

/* ---- from panels ---- */

enum { EXPERTS = 2, PARTS = 3 }; /* gate, up, down */

/* One format's experts: plain, as panels, and the records that both ways lead to. */
typedef struct panel_case {
    kt_problem problem;
    kt_gate_matrix part[EXPERTS][PARTS];
    uint8_t *panels, *records[PARTS];
    size_t panel_bytes, matrix_bytes[PARTS];
    cuda_memory memory;
} panel_case;

static void make_panels(panel_case *c, kt_weight_format format, int64_t n, int64_t k) {
    kt_err err;

    c->problem = (kt_problem){.op = KT_OP_MOE_FFN, .weights = format, .n = n, .k = k};
    c->panel_bytes = kt_p64_expert_bytes(&c->problem);
    c->panels = cuda_bytes(&c->memory, EXPERTS * c->panel_bytes, 0xff);
    for (int i = 0; i < PARTS; i++) {
        const int64_t rows = i < 2 ? n : k, inputs = i < 2 ? k : n;
        c->matrix_bytes[i] = (size_t)rows * kt_device_row_bytes(format, inputs);
        c->records[i] = cuda_bytes(&c->memory, EXPERTS * c->matrix_bytes[i], 0);
        for (int e = 0; e < EXPERTS; e++)
            cr_assert_eq(kt_gate_matrix_create(format, rows, inputs, (uint64_t)(e * PARTS + i),
                                               &c->part[e][i], &err),
                         KT_OK, "%s", err.message);
    }
    for (int e = 0; e < EXPERTS; e++)
        kt_p64_pack_expert(&c->problem, &c->part[e][0].matrix, &c->part[e][1].matrix,
                           &c->part[e][2].matrix, c->panels + (size_t)e * c->panel_bytes);
}

static void turn_panels(const panel_case *c) {
    const kt_problem *q = &c->problem;
    const kt_cuda_kernel *k = cuda_find("panel_rows");
    const kt_config config = {.value = {(int32_t)q->weights}};
    const kt_panel_rows up = {c->panels,
                              c->records[0],
                              c->records[1],
                              (int64_t)c->panel_bytes,
                              (int64_t)kt_p64_panel_bytes(q->weights, q->k),
                              (int64_t)c->matrix_bytes[0],
                              (int32_t)q->n,
                              (int32_t)q->k,
                              (int32_t)q->n / 32,
                              0};
    const kt_panel_rows down = {c->panels + kt_p64_gate_up_bytes(q),
                                c->records[2],
                                NULL,
                                (int64_t)c->panel_bytes,
                                (int64_t)kt_p64_panel_bytes(q->weights, q->n),
                                (int64_t)c->matrix_bytes[2],
                                (int32_t)q->k,
                                (int32_t)q->n,
                                (int32_t)kt_p64_panels(q->k),
                                0};

    cuda_launch(k, "panel_rows_turn", &config, &up, cuda_cut(q->k, 128), EXPERTS * up.panels, 0, 1);
    cuda_launch(k, "panel_rows_turn", &config, &down, cuda_cut(q->n, 128), EXPERTS * down.panels, 0,
                2);
}

static void check_panels(const kt_format *f, int64_t n, int64_t k) {
    panel_case c = {.panels = NULL};
    kt_err err;

    make_panels(&c, f->id, n, k);
    turn_panels(&c);
    for (int e = 0; e < EXPERTS; e++)
        for (int i = 0; i < PARTS; i++) {
            const kt_matrix *m = &c.part[e][i].matrix;
            uint8_t *want = cuda_bytes(&c.memory, c.matrix_bytes[i], 0xff);
            const uint8_t *got = c.records[i] + (size_t)e * c.matrix_bytes[i];
            size_t at = 0;
            cr_assert_eq(kt_device_weights_pack(m, 0, m->n, want, &err), KT_OK, "%s", err.message);
            while (at < c.matrix_bytes[i] && got[at] == want[at]) at++;
            cr_assert_eq(at, c.matrix_bytes[i],
                         "%s, n=%d k=%d: expert %d, part %d, row %zu, byte %zu: %d, expected %d",
                         f->name, (int)n, (int)k, e, i, at / kt_device_row_bytes(f->id, m->k),
                         at % kt_device_row_bytes(f->id, m->k), got[at], want[at]);
        }
    for (int e = 0; e < EXPERTS; e++)
        for (int i = 0; i < PARTS; i++) kt_gate_matrix_destroy(&c.part[e][i]);
    cuda_release(&c.memory);
}

/* The CPU's experts cross as panels: what is made of them there is what the packer makes. Rows of
 * down that fill no panel, inputs that fill no block of threads. */
Test(device_weights, panels_become_the_records_of_the_packer, .timeout = 60) {
    for (size_t i = 0; i < kt_builtin_format_count; i++) {
        const kt_format *f = kt_builtin_formats[i];
        const int64_t span = kt_p64_spec_of(f->id).span;
        if (kt_device_weight_format(f->id) != f->id) continue;
        check_panels(f, span == 32 && f->id != KT_W_FP8_B128 ? 96 : 256, span == 32 ? 160 : 256);
    }
}

Test(device_weights, numbers_of_a_group_are_picked) {
    enum { COUNT = 300 };
    const kt_config config = {.value = {KT_W_INT4_G32}};
    cuda_memory memory = {.n = 0};
    int32_t *id = cuda_bytes(&memory, COUNT * sizeof *id, 0);
    int32_t *out = cuda_bytes(&memory, COUNT * sizeof *out, 0x55);
    const kt_pick_ids call = {id, out, COUNT, 5, 8, 0};

    for (int i = 0; i < COUNT; i++) id[i] = i % 11 - 1;
    cuda_launch(cuda_find("panel_rows"), "panel_rows_pick", &config, &call, cuda_cut(COUNT, 256), 1,
                0, 1);
    for (int i = 0; i < COUNT; i++)
        cr_expect_eq(out[i], id[i] >= 5 && id[i] < 8 ? id[i] - 5 : -1, "%d of %d", out[i], id[i]);
    cuda_release(&memory);
}
