/* `kt serve` as a process: what it answers while it loads, and how Ctrl-C ends it. A tokenizer.json
 * that is a named pipe makes a load last as long as a test likes.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "tests/support/http_client.h"
#include "tests/support/random_model.h"
#include "tests/support/temp.h"

#define MODEL KT_SOURCE_DIR "/datasets/models/tiny-moe"

static const kt_model_shape shape = {.layers = 1,
                                     .hidden = 64,
                                     .vocab = 4096, /* that of the tokenizer */
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .head_dim = 32,
                                     .experts = 4,
                                     .topk = 2,
                                     .expert_size = 32,
                                     .dense_layer = -1,
                                     .dtype = KT_DTYPE_BF16};

static char folder[256], pipe_path[300];

static void make_folder(void) {
    kt_temp_make(folder, sizeof folder);
    kt_random_model(&shape, 1, folder);
    snprintf(pipe_path, sizeof pipe_path, "%s/tokenizer.json", folder);
    cr_assert_eq(mkfifo(pipe_path, 0600), 0);
}

static void remove_folder(void) {
    kt_temp_remove(folder);
}

TestSuite(serve_process, .init = make_folder, .fini = remove_folder, .timeout = 120);

typedef struct process {
    pid_t pid;
    FILE *out; /* both streams */
    char line[600];
    int port;
} process;

/* The next line that has these words; what comes before is skipped. */
static void expect_line(process *p, const char *words) {
    char all[4000] = "";

    while (fgets(p->line, sizeof p->line, p->out)) {
        if (strstr(p->line, words)) return;
        strncat(all, p->line, sizeof all - strlen(all) - 1);
    }
    cr_assert_fail("no line with '%s' in: %s", words, all);
}

static process start(const char *model, const char *port, const char *record) {
    process p = {0};
    int pipes[2];

    cr_assert_eq(pipe(pipes), 0);
    p.pid = fork();
    cr_assert(p.pid >= 0);
    if (p.pid == 0) {
        dup2(pipes[1], STDOUT_FILENO);
        dup2(pipes[1], STDERR_FILENO);
        close(pipes[0]);
        execl(KT_BUILD_DIR "/kt", "kt", "serve", model, "--port", port, "--table", "",
              record ? "--record-workload" : NULL, record, (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    p.out = fdopen(pipes[0], "r");
    return p;
}

static void expect_port(process *p, const char *words) {
    expect_line(p, words);
    p->port = atoi(strstr(p->line, "http://127.0.0.1:") + strlen("http://127.0.0.1:"));
    cr_assert_gt(p->port, 0, "%s", p->line);
}

/* Seconds from `since` to the process's end; *state as waitpid has it. */
static double wait_for_end(process *p, int64_t since, int *state) {
    cr_assert_eq(waitpid(p->pid, state, 0), p->pid);
    fclose(p->out);
    return (double)(kt_clock_ns() - since) * 1e-9;
}

static void expect_reply(kt_reply r, int status, const char *words, const char *header) {
    cr_expect(r.status == status && strstr(r.body, words) && strstr(r.headers, header),
              "status %d, expected %d, '%s' and '%s': %s\n%s", r.status, status, words, header,
              r.headers, r.body);
    kt_reply_free(&r);
}

static void write_tokenizer(void) {
    char *text;
    size_t size;
    int fd;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_file_read(MODEL "/tokenizer.json", 1 << 24, &text, &size, &err), KT_OK, "%s",
                 err.message);
    fd = open(pipe_path, O_WRONLY);
    cr_assert(fd >= 0);
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, text + done, size - done);
        cr_assert_gt(n, 0);
        done += (size_t)n;
    }
    close(fd);
    free(text);
}

Test(serve_process, answers_503_until_the_model_is_loaded) {
    process p = start(folder, "0", NULL);
    int state;

    expect_port(&p, "loading; http://127.0.0.1:");
    expect_reply(kt_send_request(p.port, "GET", "/health", "", NULL), 503,
                 "{\"status\":\"loading\"}", "Retry-After: ");
    expect_reply(kt_send_request(p.port, "GET", "/v1/models", "", NULL), 503,
                 "\"code\":\"loading\"", "Retry-After: ");
    expect_reply(kt_complete(p.port, "{\"prompt\":\"a\"}"), 503, "\"code\":\"loading\"",
                 "Retry-After: ");
    expect_reply(kt_send_request(p.port, "GET", "/nothing", "", NULL), 404, "unknown_url", "");
    write_tokenizer();
    expect_line(&p, "up to 64 answers side by side, up to 32 requests wait");
    expect_line(&p, "listening on http://127.0.0.1:");
    expect_reply(kt_send_request(p.port, "GET", "/health", "", NULL), 200, "\"status\":\"ok\"", "");
    expect_reply(kt_complete(p.port, "{\"prompt\":\"a\",\"max_tokens\":2}"), 200, "\"text\"", "");
    kill(p.pid, SIGINT);
    wait_for_end(&p, kt_clock_ns(), &state);
    cr_expect(WIFEXITED(state) && WEXITSTATUS(state) == 0, "state %#x", (unsigned)state);
}

