/* Drafts: the look-up of n-grams, what they are worth, and requests that are answered with them,
 * which must say what they say without. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "runtime/sched/sched_impl.h"
#include "tests/runtime/fake_backend.h"
#include "tests/support/guard.h"
#include "tests/support/plain_model.h"
#include "tests/support/temp.h"

/* ---- n-grams ---- */

static int64_t draft_after(kt_ngram *x, const char *text, int64_t most, char *out) {
    int32_t token[KT_DRAFT_MOST];
    int64_t matched = 0, n;

    while (x->n < (int64_t)strlen(text)) cr_assert(kt_ngram_push(x, text[x->n]));
    n = kt_ngram_draft(x, most, token, &matched);
    for (int64_t i = 0; i < n; i++) out[i] = (char)token[i];
    out[n] = '\0';
    return matched;
}

Test(ngram, the_longest_suffix_found_before_says_what_comes_next) {
    static const struct {
        const char *text, *draft;
        int64_t most, matched;
    } cases[] = {
        {"", "", 4, 0},
        {"ab", "", 4, 0},
        {"abXb", "", 4, 0}, /* one token is too little */
        {"abcdefXab", "cdef", 4, 2},
        {"abcd1 abcd2 bcd", "2 bc", 4, 3},    /* the latest of equal ones */
        {"xabcd1 abcd2 xabcd", "1 ab", 4, 5}, /* a longer one before a later one */
        {"12341234", "12", 2, 4},
        {"abab", "ababa", 5, 2}, /* goes on past the end as it did */
        {"aaaa", "aaa", 3, 3},
        {"the cat sat. the cat s", "at. ", 4, 9},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_ngram x = {0};
        char out[KT_DRAFT_MOST + 1];
        const int64_t matched = draft_after(&x, cases[i].text, cases[i].most, out);
        cr_expect_eq(matched, cases[i].matched, "'%s': a match of %d", cases[i].text, (int)matched);
        cr_expect_str_eq(out, cases[i].draft, "'%s' is followed by '%s'", cases[i].text, out);
        kt_ngram_deinit(&x);
    }
}

/* The longest match by trying every place, the latest of equal ones. */
static int64_t longest(const int32_t *token, int64_t n, int64_t *at) {
    int64_t best = 0;

    for (int64_t i = n - 2; i >= 0; i--) {
        int64_t k = 0;
        while (k < KT_NGRAM_LONGEST && k <= i && token[i - k] == token[n - 1 - k]) k++;
        if (k <= best) continue;
        best = k;
        *at = i;
    }
    return best >= KT_NGRAM_LEAST ? best : 0;
}

/* Texts in which no n-gram is so common that places are left out; they grow past every table. */
Test(ngram, agrees_with_trying_every_place) {
    enum { N = 1500 };
    static int32_t token[N];
    kt_ngram x = {0};
    kt_rng rng;

    kt_rng_seed(&rng, 3);
    for (int64_t n = 1; n <= N; n++) {
        int64_t at = -1, matched, want;
        int32_t out[3];
        token[n - 1] = (int32_t)kt_rng_below(&rng, 40);
        if (n > 200 && kt_rng_below(&rng, 10)) token[n - 1] = token[n - 1 - 97]; /* repeats */
        cr_assert(kt_ngram_push(&x, token[n - 1]));
        want = longest(token, n, &at);
        cr_assert_eq(kt_ngram_draft(&x, 3, out, &matched), want ? 3 : 0, "after %d", (int)n);
        cr_assert_eq(matched, want, "after %d: %d, expected %d", (int)n, (int)matched, (int)want);
        if (want) cr_assert_eq(out[0], token[at + 1], "after %d", (int)n);
    }
    kt_ngram_deinit(&x);
}

/* ---- rates and costs ---- */

Test(draft_rate, is_that_of_the_text_and_before_that_of_all_texts) {
    kt_draft_rate all = {0}, own = {0};

    cr_expect_float_eq(kt_draft_rate_of(&own, &all, 2), 0.5, 1e-9, "nobody knows");
    for (int i = 0; i < 98; i++) kt_draft_rate_add(&all, 5, i % 10 == 0);
    cr_expect_float_eq(kt_draft_rate_of(&own, &all, 4), 0.11, 1e-9);
    cr_expect_float_eq(kt_draft_rate_of(&own, &all, 8), 0.5, 1e-9, "another class");
    for (int i = 0; i < 4; i++) kt_draft_rate_add(&own, 7, true);
    cr_expect_float_eq(kt_draft_rate_of(&own, &all, 4), (4 + 0.44) / 8, 1e-9);
    for (int i = 0; i < 3000; i++) kt_draft_rate_add(&own, 7, false);
    cr_expect_lt(kt_draft_rate_of(&own, &all, 4), 0.01, "old trials fade");
}

