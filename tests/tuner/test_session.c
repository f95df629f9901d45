/* Whole tuning sessions on tiny weights with variants of our own: wrong, crashing, hanging, slow and
 * equal ones. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "tests/support/attempts.h"
#include "tests/support/temp.h"
#include "tuner/session/session.h"
#include "tuner/session/slice.h"

extern const kt_variant kt_variant_any_any_p64__scalar;
extern const kt_variant kt_variant_abf16_rows__scalar;

/* --- planted variants: the scalar GEMM with something done to it --- */

static pid_t tuner; /* the process that times; gates run in others */
static int timed_good, timed_bad;

static void honest(const kt_gemm_call *call) {
    kt_variant_any_any_p64__scalar.gemm(call);
}

static void good(const kt_gemm_call *call) {
    timed_good += getpid() == tuner;
    honest(call);
}

static float *last_of(const kt_gemm_call *call) {
    int64_t width = call->problem->n - 64 * call->panel_begin;
    return call->c + 64 * call->panel_begin + (width < 64 ? width : 64) - 1;
}

static void off_by_a_hair(const kt_gemm_call *call) {
    timed_bad += getpid() == tuner;
    honest(call);
    *last_of(call) *= 1.01f;
}

static void forgets_odd_tails(const kt_gemm_call *call) {
    kt_gemm_call less = *call;
    timed_bad += getpid() == tuner;
    if (less.m % 4 == 3) less.m--;
    honest(&less);
}

static void writes_past_its_columns(const kt_gemm_call *call) {
    timed_bad += getpid() == tuner;
    honest(call);
    call->c[call->problem->n] = 0; /* the caller's, when ldc is wider; no man's land otherwise */
}

static void yields_nan(const kt_gemm_call *call) {
    timed_bad += getpid() == tuner;
    honest(call);
    *last_of(call) = NAN;
}

static void reads_out_of_bounds(const kt_gemm_call *call) {
    volatile char byte;
    timed_bad += getpid() == tuner;
    honest(call);
    for (size_t i = 0; i < 1 << 20; i += 4096) byte = ((const char *)call->a)[i];
    (void)byte;
}

static void kills_its_process(const kt_gemm_call *call) {
    timed_bad += getpid() == tuner;
    (void)call;
    raise(SIGKILL);
}

static void never_returns(const kt_gemm_call *call) {
    timed_bad += getpid() == tuner;
    (void)call;
    for (;;) pause();
}

static void takes_its_time(const kt_gemm_call *call) {
    static const struct timespec nap = {.tv_nsec = 20000000};
    if (getpid() == tuner) nanosleep(&nap, NULL);
    honest(call);
}

static void naps_a_little(const kt_gemm_call *call) {
    static const struct timespec nap = {.tv_nsec = 1000000};
    if (getpid() == tuner) {
        nanosleep(&nap, NULL);
        honest(call); /* a nap is little beside a run under sanitizers */
    }
    honest(call);
}

/* Slow to gate, and to run. */
static void gated_slowly(const kt_gemm_call *call) {
    static const struct timespec nap = {.tv_nsec = 1000000};
    if (getpid() != tuner) nanosleep(&nap, NULL);
    naps_a_little(call);
}

/* The machine has a spell that lasts until two rows are asked for: one row takes four times as long. */
static bool is_spell, is_again;
static void meets_a_spell(const kt_gemm_call *call) {
    const struct timespec nap = {.tv_nsec = call->m == 1 && is_spell ? 4000000 : 1000000};
    if (getpid() == tuner) {
        if (call->m > 1) is_spell = false;
        is_again |= call->m == 1 && !is_spell;
        nanosleep(&nap, NULL);
    }
    honest(call);
}

typedef struct planted {
    const char *name, *outcome;
    void (*gemm)(const kt_gemm_call *call);
} planted;

/* Widest instruction set first in the planner's eyes: one of these is the default until the gate. */
static const planted bad_ones[] = {
    {"planted_hair__scalar", "wrong", off_by_a_hair},
    {"planted_tails__scalar", "wrong", forgets_odd_tails},
    {"planted_past__scalar", "crash", writes_past_its_columns},
    {"planted_nan__scalar", "wrong", yields_nan},
    {"planted_read__scalar", "crash", reads_out_of_bounds},
    {"planted_kill__scalar", "crash", kills_its_process},
    {"planted_hang__scalar", "timeout", never_returns},
};

