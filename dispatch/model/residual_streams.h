/* Verbs of hyper-connections: residual streams side by side instead of one residual, mixed before
 * and after each half of a layer (models_2026.md 3.3, kernels/hyper).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_HYPER_H
#define KT_DISPATCH_HYPER_H

#include "dispatch/model/build.h"

/* The three tensors of a mixture: fn [outputs, count * hidden], base [outputs], scale [3] (or [1]);
 * each F32, named whole in both spellings. */
typedef struct kt_hyper_names {
    kt_name fn, base, scale;
} kt_hyper_names;

/* What a half of a layer begins with and ends in. */
typedef struct kt_hyper_half {
    kt_view x;    /* the streams as one row: what is normed */
    kt_view y;    /* zeros, which the half adds its result to */
    kt_view join; /* for kt_hyper_join */
} kt_hyper_half;

/* The streams, one value in all layers; in the first they begin as copies of the embedding. */
kt_view kt_hyper_streams(kt_build *b, const kt_stream_rule *rule);
kt_hyper_half kt_hyper_mix(kt_build *b, kt_view streams, const kt_hyper_names *names,
                           const kt_stream_rule *rule);
/* The streams anew. ends_layer: their mean becomes the residual when hidden states are asked for.
 */
void kt_hyper_join(kt_build *b, kt_view streams, const kt_hyper_half *half,
                   const kt_stream_rule *rule, bool ends_layer);
/* The residual becomes the streams as one row. */
void kt_hyper_end(kt_build *b, kt_view streams, const kt_hyper_names *names,
                  const kt_stream_rule *rule);

#endif
