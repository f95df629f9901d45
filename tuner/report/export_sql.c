/* Rows, plans, and all of the journal - sessions, gates, raw samples, decisions - as SQL text
 * that makes a database: standard types, one transaction, no extension of any product.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "tuner/report/export.h"
#include "tuner/space/layer_list.h"
#include "tuner/store/row_json.h"
#include "tuner/store/sample_record.h"

enum { ROWS_PER_INSERT = 200 };

static const char schema[] =
    "CREATE TABLE machine (class VARCHAR(64), vendor VARCHAR(16), microarch VARCHAR(32), "
    "family INTEGER, model INTEGER, stepping INTEGER, isa VARCHAR(160), cores INTEGER, "
    "memory_bytes BIGINT, stream_gbs_1t DOUBLE PRECISION, stream_gbs_all DOUBLE PRECISION, "
    "aa_noise_p95 DOUBLE PRECISION, workload VARCHAR(64), created VARCHAR(32), "
    "build VARCHAR(96));\n"
    "CREATE TABLE decision (cell VARCHAR(256) PRIMARY KEY, op VARCHAR(16), weights VARCHAR(16), "
    "acts VARCHAR(16), m BIGINT, n BIGINT, k BIGINT, experts BIGINT, topk BIGINT, "
    "threads INTEGER, status VARCHAR(20), variant VARCHAR(64), config VARCHAR(96), "
    "version INTEGER, ns DOUBLE PRECISION, low DOUBLE PRECISION, high DOUBLE PRECISION, "
    "rounds INTEGER, gain DOUBLE PRECISION, default_variant VARCHAR(64), "
    "default_config VARCHAR(96), default_ns DOUBLE PRECISION, error DOUBLE PRECISION, "
    "kv_heads BIGINT, context BIGINT, down VARCHAR(16), act VARCHAR(16), v BIGINT, "
    "keys_seen BIGINT, bits VARCHAR(32));\n"
    "CREATE TABLE runner_up (cell VARCHAR(256), place INTEGER, variant VARCHAR(64), "
    "config VARCHAR(96), ns DOUBLE PRECISION);\n"
    /* The best contender of each class of bits that is not the winner's. */
    "CREATE TABLE other_class (cell VARCHAR(256), bits VARCHAR(32), variant VARCHAR(64), "
    "version INTEGER, config VARCHAR(96), ns DOUBLE PRECISION);\n"
    "CREATE TABLE plan (plan_key VARCHAR(320) PRIMARY KEY, cell VARCHAR(16), weights VARCHAR(16), "
    "acts VARCHAR(16), n BIGINT, "
    "k BIGINT, experts BIGINT, topk BIGINT, tokens BIGINT, routing VARCHAR(40), "
    "imbalance DOUBLE PRECISION, threads INTEGER, choice VARCHAR(96), default_choice VARCHAR(96), "
    "ns DOUBLE PRECISION, "
    "low DOUBLE PRECISION, high DOUBLE PRECISION, rounds INTEGER, gain DOUBLE PRECISION, "
    "default_ns DOUBLE PRECISION, predicted DOUBLE PRECISION, status VARCHAR(20));\n"
    "CREATE TABLE session (session INTEGER PRIMARY KEY, command VARCHAR(1000), "
    "version VARCHAR(32), compiler VARCHAR(96), protocol INTEGER, strategy VARCHAR(32), "
    "seed BIGINT, unix_ms BIGINT);\n"
    "CREATE TABLE gate (session INTEGER, shape VARCHAR(256), contender VARCHAR(200), outcome "
    "VARCHAR(16), "
    "rel_rms DOUBLE PRECISION, message VARCHAR(400));\n"
    /* kind: 'rung' of a cell's contest, 'slice' of the cell before it (outputs = how many of its
     * n), 'plan_rung' of a plan cell (cell = plan_key) */
    "CREATE TABLE sample (session INTEGER, kind VARCHAR(12), cell VARCHAR(320), outputs BIGINT, "
    "contest BIGINT, rung INTEGER, contender VARCHAR(200), round INTEGER, voided INTEGER, "
    "ns DOUBLE PRECISION);\n"
    /* kind: 'decision', 'oracle' (the decision an exhaustive search was asked about),
     * 'plan_decision'. Later ones of a cell replace earlier ones; the newest are those of the
     * tables decision and plan. */
    "CREATE TABLE decided (session INTEGER, kind VARCHAR(16), cell VARCHAR(320), contest BIGINT, "
    "variant VARCHAR(64), config VARCHAR(96), version INTEGER, ns DOUBLE PRECISION, "
    "default_ns DOUBLE PRECISION, rounds INTEGER, status VARCHAR(20));\n";

static void put_literal(FILE *to, const char *text) {
    fputc('\'', to);
    for (; *text; text++) {
        if (*text == '\'') fputc('\'', to);
        fputc(*text, to);
    }
    fputc('\'', to);
}

/* Each with a comma behind it. */
static void put_literals(FILE *to, const char *const *texts, int n) {
    for (int i = 0; i < n; i++) {
        put_literal(to, texts[i]);
        fputs(", ", to);
    }
}

