/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tuner/report/plot_text.h"

#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "dispatch/cost/cost.h"
#include "tuner/report/heat_lines.h"
#include "tuner/report/html.h"
#include "tuner/space/cell.h"
#include "tuner/store/replay.h"

enum { MIN_WIDTH = 40, MAX_WIDTH = 240, GRID_H = 20 };

/* --- style --- */

static bool locale_is_utf8(void) {
    locale_t user = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    bool yes = user && strcmp(nl_langinfo_l(CODESET, user), "UTF-8") == 0;
    if (user) freelocale(user);
    return yes;
}

kt_plot_style kt_plot_style_of(FILE *to) {
    const char *columns = getenv("COLUMNS"), *no_colour = getenv("NO_COLOR");
    const char *terminal = getenv("TERM");
    kt_plot_style s = {.width = 80, .is_utf8 = locale_is_utf8()};
    struct winsize size;

    s.colour = isatty(fileno(to)) && !(no_colour && *no_colour) && terminal &&
               strcmp(terminal, "dumb") != 0;
    if (columns && atoi(columns) > 0) s.width = atoi(columns);
    if (ioctl(fileno(to), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) s.width = size.ws_col;
    if (s.width < MIN_WIDTH) s.width = MIN_WIDTH;
    if (s.width > MAX_WIDTH) s.width = MAX_WIDTH;
    return s;
}

/* Colours of the 16 that every terminal has, readable on black and on white. */
enum { NONE = 0, RED = 31, GREEN = 32, YELLOW = 33, BLUE = 34, MAGENTA = 35, CYAN = 36, GREY = 90 };

static void colour(const kt_plot_style *s, FILE *to, int code) {
    if (s->colour) fprintf(to, "\033[%dm", code);
}

/* Text from files, cut to `columns` and padded: only what a terminal shows as it is. */
static void put_text(FILE *to, const char *text, int columns) {
    int n = 0;
    for (; *text && n < columns; text++, n++)
        fputc((unsigned char)*text < 32 || (unsigned char)*text > 126 ? '?' : *text, to);
    fprintf(to, "%*s", columns - n, "");
}

/* A bar of `share` of the columns; eighths of a column where the character set has them. */
static void put_bar(const kt_plot_style *s, FILE *to, double share, int columns) {
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    double length = fmin(fmax(share, 0), 1) * columns;
    int whole = (int)length, part = (int)(8 * (length - whole)), used = whole;

    for (int i = 0; i < whole; i++) fputs(s->is_utf8 ? "█" : "#", to);
    if (s->is_utf8 && part > 0 && whole < columns) {
        fputs(eighths[part], to);
        used++;
    }
    fprintf(to, "%*s", columns - used, "");
}

/* --- roofline --- */

typedef struct grid {
    int width;
    kt_log_axis x, y;             /* to columns and lines */
    char mark[GRID_H][MAX_WIDTH]; /* 0 = empty, '/' slope, '-' top, else the series' letter */
    uint8_t colour[GRID_H][MAX_WIDTH];
} grid;

static bool locate(const kt_table_row *r, double *intensity, double *gops) {
    double bytes, operations;
    kt_problem_work(&r->problem, &bytes, &operations);
    if (!(bytes > 0) || !(operations > 0) || !(r->time_ns > 0)) return false;
    *intensity = operations / bytes;
    *gops = operations / r->time_ns;
    return true;
}

static void set(grid *g, double x, double y, char mark, int code) {
    int column = (int)lround(kt_log_axis_at(&g->x, x)),
        line = (int)lround(kt_log_axis_at(&g->y, y));
    if (column < 0 || column >= g->width || line < 0 || line >= GRID_H) return;
    g->mark[line][column] = mark;
    g->colour[line][column] = (uint8_t)code;
}

static const char *shape_of(const kt_plot_style *s, char mark) {
    switch (mark) {
    case '/': return s->is_utf8 ? "╱" : "/";
    case '-': return s->is_utf8 ? "─" : "-";
    case 'g': return s->is_utf8 ? "◆" : "g";
    case 'm': return s->is_utf8 ? "●" : "m";
    default: return " ";
    }
}

static double peak_of(const kt_ceilings *c) {
    double best = c->peak_scalar_gops;
    for (int i = 0; i < KT_ISA_COUNT; i++) best = fmax(best, c->peak_gops[i]);
    return best;
}

static void fill_grid(grid *g, const kt_table *t, int threads, double stream, double peak) {
    double low_x = peak / stream, high_x = 2 * low_x, low_y = peak, x, y;

    for (size_t i = 0; i < t->n_rows; i++) {
        if (!locate(&t->rows[i], &x, &y)) continue;
        low_x = fmin(low_x, x);
        high_x = fmax(high_x, x);
        low_y = fmin(low_y, y);
    }
    g->x = (kt_log_axis){low_x / 1.3, high_x * 1.3, 0, g->width - 1};
    g->y = (kt_log_axis){low_y / 1.3, peak * 1.4, GRID_H - 1, 0};
    for (int column = 0; column < g->width; column++) {
        x = g->x.low * pow(g->x.high / g->x.low, column / (double)(g->width - 1));
        set(g, x, fmin(x * stream, peak), x * stream < peak ? '/' : '-', GREY);
    }
    for (size_t i = 0; i < t->n_rows; i++)
        if (t->rows[i].threads == threads && locate(&t->rows[i], &x, &y))
            set(g, x, y, t->rows[i].problem.op == KT_OP_MOE_FFN ? 'm' : 'g',
                t->rows[i].problem.op == KT_OP_MOE_FFN ? CYAN : YELLOW);
}

static void print_grid(const grid *g, const kt_plot_style *s, FILE *to) {
    double tick = kt_log_axis_tick(g->y.low);
    int next_x = 0;

    for (int line = 0; line < GRID_H; line++) {
        double label = 0;
        for (double v = tick; v < g->y.high; v = kt_log_axis_tick(1.01 * v))
            if ((int)lround(kt_log_axis_at(&g->y, v)) == line) label = v;
        if (label > 0)
            fprintf(to, "%8g %s", label, s->is_utf8 ? "┤" : "+");
        else
            fprintf(to, "%8s %s", "", s->is_utf8 ? "│" : "|");
        for (int column = 0; column < g->width; column++) {
            if (g->mark[line][column] && g->colour[line][column])
                colour(s, to, g->colour[line][column]);
            fputs(shape_of(s, g->mark[line][column]), to);
            if (g->mark[line][column]) colour(s, to, NONE);
        }
        fputc('\n', to);
    }
    fprintf(to, "%8s %s", "", s->is_utf8 ? "└" : "+");
    for (int column = 0; column < g->width; column++) fputs(s->is_utf8 ? "─" : "-", to);
    fprintf(to, "\n%10s", "");
    for (double v = kt_log_axis_tick(g->x.low); v < g->x.high; v = kt_log_axis_tick(1.01 * v)) {
        int column = (int)lround(kt_log_axis_at(&g->x, v));
        char text[24];
        int size = snprintf(text, sizeof text, "%g", v);
        if (column < next_x || column + size > g->width) continue;
        fprintf(to, "%*s%s", column - (next_x ? next_x - 1 : 0), "", text);
        next_x = column + size + 1;
    }
    fputc('\n', to);
}

void kt_plot_roofline(const kt_export_input *in, const kt_plot_style *s, FILE *to) {
    const kt_table *t = in->table;
    const kt_ceilings *c = &t->fingerprint.ceilings;
    int threads = 1;
    double stream, peak;
    grid *g = calloc(1, sizeof *g);

    for (size_t i = 0; i < t->n_rows; i++)
        if (t->rows[i].threads > threads) threads = t->rows[i].threads;
    stream = threads > 1 && c->stream_gbs_all > 0 ? c->stream_gbs_all : c->stream_gbs_1t;
    peak = peak_of(c) * threads;
    if (g && stream > 0 && peak > 0 && t->n_rows > 0) {
        g->width = s->width - 11;
        fill_grid(g, t, threads, stream, peak);
        fprintf(to,
                "Roofline, %d thread%s: Gop/s over operations per byte (%s moe_ffn, %s gemm; slope "
                "%.1f GB/s, top %.0f Gop/s)\n",
                threads, threads > 1 ? "s" : "", shape_of(s, 'm'), shape_of(s, 'g'), stream, peak);
        print_grid(g, s, to);
    }
    free(g);
}

/* --- heat map --- */

static const kt_table_row *row_in(const kt_table *t, size_t begin, size_t end, int32_t m) {
    for (size_t i = begin; i < end; i++)
        if (t->rows[i].problem.m == m) return &t->rows[i];
    return NULL;
}

static void put_heat(const kt_plot_style *s, FILE *to, const kt_table_row *r, double noise) {
    static const char *const shades[] = {"░", "▒", "▓", "█"};
    double gain = r ? kt_row_gain(r) : 0;
    bool is_tuned = r && strcmp(kt_row_status(r), "tuned") == 0;
    int level = gain < 0.05 ? 0 : gain < 0.15 ? 1 : gain < 0.4 ? 2 : 3;
    char number[8];

    if (!r || !is_tuned) {
        fprintf(to, "%5s", !r ? "" : kt_row_is_undecided(r) ? "?" : ".");
        return;
    }
    snprintf(number, sizeof number, "%s%.0f", gain < 2 * noise ? "~" : "", fmin(100 * gain, 999));
    colour(s, to, level > 1 ? GREEN : level > 0 ? CYAN : GREY);
    fprintf(to, " %*s%s", (int)(3 - strlen(number) > 0 ? 3 - strlen(number) : 0), "", number);
    fputs(s->is_utf8  ? shades[level]
          : level > 2 ? "@"
          : level > 1 ? "#"
          : level > 0 ? "+"
                      : "-",
          to);
    colour(s, to, NONE);
}

void kt_plot_heat(const kt_export_input *in, const kt_plot_style *s, FILE *to) {
    const kt_table *t = in->table;
    size_t first[KT_HEAT_LINES];
    int32_t m[MAX_WIDTH];
    int n = kt_heat_lines(t, first), n_m = 0, at = 0;
    int label = s->width > 100 ? 42 : s->width >= 72 ? 39 : 36, fits = (s->width - label) / 5;

    for (int b = 0; b < kt_m_bucket_count && n_m < MAX_WIDTH; b++)
        if (row_in(t, 0, t->n_rows, kt_m_buckets[b])) m[n_m++] = kt_m_buckets[b];
    fprintf(to, "Gain over the default in %%, by rows (. = default kept, ? = undecided, ~ = under "
                "twice the noise)\n");
    for (; at < n_m; at += fits) { /* as many columns as the terminal has room for */
        int end = at + fits < n_m ? at + fits : n_m;
        fprintf(to, "%*s", label, "m =");
        for (int i = at; i < end; i++) fprintf(to, "%4d ", m[i]);
        fputc('\n', to);
        for (int l = 0; l < n; l++) {
            size_t stop = l + 1 < n ? first[l + 1] : t->n_rows;
            char key[KT_CELL_KEY_BYTES];
            put_text(to, kt_html_matrix(&t->rows[first[l]], key, sizeof key), label - 1);
            fputc(' ', to);
            for (int i = at; i < end; i++)
                put_heat(s, to, row_in(t, first[l], stop, m[i]),
                         t->fingerprint.ceilings.aa_noise_p95);
            fputc('\n', to);
        }
    }
}

/* --- gains --- */

static int by_gain(const void *a, const void *b) {
    double x = kt_row_gain(*(const kt_table_row *const *)a);
    double y = kt_row_gain(*(const kt_table_row *const *)b);
    return x < y ? 1 : x > y ? -1 : 0;
}

void kt_plot_gains(const kt_export_input *in, const kt_plot_style *s, int most, FILE *to) {
    const kt_table *t = in->table;
    const kt_table_row **rows = calloc(t->n_rows + 1, sizeof *rows);
    double noise = t->fingerprint.ceilings.aa_noise_p95;
    int n = 0, label = s->width > 100 ? 56 : s->width * 5 / 8, bar = s->width - label - 11;

    for (size_t i = 0; rows && i < t->n_rows; i++)
        if (strcmp(kt_row_status(&t->rows[i]), "tuned") == 0) rows[n++] = &t->rows[i];
    if (n > 0) qsort(rows, (size_t)n, sizeof *rows, by_gain);
    fprintf(to, "Largest gains over the default%s\n", n ? "" : ": none");
    for (int i = 0; i < n && i < most; i++) {
        char key[KT_CELL_KEY_BYTES];
        double gain = kt_row_gain(rows[i]);
        put_text(to, kt_cell_key(&rows[i]->problem, rows[i]->threads, key, sizeof key), label);
        fputc(' ', to);
        colour(s, to, gain < 2 * noise ? GREY : GREEN);
        put_bar(s, to, gain / kt_row_gain(rows[0]), bar);
        colour(s, to, NONE);
        fprintf(to, "%s%+7.1f %%\n", gain < 2 * noise ? "~" : " ", 100 * gain);
    }
    free(rows);
}

/* --- races --- */

static double p25_of(const kt_samples *s, int contender) {
    double x[KT_MAX_SAMPLES];
    int n = 0;
    for (int i = 0; i < s->rounds_of[contender]; i++) {
        double ns = s->ns[(size_t)contender * KT_MAX_SAMPLES + (size_t)i];
        if (!s->voided[i] && ns > 0) x[n++] = ns;
    }
    return n ? kt_quantile(x, n, 0.25) : INFINITY;
}

/* Contenders by how long they stayed, then by time. */
static void print_race(const kt_replay *r, const kt_samples *samples, const kt_plot_style *s,
                       FILE *to) {
    enum { MOST_SHOWN = 12 };
    int label = s->width > 100 ? 60 : s->width / 2, bar = s->width - label - 22;
    uint8_t *shown = calloc((size_t)samples->n_contenders + 1, 1);

    put_text(to, r->cell, (int)strlen(r->cell));
    fprintf(to, ": %d contender%s, %d rounds\n", samples->n_contenders,
            samples->n_contenders == 1 ? "" : "s", samples->n_rounds);
    for (int k = 0; shown && k < samples->n_contenders && k < MOST_SHOWN; k++) {
        int best = -1;
        double ns;
        for (int c = 0; c < samples->n_contenders; c++) {
            if (shown[c]) continue;
            if (best < 0 || samples->rounds_of[c] > samples->rounds_of[best] ||
                (samples->rounds_of[c] == samples->rounds_of[best] &&
                 p25_of(samples, c) < p25_of(samples, best)))
                best = c;
        }
        shown[best] = 1;
        ns = p25_of(samples, best);
        put_text(to, r->names[best], label);
        fputc(' ', to);
        colour(s, to, best == r->winner ? GREEN : best == r->default_index ? YELLOW : GREY);
        put_bar(s, to, isfinite(ns) ? r->row.time_ns / ns : 0, bar);
        colour(s, to, NONE);
        fprintf(to, " %9.1f us %3d %s\n", isfinite(ns) ? ns / 1e3 : 0, samples->rounds_of[best],
                best == r->winner          ? "won"
                : best == r->default_index ? "def"
                                           : "out");
    }
    if (samples->n_contenders > MOST_SHOWN)
        fprintf(to, "and %d that left earlier\n", samples->n_contenders - MOST_SHOWN);
    free(shown);
}

int kt_plot_races(const kt_export_input *in, const kt_plot_style *s, int most, FILE *to) {
    kt_replay *r = malloc(sizeof *r);
    int n = 0;

    if (r && in->journal)
        fputs("Races: bars are speeds over the winner's; time, rounds taken part in, fate\n", to);
    for (size_t i = 0; r && in->journal && i < in->table->n_rows && n < most; i++) {
        kt_samples samples = {0};
        if (kt_replay_of_row(in->journal, &in->table->rows[i], r, NULL) != KT_OK) continue;
        if (kt_replay_samples(r, &samples, NULL) == KT_OK) {
            print_race(r, &samples, s, to);
            n++;
        }
        kt_samples_destroy(&samples);
    }
    free(r);
    return n;
}
