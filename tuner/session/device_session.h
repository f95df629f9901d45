/* A run on a device: one decision after the other, and what both sides share by the two sides'
 * rates. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_DEVICE_SESSION_H
#define KT_TUNER_DEVICE_SESSION_H

#include "tuner/session/device_race.h"
#include "tuner/space/cell.h"

/* Said while it runs; every text is one line. Any may be NULL. */
typedef struct kt_device_listener {
    /* The row is in the table: whoever keeps it now need not decide it again. */
    void (*decided)(void *arg, const kt_device_verdict *verdict);
    void (*skipped)(void *arg, const char *what); /* a cell, or a contender, and why */
    bool (*stop)(void *arg);
    void *arg;
} kt_device_listener;

typedef struct kt_device_session {
    const kt_device_options *device;
    const kt_cell_list
        *cells;          /* of a model, as the CPU has them; their m and threads do not count */
    const int64_t *rows; /* [n_rows] of calls, ascending */
    int n_rows;
    int threads; /* of the CPU, for what both sides share */
    bool is_exact, is_pretended;
    bool is_fresh; /* race what the table has of this device, its driver and these kernels, too */
    int most;
    size_t rotation;
    uint64_t seed;
    int64_t deadline_ns;
    kt_device_listener listener;
} kt_device_session;

typedef struct kt_device_outcome {
    char device[128];
    int n_cells, n_decided, n_tuned, n_dropped, n_voided, n_lost, n_shares;
    int n_reused; /* of those decided: by an earlier run, whose rows the table had */
} kt_device_outcome;

/* Decide every distinct product and expert layer of the cells for every number of rows, and put the
 * rows into the table; then the experts' share and the rows from which on prefill goes to the
 * device, where the table has the CPU's rows, too. A cell that cannot be decided is skipped and
 * said. KT_E_NOT_FOUND: no such device. KT_E_CANCELLED: what is decided is in the table. */
kt_status kt_device_session_run(const kt_device_session *session, kt_table *table,
                                kt_device_outcome *out, kt_err *err);

#endif
