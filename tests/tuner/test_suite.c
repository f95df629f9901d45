/* The bench suites: what the runner and the report take for granted of the tables, and small
 * runs of each kind of row. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cpu.h"
#include "kernels/formats/format.h"
#include "tests/support/temp.h"
#include "tuner/session/suite_impl.h"
#include "tuner/space/cell.h"

static void check_layer(const kt_suite_spec *spec) {
    const kt_format *format = kt_format_find(spec->weights);

    cr_assert_not_null(format, "%s: no format %d", spec->name, spec->weights);
    cr_assert(format->block == 0 ||
                  (spec->hidden % format->block == 0 && spec->intermediate % format->block == 0),
              "%s: sizes are not whole blocks", spec->name);
    cr_assert((spec->m > 0) != (spec->spread_tokens > 0), "%s: rows or tokens", spec->name);
    if (spec->kind == KT_ROW_DENSE || spec->kind == KT_ROW_ACCURACY)
        cr_assert(spec->experts == 0 && spec->m > 0, "%s: not a GEMM", spec->name);
    else
        cr_assert(spec->experts > 0 && spec->spread_tokens * spec->topk % spec->experts == 0,
                  "%s: uneven", spec->name);
}

/* Some variant of any machine takes the problem. */
static void check_kept(const kt_suite_spec *spec) {
    int takers = 0;

    cr_assert(spec->threads >= 1 && spec->kept.m >= 1 && !kt_problem_is_packed(&spec->kept) &&
                  kt_op_is_tuned(spec->kept.op),
              "%s", spec->name);
    for (size_t v = 0; v < kt_builtin_variant_count; v++)
        takers += kt_builtin_variants[v]->isa == 0 &&
                  kt_variant_accepts(kt_builtin_variants[v], &spec->kept, NULL, NULL) == KT_OK;
    cr_assert_gt(takers, 0, "%s", spec->name);
}

/* Norms beside copying, routers beside the machine; some variant of any machine takes the
 * problem. */
static void check_rows(const kt_suite_spec *spec) {
    const kt_problem *p = &spec->kept;
    kt_err err = {KT_OK, ""};

    cr_assert(spec->threads >= 1 && p->m >= 1 && p->k >= 1, "%s", spec->name);
    cr_assert_eq(spec->of == KT_OF_COPY, p->op == KT_OP_NORM, "%s", spec->name);
    if (p->op == KT_OP_NORM) return;
    cr_assert_eq(p->op, KT_OP_ROUTER, "%s", spec->name);
    cr_assert_eq(kt_router_rule_check(&spec->rule, &err), KT_OK, "%s: %s", spec->name, err.message);
    cr_assert(spec->rule.experts == p->n && spec->rule.topk == p->topk, "%s", spec->name);
}

static void check_spec(const kt_suite *suite, const kt_suite_spec *spec) {
    kt_suite_row row;

    cr_assert(strlen(spec->name) < sizeof row.name, "%s: %s", suite->name, spec->name);
    cr_assert(spec->kind < KT_ROW_KINDS, "%s: kind %d", spec->name, spec->kind);
    cr_assert(spec->bar >= 0 && spec->bar < 2, "%s: bar %g", spec->name, spec->bar);
    cr_assert(!spec->at_most || spec->bar > 0, "%s: an upper bar of 0", spec->name);
    if (spec->kind == KT_ROW_MODEL)
        cr_assert(spec->threads == 1 || spec->threads == 2, "%s: %d threads", spec->name,
                  spec->threads);
    else if (spec->kind == KT_ROW_KEPT)
        check_kept(spec);
    else if (spec->kind == KT_ROW_ROWS)
        check_rows(spec);
    else if (spec->kind != KT_ROW_SHAPES) /* whose shapes are not in the table */
        check_layer(spec);
    for (const kt_suite_spec *other = suite->specs; other < spec; other++)
        cr_assert_neq(strcmp(other->name, spec->name), 0, "%s twice", spec->name);
}

