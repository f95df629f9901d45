/* kt serve: an OpenAI-compatible server. The port is taken first, so that one in use is told at
 * once and clients get 503 instead of a closed port while the model is being loaded.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/affinity.h"
#include "base/buffer.h"
#include "base/err.h"
#include "base/pool.h"
#include "runtime/cli/command.h"
#include "runtime/cli/draft_flags.h"
#include "runtime/cli/engine_flags.h"
#include "runtime/exec/recorder.h"
#include "runtime/http/api/chat_load.h"
#include "runtime/http/api/engine_json.h"
#include "runtime/http/app.h"
#include "runtime/http/server.h"
#include "runtime/model/model_dir.h"
#include "runtime/model/synthetic_model.h"

enum { PATIENCE_MS = 400, MAX_KEY_FILE = 1 << 20, DEFAULT_PORT = 8080 };
#define DEFAULT_HOST "127.0.0.1"

typedef struct serve_flags {
    kt_engine_flags engine;
    kt_draft_flags drafts;
    const char *host, *socket, *api_key, *api_key_file, *allowed_hosts, *cors_origins, *model_name;
    const char *chat_template, *tool_parser, *reasoning_parser;
    const char *record;
    int64_t port, queue, parallel, itl_ms, record_mb, drain_s;
} serve_flags;

/* What the threads of a server share: this one runs the event loop, the scheduler's thread loads
 * the model and then answers. */
typedef struct serving {
    kt_job load; /* first: the queue hands back this pointer */
    const serve_flags *flags;
    kt_speculation speculate; /* what its drafts mean */
    const char *model_dir;
    kt_engine_options options;
    kt_model_dir dir;
    atomic_bool is_unwanted; /* loading may stop */
    kt_status loaded;        /* and why not: once the queue is destroyed */
    kt_err why;
    kt_engine *engine;
    kt_backend backend;
    kt_loaded_chat *chat;
    kt_app *app;
    kt_http_server *server;
    char *keys; /* owned: one a line; NULL = none */
    kt_log log;
    kt_log_writer *writer; /* of stderr: nobody waits for its reader */
    kt_cpu_set allowed;    /* CPUs of the engine; the other threads keep off the pool's */
} serving;

/* A line for the person at the terminal; never waits. */
static void say(const serving *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(const serving *s, const char *format, ...) {
    char line[600];
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n > 0) kt_log_writer_put(s->writer, line, strlen(line));
}

static int is_unwanted(void *arg) {
    return atomic_load(&((serving *)arg)->is_unwanted);
}

/* ---- loading, on the scheduler's thread ---- */

static void print_address(const serving *s, const char *before, const char *after) {
    const char *host = s->flags->host;
    bool v6 = strchr(host, ':') != NULL;

    if (s->flags->socket)
        printf("%sunix:%s%s\n", before, s->flags->socket, after);
    else
        printf("%shttp://%s%s%s:%d%s\n", before, v6 ? "[" : "", host, v6 ? "]" : "",
               kt_http_server_port(s->server), after);
    fflush(stdout);
}

static void print_engine(const serving *s) {
    kt_engine_info info;
    char line[160], chat[4400];

    kt_engine_describe(s->engine, &info);
    printf("%s\n", info.table_line);
    if (*info.node_line) printf("%s\n", info.node_line);
    printf("%s: context %lld tokens, %s weights %.1f MB, %lld threads\n", s->app->model_name,
           (long long)info.max_context, s->flags->engine.weights, (double)info.weight_bytes * 1e-6,
           (long long)info.n_threads);
    printf("%s\n", kt_kv_line(&info, line, sizeof line));
    printf("%s\n", info.memory_line);
    if (*info.device_line) printf("%s\n", info.device_line);
    if (s->chat) printf("%s\n", kt_loaded_chat_line(s->chat, chat, sizeof chat));
    printf("up to %lld answers side by side, up to %d requests wait\n",
           (long long)s->flags->parallel, kt_scheduler_count(s->app->scheduler).capacity);
    print_address(s, "listening on ", "");
}

/* A model without a template completes texts all the same; a template that was named must be there.
 */
