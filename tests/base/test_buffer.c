/* Buffers, mappings and whole files. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buffer.h"
#include "tests/support/temp.h"

Test(buffer, every_page_kind_is_zeroed_aligned_and_writable) {
    for (int want = KT_PAGES_SMALL; want <= KT_PAGES_HUGETLB; want++)
        for (int node = -1; node < 2;
             node++) { /* node 1 may not exist: a preference all the same */
            size_t bytes = (5u << 20) + 123;
            kt_buffer b;
            kt_err err = {0};
            unsigned char *p;
            cr_assert_eq(kt_buffer_create(bytes, (kt_pages)want, node, &b, &err), KT_OK, "%s",
                         err.message);
            cr_assert_leq((int)b.pages, want);
            cr_assert_eq(b.bytes, bytes);
            cr_assert_eq((uintptr_t)b.data % (b.pages == KT_PAGES_SMALL ? 4096 : 2 << 20), 0);
            p = b.data;
            for (size_t i = 0; i < bytes; i++) cr_assert_eq(p[i], 0);
            memset(p, 1, bytes);
            kt_buffer_destroy(&b);
            cr_assert_null(b.data);
            kt_buffer_destroy(&b);
        }
}

/* Pages of this process in memory. */
static long resident(void) {
    FILE *f = fopen("/proc/self/statm", "re");
    long size = 0, pages = 0;

    cr_assert(f && fscanf(f, "%ld %ld", &size, &pages) == 2);
    fclose(f);
    return pages;
}

Test(buffer, reserved_memory_is_taken_when_it_is_touched) {
    const size_t bytes = (size_t)256 << 20;
    const long before = resident();
    kt_buffer b;
    kt_err err = {0};
    unsigned char *p;

    cr_assert_eq(kt_buffer_reserve(bytes, KT_PAGES_ADVISED, -1, &b, &err), KT_OK, "%s",
                 err.message);
    cr_expect_lt(resident() - before, 1 << 12, "less than 16 MiB");
    p = b.data;
    for (size_t i = 0; i < bytes; i += (size_t)32 << 20) cr_expect_eq(p[i + 77]++, 0);
    cr_expect_lt(resident() - before, 1 << 14);
    kt_buffer_destroy(&b);
    cr_expect_eq(kt_buffer_reserve(SIZE_MAX / 4, KT_PAGES_ADVISED, -1, &b, &err), KT_E_NOMEM);
}

