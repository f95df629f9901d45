/* Prompts for load tests. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/client/load_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/err.h"
#include "base/json.h"
#include "base/rng.h"

#define MAX_FILE_BYTES ((size_t)1 << 30)
enum { DEFAULT_OUTPUT = 128 };

/* Short words that vocabularies of any kind hold with their leading space. */
static const char *const words[] = {
    "time",     "year",    "people",   "way",    "day",        "man",    "thing",   "woman",
    "life",     "child",   "world",    "school", "state",      "family", "student", "group",
    "country",  "problem", "hand",     "part",   "place",      "case",   "week",    "company",
    "system",   "program", "question", "work",   "government", "number", "night",   "point",
    "home",     "water",   "room",     "mother", "area",       "money",  "story",   "fact",
    "month",    "lot",     "right",    "study",  "book",       "eye",    "job",     "word",
    "business", "issue",   "side",     "kind",   "head",       "house",  "service", "friend",
    "father",   "power",   "hour",     "game",   "line",       "end",    "member",  "law"};
enum { N_WORDS = sizeof words / sizeof *words };

void kt_load_data_deinit(kt_load_data *d) {
    for (size_t i = 0; i < d->n; i++) free(d->prompts[i].text);
    free(d->prompts);
    memset(d, 0, sizeof *d);
}

static int64_t about(kt_rng *rng, int64_t length, double range) {
    int64_t low = (int64_t)((double)length * (1 - range)),
            high = (int64_t)((double)length * (1 + range));

    if (low < 1) low = 1;
    if (high < low) high = low;
    return low + (int64_t)kt_rng_below(rng, (uint64_t)(high - low) + 1);
}

kt_status kt_load_data_synthetic(size_t n, int64_t input_len, int64_t output_len, double range,
                                 uint64_t seed, kt_load_data *out, kt_err *err) {
    kt_load_data d = {calloc(n ? n : 1, sizeof *d.prompts), 0};
    kt_rng rng;

    memset(out, 0, sizeof *out);
    if (!d.prompts) return kt_fail(err, KT_E_NOMEM, "no memory for %zu prompts", n);
    kt_rng_seed(&rng, seed);
    for (; d.n < n; d.n++) {
        kt_load_prompt *p = &d.prompts[d.n];
        int64_t length = about(&rng, input_len, range);
        p->max_tokens = about(&rng, output_len, range);
        p->text = malloc((size_t)length * 12 + 1);
        if (!p->text) {
            kt_load_data_deinit(&d);
            return kt_fail(err, KT_E_NOMEM, "no memory for %zu prompts", n);
        }
        for (int64_t i = 0; i < length; i++)
            p->size += (size_t)sprintf(p->text + p->size, i ? " %s" : "%s",
                                       words[kt_rng_below(&rng, N_WORDS)]);
    }
    *out = d;
    return KT_OK;
}

/* The first question of a conversation and how long its answer is. */
static const kt_json *first_question(const kt_json *conversation, int64_t *tokens) {
    const kt_json *question = NULL;

    for (size_t i = 0; i < kt_json_length(conversation); i++) {
        const kt_json *turn = kt_json_at(conversation, i), *value = kt_json_get(turn, "value");
        const char *from = kt_json_text(turn, "from");
        size_t size = 0;
        if (!question && (!strcmp(from, "human") || !strcmp(from, "user")))
            question = value;
        else if (question && (!strcmp(from, "gpt") || !strcmp(from, "assistant"))) {
            if (kt_json_string(value, &size)) *tokens = size / 4 ? (int64_t)(size / 4) : 1;
            return question;
        }
    }
    return question;
}

