/* The lightning indexer: scores of keys by a small attention of their own.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_INDEXER_COMMON_H
#define KT_INDEXER_COMMON_H

#include "kt/variant.h"

#define KT_INDEX_BLOCK 64 /* keys that are turned round together; a page of a cache */

/* For accepts: refuses caches that are not BF16, and keys of no multiple of `step` numbers. */
kt_status kt_index_accepts(const kt_problem *problem, int step, kt_err *why);

#endif
