/* Choosing cells by words: "m<=4,role=experts". SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_CELL_FILTER_H
#define KT_TUNER_CELL_FILTER_H

#include "tuner/space/cell.h"

/* Keep the cells for which every condition of the comma-separated text holds: m or threads with
 * <=, >=, = and a number; op or role with = and a name. Weights are scaled to sum to 1 again.
 * KT_E_INVALID for a condition that makes no sense or when no cell is left; the list is then
 * unchanged. */
kt_status kt_cells_filter(kt_cell_list *list, const char *conditions, kt_err *err);

/* Keep every n-th cell, beginning with the shard-th (from 1): the shards of a list are disjoint and
 * together the whole. Weights stay those of the whole. KT_E_INVALID unless 1 <= shard <= n. */
kt_status kt_cells_shard(kt_cell_list *list, int64_t shard, int64_t n, kt_err *err);

#endif
