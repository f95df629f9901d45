/* kt chat: a conversation at the terminal, with a running server or with a model, for which a
 * server of its own is started: both go the same way. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json.h"
#include "runtime/cli/chat_link.h"
#include "runtime/cli/command.h"
#include "runtime/cli/engine_flags.h"
#include "runtime/token/text.h"

static const kt_usage usage = {
    .command = "chat",
    .arguments = "MODEL|URL",
    .about =
        "Talk with a model, or with a server at http://HOST:PORT or unix:PATH. A line that ends in "
        "\\ goes on in the next;\nCtrl-C stops an answer, at the prompt it ends the chat, as does "
        "Ctrl-D. /help lists the commands. Options of kt serve\nare passed on to the server that "
        "is "
        "started for a model.",
    .examples = "  kt chat datasets/models/tiny-moe\n"
                "  kt chat http://127.0.0.1:8080 --system 'Answer in one sentence.'\n"
                "  kt chat MODEL --prompt 'Who wrote Hamlet?'\n"};

typedef struct chat_flags {
    kt_engine_flags engine;
    const char *system, *prompt, *api_key;
    const char *chat_template, *reasoning_parser; /* kt serve's */
    double temperature;
    int64_t max_tokens, seed;
} chat_flags;

typedef struct chat_line {
    const char *role; /* static */
    kt_text text;
} chat_line;

typedef struct chat {
    const chat_flags *flags;
    kt_chat_link link;
    chat_line *lines; /* owned */
    size_t n_lines, capacity;
    kt_text answer;
    double temperature; /* < 0: the model's */
    int64_t max_tokens; /* 0: what the context holds */
    bool is_terminal, in_reasoning;
    kt_text stats; /* of the last answer */
    pid_t server;  /* 0 = somebody else's */
    char key[40];
} chat;

/* A signal handler has no argument to reach anything else by. */
static volatile sig_atomic_t stopped;

static void on_signal(int number) {
    (void)number;
    stopped = 1;
}

static bool is_stopped(void) {
    return stopped;
}

/* ---- the conversation ---- */

static kt_status add_line(chat *c, const char *role, const char *text, size_t size, kt_err *err) {
    void *data = c->lines;
    kt_status st = kt_grow(&data, c->n_lines, &c->capacity, 1, sizeof *c->lines, err);
    chat_line *line;

    c->lines = data;
    if (st != KT_OK) return st;
    line = &c->lines[c->n_lines];
    *line = (chat_line){.role = role};
    KT_TRY(kt_text_append(&line->text, text, size, err));
    c->n_lines++;
    return KT_OK;
}

static void drop_lines(chat *c, size_t keep) {
    while (c->n_lines > keep) free(c->lines[--c->n_lines].text.data);
}

static bool has_system(const chat *c) {
    return c->n_lines > 0 && strcmp(c->lines[0].role, "system") == 0;
}

static kt_status set_system(chat *c, const char *text, kt_err *err) {
    chat_line line = {.role = "system"};

    if (has_system(c)) {
        free(c->lines[0].text.data);
        memmove(c->lines, c->lines + 1, --c->n_lines * sizeof *c->lines);
    }
    if (!*text) return KT_OK;
    KT_TRY(add_line(c, "system", text, strlen(text), err));
    line = c->lines[c->n_lines - 1];
    memmove(c->lines + 1, c->lines, (c->n_lines - 1) * sizeof *c->lines);
    c->lines[0] = line;
    return KT_OK;
}

static void put_messages(const chat *c, kt_json_writer *w) {
    kt_json_key(w, "messages");
    kt_json_begin_array(w);
    for (size_t i = 0; i < c->n_lines; i++) {
        const chat_line *line = &c->lines[i];
        kt_json_begin_object(w);
        kt_json_add_string(w, "role", line->role);
        kt_json_key(w, "content");
        kt_json_put_string_n(w, line->text.data ? line->text.data : "", line->text.size);
        kt_json_end_object(w);
    }
    kt_json_end_array(w);
}

