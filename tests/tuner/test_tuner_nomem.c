/* What the tuner keeps and measures with every allocation failing once.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/cpu.h"
#include "tests/support/nomem.h"
#include "tests/support/temp.h"
#include "tests/support/tune_home.h"
#include "tuner/measure/cold.h"
#include "tuner/measure/layer_trial.h"
#include "tuner/measure/synthetic.h"
#include "tuner/measure/trial.h"
#include "tuner/report/comparison.h"
#include "tuner/report/export.h"
#include "tuner/report/machine_code.h"
#include "tuner/selfcheck/goal.h"
#include "tuner/session/layer_cells.h"
#include "tuner/session/session.h"
#include "tuner/session/sim.h"
#include "tuner/space/workload.h"
#include "tuner/store/machine_file.h"
#include "tuner/store/zipped.h"
#include "tuner/store/table_union.h"

/* A tuned model of results/: its journal has rungs, decisions and what an oracle found. */
#define FILED KT_SOURCE_DIR "/results/zen4-2c-24g/"

static kt_tune_home home;
static kt_registry *registry;

static void make_home(void) {
    kt_err err = {KT_OK, ""};
    kt_tune_home_make(&home);
    cr_assert_eq(
        kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, 0, &registry, &err),
        KT_OK, "%s", err.message);
}
static void remove_home(void) {
    kt_registry_destroy(registry);
    kt_tune_home_remove(&home);
}
TestSuite(tuner_nomem, .init = make_home, .fini = remove_home, .timeout = 240);

static const kt_tune_cell cell = {
    .problem =
        {.op = KT_OP_GEMM, .weights = KT_W_BF16, .acts = KT_A_BF16, .m = 1, .n = 64, .k = 64},
    .threads = 1,
    .weight = 1};

/* ---- store ---- */

static kt_status open_journal(void *out, const void *with, kt_err *err) {
    return kt_journal_open(with, false, out, err);
}
static kt_status read_journal(void *out, const void *with, kt_err *err) {
    return kt_journal_read(with, out, err);
}
static void close_journal(void *out) {
    kt_journal_close(*(kt_journal **)out);
}

static kt_status open_ledger(void *out, const void *with, kt_err *err) {
    const kt_ledger_session about = {.machine = &home.machine,
                                     .workload = "w",
                                     .strategy = "auto",
                                     .command = "none",
                                     .seed = 1};
    return kt_ledger_open(with, &about, out, err);
}
static void close_ledger(void *out) {
    kt_ledger_close(out);
}

/* The first `lines` lines of a filed journal as home.journal. */
static void copy_journal(int lines) {
    char *text, *end;
    size_t size;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_zipped_read(FILED "tiny-moe.journal.jsonl", 1 << 28, &text, &size, &err), KT_OK,
                 "%s", err.message);
    for (end = text; lines-- > 0 && *end;) end = strchr(end, '\n') + 1;
    cr_assert_eq(kt_file_write(home.journal, text, (size_t)(end - text), &err), KT_OK);
    free(text);
}

static kt_status write_packed(void *out, const void *with, kt_err *err) {
    (void)out;
    return kt_zipped_write(with, "a line\n", 7, err);
}
static kt_status read_packed(void *out, const void *with, kt_err *err) {
    size_t size;
    return kt_zipped_read(with, 1 << 10, out, &size, err);
}
static void free_text(void *out) {
    free(*(char **)out);
}

Test(tuner_nomem, a_text_is_packed_and_unpacked_or_an_error_says_so) {
    kt_nomem_case c = {.says = "x.gz", .most = 60};
    char path[512];

    snprintf(path, sizeof path, "%s/x.gz", home.folder);
    c.with = path;
    c.function = "kt_zipped_write", c.make = write_packed;
    c.n_optional = 1; /* the folder is synced if possible */
    kt_nomem_check(&c);
    c.function = "kt_zipped_read", c.make = read_packed, c.unmake = free_text;
    c.out_bytes = sizeof(char *), c.n_optional = 0;
    kt_nomem_check(&c);
}

