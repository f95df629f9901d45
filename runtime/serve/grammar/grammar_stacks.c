/* Places are found once and then are the states of a deterministic automaton that is built as texts
 * need it.
 *
 * Stacks are trees of frames seen from their tops, hash-consed, so that a copy is a number. A call
 * whose return can only end is not put on the stack: right recursion needs no memory. Left
 * recursion was refused, so calls before the next byte end; a nullable rule in a loop comes to a
 * stack that has been visited. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/serve/grammar/grammar_stacks.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { MOST_STACKS = 4096 };
static const size_t most_bytes = (size_t)128 << 20;

static kt_status no_memory(kt_err *err) {
    return kt_fail(err, KT_E_NOMEM, "grammar: no memory to follow the text");
}

/* Room for one item more than `used` of item_bytes. */
static kt_status grow(kt_stacks *s, void **items, size_t used, size_t *room, size_t item_bytes,
                      kt_err *err) {
    size_t want = *room ? *room * 2 : 64;
    void *larger;

    if (used < *room) return KT_OK;
    if (kt_stacks_bytes(s) > most_bytes)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "grammar: following the text takes over %zu MiB: it is too ambiguous",
                       most_bytes >> 20);
    larger = realloc(*items, want * item_bytes);
    if (!larger) return no_memory(err);
    *items = larger;
    *room = want;
    return KT_OK;
}

size_t kt_stacks_bytes(const kt_stacks *s) {
    size_t per_place = sizeof *s->place + (size_t)s->automaton->n_classes * sizeof *s->next;
    return s->n_places * per_place + s->n_pool * sizeof *s->pool +
           s->n_frames * (sizeof *s->frame + sizeof *s->mark);
}

void kt_stacks_deinit(kt_stacks *s) {
    free(s->frame);
    free(s->frame_table);
    free(s->place);
    free(s->next);
    free(s->place_table);
    free(s->pool);
    free(s->mark);
    free(s->work);
    memset(s, 0, sizeof *s);
}

static uint32_t mix(uint32_t h, uint32_t v) {
    h = (h ^ v) * 0x9e3779b1u;
    return h ^ h >> 15;
}

/* ---- stacks ---- */

static kt_status grow_frame_table(kt_stacks *s, kt_err *err) {
    uint32_t size = s->frame_table_size ? s->frame_table_size * 2 : 256;
    uint32_t *table = calloc(size, sizeof *table);

    if (!table) return no_memory(err);
    for (uint32_t i = 2; i < s->n_frames; i++) {
        uint32_t at = mix(mix(0, (uint32_t)s->frame[i].state), s->frame[i].below) & (size - 1);
        while (table[at]) at = (at + 1) & (size - 1);
        table[at] = i;
    }
    free(s->frame_table);
    s->frame_table = table;
    s->frame_table_size = size;
    return KT_OK;
}

static kt_status add_frame(kt_stacks *s, kt_frame frame, kt_err *err) {
    size_t room = s->frame_room, marks = s->frame_room;
    void *frames = s->frame, *mark = s->mark;
    kt_status st = grow(s, &frames, s->n_frames, &room, sizeof *s->frame, err);

    s->frame = frames;
    if (st == KT_OK) st = grow(s, &mark, s->n_frames, &marks, sizeof *s->mark, err);
    s->mark = mark;
    if (st != KT_OK) return st;
    s->frame_room = (uint32_t)room;
    s->mark[s->n_frames] = 0;
    s->frame[s->n_frames++] = frame;
    return KT_OK;
}

