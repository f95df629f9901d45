/* The scanner: bytes to marks and what lies between them. What may become a mark is held in
 * `pending` and looked at again whenever the state changes, so the result depends on the bytes
 * alone and not on how they were cut. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/chat/parser.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/chat/parser_impl.h"

/* Bytes looked at before they are handed on: states that take one at a time look again. */
enum { LONGEST_RUN = 64 };

#define BIT(mark) (1u << (KT_MARK_##mark))

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* ---- text and reasoning ---- */

/* Line starts and code fences of the text: a think mark counts at a line's start outside of
 * fences. */
static void track_lines(kt_parser *p, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        p->line_start = bytes[i] == '\n';
        if (p->line_start) {
            if (p->n_ticks >= 3) p->in_fence = !p->in_fence;
            p->n_ticks = 0;
        } else if (bytes[i] != '`') {
            if (p->n_ticks < 3) p->n_ticks = -1;
        } else if (p->n_ticks >= 0 && p->n_ticks < 3) {
            p->n_ticks++;
        }
    }
}

static kt_event_kind prose_kind(const kt_parser *p) {
    return p->state == KT_AT_REASONING ? KT_EVENT_REASONING : KT_EVENT_TEXT;
}

void kt_parser_put_space(kt_parser *p) {
    kt_parser_text(p, prose_kind(p), p->space, p->n_space);
    p->n_space = 0;
}

void kt_parser_prose(kt_parser *p, const char *bytes, size_t n) {
    size_t from = 0, to = n;

    track_lines(p, bytes, n);
    if (p->skip_newlines) {
        while (from < n && (bytes[from] == '\n' || bytes[from] == '\r')) from++;
        if (from == n) return;
        p->skip_newlines = false;
    }
    while (to > from && is_space(bytes[to - 1])) to--;
    if (to > from) {
        size_t lead = from;
        while (is_space(bytes[lead])) { /* as if it came byte by byte */
            if (p->n_space == KT_PARSER_SPACE) kt_parser_put_space(p);
            p->space[p->n_space++] = bytes[lead++];
        }
        kt_parser_put_space(p);
        kt_parser_text(p, prose_kind(p), bytes + lead, to - lead);
        p->at_block = false;
    }
    for (; to < n; to++) {
        if (p->n_space == KT_PARSER_SPACE) kt_parser_put_space(p);
        p->space[p->n_space++] = bytes[to];
    }
}

/* After a mark: what follows starts anew. */
static void start_block(kt_parser *p, kt_parser_state state) {
    p->state = state;
    p->n_space = 0;
    p->at_block = true;
    p->skip_newlines = true;
    p->line_start = true;
    p->n_ticks = 0;
}

void kt_parser_spoil(kt_parser *p) {
    if (p->begun) {
        kt_parser_end_call(p, true);
        p->state = KT_AT_SPOILT;
        return;
    }
    p->state = p->origin;
    p->in_section = false;
    kt_parser_prose(p, p->held.at, p->held.size);
    p->held.size = 0;
}

/* ---- what is between marks ---- */

static size_t run_section(kt_parser *p, const char *bytes, size_t n) {
    if (p->held.size) { /* no call yet */
        if (is_space(*bytes) && kt_parser_keep(p, &p->held, bytes, 1, KT_PARSER_HELD)) return 1;
        kt_parser_spoil(p);
        return 0;
    }
    if (p->in_section) {
        kt_parser_prose(p, bytes, n);
        return n;
    }
    if (is_space(*bytes)) return 1;
    start_block(p, KT_AT_TEXT);
    return 0;
}

static size_t run_end(kt_parser *p, const char *bytes, size_t n) {
    (void)n;
    if (is_space(*bytes)) return 1;
    p->state = KT_AT_SPOILT;
    return 0;
}

static size_t run_prose(kt_parser *p, const char *bytes, size_t n) {
    kt_parser_prose(p, bytes, n);
    return n;
}

