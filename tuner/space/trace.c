/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/space/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/err.h"
#include "base/json.h"

static const char schema[] = "kt-trace-1";
static const size_t max_file_bytes = (size_t)1 << 30;
static const int64_t most_rows = 65536, most_context = (int64_t)1 << 24, most_layers = 4096;

/* Arrays that grow while lines are read. */
typedef struct reader {
    kt_trace trace;
    size_t steps_room, begins, begins_room, pairs, pairs_room;
} reader;

static kt_status grow(void *array, size_t *room, size_t needed, size_t each, kt_err *err) {
    size_t wanted = *room ? *room : 256;
    void *old, *new;

    if (needed <= *room) return KT_OK;
    while (wanted < needed) wanted *= 2;
    memcpy(&old, array, sizeof old);
    new = realloc(old, wanted * each); /* files have a limit: no overflow */
    if (!new) return kt_fail(err, KT_E_NOMEM, "trace: no memory for %zu entries", wanted);
    memcpy(array, &new, sizeof new);
    *room = wanted;
    return KT_OK;
}

static kt_status optional(const kt_json *o, const char *key, int64_t min, int64_t max,
                          int64_t fallback, const char *where, int64_t *out, kt_err *err) {
    *out = fallback;
    return kt_json_get(o, key) ? kt_json_need_int(o, key, min, max, where, out, err) : KT_OK;
}

static kt_status optional_word(const kt_json *o, const char *key, const char *where, char *out,
                               size_t out_bytes, kt_err *err) {
    const char *found;

    if (!kt_json_get(o, key)) return KT_OK;
    KT_TRY(kt_json_need_string(o, key, where, &found, err));
    if (strlen(found) >= out_bytes)
        return kt_fail(err, KT_E_FORMAT, "%s: '%s' is '%.40s..', expected a format's name", where,
                       key, found);
    snprintf(out, out_bytes, "%s", found);
    return KT_OK;
}

static kt_status read_header(const kt_json *o, const char *where, kt_trace *t, kt_err *err) {
    const char *found, *model;

    KT_TRY(kt_json_need_string(o, "schema", where, &found, err));
    if (strcmp(found, schema) != 0)
        return kt_fail(err, KT_E_FORMAT, "%s: schema '%.80s', expected %s", where, found, schema);
    KT_TRY(kt_json_need_string(o, "model", where, &model, err));
    snprintf(t->model, sizeof t->model, "%s", model);
    KT_TRY(optional_word(o, "weights", where, t->weights, sizeof t->weights, err));
    KT_TRY(optional_word(o, "kv", where, t->kv, sizeof t->kv, err));
    KT_TRY(kt_json_need_int(o, "experts", 1, 65536, where, &t->experts, err));
    KT_TRY(kt_json_need_int(o, "topk", 1, t->experts, where, &t->topk, err));
    return kt_json_need_int(o, "moe_layers", 1, most_layers, where, &t->layers, err);
}

/* One layer's pairs: experts ascend, rows fit the step. */
static kt_status read_pairs(reader *r, const kt_json *list, int64_t layer, int64_t tokens,
                            const char *where, kt_err *err) {
    size_t n = kt_json_length(list);
    int64_t before = -1, sum = 0;

    if (kt_json_type_of(list) != KT_JSON_ARRAY || n % 2)
        return kt_fail(err, KT_E_FORMAT,
                       "%s: 'layers' %lld is %s of %zu, expected an array of pairs", where,
                       (long long)layer, kt_json_type_name(kt_json_type_of(list)), n);
    KT_TRY(grow(&r->trace.pairs, &r->pairs_room, r->pairs + n, sizeof *r->trace.pairs, err));
    for (size_t i = 0; i < n; i += 2) {
        int64_t expert = kt_json_int(kt_json_at(list, i), -1);
        int64_t rows = kt_json_int(kt_json_at(list, i + 1), -1);
        if (expert <= before || expert >= r->trace.experts)
            return kt_fail(err, KT_E_FORMAT,
                           "%s: 'layers' %lld: expert %lld after %lld, expected to ascend below "
                           "%lld",
                           where, (long long)layer, (long long)expert, (long long)before,
                           (long long)r->trace.experts);
        if (rows < 1 || rows > tokens || (sum += rows) > tokens * r->trace.topk)
            return kt_fail(err, KT_E_FORMAT,
                           "%s: 'layers' %lld: %lld rows for expert %lld, expected 1 to %lld and "
                           "at most %lld in all",
                           where, (long long)layer, (long long)rows, (long long)expert,
                           (long long)tokens, (long long)(tokens * r->trace.topk));
        before = expert;
        r->trace.pairs[r->pairs++] = (int32_t)expert;
        r->trace.pairs[r->pairs++] = (int32_t)rows;
    }
    return KT_OK;
}

