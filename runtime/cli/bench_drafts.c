/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/bench_drafts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/err.h"
#include "base/json.h"
#include "kt/version.h"
#include "runtime/cli/command.h"
#include "runtime/cli/interrupt.h"
#include "runtime/sched/scheduler.h"

#define MAX_TEXT_BYTES ((size_t)64 << 20)

enum { PLAIN, DRAFTED, WAYS };

/* One of the two ways: a scheduler of its own, which learns what steps cost and how often drafts
 * come true, on the same engine. */
typedef struct way {
    kt_scheduler *scheduler;
    double *rate;    /* owned: [repetitions] tokens per second */
    int32_t *tokens; /* owned: [n_generate] of the last turn */
} way;

typedef struct contest {
    const kt_bench_drafts *ask;
    kt_engine *engine;
    kt_engine_info info;
    kt_backend backend;
    int32_t *prompt; /* owned */
    int64_t n_prompt;
    way ways[WAYS];
    bool is_done; /* the request in work */
    kt_status status;
    kt_err why;
} contest;

static void take_event(void *arg, const kt_event *e) {
    (void)arg, (void)e;
}

static bool is_gone(void *arg) {
    (void)arg;
    return kt_interrupted(NULL);
}

static void take_end(void *arg, kt_status st, const kt_err *why) {
    contest *c = arg;

    c->is_done = true;
    c->status = st;
    if (st != KT_OK) c->why = *why;
}

/* ---- preparing ---- */

static kt_status read_prompt(contest *c, kt_err *err) {
    char *text = NULL;
    size_t size = 0, n = 0;
    kt_status st;

    KT_TRY(kt_file_read(c->ask->text, MAX_TEXT_BYTES, &text, &size, err));
    st = kt_tokenizer_encode(c->backend.tokenizer, text, size, true, &c->prompt, &n, err);
    free(text);
    if (st != KT_OK) return st;
    c->n_prompt = (int64_t)n < c->ask->n_prompt ? (int64_t)n : c->ask->n_prompt;
    if (c->n_prompt < 1) return kt_fail(err, KT_E_INVALID, "%s: no text in it", c->ask->text);
    if (c->n_prompt + c->ask->n_generate <= c->backend.max_context) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "%lld tokens after %lld do not fit the context of %lld",
                   (long long)c->ask->n_generate, (long long)c->n_prompt,
                   (long long)c->backend.max_context);
}

static kt_status prepare(contest *c, kt_err *err) {
    const kt_bench_drafts *ask = c->ask;

    kt_engine_describe(c->engine, &c->info);
    KT_TRY(kt_backend_from_engine(c->engine, NULL, ask->engine->weights, &c->backend, err));
    KT_TRY(read_prompt(c, err));
    for (int i = 0; i < WAYS; i++) {
        way *w = &c->ways[i];
        const kt_scheduler_options options = {.backend = &c->backend,
                                              .max_running = 1,
                                              .speculate =
                                                  i == DRAFTED ? ask->speculate : KT_SPECULATE_OFF,
                                              .draft = (int)ask->draft,
                                              .is_manual = true};
        w->rate = calloc((size_t)ask->repetitions, sizeof *w->rate);
        w->tokens = calloc((size_t)ask->n_generate, sizeof *w->tokens);
        if (!w->rate || !w->tokens) return kt_fail(err, KT_E_NOMEM, "no memory for the benchmark");
        KT_TRY(kt_scheduler_create(&options, &w->scheduler, err));
    }
    return KT_OK;
}

/* ---- a turn ---- */

static kt_status make_request(contest *c, kt_request *r, kt_err *err) {
    kt_prompt *p = calloc(1, sizeof *p);

    kt_request_init(r);
    r->prompts = p;
    r->n_prompts = p ? 1 : 0;
    if (p) p->ids = malloc((size_t)c->n_prompt * sizeof *p->ids);
    if (!p || !p->ids) return kt_fail(err, KT_E_NOMEM, "no memory for the prompt");
    memcpy(p->ids, c->prompt, (size_t)c->n_prompt * sizeof *p->ids);
    p->n_ids = (size_t)c->n_prompt;
    r->max_tokens = c->ask->n_generate;
    r->ignore_eos = true;
    r->client =
        (kt_request_client){.arg = c, .event = take_event, .is_gone = is_gone, .done = take_end};
    return KT_OK;
}

static kt_status run_request(contest *c, way *w, kt_request *r, double *rate, kt_err *err) {
    const int32_t *made;
    size_t n;

    KT_TRY(make_request(c, r, err));
    c->is_done = false;
    if (kt_scheduler_submit(w->scheduler, r) != KT_SUBMIT_TAKEN)
        return kt_fail(err, KT_E_NOMEM, "no memory for the request");
    while (!c->is_done) kt_scheduler_step(w->scheduler);
    if (c->status != KT_OK) return kt_fail(err, c->status, "%s", c->why.message);
    made = kt_request_tokens(r, 0, &n);
    memcpy(w->tokens, made, n * sizeof *made);
    *rate = (double)(r->completion_tokens - 1) * 1e9 / (double)(r->end_ns - r->prompt_ns);
    return KT_OK;
}

