/* Which side runs what, which experts lie on a device, and the words that ask for it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch/device/device_word.h"
#include "runtime/device/expert_moves.h"
#include "runtime/device/hot_experts.h"
#include "runtime/exec/place.h"
#include "runtime/model/model_dir.h"
#include "tests/support/guard.h"
#include "tests/support/temp.h"

/* false: it is of the shared data, which is absent. */
static bool open_model(const char *name, kt_model_dir *dir) {
    char folder[PATH_MAX], shared[64];
    kt_err err = {KT_OK, ""};

    snprintf(folder, sizeof folder, "%s/golden/%s", KT_TEST_DATA, name);
    if (strncmp(name, "qwen3_moe", 9) != 0) {
        snprintf(shared, sizeof shared, "data/golden/%s/config.json", name);
        if (!kt_shared_path(shared, folder, sizeof folder)) return false;
        *strrchr(folder, '/') = '\0';
    }
    cr_assert_eq(kt_model_dir_read(folder, dir, &err), KT_OK, "%s", err.message);
    return true;
}

/* ---- segments ---- */

/* Where the newest numbers are, told by carrying the segments out. */
typedef struct world {
    const kt_graph *g;
    const kt_placement *p;
    unsigned *at; /* [values] bit 0: the host, bit d + 1: device d; 0 = not written yet */
    unsigned routing;
} world;

static void read_value(world *w, const kt_view *v, int where, int node) {
    if (v->width == 0 || !w->at[v->value]) return;
    cr_expect(w->at[v->value] >> where & 1,
              "node %d (%s) reads value %d where it is not up to date", node,
              kt_node_kind_name(w->g->nodes[node].kind), v->value);
}

/* where: 0 = the host, d + 1 = device d. */
static void run_on(world *w, int i, int where) {
    const kt_node *n = &w->g->nodes[i];

    read_value(w, &n->in, where, i);
    read_value(w, &n->in2, where, i);
    read_value(w, &n->in3, where, i);
    read_value(w, &n->out, where, i); /* most write over a part, or add */
    if (n->kind == KT_NODE_EXPERTS && n->is_routed)
        cr_expect(w->routing >> where & 1, "node %d has no routing", i);
    if (n->kind == KT_NODE_ROUTE) w->routing = 1u << where;
    if (n->out.width > 0) w->at[n->out.value] = 1u << where;
    if (n->kind == KT_NODE_HYPER_JOIN) w->at[n->in3.value] = 1u << where;
}

/* In a short step nothing goes up for it, and only the CPU reads. */
static void run_both(world *w, const kt_segment *s, bool is_short) {
    const kt_node *n = &w->g->nodes[s->first];
    const int there = s->device + 1, sum = s->is_summed_on_device ? there : 0;

    read_value(w, &n->in, 0, s->first);
    if (!is_short) read_value(w, &n->in, there, s->first);
    read_value(w, &n->out, sum, s->first);
    cr_expect(w->routing & 1 && (is_short || w->routing >> there & 1));
    w->at[n->out.value] = 1u << sum;
}

/* What crosses before a segment. */
static void copy_in(world *w, const kt_segment *s, bool is_short) {
    const unsigned there = 1u << (s->device + 1);

    for (int i = 0; i < s->n_down; i++) {
        cr_expect(w->at[s->down[i]] >> (s->down_from[i] + 1) & 1,
                  "value %d comes down from where it is old", s->down[i]);
        w->at[s->down[i]] |= 1;
    }
    if (s->routing_down) {
        cr_expect(w->routing == 0 || w->routing >> (s->routing_from + 1) & 1);
        w->routing |= 1;
    }
    for (int i = 0; i < s->n_across; i++) {
        cr_expect_neq(s->across[i].from, s->device);
        cr_expect(w->at[s->across[i].value] >> (s->across[i].from + 1) & 1,
                  "value %d crosses from where it is old", s->across[i].value);
        w->at[s->across[i].value] |= there;
    }
    for (int i = 0; i < s->n_up; i++) /* the host has no time to pass it on */
        for (int j = 0; j < s->n_down; j++)
            cr_expect_neq(s->up[i], s->down[j], "value %d goes down and up at once", s->up[i]);
    for (int i = 0; i < s->n_up && !is_short; i++) {
        cr_expect(w->at[s->up[i]] & 1, "value %d goes up from where it is old", s->up[i]);
        w->at[s->up[i]] |= there;
    }
    if (s->routing_up && !is_short) w->routing |= there;
}

