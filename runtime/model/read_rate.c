/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/read_rate.h"

#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/err.h"

#define PIECE ((size_t)2 << 20)

typedef struct piece {
    const kt_tensor *tensor;
    size_t offset, bytes;
    size_t at; /* in the copy */
} piece;

typedef struct reading {
    const kt_checkpoint *checkpoint;
    const piece *pieces;
    const kt_buffer *copy; /* NULL = sum up */
    atomic_ullong sum;     /* so that reading cannot be left out */
    atomic_int bad;
} reading;

static void read_pieces(void *arg, int64_t begin, int64_t end, int tid) {
    reading *r = arg;
    (void)tid;

    for (int64_t i = begin; i < end; i++) {
        const piece *p = &r->pieces[i];
        const uint8_t *from = p->tensor->data + p->offset;
        kt_checkpoint_populate(r->checkpoint, p->tensor, p->offset, p->bytes);
        if (!r->copy)
            atomic_fetch_xor(&r->sum, kt_checksum(from, p->bytes));
        else if (kt_buffer_populate(r->copy, p->at, p->bytes, NULL) == KT_OK)
            memcpy((uint8_t *)r->copy->data + p->at, from, p->bytes);
        else
            atomic_store(&r->bad, 1);
        kt_checkpoint_release(r->checkpoint, p->tensor, p->offset, p->bytes);
    }
}

static double run(reading *r, int64_t n, kt_pool *pool) {
    const kt_phase phase = {.run = read_pieces, .arg = r, .n_tasks = n};
    const int64_t start = kt_clock_ns();

    kt_pool_run(pool, &phase, 1);
    return (double)(kt_clock_ns() - start) * 1e-9;
}

/* Pieces of tensors, in the order of the list; NULL = no memory. */
static piece *cut(const kt_checkpoint *c, int64_t *n, size_t *bytes) {
    const size_t count = kt_checkpoint_count(c);
    piece *list;
    size_t most = 0;

    *n = 0;
    *bytes = 0;
    for (size_t i = 0; i < count; i++) most += kt_checkpoint_at(c, i)->bytes / PIECE + 1;
    list = calloc(most + 1, sizeof *list);
    for (size_t i = 0; list && i < count; i++) {
        const kt_tensor *t = kt_checkpoint_at(c, i);
        for (size_t at = 0; at < t->bytes; at += PIECE) {
            const size_t size = t->bytes - at < PIECE ? t->bytes - at : PIECE;
            list[(*n)++] = (piece){t, at, size, *bytes};
            *bytes += size;
        }
    }
    return list;
}

kt_status kt_read_rate_measure(const kt_checkpoint *checkpoint, kt_pool *pool, kt_read_rate *out,
                               kt_err *err) {
    const kt_checkpoint *panels = kt_checkpoint_panels(checkpoint);
    const kt_checkpoint *c = panels ? panels : checkpoint;
    const size_t room = (size_t)(kt_memory_available_bytes() / 2);
    reading r = {.checkpoint = c};
    kt_buffer copy = {0};
    int64_t n = 0, n_copied = 0;
    piece *pieces = cut(c, &n, &out->bytes);
    kt_status st = pieces ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for a list of tensors");

    r.pieces = pieces;
    if (st == KT_OK) {
        out->read_seconds = run(&r, n, pool);
        while (n_copied < n && pieces[n_copied].at + pieces[n_copied].bytes <= room) n_copied++;
        out->copied = n_copied < n ? pieces[n_copied].at : out->bytes;
        st = kt_buffer_reserve(out->copied, KT_PAGES_ADVISED, -1, &copy, err);
    }
    if (st == KT_OK) {
        r.copy = &copy;
        out->copy_seconds = run(&r, n_copied, pool);
        if (atomic_load(&r.bad))
            st = kt_fail(err, KT_E_NOMEM, "no memory for a copy of %zu MiB", out->copied >> 20);
    }
    kt_buffer_destroy(&copy);
    free(pieces);
    return st;
}