Test(suite, tables_are_complete) {
    const kt_suite *suites[] = {&kt_suite_line, &kt_suite_cpu};
    for (size_t i = 0; i < 2; i++) {
        cr_assert(suites[i]->n_specs > 0 && suites[i]->n_specs <= KT_SUITE_ROWS);
        for (int j = 0; j < suites[i]->n_specs; j++) check_spec(suites[i], &suites[i]->specs[j]);
    }
}

Test(suite, found_by_name) {
    cr_assert_eq(kt_suite_find("line"), &kt_suite_line);
    cr_assert_eq(kt_suite_find("cpu"), &kt_suite_cpu);
    cr_assert_null(kt_suite_find("moon"));
}

/* --- placements --- */

/* One of six in a spell of the machine: the row's figure is that of the others, its interval
 * shows the spell. */
Test(suite, a_figure_is_the_median_over_its_placements) {
    static const double fraction[] = {0.95, 0.80, 0.97, 0.96, 0.94, 0.96};
    kt_suite_tally tally;
    kt_suite_row row = {.bar = 0.95};

    for (int i = 0; i < 6; i++) {
        kt_suite_row one = {.measured = fraction[i],
                            .n_placements = 1,
                            .rounds = 10 + i,
                            .rate = 100 * fraction[i],
                            .ceiling = 100,
                            .least_ns = {50 - i, 60 + i},
                            .contender = "same"};
        kt_suite_add(&tally, &row, &one);
        cr_assert_eq(row.n_placements, i + 1);
        cr_expect_eq(row.placement[i], fraction[i], "in order of time");
    }
    cr_expect_eq(row.measured, (0.95 + 0.96) / 2);
    cr_expect(row.spread.low == 0.80 && row.spread.high == 0.97);
    cr_expect_eq(row.rounds, 10 + 11 + 12 + 13 + 14 + 15);
    cr_expect_eq(row.rate, 100 * (0.95 + 0.96) / 2);
    cr_expect_eq(row.ceiling, 100);
    cr_expect_eq(row.least_times, 45.0 / 60);
    cr_expect_str_eq(row.contender, "same");
}

/* --- small runs --- */

static kt_suite_row rows[KT_SUITE_ROWS];
static double row_limit; /* 0 = the suite's own */
static size_t rotation;

/* Run one row, shortly; the number of rows is returned. */
static int run(const kt_suite_spec *spec, int n, const char *glob, const char *kt, kt_err *err) {
    const kt_suite suite = {
        .name = "small", .about = "", .specs = spec, .n_specs = n, .seconds_per_row = 0.05};
    const kt_suite_options options = {.threads = 1,
                                      .seed = 1,
                                      .rotation = rotation,
                                      .row_limit = row_limit,
                                      .rows = glob,
                                      .kt = kt};
    kt_fingerprint machine = {0};
    kt_registry *registry = NULL;
    kt_status st;
    int n_rows = 0;

    cr_assert_eq(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count,
                                    kt_isa_available(), &registry, err),
                 KT_OK);
    machine.ceilings.stream_gbs_1t = 20;
    machine.ceilings.stream_gbs_all = 20;
    machine.ceilings.threads_all = 1;
    machine.ceilings.peak_scalar_gops = 5;
    for (int i = 0; i < KT_ISA_COUNT; i++) machine.ceilings.peak_gops[i] = 100;
    st = kt_suite_run(&suite, registry, &machine, &options, rows, &n_rows, err);
    kt_registry_destroy(registry);
    return st == KT_OK ? n_rows : -1;
}

#define TINY .hidden = 256, .intermediate = 128, .experts = 8, .topk = 2
#define GEMM_OF(rows_) .hidden = 256, .intermediate = 192, .m = rows_

static void check_row(const kt_suite_row *row, const char *unit) {
    cr_assert_str_eq(row->note, "", "%s: %s", row->name, row->note);
    cr_expect(row->measured > 0 && row->measured < 1e6, "%s: %g", row->name, row->measured);
    cr_expect(row->spread.low <= row->measured && row->measured <= row->spread.high,
              "%s: %g outside %g .. %g", row->name, row->measured, row->spread.low,
              row->spread.high);
    cr_expect_str_eq(row->unit, unit);
    cr_expect(row->rate > 0 && row->ceiling > 0 && row->rounds > 0 && *row->contender);
}

