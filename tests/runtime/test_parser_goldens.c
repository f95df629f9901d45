/* runtime/chat: what the families' own templates write of a call, the parser reads back as that
 * call. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/chat/calls.h"
#include "runtime/chat/parser.h"
#include "tests/runtime/parser_feed.h"

static const char tools[] =
    "[{\"function\":{\"name\":\"get_weather\",\"parameters\":{\"properties\":{\"city\":{\"type\":"
    "\"string\"},\"days\":{\"type\":\"integer\"}}}}},{\"function\":{\"name\":\"run_sql\","
    "\"parameters\":{\"properties\":{\"query\":{\"type\":\"string\"},\"params\":{\"type\":\"array\""
    "}}}}}]";

/* Both calls of the conversation that all templates rendered, with their arguments as values. */
static const char *const names[] = {"get_weather", "run_sql"};
static const char *const arguments[] = {
    "{\"city\":\"\xe6\x9d\xb1\xe4\xba\xac\",\"days\":3}",
    "{\"query\":\"select * from t where a<3 and b>'x' & 1\",\"params\":[1,2.5,null,true,"
    "\"q\\\"\\\\\"]}"};

/* Where the assistant's turn lies in the rendering: after the question and `begin`, up to `end`. */
typedef struct golden {
    const char *file, *calls, *begin, *end;
} golden;

static const golden goldens[] = {
    {"ByteDance-Seed-OSS__tools_obj", "seed_oss", "assistant", "<seed:eos>"},
    {"GLM-4.6__tools_obj", "glm45", "<|assistant|>", "<|observation|>"},
    {"llamacpp-pr-glm_4_5__tools_obj", "glm45", "<|assistant|>", "<|observation|>"},
    {"GLM-4.7-Flash__tools_obj", "glm47", "<|assistant|></think>", "<|observation|>"},
    {"GLM-5.2__tools_obj", "glm47", "<|assistant|>", "<|observation|>"},
    {"Kimi-K2-Instruct__tools_obj", "kimi_k2", "assistant<|im_middle|>", "<|im_end|>"},
    {"Kimi-K2-Thinking__tools_obj", "kimi_k2", "assistant<|im_middle|>", "<|im_end|>"},
    {"MiniMax-M2__tools_obj", "minimax_m2", "]~b]ai\n", "[e~["},
    {"Qwen-QwQ-32B__tools_obj", "hermes", "<|im_start|>assistant\n", "<|im_end|>"},
    {"Qwen-Qwen2.5-7B-Instruct__tools_obj", "hermes", "<|im_start|>assistant\n", "<|im_end|>"},
    {"Qwen-Qwen3-0.6B__tools_obj", "hermes", "<|im_start|>assistant\n", "<|im_end|>"},
    {"Qwen3-Coder__tools_obj", "qwen3_coder", "<|im_start|>assistant\n", "<|im_end|>"},
    {"Qwen3.5-4B__tools_obj", "qwen3_coder", "<|im_start|>assistant\n", "<|im_end|>"},
    {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B__tools_str", "deepseekv3",
     "<\xef\xbd\x9c"
     "Assistant\xef\xbd\x9c>",
     "<\xef\xbd\x9c"
     "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"},
    {"deepseek-ai-DeepSeek-V3.1__tools_str", "deepseekv31",
     "<\xef\xbd\x9c"
     "Assistant\xef\xbd\x9c>",
     "<\xef\xbd\x9c"
     "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"},
    {"sglang-tool_chat_template_deepseekv3__tools_obj", "deepseekv3",
     "<\xef\xbd\x9c"
     "Assistant\xef\xbd\x9c>",
     "<\xef\xbd\x9c"
     "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"},
    {"deepseek-ai-DeepSeek-V3.2__tools_obj", "deepseekv32",
     "<\xef\xbd\x9c"
     "Assistant\xef\xbd\x9c></think>",
     "<\xef\xbd\x9c"
     "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"},
    {"deepseek-ai-DeepSeek-V4__tools_obj", "deepseekv4",
     "<\xef\xbd\x9c"
     "Assistant\xef\xbd\x9c></think>",
     "<\xef\xbd\x9c"
     "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"},
};