static kt_status read_step(reader *r, const kt_json *o, const char *where, kt_err *err) {
    kt_trace *t = &r->trace;
    const kt_json *layers = kt_json_get(o, "layers");
    size_t n = kt_json_length(layers);
    int64_t decode, prefill, time_ns;
    kt_trace_step step = {.pairs_at = r->begins, .layers = (int64_t)n};

    KT_TRY(kt_json_need_int(o, "decode", 0, most_rows, where, &decode, err));
    KT_TRY(kt_json_need_int(o, "prefill", 0, most_rows, where, &prefill, err));
    step.tokens = decode + prefill;
    if (step.tokens < 1)
        return kt_fail(err, KT_E_FORMAT, "%s: 'decode' and 'prefill' are 0, expected rows", where);
    KT_TRY(optional(o, "logits", 0, most_rows, decode + (prefill > 0), where, &step.logits, err));
    KT_TRY(optional(o, "context", 0, most_context, 0, where, &step.context, err));
    KT_TRY(optional(o, "time_ns", 1, INT64_MAX, 0, where, &time_ns, err));
    step.time_ns = (double)time_ns;
    if (kt_json_type_of(layers) != KT_JSON_ARRAY || (n != 0 && (int64_t)n != t->layers))
        return kt_fail(err, KT_E_FORMAT,
                       "%s: 'layers' is %s of %zu, expected an array of 0 or %lld", where,
                       layers ? kt_json_type_name(kt_json_type_of(layers)) : "missing", n,
                       (long long)t->layers);
    KT_TRY(grow(&t->pair_begin, &r->begins_room, r->begins + n + 1, sizeof *t->pair_begin, err));
    for (size_t l = 0; l < n; l++) {
        t->pair_begin[r->begins++] = r->pairs;
        KT_TRY(read_pairs(r, kt_json_at(layers, l), (int64_t)l, step.tokens, where, err));
    }
    t->pair_begin[r->begins++] = r->pairs;
    KT_TRY(grow(&t->steps, &r->steps_room, t->n_steps + 1, sizeof *t->steps, err));
    t->steps[t->n_steps++] = step;
    return KT_OK;
}

static kt_status read_line(reader *r, const char *text, size_t size, int is_first,
                           const char *where, kt_err *err) {
    static const kt_json_limits limits = {.max_bytes = 0, .max_depth = 8};
    kt_json_doc *doc = NULL;
    kt_status st = kt_json_parse(text, size, &limits, &doc, err);

    if (st != KT_OK) {
        kt_fail_prefix(err, st, "%s", where);
        return st;
    }
    st = is_first ? read_header(kt_json_root(doc), where, &r->trace, err)
                  : read_step(r, kt_json_root(doc), where, err);
    kt_json_destroy(doc);
    return st;
}

static kt_status read_lines(reader *r, const char *path, const char *text, size_t size,
                            kt_err *err) {
    size_t at = 0;

    for (int line = 1; at < size; line++) {
        const char *end = memchr(text + at, '\n', size - at);
        char where[512];
        if (!end) { /* a recorder that was killed; only whole lines count */
            r->trace.cut = 1;
            break;
        }
        snprintf(where, sizeof where, "%.400s:%d", path, line);
        KT_TRY(read_line(r, text + at, (size_t)(end - text) - at, line == 1, where, err));
        at = (size_t)(end - text) + 1;
    }
    if (r->trace.n_steps > 0) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "%s: no step, expected a header line and lines of steps",
                   path);
}

bool kt_trace_is(const char *path) {
    char line[4096];
    kt_json_doc *doc = NULL;
    const char *found = NULL;
    FILE *f = fopen(path, "r");
    bool is = false;

    if (!f) return false;
    if (fgets(line, sizeof line, f) &&
        kt_json_parse(line, strlen(line), NULL, &doc, NULL) == KT_OK) {
        found = kt_json_string(kt_json_get(kt_json_root(doc), "schema"), NULL);
        is = found && strncmp(found, "kt-trace-", strlen("kt-trace-")) == 0;
        kt_json_destroy(doc);
    }
    fclose(f);
    return is;
}

kt_status kt_trace_read(const char *path, kt_trace *out, kt_err *err) {
    reader r = {0};
    char *text = NULL;
    size_t size = 0;
    kt_status st;

    memset(out, 0, sizeof *out);
    KT_TRY(kt_file_read(path, max_file_bytes, &text, &size, err));
    st = read_lines(&r, path, text, size, err);
    free(text);
    if (st != KT_OK) {
        kt_trace_deinit(&r.trace);
        return st;
    }
    *out = r.trace;
    return KT_OK;
}

void kt_trace_deinit(kt_trace *t) {
    if (!t) return;
    free(t->steps);
    free(t->pair_begin);
    free(t->pairs);
    memset(t, 0, sizeof *t);
}

void kt_trace_counts(const kt_trace *t, size_t step, int64_t layer, int32_t *counts) {
    const size_t *begin = &t->pair_begin[t->steps[step].pairs_at + (size_t)layer];

    memset(counts, 0, (size_t)t->experts * sizeof *counts);
    for (size_t i = begin[0]; i < begin[1]; i += 2) counts[t->pairs[i]] = t->pairs[i + 1];
}

kt_trace_load kt_trace_load_of(const kt_trace *t) {
    kt_trace_load load = {.fewest_tokens = INT64_MAX};
    double hit = 0, rows = 0, imbalance = 0, layers = 0;

    for (size_t i = 0; i < t->n_steps; i++) {
        const kt_trace_step *s = &t->steps[i];
        if (s->tokens < load.fewest_tokens) load.fewest_tokens = s->tokens;
        if (s->tokens > load.most_tokens) load.most_tokens = s->tokens;
        for (int64_t l = 0; l < s->layers; l++) {
            const size_t *begin = &t->pair_begin[s->pairs_at + (size_t)l];
            double sum = 0, most = 0;
            for (size_t p = begin[0]; p < begin[1]; p += 2) {
                double count = t->pairs[p + 1];
                sum += count;
                hit++;
                if (count > most) most = count;
            }
            rows += sum;
            if ((int64_t)most > load.most_rows) load.most_rows = (int64_t)most;
            if (s->tokens < 16 || sum <= 0) continue;
            imbalance += most * (double)t->experts / sum;
            layers++;
        }
    }
    if (t->n_steps == 0) load.fewest_tokens = 0;
    load.mean_rows = hit > 0 ? rows / hit : 0;
    load.imbalance = layers > 0 ? imbalance / layers : 0;
    return load;
}
