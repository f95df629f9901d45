/* Which table a verb is about, and what can be said when there is none.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_TABLE_CHOICE_H
#define KT_TUNER_TABLE_CHOICE_H

#include "dispatch/table/table.h"
#include "tuner/cli/workbench.h"

/* Load the table at `path`, or, when path is NULL, the one that serving `model` would use here.
 * KT_E_NOT_FOUND when there is none. where receives its path. */
kt_status kt_table_choose(const kt_workbench *b, const char *path, const char *model, char *where,
                          size_t where_bytes, kt_table **out, kt_err *err);

/* Exit code for an error about the table or journal that a verb reads: 3 when it is missing, malformed or
 * another machine's. Prints the message. */
int kt_table_verb_fail(const kt_err *err);

#endif
