/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/fresh_pages.h"

#include <stdint.h>
#include <stdlib.h>

#include "base/err.h"

#define PIECE ((size_t)2 << 20) /* a large page */

kt_status kt_fresh_pages_init(kt_fresh_pages *f, const kt_buffer *buffer, kt_err *err) {
    *f = (kt_fresh_pages){.n = (buffer->mapped_bytes + PIECE - 1) / PIECE};
    f->given = calloc(f->n + 1, sizeof *f->given);
    if (!f->given) return kt_fail(err, KT_E_NOMEM, "no memory for a list of %zu pages", f->n);
    f->buffer = buffer;
    return KT_OK;
}

void kt_fresh_pages_deinit(kt_fresh_pages *f) {
    free(f->given);
    *f = (kt_fresh_pages){0};
}

static kt_status give(kt_fresh_pages *f, size_t piece, kt_err *err) {
    if (atomic_load_explicit(&f->given[piece], memory_order_relaxed) ||
        atomic_exchange(&f->given[piece], 1))
        return KT_OK;
    return kt_buffer_populate(f->buffer, piece * PIECE, PIECE, err);
}

kt_status kt_fresh_pages_give(kt_fresh_pages *f, const void *at, size_t bytes, kt_err *err) {
    const uintptr_t begin = f->buffer ? (uintptr_t)f->buffer->data : 0;
    const uintptr_t first = (uintptr_t)at - begin; /* wraps around below the buffer */

    if (!f->buffer || bytes == 0 || first >= f->buffer->mapped_bytes) return KT_OK;
    for (size_t i = first / PIECE; i < f->n && i * PIECE < first + bytes; i++)
        KT_TRY(give(f, i, err));
    return KT_OK;
}

kt_status kt_fresh_pages_give_rest(kt_fresh_pages *f, kt_err *err) {
    for (size_t i = 0; i < f->n; i++) KT_TRY(give(f, i, err));
    return KT_OK;
}
