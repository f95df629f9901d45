/* Whole files: mapped, read, written atomically. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/err.h"

static kt_status fail_errno(kt_err *err, const char *path, const char *verb) {
    kt_status status = errno == ENOENT ? KT_E_NOT_FOUND : errno == ENOMEM ? KT_E_NOMEM : KT_E_IO;
    return kt_fail(err, status, "%s: cannot %s: %s", path, verb, strerror(errno));
}

kt_status kt_mapping_open(const char *path, kt_mapping *out, kt_err *err) {
    struct stat info;
    kt_status st = KT_OK;
    void *data;
    int fd;

    memset(out, 0, sizeof *out);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail_errno(err, path, "open");
    if (fstat(fd, &info) != 0) {
        st = fail_errno(err, path, "examine");
    } else if (!S_ISREG(info.st_mode)) {
        st = kt_fail(err, KT_E_IO, "%s: not a regular file", path);
    } else if (info.st_size > 0) {
        data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            st = fail_errno(err, path, "map");
        } else {
            out->data = data;
            out->bytes = (size_t)info.st_size;
        }
    }
    close(fd);
    return st;
}

/* The pages leave our resident set; the page cache keeps them as long as memory is plenty. Partial
 * pages at the ends go too: should someone still read them, they come back from the file. */
void kt_mapping_release(const kt_mapping *mapping, size_t offset, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin;

    if (!mapping->data || offset >= mapping->bytes) return;
    if (bytes > mapping->bytes - offset) bytes = mapping->bytes - offset;
    begin = ((uintptr_t)mapping->data + offset) & ~(uintptr_t)(page - 1);
    madvise((void *)begin, (uintptr_t)mapping->data + offset + bytes - begin, MADV_DONTNEED);
}

/* Kernels before 5.14 refuse; then the first reader faults. */
void kt_mapping_populate(const kt_mapping *mapping, size_t offset, size_t bytes) {
    enum { POPULATE_READ = 22 }; /* the system's headers may lack it */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin, end;

    if (!mapping->data || offset >= mapping->bytes) return;
    if (bytes > mapping->bytes - offset) bytes = mapping->bytes - offset;
    begin = ((uintptr_t)mapping->data + offset) & ~(uintptr_t)(page - 1);
    end = (uintptr_t)mapping->data + offset + bytes;
    madvise((void *)begin, end - begin, POPULATE_READ);
}

/* For all of it: advice about a part would cut the mapping there, and a large page that lies across
 * the cut could not be mapped as one. */
void kt_mapping_prefer_large(const kt_mapping *mapping) {
    if (mapping->data) madvise((void *)(uintptr_t)mapping->data, mapping->bytes, MADV_HUGEPAGE);
}

void kt_mapping_close(kt_mapping *mapping) {
    if (mapping->data) munmap((void *)(uintptr_t)mapping->data, mapping->bytes);
    memset(mapping, 0, sizeof *mapping);
}

/* Read to the end, whatever fstat promised: files of /proc claim to be empty, others grow. */
static kt_status read_all(int fd, const char *path, size_t guess, size_t max_bytes, char **out,
                          size_t *size, kt_err *err) {
    size_t capacity = guess + 1, used = 0;
    char *text = malloc(capacity);

    while (text) {
        ssize_t n = read(fd, text + used, capacity - used);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            free(text);
            return fail_errno(err, path, "read");
        }
        if (n == 0) break;
        used += (size_t)n;
        if (used > max_bytes) {
            free(text);
            return kt_fail(err, KT_E_FORMAT, "%s: larger than the limit of %zu bytes", path,
                           max_bytes);
        }
        if (used == capacity) {
            char *larger = realloc(text, capacity = capacity * 2 + 4096);
            if (!larger) free(text);
            text = larger;
        }
    }
    if (!text) return kt_fail(err, KT_E_NOMEM, "%s: no memory to read it", path);
    text[used] = '\0';
    *out = text;
    *size = used;
    return KT_OK;
}

kt_status kt_file_read(const char *path, size_t max_bytes, char **out, size_t *size, kt_err *err) {
    struct stat info;
    kt_status st;
    int fd;

    *out = NULL;
    *size = 0;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail_errno(err, path, "open");
    if (fstat(fd, &info) != 0)
        st = fail_errno(err, path, "examine");
    else if (S_ISDIR(info.st_mode))
        st = kt_fail(err, KT_E_IO, "%s: is a folder, expected a file", path);
    else if ((uint64_t)info.st_size > max_bytes)
        st = kt_fail(err, KT_E_FORMAT, "%s: %lld bytes, limit %zu", path, (long long)info.st_size,
                     max_bytes);
    else
        st = read_all(fd, path, (size_t)info.st_size, max_bytes, out, size, err);
    close(fd);
    return st;
}

static int write_all(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t n = write(fd, data, size < (1 << 30) ? size : 1 << 30);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        data += n;
        size -= (size_t)n;
    }
    return fsync(fd) != 0 && errno != EINVAL ? -1 : 0; /* EINVAL: pipes have no disk */
}

/* Make the rename itself durable. Some file systems refuse fsync of folders; the data is safe. */
static void sync_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + 1 : 0;
    char *folder = n ? strndup(path, n) : strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

/* Pipes and devices (/dev/stdout, /dev/null) are written to: replacing one would destroy it. */
static bool is_special(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

static kt_status write_special(const char *path, const void *data, size_t size, kt_err *err) {
    kt_status st = KT_OK;
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd < 0) return fail_errno(err, path, "open");
    if (write_all(fd, data, size) != 0) st = fail_errno(err, path, "write");
    if (close(fd) != 0 && st == KT_OK) st = fail_errno(err, path, "write");
    return st;
}

static kt_status replace_file(const char *path, const void *data, size_t size, kt_err *err) {
    size_t room = strlen(path) + 64;
    char *temporary = malloc(room);
    kt_status st = KT_OK;
    int fd;

    if (!temporary) return kt_fail(err, KT_E_NOMEM, "%s: no memory to write it", path);
    snprintf(temporary, room, "%s.%ld-%llx.tmp", path, (long)getpid(),
             (unsigned long long)kt_clock_ns() ^ (unsigned long long)(uintptr_t)temporary);
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        st = fail_errno(err, path, "create");
        free(temporary);
        return st;
    }
    if (write_all(fd, data, size) != 0) st = fail_errno(err, path, "write");
    if (close(fd) != 0 && st == KT_OK) st = fail_errno(err, path, "write");
    if (st == KT_OK && rename(temporary, path) != 0) st = fail_errno(err, path, "replace");
    if (st != KT_OK)
        unlink(temporary);
    else
        sync_folder(path);
    free(temporary);
    return st;
}

kt_status kt_file_write(const char *path, const void *data, size_t size, kt_err *err) {
    char *target; /* of a link: the link itself stays */
    kt_status st;

    if (is_special(path)) return write_special(path, data, size, err);
    target = realpath(path, NULL);
    if (!target && errno != ENOENT) return fail_errno(err, path, "resolve");
    st = replace_file(target ? target : path, data, size, err);
    free(target);
    return st;
}
