/* Fingerprints that differ from a machine's own in one thing. SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_TUNER_FORGERIES_H
#define KT_TUNER_FORGERIES_H

#include <stdbool.h>

#include "dispatch/topology/topology.h"

typedef struct kt_forgery {
    const char *what; /* that differs */
    kt_match want;    /* what must come of a table with this fingerprint */
    bool
        is_possible; /* false: this machine has nothing to differ from, such as no instruction set less */
    kt_fingerprint fingerprint;
} kt_forgery;

/* The i-th forgery of `own` into out; false when there are not so many. A possible one always
 * differs, whatever the machine is. */
bool kt_forge(const kt_fingerprint *own, int i, kt_forgery *out);

#endif