static kt_status load_chat(serving *s, kt_err *err) {
    const serve_flags *f = s->flags;
    const kt_chat_source source = {.model = s->dir.folder, .template_file = f->chat_template};
    kt_engine_info info;
    kt_parser_evidence evidence = {.tool_parser = f->tool_parser,
                                   .reasoning_parser = f->reasoning_parser};
    kt_err why = {KT_OK, ""};
    kt_status st;

    kt_engine_describe(s->engine, &info);
    evidence.family = info.family;
    st = kt_loaded_chat_create(&source, &evidence, &s->backend, &s->chat, &why);
    if (st == KT_OK) return KT_OK;
    if (f->chat_template || st == KT_E_NOMEM || (st == KT_E_INVALID && f->tool_parser)) {
        *err = why;
        return st;
    }
    say(s, "kt: no chat: %s\n", why.message);
    return kt_loaded_chat_create(NULL, &evidence, &s->backend, &s->chat, err);
}

static kt_status load_model(serving *s, kt_err *err) {
    const serve_flags *f = s->flags;

    KT_TRY(kt_draft_flags_create(&f->drafts, &s->options, &s->engine, err));
    KT_TRY(kt_backend_from_engine(s->engine, f->engine.synthetic ? NULL : s->dir.folder,
                                  f->engine.weights, &s->backend, err));
    if (!f->engine.synthetic) KT_TRY(load_chat(s, err));
    return f->record ? kt_engine_record(s->engine, f->record, f->record_mb << 20, err) : KT_OK;
}

static void run_load(kt_job *job) {
    serving *s = (serving *)(void *)job;

    kt_affinity_set(&s->allowed); /* this is the thread that the pool belongs to */
    s->loaded = load_model(s, &s->why);
    if (s->loaded == KT_OK)
        s->loaded = kt_app_ready(s->app, &s->backend,
                                 s->chat ? kt_loaded_chat_model(s->chat) : NULL, &s->why);
    if (s->loaded != KT_OK) {
        kt_http_server_stop(s->server);
        return;
    }
    print_engine(s);
}

static void drop_load(kt_job *job) {
    serving *s = (serving *)(void *)job;
    s->loaded = kt_fail(&s->why, KT_E_CANCELLED, "loading was interrupted");
}

static bool never_abandoned(const kt_job *job) {
    (void)job;
    return false;
}

/* ---- the end ---- */

/* Ctrl-C, or the model did not load: then the error is what matters. */
static void say_what_it_waits_for(void *app, int n_requests) {
    const serving *s = ((kt_app *)app)->owner;

    if (!kt_app_why_not(app) && n_requests > 0)
        say(s, "kt: finishing %d request%s, at most %lld s; Ctrl-C again to stop now\n", n_requests,
            n_requests == 1 ? "" : "s", (long long)s->flags->drain_s);
}

/* Requests whose clients are gone do not count, a load that has not begun does. */
static bool is_busy(const serving *s) {
    kt_scheduler_counts counts = kt_scheduler_count(s->app->scheduler);
    return counts.running || counts.waiting || counts.is_called;
}

/* The engine looks up between chunks of a prompt and layers of a load, which may be seconds.
 * Whoever asked twice does not wait for that: there is nothing left to be saved, as records are
 * written line by line. */
static void wait_for_engine(serving *s) {
    const struct timespec pause = {0, 10 * 1000 * 1000};

    for (int i = 0; i < PATIENCE_MS / 10 && is_busy(s); i++) nanosleep(&pause, NULL);
    if (!is_busy(s)) return;
    if (kt_http_server_stops(s->server) < 2) {
        say(s, "kt: waiting for the %s; Ctrl-C to stop now\n",
            kt_app_why_not(s->app) ? "layer that is being loaded" : "step in progress");
        return;
    }
    say(s, "kt: stopped in the middle of its work\n");
    kt_log_writer_destroy(s->writer);
    fflush(stdout);
    _exit(KT_EXIT_INTERRUPTED);
}

static void print_record(const char *path, const kt_engine *engine) {
    int64_t steps, lost;

    kt_engine_recorded(engine, &steps, &lost);
    printf("recorded %lld steps in %s", (long long)steps, path);
    if (lost) printf(", lost %lld: writing failed", (long long)lost);
    printf("\n");
}

/* ---- both ---- */

