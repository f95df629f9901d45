/* One self-contained page: the machine, the roofline with every cell, heat maps, regret against time,
 * races, every decision, rejected contenders. No font, no link, nothing loaded from elsewhere.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "tuner/report/html.h"
#include "tuner/report/outcome.h"
#include "tuner/report/plan_words.h"
#include "tuner/report/refusals.h"
#include "tuner/report/token_time.h"
#include "tuner/space/cell.h"

enum { MOST_COMMANDS = 16 };

/* --- head --- */

static void put_tile(FILE *to, const char *value, const char *label) {
    fputs("<div class=\"tile\"><b>", to);
    kt_html_text(to, value);
    fputs("</b><span>", to);
    kt_html_text(to, label);
    fputs("</span></div>\n", to);
}

static void put_token_tiles(const kt_token_times *times, FILE *to) {
    for (int i = 0; i < times->n; i++) {
        const kt_token_time *time = &times->of[i];
        char value[64], label[96];
        snprintf(value, sizeof value, "%s%.*f tok/s", time->is_rough ? "≈ " : "",
                 1 / time->after < 1000 ? 1 : 0, 1 / time->after);
        snprintf(label, sizeof label,
                 "%s, one user, matrices only, at most; %.1f with the defaults",
                 kt_serving_format_name(time->format), 1 / time->before);
        put_tile(to, value, label);
    }
}

/* What exit codes 6 and 7 say, and how much of the machine's time others had. */
static void put_certainty(const kt_outcome *o, FILE *to) {
    char words[KT_OUTCOME_WORDS][KT_OUTCOME_BYTES];
    int n = kt_outcome_words(o, words);

    if (n == 0) return;
    fputs("<div class=\"card warn\" role=\"note\">", to);
    for (int i = 0; i < n; i++) {
        fputs("<p>", to);
        kt_html_text(to, words[i]);
        fputs("</p>", to);
    }
    fputs("</div>\n", to);
}

static void put_tiles(const kt_table *t, const kt_token_times *times, const kt_outcome *o,
                      FILE *to) {
    const kt_ceilings *c = &t->fingerprint.ceilings;
    char value[64], label[96];
    size_t tuned = 0;
    double sum = 0, peak = c->peak_scalar_gops;

    for (int i = 0; i < KT_ISA_COUNT; i++) peak = fmax(peak, c->peak_gops[i]);
    for (size_t i = 0; i < t->n_rows; i++) {
        if (strcmp(kt_row_status(&t->rows[i]), "tuned") != 0) continue;
        tuned++;
        sum += log1p(kt_row_gain(&t->rows[i]));
    }
    fputs("<div class=\"tiles\">\n", to);
    snprintf(value, sizeof value, "%zu of %zu", tuned, t->n_rows);
    snprintf(label, sizeof label, "cells tuned; %zu kept the default, %zu undecided",
             t->n_rows - tuned - o->n_undecided, o->n_undecided);
    put_tile(to, value, label);
    snprintf(value, sizeof value, "%s%+.1f %%",
             tuned && expm1(sum / (double)tuned) < 2 * c->aa_noise_p95 ? "≈ " : "",
             tuned ? 100 * expm1(sum / (double)tuned) : 0);
    put_tile(to, value, "geometric mean gain of the tuned cells");
    put_token_tiles(times, to);
    snprintf(value, sizeof value, "%.1f GB/s", c->stream_gbs_all);
    snprintf(label, sizeof label, "read stream on %d threads; %.1f on one", c->threads_all,
             c->stream_gbs_1t);
    put_tile(to, value, label);
    snprintf(value, sizeof value, "%.0f Gop/s", peak);
    put_tile(to, value, "highest peak of one core");
    snprintf(value, sizeof value, "%.1f %%", 100 * c->aa_noise_p95);
    snprintf(label, sizeof label, "A/A noise (p95); gains under %.1f %% are marked ≈",
             200 * c->aa_noise_p95);
    put_tile(to, value, label);
    if (o->rounds > 0) {
        snprintf(value, sizeof value, "%.0f %%", 100 * kt_outcome_voided(o));
        snprintf(label, sizeof label, "of %lld rounds disturbed by others, and voided",
                 (long long)o->rounds);
        put_tile(to, value, label);
    }
    fputs("</div>\n", to);
}

