/* Race traces: the samples of each contender through the rungs, and when it was dropped.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tuner/report/html.h"
#include "tuner/store/replay.h"

enum { WIDTH = 1100, HEIGHT = 300, LEFT = 60, RIGHT = 1080, TOP = 18, BOTTOM = 256 };
enum { MOST_RACES = 240 }; /* about 15 KB each */

/* Slower samples than this times the winner are drawn at the upper edge; the axis ends earlier
 * when all are faster. */
static const double most_ratio = 4, least_ratio = 1.25;

typedef struct race {
    kt_replay *replay;
    kt_samples samples;
    double base_ns;                   /* of the winner */
    double top;                       /* of the axis, over the winner */
    int ends[KT_MAX_SAMPLES], n_ends; /* rounds after which someone left, ascending */
} race;

static double sample_of(const race *r, int contender, int round) {
    return r->samples.ns[(size_t)contender * KT_MAX_SAMPLES + (size_t)round];
}

static double x_of(const race *r, double round) {
    return LEFT + (RIGHT - LEFT) * round / r->samples.n_rounds;
}

static double y_of(const race *r, double ratio) {
    const kt_log_axis axis = {0.8, r->top * 1.06, BOTTOM, TOP};
    return kt_log_axis_at(&axis, fmin(fmax(ratio, 0.81), r->top));
}

/* All but the slowest fiftieth of the samples lie below. */
static double find_top(const race *r) {
    static const double tops[] = {1.25, 1.5, 2, 3, 4};
    size_t above[5] = {0}, n = 0;

    for (int c = 0; c < r->samples.n_contenders; c++)
        for (int i = 0; i < r->samples.rounds_of[c]; i++) {
            double ratio = sample_of(r, c, i) / r->base_ns;
            if (r->samples.voided[i] || !(ratio > 0)) continue;
            n++;
            for (int k = 0; k < 5; k++) above[k] += ratio > tops[k];
        }
    for (int k = 0; k < 5; k++)
        if (50 * above[k] <= n) return fmax(tops[k], least_ratio);
    return most_ratio;
}

static void find_ends(race *r) {
    for (int round = 1; round <= r->samples.n_rounds; round++)
        for (int c = 0; c < r->samples.n_contenders; c++)
            if (r->samples.rounds_of[c] == round) {
                r->ends[r->n_ends++] = round;
                break;
            }
}

/* The quantile that decides, of a contender's first rounds; 0 when it has no valid sample there. */
static double p25_until(const race *r, int contender, int end) {
    double x[KT_MAX_SAMPLES];
    int n = 0;
    for (int i = 0; i < end && i < r->samples.rounds_of[contender]; i++)
        if (!r->samples.voided[i] && sample_of(r, contender, i) > 0)
            x[n++] = sample_of(r, contender, i);
    return n ? kt_quantile(x, n, 0.25) : 0;
}

static const char *colour_of(const race *r, int contender) {
    if (contender == r->replay->winner) return "--accent";
    return contender == r->replay->default_index ? "--c1" : "--soft";
}

