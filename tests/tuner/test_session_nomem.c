/* Sessions, comparisons, exports and the self-check with every allocation failing once.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "tests/support/nomem.h"
#include "tests/support/temp.h"
#include "tuner/measure/busy_child.h"
#include "tuner/report/comparison.h"
#include "tuner/report/export.h"
#include "tuner/report/machine_code.h"
#include "tuner/report/results.h"
#include "tuner/selfcheck/goal.h"
#include "tuner/session/encodings.h"
#include "tuner/session/layer_cells.h"
#include "tuner/session/session.h"
#include "tuner/store/machine_file.h"
#include "tuner/store/table_union.h"

/* A tuned model of results/. */
#define FILED KT_SOURCE_DIR "/results/zen4-2c-24g/tiny-moe"

static kt_registry *registry;
static kt_table *table;
static kt_journal *journal;

static void open_filed(void) {
    kt_err err = {KT_OK, ""};
    cr_assert_eq(
        kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, 0, &registry, &err),
        KT_OK, "%s", err.message);
    cr_assert_eq(kt_table_load(FILED ".kttable.json", &table, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_journal_read(FILED ".journal.jsonl", &journal, &err), KT_OK, "%s", err.message);
}
static void close_filed(void) {
    kt_journal_close(journal);
    kt_table_destroy(table);
    kt_registry_destroy(registry);
}
TestSuite(session_nomem, .init = open_filed, .fini = close_filed, .timeout = 240);

/* ---- sessions ---- */

static kt_status make_session(void *out, const void *with, kt_err *err) {
    const kt_session_setup setup = {.registry = registry,
                                    .machine = &table->fingerprint,
                                    .cells = with,
                                    .strategy = kt_strategy_find("auto"),
                                    .rotation_bytes = 1 << 20,
                                    .deadline_ns = INT64_MAX,
                                    .seed = 1};
    return kt_session_create(&setup, out, err);
}
static void drop_session(void *out) {
    kt_session_destroy(*(kt_session **)out);
}

static kt_status make_layer_session(void *out, const void *with, kt_err *err) {
    static const kt_shapes shapes = {.hidden = 64, .layers = 1};
    const kt_layer_session_setup setup = {.registry = registry,
                                          .machine = &table->fingerprint,
                                          .table = table,
                                          .shapes = &shapes,
                                          .format = KT_SERVE_INT4,
                                          .rotation_bytes = 1 << 20,
                                          .threads = 2,
                                          .deadline_ns = INT64_MAX};
    (void)with;
    return kt_layer_session_create(&setup, out, err);
}
static void drop_layer_session(void *out) {
    kt_layer_session_destroy(*(kt_layer_session **)out);
}

static kt_registry *vectors; /* with AVX-512 VNNI there are two encodings */

static kt_status probe_encodings(void *out, const void *with, kt_err *err) {
    return kt_encoding_probes(vectors, with, out, err);
}
static void drop_cells(void *out) {
    kt_cell_list_deinit(out);
}

static kt_status take_encodings(void *out, const void *with, kt_err *err) {
    kt_cell_list list = {.cells = &(kt_tune_cell){.problem = {.op = KT_OP_GEMM}}, .n = 1};

    (void)out, (void)with;
    return kt_take_encodings(registry, &table->fingerprint, table, false, &list, NULL, err);
}

Test(session_nomem, encodings_of_activations_are_chosen_or_not) {
    kt_cell_list cells = {0};
    const kt_tune_cell cell = {.problem = {.op = KT_OP_GEMM,
                                           .weights = KT_W_INT8_CHANNEL,
                                           .acts = KT_A_INT8_G32,
                                           .m = 1,
                                           .n = 96,
                                           .k = 64},
                               .threads = 1,
                               .weight = 0.25,
                               .role = "o"};
    kt_nomem_case c = {.function = "kt_encoding_probes",
                       .make = probe_encodings,
                       .unmake = drop_cells,
                       .with = &cells,
                       .out_bytes = sizeof(kt_cell_list),
                       .says = ""};

    cr_assert_eq(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count,
                                    kt_isa_closure(KT_ISA_AVX512VNNI), &vectors, NULL),
                 KT_OK);
    cr_assert_eq(kt_cell_list_add(&cells, &cell, NULL), KT_OK);
    kt_nomem_check(&c);
    kt_registry_destroy(vectors);
    c.function = "kt_take_encodings", c.make = take_encodings, c.unmake = NULL;
    c.n_optional = 1; /* the command that the planner proposes */
    kt_nomem_check(&c);
    kt_cell_list_deinit(&cells);
}

Test(session_nomem, a_session_is_made_or_not) {
    kt_cell_list cells = {0};
    kt_tune_cell cell = {
        .problem =
            {.op = KT_OP_GEMM, .weights = KT_W_BF16, .acts = KT_A_BF16, .m = 1, .n = 96, .k = 64},
        .threads = 1,
        .weight = 0.25,
        .role = "o"};
    kt_nomem_case c = {.function = "kt_session_create",
                       .make = make_session,
                       .unmake = drop_session,
                       .with = &cells,
                       .out_bytes = sizeof(void *),
                       .says = "no memory"};

    for (cell.problem.m = 1; cell.problem.m <= 4; cell.problem.m++)
        cr_assert_eq(kt_cell_list_add(&cells, &cell, NULL), KT_OK);
    kt_nomem_check(&c);
    kt_cell_list_deinit(&cells);
    c.function = "kt_layer_session_create", c.make = make_layer_session;
    c.unmake = drop_layer_session, c.with = NULL, c.says = "";
    c.n_optional = 1; /* whether the command that the planner proposes has its model */
    kt_nomem_check(&c);
}

