/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/rng.h"
#include "dispatch/table/table.h"
#include "tests/support/temp.h"

static char folder[64], path[96];

static void make_path(void) {
    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/table.json", folder);
}
static void remove_path(void) {
    kt_temp_remove(folder);
}
TestSuite(table, .init = make_path, .fini = remove_path, .timeout = 120);

static kt_table_row make_row(int i) {
    kt_table_row r;

    memset(&r, 0, sizeof r);
    r.problem = (kt_problem){.op = i % 3 ? KT_OP_MOE_FFN : KT_OP_GEMM,
                             .weights = KT_W_INT4_G32,
                             .acts = KT_A_INT8_G32,
                             .m = kt_m_buckets[i % kt_m_bucket_count],
                             .n = 768 + 32 * (i / kt_m_bucket_count % 8),
                             .k = 2048};
    if (r.problem.op == KT_OP_MOE_FFN) r.problem.experts = 128, r.problem.topk = 8;
    r.threads = 1 + i / (8 * kt_m_bucket_count);
    snprintf(r.variant, sizeof r.variant, "w4g32_a8_p64__avx512vnni");
    snprintf(r.config, sizeof r.config, "rows=%d,prefetch=2048", 1 << i % 4);
    r.version = 2;
    r.time_ns = 41234.56 + i;
    r.ci_low = 0.99512, r.ci_high = 1.0044;
    r.rounds = 32;
    snprintf(r.default_variant, sizeof r.default_variant, "w4g32_a8_p64__avx2");
    r.default_ns = 52000.0 + i;
    snprintf(r.status, sizeof r.status, "%s", i % 2 ? "tuned" : "default");
    r.n_runners = i % (KT_TABLE_RUNNERS + 1);
    for (int j = 0; j < r.n_runners; j++) {
        snprintf(r.runner[j].variant, sizeof r.runner[j].variant, "w4g32_a8_tall__avx512vnni");
        snprintf(r.runner[j].config, sizeof r.runner[j].config, "rows=%d", j);
        r.runner[j].time_ns = r.time_ns * (1.1 + j);
    }
    r.error = 0.00412345;
    return r;
}

static kt_table *make_table(int n_rows) {
    kt_table *t;
    kt_err err;

    cr_assert_eq(kt_table_create(&t, NULL), KT_OK);
    t->fingerprint = (kt_fingerprint){.vendor = "AuthenticAMD",
                                      .microarch = "zen4",
                                      .family = 25,
                                      .model = 17,
                                      .stepping = 1,
                                      .isa = KT_ISA_AVX2 | KT_ISA_AVX512 | KT_ISA_AVX512VNNI,
                                      .usable_cores = 2,
                                      .numa_nodes = 1,
                                      .memory_bytes = (uint64_t)24 << 30};
    t->fingerprint.ceilings.stream_gbs_1t = 29.25;
    t->fingerprint.ceilings.peak_gops[3] = 467.5;
    t->fingerprint.ceilings.threads_all = 2;
    snprintf(t->build, sizeof t->build, "gcc 12.2, kt 0.1.0 \"quoted\"");
    snprintf(t->workload, sizeof t->workload, "Qwen3-30B-A3B");
    snprintf(t->created, sizeof t->created, "2026-11-21T12:00:00Z");
    for (int i = 0; i < n_rows; i++) {
        kt_table_row r = make_row(i);
        cr_assert_eq(kt_table_put(t, &r, &err), KT_OK, "%s", err.message);
    }
    return t;
}

static char *read_all(size_t *size) {
    char *text;
    cr_assert_eq(kt_file_read(path, 1 << 26, &text, size, NULL), KT_OK);
    return text;
}

static void write_all(const char *text, size_t size) {
    FILE *f = fopen(path, "wb");
    cr_assert(f && fwrite(text, 1, size, f) == size);
    fclose(f);
}

/* The checksum as its description in table_text.c says it, written a second time. */
static uint64_t described_checksum(const char *text, size_t size) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i <= size; i += 8) {
        uint64_t word = 0;
        if (i >= size) break;
        for (size_t j = 0; j < 8 && i + j < size; j++)
            word |= (uint64_t)(unsigned char)text[i + j] << 8 * j;
        h = (h ^ word) * 0x100000001b3u;
        h ^= h >> 32;
    }
    h = (h ^ size) * 0x100000001b3u;
    return h ^ h >> 32;
}

