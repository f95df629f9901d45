/* runtime/chat: output parsers. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* setenv */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "runtime/chat/calls.h"
#include "runtime/chat/parser.h"
#include "runtime/chat/reasoning.h"
#include "tests/runtime/parser_cases.h"
#include "tests/runtime/parser_feed.h"

enum { N_CASES = sizeof parser_cases / sizeof *parser_cases };

static parser_feed open_case(const parser_case *c) {
    return parser_open(c->parser, c->reasoning, c->inside, PARSER_TOOLS);
}

/* Feed the output cut at the given ends and compare with what is expected. */
static void check_cut(const parser_case *c, const size_t *ends, size_t n_ends, const char *how) {
    parser_feed f = open_case(c);
    size_t at = 0;

    for (size_t i = 0; i < n_ends; i++) {
        parser_push(&f, -1, c->output + at, ends[i] - at);
        at = ends[i];
    }
    parser_push(&f, -1, c->output + at, strlen(c->output) - at);
    parser_end(&f);
    cr_assert_str_eq(f.said, c->expect, "%s: %s\n of %s\nsaid %s", c->parser, how, c->output,
                     f.said);
    parser_close(&f);
}

Test(parser, recorded_outputs_mean_what_they_mean) {
    for (int i = 0; i < N_CASES; i++) check_cut(&parser_cases[i], NULL, 0, "at once");
}

Test(parser, no_cut_into_two_changes_anything, .timeout = 120) {
    for (int i = 0; i < N_CASES; i++)
        for (size_t cut = 0; cut <= strlen(parser_cases[i].output); cut++)
            check_cut(&parser_cases[i], &cut, 1, "cut in two");
}

Test(parser, bytes_one_by_one_give_the_same) {
    size_t ends[4096];

    for (size_t i = 0; i < 4096; i++) ends[i] = i;
    for (int i = 0; i < N_CASES; i++)
        check_cut(&parser_cases[i], ends, strlen(parser_cases[i].output), "byte by byte");
}

Test(parser, random_pieces_give_the_same, .timeout = 120) {
    kt_rng rng;

    kt_rng_seed(&rng, 1);
    for (int round = 0; round < 20; round++)
        for (int i = 0; i < N_CASES; i++) {
            size_t ends[4096], n = 0, size = strlen(parser_cases[i].output);
            for (size_t at = 0; at < size;) {
                at += 1 + kt_rng_below(&rng, 9);
                if (at < size) ends[n++] = at;
            }
            check_cut(&parser_cases[i], ends, n, "random pieces");
        }
}

/* Cut off anywhere, an answer still gives whole characters, valid JSON and nothing twice. */
Test(parser, answers_may_end_anywhere, .timeout = 120) {
    for (int i = 0; i < N_CASES; i++)
        for (size_t size = 0; size <= strlen(parser_cases[i].output); size++) {
            parser_feed f = open_case(&parser_cases[i]);
            parser_push(&f, -1, parser_cases[i].output, size);
            parser_end(&f);
            parser_check_json(&f);
            parser_close(&f);
        }
}

/* ---- choice ---- */

static void check_choice(const char *file, const char *calls, const char *reasoning) {
    char path[512];
    const char *shared = getenv("KT_SHARED");
    kt_parser_evidence e = {0};
    kt_parser_choice choice;
    char *text = parser_read_file(
        (snprintf(path, sizeof path, "%s/data/templates/%s.jinja", shared, file), path),
        &e.template_size);

    cr_assert_not_null(text, "%s", path);
    e.template_text = text;
    cr_assert_eq(kt_parser_choose(&e, &choice, NULL), KT_OK);
    cr_expect_str_eq(kt_parser_calls_name(&choice), calls, "%s", file);
    cr_expect_str_eq(kt_parser_reasoning_name(&choice), reasoning, "%s", file);
    free(text);
}

