/* A home of its own for tests that run the kttune program: ceilings are given, so that nothing is
 * probed, and a model is small enough to be tuned in seconds. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_TUNE_HOME_H
#define KT_TESTS_TUNE_HOME_H

#include "dispatch/topology/topology.h"

typedef struct kt_tune_home {
    char folder[256];       /* XDG_DATA_HOME */
    char model[300];        /* folder of the model "mini" */
    char table[512];        /* where its table lies */
    char journal[512];      /* and its journal */
    kt_fingerprint machine; /* this one, with the given ceilings */
} kt_tune_home;

/* Make the folder and point the environment of this process at it. Aborts the test on failure. */
void kt_tune_home_make(kt_tune_home *h);
void kt_tune_home_remove(kt_tune_home *h);

/* Run a shell command; returns its exit code (-1 when a signal ended it), *out gets both streams
 * (malloc'd). */
int kt_tune_home_run(const char *command, char **out);

#endif
