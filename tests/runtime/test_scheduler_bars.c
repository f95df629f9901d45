/* What the scheduler promises about waiting, computing again, starving and memory: counted in
 * steps, rows and pages, never by a clock. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "runtime/sched/scheduler.h"
#include "tests/runtime/fake_backend.h"
#include "tests/support/guard.h"

#define TINY KT_SOURCE_DIR "/datasets/models/tiny-moe"

enum { PAGE = KT_PAGE_TOKENS };

/* ---- clients ---- */

typedef struct client {
    kt_request request;
    kt_status status;
    bool is_done;
    char why[200];
} client;

static void on_event(void *arg, const kt_event *e) {
    (void)arg, (void)e;
}

static void on_done(void *arg, kt_status st, const kt_err *why) {
    client *c = arg;

    c->status = st;
    c->is_done = true;
    snprintf(c->why, sizeof c->why, "%.190s", why ? why->message : "");
}

/* A request of `ids` [n], which are copied, for max_tokens more in each of n_choices; with a mark
 * behind the first `mark` of them. */
static client *ask_marked(kt_scheduler *s, const int32_t *ids, size_t n, size_t mark,
                          int64_t max_tokens, int n_choices) {
    client *c = calloc(1, sizeof *c);

    kt_request_init(&c->request);
    c->request.prompts = calloc(1, sizeof *c->request.prompts);
    c->request.n_prompts = 1;
    c->request.prompts[0].ids = malloc(n * sizeof *ids);
    memcpy(c->request.prompts[0].ids, ids, n * sizeof *ids);
    c->request.prompts[0].n_ids = n;
    c->request.prompts[0].mark[0] = mark;
    c->request.max_tokens = max_tokens;
    c->request.n = n_choices;
    c->request.ignore_eos = true;
    c->request.client = (kt_request_client){.arg = c, .event = on_event, .done = on_done};
    cr_assert_eq(kt_scheduler_submit(s, &c->request), KT_SUBMIT_TAKEN);
    return c;
}

static client *ask(kt_scheduler *s, const int32_t *ids, size_t n, int64_t max_tokens,
                   int n_choices) {
    return ask_marked(s, ids, n, 0, max_tokens, n_choices);
}

static void fill(int32_t *ids, size_t n, uint64_t seed, int64_t vocab) {
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)kt_rng_below(&rng, (uint64_t)vocab);
}

static void run(kt_scheduler *s) {
    while (kt_scheduler_step(s)) {
    }
}

static void drop(client *c) {
    cr_expect(c->is_done && c->status == KT_OK, "%s", c->why);
    kt_request_deinit(&c->request);
    free(c);
}

/* ---- on real engines ---- */

typedef struct real {
    kt_engine *engine;
    kt_backend backend;
    kt_scheduler *sched;
} real;

/* With half of the context on it, so that steps are many. */
static void start(real *r, const char *model, int64_t rows) {
    const kt_engine_options e = {.model_dir = model,
                                 .weights = KT_QUANT_NATIVE,
                                 .table_path = "",
                                 .n_threads = 2,
                                 .max_chunk = rows,
                                 .kv_memory = (size_t)64 << 20,
                                 .max_context = 2048,
                                 .made_up_tokens = true};
    kt_scheduler_options s = {.backend = &r->backend, .is_manual = true, .itl_ns = 1};
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_create(&e, &r->engine, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_backend_from_engine(r->engine, model, "native", &r->backend, &err), KT_OK, "%s",
                 err.message);
    cr_assert_eq(kt_scheduler_create(&s, &r->sched, &err), KT_OK, "%s", err.message);
}

static void stop(real *r) {
    kt_scheduler_destroy(r->sched);
    kt_engine_destroy(r->engine);
}

/* Turn 2 repeats turn 1's prompt and its answer, and has 60 new tokens: 2,000 in all. */
static void talk(const char *model, int answer) {
    enum { NEW = 60, ALL = 2000 };
    const int first = ALL - NEW - answer;
    int32_t ids[ALL];
    const int32_t *made;
    kt_scheduler_counts before, after;
    int64_t rows;
    size_t n;
    real r;
    client *c;

    start(&r, model, 512);
    fill(ids, first, 1, r.backend.vocab);
    c = ask(r.sched, ids, first, answer, 1);
    run(r.sched);
    before = kt_scheduler_count(r.sched);
    cr_assert_geq(before.prompt_rows, first, "%s: turn 1 computed %lld rows", model,
                  (long long)before.prompt_rows);
    made = kt_request_tokens(&c->request, 0, &n);
    cr_assert_eq(n, answer);
    memcpy(ids + first, made, n * sizeof *ids);
    drop(c);
    cr_expect_leq(before.kv.slots_cached, 2,
                  "%s: %d states were kept, expected that of the prompt "
                  "and the latest of the answer",
                  model, (int)before.kv.slots_cached);
    fill(ids + first + answer, NEW, 2, r.backend.vocab);
    c = ask(r.sched, ids, ALL, 1, 1);
    run(r.sched);
    after = kt_scheduler_count(r.sched);
    rows = after.prompt_rows + after.decode_rows - before.prompt_rows - before.decode_rows;
    cr_expect(rows >= NEW && rows <= NEW + 128, "%s: turn 2 computed %lld rows", model,
              (long long)rows);
    cr_expect_eq(c->request.cached_tokens + rows, ALL, "%s", model);
    drop(c);
    stop(&r);
}

