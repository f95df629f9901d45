/* What a model takes of a device's memory, counted before its first byte is loaded.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_DEVICE_MEMORY_H
#define KT_RUNTIME_DEVICE_MEMORY_H

#include "runtime/kv/kv_plan.h"
#include "runtime/exec/place.h"

typedef struct kt_device_memory_request {
    const kt_device_ask *ask; /* borrowed, as all below */
    const kt_placement *placement;
    size_t kv_memory;   /* of pages and states of all layers; 0 = one context */
    int64_t logit_rows; /* 0 = 1 */
    size_t staging;     /* for experts that cross (stream_plan.h) */
    uint64_t available; /* bytes that are free */
} kt_device_memory_request;

/* In the order in which memory is given: what comes first is there even when the rest is not. */
typedef struct kt_device_memory_plan {
    size_t dense;   /* weights of all nodes but routed experts */
    size_t cache;   /* keys, values and states of the nodes that run there */
    size_t working; /* values, tables, sums, logits, and room for kernels */
    size_t experts;
    size_t staging; /* buffers for experts that cross */
    size_t needed;
    uint64_t available;
    int64_t n_experts; /* on the device, of all layers together */
    kt_kv_plan pool;   /* of the cache, with the bytes that are there; zeros = it is the CPU's. What
                          takes nothing there is as much as there can be. */
} kt_device_memory_plan;

/* Bytes of a whole weight there; SIZE_MAX where devices have no such format. */
size_t kt_device_weight_bytes(const kt_model_plan *plan, int weight);
/* Bytes of one expert of a weight there; 0 = not EXPERTS, or its format is none of devices. */
size_t kt_device_expert_bytes(const kt_model_plan *plan, int weight);

kt_status kt_device_memory_count(const kt_device_memory_request *request,
                                 kt_device_memory_plan *out, kt_err *err);

/* Count the cache again, with so many pages and slots of the layers that are there. */
void kt_device_memory_set_pool(const kt_device_memory_request *request, int64_t pages,
                               int64_t slots, kt_device_memory_plan *p);

/* KT_OK when it fits; else KT_E_NOMEM with the numbers and what would fit. name: of the device. */
kt_status kt_device_memory_check(const kt_device_memory_plan *p, const char *name, kt_err *err);

/* "emulated: 0.70 of 1.00 GiB (dense 0.10, cache 0.20, working memory 0.10, 12 experts 0.30)" */
char *kt_device_memory_line(const kt_device_memory_plan *p, const char *name, char *out,
                            size_t out_bytes);

#endif
