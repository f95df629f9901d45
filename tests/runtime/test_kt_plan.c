/* kt plan as a user meets it: what it prints and how it exits. SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "dispatch/plan/machine_ceilings.h"
#include "tests/support/temp.h"
#include "tests/support/tune_home.h"

#define KT KT_BUILD_DIR "/kt "
#define MODEL KT_SOURCE_DIR "/datasets/models/tiny-moe "

static kt_tune_home home;

static void set_up(void) {
    kt_tune_home_make(&home);
}

static void clean_up(void) {
    kt_tune_home_remove(&home);
}

TestSuite(kt_plan, .init = set_up, .fini = clean_up);

static void expect(const char *command, int code, const char *words) {
    char *out;
    int got = kt_tune_home_run(command, &out);

    cr_expect_eq(got, code, "%s: exit code %d, expected %d: %s", command, got, code, out);
    cr_expect(strstr(out, words), "%s: '%s' lacks '%s'", command, out, words);
    free(out);
}

Test(kt_plan, wrong_command_lines_exit_with_2) {
    expect(KT "plan", 2, "MODEL is missing");
    expect(KT "plan " MODEL "--weights q7", 2, "--weights is 'q7', expected all, native");
    expect(KT "plan " MODEL "--kv f32", 2, "--kv is 'f32', expected bf16, fp8 or int8");
    expect(KT "plan nobody", 1, "nobody");
    expect(KT "plan " MODEL "--kv-memory 5", 2, "--kv-memory is '5', expected a size such as 512M");
    expect(KT "plan " MODEL "--kv-memory 5Mb", 2, "--kv-memory is '5Mb'");
    expect(KT "plan " MODEL "--kv-memory -5G", 2, "--kv-memory is '-5G'");
    expect(KT "plan " MODEL "--kv-memory 5e30T", 2, "--kv-memory is '5e30T'");
    expect(KT "plan " MODEL "--context 5000", 1,
           "context of 5000 tokens: tiny-moe allows 1 to 2048");
}

Test(kt_plan, tells_what_is_needed_and_what_fits) {
    expect(KT "plan " MODEL, 0, "  routed experts               0.01 GiB");
    expect(KT "plan " MODEL, 0, "would remain");
    expect(KT "plan " MODEL "--weights all --context 1000", 0,
           "tiny-moe, --weights int8: context 1000 tokens, cache bf16");
    expect(KT "plan " MODEL "--weights w4g64 --kv fp8", 0,
           "--weights w4g64: context 2048 tokens, cache fp8");
    expect(KT "plan " MODEL, 0, "yes   2048");
    expect(KT "plan DeepSeek-V3 --threads 128 -c 8192", 8, "  weights together           628.");
    expect(KT "plan deepseek-v3 -w int4 -t 128 -c 8192", 8, "int4             360.");
    expect(KT "plan deepseek-v3 -w int4 -t 128 -c 8192", 8, "missing");
    expect(KT "plan " KT_TEST_DATA "/golden/qwen3_moe-c", 0, "qwen3_moe-c, --weights native");
}

/* A page of tiny-moe is 64 tokens of each of its layers. */
Test(kt_plan, memory_for_the_cache_is_counted) {
    expect(KT "plan " MODEL "--kv-memory 1.5GiB", 0, "  cache                        1.50 GiB");
    expect(KT "plan " MODEL "--kv-memory 1M", 8, "tokens, fewer than the context (--kv-memory)");
    expect(KT "plan " MODEL "--kv-memory 1M --context 100", 0, "would remain");
    expect(KT "plan " MODEL "--kv-memory 99T", 8, "missing");
}

Test(kt_plan, speed_is_a_bound_or_not_known) {
    expect(KT "plan " MODEL, 0, "upper bound from the roofline: decode ");
    expect("XDG_DATA_HOME=$XDG_DATA_HOME/none " KT "plan " MODEL, 0, "run `kttune probe`");
}

/* Ceilings of another machine are not this one's. */
Test(kt_plan, ceilings_are_read_where_the_tuner_keeps_them) {
    kt_topology topology;
    kt_ceilings c;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_topology_probe(&topology, &err), KT_OK);
    cr_assert_eq(kt_machine_load(&topology, &c, &err), KT_OK, "%s", err.message);
    cr_expect_eq(c.stream_gbs_all, 25);
    strcpy(topology.cpu.vendor, "Nobody");
    cr_expect_eq(kt_machine_load(&topology, &c, &err), KT_E_MISMATCH);
    cr_expect_eq(c.stream_gbs_all, 0);
}

