/* The queue of jobs: order, places, and the one end that each job comes to. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "runtime/sched/job_queue.h"

typedef struct job {
    kt_job base;
    _Atomic int ran, dropped; /* place in the order, from 1; 0 = not yet */
    atomic_bool gone;
    atomic_bool holds; /* the worker stays in run() while this is set */
} job;

static _Atomic int n_ended;

static void run(kt_job *base) {
    job *j = (job *)(void *)base;
    j->ran = ++n_ended;
    while (j->holds) usleep(200);
}

static void drop(kt_job *base) {
    ((job *)(void *)base)->dropped = ++n_ended;
}

static bool is_gone(const kt_job *base) {
    return ((const job *)(const void *)base)->gone;
}

static void make(job *list, int n) {
    memset(list, 0, (size_t)n * sizeof *list);
    for (int i = 0; i < n; i++) list[i].base = (kt_job){NULL, run, drop, is_gone};
}

static kt_job_queue *make_queue(int capacity) {
    kt_job_queue *q;
    kt_err err = {0};
    cr_assert_eq(kt_job_queue_create(capacity, &q, &err), KT_OK, "%s", err.message);
    return q;
}

/* Wait until so many run; five seconds are given. */
static void wait_running(kt_job_queue *q, int running) {
    int64_t end = kt_clock_ns() + 5000000000;
    while (kt_job_queue_count(q).running != running && kt_clock_ns() < end) usleep(200);
    cr_assert_eq(kt_job_queue_count(q).running, running);
}

/* Wait until so many jobs have ended; five seconds are given. */
static void wait_ended(int n) {
    int64_t end = kt_clock_ns() + 5000000000;
    while (n_ended < n && kt_clock_ns() < end) usleep(200);
    cr_assert_eq(n_ended, n, "%d jobs have ended, expected %d", n_ended, n);
}

static void check_counts(kt_job_queue *q, int running, int waiting, int capacity) {
    kt_job_counts c = kt_job_queue_count(q);
    cr_expect(c.running == running && c.waiting == waiting && c.capacity == capacity,
              "%d run, %d wait of %d; expected %d, %d, %d", c.running, c.waiting, c.capacity,
              running, waiting, capacity);
}

Test(job_queue, runs_in_the_order_of_arrival, .timeout = 60) {
    kt_job_queue *q = make_queue(3);
    job list[5];

    make(list, 5);
    list[0].holds = true;
    cr_assert(kt_job_queue_push(q, &list[0].base));
    wait_running(q, 1);
    for (int i = 1; i < 4; i++) cr_assert(kt_job_queue_push(q, &list[i].base));
    check_counts(q, 1, 3, 3);
    list[0].holds = false;
    wait_ended(4);
    wait_running(q, 0);
    for (int i = 0; i < 4; i++)
        cr_expect(list[i].ran == i + 1 && !list[i].dropped, "job %d ran as number %d", i,
                  list[i].ran);
    check_counts(q, 0, 0, 3);
    cr_assert(kt_job_queue_push(q, &list[4].base));
    wait_ended(5);
    kt_job_queue_destroy(q);
}

Test(job_queue, is_full_at_its_capacity_and_gives_places_of_abandoned_jobs, .timeout = 60) {
    kt_job_queue *q = make_queue(2);
    job list[6];

    make(list, 6);
    list[0].holds = true;
    cr_assert(kt_job_queue_push(q, &list[0].base));
    wait_running(q, 1);
    cr_assert(kt_job_queue_push(q, &list[1].base));
    cr_assert(kt_job_queue_push(q, &list[2].base));
    cr_expect(!kt_job_queue_push(q, &list[3].base), "a third job waits where two may");
    cr_expect(!list[3].ran && !list[3].dropped, "a refused job is not touched");
    list[2].gone = true; /* the last of the list: what comes next hangs on the one before it */
    check_counts(q, 1, 1, 2);
    cr_expect(kt_job_queue_push(q, &list[4].base));
    cr_expect_eq(list[2].dropped, 2, "dropped as number %d", list[2].dropped);
    check_counts(q, 1, 2, 2);
    list[1].gone = true; /* the first */
    cr_expect(kt_job_queue_push(q, &list[5].base));
    cr_expect_eq(list[1].dropped, 3, "dropped as number %d", list[1].dropped);
    list[0].holds = false;
    wait_ended(5);
    cr_expect(list[4].ran == 4 && list[5].ran == 5, "%d, %d", list[4].ran, list[5].ran);
    cr_expect(!list[1].ran && !list[2].ran);
    kt_job_queue_destroy(q);
}

/* Several at once: all of their places are free, and each is dropped. */
Test(job_queue, drops_all_that_were_abandoned_when_it_is_full, .timeout = 60) {
    kt_job_queue *q = make_queue(3);
    job list[6];

    make(list, 6);
    list[0].holds = true;
    cr_assert(kt_job_queue_push(q, &list[0].base));
    wait_running(q, 1);
    for (int i = 1; i < 4; i++) cr_assert(kt_job_queue_push(q, &list[i].base));
    list[1].gone = list[2].gone = list[3].gone = true;
    cr_expect(kt_job_queue_push(q, &list[4].base));
    cr_expect(kt_job_queue_push(q, &list[5].base));
    for (int i = 1; i < 4; i++) cr_expect(list[i].dropped && !list[i].ran, "job %d", i);
    check_counts(q, 1, 2, 3);
    list[0].holds = false;
    wait_ended(6);
    kt_job_queue_destroy(q);
}

/* Abandoned while it waited, with places left: dropped when its turn comes, not run. */
Test(job_queue, drops_what_nobody_wants_any_more, .timeout = 60) {
    kt_job_queue *q = make_queue(5);
    job list[3];

    make(list, 3);
    list[0].holds = true;
    cr_assert(kt_job_queue_push(q, &list[0].base));
    wait_running(q, 1);
    cr_assert(kt_job_queue_push(q, &list[1].base));
    cr_assert(kt_job_queue_push(q, &list[2].base));
    list[1].gone = true;
    list[0].holds = false;
    wait_ended(3);
    cr_expect(list[1].dropped == 2 && !list[1].ran, "dropped %d, ran %d", list[1].dropped,
              list[1].ran);
    cr_expect_eq(list[2].ran, 3);
    kt_job_queue_destroy(q);
}

/* The end waits for what runs and drops what waits: each job comes to exactly one end. */
Test(job_queue, ends_with_every_job, .timeout = 60) {
    kt_job_queue *q = make_queue(5);
    job list[4];

    make(list, 4);
    for (int i = 0; i < 4; i++) {
        list[i].holds = true;
        cr_assert(kt_job_queue_push(q, &list[i].base));
        if (i == 0) wait_running(q, 1);
    }
    list[0].holds = list[1].holds = list[2].holds = list[3].holds = false;
    kt_job_queue_destroy(q);
    for (int i = 0; i < 4; i++)
        cr_expect_eq((list[i].ran > 0) + (list[i].dropped > 0), 1, "job %d: ran %d, dropped %d", i,
                     list[i].ran, list[i].dropped);
    cr_expect_eq(n_ended, 4);
    kt_job_queue_destroy(NULL);
}
