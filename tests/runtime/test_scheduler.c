/* The scheduler on an engine whose next token is a hash of all tokens before it: whoever mixes up
 * sequences, positions or pages says something else. Most tests drive the steps by hand.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "runtime/sched/scheduler.h"
#include "runtime/sched/step_cost.h"
#include "tests/runtime/fake_backend.h"

enum { MOST_CHOICES = 8 };

/* A client and its request. */
typedef struct client {
    kt_request request;
    atomic_bool is_gone, is_behind;
    atomic_int n_done;
    atomic_int n_progress, n_logprobs, n_finish;
    kt_status status;
    char why[200];
    kt_text text[MOST_CHOICES];
    kt_finish finish[MOST_CHOICES];
    int64_t done_ns;
} client;

static fake_engine engine;
static kt_backend backend;
static kt_scheduler *sched;

static void hashed(fake_engine *f, const int32_t *tokens, int64_t n, float *logits) {
    uint64_t h = 0xcbf29ce484222325u;
    (void)f;

    for (int64_t i = 0; i < n; i++) h = (h ^ (uint64_t)(tokens[i] + 1)) * 0x100000001b3u;
    for (int i = 0; i < 4096; i++) logits[i] = 0;
    logits[(h >> 20) % 4000] = 50;
}

static void begin(kt_scheduler_options o) {
    kt_err err = {0};

    cr_assert(
        fake_init(&engine, &backend, KT_SOURCE_DIR "/datasets/models/tiny-moe/tokenizer.json"));
    engine.logits = hashed;
    o.backend = &backend;
    cr_assert_eq(kt_scheduler_create(&o, &sched, &err), KT_OK, "%s", err.message);
}

static void end(void) {
    kt_scheduler_destroy(sched);
    cr_assert_eq(atomic_load(&engine.n_open), 0, "%d sequences were leaked",
                 atomic_load(&engine.n_open));
    cr_assert_eq((int)atomic_load(&engine.n_pages_used), 0, "pages were leaked");
    fake_deinit(&engine);
}

static void on_event(void *arg, const kt_event *e) {
    client *c = arg;

    cr_assert_eq(atomic_load(&c->n_done), 0, "an event after the end");
    if (e->kind == KT_EVENT_TEXT)
        cr_assert_eq(kt_text_append(&c->text[e->choice], e->text, e->size, NULL), KT_OK);
    if (e->kind == KT_EVENT_PROGRESS) atomic_fetch_add(&c->n_progress, 1);
    if (e->kind == KT_EVENT_LOGPROB) atomic_fetch_add(&c->n_logprobs, 1);
    if (e->kind != KT_EVENT_FINISH) return;
    atomic_fetch_add(&c->n_finish, 1);
    c->finish[e->choice] = e->as.finish.reason;
}

static void on_done(void *arg, kt_status st, const kt_err *why) {
    client *c = arg;

    c->status = st;
    c->done_ns = kt_clock_ns();
    snprintf(c->why, sizeof c->why, "%.190s", why ? why->message : "");
    atomic_fetch_add(&c->n_done, 1);
}

static bool is_gone(void *arg) {
    return atomic_load(&((client *)arg)->is_gone);
}

static bool is_behind(void *arg) {
    return atomic_load(&((client *)arg)->is_behind);
}

/* A request of n_prompt tokens, which are its own by `seed`, for max_tokens more. */
static client *make(int n_prompt, int64_t max_tokens, uint64_t seed) {
    client *c = calloc(1, sizeof *c);
    kt_rng rng;

    kt_request_init(&c->request);
    kt_rng_seed(&rng, seed);
    c->request.prompts = calloc(1, sizeof *c->request.prompts);
    c->request.n_prompts = 1;
    c->request.prompts[0].ids = calloc((size_t)n_prompt, sizeof(int32_t));
    c->request.prompts[0].n_ids = (size_t)n_prompt;
    for (int i = 0; i < n_prompt; i++)
        c->request.prompts[0].ids[i] = (int32_t)kt_rng_below(&rng, 4000);
    c->request.max_tokens = max_tokens;
    c->request.ignore_eos = true;
    c->request.client = (kt_request_client){
        .arg = c, .event = on_event, .is_gone = is_gone, .is_behind = is_behind, .done = on_done};
    return c;
}

