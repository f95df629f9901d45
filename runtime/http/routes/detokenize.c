/* POST /detokenize: token ids to text, under llama-server's name (content) and vLLM's (prompt).
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "runtime/http/api/body_job.h"

static bool read_ids(const kt_app *app, const kt_json *list, int32_t *ids, kt_api_error *e) {
    char name[40];

    for (size_t i = 0; i < kt_json_length(list); i++) {
        const kt_json *v = kt_json_at(list, i);
        int64_t id = kt_json_int(v, -1);
        snprintf(name, sizeof name, "tokens[%zu]", i);
        if (kt_json_type_of(v) != KT_JSON_NUMBER)
            return kt_api_wrong_type(e, name, v, "a token id");
        if (!kt_json_is_integer(v) || id < 0 || id >= app->backend->vocab)
            return kt_api_refuse(e, 400, name, "invalid_value",
                                 "'%s' is %.40s, expected a token id from 0 to %lld", name,
                                 kt_json_lexeme(v), (long long)app->backend->vocab - 1);
        ids[i] = (int32_t)id;
    }
    return true;
}

static bool detokenize(kt_app *app, const kt_json *body, kt_json_writer *w, kt_api_error *e) {
    const kt_json *list = kt_field(body, "tokens");
    size_t n = kt_json_length(list), size = 0;
    char *text = NULL;
    int32_t *ids;
    kt_status st;

    if (!list || kt_json_type_of(list) != KT_JSON_ARRAY)
        return kt_api_wrong_type(e, "tokens", list, "an array of token ids");
    ids = malloc((n + 1) * sizeof *ids);
    if (!ids) return kt_api_no_memory(e);
    if (!read_ids(app, list, ids, e)) {
        free(ids);
        return false;
    }
    st = kt_tokenizer_decode(app->backend->tokenizer, ids, n, false, &text, &size, NULL);
    free(ids);
    if (st != KT_OK) return kt_api_no_memory(e);
    kt_json_begin_object(w);
    kt_json_key(w, "content");
    kt_json_put_string_n(w, text, size);
    kt_json_key(w, "prompt");
    kt_json_put_string_n(w, text, size);
    kt_json_end_object(w);
    free(text);
    return true;
}

static void handle(kt_http_exchange *x, void *app) {
    kt_body_job_start(app, x, detokenize);
}

const kt_route kt_route_detokenize = {.method = "POST", .path = "/detokenize", .handle = handle};
