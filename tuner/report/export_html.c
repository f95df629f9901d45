/* One self-contained page: the machine, heat maps of gain and of nearness to the roofline over rows and
 * matrices (inline SVG), every decision, rejected contenders. No script, no font, no link.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/cost/cost.h"
#include "tuner/report/export.h"
#include "tuner/space/cell.h"

enum { BOX_W = 52, BOX_H = 22, LEFT = 330, TOP = 26, MAX_LINES = 512 };

static void put_escaped(FILE *to, const char *text) {
    for (; *text; text++) {
        const char *entity = *text == '<'   ? "&lt;"
                             : *text == '>' ? "&gt;"
                             : *text == '&' ? "&amp;"
                             : *text == '"' ? "&quot;"
                                            : NULL;
        if (entity)
            fputs(entity, to);
        else
            fputc(*text, to);
    }
}

/* --- heat maps --- */

/* What a map shows of a row: the value's text, and where it lies on a scale from 0 (pale) to 1. */
typedef struct heat {
    const char *title, *about;
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
    {"Gain over the default", "speed of the winner over what would run without tuning", gain_value,
     0.5},
    {"Nearness to the roofline",
     "lower bound by the measured ceilings, over the time; above 100 % the weights came from a "
     "cache",
     roofline_value, 1.0},
};

/* One line per matrix and thread count: the first of its rows in the table, which is sorted so that they
 * follow each other. */
static int find_lines(const kt_table *t, size_t first[MAX_LINES]) {
    int n = 0;
    for (size_t i = 0; i < t->n_rows && n < MAX_LINES; i++) {
        const kt_table_row *r = &t->rows[i], *before = r - 1;
        if (i > 0 && r->threads == before->threads &&
            kt_same_weights(&r->problem, &before->problem))
            continue;
        first[n++] = i;
    }
    return n;
}

static int column_of(int64_t m) {
    for (int i = 0; i < kt_m_bucket_count; i++)
        if (kt_m_buckets[i] == m) return i;
    return -1;
}

static void draw_box(FILE *to, const kt_table_row *r, int column, int line, double value,
                     double full) {
    double strength = fmin(fmax(value / full, 0), 1);
    int x = LEFT + column * BOX_W, y = TOP + line * BOX_H;

    /* From white to a blue that white text can be read on. */
    fprintf(to, "<g><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"rgb(%d,%d,%d)\"/>", x,
            y, BOX_W - 2, BOX_H - 2, (int)(245 - 215 * strength), (int)(245 - 160 * strength),
            (int)(245 - 85 * strength));
    fprintf(to, "<text x=\"%d\" y=\"%d\" fill=\"%s\" text-anchor=\"middle\">%.0f</text><title>",
            x + BOX_W / 2, y + 15, strength > 0.5 ? "#fff" : "#222", 100 * value);
    put_escaped(to, r->variant);
    fputs(" {", to);
    put_escaped(to, r->config);
    fprintf(to, "} %.1f us</title></g>\n", r->time_ns / 1e3);
}

static void draw_heat(const kt_export_input *in, FILE *to, const heat *h) {
    const kt_table *t = in->table;
    size_t first[MAX_LINES];
    int n = find_lines(t, first);

    fprintf(to, "<h2>%s</h2>\n<p>%s; in %%.</p>\n<svg viewBox=\"0 0 %d %d\" role=\"img\">\n",
            h->title, h->about, LEFT + kt_m_bucket_count * BOX_W, TOP + n * BOX_H);
    for (int i = 0; i < kt_m_bucket_count; i++)
        fprintf(to, "<text x=\"%d\" y=\"16\" text-anchor=\"middle\">m=%d</text>\n",
                LEFT + i * BOX_W + BOX_W / 2, kt_m_buckets[i]);
    for (int l = 0; l < n; l++) {
        size_t end = l + 1 < n ? first[l + 1] : t->n_rows;
        char key[KT_CELL_KEY_BYTES];
        kt_problem p = t->rows[first[l]].problem;
        p.m = 0;
        kt_cell_key(&p, t->rows[first[l]].threads, key, sizeof key);
        fprintf(to, "<text x=\"0\" y=\"%d\">", TOP + l * BOX_H + 15);
        put_escaped(to, key);
        fputs("</text>\n", to);
        for (size_t i = first[l]; i < end; i++) {
            int column = column_of(t->rows[i].problem.m);
            double value = h->value(in, &t->rows[i]);
            if (column >= 0 && !isnan(value)) draw_box(to, &t->rows[i], column, l, value, h->full);
        }
    }
    fputs("</svg>\n", to);
}

/* --- tables --- */