static double a_row_costs(void *arg, int64_t rows) {
    const double *of = arg; /* of a step and of a row in it */
    return of[0] < 0 ? 0 : of[0] + of[1] * (double)rows;
}

Test(draft_plan, takes_what_makes_the_most_tokens_in_a_time) {
    kt_draft_offer o[2] = {{.n = 3, .p = {0.9, 0.8, 0.3}}, {.n = 2, .p = {0.5, 0.1}}};
    double cost[2] = {90, 10};
    kt_draft_step step = {.tokens = 2, .rows = 2, .most = 32, .cost_ns = a_row_costs, .arg = cost};
    double gain = kt_draft_plan(&step, o, 2);

    /* 2 of 110; 2.9 of 120; 3.7 of 130; 4.2 of 140; 4.5 of 150, as the one before, 4.6 of 160 */
    cr_expect_float_eq(gain, 4.2 / 140 * 110 / 2, 1e-9, "%g", gain);
    cr_expect(o[0].taken == 2 && o[1].taken == 1, "%d and %d", (int)o[0].taken, (int)o[1].taken);
    step.most = 1;
    kt_draft_plan(&step, o, 2);
    cr_expect(o[0].taken == 1 && o[1].taken == 0, "%d and %d", (int)o[0].taken, (int)o[1].taken);
    step.most = 32;
    step.longest_ns = 135;
    kt_draft_plan(&step, o, 2);
    cr_expect(o[0].taken == 2 && o[1].taken == 0, "%d and %d", (int)o[0].taken, (int)o[1].taken);
    step.longest_ns = 0;
    cost[0] = 0; /* each row costs what one costs: nothing is won */
    cr_expect_float_eq(kt_draft_plan(&step, o, 2), 1, 1e-9);
    cr_expect(o[0].taken == 0 && o[1].taken == 0);
    cost[0] = -1; /* nobody knows */
    cr_expect_float_eq(kt_draft_plan(&step, o, 2), 1, 1e-9);
    cr_expect(o[0].taken == 0 && o[1].taken == 0);
    step.is_indifferent = true;
    kt_draft_plan(&step, o, 2);
    cr_expect(o[0].taken == 3 && o[1].taken == 2);
}

Test(draft_plan, a_little_more_or_less_switches_nothing) {
    cr_expect(!kt_draft_is_worth(false, 1.05) && kt_draft_is_worth(true, 1.05));
    cr_expect(kt_draft_is_worth(false, 1.2) && !kt_draft_is_worth(true, 1.0));
}

/* ---- requests ---- */

/* A client, what it was told as text, and its request. */
typedef struct client {
    kt_request request;
    kt_text told;
    int n_done;
    kt_status status;
    atomic_bool is_gone;
} client;

static fake_engine engine;
static kt_backend backend;
static kt_scheduler *sched;

/* The next token follows from the last two, but for every fifth, which follows from all: texts that
 * repeat themselves, and never for long. */
static int32_t next_of(const int32_t *tokens, int64_t n) {
    uint64_t h = 0xcbf29ce484222325u;

    for (int64_t i = n % 5 == 0 || n < 2 ? 0 : n - 2; i < n; i++)
        h = (h ^ (uint64_t)(tokens[i] + 1)) * 0x100000001b3u;
    return (int32_t)(100 + (h >> 20) % 6);
}

static void repeating(fake_engine *f, const int32_t *tokens, int64_t n, float *logits) {
    const int32_t best = next_of(tokens, n);

    for (int64_t i = 0; i < f->vocab; i++) logits[i] = (float)(i % 5) * 0.01f;
    logits[best] = 9;
    logits[100 + (best + 1) % 6] = 8; /* a second one, near enough to be drawn at times */
}

