/* Calls of expert layers in the order of a CUDA stream: they begin when the stream comes to them,
 * replay in a graph, and what cannot be is refused. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "runtime/moe/moe_impl.h"
#include "tests/libraries/fake_streams.h"

enum { E = 4, TOPK = 2, H = 64, N = 64, T = 3, LAYERS = 3 };

typedef struct call {
    float x[T * H], weight[T * TOPK], out[T * H], later[T * H];
    int32_t id[T * TOPK];
} call;

/* by_words: not by functions. */
static void use_way(bool by_words) {
    if (by_words)
        setenv("KT_MAILBOX", "mapped", 1);
    else
        unsetenv("KT_MAILBOX");
}

static void use_driver(const char *name) {
    char path[4096];

    use_way(false);
    fake_streams_enter(1);

    snprintf(path, sizeof path, "%s/tests/%s", KT_BUILD_DIR, name);
    setenv("KT_CUDA_DRIVER", path, 1);
}

static kt_moe_team *make_team(void) {
    kt_moe_team_options o;
    kt_moe_team *t;

    kt_moe_team_options_init(&o, sizeof o);
    o.n_threads = 1, o.deterministic = true;
    cr_assert_eq(kt_moe_team_create(&o, &t, NULL), KT_OK);
    return t;
}

static kt_moe *make_layer(kt_moe_team *team, uint64_t seed) {
    static float w[2][E][2 * N * H]; /* gate and up, down */
    kt_moe_tensor tensors[2] = {
        {.name = "gate_up_proj", .dtype = "F32", .rank = 3, .shape = {E, 2 * N, H}, .data = w[0]},
        {.name = "down_proj", .dtype = "F32", .rank = 3, .shape = {E, H, N}, .data = w[1]}};
    kt_moe_options o;
    kt_moe *m;
    kt_rng rng;
    kt_err err = {KT_OK, ""};

    kt_moe_options_init(&o, sizeof o);
    o.experts = E, o.topk = TOPK, o.hidden = H, o.intermediate = N, o.max_tokens = 2;
    cr_assert_eq(kt_moe_create(team, &o, &m, &err), KT_OK, "%s", err.message);
    kt_rng_seed(&rng, seed);
    for (int i = 0; i < E * 2 * N * H; i++) (&w[0][0][0])[i] = 0.1f * kt_rng_normal(&rng);
    for (int i = 0; i < E * N * H; i++) (&w[1][0][0])[i] = 0.1f * kt_rng_normal(&rng);
    cr_assert_eq(kt_moe_load_from_tensors(m, tensors, 2, NULL, &err), KT_OK, "%s", err.message);
    return m;
}

static void fill(call *c, uint64_t seed) {
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    for (int i = 0; i < T * H; i++) c->x[i] = kt_rng_normal(&rng);
    for (int t = 0; t < T; t++)
        for (int i = 0; i < TOPK; i++) {
            c->id[t * TOPK + i] = (int32_t)((seed + (uint64_t)(t + i)) % E);
            c->weight[t * TOPK + i] = kt_rng_uniform(&rng, 0.1f, 0.9f);
        }
}

static kt_moe_rows rows_of(call *c, void *stream, int deferred) {
    return (kt_moe_rows){.tokens = T,
                         .x = c->x,
                         .expert_id = c->id,
                         .route_weight = c->weight,
                         .out = c->out,
                         .id_bytes = 4,
                         .n_deferred = deferred,
                         .deferred_out = c->later,
                         .stream = stream};
}

/* What the layer gives without a stream. */
static call *wanted(kt_moe *m, uint64_t seed, int deferred) {
    call *c = calloc(1, sizeof *c);
    const kt_moe_rows rows = (fill(c, seed), rows_of(c, NULL, deferred));

    cr_assert_eq(kt_moe_forward(m, &rows, NULL), KT_OK);
    return c;
}

static int records(const kt_moe *m) {
    int n = 0;
    for (const kt_moe_record *r = m->records; r; r = r->next) n++;
    return n;
}

