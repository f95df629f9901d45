/* Problems of nodes that keep something of a sequence: what the plan asks for when a model is
 * loaded, and what the tuner races. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_NODE_PROBLEMS_H
#define KT_DISPATCH_NODE_PROBLEMS_H

#include "dispatch/model/graph.h"

/* rows: of a sequence in one step. A few and many may run by different variants. */
kt_problem kt_conv_problem(const kt_node *conv, int64_t rows);
kt_problem kt_delta_problem(const kt_node *delta, int64_t rows);
/* Value heads that a kernel is given at a time: all, or (tiled) as many as there are key heads,
 * each of which it then uses once. The problem is that of so many. */
int64_t kt_delta_tile(const kt_delta_rule *rule);

/* max_context: tokens that a sequence may have. */
kt_problem kt_index_problem(const kt_index_rule *rule, int64_t max_context);

/* kv: what the cache holds. m = 0: any rows. */
kt_problem kt_attn_problem(const kt_attention *a, kt_weight_format kv, int64_t max_context);
/* Products of residual streams with the rows that mix them: a router's. */
kt_problem kt_stream_problem(const kt_node *hyper);
/* The most keys that a row of attention over entries meets. */
int64_t kt_node_most_keys(const kt_node *attend, int64_t max_context);

#endif
