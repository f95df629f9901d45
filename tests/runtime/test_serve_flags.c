/* `kt serve` as a process: its log, its threads' CPUs, its keys, its drain.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/affinity.h"
#include "base/clock.h"
#include "tests/support/http_client.h"
#include "tests/support/temp.h"

#define MODEL KT_SOURCE_DIR "/datasets/models/tiny-moe"

TestSuite(serve_flags, .timeout = 120);

typedef struct process {
    pid_t pid;
    FILE *out; /* standard output */
    int log;   /* standard error, our end */
    int port;
} process;

/* kt serve MODEL with these words, NULL at the end, until it listens; without MODEL where they
 * begin with another. */
static process start(const char *const *words) {
    char *argv[40] = {(char[]){"kt"}, (char[]){"serve"},   (char[]){MODEL}, (char[]){"--port"},
                      (char[]){"0"},  (char[]){"--table"}, (char[]){""}};
    const bool has_model = !*words || strcmp(*words, "--synthetic") != 0;
    process p = {0};
    int out[2], log[2], n = 7;
    char line[600];

    if (!has_model) strcpy(argv[2], "--queue=32");
    while (*words) argv[n++] = strdup(*words++);
    cr_assert(pipe2(out, O_CLOEXEC) == 0 && pipe2(log, O_CLOEXEC) == 0);
    p.pid = fork();
    cr_assert(p.pid >= 0);
    if (p.pid == 0) {
        dup2(out[1], STDOUT_FILENO);
        dup2(log[1], STDERR_FILENO);
        setenv("KT_LOG", "info", 1);
        execv(KT_BUILD_DIR "/kt", argv);
        _exit(127);
    }
    while (n > 7) free(argv[--n]);
    close(out[1]);
    close(log[1]);
    p.out = fdopen(out[0], "r");
    p.log = log[0];
    while (!p.port) {
        cr_assert_not_null(fgets(line, sizeof line, p.out), "it ends before it listens");
        if (strncmp(line, "listening on http://127.0.0.1:", 30) == 0) p.port = atoi(line + 30);
    }
    return p;
}

static void wait_for_end(process *p) {
    int state;

    cr_assert_eq(waitpid(p->pid, &state, 0), p->pid);
    cr_expect(WIFEXITED(state) && WEXITSTATUS(state) == 0, "state %#x", (unsigned)state);
    fclose(p->out);
    if (p->log >= 0) close(p->log);
}

static void stop(process *p) {
    kill(p->pid, SIGINT);
    wait_for_end(p);
}

static int health(const process *p, const char *headers) {
    kt_reply r = kt_send_request(p->port, "GET", "/v1/models", headers, NULL);
    int status = r.status;

    kt_reply_free(&r);
    return status;
}

Test(serve_flags, a_closed_log_ends_nothing) {
    process p = start((const char *const[]){NULL});

    close(p.log);
    p.log = -1;
    for (int i = 0; i < 5; i++) cr_expect_eq(health(&p, ""), 200);
    stop(&p);
}

Test(serve_flags, a_log_that_nobody_reads_holds_up_nobody) {
    process p = start((const char *const[]){NULL});
    int64_t since = kt_clock_ns();

    for (int i = 0; i < 2000; i++) /* 64 KiB of a pipe are full after some 800 lines */
        cr_assert_eq(health(&p, ""), 200, "request %d", i);
    cr_expect_lt(kt_clock_ns() - since, 60000000000);
    stop(&p);
}

/* Threads of a process that may run on this CPU. */
static int count_on(pid_t pid, int cpu, int *n_threads) {
    char path[64], line[4200];
    DIR *dir;
    int n = 0;

    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    dir = opendir(path);
    cr_assert_not_null(dir);
    *n_threads = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        char status[400];
        FILE *f;
        if (e->d_name[0] == '.') continue;
        snprintf(status, sizeof status, "%s/%s/status", path, e->d_name);
        f = fopen(status, "r");
        if (!f) continue;
        (*n_threads)++;
        while (fgets(line, sizeof line, f)) {
            char *at = line + strlen("Cpus_allowed_list:");
            if (strncmp(line, "Cpus_allowed_list:", 18) != 0) continue;
            while (*at) {
                long first = strtol(at, &at, 10),
                     last = *at == '-' ? strtol(at + 1, &at, 10) : first;
                n += cpu >= first && cpu <= last;
                while (*at && (*at < '0' || *at > '9')) at++;
            }
        }
        fclose(f);
    }
    closedir(dir);
    return n;
}

/* A pool of one thread on the first core: of all the others, that of the event loop, of preparing
 * and of the log among them, none may run there. */