static uint64_t submit(kt_moe *m, call *c, fake_stream *s, int deferred) {
    const kt_moe_rows rows = rows_of(c, s, deferred);
    uint64_t ticket = 0;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_moe_submit(m, &rows, &ticket, &err), KT_OK, "%s", err.message);
    return ticket;
}

static void wait_for(kt_moe *m, uint64_t ticket, fake_stream *s) {
    kt_err err = {KT_OK, ""};
    cr_assert_eq(kt_moe_sync_stream(m, ticket, s, &err), KT_OK, "%s", err.message);
}

/* Rows come by a copy of the stream, and go by one. */
static void check_begin(bool by_words) {
    kt_moe_team *team;
    kt_moe *m[LAYERS];
    fake_stream *s;
    call pinned[LAYERS], got[LAYERS], from[LAYERS];

    use_driver("libfake_streams.so");
    use_way(by_words);
    team = make_team();
    s = fake_stream_make();
    for (int l = 0; l < LAYERS; l++) m[l] = make_layer(team, (uint64_t)l + 1);
    for (uint64_t round = 0; round < 20; round++) {
        memset(pinned, 0, sizeof pinned);
        memset(got, 0, sizeof got);
        fake_stream_hold(s, 1);
        for (int l = 0; l < LAYERS; l++) {
            uint64_t ticket;
            fill(&from[l], 100 * round + (uint64_t)l);
            fake_stream_copy(s, &pinned[l], &from[l], sizeof *from);
            ticket = submit(m[l], &pinned[l], s, 0);
            wait_for(m[l], ticket, s);
            fake_stream_copy(s, &got[l], &pinned[l], sizeof *from);
        }
        cr_assert_eq(got[0].out[0], 0, "nothing was done while the stream was held");
        fake_stream_hold(s, 0);
        fake_stream_sync(s);
        for (int l = 0; l < LAYERS; l++) {
            call *want = wanted(m[l], 100 * round + (uint64_t)l, 0);
            cr_expect_arr_eq(got[l].out, want->out, sizeof want->out, "round %d", (int)round);
            free(want);
        }
    }
    for (int l = 0; l < LAYERS; l++) {
        cr_expect_eq(records(m[l]), 1, "records are used again");
        kt_moe_destroy(m[l]);
    }
    fake_stream_end(s);
    kt_moe_team_destroy(team);
}

Test(moe_stream, calls_begin_when_the_stream_comes_to_them) {
    check_begin(false);
    check_begin(true);
    cr_expect_eq(fake_streams_blocks(), 0, "mapped memory is left");
}

static void check_replays(bool by_words) {
    kt_moe_team *team;
    kt_moe *m;
    fake_stream *s;
    call pinned, from, got;
    kt_moe_counts counts = {.size = sizeof counts};

    use_driver("libfake_streams.so");
    use_way(by_words);
    team = make_team();
    m = make_layer(team, 5);
    s = fake_stream_make();
    fake_stream_capture(s, 1);
    fake_stream_copy(s, &pinned, &from, sizeof from);
    wait_for(m, submit(m, &pinned, s, 0), s);
    fake_stream_copy(s, &got, &pinned, sizeof got);
    fake_stream_capture(s, 0);
    cr_expect_eq((kt_moe_count(m, &counts, NULL, NULL), counts.calls), 0,
                 "a capture computes nothing");
    for (uint64_t round = 0; round < 10; round++) {
        call *want = wanted(m, round, 0), eager;
        fill(&from, round);
        fake_stream_replay(s);
        fill(&eager, round + 50); /* between replays, in a record of its own */
        wait_for(m, submit(m, &eager, s, 0), s);
        fake_stream_sync(s);
        cr_expect_arr_eq(got.out, want->out, sizeof want->out, "replay %d", (int)round);
        free(want);
    }
    cr_expect_eq(records(m), 2);
    cr_expect_eq((kt_moe_count(m, &counts, NULL, NULL), counts.calls), 30);
    kt_moe_destroy(m);
    fake_stream_end(s);
    kt_moe_team_destroy(team);
}

Test(moe_stream, a_graphs_replay_is_a_call) {
    check_replays(false);
    check_replays(true);
}

