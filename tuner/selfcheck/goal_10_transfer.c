/* How well does what was measured answer for what was not? SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "tuner/selfcheck/goal.h"
#include "tuner/session/transfer.h"

static kt_status measure(kt_check *c, kt_err *err) {
    const kt_journal *with_oracle[KT_CHECK_JOURNALS];
    kt_transfer t, all;
    int n = 0;

    for (int i = 0; i < c->n_journals; i++)
        if (c->sim[i].n_oracle > 0) with_oracle[n++] = c->journal[i];
    if (n == 0) {
        kt_check_missing(c, KT_CHECK_FILED "unseen m bucket, regret geomean", 2, "%",
                         "no oracle journal in results/; see goal 1");
        return KT_OK;
    }
    /* Answers depend on which variants the build and the machine have. */
    if (c->filed_class) return KT_OK;
    KT_TRY(kt_transfer_measure(c->registry, with_oracle, n, &t, err));
    KT_TRY(kt_transfer_measure(c->registry, (const kt_journal *const *)c->journal, c->n_journals,
                               &all, err));
    kt_check_at_most(
        c, KT_CHECK_FILED "unseen m bucket, regret geomean", 100 * t.bucket.geomean, 2, "%",
        "%d filed cells left out one at a time; %d answered by what was never timed there",
        t.bucket.n, t.bucket.unknown);
    kt_check_at_most(c, KT_CHECK_FILED "unseen m bucket, regret p95", 100 * t.bucket.p95, 6, "%",
                     "worst %s: %s", t.bucket.worst, t.bucket.chosen);
    kt_check_at_most(c, KT_CHECK_FILED "the same with other journals, geomean",
                     100 * all.bucket.geomean, 2, "%",
                     "%d cells, also of models without an oracle; p95 %.1f %%, worst %s",
                     all.bucket.n, 100 * all.bucket.p95, all.bucket.worst);
    kt_check_at_most(c, KT_CHECK_FILED "rows unseen in all matrices, geomean", 100 * t.rows.geomean,
                     2, "%", "%d filed cells, no row of their m anywhere", t.rows.n);
    kt_check_at_most(c, KT_CHECK_FILED "unseen matrix, regret geomean", 100 * t.shape.geomean, 4,
                     "%", "%d filed cells without a row of their matrix", t.shape.n);
    kt_check_at_most(c, KT_CHECK_FILED "unseen matrix, regret p95", 100 * t.shape.p95, 10, "%",
                     "worst %s: %s", t.shape.worst, t.shape.chosen);
    kt_check_at_most(c, KT_CHECK_FILED "no table at all, regret geomean", 100 * t.heuristic.geomean,
                     12, "%", "%d filed cells by the roofline", t.heuristic.n);
    return KT_OK;
}

const kt_goal kt_goal_10_transfer = {10, "transfer to what was not measured", measure, true};
