/* Conversations as JSON text. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/resolve.h"
#include "runtime/chat/messages.h"

kt_status kt_chat_format_open(const char *model, const char *template_file, kt_chat_format **out,
                              kt_err *err) {
    kt_model_ref ref;
    kt_chat_source source = {.template_file = template_file};

    *out = NULL;
    if (!model && !template_file)
        return kt_fail(err, KT_E_INVALID, "neither a model nor a template file is given");
    if (model) {
        KT_TRY(kt_model_resolve(model, 1u << KT_MODEL_FOLDER | 1u << KT_MODEL_FILE, &ref, err));
        source.model = ref.path;
    }
    return kt_chat_format_load(&source, out, err);
}

/* ---- members of a conversation ---- */

static kt_status refuse(const char *key, const kt_json *value, const char *expected, kt_err *err) {
    return kt_fail(err, KT_E_INVALID, "conversation: '%.80s' is %s, expected %s", key,
                   kt_json_type_name(kt_json_type_of(value)), expected);
}

static bool is_named(const char *key, size_t size, const char *name) {
    return strlen(name) == size && memcmp(key, name, size) == 0;
}

/* The members that are handed on as they are. */
static const kt_json **place_of(kt_chat_request *r, const char *key, size_t size) {
    if (is_named(key, size, "messages")) return &r->messages;
    if (is_named(key, size, "tools")) return &r->tools;
    if (is_named(key, size, "documents")) return &r->documents;
    if (is_named(key, size, "chat_template_kwargs")) return &r->kwargs;
    if (is_named(key, size, "response_format")) return &r->response_format;
    return NULL;
}

static kt_status take_flag(kt_chat_request *r, const char *key, size_t size, const kt_json *value,
                           kt_err *err) {
    const bool is_on = kt_json_bool(value, false);

    if (kt_json_type_of(value) != KT_JSON_BOOL) return refuse(key, value, "true or false", err);
    if (is_named(key, size, "enable_thinking"))
        r->enable_thinking = is_on ? 1 : -1;
    else if (is_named(key, size, "add_generation_prompt"))
        r->no_generation_prompt = !is_on;
    else if (is_named(key, size, "continue_final_message"))
        r->continue_final_message = is_on;
    else
        return kt_fail(err, KT_E_INVALID, "conversation: '%.80s' is no member that is known", key);
    return KT_OK;
}

static kt_status take_member(kt_chat_request *r, const char *key, size_t size, const kt_json *value,
                             kt_err *err) {
    const kt_json **place = place_of(r, key, size);

    if (kt_json_type_of(value) == KT_JSON_NULL) return KT_OK;
    if (place) {
        *place = value;
        return KT_OK;
    }
    if (is_named(key, size, "now")) {
        if (!kt_json_is_integer(value)) return refuse(key, value, "an integer", err);
        r->has_now = true;
        r->now = kt_json_int(value, 0);
        return KT_OK;
    }
    if (is_named(key, size, "reasoning_effort")) {
        r->reasoning_effort = kt_json_string(value, NULL);
        return r->reasoning_effort ? KT_OK : refuse(key, value, "a string", err);
    }
    return take_flag(r, key, size, value, err);
}

static kt_status read_conversation(const kt_json *root, kt_chat_request *out, kt_err *err) {
    *out = (kt_chat_request){0};
    if (kt_json_type_of(root) != KT_JSON_OBJECT)
        return kt_fail(err, KT_E_INVALID, "conversation: found %s, expected an object",
                       kt_json_type_name(kt_json_type_of(root)));
    for (size_t i = 0; i < kt_json_length(root); i++) {
        const char *key;
        size_t size;
        const kt_json *value = kt_json_member(root, i, &key, &size);
        KT_TRY(take_member(out, key, size, value, err));
    }
    return KT_OK;
}

/* ---- */

kt_status kt_chat_render_json(const kt_chat_format *f, const char *conversation, size_t size,
                              char **text, size_t *text_size, kt_err *err) {
    kt_json_doc *doc = NULL;
    kt_chat_request request;
    kt_rendered rendered = {0};
    kt_status st;

    *text = NULL;
    *text_size = 0;
    KT_TRY(kt_json_parse(conversation, size, NULL, &doc, err));
    st = read_conversation(kt_json_root(doc), &request, err);
    if (st == KT_OK) st = kt_chat_render(f, &request, &rendered, err);
    if (st == KT_OK) {
        *text = rendered.text;
        *text_size = rendered.size;
        rendered.text = NULL; /* now the caller's */
    }
    kt_rendered_deinit(&rendered);
    kt_json_destroy(doc);
    return st;
}

kt_status kt_chat_encode_json(const kt_chat_format *f, const kt_tokenizer *t,
                              const char *conversation, size_t size, int32_t **ids, size_t *count,
                              kt_err *err) {
    kt_json_doc *doc = NULL;
    kt_chat_request request;
    kt_chat_prompt prompt = {0};
    kt_status st;

    *ids = NULL;
    *count = 0;
    KT_TRY(kt_json_parse(conversation, size, NULL, &doc, err));
    st = read_conversation(kt_json_root(doc), &request, err);
    if (st == KT_OK) st = kt_chat_encode(f, t, &request, &prompt, err);
    if (st == KT_OK) {
        *ids = prompt.ids;
        *count = prompt.n_ids;
        prompt.ids = NULL; /* now the caller's */
    }
    kt_chat_prompt_deinit(&prompt);
    kt_json_destroy(doc);
    return st;
}
