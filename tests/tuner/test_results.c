/* What lies in results/: complete, of the class its folder says, and every decision follows from the raw
 * samples beside it. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tuner/session/session.h"
#include "tuner/store/journal.h"

enum { MAX_CONTENDERS = 512 };

static const char *text_of(const kt_json *record, const char *key) {
    const char *s = kt_json_string(kt_json_get(record, key), NULL);
    return s ? s : "";
}

/* One cell of a journal as a store to replay from. */
typedef struct replay_source {
    const kt_journal *journal;
    char cell[KT_CELL_KEY_BYTES];
    const char *names[MAX_CONTENDERS]; /* contenders: those of the first rung */
    int n;
} replay_source;

static bool is_rung(const replay_source *s, const kt_json *r, int rung, const int *live, int n_live,
                    int rounds) {
    const kt_json *names = kt_json_get(r, "live");
    if (strcmp(text_of(r, "t"), "rung") != 0 || strcmp(text_of(r, "cell"), s->cell) != 0 ||
        kt_json_int(kt_json_get(r, "rung"), -1) != rung ||
        kt_json_int(kt_json_get(r, "rounds"), -1) != rounds ||
        kt_json_length(names) != (size_t)n_live)
        return false;
    for (int i = 0; i < n_live; i++)
        if (strcmp(kt_json_string(kt_json_at(names, (size_t)i), NULL), s->names[live[i]]) != 0)
            return false;
    return true;
}

static bool replay(void *arg, int rung, const int *live, int n_live, int rounds, kt_samples *s) {
    const replay_source *source = arg;
    for (size_t i = kt_journal_count(source->journal); i-- > 0;) {
        const kt_json *r = kt_journal_at(source->journal, i), *ns = kt_json_get(r, "ns");
        const kt_json *voided = kt_json_get(r, "void");
        size_t n_new = kt_json_length(kt_json_at(ns, 0));
        if (!is_rung(source, r, rung, live, n_live, rounds)) continue;
        for (int c = 0; c < n_live; c++) {
            for (size_t j = 0; j < n_new; j++)
                s->ns[(size_t)live[c] * KT_MAX_SAMPLES + (size_t)s->n_rounds + j] =
                    kt_json_double(kt_json_at(kt_json_at(ns, (size_t)c), j), 0);
            s->rounds_of[live[c]] = s->n_rounds + (int)n_new;
        }
        for (size_t j = 0; j < kt_json_length(voided); j++, s->n_voided++)
            s->voided[s->n_rounds + (int)kt_json_int(kt_json_at(voided, j), 0)] = 1;
        s->n_rounds += (int)n_new;
        return true;
    }
    return false;
}

static double no_sample(void *arg, int contender) {
    (void)arg, (void)contender;
    cr_assert_fail("a sample is wanted that the journal lacks");
    return 1;
}
static bool always(void *arg) {
    (void)arg;
    return true; /* stop instead of measuring */
}

/* The record that decided the row, or NULL. */
static const kt_json *decision_of(const kt_journal *j, const char *cell) {
    for (size_t i = kt_journal_count(j); i-- > 0;) {
        const kt_json *r = kt_journal_at(j, i);
        if (strcmp(text_of(r, "t"), "decision") == 0 && strcmp(text_of(r, "cell"), cell) == 0)
            return r;
    }
    return NULL;
}

static uint64_t seed_of(const kt_journal *j) {
    uint64_t seed = 0;
    for (size_t i = 0; i < kt_journal_count(j); i++)
        if (strcmp(text_of(kt_journal_at(j, i), "t"), "session") == 0)
            seed = (uint64_t)kt_json_int(kt_json_get(kt_journal_at(j, i), "seed"), 0);
    return seed;
}

/* "stem@version{config}" has this stem and configuration. */
static bool is_named(const char *name, const char *stem, const char *config) {
    size_t size = strlen(stem), end = strlen(name), tail = strlen(config);
    const char *brace = strchr(name, '{');
    return strncmp(name, stem, size) == 0 && name[size] == '@' && brace &&
           end == (size_t)(brace - name) + tail + 2 && strncmp(brace + 1, config, tail) == 0;
}

static int index_of(const replay_source *s, const char *stem, const char *config) {
    for (int i = 0; i < s->n; i++)
        if (is_named(s->names[i], stem, config)) return i;
    return -1;
}

