/* Parameters that are known elsewhere and not built here. One that would change the answer is
 * refused by name, unless its value says that it is off: an answer that ignores it is worse than
 * none. What only labels a request, or says where to keep it, is accepted and has no effect.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/api/refused.h"

#include <string.h>

/* Values by which a client says that it does not want it. */
typedef enum off_value { NEVER, EMPTY, ZERO, ONE, TRUE, WORD } off_value;

static const struct {
    const char *name;
    unsigned on; /* kt_api_on */
    off_value off;
    const char *word, *instead; /* word: with | between several; instead: what to give, or NULL */
} refused[] = {
    {"add_generation_prompt", KT_ON_MESSAGES, TRUE, NULL, NULL},
    {"allowed_token_ids", KT_ON_ALL, EMPTY, NULL, "logit_bias"},
    {"audio", KT_ON_ALL, NEVER, NULL, NULL},
    {"background", KT_ON_RESPONSES, ZERO, NULL, NULL},
    {"bad_words", KT_ON_ALL, EMPTY, NULL, NULL},
    {"best_of", KT_ON_MESSAGES | KT_ON_RESPONSES, ONE, NULL, NULL},
    {"cache_salt", KT_ON_ALL, EMPTY, NULL, NULL},
    {"chat_template_kwargs", KT_ON_TEXT, EMPTY, NULL, NULL},
    {"container", KT_ON_MESSAGES, EMPTY, NULL, NULL},
    {"context_management", KT_ON_MESSAGES | KT_ON_RESPONSES, EMPTY, NULL, NULL},
    {"continue_final_message", KT_ON_MESSAGES, ZERO, NULL, NULL},
    {"conversation", KT_ON_RESPONSES, EMPTY, NULL, "input"},
    {"documents", KT_ON_MESSAGES, EMPTY, NULL, NULL},
    {"dry_multiplier", KT_ON_ALL, ZERO, NULL, NULL},
    {"dynatemp_range", KT_ON_ALL, ZERO, NULL, NULL},
    {"echo", KT_ON_CHAT | KT_ON_MESSAGES | KT_ON_RESPONSES, ZERO, NULL, NULL},
    {"enable_thinking", KT_ON_MESSAGES, NEVER, NULL, "thinking"},
    {"enable_thinking", KT_ON_RESPONSES, NEVER, NULL, "reasoning"},
    {"function_call", KT_ON_TEXT, WORD, "none", NULL},
    {"function_call", KT_ON_CHAT | KT_ON_MESSAGES | KT_ON_RESPONSES, WORD, "none", "tool_choice"},
    {"functions", KT_ON_TEXT, EMPTY, NULL, NULL},
    {"functions", KT_ON_CHAT | KT_ON_MESSAGES | KT_ON_RESPONSES, EMPTY, NULL, "tools"},
    {"guided_choice", KT_ON_MESSAGES, EMPTY, NULL, "output_config"},
    {"guided_choice", KT_ON_CHAT | KT_ON_TEXT, EMPTY, NULL, "response_format"},
    {"guided_choice", KT_ON_RESPONSES, EMPTY, NULL, "text"},
    {"guided_grammar", KT_ON_ALL, EMPTY, NULL, "grammar"},
    {"guided_json", KT_ON_MESSAGES, EMPTY, NULL, "output_config"},
    {"guided_json", KT_ON_CHAT | KT_ON_TEXT, EMPTY, NULL, "response_format"},
    {"guided_json", KT_ON_RESPONSES, EMPTY, NULL, "text"},
    {"guided_regex", KT_ON_MESSAGES, EMPTY, NULL, "output_config"},
    {"guided_regex", KT_ON_CHAT | KT_ON_TEXT, EMPTY, NULL, "response_format"},
    {"guided_regex", KT_ON_RESPONSES, EMPTY, NULL, "text"},
    {"image_data", KT_ON_ALL, EMPTY, NULL, NULL},
    {"include_stop_str_in_output", KT_ON_ALL, ZERO, NULL, NULL},
    {"input_extra", KT_ON_ALL, EMPTY, NULL, NULL},
    {"length_penalty", KT_ON_ALL, ONE, NULL, NULL},
    {"logprobs", KT_ON_MESSAGES, ZERO, NULL, NULL},
    {"logprobs", KT_ON_RESPONSES, ZERO, NULL, "include"},
    {"lora", KT_ON_ALL, EMPTY, NULL, NULL},
    {"max_completion_tokens", KT_ON_MESSAGES, NEVER, NULL, "max_tokens"},
    {"max_completion_tokens", KT_ON_RESPONSES, NEVER, NULL, "max_output_tokens"},
    {"max_tokens", KT_ON_RESPONSES, NEVER, NULL, "max_output_tokens"},
    {"mcp_servers", KT_ON_MESSAGES, EMPTY, NULL, NULL},
    {"messages", KT_ON_TEXT, NEVER, NULL, "prompt"},
    {"messages", KT_ON_RESPONSES, NEVER, NULL, "input"},
    {"mirostat", KT_ON_ALL, ZERO, NULL, NULL},
    {"n", KT_ON_MESSAGES | KT_ON_RESPONSES, ONE, NULL, NULL},
    {"n_indent", KT_ON_ALL, ZERO, NULL, NULL},
    {"n_keep", KT_ON_ALL, ZERO, NULL, NULL},
    {"n_predict", KT_ON_TEXT | KT_ON_MESSAGES, NEVER, NULL, "max_tokens"},
    {"n_predict", KT_ON_RESPONSES, NEVER, NULL, "max_output_tokens"},
    {"n_probs", KT_ON_CHAT, ZERO, NULL, "top_logprobs"},
    {"n_probs", KT_ON_TEXT, ZERO, NULL, "logprobs"},
    {"n_probs", KT_ON_MESSAGES, ZERO, NULL, NULL},
    {"n_probs", KT_ON_RESPONSES, ZERO, NULL, "top_logprobs"},
    {"parallel_tool_calls", KT_ON_TEXT, ZERO, NULL, NULL},
    {"parallel_tool_calls", KT_ON_MESSAGES, NEVER, NULL, "tool_choice"},
    {"post_sampling_probs", KT_ON_ALL, ZERO, NULL, NULL},
    {"prediction", KT_ON_ALL, NEVER, NULL, NULL},
    {"previous_response_id", KT_ON_RESPONSES, EMPTY, NULL, "input"},
    {"prompt", KT_ON_CHAT | KT_ON_MESSAGES, NEVER, NULL, "messages"},
    {"prompt", KT_ON_RESPONSES, EMPTY, NULL, "input"},
    {"prompt_logprobs", KT_ON_ALL, ZERO, NULL, NULL},
    {"reasoning_effort", KT_ON_TEXT, WORD, "none", NULL},
    {"reasoning_effort", KT_ON_MESSAGES, NEVER, NULL, "output_config"},
    {"reasoning_effort", KT_ON_RESPONSES, NEVER, NULL, "reasoning"},
    {"reasoning_format", KT_ON_ALL, WORD, "auto|deepseek", NULL},
    {"repeat_penalty", KT_ON_TEXT, ONE, NULL, "repetition_penalty"},
    {"response_fields", KT_ON_ALL, EMPTY, NULL, NULL},
    {"response_format", KT_ON_MESSAGES, NEVER, NULL, "output_config"},
    {"response_format", KT_ON_RESPONSES, NEVER, NULL, "text"},
    {"return_progress", KT_ON_TEXT | KT_ON_MESSAGES | KT_ON_RESPONSES, ZERO, NULL, NULL},
    {"return_token_ids", KT_ON_ALL, ZERO, NULL, NULL},
    {"return_tokens", KT_ON_ALL, ZERO, NULL, NULL},
    {"samplers", KT_ON_ALL, EMPTY, NULL, NULL},
    {"separate_reasoning", KT_ON_ALL, TRUE, NULL, NULL},
    {"skip_special_tokens", KT_ON_CHAT | KT_ON_MESSAGES | KT_ON_RESPONSES, TRUE, NULL, NULL},
    {"stop", KT_ON_MESSAGES, EMPTY, NULL, "stop_sequences"},
    {"stream_options", KT_ON_MESSAGES, EMPTY, NULL, NULL},
    {"structured_outputs", KT_ON_MESSAGES, EMPTY, NULL, "output_config"},
    {"structured_outputs", KT_ON_CHAT | KT_ON_TEXT, EMPTY, NULL, "response_format"},
    {"structured_outputs", KT_ON_RESPONSES, EMPTY, NULL, "text"},
    {"suffix", KT_ON_ALL, EMPTY, NULL, NULL},
    {"t_max_predict_ms", KT_ON_ALL, ZERO, NULL, NULL},
    {"thinking_token_budget", KT_ON_ALL, NEVER, NULL, NULL},
    {"timings_per_token", KT_ON_MESSAGES | KT_ON_RESPONSES, ZERO, NULL, NULL},
    {"tool_choice", KT_ON_TEXT, WORD, "none", NULL},
    {"tools", KT_ON_TEXT, EMPTY, NULL, NULL},
    {"top_logprobs", KT_ON_TEXT, ZERO, NULL, "logprobs"},
    {"top_logprobs", KT_ON_MESSAGES, ZERO, NULL, NULL},
    {"top_n_sigma", KT_ON_ALL, ZERO, NULL, NULL},
    {"truncate_prompt_tokens", KT_ON_ALL, NEVER, NULL, NULL},
    {"truncation", KT_ON_RESPONSES, WORD, "disabled", NULL},
    {"typical_p", KT_ON_ALL, ONE, NULL, NULL},
    {"use_beam_search", KT_ON_ALL, ZERO, NULL, NULL},
    {"verbosity", KT_ON_ALL, WORD, "medium", NULL},
    {"web_search_options", KT_ON_ALL, NEVER, NULL, NULL},
    {"xtc_probability", KT_ON_ALL, ZERO, NULL, NULL}};

