/* Words of mapped memory for calls of a stream, and who watches them: the team's thread, while it
 * has nothing else to do. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "runtime/moe/moe_impl.h"

enum {
    BLOCK_BYTES = 4096,
    WORDS_BYTES = 256, /* of a record: three lines, and none beside another record's */
    PER_BLOCK = BLOCK_BYTES / WORDS_BYTES,
    BUSY_NS = 2000000, /* since the last call: longer than a layer of a device */
    MOST_PAUSE = 500000
};

struct kt_moe_words_block {
    kt_moe_words_block *next;
    kt_stream_memory memory;
    bool is_used[PER_BLOCK];
};

_Static_assert(sizeof(kt_moe_words) <= WORDS_BYTES, "a record's words fit");

/* ---- memory ---- */

static kt_moe_words *free_words(kt_moe_team *t) {
    for (kt_moe_words_block *b = t->blocks; b; b = b->next)
        for (int i = 0; i < PER_BLOCK; i++)
            if (!b->is_used[i]) {
                b->is_used[i] = true;
                return (kt_moe_words *)((char *)b->memory.data + (size_t)i * WORDS_BYTES);
            }
    return NULL;
}

static kt_status add_block(kt_moe_team *t, kt_err *err) {
    kt_moe_words_block *b = calloc(1, sizeof *b);
    kt_status st;

    if (!b) return kt_fail(err, KT_E_NOMEM, "no memory for the words of calls");
    st = kt_stream_memory_take(BLOCK_BYTES, &b->memory, err);
    if (st != KT_OK) {
        free(b);
        return st;
    }
    b->next = t->blocks;
    t->blocks = b;
    return KT_OK;
}

kt_status kt_moe_words_take(kt_moe_team *t, kt_moe_record *r, kt_err *err) {
    kt_moe_record **more;
    kt_status st = KT_OK;

    if (r->words) return KT_OK;
    pthread_mutex_lock(&t->lock);
    more = realloc(t->watched, (size_t)(t->n_watched + 1) * sizeof *more);
    if (more)
        t->watched = more;
    else
        st = kt_fail(err, KT_E_NOMEM, "no memory to watch %d calls", t->n_watched + 1);
    if (st == KT_OK && !(r->words = free_words(t))) {
        st = add_block(t, err);
        if (st == KT_OK) r->words = free_words(t);
    }
    if (st == KT_OK) {
        t->watched[t->n_watched++] = r;
        pthread_cond_signal(&t->has_work); /* its thread looks now and then from now on */
    }
    pthread_mutex_unlock(&t->lock);
    return st;
}

void kt_moe_words_give(kt_moe_team *t, kt_moe_record *r) {
    if (!r->words) return;
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < t->n_watched; i++)
        if (t->watched[i] == r) t->watched[i] = t->watched[--t->n_watched];
    for (kt_moe_words_block *b = t->blocks; b; b = b->next) {
        const ptrdiff_t at = (char *)r->words - (char *)b->memory.data;
        if (at < 0 || at >= BLOCK_BYTES) continue;
        *r->words = (kt_moe_words){0};
        b->is_used[at / WORDS_BYTES] = false;
    }
    pthread_mutex_unlock(&t->lock);
    r->words = NULL;
}

void kt_moe_words_free(kt_moe_team *t) {
    while (t->blocks) {
        kt_moe_words_block *next = t->blocks->next;
        kt_stream_memory_free(&t->blocks->memory);
        free(t->blocks);
        t->blocks = next;
    }
    free(t->watched);
    t->watched = NULL;
}

/* ---- watching, on the team's thread, under its lock ---- */

static bool is_posted(const kt_moe_record *r) {
    return kt_moe_word(&r->words->posted) != 0;
}

/* Was this call put into its stream before one that was seen in the first look? */
static bool is_before_seen(const kt_moe_team *t, const kt_moe_record *r) {
    for (int i = 0; i < t->n_watched; i++) {
        const kt_moe_record *seen = t->watched[i];
        if (seen->is_seen && seen->now.rows.stream == r->now.rows.stream && seen->order >= r->order)
            return true;
    }
    return false;
}

static kt_moe_record *first_seen(const kt_moe_team *t) {
    kt_moe_record *first = NULL;

    for (int i = 0; i < t->n_watched; i++)
        if (t->watched[i]->is_seen && (!first || t->watched[i]->order < first->order))
            first = t->watched[i];
    return first;
}

/* A stream posts in its order, but a look at all words takes a while: what was posted before
 * something that the first look found is found by the second one, and goes first. */
int kt_moe_words_look(kt_moe_team *t) {
    kt_moe_record *r;
    int n = 0;

    for (int i = 0; i < t->n_watched; i++) {
        t->watched[i]->is_seen = is_posted(t->watched[i]);
        n += t->watched[i]->is_seen;
    }
    if (n == 0) return 0;
    for (int i = 0; i < t->n_watched; i++) {
        r = t->watched[i];
        if (!r->is_seen && is_posted(r) && is_before_seen(t, r)) r->is_seen = true;
    }
    for (n = 0; (r = first_seen(t)) && kt_moe_team_room(t) >= 2; n++) {
        r->is_seen = false;
        kt_moe_set_word(&r->words->posted, 0);
        kt_moe_team_add(t, &r->now);
        if (r->now.part == KT_MOE_NOW) kt_moe_team_add(t, &r->later);
    }
    return n;
}

/* Busily for a while since the last call, then with pauses, which a call without a stream ends. */
void kt_moe_words_rest(kt_moe_team *t) {
    const int64_t idle = kt_clock_ns() - t->looked_ns;
    struct timespec until;

    if (idle < BUSY_NS) {
        pthread_mutex_unlock(&t->lock);
        for (int i = 0; i < 64; i++) __builtin_ia32_pause();
        pthread_mutex_lock(&t->lock);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += idle / 16 < MOST_PAUSE ? (long)(idle / 16) : MOST_PAUSE;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&t->has_work, &t->lock, &until);
}
