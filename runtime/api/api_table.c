/* Looking things up in a dispatch table. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "dispatch/model/resolve.h"
#include "dispatch/plan/plan.h"
#include "runtime/api/sized.h"
#include "runtime/model/model_dir.h"

size_t kt_table_count(const kt_table *table) {
    return table->n_rows;
}

static kt_status give(const kt_table_row *r, kt_table_entry *out, kt_err *err) {
    const kt_problem *p = &r->problem;
    const kt_table_entry entry = {.op = kt_op_name(p->op),
                                  .weights = kt_weight_format_name(p->weights),
                                  .acts = kt_act_format_name(p->acts),
                                  .down = kt_weight_format_name(kt_problem_down(p)),
                                  .ffn_act = kt_ffn_act_name(p->act),
                                  .m = p->m,
                                  .n = p->n,
                                  .k = p->k,
                                  .experts = p->experts,
                                  .topk = p->topk,
                                  .kv_heads = p->kv_heads,
                                  .context = p->context,
                                  .value_size = p->v,
                                  .window = p->window,
                                  .threads = r->threads,
                                  .rounds = r->rounds,
                                  .variant = r->variant,
                                  .config = r->config,
                                  .status = kt_row_status(r),
                                  .time_ns = r->time_ns,
                                  .ci_low = r->ci_low,
                                  .ci_high = r->ci_high,
                                  .default_variant = r->default_variant,
                                  .default_ns = r->default_ns,
                                  .error = r->error};

    return kt_sized_give(out, &entry, sizeof entry, "kt_table_entry", err);
}

kt_status kt_table_at(const kt_table *table, size_t i, kt_table_entry *out, kt_err *err) {
    if (i >= table->n_rows)
        return kt_fail(err, KT_E_INVALID, "row %zu of a table of %zu rows", i, table->n_rows);
    return give(&table->rows[i], out, err);
}

/* ---- by problem ---- */

static kt_status parse_word(const char *what, const char *word, int (*parse)(const char *),
                            int absent, int *out, kt_err *err) {
    *out = word ? parse(word) : absent;
    if (*out >= 0) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "kt_table_entry: %s is '%.80s', which names nothing", what,
                   word ? word : "(missing)");
}

static kt_status read_key(const kt_table_entry *k, kt_problem *out, kt_err *err) {
    int op, weights, acts, down, act;

    KT_TRY(parse_word("op", k->op, kt_op_parse, -1, &op, err));
    KT_TRY(parse_word("weights", k->weights, kt_weight_format_parse, KT_W_NONE, &weights, err));
    KT_TRY(parse_word("acts", k->acts, kt_act_format_parse, KT_A_NONE, &acts, err));
    KT_TRY(parse_word("down", k->down, kt_weight_format_parse, KT_W_NONE, &down, err));
    KT_TRY(parse_word("ffn_act", k->ffn_act, kt_ffn_act_parse, KT_FFN_SWIGLU, &act, err));
    *out = (kt_problem){.op = (kt_op)op,
                        .weights = (kt_weight_format)weights,
                        .acts = (kt_act_format)acts,
                        .m = k->m,
                        .n = k->n,
                        .k = k->k,
                        .experts = k->experts,
                        .topk = k->topk,
                        .kv_heads = k->kv_heads,
                        .context = k->context,
                        .down = (kt_weight_format)down,
                        .act = (kt_ffn_act)act,
                        .v = k->value_size,
                        .window = k->window};
    return KT_OK;
}

kt_status kt_table_lookup(const kt_table *table, const kt_table_entry *key, kt_table_entry *out,
                          kt_err *err) {
    const kt_table_row *best = NULL;
    kt_table_entry known = {.op = NULL};
    kt_problem problem;

    KT_TRY(kt_sized_take(&known, sizeof known, key, "kt_table_entry", err));
    KT_TRY(read_key(&known, &problem, err));
    for (size_t i = 0; i < table->n_rows; i++) { /* those of a problem by ascending m */
        const kt_table_row *r = &table->rows[i];
        if (r->threads != known.threads || !kt_same_weights(&r->problem, &problem)) continue;
        if (!best || r->problem.m <= problem.m) best = r;
    }
    if (best) return give(best, out, err);
    return kt_fail(err, KT_E_NOT_FOUND,
                   "no row of the table is for %s %s n=%lld k=%lld experts=%lld on %d threads",
                   kt_op_name(problem.op), kt_weight_format_name(problem.weights),
                   (long long)problem.n, (long long)problem.k, (long long)problem.experts,
                   (int)known.threads);
}

/* ---- files ---- */

kt_status kt_table_path(const char *model, char *out, size_t out_bytes, kt_err *err) {
    char path[KT_MODEL_PATH_BYTES];
    kt_topology topology;
    kt_fingerprint machine;
    kt_model_dir dir = {0};

    KT_TRY(kt_topology_probe(&topology, err));
    KT_TRY(kt_model_dir_read(model, &dir, err));
    kt_fingerprint_make(&topology, NULL, &machine);
    kt_table_locate(&machine, dir.name, dir.shape_id, path, sizeof path);
    kt_model_dir_deinit(&dir);
    if (strlen(path) >= out_bytes)
        return kt_fail(err, KT_E_INVALID, "the table's path has %zu bytes, expected fewer than %zu",
                       strlen(path), out_bytes);
    memcpy(out, path, strlen(path) + 1);
    return KT_OK;
}