kt_status kt_stacks_push(kt_stacks *s, int32_t state, uint32_t below, uint32_t *out, kt_err *err) {
    uint32_t at;

    if (s->n_frames * 2 >= s->frame_table_size) KT_TRY(grow_frame_table(s, err));
    at = mix(mix(0, (uint32_t)state), below) & (s->frame_table_size - 1);
    for (; s->frame_table[at]; at = (at + 1) & (s->frame_table_size - 1)) {
        const kt_frame *f = &s->frame[s->frame_table[at]];
        if (f->state != state || f->below != below) continue;
        *out = s->frame_table[at];
        return KT_OK;
    }
    KT_TRY(add_frame(s, (kt_frame){state, below, s->frame[below].depth + 1}, err));
    *out = s->n_frames - 1;
    s->frame_table[at] = *out;
    return KT_OK;
}

/* ---- places ---- */

static uint32_t hash_kernel(const uint32_t *kernel, uint32_t n) {
    uint32_t h = n;
    for (uint32_t i = 0; i < n; i++) h = mix(h, kernel[i]);
    return h;
}

static kt_status grow_place_table(kt_stacks *s, kt_err *err) {
    uint32_t size = s->place_table_size ? s->place_table_size * 2 : 256;
    uint32_t *table = calloc(size, sizeof *table);

    if (!table) return no_memory(err);
    for (uint32_t i = KT_PLACE_FIRST; i < s->n_places; i++) {
        const kt_place *p = &s->place[i];
        uint32_t at = hash_kernel(s->pool + p->at, p->n_kernel) & (size - 1);
        while (table[at]) at = (at + 1) & (size - 1);
        table[at] = i;
    }
    free(s->place_table);
    s->place_table = table;
    s->place_table_size = size;
    return KT_OK;
}

static kt_status put(kt_stacks *s, uint32_t stack, kt_err *err) {
    void *pool = s->pool;
    kt_status st = grow(s, &pool, s->n_pool, &s->pool_room, sizeof *s->pool, err);

    s->pool = pool;
    if (st == KT_OK) s->pool[s->n_pool++] = stack;
    return st;
}

/* Let a stack wait to be visited, once a round. Too deep ones are dropped. */
static kt_status visit(kt_stacks *s, uint32_t stack, size_t *n, kt_err *err) {
    void *work = s->work;
    kt_status st;

    if (s->mark[stack] == s->round || s->frame[stack].depth > KT_STACK_DEPTH) return KT_OK;
    s->mark[stack] = s->round;
    if (s->frame[stack].depth > s->deepest) s->deepest = s->frame[stack].depth;
    st = grow(s, &work, *n, &s->work_room, sizeof *s->work, err);
    s->work = work;
    if (st == KT_OK) s->work[(*n)++] = stack;
    return st;
}

static void begin_round(kt_stacks *s) {
    if (++s->round == 0) {
        memset(s->mark, 0, s->n_frames * sizeof *s->mark);
        s->round = 1;
    }
}

static kt_status call_rules(kt_stacks *s, kt_frame top, size_t *n, kt_err *err) {
    const kt_auto *a = s->automaton;

    for (int32_t i = a->call_begin[top.state]; i < a->call_begin[top.state + 1]; i++) {
        uint32_t below = top.below, called;
        if (!(a->flags[a->call[i].back_to] & KT_AUTO_ENDS))
            KT_TRY(kt_stacks_push(s, a->call[i].back_to, below, &below, err));
        KT_TRY(kt_stacks_push(s, a->call[i].start, below, &called, err));
        KT_TRY(visit(s, called, n, err));
    }
    return KT_OK;
}

