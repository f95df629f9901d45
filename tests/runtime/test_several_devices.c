/* Layers on several emulated devices: the same bits as on one, whatever share of the experts lies
 * there, whoever leads the step, and whether experts cross or move; what each device holds; and
 * what happens when one of them is lost. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device/device_impl.h"
#include "runtime/exec/engine_impl.h"
#include "tests/support/guard.h"

enum { TOKENS = 9, LAYERS = 3, EXPERTS = 12 /* of qwen3_moe-a */ };

static const int32_t tokens[4 * TOKENS] = {3,  14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26,
                                           43, 38, 32, 79, 50, 28, 84, 19, 71, 69, 39, 93,
                                           75, 10, 58, 20, 97, 49, 44, 59, 23, 7,  81, 64};

static kt_engine *load_from(const char *folder, kt_engine_options o) {
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    o.model_dir = folder;
    o.table_path = "";
    o.tokenizer_optional = true;
    o.n_threads = 2;
    o.max_context = 64;
    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s: %s", o.device, err.message);
    return e;
}

static kt_engine *load(kt_engine_options o) {
    return load_from(KT_TEST_DATA "/golden/qwen3_moe-a", o);
}

/* The same on one device and on others. */
static kt_engine *load_on(const char *device, kt_engine_options o) {
    o.device = device;
    if (strcmp(device, "emulated") == 0) o.device_split = NULL;
    return load(o);
}

/* Moves under way arrive before the next step, so that what is decided does not depend on time. */
static void let_moves_arrive(const kt_engine *e) {
    for (int i = 0; i < e->n_devices; i++)
        cr_assert_eq(kt_device_sync(e->step.devices[i]->device, NULL, NULL), KT_OK);
}

static int64_t vocab_of(const kt_engine *e) {
    return e->model.graph.numbers.vocab;
}

/* Logits of n tokens of one sequence, `rows` in each step; malloc'd. */
static float *forward(kt_engine *e, int64_t n, int64_t rows) {
    float *logits = calloc((size_t)(n * vocab_of(e)), sizeof *logits);
    kt_sequence *s;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_sequence_create(e, n, &s, &err), KT_OK, "%s", err.message);
    for (int64_t t = 0; t < n; t += rows) {
        const int64_t these = n - t < rows ? n - t : rows;
        cr_assert_eq(kt_engine_forward(e, s, tokens + t, these, these, logits + t * vocab_of(e),
                                       NULL, NULL, NULL, &err),
                     KT_OK, "%s", err.message);
        let_moves_arrive(e);
    }
    kt_sequence_destroy(s);
    return logits;
}

static void expect_same(kt_engine *one, kt_engine *more, int64_t n, int64_t rows,
                        const char *what) {
    float *want = forward(one, n, rows), *got = forward(more, n, rows);

    cr_expect_arr_eq(got, want, (size_t)(n * vocab_of(one)) * sizeof *got, "%s, steps of %lld rows",
                     what, (long long)rows);
    free(want), free(got);
}

/* ---- the same bits ---- */

/* Steps of 8 rows and one are led by the host, those of 3 rows are put whole. Lazy devices begin
 * late, so that a value which crosses without a wait is not there. */
static void check_share(const char *share, bool experts_only) {
    static const struct {
        const char *device, *split;
    } cases[] = {{"emulated*2:lazy", NULL}, {"emulated*3:lazy", NULL}, {"emulated*2", "2,1"}};
    const kt_engine_options o = {.gpu_experts = share, .experts_only = experts_only};
    kt_engine *one = load_on("emulated", o);

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_engine_options with = o;
        kt_engine *more;
        char what[96];
        with.device_split = cases[i].split;
        more = load_on(cases[i].device, with);
        snprintf(what, sizeof what, "%s, %s of the experts%s", cases[i].device, share,
                 experts_only ? " and nothing else" : "");
        expect_same(one, more, TOKENS, TOKENS - 1, what);
        expect_same(one, more, TOKENS, 3, what);
        kt_engine_destroy(more);
    }
    kt_engine_destroy(one);
}

Test(several_devices, any_share_of_experts_gives_the_same_bits, .timeout = 240) {
    static const char *const shares[] = {"0", "25%", "50%", "75%", "100%"};

    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) check_share(shares[i], false);
    check_share("50%", true);
}