enum { N_BAD = sizeof bad_ones / sizeof *bad_ones, MAX_VARIANTS = 24 };

/* A machine, variants and cells to tune. */
typedef struct scene {
    kt_variant made[MAX_VARIANTS];
    const kt_variant *list[MAX_VARIANTS];
    size_t n;
    kt_registry *registry;
    kt_fingerprint machine;
    kt_cell_list cells;
    char folder[256], journal[300];
} scene;

static void plant(scene *s, const char *name, void (*gemm)(const kt_gemm_call *)) {
    kt_variant *v = &s->made[s->n];
    *v = kt_variant_any_any_p64__scalar;
    v->name = name;
    v->gemm = gemm;
    s->list[s->n++] = v;
}

static void make_scene(scene *s) {
    memset(s, 0, sizeof *s);
    tuner = getpid();
    timed_good = timed_bad = 0;
    s->list[s->n++] = &kt_variant_abf16_rows__scalar;
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
    snprintf(s->cells.workload, sizeof s->cells.workload, "test");
}

static void add_cell(scene *s, int64_t m, int64_t n, int64_t k, double weight) {
    kt_tune_cell c = {
        .problem =
            {.op = KT_OP_GEMM, .weights = KT_W_BF16, .acts = KT_A_BF16, .m = m, .n = n, .k = k},
        .threads = 1,
        .weight = weight,
        .role = "o"};
    cr_assert_eq(kt_cell_list_add(&s->cells, &c, NULL), KT_OK);
}

static void make_registry(scene *s) {
    kt_err err;
    cr_assert_eq(kt_registry_create(s->list, s->n, 0, &s->registry, &err), KT_OK, "%s",
                 err.message);
}

static void drop_scene(scene *s) {
    kt_registry_destroy(s->registry);
    kt_cell_list_deinit(&s->cells);
    kt_temp_remove(s->folder);
}

typedef struct run_limits {
    double seconds;      /* 0 = no budget */
    int stop_after_asks; /* 0 = never */
    int asks;
    double gate_seconds; /* 0 = the tuner's own */
    bool oracle;
    const bool *stop; /* NULL = none */
} run_limits;

static bool stop_asked(void *arg) {
    run_limits *l = arg;
    return (l->stop && *l->stop) || (l->stop_after_asks && ++l->asks > l->stop_after_asks);
}

/* Run a session to its end; the table and progress come back. Returns the last status. */
static kt_status tune(scene *s, run_limits *limits, kt_table **table, kt_session_progress *p,
                      int *n_replayed) {
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
                              .oracle = limits->oracle,
                              .gate_seconds = limits->gate_seconds,
                              .widest = 10, /* a busy machine is not what is tested */
                              .seed = 1,
                              .stop = stop_asked,
                              .stop_arg = limits};
    kt_session *session;
    kt_status st = KT_OK;
    kt_err err;

    if (limits->seconds > 0) setup.deadline_ns = kt_clock_ns() + (int64_t)(limits->seconds * 1e9);
    cr_assert_eq(kt_ledger_open(s->journal, &about, &ledger, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_session_create(&setup, &session, &err), KT_OK, "%s", err.message);
    while (st == KT_OK) st = kt_session_step(session, &err);
    cr_assert(st == KT_E_NOT_FOUND || st == KT_E_CANCELLED, "%s", err.message);
    cr_assert_eq(kt_table_create(table, &err), KT_OK);
    cr_assert_eq(kt_session_rows(session, *table, &err), KT_OK, "%s", err.message);
    kt_session_progress_get(session, p);
    if (n_replayed) *n_replayed = ledger.n_replayed;
    kt_session_destroy(session);
    kt_ledger_close(&ledger);
    return st;
}

static void expect_absent(const kt_table *t, const char *word) {
    for (size_t i = 0; i < t->n_rows; i++) {
        const kt_table_row *r = &t->rows[i];
        cr_expect(!strstr(r->variant, word) && !strstr(r->default_variant, word));
        for (int j = 0; j < r->n_runners; j++) cr_expect(!strstr(r->runner[j].variant, word));
    }
}

