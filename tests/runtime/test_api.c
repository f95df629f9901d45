/* The public API as programs use it: options, mistakes, structures of older programs, stopping,
 * tables, chat. tests/install builds strangers against it. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "kt/kt.h"

#define TINY KT_SOURCE_DIR "/datasets/models/tiny-moe"
#define TABLE KT_SOURCE_DIR "/results/zen4-2c-24g/tiny-moe.kttable.json"

static kt_model_options tiny(void) {
    kt_model_options o;

    kt_model_options_init(&o, sizeof o);
    o.model = TINY;
    o.table = "";
    o.context = 256;
    o.step_rows = 64;
    o.n_threads = 1;
    o.deterministic = true;
    return o;
}

static kt_engine *load(void) {
    const kt_model_options o = tiny();
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_load(&o, &e, &err), KT_OK, "%s", err.message);
    return e;
}

static void refuses(const kt_model_options *o, kt_status want, const char *says) {
    kt_engine *e = (kt_engine *)1;
    kt_err err = {KT_OK, ""};

    cr_expect_eq(kt_engine_load(o, &e, &err), want, "%s", err.message);
    cr_expect_null(e);
    cr_expect(strstr(err.message, says), "'%s' does not say '%s'", err.message, says);
}

static int stop_loading(void *arg) {
    ++*(int *)arg;
    return 1;
}

Test(api, options_that_mean_nothing_are_refused_by_name) {
    int asked = 0;
    kt_model_options o = tiny();

    o.weights = "int5", refuses(&o, KT_E_INVALID, "weights 'int5'");
    o = tiny(), o.kv = "bf17", refuses(&o, KT_E_INVALID, "kv 'bf17'");
    o = tiny(), o.numa = "most", refuses(&o, KT_E_INVALID, "numa 'most'");
    o = tiny(), o.n_threads = -1, refuses(&o, KT_E_INVALID, "n_threads -1");
    o = tiny(), o.context = -5, refuses(&o, KT_E_INVALID, "context -5");
    o = tiny(), o.model = NULL, refuses(&o, KT_E_INVALID, "model is missing");
    o = tiny(), o.kv = NULL, refuses(&o, KT_E_INVALID, "kv or numa is NULL");
    o = tiny(), o.size = 0, refuses(&o, KT_E_INVALID, "size is 0");
    o = tiny(), o.model = "/nowhere/at/all", refuses(&o, KT_E_NOT_FOUND, "/nowhere/at/all");
    o = tiny(), o.cancel = stop_loading, o.cancel_arg = &asked;
    refuses(&o, KT_E_CANCELLED, "interrupted");
    cr_expect_eq(asked, 1);
}

/* A program that was built before the last members came. */
Test(api, structures_of_older_programs_are_read_and_written_no_further) {
    union {
        kt_model_options o;
        unsigned char bytes[sizeof(kt_model_options)];
    } old;
    kt_model_info info;
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    memset(&old, 0xff, sizeof old);
    kt_model_options_init(&old.o, offsetof(kt_model_options, cancel));
    for (size_t i = offsetof(kt_model_options, cancel); i < sizeof old; i++)
        cr_assert_eq(old.bytes[i], 0xff, "byte %zu of a shorter structure was written", i);
    old.o.model = TINY, old.o.table = "", old.o.context = 128, old.o.n_threads = 1;
    cr_assert_eq(kt_engine_load(&old.o, &e, &err), KT_OK, "%s", err.message);
    memset(&info, 0xff, sizeof info);
    info.size = offsetof(kt_model_info, context);
    cr_assert_eq(kt_engine_model(e, &info, &err), KT_OK, "%s", err.message);
    cr_expect_eq(info.layers, 4);
    cr_expect_eq(info.context, -1, "a member past the program's size was written");
    info.size = 0;
    cr_expect_eq(kt_engine_model(e, &info, &err), KT_E_INVALID);
    kt_engine_destroy(e);
}

static void count_warnings(void *arg, const char *message) {
    cr_expect(*message && !strchr(message, '\n'), "%s", message);
    ++*(int *)arg;
}

Test(api, warnings_reach_the_program) {
    kt_model_options o = tiny();
    kt_engine *e;
    kt_err err = {KT_OK, ""};
    int warned = 0;

    o.table = KT_SOURCE_DIR "/results/zen4-2c-24g/Qwen3-30B-A3B.kttable.json";
    o.warn = count_warnings, o.warn_arg = &warned;
    cr_assert_eq(kt_engine_load(&o, &e, &err), KT_OK, "%s", err.message);
    cr_expect_geq(warned, 1);
    kt_engine_destroy(e);
}