Test(scheduler_bars, turn_two_computes_what_is_new, .timeout = 120) {
    talk(TINY, 40);
}

/* With recurrent layers a kept state is what it goes on from. */
Test(scheduler_bars, turn_two_of_a_recurrent_model_computes_what_is_new, .timeout = 120) {
    char folder[400];

    if (!kt_shared_path("data/golden/qwen3_next", folder, sizeof folder))
        cr_skip_test("golden/qwen3_next: the shared data is absent");
    talk(folder, 40);
    talk(folder, 500); /* a state is kept within the answer, too */
}

/* Two conversations that begin with the same 1,200 tokens, such as a system prompt and tools. */
Test(scheduler_bars, a_system_prompt_is_computed_once, .timeout = 120) {
    enum { SHARED = 1200, OWN = 300 };
    int32_t ids[SHARED + OWN];
    char folder[400];
    kt_scheduler_counts before, after;
    client *c;
    real r;

    for (int is_recurrent = 0; is_recurrent < 2; is_recurrent++) {
        if (is_recurrent && !kt_shared_path("data/golden/qwen3_next", folder, sizeof folder)) break;
        start(&r, is_recurrent ? folder : TINY, 512);
        fill(ids, SHARED, 1, r.backend.vocab);
        for (uint64_t talker = 0; talker < 2; talker++) {
            fill(ids + SHARED, OWN, 2 + talker, r.backend.vocab);
            before = kt_scheduler_count(r.sched);
            c = ask_marked(r.sched, ids, SHARED + OWN, SHARED, 1, 1);
            run(r.sched);
            after = kt_scheduler_count(r.sched);
            cr_expect_eq(c->request.cached_tokens, talker ? SHARED / PAGE * PAGE : 0);
            cr_expect_eq(after.steps - before.steps,
                         talker ? 1 + is_recurrent : 3 + 2 * is_recurrent,
                         "%d: only states need steps of their own", is_recurrent);
            drop(c);
        }
        cr_expect_eq(after.kv.slots_cached, 3 * is_recurrent);
        stop(&r);
    }
}

/* Whoever comes while a step runs is in the next one, and done with it. */
Test(scheduler_bars, one_token_beside_two_thousand_waits_one_step, .timeout = 120) {
    int32_t ids[2000];
    real r;

    start(&r, TINY, 128);
    fill(ids, 2000, 3, 4000);
    for (int is_busy = 0; is_busy < 2; is_busy++) { /* with nobody, and somebody, generating */
        client *busy = NULL, *slow, *quick;
        int64_t steps;
        if (is_busy) {
            busy = ask(r.sched, ids + 7, 5, 100, 1);
            for (int i = 0; i < 3; i++) kt_scheduler_step(r.sched);
        }
        slow = ask(r.sched, ids, 2000, 1, 1);
        kt_scheduler_step(r.sched); /* the one that runs when the quick one comes */
        cr_assert_not(slow->is_done);
        quick = ask(r.sched, ids + 100, 1, 1, 1);
        steps = kt_scheduler_count(r.sched).steps;
        kt_scheduler_step(r.sched);
        cr_expect(quick->is_done, "not done after one more step");
        cr_expect_eq(kt_scheduler_count(r.sched).steps, steps + 1);
        cr_expect_not(slow->is_done, "the long one was over anyway");
        run(r.sched);
        drop(quick), drop(slow);
        if (busy) drop(busy);
        kt_engine_drop_cache(r.engine);
    }
    stop(&r);
}

/* ---- on an engine that remembers whole pages ---- */

enum { MOST_KEPT = 64 };

static fake_engine engine;
static kt_backend backend;
static kt_scheduler *sched;
static struct {
    int32_t *tokens;
    int64_t length;
} kept[MOST_KEPT]; /* whole pages of sequences that were closed */
static int n_kept;

static void hashed(fake_engine *f, const int32_t *tokens, int64_t n, float *logits) {
    uint64_t h = 0xcbf29ce484222325u;
    (void)f;

    for (int64_t i = 0; i < n; i++) h = (h ^ (uint64_t)(tokens[i] + 1)) * 0x100000001b3u;
    memset(logits, 0, 4096 * sizeof *logits);
    logits[(h >> 20) % 4000] = 50;
}