/* ---- an answer ---- */

static void show(chat *c, const char *text, size_t size, bool is_reasoning) {
    if (is_reasoning != c->in_reasoning) {
        if (c->is_terminal) fputs(is_reasoning ? "\033[2m" : "\033[0m\n", stdout);
        c->in_reasoning = is_reasoning;
    }
    fwrite(text, 1, size, stdout);
    fflush(stdout);
}

static void note_stats(chat *c, const kt_json *timings) {
    char line[160];
    int n = snprintf(line, sizeof line, "%lld prompt tokens (%lld cached), %lld tokens, %.1f/s",
                     (long long)kt_json_int(kt_json_get(timings, "prompt_n"), 0),
                     (long long)kt_json_int(kt_json_get(timings, "cache_n"), 0),
                     (long long)kt_json_int(kt_json_get(timings, "predicted_n"), 0),
                     kt_json_double(kt_json_get(timings, "predicted_per_second"), 0));

    c->stats.size = 0;
    kt_text_append(&c->stats, line, (size_t)n + 1, NULL);
}

static void on_chunk(void *arg, const kt_json *event) {
    chat *c = arg;
    const kt_json *choice = kt_json_at(kt_json_get(event, "choices"), 0);
    const kt_json *delta = kt_json_get(choice, "delta"), *timings = kt_json_get(event, "timings");
    size_t size;
    const char *text = kt_json_string(kt_json_get(delta, "reasoning_content"), &size);

    if (text) show(c, text, size, true);
    text = kt_json_string(kt_json_get(delta, "content"), &size);
    if (text && size) {
        show(c, text, size, false);
        kt_text_append(&c->answer, text, size, NULL);
    }
    if (timings) note_stats(c, timings);
}

static kt_status ask(chat *c, kt_err *err) {
    kt_json_writer w = {0};
    const char *body;
    size_t size;
    kt_status st;

    kt_json_begin_object(&w);
    put_messages(c, &w);
    kt_json_add_bool(&w, "stream", true);
    kt_json_key(&w, "stream_options");
    kt_json_begin_object(&w);
    kt_json_add_bool(&w, "include_usage", true);
    kt_json_end_object(&w);
    if (c->temperature >= 0) kt_json_add_double(&w, "temperature", c->temperature);
    if (c->max_tokens > 0) kt_json_add_int(&w, "max_tokens", c->max_tokens);
    if (c->flags->seed >= 0) kt_json_add_int(&w, "seed", c->flags->seed);
    kt_json_end_object(&w);
    body = kt_json_writer_text(&w, &size);
    c->answer.size = 0;
    stopped = 0;
    st = body ? kt_chat_link_post(&c->link, "/chat/completions", body, size, on_chunk, c, err)
              : kt_fail(err, KT_E_NOMEM, "no memory for the conversation");
    kt_json_writer_deinit(&w);
    if (c->in_reasoning) show(c, "", 0, false);
    putchar('\n');
    fflush(stdout);
    return st;
}

/* Ask for an answer and keep it; a question without one is taken back, unless it was stopped. */
static kt_status answer(chat *c, kt_err *err) {
    kt_status st = ask(c, err);

    if (st == KT_OK || st == KT_E_CANCELLED) {
        stopped = 0;
        return add_line(c, "assistant", c->answer.data, c->answer.size, err);
    }
    drop_lines(c, c->n_lines - 1);
    return st;
}

/* ---- commands ---- */

typedef struct chat_command {
    const char *name, *help;
    kt_status (*run)(chat *c, const char *rest, kt_err *err);
} chat_command;

static kt_status run_new(chat *c, const char *rest, kt_err *err) {
    (void)rest, (void)err;
    drop_lines(c, has_system(c));
    return KT_OK;
}

