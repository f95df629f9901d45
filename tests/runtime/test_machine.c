/* What the engine shows of itself: rows by expert while somebody looks, kernels, GET /machine.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "kt/variant.h"
#include "runtime/exec/engine_view.h"
#include "tests/runtime/fake_server.h"
#include "tests/support/served.h"
#include "tests/support/temp.h"
#include "tuner/space/trace.h"

#define TINY KT_SOURCE_DIR "/datasets/models/tiny-moe"

static void run_tokens(kt_engine *e, int n) {
    kt_sequence *s = NULL;
    int32_t tokens[64];
    kt_err err = {0};

    for (int i = 0; i < n; i++) tokens[i] = (i * 37 + 11) % 4000;
    cr_assert_eq(kt_sequence_create(e, 64, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, tokens, n, 0, NULL, NULL, NULL, NULL, &err), KT_OK);
    kt_sequence_destroy(s);
}

/* Nobody looks: nothing is counted. Somebody looks: the rows that the recorder writes down. */
Test(machine, experts_are_counted_while_somebody_looks, .timeout = 120) {
    const kt_engine_options o = {.model_dir = TINY, .table_path = "", .n_threads = 2};
    char folder[512], path[600];
    kt_engine *e = NULL;
    kt_expert_map *m;
    kt_trace trace;
    kt_err err = {0};

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    m = kt_engine_expert_map(e);
    cr_assert_not_null(m);
    cr_assert(kt_expert_map_layers(m) == 4 && kt_expert_map_experts(m) == 16);
    run_tokens(e, 20);
    cr_assert_eq(kt_expert_map_steps(m), 0);
    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/load.jsonl", folder);
    kt_expert_map_watch(m);
    cr_assert_eq(kt_engine_record(e, path, 0, &err), KT_OK, "%s", err.message);
    run_tokens(e, 41);
    cr_assert_eq(kt_engine_record(e, NULL, 0, &err), KT_OK);
    run_tokens(e, 41); /* the same, without the recorder */
    cr_assert_eq(kt_expert_map_steps(m), 2);
    cr_assert_eq(kt_trace_read(path, &trace, &err), KT_OK, "%s", err.message);
    for (int64_t l = 0; l < 4; l++) {
        int32_t counts[16];
        kt_trace_counts(&trace, 0, l, counts);
        for (int64_t i = 0; i < 16; i++)
            cr_expect_eq(kt_expert_map_rows(m, l, i), 2 * counts[i], "layer %lld expert %lld",
                         (long long)l, (long long)i);
    }
    kt_trace_deinit(&trace);
    kt_temp_remove(folder);
    kt_engine_destroy(e);
}

static bool is_variant(const char *name) {
    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (strcmp(kt_builtin_variants[i]->name, name) == 0) return true;
    return false;
}

Test(machine, kernels_are_those_of_the_plan, .timeout = 120) {
    const kt_engine_options o = {.model_dir = TINY, .table_path = "", .n_threads = 1};
    kt_kernel_view views[64];
    kt_engine *e = NULL;
    kt_err err = {0};
    bool has_experts = false;
    int n;

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    n = kt_engine_kernels(e, views, 64);
    cr_assert(n > 5 && n <= 64, "%d", n);
    for (int i = 0; i < n; i++) {
        cr_expect(is_variant(views[i].one_row) && is_variant(views[i].all_rows), "%s: %s, %s",
                  views[i].role, views[i].one_row, views[i].all_rows);
        cr_expect_not(views[i].is_tuned, "%s: there is no table", views[i].role);
        if (strcmp(views[i].role, "experts") != 0) continue;
        has_experts = true;
        cr_expect_str_eq(views[i].op, "moe_ffn");
        cr_expect_str_eq(views[i].weights, "wbf16");
    }
    cr_expect(has_experts);
    kt_engine_destroy(e);
}

static int64_t number_at(const kt_json *root, const char *object, const char *key) {
    return kt_json_int(kt_json_get(object ? kt_json_get(root, object) : root, key), -1);
}

/* Of an engine that shows nothing of itself there is still the batch. */
Test(machine, the_route_tells_of_requests_and_pages, .timeout = 60) {
    kt_json_doc *doc;
    const kt_json *root;
    kt_reply r;

    fake_start(NULL, 7);
    r = kt_complete(fake.port, "{\"prompt\":\"In that day shall\",\"max_tokens\":5}");
    cr_assert_eq(r.status, 200);
    kt_reply_free(&r);
    r = kt_send_request(fake.port, "GET", "/machine", "", NULL);
    cr_assert_eq(r.status, 200);
    root = fake_parse(&r, &doc);
    cr_expect_str_eq(fake_text_at(root, "model"), "fake");
    cr_expect_eq(number_at(root, NULL, "generated_tokens"), 5);
    cr_expect_eq(number_at(root, NULL, "prompt_tokens"), 4);
    cr_expect_eq(number_at(root, NULL, "page_tokens"), 64);
    cr_expect_eq(number_at(root, "requests", "queue"), 7);
    cr_expect_eq(number_at(root, "batch", "steps"), 5);
    cr_expect_eq(number_at(root, "batch", "preemptions"), 0);
    cr_expect_eq(number_at(root, "pages", "cached"), 0);
    cr_expect_null(kt_json_get(root, "experts"));
    kt_json_destroy(doc);
    kt_reply_free(&r);
    fake_stop();
}

/* kt serve: rows that a first look turned on, seen by a second one. */
Test(machine, a_served_model_shows_its_experts, .timeout = 120) {
    kt_served s = kt_served_start(TINY, NULL);
    int64_t sum = 0;

    for (int look = 0; look < 2; look++) {
        kt_reply r = kt_send_request(s.port, "GET", "/machine", "", NULL);
        kt_json_doc *doc;
        const kt_json *experts = kt_json_get(fake_parse(&r, &doc), "experts"), *layer;
        cr_assert_eq(number_at(experts, NULL, "layers"), 4);
        layer = kt_json_at(kt_json_get(experts, "rows"), 3);
        cr_assert_eq(kt_json_length(layer), 16);
        for (size_t i = 0; i < 16; i++) sum += kt_json_int(kt_json_at(layer, i), -1);
        cr_expect_eq(sum, look ? 4 * (3 + 5 - 1) : 0, "%lld rows", (long long)sum);
        cr_expect_gt(kt_json_length(kt_json_get(kt_json_root(doc), "kernels")), 5);
        kt_json_destroy(doc);
        kt_reply_free(&r);
        r = kt_send_request(s.port, "GET", "/metrics", "", NULL);
        cr_expect_not_null(strstr(r.body,
                                  "\nkt_kernel_info{model_name=\"tiny-moe\",role=\"experts\","
                                  "op=\"moe_ffn\",weights=\"wbf16\",one_row=\""),
                           "%s", r.body);
        kt_reply_free(&r);
        r = kt_complete(s.port, "{\"prompt\":[1,2,3],\"max_tokens\":5,\"ignore_eos\":true}");
        cr_expect_eq(r.status, 200);
        kt_reply_free(&r);
    }
    cr_expect_eq(kt_served_stop(&s), 0);
}