typedef size_t run_function(kt_parser *p, const char *bytes, size_t n);
static run_function *const runs[KT_PARSER_STATES] = {
    [KT_AT_TEXT] = run_prose,
    [KT_AT_REASONING] = run_prose,
    [KT_AT_SECTION] = run_section,
    [KT_AT_PREFIX] = kt_parser_run_name,
    [KT_AT_NAME] = kt_parser_run_name,
    [KT_AT_BODY] = kt_parser_run_body,
    [KT_AT_ARGUMENTS] = kt_parser_run_arguments,
    [KT_AT_OBJECT] = kt_parser_run_object,
    [KT_AT_END] = run_end,
    [KT_AT_SPOILT] = run_prose,
    [KT_AT_PARAMS] = kt_parser_run_params,
    [KT_AT_KEY] = kt_parser_run_key,
    [KT_AT_BETWEEN] = kt_parser_run_between,
    [KT_AT_VALUE] = kt_parser_run_value,
    [KT_AT_HEADER] = kt_parser_run_header,
    [KT_AT_TREE] = kt_parser_run_tree,
    [KT_AT_TAG] = kt_parser_run_tag,
};

static void run_all(kt_parser *p, const char *bytes, size_t n) {
    while (n && !p->no_memory) {
        size_t used = runs[p->state](p, bytes, n);
        bytes += used;
        n -= used;
    }
}

/* ---- marks ---- */

static uint32_t call_marks(const kt_parser *p) {
    if (!p->calls || p->calls->channels) return 0;
    return BIT(SECTION_BEGIN) |
           (!p->calls->section_begin || p->calls->bare_calls ? BIT(CALL_BEGIN) : 0);
}

/* Marks of messages with headers, where there are any. Arguments may spell those that are no
 * tokens. */
static uint32_t channel_marks(const kt_parser *p, bool by_id) {
    const uint32_t ends = BIT(MESSAGE_END) | BIT(ANSWER_END) | BIT(CALL_END);

    if (!p->channels) return 0;
    if (p->state == KT_AT_HEADER)
        return ends | BIT(START) | BIT(CHANNEL) | BIT(CONSTRAIN) | BIT(MESSAGE);
    if (!by_id && (p->state == KT_AT_ARGUMENTS || p->state == KT_AT_OBJECT)) return 0;
    return ends | BIT(START) | BIT(CHANNEL);
}

/* The marks that count here. by_id: of those that are special tokens, else of the others. */
static uint32_t active(const kt_parser *p, bool by_id) {
    const bool fresh_line = p->at_block || (p->line_start && !p->in_fence);
    uint32_t m = 0;

    switch (p->state) {
    case KT_AT_HEADER:
    case KT_AT_TAG: break;
    case KT_AT_TREE: m = BIT(PARAM_BEGIN); break;
    case KT_AT_TEXT: m = call_marks(p) | (by_id || fresh_line ? BIT(THINK_BEGIN) : 0); break;
    case KT_AT_REASONING:
        m = BIT(THINK_END) | (p->at_block ? BIT(THINK_BEGIN) : 0);
        if (p->calls && p->calls->ends_reasoning) m |= call_marks(p);
        break;
    case KT_AT_SECTION: m = BIT(CALL_BEGIN) | BIT(SECTION_END); break;
    case KT_AT_PREFIX: m = BIT(PREFIX_END); break;
    case KT_AT_NAME:
        m = BIT(NAME_END);
        if (!p->mark[KT_MARK_NAME_END].size) m = BIT(PARAM_BEGIN) | BIT(CALL_END);
        break;
    case KT_AT_BODY: m = BIT(CALL_END) | BIT(ARGUMENTS_END); break;
    case KT_AT_ARGUMENTS:
    case KT_AT_OBJECT: m = by_id ? BIT(CALL_END) | BIT(SECTION_END) : 0; break;
    case KT_AT_END:
        m = BIT(CALL_END) | BIT(ARGUMENTS_END) | BIT(SECTION_END) | BIT(CALL_BEGIN);
        break;
    case KT_AT_SPOILT: m = BIT(CALL_END) | BIT(SECTION_END) | BIT(CALL_BEGIN); break;
    case KT_AT_PARAMS: m = BIT(PARAM_BEGIN) | BIT(CALL_END) | BIT(SECTION_END); break;
    case KT_AT_KEY: m = BIT(KEY_END); break;
    case KT_AT_BETWEEN: m = BIT(VALUE_BEGIN); break;
    case KT_AT_VALUE:
        m = BIT(VALUE_END) | BIT(CALL_END);
        if (p->calls->open_values) m |= BIT(PARAM_BEGIN);
        break;
    case KT_PARSER_STATES: break;
    }
    return (m | channel_marks(p, by_id)) & p->present & (by_id ? p->by_id : ~p->by_id);
}