static const kt_json *parse(const char *command, kt_json_doc **doc) {
    char *out;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_tune_home_run(command, &out), 0, "%s: %s", command, out);
    cr_assert_eq(kt_json_parse(out, strlen(out), NULL, doc, &err), KT_OK, "%s: %s", err.message,
                 out);
    free(out);
    return kt_json_root(*doc);
}

static int64_t number(const kt_json *object, const char *key) {
    const int64_t n = kt_json_int(kt_json_get(object, key), -1);

    cr_expect_geq(n, 0, "%s is missing", key);
    return n;
}

/* Experts are cut as the engine cuts them: by the threads of a node. */
Test(kt_plan, nodes_of_a_described_machine) {
#define NODES "HWLOC_SYNTHETIC='pack:2 [numa(memory=17179869184)] core:3 pu:1' "
    kt_json_doc *doc = NULL;
    const kt_json *nodes, *plan;
    int64_t sum = 0, experts;

    expect(NODES KT "plan Qwen3-30B-A3B -t 6 -w int8 -c 4096", 8,
           "  node 1, 3 threads:     13.59 GiB of experts in 16.00 GiB of memory\n");
    expect(NODES KT "plan Qwen3-30B-A3B -t 4 -w bf16 -c 4096", 8, "  node 0, 3 threads:     40.");
    expect(NODES KT "plan Qwen3-30B-A3B -t 4 -w bf16 -c 4096", 8,
           " in 16.00 GiB of memory: the rest goes to other nodes");
    expect(NODES KT "plan " MODEL "-t 6 --numa 99", 2, "--numa is '99', expected auto, off or 2");
    plan = kt_json_at(
        kt_json_get(parse(NODES KT "plan " MODEL "-t 6 -w int8 --json", &doc), "plans"), 0);
    nodes = kt_json_get(plan, "nodes");
    experts = number(kt_json_get(plan, "bytes"), "routed experts");
    cr_expect_eq(kt_json_length(nodes), 2);
    for (size_t i = 0; i < kt_json_length(nodes); i++) {
        const kt_json *node = kt_json_at(nodes, i);
        cr_expect_eq(number(node, "node"), (int64_t)i);
        cr_expect_eq(number(node, "threads"), 3);
        sum += number(node, "expert_bytes");
    }
    cr_expect(sum >= experts && sum < experts + (64 << 20), "%lld of %lld", (long long)sum,
              (long long)experts);
    kt_json_destroy(doc);
    plan = kt_json_at(
        kt_json_get(parse(NODES KT "plan " MODEL "-t 6 --numa off --json", &doc), "plans"), 0);
    cr_expect_eq(kt_json_length(kt_json_get(plan, "nodes")), 0);
    kt_json_destroy(doc);
}

/* Pages are made for what was asked, or for more than a context where memory is free; logits are
 * those of all answers side by side, of 64 more rows, and of 4,096 tokens. */
Test(kt_plan, the_page_pool_and_all_logits_are_counted) {
    kt_json_doc *doc = NULL;
    const kt_json *root = parse(KT "plan " MODEL "--parallel 192 --json", &doc);
    const kt_json *plan = kt_json_at(kt_json_get(root, "plans"), 0);

    cr_expect_eq(number(kt_json_get(plan, "bytes"), "logits"), (192 + 64) * 4096 * 4);
    cr_expect_gt(number(plan, "pool_tokens"), 2048);
    cr_expect_leq(number(plan, "pool_tokens"), 16 * 2048);
    cr_expect_eq(number(plan, "pool_tokens"), 64 * number(plan, "pool_pages"));
    kt_json_destroy(doc);
    expect(KT "plan " MODEL, 0, "  page pool ");
    expect(KT "plan " MODEL "--kv-memory 1M --context 100", 0, " pages for ");
    expect(KT "doctor " MODEL, 0, "page pool for ");
}

