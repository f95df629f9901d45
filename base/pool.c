/* The thread pool.
 *
 * The tasks of a phase are numbered from 0 in chunks (one task each, unless there are more than a
 * span can number). Each thread has a span [lo, hi) of chunks in one 64-bit atomic: its owner takes
 * chunks from the front, others from the back, both by compare-and-swap. `unfinished` counts the
 * chunks not yet reported as done, and one more for the publishing itself, which the publisher
 * reports with its first chunks: a phase must not end while its spans, if only the empty ones, are
 * still being written. Whoever brings the count to zero owns the pool: it alone runs the next
 * phase's prepare, writes the description of the phase, then the counter, then the spans, then the
 * sequence number.
 *
 * Why late and stalled threads do no harm: a span that is not empty always belongs to the phase
 * that runs now, because a phase ends only when all its chunks are taken and done. A thread reads
 * the description only after it has taken a chunk; from then until it reports the chunk the phase
 * cannot end, so the description is stable. A compare-and-swap with an old value that happens to be
 * the present one again takes a chunk that is really there. Nothing else of a phase is ever read,
 * and spans are filled only by the owner of the pool, hence there is nothing to go stale.
 *
 * How much is taken at once: the phase's grain, as work in long runs streams best, but no more than
 * a quarter of what the span still holds, so that the last pieces are single tasks and threads that
 * began together end together. A thief does the same and finishes what it took: to store it in its
 * own span would race with the next phase's initial spans, and more than a quarter would leave much
 * work in the hands of a thread that the kernel may put aside. Taking costs one exchange of a cache
 * line, 100-500 ns. The grain is read before a chunk is taken, so it may be another phase's: an
 * atomic, and no harm done.
 *
 * Memory order: span stores are releases and span exchanges are acquires, which orders the
 * description; exchanges continue the release sequence. Reports are acquire-release, which makes
 * all work of a phase visible to the owner of the pool and through the spans to the next phase.
 * `sequence` and `parked` form Dekker's pattern (I write mine, then read yours) and are therefore
 * sequentially consistent.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/affinity.h"
#include "base/clock.h"
#include "base/err.h"

enum { CACHE_LINE = 128, MAX_THREADS = 1024 }; /* 128: adjacent lines are fetched in pairs */
enum { PAUSES_PER_LOOK = 4, WAKES_PER_THREAD = 2 };

static const int64_t default_spin_ns = 50000;
static const int64_t max_chunks = INT32_MAX;
static const int64_t move_interval_ns = 20000000; /* a few scheduler ticks */

typedef struct worker {
    _Alignas(CACHE_LINE) _Atomic uint64_t span; /* lo | hi << 32 */
    _Alignas(CACHE_LINE) _Atomic uint32_t parked;
    kt_pool *pool;
    pthread_t thread;
    int tid;
    int victim; /* where the last theft succeeded */
    int cpu;    /* home, or -1 = anywhere */
} worker;

struct kt_pool {
    /* The description of the running phase; see above for who may touch it when. */
    const kt_phase *phases;
    int n_phases, phase;
    const atomic_bool *stop_run; /* the caller's; NULL = never */
    bool was_stopped;
    void (*run)(void *arg, int64_t begin, int64_t end, int tid);
    void *arg;
    int64_t n_tasks, chunk; /* tasks per chunk */
    _Atomic int64_t most;   /* chunks to take at once */

    int n_threads, n_started;
    _Atomic int n_active; /* threads of the present run: the first ones */
    _Atomic int64_t spin_ns;
    kt_cpu_set homes;   /* of the workers, without the caller's; empty = nothing to keep clear of */
    int64_t moved_ns;   /* when the caller was last sent home */
    kt_cpu_set callers; /* affinity of the creating thread, when we changed it */
    pthread_t creator;
    bool caller_pinned;
    _Alignas(CACHE_LINE) _Atomic uint32_t sequence; /* counts phases, ends of runs and the stop */
    _Atomic bool finished;                          /* the run is complete */
    _Atomic bool stop;
    _Alignas(CACHE_LINE) _Atomic int64_t unfinished;
    worker *workers;
};

static uint64_t make_span(int64_t lo, int64_t hi) {
    return (uint64_t)lo | (uint64_t)hi << 32;
}

static bool is_empty(uint64_t span) {
    return (uint32_t)span >= (uint32_t)(span >> 32);
}

