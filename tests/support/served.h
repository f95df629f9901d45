/* `kt serve` as a process of its own, for tests that look at the whole program.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_SERVED_H
#define KT_TESTS_SERVED_H

#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

typedef struct kt_served {
    pid_t pid;
    int port;
    FILE *out; /* both streams of the server */
} kt_served;

/* Serve a model on any free port and wait until it is loaded; more: further arguments, ended by
 * NULL, or NULL. Fails the test with the server's words when it does not start. */
kt_served kt_served_start(const char *model, const char *const *more);
/* SIGINT, then the exit status as waitpid has it. */
int kt_served_stop(kt_served *s);

/* Resident memory in bytes, and open file descriptors; -1 = the process is gone. */
long kt_served_rss(const kt_served *s);
int kt_served_fds(const kt_served *s);

#endif
