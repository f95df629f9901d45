/* Inside of expert layers for other engines. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_MOE_IMPL_H
#define KT_RUNTIME_MOE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buffer.h"
#include "dispatch/plan/plan.h"
#include "kt/moe.h"
#include "runtime/model/model_plan.h"

#define KT_MOE_MAX_TOPK 64
#define KT_MOE_QUEUE 256 /* calls that wait, at most */

/* What the team's own thread does: one row of the queue. */
typedef struct kt_moe_item {
    void (*run)(void *arg); /* with `arg`; NULL = a call */
    void *arg;
    kt_moe *moe;
    kt_moe_rows rows;
    int part; /* which experts of each token: */
} kt_moe_item;

enum { KT_MOE_ALL = 0, KT_MOE_NOW, KT_MOE_LATER };

struct kt_moe_team {
    atomic_int references; /* the team's handle and its layers */
    pthread_t thread;      /* runs the pool, and is its thread 0 */
    pthread_mutex_t lock;
    pthread_cond_t has_work, has_room, is_done;
    kt_moe_item queue[KT_MOE_QUEUE]; /* ring: tickets done + 1 to last */
    uint64_t last, done;             /* tickets given, and done */
    bool is_ending;

    /* Used by the thread alone, once it runs. */
    kt_pool *pool;
    kt_registry *registry;
    kt_table *table;
    kt_planner *planner;
    kt_buffer workspace; /* of a call; below are parts of another one */
    size_t workspace_bytes;
    kt_buffer rows;
    int64_t floats, slots; /* room: of x and out each; of ids and weights each */
    float *x, *out, *weight;
    int32_t *id;
};

/* A layer's weights: all of it is replaced at once. */
typedef struct kt_moe_weights {
    kt_model_plan plan;
    kt_graph graph; /* of the plan */
    kt_moe_layer layer;
    kt_buffer packed;
    const void **expert; /* [experts] */
} kt_moe_weights;

/* A call of a CUDA stream, until it is waited for; of a captured one for ever. */
typedef struct kt_moe_record {
    kt_moe *moe;
    kt_moe_item now, later;
    struct kt_moe_record *next; /* of the layer's, in the order of their numbers */
    uint64_t number, ticket;    /* ticket: of the last time that it was put */
    atomic_bool is_used;
    bool is_captured;
} kt_moe_record;

struct kt_moe {
    kt_moe_team *team;
    int64_t experts, topk, hidden, intermediate, max_tokens;
    kt_quant quant;
    /* Changed by the team's thread alone, under its lock; NULL = none. */
    kt_moe_weights *weights;
    int32_t *map;
    uint8_t *mask;
    int64_t n_ids;
    kt_moe_counts counts;
    int64_t *rows_of;       /* [experts] */
    kt_moe_record *records; /* owned; changed under the team's lock */
};

/* Large pages for what fills them. */
static inline kt_status kt_moe_take(size_t bytes, kt_buffer *out, kt_err *err) {
    const kt_pages pages = bytes < (size_t)2 << 20 ? KT_PAGES_SMALL : KT_PAGES_ADVISED;

    return kt_buffer_create(bytes, pages, -1, out, err);
}

/* Put an item at the end, with the next ticket, and another one (or NULL) right behind it. */
uint64_t kt_moe_team_put(kt_moe_team *t, const kt_moe_item *item, const kt_moe_item *then);
void kt_moe_team_wait(kt_moe_team *t, uint64_t ticket);
/* Have the team's thread run a function, behind all that is queued, and wait for it. */
void kt_moe_team_do(kt_moe_team *t, void (*run)(void *arg), void *arg);
void kt_moe_team_release(kt_moe_team *t);

/* Put the call (and what it defers) when the stream of its rows comes to it. */
kt_status kt_moe_stream_submit(kt_moe *m, const kt_moe_item *now, const kt_moe_item *later,
                               uint64_t *ticket, kt_err *err);
void kt_moe_records_free(kt_moe *m);

/* The rest is for the team's thread. */

/* Room for calls of a layer with those weights. */
kt_status kt_moe_team_reserve(kt_moe_team *t, const kt_moe *m, const kt_moe_weights *w,
                              kt_err *err);
void kt_moe_run_call(kt_moe_team *t, const kt_moe_item *item);
void kt_moe_weights_destroy(kt_moe_weights *w); /* accepts NULL */

#endif