/* Outcome of a contender in the journal, and whether any sample of it was recorded. */
static void look_up(const scene *s, const char *name, char outcome[16], bool *was_timed) {
    kt_journal *j;
    size_t size = strlen(name);

    outcome[0] = '\0';
    *was_timed = false;
    cr_assert_eq(kt_journal_read(s->journal, &j, NULL), KT_OK);
    for (size_t i = 0; i < kt_journal_count(j); i++) {
        const kt_json *r = kt_journal_at(j, i), *live = kt_json_get(r, "live");
        const char *contender = kt_json_string(kt_json_get(r, "contender"), NULL);
        for (size_t c = 0; c < kt_json_length(live); c++)
            *was_timed |= strncmp(kt_json_string(kt_json_at(live, c), NULL), name, size) == 0;
        if (contender && strncmp(contender, name, size) == 0)
            snprintf(outcome, 16, "%s", kt_json_string(kt_json_get(r, "outcome"), NULL));
    }
    kt_journal_close(j);
}

Test(session, wrong_crashing_and_hanging_variants_are_never_timed, .timeout = 180) {
    scene s;
    kt_table *table;
    kt_session_progress p;
    run_limits limits = {.gate_seconds = 5};

    make_scene(&s);
    for (int i = 0; i < N_BAD; i++) plant(&s, bad_ones[i].name, bad_ones[i].gemm);
    plant(&s, "zz_good__scalar", good);
    make_registry(&s);
    add_cell(&s, 1, 96, 64, 0.6);
    add_cell(&s, 4, 96, 64, 0.4);
    cr_assert_eq(tune(&s, &limits, &table, &p, NULL), KT_E_NOT_FOUND);
    cr_expect_eq(p.n_decided, 2);
    cr_expect_eq(p.n_rejected, N_BAD, "%d rejected", p.n_rejected);
    cr_expect_eq(timed_bad, 0, "a refused variant ran %d times in the tuner", timed_bad);
    cr_expect_gt(timed_good, 0);
    expect_absent(table, "planted");
    for (int i = 0; i < N_BAD; i++) {
        char outcome[16];
        bool was_timed;
        look_up(&s, bad_ones[i].name, outcome, &was_timed);
        cr_expect_str_eq(outcome, bad_ones[i].outcome, "%s: %s", bad_ones[i].name, outcome);
        cr_expect_not(was_timed, "%s", bad_ones[i].name);
    }
    kt_table_destroy(table);
    drop_scene(&s);
}

Test(session, a_cell_without_a_right_variant_is_skipped, .timeout = 180) {
    scene s;
    kt_table *table;
    kt_session_progress p;
    run_limits limits = {0};

    make_scene(&s);
    plant(&s, bad_ones[0].name, bad_ones[0].gemm);
    make_registry(&s);
    add_cell(&s, 1, 96, 64, 1);
    cr_assert_eq(tune(&s, &limits, &table, &p, NULL), KT_E_NOT_FOUND);
    cr_expect(p.n_decided == 0 && p.n_skipped == 1 && table->n_rows == 0);
    cr_expect(strstr(p.skipped_why, "gate"), "%s", p.skipped_why);
    kt_table_destroy(table);
    drop_scene(&s);
}

/* Weights of 16 TiB: the others are decided all the same. */
Test(session, a_cell_over_the_memory_is_skipped, .timeout = 180) {
    scene s;
    kt_table *table;
    kt_session_progress p;
    run_limits limits = {0};

    make_scene(&s);
    plant(&s, "zz_good__scalar", good);
    make_registry(&s);
    add_cell(&s, 1, 96, 64, 0.5);
    add_cell(&s, 1, (int64_t)1 << 26, (int64_t)1 << 17, 0.5);
    cr_assert_eq(tune(&s, &limits, &table, &p, NULL), KT_E_NOT_FOUND);
    cr_expect(p.n_decided == 1 && p.n_skipped == 1, "%zu %zu", p.n_decided, p.n_skipped);
    cr_expect(strstr(p.skipped_why, "memory"), "%s", p.skipped_why);
    kt_table_destroy(table);
    drop_scene(&s);
}