/* A row that was measured on every placement: the figures beside the figure are its own. */
static void check_placements(const kt_suite_row *row) {
    kt_interval i = kt_median_interval(row->placement, KT_SUITE_PLACEMENTS, 0.95);

    cr_expect_eq(row->n_placements, KT_SUITE_PLACEMENTS, "%s: %d", row->name, row->n_placements);
    cr_expect(row->measured == i.point && row->spread.low == i.low && row->spread.high == i.high);
    cr_expect(row->rounds >= 2 * KT_SUITE_PLACEMENTS, "%s: %d rounds", row->name, row->rounds);
    cr_expect(row->least_ns[0] > 0 && row->least_ns[1] > 0);
    cr_expect_eq(row->least_times, row->least_ns[0] / row->least_ns[1]);
}

Test(suite, runs_experts_also_with_fewer_instructions, .timeout = 120) {
    const kt_suite_spec specs[] = {
        {"all", KT_W_INT4_G32, KT_OF_STREAM, TINY, .m = 1, .bar = 1e-6},
        {"old", KT_W_INT8_CHANNEL, KT_OF_PEAK, TINY, .m = 8, .bar = 1e6, .only = KT_ISA_AVX2},
        {"none", KT_W_INT8_CHANNEL, KT_OF_PEAK, TINY, .m = 8, .bar = 1, .only = KT_ISA_AMXINT8},
    };
    kt_err err = {0};

    cr_assert_eq(run(specs, 3, NULL, NULL, &err), 3, "%s", err.message);
    check_row(&rows[0], "of read stream");
    check_placements(&rows[0]);
    cr_expect(rows[0].ok, "a bar of nothing was missed");
    if (kt_isa_available() & KT_ISA_AVX2) {
        check_row(&rows[1], "of peak");
        cr_expect_not(rows[1].ok, "a bar of a million was kept");
        cr_expect_not_null(strstr(rows[1].contender, "__avx2"), "%s", rows[1].contender);
    }
    if (!(kt_isa_available() & KT_ISA_AMXINT8))
        cr_expect(rows[2].skipped && !rows[2].ok && *rows[2].note, "missing AMX is no failure");
}

Test(suite, compares_dense_products_with_libraries, .timeout = 120) {
    const kt_suite_spec specs[] = {
        {"int8", KT_W_INT8_CHANNEL, .kind = KT_ROW_DENSE, GEMM_OF(8), .bar = 1},
        {"bf16", KT_W_BF16, .kind = KT_ROW_DENSE, GEMM_OF(8), .bar = 1}};
    kt_err err = {0};

    cr_assert_eq(run(specs, 2, NULL, NULL, &err), 2, "%s", err.message);
    for (int i = 0; i < 2; i++) {
        if (rows[i].skipped) continue; /* no library here */
        check_row(&rows[i], "of the best library");
        check_placements(&rows[i]);
        cr_expect_not_null(strstr(rows[i].contender, " against dense_"), "%s", rows[i].contender);
        cr_expect_eq(rows[i].ok, rows[i].measured >= 1);
    }
}