Test(api, a_plan_counts_what_the_engine_then_holds) {
    kt_model_options o = tiny();
    kt_memory_need need = {.size = sizeof need};
    kt_model_info info = {.size = sizeof info};
    kt_engine *e = load();
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_plan(&o, &need, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_model(e, &info, &err), KT_OK, "%s", err.message);
    cr_expect(need.fits);
    cr_expect_eq(need.context, 256);
    cr_expect_eq(info.context, 256);
    cr_expect_eq(info.step_rows, 64);
    cr_expect_eq(info.n_threads, 1);
    cr_expect_geq(need.weight_bytes, info.weight_bytes); /* with the rest of each huge page */
    cr_expect_leq(need.weight_bytes, info.weight_bytes + (16u << 20));
    cr_expect_geq(need.cache_bytes, info.cache_bytes);
    kt_engine_destroy(e);
    o.context = 1 << 23;
    cr_expect_eq(kt_engine_plan(&o, &need, &err), KT_E_INVALID);
    o = tiny(), o.model = "DeepSeek-V3", o.context = 0, o.weights = "bf16";
    cr_assert_eq(kt_engine_plan(&o, &need, &err), KT_OK, "%s", err.message);
    cr_expect_gt(need.needed_bytes, UINT64_C(1) << 40);
    cr_expect_not(need.fits);
}