static void carry_out(const kt_graph *g, const kt_placement *p, bool is_long) {
    world w = {g, p, calloc((size_t)g->n_values, sizeof *w.at), 0};
    int next = 0;

    w.at[0] = 1;
    for (int s = 0; s < p->n_segments; s++) {
        const kt_segment *at = &p->segment[s];
        const bool is_short = at->is_for_long_steps && !is_long;
        cr_assert_eq(at->first, next);
        cr_assert_gt(at->end, at->first);
        copy_in(&w, at, is_short);
        if (at->side == KT_SIDE_BOTH) run_both(&w, at, is_short);
        for (int i = at->first; i < at->end && at->side != KT_SIDE_BOTH; i++) {
            cr_assert(p->side[i] == at->side && p->device[i] == at->device);
            run_on(&w, i, at->side == KT_SIDE_DEVICE ? at->device + 1 : 0);
        }
        next = at->end;
    }
    cr_expect_eq(next, g->n_nodes);
    free(w.at);
}

/* Each node of a device is in that device's part alone, with its weights. */
static void check_parts(const kt_graph *g, const kt_placement *p, const int *first) {
    for (int i = 0, layer = 0; i < g->n_nodes; i++) {
        const kt_node *n = &g->nodes[i];
        layer = kt_node_layer(n, layer);
        for (int d = 0; d < p->n_devices; d++) {
            const kt_placement *part = kt_placement_of(p, d);
            const bool is_own =
                first[d] <= layer && (d + 1 == p->n_devices || first[d + 1] > layer);
            cr_expect_eq(part->side[i], is_own ? p->side[i] : KT_SIDE_CPU, "node %d, device %d", i,
                         d);
            if (!is_own || p->side[i] == KT_SIDE_CPU) continue;
            if (n->plane >= 0) cr_expect(part->is_plane_away[n->plane]);
            if (n->slot >= 0) cr_expect(part->is_slot_away[n->slot]);
            if (n->kind == KT_NODE_EXPERTS && n->is_routed) cr_expect(part->place[n->weight]);
        }
    }
}

/* Placements that no build's operations would give, too: kinds are refused by lot. */
static uint32_t refused;
_Static_assert(KT_NODE_KINDS <= 32, "a bit for every kind");
static const char *refuse_by_lot(const kt_device_ask *ask, const kt_node *n) {
    (void)ask;
    return refused >> n->kind & 1 ? "by lot" : NULL;
}

/* What is kept has one home. */
static void check_homes(const kt_graph *g, const kt_placement *p) {
    bool list_is_there = false; /* what the last indexer picked */

    for (int i = 0; i < g->n_nodes; i++) {
        const kt_node *n = &g->nodes[i];
        const bool is_there = p->side[i] == KT_SIDE_DEVICE;
        if (n->plane >= 0) cr_expect_eq(p->is_plane_away[n->plane], is_there, "node %d", i);
        if (n->slot >= 0) cr_expect_eq(p->is_slot_away[n->slot], is_there, "node %d", i);
        if (n->kind != KT_NODE_ATTEND_SPARSE) continue;
        if (n->index.repeats) cr_expect_eq(is_there, list_is_there, "node %d", i);
        list_is_there = is_there;
    }
}

/* No weight that a node of the CPU multiplies with is missing there. */
static void check_weights(const kt_graph *g, const kt_placement *p) {
    cr_expect_not(p->away[g->embedding].is_whole);
    for (int i = 0; i < g->n_nodes; i++) {
        const int weight[] = {g->nodes[i].weight, g->nodes[i].weight2, g->nodes[i].weight3,
                              g->nodes[i].weight4};
        for (int w = 0; w < 4 && p->side[i] == KT_SIDE_CPU; w++)
            if (weight[w] >= 0)
                cr_expect(!p->away[weight[w]].is_whole && !p->away[weight[w]].n_experts,
                          "node %d of the CPU lacks weight %d", i, weight[w]);
    }
}