Test(several_devices, runs_of_layers_follow_memory_and_shares, .timeout = 60) {
    static const struct {
        const char *device, *split;
        int begins; /* the first layer of the last device */
    } cases[] = {{"emulated*2", NULL, 2},
                 {"emulated*2", "2,1", 2},
                 {"emulated*2", "1,5", 1},
                 {"emulated*3", NULL, 2},
                 {"emulated:memory=20M+emulated:memory=200M", NULL, 1}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_engine *e = load((kt_engine_options){
            .device = cases[i].device, .device_split = cases[i].split, .gpu_experts = "100%"});
        cr_expect_eq(e->beside.first_layer[e->n_devices - 1], cases[i].begins, "%s, %s: %d",
                     cases[i].device, cases[i].split, e->beside.first_layer[e->n_devices - 1]);
        kt_engine_destroy(e);
    }
}

/* ---- steps that are put whole ---- */

/* One graph of each device; of those behind a cut two, with the crossing between them. */
static void check_pieces(const kt_engine *e, const char *way, bool is_whole, int64_t steps) {
    for (int i = 0; i < e->n_devices; i++) {
        const kt_device_gathered did = kt_device_step_gathered(e->step.devices[i]);
        const int64_t pieces = e->beside.placement.side[0] == KT_SIDE_CPU || i == 0 ? 1 : 2;
        cr_expect(is_whole ? did.pieces == pieces * steps && did.captured == pieces &&
                                 did.replayed == pieces * steps
                           : did.pieces > pieces * steps,
                  "%s, device %d: %d pieces, %d captured, %d replayed", way, i, (int)did.pieces,
                  (int)did.captured, (int)did.replayed);
    }
}

static void check_whole_steps(const char *device, bool experts_only) {
    static const char *const ways[] = {"off", "mapped", "functions"};
    float *logits[3];

    for (int w = 0; w < 3; w++) {
        kt_engine *e;
        setenv("KT_MAILBOX", ways[w], 1);
        e = load((kt_engine_options){
            .device = device, .gpu_experts = "50%", .experts_only = experts_only});
        logits[w] = forward(e, TOKENS, TOKENS / 3);
        check_pieces(e, ways[w], w == 1, 3);
        cr_expect_arr_eq(logits[w], logits[0], (size_t)(TOKENS * vocab_of(e)) * sizeof **logits,
                         "%s, %s, %d", device, ways[w], experts_only);
        kt_engine_destroy(e);
    }
    for (int w = 0; w < 3; w++) free(logits[w]);
    unsetenv("KT_MAILBOX");
}

Test(several_devices, whole_steps_are_one_graph_of_each_device, .timeout = 120) {
    check_whole_steps("emulated*2:lazy", false);
    check_whole_steps("emulated*3", false);
    check_whole_steps("emulated*3:lazy", true);
}

/* ---- experts that cross and move ---- */

/* The first long step of an engine: later ones begin with what crossed before in the layer behind,
 * which another device may have, and so add in another order. */
Test(several_devices, experts_that_cross_give_the_same_bits, .timeout = 240) {
    static const struct {
        const char *device, *share, *prefill;
        bool experts_only;
    } cases[] = {{"emulated*2:lazy,races", "0", "2:100%", false},
                 {"emulated*3:lazy", "25%", "2:100%", true},
                 {"emulated*3", "50%", "9", false},
                 {"emulated*2:lazy", "75%", "2:50%", false}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kt_engine_options o = {.gpu_experts = cases[i].share,
                                     .prefill_offload = cases[i].prefill,
                                     .experts_only = cases[i].experts_only};
        kt_engine *one = load_on("emulated", o), *more = load_on(cases[i].device, o);
        expect_same(one, more, TOKENS, TOKENS, cases[i].device);
        expect_same(one, more, TOKENS, 1, "short steps behind it");
        kt_engine_destroy(one);
        kt_engine_destroy(more);
    }
}

/* Where experts lie, of all layers, as the CPU and as the devices see it. */
static int64_t check_places(const kt_engine *one, const kt_engine *more) {
    const kt_placement *p = &more->beside.placement;
    int64_t moved = 0;

    for (int w = 0; w < more->model.graph.n_weights; w++) {
        if (!p->place[w]) continue;
        for (int64_t i = 0; i < more->model.graph.weights[w].count; i++) {
            cr_expect_eq(p->place[w][i], one->beside.placement.place[w][i], "weight %d, expert %d",
                         w, (int)i);
            moved += p->place[w][i] >= 0 && p->hot[w].id[p->place[w][i]] != i;
        }
        for (int d = 0; d < more->n_devices; d++)
            if (kt_placement_of(p, d)->place[w])
                cr_expect_eq(kt_placement_of(p, d)->place[w], p->place[w]);
    }
    return moved;
}

