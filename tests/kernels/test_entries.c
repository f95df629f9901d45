/* Pooling of windows to entries against the double reference, in any chunks, and where entries lie.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/compress/entries.h"
#include "kernels/compress/entries_ref.h"

enum { TOKENS = 300, DIM = 37, WIDTH = 2 * DIM, LD = WIDTH + 5 };

static float values[TOKENS * LD], gates[TOKENS * LD], ape[128 * WIDTH];
static float tight_values[TOKENS * WIDTH], tight_gates[TOKENS * WIDTH];

/* Gates from far apart: softmaxes between even and one of all. */
static void make(uint64_t seed, int64_t width) {
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t i = 0; i < width; i++) {
            values[t * LD + i] = tight_values[t * width + i] = kt_rng_normal(&rng);
            gates[t * LD + i] = tight_gates[t * width + i] =
                kt_rng_normal(&rng) * (i % 3 == 0 ? 40.0f : 2.0f);
        }
    for (int64_t i = 0; i < 128 * WIDTH; i++) ape[i] = kt_rng_normal(&rng);
}

/* All tokens in chunks of `chunk`, channels in two calls. */
static void pool(int64_t halves, int64_t ratio, int64_t chunk, float *out) {
    float state[2 * 3 * DIM] = {0};

    for (int64_t t = 0; t < TOKENS; t += chunk)
        for (int64_t part = 0; part < 2; part++)
            kt_pool_rows(&(kt_pool_call){.values = values + t * LD,
                                         .gates = gates + t * LD,
                                         .ldv = LD,
                                         .ldg = LD,
                                         .ape = ape,
                                         .state = state,
                                         .out = out + t * DIM,
                                         .ldo = DIM,
                                         .dim = DIM,
                                         .halves = halves,
                                         .ratio = ratio,
                                         .position = t,
                                         .rows = TOKENS - t < chunk ? TOKENS - t : chunk,
                                         .channel_begin = part ? 16 : 0,
                                         .channel_end = part ? DIM : 16});
}

static void check(uint64_t seed, int64_t halves, int64_t ratio) {
    static const int64_t chunks[] = {1, 7, 128, TOKENS};
    static float out[4][TOKENS * DIM];
    double want[DIM];

    make(seed, halves * DIM);
    memset(out, 0, sizeof out);
    for (int c = 0; c < 4; c++) pool(halves, ratio, chunks[c], out[c]);
    for (int c = 1; c < 4; c++)
        cr_expect_eq(memcmp(out[c], out[0], sizeof out[0]), 0, "ratio %lld: chunks of %lld",
                     (long long)ratio, (long long)chunks[c]);
    for (int64_t e = 0; e < kt_entries_of(TOKENS, ratio); e++) {
        const float *got = out[0] + ((e + 1) * ratio - 1) * DIM;
        kt_entry_ref(tight_values, tight_gates, ape, DIM, halves, ratio, e, want);
        for (int i = 0; i < DIM; i++) /* weights and values round at every token */
            cr_expect_lt(fabs(got[i] - want[i]), 8e-7 * (double)(2 * ratio + 8),
                         "ratio %lld, entry %lld, channel %d: %g instead of %g", (long long)ratio,
                         (long long)e, i, got[i], want[i]);
    }
}

Test(entries, pooling_matches_the_reference_in_any_chunks) {
    static const int64_t ratios[] = {1, 2, 4, 5, 128};

    for (uint64_t seed = 1; seed <= 3; seed++)
        for (size_t r = 0; r < sizeof ratios / sizeof *ratios; r++)
            for (int64_t halves = 1; halves <= 2; halves++) check(seed, halves, ratios[r]);
}

Test(entries, each_has_a_room_in_the_page_that_ends_its_window) {
    static const int64_t ratios[] = {1, 4, 64, 128, 192};

    for (size_t r = 0; r < sizeof ratios / sizeof *ratios; r++) {
        const int64_t ratio = ratios[r];
        int64_t last_page = -1, last_room = -1;
        for (int64_t e = 0; e < 300; e++) {
            int64_t page;
            const int64_t room = kt_entry_room(e, ratio, &page);
            cr_expect_eq(page, ((e + 1) * ratio - 1) / KT_ENTRY_PAGE);
            cr_expect(room >= 0 && room < kt_entry_rooms(ratio), "ratio %lld: room %lld",
                      (long long)ratio, (long long)room);
            cr_expect(page > last_page || room > last_room,
                      "ratio %lld: entry %lld has no own room", (long long)ratio, (long long)e);
            last_page = page;
            last_room = room;
        }
    }
    cr_expect_eq(kt_entries_of(7, 4), 1);
    cr_expect_eq(kt_entries_of(8, 4), 2);
    cr_expect_eq(kt_entries_of(8, 0), 0);
    cr_expect(kt_ends_window(127, 128) && !kt_ends_window(126, 128));
}
