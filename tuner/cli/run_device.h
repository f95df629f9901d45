/* kttune run --device: the kernels of a GPU, beside what the table has of the CPU.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_RUN_DEVICE_H
#define KT_TUNER_RUN_DEVICE_H

#include <signal.h>

#include "tuner/cli/run_report.h"

/* All borrowed. */
typedef struct kt_device_tuning {
    const kt_run_options *options;
    const kt_fingerprint *machine;
    const kt_cell_list *cells;
    uint64_t shape_id;
    const char *table_path;
    int threads; /* of the CPU, that shares are solved for */
    int64_t deadline_ns;
    const volatile sig_atomic_t *stop;
} kt_device_tuning;

/* Decide, put the rows into the table at table_path (made if it is not there) and say so. *code is
 * the exit code. KT_E_INVALID: a device without a clock and no --pretend-clock, or that without
 * --out, or rows that are none. */
kt_status kt_run_device(const kt_device_tuning *run, int *code, kt_err *err);

#endif
