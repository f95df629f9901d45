/* Listening, the event loop, and its end. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/http/server.h"

#include <errno.h>
#include <event2/thread.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "runtime/http/http_impl.h"

/* ---- posts ---- */

static void free_post(kt_post *p) {
    kt_exchange_unref(p->x);
    free(p->headers);
    free(p);
}

static kt_post *take_posts(kt_http_server *s) {
    kt_post *list;

    pthread_mutex_lock(&s->lock);
    list = s->first;
    s->first = s->last = NULL;
    pthread_mutex_unlock(&s->lock);
    return list;
}

/* ---- stopping ---- */

static void close_all(kt_http_server *s) {
    while (s->conns) kt_conn_close(s->conns);
    event_base_loopbreak(s->base);
}

static int count_requests(const kt_http_server *s) {
    int n = 0;

    for (const kt_conn *c = s->conns; c; c = c->next)
        n += c->state == KT_CONN_BODY || c->state == KT_CONN_WAIT || c->state == KT_CONN_STREAM;
    return n;
}

static void begin_drain(kt_http_server *s) {
    s->draining = true;
    s->drain_deadline_ns = kt_clock_ns() + (int64_t)s->options.drain_ms * 1000000;
    if (s->listener) evconnlistener_free(s->listener);
    s->listener = NULL;
    if (s->options.on_drain) s->options.on_drain(s->options.app, count_requests(s));
    for (kt_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        c->keep_alive = false;
        if (c->state == KT_CONN_HEAD) kt_conn_close(c);
    }
    if (!s->conns) event_base_loopbreak(s->base);
}

static void check_stop(kt_http_server *s) {
    int requests = atomic_load(&s->stop_requests);

    if (requests > 0 && !s->draining) begin_drain(s);
    if (requests > 1 || (s->draining && kt_clock_ns() > s->drain_deadline_ns)) close_all(s);
}

void kt_http_server_stop(kt_http_server *s) {
    atomic_fetch_add(&s->stop_requests, 1);
    event_active(s->wake, 0, 0);
}

int kt_http_server_stops(const kt_http_server *s) {
    return atomic_load(&s->stop_requests);
}

/* Answers that could not be posted for lack of memory: their clients must not wait for them. */
static void hang_up(kt_http_server *s) {
    for (kt_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        if (c->x && kt_http_gone(c->x)) kt_conn_close(c);
    }
}

/* ---- events ---- */

static void on_wake(evutil_socket_t fd, short what, void *arg) {
    kt_http_server *s = arg;
    kt_post *p = take_posts(s);
    (void)fd, (void)what;

    while (p) {
        kt_post *next = p->next;
        kt_conn_deliver(p);
        free_post(p);
        p = next;
    }
    if (atomic_exchange(&s->must_hang_up, false)) hang_up(s);
    check_stop(s);
}

static void on_tick(evutil_socket_t fd, short what, void *arg) {
    kt_http_server *s = arg;
    int64_t now = kt_clock_ns();
    (void)fd, (void)what;

    for (kt_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        kt_conn_tick(c, now);
    }
    if (s->listener) evconnlistener_enable(s->listener); /* after a shortage of descriptors */
    check_stop(s);
}

static void on_signal(evutil_socket_t fd, short what, void *arg) {
    (void)fd, (void)what;
    kt_http_server_stop(arg);
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *addr, int size,
                      void *arg) {
    const int on = 1;
    (void)l, (void)addr, (void)size;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* tokens are small and urgent */
    kt_conn_accept(arg, fd);
}

static void on_accept_error(struct evconnlistener *l, void *arg) {
    kt_http_server *s = arg;

    kt_log_write(s->options.log, KT_LOG_WARN, "http", "cannot accept: %s",
                 evutil_socket_error_to_string(EVUTIL_SOCKET_ERROR()));
    evconnlistener_disable(l); /* until the next tick */
}

/* ---- creation ---- */

static kt_status open_socket(const char *host, int port, int *out, kt_err *err) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE},
                    *list = NULL;
    char service[16];
    int rc, fd = -1, error = 0;
    const int on = 1;

    *out = -1;
    snprintf(service, sizeof service, "%d", port);
    rc = getaddrinfo(host, service, &hints, &list);
    if (rc != 0) return kt_fail(err, KT_E_INVALID, "host '%s': %s", host, gai_strerror(rc));
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
        if (fd < 0) {
            error = errno;
            continue;
        }
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 128) == 0) break;
        error = errno;
        close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    *out = fd;
    if (fd >= 0) return KT_OK;
    if (error == EADDRINUSE) {
        return kt_fail(err, KT_E_IO, "port %d on %s is in use by another program", port, host);
    }
    return kt_fail(err, KT_E_IO, "cannot listen on %s port %d: %s", host, port, strerror(error));
}

static int bound_port(int fd) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;

    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0) return 0;
    if (a.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)(void *)&a)->sin6_port);
    return ntohs(((struct sockaddr_in *)(void *)&a)->sin_port);
}

