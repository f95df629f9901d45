/* Inside of expert layers for other engines. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_MOE_IMPL_H
#define KT_RUNTIME_MOE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buffer.h"
#include "dispatch/device/stream_call.h"
#include "dispatch/plan/plan.h"
#include "kt/moe.h"
#include "runtime/model/model_plan.h"
#include "runtime/model/node_plan.h"

#define KT_MOE_MAX_TOPK 64
#define KT_MOE_QUEUE 256 /* calls that wait, at most */
#define KT_MOE_ANNOUNCED 64

/* What the team's own thread does: one row of the queue. */
typedef struct kt_moe_item {
    void (*run)(void *arg); /* with `arg`; NULL = a call */
    void *arg;
    kt_moe *moe;
    kt_moe_rows rows;
    int part;       /* which experts of each token: */
    uint32_t *done; /* becomes KT_MOE_DONE behind the call; NULL = nobody looks there */
} kt_moe_item;

typedef struct kt_moe_record kt_moe_record;
typedef struct kt_moe_words_block kt_moe_words_block;

/* Words that a stream and the team's thread share for a call. posted: 1 by the stream when it comes
 * to the call, 0 by the thread that has seen it. done and later: KT_MOE_DONE by the thread,
 * KT_MOE_TAKEN by the stream that has waited for it; so a replay finds no answer of the last one.
 * What one side writes has a line of its own. */
typedef struct kt_moe_words {
    _Alignas(64) uint32_t posted;
    _Alignas(64) uint32_t done;
    _Alignas(64) uint32_t later;
} kt_moe_words;

static inline uint32_t kt_moe_word(const uint32_t *word) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
static inline void kt_moe_set_word(uint32_t *word, uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

enum { KT_MOE_DONE = 1, KT_MOE_TAKEN = 2 };

enum { KT_MOE_ALL = 0, KT_MOE_NOW, KT_MOE_LATER };

struct kt_moe_team {
    atomic_int references; /* the team's handle and its layers */
    pthread_t thread;      /* runs the pool, and is its thread 0 */
    pthread_mutex_t lock;
    pthread_cond_t has_work, has_room, is_done;
    kt_moe_item queue[KT_MOE_QUEUE]; /* ring: tickets done + 1 to last */
    uint64_t last, done;             /* tickets given, and done */
    bool is_ending;
    kt_moe_record **watched; /* [n_watched] whose words the thread looks at; under the lock */
    int n_watched;
    kt_moe_words_block *blocks; /* owned; under the lock */
    uint64_t orders;            /* numbers of calls of streams; under the lock */
    int64_t looked_ns;          /* when a word was seen last */

    /* Used by the thread alone, once it runs. */
    kt_node_plan nodes; /* the pool's threads by memory node */
    bool is_node_wish;  /* that many were asked for */
    kt_pool *pool;
    kt_registry *registry;
    kt_table *table;
    kt_planner *planner;
    kt_buffer workspace[KT_MOE_MAX_NODES]; /* of a call, in each node's memory */
    size_t workspace_bytes[KT_MOE_MAX_NODES];
    kt_buffer rows;
    int64_t floats, slots; /* room in rows: of x and out each; of ids and weights each */
    float *x, *out, *weight;
    int32_t *id;
};

/* A layer's weights: all of it is replaced at once. */
typedef struct kt_moe_weights {
    kt_model_plan plan;
    kt_graph graph;     /* of the plan */
    kt_moe_layer layer; /* whole */
    int n_nodes;        /* that experts are cut over; 1 = they are whole */
    kt_moe_layer slice[KT_MOE_MAX_NODES];
    kt_buffer packed[KT_MOE_MAX_NODES];
    const void **expert; /* [n_nodes][experts] */
} kt_moe_weights;

/* A call of a CUDA stream, until it is waited for; of a captured one for ever. */
struct kt_moe_record {
    kt_moe *moe;
    kt_moe_item now, later;
    struct kt_moe_record *next; /* of the layer's, in the order of their numbers */
    uint64_t number, ticket;    /* ticket: of the last time that it was put */
    atomic_bool is_used;
    bool is_captured;
    /* By words instead of functions: */
    kt_moe_words *words; /* the team's; NULL = never had any */
    bool by_words;       /* this call */
    bool is_seen;        /* by the look that is going on */
    int waits;           /* bits: those that the stream has not been given yet */
    uint64_t order;      /* in which calls were submitted */
};

struct kt_moe {
    kt_moe_team *team;
    int64_t experts, topk, hidden, intermediate, max_tokens;
    kt_quant quant;
    kt_glu_rule glu;
    /* Changed by the team's thread alone, under its lock; NULL = none. */
    kt_moe_weights *weights;
    int32_t *map;
    uint8_t *mask;
    int64_t n_ids;
    kt_moe_counts counts;
    int64_t *rows_of;                    /* [experts] */
    kt_moe_record *records;              /* owned; changed under the team's lock */
    int64_t announced[KT_MOE_ANNOUNCED]; /* tokens of calls that may be captured */
    int n_announced;                     /* 0 = any */
};

/* Memory of a node (-1 = any), in large pages where it fills them. */
static inline kt_status kt_moe_take(size_t bytes, int node, kt_buffer *out, kt_err *err) {
    const kt_pages pages = bytes < (size_t)2 << 20 ? KT_PAGES_SMALL : KT_PAGES_ADVISED;

    return kt_buffer_create(bytes, pages, node, out, err);
}

/* Put an item at the end, with the next ticket, and another one (or NULL) right behind it. */
uint64_t kt_moe_team_put(kt_moe_team *t, const kt_moe_item *item, const kt_moe_item *then);
/* Likewise by the team's thread, under its lock: how many there is room for, and one of them. */
uint64_t kt_moe_team_room(const kt_moe_team *t);
void kt_moe_team_add(kt_moe_team *t, const kt_moe_item *item);
void kt_moe_team_wait(kt_moe_team *t, uint64_t ticket);
/* Have the team's thread run a function, behind all that is queued, and wait for it. */
void kt_moe_team_do(kt_moe_team *t, void (*run)(void *arg), void *arg);
void kt_moe_team_release(kt_moe_team *t);

/* Put the call (and what it defers) when the stream of its rows comes to it. */
kt_status kt_moe_stream_submit(kt_moe *m, const kt_moe_item *now, const kt_moe_item *later,
                               uint64_t *ticket, kt_err *err);
void kt_moe_records_free(kt_moe *m);

/* Words for a record, which the team's thread looks at from then on; and their end. */
kt_status kt_moe_words_take(kt_moe_team *t, kt_moe_record *r, kt_err *err);
void kt_moe_words_give(kt_moe_team *t, kt_moe_record *r);
void kt_moe_words_free(kt_moe_team *t);
/* Under the lock: put what streams have posted; how many calls that were. */
int kt_moe_words_look(kt_moe_team *t);
void kt_moe_words_rest(kt_moe_team *t); /* a while, in which the lock is free */

/* The rest is for the team's thread. */

/* Room for calls of a layer with those weights. */
kt_status kt_moe_team_reserve(kt_moe_team *t, const kt_moe *m, const kt_moe_weights *w,
                              kt_err *err);
void kt_moe_run_call(kt_moe_team *t, const kt_moe_item *item);
void kt_moe_weights_destroy(kt_moe_weights *w); /* accepts NULL */

#endif
