/* Shared by the files of the suite of a device only. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_GPU_SUITE_IMPL_H
#define KT_TUNER_GPU_SUITE_IMPL_H

#include "dispatch/device/cublas_lt.h"
#include "tuner/session/device_race.h"
#include "tuner/session/gpu_suite.h"

enum { KT_GPU_ROUNDS = 64 };

/* One of those that take turns in a round. */
typedef struct kt_gpu_side {
    kt_device_work *put;
    void *arg;
    double pretended_ns;      /* where times are computed */
    int calls;                /* of a sample */
    double ns[KT_GPU_ROUNDS]; /* of a call, by rounds */
} kt_gpu_side;

/* A choice that was raced for. */
typedef struct kt_gpu_kept {
    kt_problem problem;
    kt_device_choice choice;
    int n_raced, n_dropped; /* contenders; of them those that fell out */
} kt_gpu_kept;

/* What the rows of a process share. */
typedef struct kt_gpu_lab {
    const kt_gpu_options *o;
    kt_device_seat seat;
    kt_device_clock clock;
    void *copy_from, *copy_to;
    size_t copy_bytes; /* 0 = not there yet */
    bool was_library_asked, is_checked[KT_LT_KINDS];
    kt_lt *lt; /* NULL = none, and why */
    kt_err no_library;
    double peak[KT_LT_KINDS];            /* Gop/s of a large product; 0 = not measured yet */
    kt_gpu_kept kept[2 * KT_SUITE_ROWS]; /* a row races twice at most */
    int n_kept;
    char first_out[96]; /* of the race in hand: who fell out first, and why */
    int64_t row_end_ns; /* of the row in hand */
} kt_gpu_lab;

/* Opens the device, and cuBLASLt where `needs_library`. */
kt_status kt_gpu_lab_begin(const kt_gpu_options *o, bool needs_library, kt_gpu_lab *out,
                           kt_gpu_facts *facts, kt_err *err);
/* Whether the device was lost since: nothing but the end of the process is to be done then. */
bool kt_gpu_lab_is_spoilt(kt_gpu_lab *lab);

/* Bytes that copies of weights should fill: four times the largest cache of known GPUs. */
static inline size_t kt_gpu_lab_rotation(const kt_gpu_lab *lab) {
    return lab->o->is_small ? 1 : (size_t)512 << 20;
}

/* The fastest right kernel, by a race that takes a part of the row's time. */
kt_status kt_gpu_lab_pick(kt_gpu_lab *lab, const kt_problem *problem, const kt_gpu_kept **out,
                          kt_err *err);
/* Rounds of all sides until the row's time is spent, at least five. */
kt_status kt_gpu_lab_rounds(kt_gpu_lab *lab, kt_gpu_side *side, int n, int *rounds, kt_err *err);

/* Copies from one place of the device to another; bytes that one of them reads and writes. */
kt_status kt_gpu_lab_copies(kt_gpu_lab *lab, kt_gpu_side *out, double *bytes, kt_err *err);

/* A product of cuBLASLt on random numbers, done the fastest of its ways. */
typedef struct kt_gpu_product {
    kt_lt_product *product; /* NULL = there is none */
    int way;
    void *a, *w, *c;
    double operations;
} kt_gpu_product;

/* KT_E_UNSUPPORTED: no library, with the reason. */
kt_status kt_gpu_product_make(kt_gpu_lab *lab, kt_lt_kind kind, int64_t m, int64_t n, int64_t k,
                              kt_gpu_product *out, kt_err *err);
void kt_gpu_product_drop(kt_gpu_lab *lab, kt_gpu_product *p); /* accepts a zeroed one */
kt_device_work kt_gpu_product_put;                            /* of a kt_gpu_product */
/* A large one, by which peaks are measured. */
kt_status kt_gpu_product_large(kt_gpu_lab *lab, kt_lt_kind kind, kt_gpu_product *out, kt_err *err);

/* Measures one row. Errors are the row's note; KT_E_UNSUPPORTED: it is skipped. */
kt_status kt_gpu_row_measure(kt_gpu_lab *lab, const kt_gpu_spec *spec, kt_suite_row *row,
                             kt_err *err);

/* ---- the suite (gpu_suite.c) ---- */

/* What a run is about. */
typedef struct kt_gpu_plan {
    const kt_gpu_options *o;
    const kt_gpu_spec *spec[KT_SUITE_ROWS];
    int n;
    int64_t end_ns; /* of all */
} kt_gpu_plan;

bool kt_gpu_needs_library(const kt_gpu_spec *spec);
/* Name, bar and unit of a row that was not measured yet. */
void kt_gpu_row_name(const kt_gpu_spec *spec, kt_suite_row *row);
/* The bar that the row's kernel has to keep. */
double kt_gpu_bar_of(const kt_gpu_spec *spec, const kt_cuda_kernel *kernel);
/* The bar of INT4 over BF16: none where INT8 tensor cores are not that much faster than those of
 * BF16, by the rates of large products. */
double kt_gpu_bar_over_bf16(double bar, double int8_rate, double bf16_rate);
/* What became of a row: status and message of its measurement. */
void kt_gpu_row_settle(kt_suite_row *row, kt_status status, const kt_err *why);
/* All rows of the plan, in processes of their own (gpu_suite_child.c). */
kt_status kt_gpu_suite_in_child(const kt_gpu_plan *plan, kt_suite_row *rows, int *n_rows,
                                kt_err *err);

#endif
