/* The roofline: speed over intensity, with every cell of the table. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/cpu.h"
#include "dispatch/cost/cost.h"
#include "tuner/report/html.h"
#include "tuner/space/cell.h"

enum { WIDTH = 1100, HEIGHT = 480, LEFT = 68, RIGHT = 1080, TOP = 14, BOTTOM = 430, COLOURS = 6 };

/* Of "123.4 GB/s, 12 threads" in the page's 12 pixels, above the line. */
enum { LABEL_WIDTH = 130, LABEL_HEIGHT = 12, LABEL_RISE = 8 };

typedef struct point {
    double intensity, gops; /* operations per byte; operations per ns */
} point;

static bool locate(const kt_table_row *r, point *out) {
    double bytes, operations;
    kt_problem_work(&r->problem, &bytes, &operations);
    if (!(bytes > 0) || !(operations > 0) || !(r->time_ns > 0)) return false;
    *out = (point){operations / bytes, operations / r->time_ns};
    return true;
}

static int most_threads(const kt_table *t) {
    int n = 1;
    for (size_t i = 0; i < t->n_rows; i++)
        if (t->rows[i].threads > n) n = t->rows[i].threads;
    return n;
}

static bool has_threads(const kt_table *t, int threads) {
    for (size_t i = 0; i < t->n_rows; i++)
        if (t->rows[i].threads == threads) return true;
    return false;
}

static double stream_of(const kt_ceilings *c, int threads) {
    return threads > 1 && c->stream_gbs_all > 0 ? c->stream_gbs_all : c->stream_gbs_1t;
}

static double best_peak(const kt_ceilings *c) {
    double best = c->peak_scalar_gops;
    for (int i = 0; i < KT_ISA_COUNT; i++) best = fmax(best, c->peak_gops[i]);
    return best;
}

static void find_axes(const kt_table *t, int threads, kt_log_axis *x, kt_log_axis *y) {
    const kt_ceilings *c = &t->fingerprint.ceilings;
    double peak = best_peak(c) * threads, ridge = peak / stream_of(c, threads);
    double low_x = ridge, high_x = 2 * ridge, low_y = peak;
    point p;

    for (size_t i = 0; i < t->n_rows; i++) {
        if (!locate(&t->rows[i], &p)) continue;
        low_x = fmin(low_x, p.intensity);
        high_x = fmax(high_x, p.intensity);
        low_y = fmin(low_y, p.gops);
    }
    *x = (kt_log_axis){low_x / 1.6, high_x * 1.6, LEFT, RIGHT};
    *y = (kt_log_axis){low_y / 1.6, peak * 1.8, BOTTOM, TOP};
}