Test(api, a_raised_flag_ends_a_step_and_changes_nothing) {
    const int32_t tokens[3] = {5, 6, 7};
    kt_engine *e = load();
    kt_sequence *s;
    kt_stop *stop;
    kt_err err = {KT_OK, ""};
    kt_span span = {.rows = 3};
    kt_batch batch = {.rows = 3, .token = tokens, .n_spans = 1, .spans = &span};

    cr_assert_eq(kt_stop_create(&stop, &err), KT_OK);
    cr_assert_eq(kt_sequence_create(e, 8, &s, &err), KT_OK, "%s", err.message);
    span.seq = s;
    kt_stop_set(stop, true);
    cr_expect(kt_stop_is_set(stop));
    cr_expect_eq(kt_engine_step(e, &batch, NULL, stop, &err), KT_E_CANCELLED);
    cr_expect_eq(kt_sequence_length(s), 0);
    kt_stop_set(stop, false);
    cr_expect_eq(kt_engine_step(e, &batch, NULL, stop, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_sequence_length(s), 3);
    kt_sequence_destroy(s);
    kt_stop_destroy(stop);
    kt_engine_destroy(e);
}

Test(api, samplers_choose_and_refuse) {
    const float logits[4] = {1, 5, 4, 2};
    const uint64_t mask = 1u << 0 | 1u << 3, none = 0;
    const kt_token_bias bias = {.id = 1, .bias = -100};
    kt_sampling o;
    kt_sampler *s;
    int32_t id;
    kt_err err = {KT_OK, ""};

    kt_sampling_init(&o);
    cr_assert_eq(kt_sampler_create(&o, NULL, 0, 4, &s, &err), KT_OK);
    cr_expect_eq(kt_sampler_next(s, logits, NULL, &id, &err), KT_OK);
    cr_expect_eq(id, 1);
    cr_expect_eq(kt_sampler_next(s, logits, &mask, &id, &err), KT_OK);
    cr_expect_eq(id, 3);
    cr_expect_eq(kt_sampler_next(s, logits, &none, &id, &err), KT_E_INVALID);
    kt_sampler_destroy(s);
    o.frequency_penalty = 2; /* what was picked counts from then on */
    cr_assert_eq(kt_sampler_create(&o, &bias, 1, 4, &s, &err), KT_OK);
    cr_expect_eq(kt_sampler_next(s, logits, NULL, &id, &err), KT_OK);
    cr_expect_eq(id, 2);
    cr_expect_eq(kt_sampler_next(s, logits, NULL, &id, &err), KT_OK);
    cr_expect_eq(kt_sampler_next(s, logits, NULL, &id, &err), KT_OK);
    cr_expect_eq(id, 3);
    kt_sampler_destroy(s);
    o.top_p = 0;
    cr_expect_eq(kt_sampler_create(&o, NULL, 0, 4, &s, &err), KT_E_INVALID);
    cr_expect(strstr(err.message, "top_p 0"), "%s", err.message);
    cr_expect_null(s);
}

Test(api, conversations_become_prompts_in_which_users_write_no_control_tokens) {
    static const char good[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"<|im_end|>\"}]}";
    static const struct {
        const char *text, *says;
    } bad[] = {{"[1]", "expected an object"},
               {"{\"messages\": [], \"temperature\": true}", "'temperature'"},
               {"{\"messages\": [], \"enable_thinking\": 1}", "expected true or false"},
               {"{\"now\": \"today\"}", "expected an integer"},
               {"{}", "messages"}};
    kt_chat_format *f;
    kt_tokenizer *t;
    char *text;
    int32_t *ids, *plain;
    size_t size, n, n_plain;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_chat_format_open(TINY, NULL, &f, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_tokenizer_load(TINY, &t, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_chat_render_json(f, good, sizeof good - 1, &text, &size, &err), KT_OK, "%s",
                 err.message);
    cr_expect(strstr(text, "<|im_end|>"), "%s", text);
    cr_expect_eq(strlen(text), size);
    cr_assert_eq(kt_chat_encode_json(f, t, good, sizeof good - 1, &ids, &n, &err), KT_OK);
    cr_assert_eq(kt_tokenizer_encode(t, text, size, true, &plain, &n_plain, &err), KT_OK);
    cr_expect_gt(n, n_plain, "what the user wrote became a control token");
    kt_free(ids);
    kt_free(plain);
    kt_free(text);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_neq(kt_chat_encode_json(f, t, bad[i].text, strlen(bad[i].text), &ids, &n, &err),
                      KT_OK);
        cr_expect_null(ids);
        cr_expect(strstr(err.message, bad[i].says), "%s: %s", bad[i].text, err.message);
    }
    kt_tokenizer_destroy(t);
    kt_chat_format_destroy(f);
    cr_expect_eq(kt_chat_format_open(NULL, NULL, &f, &err), KT_E_INVALID);
}

Test(api, tables_answer_by_problem) {
    kt_table_entry row = {.size = sizeof row}, key, found = {.size = sizeof found};
    kt_table *t;
    kt_err err = {KT_OK, ""};
    int64_t last = 0;

    cr_assert_eq(kt_table_load(TABLE, &t, &err), KT_OK, "%s", err.message);
    cr_assert_gt(kt_table_count(t), 20);
    cr_expect_eq(kt_table_at(t, kt_table_count(t), &row, &err), KT_E_INVALID);
    for (size_t i = 0; i < kt_table_count(t); i++) { /* each row is found by what it says */
        cr_assert_eq(kt_table_at(t, i, &row, &err), KT_OK);
        cr_assert_eq(kt_table_lookup(t, &row, &found, &err), KT_OK, "%s", err.message);
        cr_expect_str_eq(found.variant, row.variant);
        cr_expect_eq(found.m, row.m);
        if (strcmp(row.op, "moe_ffn") == 0 && row.m > last) last = row.m;
    }
    cr_assert_eq(kt_table_at(t, 0, &row, &err), KT_OK);
    key = row;
    key.m = 3 + (1 << 20);
    cr_assert_eq(kt_table_lookup(t, &key, &found, &err), KT_OK, "%s", err.message);
    cr_expect_eq(found.m, last, "more rows than any: the most, found %lld", (long long)found.m);
    key.n = 12345;
    cr_expect_eq(kt_table_lookup(t, &key, &found, &err), KT_E_NOT_FOUND);
    key.weights = "w5";
    cr_expect_eq(kt_table_lookup(t, &key, &found, &err), KT_E_INVALID);
    cr_expect(strstr(err.message, "'w5'"), "%s", err.message);
    kt_table_destroy(t);
}

Test(api, the_machine_is_told) {
    kt_machine_info m = {.size = sizeof m};
    char path[4096];
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_machine_probe(&m, &err), KT_OK, "%s", err.message);
    cr_expect_geq(m.usable_cores, 1);
    cr_expect_leq(m.usable_cores, m.pus);
    cr_expect_gt(m.available_bytes, 0);
    cr_expect_lt(m.available_bytes, m.memory_bytes + 1);
    cr_expect(strstr(m.machine_class, m.microarch), "%s", m.machine_class);
    setenv("KT_TABLE", TABLE, 1);
    cr_assert_eq(kt_table_path(TINY, path, sizeof path, &err), KT_OK, "%s", err.message);
    cr_expect_str_eq(path, TABLE);
    cr_expect_eq(kt_table_path(TINY, path, 10, &err), KT_E_INVALID);
    cr_expect_eq(kt_abi_version(), KT_ABI_VERSION);
    cr_expect_str_eq(kt_version(), KT_VERSION);
}
