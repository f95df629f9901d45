/* A log whose reader is slow, gone, or never reads: nobody waits for it.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/affinity.h"
#include "base/clock.h"
#include "base/log.h"

static kt_log_writer *start(int fd[2]) {
    kt_log_writer *w;
    kt_err err = {0};

    cr_assert_eq(pipe(fd), 0);
    cr_assert_eq(kt_log_writer_create(fd[1], &w, &err), KT_OK, "%s", err.message);
    return w;
}

static void *log_much(void *arg) {
    kt_log log = {.writer = arg};

    for (int i = 0; i < 500; i++) kt_log_write(&log, KT_LOG_INFO, "area", "line %d", i);
    return NULL;
}

Test(log_writer, lines_of_several_threads_stay_whole) {
    pthread_t thread[4];
    char line[200];
    int fd[2], n = 0, number;
    kt_log_writer *w = start(fd);
    FILE *in;

    cr_assert_eq(fcntl(fd[1], F_SETPIPE_SZ, 1 << 20) >= 1 << 18, 1);
    for (int i = 0; i < 4; i++) pthread_create(&thread[i], NULL, log_much, w);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    kt_log_writer_destroy(w); /* writes what is left */
    close(fd[1]);
    in = fdopen(fd[0], "r");
    while (fgets(line, sizeof line, in)) {
        cr_assert_eq(sscanf(line, "%*s info area: line %d\n", &number), 1, "%s", line);
        n++;
    }
    cr_expect_eq(n, 2000);
    fclose(in);
}

Test(log_writer, a_reader_that_does_not_read_holds_up_nobody) {
    static char text[1 << 20];
    int fd[2];
    kt_log_writer *w = start(fd);
    kt_log log = {.writer = w};
    int64_t since = kt_clock_ns();
    ssize_t n, total = 0;

    for (int i = 0; i < 20000; i++) kt_log_write(&log, KT_LOG_WARN, "area", "line %d", i);
    cr_expect_lt(kt_clock_ns() - since, 5000000000);
    /* once somebody reads, the next line tells what is missing */
    while (total < 200000 && (n = read(fd[0], text, sizeof text)) > 0) total += n;
    for (int i = 0; i < 100; i++) {
        kt_log_write(&log, KT_LOG_WARN, "area", "later");
        usleep(1000);
    }
    n = read(fd[0], text, sizeof text - 1);
    since = kt_clock_ns();
    kt_log_writer_destroy(w);
    cr_expect_lt(kt_clock_ns() - since, 3000000000, "the end waits for the reader");
    close(fd[1]);
    total = n > 0 ? n : 0;
    while ((n = read(fd[0], text + total, sizeof text - 1 - (size_t)total)) > 0) total += n;
    text[total] = '\0';
    cr_expect_not_null(strstr(text, " lines of the log were lost"));
    cr_expect_not_null(strstr(text, "area: later\n"));
    close(fd[0]);
}

Test(log_writer, a_reader_that_left_ends_nothing) {
    int fd[2];
    kt_log_writer *w = start(fd);
    kt_log log = {.writer = w, .json = 1};

    close(fd[0]);
    for (int i = 0; i < 1000; i++) {
        kt_log_write(&log, KT_LOG_ERROR, "area", "nobody reads \"this\"");
        if (i % 100 == 0) usleep(1000);
    }
    kt_log_writer_destroy(w);
    close(fd[1]);
}

Test(log_writer, an_end_without_a_reader_is_soon) {
    int fd[2];
    kt_log_writer *w = start(fd);
    kt_log log = {.writer = w};
    int64_t since;

    for (int i = 0; i < 5000; i++) kt_log_write(&log, KT_LOG_WARN, "area", "line %d", i);
    since = kt_clock_ns();
    kt_log_writer_destroy(w);
    cr_expect_lt(kt_clock_ns() - since, 3000000000);
    close(fd[0]);
    close(fd[1]);
}

/* ---- CPUs for such threads ---- */

Test(spare_cpus, are_those_that_a_pool_leaves) {
    kt_cpu_set allowed, spare;
    int cpus[64], n = 0;

    kt_affinity_get(&allowed);
    for (int i = 0; i < KT_MAX_CPUS; i++) n += kt_cpu_set_has(&allowed, i);
    if (n > 64) n = 64;
    for (int taken = 1; taken <= n; taken++) {
        int left = 0;
        kt_affinity_choose(&allowed, taken, cpus);
        kt_affinity_spare(&allowed, taken, &spare);
        for (int i = 0; i < KT_MAX_CPUS; i++) {
            left += kt_cpu_set_has(&spare, i);
            cr_assert(!kt_cpu_set_has(&spare, i) || kt_cpu_set_has(&allowed, i));
        }
        cr_assert_gt(left, 0);
        for (int i = 0; i < taken && taken < n; i++)
            cr_assert(!kt_cpu_set_has(&spare, cpus[i]), "CPU %d is in the pool of %d", cpus[i],
                      taken);
    }
}