/* Write text with a right checksum in place of the one it has. */
static void write_sealed(const char *text, size_t size) {
    const char *key = memmem(text, size, "\"checksum\"", 10);
    FILE *f = fopen(path, "wb");
    cr_assert(f && key);
    fwrite(text, 1, (size_t)(key - text), f);
    fprintf(f, "\"checksum\":\"kt64:%016" PRIx64 "\"\n}\n",
            described_checksum(text, (size_t)(key - text)));
    fclose(f);
}

/* Member by member: what lies between them is nobody's. */
static void expect_same_fingerprint(const kt_fingerprint *a, const kt_fingerprint *b) {
    const kt_ceilings *x = &a->ceilings, *y = &b->ceilings;

    cr_expect_str_eq(a->vendor, b->vendor);
    cr_expect_str_eq(a->microarch, b->microarch);
    cr_expect_eq(a->family, b->family);
    cr_expect_eq(a->model, b->model);
    cr_expect_eq(a->stepping, b->stepping);
    cr_expect_eq(a->isa, b->isa);
    cr_expect_eq(a->usable_cores, b->usable_cores);
    cr_expect_eq(a->numa_nodes, b->numa_nodes);
    cr_expect_eq(a->memory_bytes, b->memory_bytes);
    cr_expect_eq(x->stream_gbs_1t, y->stream_gbs_1t);
    cr_expect_eq(x->stream_gbs_all, y->stream_gbs_all);
    cr_expect_eq(x->stream_small_gbs_1t, y->stream_small_gbs_1t);
    cr_expect_eq(x->cache_knee_bytes, y->cache_knee_bytes);
    cr_expect_arr_eq(x->peak_gops, y->peak_gops, sizeof x->peak_gops);
    cr_expect_eq(x->peak_scalar_gops, y->peak_scalar_gops);
    cr_expect_eq(x->aa_noise_p95, y->aa_noise_p95);
    cr_expect_eq(x->threads_all, y->threads_all);
}

