/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cli/bench_rows.h"

#include <stdio.h>

static const char *verdict_of(const kt_suite_row *r) {
    return r->ok ? "ok" : r->skipped ? "skipped" : *r->note ? "failed" : "missed";
}

static const char *rate_unit(const kt_suite_row *r) {
    return r->kind == KT_ROW_ACCURACY ? "percent" : r->is_gbs ? "GB/s" : "Gop/s";
}

static void put_pair(kt_json_writer *w, const char *key, double a, double b, int decimals) {
    kt_json_key(w, key);
    kt_json_begin_array(w);
    kt_json_put_fixed(w, a, decimals);
    kt_json_put_fixed(w, b, decimals);
    kt_json_end_array(w);
}

static void put_placements(const kt_suite_row *r, kt_json_writer *w) {
    kt_json_key(w, "placements");
    kt_json_begin_array(w);
    for (int p = 0; p < r->n_placements; p++) kt_json_put_fixed(w, r->placement[p], 4);
    kt_json_end_array(w);
    put_pair(w, "least_ns", r->least_ns[0], r->least_ns[1], 1);
    kt_json_add_fixed(w, "least_times", r->least_times, 4);
}

void kt_bench_row_put(const kt_suite_row *r, const char *repeat, kt_json_writer *w) {
    kt_json_begin_object(w);
    kt_json_add_string(w, "name", r->name);
    kt_json_add_fixed(w, "measured", r->measured, 4);
    kt_json_add_fixed(w, "bar", r->bar, 4);
    kt_json_add_string(w, "unit", r->unit);
    kt_json_add_bool(w, "ok", r->ok);
    kt_json_add_string(w, "verdict", verdict_of(r));
    kt_json_add_fixed(w, "rate", r->rate, 3);
    kt_json_add_fixed(w, "ceiling", r->ceiling, 3);
    kt_json_add_string(w, "rate_unit", rate_unit(r));
    kt_json_add_int(w, "rounds", r->rounds);
    put_pair(w, "interval", r->spread.low, r->spread.high, 4);
    if (r->n_placements > 0) put_placements(r, w);
    kt_json_add_bool(w, "at_most", r->at_most);
    kt_json_add_bool(w, "skipped", r->skipped);
    kt_json_add_string(w, "contender", r->contender);
    kt_json_add_string(w, "repeat", repeat);
    if (*r->detail) kt_json_add_string(w, "detail", r->detail);
    kt_json_add_string(w, "note", r->note);
    kt_json_end_object(w);
}

void kt_bench_row_print(const kt_suite_row *r) {
    if (*r->note) {
        printf("%-30s  %s: %s\n", r->name, r->skipped ? "skipped" : "failed", r->note);
        return;
    }
    printf("%-30s %.3f %s", r->name, r->measured, r->unit);
    if (r->kind == KT_ROW_ACCURACY)
        printf("  (%d variants)  error %.3f %%, the format's %.3f %%  ", r->rounds, r->rate,
               r->ceiling);
    else if (r->n_placements > 0)
        printf("  (%.3f .. %.3f, %d placements, %d rounds; least times %.3f)", r->spread.low,
               r->spread.high, r->n_placements, r->rounds, r->least_times);
    else
        printf("  (%.3f .. %.3f, %d rounds)", r->spread.low, r->spread.high, r->rounds);
    if (r->kind != KT_ROW_ACCURACY)
        printf("  %.1f of %.1f %s  ", r->rate, r->ceiling, r->is_gbs ? "GB/s" : "Gop/s");
    if (r->bar > 0) {
        /* Percent of what the bar asks for; above 100 is better either way. */
        double percent = 100 * (r->at_most ? r->bar / r->measured : r->measured / r->bar);
        printf("bar %s%.3g %s (%.0f %%)  ", r->at_most ? "<= " : "", r->bar,
               r->ok ? "ok" : "MISSED", percent);
    }
    printf("[verified] %s\n", r->contender);
    if (*r->detail) printf("%-30s %s\n", "", r->detail);
}

int kt_bench_rows_code(const kt_suite_row *rows, int n) {
    for (int i = 0; i < n; i++)
        if (!rows[i].ok && !rows[i].skipped) return KT_TUNE_REGRESSION;
    return KT_TUNE_OK;
}
