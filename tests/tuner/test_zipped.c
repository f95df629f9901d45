/* Packed text: what is written comes back, damage is noticed, and journals are filed so.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "tests/support/temp.h"
#include "tuner/report/results_merge.h"
#include "tuner/store/zipped.h"

enum { PATH = 512, LIMIT = 1 << 20 };

static char folder[256], plain[PATH], zipped[PATH];

static void make(void) {
    kt_temp_make(folder, sizeof folder);
    snprintf(plain, sizeof plain, "%s/x.journal.jsonl", folder);
    snprintf(zipped, sizeof zipped, "%s/x.journal.jsonl" KT_ZIPPED_END, folder);
}
static void unmake(void) {
    kt_temp_remove(folder);
}
TestSuite(zipped, .init = make, .fini = unmake);

static void expect_text(const char *path, const char *want, size_t want_bytes) {
    kt_err err = {0};
    char *text;
    size_t size;

    cr_assert_eq(kt_zipped_read(path, LIMIT, &text, &size, &err), KT_OK, "%s", err.message);
    cr_assert_eq(size, want_bytes);
    cr_assert_arr_eq(text, want, want_bytes);
    cr_assert_eq(text[size], '\0');
    free(text);
}

static void expect_error(const char *path, size_t max_bytes, kt_status want, const char *says) {
    kt_err err = {0};
    char *text = (char *)1;
    size_t size;

    cr_assert_eq(kt_zipped_read(path, max_bytes, &text, &size, &err), want, "%s: %s",
                 kt_status_name(want), err.message);
    cr_assert_null(text);
    cr_assert(strstr(err.message, path) && strstr(err.message, says), "%s", err.message);
}

static void write_plain(const char *path, const void *data, size_t size) {
    kt_err err = {0};
    cr_assert_eq(kt_file_write(path, data, size, &err), KT_OK, "%s", err.message);
}

static void write_packed(const char *path, const char *text, size_t size) {
    kt_err err = {0};
    cr_assert_eq(kt_zipped_write(path, text, size, &err), KT_OK, "%s", err.message);
}

static void bytes_of(const char *path, char **bytes, size_t *size) {
    kt_err err = {0};
    cr_assert_eq(kt_file_read(path, LIMIT, bytes, size, &err), KT_OK, "%s", err.message);
}

Test(zipped, texts_of_every_size_come_back) {
    enum { MOST = 200000 };
    char *text = malloc(MOST);

    for (int i = 0; i < MOST; i++)
        text[i] = (char)("0123456789\n\0\x1f\x8b{}\",:e"[(unsigned)i * (unsigned)i % 21]);
    for (size_t size = 0; size <= MOST; size = size < 3 ? size + 1 : 7 * size) {
        write_packed(zipped, text, size);
        expect_text(zipped, text, size);
        expect_text(plain, text, size); /* found by the name without the ending */
        if (size > 1000) {
            char *bytes;
            size_t held;
            bytes_of(zipped, &bytes, &held);
            cr_expect_lt(2 * held, size);
            free(bytes);
        }
    }
    free(text);
}

Test(zipped, others_can_read_it) {
    char line[64] = "", command[PATH + 16];
    FILE *pipe;

    write_packed(zipped, "a line\n", 7);
    snprintf(command, sizeof command, "gzip -dc %s", zipped);
    pipe = popen(command, "r");
    cr_assert(pipe && fgets(line, sizeof line, pipe));
    cr_expect_eq(pclose(pipe), 0);
    cr_expect_str_eq(line, "a line\n");
}

Test(zipped, an_unpacked_file_is_preferred_and_read_as_it_is) {
    char found[PATH];

    write_packed(zipped, "zipped\n", 7);
    cr_assert_eq(kt_zipped_find(plain, found, sizeof found, NULL), KT_OK);
    cr_expect_str_eq(found, zipped);
    write_plain(plain, "plain\n", 6);
    cr_assert_eq(kt_zipped_find(plain, found, sizeof found, NULL), KT_OK);
    cr_expect_str_eq(found, plain);
    expect_text(plain, "plain\n", 6);
    expect_text(zipped, "zipped\n", 7);
    cr_expect_eq(kt_zipped_find(plain, found, strlen(plain) + 2, NULL), KT_E_INVALID);
}

