/* The backend that is a kt_engine. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/err.h"
#include "base/json.h"
#include "dispatch/model/mistakes.h"
#include "dispatch/plan/plan.h"
#include "kt/version.h"
#include "runtime/sched/backend.h"

static kt_status open_sequence(void *self, kt_sequence **out, kt_err *err) {
    return kt_sequence_create(self, 0, out, err);
}

static void close_sequence(void *self, kt_sequence *s) {
    (void)self;
    kt_sequence_destroy(s);
}

static kt_status reserve(void *self, kt_sequence *s, int64_t tokens, kt_err *err) {
    (void)self;
    return kt_sequence_reserve(s, tokens, err);
}

static int64_t reuse(void *self, kt_sequence *s, const int32_t *tokens, int64_t n) {
    (void)self;
    return kt_sequence_reuse(s, tokens, n);
}

static int64_t chunk(void *self, const kt_sequence *s, int64_t left) {
    (void)self;
    return kt_sequence_chunk(s, left);
}

static kt_status fork_sequence(void *self, const kt_sequence *s, kt_sequence **out, kt_err *err) {
    (void)self;
    return kt_sequence_fork(s, out, err);
}

static int64_t length(void *self, const kt_sequence *s) {
    (void)self;
    return kt_sequence_length(s);
}

static kt_status step(void *self, const kt_batch *batch, float *logits, const kt_stop *stop,
                      kt_err *err) {
    return kt_engine_step(self, batch, logits, stop, err);
}

static int64_t guess(void *self, kt_sequence *s, int64_t n, int n_spans) {
    (void)self;
    return kt_sequence_guess(s, n, n_spans);
}

static int64_t go_back(void *self, kt_sequence *s, int64_t length) {
    (void)self;
    return kt_sequence_truncate(s, length);
}

static void keep_recent(void *self, kt_sequence *s) {
    (void)self;
    kt_sequence_keep_recent(s);
}

static kt_status draft(void *self, kt_draft_span *spans, int n_spans, float *logits, kt_err *err) {
    return kt_engine_draft(self, spans, n_spans, logits, err);
}

static void usage(void *self, kt_kv_usage *out) {
    kt_engine_kv_usage(self, out);
}

static double expected_ns(void *self, int64_t rows, int64_t logits) {
    return kt_engine_expected_ns(self, rows, logits, NULL);
}

/* generation_config.json; values out of range are left at their defaults. A GGUF file has none.
 * Without a folder what most of the published ones say. */
static kt_status read_defaults(const char *model_dir, kt_sampling *s, kt_err *err) {
    char path[4096];
    kt_json_doc *doc = NULL;
    const kt_json *root;
    char *text = NULL;
    size_t size;
    double temperature, top_p, penalty;
    int64_t top_k;
    kt_status st;
    int n;

    *s = KT_SAMPLING_GREEDY;
    s->temperature = 1.0f;
    if (!model_dir) {
        s->temperature = 0.6f, s->top_k = 20, s->top_p = 0.95f;
        return KT_OK;
    }
    if (kt_model_is_gguf(model_dir)) return KT_OK;
    n = snprintf(path, sizeof path, "%s/generation_config.json", model_dir);
    if (n < 0 || (size_t)n >= sizeof path) return KT_OK;
    st = kt_file_read(path, (size_t)1 << 20, &text, &size, NULL);
    if (st == KT_E_NOT_FOUND) return KT_OK;
    if (st != KT_OK) return kt_fail(err, st, "%s: cannot be read", path);
    st = kt_json_parse(text, size, NULL, &doc, err);
    free(text);
    if (st != KT_OK) return kt_fail_prefix(err, st, "%s", path);
    root = kt_json_root(doc);
    temperature = kt_json_double(kt_json_get(root, "temperature"), 1);
    top_p = kt_json_double(kt_json_get(root, "top_p"), 1);
    top_k = kt_json_int(kt_json_get(root, "top_k"), 0);
    penalty = kt_json_double(kt_json_get(root, "repetition_penalty"), 1);
    if (temperature >= 0 && temperature <= 2) s->temperature = (float)temperature;
    if (top_p > 0 && top_p <= 1) s->top_p = (float)top_p;
    if (top_k > 0 && top_k < INT32_MAX) s->top_k = (int32_t)top_k;
    if (penalty > 0 && penalty <= 10) s->repetition_penalty = (float)penalty;
    if (!kt_json_bool(kt_json_get(root, "do_sample"), true)) s->temperature = 0;
    kt_json_destroy(doc);
    return KT_OK;
}

/* FNV-1a: names only have to differ. */
static uint64_t hash_text(uint64_t h, const char *s) {
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return (h ^ 0xff) * 0x100000001b3u;
}

kt_status kt_backend_from_engine(kt_engine *engine, const char *model_dir, const char *weights,
                                 kt_backend *out, kt_err *err) {
    kt_engine_info info;
    uint64_t h = 0xcbf29ce484222325u;

    memset(out, 0, sizeof *out);
    kt_engine_describe(engine, &info);
    out->self = engine;
    out->tokenizer = kt_engine_tokenizer(engine);
    if (!out->tokenizer) return kt_fail(err, KT_E_NOT_FOUND, "%s: no tokenizer", info.model_name);
    out->model_name = info.model_name;
    out->vocab = info.vocab;
    out->max_context = info.max_context;
    memcpy(out->eos, info.eos, sizeof out->eos);
    out->n_eos = info.n_eos;
    h = hash_text(hash_text(hash_text(h, KT_VERSION), info.model_name), weights);
    h = hash_text(hash_text(h, kt_weight_format_name(info.cache_format)), info.table_line);
    snprintf(out->fingerprint, sizeof out->fingerprint, "fp_kt_%016llx", (unsigned long long)h);
    out->max_rows = kt_engine_max_rows(engine);
    out->pool = kt_engine_pool(engine);
    out->open = open_sequence;
    out->close = close_sequence;
    out->reserve = reserve;
    out->reuse = reuse;
    out->chunk = chunk;
    out->fork = fork_sequence;
    out->length = length;
    out->step = step;
    out->usage = usage;
    out->guess = guess;
    out->go_back = go_back;
    out->keep_recent = keep_recent;
    if (kt_engine_has_draft_head(engine)) out->draft = draft;
    out->expected_ns = expected_ns;
    return read_defaults(model_dir, &out->defaults, err);
}
