/* Dense GEMMs as one phase of the thread pool. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_GEMM_JOB_H
#define KT_KERNELS_GEMM_JOB_H

#include "base/pool.h"
#include "kernels/formats/share.h"
#include "kt/variant.h"

/* c[m, n] = a[m, k] * w[n, k]^T, or += when accumulate is set. All pointers borrowed; the members
 * are read when the phase runs, so m, a and c may change from run to run. */
typedef struct kt_gemm_job {
    const kt_problem *problem; /* m ignored */
    const kt_choice_map *choices;
    const void *weights; /* packed by a choice's variant; 64-byte aligned */
    const void *a;       /* encoded rows (problem->acts), a_stride apart, 64-byte aligned */
    size_t a_stride;
    int64_t m; /* 0 = nothing to do */
    float *c;
    int64_t ldc;
    int accumulate;
    kt_share share; /* set when the phase starts */
} kt_gemm_job;

/* GEMMs that do not depend on each other (query, key, value) run in one phase: one synchronisation.
 * scratch: kt_gemm_scratch_bytes of the neediest job, for each thread; 64-byte aligned; NULL when 0. */
typedef struct kt_gemm_group {
    kt_gemm_job *jobs;
    int n_jobs;
    void *scratch;
    size_t scratch_stride;
    int64_t grain; /* set when the phase starts */
} kt_gemm_group;

/* Scratch per thread that the choices of a map need for up to max_m rows; a multiple of 64. Works
 * for MOE_FFN maps too (max_m = rows of one expert). */
size_t kt_gemm_scratch_bytes(const kt_problem *problem, const kt_choice_map *choices,
                             int64_t max_m);

/* The phase that runs the group, which must outlive the run. */
kt_phase kt_gemm_group_phase(kt_gemm_group *group);

#endif
