/* Search strategies. One file tuner/search/strategy_<name>.c defines
 * `const kt_strategy kt_strategy_<name> = {...};` The build finds it and writes the table.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_STRATEGY_H
#define KT_TUNER_STRATEGY_H

#include <stddef.h>

#include "tuner/search/contest.h"

typedef struct kt_strategy {
    const char *name, *summary;
    double
        prune_ratio; /* drop contenders whose roofline bound exceeds the best one's by this factor;
                           0 = keep all */
    /* Race the contenders of c into s (empty, room for c->n); live has room for c->n and receives
     * the finalists, fastest first. */
    kt_status (*race)(kt_contest *c, kt_samples *s, int *live, int *n_live, kt_err *err);
} kt_strategy;

extern const kt_strategy *const kt_builtin_strategies[];
extern const size_t kt_builtin_strategy_count;

const kt_strategy *kt_strategy_find(const char *name); /* NULL when there is none */

#endif
