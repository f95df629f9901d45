/* Experts that move between the host and a device while serving, by what the traffic chooses.
 *
 * The host keeps the panels of all experts, so an expert leaves the device by a word: the CPU has
 * it from the next step on. Another is then copied into its place behind the running steps, and
 * computed there when all of it has arrived. Both changes happen between steps: in every step each
 * expert is on exactly one side. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_EXPERT_MOVES_H
#define KT_RUNTIME_EXPERT_MOVES_H

#include "runtime/device/expert_stream.h"

/* One expert for another. */
typedef struct kt_exchange {
    int32_t in, out;
} kt_exchange;

/* The expert of the host (place < 0) that was chosen most for the expert of the device that was
 * chosen least. false: it was not chosen so much more often that the exchange is sure to pay: by a
 * quarter and KT_MOVE_MARGIN rows. Experts that are_moving are left alone. heat: [experts] rows. */
enum { KT_MOVE_MARGIN = 8 };
bool kt_exchange_find(const int64_t *heat, const int32_t *place, const bool *is_moving,
                      int64_t experts, kt_exchange *out);

typedef struct kt_expert_moves kt_expert_moves;

/* For layers that have experts on both sides. Ends with the step. place: [weights] tables of the
 * placement, which change. */
kt_status kt_expert_moves_create(kt_device_step *d, kt_expert_stream *stream, kt_expert_moves **out,
                                 kt_err *err);

/* What a layer's rows were routed to, -1 = nothing. */
void kt_expert_moves_note(kt_expert_moves *m, int weight, const int32_t *expert_id, int64_t ids);

/* Between steps, when KT_STREAM_MAIN is idle: experts that have arrived are computed on the device
 * from now on; layers that have seen enough rows begin an exchange. */
kt_status kt_expert_moves_advance(kt_expert_moves *m, kt_err *err);

/* Experts that have arrived so far. */
int64_t kt_expert_moves_done(const kt_expert_moves *m);

#endif