static void submit(client *c) {
    cr_assert_eq(kt_scheduler_submit(sched, &c->request), KT_SUBMIT_TAKEN);
}

static void drop(client *c) {
    kt_request_deinit(&c->request);
    for (int i = 0; i < MOST_CHOICES; i++) free(c->text[i].data);
    free(c);
}

/* All steps there are to do. */
static void run(void) {
    while (kt_scheduler_step(sched)) {
    }
}

static int64_t made(const client *c) {
    return c->request.completion_tokens;
}

/* The tokens that the hash engine must give choice i, computed without any scheduler. */
static void check_tokens(const client *c, size_t i) {
    const kt_prompt *p = &c->request.prompts[i / (size_t)c->request.n];
    size_t n;
    const int32_t *got = kt_request_tokens(&c->request, i, &n);
    int32_t all[4096];
    float logits[4096];

    cr_assert_eq((int64_t)n, c->request.max_tokens, "%zu tokens", n);
    memcpy(all, p->ids, p->n_ids * sizeof *all);
    for (size_t k = 0; k < n; k++) {
        int best = 0;
        hashed(NULL, all, (int64_t)(p->n_ids + k), logits);
        for (int v = 1; v < 4096; v++) best = logits[v] > logits[best] ? v : best;
        cr_assert_eq(got[k], best, "token %zu of %zu is %d, expected %d", k, n, got[k], best);
        all[p->n_ids + k] = best;
    }
}

/* ---- the cost model ---- */

Test(step_cost, learns_and_inverts) {
    kt_step_cost c = {0};

    cr_expect_eq(kt_step_cost_ns(&c, 5), 0);
    cr_expect_eq(kt_step_cost_rows(&c, 1000, 512), 0);
    kt_step_cost_add(&c, 1, 10000);
    cr_expect_eq(kt_step_cost_ns(&c, 1), 10000);
    cr_expect_eq(kt_step_cost_rows(&c, 40000, 512), 4, "in proportion, until more is known");
    kt_step_cost_add(&c, 32, 41000); /* 9,000 and 1,000 a row */
    cr_expect_float_eq(kt_step_cost_ns(&c, 17), 26000, 1);
    cr_expect_eq(kt_step_cost_rows(&c, 30500, 512), 21);
    cr_expect_eq(kt_step_cost_rows(&c, 9000, 512), 0);
    cr_expect_eq(kt_step_cost_rows(&c, INT64_C(1) << 40, 512), 512);
    for (int i = 0; i < 60; i++) kt_step_cost_add(&c, 32, 82000);
    cr_expect_float_eq(kt_step_cost_ns(&c, 32), 82000, 100, "old steps fade");
}

static double a_thousand_and_ten_a_row(void *self, int64_t rows) {
    return *(const int *)self ? 1000 + 10 * (double)rows : 0;
}

/* What is expected counts before a step was taken, and then times what steps took of it. */
Test(step_cost, what_is_expected_is_corrected_by_steps) {
    kt_step_cost c = {0};
    int knows = 1;

    kt_step_cost_expect(&c, a_thousand_and_ten_a_row, &knows);
    cr_expect_float_eq(kt_step_cost_ns(&c, 1), 1010, 1e-6);
    cr_expect_float_eq(kt_step_cost_ns(&c, 300), 4000, 1e-6);
    cr_expect_eq(kt_step_cost_rows(&c, 3000, 512), 200);
    cr_expect_eq(kt_step_cost_rows(&c, 1000, 512), 0);
    kt_step_cost_add(&c, 100, 4000); /* twice as long as expected */
    cr_expect_float_eq(kt_step_cost_ns(&c, 100), 4000, 1e-6);
    cr_expect_float_eq(kt_step_cost_ns(&c, 1), 2020, 1e-6);
    cr_expect_float_eq(kt_step_cost_ns(&c, 200), 6000, 1e-6);
    cr_expect_eq(kt_step_cost_rows(&c, 3000, 512), 50);
    kt_step_cost_add(&c, 300, 12000); /* three times */
    cr_expect_float_eq(kt_step_cost_ns(&c, 200), 7500, 1e-6, "between them");
    cr_expect_float_eq(kt_step_cost_ns(&c, 400), 15000, 1e-6);
    knows = 0;
    kt_step_cost_expect(&c, a_thousand_and_ten_a_row, &knows);
    cr_expect_float_eq(kt_step_cost_ns(&c, 400), 16000, 1e-6, "in proportion");
}