/* Told before anything is loaded: the load itself would never end here. */
Test(serve_process, a_used_port_and_a_bad_record_are_told_before_loading) {
    process p = start(folder, "0", NULL), second;
    char port[16];
    int state;

    expect_port(&p, "loading; http://127.0.0.1:");
    snprintf(port, sizeof port, "%d", p.port);
    second = start(folder, port, NULL);
    expect_line(&second, "in use by another program");
    wait_for_end(&second, kt_clock_ns(), &state);
    cr_expect(WIFEXITED(state) && WEXITSTATUS(state) == 1, "state %#x", (unsigned)state);
    second = start(folder, "0", "/no/folder/load.jsonl");
    cr_assert(fgets(second.line, sizeof second.line, second.out));
    cr_expect(strstr(second.line, "/no/folder/load.jsonl: No such file"), "%s", second.line);
    cr_expect_null(fgets(second.line, sizeof second.line, second.out), "more: %s", second.line);
    wait_for_end(&second, kt_clock_ns(), &state);
    cr_expect(WIFEXITED(state) && WEXITSTATUS(state) == 1, "state %#x", (unsigned)state);
    kill(p.pid, SIGKILL);
    wait_for_end(&p, kt_clock_ns(), &state);
}

Test(serve_process, a_load_that_fails_ends_it_with_the_error) {
    process p;
    int state;

    cr_assert_eq(unlink(pipe_path), 0);
    p = start(folder, "0", NULL);
    expect_line(&p, "neither tokenizer.json nor tiktoken.model");
    wait_for_end(&p, kt_clock_ns(), &state);
    cr_expect(WIFEXITED(state) && WEXITSTATUS(state) == 1, "state %#x", (unsigned)state);
}

/* The second signal goes to nobody but the system: within a second, however long a layer takes. */
Test(serve_process, ctrl_c_during_a_load_says_what_it_waits_for) {
    process p = start(folder, "0", NULL);
    int64_t since;
    int state;

    expect_port(&p, "loading; http://127.0.0.1:");
    kill(p.pid, SIGINT);
    expect_line(&p, "waiting for the layer that is being loaded; Ctrl-C to stop now");
    since = kt_clock_ns();
    kill(p.pid, SIGINT);
    cr_expect_lt(wait_for_end(&p, since, &state), 1.0);
    cr_expect(WIFSIGNALED(state) && WTERMSIG(state) == SIGINT, "state %#x", (unsigned)state);
}

/* A load that can be left is left: the tokenizer is there, the layers are not wanted any more. */
Test(serve_process, ctrl_c_during_a_load_ends_it_at_a_layer) {
    process p = start(folder, "0", NULL);
    int state;

    expect_port(&p, "loading; http://127.0.0.1:");
    kill(p.pid, SIGINT);
    expect_line(&p, "waiting for the layer");
    write_tokenizer();
    expect_line(&p, "loading was interrupted");
    wait_for_end(&p, kt_clock_ns(), &state);
    cr_expect(WIFEXITED(state) && WEXITSTATUS(state) == 130, "state %#x", (unsigned)state);
}

Test(serve_process, ctrl_c_finishes_requests_and_twice_ends_at_once) {
    static const char body[] =
        "{\"prompt\":\"a\",\"n\":128,\"max_tokens\":1900,\"ignore_eos\":true}";
    process p = start(MODEL, "0", NULL);
    char head[128];
    int64_t since;
    int fd, state;
    kt_reply r;

    expect_port(&p, "listening on http://127.0.0.1:");
    fd = kt_dial(p.port);
    snprintf(head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
             sizeof body - 1);
    cr_assert(kt_send_all(fd, head, strlen(head)) && kt_send_all(fd, body, sizeof body - 1));
    do {
        r = kt_send_request(p.port, "GET", "/health", "", NULL);
        state = strstr(r.body, "\"running\":1") != NULL;
        kt_reply_free(&r);
    } while (!state);
    kill(p.pid, SIGINT);
    expect_line(&p, "finishing 1 request, at most 5 s; Ctrl-C again to stop now");
    since = kt_clock_ns();
    kill(p.pid, SIGINT);
    cr_expect_lt(wait_for_end(&p, since, &state), 1.0);
    cr_expect(WIFEXITED(state), "state %#x", (unsigned)state);
    close(fd);
}