static void keep_mark(kt_parser *p, kt_mark m) {
    /* what is not a mark stops at KT_PARSER_HELD, and there are few marks in a head */
    kt_parser_keep(p, &p->held, p->mark[m].text, p->mark[m].size, 2 * KT_PARSER_HELD);
}

/* Leaving text or reasoning for what may be a call: the white space before it is part of it. */
static void leave_prose(kt_parser *p) {
    p->origin = p->state;
    p->held.size = 0;
    kt_parser_keep(p, &p->held, p->space, p->n_space, KT_PARSER_HELD);
    p->n_space = 0;
}

void kt_parser_end_section(kt_parser *p) {
    if (p->held.size) { /* a section without calls, or an unfinished head */
        keep_mark(p, KT_MARK_SECTION_END);
        kt_parser_spoil(p);
        return;
    }
    if (p->begun) kt_parser_end_call(p, p->calls->body != KT_CALL_PARAMETERS || p->depth > 0);
    p->in_section = false;
    start_block(p, KT_AT_TEXT);
}

static void on_call_begin(kt_parser *p) {
    if (p->state == KT_AT_TEXT || p->state == KT_AT_REASONING) {
        leave_prose(p);
        p->in_section = false;
    }
    p->n_space = 0;
    keep_mark(p, KT_MARK_CALL_BEGIN);
    kt_parser_start_call(p);
}

static void on_call_end(kt_parser *p) {
    bool is_cut = false;

    if (!p->begun && (p->state == KT_AT_NAME || p->state == KT_AT_BODY ||
                      p->state == KT_AT_OBJECT || p->state == KT_AT_PARAMS)) {
        keep_mark(p, KT_MARK_CALL_END);
        if (p->state == KT_AT_NAME) kt_parser_name_done(p);
        if (p->state == KT_AT_OBJECT) kt_parser_spoil(p);
        if (p->state != KT_AT_BODY && p->state != KT_AT_PARAMS) return; /* it was none */
        kt_parser_begin_call(p);
    } else {
        is_cut = p->state == KT_AT_ARGUMENTS || p->state == KT_AT_OBJECT;
    }
    if (p->state == KT_AT_VALUE) kt_parser_value_end(p);
    if (p->begun) kt_parser_end_call(p, is_cut);
    p->state = KT_AT_SECTION;
    p->n_space = 0;
}

static void on_param_begin(kt_parser *p) {
    if (p->state == KT_AT_NAME) {
        kt_parser_name_done(p);
        if (p->state != KT_AT_PARAMS) {
            run_all(p, p->mark[KT_MARK_PARAM_BEGIN].text, p->mark[KT_MARK_PARAM_BEGIN].size);
            return;
        }
    }
    if (p->state == KT_AT_VALUE) kt_parser_value_end(p);
    if (!p->begun) kt_parser_begin_call(p);
    kt_parser_param_begin(p);
}

/* A call of which only the header came has no arguments. */
static void on_channel_mark(kt_parser *p, kt_mark m) {
    if (p->state == KT_AT_BODY) on_call_end(p);
    if (p->state == KT_AT_OBJECT && !p->begun) kt_parser_spoil(p);
    kt_parser_channel_mark(p, m);
}

