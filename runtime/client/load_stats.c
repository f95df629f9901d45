/* Times to figures. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/client/load_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

static const char *const metric_keys[] = {"ttft", "tpot", "itl", "e2el"};
static const char *const metric_titles[] = {"Time to First Token",
                                            "Time per Output Token (excl. 1st)",
                                            "Inter-token Latency", "End-to-end Latency"};
static const char *const metric_names[] = {"TTFT", "TPOT", "ITL", "E2EL"};

static double ms(int64_t ns) {
    return (double)ns * 1e-6;
}

/* A metric of one answer (ITL: its mean); negative = it has none. */
static double of_answer(const kt_load_answer *a, kt_load_metric m) {
    switch (m) {
    case KT_LOAD_TTFT: return ms(a->first_ns - a->start_ns);
    case KT_LOAD_TPOT:
        return a->output_tokens > 1 ? ms(a->last_ns - a->first_ns) / (double)(a->output_tokens - 1)
                                    : -1;
    case KT_LOAD_ITL:
        return a->n_pieces > 1 ? ms(a->last_ns - a->first_ns) / (double)(a->n_pieces - 1) : -1;
    default: return ms(a->end_ns - a->start_ns);
    }
}

kt_status kt_load_slo_parse(const char *text, kt_load_slo *out, kt_err *err) {
    kt_load_slo slo = {{0}};

    for (const char *at = text; *at;) {
        size_t n = strcspn(at, ":"), m = 0;
        char *end;
        while (m < KT_LOAD_METRICS &&
               (strlen(metric_keys[m]) != n || memcmp(metric_keys[m], at, n) != 0))
            m++;
        if (m == KT_LOAD_METRICS || at[n] != ':')
            return kt_fail(err, KT_E_INVALID,
                           "goodput: '%s' found, expected ttft:MS, tpot:MS, itl:MS or e2el:MS", at);
        slo.limit[m] = strtod(at + n + 1, &end);
        if (!(slo.limit[m] > 0) || !isfinite(slo.limit[m]) || end == at + n + 1)
            return kt_fail(err, KT_E_INVALID, "goodput: %s needs milliseconds above 0, found '%s'",
                           metric_keys[m], at + n + 1);
        at = end + strspn(end, " ,");
        if (at == end && *at)
            return kt_fail(err, KT_E_INVALID, "goodput: '%s' found after a limit", at);
    }
    *out = slo;
    return KT_OK;
}

