/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/store/row_json.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"

/* Members that few problems have. */
static void put_optional(kt_json_writer *w, const char *key, int64_t value) {
    if (value) kt_json_add_int(w, key, value);
}

static void put_problem(kt_json_writer *w, const kt_problem *p) {
    kt_json_add_string(w, "op", kt_op_name(p->op));
    kt_json_add_string(w, "weights", kt_weight_format_name(p->weights));
    kt_json_add_string(w, "acts", kt_act_format_name(p->acts));
    kt_json_add_int(w, "m", p->m);
    kt_json_add_int(w, "n", p->n);
    kt_json_add_int(w, "k", p->k);
    kt_json_add_int(w, "experts", p->experts);
    kt_json_add_int(w, "topk", p->topk);
    put_optional(w, "kv_heads", p->kv_heads);
    put_optional(w, "context", p->context);
    if (p->down != KT_W_NONE) kt_json_add_string(w, "down", kt_weight_format_name(p->down));
    if (p->act != KT_FFN_SWIGLU) kt_json_add_string(w, "act", kt_ffn_act_name(p->act));
    put_optional(w, "v", p->v);
    put_optional(w, "window", p->window);
}

/* Nothing for rows that do not know their class: journals of before there were any. */
static void put_classes(kt_json_writer *w, const kt_table_row *row) {
    if (!*row->bits) return;
    kt_json_add_string(w, "bits", row->bits);
    kt_json_key(w, "others");
    kt_json_begin_array(w);
    for (int i = 0; i < row->n_others; i++) {
        kt_json_begin_object(w);
        kt_json_add_string(w, "bits", row->other[i].bits);
        kt_json_add_string(w, "variant", row->other[i].variant);
        kt_json_add_int(w, "version", row->other[i].version);
        kt_json_add_string(w, "config", row->other[i].config);
        kt_json_add_double(w, "ns", row->other[i].time_ns);
        kt_json_end_object(w);
    }
    kt_json_end_array(w);
}

void kt_row_write(const kt_table_row *row, kt_json_writer *w) {
    kt_json_begin_object(w);
    put_problem(w, &row->problem);
    kt_json_add_int(w, "threads", row->threads);
    kt_json_add_string(w, "variant", row->variant);
    kt_json_add_string(w, "config", row->config);
    kt_json_add_int(w, "version", row->version);
    kt_json_add_double(w, "ns", row->time_ns);
    kt_json_add_double(w, "low", row->ci_low);
    kt_json_add_double(w, "high", row->ci_high);
    kt_json_add_int(w, "rounds", row->rounds);
    kt_json_add_string(w, "default_variant", row->default_variant);
    kt_json_add_string(w, "default_config", row->default_config);
    kt_json_add_double(w, "default_ns", row->default_ns);
    kt_json_add_string(w, "status", row->status);
    kt_json_add_double(w, "error", row->error);
    kt_json_key(w, "next");
    kt_json_begin_array(w);
    for (int i = 0; i < row->n_runners; i++) {
        kt_json_begin_object(w);
        kt_json_add_string(w, "variant", row->runner[i].variant);
        kt_json_add_string(w, "config", row->runner[i].config);
        kt_json_add_double(w, "ns", row->runner[i].time_ns);
        kt_json_end_object(w);
    }
    kt_json_end_array(w);
    put_classes(w, row);
    kt_json_end_object(w);
}

static kt_status need_text(const kt_json *o, const char *key, const char *where, char *out,
                           size_t out_bytes, kt_err *err) {
    const char *text;
    KT_TRY(kt_json_need_string(o, key, where, &text, err));
    if (strlen(text) >= out_bytes)
        return kt_fail(err, KT_E_FORMAT, "%s: '%s' is longer than %zu bytes", where, key,
                       out_bytes - 1);
    snprintf(out, out_bytes, "%s", text);
    return KT_OK;
}

/* A word of the dispatch vocabulary as its number. */
static kt_status need_word(const kt_json *o, const char *key, int (*parse)(const char *),
                           const char *where, int *out, kt_err *err) {
    const char *text;
    KT_TRY(kt_json_need_string(o, key, where, &text, err));
    *out = parse(text);
    if (*out < 0) return kt_fail(err, KT_E_FORMAT, "%s: unknown %s '%s'", where, key, text);
    return KT_OK;
}

/* What journals of simpler problems leave out; missing is 0. */
static kt_status read_optional(const kt_json *o, const char *where, kt_problem *p, kt_err *err) {
    const struct {
        const char *key;
        int64_t *out;
    } numbers[] = {
        {"kv_heads", &p->kv_heads}, {"context", &p->context}, {"v", &p->v}, {"window", &p->window}};
    int down = KT_W_NONE, act = KT_FFN_SWIGLU;

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (kt_json_get(o, numbers[i].key))
            KT_TRY(kt_json_need_int(o, numbers[i].key, 0, 1 << 28, where, numbers[i].out, err));
    if (kt_json_get(o, "down"))
        KT_TRY(need_word(o, "down", kt_weight_format_parse, where, &down, err));
    if (kt_json_get(o, "act")) KT_TRY(need_word(o, "act", kt_ffn_act_parse, where, &act, err));
    p->down = (kt_weight_format)down;
    p->act = (kt_ffn_act)act;
    return KT_OK;
}

