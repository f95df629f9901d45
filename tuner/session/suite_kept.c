/* Rows of the bench suites for operations that keep something of a sequence (attention, indexer,
 * delta rule, convolution): the fastest variant as it is served, and the ceilings of the machine in
 * turns, on memory that is cold to each. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "dispatch/cost/cost.h"
#include "tuner/session/suite_duel.h"

/* What one round of the stream reads at least: less than a tenth of a millisecond is all clock. */
static const double least_stream_bytes = (double)((size_t)4 << 20);

kt_status kt_suite_beside_ceilings(kt_suite_bench *s, const kt_suite_spec *spec,
                                   const kt_trial_setup *setup, double seconds, kt_suite_row *row,
                                   kt_err *err) {
    kt_cold_bank bank = {0};
    kt_suite_duel d = {.pool = setup->pool, .bank = &bank, .window = 1};
    double bytes, operations;
    kt_status st;

    kt_problem_work(&spec->kept, &bytes, &operations);
    if (bytes < least_stream_bytes) bytes = least_stream_bytes;
    st = kt_cold_bank_create(NULL, (size_t)bytes, 2, kt_suite_rotation(s), &bank, err);
    if (st == KT_OK) {
        memset(bank.buffer.data, 1,
               bank.slot_bytes); /* pages that were never written are no memory */
        kt_cold_bank_copy(&bank);
    }
    if (st == KT_OK)
        st = kt_suite_duel_init(&d, s, spec->of, &spec->kept, &setup->choices[0], row, err);
    if (st == KT_OK) st = kt_suite_duel_run(&d, s, setup, seconds, row, err);
    kt_cold_bank_destroy(&bank);
    return st;
}

static kt_status run_on(kt_suite_bench *s, kt_pool *pool, const kt_suite_spec *spec, double seconds,
                        kt_suite_row *row, kt_err *err) {
    kt_banks banks = {.rotation_bytes = kt_suite_rotation(s)};
    kt_choice best;
    const kt_trial_setup setup = {
        .problem = spec->kept, .pool = pool, .banks = &banks, .choices = &best, .n_choices = 1};
    kt_status st;

    KT_TRY(kt_suite_pick(s, s->registry, &spec->kept, kt_pool_threads(pool), &best, err));
    st = kt_suite_beside_ceilings(s, spec, &setup, seconds, row, err);
    kt_banks_deinit(&banks);
    return st;
}

kt_status kt_suite_kept(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                        kt_suite_row *row, kt_err *err) {
    return kt_suite_on_pool(s, spec, seconds, row, run_on, err);
}
