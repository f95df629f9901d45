/* Rows as comma-separated values (RFC 4180), for spreadsheets; and what exporters share.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "tuner/report/export.h"

static const kt_exporter *const exporters[] = {
    &kt_export_html, &kt_export_markdown, &kt_export_csv,     &kt_export_sql,
    &kt_export_t4,   &kt_export_t1,       &kt_export_c_header};

const kt_exporter *kt_exporter_at(size_t i) {
    return i < sizeof exporters / sizeof *exporters ? exporters[i] : NULL;
}

const kt_exporter *kt_exporter_find(const char *name) {
    const kt_exporter *e;
    for (size_t i = 0; (e = kt_exporter_at(i)); i++)
        if (strcmp(e->name, name) == 0) return e;
    return NULL;
}

double kt_row_gain(const kt_table_row *row) {
    return row->time_ns > 0 ? row->default_ns / row->time_ns - 1 : 0;
}

static void put_quoted(FILE *to, const char *text) {
    fputc('"', to);
    for (; *text; text++) {
        if (*text == '"') fputc('"', to);
        fputc(*text, to);
    }
    fputc('"', to);
}

/* Without the end of the line: plan cells add columns. */
static void put_row(const kt_table_row *r, FILE *to) {
    const kt_problem *p = &r->problem;

    fprintf(to, "%s,%s,%s,%lld,%lld,%lld,%lld,%lld,%d,%s,%.1f,%.4f,%.4f,%d,%.4f,",
            kt_op_name(p->op), kt_weight_format_name(p->weights), kt_act_format_name(p->acts),
            (long long)p->m, (long long)p->n, (long long)p->k, (long long)p->experts,
            (long long)p->topk, r->threads, kt_row_status(r), r->time_ns, r->ci_low, r->ci_high,
            r->rounds, kt_row_gain(r));
    put_quoted(to, r->variant);
    fputc(',', to);
    put_quoted(to, r->config);
    fprintf(to, ",%d,", (int)r->version);
    put_quoted(to, r->default_variant);
    fputc(',', to);
    put_quoted(to, r->default_config);
    fprintf(to, ",%.1f,%.4g", r->default_ns, r->error);
}

/* The columns that came last: what few problems have, and the class of bits. */
static void put_more(const kt_table_row *r, FILE *to) {
    const kt_problem *p = &r->problem;

    fprintf(to, ",%lld,%lld,%s,%s,%lld,%lld,", (long long)p->kv_heads, (long long)p->context,
            kt_weight_format_name(p->down), kt_ffn_act_name(p->act), (long long)p->v,
            (long long)p->window);
    put_quoted(to, r->bits);
    fputs("\r\n", to);
}

/* Plan cells are rows of their layer's experts, m = tokens of the call; only they fill the last
 * columns. */
static kt_status write_csv(const kt_export_input *in, FILE *to, kt_err *err) {
    (void)err;
    fputs(
        "op,weights,acts,m,n,k,experts,topk,threads,status,ns,low,high,rounds,gain,variant,config,"
        "version,default_variant,default_config,default_ns,error,plan,routing,imbalance,"
        "predicted,kv_heads,context,down,act,v,window,bits\r\n",
        to);
    for (size_t i = 0; i < in->table->n_rows; i++) {
        put_row(&in->table->rows[i], to);
        fputs(",,,,", to);
        put_more(&in->table->rows[i], to);
    }
    for (size_t i = 0; i < in->table->n_plans; i++) {
        const kt_table_plan *p = &in->table->plans[i];
        put_row(&p->row, to);
        fprintf(to, ",%s,", p->cell);
        put_quoted(to, p->routing);
        fprintf(to, ",%.4f,%.4f", p->imbalance, p->predicted);
        put_more(&p->row, to);
    }
    return KT_OK;
}

const kt_exporter kt_export_csv = {.name = "csv",
                                   .summary = "one line per row and plan cell, for spreadsheets",
                                   .write = write_csv};