static void check_model(const char *name, uint32_t seed) {
    const kt_device_op *ops[KT_NODE_KINDS];
    kt_device_op by_lot[KT_NODE_KINDS];
    bool streamed[512];
    const int32_t ids[] = {1, 3};
    kt_model_dir dir = {0};
    kt_device_ask ask = {.graph = &dir.graph, .ops = ops, .n_ops = KT_NODE_KINDS};
    int first[] = {0, 1, 3};
    kt_hot_experts *hot;
    kt_placement p;
    kt_err err = {KT_OK, ""};

    if (!open_model(name, &dir)) return;
    ask.n_devices = 1 + (int)(seed % 3), ask.first_layer = first;
    if (strcmp(name, "glm_moe_dsa") == 0) ask.n_devices = 1; /* picked lists are of all layers */
    memset(streamed, 1, sizeof streamed);
    if (seed % 2) ask.streamed = streamed;
    hot = calloc((size_t)dir.graph.n_weights, sizeof *hot);
    for (int i = 0; i < dir.graph.n_weights; i++)
        if (seed % 3 && dir.graph.weights[i].use == KT_USE_EXPERTS)
            hot[i] = (kt_hot_experts){ids, 2};
    for (int i = 0; i < KT_NODE_KINDS; i++) {
        by_lot[i] = (kt_device_op){.kind = (kt_node_kind)i,
                                   .refuse = i == KT_NODE_EXPERTS ? NULL : refuse_by_lot};
        ops[i] = &by_lot[i];
    }
    refused = seed == 1 ? UINT32_MAX : seed * 2654435761u; /* 1: experts alone are there */
    cr_assert_eq(kt_place(&ask, hot, seed % 5 == 4, &p, &err), KT_OK, "%s", err.message);
    carry_out(&dir.graph, &p, true);
    carry_out(&dir.graph, &p, false);
    check_homes(&dir.graph, &p);
    check_weights(&dir.graph, &p);
    check_parts(&dir.graph, &p, first);
    kt_placement_deinit(&p);
    free(hot);
    kt_model_dir_deinit(&dir);
}

Test(place, values_are_up_to_date_wherever_they_are_read, .timeout = 60) {
    static const char *const models[] = {"qwen3_moe-a",  "qwen3_next",  "glm4_moe",   "deepseek_v3",
                                         "deepseek_v32", "glm_moe_dsa", "deepseek_v4"};

    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (uint32_t seed = 0; seed < 12; seed++) check_model(models[m], seed);
}

/* ---- which experts ---- */

static void choose(const kt_graph *g, kt_hot_request r, kt_arena *arena, kt_hot_experts **out) {
    size_t bytes[512];
    kt_err err = {KT_OK, ""};

    for (int i = 0; i < g->n_weights; i++) bytes[i] = g->weights[i].use == KT_USE_EXPERTS ? 100 : 0;
    r.bytes = bytes;
    cr_assert_lt(g->n_weights, 512);
    cr_assert_eq(kt_hot_experts_choose(g, &r, arena, out, &err), KT_OK, "%s", err.message);
}

/* "0,1 0,1 2": ids of each layer with experts. */
static const char *list_of(const kt_graph *g, const kt_hot_experts *hot) {
    static char text[512];
    size_t used = 0;
    int layers = 0;

    text[0] = '\0';
    for (int i = 0; i < g->n_weights; i++) {
        if (g->weights[i].use != KT_USE_EXPERTS) continue;
        if (layers++) text[used++] = ' ';
        for (int64_t e = 0; e < hot[i].n; e++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", e ? "," : "",
                                     hot[i].id[e]);
        text[used] = '\0';
    }
    return text;
}

/* 12 experts in each of 3 layers. */
Test(place, strategies_choose_what_they_say) {
    static const struct {
        kt_hot_request request;
        const char *ids;
    } cases[] = {
        {{.amount = "2"}, "0,1 0,1 0,1"},
        {{.amount = "0"}, "  "},
        {{.amount = "25%"}, "0,1,2 0,1,2 0,1,2"},
        {{.amount = "99"},
         "0,1,2,3,4,5,6,7,8,9,10,11 0,1,2,3,4,5,6,7,8,9,10,11 0,1,2,3,4,5,6,7,8,9,10,11"},
        {{.amount = "2", .strategy = "learned"}, "0,1 0,1 0,1"},
        {{.amount = "5", .strategy = "front-loading"}, "0,1,2,3,4,5,6,7,8,9,10,11 0,1,2 "},
        {{.amount = "auto", .budget = 499}, "0,1 0 0"},
        {{.amount = "auto", .budget = 0}, "  "},
        {{.amount = "auto", .budget = 1 << 20, .share = 0.1}, "0 0 0"},
        {{.amount = "auto", .budget = 1 << 20, .share = 1e-9}, "  "},
    };
    kt_model_dir dir;

    cr_assert(open_model("qwen3_moe-a", &dir));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_arena arena = {0};
        kt_hot_experts *hot;
        choose(&dir.graph, cases[i].request, &arena, &hot);
        cr_expect_str_eq(list_of(&dir.graph, hot), cases[i].ids, "case %zu: '%s'", i,
                         list_of(&dir.graph, hot));
        kt_arena_deinit(&arena);
    }
    kt_model_dir_deinit(&dir);
}