Test(suite, compares_norms_with_copying_and_routers_with_the_machine, .timeout = 120) {
    const kt_suite_spec specs[] = {
        {"norm", .kind = KT_ROW_ROWS, .of = KT_OF_COPY, .bar = 1e-6, .norm = KT_NORM_RMS_SILU,
         .kept = {.op = KT_OP_NORM, .m = 64, .n = 1, .k = 64}},
        {"router", .kind = KT_ROW_ROWS, .of = KT_OF_STREAM, .bar = 1e6,
         .kept = {.op = KT_OP_ROUTER, .weights = KT_W_BF16, .m = 1, .n = 24, .k = 65, .topk = 2},
         .rule = {.score = KT_ROUTER_SIGMOID_GROUP,
                  .experts = 24,
                  .topk = 2,
                  .groups = 4,
                  .top_groups = 2}},
        {"wrong", .kind = KT_ROW_ROWS, .of = KT_OF_PEAK, .bar = 1,
         .kept = {.op = KT_OP_ROUTER, .weights = KT_W_F32, .m = 8, .n = 16, .k = 32, .topk = 2},
         .rule = {.score = KT_ROUTER_SOFTMAX, .experts = 16, .topk = 17}}};
    kt_err err = {0};

    rotation = (size_t)1 << 20;
    cr_assert_eq(run(specs, 3, NULL, NULL, &err), 3, "%s", err.message);
    check_row(&rows[0], "of copying");
    check_placements(&rows[0]);
    cr_expect(rows[0].ok && rows[0].is_gbs && strstr(rows[0].contender, " of memcpy"), "%s",
              rows[0].contender);
    check_row(&rows[1], "of read stream");
    check_placements(&rows[1]);
    cr_expect_not(rows[1].ok, "a bar of a million was kept");
    cr_expect(!rows[2].ok && strstr(rows[2].note, "17 experts per token"), "%s", rows[2].note);
}

/* Nothing is done in a microsecond: rows have failed, and the suite goes on. Whose time it was is
 * told by who is at work when the clock is looked at: in a dense row that may be a library already,
 * and then the row is left out. */
Test(suite, a_row_that_hangs_is_given_up, .timeout = 60) {
    const kt_suite_spec specs[] = {
        {"experts", KT_W_INT4_G32, KT_OF_STREAM, TINY, .m = 1, .bar = 1},
        {"dense", KT_W_INT8_CHANNEL, .kind = KT_ROW_DENSE, GEMM_OF(8), .bar = 1}};
    kt_err err = {0};
    bool was_library;

    row_limit = 1e-6;
    cr_assert_eq(run(specs, 2, NULL, NULL, &err), 2, "%s", err.message);
    was_library = strcmp(rows[1].note, "a library took longer than 1e-06 s") == 0;
    for (int i = 0; i < 2; i++) {
        cr_expect_not(rows[i].ok, "%s", rows[i].note);
        if (i == 1 && was_library) continue;
        cr_expect_str_eq(rows[i].note, "our side took longer than 1e-06 s");
        cr_expect_not(rows[i].skipped, "ours is no reason to leave a row out");
    }
    cr_expect_eq(rows[1].skipped, was_library);
}

static size_t one_line(const kt_problem *problem) {
    (void)problem;
    return 64;
}

static void hang(const kt_problem *problem, const kt_matrix *w, void *dst) {
    (void)problem, (void)w, (void)dst;
    for (;;) pause();
}

static double nothing(const kt_probe_call *call) {
    (void)call;
    return 0;
}

/* A library that does not come back is no failure of ours, and no success. */
Test(suite, a_library_that_hangs_is_skipped, .timeout = 60) {
    static const kt_variant hanging = {.name = "dense_hang__lib",
                                       .op = KT_OP_PROBE,
                                       .weights = 1u << KT_W_INT8_CHANNEL,
                                       .layout = "hang",
                                       .packed_bytes = one_line,
                                       .pack_gemm = hang,
                                       .probe = nothing};
    static const kt_variant *const list[] = {&hanging};
    const kt_suite_spec spec = {"dense", KT_W_INT8_CHANNEL, .kind = KT_ROW_DENSE, GEMM_OF(8),
                                .bar = 1};
    const kt_suite suite = {
        .name = "small", .about = "", .specs = &spec, .n_specs = 1, .seconds_per_row = 0.05};
    const kt_suite_options options = {.threads = 1, .seed = 1, .row_limit = 2};
    kt_fingerprint machine = {0};
    kt_registry *registry = NULL;
    kt_err err = {0};
    int n_rows = 0;

    cr_assert_eq(kt_registry_create(list, 1, kt_isa_available(), &registry, &err), KT_OK);
    cr_assert_eq(kt_suite_run(&suite, registry, &machine, &options, rows, &n_rows, &err), KT_OK);
    cr_expect(rows[0].skipped && !rows[0].ok, "%s", rows[0].note);
    cr_expect_str_eq(rows[0].note, "a library took longer than 2 s", "%s", rows[0].note);
    kt_registry_destroy(registry);
}

