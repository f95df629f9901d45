/* kt serve: an OpenAI-compatible server. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "runtime/cli/command.h"
#include "runtime/cli/engine_flags.h"
#include "runtime/http/app.h"
#include "runtime/http/server.h"

typedef struct serve_flags {
    kt_engine_flags engine;
    const char *host, *api_key, *model_name;
    const char *record;
    int64_t port, queue, record_mb;
} serve_flags;

static void print_record(const char *path, const kt_engine *engine) {
    int64_t steps, lost;

    kt_engine_recorded(engine, &steps, &lost);
    printf("recorded %lld steps in %s", (long long)steps, path);
    if (lost) printf(", lost %lld: writing failed", (long long)lost);
    printf("\n");
}

static kt_status serve(const serve_flags *f, const char *model_dir, kt_engine *engine,
                       const kt_log *log, kt_err *err) {
    kt_http_options http = {.host = f->host,
                            .port = (int)f->port,
                            .routes = kt_builtin_routes,
                            .n_routes = kt_builtin_route_count,
                            .api_key = f->api_key,
                            .catch_signals = true,
                            .log = log};
    kt_backend backend;
    kt_app_options options = {
        .backend = &backend, .model_name = f->model_name, .queue = (int)f->queue, .log = log};
    kt_engine_info info;
    char line[160];
    kt_app *app = NULL;
    kt_http_server *server = NULL;
    kt_status st = kt_backend_from_engine(engine, model_dir, f->engine.weights, &backend, err);

    if (st == KT_OK && f->record) st = kt_engine_record(engine, f->record, f->record_mb << 20, err);
    if (st == KT_OK) st = kt_app_create(&options, &app, err);
    http.app = app;
    if (st == KT_OK) st = kt_http_server_create(&http, &server, err);
    if (st == KT_OK) {
        bool v6 = strchr(f->host, ':') != NULL;
        kt_engine_describe(engine, &info);
        printf("%s\n", info.table_line);
        if (*info.node_line) printf("%s\n", info.node_line);
        printf("%s: context %lld tokens, %s weights %.1f MB, %lld threads\n", app->model_name,
               (long long)info.max_context, f->engine.weights, (double)info.weight_bytes * 1e-6,
               (long long)info.n_threads);
        printf("%s\n", kt_kv_line(&info, line, sizeof line));
        printf("listening on http://%s%s%s:%d\n", v6 ? "[" : "", f->host, v6 ? "]" : "",
               kt_http_server_port(server));
        fflush(stdout);
        st = kt_http_server_run(server, err);
    }
    if (f->record) print_record(f->record, engine);
    kt_app_destroy(app); /* the clients are gone; work in progress notices and ends */
    kt_http_server_destroy(server);
    return st;
}

static int run(int argc, char **argv) {
    serve_flags f = {.engine = KT_ENGINE_FLAGS_INITIAL, .host = "127.0.0.1", .port = 8080};
    const kt_option options[] = {
        KT_OPTION_STRING("host", 0, &f.host, "ADDRESS", "where to listen (default: 127.0.0.1)"),
        KT_OPTION_INT("port", 'p', &f.port, 0, 65535, "0 = any free one (default: 8080)"),
        KT_OPTION_STRING("api-key", 0, &f.api_key, "KEY", "wanted from clients (default: none)"),
        KT_OPTION_STRING("model-name", 0, &f.model_name, "NAME",
                         "as clients call it (default: the folder's name)"),
        KT_OPTION_INT("queue", 0, &f.queue, 1, 100000,
                      "requests that may wait; more get status 429 (default: 32)"),
        KT_OPTION_STRING("record-workload", 0, &f.record, "FILE",
                         "record which experts get how many rows, step by step, for kttune run "
                         "--workload FILE"),
        KT_OPTION_INT("record-limit", 0, &f.record_mb, 1, 1 << 20,
                      "MiB that the record may take, the latest steps stay (default: 256)"),
        KT_OPTION_INT("ctx", 0, &f.engine.context, 0, 1 << 24, "same as --context"),
        KT_ENGINE_OPTIONS(f.engine),
    };
    const kt_usage usage = {
        .command = "serve",
        .arguments = "MODEL",
        .about =
            "Serve a model to OpenAI clients: /v1/completions, /v1/models, /health. Ctrl-C lets "
            "running\nrequests finish for five seconds; a second one ends at once. KT_LOG=info "
            "logs each request.",
        .examples =
            "  kt serve datasets/models/tiny-moe\n"
            "  kt serve MODEL --weights int4 --port 8081 --api-key secret\n"
            "  kt serve MODEL --record-workload load.jsonl\n"
            "  curl http://127.0.0.1:8080/v1/completions -d '{\"prompt\": \"In that day\"}'\n"};
    const kt_log log = kt_command_log();
    const char *model_dir = NULL;
    kt_engine *engine = NULL;
    kt_err err = {0};
    int n_models = 0;
    int code = kt_options_parse(&usage, options, sizeof options / sizeof *options, argc, argv,
                                &model_dir, 1, &n_models);

    if (code >= 0) return code;
    if (n_models != 1) return kt_usage_fail(&usage, "MODEL is missing");
    code = kt_engine_flags_load(&f.engine, &usage, model_dir, &log, &engine);
    if (code != 0) return code;
    code = serve(&f, model_dir, engine, &log, &err) == KT_OK ? KT_EXIT_OK : kt_command_fail(&err);
    kt_engine_destroy(engine);
    return code;
}

const kt_command kt_command_serve = {
    .name = "serve", .summary = "serve a model to OpenAI clients", .run = run};
