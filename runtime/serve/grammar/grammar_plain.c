/* A place inside of a string goes on by any character, and always to the same place: so a few steps
 * say what a hundred thousand tokens do. Characters are tried by the ranges of UTF-8 (Unicode table
 * 3-7), of which bytes of the same class are one. Those of one byte come last: a free text that
 * ends at a full stop goes on by all but that one, and it is noted.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/serve/grammar/grammar_plain.h"

#include "base/err.h"

/* With more exceptions than this a walk meets most tokens anyway. */
enum { MOST_OTHERS = 24 };

typedef struct plain_try {
    kt_grammar *g;
    uint32_t to; /* where all characters so far lead to; KT_PLACE_UNKNOWN = there was none */
    bool mixed;
    kt_plain_run *run;
} plain_try;

static void note(plain_try *t, uint32_t to) {
    if (t->to == KT_PLACE_UNKNOWN) t->to = to;
    t->mixed |= t->to != to;
}

static bool may_leave(const plain_try *t, uint32_t to) {
    return to != KT_PLACE_DEAD && (t->g->stacks.place[to].flags & KT_PLACE_LEAVES);
}

static void note_depth(plain_try *t, uint32_t to) {
    if (t->g->stacks.place[to].depth > t->run->depth) t->run->depth = t->g->stacks.place[to].depth;
}

/* Characters of several bytes whose next one is from `low` to `high`, with `more` behind it. */
static kt_status try_range(plain_try *t, uint32_t place, int low, int high, int more, kt_err *err) {
    kt_stacks *s = &t->g->stacks;
    const uint8_t *class_of = s->automaton->class_of;
    const bool alike = kt_stacks_alike(s, place, class_of[low], class_of[high]);

    for (int byte = low; byte <= high && !t->mixed; byte++) {
        uint32_t to;
        if (byte > low && (alike || class_of[byte] == class_of[byte - 1])) continue;
        KT_TRY(kt_stacks_step(s, place, (uint8_t)byte, &to, err));
        if (alike) kt_stacks_share(s, place, class_of[low], class_of[high], to);
        note_depth(t, to);
        if (more == 0 || to == KT_PLACE_DEAD) {
            note(t, to);
            continue;
        }
        t->mixed |= may_leave(t, to);
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

/* Characters of one byte from `low` to `high`: those that lead elsewhere are noted. */
static kt_status try_bytes(plain_try *t, uint32_t place, int low, int high, kt_err *err) {
    kt_stacks *s = &t->g->stacks;
    const uint8_t *class_of = s->automaton->class_of;
    const bool alike = kt_stacks_alike(s, place, class_of[low], class_of[high]);

    for (int byte = low; byte <= high; byte++) {
        uint32_t to;
        KT_TRY(kt_stacks_step(s, place, (uint8_t)byte, &to, err));
        if (alike) kt_stacks_share(s, place, class_of[low], class_of[high], to);
        note_depth(t, to);
        if (to != t->to) kt_byte_set_add(&t->run->others, (uint8_t)byte);
    }
    t->mixed |= kt_byte_set_size(&t->run->others) > MOST_OTHERS;
    return KT_OK;
}

/* All plain characters from a place. */
static kt_status try_all(plain_try *t, uint32_t place, kt_err *err) {
    static const struct {
        uint8_t low, high;
        int more;
    } ranges[] = {{0xc2, 0xdf, 1}, {0xe1, 0xec, 2}, {0xee, 0xef, 2}, {0xf1, 0xf3, 3}};

    t->to = KT_PLACE_UNKNOWN;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges && !t->mixed; i++)
        KT_TRY(try_range(t, place, ranges[i].low, ranges[i].high, ranges[i].more, err));
    if (!t->mixed) KT_TRY(try_lead(t, place, 0xe0, 0xa0, 0xbf, err));
    if (!t->mixed) KT_TRY(try_lead(t, place, 0xed, 0x80, 0x9f, err));
    if (!t->mixed) KT_TRY(try_lead(t, place, 0xf0, 0x90, 0xbf, err));
    if (!t->mixed) KT_TRY(try_lead(t, place, 0xf4, 0x80, 0x8f, err));
    if (!t->mixed) KT_TRY(try_bytes(t, place, 0x20, 0x21, err));
    if (!t->mixed) KT_TRY(try_bytes(t, place, 0x23, 0x5b, err));
    if (!t->mixed) KT_TRY(try_bytes(t, place, 0x5d, 0x7f, err));
    return KT_OK;
}

kt_status kt_plain_chars(kt_grammar *g, uint32_t place, kt_plain_run *out, kt_err *err) {
    plain_try t = {.g = g, .run = out};

    *out = (kt_plain_run){.n = 0};
    for (; out->n < KT_PLAIN_CHARS && !t.mixed; out->n++) {
        KT_TRY(try_all(&t, place, err));
        if (t.mixed || t.to == KT_PLACE_DEAD) break;
        out->leaves |= may_leave(&t, t.to);
        t.mixed |= out->leaves;
        if (t.to == place) out->n = KT_PLAIN_CHARS - 1;
        place = t.to;
    }
    if (t.mixed) out->n = KT_PLAIN_MIXED;
    return KT_OK;
}

bool kt_plain_loops(kt_grammar *g, uint32_t place) {
    if (g->loop_at != place) {
        kt_plain_run run = {.n = 0};
        plain_try t = {.g = g, .run = &run};
        const kt_status st = try_all(&t, place, NULL);
        g->loop_at = place;
        g->loops = st == KT_OK && !t.mixed && t.to == place && kt_byte_set_size(&run.others) == 0 &&
                   !may_leave(&t, place);
    }
    return g->loops;
}