static void put_fact(FILE *to, const char *name, const char *value) {
    fputs("<dt>", to);
    kt_html_text(to, name);
    fputs("</dt><dd>", to);
    kt_html_text(to, value);
    fputs("</dd>\n", to);
}

static void put_fingerprint(const kt_table *t, FILE *to) {
    const kt_fingerprint *f = &t->fingerprint;
    const kt_ceilings *c = &f->ceilings;
    char text[320], isa[160];

    fputs("<h2 id=\"machine\">Machine and run</h2>\n<div class=\"card\"><dl>\n", to);
    snprintf(text, sizeof text, "%s %s, family %d model %d stepping %d", f->vendor, f->microarch,
             f->family, f->model, f->stepping);
    put_fact(to, "processor", text);
    put_fact(to, "instruction sets", kt_isa_format(f->isa, isa, sizeof isa));
    snprintf(text, sizeof text, "%d usable cores, %d NUMA node%s, %.1f GiB", f->usable_cores,
             f->numa_nodes, f->numa_nodes == 1 ? "" : "s", (double)f->memory_bytes / 1073741824.0);
    put_fact(to, "cores and memory", text);
    snprintf(text, sizeof text,
             "%.1f GB/s on one thread, %.1f on %d; from 4 KiB pages %.1f; reads come from memory "
             "from %.0f MiB on",
             c->stream_gbs_1t, c->stream_gbs_all, c->threads_all, c->stream_small_gbs_1t,
             c->cache_knee_bytes / 1048576.0);
    put_fact(to, "read stream", text);
    text[0] = '\0';
    for (int i = 0; i < KT_ISA_COUNT; i++) {
        size_t used = strlen(text);
        if (c->peak_gops[i] > 0)
            snprintf(text + used, sizeof text - used, "%s%s %.0f", used ? ", " : "", kt_isa_name(i),
                     c->peak_gops[i]);
    }
    put_fact(to, "peaks of one core, Gop/s", text);
    snprintf(text, sizeof text,
             "the same kernel against itself differs by up to %.2f %% in 95 of 100 comparisons",
             100 * c->aa_noise_p95);
    put_fact(to, "noise self-test", text);
    put_fact(to, "made", t->created);
    put_fact(to, "by", t->build);
    fputs("</dl></div>\n", to);
}

/* What was typed, each command once: formats are tuned in sessions of their own. */
static void put_commands(const kt_journal *j, FILE *to) {
    const char *known[MOST_COMMANDS];
    int n = 0;

    for (size_t i = 0; i < kt_journal_count(j) && n < MOST_COMMANDS; i++) {
        const kt_json *r = kt_journal_at(j, i);
        const char *command = kt_json_text(r, "command");
        int k = 0;
        if (strcmp(kt_json_text(r, "t"), "session") != 0 || !*command) continue;
        while (k < n && strcmp(known[k], command) != 0) k++;
        if (k < n) continue;
        known[n++] = command;
        fprintf(to, "<p class=\"soft\">%s <code>", n == 1 ? "Repeat with" : "and");
        kt_html_text(to, command);
        fputs("</code></p>\n", to);
    }
}

/* --- tables --- */

static void begin_table(FILE *to, const char *const *heads, const char *classes, int n) {
    fputs("<div class=\"card long\"><table><thead><tr>", to);
    for (int i = 0; i < n; i++)
        fprintf(to, "<th%s><button type=\"button\">%s</button></th>",
                classes[i] == 'n' ? " class=\"n\"" : "", heads[i]);
    fputs("</tr></thead><tbody>\n", to);
}

static void put_cell(FILE *to, const char *text, bool is_long) {
    fputs(is_long ? "<td class=\"w\">" : "<td>", to);
    kt_html_text(to, text);
    fputs("</td>", to);
}

