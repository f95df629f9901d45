/* What was still lost against the best known choices while the run went on. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tuner/report/html.h"
#include "tuner/space/cell.h"
#include "tuner/store/replay.h"

enum { WIDTH = 1100, HEIGHT = 320, LEFT = 68, RIGHT = 1030, TOP = 14, BOTTOM = 268 };

typedef struct step {
    double seconds; /* of tuning, when the cell was decided */
    double weight;
    double before, after; /* time over the best known one: with the default, with the decision */
    char cell[KT_CELL_KEY_BYTES];
} step;

/* Seconds that sessions had lasted at this record; the time between sessions does not count. */
static double seconds_at(const kt_journal *j, size_t at) {
    int64_t begin = 0, last = 0, total = 0;
    for (size_t i = 0; i <= at; i++) {
        const kt_json *r = kt_journal_at(j, i);
        int64_t now = kt_json_int(kt_json_get(r, "unix_ms"), 0);
        if (strcmp(kt_json_text(r, "t"), "session") == 0) {
            total += last - begin;
            begin = last = now;
        } else if (now > last) {
            last = now;
        }
    }
    return (double)(total + last - begin) * 1e-3;
}

static double best_of(const kt_table_row *r) {
    double best = fmin(r->time_ns, r->default_ns);
    for (int i = 0; i < r->n_runners; i++)
        if (r->runner[i].time_ns > 0) best = fmin(best, r->runner[i].time_ns);
    return best;
}

static int by_time(const void *a, const void *b) {
    const step *x = a, *y = b;
    return x->seconds < y->seconds ? -1 : x->seconds > y->seconds;
}

/* Weights are shares of serving time; journals of older versions have none, then all cells count alike. */
static size_t find_steps(const kt_export_input *in, kt_replay *r, step *steps, bool *has_weights) {
    size_t n = 0;

    *has_weights = true;
    for (size_t i = 0; i < in->table->n_rows; i++) {
        const kt_table_row *row = &in->table->rows[i];
        double best = best_of(row);
        if (!(best > 0) || kt_replay_of_row(in->journal, row, r, NULL) != KT_OK) continue;
        steps[n] = (step){.seconds = seconds_at(in->journal, r->at),
                          .weight = r->weight,
                          .before = row->default_ns / best,
                          .after = row->time_ns / best};
        kt_cell_key(&row->problem, row->threads, steps[n].cell, sizeof steps[n].cell);
        *has_weights &= r->weight > 0;
        n++;
    }
    for (size_t i = 0; i < n && !*has_weights; i++) steps[i].weight = 1;
    qsort(steps, n, sizeof *steps, by_time);
    return n;
}

static double regret_after(const step *steps, size_t n, size_t n_decided) {
    double sum = 0, weights = 0;
    for (size_t i = 0; i < n; i++) {
        sum += steps[i].weight * (i < n_decided ? steps[i].after : steps[i].before);
        weights += steps[i].weight;
    }
    return weights > 0 ? sum / weights - 1 : 0;
}

static void draw_axes(FILE *to, double seconds, double top) {
    double apart = kt_log_axis_tick(seconds / 6), step_y = kt_log_axis_tick(top / 6);

    for (double v = 0; v <= top * 1.0001; v += step_y) {
        double y = BOTTOM - (BOTTOM - TOP) * v / top;
        fprintf(to,
                "<line class=\"g\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                "<text class=\"t\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.3g %%</text>\n",
                LEFT, RIGHT, y, y, LEFT - 8, y + 4, 100 * v);
    }
    for (int i = 0; i <= 4; i++)
        fprintf(to, "<text class=\"t\" x=\"%d\" y=\"%.1f\">%d %%</text>\n", RIGHT + 8,
                BOTTOM - (BOTTOM - TOP) * i / 4.0 + 4, 25 * i);
    for (double v = 0; v <= seconds; v += apart)
        fprintf(to, "<text class=\"t\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.3g</text>\n",
                LEFT + (RIGHT - LEFT) * v / seconds, BOTTOM + 18, v);
    fprintf(to,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">seconds of tuning</text>"
            "<text transform=\"translate(14 %d) rotate(-90)\" text-anchor=\"middle\" "
            "style=\"fill:var(--accent)\">regret</text>"
            "<text transform=\"translate(%d %d) rotate(-90)\" text-anchor=\"middle\" "
            "class=\"t\">decided</text>\n",
            (LEFT + RIGHT) / 2, HEIGHT - 8, (TOP + BOTTOM) / 2, WIDTH - 8, (TOP + BOTTOM) / 2);
}