/* SQL has no word for what is not finite. */
static void put_number(FILE *to, double v, const char *after) {
    if (isfinite(v))
        fprintf(to, "%.10g%s", v, after);
    else
        fprintf(to, "NULL%s", after);
}

static void put_machine(const kt_table *t, FILE *to) {
    const kt_fingerprint *f = &t->fingerprint;
    char class_name[64], isa[160];

    kt_machine_class(f, class_name, sizeof class_name);
    fputs("INSERT INTO machine VALUES (", to);
    put_literals(to, (const char *const[]){class_name, f->vendor, f->microarch}, 3);
    fprintf(to, "%d, %d, %d, ", f->family, f->model, f->stepping);
    put_literal(to, kt_isa_format(f->isa, isa, sizeof isa));
    fprintf(to, ", %d, %llu, ", f->usable_cores, (unsigned long long)f->memory_bytes);
    put_number(to, f->ceilings.stream_gbs_1t, ", ");
    put_number(to, f->ceilings.stream_gbs_all, ", ");
    put_number(to, f->ceilings.aa_noise_p95, ", ");
    put_literals(to, (const char *const[]){t->workload, t->created}, 2);
    put_literal(to, t->build);
    fputs(");\n", to);
}

/* What few problems have, and the class of bits: the last columns of a decision. */
static void put_more(const kt_table_row *r, FILE *to) {
    const kt_problem *p = &r->problem;

    fprintf(to, "%lld, %lld, ", (long long)p->kv_heads, (long long)p->context);
    put_literals(to, (const char *const[]){kt_weight_format_name(p->down), kt_ffn_act_name(p->act)},
                 2);
    fprintf(to, "%lld, %lld, ", (long long)p->v, (long long)p->window);
    put_literal(to, r->bits);
    fputs(");\n", to);
}

static void put_row(const kt_table_row *r, FILE *to) {
    const kt_problem *p = &r->problem;
    char key[KT_CELL_KEY_BYTES];

    kt_cell_key(p, r->threads, key, sizeof key);
    fputs("INSERT INTO decision VALUES (", to);
    put_literals(to,
                 (const char *const[]){key, kt_op_name(p->op), kt_weight_format_name(p->weights),
                                       kt_act_format_name(p->acts)},
                 4);
    fprintf(to, "%lld, %lld, %lld, %lld, %lld, %d, ", (long long)p->m, (long long)p->n,
            (long long)p->k, (long long)p->experts, (long long)p->topk, r->threads);
    put_literals(to, (const char *const[]){kt_row_status(r), r->variant, r->config}, 3);
    fprintf(to, "%d, ", (int)r->version);
    put_number(to, r->time_ns, ", ");
    put_number(to, r->ci_low, ", ");
    put_number(to, r->ci_high, ", ");
    fprintf(to, "%d, ", r->rounds);
    put_number(to, kt_row_gain(r), ", ");
    put_literals(to, (const char *const[]){r->default_variant, r->default_config}, 2);
    put_number(to, r->default_ns, ", ");
    put_number(to, r->error, ", ");
    put_more(r, to);
    for (int i = 0; i < r->n_runners; i++) {
        fputs("INSERT INTO runner_up VALUES (", to);
        put_literal(to, key);
        fprintf(to, ", %d, ", i + 2);
        put_literals(to, (const char *const[]){r->runner[i].variant, r->runner[i].config}, 2);
        put_number(to, r->runner[i].time_ns, ");\n");
    }
    for (int i = 0; i < r->n_others; i++) {
        fputs("INSERT INTO other_class VALUES (", to);
        put_literals(to, (const char *const[]){key, r->other[i].bits, r->other[i].variant}, 3);
        fprintf(to, "%d, ", (int)r->other[i].version);
        put_literals(to, (const char *const[]){r->other[i].config}, 1);
        put_number(to, r->other[i].time_ns, ");\n");
    }
}

static void put_plan(const kt_table_plan *p, FILE *to) {
    const kt_problem *q = &p->row.problem;
    char key[KT_PLAN_KEY_BYTES];

    fputs("INSERT INTO plan VALUES (", to);
    put_literals(to,
                 (const char *const[]){kt_plan_key(p, key, sizeof key), p->cell,
                                       kt_weight_format_name(q->weights),
                                       kt_act_format_name(q->acts)},
                 4);
    fprintf(to, "%lld, %lld, %lld, %lld, %lld, ", (long long)q->n, (long long)q->k,
            (long long)q->experts, (long long)q->topk, (long long)p->tokens);
    put_literal(to, p->routing);
    fputs(", ", to);
    put_number(to, p->imbalance, ", ");
    fprintf(to, "%d, ", p->row.threads);
    put_literals(to, (const char *const[]){p->row.config, p->row.default_config}, 2);
    put_number(to, p->row.time_ns, ", ");
    put_number(to, p->row.ci_low, ", ");
    put_number(to, p->row.ci_high, ", ");
    fprintf(to, "%d, ", p->row.rounds);
    put_number(to, kt_row_gain(&p->row), ", ");
    put_number(to, p->row.default_ns, ", ");
    put_number(to, p->predicted, ", ");
    put_literal(to, kt_row_status(&p->row));
    fputs(");\n", to);
}