static void list_rows(const kt_table *t, FILE *to) {
    static const char *const heads[] = {"cell", "status", "µs",         "±",
                                        "gain", "winner", "parameters", "error"};
    double noise = t->fingerprint.ceilings.aa_noise_p95;

    fputs("<h2 id=\"decisions\">Decisions</h2>\n<p class=\"soft\">A time is the 25 % quantile of "
          "one call (of one active expert for moe_ffn); ± is half its 95 % interval, and a cell "
          "where it is above 10 % is undecided and grey. ▲: fewer threads take less time. The "
          "error is relative to a computation in double.</p>\n",
          to);
    begin_table(to, heads, "  nnn  n", 8);
    for (size_t i = 0; i < t->n_rows; i++) {
        const kt_table_row *r = &t->rows[i];
        char key[KT_CELL_KEY_BYTES];
        double gain = kt_row_gain(r);
        bool is_wide = kt_row_is_undecided(r), is_tuned = strcmp(kt_row_status(r), "tuned") == 0;
        fputs(is_wide ? "<tr class=\"wide\">" : "<tr>", to);
        put_cell(to, kt_cell_key(&r->problem, r->threads, key, sizeof key), false);
        put_cell(to, kt_row_status(r), false);
        fprintf(to,
                "<td class=\"n\" data-v=\"%.4g\">%s%.1f</td><td class=\"n\" data-v=\"%.5f\">%.1f "
                "%%</td><td class=\"n%s\" data-v=\"%.5f\">%s%+.1f %%</td>",
                r->time_ns, kt_row_wants_fewer_threads(t, r) ? "▲ " : "", r->time_ns / 1e3,
                r->ci_high - r->ci_low, 50 * (r->ci_high - r->ci_low),
                is_tuned && gain >= 2 * noise ? " up" : "", gain,
                is_tuned && gain < 2 * noise ? "≈ " : "", 100 * gain);
        put_cell(to, r->variant, false);
        put_cell(to, r->config, false);
        fprintf(to, "<td class=\"n\" data-v=\"%.4g\">%.2g</td></tr>\n", r->error, r->error);
    }
    fputs("</tbody></table></div>\n", to);
}

/* Decisions about whole layers: how calls are cut, threads, spinning, and what the rows gained there. */
static void list_plans(const kt_table *t, FILE *to) {
    static const char *const heads[] = {"plan cell", "experts", "tokens", "routing",
                                        "µs",        "gain",    "choice", "what it says"};
    double noise = t->fingerprint.ceilings.aa_noise_p95;

    if (t->n_plans == 0) return;
    fputs("<h2 id=\"plans\">Plans</h2>\n<p class=\"soft\">Whole expert layers as they are served: "
          "what was chosen beyond kernels. layer_gain chooses nothing: it runs the tuned rows "
          "against "
          "the defaults, and says how much of what the cells promise is there.</p>\n",
          to);
    begin_table(to, heads, "  n nn  ", 8);
    for (size_t i = 0; i < t->n_plans; i++) {
        const kt_table_plan *p = &t->plans[i];
        char matrix[KT_CELL_KEY_BYTES], text[KT_LAYER_WORDS_BYTES];
        double gain = kt_row_gain(&p->row);
        fputs("<tr>", to);
        put_cell(to, p->cell, false);
        put_cell(to, kt_html_matrix(&p->row, matrix, sizeof matrix), false);
        fprintf(to, "<td class=\"n\">%lld</td>", (long long)p->tokens);
        put_cell(to, p->routing, false);
        fprintf(to,
                "<td class=\"n\" data-v=\"%.5g\">%.1f</td>"
                "<td class=\"n\" data-v=\"%.5f\">%s%+.1f %%</td>",
                p->row.time_ns, p->row.time_ns / 1e3, gain, kt_plan_is_about(p, noise) ? "≈ " : "",
                100 * gain);
        put_cell(to, p->row.config, false);
        put_cell(to, kt_plan_words(p, noise, text, sizeof text), true);
        fputs("</tr>\n", to);
    }
    fputs("</tbody></table></div>\n", to);
}