/* Without effect on the text: labels, and hints to caches and queues of other servers. */
static const char *const harmless[] = {"cache_prompt",
                                       "id_slot",
                                       "metadata",
                                       "prompt_cache_key",
                                       "prompt_cache_retention",
                                       "request_id",
                                       "safety_identifier",
                                       "service_tier",
                                       "store",
                                       "user"};

/* One of the words, which have | between them. */
static bool is_word(const char *text, const char *words) {
    const size_t n = strlen(text);

    for (const char *at = words; at; at = strchr(at, '|')) {
        at += *at == '|';
        if (strncmp(at, text, n) == 0 && (at[n] == '|' || !at[n])) return true;
    }
    return false;
}

static bool is_off(const kt_json *v, off_value kind, const char *word) {
    const kt_json_type type = kt_json_type_of(v);
    const char *text = kt_json_string(v, NULL);

    switch (kind) {
    case EMPTY:
        return (text && !*text) ||
               ((type == KT_JSON_ARRAY || type == KT_JSON_OBJECT) && kt_json_length(v) == 0);
    case ZERO:
        return (type == KT_JSON_BOOL && !kt_json_bool(v, true)) ||
               (type == KT_JSON_NUMBER && kt_json_double(v, 1) <= 0);
    case ONE: return type == KT_JSON_NUMBER && kt_json_double(v, 0) == 1;
    case TRUE: return type == KT_JSON_BOOL && kt_json_bool(v, false);
    case WORD: return text && *text && is_word(text, word);
    default: return false;
    }
}