static void on_mark(kt_parser *p, kt_mark m) {
    switch (m) {
    case KT_MARK_THINK_BEGIN: start_block(p, KT_AT_REASONING); break;
    case KT_MARK_THINK_END: start_block(p, KT_AT_TEXT); break;
    case KT_MARK_SECTION_BEGIN:
        leave_prose(p);
        keep_mark(p, m);
        p->in_section = true;
        p->state = KT_AT_SECTION;
        break;
    case KT_MARK_SECTION_END: kt_parser_end_section(p); break;
    case KT_MARK_CALL_BEGIN: on_call_begin(p); break;
    case KT_MARK_CALL_END: p->channels ? on_channel_mark(p, m) : on_call_end(p); break;
    case KT_MARK_PREFIX_END:
        keep_mark(p, m);
        p->n_name = 0;
        p->state = KT_AT_NAME;
        break;
    case KT_MARK_NAME_END:
        keep_mark(p, m);
        kt_parser_name_done(p);
        break;
    case KT_MARK_ARGUMENTS_END:
        if (p->state != KT_AT_BODY) break;
        kt_parser_begin_call(p);
        kt_parser_end_call(p, false);
        p->state = KT_AT_END;
        break;
    case KT_MARK_PARAM_BEGIN: p->calls->tree ? kt_parser_tag_begin(p) : on_param_begin(p); break;
    case KT_MARK_KEY_END: kt_parser_key_end(p); break;
    case KT_MARK_VALUE_BEGIN: kt_parser_value_begin(p); break;
    case KT_MARK_VALUE_END: kt_parser_value_end(p); break;
    case KT_MARK_START:
    case KT_MARK_CHANNEL:
    case KT_MARK_CONSTRAIN:
    case KT_MARK_MESSAGE:
    case KT_MARK_MESSAGE_END:
    case KT_MARK_ANSWER_END: on_channel_mark(p, m); break;
    case KT_MARKS: break;
    }
}

/* Of the marks in `among`, the shortest that the bytes begin with, or KT_MARKS; *partial: they end
 * before that is told. */
static kt_mark match(const kt_parser *p, uint32_t among, const char *bytes, size_t n,
                     bool *partial) {
    kt_mark found = KT_MARKS;

    *partial = false;
    for (uint32_t m = among & p->first[(unsigned char)*bytes]; m; m &= m - 1) {
        const int i = __builtin_ctz(m);
        const size_t size = p->mark[i].size, common = size < n ? size : n;
        const char *text = p->mark[i].text;
        if (common > 1 && text[1] != bytes[1]) continue; /* the first is equal */
        if (common > 2 && memcmp(text + 2, bytes + 2, common - 2) != 0) continue;
        if (common < size)
            *partial = true;
        else if (found == KT_MARKS || size < p->mark[found].size)
            found = (kt_mark)i;
    }
    return found;
}

static void drop_pending(kt_parser *p, size_t n) {
    p->n_pending -= n;
    memmove(p->pending, p->pending + n, p->n_pending);
}

/* Nothing follows that could complete a mark. */
static void release(kt_parser *p) {
    while (p->n_pending && !p->no_memory) {
        bool partial;
        const kt_mark m = match(p, active(p, false), p->pending, p->n_pending, &partial);
        if (m != KT_MARKS) {
            drop_pending(p, p->mark[m].size);
            on_mark(p, m);
        } else {
            drop_pending(p, runs[p->state](p, p->pending, 1));
        }
    }
}

/* Look at what is held and the bytes behind it as one. Returns how many of these were taken. */
static size_t feed_pending(kt_parser *p, const char *bytes, size_t n) {
    const size_t held = p->n_pending, room = sizeof p->pending - held, more = n < room ? n : room;
    bool partial;
    kt_mark m;

    memcpy(p->pending + held, bytes, more);
    m = match(p, active(p, false), p->pending, held + more, &partial);
    if (m != KT_MARKS) {
        const size_t size = p->mark[m].size;
        drop_pending(p, size < held ? size : held);
        on_mark(p, m);
        return size < held ? 0 : size - held;
    }
    if (partial) {
        p->n_pending += more;
        return more;
    }
    drop_pending(p, runs[p->state](p, p->pending, 1));
    return 0;
}

/* How many bytes from the first on begin no mark, whole or cut. A line may start within them. */
static size_t plain_run(const kt_parser *p, const char *bytes, size_t n) {
    const uint32_t among = active(p, false) | BIT(THINK_BEGIN);
    size_t run = 0;

    for (; run < n && run < LONGEST_RUN; run++) {
        bool partial;
        if (!(p->first[(unsigned char)bytes[run]] & among)) continue;
        if (match(p, among, bytes + run, n - run, &partial) != KT_MARKS || partial) break;
    }
    return run;
}

