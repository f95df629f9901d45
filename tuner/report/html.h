/* Parts of the HTML report. Each writes one section; all text from files is escaped. Colours are CSS
 * variables, so that light and dark displays both read well; numbers never depend on colour alone.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_HTML_H
#define KT_TUNER_HTML_H

#include "tuner/report/export.h"

/* Text with & < > " escaped. */
void kt_html_text(FILE *to, const char *text);

/* Document head with style, up to the opening of <main>; and what closes it, with the script that sorts
 * tables (without scripts they just stay in order). */
void kt_html_begin(FILE *to, const char *title);
void kt_html_end(FILE *to);

/* An axis with a logarithmic scale from low to high on the pixels from `from` to `to`. */
typedef struct kt_log_axis {
    double low, high, from, to;
} kt_log_axis;

double kt_log_axis_at(const kt_log_axis *a, double value);
/* Next tick >= value of the series 1, 2, 5, 10, 20 ...: start with low, go on with 1.01 * tick. */
double kt_log_axis_tick(double value);

/* "moe_ffn w4g32/a8 768x2048 128/8 t=2": a cell without its rows. */
char *kt_html_matrix(const kt_table_row *row, char *out, size_t out_bytes);

void kt_html_roofline(const kt_export_input *in, FILE *to);
void kt_html_heats(const kt_export_input *in, FILE *to);
/* These need the journal, and memory. */
kt_status kt_html_races(const kt_export_input *in, FILE *to, kt_err *err);
kt_status kt_html_regret(const kt_export_input *in, FILE *to, kt_err *err);

#endif
