/* What most verbs need: this machine, its usable variants, its ceilings. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_WORKBENCH_H
#define KT_TUNER_WORKBENCH_H

#include "dispatch/registry/registry.h"
#include "dispatch/topology/topology.h"
#include "tuner/cli/verb.h"

typedef struct kt_workbench {
    kt_topology topology;
    kt_registry *registry;  /* owned */
    kt_fingerprint machine; /* with ceilings */
    bool probed_now;        /* the ceilings were measured by this call */
    char class_name[64];
} kt_workbench;

/* measure: when no earlier probe is kept, make a quick one (3 s) and keep it; otherwise ceilings may
 * be zero. */
kt_status kt_workbench_init(kt_workbench *b, bool measure, kt_err *err);
void kt_workbench_deinit(kt_workbench *b);

#endif
