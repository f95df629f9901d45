/* What a race says of classes of bits: the winner's, and the best of each other.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tuner/session/session_parts.h"

/* NULL for a name that a row has no room for: then the row knows no classes. */
static const char *bits_of(const kt_variant *v) {
    const char *bits = v->bits ? v->bits : KT_BITS_UNSTABLE;
    return strlen(bits) < KT_BITS_BYTES ? bits : NULL;
}

void kt_session_name_class(const kt_registry *registry, kt_table_row *row) {
    const kt_variant *v = kt_registry_find(registry, row->variant);
    const char *bits = v && !*row->bits ? bits_of(v) : NULL;
    if (bits) snprintf(row->bits, sizeof row->bits, "%s", bits);
}

/* Is contender i the first and fastest of its class, and not of the winner's? */
static bool leads(const kt_contenders *c, const double *ratio, const char *winner, int i) {
    const char *bits = bits_of(c->list[i].choice.variant);

    if (!bits || strcmp(bits, winner) == 0 || !(ratio[i] > 0) || !isfinite(ratio[i])) return false;
    for (int k = 0; k < c->n; k++) {
        const char *other = bits_of(c->list[k].choice.variant);
        if (k != i && other && strcmp(other, bits) == 0 &&
            (ratio[k] < ratio[i] || (ratio[k] == ratio[i] && k < i)))
            return false;
    }
    return true;
}

static void put(kt_table_row *row, const kt_choice *c, double time_ns) {
    int at = row->n_others;

    while (at > 0 && row->other[at - 1].time_ns > time_ns) at--;
    if (at == KT_TABLE_OTHERS) return;
    if (row->n_others < KT_TABLE_OTHERS) row->n_others++;
    memmove(&row->other[at + 1], &row->other[at],
            (size_t)(row->n_others - at - 1) * sizeof *row->other);
    memset(&row->other[at], 0, sizeof *row->other);
    snprintf(row->other[at].bits, sizeof row->other[at].bits, "%s", bits_of(c->variant));
    snprintf(row->other[at].variant, sizeof row->other[at].variant, "%s", c->variant->name);
    kt_config_format(c->variant, &c->config, row->other[at].config, sizeof row->other[at].config);
    row->other[at].version = c->variant->version;
    row->other[at].time_ns = time_ns;
}

void kt_session_note_classes(const kt_contenders *c, const double *ratio, int winner,
                             kt_table_row *row) {
    const char *bits = bits_of(c->list[winner].choice.variant);

    row->n_others = 0;
    row->bits[0] = '\0';
    if (!bits) return;
    snprintf(row->bits, sizeof row->bits, "%s", bits);
    if (!(ratio[winner] > 0) || !isfinite(ratio[winner])) return;
    /* The row's time is of the holdout where there was one: in the race both ran side by side. */
    for (int i = 0; i < c->n; i++)
        if (leads(c, ratio, bits, i))
            put(row, &c->list[i].choice, row->time_ns * ratio[i] / ratio[winner]);
}
