/* New results into a folder of results/ that has some already: machines of one class add to it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_RESULTS_MERGE_H
#define KT_TUNER_RESULTS_MERGE_H

#include "kt/status.h"

/* Write `from`, and what only the table at `to` has, to `to`: rows and plan cells that both have are
 * those of `from`. Without a table at `to` it is a copy; the same file is left alone. KT_E_MISMATCH when the
 * table there is of a machine that cannot run ours. */
kt_status kt_results_merge_table(const char *from, const char *to, kt_err *err);

/* The sessions of both journals: those of `to` in their order, then what only `from` has. Of a
 * session that both have the longer record counts. What is filed is packed, as `to`.gz; an unpacked
 * `to` goes into it. The same file is left alone. */
kt_status kt_results_merge_journal(const char *from, const char *to, kt_err *err);

#endif
