/* A server on a UNIX socket: who may connect, what becomes of the file, and clients by unix:PATH.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buffer.h"
#include "runtime/client/sse_client.h"
#include "runtime/http/unix_socket.h"
#include "tests/runtime/fake_server.h"
#include "tests/support/temp.h"

#define MODEL KT_SOURCE_DIR "/datasets/models/tiny-moe"

static char folder[256], path[300];

static void make_folder(void) {
    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/kt.sock", folder);
}

static void remove_folder(void) {
    kt_temp_remove(folder);
}

TestSuite(unix_socket, .init = make_folder, .fini = remove_folder, .timeout = 60);

/* The status of GET /v1/models with these header lines. */
static int ask(const char *header) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char text[300];
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    kt_reply r;
    int status;

    memcpy(a.sun_path, path, strlen(path));
    cr_assert_eq(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    snprintf(text, sizeof text, "GET /v1/models HTTP/1.1\r\nConnection: close\r\n%s\r\n", header);
    cr_assert(kt_send_all(fd, text, strlen(text)));
    r = kt_read_reply(fd, NULL, NULL, false);
    close(fd);
    status = r.status;
    kt_reply_free(&r);
    return status;
}

static void serve_on(const char *file) {
    const kt_http_options options = {.socket_path = file};
    fake_start(&options, 4);
}

Test(unix_socket, answers_its_owner_as_loopback_and_is_removed) {
    struct stat info;

    umask(0); /* the file is private all the same */
    serve_on(path);
    cr_assert_eq(lstat(path, &info), 0);
    cr_expect(S_ISSOCK(info.st_mode));
    cr_expect_eq(info.st_mode & 0777, 0600, "mode %o", info.st_mode & 0777u);
    cr_expect_eq(fake.port, 0);
    cr_expect_eq(ask("Host: localhost\r\n"), 200);
    cr_expect_eq(ask("Host: attack.example\r\n"), 403);
    cr_expect_eq(ask("Host: localhost\r\nOrigin: https://attack.example\r\n"), 403);
    fake_stop();
    cr_expect_neq(access(path, F_OK), 0, "the file stayed");
}

Test(unix_socket, a_stale_socket_is_replaced_and_one_in_use_is_not) {
    kt_unix_socket first, second;
    kt_err err = {0};
    int fd, other;

    cr_assert_eq(kt_unix_socket_listen(path, &first, &fd, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_unix_socket_listen(path, &second, &other, &err), KT_E_IO);
    cr_expect(strstr(err.message, path) && strstr(err.message, "in use"), "%s", err.message);
    cr_expect_eq(other, -1);
    kt_unix_socket_remove(&second);
    cr_expect_eq(access(path, F_OK), 0);
    close(fd); /* as kill -9 leaves it */
    usleep(20000); /* times of files advance by ticks of a few milliseconds */
    cr_assert_eq(kt_unix_socket_listen(path, &second, &other, &err), KT_OK, "%s", err.message);
    kt_unix_socket_remove(&first); /* not its file any more */
    cr_expect_eq(access(path, F_OK), 0);
    kt_unix_socket_remove(&second);
    cr_expect_neq(access(path, F_OK), 0);
    close(other);
}

Test(unix_socket, what_is_no_socket_stays_and_is_told) {
    char name[200];
    kt_unix_socket s;
    kt_err err = {0};
    int fd;

    cr_assert_eq(kt_file_write(path, "mine", 4, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_unix_socket_listen(path, &s, &fd, &err), KT_E_IO);
    cr_expect(strstr(err.message, path) && strstr(err.message, "no socket"), "%s", err.message);
    cr_expect_eq(access(path, F_OK), 0);
    strcat(path, "/below");
    cr_expect_eq(kt_unix_socket_listen(path, &s, &fd, &err), KT_E_IO);
    memset(name, 'x', sizeof name);
    memcpy(name, "/nowhere/", 9); /* where nothing can be left */
    name[KT_UNIX_PATH_BYTES] = '\0';
    cr_expect_eq(kt_unix_socket_listen(name, &s, &fd, &err), KT_E_INVALID);
    cr_expect(strstr(err.message, "108 bytes, expected 1 to 107"), "%s", err.message);
    cr_expect_eq(kt_unix_socket_listen("", &s, &fd, &err), KT_E_INVALID);
}

Test(unix_socket, targets_are_taken_apart) {
    char name[200] = "unix:";
    kt_target t;
    kt_err err = {0};
    size_t size;
    char *request;

    cr_assert_eq(kt_target_parse("unix:/run/kt.sock", &t, &err), KT_OK, "%s", err.message);
    cr_expect_str_eq(t.name, "unix:/run/kt.sock");
    cr_expect(t.n_addresses == 1 && t.address[0].ss_family == AF_UNIX);
    request = kt_sse_write_request(&t, "/v1/completions", NULL, "{}", 2, &size);
    cr_expect_not_null(strstr(request, "Host: localhost\r\n"));
    free(request);
    cr_expect_eq(kt_target_parse("unix:", &t, &err), KT_E_INVALID);
    memset(name + 5, 'x', 120);
    cr_expect_eq(kt_target_parse(name, &t, &err), KT_E_INVALID);
    cr_expect(strstr(err.message, "120 bytes, expected 1 to 107"), "%s", err.message);
}

/* What a command prints, which must contain `words`. */
static void expect_output(const char *command, const char *words) {
    char text[20000];
    FILE *f = popen(command, "r");
    size_t n;

    cr_assert_not_null(f);
    n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    pclose(f);
    cr_expect(strstr(text, words), "%s: no '%s' in: %s", command, words, text);
}

/* The commands on both sides. */
Test(unix_socket, commands_serve_chat_and_bench) {
    const char *kt = KT_BUILD_DIR "/kt";
    char command[1000], line[600] = "";
    int ends[2], state;
    pid_t pid;
    FILE *out;

    cr_assert_eq(pipe(ends), 0);
    pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        execl(kt, "kt", "serve", MODEL, "--table", "", "--socket", path, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    out = fdopen(ends[0], "r");
    while (fgets(line, sizeof line, out) && strncmp(line, "listening on ", 13) != 0) {
    }
    cr_assert(strncmp(line, "listening on unix:", 18) == 0, "%s", line);
    snprintf(command, sizeof command, "%s chat unix:%s -p hello -n 4 --temperature 0 2>&1", kt,
             path);
    expect_output(command, "Good day to thee");
    snprintf(command, sizeof command,
             "%s bench serve unix:%s -n 3 -c 2 --input-len 8 --output-len 4 --json 2>&1", kt, path);
    expect_output(command, "\"completed\":3");
    kill(pid, SIGINT);
    cr_assert_eq(waitpid(pid, &state, 0), pid);
    fclose(out);
    cr_expect(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    cr_expect_neq(access(path, F_OK), 0, "the file stayed");
    snprintf(command, sizeof command, "%s serve %s --socket %s --port 1 2>&1", kt, MODEL, path);
    expect_output(command, "either --socket or --host and --port");
    snprintf(command, sizeof command, "%s chat unix:%s -p hello 2>&1", kt, path);
    expect_output(command, "No such file");
}
