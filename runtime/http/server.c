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

enum {
    FLUSH_MS = 1000,        /* how long clients have to take an error after the drain */
    HASTY_FLUSH_MS = 300,   /* the same when stop was called twice */
    SHORTAGE_MS = 1000,     /* no accepting after descriptors ran out */
    VANISHED_MS = 30 * 1000 /* without a sign of life from the client's system */
};

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
    const struct timeval every = {0, 50 * 1000}; /* ends are counted in tenths of seconds */
    int64_t drain_ms = s->options.drain_ms > 0 ? s->options.drain_ms : 0;

    s->draining = true;
    event_add(s->tick, &every);
    s->drain_deadline_ns = kt_clock_ns() + drain_ms * 1000000;
    kt_unix_socket_remove(&s->file); /* before clients would be refused */
    for (int i = 0; i < s->n_listeners; i++) evconnlistener_free(s->listeners[i]);
    s->n_listeners = 0;
    if (s->options.on_drain) s->options.on_drain(s->options.app, count_requests(s));
    for (kt_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        c->keep_alive = false;
        if (c->state == KT_CONN_HEAD) kt_conn_end_idle(c);
    }
    if (!s->conns) event_base_loopbreak(s->base);
}

/* Nobody is left without a word: what is not answered by now gets an error. */
static void cut(kt_http_server *s, int flush_ms) {
    s->is_cut = true;
    s->close_deadline_ns = kt_clock_ns() + (int64_t)flush_ms * 1000000;
    for (kt_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        kt_conn_cut(c);
    }
    if (!s->conns) event_base_loopbreak(s->base);
}

static void check_stop(kt_http_server *s) {
    int requests = atomic_load(&s->stop_requests);
    int64_t now = kt_clock_ns();

    if (requests > 0 && !s->draining) begin_drain(s);
    if (!s->draining) return;
    if (!s->is_cut && (requests > 1 || now >= s->drain_deadline_ns))
        cut(s, requests > 1 ? HASTY_FLUSH_MS : FLUSH_MS);
    if (requests > 1 && s->close_deadline_ns > now + (int64_t)HASTY_FLUSH_MS * 1000000)
        s->close_deadline_ns = now + (int64_t)HASTY_FLUSH_MS * 1000000;
    if (requests > 2 || (s->is_cut && now >= s->close_deadline_ns)) close_all(s);
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
    kt_http_update_listeners(s);
    check_stop(s);
}

static void on_signal(evutil_socket_t fd, short what, void *arg) {
    (void)fd, (void)what;
    kt_http_server_stop(arg);
}

void kt_http_update_listeners(kt_http_server *s) {
    bool wanted = atomic_load(&s->n_conns) < s->options.max_connections;

    if (s->accept_again_ns && kt_clock_ns() >= s->accept_again_ns) s->accept_again_ns = 0;
    wanted = wanted && !s->accept_again_ns;
    for (int i = 0; i < s->n_listeners; i++) {
        if (wanted)
            evconnlistener_enable(s->listeners[i]);
        else
            evconnlistener_disable(s->listeners[i]);
    }
}

/* Tokens are small and urgent; a client that vanished without a word must be noticed. */
static void set_socket_options(evutil_socket_t fd) {
    const int on = 1, idle_s = 15, interval_s = 5;
    const unsigned vanished_ms = VANISHED_MS;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &vanished_ms, sizeof vanished_ms);
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *addr, int size,
                      void *arg) {
    (void)l, (void)addr, (void)size;
    set_socket_options(fd);
    kt_conn_accept(arg, fd);
}

static void on_accept_error(struct evconnlistener *l, void *arg) {
    kt_http_server *s = arg;
    (void)l;

    kt_log_write(s->options.log, KT_LOG_WARN, "http", "cannot accept: %s",
                 evutil_socket_error_to_string(EVUTIL_SOCKET_ERROR()));
    s->accept_again_ns = kt_clock_ns() + (int64_t)SHORTAGE_MS * 1000000;
    kt_http_update_listeners(s);
}

/* ---- creation ---- */

static int bound_port(int fd) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;

    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0) return 0;
    if (a.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)(void *)&a)->sin6_port);
    return ntohs(((struct sockaddr_in *)(void *)&a)->sin_port);
}

static void set_port(struct sockaddr *a, int port) {
    if (a->sa_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)a)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)(void *)a)->sin_port = htons((uint16_t)port);
}

/* A listening socket, or -1 with errno. alone: the only address, so that "::" may mean both
 * families. */
static int open_socket(const struct addrinfo *a, bool alone) {
    const int on = 1;
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    int error;

    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!alone && a->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 128) == 0) return fd;
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

static kt_status add_listener(kt_http_server *s, int fd, kt_err *err) {
    struct evconnlistener *l =
        evconnlistener_new(s->base, on_accept, s, LEV_OPT_CLOSE_ON_FREE, 0, fd);

    if (!l) {
        close(fd);
        return kt_fail(err, KT_E_NOMEM, "server: no memory for the event loop");
    }
    evconnlistener_set_error_cb(l, on_accept_error);
    s->listeners[s->n_listeners++] = l;
    return KT_OK;
}