Test(buffer, reserved_memory_is_given_in_parts) {
    const size_t part = 2u << 20, bytes = 3 * part + 5;
    kt_err err = {0};
    kt_buffer b;

    cr_assert_eq(kt_buffer_reserve(bytes, KT_PAGES_ADVISED, -1, &b, &err), KT_OK);
    for (size_t at = 4 * part; at > 0; at -= part)
        cr_assert_eq(kt_buffer_populate(&b, at - part, part, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_buffer_populate(&b, 100 * part, part, &err), KT_OK); /* nothing is there */
    for (size_t i = 0; i < bytes; i += 4095) cr_assert_eq(((unsigned char *)b.data)[i], 0);
    kt_buffer_destroy(&b);
}

Test(buffer, refuses_what_would_swap) {
    uint64_t available = kt_memory_available_bytes();
    kt_buffer b;
    kt_err err;

    cr_assert_gt(available, 1 << 20);
    cr_assert_eq(kt_buffer_create(available + (64u << 20), KT_PAGES_ADVISED, -1, &b, &err),
                 KT_E_NOMEM);
    cr_assert(strstr(err.message, "available"), "%s", err.message);
    cr_assert_null(b.data);
    cr_assert_eq(kt_buffer_create(SIZE_MAX, KT_PAGES_SMALL, -1, &b, &err), KT_E_NOMEM);
    cr_assert_eq(kt_buffer_create(0, KT_PAGES_SMALL, -1, &b, &err), KT_OK);
    kt_buffer_destroy(&b);
}

static char folder[64];

static const char *in_folder(const char *name) {
    static char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void make_folder(void) {
    kt_temp_make(folder, sizeof folder);
}

static void remove_folder(void) {
    kt_temp_remove(folder);
}

static int count_files(void) {
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

TestSuite(file, .init = make_folder, .fini = remove_folder);

Test(file, written_files_read_back_and_are_replaced_whole) {
    char *text;
    size_t size;
    kt_err err = {0};

    cr_assert_eq(kt_file_write(in_folder("a"), "first", 5, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_file_write(in_folder("a"), "2\0d", 3, &err), KT_OK);
    cr_assert_eq(kt_file_read(in_folder("a"), 3, &text, &size, &err), KT_OK, "%s", err.message);
    cr_assert_eq(size, 3);
    cr_assert_eq(memcmp(text, "2\0d", 4), 0, "content and final NUL");
    free(text);
    cr_assert_eq(kt_file_write(in_folder("b"), NULL, 0, &err), KT_OK);
    cr_assert_eq(kt_file_read(in_folder("b"), 0, &text, &size, &err), KT_OK);
    cr_assert_eq(size, 0);
    free(text);
    cr_assert_eq(count_files(), 2, "temporary files are left");
}

Test(file, failures_name_the_file_and_leave_nothing) {
    char *text = folder;
    size_t size;
    kt_err err;

    cr_assert_eq(kt_file_read(in_folder("no"), 9, &text, &size, &err), KT_E_NOT_FOUND);
    cr_assert_null(text);
    cr_assert(strstr(err.message, "/no: cannot open"), "%s", err.message);
    cr_assert_eq(kt_file_read(folder, 9, &text, &size, &err), KT_E_IO);
    kt_file_write(in_folder("big"), "0123456789", 10, NULL);
    cr_assert_eq(kt_file_read(in_folder("big"), 9, &text, &size, &err), KT_E_FORMAT);
    cr_assert(strstr(err.message, "10 bytes, limit 9"), "%s", err.message);
    cr_assert_eq(kt_file_read("/proc/self/status", 10, &text, &size, &err), KT_E_FORMAT);
    cr_assert_eq(kt_file_read("/proc/self/status", 100000, &text, &size, &err), KT_OK);
    cr_assert_gt(size, 100, "a file that claims to be empty");
    free(text);
    cr_assert_eq(kt_file_write(in_folder("no/such"), "x", 1, &err), KT_E_NOT_FOUND);
    mkdir(in_folder("dir"), 0777);
    cr_assert_eq(kt_file_write(in_folder("dir"), "x", 1, &err), KT_E_IO);
    rmdir(in_folder("dir"));
    cr_assert_eq(count_files(), 1, "a failed write left its temporary file");
}

/* Replacing them would destroy them: /dev/null as a regular file breaks a whole system. */
Test(file, pipes_devices_and_links_stay_what_they_are) {
    char got[8] = "";
    struct stat info;
    kt_err err = {0};
    int fd;

    cr_assert_eq(mkfifo(in_folder("pipe"), 0600), 0);
    fd = open(in_folder("pipe"), O_RDWR | O_NONBLOCK);
    cr_assert_geq(fd, 0);
    cr_assert_eq(kt_file_write(in_folder("pipe"), "abc", 3, &err), KT_OK, "%s", err.message);
    cr_expect_eq(read(fd, got, sizeof got), 3);
    cr_expect_str_eq(got, "abc");
    close(fd);
    cr_assert_eq(lstat(in_folder("pipe"), &info), 0);
    cr_expect(S_ISFIFO(info.st_mode));
    cr_expect_eq(kt_file_write("/dev/full", "x", 1, &err), KT_E_IO);
    cr_expect(strstr(err.message, "/dev/full: cannot write"), "%s", err.message);
    cr_assert_eq(lstat("/dev/full", &info), 0);
    cr_expect(S_ISCHR(info.st_mode), "a regular file lies at /dev/full now");
    cr_assert_eq(symlink("target", in_folder("link")), 0);
    kt_file_write(in_folder("target"), "old", 3, NULL);
    cr_assert_eq(kt_file_write(in_folder("link"), "newer", 5, &err), KT_OK, "%s", err.message);
    cr_assert_eq(lstat(in_folder("link"), &info), 0);
    cr_expect(S_ISLNK(info.st_mode));
    cr_assert_eq(stat(in_folder("target"), &info), 0);
    cr_expect_eq(info.st_size, 5);
}

Test(file, mapping_shows_the_file_also_after_release) {
    kt_mapping m;
    kt_err err = {0};
    char *data = malloc(20000);

    for (int i = 0; i < 20000; i++) data[i] = (char)(i * 7);
    kt_file_write(in_folder("m"), data, 20000, NULL);
    cr_assert_eq(kt_mapping_open(in_folder("m"), &m, &err), KT_OK, "%s", err.message);
    cr_assert_eq(m.bytes, 20000);
    cr_assert_eq(memcmp(m.data, data, 20000), 0);
    kt_mapping_release(&m, 100, 9000);
    kt_mapping_release(&m, 19000, SIZE_MAX);
    kt_mapping_release(&m, SIZE_MAX, 1);
    cr_assert_eq(memcmp(m.data, data, 20000), 0);
    kt_mapping_close(&m);
    kt_mapping_close(&m);
    free(data);
    kt_file_write(in_folder("empty"), "", 0, NULL);
    cr_assert_eq(kt_mapping_open(in_folder("empty"), &m, &err), KT_OK);
    cr_assert_eq(m.bytes, 0);
    kt_mapping_close(&m);
    cr_assert_eq(kt_mapping_open(in_folder("no"), &m, &err), KT_E_NOT_FOUND);
    cr_assert_eq(kt_mapping_open(folder, &m, &err), KT_E_IO);
}
