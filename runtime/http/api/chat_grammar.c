/* Grammars that hold an answer: response_format, grammar, json_schema, tool_choice.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/chat/tool_grammar.h"
#include "runtime/http/api/chat.h"

static bool refuse_status(kt_api_error *e, const char *param, kt_status st, const kt_err *err) {
    if (st == KT_E_NOMEM) return kt_api_no_memory(e);
    return kt_api_refuse(e, 400, param,
                         st == KT_E_UNSUPPORTED ? "unsupported_value" : "invalid_value", "'%s': %s",
                         param, err->message);
}

static bool make_tool_grammar(kt_chat_call *c, kt_api_error *e) {
    const kt_chat_model *m = c->app->chat;
    const kt_tool_grammar_options options = {
        .choice = m->parsers,
        .tools = c->request.tools,
        .named = c->tool_choice == KT_TOOL_CHOICE_NAMED ? c->tool_name : NULL,
        .parallel = c->parallel_tools,
        .starts_in_reasoning = c->prompt.starts_in_reasoning,
        .special_token = kt_chat_special_token,
        .special_arg = c->app->backend->tokenizer};
    kt_tool_grammar g;
    kt_err err = {0};
    kt_status st = kt_tool_grammar_create(&options, &g, &err);

    if (st == KT_OK) {
        st = kt_grammar_from_gbnf(m->vocabulary, g.text, g.size, g.symbols, g.n_symbols,
                                  &c->grammar, &err);
        kt_tool_grammar_destroy(&g);
    }
    return st == KT_OK || refuse_status(e, "tool_choice", st, &err);
}

bool kt_chat_make_grammar(kt_chat_call *c, kt_api_error *e) {
    const kt_chat_model *m = c->app->chat;
    bool forced = c->tool_choice >= KT_TOOL_CHOICE_REQUIRED;
    kt_status st = KT_OK;
    kt_err err = {0};
    const char *param = c->gbnf ? "grammar" : "response_format";

    if (!forced && !c->schema && !c->json_object && !c->gbnf) return true;
    if (!m->vocabulary)
        return kt_api_refuse(e, 400, forced ? "tool_choice" : param, "unsupported_value",
                             "'%s' needs a vocabulary, which this model lacks",
                             forced ? "tool_choice" : param);
    if (forced) return make_tool_grammar(c, e);
    if (c->gbnf)
        st = kt_grammar_from_gbnf(m->vocabulary, c->gbnf, c->gbnf_size, NULL, 0, &c->grammar, &err);
    else if (c->schema)
        st = kt_grammar_from_schema(m->vocabulary, c->schema, &c->grammar, &err);
    else
        st = kt_grammar_json_object(m->vocabulary, &c->grammar, &err);
    return st == KT_OK || refuse_status(e, param, st, &err);
}