/* ---- tables ---- */

static kt_status compare(void *out, const void *with, kt_err *err) {
    return kt_comparison_make(with, with, out, err);
}
static void drop_comparison(void *out) {
    kt_comparison_deinit(out);
}

static kt_status merge(void *out, const void *with, kt_err *err) {
    kt_table *into;
    kt_status st = kt_table_create(&into, err);

    (void)out;
    if (st != KT_OK) return st;
    into->fingerprint = table->fingerprint;
    st = kt_table_merge(into, with, NULL, err);
    kt_table_destroy(into);
    return st;
}

static kt_status export_it(void *out, const void *with, kt_err *err) {
    const kt_exporter *e = with;
    const kt_export_input in = {.table = table, .journal = journal, .registry = registry};
    FILE *to = fopen("/dev/null", "w");
    kt_status st;

    (void)out;
    cr_assert_not_null(to);
    st = e->write(&in, to, err);
    fclose(to);
    return st;
}

Test(session_nomem, tables_are_compared_merged_and_exported_or_not) {
    const kt_exporter *e;
    kt_nomem_case c = {.with = table, .says = "memory"};

    c.function = "kt_comparison_make", c.make = compare, c.unmake = drop_comparison;
    c.out_bytes = sizeof(kt_comparison);
    kt_nomem_check(&c);
    c.function = "kt_table_merge", c.make = merge, c.unmake = NULL, c.out_bytes = 0;
    kt_nomem_check(&c);
    c.make = export_it, c.most = 24;
    for (size_t i = 0; (e = kt_exporter_at(i)); i++) {
        c.function = e->name, c.with = e;
        c.may_need_none = true; /* formats that are printed line by line */
        kt_nomem_check(&c);
    }
}

/* What is written to a shared folder is complete, or the call failed. */
static kt_status write_results(void *out, const void *with, kt_err *err) {
    (void)out;
    return kt_results_write(with, FILED ".kttable.json", FILED ".journal.jsonl",
                            &table->fingerprint, err);
}

/* What a probe of the table's machine would have left, under a home in the folder. */
static void lay_machine(const char *folder) {
    char path[512], command[1600];
    kt_err err;

    cr_assert_eq(setenv("XDG_DATA_HOME", folder, 1), 0);
    cr_assert_eq(kt_machine_path(&table->fingerprint, path, sizeof path, &err), KT_OK, "%s",
                 err.message);
    snprintf(command, sizeof command, "mkdir -p $(dirname %s) && cp %s %s", path,
             KT_SOURCE_DIR "/results/zen4-2c-24g/machine.json", path);
    cr_assert_eq(system(command), 0, "%s", command);
}

Test(session_nomem, results_are_filed_or_an_error_says_so) {
    char folder[256];
    const kt_nomem_case c = {.function = "kt_results_write",
                             .make = write_results,
                             .with = folder,
                             .says = "",
                             .n_optional = 10, /* each file's folder is synced if possible */
                             .most = 60};

    kt_temp_make(folder, sizeof folder);
    lay_machine(folder);
    kt_nomem_check(&c);
    kt_temp_remove(folder);
}

static kt_status read_listing(void *out, const void *with, kt_err *err) {
    return kt_listing_read(out, with, err);
}
static void drop_listing(void *out) {
    kt_listing_deinit(out);
}

static kt_status find_loops(void *out, const void *with, kt_err *err) {
    return kt_code_loops_find(with, out, err);
}
static void drop_loops(void *out) {
    kt_code_loops_deinit(out);
}

Test(session_nomem, a_listing_is_read_or_not) {
    static const char text[] = "0000000000001000 <kt_loop>:\n"
                               "    1000:\tvpdpbusd (%rdi),%zmm1,%zmm2\n"
                               "    1006:\tadd    $0x40,%rdi\n"
                               "    100a:\tcmp    %rsi,%rdi\n"
                               "    100d:\tjne    1000 <kt_loop>\n"
                               "    100f:\tret\n";
    kt_listing l = {0};
    kt_err err = {KT_OK, ""};
    kt_nomem_case c = {.function = "kt_listing_read",
                       .make = read_listing,
                       .unmake = drop_listing,
                       .with = text,
                       .out_bytes = sizeof(kt_listing),
                       .says = "memory"};

    kt_nomem_check(&c);
    cr_assert_eq(kt_listing_read(&l, text, &err), KT_OK, "%s", err.message);
    c.function = "kt_code_loops_find", c.make = find_loops, c.unmake = drop_loops, c.with = &l;
    c.out_bytes = sizeof(kt_code_loops);
    kt_nomem_check(&c);
    kt_listing_deinit(&l);
}

/* ---- the self-check ---- */

static kt_check check;

/* Members that init does not set are the caller's; it fills what it owns. */
static kt_status make_check(void *out, const void *with, kt_err *err) {
    (void)out, (void)with;
    memset(&check, 0, sizeof check);
    check.registry = registry;
    check.machine = &table->fingerprint;
    check.results = KT_SOURCE_DIR "/results";
    return kt_check_init(&check, err);
}
static void drop_check(void *out) {
    (void)out;
    kt_check_deinit(&check);
}

Test(session_nomem, a_self_check_is_begun_or_not) {
    const kt_nomem_case c = {.function = "kt_check_init",
                             .make = make_check,
                             .unmake = drop_check,
                             .says = "",
                             .most = 30};
    kt_nomem_check(&c);
}
