/* Lines of a heat map: what differs in m alone. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_HEAT_LINES_H
#define KT_TUNER_HEAT_LINES_H

#include "dispatch/table/table.h"

#define KT_HEAT_LINES 512 /* at most; further ones are left out */

/* One line per matrix and thread count: the first of its rows in the table, which is sorted so that they
 * follow each other. Returns their number. */
int kt_heat_lines(const kt_table *table, size_t first[KT_HEAT_LINES]);

#endif
