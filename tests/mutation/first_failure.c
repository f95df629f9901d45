/* Linked with a test program in which a fault is planted: the first failed assertion ends it, with
 * the last line that Criterion would have written. What would have been tested after it proves
 * nothing more about the fault.
 * SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include <criterion/criterion.h>
#include <criterion/hooks.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

/* Tests are processes of the runner, which this hook is called in, started by any of its threads. */
static void kill_children(void) {
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;

    while (tasks && (task = readdir(tasks))) {
        char path[320];
        FILE *children;
        int pid;
        snprintf(path, sizeof path, "/proc/self/task/%s/children", task->d_name);
        children = fopen(path, "r");
        while (children && fscanf(children, "%d", &pid) == 1) kill((pid_t)pid, SIGKILL);
        if (children) fclose(children);
    }
}

ReportHook(ASSERT)(struct criterion_assert_stats *stats) {
    if (stats->passed) return;
    fprintf(stderr, "%s:%u: %s\n", stats->file, stats->line, stats->message);
    fprintf(stderr, "Synthesis: Tested: 1 | Passing: 0 | Failing: 1 | Crashing: 0 \n");
    kill_children();
    _exit(1);
}