static void put_session(const kt_json *r, int session, FILE *to) {
    fprintf(to, "INSERT INTO session VALUES (%d, ", session);
    put_literals(to,
                 (const char *const[]){kt_json_text(r, "command"), kt_json_text(r, "version"),
                                       kt_json_text(r, "compiler")},
                 3);
    fprintf(to, "%lld, ", (long long)kt_json_int(kt_json_get(r, "protocol"), 0));
    put_literal(to, kt_json_text(r, "strategy"));
    fprintf(to, ", %lld, %lld);\n", (long long)kt_json_int(kt_json_get(r, "seed"), 0),
            (long long)kt_json_int(kt_json_get(r, "unix_ms"), 0));
}

static void put_gate(const kt_json *r, int session, FILE *to) {
    fprintf(to, "INSERT INTO gate VALUES (%d, ", session);
    put_literals(to,
                 (const char *const[]){kt_json_text(r, "shape"), kt_json_text(r, "contender"),
                                       kt_json_text(r, "outcome")},
                 3);
    put_number(to, kt_json_double(kt_json_get(r, "rel_rms"), NAN), ", ");
    put_literal(to, kt_json_text(r, "message"));
    fputs(");\n", to);
}

/* Many rows per statement: a journal holds a hundred thousand samples. */
static void put_samples(const kt_sample_record *r, int session, FILE *to) {
    size_t n = 0;

    for (size_t c = 0; c < kt_json_length(r->live); c++) {
        const kt_json *own = kt_json_at(r->ns, c);
        for (size_t i = 0; i < kt_json_length(own); i++, n++) {
            fputs(n % ROWS_PER_INSERT ? ",\n("
                  : n                 ? ";\nINSERT INTO sample VALUES\n("
                                      : "INSERT INTO sample VALUES\n(",
                  to);
            fprintf(to, "%d, ", session);
            put_literals(to, (const char *const[]){r->kind, r->cell}, 2);
            if (r->outputs > 0)
                fprintf(to, "%lld, ", (long long)r->outputs);
            else
                fputs("NULL, ", to);
            fprintf(to, "%lld, %lld, ", (long long)r->contest, (long long)r->rung);
            put_literal(to, kt_sample_record_name(r, c));
            fprintf(to, ", %zu, %d, ", i, kt_sample_record_is_voided(r, i));
            put_number(to, kt_json_double(kt_json_at(own, i), NAN), ")");
        }
    }
    if (n > 0) fputs(";\n", to);
}

/* Records without a row that makes sense are passed over: tables refuse them too. */
static void put_decided(const kt_json *r, int session, FILE *to) {
    const char *kind = kt_json_text(r, "t");
    const char *cell = kt_json_text(r, strcmp(kind, "plan_decision") == 0 ? "plan" : "cell");
    kt_table_row row;

    if (kt_row_read(kt_json_get(r, "row"), cell, &row, NULL) != KT_OK) return;
    fprintf(to, "INSERT INTO decided VALUES (%d, ", session);
    put_literals(to, (const char *const[]){kind, cell}, 2);
    fprintf(to, "%lld, ", (long long)kt_json_int(kt_json_get(r, "contest"), -1));
    put_literals(to, (const char *const[]){row.variant, row.config}, 2);
    fprintf(to, "%d, ", (int)row.version);
    put_number(to, row.time_ns, ", ");
    put_number(to, row.default_ns, ", ");
    fprintf(to, "%d, ", row.rounds);
    put_literal(to, kt_row_status(&row));
    fputs(");\n", to);
}

static void put_journal(const kt_journal *j, FILE *to) {
    int session = 0;

    for (size_t i = 0; i < kt_journal_count(j); i++) {
        const kt_json *r = kt_journal_at(j, i);
        const char *kind = kt_json_text(r, "t");
        kt_sample_record samples;
        if (strcmp(kind, "session") == 0) put_session(r, ++session, to);
        if (strcmp(kind, "gate") == 0) put_gate(r, session, to);
        if (kt_sample_record_read(r, &samples)) put_samples(&samples, session, to);
        if (strcmp(kind, "decision") == 0 || strcmp(kind, "oracle") == 0 ||
            strcmp(kind, "plan_decision") == 0)
            put_decided(r, session, to);
    }
}

static kt_status write_sql(const kt_export_input *in, FILE *to, kt_err *err) {
    (void)err;
    fprintf(to, "-- Written by kttune export --to sql. Times in ns.\nBEGIN;\n%s", schema);
    put_machine(in->table, to);
    for (size_t i = 0; i < in->table->n_rows; i++) put_row(&in->table->rows[i], to);
    for (size_t i = 0; i < in->table->n_plans; i++) put_plan(&in->table->plans[i], to);
    if (in->journal) put_journal(in->journal, to);
    fputs("COMMIT;\n", to);
    return KT_OK;
}

const kt_exporter kt_export_sql = {
    .name = "sql", .summary = "SQL that makes a database", .write = write_sql};