Test(table, reads_back_what_was_saved) {
    kt_table *t = make_table(100), *back;
    kt_err err;

    cr_assert_eq(kt_table_save(t, path, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_table_load(path, &back, &err), KT_OK, "%s", err.message);
    cr_assert_eq(back->n_rows, t->n_rows);
    cr_assert_arr_eq(back->rows, t->rows, t->n_rows * sizeof *t->rows);
    expect_same_fingerprint(&back->fingerprint, &t->fingerprint);
    cr_assert_str_eq(back->build, t->build);
    cr_assert_str_eq(back->workload, t->workload);
    cr_assert_str_eq(back->created, t->created);
    kt_table_destroy(back);
    kt_table_destroy(t);
}

Test(table, text_does_not_depend_on_the_order_of_puts) {
    kt_table *forward = make_table(60), *backward = make_table(0);
    size_t size_a, size_b;
    char *a, *b;

    for (int i = 59; i >= 0; i--) {
        kt_table_row r = make_row(i);
        cr_assert_eq(kt_table_put(backward, &r, NULL), KT_OK);
    }
    cr_assert_eq(kt_table_save(forward, path, NULL), KT_OK);
    a = read_all(&size_a);
    cr_assert_eq(kt_table_save(backward, path, NULL), KT_OK);
    b = read_all(&size_b);
    cr_assert_eq(size_a, size_b);
    cr_assert_arr_eq(a, b, size_a);
    free(a);
    free(b);
    kt_table_destroy(forward);
    kt_table_destroy(backward);
}

Test(table, has_one_row_per_line) {
    kt_table *t = make_table(5);
    size_t size, lines = 0;
    char *text;

    cr_assert_eq(kt_table_save(t, path, NULL), KT_OK);
    text = read_all(&size);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        lines += strncmp(line, "{\"op\":", 6) == 0;
    cr_assert_eq(lines, 5);
    free(text);
    kt_table_destroy(t);
}

Test(table, put_replaces_a_row_of_the_same_key) {
    kt_table *t = make_table(30);
    kt_table_row r = make_row(7);
    const kt_table_row *found;

    r.time_ns = 1.26;
    cr_assert_eq(kt_table_put(t, &r, NULL), KT_OK);
    cr_assert_eq(t->n_rows, 30);
    found = kt_table_find(t, &r.problem, r.threads);
    cr_assert(found && fabs(found->time_ns - 1.3) < 1e-12);
    for (int i = 0; i < 30; i++) {
        kt_table_row each = make_row(i);
        found = kt_table_find(t, &each.problem, each.threads);
        cr_assert(found && found->problem.m == each.problem.m, "row %d", i);
        cr_assert_null(kt_table_find(t, &each.problem, each.threads + 40));
        each.problem.m++; /* 1 + 1 and 2 + 1 and 3 + 1 are buckets too, but of other rows here */
        found = kt_table_find(t, &each.problem, each.threads);
        cr_assert(!found || found->problem.m == each.problem.m);
    }
    kt_table_destroy(t);
}

Test(table, refuses_rows_without_sense) {
    kt_table *t = make_table(0);
    struct {
        kt_table_row row;
        const char *field;
    } bad[] = {
        {make_row(1), "'op'"},          {make_row(1), "'weights'"}, {make_row(1), "'m'"},
        {make_row(1), "'threads'"},     {make_row(1), "'time_ns'"}, {make_row(1), "'time_ns'"},
        {make_row(1), "'time_ns'"},     {make_row(1), "'ci'"},      {make_row(1), "'status'"},
        {make_row(1), "'runners' has"}, {make_row(1), "'variant'"}, {make_row(1), "'config'"},
        {make_row(1), "'error'"},       {make_row(1), "'default'"}, {make_row(3), "'runners'"},
        {make_row(1), "'n'"},           {make_row(1), "'experts'"}, {make_row(1), "'variant'"},
        {make_row(1), "'down'"},        {make_row(1), "'act'"},     {make_row(1), "'v'"},
        {make_row(1), "'window'"},      {make_row(1), "'others'"},  {make_row(1), "'others'"},
        {make_row(1), "'others'"},      {make_row(1), "'others'"},  {make_row(1), "'bits'"},
    };
    bad[0].row.problem.op = KT_OP_COUNT;
    bad[1].row.problem.weights = (kt_weight_format)-1;
    bad[2].row.problem.m = 0;
    bad[3].row.threads = 0;
    bad[4].row.time_ns = NAN;
    bad[5].row.time_ns = 0;
    bad[6].row.time_ns = INFINITY;
    bad[7].row.ci_low = 2;
    strcpy(bad[8].row.status, "guessed");
    bad[9].row.n_runners = KT_TABLE_RUNNERS + 1;
    bad[10].row.variant[0] = '\0';
    memset(bad[11].row.config, 'x', sizeof bad[11].row.config);
    bad[12].row.error = -1;
    bad[13].row.default_ns = -5;
    bad[14].row.runner[2].time_ns = NAN;
    bad[15].row.problem.n = INT64_MAX;
    bad[16].row.problem.experts = -1;
    strcpy(bad[17].row.variant, "tab\there");
    bad[18].row.problem.down = KT_W_COUNT;
    bad[19].row.problem.act = KT_FFN_ACT_COUNT;
    bad[20].row.problem.v = -1;
    bad[21].row.problem.window = INT64_MAX;
    for (int i = 22; i < 27; i++) { /* as good as any, but for one thing each */
        strcpy(bad[i].row.bits, "own");
        bad[i].row.n_others = 2;
        for (int k = 0; k < 2; k++) {
            strcpy(bad[i].row.other[k].bits, k ? "second" : "first");
            strcpy(bad[i].row.other[k].variant, "v__avx2");
            bad[i].row.other[k].time_ns = 7;
        }
    }
    strcpy(bad[22].row.other[1].bits, "first");
    strcpy(bad[23].row.other[0].bits, "own");
    bad[24].row.other[1].time_ns = NAN;
    bad[25].row.other[1].version = -1;
    strcpy(bad[26].row.bits, "tab\there");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kt_err err;
        cr_assert_eq(kt_table_put(t, &bad[i].row, &err), KT_E_INVALID, "case %zu was taken", i);
        cr_assert(strstr(err.message, bad[i].field), "case %zu: %s", i, err.message);
        cr_assert_eq(t->n_rows, 0);
    }
    kt_table_destroy(t);
}