typedef struct taken {
    char name[2][64], text[2][1024], rest[1024];
    size_t size[2], n_rest;
    int n;
    bool is_cut;
} taken;

static void take(void *arg, const kt_event *e) {
    taken *t = arg;

    switch (e->kind) {
    case KT_EVENT_TOOL_BEGIN:
        cr_assert_lt(t->n, 2);
        snprintf(t->name[t->n++], sizeof t->name[0], "%s", e->text);
        break;
    case KT_EVENT_TOOL_ARGUMENTS:
        memcpy(t->text[t->n - 1] + t->size[t->n - 1], e->text, e->size);
        t->size[t->n - 1] += e->size;
        break;
    case KT_EVENT_REASONING: break; /* some templates keep it */
    case KT_EVENT_TOOL_END: t->is_cut |= e->as.call.is_cut; break;
    default: memcpy(t->rest + t->n_rest, e->text, e->size); t->n_rest += e->size;
    }
}

/* The assistant's turn of a rendering; *size its bytes. */
static const char *turn(const golden *g, const char *text, size_t *size) {
    const char *at = strstr(text, "for 3 days?"), *end;

    cr_assert_not_null(at, "%s", g->file);
    at = strstr(at, g->begin);
    cr_assert_not_null(at, "%s: no '%s'", g->file, g->begin);
    at += strlen(g->begin);
    end = strstr(at, g->end);
    cr_assert_not_null(end, "%s: no '%s'", g->file, g->end);
    *size = (size_t)(end - at);
    return at;
}

static void check_calls(const golden *g, const taken *t) {
    cr_assert(t->n == 2 && !t->is_cut, "%s: %d calls", g->file, t->n);
    cr_assert_eq(t->n_rest, 0, "%s: text '%.*s'", g->file, (int)t->n_rest, t->rest);
    for (int i = 0; i < 2; i++) {
        kt_json_writer w = {0};
        kt_json_doc *doc;
        cr_assert_str_eq(t->name[i], names[i], "%s", g->file);
        cr_assert_eq(kt_json_parse(t->text[i], t->size[i], NULL, &doc, NULL), KT_OK, "%s: %.*s",
                     g->file, (int)t->size[i], t->text[i]);
        kt_json_put_value(&w, kt_json_root(doc));
        cr_assert_str_eq(kt_json_writer_text(&w, NULL), arguments[i], "%s", g->file);
        kt_json_writer_deinit(&w);
        kt_json_destroy(doc);
    }
}

/* Without the shared data, too. */
Test(parser_goldens, notations_are_known) {
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        size_t n = 0;
        for (size_t k = 0; k < kt_builtin_calls_count; k++)
            n += strcmp(kt_builtin_calls[k]->name, goldens[i].calls) == 0;
        cr_expect_eq(n, 1, "%s: %s", goldens[i].file, goldens[i].calls);
    }
}

Test(parser_goldens, calls_that_templates_write_are_read_back) {
    if (!getenv("KT_SHARED")) setenv("KT_SHARED", KT_SOURCE_DIR "/../shared", 0);
    if (!parser_has_shared()) cr_skip_test("the shared data is absent");
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        const golden *g = &goldens[i];
        const bool is_seed = strcmp(g->calls, "seed_oss") == 0;
        parser_feed f = parser_open(g->calls, is_seed ? "seed_oss" : "qwen3", false, tools);
        char path[600], *text;
        const char *at;
        size_t size = 0;
        taken t = {0};
        snprintf(path, sizeof path, "%s/data/templates/goldens/%s.txt", getenv("KT_SHARED"),
                 g->file);
        text = parser_read_file(path, &size);
        cr_assert_not_null(text, "%s", path);
        text[size] = 0;
        at = turn(g, text, &size);
        for (size_t k = 0; k < size; k++)
            cr_assert_eq(kt_parser_push(f.p, -1, at + k, 1, take, &t, NULL), KT_OK);
        cr_assert_eq(kt_parser_finish(f.p, take, &t, NULL), KT_OK);
        check_calls(g, &t);
        parser_close(&f);
        free(text);
    }
}