/* What /props says of the engine; asked for only once there is one. */
static void write_props(void *owner, kt_json_writer *w) {
    const serving *s = owner;
    kt_engine_info info;
    char line[160];

    kt_engine_describe(s->engine, &info);
    kt_json_add_string(w, "model_path", s->model_dir);
    kt_json_add_string(w, "weights", s->flags->engine.weights);
    kt_json_add_int(w, "weight_bytes", info.weight_bytes);
    kt_json_add_int(w, "threads", info.n_threads);
    kt_json_add_string(w, "table", info.table_line);
    kt_json_add_string(w, "nodes", info.node_line);
    kt_json_add_string(w, "memory", info.memory_line);
    if (*info.device_line) kt_json_add_string(w, "device", info.device_line);
    kt_json_add_string(w, "cache", kt_kv_line(&info, line, sizeof line));
}

static void write_machine(void *owner, kt_json_writer *w) {
    kt_engine_write_json(((const serving *)owner)->engine, w);
}

static void write_metrics(void *owner, void (*put)(void *arg, const char *labels), void *arg) {
    kt_engine_put_kernels(((const serving *)owner)->engine, put, arg);
}

/* --api-key A,B and the lines of --api-key-file, one a line. */
static kt_status gather_keys(serving *s, kt_err *err) {
    const serve_flags *f = s->flags;
    char *text = NULL;
    size_t size = 0, given = f->api_key ? strlen(f->api_key) : 0;

    if (f->api_key_file) KT_TRY(kt_file_read(f->api_key_file, MAX_KEY_FILE, &text, &size, err));
    if (f->api_key_file && strspn(text, " \t\r\n") == strlen(text)) {
        free(text);
        return kt_fail(err, KT_E_INVALID, "%s: no API key in it", f->api_key_file);
    }
    if (!f->api_key && !text) return KT_OK;
    s->keys = malloc(given + size + 2);
    if (!s->keys) {
        free(text);
        return kt_fail(err, KT_E_NOMEM, "no memory for the API keys");
    }
    snprintf(s->keys, given + size + 2, "%s\n%s", given ? f->api_key : "", text ? text : "");
    for (size_t i = 0; i < given; i++)
        if (s->keys[i] == ',') s->keys[i] = '\n';
    free(text);
    return KT_OK;
}

/* The event loop and the threads made from here on leave the pool's cores alone where there are
 * others. */
static void keep_off_the_pool(serving *s) {
    int n = (int)s->flags->engine.threads;
    kt_cpu_set spare;

    kt_affinity_get(&s->allowed);
    kt_affinity_spare(&s->allowed, n ? n : kt_usable_cores(), &spare);
    kt_affinity_set(&spare);
}

static kt_status start_log(serving *s, kt_err *err) {
    KT_TRY(kt_log_writer_create(STDERR_FILENO, &s->writer, err));
    if (s->log.stream) s->log.writer = s->writer;
    return KT_OK;
}

static void warn_if_unreachable(const serving *s) {
    const serve_flags *f = s->flags;
    bool is_local = f->socket || strncmp(f->host, "127.", 4) == 0 || strcmp(f->host, "::1") == 0 ||
                    strcmp(f->host, "localhost") == 0;

    if (!is_local && !s->keys && !f->allowed_hosts)
        say(s,
            "kt: without --api-key or --allowed-hosts only requests to localhost are answered, "
            "also on %s\n",
            f->host);
}

static kt_status read_model(serving *s, kt_err *err) {
    const kt_engine_flags *e = &s->flags->engine;
    int64_t layers_of_all;

    if (!e->synthetic) return kt_model_dir_read(s->model_dir, &s->dir, err);
    return kt_synthetic_dir(e->synthetic, e->layers, kt_quant_format(s->options.weights), &s->dir,
                            &layers_of_all, err);
}

