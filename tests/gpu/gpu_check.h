/* What the files of gpu_check share. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_GPU_CHECK_H
#define KT_TESTS_GPU_CHECK_H

#include "base/json.h"
#include "dispatch/device/device.h"

typedef struct gpu_check {
    kt_device *d;
    kt_json_writer w;
    const char *path; /* of the report as JSON; NULL = none */
    int n_wrong, n_rows, seeds;
} gpu_check;

/* One figure; `bar` below 0 = none. */
void gpu_check_row(gpu_check *c, const char *name, double measured, double bar, const char *unit,
                   bool ok, const char *note);
/* Ends and writes the report: the program's exit code. */
int gpu_check_end(gpu_check *c, kt_status st, const kt_err *err);

/* How long letters to the host and their answers take, and what functions of the host hold up. It
 * never waits for ever: where nothing has been heard of the device for 5 s the report ends with a
 * row that says so, and with it the program. */
kt_status gpu_check_letters(gpu_check *c, kt_err *err);

#endif
