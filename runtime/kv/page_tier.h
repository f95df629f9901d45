/* Pages in the memory of the host behind a pool that a device keeps: what the device gives up is
 * still there, and comes back over the link instead of being computed again.
 *
 * A page is copied down once, when its 64 tokens are known, and is found by the same chain of texts
 * as in the pool (prefix.h). The longest unused pages are given up, the last ones of a text first.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_KV_PAGE_TIER_H
#define KT_RUNTIME_KV_PAGE_TIER_H

#include "runtime/kv/pages.h"

typedef struct kt_page_tier kt_page_tier;

/* Room for n pages of the pool, which somebody else has all of and copies (elsewhere.save_page).
 * For pools without states of recurrent layers. Ends with kt_pages_deinit. KT_E_UNSUPPORTED: of
 * another pool. */
kt_status kt_page_tier_create(kt_page_pool *p, int64_t n, kt_err *err);
void kt_page_tier_destroy(kt_page_tier *t); /* accepts NULL */
/* All of its memory, to be pinned. */
kt_buffer *kt_page_tier_memory(kt_page_tier *t);

/* A page that is known in the pool behind `before` (KT_PREFIX_NONE = it begins the text). Does
 * nothing without a tier, or where the page before is not in it. */
void kt_page_tier_keep(kt_page_pool *p, uint32_t page, int64_t before, const int32_t *tokens);
/* Pages of the beginning of a text that the pool lacks and the tier has are known to the pool
 * behind this call, as long as it has room. Returns how many came back. */
int64_t kt_page_tier_restore(kt_page_pool *p, const int32_t *tokens, int64_t n);

#endif