/* ---- batches ---- */

Test(scheduler, one_request_says_what_the_engine_says) {
    client *c = make(700, 30, 1);

    begin((kt_scheduler_options){.is_manual = true});
    c->request.progress = true;
    submit(c);
    run();
    cr_assert(atomic_load(&c->n_done) == 1 && c->status == KT_OK, "%s", c->why);
    cr_expect_eq(c->finish[0], KT_FINISH_LENGTH);
    check_tokens(c, 0);
    cr_expect_eq(engine.n_computed, 700 + 29);
    cr_expect_eq(atomic_load(&c->n_progress), 3, "start, 512 and 700 of 700");
    cr_expect(c->request.start_ns >= c->request.queued_ns &&
              c->request.prompt_ns >= c->request.start_ns &&
              c->request.end_ns >= c->request.prompt_ns);
    drop(c);
    end();
}

Test(scheduler, sixteen_at_once_say_the_same_as_each_alone) {
    client *c[16];

    begin((kt_scheduler_options){.is_manual = true});
    for (int i = 0; i < 16; i++) submit(c[i] = make(3 + 37 * i, 20 + i, (uint64_t)i));
    run();
    for (int i = 0; i < 16; i++) {
        cr_assert_eq(c[i]->status, KT_OK, "%s", c[i]->why);
        check_tokens(c[i], 0);
        drop(c[i]);
    }
    cr_expect_eq(atomic_load(&engine.most_spans), 16);
    end();
}

Test(scheduler, nobody_starves_among_sixty_four) {
    client *c[64];
    int64_t least = INT64_MAX, most = 0;

    begin((kt_scheduler_options){.is_manual = true, .queue = 64});
    for (int i = 0; i < 64; i++) submit(c[i] = make(5 + 3 * i, 200, (uint64_t)i));
    for (int i = 0; i < 60; i++) kt_scheduler_step(sched);
    for (int i = 0; i < 64; i++) {
        if (made(c[i]) < least) least = made(c[i]);
        if (made(c[i]) > most) most = made(c[i]);
    }
    cr_expect(least > 0 && most <= 2 * least, "between %d and %d tokens after 60 steps", (int)least,
              (int)most);
    run();
    for (int i = 0; i < 64; i++) {
        cr_expect_eq(made(c[i]), 200);
        drop(c[i]);
    }
    end();
}

Test(scheduler, a_short_request_beside_a_long_prompt_waits_one_step) {
    client *busy = make(4, 400, 1), *others[3], *slow, *quick;

    begin((kt_scheduler_options){.is_manual = true, .itl_ns = 1});
    submit(busy);
    kt_scheduler_step(sched);
    submit(slow = make(1900, 5, 2)); /* some 60 steps of 32 rows */
    for (int i = 0; i < 3; i++) kt_scheduler_step(sched);
    cr_assert_eq(made(slow), 0);
    submit(quick = make(1, 1, 3));
    kt_scheduler_step(sched);
    cr_expect_eq(atomic_load(&quick->n_done), 1, "not done after the next step");
    cr_expect_eq(made(busy), 5, "the one that generates waited");
    /* The long prompt goes on however many short ones come. */
    for (int i = 0; i < 200 && made(slow) == 0; i++) {
        others[i % 3] = make(40, 1, 4 + (uint64_t)i);
        submit(others[i % 3]);
        kt_scheduler_step(sched);
        if (i % 3 == 2) {
            run();
            for (int k = 0; k < 3; k++) drop(others[k]);
            break;
        }
    }
    cr_expect_eq(made(slow), 5);
    check_tokens(slow, 0);
    check_tokens(busy, 0);
    drop(busy), drop(slow), drop(quick);
    end();
}

/* Half of a step's rows are the oldest prompt's, whatever comes in. */
Test(scheduler, a_long_prompt_goes_on_beside_a_stream_of_short_ones) {
    client *slow = make(1500, 1, 1), *quick[60];
    int n = 0;

    begin((kt_scheduler_options){.is_manual = true, .itl_ns = 1});
    submit(slow);
    for (; n < 60 && made(slow) == 0; n++) {
        submit(quick[n] = make(300, 4, 2 + (uint64_t)n));
        kt_scheduler_step(sched);
    }
    cr_expect_leq(n, 48, "%d steps for 1,500 tokens at 32 a step and more", n);
    run();
    for (int i = 0; i < n; i++) drop(quick[i]);
    drop(slow);
    end();
}

