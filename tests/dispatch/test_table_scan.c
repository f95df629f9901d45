/* Rows read without a document are those that the JSON reader gives, or none.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "dispatch/table/table_rows.h"

static char *write_row(kt_json_writer *w, const kt_table_row *row) {
    kt_json_begin_object(w);
    kt_table_put_row_members(w, row);
    kt_json_end_object(w);
    return w->text;
}

static void draw(kt_rng *rng, kt_table_row *row) {
    memset(row, 0, sizeof *row);
    row->problem = (kt_problem){.op = kt_rng_below(rng, 2) ? KT_OP_GEMM : KT_OP_MOE_FFN,
                                .weights = KT_W_INT4_G32,
                                .acts = KT_A_INT8_G32,
                                .m = 1 + (int64_t)kt_rng_below(rng, 4096),
                                .n = 1 + (int64_t)kt_rng_below(rng, 1 << 20),
                                .k = 1 + (int64_t)kt_rng_below(rng, 1 << 20)};
    if (row->problem.op == KT_OP_MOE_FFN) row->problem.experts = row->problem.topk = 8;
    if (kt_rng_below(rng, 2)) row->problem.down = KT_W_INT8_CHANNEL;
    if (kt_rng_below(rng, 2)) row->problem.act = KT_FFN_SWIGLU_CLAMPED;
    if (kt_rng_below(rng, 2)) row->problem.v = 1 + (int64_t)kt_rng_below(rng, 512);
    if (kt_rng_below(rng, 2)) row->problem.window = 1 + (int64_t)kt_rng_below(rng, 1 << 20);
    row->threads = 1 + (int)kt_rng_below(rng, 64);
    row->version = (int32_t)kt_rng_below(rng, 9);
    row->rounds = (int)kt_rng_below(rng, 99);
    row->time_ns = kt_rng_double(rng) * 1e9 + 1;
    row->default_ns = row->time_ns * 1.1;
    row->ci_low = 0.99;
    row->ci_high = 1.01;
    row->error = kt_rng_double(rng) * 1e-3;
    snprintf(row->variant, sizeof row->variant, "w4g32_a8_p64__avx2");
    snprintf(row->config, sizeof row->config, "rows=%d", (int)kt_rng_below(rng, 9));
    snprintf(row->default_variant, sizeof row->default_variant, "w4g32_a8_p64__avx2");
    snprintf(row->status, sizeof row->status, "tuned");
    row->n_runners = (int)kt_rng_below(rng, KT_TABLE_RUNNERS + 1);
    for (int i = 0; i < row->n_runners; i++) {
        snprintf(row->runner[i].variant, sizeof row->runner[i].variant, "x%d__avx2", i);
        row->runner[i].time_ns = row->time_ns + i;
    }
    if (kt_rng_below(rng, 2)) snprintf(row->bits, sizeof row->bits, "own");
    if (*row->bits) row->n_others = (int)kt_rng_below(rng, KT_TABLE_OTHERS + 1);
    for (int i = 0; i < row->n_others; i++) {
        snprintf(row->other[i].bits, sizeof row->other[i].bits, "class %d", i);
        snprintf(row->other[i].variant, sizeof row->other[i].variant, "y%d__avx2", i);
        row->other[i].version = i;
        row->other[i].time_ns = row->time_ns + 2 * i;
    }
    kt_table_round_row(row);
}

Test(table_scan, reads_what_the_writer_writes_like_the_json_reader) {
    kt_rng rng;

    kt_rng_seed(&rng, 1);
    for (int i = 0; i < 2000; i++) {
        kt_table_row row, scanned, parsed;
        kt_json_writer w = {0};
        kt_json_doc *doc;
        kt_err err;
        char *line;
        draw(&rng, &row);
        line = write_row(&w, &row);
        cr_assert_eq(kt_json_parse(line, w.size, NULL, &doc, &err), KT_OK, "%s", err.message);
        cr_assert_eq(kt_table_read_row(kt_json_root(doc), "row", &parsed, &err), KT_OK, "%s",
                     err.message);
        cr_assert(kt_table_scan_row(line, w.size, &scanned), "%s", line);
        cr_assert_eq(memcmp(&scanned, &parsed, sizeof parsed), 0, "%s", line);
        kt_json_destroy(doc);
        kt_json_writer_deinit(&w);
    }
}

/* Every prefix, and every byte changed: either declined, or what the JSON reader says. */
Test(table_scan, declines_what_is_spelled_otherwise) {
    kt_table_row row, scanned, parsed;
    kt_json_writer w = {0};
    char changed[2048];
    kt_rng rng;
    size_t size, n_declined = 0;

    kt_rng_seed(&rng, 2);
    draw(&rng, &row);
    write_row(&w, &row);
    size = w.size;
    cr_assert(size < sizeof changed);
    for (size_t i = 0; i < size; i++) cr_expect(!kt_table_scan_row(w.text, i, &scanned), "%zu", i);
    for (size_t i = 0; i < size; i++)
        for (const char *c = "\"\\ 0-.e,]}x\x01\xff"; *c; c++) {
            kt_json_doc *doc = NULL;
            memcpy(changed, w.text, size);
            changed[i] = *c;
            if (!kt_table_scan_row(changed, size, &scanned)) {
                n_declined++;
                continue;
            }
            cr_assert_eq(kt_json_parse(changed, size, NULL, &doc, NULL), KT_OK, "%.*s", (int)size,
                         changed);
            cr_assert_eq(kt_table_read_row(kt_json_root(doc), "row", &parsed, NULL), KT_OK, "%.*s",
                         (int)size, changed);
            cr_expect_eq(memcmp(&scanned, &parsed, sizeof parsed), 0, "%.*s", (int)size, changed);
            kt_json_destroy(doc);
        }
    cr_expect_gt(n_declined, size);
    kt_json_writer_deinit(&w);
}

