/* How the work of packed panels times rows is cut into tasks of the thread pool: a task is one panel for a
 * block of rows, and the pool takes several in a row at once.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_SHARE_H
#define KT_KERNELS_SHARE_H

#include <stddef.h>
#include <stdint.h>

/* What a thread takes at once streams about this much weight: long enough to hide the cost of taking it (well
 * under a microsecond against ten or more), short enough to balance by stealing. */
#define KT_SHARE_TASK_BYTES ((int64_t)768 << 10)
/* Takings per thread below which the cut gets finer. */
#define KT_SHARE_TASKS_PER_THREAD 4
/* Rows are cut only when panels are too few, and then into multiples of this: whole row tiles of
 * every kernel (2, 3, 4, 6, 8, 12, 16 rows). Each cut reads the weights once more. */
#define KT_SHARE_ROWS 48

typedef struct kt_share {
    int64_t panels;    /* taken at once: the grain of the phase */
    int64_t row_block; /* rows per task */
} kt_share;

static inline int64_t kt_share_ceil(int64_t x, int64_t y) {
    return (x + y - 1) / y;
}

/* Cut `panels` panels of panel_bytes for m rows into runs of about task_bytes, at least
 * tasks_per_thread of them for each thread. `copies` is how many such matrices the phase works on (the
 * active experts): all share the threads. Never changes a result: panels are disjoint and a row's
 * bits do not depend on the rows beside it. */
static inline kt_share kt_share_cut_by(int64_t task_bytes, int tasks_per_thread, int64_t panels,
                                       size_t panel_bytes, int64_t m, int64_t copies,
                                       int n_threads) {
    int64_t wanted = kt_share_ceil((int64_t)tasks_per_thread * n_threads, copies);
    int64_t runs = kt_share_ceil(panels * (int64_t)panel_bytes, task_bytes);
    kt_share share = {.row_block = m};

    if (n_threads == 1) wanted = 1;
    runs = runs < wanted ? wanted : runs;
    share.panels = panels > runs ? panels / runs : 1;
    runs = kt_share_ceil(panels, share.panels);
    if (runs < wanted && m >= 2 * KT_SHARE_ROWS) {
        int64_t blocks = kt_share_ceil(wanted, runs);
        int64_t rows = kt_share_ceil(m, blocks);
        share.row_block = kt_share_ceil(rows, KT_SHARE_ROWS) * KT_SHARE_ROWS;
    }
    return share;
}

static inline kt_share kt_share_cut(int64_t panels, size_t panel_bytes, int64_t m, int64_t copies,
                                    int n_threads) {
    return kt_share_cut_by(KT_SHARE_TASK_BYTES, KT_SHARE_TASKS_PER_THREAD, panels, panel_bytes, m,
                           copies, n_threads);
}

#endif