static kt_status listen_and_serve(serving *s, kt_err *err) {
    const serve_flags *f = s->flags;
    kt_app_options options = {.model_name = f->model_name,
                              .queue = (int)f->queue,
                              .max_running = (int)f->parallel,
                              .itl_ns = f->itl_ms * 1000000,
                              .speculate = s->speculate,
                              .draft = (int)f->drafts.draft,
                              .log = &s->log,
                              .owner = s,
                              .write_props = write_props,
                              .write_machine = write_machine,
                              .write_metrics = write_metrics};
    kt_http_options http = {.host = f->host,
                            .port = (int)f->port,
                            .socket_path = f->socket,
                            .routes = kt_builtin_routes,
                            .n_routes = kt_builtin_route_count,
                            .allowed_hosts = f->allowed_hosts,
                            .cors_origins = f->cors_origins,
                            .why_not = kt_app_why_not,
                            .on_drain = say_what_it_waits_for,
                            .drain_ms = f->drain_s ? (int)f->drain_s * 1000 : -1,
                            .catch_signals = true,
                            .log = &s->log};

    KT_TRY(read_model(s, err)); /* what is quickly told is told first */
    if (f->record) KT_TRY(kt_recorder_check(f->record, err));
    KT_TRY(gather_keys(s, err));
    http.api_key = s->keys;
    keep_off_the_pool(s);
    KT_TRY(start_log(s, err));
    KT_TRY(kt_app_create(&options, &s->app, err));
    http.app = s->app;
    KT_TRY(kt_http_server_create(&http, &s->server, err));
    warn_if_unreachable(s);
    print_address(s, "loading; ", " answers 503 until then");
    if (!kt_scheduler_call(s->app->scheduler, &s->load))
        return kt_fail(err, KT_E_INTERNAL, "the engine takes no work");
    KT_TRY(kt_http_server_run(s->server, err));
    atomic_store(&s->is_unwanted, true);
    wait_for_engine(s);
    return KT_OK;
}

static int serve(serving *s) {
    kt_err err = {KT_OK, ""};
    kt_status st = listen_and_serve(s, &err);
    bool was_loaded;
    int code;

    kt_app_destroy(s->app); /* the clients are gone; work in progress notices and ends */
    was_loaded = s->engine && s->loaded == KT_OK;
    if (st == KT_OK && s->loaded != KT_OK) {
        st = s->loaded;
        err = s->why;
    }
    kt_http_server_destroy(s->server);
    kt_log_writer_destroy(s->writer);
    s->log.writer = NULL;
    code = st == KT_OK ? KT_EXIT_OK : kt_command_fail(&err);
    if (was_loaded && s->flags->record) print_record(s->flags->record, s->engine);
    kt_loaded_chat_destroy(s->chat);
    kt_engine_destroy(s->engine);
    kt_model_dir_deinit(&s->dir);
    free(s->keys);
    return code;
}

static const kt_usage usage = {
    .command = "serve",
    .arguments = "(MODEL | --synthetic NAME)",
    .about = "Serve a model to OpenAI clients: /v1/chat/completions, /v1/completions; a page at /. "
             "Ctrl-C lets "
             "running\nrequests finish for five seconds; a second one ends at once. KT_LOG=info "
             "logs each request.\nWithout a key only requests to localhost, and pages from there, "
             "are answered.\nOptions of SGLang with kt-kernel, vLLM and llama-server "
             "are taken where they mean the same.",
    .examples = "  kt serve datasets/models/tiny-moe\n"
                "  kt serve MODEL --weights int4 --port 8081 --api-key secret\n"
                "  kt serve MODEL --socket /run/user/1000/kt.sock\n"
                "  kt serve MODEL --record-workload load.jsonl\n"
                "  curl http://127.0.0.1:8080/v1/completions -d '{\"prompt\": \"In that day\"}'\n"};

/* What the flags mean for the engine, into s->options; 0 or an exit code. */
static int settle_flags(serving *s, bool has_model) {
    const serve_flags *f = s->flags;
    const kt_engine_flags *e = &f->engine;
    int code;

    if (has_model == (e->synthetic != NULL))
        return kt_usage_fail(&usage, "%s",
                             has_model ? "give either MODEL or --synthetic" : "MODEL is missing");
    if (f->socket && (strcmp(f->host, DEFAULT_HOST) != 0 || f->port != DEFAULT_PORT))
        return kt_usage_fail(&usage, "give either --socket or --host and --port");
    if (e->layers && !e->synthetic) return kt_usage_fail(&usage, "--layers goes with --synthetic");
    if (e->synthetic && f->chat_template)
        return kt_usage_fail(&usage, "a synthetic model has no chat for --chat-template");
    if (!has_model) s->model_dir = e->synthetic;
    code = kt_engine_flags_options(e, &usage, s->model_dir, &s->log, &s->options);
    s->options.logit_rows = kt_scheduler_logit_rows((int)f->parallel);
    s->options.made_up_tokens = e->synthetic != NULL;
    s->options.cancel = is_unwanted;
    s->options.cancel_arg = s;
    if (code == 0) code = kt_draft_flags_settle(&f->drafts, &usage, &s->speculate);
    return code;
}

