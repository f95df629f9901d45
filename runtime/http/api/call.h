/* One request for an answer, whatever its route: from its body through the queues to events, and
 * from these to the end. What a route adds is a kt_api_kind.
 *
 * Threads: prepare runs on the prepare thread, the other functions of a kind on the scheduler's.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_CALL_H
#define KT_RUNTIME_CALL_H

#include "base/json.h"
#include "runtime/chat/events.h"
#include "runtime/http/api/fields.h"
#include "runtime/http/app.h"
#include "runtime/http/server.h"
#include "runtime/serve/grammar/grammar.h"
#include "runtime/serve/request.h"
#include "runtime/token/text.h"

enum { KT_MAX_CHOICES = 128 }; /* prompts * n of one request */

typedef struct kt_api_call kt_api_call;

/* What a route is, constant: kt_api_kind_<name>. All functions but is_free are needed. */
typedef struct kt_api_kind {
    const char *name;      /* of its requests in /slots; static */
    const char *id_prefix; /* of the answer's id: "cmpl-" */
    const char *chunk;     /* the "object" of a stream's chunks, where call_write.c writes them */
    size_t call_bytes;     /* of the kind's structure, whose first member is the kt_api_call */
    bool keeps_body;       /* the structure borrows from the body until the end */
    /* Fill c, of which run is initialised, from the body, an object. False with *e. */
    bool (*prepare)(kt_api_call *c, const kt_json *body, kt_api_error *e);
    /* Something happened; kt_api_lose when there is no memory for it. */
    void (*event)(kt_api_call *c, const kt_event *event);
    /* Everything happened: the whole answer, or the last events of a stream. */
    void (*finish)(kt_api_call *c);
    /* Does the grammar rest for this choice now? NULL = never. */
    bool (*is_free)(const kt_api_call *c, size_t choice);
    /* Free what the kind's structure owns; run is empty already. */
    void (*release)(kt_api_call *c);
} kt_api_kind;

/* The form that an answer is held to; borrowed from the body. Zeros: none. */
typedef struct kt_answer_form {
    const kt_json *response_format; /* as given, unless it is "text" */
    const kt_json *schema;
    const char *gbnf;
    size_t gbnf_size;
    bool json_object;
    const char *param; /* by which it was asked for; NULL = there is no form */
} kt_answer_form;

struct kt_api_call {
    kt_job job; /* first: the queues hand back this pointer */
    const kt_api_kind *kind;
    kt_app *app;
    kt_http_exchange *x; /* kept */
    kt_activity activity;
    kt_ending ending;
    int64_t created_s;
    kt_json_doc *body; /* owned */

    kt_request run;       /* what the scheduler gets */
    size_t bias_capacity; /* of run.bias */
    kt_answer_form form;
    kt_grammar *grammar; /* owned, or NULL */
    kt_constraint constraint;
    size_t n_gates; /* choices whose grammar is open */
    bool stream, include_usage, continuous_usage, timings_per_token;

    bool has_started, is_streaming;      /* its prompts are being computed; the stream has begun */
    int64_t reasoning_tokens, n_counted; /* n_counted: tokens that the stats know */
    size_t gathered_bytes;               /* of a whole answer */
    atomic_bool failed;                  /* no memory for the answer, or it is too large */
};

/* call.c */
/* Called by the route: queue the request, or refuse it. */
void kt_api_start(const kt_api_kind *kind, kt_app *app, kt_http_exchange *x);
/* There is no memory for a part of the answer: it will end in an error. */
void kt_api_lose(kt_api_call *c);
/* Append to a part of the answer that is kept; kt_api_lose when it is too large or memory is short.
 */
void kt_api_append(kt_api_call *c, kt_text *t, const char *text, size_t size);

/* call_fields.c: parameters that routes share. False with *e. */
/* There is one model; naming another is 404. */
bool kt_api_parse_model(const kt_app *app, const kt_json *body, kt_api_error *e);
/* stream, stream_options, n, best_of, min_tokens, ignore_eos, priority, sampling, biases, stop ids
 * and, under the name `stop`, stop strings. run.max_tokens is known, or -1. */
bool kt_api_parse_run(kt_api_call *c, const kt_json *body, const char *stop, kt_api_error *e);
/* Every id of a prompt that the tokenizer made is one of the model's. */
bool kt_api_check_ids(const kt_api_call *c, const int32_t *ids, size_t n, const char *param,
                      kt_api_error *e);

/* call_form.c */
/* response_format, grammar, json_schema. */
bool kt_api_parse_form(kt_api_call *c, const kt_json *body, kt_api_error *e);
/* The grammar of c->form, if there is one. */
bool kt_api_make_grammar(kt_api_call *c, kt_api_error *e);
/* A status of making a grammar as an error of the parameter; true for KT_OK. */
bool kt_api_check_grammar(kt_status st, const char *param, const kt_err *err, kt_api_error *e);
/* Hold the choices of c->run to c->grammar, if there is one. */
void kt_api_hold(kt_api_call *c);

/* call_write.c: JSON that routes share. */
/* An open object with id, object, created, model, system_fingerprint. */
void kt_api_put_head(const kt_api_call *c, kt_json_writer *w, const char *object);
void kt_api_put_usage(const kt_api_call *c, kt_json_writer *w);
/* Not of OpenAI; names as llama-server has them. */
void kt_api_put_timings(const kt_api_call *c, kt_json_writer *w);
/* A member that is a string. */
void kt_api_add_text(kt_json_writer *w, const char *key, const kt_text *t);
/* JSON has no infinity; -9999 is what OpenAI writes for a token that cannot be. */
void kt_api_put_logprob(kt_json_writer *w, float logprob);
/* An open object with an empty list of choices: chunks that are about the whole request. */
void kt_api_begin_chunk(const kt_api_call *c, kt_json_writer *w);
/* The end of a chunk with its usage, where it has one; then kt_api_send. */
void kt_api_end_chunk(kt_api_call *c, kt_json_writer *w);
/* An event of a stream; w is released. */
void kt_api_send(kt_api_call *c, kt_json_writer *w);
/* The same for an event with a name, whose object is ended here. */
void kt_api_send_named(kt_api_call *c, kt_json_writer *w, const char *name);
/* The whole answer; w is released. */
void kt_api_reply(kt_api_call *c, kt_json_writer *w);
/* The last chunk, with usage and timings if wanted, then [DONE]. */
void kt_api_end_stream(kt_api_call *c);

#endif
