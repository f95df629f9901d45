/* The bench suite "gpu": kernels of a device as fractions of what the device and NVIDIA's own
 * products can do, winner and ceilings in turns within one process.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_GPU_SUITE_H
#define KT_TUNER_GPU_SUITE_H

#include "dispatch/device/device.h"
#include "tuner/session/suite.h"

#define KT_GPU_SUITE_NAME "gpu"
#define KT_GPU_SUITE_ROW_SECONDS 5 /* of a row, all that it needs together, where nobody says */

/* What a row measures. */
typedef enum kt_gpu_kind {
    KT_GPU_COPY = 0, /* bytes read and written by copies from one place of the device to another */
    KT_GPU_PEAK,     /* operations of a large product of cuBLASLt */
    /* Bytes of the weights that a call reads, by its time, over the rate of copies. */
    KT_GPU_OF_COPY,
    /* The least time that a layer can take over the time that it takes. The least is the larger of
     * two: its products, and its weights' bytes at the rate of copies. Products are all rows of the
     * layer through one dense product of cuBLASLt for gate and up, and one for down; of E4M3
     * weights the operations at the peak of a large product. */
    KT_GPU_OF_PRODUCTS,
    KT_GPU_OVER_BF16 /* the time of the same layer in BF16, by its fastest kernel, over the time */
} kt_gpu_kind;

/* An expert layer of random weights, or (experts 0) a dense product of n outputs. */
typedef struct kt_gpu_spec {
    const char *name;
    kt_gpu_kind kind;
    kt_weight_format weights; /* of PEAK: BF16, FP8_B128 or INT8_CHANNEL stand for their numbers */
    int64_t n, k;             /* of experts intermediate and hidden size */
    int64_t experts, topk;
    int64_t rows;     /* tokens of a call */
    double bar;       /* 0 = for information */
    double wgmma_bar; /* where the kernel multiplies by warpgroups; 0 = bar */
} kt_gpu_spec;

extern const kt_gpu_spec kt_gpu_specs[];
extern const int kt_gpu_spec_count; /* <= KT_SUITE_ROWS */

/* The device that a run found. */
typedef struct kt_gpu_facts {
    char device[128], class[16], target[8];
    int multiprocessors;
    uint64_t memory_bytes;
    int driver, mhz;  /* of a GPU: CUDA's version, its highest clock; 0 = unknown */
    char library[48]; /* "cuBLASLt 13.1"; "" = none, or no row needs it */
} kt_gpu_facts;

typedef struct kt_gpu_options {
    const kt_device_options *device; /* borrowed */
    bool is_pretended;               /* times are computed (device_prior.h): no clock worth it */
    bool is_small;                   /* small layers stand for the rows' own: for tests */
    int threads;                     /* of the host, that compile */
    double seconds;                  /* for all rows and all that they need; 0 = a number a row */
    double row_limit;                /* seconds until a row is given up as hanging; 0 = computed */
    uint64_t seed;
    const char *rows;                                     /* a glob; NULL = all */
    bool (*stop)(void *arg);                              /* may be NULL, as the next two */
    void (*begun)(void *arg, const kt_gpu_facts *facts);  /* before the first row */
    void (*measured)(void *arg, const kt_suite_row *row); /* as soon as a row is known */
    void *arg;
} kt_gpu_options;

/* Measure the rows in order, in a process of their own: one that hangs, crashes or loses the device
 * ends with a note, and the next one begins in a new process. For each the fastest right kernel is
 * raced for (device_race.h), then it takes turns with the ceilings; figures are medians of rounds.
 * A row gets an equal share of the time that is left. Rows of cuBLASLt are skipped where there is
 * none. KT_E_NOT_FOUND, KT_E_UNSUPPORTED: no such device. KT_E_INVALID: no row matches.
 * KT_E_CANCELLED: stop said so; rows hold what there is. */
kt_status kt_gpu_suite_run(const kt_gpu_options *options, kt_suite_row rows[KT_SUITE_ROWS],
                           int *n_rows, kt_err *err);

#endif
