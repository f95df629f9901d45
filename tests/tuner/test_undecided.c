/* Cells whose interval is wide: never a decision, raced again first of all, in this run and in
 * the next.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/temp.h"
#include "tuner/report/outcome.h"
#include "tuner/report/progress.h"
#include "tuner/session/session.h"
#include "tuner/store/replay.h"

extern const kt_variant kt_variant_any_any_p64__scalar;
extern const kt_variant kt_variant_abf16_rows__scalar;

/* The machine: while it is busy, calls of one row take 0.1 to 6.4 ms, and the fifth of them
 * around the quartile is spread over five of these six octaves, so that it stays unknown after
 * thousands of rounds; else 1 ms, as all others do. Steps of the golden section spread even a
 * few calls over all octaves: by chance they would now and then agree. */
static pid_t tuner;
static bool is_busy;
static unsigned draws;

static void naps(const kt_gemm_call *call) {
    struct timespec nap = {.tv_nsec = 1000000};
    draws += 0x9e3779b9u;
    if (is_busy && call->m == 1) {
        double rank = ldexp(draws, -32);
        nap.tv_nsec = (long)(1e5 * exp2(rank + 5 * fmin(1, fmax(0, (rank - 0.15) / 0.2))));
    }
    if (getpid() == tuner) nanosleep(&nap, NULL);
    kt_variant_any_any_p64__scalar.gemm(call);
}

typedef struct scene {
    kt_variant made[2];
    const kt_variant *list[3];
    kt_registry *registry;
    kt_fingerprint machine;
    kt_cell_list cells;
    char folder[256], journal[300];
} scene;

static void add_cell(scene *s, int64_t m, double weight) {
    kt_tune_cell c = {
        .problem =
            {.op = KT_OP_GEMM, .weights = KT_W_BF16, .acts = KT_A_BF16, .m = m, .n = 96, .k = 64},
        .threads = 1,
        .weight = weight,
        .role = "o"};
    cr_assert_eq(kt_cell_list_add(&s->cells, &c, NULL), KT_OK);
}

static void make_scene(scene *s) {
    static const char *const names[] = {"aa_naps__scalar", "zz_naps__scalar"};
    kt_err err;

    memset(s, 0, sizeof *s);
    tuner = getpid();
    for (int i = 0; i < 2; i++) {
        s->made[i] = kt_variant_any_any_p64__scalar;
        s->made[i].name = names[i];
        s->made[i].gemm = naps;
        s->list[i] = &s->made[i];
    }
    s->list[2] = &kt_variant_abf16_rows__scalar;
    s->machine = (kt_fingerprint){
        .vendor = "TestVendor",
        .microarch = "test",
        .family = 1,
        .usable_cores = 2,
        .numa_nodes = 1,
        .memory_bytes = (uint64_t)8 << 30,
        .ceilings = {
            .stream_gbs_1t = 20, .stream_gbs_all = 30, .peak_scalar_gops = 4, .threads_all = 2}};
    kt_temp_make(s->folder, sizeof s->folder);
    snprintf(s->journal, sizeof s->journal, "%s/t.journal.jsonl", s->folder);
    add_cell(s, 2, 0.9); /* comes first as long as nothing is known */
    add_cell(s, 1, 0.1);
    cr_assert_eq(kt_registry_create(s->list, 3, 0, &s->registry, &err), KT_OK, "%s", err.message);
}

static void drop_scene(scene *s) {
    kt_registry_destroy(s->registry);
    kt_cell_list_deinit(&s->cells);
    kt_temp_remove(s->folder);
}