/* Follow calls and returns from the place's kernel; its active stacks go to the pool's end. */
static kt_status close_place(kt_stacks *s, kt_place *p, kt_err *err) {
    const kt_auto *a = s->automaton;
    size_t n = 0;

    begin_round(s);
    s->deepest = 0;
    for (uint32_t i = 0; i < p->n_kernel; i++) KT_TRY(visit(s, s->pool[p->at + i], &n, err));
    while (n > 0) {
        uint32_t stack = s->work[--n];
        kt_frame top = s->frame[stack];
        const int32_t *next;
        if (stack == KT_STACK_DONE || stack == KT_STACK_UNKNOWN) {
            p->flags |= stack == KT_STACK_DONE ? KT_PLACE_COMPLETE : KT_PLACE_LEAVES;
            continue;
        }
        if (a->flags[top.state] & KT_AUTO_ACCEPTS) KT_TRY(visit(s, top.below, &n, err));
        KT_TRY(call_rules(s, top, &n, err));
        next = a->next + (size_t)top.state * (size_t)a->n_classes;
        for (int32_t c = 0; c < a->n_classes; c++)
            if (next[c] >= 0) {
                KT_TRY(put(s, stack, err));
                p->n_active++;
                break;
            }
        if (p->n_active > MOST_STACKS)
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "grammar: over %d ways to read the same text: it is too ambiguous",
                           (int)MOST_STACKS);
    }
    p->depth = s->deepest;
    return KT_OK;
}

static kt_status add_place(kt_stacks *s, kt_place place, kt_err *err) {
    size_t width = (size_t)s->automaton->n_classes * sizeof *s->next;
    size_t room = s->place_room, nexts = s->place_room;
    void *places = s->place, *next = s->next;
    kt_status st = grow(s, &places, s->n_places, &room, sizeof *s->place, err);

    s->place = places;
    if (st == KT_OK) st = grow(s, &next, s->n_places, &nexts, width, err);
    s->next = next;
    if (st != KT_OK) return st;
    s->place_room = (uint32_t)room;
    memset((char *)s->next + s->n_places * width, 0, width);
    s->place[s->n_places++] = place;
    return KT_OK;
}

