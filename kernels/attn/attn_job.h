/* Attention of one step's rows as phases of the thread pool. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ATTN_JOB_H
#define KT_KERNELS_ATTN_JOB_H

#include <stdbool.h>

#include "base/pool.h"
#include "kt/variant.h"

#define KT_ATTN_PHASES 2
#define KT_ATTN_SPLIT_ROWS 4 /* spans of at most so many rows may have their context shared out */

/* What runs spans of different sizes, where that was measured: the entry nearest to a span's rows
 * and keys, by ratio, does. So a row's bits follow from its own sequence. */
#define KT_ATTN_SIZES 6
typedef struct kt_attn_choices {
    int n; /* 0 = one choice for all */
    struct {
        int64_t rows, keys;
        kt_choice choice;
    } at[KT_ATTN_SIZES];
} kt_attn_choices;

/* The one for a span; `standard` where there are none. */
const kt_choice *kt_attn_choose(const kt_attn_choices *choices, const kt_choice *standard,
                                int64_t rows, int64_t keys);
/* The one that needs most scratch for this problem: give it to kt_attn_job_bytes and, as
 * job->choice, to kt_attn_job_init. */
const kt_choice *kt_attn_largest(const kt_attn_choices *choices, const kt_choice *standard,
                                 const kt_problem *problem);

/* Rows of one sequence. */
typedef struct kt_attn_span {
    const uint32_t *page; /* numbers of its pages of 64 keys (kt_attn_call), or NULL: no pages */
    int64_t first_row, rows;
    /* Set by kt_attn_job_prepare, for the job that runs: tasks and joined rows of the spans before,
     * chunks with a key that one of the rows sees, and where the first row's first chunk is kept.
     */
    int64_t first_task, first_joined, first_chunk, chunks, first_cell;
    const kt_choice *choice;
    bool split;
} kt_attn_span;

/* One layer's attention over rows of many sequences. Set the members down to `ldo`, then
 * kt_attn_job_init; they may change between runs within the limits given there. All pointers are
 * borrowed.
 *
 * Tasks are spans x kv heads x blocks of rows. Where those are few to a thread (decode with few kv
 * heads), spans of at most KT_ATTN_SPLIT_ROWS rows are cut into chunks of the context instead,
 * joined by the second phase. Where there are few tasks even so and many query heads share a kv
 * head (latent attention), each task is cut into parts of the heads. Whatever is cut, the
 * results are the same bits, for any number of threads. */
typedef struct kt_attn_job {
    const kt_choice *choice;
    const kt_attn_choices *choices; /* for spans by their sizes; NULL = choice for all */
    kt_problem problem; /* n, k, kv_heads, v, window, weights; m and context are the job's own */
    const float *q;     /* [rows, ldq] */
    int64_t ldq;
    const void *k, *v; /* kv head h's cache starts h * head_stride elements in, rows ldkv apart */
    int64_t page_stride, scale_page_stride; /* of spans with pages (kt_attn_call) */
    int64_t head_stride, ldkv;
    int64_t v_head_stride, ldv;     /* of values; both 0 = as of keys */
    const float *k_scale, *v_scale; /* of 8-bit caches: kv head h's start at h * scale_stride */
    int64_t scale_stride;
    float scale;
    const float *sink;       /* NULL, or [n] (kt_attn_call) */
    const int32_t *position; /* [rows], below max_context of init */
    int64_t rows;
    kt_attn_span *spans; /* [n_spans] that cover the rows in order; NULL = one, without pages */
    int64_t n_spans;
    float *out; /* [rows, ldo] */
    int64_t ldo;

    void *workspace;      /* set by init */
    size_t scratch_bytes; /* per thread */
    float *part, *stats;  /* [cells, n * v] and [cells, 2 n]; a cell is a chunk of a split row */
    int64_t max_cells, block_rows;
    int64_t head_parts, joined; /* joined: rows of split spans */
    kt_attn_span whole;         /* when there are no spans */
} kt_attn_job;

/* Workspace for contexts up to max_context on n_threads threads; 0 when that overflows size_t. */
size_t kt_attn_job_bytes(const kt_choice *choice, const kt_problem *problem, int64_t max_context,
                         int n_threads);

/* Lay out the workspace (64-byte aligned, at least kt_attn_job_bytes). */
kt_status kt_attn_job_init(kt_attn_job *job, int64_t max_context, int n_threads, void *workspace,
                           size_t workspace_bytes, kt_err *err);

/* Decide how to cut the current rows; the number of tasks. One thread, before the tasks. */
int64_t kt_attn_job_prepare(void *job, int n_threads);
/* Tasks [begin, end) on thread tid. */
void kt_attn_job_run(void *job, int64_t begin, int64_t end, int tid);
/* After all tasks: rows x heads to join, 0 when the context was not cut; and the joining. */
int64_t kt_attn_job_merge_count(void *job, int n_threads);
void kt_attn_job_merge(void *job, int64_t begin, int64_t end, int tid);

/* The four functions above as phases. */
void kt_attn_job_phases(kt_attn_job *job, kt_phase phases[KT_ATTN_PHASES]);

#endif