static int by_size(const void *a, const void *b) {
    double x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

static double percentile(const double *sorted, size_t n, double q) {
    double at = q * (double)(n - 1);
    size_t i = (size_t)at;
    return i + 1 < n ? sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

/* Sorts the values. */
static kt_load_spread spread_of(double *v, size_t n) {
    kt_load_spread s = {.n = n};
    double squares = 0;

    if (n == 0) return s;
    qsort(v, n, sizeof *v, by_size);
    for (size_t i = 0; i < n; i++) s.mean += v[i] / (double)n;
    for (size_t i = 0; i < n; i++) squares += (v[i] - s.mean) * (v[i] - s.mean);
    s.deviation = sqrt(squares / (double)n);
    s.median = percentile(v, n, 0.5);
    s.p90 = percentile(v, n, 0.90);
    s.p95 = percentile(v, n, 0.95);
    s.p99 = percentile(v, n, 0.99);
    s.max = v[n - 1];
    return s;
}

static bool is_good(const kt_load_answer *a, const kt_load_slo *slo) {
    for (int m = 0; m < KT_LOAD_METRICS; m++)
        if (slo->limit[m] > 0 && of_answer(a, (kt_load_metric)m) > slo->limit[m]) return false;
    return true;
}

static size_t collect(const kt_load_result *r, kt_load_metric m, double *v) {
    size_t n = 0;

    for (size_t i = 0; i < r->n; i++) {
        const kt_load_answer *a = &r->answers[i];
        if (*a->error) continue;
        if (m == KT_LOAD_ITL)
            for (int64_t k = 0; k + 1 < a->n_pieces; k++) v[n++] = (double)a->gap_ms[k];
        else if (of_answer(a, m) >= 0)
            v[n++] = of_answer(a, m);
    }
    return n;
}

static void count(const kt_load_result *r, const kt_load_slo *slo, kt_load_report *out) {
    for (size_t i = 0; i < r->n; i++) {
        const kt_load_answer *a = &r->answers[i];
        if (*a->error) {
            if (out->failed++ == 0) memcpy(out->first_error, a->error, sizeof out->first_error);
            continue;
        }
        out->completed++;
        out->good += slo && is_good(a, slo);
        if (a->prompt_tokens > 0) out->input_tokens += a->prompt_tokens;
        if (a->cached_tokens > 0) out->cached_tokens += a->cached_tokens;
        out->output_tokens += a->output_tokens;
        out->counts_pieces |= a->prompt_tokens < 0;
    }
}

kt_status kt_load_report_make(const kt_load_result *r, const kt_load_slo *slo, kt_load_report *out,
                              kt_err *err) {
    size_t most = r->n;
    double *v;

    memset(out, 0, sizeof *out);
    out->duration_s = r->duration_s;
    out->has_slo = slo != NULL;
    count(r, slo, out);
    for (size_t i = 0; i < r->n; i++) most += (size_t)r->answers[i].n_pieces;
    v = malloc((most ? most : 1) * sizeof *v);
    if (!v) return kt_fail(err, KT_E_NOMEM, "no memory for the times of %zu answers", r->n);
    for (int m = 0; m < KT_LOAD_METRICS; m++)
        out->spread[m] = spread_of(v, collect(r, (kt_load_metric)m, v));
    free(v);
    return KT_OK;
}

static double per_second(double amount, const kt_load_report *r) {
    return r->duration_s > 0 ? amount / r->duration_s : 0;
}

static void print_count(FILE *to, const char *name, int64_t value) {
    fprintf(to, "%-40s %-10lld\n", name, (long long)value);
}

static void print_figure(FILE *to, const char *name, double value) {
    fprintf(to, "%-40s %-10.2f\n", name, value);
}

static void print_spread(const kt_load_report *r, kt_load_metric m, FILE *to) {
    const kt_load_spread *s = &r->spread[m];
    const struct {
        const char *form;
        double value;
    } lines[] = {{"Mean %s (ms):", s->mean}, {"Median %s (ms):", s->median},
                 {"P90 %s (ms):", s->p90},   {"P95 %s (ms):", s->p95},
                 {"P99 %s (ms):", s->p99},   {"Max %s (ms):", s->max}};
    const int width = (int)strlen(metric_titles[m]), side = (51 - width) / 2;

    fprintf(to, "%.*s%s%.*s\n", side, "--------------------------", metric_titles[m],
            51 - width - side, "--------------------------");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char name[64];
        const char *slot = strstr(lines[i].form, "%s");
        snprintf(name, sizeof name, "%.*s%s%s", (int)(slot - lines[i].form), lines[i].form,
                 metric_names[m], slot + 2);
        print_figure(to, name, lines[i].value);
    }
}

void kt_load_report_print(const kt_load_report *r, FILE *to) {
    fprintf(to, "============ Serving Benchmark Result ============\n");
    print_count(to, "Successful requests:", (int64_t)r->completed);
    print_count(to, "Failed requests:", (int64_t)r->failed);
    print_figure(to, "Benchmark duration (s):", r->duration_s);
    print_count(to, "Total input tokens:", r->input_tokens);
    if (r->cached_tokens) print_count(to, "Total cached input tokens:", r->cached_tokens);
    print_count(to, "Total generated tokens:", r->output_tokens);
    print_figure(to, "Request throughput (req/s):", per_second((double)r->completed, r));
    if (r->has_slo) print_figure(to, "Request goodput (req/s):", per_second((double)r->good, r));
    print_figure(to, "Output token throughput (tok/s):", per_second((double)r->output_tokens, r));
    print_figure(to, "Total Token throughput (tok/s):",
                 per_second((double)(r->output_tokens + r->input_tokens), r));
    for (int m = 0; m < KT_LOAD_METRICS; m++) print_spread(r, (kt_load_metric)m, to);
    fprintf(to, "==================================================\n");
    if (r->counts_pieces)
        fprintf(to, "the server counts no tokens: pieces of its answers were counted\n");
    if (r->failed) fprintf(to, "first failure: %s\n", r->first_error);
}

void kt_load_report_put(const kt_load_report *r, kt_json_writer *w) {
    kt_json_add_int(w, "completed", (int64_t)r->completed);
    kt_json_add_int(w, "failed", (int64_t)r->failed);
    kt_json_add_double(w, "duration", r->duration_s);
    kt_json_add_int(w, "total_input_tokens", r->input_tokens);
    kt_json_add_int(w, "total_cached_tokens", r->cached_tokens);
    kt_json_add_int(w, "total_output_tokens", r->output_tokens);
    kt_json_add_double(w, "request_throughput", per_second((double)r->completed, r));
    if (r->has_slo) kt_json_add_double(w, "request_goodput", per_second((double)r->good, r));
    kt_json_add_double(w, "output_throughput", per_second((double)r->output_tokens, r));
    kt_json_add_double(w, "total_token_throughput",
                       per_second((double)(r->output_tokens + r->input_tokens), r));
    for (int m = 0; m < KT_LOAD_METRICS; m++) {
        const kt_load_spread *s = &r->spread[m];
        const struct {
            const char *name;
            double value;
        } members[] = {{"mean", s->mean}, {"median", s->median}, {"std", s->deviation},
                       {"p90", s->p90},   {"p95", s->p95},       {"p99", s->p99},
                       {"max", s->max}};
        for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
            char key[64];
            snprintf(key, sizeof key, "%s_%s_ms", members[i].name, metric_keys[m]);
            kt_json_add_double(w, key, members[i].value);
        }
    }
    if (r->failed) kt_json_add_string(w, "first_error", r->first_error);
}