/* Prompts take what the measured time of steps allows within the inter-token latency. */
Test(scheduler, steps_beside_generation_keep_to_the_latency, .timeout = 60) {
    client *busy = make(4, 60, 1), *slow = make(1900, 1, 2);
    int most = 0;

    begin((kt_scheduler_options){.is_manual = true, .itl_ns = 20 * 1000 * 1000});
    engine.step_row_us = 100; /* 200 rows in 20 ms */
    submit(busy);
    for (int i = 0; i < 5; i++) kt_scheduler_step(sched);
    submit(slow);
    for (int i = 0; i < 4; i++) kt_scheduler_step(sched);
    atomic_store(&engine.most_rows, 0);
    for (int i = 0; i < 4; i++) kt_scheduler_step(sched);
    most = atomic_load(&engine.most_rows);
    cr_expect(most >= 33 && most <= 260, "steps of %d rows", most);
    engine.step_row_us = 0;
    run();
    drop(busy), drop(slow);
    end();
}

static double slow_rows(void *self, int64_t rows, int64_t logits) {
    (void)self, (void)logits;
    return 1e6 * (50 + 0.25 * (double)rows);
}

/* Rows of the first step that a prompt takes beside an answer. */
static int first_rows(void) {
    client *busy = make(1, 5, 1), *slow = make(1900, 1, 2);
    int rows;

    begin((kt_scheduler_options){.is_manual = true});
    kt_scheduler_destroy(sched);
    backend.expected_ns = slow_rows;
    engine.step_row_us = 50 * 1000; /* as expected of the step of one row */
    cr_assert_eq(kt_scheduler_create(&(kt_scheduler_options){.backend = &backend,
                                                             .is_manual = true,
                                                             .itl_ns = 100 * 1000 * 1000},
                                     &sched, NULL),
                 KT_OK);
    submit(busy);
    kt_scheduler_step(sched);
    engine.step_row_us = 0;
    submit(slow);
    kt_scheduler_step(sched);
    rows = atomic_load(&engine.most_rows);
    run();
    drop(busy), drop(slow);
    end();
    return rows;
}

/* They are as many as the plan expects to fit, before any step of such a size was measured: 200,
 * where in proportion to the step of one row it would be the least, 32 and the answer's. */
Test(scheduler, the_first_steps_keep_to_what_is_expected, .timeout = 60) {
    int rows = 0;

    /* Again where others had the processor in the first step. */
    for (int i = 0; i < 4 && rows < 50; i++) rows = first_rows();
    cr_expect(rows >= 50 && rows <= 200, "a step of %d rows", rows);
}

/* ---- several choices ---- */

Test(scheduler, choices_share_the_prompt) {
    client *c = make(300, 10, 1);

    begin((kt_scheduler_options){.is_manual = true});
    c->request.n = 4;
    submit(c);
    run();
    cr_assert_eq(c->status, KT_OK, "%s", c->why);
    cr_expect_eq(engine.n_computed, 300 + 4 * 9, "%d rows", (int)engine.n_computed);
    cr_expect_eq(c->request.prompt_tokens, 300);
    cr_expect_eq(c->request.completion_tokens, 40);
    for (size_t i = 0; i < 4; i++) check_tokens(c, i);
    cr_expect_eq(atomic_load(&c->n_finish), 4);
    drop(c);
    end();
}

/* Fewer places than choices: the others compute their prompt themselves, later. */
Test(scheduler, more_choices_than_places_are_all_made) {
    client *c = make(70, 6, 1);

    begin((kt_scheduler_options){.is_manual = true, .max_running = 3});
    c->request.n = 8;
    c->request.logprobs = 1;
    c->request.prompt_logprobs = true;
    submit(c);
    run();
    cr_assert_eq(c->status, KT_OK, "%s", c->why);
    for (size_t i = 0; i < 8; i++) check_tokens(c, i);
    cr_expect_eq(atomic_load(&c->n_logprobs), 8 * (69 + 6), "%d", atomic_load(&c->n_logprobs));
    cr_expect_leq(atomic_load(&engine.most_spans), 3);
    drop(c);
    end();
}

