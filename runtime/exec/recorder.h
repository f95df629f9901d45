/* Recording what a server's steps route to which expert: kt-trace-1 of
 * datasets/workloads/README.md. Numbers only; see there what they may still tell.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_RECORDER_H
#define KT_RUNTIME_RECORDER_H

#include <stdint.h>

#include "base/log.h"
#include "kt/status.h"

typedef struct kt_recorder kt_recorder;

typedef struct kt_recorder_options {
    const char *path;  /* an existing file is replaced */
    int64_t max_bytes; /* of path and path.1 together; 0 = 256 MiB, at least 1 MiB */
    const char *model;
    const char *weights, *kv; /* as --weights and --kv name them, or a format's name */
    int64_t experts, topk, moe_layers, threads;
    int64_t max_rows;  /* of a step */
    const kt_log *log; /* one warning when writing fails; borrowed */
} kt_recorder_options;

/* Start the file. Each step is one write of one whole line, so that a killed server leaves at
 * most one line cut. A file that has half of max_bytes becomes path.1 (instead of an older one)
 * and a new one, with a header of its own, begins: the latest steps are always there. */
kt_status kt_recorder_open(const kt_recorder_options *options, kt_recorder **out, kt_err *err);
/* Can path be written? Leaves no file behind that was not there. */
kt_status kt_recorder_check(const char *path, kt_err *err);
void kt_recorder_close(kt_recorder *r); /* accepts NULL */

/* One step, by the engine's thread: begin, then for each MoE layer in order begin_layer and its
 * experts with rows, ascending; then end. Nothing allocates. */
void kt_recorder_begin(kt_recorder *r);
void kt_recorder_layer(kt_recorder *r);
void kt_recorder_expert(kt_recorder *r, int64_t expert, int64_t rows);

typedef struct kt_recorded_step {
    int64_t decode, prefill, logits, context, time_ns;
} kt_recorded_step;

void kt_recorder_end(kt_recorder *r, const kt_recorded_step *step);

/* Steps written, and steps lost because writing failed. */
int64_t kt_recorder_steps(const kt_recorder *r);
int64_t kt_recorder_lost(const kt_recorder *r);

#endif