static void draw_curves(FILE *to, const step *steps, size_t n, double seconds, double top) {
    double weights = 0, done = 0;
    for (size_t i = 0; i < n; i++) weights += steps[i].weight;
    fprintf(to, "<path style=\"fill:var(--soft)\" fill-opacity=\"0.13\" d=\"M%d %d", LEFT, BOTTOM);
    for (size_t i = 0; i < n; i++) {
        done += steps[i].weight;
        fprintf(to, "H%.1fV%.1f", LEFT + (RIGHT - LEFT) * steps[i].seconds / seconds,
                BOTTOM - (BOTTOM - TOP) * done / weights);
    }
    fprintf(to, "H%dV%dz\"><title>share of cells decided, by weight</title></path>\n", RIGHT,
            BOTTOM);
    fprintf(to,
            "<path fill=\"none\" style=\"stroke:var(--accent)\" stroke-width=\"2.5\" d=\"M%d %.1f",
            LEFT, BOTTOM - (BOTTOM - TOP) * regret_after(steps, n, 0) / top);
    for (size_t i = 0; i < n; i++)
        fprintf(to, "H%.1fV%.1f", LEFT + (RIGHT - LEFT) * steps[i].seconds / seconds,
                BOTTOM - (BOTTOM - TOP) * regret_after(steps, n, i + 1) / top);
    fprintf(to, "H%d\"/>\n", RIGHT);
    for (size_t i = 0; i < n; i++) {
        if (steps[i].before <= steps[i].after * 1.0001) continue;
        fprintf(to,
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" style=\"fill:var(--accent)\"><title>",
                LEFT + (RIGHT - LEFT) * steps[i].seconds / seconds,
                BOTTOM - (BOTTOM - TOP) * regret_after(steps, n, i + 1) / top);
        kt_html_text(to, steps[i].cell);
        fprintf(to, "\nafter %.1f s: regret %.2f %%</title></circle>\n", steps[i].seconds,
                100 * regret_after(steps, n, i + 1));
    }
}

kt_status kt_html_regret(const kt_export_input *in, FILE *to, kt_err *err) {
    step *steps = calloc(in->table->n_rows + 1, sizeof *steps);
    kt_replay *r = malloc(sizeof *r);
    bool has_weights;
    size_t n;
    double seconds, top;

    if (!steps || !r) {
        free(steps);
        free(r);
        return kt_fail(err, KT_E_NOMEM, "regret: no memory");
    }
    n = find_steps(in, r, steps, &has_weights);
    seconds = n ? steps[n - 1].seconds : 0;
    top = fmax(1.08 * regret_after(steps, n, 0), 0.01);
    if (n > 1 && seconds > 0) {
        fprintf(to,
                "<h2 id=\"regret\">Regret against time</h2>\n<p class=\"soft\">How much slower "
                "than with the best known choices the model would run if tuning had ended there: "
                "%.1f %% with the defaults, %.2f %% at the end. Cells count %s. The grey area is "
                "the share of cells decided.</p>\n<div class=\"card\"><svg viewBox=\"0 0 %d %d\" "
                "role=\"img\" aria-label=\"Regret against seconds of tuning\">\n",
                100 * regret_after(steps, n, 0), 100 * regret_after(steps, n, n),
                has_weights ? "by their share of the serving time" : "alike", WIDTH, HEIGHT);
        draw_axes(to, seconds, top);
        draw_curves(to, steps, n, seconds, top);
        fputs("</svg></div>\n", to);
    }
    free(steps);
    free(r);
    return KT_OK;
}