Test(suite, counts_threads_and_neighbours, .timeout = 120) {
    const kt_suite_spec specs[] = {
        {"scaling", KT_W_INT8_CHANNEL, KT_OF_PEAK, TINY, .m = 16, .kind = KT_ROW_SCALING},
        {"neighbour", KT_W_INT8_CHANNEL, KT_OF_PEAK, TINY, .m = 1, .kind = KT_ROW_NEIGHBOUR,
         .bar = 1e5, .at_most = true}};
    kt_err err = {0};

    cr_assert_eq(run(specs, 2, NULL, NULL, &err), 2, "%s", err.message);
    if (kt_usable_cores() < 2) {
        cr_expect(rows[0].skipped && rows[1].skipped);
        return;
    }
    check_row(&rows[0], "times one thread");
    check_placements(&rows[0]);
    check_row(&rows[1], "times quiet, per available core");
    check_placements(&rows[1]);
    cr_expect(rows[1].ok && rows[1].at_most);
}

/* What the worst variant may lose of rows of normal numbers. 8 bits with a step of A / 127 for
 * the largest A of 32, about 2.1 sigma: the error is uniform over a step, 2.1 / 127 / sqrt(12) =
 * 0.48 %, 0.53 % with the spread of A; 0.73 % with powers of two per 16. Weights rounded once
 * more to 8 bits add 0.7 % (kernels/formats/requant8.h). */
static double error_of_contender(const kt_suite_row *row) {
    const size_t size = strcspn(row->contender, ",");

    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        if (strlen(v->name) != size || strncmp(v->name, row->contender, size) != 0) continue;
        return hypot(v->acts >> KT_A_INT8_G16P2 & 1 ? 0.0073 : 0.0053,
                     v->numerics == KT_NUM_REQUANT ? 0.007 : 0);
    }
    cr_assert_fail("%s names no variant", row->contender);
    return 0;
}

Test(suite, tells_errors) {
    const kt_suite_spec specs[] = {
        {"acts", KT_W_INT4_G32, .kind = KT_ROW_ACCURACY, .figure = KT_ERROR_TO_WEIGHTS, GEMM_OF(4),
         .bar = 0.015, .at_most = true},
        {"format", KT_W_INT4_G32, .kind = KT_ROW_ACCURACY, .figure = KT_ERROR_OVER_FORMAT,
         GEMM_OF(4), .bar = 1.05, .at_most = true},
        {"strict", KT_W_INT4_G32, .kind = KT_ROW_ACCURACY, .figure = KT_ERROR_TO_WEIGHTS,
         GEMM_OF(4), .bar = 1e-9, .at_most = true},
        {"files", KT_W_Q4_K, .kind = KT_ROW_ACCURACY, .figure = KT_ERROR_OVER_FORMAT, GEMM_OF(4),
         .bar = 1, .at_most = true},
        {"int8", KT_W_INT8_CHANNEL, .kind = KT_ROW_ACCURACY, .figure = KT_ERROR_OVER_FORMAT,
         GEMM_OF(4), .bar = 1.05, .at_most = true}};
    kt_err err = {0};

    cr_assert_eq(run(specs, 5, NULL, NULL, &err), 5, "%s", err.message);
    cr_expect(rows[0].measured > 0.003 && rows[0].measured < 1.1 * error_of_contender(&rows[0]),
              "%g, %s", rows[0].measured, rows[0].contender);
    /* The format loses about 8 %: hypot(8, 1) / 8. */
    cr_expect(rows[1].measured > 0.99 && rows[1].measured < 1.03, "%g", rows[1].measured);
    cr_expect(rows[4].measured > 1.2 && !rows[4].ok,
              "activations in 8 bits lose about what INT8 does: %g", rows[4].measured);
    cr_expect(rows[0].ok && rows[1].ok && !rows[2].ok);
    cr_expect(rows[3].skipped && !rows[3].ok, "GGUF blocks are not encoded here: %s", rows[3].note);
}

/* A program in the place of `kt`. */
static void write_script(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
    cr_assert_eq(chmod(path, 0755), 0);
}

