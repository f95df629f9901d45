/* Pinned thread pool that runs phases of tasks.
 *
 * A step of a model is a list of phases. The tasks of a phase are independent; a phase starts when
 * all tasks of the one before are finished. Each thread owns a contiguous span of the phase's
 * tasks, walks it in runs that get shorter towards its end and, when done, steals from the others;
 * nobody waits for a thread that has no task in hand, so a worker that the kernel has put aside
 * delays the step by at most the task it holds.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_POOL_H
#define KT_BASE_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "kt/status.h"

typedef struct kt_pool kt_pool;

typedef struct kt_phase {
    /* Optional serial work before the tasks, run by one thread after the previous phase is complete
     * and visible; returns the number of tasks. NULL = n_tasks. */
    int64_t (*prepare)(void *arg, int n_threads);
    /* Run tasks [begin, end). tid < n_threads identifies scratch; a tid never runs twice at once.
     */
    void (*run)(void *arg, int64_t begin, int64_t end, int tid);
    void *arg;
    int64_t n_tasks;
    int64_t grain; /* tasks that a thread takes at once, at most (fewer towards the end); 0 = 1 */
    const int64_t *grain_at; /* instead of grain, where prepare leaves it; NULL = grain */
} kt_phase;

typedef struct kt_pool_options {
    int n_threads; /* including the caller; 0 = one per usable core (affinity mask and cgroup quota)
                    */
    const int *cpus; /* [n_threads] logical CPUs to pin to, or NULL = distinct cores; borrowed
                        during create. Given, the creating thread is pinned to cpus[0] too, until
                        destroy; else it stays free and only the workers are pinned. */
    int64_t spin_ns; /* how long an idle thread spins before it parks; 0 = default (50 us, more than
                        the pause between two steps), -1 = never spin */
    int no_pin;
} kt_pool_options;

/* options may be NULL. A thread pool of up to 1024 threads. */
kt_status kt_pool_create(const kt_pool_options *options, kt_pool **out, kt_err *err);
void kt_pool_destroy(kt_pool *pool); /* accepts NULL; not during a run */
int kt_pool_threads(const kt_pool *pool);

/* The next runs take place on the first n threads (clamped to 1 .. kt_pool_threads); the others
 * sleep. prepare is told n. A thread that was just looking for work when the limit fell may still
 * take one task, so scratch stays sized by kt_pool_threads. Not during a run. */
void kt_pool_limit(kt_pool *pool, int n);
/* spin_ns as in kt_pool_options, for the next runs. Not during a run. */
void kt_pool_spin(kt_pool *pool, int64_t spin_ns);

/* Run the phases in order; the caller takes part as tid 0 and returns when the last is complete.
 * No allocation, no lock. One run at a time per pool; not reentrant from a task. */
void kt_pool_run(kt_pool *pool, const kt_phase *phases, int n_phases);
/* The same, unless *stop (which others may write meanwhile) is found true before a phase: then that
 * phase and those after it are left out, the prepare of each too, and the result is false. One load
 * a phase. stop may be NULL. */
bool kt_pool_run_until(kt_pool *pool, const kt_phase *phases, int n_phases,
                       const atomic_bool *stop);

/* Usable cores: affinity mask and cgroup CPU quota; >= 1. */
int kt_usable_cores(void);

#endif