Test(serve_flags, threads_that_wait_keep_off_the_cores_of_the_pool) {
    kt_cpu_set allowed;
    int home, n_cpus = 0, n_threads, n_on;
    process p;

    kt_affinity_get(&allowed);
    for (int i = 0; i < KT_MAX_CPUS; i++) n_cpus += kt_cpu_set_has(&allowed, i);
    if (n_cpus < 2) cr_skip_test("one CPU: there is none to keep off to");
    kt_affinity_choose(&allowed, 1, &home);
    p = start((const char *const[]){"--threads", "1", NULL});
    cr_expect_eq(health(&p, ""), 200);
    n_on = count_on(p.pid, home, &n_threads);
    cr_expect_geq(n_threads, 4);
    cr_expect_leq(n_on, 1, "%d of %d threads may run on CPU %d", n_on, n_threads, home);
    stop(&p);
}

/* Random weights and made-up words, as they are measured; sampled as most models ask for. */
Test(serve_flags, a_synthetic_model_is_served) {
    static const char *const words[] = {"--synthetic", "qwen3-30b", "--layers",  "1",
                                        "--weights",   "int4",      "--context", "512",
                                        "--kv-memory", "64M",       NULL};
    process p = start(words);
    kt_reply r = kt_complete(p.port, "{\"prompt\":\"a word\",\"max_tokens\":20}");

    cr_expect_eq(r.status, 200, "%s", r.body);
    cr_expect(strstr(r.body, "\"completion_tokens\":20"), "%s", r.body);
    cr_expect(strstr(r.body, "\"finish_reason\":\"length\""), "%s", r.body);
    kt_reply_free(&r);
    stop(&p);
}

/* What the event loop's process wrote to standard error so far. */
static void read_log(const process *p, char *text, size_t size) {
    const ssize_t n = read(p->log, text, size - 1);

    cr_assert_gt(n, 0);
    text[n] = '\0';
}

/* Command lines of other servers, with MODEL in the places that they have for it. */
Test(serve_flags, other_servers_command_lines_start_it) {
    static const char *const sglang[] = {"--model",
                                         MODEL "/",
                                         "--kt-weight-path",
                                         MODEL,
                                         "--kt-cpuinfer",
                                         "1",
                                         "--kt-num-gpu-experts=0",
                                         "--kt-method",
                                         "BF16",
                                         "--attention-backend",
                                         "triton",
                                         "--trust-remote-code",
                                         "--max-running-requests",
                                         "3",
                                         "--kv-cache-dtype",
                                         "fp8_e4m3",
                                         NULL};
    static const char *const llama[] = {"-m",      MODEL,     "-c",    "128",  "-np",  "2",
                                        "-fa",     "on",      "-ctk",  "q8_0", "-ngl", "0",
                                        "--jinja", "--alias", "small", NULL};
    static const char *const vllm[] = {
        "--max-model-len",          "256", "--enable-auto-tool-choice",
        "--tensor-parallel-size",   "1",   "--served-model-name=mine",
        "--gpu-memory-utilization", "0.9", NULL};
    const struct {
        const char *const *words, *model, *said[3];
    } lines[] = {{sglang,
                  "tiny-moe",
                  {"--attention-backend is left out: kernels are chosen by",
                   "--trust-remote-code is left out"}},
                 {llama, "small", {"-fa is left out", "-ngl is left out", "--jinja is left out"}},
                 {vllm,
                  "mine",
                  {"--enable-auto-tool-choice is left out",
                   "--tensor-parallel-size is left out: one process serves"}}};

    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        process p = start(lines[i].words);
        kt_reply r = kt_send_request(p.port, "GET", "/v1/models", "", NULL);
        char log[8192], quoted[64];

        snprintf(quoted, sizeof quoted, "\"%s\"", lines[i].model);
        cr_expect(strstr(r.body, quoted), "%s", r.body);
        kt_reply_free(&r);
        read_log(&p, log, sizeof log);
        for (size_t k = 0; k < 3 && lines[i].said[k]; k++)
            cr_expect(strstr(log, lines[i].said[k]), "'%s' is not in: %s", lines[i].said[k], log);
        stop(&p);
    }
}

