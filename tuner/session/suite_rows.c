/* Rows of the bench suites for what turns rows into rows and keeps nothing: norms beside copying
 * the same rows, which is the least that reading and writing them takes; routers, the choice of
 * experts included, beside the machine's ceilings. On memory that is cold to each.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "tuner/session/suite_duel.h"
#include "tuner/space/candidates.h"

/* The floor of a norm: what it reads is read, what it writes is written. Gates are read as a copy
 * over the copy, which stays in the first cache. */
static void copy_rows(const kt_norm_call *c) {
    const size_t bytes = (size_t)c->k * sizeof *c->y;

    for (int64_t row = c->row_begin; row < c->row_end; row++) {
        memcpy(c->y + row * c->ldy, c->kind == KT_NORM_SIGMOID ? c->z + row * c->ldz : c->w, bytes);
        memcpy(c->y + row * c->ldy, c->x + row * c->ldx, bytes);
        if (c->kind == KT_NORM_RMS_SILU) memcpy(c->y + row * c->ldy, c->z + row * c->ldz, bytes);
    }
}

static const kt_variant copying = {.name = "copying", .op = KT_OP_NORM, .norm = copy_rows};

enum { NORM, COPY, NORM_CONTENDERS };

static kt_status run_norm(kt_suite_bench *s, kt_trial_setup *setup, const kt_choice *best,
                          double seconds, kt_suite_row *row, kt_err *err) {
    const kt_choice choices[NORM_CONTENDERS] = {[NORM] = *best, [COPY] = {.variant = &copying}};
    kt_trial *trial = NULL;
    kt_stopwatch watch;
    kt_samples samples;
    char name[KT_CONTENDER_NAME_BYTES];
    kt_status st;

    setup->choices = choices;
    setup->n_choices = NORM_CONTENDERS;
    KT_TRY(kt_samples_create(NORM_CONTENDERS, &samples, err));
    st = kt_trial_create(setup, &trial, err);
    if (st == KT_OK) {
        watch = kt_trial_stopwatch(trial);
        st = kt_suite_rounds(s, &watch, NORM_CONTENDERS, seconds, &samples, err);
    }
    if (st == KT_OK) {
        const double bytes = kt_trial_bytes(trial, NORM);
        kt_suite_ratio(&samples, COPY, NORM, row);
        row->is_gbs = true;
        row->rate = bytes / kt_samples_p25(&samples, NORM);
        row->ceiling = bytes / kt_samples_p25(&samples, COPY);
        kt_contender_name(best, name, sizeof name);
        snprintf(row->contender, sizeof row->contender, "%.120s of memcpy", name);
    }
    kt_trial_destroy(trial);
    kt_samples_destroy(&samples);
    return st;
}

static kt_status run_on(kt_suite_bench *s, kt_pool *pool, const kt_suite_spec *spec, double seconds,
                        kt_suite_row *row, kt_err *err) {
    kt_banks banks = {.rotation_bytes = kt_suite_rotation(s)};
    kt_choice best;
    kt_trial_setup setup = {.problem = spec->kept,
                            .pool = pool,
                            .banks = &banks,
                            .choices = &best,
                            .n_choices = 1,
                            .norm = spec->norm,
                            .rule = spec->rule.experts ? &spec->rule : NULL};
    kt_status st;

    KT_TRY(kt_suite_simple(s, &spec->kept, kt_pool_threads(pool), &best, err));
    st = spec->of == KT_OF_COPY ? run_norm(s, &setup, &best, seconds, row, err)
                                : kt_suite_beside_ceilings(s, spec, &setup, seconds, row, err);
    kt_banks_deinit(&banks);
    return st;
}

kt_status kt_suite_of_rows(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                           kt_suite_row *row, kt_err *err) {
    return kt_suite_on_pool(s, spec, seconds, row, run_on, err);
}
