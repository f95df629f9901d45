/* How often each expert was chosen, of a recorded load (kt-trace-1, datasets/workloads/README.md).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_EXPERT_LOAD_H
#define KT_RUNTIME_EXPERT_LOAD_H

#include <stdint.h>

#include "kt/status.h"

/* Add the rows of every step of the file at path, a file of `kt serve --record-workload`, to
 * rows [layers, most]: of the model's layers with experts in their order, `most` the largest number
 * of experts of one. A last line that was cut is left out. Refuses a file that is no recorded load,
 * has no steps, or names more layers or experts (KT_E_FORMAT). Safe to call from several threads
 * with different rows. */
kt_status kt_expert_load_read(const char *path, int64_t layers, int64_t most, int64_t *rows,
                              kt_err *err);

#endif