/* Replace the first `from` of a saved two-row table by `to`, with a right checksum, and load. */
static kt_status load_edited(const char *from, const char *to, kt_err *err) {
    kt_table *t = make_table(4), *back;
    size_t size;
    char *text, *at, *edited;
    int n;
    kt_status st;

    cr_assert_eq(kt_table_save(t, path, NULL), KT_OK);
    text = read_all(&size);
    at = strstr(text, from);
    cr_assert(at, "'%s' is not in the text", from);
    n = asprintf(&edited, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    write_sealed(edited, (size_t)n);
    st = kt_table_load(path, &back, err);
    cr_assert_eq(st == KT_OK, back != NULL);
    kt_table_destroy(back);
    free(edited);
    free(text);
    kt_table_destroy(t);
    return st;
}

Test(table, says_what_is_wrong_with_a_file) {
    static const struct {
        const char *from, *to;
        kt_status status;
        const char *message;
    } edits[] = {
        {"\"schema\":\"2.0\"", "\"schema\":\"3.0\"", KT_E_UNSUPPORTED, "schema is 3.0"},
        {"\"schema\":\"2.0\"", "\"schema\":\"0.9\"", KT_E_UNSUPPORTED, "schema is 0.9"},
        {"\"schema\":\"2.0\"", "\"schema\":\"20.0\"", KT_E_UNSUPPORTED, "schema is 20.0"},
        {"\"schema\":\"2.0\"", "\"schema\":\"10.0\"", KT_E_UNSUPPORTED, "schema is 10.0"},
        {"\"schema\":\"2.0\"", "\"schema\":1", KT_E_FORMAT, "schema"},
        {"\"op\":\"gemm\"", "\"op\":\"gemn\"", KT_E_FORMAT, "row 3 of 4: 'op' is 'gemn'"},
        {"\"weights\":\"w4g32\"", "\"weights\":\"w3\"", KT_E_FORMAT, "'weights' is 'w3'"},
        {"\"acts\":\"a8\"", "\"acts\":\"a9\"", KT_E_FORMAT, "'acts' is 'a9'"},
        {"\"threads\":1", "\"threads\":0", KT_E_FORMAT, "threads"},
        {"\"threads\":1", "\"threads\":1.5", KT_E_FORMAT, "threads"},
        {"\"threads\":1", "\"threads\":99999999", KT_E_FORMAT, "row 1 of 4: 'threads' is 99999999"},
        {"\"m\":2", "\"m\":-2", KT_E_FORMAT, "row 1 of 4"},
        {"\"m\":2", "\"M\":2", KT_E_FORMAT, "'m'"},
        {"\"k\":2048", "\"k\":1e300", KT_E_FORMAT, "'k'"},
        {"\"k\":2048", "\"k\":9223372036854775807", KT_E_FORMAT, "'k'"},
        {"\"time_ns\":4", "\"time_ns\":-4", KT_E_FORMAT, "'time_ns'"},
        {"\"time_ns\":4", "\"time_ns\":1e999,\"x\":4", KT_E_FORMAT, "'time_ns'"},
        {"\"ci\":[0.9951,", "\"ci\":[1.9951,", KT_E_FORMAT, "'ci'"},
        {"\"ci\":[0.9951,", "\"ci\":[\"0\",", KT_E_FORMAT, "'ci'"},
        {"\"runners\":[", "\"runners\":[1,", KT_E_FORMAT, "'runners'"},
        {"\"default\":[", "\"default\":[0,", KT_E_FORMAT, "'default'"},
        {"\"k\":2048", "\"k\":2048,\"down\":\"w3\"", KT_E_FORMAT, "'down' is 'w3'"},
        {"\"k\":2048", "\"k\":2048,\"down\":7", KT_E_FORMAT, "'down'"},
        {"\"k\":2048", "\"k\":2048,\"act\":\"gelu\"", KT_E_FORMAT, "'act' is 'gelu'"},
        {"\"k\":2048", "\"k\":2048,\"v\":-1", KT_E_FORMAT, "'v'"},
        {"\"k\":2048", "\"k\":2048,\"window\":999999999999", KT_E_FORMAT, "'window'"},
        {"\"version\":2", "\"version\":2,\"bits\":7", KT_E_FORMAT, "'bits'"},
        {"\"version\":2", "\"version\":2,\"bits\":\"01234567890123456789012345678901\"",
         KT_E_FORMAT, "'bits' has 32 characters"},
        {"\"runners\":", "\"others\":7,\"runners\":", KT_E_FORMAT, "'others' is number"},
        {"\"runners\":", "\"others\":[[\"a\",\"v\",1,\"\"]],\"runners\":", KT_E_FORMAT,
         "'others' is not of [bits, variant, version, config, ns]"},
        {"\"runners\":", "\"others\":[[\"a\",\"v\",4294967297,\"\",7]],\"runners\":", KT_E_FORMAT,
         "'others' is not of"},
        {"\"runners\":", "\"others\":[[\"a\",\"v\",1,\"\",7]],\"runners\":", KT_E_FORMAT,
         "'others' without 'bits'"},
        {"\"variant\":\"w4g32_a8_p64",
         "\"variant\":\"01234567890123456789012345678901234567890123456789012", KT_E_FORMAT,
         "'variant' has 65 characters"},
        {"\"status\":\"default\"", "\"status\":\"\"", KT_E_FORMAT, "'status'"},
        {"\"rows\":[\n", "\"rows\":[\n7,\n", KT_E_FORMAT, "row 1 of 5 is number"},
        {"\"rows\":[\n", "\"rows\":[", KT_E_FORMAT, "one row a line"},
        {"\"rows\":[\n", "\"rows\":[\n\n", KT_E_FORMAT, "row 1 of 5 does not end with a comma"},
        {"},\n{", "}\n{", KT_E_FORMAT, "row 1 of 4 does not end with a comma"},
        {"}\n],", "},\n],", KT_E_FORMAT, "row 4 of 4"},
        {"\"op\":", "op:", KT_E_FORMAT, "row 1 of 4: 1:2"},
        {"],\n\"checksum\"", "]\n\"checksum\"", KT_E_FORMAT, "not a table"},
        {"\"rows\":[", "\"lines\":[", KT_E_FORMAT, "'rows' is missing"},
        {"\"m\":2,", "\"m\":3,", KT_E_FORMAT, "two rows for moe_ffn w4g32 m=3"},
        {"\"family\":25", "\"family\":\"25\"", KT_E_FORMAT, "family"},
        {"\"isa\":\"avx2", "\"isa\":\"avx9", KT_E_FORMAT, "no instruction set 'avx9'"},
        {"\"usable_cores\":2", "\"usable_cores\":0", KT_E_FORMAT, "usable_cores"},
        {"\"stream_gbs_1t\":29.25", "\"stream_gbs_1t\":-29.25", KT_E_FORMAT, "stream_gbs_1t"},
        {"\"fingerprint\":{", "\"fingerprint\":[],\"x\":{", KT_E_FORMAT, "fingerprint"},
        {"\"schema\":\"2.0\",", "", KT_E_FORMAT, "schema"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        kt_err err = {KT_OK, ""};
        kt_status st = load_edited(edits[i].from, edits[i].to, &err);
        cr_assert_eq(st, edits[i].status, "%s -> %s: %s (%s)", edits[i].from, edits[i].to,
                     kt_status_name(st), err.message);
        cr_assert(strstr(err.message, edits[i].message), "%s -> %s: %s", edits[i].from, edits[i].to,
                  err.message);
        cr_assert(strstr(err.message, path), "%s", err.message);
        cr_assert_eq(err.status, st);
    }
}

/* Files of the first schema lack what came with the second. */
Test(table, files_of_the_first_schema_are_read) {
    kt_table *t = make_table(4), *back;
    kt_err err = {KT_OK, ""};
    size_t size;
    char *text, *at;

    cr_expect_eq(load_edited("\"schema\":\"2.0\"", "\"schema\":\"1.0\"", &err), KT_OK, "%s",
                 err.message);
    cr_assert_eq(kt_table_save(t, path, NULL), KT_OK);
    text = read_all(&size);
    cr_expect_not(strstr(text, "\"bits\"") || strstr(text, "\"others\"") ||
                      strstr(text, "\"down\"") || strstr(text, "\"window\""),
                  "what is not known or not used is not written");
    at = strstr(text, "\"2.0\"");
    at[1] = '1';
    write_sealed(text, size);
    cr_assert_eq(kt_table_load(path, &back, &err), KT_OK, "%s", err.message);
    cr_assert_arr_eq(back->rows, t->rows, t->n_rows * sizeof *t->rows);
    kt_table_destroy(back);
    free(text);
    kt_table_destroy(t);
    cr_assert_eq(
        kt_table_load(KT_SOURCE_DIR "/results/zen4-2c-24g/tiny-moe.kttable.json", &back, &err),
        KT_OK, "%s", err.message);
    cr_expect_gt(back->n_rows, 0);
    kt_table_destroy(back);
}

/* A row that says what version 2 can say. */
static kt_table_row make_classed_row(int i) {
    kt_table_row r = make_row(1);

    r.problem.down = i & 1 ? KT_W_INT8_CHANNEL : KT_W_NONE;
    r.problem.act = i & 2 ? KT_FFN_SWIGLU_CLAMPED : KT_FFN_SWIGLU;
    r.problem.v = i & 4 ? 64 : 0;
    r.problem.window = i & 8 ? 4096 : 0;
    strcpy(r.bits, "a8-groups");
    r.n_others = i % (KT_TABLE_OTHERS + 1);
    for (int k = 0; k < r.n_others; k++) {
        snprintf(r.other[k].bits, sizeof r.other[k].bits, "class-%d", k);
        strcpy(r.other[k].variant, "w4g32_a8planes_p64__amxint8");
        strcpy(r.other[k].config, "rows=16");
        r.other[k].version = k;
        r.other[k].time_ns = 50000.25 + k;
    }
    return r;
}

/* All sixteen differ in one word at least: as rows of 1.0 they were one. */
Test(table, problems_that_differ_in_any_member_have_rows_of_their_own) {
    kt_table *t = make_table(0), *back;
    kt_err err = {KT_OK, ""};

    for (int i = 15; i >= 0; i--) {
        kt_table_row r = make_classed_row(i);
        cr_assert_eq(kt_table_put(t, &r, &err), KT_OK, "%s", err.message);
    }
    cr_assert_eq(t->n_rows, 16);
    cr_assert_eq(kt_table_save(t, path, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_table_load(path, &back, &err), KT_OK, "%s", err.message);
    cr_assert_arr_eq(back->rows, t->rows, 16 * sizeof *t->rows);
    for (int i = 0; i < 16; i++) {
        const kt_table_row r = make_classed_row(i);
        const kt_table_row *found = kt_table_find(back, &r.problem, r.threads);
        cr_assert(found, "row %d", i);
        cr_expect_eq(found->n_others, r.n_others);
        cr_expect_str_eq(found->bits, "a8-groups");
        for (int k = 0; k < r.n_others; k++) {
            cr_expect_str_eq(found->other[k].bits, r.other[k].bits);
            cr_expect_eq(found->other[k].version, k);
            cr_expect_float_eq(found->other[k].time_ns, 50000.3 + k, 1e-6);
        }
        for (int k = 0; k < 16; k++) {
            const kt_table_row other = make_classed_row(k);
            cr_expect_eq(kt_same_weights(&r.problem, &other.problem), i == k, "%d and %d", i, k);
        }
    }
    kt_table_destroy(back);
    kt_table_destroy(t);
}

Test(table, what_is_implied_is_the_same_spelled_out) {
    kt_table_row r = make_row(1), s = r;

    s.problem.down = s.problem.weights;
    s.problem.v = s.problem.k;
    s.problem.m++;
    cr_expect(kt_same_weights(&r.problem, &s.problem));
    cr_expect_eq(kt_problem_down(&r.problem), KT_W_INT4_G32);
    cr_expect_eq(kt_problem_down(&s.problem), KT_W_INT4_G32);
    s.problem.down = KT_W_INT8_CHANNEL;
    cr_expect_not(kt_same_weights(&r.problem, &s.problem));
    cr_expect_eq(kt_problem_down(&s.problem), KT_W_INT8_CHANNEL);
}

/* A file merged by hand has its rows in any order; they are found all the same. */
Test(table, rows_in_any_order_are_put_in_order) {
    kt_table *t = make_table(6), *back;
    kt_err err = {KT_OK, ""};
    size_t size;
    char *text, *first, *second, *third, *edited;
    int n;

    cr_assert_eq(kt_table_save(t, path, NULL), KT_OK);
    text = read_all(&size);
    first = strstr(text, "\"rows\":[\n") + 9;
    second = strchr(first, '\n') + 1;
    third = strchr(second, '\n') + 1;
    n = asprintf(&edited, "%.*s%.*s%.*s%s", (int)(first - text), text, (int)(third - second),
                 second, (int)(second - first), first, third);
    cr_assert_eq((size_t)n, size);
    write_sealed(edited, size);
    cr_assert_eq(kt_table_load(path, &back, &err), KT_OK, "%s", err.message);
    for (size_t i = 0; i < t->n_rows; i++) {
        const kt_table_row *row = &t->rows[i];
        const kt_table_row *found = kt_table_find(back, &row->problem, row->threads);
        cr_assert(found && memcmp(found, row, sizeof *row) == 0, "row %zu", i);
    }
    kt_table_destroy(back);
    free(edited);
    free(text);
    kt_table_destroy(t);
}

Test(table, ignores_fields_of_a_later_minor_version) {
    kt_err err = {KT_OK, ""};

    cr_assert_eq(load_edited("\"schema\":\"2.0\"", "\"schema\":\"2.7\",\"gpu\":{\"sm\":120}", &err),
                 KT_OK, "%s", err.message);
    cr_assert_eq(load_edited("\"rounds\":32", "\"rounds\":32,\"joules\":[1,2]", &err), KT_OK, "%s",
                 err.message);
    cr_assert_eq(load_edited("\"vendor\":", "\"microcode\":\"0xa1\",\"vendor\":", &err), KT_OK,
                 "%s", err.message);
}

Test(table, refuses_what_is_no_table) {
    static const char *const texts[] = {
        "", "{}", "[]", "not json", "{\"schema\":\"2.0\"}", "\xff", "{\"schema\"", "42"};
    kt_table *t;
    kt_err err;

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_all(texts[i], strlen(texts[i]));
        cr_assert_eq(kt_table_load(path, &t, &err), KT_E_FORMAT, "'%s'", texts[i]);
        cr_assert_null(t);
        cr_assert(strstr(err.message, path), "%s", err.message);
    }
    cr_assert_eq(kt_table_load("/nonexistent/table", &t, &err) == KT_OK, 0);
    cr_assert_null(t);
    cr_assert_neq(kt_table_load("/nonexistent/table", &t, NULL), KT_OK);
}

Test(table, an_edit_without_its_checksum_is_noticed) {
    kt_table *t = make_table(3), *back;
    size_t size;
    kt_err err;
    char *text;

    cr_assert_eq(kt_table_save(t, path, NULL), KT_OK);
    text = read_all(&size);
    *strstr(text, "rows=2") = 'R';
    write_all(text, size);
    cr_assert_eq(kt_table_load(path, &back, &err), KT_E_MISMATCH);
    cr_assert(strstr(err.message, "checksum") && strstr(err.message, "damaged or edited"), "%s",
              err.message);
    free(text);
    kt_table_destroy(t);
}

/* Every single bit flipped, every length cut: an error, never a crash, never a changed table. */
Test(table, no_damage_goes_unnoticed) {
    kt_table *t = make_table(2), *back;
    size_t size, sealed;
    char *text;

    cr_assert_eq(kt_table_save(t, path, NULL), KT_OK);
    text = read_all(&size);
    sealed = (size_t)(strstr(text, "\"checksum\"") - text);
    for (size_t i = 0; i < size; i++) {
        for (int bit = 0; bit < 8; bit++) {
            kt_status st;
            text[i] = (char)(text[i] ^ 1 << bit);
            write_all(text, size);
            st = kt_table_load(path, &back, NULL);
            cr_assert(i >= sealed || st != KT_OK, "byte %zu bit %d", i, bit);
            if (st == KT_OK) cr_assert_arr_eq(back->rows, t->rows, 2 * sizeof *t->rows);
            kt_table_destroy(back);
            text[i] = (char)(text[i] ^ 1 << bit);
        }
        write_all(text, i);
        if (i + 1 < size) cr_assert_neq(kt_table_load(path, &back, NULL), KT_OK, "cut at %zu", i);
    }
    free(text);
    kt_table_destroy(t);
}

/* Damage behind a right checksum: what loads makes sense, what does not has a message. */
Test(table, survives_forged_files) {
    static const char alphabet[] = "{}[]\",:.-+eE0123456789 \\utfn\x80\x01";
    kt_table *t = make_table(4), *back;
    size_t size;
    kt_rng rng;
    char *text, *copy;

    cr_assert_eq(kt_table_save(t, path, NULL), KT_OK);
    text = read_all(&size);
    copy = malloc(size + 1);
    kt_rng_seed(&rng, 7);
    for (int round = 0; round < 5000; round++) {
        size_t sealed = (size_t)(strstr(text, "\"checksum\"") - text);
        kt_err err = {KT_OK, ""};
        memcpy(copy, text, size + 1);
        for (uint64_t edits = 1 + kt_rng_below(&rng, 3); edits > 0; edits--)
            copy[kt_rng_below(&rng, sealed)] = alphabet[kt_rng_below(&rng, sizeof alphabet - 1)];
        write_sealed(copy, size);
        if (kt_table_load(path, &back, &err) == KT_OK) {
            cr_assert_leq(back->n_rows, 4);
            for (size_t i = 0; i < back->n_rows; i++) {
                cr_assert_geq(back->rows[i].threads, 1);
                cr_assert(back->rows[i].time_ns > 0 && isfinite(back->rows[i].time_ns));
            }
        } else {
            cr_assert_null(back);
            cr_assert(err.message[0]);
        }
        kt_table_destroy(back);
    }
    free(copy);
    free(text);
    kt_table_destroy(t);
}

/* Goal: 5 ms for 2000 rows. The limit here leaves room for sanitizers and a busy machine. */
Test(table, loads_2000_rows_quickly) {
    kt_table *t = make_table(0), *back;
    int64_t best = INT64_MAX;
    size_t size;

    for (int i = 0; t->n_rows < 2000; i++) {
        kt_table_row r = make_row(i);
        cr_assert_eq(kt_table_put(t, &r, NULL), KT_OK);
    }
    cr_assert_eq(kt_table_save(t, path, NULL), KT_OK);
    for (int round = 0; round < 10; round++) {
        int64_t begin = kt_clock_ns();
        cr_assert_eq(kt_table_load(path, &back, NULL), KT_OK);
        if (kt_clock_ns() - begin < best) best = kt_clock_ns() - begin;
        cr_assert_eq(back->n_rows, 2000);
        kt_table_destroy(back);
    }
    free(read_all(&size));
    fprintf(stderr, "table of 2000 rows, %zu bytes: %.2f ms to load\n", size, (double)best * 1e-6);
    cr_assert_lt(best, 100 * 1000 * 1000);
    kt_table_destroy(t);
}

Test(table, buckets_ascend_to_the_dense_limit) {
    cr_assert_eq(kt_m_buckets[0], 1);
    cr_assert_eq(kt_m_buckets[kt_m_bucket_count - 1], KT_M_DENSE);
    for (int i = 1; i < kt_m_bucket_count; i++) cr_assert_gt(kt_m_buckets[i], kt_m_buckets[i - 1]);
    cr_assert_leq(kt_m_bucket_count, KT_MAX_CHOICES, "each bucket needs a place in the map");
}
