/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/gemm/gemm_job.h"

#include "kernels/formats/p64.h"

/* A choice serves the m that the map sends to it, so only the largest of those matters. */
size_t kt_gemm_scratch_bytes(const kt_problem *problem, const kt_choice_map *choices,
                             int64_t max_m) {
    int64_t largest_m[KT_MAX_CHOICES] = {0};
    size_t most = 0;

    for (int64_t m = 1; m <= max_m && m <= KT_M_DENSE; m++) largest_m[choices->index[m]] = m;
    if (max_m > KT_M_DENSE) largest_m[choices->index[KT_M_DENSE]] = max_m;
    for (int i = 0; i < choices->count; i++) {
        const kt_choice *choice = &choices->choice[i];
        kt_problem q = *problem;
        size_t bytes;
        if (!largest_m[i] || !choice->variant->workspace_bytes) continue;
        q.m = largest_m[i];
        bytes = choice->variant->workspace_bytes(&q, &choice->config);
        most = bytes > most ? bytes : most;
    }
    return (most + 63) / 64 * 64;
}

static int64_t tasks_of(const kt_gemm_job *job) {
    const int64_t panels = kt_p64_panels(job->problem->n);
    return job->m > 0 ? panels * kt_share_ceil(job->m, job->share.row_block) : 0;
}

static int64_t prepare(void *arg, int n_threads) {
    kt_gemm_group *group = arg;
    const int is_alike =
        group->n_jobs > 0 && group->jobs[0].problem == group->jobs[group->n_jobs - 1].problem;
    int64_t tasks = 0;

    group->grain = 1;
    for (int i = 0; i < group->n_jobs; i++) {
        kt_gemm_job *job = &group->jobs[i];
        const kt_problem *q = job->problem;
        /* Of one problem (heads) they share the threads; others may be of very different sizes. */
        job->share = kt_share_cut(kt_p64_panels(q->n), kt_p64_panel_bytes(q->weights, q->k), job->m,
                                  is_alike ? group->n_jobs : 1, n_threads);
        if (job->share.panels > group->grain) group->grain = job->share.panels;
        tasks += tasks_of(job);
    }
    return tasks;
}

/* Weights of the task that comes after `panel_end` in order, which a thread's span follows; of p64
 * panels, for others a hint that leads astray without harm. NULL after the last. */
static const void *weights_after(const kt_gemm_job *job, int64_t row, int64_t panel_end) {
    const kt_problem *q = job->problem;
    if (panel_end < kt_p64_panels(q->n))
        return (const char *)job->weights +
               (size_t)panel_end * kt_p64_panel_bytes(q->weights, q->k);
    return row + job->share.row_block < job->m ? job->weights : NULL;
}

/* Tasks of a job walk the panels inside a row block: the rows stay in cache, the weights stream.
 * Runs those of [task, end) that lie in one row block, in one call; returns the first that does
 * not. */
static int64_t run_tasks(const kt_gemm_job *job, int64_t task, int64_t end,
                         const void *next_weights, void *scratch) {
    const kt_choice *choice = kt_choice_for(job->choices, job->m);
    int64_t panels = kt_p64_panels(job->problem->n), panel = task % panels;
    int64_t count = panels - panel < end - task ? panels - panel : end - task;
    int64_t row = task / panels * job->share.row_block;
    int64_t rows = job->m - row < job->share.row_block ? job->m - row : job->share.row_block;
    kt_gemm_call call = {.problem = job->problem,
                         .config = &choice->config,
                         .weights = job->weights,
                         .a = (const char *)job->a + (size_t)row * job->a_stride,
                         .a_stride = job->a_stride,
                         .m = rows,
                         .panel_begin = panel,
                         .panel_end = panel + count,
                         .c = job->c + row * job->ldc,
                         .ldc = job->ldc,
                         .accumulate = job->accumulate,
                         .scratch = scratch};
    call.next = weights_after(job, row, call.panel_end);
    if (!call.next) call.next = next_weights;
    choice->variant->gemm(&call);
    return task + count;
}

static void run(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_gemm_group *group = arg;
    char *scratch = group->scratch;
    int64_t first = 0;

    if (scratch) scratch += (size_t)tid * group->scratch_stride;
    for (int i = 0; i < group->n_jobs && begin < end; i++) {
        int64_t tasks = tasks_of(&group->jobs[i]);
        int64_t last = end < first + tasks ? end : first + tasks;
        const void *next = i + 1 < group->n_jobs ? group->jobs[i + 1].weights : NULL;
        while (begin < last)
            begin = first + run_tasks(&group->jobs[i], begin - first, last - first, next, scratch);
        first += tasks;
    }
}

kt_phase kt_gemm_group_phase(kt_gemm_group *group) {
    return (kt_phase){.prepare = prepare, .run = run, .arg = group, .grain_at = &group->grain};
}
