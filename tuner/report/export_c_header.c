/* Rows as a C array, for programs that want decisions compiled in.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tuner/report/export.h"

/* Names come from files: only what a C string literal holds as it is. */
static void put_literal(FILE *to, const char *text) {
    fputc('"', to);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 32 || c > 126 || c == '"' || c == '\\' || c == '?')
            fprintf(to, "\\%03o", c);
        else
            fputc(c, to);
    }
    fputc('"', to);
}

static kt_status write_header(const kt_export_input *in, FILE *to, kt_err *err) {
    const kt_table *t = in->table;
    char class_name[64];

    (void)err;
    kt_machine_class(&t->fingerprint, class_name, sizeof class_name);
    fprintf(
        to,
        "/* Written by `kttune export --to c-header`: machine class %s, %zu rows. */\n"
        "#ifndef KT_TUNED_ROWS_H\n#define KT_TUNED_ROWS_H\n\n"
        "struct kt_tuned_row {\n    const char *op, *weights, *acts;\n"
        "    long long m, n, k, experts, topk;\n    int threads;\n"
        "    const char *variant, *config;\n    int version;\n"
        "    double time_ns, default_ns;\n"
        "    long long kv_heads, context, v, window;\n    const char *down, *act, *bits;\n};\n\n"
        "static const struct kt_tuned_row kt_tuned_rows[] = {\n",
        class_name, t->n_rows);
    for (size_t i = 0; i < t->n_rows; i++) {
        const kt_table_row *r = &t->rows[i];
        const kt_problem *p = &r->problem;
        fprintf(to, "    {\"%s\", \"%s\", \"%s\", %lld, %lld, %lld, %lld, %lld, %d, ",
                kt_op_name(p->op), kt_weight_format_name(p->weights), kt_act_format_name(p->acts),
                (long long)p->m, (long long)p->n, (long long)p->k, (long long)p->experts,
                (long long)p->topk, r->threads);
        put_literal(to, r->variant);
        fputs(", ", to);
        put_literal(to, r->config);
        fprintf(to, ", %d, %.1f, %.1f, %lld, %lld, %lld, %lld, \"%s\", \"%s\", ", (int)r->version,
                r->time_ns, r->default_ns, (long long)p->kv_heads, (long long)p->context,
                (long long)p->v, (long long)p->window, kt_weight_format_name(p->down),
                kt_ffn_act_name(p->act));
        put_literal(to, r->bits);
        fputs("},\n", to);
    }
    /* C has no empty arrays: the last row ends the list. */
    fputs("    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}};\n\n#endif\n", to);
    return KT_OK;
}

const kt_exporter kt_export_c_header = {
    .name = "c-header", .summary = "a C array, ended by a row of zeros", .write = write_header};
