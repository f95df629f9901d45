/* results/<machine class>/: what runs found, in a form others can check, repeat and use.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_RESULTS_H
#define KT_TUNER_RESULTS_H

#include "dispatch/topology/topology.h"

/* Add the table, the raw journal and the machine's description to folder/<machine class>/ (made
 * when missing): rows and sessions that lie there already and that ours lack stay, a description
 * measured with less noise too. Then write T1, README.md over all tables of that folder with the
 * commands that repeat them, and the checksums of every file. Nothing in these files names a host,
 * a user or a path. */
kt_status kt_results_write(const char *folder, const char *table_path, const char *journal_path,
                           const kt_fingerprint *machine, kt_err *err);

#endif