static void fill_defaults(kt_http_options *o) {
    if (!o->host) o->host = "127.0.0.1";
    if (!o->max_body_bytes) o->max_body_bytes = (size_t)32 << 20;
    if (!o->max_unsent_bytes) o->max_unsent_bytes = (size_t)8 << 20;
    if (!o->max_connections) o->max_connections = 512;
    if (!o->read_timeout_ms) o->read_timeout_ms = 60 * 1000;
    if (!o->ping_ms) o->ping_ms = 15 * 1000;
    if (!o->drain_ms) o->drain_ms = 5 * 1000;
}

static kt_status create_events(kt_http_server *s, int fd, kt_err *err) {
    static const int numbers[] = {SIGINT, SIGTERM};
    int tick_ms = s->options.ping_ms < 1000 ? s->options.ping_ms : 1000;
    struct timeval every;

    if (s->options.read_timeout_ms < tick_ms) tick_ms = s->options.read_timeout_ms;
    if (s->options.drain_ms < tick_ms) tick_ms = s->options.drain_ms;
    every = (struct timeval){tick_ms / 1000, tick_ms % 1000 * 1000};
    s->base = event_base_new();
    if (s->base) {
        s->wake = event_new(s->base, -1, EV_PERSIST, on_wake, s);
        s->tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
        s->listener = evconnlistener_new(s->base, on_accept, s, LEV_OPT_CLOSE_ON_FREE, 0, fd);
    }
    if (!s->listener) close(fd);
    if (!s->listener || !s->wake || !s->tick || event_add(s->tick, &every) != 0) {
        return kt_fail(err, KT_E_NOMEM, "server: no memory for the event loop");
    }
    evconnlistener_set_error_cb(s->listener, on_accept_error);
    for (int i = 0; s->options.catch_signals && i < 2; i++) {
        s->signals[i] = evsignal_new(s->base, numbers[i], on_signal, s);
        if (!s->signals[i] || event_add(s->signals[i], NULL) != 0) {
            return kt_fail(err, KT_E_NOMEM, "server: no memory to catch signal %d", numbers[i]);
        }
    }
    return KT_OK;
}

kt_status kt_http_server_create(const kt_http_options *options, kt_http_server **out, kt_err *err) {
    uint64_t seed = 0;
    kt_http_server *s;
    int fd = -1;
    kt_status st;

    *out = NULL;
    if (evthread_use_pthreads() != 0) return kt_fail(err, KT_E_INTERNAL, "libevent lacks threads");
    s = calloc(1, sizeof *s);
    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for the server");
    pthread_mutex_init(&s->lock, NULL);
    s->options = *options;
    fill_defaults(&s->options);
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed) seed = (uint64_t)kt_clock_ns();
    kt_rng_seed(&s->rng, seed);
    s->host = strdup(s->options.host);
    s->api_key = options->api_key ? strdup(options->api_key) : NULL;
    if (!s->host || (options->api_key && !s->api_key))
        st = kt_fail(err, KT_E_NOMEM, "no memory for the server");
    else
        st = open_socket(s->host, s->options.port, &fd, err);
    if (st == KT_OK) {
        s->port = bound_port(fd);
        st = create_events(s, fd, err);
    }
    if (st != KT_OK) {
        kt_http_server_destroy(s);
        return st;
    }
    *out = s;
    return KT_OK;
}

void kt_http_server_destroy(kt_http_server *s) {
    kt_post *p;

    if (!s) return;
    while (s->conns) kt_conn_close(s->conns);
    for (p = take_posts(s); p;) {
        kt_post *next = p->next;
        free_post(p);
        p = next;
    }
    if (s->listener) evconnlistener_free(s->listener);
    for (int i = 0; i < 2; i++) {
        if (s->signals[i]) event_free(s->signals[i]);
    }
    if (s->wake) event_free(s->wake);
    if (s->tick) event_free(s->tick);
    if (s->base) event_base_free(s->base);
    pthread_mutex_destroy(&s->lock);
    free(s->host);
    free(s->api_key);
    free(s);
}

int kt_http_server_port(const kt_http_server *s) {
    return s->port;
}

/* Writing to a socket that the other side has closed raises SIGPIPE, which would end the process. It
 * is directed at the writing thread, so blocking it here is enough and nobody else's business. */
static void block_sigpipe(sigset_t *old) {
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set, old);
}

static void restore_sigpipe(const sigset_t *old) {
    const struct timespec now = {0, 0};
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    if (!sigismember(old, SIGPIPE)) {
        while (sigtimedwait(&set, NULL, &now) > 0) {
        }
    }
    pthread_sigmask(SIG_SETMASK, old, NULL);
}

kt_status kt_http_server_run(kt_http_server *s, kt_err *err) {
    sigset_t old;
    int rc;

    block_sigpipe(&old);
    rc = event_base_dispatch(s->base);
    for (int i = 0; i < 2; i++)
        if (s->signals[i]) event_del(s->signals[i]);
    restore_sigpipe(&old);
    return rc >= 0 ? KT_OK : kt_fail(err, KT_E_INTERNAL, "the event loop failed");
}
