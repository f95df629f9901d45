/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/support/browser.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "tests/support/temp.h"

enum { ANSWER_MS = 60 * 1000, TO_BROWSER = 3, FROM_BROWSER = 4 };

struct kt_browser {
    pid_t pid;
    int to, from;
    int last_id;
    char session[128]; /* of the page; "" = messages go to the browser itself */
    char *text;        /* owned: what was read and is no whole message yet */
    size_t size;
    char folder[256];
    char complaints[4000];
};

const char *kt_browser_find(void) {
    static const char *const names[] = {"chromium", "chromium-browser", "google-chrome", "chrome"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char command[128];
        snprintf(command, sizeof command, "command -v %s >/dev/null 2>&1", names[i]);
        if (system(command) == 0) return names[i];
    }
    return NULL;
}

/* ---- messages ---- */

static void complain(kt_browser *b, const char *what) {
    const size_t used = strlen(b->complaints);
    snprintf(b->complaints + used, sizeof b->complaints - used, "%.600s\n", what);
}

/* Events that a page without faults does not cause. */
static void look_at_event(kt_browser *b, const kt_json *root, const char *text) {
    const char *method = kt_json_string(kt_json_get(root, "method"), NULL);
    const kt_json *entry = kt_json_get(kt_json_get(root, "params"), "entry");
    const char *level = kt_json_string(kt_json_get(entry, "level"), NULL);

    if (!method) return;
    if (strcmp(method, "Runtime.exceptionThrown") == 0) complain(b, text);
    if (strcmp(method, "Log.entryAdded") == 0 && level && strcmp(level, "error") == 0)
        complain(b, text);
}

/* The next whole message, owned; fails the test when there is none in time. */
static char *read_message(kt_browser *b) {
    const int64_t end_ns = kt_clock_ns() + (int64_t)ANSWER_MS * 1000000;
    char *end, *message;

    while (!b->size || !(end = memchr(b->text, '\0', b->size))) {
        struct pollfd p = {.fd = b->from, .events = POLLIN};
        ssize_t n;
        cr_assert_lt(kt_clock_ns(), end_ns, "the browser does not answer");
        if (poll(&p, 1, 1000) <= 0) continue;
        b->text = realloc(b->text, b->size + 65536);
        cr_assert_not_null(b->text);
        n = read(b->from, b->text + b->size, 65536);
        cr_assert_gt(n, 0, "the browser has ended");
        b->size += (size_t)n;
    }
    message = strdup(b->text);
    cr_assert_not_null(message);
    b->size -= (size_t)(end + 1 - b->text);
    memmove(b->text, end + 1, b->size);
    return message;
}

/* Send a command and wait for its answer, an error or a result, which the caller destroys. params:
 * an object's text. */
static kt_json_doc *exchange(kt_browser *b, const char *method, const char *params) {
    char *message;
    const int id = ++b->last_id;
    kt_json_doc *doc;
    int n =
        asprintf(&message, "{\"id\":%d,\"method\":\"%s\",\"params\":%s%s%s%s}", id, method, params,
                 *b->session ? ",\"sessionId\":\"" : "", b->session, *b->session ? "\"" : "");

    cr_assert(n > 0);
    cr_assert_eq(write(b->to, message, (size_t)n + 1), (ssize_t)n + 1); /* its NUL ends it */
    free(message);
    for (;;) {
        message = read_message(b);
        cr_assert_eq(kt_json_parse(message, strlen(message), NULL, &doc, NULL), KT_OK, "%s",
                     message);
        if (kt_json_int(kt_json_get(kt_json_root(doc), "id"), 0) == id) break;
        look_at_event(b, kt_json_root(doc), message);
        kt_json_destroy(doc);
        free(message);
    }
    free(message);
    return doc;
}

/* One that must succeed. */
static kt_json_doc *command(kt_browser *b, const char *method, const char *params) {
    kt_json_doc *doc = exchange(b, method, params);
    const kt_json *error = kt_json_get(kt_json_root(doc), "error");
    const char *why = kt_json_string(kt_json_get(error, "message"), NULL);

    cr_assert_null(error, "%s: %s", method, why ? why : "an error");
    return doc;
}

