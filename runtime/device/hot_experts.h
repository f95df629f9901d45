/* Which experts lie on a device. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_HOT_EXPERTS_H
#define KT_RUNTIME_HOT_EXPERTS_H

#include "runtime/exec/place.h"

/* All strings borrowed; NULL = the default. */
typedef struct kt_hot_request {
    const char *amount;   /* "8": of each layer; "25%": of all; "auto" (the default): what fits */
    const char *strategy; /* "uniform" (the default): the first of each layer; "random": drawn for
                             each layer; "front-loading": layer by layer; "frequency": those that
                             were chosen most; "learned": to begin with by the load where there is
                             one, else uniform, and moved while serving (expert_moves.h) */
    const char *load;     /* of "frequency": a file of --record-workload */
    /* [weights] bytes of one expert on the device; 0 = its layers do not run there. */
    const size_t *bytes;
    uint64_t budget; /* bytes that "auto" may take */
    /* Of several devices: budgets [n_devices] instead, and [weights] whose weight it is. */
    int n_devices;
    const uint64_t *budgets;
    const int *device_of;
    double share; /* the part of all experts that it takes at most; 0 = all */
} kt_hot_request;

/* Are amount and strategy such words, and is there a load where one is needed? KT_E_INVALID. */
kt_status kt_hot_request_check(const kt_hot_request *request, kt_err *err);

/* Do experts move while serving? */
bool kt_hot_experts_learn(const kt_hot_request *request);

/* The part of a layer's `experts` that the amount asks for; "auto" = 1. */
double kt_hot_experts_part(const kt_hot_request *request, int64_t experts);

/* out: [weights of the graph], in the arena as the lists in it. Asking for more than there are
 * takes all. KT_E_FORMAT: the load is of another model. */
kt_status kt_hot_experts_choose(const kt_graph *graph, const kt_hot_request *request,
                                kt_arena *arena, kt_hot_experts **out, kt_err *err);

#endif