/* A record that was not read for lack of memory must not look like a damaged one. */
Test(tuner_nomem, a_journal_is_read_whole_or_not_at_all) {
    kt_nomem_case c = {
        .with = home.journal, .says = home.journal, .unmake = close_journal, .most = 300};
    kt_journal *j;
    kt_err err = {KT_OK, ""};

    copy_journal(600); /* their list grows twice */
    c.out_bytes = sizeof(kt_journal *);
    c.function = "kt_journal_read", c.make = read_journal;
    kt_nomem_check(&c);
    c.function = "kt_journal_open", c.make = open_journal;
    kt_nomem_check(&c);
    cr_assert_eq(kt_journal_read(home.journal, &j, &err), KT_OK, "%s", err.message);
    cr_assert(kt_journal_count(j) == 600 && kt_journal_dropped(j) == 0);
    kt_journal_close(j);

    c.function = "kt_ledger_open", c.make = open_ledger, c.unmake = close_ledger;
    c.out_bytes = sizeof(kt_ledger), c.says = "journal", c.most = 100;
    kt_nomem_check(&c);
}

static kt_status append_all(void *out, const void *with, kt_err *err) {
    kt_ledger *l = *(kt_ledger *const *)with;
    const kt_session_times times = {.wall = 1};
    kt_status st = kt_ledger_forget(l, &cell, err);

    (void)out;
    if (st == KT_OK) st = kt_ledger_skip(l, &cell, "why", err);
    if (st == KT_OK) st = kt_ledger_end(l, "finished", &times, err);
    return st;
}