Test(parser_choice, follows_the_template) {
    static const struct {
        const char *file, *calls, *reasoning;
    } expect[] = {{"ByteDance-Seed-OSS", "seed_oss", "seed_oss"},
                  {"GLM-4.6", "glm45", "think"},
                  {"llamacpp-pr-glm_4_5", "glm45", "think"},
                  {"GLM-4.7-Flash", "glm47", "think"},
                  {"GLM-5.2", "glm47", "think"},
                  {"Kimi-K2-Instruct", "kimi_k2", "none"},
                  {"moonshotai-Kimi-K2", "kimi_k2", "none"},
                  {"Kimi-K2-Thinking", "kimi_k2", "think"},
                  {"MiniMax-M2", "minimax_m2", "think"},
                  {"Qwen-QwQ-32B", "hermes", "think"},
                  {"Qwen-Qwen2.5-7B-Instruct", "hermes", "none"},
                  {"Qwen-Qwen3-0.6B", "hermes", "think"},
                  {"ibm-granite-granite-4.1", "hermes", "none"},
                  {"Qwen3-Coder", "qwen3_coder", "none"},
                  {"minja-Qwen3-Coder-30B-A3B-Instruct", "qwen3_coder", "none"},
                  {"Qwen3.5-4B", "qwen3_coder", "think"},
                  {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseekv3", "think"},
                  {"deepseek-ai-DeepSeek-V3.1", "deepseekv31", "think"},
                  {"deepseek-ai-DeepSeek-V3.2", "deepseekv32", "think"},
                  {"deepseek-ai-DeepSeek-V4", "deepseekv4", "think"},
                  {"sglang-tool_chat_template_deepseekr1", "deepseekv3", "think"},
                  {"sglang-tool_chat_template_deepseekv3", "deepseekv3", "none"},
                  {"sglang-tool_chat_template_deepseekv31", "deepseekv31", "think"},
                  {"sglang-tool_chat_template_deepseekv32", "deepseekv31", "think"},
                  {"openai-gpt-oss-120b", "harmony", "harmony"},
                  {"deepseek-ai-DeepSeek-V4-Flash-0731", "deepseekv4", "think"},
                  {"mistralai-Ministral-3-14B-Reasoning-2512", "none", "mistral"},
                  {"microsoft-Phi-3.5-mini-instruct", "none", "none"}};

    if (!getenv("KT_SHARED")) setenv("KT_SHARED", KT_SOURCE_DIR "/../shared", 0);
    if (!parser_has_shared()) cr_skip_test("the shared data is absent");
    for (size_t i = 0; i < sizeof expect / sizeof *expect; i++)
        check_choice(expect[i].file, expect[i].calls, expect[i].reasoning);
}

Test(parser_choice, names_of_other_servers_are_known) {
    static const char *const names[][2] = {{"Hermes", "hermes"},
                                           {"qwen25", "hermes"},
                                           {"qwen3_xml", "qwen3_coder"},
                                           {"deepseek_v3", "deepseekv3"},
                                           {"deepseek_v31", "deepseekv31"},
                                           {"deepseek-v32", "deepseekv32"},
                                           {"glm45", "glm45"},
                                           {"glm47", "glm47"},
                                           {"kimi-k2", "kimi_k2"},
                                           {"gpt-oss", "harmony"},
                                           {"minimax-m2", "minimax_m2"},
                                           {"none", "none"}};
    static const char *const thinkers[] = {"deepseek_r1", "deepseek-v3",    "glm45",     "kimi_k2",
                                           "qwen3",       "qwen3-thinking", "minimax_m2"};
    kt_parser_evidence e = {0};
    kt_parser_choice c;
    kt_err err;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        e.tool_parser = names[i][0];
        cr_assert_eq(kt_parser_choose(&e, &c, &err), KT_OK, "%s", err.message);
        cr_assert_str_eq(kt_parser_calls_name(&c), names[i][1]);
    }
    e.tool_parser = NULL;
    for (size_t i = 0; i < sizeof thinkers / sizeof *thinkers; i++) {
        e.reasoning_parser = thinkers[i];
        cr_assert_eq(kt_parser_choose(&e, &c, &err), KT_OK, "%s", err.message);
        cr_assert_str_eq(kt_parser_reasoning_name(&c), "think");
    }
    e.reasoning_parser = "wishful";
    cr_assert_eq(kt_parser_choose(&e, &c, &err), KT_E_INVALID);
    cr_assert(strstr(err.message, "'wishful'") && strstr(err.message, "seed_oss"), "%s",
              err.message);
    e.reasoning_parser = "auto";
    e.tool_parser = "hammer";
    cr_assert_eq(kt_parser_choose(&e, &c, &err), KT_E_INVALID);
    cr_assert(strstr(err.message, "'hammer'") && strstr(err.message, "kimi_k2"), "%s", err.message);
    cr_assert_null(c.calls);
}

