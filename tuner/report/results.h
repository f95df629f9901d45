/* results/<machine class>/: what a run found, in a form others can check and use.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_RESULTS_H
#define KT_TUNER_RESULTS_H

#include "dispatch/topology/topology.h"

/* Copy the table and the raw journal, write machine.json and a README with the command that repeats
 * them, into folder/<class_name>/ (made when missing). Nothing in them names host or user. */
kt_status kt_results_write(const char *folder, const char *class_name, const char *model,
                           const char *format, const char *table_path, const char *journal_path,
                           const kt_topology *topology, const kt_fingerprint *machine, kt_err *err);

#endif
