/* Which side runs which node, and what crosses between the sides: a pure function of the graph and
 * of what a device can do. Besides this file, segments.c and runtime/device nothing of the runtime
 * knows that there are devices.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_PLACE_H
#define KT_RUNTIME_PLACE_H

#include "runtime/device/device_op.h"

typedef enum kt_side {
    KT_SIDE_CPU = 0,
    KT_SIDE_DEVICE,
    KT_SIDE_BOTH /* EXPERTS: some on the device, the others on the CPU, at the same time */
} kt_side;

/* Experts of a weight that lie on the device, ascending. */
typedef struct kt_hot_experts {
    const int32_t *id; /* borrowed */
    int64_t n;
} kt_hot_experts;

/* A value whose newest numbers are on another device. */
typedef struct kt_crossing {
    int value, from;
} kt_crossing;

/* Neighbours in the list of nodes that one side runs; of KT_SIDE_BOTH one node. */
typedef struct kt_segment {
    kt_side side;
    int device; /* of KT_SIDE_DEVICE and KT_SIDE_BOTH; 0 on the CPU */
    int first, end;
    const int *up, *down;      /* whole values that go to the device, and to the host, before it */
    const int *down_from;      /* [n_down] the device that each comes from */
    const kt_crossing *across; /* those that come from another device */
    int n_up, n_down, n_across;
    int routing_from;              /* with routing_down: the device */
    bool routing_up, routing_down; /* likewise ids and weights of the last ROUTE */
    bool is_summed_on_device;      /* of KT_SIDE_BOTH: where the residual is */
    bool is_for_long_steps;        /* likewise: no expert lies on the device; those of the CPU cross
                                      for long steps, else nothing of it runs or goes up */
} kt_segment;

typedef struct kt_placement {
    kt_side *side; /* [nodes] */
    int *device;   /* [nodes] which device runs it, or its part; 0 on the CPU */
    int n_devices;
    bool has_all_planes,
        has_all_slots;       /* no key, value or state is the host's; false without any */
    struct kt_placement *of; /* [n_devices] NULL with one device: kt_placement_of */
    const char **why;        /* [nodes] why the CPU runs it, or NULL */
    bool *is_plane_away;     /* [planes] its keys and values are the device's */
    bool *is_slot_away;      /* [slots of states] likewise */
    /* [n_segments] all nodes in order: main_segments of the model, then those of its draft head.
     * Where the device makes what the host reads behind the last node of either, that one's last
     * segment is the CPU's, without nodes. */
    kt_segment *segment;
    int n_segments, main_segments;
    kt_away *away;       /* [weights] */
    kt_hot_experts *hot; /* [weights] of EXPERTS, what was asked for, of those that can run there */
    int32_t *const *place; /* [weights] of EXPERTS that the device takes part in: [count] place in
                              hot, or -1; changes between steps where experts move; of a device's
                              part the same memory */
    kt_arena arena;
} kt_placement;

/* hot: [weights of the graph], for EXPERTS of routed nodes; of the others n is ignored. Dense nodes
 * go to the device whenever their op can run them, unless is_experts_only. What keeps keys and
 * values of one plane, and what reads them, is on one side; so are layers that meet the keys that
 * one of them picked. With several devices a layer's nodes run on the layer's device, and what is
 * needed of another device's values crosses at the cut. *out is ended with kt_placement_deinit.
 * KT_E_NOMEM only. */
kt_status kt_place(const kt_device_ask *ask, const kt_hot_experts *hot, bool is_experts_only,
                   kt_placement *out, kt_err *err);
void kt_placement_deinit(kt_placement *p); /* accepts a zeroed one */

/* What one of the devices has of it: to it, nodes of the others are on the CPU, and segments are
 * those of all. The placement itself where there is one device. */
const kt_placement *kt_placement_of(const kt_placement *p, int device);

/* The layer that each node counts as for the cut, by carrying it from node to node: of those before
 * the first layer 0, behind the last one the last. */
int kt_node_layer(const kt_node *n, int layer_before);

/* "on the CPU: 48 ATTEND (heads of 80 numbers ...), 1 HEAD (no such operation)", or "" when the
 * device runs all. */
char *kt_placement_line(const kt_placement *p, const kt_graph *graph, char *out, size_t out_bytes);

const char *kt_node_kind_name(kt_node_kind kind); /* "rms", as its op's file is named */

#endif
