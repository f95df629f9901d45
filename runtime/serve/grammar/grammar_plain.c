/* A place inside of a string goes on by any character, and always to the same place: so a few steps
 * say what a hundred thousand tokens do. Characters are tried by the ranges of UTF-8 (Unicode table
 * 3-7), of which bytes of the same class are one.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/serve/grammar/grammar_plain.h"

#include "base/err.h"

typedef struct plain_try {
    kt_grammar *g;
    uint32_t to;    /* where all characters so far lead to; KT_PLACE_UNKNOWN = there was none */
    uint32_t depth; /* of the highest stack */
    bool mixed;
} plain_try;

static void note(plain_try *t, uint32_t to) {
    if (t->to == KT_PLACE_UNKNOWN) t->to = to;
    t->mixed |= t->to != to;
}

/* Characters whose next byte is from `low` to `high`, with `more` behind it. */
static kt_status try_range(plain_try *t, uint32_t place, int low, int high, int more, kt_err *err) {
    kt_stacks *s = &t->g->stacks;
    const uint8_t *class_of = s->automaton->class_of;
    const bool alike = kt_stacks_alike(s, place, class_of[low], class_of[high]);

    for (int byte = low; byte <= high && !t->mixed; byte++) {
        uint32_t to;
        if (byte > low && (alike || class_of[byte] == class_of[byte - 1])) continue;
        KT_TRY(kt_stacks_step(s, place, (uint8_t)byte, &to, err));
        if (alike) kt_stacks_share(s, place, class_of[low], class_of[high], to);
        if (s->place[to].depth > t->depth) t->depth = s->place[to].depth;
        t->mixed |= to != KT_PLACE_DEAD && (s->place[to].flags & KT_PLACE_LEAVES);
        if (more == 0 || to == KT_PLACE_DEAD)
            note(t, to);
        else
            KT_TRY(try_range(t, to, 0x80, 0xbf, more - 1, err));
    }
    return KT_OK;
}

/* Characters of a first byte whose second byte is from `low` to `high`. */
static kt_status try_lead(plain_try *t, uint32_t place, int lead, int low, int high, kt_err *err) {
    uint32_t to;

    KT_TRY(kt_stacks_step(&t->g->stacks, place, (uint8_t)lead, &to, err));
    if (to == KT_PLACE_DEAD) {
        note(t, to);
        return KT_OK;
    }
    t->mixed |= (t->g->stacks.place[to].flags & KT_PLACE_LEAVES) != 0;
    return try_range(t, to, low, high, lead < 0xf0 ? 1 : 2, err);
}

/* All plain characters from a place. */
static kt_status try_all(plain_try *t, uint32_t place, kt_err *err) {
    static const struct {
        uint8_t low, high;
        int more;
    } ranges[] = {{0x20, 0x21, 0}, {0x23, 0x5b, 0}, {0x5d, 0x7f, 0}, {0xc2, 0xdf, 1},
                  {0xe1, 0xec, 2}, {0xee, 0xef, 2}, {0xf1, 0xf3, 3}};

    t->to = KT_PLACE_UNKNOWN;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges && !t->mixed; i++)
        KT_TRY(try_range(t, place, ranges[i].low, ranges[i].high, ranges[i].more, err));
    if (!t->mixed) KT_TRY(try_lead(t, place, 0xe0, 0xa0, 0xbf, err));
    if (!t->mixed) KT_TRY(try_lead(t, place, 0xed, 0x80, 0x9f, err));
    if (!t->mixed) KT_TRY(try_lead(t, place, 0xf0, 0x90, 0xbf, err));
    if (!t->mixed) KT_TRY(try_lead(t, place, 0xf4, 0x80, 0x8f, err));
    return KT_OK;
}

kt_status kt_plain_chars(kt_grammar *g, uint32_t place, int *n, uint32_t *depth, kt_err *err) {
    plain_try t = {.g = g};

    t.mixed = g->stacks.place[place].flags & KT_PLACE_LEAVES;
    for (*n = 0; *n < KT_PLAIN_CHARS && !t.mixed; ++*n) {
        KT_TRY(try_all(&t, place, err));
        if (t.to == KT_PLACE_DEAD) break;
        if (t.to == place) *n = KT_PLAIN_CHARS - 1;
        place = t.to;
    }
    if (t.mixed) *n = KT_PLAIN_MIXED;
    *depth = t.depth;
    return KT_OK;
}

bool kt_plain_loops(kt_grammar *g, uint32_t place) {
    if (g->loop_at != place) {
        plain_try t = {.g = g};
        const kt_status st = try_all(&t, place, NULL);
        g->loop_at = place;
        g->loops = st == KT_OK && !t.mixed && t.to == place;
    }
    return g->loops;
}