/* Of two devices each counts its own layers: together they are what one has. */
Test(kt_plan, several_devices_count_their_own_layers) {
#define THERE \
    "--gpu-experts 3 --kv-memory 64M --prefill-offload 64 --expert-placement learned --json "
    static const char *const sums[] = {"cache_bytes", "experts", "expert_bytes"};
    kt_json_doc *doc = NULL, *other = NULL;
    const kt_json *one = kt_json_at(
        kt_json_get(parse(KT "plan " MODEL THERE "--device emulated", &doc), "plans"), 0);
    const kt_json *more = kt_json_at(
        kt_json_get(parse(KT "plan " MODEL THERE "--device emulated*2 --device-split 3,1", &other),
                    "plans"),
        0);
    const kt_json *device = kt_json_get(one, "device"), *devices = kt_json_get(more, "devices");

    cr_assert_eq(kt_json_length(devices), 2);
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        const int64_t first = number(kt_json_at(devices, 0), sums[i]),
                      second = number(kt_json_at(devices, 1), sums[i]);
        cr_expect_eq(first + second, number(device, sums[i]), "%s: %lld and %lld", sums[i],
                     (long long)first, (long long)second);
        cr_expect_gt(first, second, "%s", sums[i]);
        cr_expect_gt(second, 0, "%s", sums[i]);
    }
    for (size_t i = 0; i < 2; i++) {
        const kt_json *d = kt_json_at(devices, i);
        cr_expect_eq(number(d, "cache_pages"), number(device, "cache_pages"));
        cr_expect_eq(number(d, "staging_bytes"), number(device, "staging_bytes"));
        cr_expect_eq(number(d, "prefill_rows"), 64);
        cr_expect_eq(number(d, "first_layer"), i ? number(kt_json_at(devices, 0), "end_layer") : 0);
    }
    kt_json_destroy(doc);
    kt_json_destroy(other);
    expect(KT "plan " MODEL THERE "--device emulated*2:memory=8M", 8, "\"fits\":false");
}

Test(kt_plan, json_has_the_same_numbers) {
    static const char *const weights[] = {"native", "bf16", "int8", "int4"};
    static const char *const parts[] = {"embedding",          "attention",        "routed experts",
                                        "dense feed-forward", "shared experts",   "head",
                                        "routers and norms",  "rounding to pages"};
    kt_json_doc *doc = NULL;
    const kt_json *root = parse(KT "plan " MODEL "--weights all -t 3 --json", &doc);
    const kt_json *plans = kt_json_get(root, "plans"), *choices = kt_json_get(root, "choices");

    cr_expect_str_eq(kt_json_string(kt_json_get(root, "model"), NULL), "tiny-moe");
    cr_expect_eq(number(root, "threads"), 3);
    cr_expect_eq(number(root, "context"), 2048);
    cr_assert_eq(kt_json_length(plans), 4);
    cr_assert_eq(kt_json_length(choices), 4);
    for (size_t i = 0; i < 4; i++) {
        const kt_json *p = kt_json_at(plans, i), *c = kt_json_at(choices, i);
        int64_t sum = 0;
        cr_expect_str_eq(kt_json_string(kt_json_get(p, "weights"), NULL), weights[i]);
        cr_expect_str_eq(kt_json_string(kt_json_get(c, "weights"), NULL), weights[i]);
        cr_expect_eq(number(p, "needed_bytes"), number(c, "needed_bytes"));
        cr_expect_eq(number(p, "longest_context"), 2048);
        cr_expect(kt_json_bool(kt_json_get(p, "fits"), false));
        cr_expect(kt_json_double(kt_json_get(p, "decode_tokens_per_second_at_most"), 0) > 0);
        for (size_t j = 0; j < sizeof parts / sizeof *parts; j++)
            sum += number(kt_json_get(p, "bytes"), parts[j]);
        cr_expect_eq(sum, number(p, "weight_bytes"));
        number(kt_json_get(p, "bytes"), "working memory");
    }
    kt_json_destroy(doc);
}

/* The engine and the others decide and print by the same count. */
Test(kt_plan, engine_and_doctor_say_the_same) {
    char command[1200], text[2000];
    FILE *f;

    expect(KT "doctor " MODEL, 0, " GiB of weights, context up to 2048 tokens");
    expect(KT "doctor " MODEL "--kv-memory 300K", 1, "tokens, expected 512 (--kv-memory)");
    expect(KT "doctor " MODEL "--kv-memory much", 2, "--kv-memory is 'much'");
    f = popen(
        "sed 's/\"num_hidden_layers\": *[0-9]*/\"num_hidden_layers\": 1000/; "
        "s/\"moe_intermediate_size\": *[0-9]*/\"moe_intermediate_size\": 1048576/; "
        "s/\"max_position_embeddings\": *[0-9]*/\"max_position_embeddings\": 4096/' " KT_SOURCE_DIR
        "/datasets/models/tiny-moe/config.json",
        "r");
    cr_assert(f);
    kt_temp_write(home.model, "config.json", text, fread(text, 1, sizeof text, f));
    pclose(f);
    snprintf(command, sizeof command, KT "plan %s", home.model);
    expect(command, 8, "missing");
    snprintf(command, sizeof command,
             "cp " KT_SOURCE_DIR "/datasets/models/tiny-moe/tokenizer.json %s; " KT
             "serve %s --port 0",
             home.model, home.model);
    expect(command, 8, ": needs ");
    expect(command, 8, " GiB are available; no format is small enough");
}
