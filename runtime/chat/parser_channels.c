/* Messages with headers: a header is held until its last mark, then it decides what the message's
 * text is. A header that is none comes out as text. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runtime/chat/channels.h"
#include "runtime/chat/parser_impl.h"

enum { LONGEST_HEADER = 1024 };

const kt_channels kt_channels_harmony = {
    .start = "<|start|>",
    .channel = "<|channel|>",
    .constrain = "<|constrain|>",
    .message = "<|message|>",
    .end = "<|end|>",
    .done = "<|return|>",
    .call = "<|call|>",
    .role = "assistant",
    .reasoning = "analysis",
    .calling = "commentary",
    .final = "final",
    .recipients = "functions.",
    .type = "json",
};

static const char recipient_key[] = "to=";

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

typedef struct word {
    const char *at;
    size_t size;
} word;

static bool is_word(word w, const char *text) {
    return w.size == strlen(text) && memcmp(w.at, text, w.size) == 0;
}

/* The next word of a part of a header, with size 0 at its end. */
static word next_word(const char **at, const char *end) {
    word w;

    while (*at < end && is_space(**at)) ++*at;
    w.at = *at;
    while (*at < end && !is_space(**at)) ++*at;
    w.size = (size_t)(*at - w.at);
    return w;
}

/* Take the recipients out of a part: the other words' first one. */
static word read_part(const char *at, const char *end, word *recipient) {
    const size_t key = sizeof recipient_key - 1;
    word first = {at, 0};

    for (word w = next_word(&at, end); w.size; w = next_word(&at, end)) {
        if (w.size >= key && memcmp(w.at, recipient_key, key) == 0)
            *recipient = (word){w.at + key, w.size - key};
        else if (!first.size)
            first = w;
    }
    return first;
}

/* ---- into and out of headers ---- */

void kt_parser_open_header(kt_parser *p, bool with_role) {
    p->origin = KT_AT_TEXT;
    p->header_role = with_role;
    p->header_channel = 0;
    p->header_part = 0;
    p->header_type = 0;
    p->state = KT_AT_HEADER;
}

static bool in_message(const kt_parser *p) {
    return p->state == KT_AT_TEXT || p->state == KT_AT_REASONING || p->state == KT_AT_SPOILT;
}

/* Text of a message keeps its white space, unlike text beside marks of reasoning. */
static void close_message(kt_parser *p) {
    if (p->begun) kt_parser_end_call(p, true);
    if (in_message(p)) {
        kt_parser_put_space(p);
        if (!p->at_block) p->has_said[p->state == KT_AT_REASONING] = true;
    }
    p->n_space = 0;
}

static void start_message(kt_parser *p, kt_parser_state state) {
    const int kind = state == KT_AT_REASONING;

    p->state = state;
    p->held.size = 0;
    p->at_block = true;
    p->skip_newlines = false;
    p->line_start = true;
    p->n_ticks = 0;
    /* messages of a kind are told apart by an empty line */
    if (p->has_said[kind]) kt_parser_text(p, kind ? KT_EVENT_REASONING : KT_EVENT_TEXT, "\n\n", 2);
}

static bool start_channel_call(kt_parser *p, word recipient) {
    const char *prefix = p->channels->recipients;
    const size_t n = strlen(prefix);

    if (recipient.size > n && memcmp(recipient.at, prefix, n) == 0)
        recipient.at += n, recipient.size -= n;
    if (!kt_parser_name_ok(recipient.at, recipient.size)) return false;
    kt_parser_start_call(p);
    memcpy(p->name, recipient.at, recipient.size);
    p->n_name = recipient.size;
    p->name[p->n_name] = 0;
    p->state = KT_AT_BODY;
    return true;
}

static bool keep(kt_parser *p, const char *mark) {
    return kt_parser_keep(p, &p->held, mark, strlen(mark), 2 * KT_PARSER_HELD);
}

/* The header is whole: whose message it is, and on which channel. */
static void on_message(kt_parser *p) {
    const kt_channels *c = p->channels;
    const size_t n = p->header_type ? p->header_type : p->held.size;
    word recipient = {NULL, 0}, role, name = {NULL, 0};
    const char *text;
    size_t role_end = n;

    if (!keep(p, c->message)) return;
    text = p->held.at;
    if (p->header_channel) {
        role_end = p->header_channel - strlen(c->channel);
        name = read_part(text + p->header_channel, text + n, &recipient);
    }
    role = read_part(text + p->header_part, text + role_end, &recipient);
    if (p->choice.reasoning && p->choice.reasoning->channels && is_word(name, c->reasoning))
        p->origin = KT_AT_REASONING;
    if (p->header_role && !is_word(role, c->role))
        kt_parser_spoil(p); /* nobody else's turn */
    else if (!p->calls || !p->calls->channels || !start_channel_call(p, recipient))
        start_message(p, p->origin);
}

void kt_parser_channel_mark(kt_parser *p, kt_mark m) {
    const bool in_header = p->state == KT_AT_HEADER;

    switch (m) {
    case KT_MARK_START:
        if (in_header) kt_parser_spoil(p);
        close_message(p);
        p->held.size = 0;
        keep(p, p->channels->start);
        kt_parser_open_header(p, true);
        p->header_part = p->held.size;
        return;
    case KT_MARK_CHANNEL:
        if (!in_header) {
            close_message(p);
            p->held.size = 0;
            kt_parser_open_header(p, false);
        }
        keep(p, p->channels->channel);
        if (p->header_channel) /* a second one */
            kt_parser_spoil(p);
        else
            p->header_channel = p->held.size;
        return;
    case KT_MARK_CONSTRAIN:
        if (!p->header_type) p->header_type = p->held.size;
        keep(p, p->channels->constrain);
        return;
    case KT_MARK_MESSAGE: on_message(p); return;
    default: /* MESSAGE_END, ANSWER_END, CALL_END */
        if (in_header) {
            keep(p, p->mark[m].text);
            kt_parser_spoil(p);
        }
        close_message(p);
        p->state = KT_AT_SECTION;
    }
}

/* ---- a header's bytes ---- */

static bool header_byte_ok(char c) {
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == ' ' ||
           (c && strchr("_-.:/$@=", c));
}

/* Without a role in front only a recipient may come before the channel: other words are the text of
 * a message whose header the prompt has. */
static bool header_goes_on(const kt_parser *p, char c) {
    const size_t key = sizeof recipient_key - 1;
    size_t at = 0;

    if (!header_byte_ok(c) || p->held.size >= LONGEST_HEADER) return false;
    if (p->header_role || p->header_channel) return true;
    while (at < p->held.size && p->held.at[at] == ' ') at++;
    if (c == ' ') return at == p->held.size || p->held.size - at > key;
    return p->held.size - at >= key || c == recipient_key[p->held.size - at];
}

size_t kt_parser_run_header(kt_parser *p, const char *bytes, size_t n) {
    (void)n;
    if (header_goes_on(p, *bytes) && kt_parser_keep(p, &p->held, bytes, 1, KT_PARSER_HELD))
        return 1;
    kt_parser_spoil(p);
    return 0;
}