/* ["text"] is what there is. */
static bool check_modalities(const kt_json *body, kt_api_error *e) {
    const kt_json *v = kt_field(body, "modalities");
    const char *first = kt_json_string(kt_json_at(v, 0), NULL);

    if (!v || is_off(v, EMPTY, NULL)) return true;
    if (kt_json_length(v) == 1 && first && strcmp(first, "text") == 0) return true;
    return kt_api_refuse(e, 400, "modalities", "unsupported_parameter",
                         "'modalities' other than [\"text\"] are not supported");
}

bool kt_api_check_refused(const kt_json *body, kt_api_on route, kt_api_error *e) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const char *name = refused[i].name, *instead = refused[i].instead;
        const kt_json *v = refused[i].on & (unsigned)route ? kt_field(body, name) : NULL;
        if (!v || is_off(v, refused[i].off, refused[i].word)) continue;
        return kt_api_refuse(e, 400, name, "unsupported_parameter", "'%s' is not supported%s%s%s",
                             name, instead ? "; expected '" : "", instead ? instead : "",
                             instead ? "'" : "");
    }
    return check_modalities(body, e);
}

static bool is_listed(const char *name, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, list[i]) == 0) return true;
    return false;
}

static bool is_refused(const char *name, kt_api_on route) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (refused[i].on & (unsigned)route && strcmp(name, refused[i].name) == 0) return true;
    return false;
}

bool kt_api_check_known(const kt_json *body, kt_api_on route, const char *const *taken, size_t n,
                        kt_api_error *e) {
    for (size_t i = 0; i < kt_json_length(body); i++) {
        const char *name;
        size_t size;
        const kt_json *v = kt_json_member(body, i, &name, &size);
        if (strlen(name) == size &&
            (kt_json_type_of(v) == KT_JSON_NULL || is_listed(name, taken, n) ||
             is_listed(name, harmless, sizeof harmless / sizeof *harmless) ||
             strcmp(name, "modalities") == 0 || is_refused(name, route)))
            continue;
        return kt_api_refuse(e, 400, name, "unknown_parameter",
                             "'%.60s' is not a parameter of this URL", name);
    }
    return true;
}