/* Traffic chooses while a request runs: the same exchanges on two devices as on one, and the same
 * bits before and behind them. */
Test(several_devices, experts_move_on_the_device_of_their_layer, .timeout = 240) {
    static const char *const devices[] = {"emulated*2:lazy", "emulated*3"};

    for (int i = 0; i < 2; i++) {
        const kt_engine_options o = {.gpu_experts = "2", .expert_placement = "learned"};
        kt_engine *one = load_on("emulated", o), *more = load_on(devices[i], o);
        int64_t moved = 0;
        for (int step = 0; step < 3; step++) expect_same(one, more, 4 * TOKENS, 4, devices[i]);
        expect_same(one, more, 4 * TOKENS, TOKENS, devices[i]);
        cr_expect_gt(check_places(one, more), 0, "%s: all are where they were", devices[i]);
        for (int d = 0; d < more->n_devices; d++) {
            const int64_t here = kt_device_step_moved(more->step.devices[d]);
            cr_expect_gt(here, 0, "%s: none moved to device %d", devices[i], d);
            moved += here;
        }
        cr_expect_eq(moved, kt_device_step_moved(one->step.device));
        kt_engine_destroy(one);
        kt_engine_destroy(more);
    }
}

/* ---- what each device holds ---- */

static void check_held(const kt_engine *e, const char *what) {
    size_t cache = 0;

    for (int i = 0; i < e->n_devices; i++) {
        const kt_device_memory_plan *m = &e->beside.memory[i];
        const kt_device_bytes held = kt_device_step_bytes(e->step.devices[i]);
        cr_expect_eq(held.cache, m->cache, "%s, device %d: %zu of cache, planned %zu", what, i,
                     held.cache, m->cache);
        cr_expect_eq(held.experts, m->experts, "%s, device %d", what, i);
        cr_expect_leq(held.staging, m->staging, "%s, device %d", what, i);
        cr_expect_leq(m->needed, m->available);
        cache += held.cache;
    }
    cr_expect_eq(cache, e->beside.pool.bytes, "%s: %zu of cache in all, planned %zu", what, cache,
                 e->beside.pool.bytes);
}

/* Each counts keys, values and states of its own layers: together what one device has. */
static void check_cache(const char *folder, size_t kv_memory, const char *what) {
    kt_engine_options o = {.device = "emulated", .gpu_experts = "0", .kv_memory = kv_memory};
    kt_engine *one = load_from(folder, o), *more;

    o.device = "emulated*2:lazy";
    more = load_from(folder, o);
    if (kv_memory) {
        cr_expect_eq(more->pages.n, one->pages.n, "%s: %lld pages, on one device %lld", what,
                     (long long)more->pages.n, (long long)one->pages.n);
        cr_expect_eq(more->states.n, one->states.n, "%s", what);
        cr_expect_eq(more->beside.pool.bytes, one->beside.pool.bytes, "%s", what);
        cr_expect_leq(more->beside.pool.bytes, kv_memory, "%s", what);
    }
    check_held(one, what);
    check_held(more, what);
    expect_same(one, more, TOKENS, TOKENS, what);
    expect_same(one, more, TOKENS, 2, what);
    kt_engine_destroy(one);
    kt_engine_destroy(more);
}

Test(several_devices, keys_values_and_states_are_counted_once, .timeout = 240) {
    static const char *const shared[] = {"qwen3_next", "deepseek_v4", "deepseek_v32"};
    char path[PATH_MAX], name[96];

    check_cache(KT_TEST_DATA "/golden/qwen3_moe-a", 0, "qwen3_moe-a");
    check_cache(KT_TEST_DATA "/golden/qwen3_moe-a", 1 << 20, "qwen3_moe-a in 1 MiB");
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        snprintf(name, sizeof name, "data/golden/%s/config.json", shared[i]);
        if (!kt_shared_path(name, path, sizeof path)) continue; /* it is absent */
        *strrchr(path, '/') = '\0';
        check_cache(path, 4 << 20, shared[i]);
    }
}