static void pause_cpu(void) {
    __builtin_ia32_pause();
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static bool unpark(worker *w) {
    if (atomic_load(&w->parked) == 0 || atomic_exchange(&w->parked, 0) == 0) return false;
    futex_wake(&w->parked);
    return true;
}

/* Wake a few parked workers whose spans wait for them. Each does the same when it comes up, so
 * that many are woken in the time of few and none for work that is already taken. */
static void wake_workers(kt_pool *pool, int self) {
    int woken = 0;

    for (int i = 0; i < pool->n_threads && woken < WAKES_PER_THREAD; i++) {
        worker *w = &pool->workers[i];
        if (i == self || atomic_load(&w->parked) == 0) continue;
        if (!is_empty(atomic_load_explicit(&w->span, memory_order_relaxed))) woken += unpark(w);
    }
}

/* Publish chunks [0, n): equal spans, the first threads one longer. The caller owes one report. */
static void publish(kt_pool *pool, int64_t n) {
    int active = atomic_load_explicit(&pool->n_active, memory_order_relaxed);
    int64_t each = n / active, longer = n % active, lo = 0;

    atomic_store_explicit(&pool->unfinished, n + 1, memory_order_relaxed);
    for (int i = 0; i < active; i++) {
        int64_t hi = lo + each + (i < longer);
        atomic_store_explicit(&pool->workers[i].span, make_span(lo, hi), memory_order_release);
        lo = hi;
    }
    atomic_fetch_add(&pool->sequence, 1);
}

static bool is_stopped(kt_pool *pool) {
    if (pool->stop_run && atomic_load_explicit(pool->stop_run, memory_order_relaxed))
        pool->was_stopped = true;
    return pool->was_stopped;
}

/* Called by the one thread that owns the pool: start the next phase that has tasks, or end the
 * run. After either, the pool is no longer ours to read. Returns the reports owed: 1 for the phase
 * just published, 0 at the end. */
static int64_t advance(kt_pool *pool, int self) {
    while (++pool->phase < pool->n_phases) {
        const kt_phase *p = &pool->phases[pool->phase];
        int active = atomic_load_explicit(&pool->n_active, memory_order_relaxed);
        int64_t n = is_stopped(pool) ? 0 : p->prepare ? p->prepare(p->arg, active) : p->n_tasks;
        int64_t grain = p->grain_at ? *p->grain_at : p->grain;
        int64_t chunk = n / max_chunks + 1;

        if (n <= 0) continue;
        pool->run = p->run;
        pool->arg = p->arg;
        pool->n_tasks = n;
        pool->chunk = chunk;
        atomic_store_explicit(&pool->most, grain > chunk ? grain / chunk : 1, memory_order_relaxed);
        publish(pool, n / chunk + (n % chunk != 0));
        wake_workers(pool, self);
        return 1;
    }
    atomic_store_explicit(&pool->finished, true, memory_order_release);
    atomic_fetch_add(&pool->sequence, 1);
    unpark(&pool->workers[0]);
    return 0;
}

/* Chunks [lo, hi) of a span. */
typedef struct piece {
    int64_t lo, hi;
} piece;

static void run_piece(const kt_pool *pool, piece p, int tid) {
    int64_t last = pool->n_tasks / pool->chunk; /* whose tasks may be fewer */
    int64_t end = p.hi > last ? pool->n_tasks : p.hi * pool->chunk;
    pool->run(pool->arg, p.lo * pool->chunk, end, tid);
}

/* The last report advances the pool. Returns the reports owed thereafter. */
static int64_t report(kt_pool *pool, int64_t done, int self) {
    if (atomic_fetch_sub_explicit(&pool->unfinished, done, memory_order_acq_rel) != done) return 0;
    return advance(pool, self);
}

/* How many of `left` chunks to take; all that the grain allows where nobody shares them. */
static int64_t share_of(const kt_pool *pool, int64_t left) {
    int64_t most = atomic_load_explicit(&pool->most, memory_order_relaxed);
    int64_t part = (left + 3) / 4;

    if (atomic_load_explicit(&pool->n_active, memory_order_relaxed) == 1) part = left;
    return part < most ? part : most;
}

/* Take the first chunks (from_front) or the last of a span; false when it is empty. */
static bool take(const kt_pool *pool, _Atomic uint64_t *span, bool from_front, piece *out) {
    uint64_t old = atomic_load_explicit(span, memory_order_relaxed);

    while (!is_empty(old)) {
        int64_t lo = (uint32_t)old, hi = (int64_t)(old >> 32), n = share_of(pool, hi - lo);
        uint64_t rest = from_front ? make_span(lo + n, hi) : make_span(lo, hi - n);
        if (!atomic_compare_exchange_weak_explicit(span, &old, rest, memory_order_acquire,
                                                   memory_order_relaxed))
            continue;
        *out = from_front ? (piece){lo, lo + n} : (piece){hi - n, hi};
        return true;
    }
    return false;
}

static bool steal(kt_pool *pool, worker *self, piece *out) {
    for (int i = 0; i < pool->n_threads; i++) {
        int victim = self->victim + i;
        if (victim >= pool->n_threads) victim -= pool->n_threads;
        if (victim == self->tid || !take(pool, &pool->workers[victim].span, false, out)) continue;
        self->victim = victim;
        return true;
    }
    return false;
}

/* A thread that the limit leaves out neither looks for work nor spins. One that was just stealing
 * when the limit fell may find a chunk of the next run; it is a thread like the others, so no harm
 * is done. */
static bool is_active(const kt_pool *pool, const worker *self) {
    return self->tid < atomic_load_explicit(&pool->n_active, memory_order_relaxed);
}

/* Do whatever there is to do, also of the phases that begin meanwhile. Own chunks are reported
 * together: nobody can miss them before this thread has run out of them. */
static void work(kt_pool *pool, worker *self, int64_t owed) {
    piece p;

    for (;;) {
        while (take(pool, &self->span, true, &p)) {
            run_piece(pool, p, self->tid);
            owed += p.hi - p.lo;
        }
        if (owed == 0) {
            if (!is_active(pool, self) || !steal(pool, self, &p)) return;
            run_piece(pool, p, self->tid);
            owed = p.hi - p.lo;
        }
        owed = report(pool, owed, self->tid);
    }
}

/* Wait until the sequence number leaves `seen`: first spinning, then parked. */
static void wait_for_news(kt_pool *pool, worker *self, uint32_t seen) {
    int64_t start = kt_clock_ns();
    int64_t spin_ns = atomic_load_explicit(&pool->spin_ns, memory_order_relaxed);

    while (spin_ns > 0 && is_active(pool, self)) {
        for (int i = 0; i < PAUSES_PER_LOOK; i++) {
            if (atomic_load_explicit(&pool->sequence, memory_order_acquire) != seen) return;
            pause_cpu();
        }
        if (kt_clock_ns() - start > spin_ns) break;
    }
    atomic_store(&self->parked, 1);
    while (atomic_load(&pool->sequence) == seen && atomic_load(&self->parked))
        futex_wait(&self->parked, 1);
    atomic_store(&self->parked, 0);
    wake_workers(pool, self->tid);
}

static void stay_on(int cpu) {
    kt_cpu_set set = {0};

    if (cpu < 0) return;
    kt_cpu_set_add(&set, cpu);
    kt_affinity_set(&set);
}

static void *worker_main(void *arg) {
    worker *self = arg;
    kt_pool *pool = self->pool;

    stay_on(self->cpu);
    for (;;) {
        uint32_t seen = atomic_load_explicit(&pool->sequence, memory_order_acquire);
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed)) return NULL;
        work(pool, self, 0);
        wait_for_news(pool, self, seen);
    }
}

