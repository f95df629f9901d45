/* The bench suite "line": expert kernels as fractions of what the machine can do, measured in the same
 * run. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_LINE_SUITE_H
#define KT_TUNER_LINE_SUITE_H

#include <stdbool.h>

#include "base/pool.h"
#include "dispatch/registry/registry.h"
#include "dispatch/topology/topology.h"
#include "tuner/measure/stats.h"

#define KT_LINE_ROWS 8

typedef struct kt_line_row {
    char name[40], unit[24];
    double measured;    /* median of the paired fractions */
    double bar;         /* 0 = for information */
    kt_interval spread; /* 95 %, of measured */
    double gbs, gops;   /* of the kernel */
    double ceiling;     /* GB/s or Gop/s of the ceiling in the same rounds */
    char contender[176];
    int rounds;
    bool ok;        /* measured >= bar; rows that could not run are not ok when they have a bar */
    char note[128]; /* why it did not run; "" = it did */
} kt_line_row;

typedef struct kt_line_options {
    int threads;
    double seconds; /* of timing, for all rows; 0 = 12. Choosing the variants comes on top */
    uint64_t seed;
    bool (*stop)(void *arg); /* may be NULL */
    void *stop_arg;
} kt_line_options;

/* Qwen3-30B-A3B experts (hidden 2048, intermediate 768, 128 of which 8 per token), cold weights in
 * 2 MiB pages. Decode rows: one token, bytes of packed weights per time as a fraction of the read
 * stream over the same memory in alternating rounds. 32-row rows: 512 tokens spread evenly, operations
 * as a fraction of the multiply-add peak of the best ISA for the format. The fastest correct variant
 * is raced for first. */
kt_status kt_line_suite(const kt_registry *registry, const kt_fingerprint *machine,
                        const kt_line_options *options, kt_line_row rows[KT_LINE_ROWS], int *n_rows,
                        kt_err *err);

#endif
