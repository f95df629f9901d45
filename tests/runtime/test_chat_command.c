/* `kt chat URL` against a server whose model says a fixed text. SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/runtime/fake_chat.h"
#include "tests/support/temp.h"

/* Run `kt chat` with these words after the address, and this input; its output (both streams), and
 * its status. */
static char *run_chat(const char *words, const char *input, int *status) {
    char command[600], *out = calloc(1, 65536);
    size_t n = 0, got;
    FILE *p;

    snprintf(command, sizeof command,
             "printf '%s' | " KT_BUILD_DIR "/kt chat http://127.0.0.1:%d %s 2>&1", input, fake.port,
             words);
    p = popen(command, "r");
    cr_assert_not_null(p);
    while ((got = fread(out + n, 1, 65535 - n, p)) > 0) n += got;
    *status = pclose(p);
    return out;
}

static void expect_chat(const char *words, const char *input, const char *wanted, int code) {
    int status;
    char *out = run_chat(words, input, &status);

    cr_expect_str_eq(out, wanted, "%s < %s: '%s', expected '%s'", words, input, out, wanted);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == code, "status %#x", (unsigned)status);
    free(out);
}

Test(chat_command, talks_and_keeps_the_conversation) {
    char folder[256], path[300], input[500], text[2000] = "";
    FILE *f;

    fake_chat_init("To be", "none", "none");
    fake_start(NULL, 0);
    expect_chat("", "Hi\\n", "To be\n", 0);
    expect_chat("--prompt Hi", "", "To be\n", 0);
    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/saved.json", folder);
    snprintf(input, sizeof input,
             "Hi\\nline one\\\\\\nline two\\n/undo\\n/retry\\n/save %s\\n/exit\\nnever\\n", path);
    expect_chat("--system Briefly.", input, "To be\nTo be\nTo be\n", 0);
    f = fopen(path, "r");
    cr_assert_not_null(f);
    cr_expect_gt(fread(text, 1, sizeof text - 1, f), 0);
    fclose(f);
    cr_expect_not_null(strstr(text, "\"role\": \"system\",\n      \"content\": \"Briefly.\""), "%s",
                       text);
    cr_expect_not_null(strstr(text, "\"role\": \"assistant\",\n      \"content\": \"To be\""), "%s",
                       text);
    cr_expect_null(strstr(text, "line one"), "%s", text);
    kt_temp_remove(folder);
    fake_chat_stop();
}

Test(chat_command, says_what_is_wrong) {
    int status;
    char *out;

    fake_chat_init("To be", "none", "none");
    fake_start(NULL, 0);
    out = run_chat("", "/nonsense\\n/temperature 9\\n/max 1\\nHi\\n", &status);
    cr_expect_not_null(strstr(out, "'/nonsense' is no command"), "%s", out);
    cr_expect_not_null(strstr(out, "no temperature from 0 to 2"), "%s", out);
    cr_expect_not_null(strstr(out, "To\n"), "%s", out);
    free(out);
    out = run_chat("--temperature 3", "Hi\\n", &status);
    cr_expect_eq(WEXITSTATUS(status), 2, "%s", out);
    free(out);
    fake_chat_stop();
}

Test(chat_command, keys_and_refusals_are_told) {
    const kt_http_options options = {.api_key = "secret"};
    int status;
    char *out;

    fake_chat_init("To be", "none", "none");
    fake_start(&options, 0);
    out = run_chat("", "Hi\\n", &status);
    cr_expect_not_null(strstr(out, "a valid API key is required"), "%s", out);
    cr_expect_not_null(strstr(out, "status 401"), "%s", out);
    cr_expect_eq(WEXITSTATUS(status), 1);
    free(out);
    expect_chat("--api-key secret", "Hi\\n", "To be\n", 0);
    fake_chat_stop();
}

static void expect_refusal(const char *url, const char *says) {
    char command[300], out[2000] = "";
    FILE *p;

    snprintf(command, sizeof command, KT_BUILD_DIR "/kt chat '%s' --prompt Hi 2>&1", url);
    p = popen(command, "r");
    cr_expect_gt(fread(out, 1, sizeof out - 1, p), 0);
    cr_expect_eq(WEXITSTATUS(pclose(p)), 1, "%s", url);
    cr_expect_not_null(strstr(out, says), "%s: %s", url, out);
}

Test(chat_command, addresses_are_taken_apart) {
    char url[100];

    fake_chat_init("To be", "none", "none");
    fake_start(NULL, 0);
    snprintf(url, sizeof url, "http://localhost:%d/nowhere/", fake.port);
    expect_refusal(url, "unknown URL: POST /nowhere/chat/completions");
    expect_refusal("https://localhost", "expected http://HOST:PORT");
    expect_refusal("http://:80", "has no host");
    expect_refusal("http://[::1", "has no host");
    expect_refusal("http://127.0.0.1:1", "Connection refused");
    fake_chat_stop();
}

/* Ctrl-C ends the answer, whose rows are free at once, and not the chat. */
Test(chat_command, ctrl_c_stops_an_answer_only) {
    int in[2], out[2], state;
    char line[200] = "", url[60];
    size_t n = 0;
    pid_t pid;

    fake_chat_init("To be, or not to be", "none", "none");
    fake_start(NULL, 0);
    atomic_store(&fake.engine.decode_us, 300 * 1000);
    cr_assert(pipe(in) == 0 && pipe(out) == 0);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", fake.port);
    pid = fork();
    if (pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        close(in[1]);
        execl(KT_BUILD_DIR "/kt", "kt", "chat", url, (char *)NULL);
        _exit(127);
    }
    cr_assert_eq(write(in[1], "Hi\n", 3), 3);
    while (!strstr(line, "To")) {
        ssize_t got = read(out[0], line + n, sizeof line - 1 - n);
        cr_assert_gt(got, 0);
        n += (size_t)got;
    }
    kill(pid, SIGINT);
    for (int i = 0; i < 3000 && atomic_load(&fake.app->n_cancelled) == 0; i++) fake_sleep(1000);
    cr_expect_eq(atomic_load(&fake.app->n_cancelled), 1);
    atomic_store(&fake.engine.decode_us, 0);
    cr_assert_eq(write(in[1], "Again\n", 6), 6);
    close(in[1]);
    cr_assert_eq(waitpid(pid, &state, 0), pid);
    cr_expect(WIFEXITED(state) && WEXITSTATUS(state) == 0, "state %#x", (unsigned)state);
    close(out[1]);
    while (n < sizeof line - 1) {
        ssize_t got = read(out[0], line + n, sizeof line - 1 - n);
        if (got <= 0) break;
        n += (size_t)got;
    }
    cr_expect_not_null(strstr(line, "\nTo be, or not to be\n"), "%s", line);
    fake_chat_stop();
}
