/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/report/plan_words.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tuner/session/layer_cells.h"

static bool is_layer_gain(const kt_table_plan *p) {
    return strcmp(p->cell, "layer_gain") == 0;
}

static double gain_of(const kt_table_plan *p) {
    return p->row.default_ns / p->row.time_ns - 1;
}

bool kt_plan_is_about(const kt_table_plan *p, double noise) {
    return fabs(gain_of(p)) < 2 * noise ||
           (is_layer_gain(p) && kt_realised_gain(p, noise) < KT_LEAST_REALISED);
}

/* What is known: whether the layer can tell the two apart at all, and how unevenly its experts were
 * loaded, since the last one to finish counts and cells know nothing of that. */
static void layer_words(const kt_table_plan *p, double noise, char *out, size_t out_bytes) {
    double realised = kt_realised_gain(p, noise), promised = 100 * (p->predicted - 1);
    double half = 50 * (p->row.ci_high - p->row.ci_low);

    if (p->predicted <= 0)
        snprintf(out, out_bytes, "nothing predicted: rows are missing");
    else if (isnan(realised))
        snprintf(out, out_bytes, "predicted %+.1f %%, within the noise", promised);
    else if (realised >= KT_LEAST_REALISED)
        snprintf(out, out_bytes, "%.0f %% of the predicted %+.1f %% is there", 100 * realised,
                 promised);
    else if (gain_of(p) <= 0) /* a negative share would say nothing */
        snprintf(
            out, out_bytes,
            "≈ nothing of the predicted %+.1f %% is there: the layer does not gain (±%.1f %%); "
            "the fullest expert has %.1f times the mean rows",
            promised, half, p->imbalance);
    else
        snprintf(out, out_bytes,
                 "≈ only %.0f %% of the predicted %+.1f %% is there: %s (±%.1f %%); the fullest "
                 "expert has %.1f times the mean rows",
                 100 * realised, promised,
                 strcmp(p->row.status, "tuned") == 0 ? "the layer gains for sure, but less"
                                                     : "the layer's gain is not sure",
                 half, p->imbalance);
}

char *kt_plan_words(const kt_table_plan *p, double noise, char *out, size_t out_bytes) {
    if (is_layer_gain(p))
        layer_words(p, noise, out, out_bytes);
    else if (strcmp(p->row.config, p->row.default_config) == 0)
        snprintf(out, out_bytes, "the default, kept");
    else
        snprintf(out, out_bytes, "instead of the default %s", p->row.default_config);
    return out;
}