static void close_and_keep(void *self, kt_sequence *sequence) {
    const fake_sequence *s = fake_of(sequence);
    const int64_t whole = s->length / PAGE * PAGE;

    if (whole > 0 && n_kept < MOST_KEPT) {
        kept[n_kept].tokens = malloc((size_t)whole * sizeof(int32_t));
        memcpy(kept[n_kept].tokens, s->tokens, (size_t)whole * sizeof(int32_t));
        kept[n_kept++].length = whole;
    }
    fake_close(self, sequence);
}

static int64_t shared_pages(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b) {
    int64_t n = 0;

    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n / PAGE;
}

static int64_t reuse_kept(void *self, kt_sequence *sequence, const int32_t *tokens, int64_t n) {
    fake_sequence *s = fake_of(sequence);
    int64_t best = 0;

    for (int i = 0; i < n_kept; i++) {
        const int64_t pages = shared_pages(kept[i].tokens, kept[i].length, tokens, n - 1);
        if (pages > best) best = pages;
    }
    if (best == 0 || fake_reserve(self, sequence, best * PAGE, NULL) != KT_OK) return 0;
    memcpy(s->tokens, tokens, (size_t)(best * PAGE) * sizeof *tokens);
    return s->length = best * PAGE;
}

static void begin(kt_scheduler_options o) {
    kt_err err = {KT_OK, ""};

    cr_assert(fake_init(&engine, &backend, TINY "/tokenizer.json"));
    engine.logits = hashed;
    o.backend = &backend;
    o.is_manual = true;
    cr_assert_eq(kt_scheduler_create(&o, &sched, &err), KT_OK, "%s", err.message);
}

static void end(void) {
    kt_scheduler_destroy(sched);
    cr_assert_eq(atomic_load(&engine.n_open), 0, "sequences were leaked");
    fake_deinit(&engine);
    for (int i = 0; i < n_kept; i++) free(kept[i].tokens);
    n_kept = 0;
}

/* Of a choice that gave up its pages only what is not in a whole page is computed again: not what
 * it had made, and not the prompt that its siblings share. */
Test(scheduler_bars, who_gave_up_its_pages_reuses_all_it_had, .timeout = 60) {
    enum { PROMPT = 100, MADE = 500, CHOICES = 4 };
    int32_t ids[PROMPT];
    kt_scheduler_counts counts;
    client *c;

    begin((kt_scheduler_options){0});
    backend.close = close_and_keep;
    backend.reuse = reuse_kept;
    atomic_store(&engine.n_pages, 20); /* 1,280 tokens; all would be 4 * 600 */
    fill(ids, PROMPT, 1, 4000);
    c = ask(sched, ids, PROMPT, MADE, CHOICES);
    run(sched);
    counts = kt_scheduler_count(sched);
    cr_assert_gt(counts.preemptions, 0);
    cr_expect_leq(engine.n_computed, PROMPT + CHOICES * (MADE - 1) + PAGE * counts.preemptions,
                  "%lld rows with %lld preemptions", (long long)engine.n_computed,
                  (long long)counts.preemptions);
    drop(c);
    end();
}

/* ---- many clients ---- */

static long resident_kib(void) {
    long pages = 0, all;
    FILE *f = fopen("/proc/self/statm", "r");

    cr_assert(f && fscanf(f, "%ld %ld", &all, &pages) == 2);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Sixty-four at once, round after round: from the tenth step on nobody has more than twice the
 * tokens of anybody else, and no round leaves memory behind. */
Test(scheduler_bars, sixty_four_clients_get_on_alike_and_memory_is_flat, .timeout = 120) {
    enum { N = 64, TOKENS = 40, ROUNDS = 12, SETTLED = 4 };
    client *c[N];
    long settled = 0;

    begin((kt_scheduler_options){.queue = N});
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N; i++) {
            int32_t ids[32];
            fill(ids, 32, (uint64_t)(round * N + i), 4000);
            c[i] = ask(sched, ids, (size_t)(1 + i % 32), TOKENS, 1);
        }
        for (int step = 0; kt_scheduler_step(sched); step++) {
            int64_t least = INT64_MAX, most = 0;
            for (int i = 0; i < N; i++) {
                const int64_t n = c[i]->request.completion_tokens;
                if (n < least) least = n;
                if (n > most) most = n;
            }
            cr_assert(step < 10 || most <= 2 * least, "between %d and %d tokens", (int)least,
                      (int)most);
        }
        for (int i = 0; i < N; i++) drop(c[i]);
        if (round == SETTLED) settled = resident_kib();
    }
#ifndef __SANITIZE_ADDRESS__ /* which keeps what was freed */
    cr_expect_leq(resident_kib() - settled, 512, "%ld KiB more after %d rounds",
                  resident_kib() - settled, ROUNDS - SETTLED - 1);
#else
    cr_expect_gt(settled, 0);
#endif
    end();
}
