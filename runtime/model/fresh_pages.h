/* Memory that is given its pages just before it is written, by the thread that writes: a page that
 * was zeroed a moment ago still lies in a cache, so it does not go to memory twice.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_FRESH_PAGES_H
#define KT_RUNTIME_FRESH_PAGES_H

#include <stdatomic.h>
#include <stddef.h>

#include "base/buffer.h"

typedef struct kt_fresh_pages {
    const kt_buffer *buffer; /* borrowed; NULL = nothing to give */
    atomic_uchar *given;     /* [n] of each piece: a thread has it in hand */
    size_t n;
} kt_fresh_pages;

/* For a buffer of kt_buffer_reserve. KT_E_NOMEM when the list does not fit. */
kt_status kt_fresh_pages_init(kt_fresh_pages *f, const kt_buffer *buffer, kt_err *err);
void kt_fresh_pages_deinit(kt_fresh_pages *f); /* accepts all zeros */

/* `bytes` from `at` are about to be written. Nothing happens outside of the buffer, or where
 * another thread was first. Thread-safe. Fails as kt_buffer_populate. */
kt_status kt_fresh_pages_give(kt_fresh_pages *f, const void *at, size_t bytes, kt_err *err);

/* What nobody has asked for yet. */
kt_status kt_fresh_pages_give_rest(kt_fresh_pages *f, kt_err *err);

#endif