/* As many in each layer, not the first ones, the same every time. */
Test(place, random_experts_are_drawn_for_each_layer) {
    kt_model_dir dir;
    char first[512] = "";

    cr_assert(open_model("qwen3_moe-a", &dir));
    for (int i = 0; i < 2; i++) {
        kt_arena arena = {0};
        kt_hot_experts *hot;
        choose(&dir.graph, (kt_hot_request){.amount = "4", .strategy = "random"}, &arena, &hot);
        for (int w = 0; w < dir.graph.n_weights; w++)
            if (dir.graph.weights[w].use == KT_USE_EXPERTS) cr_expect_eq(hot[w].n, 4);
        if (i) cr_expect_str_eq(list_of(&dir.graph, hot), first);
        snprintf(first, sizeof first, "%s", list_of(&dir.graph, hot));
        cr_expect_null(strstr(first, "0,1,2,3 "), "%s", first);
        kt_arena_deinit(&arena);
    }
    kt_model_dir_deinit(&dir);
}

static const char header[] = "{\"schema\":\"kt-trace-1\",\"experts\":12}\n";

static kt_status by_load(const char *text, char *list, size_t bytes, kt_err *err) {
    size_t sizes[512];
    char folder[256], path[300], load[600];
    kt_hot_request r = {.amount = "2", .strategy = "frequency", .load = path, .bytes = sizes};
    kt_arena arena = {0};
    kt_hot_experts *hot;
    kt_model_dir dir;
    kt_status st;

    cr_assert(open_model("qwen3_moe-a", &dir));
    for (int i = 0; i < dir.graph.n_weights; i++)
        sizes[i] = dir.graph.weights[i].use == KT_USE_EXPERTS ? 100 : 0;
    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/load", folder);
    snprintf(load, sizeof load, "%s%s", header, text);
    kt_temp_write(folder, "load", load, strlen(load));
    st = kt_hot_experts_choose(&dir.graph, &r, &arena, &hot, err);
    if (st == KT_OK) snprintf(list, bytes, "%s", list_of(&dir.graph, hot));
    kt_arena_deinit(&arena);
    kt_model_dir_deinit(&dir);
    kt_temp_remove(folder);
    return st;
}

/* Six of all layers together; the last line was cut when its writer was killed. */
Test(place, frequency_takes_those_that_were_chosen_most) {
    char list[512] = "";
    kt_err err = {KT_OK, ""};

    cr_assert_eq(by_load("{\"layers\":[[3,5,4,1],[7,2],[0,9,11,9]]}\n"
                         "{\"layers\":[[4,9],[7,2],[1,1]]}\n{\"layers\":[[0,99",
                         list, sizeof list, &err),
                 KT_OK, "%s", err.message);
    cr_expect_str_eq(list, "3,4 7 0,1,11");
}

Test(place, a_load_of_another_model_is_refused) {
    static const struct {
        const char *text, *says;
    } cases[] = {{"{\"layers\":[[12,1]]}\n", "expert 12"},
                 {"{\"layers\":[[0,-1]]}\n", "line 2"},
                 {"{\"layers\":[[],[],[],[]]}\n", "4 layers"},
                 {"{\"layers\":[[0,1]\n", "line 2"},
                 {"", "no recorded steps"}};
    char list[512];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_err err = {KT_OK, ""};
        cr_expect_eq(by_load(cases[i].text, list, sizeof list, &err), KT_E_FORMAT, "case %zu", i);
        cr_expect(strstr(err.message, cases[i].says), "case %zu says '%s'", i, err.message);
    }
}

/* ---- experts that cross, and that move ---- */

