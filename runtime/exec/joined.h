/* A shared expert that runs as one more of the routed ones, in their phases: two synchronisations
 * less a layer. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_JOINED_H
#define KT_RUNTIME_JOINED_H

#include "dispatch/model/graph.h"
#include "runtime/model/model_plan.h"

/* The EXPERTS node that runs with this routed one, or NULL: the feed-forward that every row of the
 * layer goes to, of the same input and output, sizes, formats, activations and packed layout, and of
 * one kt_glu_rule, without biases.
 *
 * With another device (plan->away) nothing joins, as the two may be on different sides.
 *
 * What that means for bits: the shared expert comes last among the experts, so that sums have the
 * order that they have apart; it is multiplied by what the routed experts' plan has for its number
 * of rows, which may be another class than its own plan's, unless the plan keeps bits. */
const kt_node *kt_joined_shared(const kt_model_plan *plan, const kt_node *routed);

/* The routed EXPERTS node that this one, not routed, runs with, or NULL. */
const kt_node *kt_joined_routed(const kt_model_plan *plan, const kt_node *shared);

/* The EXPERTS node behind a ROUTE. */
const kt_node *kt_joined_experts_of(const kt_graph *graph, const kt_node *route);

/* Experts, and experts of a row, of the layer that a routed node runs: with the shared one. */
kt_problem kt_joined_problem(const kt_model_plan *plan, const kt_node *routed);

#endif
