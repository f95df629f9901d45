/* Parameters of chat that are known elsewhere and not built here. One that would change the answer
 * is refused by name, unless its value says that it is off: an answer that ignores it is worse than
 * none. Names that nobody knows are passed over, as clients of other servers send many; so are
 * labels and hints. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runtime/http/api/chat.h"

/* Values by which a client says that it does not want it. */
typedef enum off_value { NEVER, EMPTY, ZERO, ONE, TRUE, WORD } off_value;

static const struct {
    const char *name;
    off_value off;
    const char *word, *instead; /* instead: what to give, or NULL */
} refused[] = {{"allowed_token_ids", EMPTY, NULL, "logit_bias"},
               {"audio", NEVER, NULL, NULL},
               {"bad_words", EMPTY, NULL, NULL},
               {"dry_multiplier", ZERO, NULL, NULL},
               {"dynatemp_range", ZERO, NULL, NULL},
               {"echo", ZERO, NULL, NULL},
               {"function_call", WORD, "none", "tool_choice"},
               {"functions", EMPTY, NULL, "tools"},
               {"guided_choice", EMPTY, NULL, "response_format"},
               {"guided_grammar", EMPTY, NULL, "grammar"},
               {"guided_json", EMPTY, NULL, "response_format"},
               {"guided_regex", EMPTY, NULL, "response_format"},
               {"include_stop_str_in_output", ZERO, NULL, NULL},
               {"length_penalty", ONE, NULL, NULL},
               {"lora", EMPTY, NULL, NULL},
               {"mirostat", ZERO, NULL, NULL},
               {"n_indent", ZERO, NULL, NULL},
               {"n_keep", ZERO, NULL, NULL},
               {"n_probs", ZERO, NULL, "top_logprobs"},
               {"prediction", NEVER, NULL, NULL},
               {"prompt", NEVER, NULL, "messages"},
               {"prompt_logprobs", ZERO, NULL, NULL},
               {"return_token_ids", ZERO, NULL, NULL},
               {"return_tokens", ZERO, NULL, NULL},
               {"samplers", EMPTY, NULL, NULL},
               {"separate_reasoning", TRUE, NULL, NULL},
               {"skip_special_tokens", TRUE, NULL, NULL},
               {"structured_outputs", EMPTY, NULL, "response_format"},
               {"t_max_predict_ms", ZERO, NULL, NULL},
               {"thinking_token_budget", NEVER, NULL, NULL},
               {"top_n_sigma", ZERO, NULL, NULL},
               {"truncate_prompt_tokens", NEVER, NULL, NULL},
               {"typical_p", ONE, NULL, NULL},
               {"use_beam_search", ZERO, NULL, NULL},
               {"web_search_options", NEVER, NULL, NULL},
               {"xtc_probability", ZERO, NULL, NULL}};

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
    case WORD: return text && strcmp(text, word) == 0;
    default: return false;
    }
}

/* ["text"] is what there is. */
static bool check_modalities(const kt_json *body, kt_api_error *e) {
    const kt_json *v = kt_field(body, "modalities");
    const char *first = kt_json_string(kt_json_at(v, 0), NULL);

    if (!v || kt_json_length(v) == 0) return true;
    if (kt_json_length(v) == 1 && first && strcmp(first, "text") == 0) return true;
    return kt_api_refuse(e, 400, "modalities", "unsupported_parameter",
                         "'modalities' other than [\"text\"] are not supported");
}

bool kt_chat_check_refused(const kt_json *body, kt_api_error *e) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const char *name = refused[i].name, *instead = refused[i].instead;
        const kt_json *v = kt_field(body, name);
        if (!v || is_off(v, refused[i].off, refused[i].word)) continue;
        return kt_api_refuse(e, 400, name, "unsupported_parameter", "'%s' is not supported%s%s%s",
                             name, instead ? "; expected '" : "", instead ? instead : "",
                             instead ? "'" : "");
    }
    return check_modalities(body, e);
}