/* The side that ends last, in parts of the time that all experts take the link. */
static double last_of(const kt_stream_call *c, const int32_t *list, int64_t n) {
    double cpu = 0, link = (double)n / (double)c->experts;

    for (int64_t e = 0; e < c->experts; e++)
        if (c->place[e] < 0) cpu += (double)c->rows[e];
    for (int64_t i = 0; i < n; i++) cpu -= (double)c->rows[list[i]];
    cpu /= (double)(c->crossover * c->topk);
    return cpu > link ? cpu : link;
}

/* Of all ways to take those with most rows none ends sooner. */
Test(place, experts_cross_until_both_sides_end_together) {
    static const int32_t here[8] = {-1, 0, -1, -1, -1, 1, -1, -1};
    static const int64_t rows[8] = {40, 900, 0, 7, 90, 10, 41, 40};
    static const int64_t crossovers[] = {1, 10, 60, 100, 1000, 100000};

    for (size_t i = 0; i < sizeof crossovers / sizeof *crossovers; i++) {
        const kt_stream_call call = {rows, here, 8, 2, crossovers[i], -1};
        int32_t list[8], all[8] = {4, 6, 0, 7, 3};
        const int64_t n = kt_stream_choose(&call, list);
        cr_assert_leq(n, 5);
        for (int64_t j = 0; j < n; j++) cr_expect_eq(list[j], all[j], "%d", list[j]);
        for (int64_t m = 0; m <= 5; m++)
            cr_expect_leq(last_of(&call, all, n), last_of(&call, all, m) + 1e-12,
                          "crossover %lld: %lld cross, %lld were better", (long long)crossovers[i],
                          (long long)n, (long long)m);
    }
}

Test(place, a_fixed_part_of_the_experts_with_rows_crosses) {
    static const int32_t here[6] = {-1, -1, -1, -1, 0, -1};
    static const int64_t rows[6] = {1, 2, 0, 4, 5, 1};
    static const struct {
        int percent;
        int64_t n;
    } cases[] = {{0, 0}, {10, 0}, {25, 1}, {50, 2}, {75, 3}, {99, 4}, {100, 4}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kt_stream_call call = {rows, here, 6, 2, 100, cases[i].percent};
        int32_t list[6];
        cr_expect_eq(kt_stream_choose(&call, list), cases[i].n, "%d %%", cases[i].percent);
    }
}

Test(place, prefill_on_the_device_is_asked_for_by_words) {
    static const char *const bad[] = {
        "",     "0",       "-1",      "512:",    "512:50", "512:101%",
        "many", "512:-1%", "512:5%%", "512:5%x", "on",     "99999999999"};
    kt_stream_word w;
    kt_err err;

    cr_expect(kt_stream_word_parse(NULL, &w, &err) == KT_OK && w.is_auto);
    cr_expect(kt_stream_word_parse("auto", &w, &err) == KT_OK && w.is_auto);
    cr_expect(kt_stream_word_parse("off", &w, &err) == KT_OK && !w.is_auto && w.rows == INT64_MAX);
    cr_expect(kt_stream_word_parse("512", &w, &err) == KT_OK && w.rows == 512 && w.percent == -1);
    cr_expect(kt_stream_word_parse("1:0%", &w, &err) == KT_OK && w.rows == 1 && w.percent == 0);
    cr_expect(kt_stream_word_parse("9:100%", &w, &err) == KT_OK && w.rows == 9 && w.percent == 100);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_expect_eq(kt_stream_word_parse(bad[i], &w, &err), KT_E_INVALID, "'%s'", bad[i]);
}

/* The most wanted of the host for the least wanted of the device, if it is worth it. */
Test(place, experts_change_places_only_when_it_is_sure_to_pay) {
    static const struct {
        int64_t heat[5];
        bool is_moving[5];
        int in, out;
    } cases[] = {
        {{50, 40, 90, 30, 20}, {false}, 2, 1},
        {{50, 40, 58, 30, 20}, {false}, -1, 1}, /* a quarter of 40 and 8 rows: not over them */
        {{50, 40, 59, 30, 20}, {false}, 2, 1},
        {{50, 40, 90, 80, 20}, {false, false, true}, 3, 1},
        {{0, 0, 8, 3, 0}, {false}, -1, 0}, /* chance */
        {{0, 0, 9, 3, 0}, {false}, 2, 0},
    };
    static const int32_t place[5] = {0, 1, -1, -1, -1};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_exchange got;
        const bool is = kt_exchange_find(cases[i].heat, place, cases[i].is_moving, 5, &got);
        cr_expect_eq(is, cases[i].in >= 0, "case %zu", i);
        cr_expect_eq(got.out, cases[i].out, "case %zu", i);
        if (is) cr_expect_eq(got.in, cases[i].in, "case %zu", i);
    }
}