static kt_status take_turn(contest *c, int way_id, int64_t turn, kt_err *err) {
    way *w = &c->ways[way_id];
    kt_request r;
    double rate = 0;
    const kt_status st = run_request(c, w, &r, &rate, err);

    kt_request_deinit(&r);
    if (st == KT_OK && turn >= 0) w->rate[turn] = rate;
    return st;
}

/* ---- what came of it ---- */

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const contest *c, const way *w) {
    const int64_t n = c->ask->repetitions;

    qsort(w->rate, (size_t)n, sizeof *w->rate, ascending);
    return n % 2 ? w->rate[n / 2] : (w->rate[n / 2 - 1] + w->rate[n / 2]) / 2;
}

/* The first token that drafts changed, or -1. */
static int64_t first_difference(const contest *c) {
    for (int64_t i = 0; i < c->ask->n_generate; i++)
        if (c->ways[PLAIN].tokens[i] != c->ways[DRAFTED].tokens[i]) return i;
    return -1;
}

static double share(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

static void print_text(const contest *c, const kt_scheduler_counts *n) {
    const double plain = median(c, &c->ways[PLAIN]), drafted = median(c, &c->ways[DRAFTED]);
    const int64_t difference = first_difference(c);

    printf("%s, weights %s, %lld threads, kt %s\n%s\n", c->info.model_name, c->ask->engine->weights,
           (long long)c->info.n_threads, KT_VERSION, c->info.table_line);
    printf("off      %8.2f tokens/s  (%lld after %lld, median of %lld)\n", plain,
           (long long)c->ask->n_generate, (long long)c->n_prompt, (long long)c->ask->repetitions);
    printf("%-8s %8.2f tokens/s  %.2f times\n", c->ask->word, drafted, share(drafted, plain));
    printf("drafts: %.1f %% of %lld tokens came true, in %lld of %lld steps; by the cost of steps "
           "%.2f times as fast there\n",
           100 * share((double)n->draft_hits, (double)n->draft_rows), (long long)n->draft_rows,
           (long long)n->draft_steps, (long long)n->steps,
           1 + share((double)n->draft_saved_ns, (double)n->draft_ns));
    if (difference < 0)
        printf("the tokens are the same\n");
    else
        printf("the tokens differ from number %lld on (bits follow the rows of a step without "
               "--deterministic)\n",
               (long long)difference);
}

static void print_json(const contest *c, const kt_scheduler_counts *n) {
    kt_json_writer w = {0};

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "model", c->info.model_name);
    kt_json_add_string(&w, "weights", c->ask->engine->weights);
    kt_json_add_int(&w, "threads", c->info.n_threads);
    kt_json_add_string(&w, "version", KT_VERSION);
    kt_json_add_string(&w, "table", c->info.table_line);
    kt_json_add_string(&w, "speculate", c->ask->word);
    kt_json_add_int(&w, "prompt_tokens", c->n_prompt);
    kt_json_add_int(&w, "tokens", c->ask->n_generate);
    kt_json_add_int(&w, "turns", c->ask->repetitions);
    kt_json_add_double(&w, "plain_tokens_per_second", median(c, &c->ways[PLAIN]));
    kt_json_add_double(&w, "drafted_tokens_per_second", median(c, &c->ways[DRAFTED]));
    kt_json_add_int(&w, "steps", n->steps);
    kt_json_add_int(&w, "draft_steps", n->draft_steps);
    kt_json_add_int(&w, "draft_tokens", n->draft_rows);
    kt_json_add_int(&w, "draft_tokens_accepted", n->draft_hits);
    kt_json_add_double(&w, "acceptance", share((double)n->draft_hits, (double)n->draft_rows));
    kt_json_add_double(&w, "gain", 1 + share((double)n->draft_saved_ns, (double)n->draft_ns));
    kt_json_add_int(&w, "first_difference", first_difference(c));
    kt_json_end_object(&w);
    kt_json_writer_print(&w, stdout);
}

int kt_bench_drafts_run(const kt_bench_drafts *ask, const kt_usage *usage, const char *model,
                        const kt_log *log) {
    contest c = {.ask = ask};
    kt_err err = {KT_OK, ""};
    const kt_draft_flags drafts = {.speculate = ask->word};
    int code = kt_draft_flags_load(&drafts, ask->engine, usage, model, log, &c.engine);
    kt_status st;

    if (code != 0) return code;
    st = prepare(&c, &err);
    for (int64_t turn = -1; turn < ask->repetitions; turn++)
        for (int i = 0; i < WAYS && st == KT_OK; i++) st = take_turn(&c, i, turn, &err);
    if (st == KT_OK) {
        const kt_scheduler_counts counts = kt_scheduler_count(c.ways[DRAFTED].scheduler);
        (ask->json ? print_json : print_text)(&c, &counts);
    } else {
        code = kt_command_fail(&err);
    }
    for (int i = 0; i < WAYS; i++) {
        kt_scheduler_destroy(c.ways[i].scheduler);
        free(c.ways[i].rate);
        free(c.ways[i].tokens);
    }
    kt_engine_destroy(c.engine);
    free(c.prompt);
    return code;
}
