/* The floor of everything with every allocation failing once.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/buffer.h"
#include "base/guard_page.h"
#include "base/log_writer.h"
#include "base/pool.h"
#include "tests/support/nomem.h"
#include "tests/support/temp.h"

static kt_status make_pool(void *out, const void *with, kt_err *err) {
    return kt_pool_create(with, out, err);
}
static void unmake_pool(void *out) {
    kt_pool_destroy(*(kt_pool **)out);
}

Test(base_nomem, a_pool_without_memory_or_threads_is_none) {
    static const kt_pool_options free_ones = {.n_threads = 5, .no_pin = 1};
    static const int cpus[] = {0, 0, 0};
    static const kt_pool_options bound = {.n_threads = 3, .cpus = cpus};
    kt_nomem_case c = {.function = "kt_pool_create",
                       .make = make_pool,
                       .unmake = unmake_pool,
                       .with = &free_ones,
                       .out_bytes = sizeof(kt_pool *),
                       .says = "thread"};

    cr_assert_eq(kt_nomem_check(&c), 6, "two blocks and four threads were expected");
    c.with = &bound;
    kt_nomem_check(&c);
}

static kt_status make_log_writer(void *out, const void *with, kt_err *err) {
    (void)with;
    return kt_log_writer_create(2, out, err);
}
static void unmake_log_writer(void *out) {
    kt_log_writer_destroy(*(kt_log_writer **)out);
}

Test(base_nomem, a_writer_of_the_log_is_whole_or_none) {
    kt_nomem_case c = {.function = "kt_log_writer_create",
                       .make = make_log_writer,
                       .unmake = unmake_log_writer,
                       .out_bytes = sizeof(kt_log_writer *),
                       .says = "log"};

    cr_assert_eq(kt_nomem_check(&c), 2, "a block and a thread were expected");
}

static kt_status make_buffer(void *out, const void *with, kt_err *err) {
    return kt_buffer_create((size_t)5 << 20, *(const kt_pages *)with, 0, out, err);
}
static void unmake_buffer(void *out) {
    kt_buffer_destroy(out);
}

Test(base_nomem, a_buffer_that_cannot_be_mapped_says_how_large_it_was) {
    static const kt_pages kinds[] = {KT_PAGES_SMALL, KT_PAGES_ADVISED, KT_PAGES_HUGETLB};

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        kt_nomem_case c = {.function = "kt_buffer_create",
                           .make = make_buffer,
                           .unmake = unmake_buffer,
                           .with = &kinds[i],
                           .out_bytes = sizeof(kt_buffer),
                           .says = "buffer of 5 MiB: Cannot allocate memory",
                           .n_optional = kinds[i] == KT_PAGES_HUGETLB}; /* others do as well */
        kt_nomem_check(&c);
    }
}

static kt_status make_guard(void *out, const void *with, kt_err *err) {
    return kt_guard_create(*(const size_t *)with, 64, 0xa5, out, err);
}
static void unmake_guard(void *out) {
    kt_guard_destroy(out);
}

Test(base_nomem, a_guarded_block_that_cannot_be_mapped_is_none) {
    static const size_t bytes = 10000;
    const kt_nomem_case c = {.function = "kt_guard_create",
                             .make = make_guard,
                             .unmake = unmake_guard,
                             .with = &bytes,
                             .out_bytes = sizeof(kt_guard),
                             .says = "guarded block: no memory for 10000 bytes"};
    kt_nomem_check(&c);
}

static kt_status make_mapping(void *out, const void *with, kt_err *err) {
    return kt_mapping_open(with, out, err);
}
static void unmake_mapping(void *out) {
    kt_mapping_close(out);
}

typedef struct whole_file {
    char *text;
    size_t size;
} whole_file;

static kt_status make_text(void *out, const void *with, kt_err *err) {
    whole_file *f = out;
    return kt_file_read(with, 1 << 20, &f->text, &f->size, err);
}
static void unmake_text(void *out) {
    free(((whole_file *)out)->text);
}

static kt_status make_file(void *out, const void *with, kt_err *err) {
    (void)out;
    return kt_file_write(with, "another text", 12, err);
}

Test(base_nomem, files_without_memory_are_closed_and_named) {
    char folder[256], path[300], content[5000];
    kt_nomem_case c = {.with = path, .says = "some.txt"};

    kt_temp_make(folder, sizeof folder);
    memset(content, 'x', sizeof content);
    kt_temp_write(folder, "some.txt", content, sizeof content);
    snprintf(path, sizeof path, "%s/some.txt", folder);

    c.function = "kt_mapping_open", c.make = make_mapping, c.unmake = unmake_mapping;
    c.out_bytes = sizeof(kt_mapping);
    kt_nomem_check(&c);

    c.function = "kt_file_read", c.make = make_text, c.unmake = unmake_text;
    c.out_bytes = sizeof(whole_file);
    kt_nomem_check(&c);

    c.with = "/proc/self/status"; /* claims to be empty, so that the text grows while it is read */
    c.says = "/proc/self/status: no memory";
    kt_nomem_check(&c);
    kt_temp_remove(folder);
}

/* Neither a half of the file nor a temporary one may remain; a link that cannot be followed must
 * not be replaced by a file. */
Test(base_nomem, a_file_is_written_whole_or_not_at_all) {
    char folder[256], path[300], link[300], *text = NULL;
    kt_nomem_case c = {.function = "kt_file_write", .make = make_file, .says = ".txt: "};
    struct stat info;
    size_t size;

    kt_temp_make(folder, sizeof folder);
    kt_temp_write(folder, "real.txt", "first text", 10);
    snprintf(path, sizeof path, "%s/real.txt", folder);
    snprintf(link, sizeof link, "%s/link.txt", folder);
    cr_assert_eq(symlink("real.txt", link), 0);
    c.with = link;
    c.n_optional = 1; /* the folder's fsync */
    kt_nomem_check(&c);
    cr_assert(lstat(link, &info) == 0 && S_ISLNK(info.st_mode), "the link was replaced");
    cr_assert_eq(kt_file_read(path, 100, &text, &size, NULL), KT_OK);
    cr_assert_str_eq(text, "another text");
    free(text);
    kt_temp_remove(folder);
}

Test(base_nomem, an_arena_lives_on_after_a_failure) {
    kt_arena arena = {.block_bytes = 65536};
    const long before = kt_nomem_held();

    for (int i = 0; i < 20; i++) {
        kt_nomem_after(0);
        cr_assert_null(kt_arena_alloc(&arena, 100000, 64));
        cr_assert(kt_nomem_failed());
        cr_assert_not_null(kt_arena_alloc(&arena, 100000, 64));
    }
    kt_nomem_after(0);
    cr_assert_null(kt_arena_strndup(&arena, "a text", 1 << 20));
    cr_assert(kt_nomem_failed());
    kt_arena_reset(&arena);
    cr_assert_not_null(kt_arena_alloc(&arena, 1000, 64));
    kt_arena_deinit(&arena);
    cr_assert_eq(kt_nomem_held(), before);
}
