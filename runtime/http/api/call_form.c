/* The form that an answer is held to: response_format, grammar, json_schema.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/http/api/call.h"

/* ---- parameters ---- */

static bool parse_response_format(kt_answer_form *f, const kt_json *body, kt_api_error *e) {
    const kt_json *format = kt_field(body, "response_format");
    const char *type = kt_json_string(kt_field(format, "type"), NULL);

    if (!format) return true;
    if (kt_json_type_of(format) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, "response_format", format, "an object");
    if (!type)
        return kt_api_wrong_type(e, "response_format.type", kt_field(format, "type"), "a string");
    if (strcmp(type, "text") == 0) return true;
    f->response_format = format;
    f->param = "response_format";
    if (strcmp(type, "json_object") == 0) {
        f->schema = kt_field(format, "schema"); /* llama-server's and Together's */
        f->json_object = !f->schema;
        return true;
    }
    if (strcmp(type, "json_schema") != 0)
        return kt_api_refuse(e, 400, "response_format", "invalid_value",
                             "'response_format.type' is '%.40s', expected text, json_object or "
                             "json_schema",
                             type);
    f->schema = kt_field(kt_field(format, "json_schema"), "schema");
    if (f->schema) return true;
    return kt_api_wrong_type(e, "response_format.json_schema.schema", NULL, "a JSON schema");
}

bool kt_api_parse_form(kt_api_call *c, const kt_json *body, kt_api_error *e) {
    const kt_json *schema = kt_field(body, "json_schema");
    kt_answer_form *f = &c->form;
    int forms;

    if (!parse_response_format(f, body, e) ||
        !kt_field_string(body, "grammar", &f->gbnf, &f->gbnf_size, e))
        return false;
    if (f->gbnf && f->gbnf_size == 0) f->gbnf = NULL;
    forms = (f->schema != NULL) + f->json_object + (f->gbnf != NULL) + (schema != NULL);
    if (forms > 1)
        return kt_api_refuse(e, 400, "response_format", "invalid_value",
                             "of 'response_format', 'grammar' and 'json_schema' only one can hold");
    if (schema) {
        f->schema = schema;
        f->param = "json_schema";
    }
    if (f->gbnf) f->param = "grammar";
    return true;
}

/* ---- the grammar ---- */

bool kt_api_check_grammar(kt_status st, const char *param, const kt_err *err, kt_api_error *e) {
    if (st == KT_OK) return true;
    if (st == KT_E_NOMEM) return kt_api_no_memory(e);
    return kt_api_refuse(e, 400, param,
                         st == KT_E_UNSUPPORTED ? "unsupported_value" : "invalid_value", "'%s': %s",
                         param, err->message);
}

bool kt_api_make_grammar(kt_api_call *c, kt_api_error *e) {
    const kt_vocabulary *v = c->app->chat ? c->app->chat->vocabulary : NULL;
    const kt_answer_form *f = &c->form;
    kt_status st;
    kt_err err = {0};

    if (!f->param) return true;
    if (!v)
        return kt_api_refuse(e, 400, f->param, "unsupported_value",
                             "'%s' needs a vocabulary, which this model lacks", f->param);
    if (f->gbnf)
        st = kt_grammar_from_gbnf(v, f->gbnf, f->gbnf_size, NULL, 0, &c->grammar, &err);
    else if (f->schema)
        st = kt_grammar_from_schema(v, f->schema, &c->grammar, &err);
    else
        st = kt_grammar_json_object(v, &c->grammar, &err);
    return kt_api_check_grammar(st, f->param, &err, e);
}

/* ---- its state, one for each choice ---- */

typedef struct gate {
    const kt_api_call *call;
    size_t choice;
    kt_grammar_state state;
} gate;

static bool is_free(const gate *g) {
    const kt_api_kind *kind = g->call->kind;
    return kind->is_free && kind->is_free(g->call, g->choice);
}

/* Choices are opened in their order. */
static kt_status open_gate(void *arg, void **state, kt_err *err) {
    kt_api_call *c = arg;
    gate *g = calloc(1, sizeof *g);
    kt_status st;

    *state = NULL;
    if (!g) return kt_fail(err, KT_E_NOMEM, "no memory for a grammar");
    g->call = c;
    g->choice = c->n_gates++;
    st = kt_grammar_state_init(&g->state, c->grammar, err);
    if (st != KT_OK) {
        free(g);
        return st;
    }
    *state = g;
    return KT_OK;
}

static void close_gate(void *state) {
    gate *g = state;

    if (g) kt_grammar_state_deinit(&g->state);
    free(g);
}

static kt_status mask_gate(void *state, uint64_t *bits, kt_err *err) {
    gate *g = state;

    if (!is_free(g)) return kt_grammar_state_mask(&g->state, bits, err);
    memset(bits, 0xff, kt_vocabulary_words(g->call->app->chat->vocabulary) * sizeof *bits);
    return KT_OK;
}

static kt_status accept_gate(void *state, int32_t id, kt_err *err) {
    gate *g = state;
    return is_free(g) ? KT_OK : kt_grammar_state_accept_token(&g->state, id, err);
}

void kt_api_hold(kt_api_call *c) {
    if (!c->grammar) return;
    c->constraint = (kt_constraint){
        .arg = c, .open = open_gate, .close = close_gate, .mask = mask_gate, .accept = accept_gate};
    c->run.constraint = &c->constraint;
}