/* Buffers lie only where experts of the layers there can cross. */
Test(several_devices, buffers_lie_where_experts_cross, .timeout = 60) {
    kt_engine *e = load(
        (kt_engine_options){.device = "emulated*3", .gpu_experts = "13", .prefill_offload = "2"});

    check_held(e, "all experts there");
    for (int i = 0; i < 3; i++) cr_expect_eq(e->beside.memory[i].staging, 0);
    kt_engine_destroy(e);
    e = load((kt_engine_options){.device = "emulated*3",
                                 .gpu_experts = "67%",
                                 .expert_placement = "front-loading",
                                 .prefill_offload = "2"});
    check_held(e, "all but the last layer's");
    for (int i = 0; i < 3; i++)
        cr_expect_eq(e->beside.memory[i].staging, i < 2 ? 0 : e->beside.stream.bytes, "device %d",
                     i);
    cr_expect_gt(e->beside.stream.bytes, 0);
    kt_engine_destroy(e);
}

/* ---- a device that is lost ---- */

/* A request on two devices, of which one is lost; the status of its first error. Without one the
 * last step's logits are `want`, where that is given. */
static kt_status run_lost(kt_engine_options o, int which, int launches, int64_t n, int64_t rows,
                          const float *want) {
    kt_err err = {KT_OK, ""};
    char device[160];
    kt_status st = KT_OK;
    kt_sequence *s;
    kt_engine *e;
    float *logits;

    snprintf(device, sizeof device, "emulated%s%.0d+emulated:lazy%s%.0d",
             which == 0 ? ":fail-after=" : "", which == 0 ? launches : 0,
             which == 1 ? ",fail-after=" : "", which == 1 ? launches : 0);
    o.device = device;
    e = load(o);
    logits = calloc((size_t)(TOKENS * vocab_of(e)), sizeof *logits);
    cr_assert_eq(kt_sequence_create(e, TOKENS, &s, &err), KT_OK, "%s", err.message);
    for (int64_t t = 0; t < n && st == KT_OK; t += rows)
        st = kt_engine_forward(e, s, tokens + t, rows, rows, logits, NULL, NULL, NULL, &err);
    if (st != KT_OK) {
        cr_expect(strstr(err.message, "lost"), "%s: %s", device, err.message);
        cr_expect_neq(kt_engine_forward(e, s, tokens, 1, 1, logits, NULL, NULL, NULL, &err), KT_OK);
        cr_expect(strstr(err.message, "lost"), "%s, again: %s", device, err.message);
    }
    if (st == KT_OK && want)
        cr_expect_arr_eq(logits, want, (size_t)(rows * vocab_of(e)) * sizeof *want, "%s", device);
    kt_sequence_destroy(s);
    free(logits);
    kt_engine_destroy(e);
    return st;
}

/* Whichever is lost, an error, and no waiting for the others. */
static void check_lost(kt_engine_options o, int which, int launches, int64_t rows) {
    cr_expect_neq(run_lost(o, which, launches, TOKENS, rows, NULL), KT_OK, "device %d, %d launches",
                  which, launches);
}

/* At each launch of a step that is put whole, the last one too, whose loss shows when the step is
 * waited for. */
Test(several_devices, a_loss_anywhere_in_a_step_is_told, .timeout = 240) {
    const kt_engine_options o = {.gpu_experts = "50%"};
    kt_engine *sound = load_on("emulated*2", o);
    float *want = forward(sound, 3, 3);
    int launches = 1;

    kt_engine_destroy(sound);
    while (launches < 200 && run_lost(o, 1, launches, 3, 3, want) != KT_OK) launches++;
    free(want);
    cr_expect(launches > 12 && launches < 200, "a step of %d launches", launches - 1);
}

Test(several_devices, one_lost_device_ends_the_request, .timeout = 120) {
    static const int launches[] = {1, 6, 13};

    for (int i = 0; i < 6; i++) {
        const kt_engine_options half = {.gpu_experts = "50%"}, all = {.gpu_experts = "100%"},
                                crossing = {.gpu_experts = "0", .prefill_offload = "2:100%"},
                                learning = {.gpu_experts = "2", .expert_placement = "learned"};
        check_lost(half, i % 2, launches[i / 2], TOKENS);
        check_lost(half, i % 2, launches[i / 2], 1);
        check_lost(all, i % 2, launches[i / 2], 3);
        check_lost(crossing, i % 2, launches[i / 2], TOKENS);
        check_lost(learning, i % 2, launches[i / 2], 3);
    }
}
