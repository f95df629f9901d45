/* POST /tokenize: text to token ids. Takes llama-server's and vLLM's names, answers with both.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "runtime/http/api/body_job.h"
#include "runtime/token/utf8_scan.h"

typedef struct options {
    const char *text;
    size_t size;
    bool add_special, parse_special, with_pieces;
} options;

static bool read_options(const kt_json *body, options *o, kt_api_error *e) {
    *o = (options){.parse_special = true};
    if (!kt_field_string(body, "content", &o->text, &o->size, e) ||
        !kt_field_string(body, "prompt", &o->text, &o->size, e) ||
        !kt_field_bool(body, "add_special", &o->add_special, e) ||
        !kt_field_bool(body, "add_special_tokens", &o->add_special, e) ||
        !kt_field_bool(body, "parse_special", &o->parse_special, e) ||
        !kt_field_bool(body, "with_pieces", &o->with_pieces, e) ||
        !kt_field_bool(body, "return_token_strs", &o->with_pieces, e))
        return false;
    if (o->text) return true;
    return kt_api_wrong_type(e, "content", NULL, "a string");
}

/* The bytes of a token: a string, or their numbers where they are a part of a character. */
static void put_piece(const kt_app *app, kt_json_writer *w, int32_t id) {
    size_t size = 0;
    const char *bytes = kt_tokenizer_bytes(app->backend->tokenizer, id, &size, NULL);

    if (!bytes) bytes = "";
    if (kt_utf8_valid_prefix(bytes, size) == size) {
        kt_json_put_string_n(w, bytes, size);
        return;
    }
    kt_json_begin_array(w);
    for (size_t i = 0; i < size; i++) kt_json_put_int(w, (unsigned char)bytes[i]);
    kt_json_end_array(w);
}

static void put_token(const kt_app *app, kt_json_writer *w, int32_t id, bool with_piece) {
    if (!with_piece) {
        kt_json_put_int(w, id);
        return;
    }
    kt_json_begin_object(w);
    kt_json_add_int(w, "id", id);
    kt_json_key(w, "piece");
    put_piece(app, w, id);
    kt_json_end_object(w);
}

static bool tokenize(kt_app *app, const kt_json *body, kt_json_writer *w, kt_api_error *e) {
    int32_t *ids = NULL;
    size_t n = 0;
    options o;
    kt_status st;

    if (!read_options(body, &o, e)) return false;
    st = kt_tokenizer_encode(app->backend->tokenizer, o.text, o.size, o.parse_special, &ids, &n,
                             NULL);
    if (st == KT_OK && o.add_special)
        st = kt_tokenizer_begin(app->backend->tokenizer, &ids, &n, NULL);
    if (st != KT_OK) {
        free(ids);
        return kt_api_no_memory(e);
    }
    kt_json_begin_object(w);
    kt_json_key(w, "tokens");
    kt_json_begin_array(w);
    for (size_t i = 0; i < n; i++) put_token(app, w, ids[i], o.with_pieces);
    kt_json_end_array(w);
    kt_json_add_int(w, "count", (int64_t)n);
    kt_json_add_int(w, "max_model_len", app->backend->max_context);
    kt_json_end_object(w);
    free(ids);
    return true;
}

static void handle(kt_http_exchange *x, void *app) {
    kt_body_job_start(app, x, tokenize);
}

const kt_route kt_route_tokenize = {.method = "POST", .path = "/tokenize", .handle = handle};