static void check_deferred(bool by_words) {
    kt_moe_team *team;
    kt_moe *m;
    fake_stream *s;

    use_driver("libfake_streams.so");
    use_way(by_words);
    team = make_team();
    m = make_layer(team, 7);
    s = fake_stream_make();
    for (uint64_t round = 0; round < 5; round++) {
        call *want = wanted(m, round, 1), got;
        uint64_t ticket;
        fill(&got, round);
        ticket = submit(m, &got, s, 1);
        wait_for(m, ticket, s);
        wait_for(m, ticket + 1, s);
        fake_stream_sync(s);
        cr_expect_arr_eq(got.out, want->out, sizeof want->out);
        cr_expect_arr_eq(got.later, want->later, sizeof want->later);
        free(want);
    }
    cr_expect_eq(records(m), 1);
    kt_moe_destroy(m);
    fake_stream_end(s);
    kt_moe_team_destroy(team);
}

Test(moe_stream, what_a_call_defers_has_the_ticket_after) {
    check_deferred(false);
    check_deferred(true);
}

static void wait_at(void *arg) {
    while (!__atomic_load_n((int *)arg, __ATOMIC_ACQUIRE)) usleep(100);
}

/* What is deferred stands at a gate: a stream that goes on too early passes it. */
Test(moe_stream, what_a_call_defers_is_waited_for) {
    int gate = 0, passed = 0, one = 1;
    kt_moe_team *team;
    fake_stream *s;
    uint64_t ticket;
    kt_moe *m;
    call c;

    use_driver("libfake_streams.so");
    team = make_team();
    m = make_layer(team, 7);
    s = fake_stream_make();
    fill(&c, 1);
    fake_stream_hold(s, 1);
    ticket = submit(m, &c, s, 1);
    m->records->later.run = wait_at;
    m->records->later.arg = &gate;
    wait_for(m, ticket, s);
    wait_for(m, ticket + 1, s);
    fake_stream_copy(s, &passed, &one, sizeof one);
    fake_stream_hold(s, 0);
    for (int i = 0; i < 100 && !__atomic_load_n(&passed, __ATOMIC_ACQUIRE); i++) usleep(500);
    cr_expect_eq(__atomic_load_n(&passed, __ATOMIC_ACQUIRE), 0);
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    fake_stream_sync(s);
    cr_expect_eq(passed, 1);
    kt_moe_destroy(m);
    fake_stream_end(s);
    kt_moe_team_destroy(team);
}

static void refused(kt_status st, kt_status want, const kt_err *err, const char *says) {
    cr_expect_eq(st, want, "%s: %d %s", says, st, err->message);
    cr_expect(strstr(err->message, says), "%s: %s", says, err->message);
}

Test(moe_stream, streams_and_tickets_that_are_none_are_refused) {
    kt_moe_team *team;
    kt_moe *m;
    fake_stream *s;
    call c = {.x = {0}};
    kt_moe_rows rows;
    kt_err err = {KT_OK, ""};
    uint64_t ticket = 0;

    use_driver("libfake_streams.so");
    team = make_team();
    m = make_layer(team, 9);
    s = fake_stream_make();
    rows = rows_of(&c, &c, 0);
    refused(kt_moe_submit(m, &rows, &ticket, &err), KT_E_INVALID, &err, "error 400");
    rows.stream = s;
    refused(kt_moe_forward(m, &rows, &err), KT_E_INVALID, &err, "expected NULL");
    refused(kt_moe_sync_stream(m, 1, s, &err), KT_E_INVALID, &err, "ticket 1 is of no call");
    ticket = submit(m, &c, s, 0);
    refused(kt_moe_sync_stream(m, ticket + 1, s, &err), KT_E_INVALID, &err, "of no call");
    refused(kt_moe_sync_stream(m, ticket, &c, &err), KT_E_INVALID, &err, "error 400");
    wait_for(m, ticket, s);
    fake_stream_sync(s);
    refused(kt_moe_sync_stream(m, ticket, s, &err), KT_E_INVALID, &err, "of no call");
    kt_moe_destroy(m);
    fake_stream_end(s);
    kt_moe_team_destroy(team);
}

