/* What a model asks of kernels: which problems, how often, in which formats. Cells of the tuner,
 * the plan, the loader and every count of bytes come from here.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_NEEDS_H
#define KT_DISPATCH_NEEDS_H

#include "dispatch/model/graph.h"
#include "dispatch/model/quant.h"

/* The format that a part of a matrix becomes under --weights, or that was chosen for it. */
kt_weight_format kt_weight_becomes(const kt_weight *w, int part, kt_quant quant);

/* Parts [first, first + n) of a weight that are packed as one: neighbours of one format, or an
 * expert's three. */
typedef struct kt_run {
    int first, n;
    int64_t at;         /* first output */
    kt_problem problem; /* m = 0, acts none */
} kt_run;

/* The runs of a weight that kernels multiply with, at most KT_WEIGHT_PARTS; 0 for the other
 * kinds. */
int kt_weight_runs(const kt_weight *w, kt_quant quant, kt_run runs[KT_WEIGHT_PARTS]);

/* Is a matrix stored in fewer bits already, so that quantising it again loses a second time? */
bool kt_weight_is_quantised(const kt_weight *w);
/* May a model's weights become `quant`? Refused are formats that are never made from other weights
 * (GGUF blocks), and for panels of a converted folder whatever they are not. `model` names it in
 * the message. KT_E_UNSUPPORTED. */
kt_status kt_graph_check_quant(const kt_graph *g, kt_quant quant, const char *model, kt_err *err);

/* Bytes as floats are stored: tables and routers keep BF16, what is in other float types is
 * widened to f32. */
kt_weight_format kt_weight_kept_as(const kt_weight *w);

/* One distinct problem of a model. */
typedef struct kt_need {
    const char *role;
    kt_problem problem;
    int64_t times; /* matrices of that kind, or layers with such experts */
} kt_need;

/* Do two runs need the same packing and kernels (activations and rows aside)? */
int kt_need_is_same(const kt_problem *a, const kt_problem *b);

/* All distinct problems in the order of first use; *out is the caller's to free. */
kt_status kt_graph_needs(const kt_graph *g, kt_quant quant, kt_need **out, int *count, kt_err *err);

#endif