/* Cells of four that show a gain of one function over itself. */
static size_t false_gains(void) {
    static const char *const names[] = {"twin_a__scalar", "twin_b__scalar", "twin_c__scalar",
                                        "twin_d__scalar", "twin_e__scalar", "twin_f__scalar"};
    scene s;
    kt_table *table;
    kt_session_progress p;
    run_limits limits = {0};
    size_t n_default = 0;

    make_scene(&s);
    for (int i = 0; i < 6; i++) plant(&s, names[i], honest);
    make_registry(&s);
    for (int64_t m = 1; m <= 8; m *= 2) add_cell(&s, m, 256, 128, 0.25);
    cr_assert_eq(tune(&s, &limits, &table, &p, NULL), KT_E_NOT_FOUND);
    cr_assert_eq(table->n_rows, 4);
    for (size_t i = 0; i < table->n_rows; i++)
        n_default += strcmp(table->rows[i].status, "default") == 0;
    cr_expect_eq(n_default, 4 - p.n_tuned);
    kt_table_destroy(table);
    drop_scene(&s);
    return p.n_tuned;
}

/* A/A with the real clock on a machine that does other things: six names of one function. An alarm in a
 * hundred cells is allowed; in three sessions out of three it is a fault. */
Test(session, a_variant_never_beats_itself, .timeout = 180) {
    size_t n = 1;

    for (kt_attempts tries = {3, 0}; kt_attempts_next(&tries, n == 0);) n = false_gains();
    cr_expect_eq(n, 0, "three times some of 4 cells show a gain over the same function");
}

Test(session, a_slow_default_is_replaced, .timeout = 180) {
    scene s;
    kt_table *table;
    kt_session_progress p;
    run_limits limits = {0};

    make_scene(&s);
    plant(&s, "aa_slow__scalar", takes_its_time); /* first by name: the default */
    plant(&s, "zz_good__scalar", good);
    make_registry(&s);
    add_cell(&s, 2, 96, 64, 1);
    cr_assert_eq(tune(&s, &limits, &table, &p, NULL), KT_E_NOT_FOUND);
    cr_assert_eq(table->n_rows, 1);
    cr_expect_str_eq(table->rows[0].default_variant, "aa_slow__scalar");
    cr_expect_str_eq(table->rows[0].variant, "zz_good__scalar");
    cr_expect_str_eq(table->rows[0].status, "tuned");
    cr_expect(table->rows[0].default_ns > 19e6 && table->rows[0].time_ns < 10e6);
    cr_expect(table->rows[0].error < 0.01);
    kt_table_destroy(table);
    drop_scene(&s);
}

/* Seconds by which a session passed its budget; fewer than n_cells are decided. The scene is dropped. */
static double over_budget(scene *s, double seconds, size_t n_cells) {
    kt_table *table;
    kt_session_progress p;
    run_limits limits = {.seconds = seconds};
    int64_t start = kt_clock_ns();
    double over;

    cr_assert_eq(tune(s, &limits, &table, &p, NULL), KT_E_CANCELLED);
    over = (double)(kt_clock_ns() - start) * 1e-9 - seconds;
    cr_expect_lt(p.n_decided, n_cells);
    kt_table_destroy(table);
    drop_scene(s);
    return over;
}

/* Samples of 20 ms: the end may lie one sample and the clean-up after the budget. A busy machine may take the
 * processor away for longer, but hardly three times. */
Test(session, the_budget_is_hard, .timeout = 120) {
    for (int tenths = 1; tenths <= 9; tenths += 4) {
        double over = 1;
        for (kt_attempts tries = {3, 0}; kt_attempts_next(&tries, over < 0.5);) {
            scene s;
            make_scene(&s);
            plant(&s, "aa_slow__scalar", takes_its_time);
            plant(&s, "zz_slow__scalar", takes_its_time);
            make_registry(&s);
            for (int64_t m = 1; m <= 8; m++) add_cell(&s, m, 96, 64, 0.125);
            over = over_budget(&s, tenths * 0.1, 8);
        }
        cr_expect_lt(over, 0.5, "three times %.2f s over a budget of 0.%d s", over, tenths);
    }
}

/* Gates of the eight slow contenders take 0.3 s each (some 300 calls of 1 ms): a budget of 1.5 s decides the cell among
 * those it came to, the default first. A run with time races the rest as newcomers, and finds the fast one. */