static const char good_kt[] =
    "#!/bin/sh\n"
    "for last; do :; done\n" /* the number of threads */
    "echo 'a warning' >&2\n"
    "echo '{\"results\":[{\"tokens_per_second\":'$((100 * "
    "last))',\"deviation\":1,\"repetitions\":4,"
    "\"of_peak\":0.5,\"peak_int8_gops\":400},{\"tokens_per_second\":10,\"deviation\":0.5,"
    "\"repetitions\":4,\"of_stream\":0.8,\"gbs\":16,\"stream_gbs\":20,\"waiting_share\":0.04}]}'\n";

static const kt_suite_spec model_specs[] = {
    {"m_prefill", .kind = KT_ROW_MODEL, .figure = KT_MODEL_PREFILL_OF_PEAK, .threads = 1,
     .bar = 0.6},
    {"m_decode", .kind = KT_ROW_MODEL, .figure = KT_MODEL_DECODE_OF_STREAM, .threads = 1,
     .bar = 0.6},
    {"m_waiting", .kind = KT_ROW_MODEL, .figure = KT_MODEL_DECODE_WAITING, .threads = 1,
     .bar = 0.05, .at_most = true},
    {"m_scaling", .kind = KT_ROW_MODEL, .figure = KT_MODEL_PREFILL_SCALING, .threads = 2,
     .bar = 1.95},
};

Test(suite, reads_the_figures_of_whole_models) {
    char folder[256], path[300];
    kt_err err = {0};

    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/kt", folder);
    write_script(path, good_kt);
    cr_assert_eq(run(model_specs, 4, NULL, path, &err), 4, "%s", err.message);
    check_row(&rows[0], "of peak");
    cr_expect(rows[0].measured == 0.5 && !rows[0].ok);
    check_row(&rows[1], "of read stream");
    cr_expect(rows[1].measured == 0.8 && rows[1].ok);
    /* twice 0.5 / sqrt(4) of 10 */
    cr_expect(fabs(rows[1].spread.low - 0.8 * 0.95) < 1e-9, "%g", rows[1].spread.low);
    check_row(&rows[2], "of the threads' time");
    cr_expect(rows[2].measured == 0.04 && rows[2].ok);
    kt_temp_remove(folder);
    if (kt_usable_cores() < 2) return;
    check_row(&rows[3], "times one thread");
    cr_expect(rows[3].measured == 2 && rows[3].ok);
}

Test(suite, says_what_a_model_run_died_of) {
    char folder[256], path[300];
    kt_err err = {0};

    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/kt", folder);
    write_script(path, "#!/bin/sh\nexit 7\n");
    cr_assert_eq(run(model_specs, 1, NULL, path, &err), 1);
    cr_expect(!rows[0].ok && !rows[0].skipped);
    cr_expect_not_null(strstr(rows[0].note, "code 7"), "%s", rows[0].note);
    write_script(path, "#!/bin/sh\necho '{\"results\":[]}'\n");
    cr_assert_eq(run(model_specs, 1, NULL, path, &err), 1);
    cr_expect_not_null(strstr(rows[0].note, "expected the figures"), "%s", rows[0].note);
    unlink(path);
    cr_assert_eq(run(model_specs, 1, NULL, path, &err), 1);
    cr_expect(!rows[0].skipped && !rows[0].ok, "%s", rows[0].note);
    cr_expect_not_null(strstr(rows[0].note, "no such program"), "%s", rows[0].note);
    kt_temp_remove(folder);
}

Test(suite, runs_only_the_rows_asked_for) {
    kt_err err = {0};

    cr_assert_eq(run(model_specs, 4, "*_[dw]*", "/nowhere/kt", &err), 2, "%s", err.message);
    cr_expect_str_eq(rows[0].name, "m_decode");
    cr_expect_str_eq(rows[1].name, "m_waiting");
    cr_assert_eq(run(model_specs, 4, "x*", NULL, &err), -1);
    cr_expect_not_null(strstr(err.message, "no row matches 'x*'"), "%s", err.message);
}