static void begin(kt_scheduler_options o, int64_t vocab,
                  void (*logits)(fake_engine *, const int32_t *, int64_t, float *)) {
    kt_err err = {0};

    cr_assert(
        fake_init(&engine, &backend, KT_SOURCE_DIR "/datasets/models/tiny-moe/tokenizer.json"));
    engine.logits = logits;
    backend.vocab = engine.vocab = vocab;
    o.backend = &backend;
    cr_assert_eq(kt_scheduler_create(&o, &sched, &err), KT_OK, "%s", err.message);
}

static void end(void) {
    kt_scheduler_destroy(sched);
    cr_assert_eq(atomic_load(&engine.n_open), 0, "sequences were leaked");
    cr_assert_eq((int)atomic_load(&engine.n_pages_used), 0, "pages were leaked");
    fake_deinit(&engine);
}

static void tell(client *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void tell(client *c, const char *format, ...) {
    char line[200];
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    cr_assert_eq(kt_text_append(&c->told, line, strlen(line), NULL), KT_OK);
}

static void on_event(void *arg, const kt_event *e) {
    client *c = arg;

    cr_assert_eq(c->n_done, 0, "an event after the end");
    if (e->choice > 0) return; /* their order among each other is free */
    if (e->kind == KT_EVENT_TEXT) tell(c, "[%.*s]", (int)e->size, e->text);
    if (e->kind == KT_EVENT_LOGPROB)
        tell(c, "{%d %.5f %d}", e->as.logprob.token, (double)e->as.logprob.value,
             e->as.logprob.n_top);
    if (e->kind == KT_EVENT_FINISH)
        tell(c, "(%d %s %d %lld)", e->as.finish.reason,
             e->as.finish.matched ? e->as.finish.matched : "-", e->as.finish.stop_token,
             (long long)e->as.finish.completion_tokens);
}

static void on_done(void *arg, kt_status st, const kt_err *why) {
    client *c = arg;

    (void)why;
    c->status = st;
    c->n_done++;
}

static bool is_gone(void *arg) {
    return atomic_load(&((client *)arg)->is_gone);
}

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
        c->request.prompts[0].ids[i] = (int32_t)kt_rng_below(&rng, 6);
    c->request.max_tokens = max_tokens;
    c->request.ignore_eos = true;
    c->request.sampling.seed = seed;
    c->request.client =
        (kt_request_client){.arg = c, .event = on_event, .is_gone = is_gone, .done = on_done};
    return c;
}

static void submit(client *c) {
    cr_assert_eq(kt_scheduler_submit(sched, &c->request), KT_SUBMIT_TAKEN);
}

static void drop(client *c) {
    kt_request_deinit(&c->request);
    free(c->told.data);
    free(c);
}

static void run(void) {
    while (kt_scheduler_step(sched)) {
    }
}

/* The tokens that the engine must give choice i, computed without any scheduler. */
static void check_tokens(const client *c, size_t i) {
    const kt_prompt *p = &c->request.prompts[0];
    size_t n;
    const int32_t *got = kt_request_tokens(&c->request, i, &n);
    int32_t all[4096];

    cr_assert_eq(c->status, KT_OK);
    cr_assert_eq((int64_t)n, c->request.max_tokens, "%zu tokens", n);
    memcpy(all, p->ids, p->n_ids * sizeof *all);
    for (size_t k = 0; k < n; k++) {
        all[p->n_ids + k] = next_of(all, (int64_t)(p->n_ids + k));
        cr_assert_eq(got[k], all[p->n_ids + k], "token %zu of %zu is %d, expected %d", k, n, got[k],
                     all[p->n_ids + k]);
    }
}

static const kt_scheduler_options drafting = {
    .is_manual = true, .speculate = KT_SPECULATE_NGRAM, .draft = 5, .always_drafts = true};

/* A draft head that is mostly right. Every row that was kept comes to it once, with the token
 * behind it; or again, where states went back. */
