/* Attention over blocks of keys (exec/ops/attend_blocks.c): what it takes of a step's memory.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_EXEC_KEY_BLOCKS_H
#define KT_RUNTIME_EXEC_KEY_BLOCKS_H

#include "runtime/exec/step.h"

/* Bytes that all such nodes of the step share, of which n is one. Of s the plan, the number of
 * threads, max_rows and max_context are read. SIZE_MAX = too large to count. */
size_t kt_blocks_bytes(const kt_step *s, const kt_node *n);

#endif
