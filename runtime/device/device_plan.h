/* What a device will do and hold of a model, before anything is loaded.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_DEVICE_PLAN_H
#define KT_RUNTIME_DEVICE_PLAN_H

#include "runtime/device/device_memory.h"
#include "runtime/device/hot_experts.h"
#include "runtime/device/layer_cut.h"
#include "runtime/device/stream_plan.h"

/* What was asked for; strings borrowed. */
typedef struct kt_device_wish {
    const char *gpu_experts, *expert_placement, *expert_load; /* hot_experts.h */
    const char *prefill_offload;                              /* stream_share.h */
    bool experts_only;  /* everything but routed experts stays on the CPU */
    size_t kv_memory;   /* 0 = one context */
    int64_t logit_rows; /* 0 = 1 */
    bool is_cut;        /* experts of the CPU lie in pieces over memory nodes */
    bool allow_nonfinite;
    const char *split;     /* of several devices: layer_cut.h; NULL = by their free memory */
    const kt_table *table; /* whose cell cpu_gpu_split bounds "auto" experts, and whose cell
                              prefill_offload is "auto" prefill; NULL = none */
} kt_device_wish;

typedef struct kt_device_plan {
    kt_placement placement;
    int n_devices;
    kt_device_memory_plan memory[KT_DEVICES_MOST]; /* of each device */
    int first_layer[KT_DEVICES_MOST], end_layer;   /* of each device, and behind the last one's */
    kt_kv_plan pool; /* what all devices that keep any have room for, with the bytes of all of
                        them; zeros = the host's pool */
    kt_stream_plan stream;
    kt_arena hot; /* of the placement's experts */
} kt_device_plan;

/* devices: [n], borrowed; of several each has a run of layers (layer_cut.h), for which KT_E_INVALID
 * and KT_E_UNSUPPORTED are errors, too. Each has buffers of the same size for its own experts that
 * cross or move, and the pages and slots of all for its own layers.
 *
 * Place nodes and experts, and size the buffers for those that cross: fewer experts in a buffer
 * where room is short, and none with "auto" prefill where there is not even room for one. "auto"
 * experts are as many as there is room for behind all else, and no more than with which both sides
 * end at the same time, where the table knows. Whether it fits is the caller's question
 * (kt_device_memory_check). ask->target is filled in. */
kt_status kt_device_plan_make(kt_device *const *devices, int n, kt_device_ask *ask,
                              const kt_device_wish *wish, kt_device_plan *out, kt_err *err);
void kt_device_plan_deinit(kt_device_plan *p); /* accepts a zeroed one */

/* KT_OK when all fit (kt_device_memory_check). */
kt_status kt_device_plan_check(const kt_device_plan *p, kt_device *const *devices, kt_err *err);
/* "emulated", or "device 1 of 2, layers 3 to 5 (emulated)". */
char *kt_device_plan_name(const kt_device_plan *p, kt_device *const *devices, int i, char *out,
                          size_t out_bytes);

/* Does the device keep the keys, values and states of all nodes? Of any? */
bool kt_device_keeps_all(const kt_placement *p, const kt_graph *graph);
bool kt_device_keeps_any(const kt_placement *p, const kt_graph *graph);

#endif