static int run(int argc, char **argv) {
    serve_flags f = {.engine = KT_ENGINE_FLAGS_INITIAL,
                     .host = DEFAULT_HOST,
                     .port = DEFAULT_PORT,
                     .parallel = 64,
                     .itl_ms = 200,
                     .drain_s = 5};
    const kt_option options[] = {
        KT_OPTION_STRING("host", 0, &f.host, "ADDRESS", "where to listen (default: 127.0.0.1)"),
        KT_OPTION_INT("port", 'p', &f.port, 0, 65535, "0 = any free one (default: 8080)"),
        KT_OPTION_STRING("socket", 0, &f.socket, "PATH",
                         "a UNIX socket instead, for programs of this user alone"),
        KT_OPTION_STRING("api-key", 0, &f.api_key, "KEY[,KEY...]",
                         "wanted from clients (default: none, and only localhost is answered)"),
        KT_OPTION_STRING("api-key-file", 0, &f.api_key_file, "FILE", "keys, one a line"),
        KT_OPTION_STRING("chat-template", 0, &f.chat_template, "FILE",
                         "how conversations are written (default: the model's)"),
        KT_OPTION_STRING("tool-parser", 0, &f.tool_parser, "NAME",
                         "how tool calls are written; none = they are text (default: chosen)"),
        KT_OPTION_STRING("reasoning-parser", 0, &f.reasoning_parser, "NAME",
                         "how reasoning is marked; none = it is text (default: chosen)"),
        KT_OPTION_STRING("allowed-hosts", 0, &f.allowed_hosts, "NAME,...",
                         "without a key: names and addresses it is used by, * for all"),
        KT_OPTION_STRING("cors-origins", 0, &f.cors_origins, "ORIGIN,...",
                         "web pages that may use it besides local ones, * for all"),
        KT_OPTION_STRING("model-name", 0, &f.model_name, "NAME",
                         "as clients call it (default: the folder's or repository's name)"),
        KT_OPTION_INT("queue", 0, &f.queue, 1, 100000,
                      "requests that may wait; more get status 429 (default: 32)"),
        KT_OPTION_INT("parallel", 0, &f.parallel, 1, 256,
                      "answers computed side by side (default: 64)"),
        KT_OPTION_INT("itl", 0, &f.itl_ms, 1, 60000,
                      "ms between tokens while prompts of others are computed (default: 200)"),
        KT_OPTION_INT("drain-timeout", 0, &f.drain_s, 0, 86400,
                      "seconds that requests have to finish after Ctrl-C (default: 5)"),
        KT_OPTION_STRING("record-workload", 0, &f.record, "FILE",
                         "record which experts get how many rows, for kttune run --workload FILE"),
        KT_OPTION_INT("record-limit", 0, &f.record_mb, 1, 1 << 20,
                      "MiB that the record may take, the latest steps stay (default: 256)"),
        KT_OPTION_STRING("synthetic", 0, &f.engine.synthetic, "NAME",
                         "instead of MODEL: random weights of a shape of datasets/workloads and a "
                         "made-up vocabulary, to measure a server"),
        KT_OPTION_INT("layers", 0, &f.engine.layers, 0, 4096,
                      "of the synthetic model (default all)"),
        KT_DRAFT_OPTIONS(f.drafts),
        KT_ENGINE_OPTIONS(f.engine),
    };
    serving s = {.flags = &f,
                 .log = kt_command_log(),
                 .load = {.run = run_load, .drop = drop_load, .abandoned = never_abandoned}};
    int n_models = 0;
    int code = kt_options_parse(&usage, options, sizeof options / sizeof *options, argc, argv,
                                &s.model_dir, 1, &n_models);

    if (code >= 0) return code;
    signal(SIGPIPE, SIG_IGN); /* readers of answers, logs and output may leave when they like */
    code = settle_flags(&s, n_models > 0);
    return code != 0 ? code : serve(&s);
}

const kt_command kt_command_serve = {
    .name = "serve", .summary = "serve a model to OpenAI clients", .run = run};