Test(session, a_tiny_budget_decides_something, .timeout = 180) {
    static const char *const names[] = {"aa_1__scalar", "aa_2__scalar", "aa_3__scalar",
                                        "aa_4__scalar", "aa_5__scalar", "aa_6__scalar",
                                        "aa_7__scalar", "aa_8__scalar"};
    const int n_slow = sizeof names / sizeof *names;
    bool is_decided = false;

    for (kt_attempts tries = {3, 0}; kt_attempts_next(&tries, is_decided);) {
        run_limits tiny = {.seconds = 1.5}, none = {0};
        kt_session_progress p;
        kt_table *table;
        scene s;

        make_scene(&s);
        for (int i = 0; i < n_slow; i++) plant(&s, names[i], gated_slowly);
        plant(&s, "zz_good__scalar", good);
        make_registry(&s);
        add_cell(&s, 1, 96, 64, 1);
        tune(&s, &tiny, &table, &p, NULL);
        cr_expect(p.n_gated >= 2 * (p.n_decided > 0) && p.n_gated < n_slow, "%d gated", p.n_gated);
        is_decided = p.n_decided == 1;
        cr_expect_eq(table->n_rows, p.n_decided);
        if (is_decided) cr_expect_eq(strncmp(table->rows[0].variant, "aa_", 3), 0);
        kt_table_destroy(table);
        cr_assert_eq(tune(&s, &none, &table, &p, NULL), KT_E_NOT_FOUND);
        cr_assert(table->n_rows == 1 && p.n_reused == 0);
        cr_expect_str_eq(table->rows[0].variant, "zz_good__scalar");
        kt_table_destroy(table);
        drop_scene(&s);
    }
    cr_expect(is_decided, "three times nothing was decided in 1.5 s");
}

/* A gigabyte of weights is not begun with a quarter of a second left. */
Test(session, packing_that_would_not_end_in_time_is_not_begun, .timeout = 120) {
    double over = 1;

    for (kt_attempts tries = {3, 0}; kt_attempts_next(&tries, over < 0.25);) {
        scene s;
        make_scene(&s);
        plant(&s, "zz_good__scalar", good);
        make_registry(&s);
        add_cell(&s, 1, (int64_t)1 << 18, (int64_t)1 << 11, 1);
        over = over_budget(&s, 0.25, 1);
    }
    cr_expect_lt(over, 0.25, "three times %.2f s over", over);
}

/* Stopped at many places, then resumed: what was decided or measured is taken over, nothing twice, and
 * the table is complete in the end. */
Test(session, stopping_and_resuming_reaches_the_whole_table, .timeout = 180) {
    scene s;
    kt_table *table;
    kt_session_progress p;
    size_t decided = 0;
    int stops = 0, replayed = 0;

    make_scene(&s);
    plant(&s, "aa_first__scalar", honest);
    plant(&s, "zz_good__scalar", good);
    make_registry(&s);
    for (int64_t m = 1; m <= 6; m++) add_cell(&s, m, 96, 64, 1.0 / 6);
    for (;;) {
        run_limits limits = {.stop_after_asks = 12 + 5 * stops};
        int n;
        kt_status st = tune(&s, &limits, &table, &p, &n);
        replayed += n;
        cr_assert(p.n_decided >= decided && p.n_reused >= decided, "%zu of %zu reused", p.n_reused,
                  decided);
        cr_assert_eq(table->n_rows, p.n_decided);
        decided = p.n_decided;
        if (st == KT_E_NOT_FOUND) break;
        kt_table_destroy(table);
        cr_assert_lt(++stops, 200, "no progress");
    }
    cr_expect(stops > 2, "%d stops", stops);
    cr_expect_eq(decided, 6);
    cr_expect_gt(replayed, 0, "rungs of a broken race are taken over");
    kt_table_destroy(table);

    run_limits none = {0};
    int was = timed_good;
    cr_assert_eq(tune(&s, &none, &table, &p, NULL), KT_E_NOT_FOUND);
    cr_expect(p.n_reused == 6 && p.rounds == 0 && timed_good == was, "nothing is measured again");
    kt_table_destroy(table);
    drop_scene(&s);
}

static int count_records(const scene *s, const char *kind) {
    kt_journal *j;
    int n = 0;

    cr_assert_eq(kt_journal_read(s->journal, &j, NULL), KT_OK);
    for (size_t i = 0; i < kt_journal_count(j); i++)
        n += strcmp(kt_json_string(kt_json_get(kt_journal_at(j, i), "t"), NULL), kind) == 0;
    kt_journal_close(j);
    return n;
}

static double row_ns(const kt_table *t, int64_t m) {
    for (size_t i = 0; i < t->n_rows; i++)
        if (t->rows[i].problem.m == m) return t->rows[i].time_ns;
    return 0;
}