static kt_status fake_head(void *self, kt_draft_span *spans, int n_spans, float *logits,
                           kt_err *err) {
    int32_t all[4096];

    (void)self, (void)logits, (void)err;
    for (int k = 0; k < n_spans; k++) {
        const kt_draft_span *p = &spans[k];
        const int64_t end = p->position + p->rows;
        cr_assert(p->rows > 0 && end <= fake_of(p->seq)->length);
        memcpy(all, fake_of(p->seq)->tokens, (size_t)end * sizeof *all);
        for (int64_t i = 0; i + 1 < p->rows; i++)
            cr_assert_eq(p->next[i], all[p->position + i + 1], "behind row %d", (int)i);
        all[end] = p->next[p->rows - 1];
        for (int64_t i = 0; i < p->n; i++) {
            all[end + 1 + i] = next_of(all, end + 1 + i);
            if ((end + i) % 7 == 0) all[end + 1 + i] = 99; /* and wrong at times */
            p->out[i] = all[end + 1 + i];
        }
    }
    return KT_OK;
}

/* Greedy: the same tokens in fewer steps, side by side, forked, with pages that run out. */
static void check_greedy(bool has_states, kt_speculation speculate) {
    kt_scheduler_options o = drafting;
    client *c[6];
    kt_scheduler_counts n;
    int64_t tokens = 0, drafted = 0, hits = 0;

    o.speculate = speculate;
    begin((kt_scheduler_options){.is_manual = true}, 4096, repeating);
    kt_scheduler_destroy(sched);
    if (speculate == KT_SPECULATE_HEAD) backend.draft = fake_head;
    o.backend = &backend;
    cr_assert_eq(kt_scheduler_create(&o, &sched, NULL), KT_OK);
    engine.has_states = has_states;
    atomic_store(&engine.n_pages, 24); /* 1,536 tokens; all would be some 2,900 */
    for (int i = 0; i < 6; i++) {
        c[i] = make(1 + 23 * i, 300 + i, (uint64_t)i);
        c[i]->request.n = i == 2 ? 3 : 1;
        submit(c[i]);
    }
    run();
    n = kt_scheduler_count(sched);
    for (int i = 0; i < 6; i++) {
        for (size_t k = 0; k < (size_t)c[i]->request.n; k++) check_tokens(c[i], k);
        tokens += c[i]->request.completion_tokens;
        drafted += c[i]->request.draft_tokens;
        hits += c[i]->request.draft_hits;
        drop(c[i]);
    }
    cr_expect_gt(n.preemptions, 0);
    cr_expect(n.draft_rows == drafted && n.draft_hits == hits, "%d of %d, the requests' %d of %d",
              (int)n.draft_hits, (int)n.draft_rows, (int)hits, (int)drafted);
    cr_expect(hits > tokens / 4 && hits < drafted, "%d of %d for %d tokens", (int)hits,
              (int)drafted, (int)tokens);
    cr_expect_leq(engine.most_rows, backend.max_rows);
    end();
}

Test(drafts, tokens_are_those_without, .timeout = 60) {
    check_greedy(false, KT_SPECULATE_NGRAM);
}

Test(drafts, of_a_head_make_the_same_tokens, .timeout = 60) {
    check_greedy(false, KT_SPECULATE_HEAD);
    check_greedy(true, KT_SPECULATE_HEAD);
}

/* Where states go back to the step's beginning what was right is computed again. */
Test(drafts, tokens_are_those_without_where_states_go_back_further, .timeout = 60) {
    check_greedy(true, KT_SPECULATE_NGRAM);
}

/* Every token but the last of each draft's rows is kept: rows are computed once. */
Test(drafts, rows_are_computed_once) {
    client *c = make(7, 200, 1);
    kt_scheduler_counts n;

    begin(drafting, 4096, repeating);
    submit(c);
    run();
    check_tokens(c, 0);
    n = kt_scheduler_count(sched);
    cr_expect_eq(engine.n_computed, 7 + 199 + n.draft_rows - n.draft_hits, "%d rows",
                 (int)engine.n_computed);
    cr_expect_eq(n.steps, 1 + 199 - n.draft_hits, "%d steps", (int)n.steps);
    cr_expect_eq(n.decode_rows + n.prompt_rows + n.draft_hits, 7 + 199);
    cr_expect_gt(n.drafts, 0);
    drop(c);
    end();
}

/* ---- wishes ---- */

/* A constraint: the token's number is never that of the token before, nor one more. */
typedef struct unlike {
    int32_t last;
} unlike;

static kt_status open_unlike(void *arg, void **state, kt_err *err) {
    (void)arg, (void)err;
    *state = calloc(1, sizeof(unlike));
    return KT_OK;
}