static kt_status run_undo(chat *c, const char *rest, kt_err *err) {
    (void)rest, (void)err;
    if (c->n_lines >= 2u + has_system(c)) drop_lines(c, c->n_lines - 2);
    return KT_OK;
}

static kt_status run_retry(chat *c, const char *rest, kt_err *err) {
    (void)rest;
    if (c->n_lines < 2u + has_system(c))
        return kt_fail(err, KT_E_INVALID, "there is no answer yet");
    drop_lines(c, c->n_lines - 1);
    return answer(c, err);
}

static kt_status run_temperature(chat *c, const char *rest, kt_err *err) {
    char *end;
    double v = strtod(rest, &end);

    if (end == rest || *end || !(v >= 0 && v <= 2))
        return kt_fail(err, KT_E_INVALID, "'%s' is no temperature from 0 to 2", rest);
    c->temperature = v;
    return KT_OK;
}

static kt_status run_max(chat *c, const char *rest, kt_err *err) {
    char *end;
    long long v = strtoll(rest, &end, 10);

    if (end == rest || *end || v < 0)
        return kt_fail(err, KT_E_INVALID, "'%s' is no number of tokens", rest);
    c->max_tokens = v;
    return KT_OK;
}

static kt_status run_save(chat *c, const char *rest, kt_err *err) {
    kt_json_writer w = {.indent = 2};
    FILE *f = *rest ? fopen(rest, "we") : NULL;

    if (!f) return kt_fail(err, KT_E_IO, "'%s' cannot be written", rest);
    kt_json_begin_object(&w);
    put_messages(c, &w);
    kt_json_end_object(&w);
    kt_json_writer_print(&w, f);
    return fclose(f) == 0 ? KT_OK : kt_fail(err, KT_E_IO, "'%s' cannot be written", rest);
}

static kt_status run_stats(chat *c, const char *rest, kt_err *err) {
    (void)rest, (void)err;
    printf("%s\n", c->stats.size ? c->stats.data : "no answer yet");
    return KT_OK;
}

static kt_status run_help(chat *c, const char *rest, kt_err *err);

static const chat_command commands[] = {
    {"help", "this list", run_help},
    {"new", "forget the conversation, but for the system prompt", run_new},
    {"undo", "forget the last question and its answer", run_undo},
    {"retry", "answer the last question again", run_retry},
    {"system", "TEXT: set the system prompt; nothing removes it", set_system},
    {"temperature", "X: 0 is greedy, up to 2", run_temperature},
    {"max", "N: most tokens of an answer; 0 is what the context holds", run_max},
    {"save", "FILE: the conversation as JSON", run_save},
    {"stats", "tokens and speed of the last answer", run_stats},
    {"exit", "end the chat, as does Ctrl-D", NULL},
};

static kt_status run_help(chat *c, const char *rest, kt_err *err) {
    (void)c, (void)rest, (void)err;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        printf("  /%-12s %s\n", commands[i].name, commands[i].help);
    return KT_OK;
}

/* "/name rest". *is_end when the chat should end. */
static kt_status run_command(chat *c, const char *line, bool *is_end, kt_err *err) {
    size_t n = strcspn(line + 1, " ");
    const char *rest = line + 1 + n + strspn(line + 1 + n, " ");

    if (strcmp(line, "/quit") == 0) line = "/exit";
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strlen(commands[i].name) != n || strncmp(commands[i].name, line + 1, n) != 0) continue;
        *is_end = !commands[i].run;
        return *is_end ? KT_OK : commands[i].run(c, rest, err);
    }
    return kt_fail(err, KT_E_INVALID, "'%s' is no command; /help lists them", line);
}

/* ---- the terminal ---- */

