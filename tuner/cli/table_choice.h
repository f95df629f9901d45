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

/* Bytes the weights rotate through when cells of this table are timed again: as many as its own run
 * had, when its model can still be found. */
size_t kt_table_rotation_bytes(const kt_workbench *b, const kt_table *table);

/* Exit code for an error about the table or journal that a verb reads: 3 when it is missing, malformed or
 * another machine's. Prints the message. */
int kt_table_verb_fail(const kt_err *err);

#endif