Test(scheduler, nothing_is_computed_for_no_tokens) {
    client *c = make(70, 0, 1);

    begin((kt_scheduler_options){.is_manual = true});
    submit(c);
    run();
    cr_expect(atomic_load(&c->n_done) == 1 && c->status == KT_OK && engine.n_computed == 0);
    drop(c);
    c = make(400, 0, 1);
    c->request.logprobs = 0;
    c->request.prompt_logprobs = true;
    submit(c);
    run();
    cr_expect(atomic_load(&c->n_done) == 1 && c->status == KT_OK);
    cr_expect_eq(atomic_load(&c->n_logprobs), 399);
    cr_expect_eq(engine.n_computed, 400);
    drop(c);
    end();
}

/* ---- pages ---- */

Test(scheduler, those_that_give_up_their_pages_say_the_same) {
    client *c[12];

    begin((kt_scheduler_options){.is_manual = true});
    atomic_store(&engine.n_pages, 40); /* 2,560 tokens; all would be 12 * (100 + 500) */
    for (int i = 0; i < 12; i++) submit(c[i] = make(100, 500, (uint64_t)i));
    run();
    for (int i = 0; i < 12; i++) {
        cr_assert_eq(c[i]->status, KT_OK, "%s", c[i]->why);
        check_tokens(c[i], 0);
        drop(c[i]);
    }
    cr_expect_gt(kt_scheduler_count(sched).preemptions, 0);
    end();
}

Test(scheduler, what_never_fits_is_an_error_and_the_rest_goes_on) {
    client *huge = make(1500, 10, 1), *small = make(20, 10, 2);

    begin((kt_scheduler_options){.is_manual = true});
    atomic_store(&engine.n_pages, 10);
    submit(huge);
    submit(small);
    run();
    cr_expect(huge->status == KT_E_NOMEM && strstr(huge->why, "no pages"), "%s", huge->why);
    cr_expect_eq(small->status, KT_OK);
    check_tokens(small, 0);
    drop(huge), drop(small);
    end();
}

Test(scheduler, first_come_within_a_priority) {
    client *c[4];

    begin((kt_scheduler_options){.is_manual = true, .max_running = 1});
    for (int i = 0; i < 4; i++) {
        c[i] = make(5, 3, (uint64_t)i);
        c[i]->request.priority = i == 2 ? -1 : 0;
        submit(c[i]);
    }
    run();
    cr_expect(c[2]->done_ns < c[0]->done_ns && c[0]->done_ns < c[1]->done_ns &&
              c[1]->done_ns < c[3]->done_ns);
    for (int i = 0; i < 4; i++) drop(c[i]);
    end();
}

/* ---- clients ---- */

Test(scheduler, who_does_not_read_rests) {
    client *slow = make(5, 30, 1), *quick = make(5, 30, 2);
    int64_t before;

    begin((kt_scheduler_options){.is_manual = true});
    submit(slow), submit(quick);
    for (int i = 0; i < 5; i++) kt_scheduler_step(sched);
    atomic_store(&slow->is_behind, true);
    before = made(slow);
    run();
    cr_expect_eq(made(slow), before, "it went on");
    cr_expect_eq(atomic_load(&quick->n_done), 1);
    cr_expect_eq(kt_scheduler_count(sched).resting, 1);
    atomic_store(&slow->is_behind, false);
    run();
    check_tokens(slow, 0);
    drop(slow), drop(quick);
    end();
}

/* One place, or pages for one: who is not read keeps them from others for a moment only, and goes
 * on where it was when it is read. */
static void check_displaced(int max_running, int n_pages) {
    client *slow = make(5, 30, 1), *quick = make(5, 30, 2);
    int64_t before;

    begin((kt_scheduler_options){.is_manual = true, .max_running = max_running});
    if (n_pages) atomic_store(&engine.n_pages, n_pages);
    submit(slow), submit(quick);
    for (int i = 0; i < 5; i++) kt_scheduler_step(sched);
    atomic_store(&slow->is_behind, true);
    before = made(slow);
    run();
    cr_expect_eq(made(quick), 0, "at once");
    fake_sleep(110 * 1000);
    run();
    cr_expect(atomic_load(&quick->n_done) == 1 && quick->status == KT_OK, "%s", quick->why);
    cr_expect_eq(made(slow), before, "it went on");
    cr_expect_eq(kt_scheduler_count(sched).resting, 1);
    cr_expect_eq(kt_scheduler_count(sched).preemptions, 1);
    atomic_store(&slow->is_behind, false);
    run();
    check_tokens(slow, 0);
    check_tokens(quick, 0);
    drop(slow), drop(quick);
    end();
}

