/* Several sequences side by side, without a server: what `kt bench --parallel` measures.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_BENCH_GROUP_H
#define KT_RUNTIME_BENCH_GROUP_H

#include "runtime/exec/engine.h"

typedef struct kt_bench_group kt_bench_group;

/* n sequences (1 to the rows of a step) of `depth` random tokens, with pages for `more` after them.
 * The engine is borrowed; KT_E_NOMEM names --kv-memory where there are too few pages. */
kt_status kt_bench_group_create(kt_engine *engine, int n, int64_t depth, int64_t more,
                                kt_bench_group **out, kt_err *err);
void kt_bench_group_destroy(kt_bench_group *g); /* accepts NULL; before the engine */

/* Back to `depth` tokens, then `steps` (at most `more`) steps of a row of each sequence, all with
 * logits; step_ns [steps] gets the time of each. Ctrl-C ends it (KT_E_CANCELLED). */
kt_status kt_bench_group_run(kt_bench_group *g, int64_t steps, double *step_ns, kt_err *err);

#endif