static const void *address_of(const struct addrinfo *a, size_t *size) {
    if (a->ai_family == AF_INET6) {
        *size = sizeof(struct in6_addr);
        return &((const struct sockaddr_in6 *)(const void *)a->ai_addr)->sin6_addr;
    }
    *size = sizeof(struct in_addr);
    return &((const struct sockaddr_in *)(const void *)a->ai_addr)->sin_addr;
}

/* Some resolvers name an address of "localhost" twice. */
static bool is_repeated(const struct addrinfo *list, const struct addrinfo *a) {
    for (const struct addrinfo *b = list; b != a; b = b->ai_next) {
        size_t n, m;
        const void *x = address_of(a, &n), *y = address_of(b, &m);
        if (n == m && memcmp(x, y, n) == 0) return true;
    }
    return false;
}

/* All addresses of the host, on one port. An address family that the machine lacks is left out; a
 * port that another program has on one of the addresses is an error, as its clients would be
 * answered by the wrong one. */
static kt_status listen_on(kt_http_server *s, kt_err *err) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE},
                    *list = NULL;
    int rc = getaddrinfo(s->host, NULL, &hints, &list), error = 0;
    kt_status st = KT_OK;

    if (rc != 0) return kt_fail(err, KT_E_INVALID, "host '%s': %s", s->host, gai_strerror(rc));
    s->port = s->options.port;
    for (const struct addrinfo *a = list; a && st == KT_OK && s->n_listeners < KT_MAX_LISTENERS;
         a = a->ai_next) {
        int fd;
        if (is_repeated(list, a)) continue;
        set_port(a->ai_addr, s->port);
        fd = open_socket(a, !list->ai_next);
        if (fd < 0) error = errno;
        if (fd < 0 && error == EADDRINUSE) break;
        if (fd < 0) continue;
        if (!s->port) s->port = bound_port(fd);
        st = add_listener(s, fd, err);
    }
    freeaddrinfo(list);
    if (st != KT_OK) return st;
    if (error == EADDRINUSE)
        return kt_fail(err, KT_E_IO, "port %d on %s is in use by another program", s->port,
                       s->host);
    if (s->n_listeners > 0) return KT_OK;
    return kt_fail(err, KT_E_IO, "cannot listen on %s port %d: %s", s->host, s->port,
                   strerror(error));
}

static kt_status listen_on_file(kt_http_server *s, kt_err *err) {
    int fd;

    KT_TRY(kt_unix_socket_listen(s->options.socket_path, &s->file, &fd, err));
    return add_listener(s, fd, err);
}

static void fill_defaults(kt_http_options *o) {
    if (!o->host) o->host = "127.0.0.1";
    if (!o->max_body_bytes) o->max_body_bytes = (size_t)32 << 20;
    if (!o->max_bodies_bytes) o->max_bodies_bytes = (size_t)256 << 20;
    if (!o->max_unsent_bytes) o->max_unsent_bytes = (size_t)8 << 20;
    if (!o->max_connections) o->max_connections = 512;
    if (!o->read_timeout_ms) o->read_timeout_ms = 60 * 1000;
    if (!o->ping_ms) o->ping_ms = 15 * 1000;
    if (!o->drain_ms) o->drain_ms = 5 * 1000;
}

static kt_status create_events(kt_http_server *s, kt_err *err) {
    static const int numbers[] = {SIGINT, SIGTERM};
    int tick_ms = s->options.ping_ms < 1000 ? s->options.ping_ms : 1000;
    struct timeval every;

    if (s->options.read_timeout_ms < tick_ms) tick_ms = s->options.read_timeout_ms;
    if (s->options.drain_ms > 0 && s->options.drain_ms < tick_ms) tick_ms = s->options.drain_ms;
    every = (struct timeval){tick_ms / 1000, tick_ms % 1000 * 1000};
    s->base = event_base_new();
    if (s->base) {
        s->wake = event_new(s->base, -1, EV_PERSIST, on_wake, s);
        s->tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
    }
    if (!s->wake || !s->tick || event_add(s->tick, &every) != 0) {
        return kt_fail(err, KT_E_NOMEM, "server: no memory for the event loop");
    }
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
    st = s->host ? kt_access_create(options->api_key, options->allowed_hosts, options->cors_origins,
                                    &s->access, err)
                 : kt_fail(err, KT_E_NOMEM, "no memory for the server");
    if (st == KT_OK) st = create_events(s, err);
    if (st == KT_OK) st = options->socket_path ? listen_on_file(s, err) : listen_on(s, err);
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
    kt_unix_socket_remove(&s->file);
    for (int i = 0; i < s->n_listeners; i++) evconnlistener_free(s->listeners[i]);
    for (int i = 0; i < 2; i++) {
        if (s->signals[i]) event_free(s->signals[i]);
    }
    if (s->wake) event_free(s->wake);
    if (s->tick) event_free(s->tick);
    if (s->base) event_base_free(s->base);
    pthread_mutex_destroy(&s->lock);
    free(s->host);
    kt_access_destroy(s->access);
    free(s);
}

int kt_http_server_port(const kt_http_server *s) {
    return s->port;
}

/* Writing to a socket that the other side has closed raises SIGPIPE, which would end the process.
 * It is directed at the writing thread, so blocking it here is enough and nobody else's business.
 */
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