/* A session to its end; *first gets the rows of the cell that was worth most to it. */
static void tune(scene *s, kt_table **table, kt_session_progress *p, int64_t *first) {
    kt_ledger_session about = {.machine = &s->machine,
                               .workload = "test",
                               .strategy = "auto",
                               .command = "kttune run",
                               .seed = 1};
    kt_ledger ledger;
    kt_session_setup setup = {.registry = s->registry,
                              .machine = &s->machine,
                              .cells = &s->cells,
                              .strategy = kt_strategy_find("auto"),
                              .ledger = &ledger,
                              .rotation_bytes = 1 << 20,
                              .deadline_ns = INT64_MAX,
                              .seed = 1};
    kt_session *session;
    kt_status st = KT_OK;
    double seconds;
    kt_err err;

    cr_assert_eq(kt_ledger_open(s->journal, &about, &ledger, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_session_create(&setup, &session, &err), KT_OK, "%s", err.message);
    *first = kt_session_planned(session, 0, &seconds)->problem.m;
    while (st == KT_OK) st = kt_session_step(session, &err);
    cr_assert_eq(st, KT_E_NOT_FOUND, "%s", err.message);
    cr_assert_eq(kt_table_create(table, &err), KT_OK);
    cr_assert_eq(kt_session_rows(session, *table, &err), KT_OK, "%s", err.message);
    kt_session_progress_get(session, p);
    kt_session_destroy(session);
    kt_ledger_close(&ledger);
}

static const kt_table_row *one_row(const kt_table *t) {
    for (size_t i = 0; i < t->n_rows; i++)
        if (t->rows[i].problem.m == 1) return &t->rows[i];
    return NULL;
}

/* Every row, decided or not, follows from the journal. */
static void derive_all(const scene *s, const kt_table *t) {
    static kt_replay r;
    kt_verdict v;
    kt_journal *j;
    kt_err err;

    cr_assert_eq(kt_journal_read(s->journal, &j, &err), KT_OK, "%s", err.message);
    for (size_t i = 0; i < t->n_rows; i++) {
        cr_assert_eq(kt_replay_of_row(j, &t->rows[i], &r, &err), KT_OK, "%s", err.message);
        cr_assert_eq(kt_replay_decide(&r, &v, &err), KT_OK, "%s", err.message);
        cr_expect_float_eq(v.winner_ns, t->rows[i].time_ns, 0.11);
    }
    kt_journal_close(j);
}

/* A busy run leaves the cell undecided after four races, and a later run races it before the
 * others, which it takes over; once it is decided it stays so. */
Test(undecided, is_raced_again_by_this_run_and_first_of_all_by_the_next, .timeout = 240) {
    kt_session_progress p;
    kt_table *table;
    int64_t first;
    scene s;

    make_scene(&s);
    is_busy = true;
    tune(&s, &table, &p, &first);
    cr_expect_eq(first, 2, "most weight first");
    cr_expect(p.n_undecided >= 1 && p.n_decided + p.n_undecided == 2, "%zu undecided, %zu decided",
              p.n_undecided, p.n_decided);
    cr_expect_geq(p.n_again, 3, "%zu races again", p.n_again);
    cr_expect_leq(p.weight_done, 0.9 + 1e-9);
    cr_assert(one_row(table), "what is known is in the table");
    cr_expect(kt_row_is_undecided(one_row(table)), "half interval %g",
              kt_row_half_interval(one_row(table)));
    cr_expect_str_eq(kt_row_status(one_row(table)), "undecided");
    derive_all(&s, table);
    kt_table_destroy(table);

    is_busy = false;
    for (int attempt = 0; attempt < 3; attempt++) { /* the machine that tests may be busy, too */
        tune(&s, &table, &p, &first);
        if (attempt == 0) {
            cr_expect_eq(first, 1, "m=%d first", (int)first);
            cr_expect_leq(p.n_reused, 1, "the undecided cell is not taken over");
            cr_expect_gt(p.rounds, 0);
        }
        if (p.n_undecided == 0) break;
        kt_table_destroy(table);
    }
    cr_assert_eq(p.n_undecided, 0, "three quiet runs leave it undecided");
    cr_expect_eq(p.n_decided, 2);
    cr_expect_not(kt_row_is_undecided(one_row(table)));
    derive_all(&s, table);
    kt_table_destroy(table);

    tune(&s, &table, &p, &first);
    cr_expect(p.n_reused == 2 && p.rounds == 0, "%zu reused", p.n_reused);
    kt_table_destroy(table);
    drop_scene(&s);
}

/* The line says shares of the serving time, and what the budget will not reach; nothing of
 * rungs. */
Test(undecided, progress_says_what_the_budget_will_not_reach) {
    kt_session_setup setup = {.deadline_ns = INT64_MAX, .seed = 1};
    kt_session *session;
    kt_progress line;
    char text[400] = "";
    FILE *to = tmpfile();
    scene s;
    kt_err err;

    make_scene(&s);
    setup.registry = s.registry;
    setup.machine = &s.machine;
    setup.cells = &s.cells;
    setup.strategy = kt_strategy_find("auto");
    cr_assert_eq(kt_session_create(&setup, &session, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_session_beyond(session, 0), 2);
    cr_expect_eq(kt_session_beyond(session, 1e6), 0);
    kt_progress_init(&line, to, kt_clock_ns(), kt_clock_ns() + 1000000);
    line.last_ns = 0; /* long ago */
    kt_progress_show(&line, session);
    rewind(to);
    cr_assert(fgets(text, sizeof text, to));
    cr_expect(strstr(text, "0 % of the serving time"), "%s", text);
    cr_expect(strstr(text, "2 cells will not be reached"), "%s", text);
    cr_expect_not(strstr(text, "rung") || strstr(text, "live"), "%s", text);
    fclose(to);
    kt_session_destroy(session);
    drop_scene(&s);
}

static kt_table_row row_of(double half, const char *status, double default_ns) {
    kt_table_row r = {
        .time_ns = 1000, .default_ns = default_ns, .ci_low = 1 - half, .ci_high = 1 + half};
    snprintf(r.status, sizeof r.status, "%s", status);
    return r;
}

Test(undecided, a_row_is_judged_by_its_interval) {
    static const struct {
        double half;
        const char *status, *says;
        double default_ns;
        bool is_doubtful;
    } cases[] = {
        {0.05, "tuned", "tuned", 1010, false},       {0.099, "default", "default", 1000, false},
        {0.11, "default", "undecided", 1000, false}, {0.3, "tuned", "undecided", 1200, true},
        {0.3, "tuned", "undecided", 1400, false},    {1, "tuned", "undecided", 1900, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kt_table_row r = row_of(cases[i].half, cases[i].status, cases[i].default_ns);
        cr_expect_str_eq(kt_row_status(&r), cases[i].says, "case %zu: %s", i, kt_row_status(&r));
        cr_expect_eq(kt_row_is_doubtful(&r), cases[i].is_doubtful, "case %zu", i);
    }
}

/* What exit codes 6 and 7 are about, with shares, counts and what to do. */
Test(undecided, an_outcome_says_what_happened_and_what_to_do) {
    char words[KT_OUTCOME_WORDS][KT_OUTCOME_BYTES];
    kt_outcome o = {.n_cells = 114, .rounds = 1000, .voided = 300};

    cr_expect_eq(kt_outcome_words(&o, words), 0, "30 %% are allowed");
    o.voided = 496;
    o.n_undecided = 3;
    o.n_open = 28;
    o.budget_seconds = 60;
    o.needed_seconds = 95;
    cr_assert_eq(kt_outcome_words(&o, words), 3);
    cr_expect(strstr(words[0], "50 % of the rounds") && strstr(words[0], "quiet"), "%s", words[0]);
    cr_expect(strstr(words[1], "3 of 114 cells are undecided") && strstr(words[1], "first"), "%s",
              words[1]);
    cr_expect(strstr(words[2], "28 cells were not reached in the budget of 60 s") &&
                  strstr(words[2], "95 s would reach all"),
              "%s", words[2]);
}
