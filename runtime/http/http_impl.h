/* Inside of the HTTP server: what its files share. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_HTTP_IMPL_H
#define KT_RUNTIME_HTTP_IMPL_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/json.h"
#include "base/rng.h"
#include "runtime/http/access.h"
#include "runtime/http/http_parse.h"
#include "runtime/http/server.h"
#include "runtime/http/unix_socket.h"

#define KT_MAX_LISTENERS 8 /* addresses of one name */

typedef enum kt_conn_state {
    KT_CONN_HEAD,   /* waiting for a complete head */
    KT_CONN_BODY,   /* reading the body of conn->x */
    KT_CONN_WAIT,   /* the route has the exchange */
    KT_CONN_STREAM, /* events are flowing */
    KT_CONN_CLOSE   /* flushing; what still comes in is thrown away */
} kt_conn_state;

typedef struct kt_conn {
    kt_http_server *server;
    struct bufferevent *bev;
    struct kt_conn *prev, *next;
    kt_conn_state state;
    kt_http_exchange *x; /* the current one, with a reference */
    kt_http_chunks chunks;
    bool keep_alive;
    bool chunked_answer; /* false for HTTP/1.0 clients */
    bool shut_down;      /* our half is closed */
    bool is_deaf;        /* too much was sent ahead: what comes is thrown away */
    bool peer_done;      /* the client's half is closed; the answer is still to be flushed */
    int64_t deadline_ns; /* of HEAD (once begun), BODY and CLOSE; 0 = none */
    int64_t body_begin_ns;
    int64_t last_write_ns;
} kt_conn;

typedef enum kt_answer_stage { KT_ANSWER_NONE, KT_ANSWER_STREAM, KT_ANSWER_DONE } kt_answer_stage;

struct kt_http_exchange {
    kt_http_server *server;
    kt_conn *conn; /* event thread only; NULL when nobody waits */
    const kt_route *route;
    char *head_text; /* owned; head points into it */
    kt_http_head head;
    const char *rest;
    const char *origin; /* allowed to read the answer, inside head_text; or NULL */
    char *body; /* owned, NUL-terminated; its capacity is counted in the server's body_bytes */
    size_t body_size, body_capacity;
    char id[25];
    int64_t start_ns;
    atomic_int refs;    /* memory */
    atomic_int holders; /* those who may still answer */
    atomic_int answer;  /* kt_answer_stage */
    atomic_bool gone;
    atomic_size_t posted,
        unsent; /* bytes of the answer: not yet delivered; delivered, not yet taken */
};

typedef enum kt_post_kind { KT_POST_REPLY, KT_POST_BEGIN, KT_POST_EVENT, KT_POST_END } kt_post_kind;

/* A part of an answer on its way to the event thread. */
typedef struct kt_post {
    struct kt_post *next;
    kt_http_exchange *x; /* with a reference */
    kt_post_kind kind;
    int status;
    char *headers;            /* owned: further header lines, or NULL */
    const char *content_type; /* static */
    size_t size;
    char data[]; /* size bytes */
} kt_post;

struct kt_http_server {
    kt_http_options options;
    char *host;          /* owned copy */
    kt_unix_socket file; /* what is listened on instead of host and port */
    kt_access *access;
    struct event_base *base;
    struct evconnlistener *listeners[KT_MAX_LISTENERS];
    int n_listeners;
    int64_t accept_again_ns; /* after a shortage of descriptors; 0 = now */
    struct event *wake, *tick, *signals[2];
    int port;
    kt_conn *conns;
    atomic_int n_conns;
    kt_rng rng; /* for request ids */
    atomic_int stop_requests;
    atomic_bool must_hang_up; /* an exchange is gone and its connection is not */
    bool draining, is_cut;    /* cut: what was still being answered has got an error */
    int64_t drain_deadline_ns, close_deadline_ns;
    atomic_size_t body_bytes; /* of all requests together */
    pthread_mutex_t lock;     /* guards the posts */
    kt_post *first, *last;
};

/* exchange.c */
void kt_exchange_unref(kt_http_exchange *x);
const char *kt_http_reason(int status);
/* An error in the form of the exchange's route (x NULL: OpenAI's) into w; its text, or a fixed one
 * when memory is short. param and code may be NULL. */
const char *kt_http_write_error(const kt_http_exchange *x, kt_json_writer *w, int status,
                                const char *message, const char *type, const char *param,
                                const char *code, size_t *size);
/* The same as the data of a stream's last event, before which comes kt_http_error_prefix: the
 * event's name, or none. */
const char *kt_http_write_stream_error(const kt_http_exchange *x, kt_json_writer *w, int status,
                                       const char *message, const char *code, size_t *size);
const char *kt_http_error_prefix(const kt_http_exchange *x);
/* Does [DONE] end this exchange's stream? */
bool kt_http_has_done(const kt_http_exchange *x);
bool kt_http_is_anthropic(const kt_http_exchange *x); /* false for NULL */
/* Methods of a path, as Allow lists them; OPTIONS always is one. */
void kt_http_list_methods(const kt_http_server *s, const char *path, char *out, size_t out_bytes);
/* Find the route. On failure fills status, code and a message. */
const kt_route *kt_http_find_route(const kt_http_server *s, const kt_http_head *head,
                                   const char **rest, int *status);

/* conn.c; event thread only */
void kt_conn_accept(kt_http_server *s, evutil_socket_t fd);
void kt_conn_close(kt_conn *c); /* at once; frees c */
void kt_conn_deliver(kt_post *post);
void kt_conn_tick(kt_conn *c, int64_t now_ns);
/* The server ends: an error for whoever still waits, then close. May free c. */
void kt_conn_cut(kt_conn *c);
/* Close a connection without a request when what it was sent is out. May free c. */
void kt_conn_end_idle(kt_conn *c);

/* server.c: accept connections, or do not, as limits and time say. */
void kt_http_update_listeners(kt_http_server *s);

#endif