static void make_spell_scene(scene *s, bool spell) {
    make_scene(s);
    is_spell = spell;
    is_again = false;
    plant(s, "aa_spell__scalar", meets_a_spell);
    plant(s, "zz_spell__scalar", meets_a_spell);
    make_registry(s);
    add_cell(s, 1, 96, 64, 0.9); /* comes first */
    add_cell(s, 2, 96, 64, 0.1);
}

/* One row cannot take four times as long as two: its cell is decided anew when all are, once, and what the journal
 * said of it is superseded. */
Test(session, a_cell_out_of_line_is_decided_anew, .timeout = 180) {
    run_limits limits = {0};
    kt_session_progress p;
    kt_table *table;
    scene s;

    make_spell_scene(&s, true);
    cr_assert_eq(tune(&s, &limits, &table, &p, NULL), KT_E_NOT_FOUND);
    cr_expect_eq(p.n_repeated, 1);
    cr_expect_eq(p.n_decided, 2);
    cr_expect_float_eq(p.weight_done, 1, 1e-9);
    cr_assert_eq(table->n_rows, 2);
    cr_expect(row_ns(table, 1) > 1e6 && row_ns(table, 1) < 3e6, "%g ns", row_ns(table, 1));
    cr_expect_eq(count_records(&s, "forget"), 1);
    cr_expect_eq(count_records(&s, "decision"), 3);
    kt_table_destroy(table);

    cr_assert_eq(tune(&s, &limits, &table, &p, NULL), KT_E_NOT_FOUND);
    cr_expect(p.n_reused == 2 && p.n_repeated == 0, "the second decision stands");
    cr_expect_lt(row_ns(table, 1), 3e6);
    kt_table_destroy(table);
    drop_scene(&s);
}

Test(session, cells_in_line_are_decided_once, .timeout = 180) {
    kt_session_progress p = {.n_repeated = 1}; /* a spell may come unasked */

    for (kt_attempts tries = {3, 0}; kt_attempts_next(&tries, p.n_repeated == 0);) {
        run_limits limits = {0};
        kt_table *table;
        scene s;

        make_spell_scene(&s, false);
        cr_assert_eq(tune(&s, &limits, &table, &p, NULL), KT_E_NOT_FOUND);
        cr_expect_eq(p.n_decided, 2);
        cr_expect_eq(count_records(&s, "forget"), (int)p.n_repeated);
        kt_table_destroy(table);
        drop_scene(&s);
    }
    cr_expect_eq(p.n_repeated, 0, "three times out of line");
}

/* Stopped amid the second thoughts: the first decision stays in the table, and the next run makes it anew. */
Test(session, a_stop_amid_second_thoughts_leaves_the_first_decision, .timeout = 180) {
    run_limits limits = {.stop = &is_again}, none = {0};
    kt_session_progress p;
    kt_table *table;
    scene s;

    make_spell_scene(&s, true);
    cr_assert_eq(tune(&s, &limits, &table, &p, NULL), KT_E_CANCELLED);
    cr_expect(is_again && p.n_repeated == 0);
    cr_expect_eq(p.n_decided, 2);
    cr_expect_float_eq(p.weight_done, 1, 1e-9);
    cr_assert_eq(table->n_rows, 2);
    cr_expect_gt(row_ns(table, 1), 4e6);
    kt_table_destroy(table);

    cr_assert_eq(tune(&s, &none, &table, &p, NULL), KT_E_NOT_FOUND);
    cr_expect_eq(p.n_reused, 1, "two rows");
    cr_expect_lt(row_ns(table, 1), 3e6);
    kt_table_destroy(table);
    drop_scene(&s);
}

/* Many rows: the slow ones fall out on a quarter of the matrix; the default and the fastest two meet on the
 * whole one. Noise may let a slow one through, but hardly three times. */