static void draw_axes(FILE *to, const kt_log_axis *x, const kt_log_axis *y) {
    for (double v = kt_log_axis_tick(x->low); v < x->high; v = kt_log_axis_tick(1.01 * v)) {
        double at = kt_log_axis_at(x, v);
        fprintf(to,
                "<line class=\"g\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>"
                "<text class=\"t\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n",
                at, at, TOP, BOTTOM, at, BOTTOM + 18, v);
    }
    for (double v = kt_log_axis_tick(y->low); v < y->high; v = kt_log_axis_tick(1.01 * v)) {
        double at = kt_log_axis_at(y, v);
        fprintf(to,
                "<line class=\"g\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                "<text class=\"t\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                LEFT, RIGHT, at, at, LEFT - 8, at + 4, v);
    }
    fprintf(to,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">operations per byte of weights</text>"
            "<text transform=\"translate(16 %d) rotate(-90)\" text-anchor=\"middle\">Gop/s"
            "</text>\n",
            (LEFT + RIGHT) / 2, HEIGHT - 8, (TOP + BOTTOM) / 2);
}

/* The slope of a thread count, up to its highest peak and along it. */
static void draw_roof(FILE *to, const kt_ceilings *c, int threads, const kt_log_axis *x,
                      const kt_log_axis *y, bool is_main) {
    double stream = stream_of(c, threads), top = best_peak(c) * threads;
    double from = fmax(x->low, y->low / stream), bend = top / stream;
    double x0 = kt_log_axis_at(x, from), y0 = kt_log_axis_at(y, from * stream);
    double x1 = kt_log_axis_at(x, bend), y1 = kt_log_axis_at(y, top);

    const char *look = is_main ? "style=\"stroke:var(--fg)\" stroke-width=\"2\""
                               : "class=\"a\" stroke-dasharray=\"2 3\"";

    fprintf(to, "<path fill=\"none\" %s d=\"M%.1f %.1fL%.1f %.1fH%d\"/>", look, x0, y0, x1, y1,
            RIGHT);
}

/* How far the nearest cell is from the label: a box above the slope, around (x, y), turned with it. */
static double clearance(const kt_table *t, const kt_log_axis *to_x, const kt_log_axis *to_y,
                        double x, double y, double angle) {
    double least = WIDTH;
    point p;
    for (size_t i = 0; i < t->n_rows; i++) {
        if (!locate(&t->rows[i], &p)) continue;
        double dx = kt_log_axis_at(to_x, p.intensity) - x, dy = kt_log_axis_at(to_y, p.gops) - y;
        double along = fabs(dx * cos(angle) + dy * sin(angle)) - LABEL_WIDTH / 2.0;
        double above = dx * sin(angle) - dy * cos(angle); /* of the slope */
        double across = fabs(above - LABEL_RISE - LABEL_HEIGHT / 2.0) - LABEL_HEIGHT / 2.0;
        least = fmin(least, hypot(fmax(along, 0), fmax(across, 0)));
    }
    return least;
}

/* The bandwidth, where the slope of all threads has the most room; that of fewer has cells all around and is
 * explained below the picture. */
static void label_roof(const kt_table *t, FILE *to, int threads, const kt_log_axis *x,
                       const kt_log_axis *y) {
    const kt_ceilings *c = &t->fingerprint.ceilings;
    double stream = stream_of(c, threads), top = best_peak(c) * threads;
    double from = fmax(x->low, y->low / stream);
    double x0 = kt_log_axis_at(x, from), y0 = kt_log_axis_at(y, from * stream);
    double dx = kt_log_axis_at(x, top / stream) - x0, dy = kt_log_axis_at(y, top) - y0;
    double angle = atan2(dy, dx), best = 0.5, room = -1;

    for (int i = 0; i < 15; i++) { /* the middle first, then further and further to either side */
        double at = 0.5 + (i % 2 ? -0.05 : 0.05) * ((i + 1) / 2);
        double r = clearance(t, x, y, x0 + at * dx, y0 + at * dy, angle);
        if (r <= room + 1) continue;
        room = r;
        best = at;
    }
    fprintf(to,
            "<text class=\"t\" transform=\"translate(%.1f %.1f) rotate(%.1f)\" y=\"-%d\" "
            "text-anchor=\"middle\">%.1f GB/s, %d thread%s</text>\n",
            x0 + best * dx, y0 + best * dy, angle * 180 / 3.14159265358979, LABEL_RISE, stream,
            threads, threads > 1 ? "s" : "");
}

/* A ceiling per instruction set, from the slope on. One whose label would print over another's
 * has none. */
static void draw_ceilings(FILE *to, const kt_ceilings *c, int threads, const kt_log_axis *x,
                          const kt_log_axis *y) {
    double stream = stream_of(c, threads), top = best_peak(c) * threads;
    double taken[KT_ISA_COUNT]; /* heights of the labels so far */
    int n_taken = 0;

    for (int i = KT_ISA_COUNT; i-- > 0;) {
        double peak = c->peak_gops[i] * threads, at;
        bool is_free = true;
        if (peak <= y->low) continue;
        at = kt_log_axis_at(y, peak);
        for (int k = 0; k < n_taken; k++) is_free &= fabs(at - taken[k]) >= LABEL_HEIGHT + 2;
        if (peak < top * 0.99)
            fprintf(to,
                    "<line class=\"a\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" "
                    "stroke-dasharray=\"5 4\"/>",
                    kt_log_axis_at(x, fmax(peak / stream, x->low)), at, RIGHT, at);
        if (!is_free) continue; /* the machine's facts below list every peak */
        taken[n_taken++] = at;
        fprintf(to, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s %.0f Gop/s</text>\n",
                RIGHT - 4, at - 6, kt_isa_name(i), peak);
    }
}

/* One colour per operation and weight format, in the order of the table. */
static int colour_of(const kt_table *t, size_t row, size_t firsts[COLOURS], int *n) {
    const kt_problem *p = &t->rows[row].problem;
    for (int i = 0; i < *n; i++) {
        const kt_problem *q = &t->rows[firsts[i]].problem;
        if (p->op == q->op && p->weights == q->weights) return i;
    }
    if (*n == COLOURS) return COLOURS - 1;
    firsts[*n] = row;
    return (*n)++;
}

static void draw_point(const kt_export_input *in, FILE *to, size_t i, int colour, bool is_full,
                       double x, double y) {
    const kt_table_row *r = &in->table->rows[i];
    const kt_variant *v = kt_registry_find(in->registry, r->variant);
    const kt_ceilings *c = &in->table->fingerprint.ceilings;
    char key[KT_CELL_KEY_BYTES];
    point p = {0, 0};

    locate(r, &p);
    fprintf(to,
            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\" style=\"stroke:var(--c%d);fill:var(--c%d)\" "
            "stroke-width=\"1.5\" fill-opacity=\"%s\"><title>",
            x, y, colour, colour, is_full ? "0.75" : "0");
    kt_html_text(to, kt_cell_key(&r->problem, r->threads, key, sizeof key));
    fprintf(to, "\n%.1f us, %.1f Gop/s", r->time_ns / 1e3, p.gops);
    if (v)
        fprintf(to, ", %.0f %% of the roofline%s",
                100 * kt_cost_ns(&r->problem, v, c, r->threads) / r->time_ns,
                kt_cost_excess(&r->problem, v, c, r->threads, r->time_ns));
    fputc('\n', to);
    kt_html_text(to, r->variant);
    fputs("</title></circle>\n", to);
}

void kt_html_roofline(const kt_export_input *in, FILE *to) {
    const kt_table *t = in->table;
    const kt_ceilings *c = &t->fingerprint.ceilings;
    int threads = most_threads(t), n_colours = 0;
    size_t firsts[COLOURS];
    kt_log_axis x, y;

    if (t->n_rows == 0 || !(stream_of(c, threads) > 0) || !(best_peak(c) > 0)) return;
    find_axes(t, threads, &x, &y);
    fprintf(
        to,
        "<h2 id=\"roofline\">Roofline</h2>\n<p class=\"soft\">Every cell: what it does per "
        "second over how much it does with each byte it reads. Left of the bend memory is the "
        "limit, right of it the multipliers, whose peak is dashed for each instruction set. Points "
        "above the slope had weights in a cache. Point at one for its name.%s</p>\n<div "
        "class=\"card\"><svg viewBox=\"0 0 %d %d\" role=\"img\" "
        "aria-label=\"Roofline with every cell\">\n",
        threads > 1 ? " Rings are cells on fewer threads." : "", WIDTH, HEIGHT);
    draw_axes(to, &x, &y);
    if (threads > 1 && has_threads(t, 1)) draw_roof(to, c, 1, &x, &y, false);
    draw_ceilings(to, c, threads, &x, &y);
    draw_roof(to, c, threads, &x, &y, true);
    for (size_t i = 0; i < t->n_rows; i++) {
        point p;
        if (!locate(&t->rows[i], &p)) continue;
        draw_point(in, to, i, colour_of(t, i, firsts, &n_colours), t->rows[i].threads == threads,
                   kt_log_axis_at(&x, p.intensity), kt_log_axis_at(&y, p.gops));
    }
    label_roof(t, to, threads, &x, &y);
    fputs("</svg>\n<ul class=\"key\">", to);
    for (int i = 0; i < n_colours; i++) {
        const kt_problem *p = &t->rows[firsts[i]].problem;
        fprintf(to, "<li><i style=\"background:var(--c%d)\"></i>%s %s</li>", i, kt_op_name(p->op),
                kt_weight_format_name(p->weights));
    }
    if (threads > 1 && has_threads(t, 1))
        fprintf(to, "<li>&#8943; dotted: one thread, %.1f GB/s</li>", stream_of(c, 1));
    fputs("</ul></div>\n", to);
}