static size_t feed_plain(kt_parser *p, const char *bytes, size_t n) {
    const size_t run = plain_run(p, bytes, n);
    bool partial;
    kt_mark m;

    if (run) return runs[p->state](p, bytes, run);
    m = match(p, active(p, false), bytes, n, &partial);
    if (m != KT_MARKS) {
        on_mark(p, m);
        return p->mark[m].size;
    }
    if (!partial) return runs[p->state](p, bytes, 1);
    memcpy(p->pending, bytes, n); /* less than a mark */
    p->n_pending = n;
    return n;
}

static void feed(kt_parser *p, const char *bytes, size_t n) {
    while (n && !p->no_memory) {
        const size_t used = p->n_pending ? feed_pending(p, bytes, n) : feed_plain(p, bytes, n);
        bytes += used;
        n -= used;
    }
}

/* ---- interface ---- */

static kt_mark special_mark(const kt_parser *p, int32_t id, uint32_t among) {
    for (int i = 0; i < KT_MARKS; i++)
        if ((among >> i & 1) && p->mark[i].id == id) return (kt_mark)i;
    return KT_MARKS;
}

bool kt_parser_wants(const kt_parser *p, int32_t id) {
    if (id < 0) return false;
    return id == p->part_id || special_mark(p, id, p->by_id) != KT_MARKS;
}

static kt_status end_push(kt_parser *p, bool is_end, kt_err *err) {
    if (p->no_memory) return kt_fail(err, KT_E_NOMEM, "no memory to parse the model's output");
    kt_parser_flush(p, is_end);
    return KT_OK;
}

static void start_push(kt_parser *p, kt_event_sink *sink, void *arg) {
    p->sink = sink;
    p->sink_arg = arg;
    if (!p->opens_in_text) return;
    p->opens_in_text = false;
    kt_parser_text(p, KT_EVENT_TEXT, p->choice.reasoning->begin,
                   strlen(p->choice.reasoning->begin));
    kt_parser_text(p, KT_EVENT_TEXT, "\n", 1);
}

kt_status kt_parser_push(kt_parser *p, int32_t id, const char *bytes, size_t size,
                         kt_event_sink *sink, void *arg, kt_err *err) {
    if (p->finished) return kt_fail(err, KT_E_INVALID, "push after the end of an answer");
    start_push(p, sink, arg);
    if (id >= 0 && special_mark(p, id, p->by_id) != KT_MARKS) {
        kt_mark m;
        release(p);
        m = special_mark(p, id, active(p, true));
        if (m != KT_MARKS)
            on_mark(p, m);
        else
            run_all(p, bytes, size);
    } else {
        feed(p, bytes, size);
    }
    return end_push(p, false, err);
}

kt_status kt_parser_finish(kt_parser *p, kt_event_sink *sink, void *arg, kt_err *err) {
    if (p->finished) return KT_OK;
    start_push(p, sink, arg);
    release(p);
    p->finished = true;
    if (p->state == KT_AT_HEADER && (p->header_role || p->header_channel))
        p->held.size = 0; /* half a header is nobody's text */
    if (p->begun) {
        if (p->state == KT_AT_VALUE) kt_parser_value_end(p);
        kt_parser_end_call(p, true);
    } else if (p->held.size) {
        kt_parser_spoil(p);
    }
    if (p->state != KT_AT_SECTION && p->state != KT_AT_END) kt_parser_put_space(p);
    return end_push(p, true, err);
}

bool kt_parser_in_reasoning(const kt_parser *p) {
    return p->state == KT_AT_REASONING;
}

bool kt_parser_in_header(const kt_parser *p) {
    return p->state == KT_AT_HEADER || (p->channels && p->state == KT_AT_SECTION);
}

bool kt_parser_in_call(const kt_parser *p) {
    return p->begun || p->held.size > 0;
}

int kt_parser_calls(const kt_parser *p, int *n_whole) {
    if (n_whole) *n_whole = p->n_whole;
    return p->n_calls;
}