static void draw_frame(const race *r, FILE *to) {
    static const double ticks[] = {0.9, 1, 1.1, 1.2, 1.5, 2, 3, 4};
    int live = r->samples.n_contenders;

    for (size_t i = 0; i < sizeof ticks / sizeof *ticks && ticks[i] <= r->top; i++)
        fprintf(to,
                "<line class=\"%s\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                "<text class=\"t\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g&#215;</text>\n",
                ticks[i] == 1 ? "a" : "g", LEFT, RIGHT, y_of(r, ticks[i]), y_of(r, ticks[i]),
                LEFT - 8, y_of(r, ticks[i]) + 4, ticks[i]);
    for (int e = 0; e < r->n_ends; e++) {
        int left = 0;
        for (int c = 0; c < r->samples.n_contenders; c++)
            left += r->samples.rounds_of[c] > r->ends[e];
        if (e + 1 < r->n_ends)
            fprintf(to,
                    "<line class=\"g\" stroke-dasharray=\"3 3\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" "
                    "y2=\"%d\"/>\n",
                    x_of(r, r->ends[e]), x_of(r, r->ends[e]), TOP, BOTTOM);
        fprintf(to, "<text class=\"t\" x=\"%.1f\" y=\"%d\" text-anchor=\"end\">%d</text>\n",
                x_of(r, r->ends[e]) - 3, BOTTOM + 16, r->ends[e]);
        if (x_of(r, r->ends[e]) - x_of(r, e ? r->ends[e - 1] : 0) > 46)
            fprintf(to,
                    "<text class=\"t\" x=\"%.1f\" y=\"%d\" text-anchor=\"end\">%d left</text>\n",
                    x_of(r, r->ends[e]) - 4, TOP - 5, live);
        live = left;
    }
    fprintf(to,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">rounds; every live contender runs "
            "once in each</text><text class=\"t\" transform=\"translate(12 %d) rotate(-90)\" "
            "text-anchor=\"middle\">time / winner's</text>\n",
            (LEFT + RIGHT) / 2, HEIGHT - 6, (TOP + BOTTOM) / 2);
}

static void draw_contender(const race *r, FILE *to, int c) {
    int last = r->samples.rounds_of[c];
    bool is_main = c == r->replay->winner || c == r->replay->default_index;
    double final = p25_until(r, c, last);

    if (!(final > 0)) return;
    /* Samples: points are zero-length lines with round ends, shifted a little by contender. */
    fprintf(to, "<g style=\"stroke:var(%s)\" fill=\"none\"><title>", colour_of(r, c));
    kt_html_text(to, r->replay->names[c]);
    fprintf(to, "\n%.1f us, %+.1f %% of the winner's time; %d rounds%s</title>", final / 1e3,
            100 * (final / r->base_ns - 1), last,
            last < r->samples.n_rounds ? ", then dropped" : "");
    fprintf(to, "<path stroke-width=\"%s\" stroke-linecap=\"round\" stroke-opacity=\"%s\" d=\"",
            is_main ? "5" : "3.5", is_main ? "0.6" : "0.28");
    for (int i = 0; i < last; i++)
        if (!r->samples.voided[i] && sample_of(r, c, i) > 0)
            fprintf(to, "M%.0f %.0fh0", x_of(r, i + 0.5), y_of(r, sample_of(r, c, i) / r->base_ns));
    fprintf(to, "\"/><path stroke-width=\"%s\"%s stroke-opacity=\"%s\" d=\"", is_main ? "2" : "1",
            c == r->replay->default_index ? " stroke-dasharray=\"6 4\"" : "",
            is_main ? "1" : "0.55");
    for (int e = 0, started = 0; e < r->n_ends && r->ends[e] <= last; e++) {
        double p25 = p25_until(r, c, r->ends[e]);
        if (!(p25 > 0)) continue;
        fprintf(to, "%c%.1f %.1f", started++ ? 'L' : 'M', x_of(r, r->ends[e]),
                y_of(r, p25 / r->base_ns));
    }
    fputs("\"/>", to);
    if (last < r->samples.n_rounds)
        fprintf(to, "<path stroke-width=\"1.5\" d=\"m%.1f %.1fl6 6m0-6l-6 6\"/>", x_of(r, last) - 3,
                y_of(r, final / r->base_ns) - 3);
    fputs("</g>\n", to);
}