Test(moe_stream, words_need_a_context_and_are_waited_for_once) {
    kt_moe_team *team;
    kt_moe *m;
    fake_stream *s;
    call c = {.x = {0}};
    kt_moe_rows rows;
    kt_err err = {KT_OK, ""};
    uint64_t ticket = 0;

    use_driver("libfake_streams.so");
    use_way(true);
    fake_streams_enter(0);
    team = make_team();
    m = make_layer(team, 9);
    s = fake_stream_make();
    rows = rows_of(&c, s, 0);
    refused(kt_moe_submit(m, &rows, &ticket, &err), KT_E_UNSUPPORTED, &err, "no CUDA context");
    fake_streams_enter(1);
    fake_stream_hold(s, 1);
    ticket = submit(m, &c, s, 0);
    wait_for(m, ticket, s);
    refused(kt_moe_sync_stream(m, ticket, s, &err), KT_E_INVALID, &err, "of no call");
    fake_stream_hold(s, 0);
    fake_stream_sync(s);
    setenv("KT_MAILBOX", "pigeon", 1);
    refused(kt_moe_submit(m, &rows, &ticket, &err), KT_E_INVALID, &err, "'pigeon'");
    kt_moe_destroy(m);
    fake_stream_end(s);
    kt_moe_team_destroy(team);
    cr_expect_eq(fake_streams_blocks(), 0);
}

/* In a capture nothing is taken any more, and numbers that were not announced are refused. */
Test(moe_stream, captures_are_announced) {
    static const int64_t sizes[] = {1, T}, none[] = {0};

    for (int by_words = 0; by_words < 2; by_words++) {
        kt_moe_team *team;
        kt_moe *m;
        fake_stream *s;
        call c;
        kt_moe_rows rows;
        kt_err err = {KT_OK, ""};
        uint64_t ticket = 0;

        use_driver("libfake_streams.so");
        use_way(by_words);
        team = make_team();
        m = make_layer(team, 9);
        s = fake_stream_make();
        fill(&c, 3);
        cr_assert_eq(kt_moe_announce(m, sizes, 2, &err), KT_OK, "%s", err.message);
        cr_expect_eq(records(m), 2);
        fake_streams_enter(0); /* whoever allocates now is refused */
        fake_stream_capture(s, 1);
        wait_for(m, submit(m, &c, s, 0), s);
        rows = rows_of(&c, s, 0);
        rows.tokens = 2;
        refused(kt_moe_submit(m, &rows, &ticket, &err), KT_E_INVALID, &err,
                "2 tokens in a capture");
        fake_stream_capture(s, 0);
        cr_assert_eq(kt_moe_submit(m, &rows, &ticket, &err), KT_OK, "%s", err.message);
        wait_for(m, ticket, s);
        fake_stream_replay(s);
        fake_stream_sync(s);
        cr_expect_neq(c.out[0], 0);
        refused(kt_moe_announce(m, none, 1, &err), KT_E_INVALID, &err, "captures of 0 tokens");
        refused(kt_moe_announce(m, sizes, 65, &err), KT_E_INVALID, &err, "up to 64");
        cr_assert_eq(kt_moe_announce(m, NULL, 0, &err), KT_OK, "%s", err.message);
        kt_moe_destroy(m);
        fake_stream_end(s);
        kt_moe_team_destroy(team);
    }
}

static void expect_no_driver(const char *driver, const char *says) {
    kt_moe_team *team;
    kt_moe *m;
    call c = {.x = {0}};
    kt_moe_rows rows;
    kt_err err = {KT_OK, ""};
    uint64_t ticket;

    use_driver(driver);
    team = make_team();
    m = make_layer(team, 9);
    rows = rows_of(&c, &c, 0);
    refused(kt_moe_submit(m, &rows, &ticket, &err), KT_E_UNSUPPORTED, &err, says);
    kt_moe_destroy(m);
    kt_moe_team_destroy(team);
}

Test(moe_stream, without_a_driver_there_are_no_streams) {
    expect_no_driver("nothing.so", "no CUDA driver");
}

Test(moe_stream, a_driver_that_lacks_a_function_is_named) {
    expect_no_driver("libfake_cuda_right.so", "has no cuStreamIsCapturing");
}