Test(parser_choice, a_family_without_template_has_its_own) {
    static const char *const families[][3] = {
        {"deepseek_v32", "deepseekv32", "think"}, {"deepseek_v4", "deepseekv4", "think"},
        {"gpt_oss", "harmony", "harmony"},        {"qwen3_5_moe", "qwen3_coder", "think"},
        {"glm_moe_dsa", "glm47", "think"},        {"glm4_moe_lite", "glm47", "think"},
        {"kimi_k25", "kimi_k2", "think"},         {"minimax_m3", "minimax_m3", "think"}};
    kt_parser_evidence e = {0};
    kt_parser_choice c;

    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        e.family = families[i][0];
        cr_assert_eq(kt_parser_choose(&e, &c, NULL), KT_OK);
        cr_expect_str_eq(kt_parser_calls_name(&c), families[i][1], "%s", e.family);
        cr_expect_str_eq(kt_parser_reasoning_name(&c), families[i][2], "%s", e.family);
    }
    e.family = "unheard_of";
    cr_assert_eq(kt_parser_choose(&e, &c, NULL), KT_OK);
    cr_assert(!c.calls && !c.reasoning);
}

Test(parser_choice, an_open_mark_at_the_prompts_end_is_seen) {
    kt_parser_evidence e = {.reasoning_parser = "qwen3"};
    kt_parser_choice c;

    cr_assert_eq(kt_parser_choose(&e, &c, NULL), KT_OK);
    cr_assert(kt_parser_starts_inside(&c, "x<think>\n", 9));
    cr_assert(kt_parser_starts_inside(&c, "<think>", 7));
    cr_assert_not(kt_parser_starts_inside(&c, "<think> y", 9));
    cr_assert_not(kt_parser_starts_inside(&c, "<think></think>", 15));
    cr_assert_not(kt_parser_starts_inside(&c, "think>", 6));
    cr_assert_not(kt_parser_starts_inside(&c, "", 0));
}

/* ---- ids ---- */

Test(parser, ids_follow_the_family) {
    static const char call[] = "<tool_call>{\"name\": \"now\"}</tool_call>";
    static const char kimi[] =
        "<|tool_call_begin|>functions.now:4<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_call_begin|>now<|tool_call_argument_begin|>{}<|tool_call_end|>";
    parser_feed f = parser_open("hermes", "none", false, PARSER_TOOLS);
    char first[64];

    parser_push(&f, -1, call, sizeof call - 1);
    cr_assert(strlen(f.id) == 29 && memcmp(f.id, "call_", 5) == 0, "%s", f.id);
    strcpy(first, f.id);
    parser_push(&f, -1, call, sizeof call - 1);
    cr_assert_str_neq(f.id, first);
    cr_assert_eq(f.n_calls, 2);
    parser_close(&f);
    f = parser_open("kimi_k2", "none", false, PARSER_TOOLS);
    parser_push(&f, -1, kimi, strstr(kimi + 1, "<|tool_call_begin|>") - kimi);
    cr_assert_str_eq(f.id, "functions.now:4");
    parser_push(&f, -1, strstr(kimi + 1, "<|tool_call_begin|>"),
                strlen(strstr(kimi + 1, "<|tool_call_begin|>")));
    cr_assert_str_eq(f.id, "functions.now:3"); /* one earlier call of two, and first_call is 2 */
    parser_close(&f);
}

/* ---- special tokens ---- */