static kt_status mask_unlike(void *state, uint64_t *bits, kt_err *err) {
    const int32_t last = ((unlike *)state)->last;

    (void)err;
    memset(bits, 0xff, 4096 / 8);
    for (int32_t i = last; i <= last + 1; i++) bits[i / 64] &= ~(UINT64_C(1) << (i % 64));
    return KT_OK;
}

static kt_status accept_unlike(void *state, int32_t id, kt_err *err) {
    (void)err;
    ((unlike *)state)->last = id;
    return KT_OK;
}

static const kt_constraint never_alike = {
    .open = open_unlike, .close = free, .mask = mask_unlike, .accept = accept_unlike};

typedef void wish(kt_request *r);

static void nothing(kt_request *r) {
    (void)r;
}
static void drawn(kt_request *r) {
    r->sampling.temperature = 1;
    r->sampling.top_p = 0.95f;
}
static void penalised(kt_request *r) {
    r->sampling.temperature = 0.8f;
    r->sampling.frequency_penalty = 0.4f;
    r->sampling.presence_penalty = 0.5f;
    r->sampling.repetition_penalty = 1.1f;
}
static void with_logprobs(kt_request *r) {
    r->sampling.temperature = 1;
    r->logprobs = 3;
    r->prompt_logprobs = true;
}
static void constrained(kt_request *r) {
    r->constraint = &never_alike;
    r->sampling.temperature = 0.7f;
}
static void stopped(kt_request *r) {
    r->sampling.temperature = 1;
    r->stop_ids = malloc(sizeof *r->stop_ids);
    r->stop_ids[0] = 104;
    r->n_stop_ids = 1;
    r->min_tokens = 40; /* the end may come within a draft, and not before */
}
static void until_a_text(kt_request *r) {
    size_t size;
    char *text;
    const int32_t ids[] = {102, 105, 101};

    cr_assert_eq(kt_tokenizer_decode(backend.tokenizer, ids, 3, true, &text, &size, NULL), KT_OK);
    r->sampling.temperature = 1;
    r->stops.text[0] = text;
    r->stops.size[r->stops.n++] = size;
}
static void short_answer(kt_request *r) {
    r->max_tokens = 11;
}

/* What a client is told, with the seed, by one that drafts or one that does not. */
static void answer(client *c, wish *w, kt_speculation speculate, bool has_states) {
    kt_scheduler_options o = drafting;

    o.speculate = speculate;
    begin(o, 4096, repeating);
    engine.has_states = has_states;
    w(&c->request);
    submit(c);
    run();
    cr_assert_eq(c->status, KT_OK);
    tell(c, "%lld", (long long)c->request.completion_tokens);
    end();
}

/* Masks, penalties, log probabilities, stop strings and lengths: told the very same. */
Test(drafts, every_wish_is_met_as_without, .timeout = 60) {
    wish *const wishes[] = {nothing,     drawn,   penalised,    with_logprobs,
                            constrained, stopped, until_a_text, short_answer};
    int64_t hits = 0;

    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            client *plain = make(20, 120, seed), *drafted = make(20, 120, seed);
            answer(plain, wishes[i], KT_SPECULATE_OFF, false);
            answer(drafted, wishes[i], KT_SPECULATE_NGRAM, seed == 2);
            cr_expect_eq(plain->request.draft_tokens, 0);
            cr_assert(plain->told.size == drafted->told.size &&
                          memcmp(plain->told.data, drafted->told.data, plain->told.size) == 0,
                      "wish %zu, seed %d:\n%.*s\n%.*s", i, (int)seed, (int)plain->told.size,
                      plain->told.data, (int)drafted->told.size, drafted->told.data);
            hits += drafted->request.draft_hits;
            drop(plain), drop(drafted);
        }
    cr_expect_gt(hits, 200, "%d drafted tokens came true", (int)hits);
}

/* ---- the distribution ---- */

enum { KINDS = 8 };

/* How much more likely token j is after token i. */
static double weight_of(int i, int j) {
    return 1 + (i * 5 + j * 3) % KINDS + (j == (i + 1) % KINDS ? 12 : 0);
}

static void markov(fake_engine *f, const int32_t *tokens, int64_t n, float *logits) {
    for (int64_t i = 0; i < f->vocab; i++)
        logits[i] = i < KINDS ? (float)log(weight_of(tokens[n - 1] % KINDS, (int)i)) : -1e9f;
}