/* A mark without the white space at its ends. */
static void set_mark(kt_parser *p, const kt_parser_options *o, kt_mark m, const char *text) {
    char exact[KT_MARK_BYTES + 1];
    size_t n = text ? strlen(text) : 0;

    while (n && is_space(text[n - 1])) n--;
    while (n && is_space(*text)) text++, n--;
    p->mark[m].text = text;
    p->mark[m].size = n;
    p->mark[m].id = -1;
    if (n == 0 || n > KT_MARK_BYTES) return;
    p->present |= 1u << m;
    p->first[(unsigned char)*text] |= 1u << m;
    if (!o->special_token) return;
    memcpy(exact, text, n);
    exact[n] = 0;
    p->mark[m].id = o->special_token(o->special_arg, exact);
    if (p->mark[m].id >= 0) p->by_id |= 1u << m;
}

static void set_channel_marks(kt_parser *p, const kt_parser_options *o) {
    const kt_channels *c = p->channels;

    if (!c) return;
    set_mark(p, o, KT_MARK_START, c->start);
    set_mark(p, o, KT_MARK_CHANNEL, c->channel);
    set_mark(p, o, KT_MARK_CONSTRAIN, c->constrain);
    set_mark(p, o, KT_MARK_MESSAGE, c->message);
    set_mark(p, o, KT_MARK_MESSAGE_END, c->end);
    set_mark(p, o, KT_MARK_ANSWER_END, c->done);
    set_mark(p, o, KT_MARK_CALL_END, c->call);
}

static void set_marks(kt_parser *p, const kt_parser_options *o) {
    const kt_calls *c = p->calls;
    const kt_reasoning *r = o->choice.reasoning;

    p->part_id = -1;
    set_channel_marks(p, o);
    if (r && r->begin && !r->stays_in_text) {
        set_mark(p, o, KT_MARK_THINK_BEGIN, r->begin);
        set_mark(p, o, KT_MARK_THINK_END, r->end);
    }
    if (!c || c->channels) return;
    set_mark(p, o, KT_MARK_SECTION_BEGIN, c->section_begin);
    set_mark(p, o, KT_MARK_SECTION_END, c->section_end);
    set_mark(p, o, KT_MARK_CALL_BEGIN, c->call_begin);
    set_mark(p, o, KT_MARK_CALL_END, c->call_end);
    set_mark(p, o, KT_MARK_PREFIX_END, c->prefix_end);
    set_mark(p, o, KT_MARK_NAME_END, c->name_end);
    set_mark(p, o, KT_MARK_ARGUMENTS_END, c->arguments_end);
    set_mark(p, o, KT_MARK_PARAM_BEGIN, c->param_begin);
    set_mark(p, o, KT_MARK_KEY_END, c->key_end);
    set_mark(p, o, KT_MARK_VALUE_BEGIN, c->value_begin);
    set_mark(p, o, KT_MARK_VALUE_END, c->value_end);
    if (c->part && o->special_token) p->part_id = o->special_token(o->special_arg, c->part);
}

kt_status kt_parser_create(const kt_parser_options *o, kt_parser **out, kt_err *err) {
    const kt_reasoning *r = o->choice.reasoning;
    kt_parser *p = calloc(1, sizeof *p);

    *out = NULL;
    if (!p) return kt_fail(err, KT_E_NOMEM, "no memory for an output parser");
    p->choice = o->choice;
    p->tools = o->tools;
    p->calls = kt_json_length(o->tools) ? o->choice.calls : NULL;
    p->channels = r ? r->channels : NULL;
    if (!p->channels && o->choice.calls) p->channels = o->choice.calls->channels;
    p->first_call = o->first_call;
    kt_rng_seed(&p->rng, o->seed);
    set_marks(p, o);
    p->line_start = true;
    p->at_block = true;
    if (p->channels)
        kt_parser_open_header(p, false);
    else if (r && o->starts_in_reasoning && r->stays_in_text)
        p->opens_in_text = true;
    else if (r && o->starts_in_reasoning)
        start_block(p, KT_AT_REASONING);
    *out = p;
    return KT_OK;
}

void kt_parser_destroy(kt_parser *p) {
    if (!p) return;
    free(p->held.at);
    free(p->value.at);
    free(p->aside.at);
    free(p);
}
