/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tuner/measure/disturbance.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"

void kt_disturbance_init(kt_disturbance *d, int n_threads) {
    d->read_ns = 0;
    d->stat_fd = open("/proc/stat", O_RDONLY | O_CLOEXEC);
    d->whole_process = n_threads > 1;
}

void kt_disturbance_deinit(kt_disturbance *d) {
    if (d->stat_fd >= 0) close(d->stat_fd);
    d->stat_fd = -1;
}

/* Stolen ticks are the eighth figure of the first line: time the hypervisor gave to others. */
static int64_t stolen_ticks(int fd) {
    char text[256];
    long long v[8] = {0};
    ssize_t got = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (got <= 0) return 0;
    text[got] = '\0';
    if (sscanf(text, "cpu %lld %lld %lld %lld %lld %lld %lld %lld", &v[0], &v[1], &v[2], &v[3],
               &v[4], &v[5], &v[6], &v[7]) != 8)
        return 0;
    return v[7];
}

/* The kernel writes all of /proc/stat for a reader of its first line: 20 to 100 us, a tenth of a round. */
static const int64_t look_every_ns = 4000000;

int64_t kt_disturbance_count(kt_disturbance *d) {
    struct rusage usage;
    int64_t now = kt_clock_ns(), count;

    if (now - d->read_ns >= look_every_ns) {
        d->stolen = stolen_ticks(d->stat_fd);
        d->read_ns = now;
    }
    count = d->stolen;
    if (getrusage(d->whole_process ? RUSAGE_SELF : RUSAGE_THREAD, &usage) == 0)
        count += usage.ru_nivcsw;
    return count;
}