/* 10^5 draws of a chain, in which a draft comes true every other time: chi-square of what follows
 * what, with 56 degrees of freedom; more than 110 has a probability under 3e-5. */
Test(drafts, draws_keep_the_distribution, .timeout = 60) {
    enum { REQUESTS = 50, EACH = 2000 };
    static int64_t count[KINDS][KINDS];
    client *c[REQUESTS];
    kt_scheduler_options o = drafting;
    kt_scheduler_counts counts;
    double chi = 0;

    o.queue = REQUESTS;
    o.draft = 3;
    begin(o, 64, markov);
    for (int i = 0; i < REQUESTS; i++) {
        c[i] = make(1, EACH, (uint64_t)(100 + i));
        c[i]->request.sampling.temperature = 1;
        submit(c[i]);
    }
    run();
    counts = kt_scheduler_count(sched);
    cr_expect(counts.draft_hits > REQUESTS * EACH / 10 && counts.draft_hits < counts.draft_rows,
              "%d of %d drafted", (int)counts.draft_hits, (int)counts.draft_rows);
    for (int i = 0; i < REQUESTS; i++) {
        size_t n;
        const int32_t *made = kt_request_tokens(&c[i]->request, 0, &n);
        cr_assert_eq(n, EACH);
        for (size_t k = 1; k < n; k++) count[made[k - 1]][made[k]]++;
        drop(c[i]);
    }
    for (int i = 0; i < KINDS; i++) {
        double all = 0, weights = 0;
        for (int j = 0; j < KINDS; j++) all += (double)count[i][j], weights += weight_of(i, j);
        for (int j = 0; j < KINDS; j++) {
            const double want = all * weight_of(i, j) / weights;
            chi += ((double)count[i][j] - want) * ((double)count[i][j] - want) / want;
        }
    }
    cr_expect(chi > 20 && chi < 110, "chi-square %g", chi);
    end();
}

/* ---- what they cost ---- */

/* Rows of drafts in an answer, where a step and a row of it have been measured to take so long. */
static int64_t drafted_at(double step_ns, double row_ns) {
    client *c = make(1, 200, 1);
    kt_scheduler_options o = drafting;
    int64_t rows;
    bool goes_on = true;

    o.always_drafts = false;
    begin(o, 4096, repeating);
    submit(c);
    while (goes_on) {
        for (int i = 0; i < KT_COST_BUCKETS; i++) {
            sched->cost.rows[i] = (double)(INT64_C(1) << i);
            sched->cost.ns[i] = step_ns + row_ns * sched->cost.rows[i];
        }
        goes_on = kt_scheduler_step(sched);
    }
    check_tokens(c, 0);
    rows = kt_scheduler_count(sched).draft_rows;
    cr_expect_eq(rows, c->request.draft_tokens);
    drop(c);
    end();
    return rows;
}

/* Where they do not they are tried after 16 steps, 32 more, 64 more. */
Test(drafts, are_computed_where_they_pay) {
    const int64_t dear = drafted_at(0, 1000), cheap = drafted_at(1e6, 1000);

    cr_expect(dear > 0 && dear <= 3 * 5, "%d rows that cost as much as a step each", (int)dear);
    cr_expect_geq(cheap, 100, "%d rows that cost nothing", (int)cheap);
}

/* ---- what goes wrong ---- */

/* Clients that leave at any moment, on the scheduler's own threads; the rest get their text. */
Test(drafts, clients_that_leave_take_nothing_along, .timeout = 60) {
    enum { N = 60 };
    static client *c[N];
    kt_scheduler_options o = drafting;
    kt_rng rng;

    o.is_manual = false;
    o.queue = N;
    o.max_running = 8;
    begin(o, 4096, repeating);
    atomic_store(&engine.n_pages, 20);
    kt_rng_seed(&rng, 7);
    for (int i = 0; i < N; i++) {
        submit(c[i] = make(1 + (int)kt_rng_below(&rng, 100), 1 + (int64_t)kt_rng_below(&rng, 60),
                           (uint64_t)i));
        if (i >= 3 && kt_rng_below(&rng, 3) == 0) atomic_store(&c[i - 3]->is_gone, true);
        if (kt_rng_below(&rng, 3) == 0) fake_sleep(100);
    }
    for (int i = 0;
         i < 20000 && kt_scheduler_count(sched).finished + kt_scheduler_count(sched).cancelled < N;
         i++)
        fake_sleep(500);
    end();
    for (int i = 0; i < N; i++) {
        cr_assert_eq(c[i]->n_done, 1, "client %d: done %d times", i, c[i]->n_done);
        if (!atomic_load(&c[i]->is_gone)) check_tokens(c[i], 0);
        drop(c[i]);
    }
}