Test(scheduler, who_does_not_read_gives_up_its_place) {
    check_displaced(1, 0);
    check_displaced(4, 1);
}

/* As many as there are places may wait for their readers without one. */
Test(scheduler, so_many_give_up_their_places_and_no_more) {
    client *c[4];

    begin((kt_scheduler_options){.is_manual = true, .max_running = 1});
    for (int i = 0; i < 4; i++) submit(c[i] = make(5, 30, (uint64_t)i));
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 5; k++) kt_scheduler_step(sched);
        atomic_store(&c[i]->is_behind, true);
        run();
        fake_sleep(110 * 1000);
    }
    run();
    cr_expect(made(c[1]) > 0 && made(c[2]) == 0, "%d and %d tokens", (int)made(c[1]),
              (int)made(c[2]));
    for (int i = 0; i < 4; i++) atomic_store(&c[i]->is_behind, false);
    run();
    for (int i = 0; i < 4; i++) {
        check_tokens(c[i], 0);
        drop(c[i]);
    }
    end();
}

Test(scheduler, the_queue_is_bounded_and_forgets_who_left) {
    client *c[5], *late = make(5, 3, 9);

    begin((kt_scheduler_options){.is_manual = true, .queue = 4});
    for (int i = 0; i < 4; i++) submit(c[i] = make(5, 3, (uint64_t)i));
    cr_expect_eq(kt_scheduler_submit(sched, &late->request), KT_SUBMIT_FULL);
    cr_expect_eq(atomic_load(&late->n_done), 0);
    drop(late);
    atomic_store(&c[1]->is_gone, true);
    cr_expect_eq(kt_scheduler_count(sched).waiting, 3);
    submit(c[4] = make(5, 3, 4));
    cr_expect(atomic_load(&c[1]->n_done) == 1 && c[1]->status == KT_E_CANCELLED);
    run();
    for (int i = 0; i < 5; i++) {
        cr_expect_eq(atomic_load(&c[i]->n_done), 1);
        drop(c[i]);
    }
    end();
}

/* A stream that has begun, since there was a place to wait in, is answered though that has gone. */
Test(scheduler, whoever_was_promised_a_place_gets_it) {
    client *c[3], *late = make(5, 3, 9);

    begin((kt_scheduler_options){.is_manual = true, .queue = 2});
    for (int i = 0; i < 2; i++) submit(c[i] = make(5, 3, (uint64_t)i));
    c[2] = make(5, 3, 2);
    c[2]->request.is_promised = true;
    submit(c[2]);
    cr_expect_eq(kt_scheduler_submit(sched, &late->request), KT_SUBMIT_FULL);
    drop(late);
    run();
    for (int i = 0; i < 3; i++) {
        cr_expect(atomic_load(&c[i]->n_done) == 1 && c[i]->status == KT_OK, "%d: %s", i, c[i]->why);
        drop(c[i]);
    }
    end();
}

Test(scheduler, the_end_is_told_to_all) {
    client *c[6];

    begin((kt_scheduler_options){.is_manual = true, .max_running = 2});
    for (int i = 0; i < 6; i++) submit(c[i] = make(5, 300, (uint64_t)i));
    for (int i = 0; i < 3; i++) kt_scheduler_step(sched);
    end();
    for (int i = 0; i < 6; i++) {
        cr_expect(atomic_load(&c[i]->n_done) == 1 && c[i]->status == KT_E_CANCELLED, "%d", i);
        cr_expect_not_null(strstr(c[i]->why, "shutting down"), "%s", c[i]->why);
        drop(c[i]);
    }
}

static void wait_done(client *c, int64_t most_ms) {
    const int64_t start = kt_clock_ns();
    while (atomic_load(&c->n_done) == 0) {
        cr_assert_lt(kt_clock_ns() - start, most_ms * 1000000, "not done after %d ms",
                     (int)most_ms);
        fake_sleep(200);
    }
}

