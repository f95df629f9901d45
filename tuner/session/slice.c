/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/session/slice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tuner/store/rung_json.h"

/* Multiples of 256 outputs suit every format's blocks and every kernel's panels. */
enum { STEP = 256, PANELS_PER_THREAD = 4, MOE_PANEL = 32, GEMM_PANEL = 64 };
enum { ROUNDS = 5, FEW = KT_SLICE_KEEP + 2 };

bool kt_slice_of(const kt_problem *p, int threads, kt_problem *slice) {
    int64_t panel = p->op == KT_OP_MOE_FFN ? MOE_PANEL : GEMM_PANEL;
    int64_t n = (PANELS_PER_THREAD * panel * threads + STEP - 1) / STEP * STEP;

    *slice = *p;
    slice->n = n;
    return (p->op == KT_OP_GEMM || p->op == KT_OP_MOE_FFN) && p->m >= KT_SLICE_ROWS &&
           2 * n <= p->n;
}

/* What the slice's race says, into the journal; it is not taken over, since it is short. */
static kt_status record(kt_session *s, const kt_tune_cell *cell, const kt_problem *slice,
                        const kt_contenders *c, const kt_samples *samples, kt_err *err) {
    const char **names = calloc((size_t)c->n, sizeof *names);
    int *live = calloc((size_t)c->n, sizeof *live);
    char key[KT_CELL_KEY_BYTES];
    kt_json_writer w = {0};
    kt_status st;

    if (!names || !live) {
        free(names);
        free(live);
        return kt_fail(err, KT_E_NOMEM, "slice: no memory");
    }
    for (int i = 0; i < c->n; i++) {
        names[i] = c->list[i].name;
        live[i] = i;
    }
    kt_json_begin_object(&w);
    kt_json_add_string(&w, "t", "slice");
    kt_json_add_string(&w, "of", kt_cell_key(&cell->problem, cell->threads, key, sizeof key));
    kt_json_add_int(&w, "n", slice->n);
    kt_rung_write(&w, names, live, c->n, 0, samples);
    kt_json_end_object(&w);
    st = kt_journal_append(s->setup.ledger->journal, &w, err);
    kt_json_writer_deinit(&w);
    free(names);
    free(live);
    return st;
}

/* All contenders a few times, interleaved, on weights that need not be cold. */
static kt_status race(kt_session *s, const kt_tune_cell *cell, const kt_contenders *c,
                      kt_samples *samples, kt_err *err) {
    int *live = calloc((size_t)c->n, sizeof *live);
    kt_banks cold =
        s->banks; /* a later cell of these very sizes must not find the slice's weights */
    kt_cell_trial trial;
    kt_status st = live ? KT_OK : kt_fail(err, KT_E_NOMEM, "slice: no memory");
    kt_rng rng;

    for (int i = 0; live && i < c->n; i++) live[i] = i;
    memset(&s->banks, 0, sizeof s->banks);
    memset(&trial, 0, sizeof trial);
    if (st == KT_OK) st = kt_cell_trial_make(s, cell, c, &trial, err);
    if (st == KT_OK) {
        kt_rng_seed(&rng, kt_cell_seed(s->setup.seed, cell));
        st = kt_rounds_run(&trial.watch, samples, live, c->n, ROUNDS, s->setup.deadline_ns, &rng);
        if (st != KT_OK) kt_fail(err, st, "slice: stopped");
        s->progress.rounds += samples->n_rounds;
        s->progress.voided += samples->n_voided;
    }
    kt_cell_trial_deinit(&trial);
    kt_banks_deinit(&s->banks);
    s->banks = cold;
    free(live);
    return st;
}

/* Those of the field that take the slice, in its order. */
static kt_status take_part(const kt_contenders *field, const kt_problem *slice, kt_contenders *out,
                           kt_err *err) {
    memset(out, 0, sizeof *out);
    out->list = calloc((size_t)field->n, sizeof *out->list);
    if (!out->list) return kt_fail(err, KT_E_NOMEM, "slice: no memory");
    out->capacity = field->n;
    for (int i = 0; i < field->n; i++)
        if (kt_variant_accepts(field->list[i].choice.variant, slice, &field->list[i].choice.config,
                               NULL) == KT_OK)
            out->list[out->n++] = field->list[i];
    return KT_OK;
}

static void leave(kt_contenders *field, const kt_contenders *raced, const kt_samples *samples,
                  const kt_choice *keep) {
    kt_choice standard = field->list[field->default_index].choice;
    double bar = INFINITY, best[KT_SLICE_KEEP];
    int n = 0;

    for (int k = 0; k < KT_SLICE_KEEP; k++) best[k] = INFINITY;
    for (int i = 0; i < raced->n; i++) {
        double ns = kt_samples_p25(samples, i);
        for (int k = 0; k < KT_SLICE_KEEP; k++)
            if (ns < best[k]) {
                double slower = best[k];
                best[k] = ns;
                ns = slower;
            }
    }
    bar = best[KT_SLICE_KEEP - 1];
    for (int i = 0; i < field->n; i++) {
        const kt_contender *c = &field->list[i];
        int at = kt_contenders_find(raced, &c->choice);
        if (at < 0 || kt_samples_p25(samples, at) <= bar || i == field->default_index ||
            (keep && kt_choice_equal(&c->choice, keep)))
            field->list[n++] = *c;
    }
    field->n = n;
    field->default_index = kt_contenders_find(field, &standard);
}

kt_status kt_slice_narrow(kt_session *s, const kt_tune_cell *cell, const kt_choice *keep,
                          kt_contenders *field, kt_err *err) {
    kt_tune_cell part = *cell;
    kt_contenders raced;
    kt_samples samples = {0};
    kt_status st;

    if (field->n <= FEW || !kt_slice_of(&cell->problem, cell->threads, &part.problem)) return KT_OK;
    st = take_part(field, &part.problem, &raced, err);
    if (st == KT_OK && raced.n > KT_SLICE_KEEP) {
        st = kt_samples_create(raced.n, &samples, err);
        if (st == KT_OK) st = race(s, &part, &raced, &samples, err);
        if (st == KT_OK && s->setup.ledger)
            st = record(s, cell, &part.problem, &raced, &samples, err);
        if (st == KT_OK) leave(field, &raced, &samples, keep);
        kt_samples_destroy(&samples);
    }
    kt_contenders_deinit(&raced);
    return st;
}