static int by_number(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* The place whose kernel lies at the pool's end from `begin` on; the pool keeps it only when
 * new. */
static kt_status place_of_kernel(kt_stacks *s, size_t begin, uint32_t *out, kt_err *err) {
    kt_place p = {.at = (uint32_t)begin};
    uint32_t *kernel = s->pool + begin, n = 0, at;
    kt_status st;

    qsort(kernel, s->n_pool - begin, sizeof *kernel, by_number);
    for (size_t i = 0; begin + i < s->n_pool; i++)
        if (n == 0 || kernel[i] != kernel[n - 1]) kernel[n++] = kernel[i];
    s->n_pool = begin + n;
    p.n_kernel = n;
    *out = KT_PLACE_DEAD;
    if (n == 0) return KT_OK;
    if (s->n_places * 2 >= s->place_table_size) KT_TRY(grow_place_table(s, err));
    at = hash_kernel(kernel, n) & (s->place_table_size - 1);
    for (; s->place_table[at]; at = (at + 1) & (s->place_table_size - 1)) {
        const kt_place *known = &s->place[s->place_table[at]];
        if (known->n_kernel != n || memcmp(s->pool + known->at, kernel, n * sizeof *kernel) != 0)
            continue;
        s->n_pool = begin;
        *out = s->place_table[at];
        return KT_OK;
    }
    st = close_place(s, &p, err);
    if (st == KT_OK && p.n_active == 0 && p.flags == 0) { /* too deep all */
        s->n_pool = begin;
        return KT_OK;
    }
    if (st == KT_OK) st = add_place(s, p, err);
    if (st != KT_OK) {
        s->n_pool = begin;
        return st;
    }
    *out = s->n_places - 1;
    s->place_table[at] = *out;
    return KT_OK;
}

kt_status kt_stacks_place(kt_stacks *s, uint32_t stack, uint32_t *out, kt_err *err) {
    size_t begin = s->n_pool;

    KT_TRY(put(s, stack, err));
    return place_of_kernel(s, begin, out, err);
}

kt_status kt_stacks_step_slow(kt_stacks *s, uint32_t place, int32_t class_, uint32_t *out,
                              kt_err *err) {
    const kt_auto *a = s->automaton;
    kt_place p = s->place[place];
    size_t begin = s->n_pool;
    kt_status st = KT_OK;

    for (uint32_t i = 0; i < p.n_active && st == KT_OK; i++) {
        kt_frame top = s->frame[s->pool[p.at + p.n_kernel + i]];
        int32_t to = a->next[(size_t)top.state * (size_t)a->n_classes + (size_t)class_];
        uint32_t stack = top.below;
        if (to < 0) continue;
        if (!(a->flags[to] & KT_AUTO_ENDS)) st = kt_stacks_push(s, to, top.below, &stack, err);
        if (st == KT_OK) st = put(s, stack, err);
    }
    if (st != KT_OK) {
        s->n_pool = begin;
        return st;
    }
    KT_TRY(place_of_kernel(s, begin, out, err));
    s->next[place * (size_t)a->n_classes + (size_t)class_] = *out;
    return KT_OK;
}

bool kt_stacks_alike(const kt_stacks *s, uint32_t place, int32_t low, int32_t high) {
    const kt_place *p = &s->place[place];
    const uint32_t *active = s->pool + p->at + p->n_kernel;

    for (uint32_t i = 0; i < p->n_active; i++) {
        const size_t state = (size_t)s->frame[active[i]].state;
        const int32_t *next = s->automaton->next + state * (size_t)s->automaton->n_classes;
        for (int32_t c = low + 1; c <= high; c++)
            if (next[c] != next[low]) return false;
    }
    return true;
}

void kt_stacks_share(kt_stacks *s, uint32_t place, int32_t low, int32_t high, uint32_t to) {
    uint32_t *next = s->next + place * (size_t)s->automaton->n_classes;

    for (int32_t c = low; c <= high; c++) next[c] = to;
}

/* ---- the whole ---- */

kt_status kt_stacks_init(kt_stacks *s, const kt_auto *automaton, kt_err *err) {
    kt_status st = KT_OK;

    memset(s, 0, sizeof *s);
    s->automaton = automaton;
    for (int i = 0; i < 2 && st == KT_OK; i++) st = add_frame(s, (kt_frame){-1, 0, 0}, err);
    for (int i = 0; i < KT_PLACE_FIRST && st == KT_OK; i++)
        st = add_place(s, (kt_place){.at = 0}, err);
    if (st == KT_OK)
        for (int32_t c = 0; c < automaton->n_classes; c++)
            s->next[(size_t)KT_PLACE_DEAD * (size_t)automaton->n_classes + (size_t)c] =
                KT_PLACE_DEAD;
    if (st != KT_OK) kt_stacks_deinit(s);
    return st;
}

/* The same stack in other tables, built from its lowest frame up. */
static kt_status copy_stack(const kt_stacks *from, kt_stacks *to, uint32_t stack, kt_err *err) {
    int32_t states[KT_STACK_DEPTH + 2];
    uint32_t out = KT_STACK_DONE, n = 0;

    for (; from->frame[stack].depth > 0; stack = from->frame[stack].below)
        states[n++] = from->frame[stack].state;
    out = stack;
    while (n > 0) KT_TRY(kt_stacks_push(to, states[--n], out, &out, err));
    return put(to, out, err);
}

kt_status kt_stacks_keep(kt_stacks *s, uint32_t *places, size_t n, kt_err *err) {
    kt_stacks fresh;
    uint32_t *number = calloc(n + 1, sizeof *number);
    kt_status st = number ? kt_stacks_init(&fresh, s->automaton, err) : no_memory(err);

    for (size_t i = 0; i < n && st == KT_OK; i++) {
        const kt_place *p = &s->place[places[i]];
        size_t begin = fresh.n_pool;
        for (uint32_t k = 0; k < p->n_kernel && st == KT_OK; k++)
            st = copy_stack(s, &fresh, s->pool[p->at + k], err);
        if (st == KT_OK) st = place_of_kernel(&fresh, begin, &number[i], err);
    }
    if (st == KT_OK) {
        kt_stacks_deinit(s);
        *s = fresh;
        memcpy(places, number, n * sizeof *places);
    } else if (number) {
        kt_stacks_deinit(&fresh);
    }
    free(number);
    return st;
}