/* A client that leaves within a long step frees its rows; who remains loses nothing. */
Test(scheduler, leaving_within_a_step_stops_it, .timeout = 60) {
    client *a = make(300, 3, 1), *b = make(10, 5, 2);
    int64_t left_ns, least = INT64_MAX;

    begin((kt_scheduler_options){0});
    for (int i = 0; i < 3 && least > 50 * 1000000; i++) { /* others may have the processor */
        engine.step_row_us = 20 * 1000;                   /* six seconds for the prompt */
        submit(a);
        fake_sleep(30000);
        left_ns = kt_clock_ns();
        atomic_store(&a->is_gone, true);
        wait_done(a, 5000);
        if (a->done_ns - left_ns < least) least = a->done_ns - left_ns;
        cr_expect_eq(a->status, KT_E_CANCELLED);
        drop(a);
        a = make(300, 3, 1);
        engine.step_row_us = 0;
    }
    cr_expect_leq(least, 50 * 1000000, "%d ms", (int)(least / 1000000));
    submit(b);
    wait_done(b, 5000);
    check_tokens(b, 0);
    cr_expect_geq(kt_scheduler_count(sched).stopped_steps, 1);
    end();
    drop(a), drop(b);
}

/* Many come, half of them leave at any moment; the rest get their text, nothing is leaked. */
Test(scheduler, cancel_storms_leave_nothing_behind, .timeout = 120) {
    enum { N = 240 };
    static client *c[N];
    kt_rng rng;

    begin((kt_scheduler_options){.queue = N, .max_running = 16});
    atomic_store(&engine.n_pages, 60);
    engine.step_row_us = 5;
    kt_rng_seed(&rng, 7);
    for (int i = 0; i < N; i++) {
        c[i] = make(1 + (int)kt_rng_below(&rng, 200), 1 + (int64_t)kt_rng_below(&rng, 60),
                    (uint64_t)i);
        c[i]->request.n = 1 + (int)kt_rng_below(&rng, 3);
        submit(c[i]);
        if (kt_rng_below(&rng, 3) == 0) fake_sleep(500);
        if (i >= 4 && kt_rng_below(&rng, 2)) atomic_store(&c[i - 4]->is_gone, true);
        atomic_store(&c[i]->is_behind, kt_rng_below(&rng, 4) == 0);
    }
    for (int i = 0; i < N; i++) atomic_store(&c[i]->is_behind, false);
    for (int i = 0; i < N; i++) wait_done(c[i], 60000);
    end();
    for (int i = 0; i < N; i++) {
        cr_assert_eq(atomic_load(&c[i]->n_done), 1, "client %d: done %d times", i,
                     atomic_load(&c[i]->n_done));
        if (c[i]->status == KT_OK)
            for (size_t k = 0; k < (size_t)c[i]->request.n; k++) check_tokens(c[i], k);
        else
            cr_assert(c[i]->status == KT_E_CANCELLED && atomic_load(&c[i]->is_gone), "%s",
                      c[i]->why);
        drop(c[i]);
    }
}

/* ---- errors ---- */

static void not_finite(fake_engine *f, const int32_t *tokens, int64_t n, float *logits) {
    hashed(f, tokens, n, logits);
    if (tokens[0] == 77) logits[5] = __builtin_nanf("");
}

static kt_status step_checked(void *self, const kt_batch *b, float *logits, const kt_stop *stop,
                              kt_err *err) {
    KT_TRY(fake_step(self, b, logits, stop, err));
    for (int64_t i = 0; i < b->n_out * 4096; i++)
        if (logits[i] != logits[i]) return kt_fail(err, KT_E_FORMAT, "not finite");
    return KT_OK;
}

/* Logits that are not finite are one request's error, not its neighbours'. */
Test(scheduler, an_error_of_one_row_is_that_requests) {
    client *good[3], *bad = make(9, 5, 1);

    begin((kt_scheduler_options){.is_manual = true});
    engine.logits = not_finite;
    backend.step = step_checked;
    bad->request.prompts[0].ids[0] = 77;
    submit(good[0] = make(9, 5, 2));
    submit(bad);
    submit(good[1] = make(9, 5, 3));
    submit(good[2] = make(9, 5, 4));
    run();
    cr_expect(bad->status == KT_E_FORMAT && strstr(bad->why, "not finite"), "%s", bad->why);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(good[i]->status, KT_OK);
        check_tokens(good[i], 0);
        drop(good[i]);
    }
    drop(bad);
    end();
}
