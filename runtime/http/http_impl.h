/* Inside of the HTTP server: what its three files share. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_HTTP_IMPL_H
#define KT_RUNTIME_HTTP_IMPL_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/rng.h"
#include "runtime/http/http_parse.h"
#include "runtime/http/server.h"

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
    bool peer_done;      /* the client's half is closed; the answer is still to be flushed */
    int64_t deadline_ns; /* of HEAD (once begun) and CLOSE; 0 = none */
    int64_t last_write_ns;
} kt_conn;

struct kt_http_exchange {
    kt_http_server *server;
    kt_conn *conn; /* event thread only; NULL when nobody waits */
    const kt_route *route;
    char *head_text; /* owned; head points into it */
    kt_http_head head;
    const char *rest;
    char *body; /* owned, NUL-terminated */
    size_t body_size, body_capacity;
    char id[25];
    int64_t start_ns;
    atomic_int refs;    /* memory */
    atomic_int holders; /* those who may still answer */
    atomic_bool gone, answered;
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
    char *host, *api_key; /* owned copies */
    struct event_base *base;
    struct evconnlistener *listener;
    struct event *wake, *tick, *signals[2];
    int port;
    kt_conn *conns;
    atomic_int n_conns;
    kt_rng rng; /* for request ids */
    atomic_int stop_requests;
    atomic_bool must_hang_up; /* an exchange is gone and its connection is not */
    bool draining;
    int64_t drain_deadline_ns;
    pthread_mutex_t lock; /* guards the posts */
    kt_post *first, *last;
};

/* exchange.c */
void kt_exchange_unref(kt_http_exchange *x);
const char *kt_http_reason(int status);
bool kt_http_authorised(const kt_http_server *s, const kt_http_head *head);
/* Find the route. On failure fills status, code and a message. */
const kt_route *kt_http_find_route(const kt_http_server *s, const kt_http_head *head,
                                   const char **rest, int *status);

/* conn.c; event thread only */
void kt_conn_accept(kt_http_server *s, evutil_socket_t fd);
void kt_conn_close(kt_conn *c); /* at once; frees c */
void kt_conn_deliver(kt_post *post);
void kt_conn_tick(kt_conn *c, int64_t now_ns);

#endif
