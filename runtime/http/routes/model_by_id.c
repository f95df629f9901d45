/* GET /v1/models/{id}. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runtime/http/model_card.h"

static void handle(kt_http_exchange *x, void *arg) {
    const kt_app *app = arg;
    kt_json_writer w = {0};

    if (strcmp(kt_http_path_rest(x), app->model_name) != 0) {
        kt_http_fail(x, 404, "invalid_request_error", "model", "model_not_found",
                     "the model '%.100s' does not exist; this server has '%.100s'",
                     kt_http_path_rest(x), app->model_name);
        return;
    }
    kt_model_card_write(app, &w);
    kt_http_reply_writer(x, 200, &w);
}

const kt_route kt_route_model_by_id = {.method = "GET", .path = "/v1/models/*", .handle = handle};