/* ---- words ---- */

static void check_lists(void) {
    static const char *const bad[] = {"cuda:0,0",  "cuda:0,",    "cuda+cuda:0",  "cuda:all+cuda:1",
                                      "cuda:ally", "emulated*0", "emulated*17",  "emulated*2x",
                                      "emulated+", "+emulated",  "cpu+emulated", "emulated2"};
    kt_device_options o[KT_DEVICES_MOST] = {{.fail_after = 9}};
    kt_device *opened[KT_DEVICES_MOST];
    bool is_used;
    kt_err err = {KT_OK, ""};
    int n;

    cr_expect_eq(kt_device_words_parse("cuda:2,0+emulated*2:memory=8M,lazy+emulated", o, &n, &err),
                 KT_OK, "%s", err.message);
    cr_assert_eq(n, 5);
    cr_expect(o[0].ordinal == 2 && o[1].ordinal == 0 && strcmp(o[1].class, "cuda") == 0);
    cr_expect(o[2].memory_bytes == 8 << 20 && o[3].memory_bytes == 8 << 20 && o[3].emulator.lazy);
    cr_expect(o[4].memory_bytes == 0 && !o[4].emulator.lazy && o[4].fail_after == 9);
    cr_expect_eq(kt_device_words_parse("cuda:all", o, &n, &err), KT_OK, "%s", err.message);
    cr_expect(n == 1 && o[0].ordinal == KT_DEVICE_ALL);
    cr_expect_eq(kt_device_word_parse("cuda:0,1", &is_used, o, &err), KT_E_INVALID);
    cr_expect(strstr(err.message, "expected one device"), "%s", err.message);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_expect_eq(kt_device_words_parse(bad[i], o, &n, &err), KT_E_INVALID, "'%s'", bad[i]);
    cr_assert_eq(kt_devices_open("emulated:memory=8M+emulated:memory=4M", NULL, opened, &n, &err),
                 KT_OK, "%s", err.message);
    cr_assert_eq(n, 2);
    cr_expect_eq(kt_device_about(opened[1])->memory_bytes, 4 << 20);
    while (n > 0) kt_device_close(opened[--n]);
    cr_expect_eq(kt_devices_open("emulated+emulated:threads=99", NULL, opened, &n, &err),
                 KT_E_INVALID, "%s", err.message);
    cr_expect_eq(n, 0);
}

Test(place, devices_are_named_by_words) {
    static const char *const bad[] = {"",
                                      "gpu",
                                      "cuda:",
                                      "cuda:x",
                                      "cuda:256",
                                      "emulated:",
                                      "emulated:memory=0",
                                      "emulated:memory=1T",
                                      "emulated:target=79",
                                      "emulated:threads=0",
                                      "emulated:lazy=1",
                                      "emulated:seed",
                                      "emulated:lazy,,races"};
    kt_device_options o = {0};
    bool is_used = true;
    kt_err err;

    cr_expect_eq(kt_device_word_parse(NULL, &is_used, &o, &err), KT_OK);
    cr_expect_not(is_used);
    cr_expect_eq(kt_device_word_parse("cpu", &is_used, &o, &err), KT_OK);
    cr_expect_not(is_used);
    cr_expect_eq(kt_device_word_parse("cuda:3", &is_used, &o, &err), KT_OK);
    cr_expect(is_used && strcmp(o.class, "cuda") == 0 && o.ordinal == 3);
    cr_expect_eq(kt_device_word_parse("emulated:memory=64M,threads=2,target=90a,seed=7,lazy,races,"
                                      "fail-after=12",
                                      &is_used, &o, &err),
                 KT_OK, "%s", err.message);
    cr_expect(o.memory_bytes == 64 << 20 && o.threads == 2 && strcmp(o.target, "90a") == 0);
    cr_expect(o.emulator.seed == 7 && o.emulator.lazy && o.emulator.races && o.fail_after == 12);
    check_lists();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kt_device_options with = {0};
        cr_expect_eq(kt_device_word_parse(bad[i], &is_used, &with, &err), KT_E_INVALID, "'%s'",
                     bad[i]);
    }
}
