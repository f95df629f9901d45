/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/support/served.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_ARGUMENTS = 32 };

static void become_server(const char *model, const char *const *more, int out) {
    const char *argv[MOST_ARGUMENTS] = {"kt", "serve", model, "--port", "0", "--table", ""};
    int n = 7;

    for (; more && *more && n < MOST_ARGUMENTS - 1; more++) argv[n++] = *more;
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    execv(KT_BUILD_DIR "/kt", (char *const *)(void *)argv);
    _exit(127);
}

kt_served kt_served_start(const char *model, const char *const *more) {
    static const char words[] = "listening on http://127.0.0.1:";
    char line[1000], all[4000] = "";
    const char *at;
    int ends[2];
    kt_served s = {0};

    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    s.pid = fork();
    cr_assert(s.pid >= 0);
    if (s.pid == 0) become_server(model, more, ends[1]);
    close(ends[1]);
    s.out = fdopen(ends[0], "r");
    cr_assert_not_null(s.out);
    while (fgets(line, sizeof line, s.out)) {
        at = strstr(line, words);
        if (at) s.port = atoi(at + sizeof words - 1);
        if (at) return s;
        strncat(all, line, sizeof all - strlen(all) - 1);
    }
    cr_assert_fail("kt serve did not start: %s", all);
    return s;
}

int kt_served_stop(kt_served *s) {
    int state = 0;

    kill(s->pid, SIGINT);
    cr_assert_eq(waitpid(s->pid, &state, 0), s->pid);
    fclose(s->out);
    return state;
}

long kt_served_rss(const kt_served *s) {
    char path[64];
    long pages = -1;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/statm", (int)s->pid);
    f = fopen(path, "re");
    if (!f) return -1;
    if (fscanf(f, "%*d %ld", &pages) != 1) pages = -1;
    fclose(f);
    return pages < 0 ? -1 : pages * sysconf(_SC_PAGESIZE);
}

int kt_served_fds(const kt_served *s) {
    char path[64];
    int n = 0;
    DIR *folder;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)s->pid);
    folder = opendir(path);
    if (!folder) return -1;
    for (const struct dirent *e = readdir(folder); e; e = readdir(folder)) n += e->d_name[0] != '.';
    closedir(folder);
    return n;
}
