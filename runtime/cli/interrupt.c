/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/cli/interrupt.h"

#include <signal.h>
#include <stddef.h>

/* A signal handler has no argument to reach anything else by. */
static volatile sig_atomic_t caught;

static void on_signal(int number) {
    (void)number;
    caught = 1;
}

void kt_interrupt_watch(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};

    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int kt_interrupted(void *unused) {
    (void)unused;
    return caught;
}