static int64_t sick_from; /* rows behind so many tokens are not numbers */

static void sick(fake_engine *f, const int32_t *tokens, int64_t n, float *logits) {
    repeating(f, tokens, n, logits);
    if (n >= sick_from) logits[5] = __builtin_nanf("");
}

static kt_status step_checked(void *self, const kt_batch *b, float *logits, const kt_stop *stop,
                              kt_err *err) {
    KT_TRY(fake_step(self, b, logits, stop, err));
    for (int64_t i = 0; i < b->n_out * 4096; i++)
        if (logits[i] != logits[i]) return kt_fail(err, KT_E_FORMAT, "not finite");
    return KT_OK;
}

/* Logits that are not finite are an error where their row is reached, and none before. */
Test(drafts, rows_that_nobody_reaches_may_be_anything) {
    client *whole = make(7, 60, 1), *cut = make(7, 200, 1);
    size_t n;

    begin(drafting, 4096, sick);
    backend.step = step_checked;
    sick_from =
        7 + 60; /* drafts behind the last token are not computed; those before may be wrong */
    submit(whole);
    run();
    check_tokens(whole, 0);
    submit(cut);
    run();
    cr_expect_eq(cut->status, KT_E_FORMAT);
    kt_request_tokens(&cut->request, 0, &n);
    cr_expect_eq(n, 60, "%zu tokens before the first row that is none", n);
    drop(whole), drop(cut);
    end();
}

/* ---- a model with a draft head ---- */

static const kt_plain_shape shapes[] = {
    {KT_PLAIN_DEEPSEEK_V3, .layers = 2, .hidden = 96, .vocab = 256, .heads = 5, .kv_lora = 64,
     .nope = 32, .rope = 16, .v = 32, .experts = 4, .topk = 2, .expert_size = 64, .shared_size = 64,
     .groups = 2, .top_groups = 1, .scaling = 1, .theta = 1e4, .has_draft = true},
    {KT_PLAIN_QWEN3_NEXT, .layers = 2, .hidden = 96, .vocab = 256, .heads = 4, .kv_heads = 4,
     .head_dim = 32, .rotary = 32, .key_heads = 1, .value_heads = 3, .key_dim = 64, .value_dim = 32,
     .full_every = 2, .experts = 5, .topk = 2, .expert_size = 32, .shared_size = 32, .theta = 1e4,
     .has_draft = true}};

/* Answers of three requests side by side, told into `c`. */
static void answer_three(kt_engine *e, const kt_scheduler_options *options, client *c[3]) {
    kt_scheduler_options o = *options;
    kt_backend real;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_backend_from_engine(e, NULL, "native", &real, &err), KT_OK, "%s", err.message);
    o.backend = &real;
    cr_assert_eq(kt_scheduler_create(&o, &sched, &err), KT_OK, "%s", err.message);
    for (int i = 0; i < 3; i++) {
        c[i] = make(3 + 40 * i, 60, (uint64_t)i);
        c[i]->request.sampling.temperature = i == 2 ? 1 : 0;
        submit(c[i]);
    }
    run();
    for (int i = 0; i < 3; i++) cr_assert_eq(c[i]->status, KT_OK);
    kt_scheduler_destroy(sched);
}

