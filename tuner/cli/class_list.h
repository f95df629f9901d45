/* Which class of bits each matrix of a table would keep with --deterministic, and what that costs.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_CLASS_LIST_H
#define KT_TUNER_CLASS_LIST_H

#include "base/json.h"
#include "dispatch/table/table.h"
#include "tuner/cli/workbench.h"

/* To standard output: per matrix the class that is kept and the others that could be, each with
 * its cost in decode and prefill against the fastest variant of any class, from the rows. */
kt_status kt_print_classes(const kt_workbench *b, const kt_table *t, kt_err *err);
/* The same as member "deterministic" of the object that is being written. */
kt_status kt_write_classes(const kt_workbench *b, const kt_table *t, kt_json_writer *w,
                           kt_err *err);

#endif
