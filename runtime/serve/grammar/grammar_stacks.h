/* Where a text may be in a grammar: sets of stacks of automaton states, each set and stack kept
 * once. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_GRAMMAR_STACKS_H
#define KT_RUNTIME_GRAMMAR_STACKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kt/status.h"
#include "runtime/serve/grammar/grammar_build.h"

/* Stacks are numbers, too: a frame's number stands for it and all below. */
enum {
    KT_STACK_DONE = 0,    /* the empty stack: the whole text has been read */
    KT_STACK_UNKNOWN = 1, /* whatever was called from: for answers that hold below any stack */
    KT_STACK_DEPTH = 1000 /* frames; deeper texts are not in the language */
};

typedef struct kt_frame {
    int32_t state;
    uint32_t below, depth;
} kt_frame;

enum {
    KT_PLACE_COMPLETE = 1, /* the text may end here */
    KT_PLACE_LEAVES = 2    /* the unknown stack may go on from here */
};

/* A place is a set of stacks, and stands for all ways to read the text so far. `kernel` are the
 * stacks as the last byte left them, `active` what calls and returns make of them: states that read
 * a byte. */
typedef struct kt_place {
    uint32_t at; /* pool[at ...]: kernel, then active */
    uint32_t n_kernel, n_active;
    uint32_t depth; /* of the highest stack that was met on the way to the active ones */
    uint32_t flags;
} kt_place;

enum {
    KT_PLACE_UNKNOWN = 0, /* in `next`: not worked out yet */
    KT_PLACE_DEAD = 1,    /* no text goes on like that */
    KT_PLACE_FIRST = 2
};

typedef struct kt_stacks {
    const kt_auto *automaton; /* borrowed */
    kt_frame *frame;
    uint32_t n_frames, frame_room, *frame_table, frame_table_size;
    kt_place *place;
    uint32_t *next; /* [places, classes]: the place after a byte of a class */
    uint32_t n_places, place_room, *place_table, place_table_size;
    uint32_t *pool;
    size_t n_pool, pool_room;
    uint32_t *mark; /* [frame_room]: round in which a stack was visited */
    uint32_t round, deepest;
    uint32_t *work; /* stacks that wait to be visited */
    size_t work_room;
} kt_stacks;

/* Errors of all: KT_E_NOMEM; KT_E_UNSUPPORTED when the grammar is too ambiguous (over 4096 stacks
 * in one place) or the tables have grown over 128 MiB. The tables are valid after an error. */
kt_status kt_stacks_init(kt_stacks *s, const kt_auto *automaton, kt_err *err);
void kt_stacks_deinit(kt_stacks *s);

/* The stack with `state` on top of `below`, and the place that a stack is alone in. */
kt_status kt_stacks_push(kt_stacks *s, int32_t state, uint32_t below, uint32_t *out, kt_err *err);
kt_status kt_stacks_place(kt_stacks *s, uint32_t stack, uint32_t *out, kt_err *err);

/* The place after one more byte; KT_PLACE_DEAD when there is none. */
kt_status kt_stacks_step_slow(kt_stacks *s, uint32_t place, int32_t class_, uint32_t *out,
                              kt_err *err);
static inline kt_status kt_stacks_step(kt_stacks *s, uint32_t place, uint8_t byte, uint32_t *out,
                                       kt_err *err) {
    size_t width = (size_t)s->automaton->n_classes;
    int32_t class_ = s->automaton->class_of[byte];

    *out = s->next[place * width + (size_t)class_];
    if (*out != KT_PLACE_UNKNOWN) return KT_OK;
    return kt_stacks_step_slow(s, place, class_, out, err);
}

/* Do all classes from `low` to `high` do the same to the place? Then share one's step with the
 * others. */
bool kt_stacks_alike(const kt_stacks *s, uint32_t place, int32_t low, int32_t high);
void kt_stacks_share(kt_stacks *s, uint32_t place, int32_t low, int32_t high, uint32_t to);

/* Bytes of memory in use: to decide when to call keep. */
size_t kt_stacks_bytes(const kt_stacks *s);

/* Forget all places but places[n], which get new numbers; on error nothing has changed. */
kt_status kt_stacks_keep(kt_stacks *s, uint32_t *places, size_t n, kt_err *err);

#endif