/* A command whose answer has one text that matters. */
static void ask_for(kt_browser *b, const char *method, const char *params, const char *key,
                    char *out, size_t out_bytes) {
    kt_json_doc *doc = command(b, method, params);
    const kt_json *result = kt_json_get(kt_json_root(doc), "result");
    const char *text = kt_json_string(kt_json_get(result, key), NULL);

    cr_assert_not_null(text, "%s: no %s", method, key);
    snprintf(out, out_bytes, "%s", text);
    kt_json_destroy(doc);
}

/* ---- the process ---- */

static void become_browser(const kt_browser *b, const char *program, const int in[2],
                           const int out[2]) {
    char folder[300];
    const int to = fcntl(in[0], F_DUPFD, 10), from = fcntl(out[1], F_DUPFD, 10);

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves no browser behind */
    setpgid(0, 0);
    snprintf(folder, sizeof folder, "--user-data-dir=%s", b->folder);
    if (to < 0 || from < 0 || dup2(to, TO_BROWSER) < 0 || dup2(from, FROM_BROWSER) < 0) _exit(126);
    if (!freopen("/dev/null", "w", stderr)) _exit(126);
    execlp(program, program, "--headless=new", "--no-sandbox", "--disable-gpu",
           "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe",
           "--window-size=1280,1000", folder, "about:blank", (char *)NULL);
    _exit(127);
}

kt_browser *kt_browser_open(const char *program, const char *url) {
    kt_browser *b = calloc(1, sizeof *b);
    int in[2], out[2];
    char params[600], target[128];

    cr_assert_not_null(b);
    kt_temp_make(b->folder, sizeof b->folder);
    cr_assert(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    b->pid = fork();
    cr_assert(b->pid >= 0);
    if (b->pid == 0) become_browser(b, program, in, out);
    close(in[0]);
    close(out[1]);
    b->to = in[1];
    b->from = out[0];
    ask_for(b, "Target.createTarget", "{\"url\":\"about:blank\"}", "targetId", target,
            sizeof target);
    snprintf(params, sizeof params, "{\"targetId\":\"%s\",\"flatten\":true}", target);
    ask_for(b, "Target.attachToTarget", params, "sessionId", b->session, sizeof b->session);
    kt_json_destroy(command(b, "Runtime.enable", "{}"));
    kt_json_destroy(command(b, "Log.enable", "{}"));
    snprintf(params, sizeof params, "{\"url\":\"%s\"}", url);
    kt_json_destroy(command(b, "Page.navigate", params));
    return b;
}

void kt_browser_close(kt_browser *b) {
    int state;

    close(b->to); /* which ends it */
    close(b->from);
    kill(-b->pid, SIGKILL);
    waitpid(b->pid, &state, 0);
    kt_temp_remove(b->folder);
    free(b->text);
    free(b);
}

/* ---- the page ---- */

char *kt_browser_eval(kt_browser *b, const char *expression) {
    kt_json_writer w = {0};
    kt_json_doc *doc;
    const kt_json *result, *thrown;
    const char *text;
    char *out, *wrapped;

    cr_assert_gt(asprintf(&wrapped, "String(%s)", expression), 0);
    kt_json_begin_object(&w);
    kt_json_add_string(&w, "expression", wrapped);
    kt_json_add_bool(&w, "returnByValue", true);
    kt_json_end_object(&w);
    doc = exchange(b, "Runtime.evaluate", kt_json_writer_text(&w, NULL)); /* fails between pages */
    result = kt_json_get(kt_json_root(doc), "result");
    thrown = kt_json_get(kt_json_get(result, "exceptionDetails"), "exception");
    text = kt_json_string(kt_json_get(kt_json_get(result, "result"), "value"), NULL);
    if (!text) text = kt_json_string(kt_json_get(thrown, "description"), NULL);
    cr_assert_gt(asprintf(&out, "%s%s", thrown ? "error: " : "", text ? text : ""), -1);
    kt_json_destroy(doc);
    kt_json_writer_deinit(&w);
    free(wrapped);
    return out;
}

bool kt_browser_wait(kt_browser *b, const char *expression, int seconds) {
    const int64_t end_ns = kt_clock_ns() + (int64_t)seconds * 1000000000;
    const struct timespec pause = {0, 20 * 1000 * 1000};
    bool is_true = false;

    while (!is_true && kt_clock_ns() < end_ns) {
        char *value = kt_browser_eval(b, expression);
        is_true = strcmp(value, "true") == 0;
        free(value);
        if (!is_true) nanosleep(&pause, NULL);
    }
    return is_true;
}

const char *kt_browser_complaints(const kt_browser *b) {
    return b->complaints;
}
