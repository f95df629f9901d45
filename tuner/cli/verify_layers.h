/* End to end: what a table's rows are worth in whole layers of its model.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_VERIFY_LAYERS_H
#define KT_TUNER_VERIFY_LAYERS_H

#include "tuner/session/layer_cells.h"

enum { KT_VERIFY_LAYERS = 2 };

typedef struct kt_layers_verdict {
    int checked;     /* layers: token counts and routings of each format */
    int unconfirmed; /* gain less than KT_LEAST_REALISED of what the cells promise */
    int slower;      /* surely slower than with the defaults, by 1 % at least */
} kt_layers_verdict;

/* Run the model scaled to two layers (all experts, real widths) with the table's rows and with the defaults,
 * in interleaved rounds, for every format that the table has experts of. setup: registry, machine, table,
 * threads, seed, deadline and stop are taken, the rest is filled in. each is called with every outcome.
 * KT_E_UNSUPPORTED when there is no layer to run: the message says why. */
kt_status kt_verify_layers(const kt_layer_session_setup *setup, const char *model,
                           void (*each)(void *arg, const kt_table_plan *plan), void *arg,
                           kt_layers_verdict *out, kt_err *err);

#endif
