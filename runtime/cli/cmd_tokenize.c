/* kt tokenize: text on standard input, token ids on standard output.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "runtime/cli/command.h"
#include "runtime/cli/options.h"
#include "runtime/token/tokenizer.h"
#include "runtime/token/utf8_scan.h"

typedef struct job {
    kt_tokenizer *tokenizer;
    bool pieces;
} job;

/* The token's bytes as a string, or as an array of numbers when they are part of a character. */
static void put_piece(kt_json_writer *w, const char *bytes, size_t size) {
    if (kt_utf8_valid_prefix(bytes, size) == size) {
        kt_json_put_string_n(w, bytes, size);
        return;
    }
    kt_json_begin_array(w);
    for (size_t i = 0; i < size; i++) kt_json_put_int(w, (unsigned char)bytes[i]);
    kt_json_end_array(w);
}

static void put_ids(const job *j, kt_json_writer *w, const int32_t *ids, size_t n) {
    kt_json_begin_array(w);
    for (size_t i = 0; i < n; i++) {
        const char *bytes;
        size_t size;
        if (!j->pieces) {
            kt_json_put_int(w, ids[i]);
            continue;
        }
        bytes = kt_tokenizer_bytes(j->tokenizer, ids[i], &size, NULL);
        kt_json_begin_object(w);
        kt_json_add_int(w, "id", ids[i]);
        kt_json_key(w, "piece");
        put_piece(w, bytes ? bytes : "", size);
        kt_json_end_object(w);
    }
    kt_json_end_array(w);
}

static kt_status print_ids(const job *j, const char *text, size_t size, kt_err *err) {
    kt_json_writer w = {0};
    int32_t *ids;
    size_t n, out_size = 0;
    const char *out;

    KT_TRY(kt_tokenizer_encode(j->tokenizer, text, size, true, &ids, &n, err));
    put_ids(j, &w, ids, n);
    free(ids);
    out = kt_json_writer_text(&w, &out_size);
    if (out) {
        fwrite(out, 1, out_size, stdout);
        putchar('\n');
    }
    kt_json_writer_deinit(&w);
    return out ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for %zu ids", n);
}

static kt_status tokenize_all(const job *j, kt_err *err) {
    char *text = NULL;
    size_t size = 0, capacity = 0, got;
    kt_status st = KT_OK;

    do {
        if (capacity - size < 65536) {
            char *grown = realloc(text, capacity = capacity * 2 + 65536);
            if (!grown) {
                st = kt_fail(err, KT_E_NOMEM, "standard input: no memory for %zu bytes", capacity);
                goto done;
            }
            text = grown;
        }
        size += got = fread(text + size, 1, capacity - size, stdin);
    } while (got > 0);
    if (ferror(stdin)) {
        st = kt_fail(err, KT_E_IO, "standard input: %s", strerror(errno));
        goto done;
    }
    st = print_ids(j, text, size, err);
done:
    free(text);
    return st;
}

static kt_status tokenize_line(const job *j, const char *line, size_t size, kt_err *err) {
    kt_json_doc *doc;
    const kt_json *text;
    size_t n;
    const char *s;
    kt_status st;

    KT_TRY(kt_json_parse(line, size, NULL, &doc, err));
    text = kt_json_get(kt_json_root(doc), "text");
    s = kt_json_string(text, &n);
    if (s)
        st = print_ids(j, s, n, err);
    else if (kt_json_type_of(kt_json_root(doc)) != KT_JSON_OBJECT)
        st = kt_fail(err, KT_E_FORMAT, "expected an object, found %s",
                     kt_json_type_name(kt_json_type_of(kt_json_root(doc))));
    else
        st = kt_fail(err, KT_E_FORMAT, "expected a string in 'text', found %s",
                     text ? kt_json_type_name(kt_json_type_of(text)) : "nothing");
    kt_json_destroy(doc);
    return st;
}

static kt_status tokenize_lines(const job *j, kt_err *err) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    kt_status st = KT_OK;

    for (long number = 1; st == KT_OK && (n = getline(&line, &capacity, stdin)) >= 0; number++) {
        if (n > 0 && line[n - 1] == '\n') n--;
        st = tokenize_line(j, line, (size_t)n, err);
        if (st != KT_OK) st = kt_fail_prefix(err, st, "standard input, line %ld", number);
    }
    free(line);
    if (st == KT_OK && ferror(stdin))
        st = kt_fail(err, KT_E_IO, "standard input: %s", strerror(errno));
    return st;
}

static int run(int argc, char **argv) {
    job j = {0};
    bool jsonl = false;
    const kt_option options[] = {
        KT_OPTION_FLAG("pieces", &j.pieces,
                       "print objects with id and piece (bytes as numbers inside a character)"),
        KT_OPTION_FLAG("jsonl", &jsonl, "each input line is an object with a string 'text'"),
    };
    const kt_usage usage = {
        .command = "tokenize",
        .arguments = "MODEL < TEXT",
        .about = "Print the token ids of standard input as a JSON array. MODEL is a folder, a\n"
                 "tokenizer.json, a tiktoken.model or a .gguf file. Special tokens in the text are "
                 "recognised, none "
                 "are added.",
        .examples = "  printf 'In that day' | kt tokenize datasets/models/tiny-moe\n"
                    "  kt tokenize --jsonl tokenizer.json < texts.jsonl > ids.jsonl\n"};
    const char *model = NULL;
    int n_models = 0;
    kt_err err = {0};
    kt_status st;
    int code = kt_options_parse(&usage, options, sizeof options / sizeof *options, argc, argv,
                                &model, 1, &n_models);

    if (code >= 0) return code;
    if (n_models != 1) return kt_usage_fail(&usage, "MODEL is missing");
    st = kt_tokenizer_load(model, &j.tokenizer, &err);
    if (st == KT_OK) st = jsonl ? tokenize_lines(&j, &err) : tokenize_all(&j, &err);
    kt_tokenizer_destroy(j.tokenizer);
    if (st == KT_OK && fflush(stdout) != 0)
        st = kt_fail(&err, KT_E_IO, "output: %s", strerror(errno));
    return st == KT_OK ? KT_EXIT_OK : kt_command_fail(&err);
}

const kt_command kt_command_tokenize = {
    .name = "tokenize", .summary = "turn text into token ids", .run = run};
