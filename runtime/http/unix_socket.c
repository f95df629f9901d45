/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/http/unix_socket.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/err.h"

enum { BACKLOG = 128 };

static kt_status fail(kt_err *err, const char *path, const char *verb) {
    return kt_fail(err, KT_E_IO, "socket %s: cannot %s: %s", path, verb, strerror(errno));
}

/* A file of that name that only a server which is gone has left. */
static kt_status remove_stale(const struct sockaddr_un *a, kt_err *err) {
    struct stat info;
    int fd, error;

    if (lstat(a->sun_path, &info) != 0)
        return errno == ENOENT ? KT_OK : fail(err, a->sun_path, "examine");
    if (!S_ISSOCK(info.st_mode))
        return kt_fail(err, KT_E_IO, "%s is there and is no socket, expected a free name",
                       a->sun_path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return fail(err, a->sun_path, "open");
    error = connect(fd, (const struct sockaddr *)a, sizeof *a) == 0 ? 0 : errno;
    close(fd);
    if (error == 0 || error == EAGAIN) /* its queue may be full */
        return kt_fail(err, KT_E_IO, "socket %s is in use by another program", a->sun_path);
    errno = error;
    if (error != ECONNREFUSED && error != ENOENT) return fail(err, a->sun_path, "try");
    if (unlink(a->sun_path) != 0 && errno != ENOENT) return fail(err, a->sun_path, "replace");
    return KT_OK;
}

/* The mode of the open socket is that of its file, which so never is wider for a moment. */
static kt_status bind_private(int fd, const struct sockaddr_un *a, kt_unix_socket *out,
                              kt_err *err) {
    struct stat info;

    if (fchmod(fd, 0600) != 0) return fail(err, a->sun_path, "protect");
    if (bind(fd, (const struct sockaddr *)a, sizeof *a) != 0) return fail(err, a->sun_path, "make");
    if (lstat(a->sun_path, &info) == 0) {
        memcpy(out->path, a->sun_path, sizeof out->path);
        out->device = info.st_dev;
        out->inode = info.st_ino;
        out->made_s = info.st_mtim.tv_sec;
        out->made_ns = info.st_mtim.tv_nsec;
    }
    if (listen(fd, BACKLOG) == 0) return KT_OK;
    fail(err, a->sun_path, "listen");
    kt_unix_socket_remove(out);
    return KT_E_IO;
}

kt_status kt_unix_socket_listen(const char *path, kt_unix_socket *out, int *fd, kt_err *err) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const size_t n = strlen(path);
    kt_status st;

    _Static_assert(sizeof a.sun_path == KT_UNIX_PATH_BYTES, "the limit of the system");
    *out = (kt_unix_socket){.path = ""};
    *fd = -1;
    if (n == 0 || n >= sizeof a.sun_path)
        return kt_fail(err, KT_E_INVALID, "socket '%s': a path of %zu bytes, expected 1 to %zu",
                       path, n, sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, n);
    KT_TRY(remove_stale(&a, err));
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0) return fail(err, path, "open");
    st = bind_private(*fd, &a, out, err);
    if (st == KT_OK) return KT_OK;
    close(*fd);
    *fd = -1;
    return st;
}

/* A file system may give a new file the inode of one that is gone: the time tells them apart. */
static bool is_file_of(const kt_unix_socket *s, const struct stat *info) {
    return info->st_dev == s->device && info->st_ino == s->inode &&
           info->st_mtim.tv_sec == s->made_s && info->st_mtim.tv_nsec == s->made_ns;
}

void kt_unix_socket_remove(kt_unix_socket *s) {
    struct stat info;

    if (*s->path && lstat(s->path, &info) == 0 && is_file_of(s, &info)) unlink(s->path);
    s->path[0] = '\0';
}
