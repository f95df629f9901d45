/* Heat maps over rows and matrices: gain over the default, nearness to the roofline.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "dispatch/cost/cost.h"
#include "tuner/report/heat_lines.h"
#include "tuner/report/html.h"
#include "tuner/space/cell.h"

enum { BOX_W = 42, BOX_H = 24, LEFT = 282, TOP = 46, MAX_COLUMNS = 64 };

typedef struct heat {
    const char *id, *title, *about, *colour;
    double (*value)(const kt_export_input *in, const kt_table_row *row); /* NaN = unknown */
    double full; /* value of the strongest colour */
} heat;

static double gain_value(const kt_export_input *in, const kt_table_row *row) {
    (void)in;
    return kt_row_gain(row);
}

/* The roofline's lower bound over the measured time. */
static double roofline_value(const kt_export_input *in, const kt_table_row *row) {
    const kt_variant *v = kt_registry_find(in->registry, row->variant);
    const kt_ceilings *c = &in->table->fingerprint.ceilings;
    if (!v || c->stream_gbs_1t <= 0 || row->time_ns <= 0) return NAN;
    return kt_cost_ns(&row->problem, v, c, row->threads) / row->time_ns;
}

static const heat heats[] = {
    {"gain", "Gain over the default",
     "How much faster the winner is than what would run without tuning, in %. A dot: the default "
     "was kept. A question mark: undecided. Gains under twice the A/A noise are marked ≈.",
     "--accent", gain_value, 0.1},
    {"nearness", "Nearness to the roofline",
     "The lower bound by the measured ceilings over the measured time, in %. Over 100 the weights "
     "came from a cache.",
     "--good", roofline_value, 1.0},
};

/* Buckets that occur, ascending. */
static int find_columns(const kt_table *t, int64_t m[MAX_COLUMNS]) {
    int n = 0;
    for (int b = 0; b < kt_m_bucket_count && n < MAX_COLUMNS; b++)
        for (size_t i = 0; i < t->n_rows; i++)
            if (t->rows[i].problem.m == kt_m_buckets[b]) {
                m[n++] = kt_m_buckets[b];
                break;
            }
    return n;
}

static void draw_box(const kt_export_input *in, FILE *to, const kt_table_row *r, int column,
                     int line, double value, const heat *h) {
    double strength = fmin(fmax(value / h->full, 0), 1);
    double noise = in->table->fingerprint.ceilings.aa_noise_p95;
    int x = LEFT + column * BOX_W, y = TOP + line * BOX_H;
    bool is_gain = h->value == gain_value,
         is_kept = is_gain && strcmp(kt_row_status(r), "tuned") != 0;
    char key[KT_CELL_KEY_BYTES];

    fprintf(to,
            "<g><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\" "
            "style=\"fill:var(%s)\" fill-opacity=\"%.2f\"/>",
            x, y, BOX_W - 2, BOX_H - 2, h->colour, is_kept ? 0.05 : 0.08 + 0.62 * strength);
    fprintf(to, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\"", x + BOX_W / 2 - 1, y + 15);
    if (is_kept)
        fputs(kt_row_is_undecided(r) ? " class=\"t\">?" : " class=\"t\">·", to);
    else
        fprintf(to, ">%s%.0f", is_gain && value < 2 * noise ? "≈" : "", 100 * value);
    fputs("</text><title>", to);
    kt_html_text(to, kt_cell_key(&r->problem, r->threads, key, sizeof key));
    fprintf(to, "\n%+.1f %%, %.1f us\n", 100 * value, r->time_ns / 1e3);
    kt_html_text(to, r->variant);
    if (*r->config) fputc(' ', to);
    kt_html_text(to, r->config);
    fputs("</title></g>\n", to);
}

/* A bar that tells what the colours mean. */
static void draw_scale(FILE *to, const heat *h) {
    for (int i = 0; i <= 4; i++)
        fprintf(to,
                "<rect x=\"%d\" y=\"4\" width=\"38\" height=\"12\" style=\"fill:var(%s)\" "
                "fill-opacity=\"%.2f\"/><text class=\"t\" x=\"%d\" y=\"30\" "
                "text-anchor=\"middle\">%.0f%s</text>",
                4 + 40 * i, h->colour, 0.08 + 0.155 * i, 23 + 40 * i, 25.0 * i * h->full,
                i == 4 ? " %" : "");
    fputc('\n', to);
}

/* The strongest colour is for the largest gain, in steps that a scale can name. */
static double strongest(const kt_table *t, double least) {
    double most = least;
    for (size_t i = 0; i < t->n_rows; i++)
        if (strcmp(kt_row_status(&t->rows[i]), "tuned") == 0)
            most = fmax(most, kt_row_gain(&t->rows[i]));
    return fmin(ceil(most * 5) / 5, 2);
}

static void draw_heat(const kt_export_input *in, FILE *to, const heat *wanted) {
    const kt_table *t = in->table;
    heat own = *wanted;
    const heat *h = &own;
    size_t first[KT_HEAT_LINES];
    int64_t m[MAX_COLUMNS];
    int n = kt_heat_lines(t, first), n_columns = find_columns(t, m);

    if (h->value == gain_value) own.full = strongest(t, h->full);
    fprintf(to,
            "<h2 id=\"%s\">%s</h2>\n<p class=\"soft\">%s</p>\n<div class=\"card\"><svg viewBox=\"0 "
            "0 %d %d\" "
            "role=\"img\" aria-label=\"%s\" style=\"min-width:%dpx;max-width:%dpx\">\n",
            h->id, h->title, h->about, LEFT + n_columns * BOX_W, TOP + n * BOX_H, h->title,
            (LEFT + n_columns * BOX_W) * 3 / 4, (LEFT + n_columns * BOX_W) * 6 / 5);
    draw_scale(to, h);
    fprintf(to, "<text x=\"%d\" y=\"16\">rows m</text>", LEFT);
    for (int i = 0; i < n_columns; i++)
        fprintf(to, "<text class=\"t\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">%lld</text>\n",
                LEFT + i * BOX_W + BOX_W / 2 - 1, TOP - 8, (long long)m[i]);
    for (int l = 0; l < n; l++) {
        size_t end = l + 1 < n ? first[l + 1] : t->n_rows;
        char label[KT_CELL_KEY_BYTES];
        fprintf(to, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", LEFT - 10,
                TOP + l * BOX_H + 15);
        kt_html_text(to, kt_html_matrix(&t->rows[first[l]], label, sizeof label));
        fputs("</text>\n", to);
        for (size_t i = first[l]; i < end; i++) {
            double value = h->value(in, &t->rows[i]);
            for (int c = 0; c < n_columns; c++)
                if (m[c] == t->rows[i].problem.m && !isnan(value))
                    draw_box(in, to, &t->rows[i], c, l, value, h);
        }
    }
    fputs("</svg></div>\n", to);
}

void kt_html_heats(const kt_export_input *in, FILE *to) {
    if (in->table->n_rows == 0) return;
    for (size_t i = 0; i < sizeof heats / sizeof *heats; i++) draw_heat(in, to, &heats[i]);
}
