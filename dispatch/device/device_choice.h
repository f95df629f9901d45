/* Which kernel with which config multiplies on a device: what could, and what does by the number of
 * rows. The tuner races what kt_device_choices_of lists; the runtime runs a ladder, made of the
 * tuner's rows (dispatch/plan/plan_device.h) or, without any, of the initial configs.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEVICE_DEVICE_CHOICE_H
#define KT_DEVICE_DEVICE_CHOICE_H

#include <stdbool.h>

#include "kernels/cuda/cuda_kernel.h"
#include "kt/problem.h"

enum {
    KT_DEVICE_FEW = 8,    /* rows that kernels of the jobs *_FEW take at once */
    KT_DEVICE_TURNS = 16, /* of a dense product, which they take so many of in turns */
    KT_DEVICE_RUNGS = 12
};

/* A kernel of kernels/cuda with its build constants. `format` among them is that of the weights; of
 * experts that of gate and up, and down's code is made by kt_device_choice_for. */
typedef struct kt_device_choice {
    const kt_cuda_kernel *kernel;
    kt_config config;
} kt_device_choice;

/* What is to be multiplied, as devices have it. rows: of a call, of experts tokens. */
typedef struct kt_device_job {
    kt_op op;                       /* KT_OP_GEMM or KT_OP_MOE_FFN */
    kt_weight_format weights, down; /* kt_device_weight_format; of GEMM down = weights */
    int64_t n, k;                   /* of experts intermediate and hidden size */
    int64_t experts, topk;          /* of GEMM 1 and 1 */
    uint32_t encodings;             /* KT_CUDA_ROWS_* that rows may be rounded to */
    bool has_heads;                 /* several matrices at once, each with rows of its own */
} kt_device_job;

/* The job of a problem (its m is not looked at). Rows become bfloat16; besides, unless is_exact,
 * INT8 where the CPU's own encoding for all of the problem's weights is INT8 in groups of 32, and
 * E4M3 where its weights are E4M3. */
kt_device_job kt_device_job_of(const kt_problem *problem, bool is_exact);

/* Why the choice cannot do the job for calls of so many rows on the target, or NULL. */
const char *kt_device_choice_refuse(const kt_device_choice *choice, const kt_device_job *job,
                                    int64_t rows, const kt_cuda_target *target);
/* Every choice that can, of all kernels and legal configs: up to `most` of them to out (NULL: only
 * count). Returns how many there are. */
int kt_device_choices_of(const kt_device_job *job, int64_t rows, const kt_cuda_target *target,
                         kt_device_choice *out, int most);
/* The same choice for weights of another format. */
kt_device_choice kt_device_choice_for(const kt_device_choice *choice, kt_weight_format format);

/* "bm=64,bn=128": all parameters but the format, as tables and people have it. */
char *kt_device_config_format(const kt_device_choice *choice, char *out, size_t out_bytes);
/* Out of the kernel's name and that text; the format is the job's. KT_E_FORMAT says what is wrong:
 * no such kernel, a parameter that is missing, unknown or has no such value. */
kt_status kt_device_choice_parse(const char *kernel, const char *config, const kt_device_job *job,
                                 kt_device_choice *out, kt_err *err);
bool kt_device_choice_equal(const kt_device_choice *a, const kt_device_choice *b);

/* Choices by the rows of a call: rung i is for those of at most most[i], the last for all others.
 * `most` ascends. */
typedef struct kt_device_ladder {
    int n;
    kt_device_choice choice[KT_DEVICE_RUNGS];
    int64_t most[KT_DEVICE_RUNGS];
} kt_device_ladder;

/* Is the kernel one of few rows? Calls of more than KT_DEVICE_FEW (of a dense product
 * KT_DEVICE_TURNS) are not for it. */
bool kt_device_is_few(const kt_cuda_kernel *kernel);

/* What runs without a table: a kernel of few rows, then tiles as large as the rows of a call; of
 * experts tiles of 16 and 32 rows up to an average share of 10 and 20, because an expert with one
 * row too many opens its weights twice; of more, warpgroups where the target has them. */
void kt_device_ladder_default(const kt_device_job *job, const kt_cuda_target *target,
                              kt_device_ladder *out);
int kt_device_ladder_rung(const kt_device_ladder *ladder, int64_t rows);

#endif