/* Go to the home core, but remain free to be moved. */
static void go_home(int cpu) {
    kt_cpu_set allowed;

    kt_affinity_get(&allowed);
    if (!kt_cpu_set_has(&allowed, cpu)) return;
    stay_on(cpu);
    kt_affinity_set(&allowed);
}

/* A caller that is not pinned may wake up on the core of a worker, where each would wait for the
 * other's time slice while a core lies idle: the kernel mends that only after many ticks. */
static void leave_worker_core(kt_pool *pool) {
    int64_t now;

    if (!kt_cpu_set_has(&pool->homes, sched_getcpu())) return;
    now = kt_clock_ns();
    if (now - pool->moved_ns < move_interval_ns) return;
    pool->moved_ns = now;
    go_home(pool->workers[0].cpu);
}

bool kt_pool_run_until(kt_pool *pool, const kt_phase *phases, int n_phases,
                       const atomic_bool *stop) {
    worker *self = &pool->workers[0];
    int64_t owed;

    leave_worker_core(pool);
    pool->phases = phases;
    pool->n_phases = n_phases;
    pool->phase = -1;
    pool->stop_run = stop;
    pool->was_stopped = false;
    atomic_store_explicit(&pool->finished, false, memory_order_relaxed);
    owed = advance(pool, 0);
    for (;;) {
        uint32_t seen = atomic_load_explicit(&pool->sequence, memory_order_acquire);
        work(pool, self, owed);
        owed = 0;
        if (atomic_load_explicit(&pool->finished, memory_order_acquire)) return !pool->was_stopped;
        wait_for_news(pool, self, seen);
    }
}

void kt_pool_run(kt_pool *pool, const kt_phase *phases, int n_phases) {
    kt_pool_run_until(pool, phases, n_phases, NULL);
}