Test(zipped, joined_files_are_one_text) {
    char *first, *second, *both;
    size_t a, b;

    write_packed(zipped, "one\n", 4);
    bytes_of(zipped, &first, &a);
    write_packed(zipped, "two\n", 4);
    bytes_of(zipped, &second, &b);
    both = malloc(a + b);
    memcpy(both, first, a);
    memcpy(both + a, second, b);
    write_plain(zipped, both, a + b);
    expect_text(zipped, "one\ntwo\n", 8);
    free(first);
    free(second);
    free(both);
}

Test(zipped, damage_is_an_error) {
    enum { FLAGS = 3, BODY = 10 }; /* between: time, level and system, which mean nothing here */
    static const char text[] = "{\"t\":\"session\"}\n{\"t\":\"gate\"}\n";
    char *bytes;
    size_t size;

    write_packed(zipped, text, sizeof text - 1);
    bytes_of(zipped, &bytes, &size);
    for (size_t kept = 2; kept < size; kept++) {
        write_plain(zipped, bytes, kept);
        expect_error(zipped, LIMIT, KT_E_FORMAT, "not a whole gzip file");
    }
    for (size_t at = 2; at < size; at++) {
        if (at >= FLAGS && at < BODY) continue;
        bytes[at] ^= 0x10;
        write_plain(zipped, bytes, size);
        expect_error(zipped, LIMIT, KT_E_FORMAT, "not a whole gzip file");
        bytes[at] ^= 0x10;
    }
    bytes[0] = 'x'; /* not zipped then, and read as it is */
    write_plain(zipped, bytes, size);
    expect_text(zipped, bytes, size);
    free(bytes);
}

Test(zipped, too_much_text_is_refused_however_small_it_is_packed) {
    char *text = calloc(1, LIMIT + 1);

    memset(text, 'a', LIMIT + 1);
    write_packed(zipped, text, LIMIT);
    expect_text(zipped, text, LIMIT);
    write_packed(zipped, text, LIMIT + 1);
    expect_error(zipped, LIMIT, KT_E_FORMAT, "over 1048576 bytes");
    expect_error(zipped, 10, KT_E_FORMAT, "limit 10");
    free(text);
    unlink(zipped);
    expect_error(plain, LIMIT, KT_E_NOT_FOUND, "No such file");
}

/* --- filing --- */

#define FIRST "{\"t\":\"session\",\"n\":1}\n{\"t\":\"rung\"}\n"
#define SECOND "{\"t\":\"session\",\"n\":2}\n{\"t\":\"rung\"}\n{\"t\":\"decision\"}\n"

static void file_journal(const char *from) {
    kt_err err = {0};
    cr_assert_eq(kt_results_merge_journal(from, plain, &err), KT_OK, "%s", err.message);
}

Test(zipped, sessions_are_filed_after_those_that_lie_there) {
    char mine[PATH], *before, *after;
    size_t size, again;

    snprintf(mine, sizeof mine, "%s/mine.journal.jsonl", folder);
    write_plain(mine, FIRST, strlen(FIRST));
    file_journal(mine);
    expect_text(zipped, FIRST, strlen(FIRST));
    write_plain(mine, SECOND "{\"t\":\"torn", strlen(SECOND) + 10);
    file_journal(mine);
    expect_text(zipped, FIRST SECOND, strlen(FIRST SECOND));
    bytes_of(zipped, &before, &size);
    file_journal(mine); /* nothing new */
    bytes_of(zipped, &after, &again);
    cr_expect(size == again && memcmp(before, after, size) == 0);
    file_journal(plain); /* itself */
    expect_text(zipped, FIRST SECOND, strlen(FIRST SECOND));
    cr_expect(access(plain, F_OK) != 0);
    free(before);
    free(after);
}

Test(zipped, an_unpacked_journal_that_lies_there_goes_into_the_packed_one) {
    char mine[PATH];

    snprintf(mine, sizeof mine, "%s/mine.journal.jsonl", folder);
    write_plain(plain, FIRST, strlen(FIRST));
    write_plain(mine, SECOND, strlen(SECOND));
    file_journal(mine);
    expect_text(zipped, FIRST SECOND, strlen(FIRST SECOND));
    cr_expect(access(plain, F_OK) != 0, "both lie there");
}