static kt_status add(kt_load_data *d, const kt_json *row, size_t number, const char *path,
                     int64_t output_len, kt_err *err) {
    int64_t tokens = kt_json_int(kt_json_get(row, "max_tokens"), 0);
    const kt_json *prompt = kt_json_get(row, "prompt");
    kt_load_prompt *p = &d->prompts[d->n];
    const char *text;

    if (!tokens) tokens = kt_json_int(kt_json_get(row, "output_tokens"), 0);
    if (!prompt) prompt = first_question(kt_json_get(row, "conversations"), &tokens);
    text = kt_json_string(prompt, &p->size);
    if (!text || tokens < 0)
        return kt_fail(
            err, KT_E_FORMAT,
            "%s: row %zu has neither a 'prompt' string nor 'conversations' with a question", path,
            number);
    p->text = malloc(p->size + 1);
    if (!p->text) return kt_fail(err, KT_E_NOMEM, "%s: no memory for the prompts", path);
    memcpy(p->text, text, p->size + 1);
    p->max_tokens = output_len ? output_len : tokens ? tokens : DEFAULT_OUTPUT;
    d->n++;
    return KT_OK;
}

static kt_status add_lines(kt_load_data *d, size_t n, const char *path, const char *text,
                           size_t size, int64_t output_len, kt_err *err) {
    const char *at = text, *end = text + size;

    for (size_t line = 1; at < end && d->n < n; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((stop ? stop : end) - at);
        kt_json_doc *doc;
        kt_status st;
        if (strspn(at, " \t\r\n") < length) {
            st = kt_json_parse(at, length, NULL, &doc, err);
            if (st != KT_OK) return kt_fail_prefix(err, st, "%s: line %zu", path, line);
            st = add(d, kt_json_root(doc), line, path, output_len, err);
            kt_json_destroy(doc);
            if (st != KT_OK) return st;
        }
        at = stop ? stop + 1 : end;
    }
    return KT_OK;
}

static kt_status add_array(kt_load_data *d, size_t n, const char *path, const char *text,
                           size_t size, int64_t output_len, kt_err *err) {
    kt_json_doc *doc;
    kt_status st = kt_json_parse(text, size, NULL, &doc, err);

    if (st != KT_OK) return kt_fail_prefix(err, st, "%s", path);
    for (size_t i = 0; i < kt_json_length(kt_json_root(doc)) && d->n < n && st == KT_OK; i++)
        st = add(d, kt_json_at(kt_json_root(doc), i), i + 1, path, output_len, err);
    kt_json_destroy(doc);
    return st;
}

/* The same prompts again until there are n. */
static kt_status repeat(kt_load_data *d, size_t n, const char *path, kt_err *err) {
    const size_t had = d->n;

    if (had == 0) return kt_fail(err, KT_E_FORMAT, "%s holds no prompts", path);
    for (; d->n < n; d->n++) {
        const kt_load_prompt *from = &d->prompts[d->n - had];
        kt_load_prompt *to = &d->prompts[d->n];
        *to = *from;
        to->text = malloc(from->size + 1);
        if (!to->text) return kt_fail(err, KT_E_NOMEM, "%s: no memory for the prompts", path);
        memcpy(to->text, from->text, from->size + 1);
    }
    return KT_OK;
}

kt_status kt_load_data_file(const char *path, size_t n, int64_t output_len, kt_load_data *out,
                            kt_err *err) {
    kt_load_data d = {0};
    char *text = NULL;
    size_t size = 0;
    kt_status st;

    memset(out, 0, sizeof *out);
    KT_TRY(kt_file_read(path, MAX_FILE_BYTES, &text, &size, err));
    d.prompts = calloc(n ? n : 1, sizeof *d.prompts);
    if (!d.prompts)
        st = kt_fail(err, KT_E_NOMEM, "%s: no memory for the prompts", path);
    else if (size && text[strspn(text, " \t\r\n")] == '[')
        st = add_array(&d, n, path, text, size, output_len, err);
    else
        st = add_lines(&d, n, path, text, size, output_len, err);
    free(text);
    if (st == KT_OK) st = repeat(&d, n, path, err);
    if (st == KT_OK)
        *out = d;
    else
        kt_load_data_deinit(&d);
    return st;
}
