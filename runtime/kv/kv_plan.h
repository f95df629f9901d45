/* How many pages and slots memory of a size holds. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_KV_PLAN_H
#define KT_RUNTIME_KV_PLAN_H

#include "runtime/kv/pages.h"

/* Of recurrent models: a sequence's own state, the one that a step writes, and two snapshots. */
#define KT_LEAST_SLOTS 4
#define KT_MOST_SLOTS 64

typedef struct kt_kv_plan {
    int64_t pages, slots; /* slots: 0 without recurrent layers */
    size_t bytes;
} kt_kv_plan;

/* Bytes of a page and of a slot: of all layers, or of those whose part somebody keeps. 0 = such
 * take nothing. */
typedef struct kt_kv_sizes {
    size_t page, slot;
} kt_kv_sizes;
/* Of all layers. A shape that cannot be counted has pages too large for any memory. */
kt_kv_sizes kt_kv_sizes_of(const kt_kv_shape *shape, int64_t state_floats);

/* Pages for one sequence of `context` tokens and KT_LEAST_SLOTS slots. false = too large to
 * count. */
bool kt_kv_plan_least(kt_kv_sizes sizes, int64_t context, kt_kv_plan *out);
/* What `bytes` hold: of recurrent models at most half of them for slots beyond the least. pages may
 * be 0, and are as many as can be numbered where one takes nothing. */
void kt_kv_plan_within(kt_kv_sizes sizes, size_t bytes, kt_kv_plan *out);

/* The pool that an engine makes: what was asked for (kt_kv_plan_within), or with asked 0 one
 * sequence of `context` tokens and half of what then remains of `available` bytes for more, at most
 * KT_MOST_CONTEXTS in all. false = a sequence is too large to count. */
#define KT_MOST_CONTEXTS 16
bool kt_kv_plan_pool(kt_kv_sizes sizes, int64_t context, size_t asked, uint64_t available,
                     kt_kv_plan *out);

#endif