/* A message: lines that end in a backslash go on. False at the end of the input, or at Ctrl-C. */
static bool read_message(const chat *c, kt_text *out) {
    char *line = NULL;
    size_t capacity = 0;
    bool more = true, any = false;

    out->size = 0;
    while (more) {
        ssize_t n;
        if (c->is_terminal) fputs(any ? ". " : "> ", stdout);
        fflush(stdout);
        n = getline(&line, &capacity, stdin);
        if (n < 0) break;
        any = true;
        if (n > 0 && line[n - 1] == '\n') n--;
        more = n > 0 && line[n - 1] == '\\';
        if (kt_text_append(out, line, (size_t)(more ? n - 1 : n), NULL) != KT_OK) break;
        if (more) kt_text_append(out, "\n", 1, NULL);
    }
    free(line);
    return any && !stopped && kt_text_append(out, "", 1, NULL) == KT_OK;
}

static int converse(chat *c) {
    kt_text message = {0};
    bool is_end = false, failed = false;

    if (c->is_terminal)
        printf("Ctrl-C stops an answer, Ctrl-D ends the chat, /help lists commands\n");
    while (!is_end && read_message(c, &message)) {
        kt_err err = {KT_OK, ""};
        kt_status st = KT_OK;
        if (message.size == 1) continue;
        if (*message.data == '/') {
            st = run_command(c, message.data, &is_end, &err);
        } else {
            st = add_line(c, "user", message.data, message.size - 1, &err);
            if (st == KT_OK) st = answer(c, &err);
        }
        failed = st != KT_OK;
        if (failed) fprintf(stderr, "kt: %s\n", err.message);
    }
    if (c->is_terminal) putchar('\n');
    free(message.data);
    return failed && !c->is_terminal ? KT_EXIT_FAILURE : KT_EXIT_OK;
}

/* ---- a server for a model ---- */

/* Words of our own options and their values are not kt serve's. */
static bool is_ours(const char *word, bool *has_value) {
    static const char *const ours[] = {
        "--system", "--prompt", "--temperature", "--max-tokens", "--seed", "-p", "-n"};

    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        size_t n = strlen(ours[i]);
        if (strncmp(word, ours[i], n) != 0 || (word[n] && word[n] != '=')) continue;
        *has_value = word[n] == '=';
        return true;
    }
    return false;
}

/* The child: kt serve with what is left of our options, on a free port, behind a key of its own. */
static void run_server(const chat *c, int argc, char **argv, int out) {
    char *words[128];
    int n = 0;
    bool has_value;

    setpgid(0, 0); /* Ctrl-C is for answers, not for the server */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out, STDOUT_FILENO);
    words[n++] = strdup("serve");
    for (int i = 1; i < argc && n < 120; i++) {
        if (!is_ours(argv[i], &has_value))
            words[n++] = argv[i];
        else if (!has_value)
            i++;
    }
    words[n++] = strdup("--port=0");
    words[n++] = strdup("--api-key");
    words[n++] = strdup(c->key);
    words[n] = NULL;
    for (size_t i = 0; i < kt_builtin_command_count; i++)
        if (strcmp(kt_builtin_commands[i]->name, "serve") == 0)
            _exit(kt_builtin_commands[i]->run(n, words));
    _exit(KT_EXIT_FAILURE);
}

/* Waits until it listens; its lines before that are shown. */
static kt_status wait_for_server(chat *c, int in, kt_err *err) {
    FILE *f = fdopen(in, "r");
    char line[600], url[160];
    kt_status st = KT_E_IO;

    while (f && st != KT_OK && fgets(line, sizeof line, f)) {
        if (sscanf(line, "listening on %150s", url) == 1)
            st = kt_chat_link_init(&c->link, url, err);
        else if (strncmp(line, "loading; ", 9) != 0)
            fputs(line, stderr);
    }
    if (f) fclose(f); /* it ignores SIGPIPE */
    if (st == KT_OK) return KT_OK;
    return kt_fail(err, KT_E_IO, "the model could not be served");
}