/* ---- two servers ---- */

/* Student's t for 95 % and n degrees of freedom (from tables; beyond 30 the normal value's
 * expansion). */
static double student(size_t n) {
    static const double t[] = {0,     12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365,
                               2.306, 2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
                               2.120, 2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069,
                               2.064, 2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
    return n < sizeof t / sizeof *t ? t[n] : 1.960 + 2.4 / (double)n;
}

static double figure(const kt_load_report *r, int which) {
    switch (which) {
    case 0: return per_second((double)r->output_tokens, r);
    case 1: return r->spread[KT_LOAD_TTFT].median;
    case 2: return r->spread[KT_LOAD_TPOT].median;
    case 3: return r->spread[KT_LOAD_E2EL].median;
    default: return r->spread[KT_LOAD_ITL].p99;
    }
}

/* worst, best: log ratios at the ends of the interval, positive = worse. */
static kt_load_verdict judge(double mean, double best, double worst, double margin) {
    if (worst < 0 && mean < -log1p(margin)) return KT_LOAD_BETTER;
    if (best > 0 && mean > log1p(margin)) return KT_LOAD_WORSE;
    return worst > log1p(margin) ? KT_LOAD_UNCLEAR : KT_LOAD_SAME;
}

static kt_load_change change_of(const kt_load_report *a, const kt_load_report *b, size_t n_rounds,
                                double margin, int which) {
    static const char *const names[] = {"output_throughput", "median_ttft_ms", "median_tpot_ms",
                                        "median_e2el_ms", "p99_itl_ms"};
    kt_load_change c = {.name = names[which], .more_is_better = which == 0};
    double sum = 0, squares = 0, sum_a = 0, mean, half, n;

    for (size_t i = 0; i < n_rounds; i++) {
        double x = figure(&a[i], which), y = figure(&b[i], which), d;
        if (!(x > 0) || !(y > 0)) continue;
        d = log(y / x);
        sum += d;
        squares += d * d;
        sum_a += log(x);
        c.n++;
    }
    if (c.n < 2) return c;
    n = (double)c.n;
    mean = sum / n;
    half = student(c.n - 1) * sqrt(fmax(0, squares - sum * mean) / (n - 1) / n);
    c.a = exp(sum_a / n);
    c.ratio = exp(mean);
    c.b = c.a * c.ratio;
    c.low = exp(mean - half);
    c.high = exp(mean + half);
    if (c.more_is_better) mean = -mean;
    c.verdict = judge(mean, mean - half, mean + half, margin);
    return c;
}

kt_load_decision kt_load_compare(const kt_load_report *a, const kt_load_report *b, size_t n_rounds,
                                 double margin, kt_load_change changes[KT_LOAD_CHANGES]) {
    size_t failed_a = 0, failed_b = 0;
    bool better = false, worse = false, unclear = false;

    for (size_t i = 0; i < n_rounds; i++) {
        failed_a += a[i].failed;
        failed_b += b[i].failed;
    }
    for (int k = 0; k < KT_LOAD_CHANGES; k++) {
        changes[k] = change_of(a, b, n_rounds, margin, k);
        better |= changes[k].verdict == KT_LOAD_BETTER;
        worse |= changes[k].verdict == KT_LOAD_WORSE;
        unclear |= changes[k].verdict == KT_LOAD_UNCLEAR && k < KT_LOAD_CHANGES - 1;
    }
    if (failed_b > failed_a || !better) return KT_LOAD_RETAIN;
    if (worse) return KT_LOAD_TRADE_OFF;
    return unclear ? KT_LOAD_RETAIN : KT_LOAD_PROMOTE;
}

const char *kt_load_verdict_name(kt_load_verdict v) {
    static const char *const names[] = {"same", "better", "worse", "unclear"};
    return names[v];
}

const char *kt_load_decision_name(kt_load_decision d) {
    static const char *const names[] = {"promote", "trade-off", "retain"};
    return names[d];
}
