/* Which keys have the highest scores. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_INDEXER_PICK_H
#define KT_INDEXER_PICK_H

#include <stdint.h>

/* The numbers of the `count` highest of n scores to picked [count], ascending: among equal scores
 * the lower number comes first. -0 is 0, and NaN is below every number. 0 <= count <= n < 2^31.
 * Baseline code without memory of its own: the same set on every machine. Thread-safe. */
void kt_index_pick(const float *score, int64_t n, int64_t count, int32_t *picked);

#endif