static kt_engine_info check_model(const kt_plain_shape *shape, bool with_head) {
    client *plain[3], *drafted[3];
    kt_scheduler_options o = drafting;
    kt_engine_options options = {.table_path = "",
                                 .n_threads = 2,
                                 .deterministic = true,
                                 .with_draft_head = with_head,
                                 .made_up_tokens = true};
    char folder[PATH_MAX];
    kt_engine_info info;
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    kt_plain_destroy(kt_plain_create(shape, 5, folder));
    options.model_dir = folder;
    cr_assert_eq(kt_engine_create(&options, &e, &err), KT_OK, "%s", err.message);
    o.speculate = KT_SPECULATE_OFF;
    answer_three(e, &o, plain);
    o.speculate = KT_SPECULATE_HEAD;
    answer_three(e, &o, drafted);
    for (int i = 0; i < 3; i++) {
        cr_expect(plain[i]->told.size == drafted[i]->told.size &&
                      memcmp(plain[i]->told.data, drafted[i]->told.data, plain[i]->told.size) == 0,
                  "request %d:\n%.*s\n%.*s", i, (int)plain[i]->told.size, plain[i]->told.data,
                  (int)drafted[i]->told.size, drafted[i]->told.data);
        if (with_head) cr_expect_gt(drafted[i]->request.draft_tokens, 60);
        drop(plain[i]), drop(drafted[i]);
    }
    kt_engine_describe(e, &info);
    kt_engine_destroy(e);
    kt_temp_remove(folder);
    return info;
}

/* The engine with its pages and states, prompts in its cache: what is said is what is said without,
 * whether the head drafts or, without it, the text. */
Test(drafts, of_a_models_head_change_nothing, .timeout = 60) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const kt_engine_info without = check_model(&shapes[i], false);
        const kt_engine_info with = check_model(&shapes[i], true);
        cr_expect_gt(with.weight_bytes, without.weight_bytes + 96 * 2 * 96 * 2, "it is counted");
        cr_expect_gt(with.cache_bytes, without.cache_bytes, "its keys and values, too");
    }
}

/* A model without a head, and one that its family does not know, are refused by name. */
Test(drafts, a_head_that_is_missing_is_named) {
    kt_engine_options options = {.model_dir = KT_SOURCE_DIR "/datasets/models/tiny-moe",
                                 .table_path = "",
                                 .n_threads = 1,
                                 .with_draft_head = true};
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    cr_expect_eq(kt_engine_create(&options, &e, &err), KT_E_UNSUPPORTED);
    cr_expect(strstr(err.message, "tiny-moe: no draft head (MTP) that is known of 'qwen3_moe'"),
              "%s", err.message);
}

/* GGUF files name the head's tensors in their own way. Its weights are random: what it drafts means
 * nothing, but is some token. */
Test(drafts, heads_of_gguf_files_draft, .timeout = 60) {
    static const char *const files[] = {"data/gguf/glm4moe-mtp-bf16/model.gguf",
                                        "data/gguf/qwen3next-mtp-q4_k_m/model.gguf"};
    static const int32_t tokens[] = {5, 6, 7, 8, 9, 10};

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[PATH_MAX];
        kt_engine_options o = {
            .model_dir = path, .table_path = "", .n_threads = 2, .with_draft_head = true};
        const int32_t out_row = 4;
        int32_t drafted[3] = {-1, -1, -1};
        kt_engine_info info;
        kt_engine *e;
        kt_sequence *s;
        float *logits;
        kt_err err = {KT_OK, ""};

        if (!kt_shared_path(files[i], path, sizeof path))
            cr_skip_test("%s: the shared data is absent", files[i]);
        o.max_context = 128;
        cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
        kt_engine_describe(e, &info);
        logits = malloc((size_t)info.vocab * sizeof *logits);
        cr_assert_eq(kt_sequence_create(e, 7, &s, &err), KT_OK, "%s", err.message);
        {
            const kt_span span = {s, 0, 5, false};
            const kt_batch batch = {5, tokens, 1, &span, 1, &out_row};
            kt_draft_span draft = {s, 0, 5, 0, tokens + 1, drafted, 4};
            cr_assert_eq(kt_engine_step(e, &batch, logits, NULL, &err), KT_OK, "%s", err.message);
            cr_assert_eq(kt_engine_draft(e, &draft, 1, logits, &err), KT_OK, "%s", err.message);
            cr_expect_eq(draft.n, 3, "7 reserved tokens hold 5, the next and drafts behind it");
        }
        for (int k = 0; k < 3; k++)
            cr_expect(drafted[k] >= 0 && drafted[k] < info.vocab, "token %d", drafted[k]);
        for (int64_t v = 0; v < info.vocab; v++) cr_assert(isfinite(logits[v]));
        kt_sequence_destroy(s);
        kt_engine_destroy(e);
        free(logits);
    }
}