static kt_status start_server(chat *c, int argc, char **argv, kt_err *err) {
    unsigned char random[16];
    int ends[2];

    if (getrandom(random, sizeof random, 0) != sizeof random || pipe(ends) != 0)
        return kt_fail(err, KT_E_IO, "no pipe for the server");
    for (size_t i = 0; i < sizeof random; i++) sprintf(c->key + 2 * i, "%02x", random[i]);
    fflush(NULL);
    c->server = fork();
    if (c->server == 0) {
        close(ends[0]);
        run_server(c, argc, argv, ends[1]);
    }
    close(ends[1]);
    if (c->server < 0) {
        close(ends[0]);
        c->server = 0;
        return kt_fail(err, KT_E_IO, "no process for the server");
    }
    KT_TRY(wait_for_server(c, ends[0], err));
    c->link.key = c->key;
    return KT_OK;
}

static void stop_server(const chat *c) {
    if (c->server <= 0) return;
    kill(c->server, SIGTERM);
    waitpid(c->server, NULL, 0);
}

static int talk(chat *c) {
    const chat_flags *f = c->flags;
    kt_err err = {KT_OK, ""};
    kt_status st = f->system ? set_system(c, f->system, &err) : KT_OK;

    if (st == KT_OK && !f->prompt) return converse(c);
    if (st == KT_OK) st = add_line(c, "user", f->prompt, strlen(f->prompt), &err);
    if (st == KT_OK) st = answer(c, &err);
    return st == KT_OK ? KT_EXIT_OK : kt_command_fail(&err);
}

static int run(int argc, char **argv) {
    chat_flags f = {.engine = KT_ENGINE_FLAGS_INITIAL, .temperature = -1, .seed = -1};
    const kt_option options[] = {
        KT_OPTION_STRING("system", 0, &f.system, "TEXT", "system prompt"),
        KT_OPTION_STRING("prompt", 'p', &f.prompt, "TEXT",
                         "one question; print its answer and end"),
        KT_OPTION_DOUBLE("temperature", &f.temperature, 0, 2, "0 = greedy (default: the model's)"),
        KT_OPTION_INT("max-tokens", 'n', &f.max_tokens, 0, 1 << 24,
                      "most tokens of an answer (default: what the context holds)"),
        KT_OPTION_INT("seed", 0, &f.seed, 0, INT64_C(1) << 53, "of the sampler (default: random)"),
        KT_OPTION_STRING("chat-template", 0, &f.chat_template, "FILE",
                         "how conversations are written (default: the model's)"),
        KT_OPTION_STRING("reasoning-parser", 0, &f.reasoning_parser, "NAME",
                         "how reasoning is marked (default: chosen)"),
        KT_OPTION_STRING("api-key", 0, &f.api_key, "KEY", "of the server at URL"),
        KT_ENGINE_OPTIONS(f.engine)};
    struct sigaction action = {.sa_handler = on_signal}; /* without SA_RESTART: getline returns */
    chat c = {.flags = &f};
    const char *word = NULL;
    int n_words = 0, code;
    kt_err err = {KT_OK, ""};
    kt_status st;

    code = kt_options_parse(&usage, options, sizeof options / sizeof *options, argc, argv, &word, 1,
                            &n_words);
    if (code >= 0) return code;
    if (n_words < 1) return kt_usage_fail(&usage, "MODEL or URL is missing");
    c.temperature = f.temperature;
    c.max_tokens = f.max_tokens;
    c.is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    if (kt_target_is_socket(word) || (strncmp(word, "http", 4) == 0 && strstr(word, "://"))) {
        st = kt_chat_link_init(&c.link, word, &err);
        c.link.key = f.api_key;
    } else {
        st = start_server(&c, argc, argv, &err);
    }
    c.link.is_stopped = is_stopped;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    code = st == KT_OK ? talk(&c) : kt_command_fail(&err);
    stop_server(&c);
    drop_lines(&c, 0);
    free(c.lines);
    free(c.answer.data);
    free(c.stats.data);
    return code;
}

const kt_command kt_command_chat = {
    .name = "chat", .summary = "talk with a model or a server", .run = run};