Test(parser, special_marks_count_as_tokens_only) {
    parser_feed f = parser_open_special("kimi_k2", "kimi_k2", false, PARSER_TOOLS);

    cr_assert(kt_parser_wants(f.p, parser_special_id(NULL, "<|tool_call_end|>")));
    cr_assert_not(kt_parser_wants(f.p, 9999));
    cr_assert_not(kt_parser_wants(f.p, -1));
    /* spelled by other tokens: text */
    parser_push(&f, 5, "<|tool_call_begin|>now<|tool_call_argument_begin|>{}", 52);
    parser_push_special(&f, "<|tool_calls_section_begin|>");
    parser_push_special(&f, "<|tool_call_begin|>");
    parser_push(&f, 6, "functions.now:0", 15);
    parser_push_special(&f, "<|tool_call_argument_begin|>");
    parser_push(&f, 7, "{\"a\": \"<|tool_call_end|>", 24);
    parser_push_special(&f, "<|tool_call_end|>"); /* in the middle of a string: cut */
    parser_push_special(&f, "<|tool_calls_section_end|>");
    parser_push(&f, 8, "x", 1);
    parser_push_special(&f, "<|tool_call_end|>"); /* out of place: as it is written */
    parser_end(&f);
    cr_assert_str_eq(f.said,
                     "T(<|tool_call_begin|>now<|tool_call_argument_begin|>{})C(now)A({\"a\": "
                     "\"<|tool_call_end|>\"})XT(x<|tool_call_end|>)");
    parser_close(&f);
}

Test(parser, calls_are_text_without_tools) {
    static const char call[] = "<tool_call>{\"name\": \"now\"}</tool_call>";
    parser_feed f = parser_open("hermes", "none", false, "[]");

    parser_push(&f, -1, call, sizeof call - 1);
    parser_end(&f);
    cr_assert_str_eq(f.said, "T(<tool_call>{\"name\": \"now\"}</tool_call>)");
    cr_assert_eq(kt_parser_push(f.p, -1, "x", 1, parser_sink, &f, NULL), KT_E_INVALID);
    cr_assert_eq(kt_parser_finish(f.p, parser_sink, &f, NULL), KT_OK);
    parser_close(&f);
}

/* ---- streaming ---- */

Test(parser, strings_and_arguments_stream_as_they_come) {
    static const char head[] = "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"one";
    static const char coder[] = "<tool_call>\n<function=write_file>\n<parameter=content>\none";
    parser_feed f = parser_open("hermes", "none", false, PARSER_TOOLS);

    parser_push(&f, -1, head, sizeof head - 1);
    cr_assert_str_eq(f.said, "C(now)A({\"a\": \"one");
    cr_assert(kt_parser_in_call(f.p));
    parser_close(&f);
    f = parser_open("qwen3_coder", "none", false, PARSER_TOOLS);
    parser_push(&f, -1, coder, sizeof coder - 1);
    cr_assert_str_eq(f.said, "C(write_file)A({\"content\": \"one");
    parser_close(&f);
    f = parser_open("hermes", "qwen3", true, PARSER_TOOLS);
    parser_push(&f, -1, "Well", 4);
    cr_assert_str_eq(f.said, "R(Well");
    cr_assert(kt_parser_in_reasoning(f.p));
    parser_close(&f);
}

/* ---- damage, size ---- */

Test(parser, damaged_outputs_stay_whole, .timeout = 300) {
    kt_rng rng;

    kt_rng_seed(&rng, 2);
    for (int round = 0; round < 300; round++)
        for (int i = 0; i < N_CASES; i++) {
            char bad[4096];
            size_t size = parser_damage(&rng, parser_cases, N_CASES, i, bad, sizeof bad);
            parser_feed whole = open_case(&parser_cases[i]), pieces = open_case(&parser_cases[i]);
            parser_push(&whole, -1, bad, size);
            parser_end(&whole);
            parser_check_json(&whole);
            for (size_t at = 0; at < size;) {
                size_t n = 1 + kt_rng_below(&rng, 4);
                if (n > size - at) n = size - at;
                parser_push(&pieces, -1, bad + at, n);
                at += n;
            }
            parser_end(&pieces);
            cr_assert_str_eq(pieces.said, whole.said, "%s, round %d of case %d: %.*s",
                             parser_cases[i].parser, round, i, (int)size, bad);
            parser_close(&whole);
            parser_close(&pieces);
        }
}