/* A row whose `member` is written as `text` instead: declined, or read as the JSON reader reads
 * it. */
static bool scans_like_json(const char *member, const char *text) {
    kt_table_row row, scanned, parsed;
    kt_json_writer w = {0};
    kt_json_doc *doc = NULL;
    char line[2048];
    const char *at, *end;
    kt_rng rng;
    size_t size;
    bool is_scanned;

    kt_rng_seed(&rng, 3);
    draw(&rng, &row);
    write_row(&w, &row);
    at = strstr(w.text, member);
    cr_assert_not_null(at, "%s is not in %s", member, w.text);
    at += strlen(member);
    end = at + strcspn(at, ",]}");
    size = (size_t)snprintf(line, sizeof line, "%.*s%s%s", (int)(at - w.text), w.text, text, end);
    is_scanned = kt_table_scan_row(line, size, &scanned);
    if (is_scanned) {
        cr_assert_eq(kt_json_parse(line, size, NULL, &doc, NULL), KT_OK, "%s", line);
        cr_assert_eq(kt_table_read_row(kt_json_root(doc), "row", &parsed, NULL), KT_OK, "%s", line);
        cr_expect_eq(memcmp(&scanned, &parsed, sizeof parsed), 0, "%s", line);
    }
    kt_json_destroy(doc);
    kt_json_writer_deinit(&w);
    return is_scanned;
}

Test(table_scan, numbers_that_no_double_holds_are_left_to_the_json_reader) {
    cr_expect(scans_like_json("\"time_ns\":", "9007199254740991"));
    cr_expect_not(scans_like_json("\"time_ns\":", "9007199254740993"));
    cr_expect_not(scans_like_json("\"time_ns\":", "900719925474099.25"));
    cr_expect_not(scans_like_json("\"time_ns\":", "1.0000000000000002"));
    cr_expect_not(scans_like_json("\"time_ns\":", "18446744073709551617"), "over 64 bits");
    cr_expect(scans_like_json("\"error\":", "1e-22"));
    cr_expect(scans_like_json("\"error\":", "3e-9"));
    cr_expect_not(scans_like_json("\"error\":", "1e-23"));
    cr_expect_not(scans_like_json("\"error\":", "01"));
    cr_expect_not(scans_like_json("\"time_ns\":", "-5"));
}

/* As many characters as there is room for, and one more. */
Test(table_scan, texts_that_do_not_fit_are_declined) {
    char text[128];

    memset(text, 'x', sizeof text);
    text[0] = text[96] = '"';
    text[97] = '\0';
    cr_expect(scans_like_json("\"config\":", text), "95 characters");
    text[96] = 'x';
    text[97] = '"';
    text[98] = '\0';
    cr_expect_not(scans_like_json("\"config\":", text), "96 characters");
}