static void put_cell(FILE *to, const char *text) {
    fputs("<td>", to);
    put_escaped(to, text);
    fputs("</td>", to);
}

static void list_rows(const kt_table *t, FILE *to) {
    fputs("<h2>Decisions</h2>\n<table><tr><th>cell<th>status<th>us<th>95 % interval<th>gain"
          "<th>winner<th>parameters<th>error</tr>\n",
          to);
    for (size_t i = 0; i < t->n_rows; i++) {
        const kt_table_row *r = &t->rows[i];
        char key[KT_CELL_KEY_BYTES];
        fputs("<tr>", to);
        put_cell(to, kt_cell_key(&r->problem, r->threads, key, sizeof key));
        put_cell(to, r->status);
        fprintf(to, "<td class=n>%.1f<td class=n>%.3f .. %.3f<td class=n>%+.1f %%",
                r->time_ns / 1e3, r->ci_low, r->ci_high, 100 * kt_row_gain(r));
        put_cell(to, r->variant);
        put_cell(to, r->config);
        fprintf(to, "<td class=n>%.2g</tr>\n", r->error);
    }
    fputs("</table>\n", to);
}

static const char *text_of(const kt_json *record, const char *key) {
    const char *s = kt_json_string(kt_json_get(record, key), NULL);
    return s ? s : "";
}

static void list_rejected(const kt_journal *j, FILE *to) {
    static const char *const keys[] = {"outcome", "contender", "shape", "message"};
    size_t n = 0;

    fputs("<h2>Rejected before any timing</h2>\n<table>\n", to);
    for (size_t i = 0; i < kt_journal_count(j); i++) {
        const kt_json *r = kt_journal_at(j, i);
        if (strcmp(text_of(r, "t"), "gate") != 0 || strcmp(text_of(r, "outcome"), "passed") == 0)
            continue;
        fputs("<tr>", to);
        for (int k = 0; k < 4; k++) put_cell(to, text_of(r, keys[k]));
        fputs("</tr>\n", to);
        n++;
    }
    fprintf(to, "</table>\n<p>%zu contenders.</p>\n", n);
}

static void describe(const kt_table *t, FILE *to) {
    const kt_fingerprint *f = &t->fingerprint;
    const kt_ceilings *c = &f->ceilings;
    char class_name[64], isa[160];
    size_t tuned = 0;
    double sum = 0;

    for (size_t i = 0; i < t->n_rows; i++) {
        if (strcmp(t->rows[i].status, "tuned") != 0) continue;
        tuned++;
        sum += log1p(kt_row_gain(&t->rows[i]));
    }
    kt_machine_class(f, class_name, sizeof class_name);
    fputs("<h1>", to);
    put_escaped(to, t->workload);
    fprintf(to,
            " on %s</h1>\n<p>%zu cells, %zu tuned (%+.1f %% geomean), the others kept the "
            "default. ",
            class_name, t->n_rows, tuned, tuned ? 100 * expm1(sum / (double)tuned) : 0);
    put_escaped(to, t->created);
    fputs(", ", to);
    put_escaped(to, t->build);
    fputs(".</p>\n<p>", to);
    put_escaped(to, f->vendor);
    fprintf(to,
            " family %d model %d stepping %d, %s; %d cores, %.0f GiB. Read stream %.1f GB/s on one "
            "thread, %.1f on %d. A/A noise p95 %.2f %%: effects below twice that are none.</p>\n",
            f->family, f->model, f->stepping, kt_isa_format(f->isa, isa, sizeof isa),
            f->usable_cores, (double)f->memory_bytes / 1073741824.0, c->stream_gbs_1t,
            c->stream_gbs_all, c->threads_all, 100 * c->aa_noise_p95);
}

static kt_status write_html(const kt_export_input *in, FILE *to, kt_err *err) {
    (void)err;
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>kttune: ", to);
    put_escaped(to, in->table->workload);
    fputs("</title>\n<style>body{font:14px sans-serif;margin:2em;color:#222}"
          "svg{font-size:11px;width:100%;max-width:1550px}"
          "table{border-collapse:collapse;font-size:12px}"
          "td,th{padding:2px 8px;text-align:left;border-bottom:1px solid #ddd}"
          ".n{text-align:right}</style></head><body>\n",
          to);
    describe(in->table, to);
    for (size_t i = 0; i < sizeof heats / sizeof *heats; i++) draw_heat(in, to, &heats[i]);
    list_rows(in->table, to);
    if (in->journal) list_rejected(in->journal, to);
    fputs("</body></html>\n", to);
    return KT_OK;
}

const kt_exporter kt_export_html = {
    .name = "html", .summary = "one self-contained page with heat maps", .write = write_html};