/* A megabyte of each kind of output, in pieces of a token's size and in one, and nothing kept for
 * long. */
Test(parser, large_outputs_take_linear_time, .timeout = 120) {
    static const struct {
        const char *parser, *head, *body;
        bool inside;
    } kinds[] = {
        {"hermes", "", "some words, a < b and `c`\n", false},
        {"hermes", "", "<<<<<<<<<<<<<<<<<<<<<<<<", false},
        {"hermes", "", "                        ", false},
        {"hermes", "", "<tool_call><tool_cal", false},
        {"hermes", "", "why <not> so\n", true},
        {"hermes", "<tool_call>{\"arguments\": {\"a\": \"", "text\\n", false},
        {"hermes", "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": [", "[1.5, \"x\"], ",
         false},
        {"hermes", "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": [", "[", false},
        {"qwen3_coder", "<function=write_file>\n<parameter=content>\n", "a\n<b \"\n", false},
        {"qwen3_coder", "<function=get_weather>\n<parameter=tags>\n", "[1, ", false},
        {"qwen3_coder", "<function=get_weather>\n", "<parameter=a>\nb\n</parameter>\n", false},
        {"qwen3_coder", "<function=get_weather>\n<parameter=days>\n1", "junk", false},
        {"glm47", "<tool_call>now<arg_key>", "aaaaaaa", false},
        {"glm47", "<tool_call>now<arg_key>a</arg_key>", "        ", false},
        {"deepseekv31", "<｜tool▁calls▁begin｜>", "        ", false},
        {"minimax_m3", NS3 "<tool_call>" NS3 "<invoke name=\"get_weather\">" NS3 "<where>",
         NS3 "<a>b" NS3 "</a>", false},
        {"minimax_m3", NS3 "<tool_call>" NS3 "<invoke name=\"now\">", NS3 "<a>", false},
        {"harmony", "<|channel|>final<|message|>", "a <|sta b\n", false},
        {"harmony", "<|channel|>commentary to=functions.now<|message|>{\"a\": [", "1, ", false}};
    enum { SIZE = 1 << 20, TOKEN = 4 };
    char *text = malloc(SIZE);

    for (size_t k = 0; k < 2 * (sizeof kinds / sizeof *kinds); k++) {
        const char *name = kinds[k / 2].parser, *what = kinds[k / 2].body;
        const size_t head = strlen(kinds[k / 2].head), body = strlen(what);
        const size_t piece = k % 2 ? SIZE : TOKEN;
        parser_feed f = parser_open(name, "qwen3", kinds[k / 2].inside, PARSER_TOOLS);
        int64_t start;
        double ms;
        f.counts_only = true;
        memcpy(text, kinds[k / 2].head, head);
        for (size_t i = head; i < SIZE; i++) text[i] = what[(i - head) % body];
        start = kt_clock_ns();
        for (size_t at = 0; at < SIZE; at += piece) parser_push(&f, -1, text + at, piece);
        parser_end(&f);
        ms = (double)(kt_clock_ns() - start) * 1e-6;
        cr_log_info("%s %s by %zu: %.1f ms, %zu events", name, what, piece, ms, f.n_events);
        cr_expect_lt(ms, 2000.0, "%s, %s by %zu: %.0f ms", name, what, piece, ms);
        cr_expect_geq(f.n_bytes + 4096, SIZE, "%s, %s: %zu bytes", name, what, f.n_bytes);
        parser_close(&f);
    }
    free(text);
}

Test(parser, marks_fit_and_are_told_apart) {
    for (size_t i = 0; i < kt_builtin_calls_count; i++) {
        const kt_calls *c = kt_builtin_calls[i];
        const char *marks[] = {c->section_begin, c->section_end,   c->call_begin,  c->call_end,
                               c->prefix_end,    c->name_end,      c->param_begin, c->key_end,
                               c->value_begin,   c->arguments_end, c->value_end};
        for (size_t m = 0; m < sizeof marks / sizeof *marks; m++)
            cr_assert(!marks[m] || strlen(marks[m]) < 64, "%s: %s", c->name, marks[m]);
        cr_assert(c->call_begin && c->call_end && c->evidence, "%s", c->name);
    }
}