static void find_contenders(replay_source *s) {
    s->n = 0;
    for (size_t i = 0; i < kt_journal_count(s->journal); i++) {
        const kt_json *r = kt_journal_at(s->journal, i), *live = kt_json_get(r, "live");
        if (strcmp(text_of(r, "t"), "rung") != 0 || strcmp(text_of(r, "cell"), s->cell) != 0 ||
            kt_json_int(kt_json_get(r, "rung"), -1) != 0)
            continue;
        s->n = (int)kt_json_length(live);
        cr_assert_lt(s->n, MAX_CONTENDERS);
        for (int c = 0; c < s->n; c++)
            s->names[c] = kt_json_string(kt_json_at(live, (size_t)c), NULL);
    }
}

/* Run the contest of a row again on the recorded samples. */
static void derive(const kt_table_row *row, const kt_journal *j, const char *path) {
    static const kt_stopwatch watch = {.sample = no_sample, .stop = always};
    replay_source source = {.journal = j};
    kt_rung_store store = {.arg = &source, .replay = replay};
    kt_tune_cell cell = {.problem = row->problem, .threads = row->threads};
    kt_verdict v;
    kt_status st = KT_E_CANCELLED;
    int standard, winner;

    kt_cell_key(&row->problem, row->threads, source.cell, sizeof source.cell);
    cr_assert(decision_of(j, source.cell), "%s: %s has no decision", path, source.cell);
    find_contenders(&source);
    standard = index_of(&source, row->default_variant, row->default_config);
    winner = index_of(&source, row->variant, row->config);
    cr_assert(standard >= 0 && winner >= 0, "%s: %s: not among its contenders", path, source.cell);
    for (int shorten = 1; shorten <= 3 && st != KT_OK; shorten++) {
        kt_contest c = {.watch = &watch,
                        .store = &store,
                        .n = source.n,
                        .default_index = standard,
                        .warm_index = -1, /* matters with more than 64 contenders only */
                        .deadline_ns = INT64_MAX,
                        .shorten = shorten,
                        .seed = kt_cell_seed(seed_of(j), &cell)};
        st = kt_contest_decide(&c, kt_strategy_find("auto"), &v, NULL);
    }
    cr_assert_eq(st, KT_OK, "%s: %s: its samples are not all there", path, source.cell);
    cr_expect_eq(v.winner, winner, "%s: %s: the samples say %s", path, source.cell,
                 source.names[v.winner]);
    cr_expect_eq(v.is_tuned, strcmp(row->status, "tuned") == 0);
    cr_expect(fabs(v.winner_ns - row->time_ns) < 0.11,
              "%s: %s: %.1f ns from the samples, %.1f said", path, source.cell, v.winner_ns,
              row->time_ns);
    cr_expect(fabs(v.default_ns - row->default_ns) < 0.11, "%s: %s", path, source.cell);
    cr_expect_eq(v.rounds, row->rounds);
}

static void check_table(const char *path) {
    char journal_path[1024], class_name[64], folder[1024];
    kt_table *t;
    kt_journal *j;
    kt_err err;

    cr_assert_eq(kt_table_load(path, &t, &err), KT_OK, "%s", err.message);
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    kt_machine_class(&t->fingerprint, class_name, sizeof class_name);
    cr_expect_str_eq(strrchr(folder, '/') + 1, class_name, "%s", path);
    cr_expect_gt(t->n_rows, 0);
    cr_assert_eq(kt_journal_path_of(path, journal_path, sizeof journal_path, &err), KT_OK);
    cr_assert_eq(kt_journal_read(journal_path, &j, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_journal_dropped(j), 0, "%s has damaged lines", journal_path);
    for (size_t i = 0; i < t->n_rows; i++) derive(&t->rows[i], j, path);
    kt_journal_close(j);
    kt_table_destroy(t);
}

Test(results, every_decision_follows_from_the_samples, .timeout = 120) {
    glob_t files;
    cr_assert_eq(glob(KT_SOURCE_DIR "/results/*/*.kttable.json", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) check_table(files.gl_pathv[i]);
    globfree(&files);
}

Test(results, every_class_has_its_machine_and_readme) {
    static const char *const needed[] = {"machine.json", "README.md"};
    glob_t folders;
    cr_assert_eq(glob(KT_SOURCE_DIR "/results/*/", 0, NULL, &folders), 0);
    for (size_t i = 0; i < folders.gl_pathc; i++)
        for (int k = 0; k < 2; k++) {
            char path[1024];
            snprintf(path, sizeof path, "%s%s", folders.gl_pathv[i], needed[k]);
            cr_expect_eq(access(path, R_OK), 0, "%s is missing", path);
        }
    globfree(&folders);
}
