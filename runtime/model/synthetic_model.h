/* Models of published shapes with random weights, made in memory: what a machine does with a
 * model can be measured without its checkpoint. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_SYNTHETIC_MODEL_H
#define KT_RUNTIME_SYNTHETIC_MODEL_H

#include "dispatch/model/checkpoint.h"
#include "runtime/model/model_dir.h"

/* Standard deviations of the weights. With all of them equal the tokens of a prompt would pick
 * nearly the same experts: the embedding has to dominate the residual for routing to spread as
 * in a real model. Norms are 1. */
#define KT_SYNTHETIC_EMBEDDING 4.0
#define KT_SYNTHETIC_ROUTER 0.05
#define KT_SYNTHETIC_OTHER 0.02

/* Shape of a model of datasets/workloads by the beginning of its name in any case ("qwen3-30b"),
 * with `layers` of its layers (0 = all). GGUF blocks as `experts` (any other format: no
 * difference) are how its feed-forward matrices are stored. The vocabulary shrinks with the
 * layers and so does the number of leading dense layers, so that the whole model takes
 * layers_of_all / layers times as long. A family that this build does not have is
 * KT_E_UNSUPPORTED. */
kt_status kt_synthetic_dir(const char *name, int64_t layers, kt_weight_format experts,
                           kt_model_dir *out, int64_t *layers_of_all, kt_err *err);

/* The whole of such a shape with its matrices stored as the published checkpoint has them
 * (native_weights and native_linear of datasets/workloads): INT4 of the routed experts only, 8 bits
 * of all but head, router and tables. To be counted, not to be run: it has no checkpoint. */
kt_status kt_published_dir(const char *name, kt_model_dir *out, kt_err *err);

/* Its checkpoint: tensors in BF16, or in blocks, that share pools of random numbers. A few
 * experts are different, the others have the same bytes as one of those. */
kt_status kt_synthetic_checkpoint(const kt_model_dir *dir, uint64_t seed, kt_checkpoint **out,
                                  kt_err *err);

#endif