static void list_rejected(const kt_journal *j, FILE *to) {
    static const char *const keys[] = {"outcome", "contender", "shape", "message"};
    static const char *const heads[] = {"outcome", "contender", "shape", "first failing element"};
    size_t n = 0, n_gated = 0;

    for (size_t i = 0; i < kt_journal_count(j); i++) {
        const kt_json *r = kt_journal_at(j, i);
        n_gated += strcmp(kt_json_text(r, "t"), "gate") == 0;
        n += kt_is_refusal(j, i);
    }
    fprintf(to,
            "<h2 id=\"rejected\">Rejected before any timing</h2>\n<p class=\"soft\">%zu gates "
            "were run; what computes wrong results, crashes or hangs is never timed. %zu "
            "contender%s rejected.</p>\n",
            n_gated, n, n == 1 ? " was" : "s were");
    if (n == 0) return;
    begin_table(to, heads, "    ", 4);
    for (size_t i = 0; i < kt_journal_count(j); i++) {
        const kt_json *r = kt_journal_at(j, i);
        if (!kt_is_refusal(j, i)) continue;
        fputs("<tr>", to);
        for (int k = 0; k < 4; k++) put_cell(to, kt_json_text(r, keys[k]), k == 3);
        fputs("</tr>\n", to);
    }
    fputs("</tbody></table></div>\n", to);
}

static void put_links(const kt_export_input *in, FILE *to) {
    static const struct {
        const char *id, *text;
        bool needs_journal, needs_plans;
    } links[] = {
        {"roofline", "roofline", false, false}, {"gain", "gains", false, false},
        {"nearness", "nearness", false, false}, {"regret", "regret against time", true, false},
        {"plans", "plans", false, true},        {"decisions", "decisions", false, false},
        {"races", "races", true, false},        {"rejected", "rejected", true, false},
        {"machine", "machine", false, false}};

    fputs("<nav>", to);
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        if ((in->journal || !links[i].needs_journal) &&
            (in->table->n_plans || !links[i].needs_plans))
            fprintf(to, "<a href=\"#%s\">%s</a>", links[i].id, links[i].text);
    fputs("</nav>\n", to);
}

static kt_status write_html(const kt_export_input *in, FILE *to, kt_err *err) {
    char class_name[64];
    kt_token_times times;
    kt_outcome outcome;

    KT_TRY(kt_token_times_of(in->table, kt_table_most_threads(in->table), &times, err));
    kt_outcome_of_table(in->table, in->journal, &outcome);
    kt_machine_class(&in->table->fingerprint, class_name, sizeof class_name);
    kt_html_begin(to, in->table->workload);
    fputs("<h1>", to);
    kt_html_text(to, in->table->workload);
    fputs(" on ", to);
    kt_html_text(to, class_name);
    fputs("</h1>\n<p class=\"soft\">kttune, ", to);
    kt_html_text(to, in->table->created);
    fputs(
        ".</p>\n<p>A <em>cell</em> is one matrix shape with its weight format, a number of rows "
        "(m) and of threads (t). In each, all kernels that compute right results raced on weights "
        "from memory; one replaced the default only where it won again on fresh samples.</p>\n",
        to);
    put_links(in, to);
    put_certainty(&outcome, to);
    put_tiles(in->table, &times, &outcome, to);
    if (in->journal) put_commands(in->journal, to);
    kt_html_roofline(in, to);
    kt_html_heats(in, to);
    if (in->journal) KT_TRY(kt_html_regret(in, to, err));
    list_plans(in->table, to);
    list_rows(in->table, to);
    if (in->journal) KT_TRY(kt_html_races(in, to, err));
    if (in->journal) list_rejected(in->journal, to);
    put_fingerprint(in->table, to);
    kt_html_end(to);
    return KT_OK;
}

const kt_exporter kt_export_html = {.name = "html",
                                    .summary =
                                        "a page: roofline, heat maps, races, regret, decisions",
                                    .write = write_html};