Test(serve_flags, keys_come_from_a_file_too) {
    char folder[256], path[300];
    process p;
    FILE *f;

    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/keys", folder);
    f = fopen(path, "w");
    fputs("\n  first-key \nsecond-key\n", f);
    fclose(f);
    p = start((const char *const[]){"--api-key", "third,fourth", "--api-key-file", path, NULL});
    cr_expect_eq(health(&p, ""), 401);
    cr_expect_eq(health(&p, "X-Api-Key: first-key\r\n"), 200);
    cr_expect_eq(health(&p, "Authorization: Bearer second-key\r\n"), 200);
    cr_expect_eq(health(&p, "Authorization: Bearer third\r\n"), 200);
    cr_expect_eq(health(&p, "X-Api-Key: fourth\r\n"), 200);
    cr_expect_eq(health(&p, "X-Api-Key: third,fourth\r\n"), 401);
    stop(&p);
    kt_temp_remove(folder);
}

Test(serve_flags, hosts_and_pages_are_listed) {
    process p = start((const char *const[]){"--allowed-hosts", "box.example", "--cors-origins",
                                            "https://app.example", NULL});

    cr_expect_eq(health(&p, ""), 200);
    cr_expect_eq(health(&p, "Origin: https://app.example\r\n"), 200);
    cr_expect_eq(health(&p, "Origin: https://evil.example\r\n"), 403);
    stop(&p);
}

/* The request would take far longer than the drain: it gets an answer, and the process ends. */
Test(serve_flags, what_is_cut_gets_an_answer) {
    static const char body[] =
        "{\"prompt\":\"a\",\"n\":128,\"max_tokens\":1900,\"ignore_eos\":true}";
    process p = start((const char *const[]){"--drain-timeout", "1", NULL});
    int64_t since;
    char head[128];
    kt_reply r;
    int fd = kt_dial(p.port);

    snprintf(head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
             sizeof body - 1);
    cr_assert(kt_send_all(fd, head, strlen(head)) && kt_send_all(fd, body, sizeof body - 1));
    usleep(300 * 1000);
    since = kt_clock_ns();
    kill(p.pid, SIGTERM);
    r = kt_read_reply(fd, NULL, NULL, false);
    cr_expect_eq(r.status, 503, "%d %s", r.status, r.body);
    cr_expect_not_null(strstr(r.body, "shutting_down"), "%s", r.body);
    kt_reply_free(&r);
    close(fd);
    cr_expect_gt(kt_clock_ns() - since, 900000000);
    wait_for_end(&p);
    cr_expect_lt(kt_clock_ns() - since, 10000000000);
}

/* Number behind a key of an answer's body; -1 = none. */
static long number_of(const char *body, const char *key) {
    const char *at = strstr(body, key);
    return at ? atol(at + strlen(key)) : -1;
}

static kt_reply chat_with(const process *p, const char *content) {
    char body[300];

    snprintf(body, sizeof body,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":8,"
             "\"temperature\":0}",
             content);
    return kt_send_request(p->port, "POST", "/v1/chat/completions", "", body);
}

/* The bundled model has a template; what a user writes never becomes a control token. */
Test(serve_flags, the_bundled_model_chats) {
    process p = start((const char *const[]){NULL});
    kt_reply plain = chat_with(&p, "Hi"), mark = chat_with(&p, "<|im_end|>");

    cr_expect_eq(plain.status, 200, "%s", plain.body);
    cr_expect_not_null(strstr(plain.body, "\"role\":\"assistant\",\"content\":\""), "%s",
                       plain.body);
    cr_expect_gt(number_of(plain.body, "\"completion_tokens\":"), 0, "%s", plain.body);
    cr_expect_gt(number_of(mark.body, "\"prompt_tokens\":"),
                 number_of(plain.body, "\"prompt_tokens\":") + 2, "%s", mark.body);
    kt_reply_free(&plain);
    kt_reply_free(&mark);
    stop(&p);
}

Test(serve_flags, kt_chat_serves_a_model_itself) {
    char out[4000] = "";
    FILE *f = popen("printf 'Hi\\n/stats\\n' | " KT_BUILD_DIR "/kt chat " MODEL
                    " --max-tokens 8 --table '' 2>&1",
                    "r");

    cr_assert_not_null(f);
    cr_expect_gt(fread(out, 1, sizeof out - 1, f), 0);
    cr_expect_eq(pclose(f), 0, "%s", out);
    cr_expect_not_null(strstr(out, " prompt tokens (0 cached), "), "%s", out);
}

Test(serve_flags, a_template_that_was_named_must_be_there) {
    char out[4000] = "";
    FILE *f = popen(KT_BUILD_DIR "/kt serve " MODEL
                                 " --port 0 --table '' --chat-template /nowhere.jinja 2>&1",
                    "r");

    cr_assert_not_null(f);
    cr_expect_gt(fread(out, 1, sizeof out - 1, f), 0);
    cr_expect_neq(pclose(f), 0, "%s", out);
    cr_expect_not_null(strstr(out, "/nowhere.jinja"), "%s", out);
}
