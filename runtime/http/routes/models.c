/* GET /v1/models. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/model_card.h"

static void handle(kt_http_exchange *x, void *app) {
    kt_json_writer w = {0};

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "object", "list");
    kt_json_key(&w, "data");
    kt_json_begin_array(&w);
    kt_model_card_write(app, &w);
    kt_json_end_array(&w);
    kt_json_end_object(&w);
    kt_http_reply_writer(x, 200, &w);
}

const kt_route kt_route_models = {.method = "GET", .path = "/v1/models", .handle = handle};
