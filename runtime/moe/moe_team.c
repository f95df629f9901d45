/* Teams: one thread takes calls from a ring in order and runs each on the pool, whose thread 0 it
 * is. Whatever touches the pool, the planner or a layer's weights runs on it, so that none of these
 * needs a lock of its own.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/err.h"
#include "runtime/api/sized.h"
#include "runtime/moe/moe_impl.h"

#define MAX_CPUS 1024

/* ---- the queue ---- */

uint64_t kt_moe_team_put(kt_moe_team *t, const kt_moe_item *item, const kt_moe_item *then) {
    const uint64_t n = then ? 2 : 1;
    uint64_t ticket;

    pthread_mutex_lock(&t->lock);
    while (t->last - t->done > KT_MOE_QUEUE - n) pthread_cond_wait(&t->has_room, &t->lock);
    ticket = t->last + 1;
    t->queue[ticket % KT_MOE_QUEUE] = *item;
    if (then) t->queue[(ticket + 1) % KT_MOE_QUEUE] = *then;
    t->last += n;
    pthread_cond_signal(&t->has_work);
    pthread_mutex_unlock(&t->lock);
    return ticket;
}

void kt_moe_team_wait(kt_moe_team *t, uint64_t ticket) {
    pthread_mutex_lock(&t->lock);
    while (t->done < ticket) pthread_cond_wait(&t->is_done, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

void kt_moe_team_do(kt_moe_team *t, void (*run)(void *arg), void *arg) {
    const kt_moe_item item = {.run = run, .arg = arg};

    kt_moe_team_wait(t, kt_moe_team_put(t, &item, NULL));
}

uint64_t kt_moe_team_room(const kt_moe_team *t) {
    return KT_MOE_QUEUE - (t->last - t->done);
}

void kt_moe_team_add(kt_moe_team *t, const kt_moe_item *item) {
    t->queue[++t->last % KT_MOE_QUEUE] = *item;
}

/* Under the lock, which is free meanwhile: until there may be something to do. */
static void rest(kt_moe_team *t) {
    if (t->n_watched == 0) {
        pthread_cond_wait(&t->has_work, &t->lock);
        t->looked_ns = kt_clock_ns();
        return;
    }
    if (kt_moe_words_look(t) > 0)
        t->looked_ns = kt_clock_ns();
    else
        kt_moe_words_rest(t);
}

/* The next item; false at the end. */
static bool take(kt_moe_team *t, kt_moe_item *out) {
    pthread_mutex_lock(&t->lock);
    while (t->last == t->done && !t->is_ending) rest(t);
    if (t->last == t->done) {
        pthread_mutex_unlock(&t->lock);
        return false;
    }
    *out = t->queue[(t->done + 1) % KT_MOE_QUEUE];
    pthread_mutex_unlock(&t->lock);
    return true;
}

static void finish(kt_moe_team *t) {
    pthread_mutex_lock(&t->lock);
    t->done++;
    pthread_cond_broadcast(&t->has_room); /* some wait for two places */
    pthread_cond_broadcast(&t->is_done);
    pthread_mutex_unlock(&t->lock);
}

static void *work(void *arg) {
    kt_moe_team *t = arg;
    kt_moe_item item;

    while (take(t, &item)) {
        if (item.run)
            item.run(item.arg);
        else
            kt_moe_run_call(t, &item);
        if (item.done) kt_moe_set_word(item.done, KT_MOE_DONE);
        finish(t);
    }
    return NULL;
}

/* ---- memory of calls ---- */

/* What calls in the queue use is given up only for what is there. */
static kt_status replace(kt_buffer *old, size_t bytes, int node, kt_err *err) {
    kt_buffer taken;

    KT_TRY(kt_moe_take(bytes, node, &taken, err));
    kt_buffer_destroy(old);
    *old = taken;
    return KT_OK;
}

static kt_status reserve_rows(kt_moe_team *t, int64_t floats, int64_t slots, kt_err *err) {
    const size_t line = 16; /* floats */
    size_t f, s;
    float *at;

    if (floats < t->floats) floats = t->floats;
    if (slots < t->slots) slots = t->slots;
    if (floats == t->floats && slots == t->slots) return KT_OK;
    f = ((size_t)floats + line - 1) / line * line, s = ((size_t)slots + line - 1) / line * line;
    KT_TRY(replace(&t->rows, (2 * f + s) * sizeof(float) + s * sizeof(int32_t), -1, err));
    at = t->rows.data;
    t->x = at, t->out = at + f, t->weight = at + 2 * f;
    t->id = (int32_t *)(void *)(at + 2 * f + s);
    t->floats = floats, t->slots = slots;
    return KT_OK;
}

kt_status kt_moe_team_reserve(kt_moe_team *t, const kt_moe *m, const kt_moe_weights *w,
                              kt_err *err) {
    const int threads = kt_pool_threads(t->pool);

    for (int i = 0; i < w->n_nodes; i++) {
        const size_t bytes = w->n_nodes == 1
                                 ? kt_moe_workspace_bytes(&w->layer, m->max_tokens, threads)
                                 : kt_moe_nodes_bytes(&w->slice[i], m->max_tokens, threads);
        if (bytes <= t->workspace_bytes[i]) continue;
        KT_TRY(replace(&t->workspace[i], bytes, t->nodes.memory[i], err));
        t->workspace_bytes[i] = bytes;
    }
    return reserve_rows(t, m->max_tokens * m->hidden, m->max_tokens * m->topk, err);
}

/* ---- beginning and end ---- */

void kt_moe_team_options_init(kt_moe_team_options *options, size_t size) {
    memset(options, 0, size);
    options->size = size;
}

typedef struct beginning {
    kt_moe_team *team;
    const kt_moe_team_options *options;
    kt_status status;
    kt_err *err;
} beginning;

/* What a number of threads finds is not what another one finds: a deterministic team is whole, or
 * cut into as many equal parts as it was told. */
static kt_status plan_nodes(kt_moe_team *t, const kt_moe_team_options *o, int threads,
                            kt_err *err) {
    int nodes[MAX_CPUS];
    const int n = kt_topology_core_nodes(nodes, MAX_CPUS);
    const int wish = o->deterministic && o->memory_nodes == 0 ? KT_NUMA_OFF : o->memory_nodes;

    KT_TRY(kt_node_plan_make(wish, nodes, n, threads, &t->nodes, err));
    t->nodes.has_equal_shares = o->deterministic;
    t->is_node_wish = wish > KT_NUMA_OFF;
    return KT_OK;
}

/* On the team's thread, which the pool binds to its first core. */
static kt_status set_up(kt_moe_team *t, const kt_moe_team_options *o, kt_err *err) {
    int cpus[MAX_CPUS];
    kt_topology topology;
    kt_fingerprint machine;
    const int n = kt_topology_core_cpus(cpus, MAX_CPUS);
    const int threads = o->n_threads ? o->n_threads : kt_usable_cores();
    const kt_pool_options pool = {.n_threads = threads, .cpus = threads <= n ? cpus : NULL};

    KT_TRY(plan_nodes(t, o, threads, err));
    KT_TRY(kt_topology_probe(&topology, err));
    kt_fingerprint_make(&topology, NULL, &machine);
    if (o->table && *o->table) KT_TRY(kt_table_load(o->table, &t->table, err));
    KT_TRY(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, kt_isa_available(),
                              &t->registry, err));
    KT_TRY(kt_planner_create(t->registry, t->table, &machine, NULL, &t->planner, err));
    if (o->exact_acts) kt_planner_prefer_exact(t->planner);
    if (o->deterministic) kt_planner_keep_bits(t->planner);
    return kt_pool_create(&pool, &t->pool, err);
}

static void begin(void *arg) {
    beginning *b = arg;

    b->status = set_up(b->team, b->options, b->err);
}

static void tear_down(void *arg) {
    kt_moe_team *t = arg;

    kt_pool_destroy(t->pool);
    kt_planner_destroy(t->planner);
    kt_registry_destroy(t->registry);
    kt_table_destroy(t->table);
    for (int i = 0; i < KT_MOE_MAX_NODES; i++) kt_buffer_destroy(&t->workspace[i]);
    kt_buffer_destroy(&t->rows);
    kt_moe_words_free(t);
}

static void end(kt_moe_team *t) {
    kt_moe_team_do(t, tear_down, t);
    pthread_mutex_lock(&t->lock);
    t->is_ending = true;
    pthread_cond_signal(&t->has_work);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    pthread_cond_destroy(&t->has_work);
    pthread_cond_destroy(&t->has_room);
    pthread_cond_destroy(&t->is_done);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

void kt_moe_team_release(kt_moe_team *t) {
    if (atomic_fetch_sub(&t->references, 1) == 1) end(t);
}

static kt_status read_options(const kt_moe_team_options *from, kt_moe_team_options *out,
                              kt_err *err) {
    kt_moe_team_options_init(out, sizeof *out);
    if (from) KT_TRY(kt_sized_take(out, sizeof *out, from, "kt_moe_team_options", err));
    if (out->n_threads >= 0 && out->n_threads <= MAX_CPUS) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "n_threads %d, expected 0 to %d", (int)out->n_threads,
                   MAX_CPUS);
}

kt_status kt_moe_team_create(const kt_moe_team_options *options, kt_moe_team **out, kt_err *err) {
    kt_moe_team_options known;
    kt_moe_team *t;
    beginning b = {.options = &known, .err = err};

    *out = NULL;
    KT_TRY(read_options(options, &known, err));
    t = calloc(1, sizeof *t);
    if (!t) return kt_fail(err, KT_E_NOMEM, "no memory for a team of threads");
    atomic_init(&t->references, 1);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->has_work, NULL);
    pthread_cond_init(&t->has_room, NULL);
    pthread_cond_init(&t->is_done, NULL);
    if (pthread_create(&t->thread, NULL, work, t) != 0) {
        free(t);
        return kt_fail(err, KT_E_NOMEM, "no memory for a team's thread");
    }
    b.team = t;
    kt_moe_team_do(t, begin, &b);
    if (b.status != KT_OK) {
        end(t);
        return b.status;
    }
    *out = t;
    return KT_OK;
}

void kt_moe_team_destroy(kt_moe_team *team) {
    if (team) kt_moe_team_release(team);
}