/* Workers take no signals that are sent: those belong to the threads of the program. What an
 * instruction of their own raises stays open, or the process would end without the program's
 * handler. */
static int start_thread(worker *w) {
    static const int own[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP};
    sigset_t mask, old;
    int rc;

    sigfillset(&mask);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&mask, own[i]);
    pthread_sigmask(SIG_SETMASK, &mask, &old);
    rc = pthread_create(&w->thread, NULL, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

static kt_status allocate(int n, kt_pool **out, kt_err *err) {
    void *pool = NULL, *workers = NULL;

    if (posix_memalign(&pool, CACHE_LINE, sizeof **out) != 0 ||
        posix_memalign(&workers, CACHE_LINE, (size_t)n * sizeof(worker)) != 0) {
        free(pool);
        return kt_fail(err, KT_E_NOMEM, "no memory for a pool of %d threads", n);
    }
    memset(pool, 0, sizeof **out);
    memset(workers, 0, (size_t)n * sizeof(worker));
    *out = pool;
    (*out)->workers = workers;
    return KT_OK;
}

/* Give each thread its home. The caller is only bound when its CPU was asked for by number, since
 * its affinity is not ours to take; otherwise it merely keeps off the workers' cores. */
static void choose_homes(kt_pool *pool, const kt_pool_options *o) {
    kt_cpu_set allowed;
    int cpus[MAX_THREADS];

    kt_affinity_get(&allowed);
    kt_affinity_choose(&allowed, pool->n_threads, cpus);
    for (int i = 0; i < pool->n_threads; i++)
        pool->workers[i].cpu = o->no_pin ? -1 : o->cpus ? o->cpus[i] : cpus[i];
    if (o->no_pin) return;
    if (o->cpus) {
        stay_on(o->cpus[0]);
        pool->caller_pinned = true;
        pool->callers = allowed;
        pool->creator = pthread_self();
        return;
    }
    for (int i = 1; i < pool->n_threads; i++)
        if (cpus[i] != cpus[0]) kt_cpu_set_add(&pool->homes, cpus[i]);
}

kt_status kt_pool_create(const kt_pool_options *options, kt_pool **out, kt_err *err) {
    static const kt_pool_options defaults = {0};
    const kt_pool_options *o = options ? options : &defaults;
    int n = o->n_threads > 0 ? o->n_threads : kt_usable_cores();
    kt_pool *pool = NULL;

    *out = NULL;
    if (n > MAX_THREADS)
        return kt_fail(err, KT_E_INVALID, "thread pool of %d threads, limit %d", n, MAX_THREADS);
    KT_TRY(allocate(n, &pool, err));
    pool->n_threads = n;
    atomic_store_explicit(&pool->n_active, n, memory_order_relaxed);
    pool->n_started = 1;
    kt_pool_spin(pool, o->spin_ns);
    for (int i = 0; i < n; i++) {
        pool->workers[i].pool = pool;
        pool->workers[i].tid = i;
    }
    choose_homes(pool, o);
    for (; pool->n_started < n; pool->n_started++) {
        int rc = start_thread(&pool->workers[pool->n_started]);
        if (rc == 0) continue;
        kt_fail(err, KT_E_NOMEM, "cannot start thread %d of %d: %s", pool->n_started, n,
                strerror(rc));
        kt_pool_destroy(pool);
        return KT_E_NOMEM;
    }
    *out = pool;
    return KT_OK;
}

void kt_pool_destroy(kt_pool *pool) {
    if (!pool) return;
    atomic_store_explicit(&pool->stop, true, memory_order_relaxed);
    atomic_fetch_add(&pool->sequence, 1);
    for (int i = 1; i < pool->n_started; i++) unpark(&pool->workers[i]);
    for (int i = 1; i < pool->n_started; i++) pthread_join(pool->workers[i].thread, NULL);
    if (pool->caller_pinned && pthread_equal(pool->creator, pthread_self()))
        kt_affinity_set(&pool->callers);
    free(pool->workers);
    free(pool);
}

int kt_pool_threads(const kt_pool *pool) {
    return pool->n_threads;
}

void kt_pool_limit(kt_pool *pool, int n) {
    if (n < 1) n = 1;
    if (n > pool->n_threads) n = pool->n_threads;
    atomic_store_explicit(&pool->n_active, n, memory_order_relaxed);
}

void kt_pool_spin(kt_pool *pool, int64_t spin_ns) {
    atomic_store_explicit(&pool->spin_ns, spin_ns ? spin_ns : default_spin_ns,
                          memory_order_relaxed);
}