Test(session, large_cells_race_on_a_slice_first, .timeout = 180) {
    static const char *const slow[] = {"ab_slow__scalar", "ac_slow__scalar", "ad_slow__scalar",
                                       "ae_slow__scalar"};
    scene s;
    kt_table *table;
    kt_session_progress p = {0};
    kt_problem slice;
    run_limits limits = {0};

    for (kt_attempts tries = {3, 0}; kt_attempts_next(&tries, p.n_contenders == 3);) {
        if (tries.done > 1) drop_scene(&s);
        make_scene(&s);
        plant(&s, "aa_slow__scalar", naps_a_little); /* first by name: the default */
        for (int i = 0; i < 4; i++) plant(&s, slow[i], naps_a_little);
        plant(&s, "zy_good__scalar", good);
        plant(&s, "zz_good__scalar", good);
        make_registry(&s);
        add_cell(&s, 128, 1024, 32, 1);
        cr_assert_eq(tune(&s, &limits, &table, &p, NULL), KT_E_NOT_FOUND);
        cr_expect_eq(count_records(&s, "slice"), 1);
        cr_expect(strstr(table->rows[0].variant, "_good__scalar") &&
                      strcmp(table->rows[0].status, "tuned") == 0,
                  "%s %s", table->rows[0].variant, table->rows[0].status);
        kt_table_destroy(table);
    }
    cr_expect_eq(p.n_contenders, 3, "%d on the whole matrix", p.n_contenders);
    cr_assert_eq(tune(&s, &limits, &table, &p, NULL), KT_E_NOT_FOUND);
    cr_expect(p.n_reused == 1 && count_records(&s, "slice") == 1, "the decision is taken over");
    kt_table_destroy(table);
    cr_expect(kt_slice_of(&s.cells.cells[0].problem, 1, &slice) && slice.n == 256);
    cr_expect_not(kt_slice_of(&s.cells.cells[0].problem, 4, &slice), "nothing saved");
    s.cells.cells[0].problem.m = 96;
    cr_expect_not(kt_slice_of(&s.cells.cells[0].problem, 1, &slice), "few rows");
    drop_scene(&s);
}

/* The oracle's contest takes all that are correct, its answer is found again, and a decision that was right
 * has no regret. */
Test(session, the_oracle_answers_once_per_cell, .timeout = 180) {
    scene s;
    kt_table *table;
    kt_session_progress p;
    run_limits limits = {.oracle = true};

    make_scene(&s);
    plant(&s, "aa_slow__scalar", takes_its_time);
    plant(&s, "zz_good__scalar", good);
    plant(&s, bad_ones[0].name, bad_ones[0].gemm);
    make_registry(&s);
    add_cell(&s, 2, 96, 64, 0.5);
    add_cell(&s, 3, 96, 64, 0.5);
    for (int run = 0; run < 2; run++) {
        kt_oracle_result o = {0};
        kt_journal *j;
        cr_assert_eq(tune(&s, &limits, &table, &p, NULL), KT_E_NOT_FOUND);
        cr_expect_eq(count_records(&s, "oracle"), 2, "run %d", run);
        cr_assert_eq(kt_journal_read(s.journal, &j, NULL), KT_OK);
        for (size_t i = 0; i < kt_journal_count(j); i++)
            if (kt_oracle_read(kt_journal_at(j, i), &o)) {
                cr_expect_str_eq(o.best, "zz_good__scalar@1{}");
                cr_expect_eq(o.n_contenders, 2, "%d contenders", o.n_contenders);
                cr_expect(o.regret.point == 0 && o.rounds == 0);
            }
        cr_expect_eq(o.n_contenders, 2, "no answer");
        kt_journal_close(j);
        kt_table_destroy(table);
    }
    drop_scene(&s);
}

/* A variant that comes later meets the winner and the default only; one that is slower changes nothing. */
Test(session, newcomers_race_the_winner_and_the_default, .timeout = 180) {
    static const char *const others[] = {"bb_slow__scalar", "cc_slow__scalar", "dd_slow__scalar"};
    scene s;
    kt_table *table;
    kt_session_progress first = {.n_tuned = 1}, second, third; /* a false gain is rare */
    run_limits limits = {0};

    for (kt_attempts tries = {3, 0}; kt_attempts_next(&tries, first.n_tuned == 0);) {
        if (tries.done > 1) drop_scene(&s);
        make_scene(&s);
        plant(&s, "aa_slow__scalar", takes_its_time); /* the default */
        for (int i = 0; i < 3; i++) plant(&s, others[i], takes_its_time);
        make_registry(&s);
        add_cell(&s, 2, 96, 64, 1);
        cr_assert_eq(tune(&s, &limits, &table, &first, NULL), KT_E_NOT_FOUND);
        kt_table_destroy(table);
    }
    cr_assert_eq(first.n_tuned, 0, "the default wins over its equals");

    kt_registry_destroy(s.registry);
    plant(&s, "zz_good__scalar", good);
    make_registry(&s);
    cr_assert_eq(tune(&s, &limits, &table, &second, NULL), KT_E_NOT_FOUND);
    cr_expect_str_eq(table->rows[0].variant, "zz_good__scalar");
    cr_expect_str_eq(table->rows[0].default_variant, "aa_slow__scalar");
    cr_expect_eq(second.n_contenders, 2, "%d: the default, which won, and the newcomer",
                 second.n_contenders);
    cr_expect_eq(second.n_reused, 0);
    kt_table_destroy(table);

    kt_registry_destroy(s.registry);
    plant(&s, "ee_late__scalar", takes_its_time);
    make_registry(&s);
    cr_assert_eq(tune(&s, &limits, &table, &third, NULL), KT_E_NOT_FOUND);
    cr_expect_str_eq(table->rows[0].variant, "zz_good__scalar", "the row stays");
    cr_expect_eq(third.n_contenders, 3, "winner, default, newcomer");
    cr_expect_eq(count_records(&s, "keep"), 1);
    cr_expect_eq(count_records(&s, "decision"), 2);
    cr_expect(third.rounds > 0 && third.rounds < 12, "%d rounds", (int)third.rounds);
    kt_table_destroy(table);

    cr_assert_eq(tune(&s, &limits, &table, &third, NULL), KT_E_NOT_FOUND);
    cr_expect(third.n_reused == 1 && third.rounds == 0, "and is known from then on");
    kt_table_destroy(table);
    drop_scene(&s);
}

