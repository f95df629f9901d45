/* Guarded memory for tests: the bytes end at an inaccessible page. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_GUARD_H
#define KT_TESTS_GUARD_H

#include <stddef.h>

/* size bytes aligned to align whose end, rounded up to align, touches an inaccessible page; filled
 * with `fill`. Never NULL (aborts the test process). Freed by kt_guard_free. */
void *kt_guard_alloc(size_t size, size_t align, int fill);
void kt_guard_free(void *p);

/* Path of a data file into out: one that travels with the tree (tests/data/packed, unpacked by the build), else
 * one of the shared data folder ($KT_SHARED, default ../shared seen from the source tree). NULL when neither
 * has it, so that the caller can skip with a message. `relative` starts with "data/". */
const char *kt_shared_path(const char *relative, char *out, size_t out_bytes);

#endif