static kt_status read_problem(const kt_json *o, const char *where, kt_problem *p, kt_err *err) {
    int op, weights, acts;
    KT_TRY(need_word(o, "op", kt_op_parse, where, &op, err));
    KT_TRY(need_word(o, "weights", kt_weight_format_parse, where, &weights, err));
    KT_TRY(need_word(o, "acts", kt_act_format_parse, where, &acts, err));
    p->op = (kt_op)op;
    p->weights = (kt_weight_format)weights;
    p->acts = (kt_act_format)acts;
    KT_TRY(kt_json_need_int(o, "m", 1, 1 << 20, where, &p->m, err));
    KT_TRY(kt_json_need_int(o, "n", 1, 1 << 28, where, &p->n, err));
    KT_TRY(kt_json_need_int(o, "k", 1, 1 << 28, where, &p->k, err));
    KT_TRY(kt_json_need_int(o, "experts", 0, 1 << 20, where, &p->experts, err));
    KT_TRY(kt_json_need_int(o, "topk", 0, 1 << 20, where, &p->topk, err));
    return read_optional(o, where, p, err);
}

static kt_status read_runners(const kt_json *list, const char *where, kt_table_row *out,
                              kt_err *err) {
    size_t n = kt_json_length(list);
    for (size_t i = 0; i < n && i < KT_TABLE_RUNNERS; i++) {
        const kt_json *o = kt_json_at(list, i);
        KT_TRY(need_text(o, "variant", where, out->runner[i].variant, sizeof out->runner[i].variant,
                         err));
        KT_TRY(need_text(o, "config", where, out->runner[i].config, sizeof out->runner[i].config,
                         err));
        KT_TRY(kt_json_need_double(o, "ns", where, &out->runner[i].time_ns, err));
        out->n_runners++;
    }
    return KT_OK;
}

static kt_status read_others(const kt_json *list, const char *where, kt_table_row *out,
                             kt_err *err) {
    size_t n = kt_json_length(list);
    for (size_t i = 0; i < n && i < KT_TABLE_OTHERS; i++) {
        const kt_json *o = kt_json_at(list, i);
        int64_t version;
        KT_TRY(need_text(o, "bits", where, out->other[i].bits, sizeof out->other[i].bits, err));
        KT_TRY(need_text(o, "variant", where, out->other[i].variant, sizeof out->other[i].variant,
                         err));
        KT_TRY(kt_json_need_int(o, "version", 0, 1 << 30, where, &version, err));
        KT_TRY(
            need_text(o, "config", where, out->other[i].config, sizeof out->other[i].config, err));
        KT_TRY(kt_json_need_double(o, "ns", where, &out->other[i].time_ns, err));
        out->other[i].version = (int32_t)version;
        out->n_others++;
    }
    return KT_OK;
}

kt_status kt_row_read(const kt_json *o, const char *where, kt_table_row *out, kt_err *err) {
    kt_table_row row;
    int64_t threads, version, rounds;

    memset(&row, 0, sizeof row);
    KT_TRY(read_problem(o, where, &row.problem, err));
    KT_TRY(kt_json_need_int(o, "threads", 1, 1 << 16, where, &threads, err));
    KT_TRY(need_text(o, "variant", where, row.variant, sizeof row.variant, err));
    KT_TRY(need_text(o, "config", where, row.config, sizeof row.config, err));
    KT_TRY(kt_json_need_int(o, "version", 0, 1 << 30, where, &version, err));
    KT_TRY(kt_json_need_double(o, "ns", where, &row.time_ns, err));
    KT_TRY(kt_json_need_double(o, "low", where, &row.ci_low, err));
    KT_TRY(kt_json_need_double(o, "high", where, &row.ci_high, err));
    KT_TRY(kt_json_need_int(o, "rounds", 0, 1 << 30, where, &rounds, err));
    KT_TRY(need_text(o, "default_variant", where, row.default_variant, sizeof row.default_variant,
                     err));
    KT_TRY(
        need_text(o, "default_config", where, row.default_config, sizeof row.default_config, err));
    KT_TRY(kt_json_need_double(o, "default_ns", where, &row.default_ns, err));
    KT_TRY(need_text(o, "status", where, row.status, sizeof row.status, err));
    KT_TRY(kt_json_need_double(o, "error", where, &row.error, err));
    KT_TRY(read_runners(kt_json_get(o, "next"), where, &row, err));
    if (kt_json_get(o, "bits")) KT_TRY(need_text(o, "bits", where, row.bits, sizeof row.bits, err));
    KT_TRY(read_others(kt_json_get(o, "others"), where, &row, err));
    row.threads = (int)threads;
    row.version = (int32_t)version;
    row.rounds = (int)rounds;
    *out = row;
    return KT_OK;
}