static void draw_race(const race *r, FILE *to, bool is_open) {
    const kt_table_row *row = &r->replay->row;
    bool is_tuned = strcmp(kt_row_status(row), "tuned") == 0;

    fprintf(to, "<details%s><summary><b>", is_open ? " open" : "");
    kt_html_text(to, r->replay->cell);
    if (is_tuned)
        fprintf(to, "</b> <span class=\"up\">%+.1f %%</span> ", 100 * kt_row_gain(row));
    else
        fputs(kt_row_is_undecided(row) ? "</b> undecided " : "</b> default kept ", to);
    fprintf(to,
            "<span class=\"soft\">%d contender%s, %d rounds, %.0f %% "
            "disturbed</span></summary>\n<svg viewBox=\"0 0 "
            "%d %d\" role=\"img\" aria-label=\"Race of ",
            r->samples.n_contenders, r->samples.n_contenders == 1 ? "" : "s", r->samples.n_rounds,
            100.0 * r->samples.n_voided / r->samples.n_rounds, WIDTH, HEIGHT);
    kt_html_text(to, r->replay->cell);
    fputs("\">\n", to);
    draw_frame(r, to);
    /* the main ones last, so that they lie on top */
    for (int c = 0; c < r->samples.n_contenders; c++)
        if (c != r->replay->winner && c != r->replay->default_index) draw_contender(r, to, c);
    if (r->replay->default_index != r->replay->winner)
        draw_contender(r, to, r->replay->default_index);
    draw_contender(r, to, r->replay->winner);
    fprintf(to, "</svg><ul class=\"key\"><li><i style=\"background:var(--accent)\"></i>%s ",
            r->replay->default_index == r->replay->winner ? "winner and default" : "winner");
    kt_html_text(to, r->replay->names[r->replay->winner]);
    fputs("</li>", to);
    if (r->replay->default_index != r->replay->winner) {
        fputs("<li><i style=\"background:var(--c1)\"></i>default ", to);
        kt_html_text(to, r->replay->names[r->replay->default_index]);
        fputs("</li>", to);
    }
    if (r->samples.n_contenders > 2)
        fputs("<li><i style=\"background:var(--soft)\"></i>the others: point at one for its "
              "name</li>",
              to);
    fputs("</ul></details>\n", to);
}

static kt_status show_race(const kt_export_input *in, const kt_table_row *row, kt_replay *replay,
                           bool is_open, FILE *to, int *n_shown, kt_err *err) {
    race r = {.replay = replay, .base_ns = row->time_ns};

    if (kt_replay_of_row(in->journal, row, replay, NULL) != KT_OK) return KT_OK;
    KT_TRY(kt_replay_samples(replay, &r.samples, err));
    if (r.samples.n_rounds > 0) {
        find_ends(&r);
        r.top = find_top(&r);
        draw_race(&r, to, is_open);
        ++*n_shown;
    }
    kt_samples_destroy(&r.samples);
    return KT_OK;
}

/* The one that is open at first: a race that somebody else than the default won, if there is one. */
static size_t first_tuned(const kt_table *t) {
    for (size_t i = 0; i < t->n_rows; i++)
        if (strcmp(kt_row_status(&t->rows[i]), "tuned") == 0) return i;
    return 0;
}

kt_status kt_html_races(const kt_export_input *in, FILE *to, kt_err *err) {
    kt_replay *replay = malloc(sizeof *replay);
    size_t shown = first_tuned(in->table);
    kt_status st = KT_OK;
    int n = 0;

    if (!replay) return kt_fail(err, KT_E_NOMEM, "races: no memory");
    fputs("<h2 id=\"races\">Races</h2>\n<p class=\"soft\">Times of all contenders over the "
          "winner's, round by round. Lines are the 25 % quantile so far, crosses mark who was "
          "dropped. Rounds that others disturbed are left out.</p>\n<div class=\"card\">\n",
          to);
    for (size_t i = 0; i < in->table->n_rows && n < MOST_RACES && st == KT_OK; i++)
        st = show_race(in, &in->table->rows[i], replay, i == shown, to, &n, err);
    if (n == 0) fputs("<p>The journal holds no race of these rows.</p>", to);
    if (n == MOST_RACES)
        fprintf(to, "<p class=\"soft\">The first %d; the journal has the others.</p>", MOST_RACES);
    fputs("</div>\n", to);
    free(replay);
    return st;
}
