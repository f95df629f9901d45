/* results/<machine class>/: what runs found, in a form others can check, repeat and use.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_RESULTS_H
#define KT_TUNER_RESULTS_H

#include "dispatch/topology/topology.h"

/* Copy the table, the raw journal and the machine's description into folder/<machine class>/ (made
 * when missing), then write README.md there over all tables of that folder, with the commands that
 * repeat them. Nothing in these files names a host, a user or a path. */
kt_status kt_results_write(const char *folder, const char *table_path, const char *journal_path,
                           const kt_fingerprint *machine, kt_err *err);

#endif