Test(tuner_nomem, a_record_is_written_whole_or_not_at_all) {
    kt_ledger ledger, *l = &ledger;
    kt_journal *j;
    kt_err err = {KT_OK, ""};
    const kt_nomem_case c = {
        .function = "kt_ledger_end", .make = append_all, .with = &l, .says = "journal"};

    copy_journal(3);
    cr_assert_eq(open_ledger(l, home.journal, &err), KT_OK, "%s", err.message);
    kt_nomem_check(&c);
    kt_ledger_close(l);
    cr_assert_eq(kt_journal_read(home.journal, &j, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_journal_dropped(j), 0, "%zu torn records", kt_journal_dropped(j));
    kt_journal_close(j);
}

static kt_status load_sim(void *out, const void *with, kt_err *err) {
    return kt_sim_load(with, registry, out, err);
}
static void unload_sim(void *out) {
    kt_sim_deinit(out);
}

Test(tuner_nomem, a_simulation_is_loaded_or_not) {
    kt_journal *j;
    kt_err err = {KT_OK, ""};
    kt_nomem_case c = {.function = "kt_sim_load",
                       .make = load_sim,
                       .unmake = unload_sim,
                       .out_bytes = sizeof(kt_sim),
                       .says = "memory",
                       .most = 60};

    cr_assert_eq(kt_journal_read(FILED "tiny-moe.journal.jsonl", &j, &err), KT_OK, "%s",
                 err.message);
    c.with = j;
    kt_nomem_check(&c);
    kt_journal_close(j);
}

static kt_status load_machine(void *out, const void *with, kt_err *err) {
    return kt_machine_load(with, out, err);
}

Test(tuner_nomem, ceilings_are_loaded_or_not) {
    kt_topology topology;
    kt_err err = {KT_OK, ""};
    const kt_nomem_case c = {.function = "kt_machine_load",
                             .make = load_machine,
                             .with = &topology,
                             .out_bytes = sizeof(kt_ceilings),
                             .says = "machine.json"};

    cr_assert_eq(kt_topology_probe(&topology, &err), KT_OK, "%s", err.message);
    kt_nomem_check(&c);
}

/* ---- space ---- */

static kt_status find_workload(void *out, const void *with, kt_err *err) {
    return kt_workload_find(with, out, err);
}
static void drop_workload(void *out) {
    kt_workload_deinit(out);
}

static kt_status read_trace(void *out, const void *with, kt_err *err) {
    return kt_trace_read(with, out, err);
}
static void drop_trace(void *out) {
    kt_trace_deinit(out);
}

static kt_status list_cells(void *out, const void *with, kt_err *err) {
    static const int threads[] = {1, 2};
    return kt_cells_of_workload(with, KT_SERVE_INT4, KT_PROFILE_FULL, threads, 2, out, err);
}
static void drop_cells(void *out) {
    kt_cell_list_deinit(out);
}

Test(tuner_nomem, a_workload_and_its_cells_are_found_or_not) {
    const kt_workload_request bundled = {.workload = "Qwen3-30B-A3B"}, own = {.model = home.model};
    kt_workload w;
    kt_err err = {KT_OK, ""};
    kt_nomem_case c = {.function = "kt_workload_find",
                       .make = find_workload,
                       .unmake = drop_workload,
                       .with = &bundled,
                       .out_bytes = sizeof(kt_workload),
                       .says = "Qwen3-30B-A3B"};

    kt_nomem_check(&c);
    c.with = &own, c.says = home.model;
    c.n_optional = 1; /* a folder called ".." has no better name then */
    kt_nomem_check(&c);
    cr_assert_eq(kt_workload_find(&bundled, &w, &err), KT_OK, "%s", err.message);
    c.n_optional = 0;
    c.function = "kt_cells_of_workload", c.make = list_cells, c.unmake = drop_cells;
    c.with = &w, c.out_bytes = sizeof(kt_cell_list), c.says = "memory";
    kt_nomem_check(&c);
    kt_workload_deinit(&w);
    c.function = "kt_trace_read", c.make = read_trace, c.unmake = drop_trace;
    c.with = KT_SOURCE_DIR "/datasets/workloads/traces/tiny-moe.jsonl", c.says = "trace";
    c.out_bytes = sizeof(kt_trace), c.most = 100;
    kt_nomem_check(&c);
}

/* ---- measuring ---- */

static kt_status make_samples(void *out, const void *with, kt_err *err) {
    (void)with;
    return kt_samples_create(7, out, err);
}
static void drop_samples(void *out) {
    kt_samples_destroy(out);
}

static kt_status make_synthetic(void *out, const void *with, kt_err *err) {
    return kt_synthetic_create(*(const kt_weight_format *)with, 64, 256, 3, out, err);
}
static void drop_synthetic(void *out) {
    kt_synthetic_destroy(out);
}

static kt_status make_bank(void *out, const void *with, kt_err *err) {
    return kt_cold_bank_create(with, 5000, 3, 1 << 16, out, err);
}
static void drop_bank(void *out) {
    kt_cold_bank_destroy(out);
}

Test(tuner_nomem, what_is_measured_on_is_made_or_not) {
    static const char content[5000];
    kt_weight_format format;
    kt_nomem_case c = {.out_bytes = sizeof(kt_samples), .says = "memory"};

    c.function = "kt_samples_create", c.make = make_samples, c.unmake = drop_samples;
    kt_nomem_check(&c);
    c.function = "kt_synthetic_create", c.make = make_synthetic, c.unmake = drop_synthetic;
    c.out_bytes = sizeof(kt_synthetic), c.with = &format;
    for (format = KT_W_NONE + 1; format < KT_W_COUNT; format++) kt_nomem_check(&c);
    c.function = "kt_cold_bank_create", c.make = make_bank, c.unmake = drop_bank;
    c.out_bytes = sizeof(kt_cold_bank), c.with = content, c.n_optional = 1; /* huge pages */
    kt_nomem_check(&c);
}

/* The first usable variant of an op that takes the problem, with its initial configuration. */
static kt_choice choice_for(const kt_problem *problem) {
    for (size_t i = 0; i < kt_registry_count(registry); i++) {
        const kt_variant *v = kt_registry_at(registry, i);
        if (v->op == problem->op && kt_variant_accepts(v, problem, NULL, NULL) == KT_OK)
            return (kt_choice){v, kt_config_initial(v)};
    }
    cr_assert_fail("no variant of %s", kt_op_name(problem->op));
    return (kt_choice){0};
}

typedef struct bench {
    kt_pool *pool;
    kt_banks banks;
    kt_choice choice, encode;
    kt_problem problem;
    kt_choice_map map;
    int32_t expert_id[8];
} bench;

static kt_status make_trial(void *out, const void *with, kt_err *err) {
    bench *b = *(bench *const *)with;
    const kt_trial_setup setup = {.problem = b->problem,
                                  .pool = b->pool,
                                  .encode = b->encode.variant,
                                  .banks = &b->banks,
                                  .choices = &b->choice,
                                  .n_choices = 1};
    kt_status st = kt_trial_create(&setup, out, err);
    if (st != KT_OK) kt_banks_deinit(&b->banks); /* the weights are the bench's */
    return st;
}

static bench *trial_bench; /* unmake has no argument of its own */

static void drop_trial(void *out) {
    kt_trial_destroy(*(kt_trial **)out);
    kt_banks_deinit(&trial_bench->banks);
}

static kt_status make_layer_trial(void *out, const void *with, kt_err *err) {
    bench *b = *(bench *const *)with;
    const kt_layer_way way = {.choices = &b->map};
    const kt_layer_setup setup = {.problem = b->problem,
                                  .pool = b->pool,
                                  .encode = b->encode.variant,
                                  .banks = &b->banks,
                                  .tokens = 2,
                                  .expert_id = b->expert_id,
                                  .n_layers = 2,
                                  .ways = &way,
                                  .n_ways = 1};
    kt_status st = kt_layer_trial_create(&setup, out, err);
    if (st != KT_OK) kt_banks_deinit(&b->banks);
    return st;
}

static void drop_layer_trial(void *out) {
    kt_layer_trial_destroy(*(kt_layer_trial **)out);
    kt_banks_deinit(&trial_bench->banks);
}

Test(tuner_nomem, trials_are_set_up_or_not) {
    static const kt_pool_options threads = {.n_threads = 2, .no_pin = 1};
    static bench b = {.banks = {.rotation_bytes = 1 << 18}, .expert_id = {0, 1, 2, 3, 1, 2, 3, 0}};
    const kt_problem encode = {.op = KT_OP_ENCODE, .acts = KT_A_BF16, .m = 1, .n = 1, .k = 128};
    kt_err err = {KT_OK, ""};
    kt_nomem_case c = {.function = "kt_trial_create",
                       .make = make_trial,
                       .unmake = drop_trial,
                       .with = &trial_bench,
                       .out_bytes = sizeof(void *),
                       .says = "memory",
                       .n_optional = 1}; /* huge pages of the bank */

    trial_bench = &b;
    cr_assert_eq(kt_pool_create(&threads, &b.pool, &err), KT_OK, "%s", err.message);
    b.encode = choice_for(&encode);
    b.problem = (kt_problem){
        .op = KT_OP_GEMM, .weights = KT_W_BF16, .acts = KT_A_BF16, .m = 2, .n = 128, .k = 128};
    b.choice = choice_for(&b.problem);
    kt_nomem_check(&c);
    b.problem = (kt_problem){.op = KT_OP_MOE_FFN,
                             .weights = KT_W_BF16,
                             .acts = KT_A_BF16,
                             .m = 2,
                             .n = 128,
                             .k = 128,
                             .experts = 4,
                             .topk = 2};
    b.choice = choice_for(&b.problem);
    kt_nomem_check(&c);
    b.map.count = 1, b.map.choice[0] = b.choice;
    c.function = "kt_layer_trial_create", c.make = make_layer_trial, c.unmake = drop_layer_trial;
    kt_nomem_check(&c);
    kt_pool_destroy(b.pool);
}