/* Out of reach with one row, out of the race with two; with eight it may try again. */
Test(session, the_hopeless_are_left_out_next_door, .timeout = 180) {
    scene s;
    kt_table *table;
    kt_session_progress p;
    run_limits limits = {0};
    kt_journal *j;
    int seen = 0;

    make_scene(&s);
    plant(&s, "aa_good__scalar", good);
    plant(&s, "zz_slow__scalar", takes_its_time);
    make_registry(&s);
    add_cell(&s, 1, 96, 64, 0.6);
    add_cell(&s, 2, 96, 64, 0.3);
    add_cell(&s, 8, 96, 64, 0.1);
    cr_assert_eq(tune(&s, &limits, &table, &p, NULL), KT_E_NOT_FOUND);
    cr_assert_eq(kt_journal_read(s.journal, &j, NULL), KT_OK);
    for (size_t i = 0; i < kt_journal_count(j); i++) {
        const kt_json *r = kt_journal_at(j, i);
        size_t want;
        if (strcmp(kt_json_string(kt_json_get(r, "t"), NULL), "contest") != 0) continue;
        want = strstr(kt_json_string(kt_json_get(r, "cell"), NULL), " m=2 ") ? 1 : 2;
        cr_expect_eq(kt_json_length(kt_json_get(r, "contenders")), want, "%s",
                     kt_json_string(kt_json_get(r, "cell"), NULL));
        seen++;
    }
    cr_expect_eq(seen, 3);
    kt_journal_close(j);
    kt_table_destroy(table);
    cr_assert_eq(tune(&s, &limits, &table, &p, NULL), KT_E_NOT_FOUND);
    cr_expect(p.n_reused == 3 && p.rounds == 0, "who was left out is no newcomer later");
    kt_table_destroy(table);
    drop_scene(&s);
}

/* Most valuable first, and the forecast covers all cells. */
Test(session, cells_are_ordered_by_value) {
    scene s;
    kt_session *session;
    kt_session_setup setup;
    double first, second, third;

    make_scene(&s);
    plant(&s, "zz_good__scalar", good);
    make_registry(&s);
    add_cell(&s, 1, 96, 64, 0.1);
    add_cell(&s, 512, 4096, 4096, 0.3); /* heavier, but slow to measure */
    add_cell(&s, 2, 96, 64, 0.6);
    setup = (kt_session_setup){.registry = s.registry,
                               .machine = &s.machine,
                               .cells = &s.cells,
                               .strategy = kt_strategy_find("auto"),
                               .deadline_ns = INT64_MAX};
    cr_assert_eq(kt_session_create(&setup, &session, NULL), KT_OK);
    cr_expect_eq(kt_session_planned(session, 0, &first)->problem.m, 2);
    cr_expect_eq(kt_session_planned(session, 1, &second)->problem.m, 1);
    cr_expect_eq(kt_session_planned(session, 2, &third)->problem.m, 512);
    cr_expect(first > 0 && second > 0 && third > 10 * first);
    kt_session_destroy(session);
    drop_scene(&s);
}
