/* One job on a device, to be run again and again by one choice after the other: weights that rotate
 * through more than the device's cache, rows, routing, and a stopwatch.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_DEVICE_BENCH_H
#define KT_TUNER_DEVICE_BENCH_H

#include "dispatch/device/device_experts.h"
#include "dispatch/device/device_gemm.h"
#include "tuner/measure/device_clock.h"

enum { KT_DEVICE_LISTS = 512 };

/* All memory is the device's: given back by kt_device_bench_close, or ended with the device. */
typedef struct kt_device_bench {
    kt_device *d; /* borrowed */
    kt_device_job job;
    int64_t rows;
    int copies;                  /* of the weights, which calls take in turn */
    uint8_t *gate, *up, *down;   /* of a product gate alone; copies lie one behind the other */
    size_t gate_copy, down_copy; /* bytes of a copy */
    float *x, *out, *route;
    int n_lists; /* of the routing, a multiple of copies, which calls take in turn */
    int32_t *id; /* [n_lists] lists of [rows, topk] */
    int16_t used[KT_DEVICE_LISTS]; /* experts that a list names */
    void *scratch;
    size_t scratch_bytes;
    kt_device_clock clock;
    /* Of the choice that was taken last. */
    kt_device_gemm gemm;
    kt_device_experts experts;
} kt_device_bench;

/* Random weights of which the first bytes are drawn and the others are like them; rotation: bytes
 * that the copies should fill. Calls of few rows choose other experts each time, so that none finds
 * its weights in the device's cache. */
kt_status kt_device_bench_open(kt_device *d, const kt_device_job *job, int64_t rows,
                               size_t rotation, uint64_t seed, kt_device_bench *out, kt_err *err);
void kt_device_bench_close(kt_device_bench *b); /* accepts a zeroed one */

/* Code of a choice, and scratch for it. *local_bytes: of a thread's local memory, at most; more
 * than 0 are spills. */
kt_status kt_device_bench_take(kt_device_bench *b, const kt_device_choice *choice, int *local_bytes,
                               kt_err *err);
/* Puts the launches of call number `call`, which says what copy of the weights it takes. */
kt_status kt_device_bench_put(kt_device_bench *b, int call, kt_err *err);
/* Bytes of weights that one of the calls 0 .. n - 1 reads, their mean. */
double kt_device_bench_bytes(const kt_device_bench *b, int n);
/* Nanoseconds of one of n calls by the device's clock: the stream is held until all are put. */
kt_status kt_device_bench_time(kt_device_bench *b, int n, double *ns, kt_err *err);
/* The output [rows, outputs] of the last call, after waiting for it. */
kt_status kt_device_bench_out(kt_device_bench *b, float *out, kt_err *err);

#endif
