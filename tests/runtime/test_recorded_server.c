/* From a live server to a tuned table: `kt serve --record-workload F` under concurrent requests,
 * then `kttune run --workload F`. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buffer.h"
#include "dispatch/plan/plan.h"
#include "tests/support/http_client.h"
#include "tests/support/json_schema.h"
#include "tests/support/tune_home.h"
#include "tuner/space/trace.h"

#define MODEL KT_SOURCE_DIR "/datasets/models/tiny-moe"
enum { CLIENTS = 6, TOKENS = 8 };

static kt_tune_home home;
static char path[600];

static void make_home(void) {
    kt_tune_home_make(&home);
    snprintf(path, sizeof path, "%s/load.jsonl", home.folder);
}

static void remove_home(void) {
    kt_tune_home_remove(&home);
}

TestSuite(recorded_server, .init = make_home, .fini = remove_home);

/* --- the server, a process of its own --- */

typedef struct process {
    pid_t pid;
    FILE *out;
    int port;
} process;

static process start_server(void) {
    process p = {0};
    int pipes[2];
    char line[512] = "";
    const char *colon = NULL;

    cr_assert_eq(pipe(pipes), 0);
    p.pid = fork();
    cr_assert(p.pid >= 0);
    if (p.pid == 0) {
        dup2(pipes[1], STDOUT_FILENO);
        close(pipes[0]);
        execl(KT_BUILD_DIR "/kt", "kt", "serve", MODEL, "--port", "0", "--threads", "2",
              "--weights", "int4", "--kv", "fp8", "--itl", "60000", /* steps as long as prompts */
              "--record-workload", path, (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    p.out = fdopen(pipes[0], "r");
    while (!colon && fgets(line, sizeof line, p.out))
        if (strstr(line, "listening on http://")) colon = strrchr(line, ':');
    cr_assert(colon, "the server said only: %s", line);
    p.port = atoi(colon + 1);
    return p;
}

/* Ctrl-C; its last words. */
static void stop_server(process *p, char *words, size_t bytes) {
    size_t n;
    int state;

    kill(p->pid, SIGINT);
    n = fread(words, 1, bytes - 1, p->out);
    words[n] = '\0';
    cr_assert_eq(waitpid(p->pid, &state, 0), p->pid);
    cr_expect(WIFEXITED(state) && WEXITSTATUS(state) == 0, "the server ended with %d", state);
    fclose(p->out);
}

typedef struct client {
    int port, index, status;
    pthread_t thread;
} client;

/* Prompts of different lengths, all at once. */
static void *ask(void *arg) {
    client *c = arg;
    char body[4096];
    size_t used = (size_t)snprintf(body, sizeof body,
                                   "{\"max_tokens\":%d,\"temperature\":0,\"prompt\":\"", TOKENS);
    kt_reply r;

    for (int i = 0; i < 3 << c->index; i++)
        used += (size_t)snprintf(body + used, sizeof body - used, "In that day ");
    snprintf(body + used, sizeof body - used, "\"}");
    r = kt_complete(c->port, body);
    c->status = r.status;
    kt_reply_free(&r);
    return NULL;
}

static void record(char *words, size_t bytes) {
    process p = start_server();
    client clients[CLIENTS];

    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (client){.port = p.port, .index = i};
        cr_assert_eq(pthread_create(&clients[i].thread, NULL, ask, &clients[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(clients[i].thread, NULL);
        cr_expect_eq(clients[i].status, 200, "request %d: status %d", i, clients[i].status);
    }
    stop_server(&p, words, bytes);
}

/* --- what it wrote --- */

static kt_json_doc *parse(const char *text, size_t size) {
    kt_json_doc *doc;
    kt_err err;
    cr_assert_eq(kt_json_parse(text, size, NULL, &doc, &err), KT_OK, "%s in %.300s", err.message,
                 text);
    return doc;
}

static char *read_text(const char *file, size_t *size) {
    char *text;
    kt_err err;
    cr_assert_eq(kt_file_read(file, 1 << 24, &text, size, &err), KT_OK, "%s", err.message);
    return text;
}

static void check_schema(void) {
    size_t size;
    char *rules_text = read_text(KT_SOURCE_DIR "/datasets/schemas/trace.schema.json", &size);
    kt_json_doc *rules = parse(rules_text, size);
    char *text = read_text(path, &size), why[512];

    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        kt_json_doc *doc = parse(line, (size_t)(end - line));
        const char *answer =
            kt_schema_check(kt_json_root(rules), kt_json_root(doc), why, sizeof why);
        cr_expect_null(answer, "%.200s: %s", line, answer);
        kt_json_destroy(doc);
    }
    kt_json_destroy(rules);
    free(rules_text);
    free(text);
}

/* Every token of an answer has its row of logits; how many share a step is the scheduler's affair.
 */
static void check_trace(const char *words) {
    kt_trace t;
    kt_trace_load load;
    char said[64];
    int64_t logits = 0;
    kt_err err;

    cr_assert_eq(kt_trace_read(path, &t, &err), KT_OK, "%s", err.message);
    cr_expect_str_eq(t.model, "tiny-moe");
    cr_expect(t.layers == 4 && t.experts == 16 && t.topk == 4 && !t.cut);
    cr_expect_str_eq(t.weights, "int4");
    cr_expect_str_eq(t.kv, "fp8");
    for (size_t i = 0; i < t.n_steps; i++) {
        cr_expect_leq(t.steps[i].logits, CLIENTS);
        logits += t.steps[i].logits;
    }
    cr_expect_geq(logits, CLIENTS * TOKENS);
    load = kt_trace_load_of(&t);
    cr_expect(load.fewest_tokens <= CLIENTS && load.most_tokens > 200, "%lld .. %lld",
              (long long)load.fewest_tokens, (long long)load.most_tokens);
    cr_expect(load.mean_rows > 1 && load.most_rows > 50 && load.most_rows <= load.most_tokens);
    cr_expect(load.imbalance > 1 && load.imbalance < 16, "%g", load.imbalance);
    snprintf(said, sizeof said, "recorded %zu steps in ", t.n_steps);
    cr_expect(strstr(words, said), "'%s' lacks '%s'", words, said);
    kt_trace_deinit(&t);
}

/* --- what the tuner makes of it --- */

static kt_json_doc *run_json(const char *arguments, int code) {
    char command[1600], *out;
    kt_json_doc *doc;
    int got;

    snprintf(command, sizeof command,
             KT_BUILD_DIR "/kttune run --workload %s --json --threads 1 %s 2>/dev/null", path,
             arguments);
    got = kt_tune_home_run(command, &out);
    cr_expect(got == code || (code < 0 && (got == 0 || got == -code)), "%s: code %d", command, got);
    doc = parse(out, strlen(out));
    free(out);
    return doc;
}

/* Weight of the experts' cells with these rows. */
static double weight_of(const kt_json *cells, const char *rows) {
    double sum = 0;

    for (size_t i = 0; i < kt_json_length(cells); i++) {
        const kt_json *c = kt_json_at(cells, i);
        if (strstr(kt_json_string(kt_json_get(c, "cell"), NULL), rows))
            sum += kt_json_double(kt_json_get(c, "weight"), 0);
    }
    return sum;
}

static void check_plan(void) {
    kt_json_doc *doc = run_json("--dry-run", 0);
    const kt_json *cells = kt_json_get(kt_json_root(doc), "cells");
    const kt_json *trace = kt_json_get(kt_json_root(doc), "trace");

    cr_expect_gt(kt_json_length(cells), 4);
    cr_expect_str_eq(kt_json_string(kt_json_get(trace, "model"), NULL), "tiny-moe");
    cr_expect_str_eq(kt_json_string(kt_json_get(kt_json_root(doc), "format"), NULL), "int4",
                     "the recorded format");
    cr_expect_gt(weight_of(cells, " w4g32/"), 0.1);
    cr_expect_eq(weight_of(cells, "moe_ffn wbf16/") + weight_of(cells, "gemm wbf16/"), 0);
    cr_expect_gt(kt_json_int(kt_json_get(trace, "most_tokens"), 0), 200);
    cr_expect_gt(kt_json_double(kt_json_get(trace, "imbalance"), 0), 1);
    cr_expect_gt(weight_of(cells, " m=1 "), 0.05, "single tokens weigh something");
    kt_json_destroy(doc);
}

static void check_run(void) {
    char out[800];
    int64_t decided = 0;

    /* Decided, or as much as the time allows: on a slow machine it gets more than five seconds. */
    for (int seconds = 5; seconds <= 45 && decided == 0; seconds *= 3) {
        kt_json_doc *doc;
        snprintf(out, sizeof out, "--budget %ds --noisy-ok --plans no --out %s/t.kttable.json",
                 seconds, home.folder);
        doc = run_json(out, -6);
        decided = kt_json_int(kt_json_get(kt_json_root(doc), "decided"), 0);
        cr_expect(kt_json_get(kt_json_root(doc), "trace"));
        kt_json_destroy(doc);
    }
    cr_expect_gt(decided, 0);
}

Test(recorded_server, a_live_load_is_tuned_for, .timeout = 240) {
    char words[4096];

    record(words, sizeof words);
    check_schema();
    check_trace(words);
    check_plan();
    check_run();
}

Test(recorded_server, what_a_recorded_load_does_not_go_with, .timeout = 180) {
    static const char text[] =
        "{\"schema\":\"kt-trace-1\",\"model\":\"nobody's\",\"experts\":16,\"topk\":4,"
        "\"moe_layers\":1}\n{\"decode\":1,\"prefill\":0,\"layers\":[[0,1,1,1,2,1,3,1]]}\n";
    char command[1600], *out;
    kt_err err;

    cr_assert_eq(kt_file_write(path, text, sizeof text - 1, &err), KT_OK, "%s", err.message);
    snprintf(command, sizeof command, KT_BUILD_DIR "/kttune run --dry-run --workload %s", path);
    cr_expect_neq(kt_tune_home_run(command, &out), 0);
    cr_expect(strstr(out, "must be named with --model DIR"), "%s", out);
    free(out);
    strcat(command, " --model " MODEL);
    cr_expect_eq(kt_tune_home_run(command, &out), 0);
    cr_expect(strstr(out, "recorded load of nobody's: 1 steps of 1 to 1 tokens"), "%s", out);
    free(out);
    strcat(command, " --routing uniform");
    cr_expect_neq(kt_tune_home_run(command, &out), 0);
    cr_expect(strstr(out, "it has its routing"), "%s", out);
    free(out);
}
