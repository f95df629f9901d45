/* Expert rows of the bench suites: a layer and the ceilings of the machine take turns over the same
 * memory.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "tuner/session/suite_duel.h"

/* Of spread tokens the experts themselves are the rotation, each with its own bytes. Else whole
 * calls fill it: kernel and stream, which both move on by a call each round, then stay half a
 * rotation apart, cold to each other. */
static int64_t slots_of(const kt_suite_spec *spec, const kt_problem *q, const kt_variant *v) {
    const size_t call = (size_t)q->topk * v->packed_bytes(q);
    int64_t calls = (int64_t)(KT_SUITE_ROTATION / call) + 1;
    if (spec->spread_tokens > 0) return q->experts;
    return (calls < 2 ? 2 : calls) * q->topk;
}

static kt_status run_on(kt_suite_bench *s, kt_pool *pool, const kt_suite_spec *spec, double seconds,
                        kt_suite_row *row, kt_err *err) {
    const kt_problem problem = kt_suite_problem(s->registry, s->machine, spec);
    const int threads = kt_pool_threads(pool);
    kt_banks banks = {.rotation_bytes = KT_SUITE_ROTATION};
    kt_choice best, encoder;
    kt_trial_setup setup = {.problem = problem,
                            .pool = pool,
                            .banks = &banks,
                            .choices = &best,
                            .n_choices = 1,
                            .spread_tokens = spec->spread_tokens};
    kt_cold_bank *bank;
    kt_suite_duel d = {.pool = pool, .window = problem.topk};
    kt_status st;

    KT_TRY(kt_suite_pick(s, s->registry, &problem, threads, &best, err));
    KT_TRY(kt_suite_encoder(s, s->registry, &problem, threads, &encoder, err));
    setup.encode = encoder.variant;
    st = kt_banks_get(&banks, &problem, best.variant, slots_of(spec, &problem, best.variant), &bank,
                      err);
    if (st == KT_OK) {
        d.bank = bank;
        d.at = bank->n_slots / d.window / 2 * d.window;
        st = kt_suite_duel_init(&d, s, spec->of, &problem, &best, row, err);
    }
    if (st == KT_OK) st = kt_suite_duel_run(&d, s, &setup, seconds, row, err);
    kt_banks_deinit(&banks);
    return st;
}

kt_status kt_suite_experts(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                           kt_suite_row *row, kt_err *err) {
    if (!spec->threads) return run_on(s, s->pool, spec, seconds, row, err);
    return kt_suite_on_pool(s, spec, seconds, row, run_on, err);
}
