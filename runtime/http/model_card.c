/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/model_card.h"

void kt_model_card_write(const kt_app *app, kt_json_writer *w) {
    kt_json_begin_object(w);
    kt_json_add_string(w, "id", app->model_name);
    kt_json_add_string(w, "object", "model");
    kt_json_add_int(w, "created", app->created_s);
    kt_json_add_string(w, "owned_by", "kt");
    kt_json_add_int(w, "max_model_len", app->backend->max_context);
    kt_json_end_object(w);
}

void kt_http_reply_writer(kt_http_exchange *x, int status, kt_json_writer *w) {
    size_t size;
    const char *text = kt_json_writer_text(w, &size);

    if (text)
        kt_http_reply_json(x, status, text, size);
    else
        kt_http_fail(x, 503, "server_error", NULL, "out_of_memory", "no memory for the answer");
    kt_json_writer_deinit(w);
}
