/* Which parameters of a request are known. One that would change the answer and is not built is
 * refused by name: an answer that ignores a grammar is worse than none. So is one that nobody
 * knows, as OpenAI's own service does: it may be a typing error. What only labels a request, or
 * says where to keep it, is accepted and has no effect.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "runtime/http/completion.h"

/* Read by completion_parse.c. */
static const char *const taken[] = {"best_of",
                                    "echo",
                                    "frequency_penalty",
                                    "ignore_eos",
                                    "logit_bias",
                                    "logprobs",
                                    "max_completion_tokens",
                                    "max_tokens",
                                    "min_p",
                                    "min_tokens",
                                    "model",
                                    "n",
                                    "presence_penalty",
                                    "priority",
                                    "prompt",
                                    "repetition_penalty",
                                    "seed",
                                    "skip_special_tokens",
                                    "stop",
                                    "stop_token_ids",
                                    "stream",
                                    "stream_options",
                                    "suffix",
                                    "temperature",
                                    "top_k",
                                    "top_p"};

/* Without effect on the text: labels, and hints to caches and queues of other servers. */
static const char *const harmless[] = {"cache_prompt",           "metadata",   "prompt_cache_key",
                                       "prompt_cache_retention", "request_id", "safety_identifier",
                                       "service_tier",           "store",      "user"};

/* Values by which a client says that it does not want what is not built. */
typedef enum neutral { NO_NEUTRAL, EMPTY, ZERO, ONE, WORD } neutral;

static const struct {
    const char *name;
    neutral neutral;
    const char *word, *instead; /* instead: what to give, or NULL */
} refused[] = {{"audio", NO_NEUTRAL, NULL, NULL},
               {"bad_words", EMPTY, NULL, NULL},
               {"chat_template_kwargs", EMPTY, NULL, NULL},
               {"dry_multiplier", ZERO, NULL, NULL},
               {"dynatemp_range", ZERO, NULL, NULL},
               {"function_call", WORD, "none", NULL},
               {"functions", EMPTY, NULL, NULL},
               {"grammar", EMPTY, NULL, NULL},
               {"guided_choice", EMPTY, NULL, NULL},
               {"guided_grammar", EMPTY, NULL, NULL},
               {"guided_json", EMPTY, NULL, NULL},
               {"guided_regex", EMPTY, NULL, NULL},
               {"image_data", EMPTY, NULL, NULL},
               {"input_extra", EMPTY, NULL, NULL},
               {"json_schema", EMPTY, NULL, NULL},
               {"length_penalty", ONE, NULL, NULL},
               {"lora", EMPTY, NULL, NULL},
               {"messages", NO_NEUTRAL, NULL, "prompt"},
               {"mirostat", ZERO, NULL, NULL},
               {"modalities", EMPTY, NULL, NULL},
               {"n_indent", ZERO, NULL, NULL},
               {"n_keep", ZERO, NULL, NULL},
               {"n_predict", NO_NEUTRAL, NULL, "max_tokens"},
               {"n_probs", ZERO, NULL, "logprobs"},
               {"parallel_tool_calls", ZERO, NULL, NULL},
               {"prediction", NO_NEUTRAL, NULL, NULL},
               {"prompt_logprobs", ZERO, NULL, NULL},
               {"reasoning_effort", WORD, "none", NULL},
               {"repeat_penalty", ONE, NULL, "repetition_penalty"},
               {"response_format", WORD, "text", NULL},
               {"return_tokens", ZERO, NULL, NULL},
               {"samplers", EMPTY, NULL, NULL},
               {"structured_outputs", EMPTY, NULL, NULL},
               {"t_max_predict_ms", ZERO, NULL, NULL},
               {"tool_choice", WORD, "none", NULL},
               {"tools", EMPTY, NULL, NULL},
               {"top_n_sigma", ZERO, NULL, NULL},
               {"typical_p", ONE, NULL, NULL},
               {"use_beam_search", ZERO, NULL, NULL},
               {"verbosity", WORD, "medium", NULL},
               {"xtc_probability", ZERO, NULL, NULL}};

static bool is_listed(const char *name, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, list[i]) == 0) return true;
    return false;
}

/* response_format is an object whose "type" has the word. */
static bool is_word(const kt_json *v, const char *word) {
    const kt_json *text = kt_json_type_of(v) == KT_JSON_OBJECT ? kt_json_get(v, "type") : v;
    const char *found = kt_json_string(text, NULL);

    return found && strcmp(found, word) == 0;
}

static bool is_neutral(const kt_json *v, neutral kind, const char *word) {
    const kt_json_type type = kt_json_type_of(v);
    size_t size = 1;

    switch (kind) {
    case EMPTY:
        kt_json_string(v, &size);
        return (type == KT_JSON_STRING && size == 0) ||
               ((type == KT_JSON_ARRAY || type == KT_JSON_OBJECT) && kt_json_length(v) == 0);
    case ZERO:
        return (type == KT_JSON_BOOL && !kt_json_bool(v, true)) ||
               (type == KT_JSON_NUMBER && kt_json_double(v, 1) == 0);
    case ONE: return type == KT_JSON_NUMBER && kt_json_double(v, 0) == 1;
    case WORD: return is_word(v, word);
    default: return false;
    }
}

static bool refuse(kt_api_error *e, const char *name, const char *code, const char *instead) {
    *e = (kt_api_error){.status = 400, .type = "invalid_request_error", .code = code};
    snprintf(e->param, sizeof e->param, "%.60s", name);
    if (instead)
        snprintf(e->message, sizeof e->message, "'%.60s' is not supported; expected '%s'", name,
                 instead);
    else if (strcmp(code, "unknown_parameter") == 0)
        snprintf(e->message, sizeof e->message, "'%.60s' is not a parameter of this URL", name);
    else
        snprintf(e->message, sizeof e->message, "'%.60s' is not supported", name);
    return false;
}

bool kt_completion_check_fields(const kt_json *body, kt_api_error *error) {
    for (size_t i = 0; i < kt_json_length(body); i++) {
        const char *name;
        size_t r = 0, size;
        const kt_json *v = kt_json_member(body, i, &name, &size);
        if (strlen(name) != size) return refuse(error, name, "unknown_parameter", NULL);
        if (kt_json_type_of(v) == KT_JSON_NULL ||
            is_listed(name, taken, sizeof taken / sizeof *taken) ||
            is_listed(name, harmless, sizeof harmless / sizeof *harmless))
            continue;
        while (r < sizeof refused / sizeof *refused && strcmp(refused[r].name, name) != 0) r++;
        if (r == sizeof refused / sizeof *refused)
            return refuse(error, name, "unknown_parameter", NULL);
        if (!is_neutral(v, refused[r].neutral, refused[r].word))
            return refuse(error, name, "unsupported_parameter", refused[r].instead);
    }
    return true;
}
