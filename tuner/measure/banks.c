/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/measure/banks.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/err.h"
#include "tuner/measure/synthetic.h"

static int is_same(const kt_problem *a, const kt_problem *b) {
    return a->op == b->op && a->weights == b->weights && a->acts == b->acts && a->n == b->n &&
           a->k == b->k;
}

static const char *layout_of(const kt_variant *v) {
    return v->layout ? v->layout : v->name;
}

static void drop(kt_banks *b, int i) {
    kt_cold_bank_destroy(&b->entry[i].bank);
    memset(&b->entry[i], 0, sizeof b->entry[i]);
}

/* The longest unused entry that the current cell does not need, or an empty one; -1 = none. */
static int oldest(const kt_banks *b, bool want_empty) {
    int best = -1;
    for (int i = 0; i < KT_MAX_BANKS; i++) {
        int64_t used = b->entry[i].used;
        if (used == 0 ? !want_empty : used > b->cell_start) continue;
        if (best < 0 || used < b->entry[best].used) best = i;
    }
    return best;
}

void kt_banks_new_cell(kt_banks *b) {
    b->cell_start = b->clock;
}

/* Give up older banks until `bytes` more fit into half of the memory that is available. Asked before
 * the content is made: packing gigabytes only to refuse them would cost seconds. */
static kt_status make_room(kt_banks *b, double bytes, const kt_variant *v, kt_err *err) {
    int victim;
    while (bytes > (double)kt_memory_available_bytes() / 2) {
        victim = oldest(b, false);
        if (victim < 0)
            return kt_fail(err, KT_E_NOMEM,
                           "%s: %.1f GiB of weights to rotate, half of the available memory is "
                           "%.1f GiB",
                           v->name, bytes / 1073741824.0,
                           (double)kt_memory_available_bytes() / 2147483648.0);
        drop(b, victim);
    }
    return KT_OK;
}

/* Until the first one is measured: making weights, packing them, copying them over new pages. */
static const double usual_bytes_per_ns = 1;

static double pack_ns(const kt_banks *b, double bytes) {
    return bytes / (b->packed > 0 ? b->packed / b->pack_ns : usual_bytes_per_ns);
}

static kt_status in_time(const kt_banks *b, double bytes, const kt_variant *v, kt_err *err) {
    if (b->deadline_ns == 0 || (double)kt_clock_ns() + pack_ns(b, bytes) <= (double)b->deadline_ns)
        return KT_OK;
    return kt_fail(err, KT_E_CANCELLED, "%s: no time left to pack %.0f MiB of weights", v->name,
                   bytes / 1048576);
}

static double bank_bytes(const kt_banks *b, const kt_problem *problem, const kt_variant *v,
                         int64_t min_slots) {
    double all = (double)v->packed_bytes(problem) * (double)(min_slots > 1 ? min_slots : 1);
    return all < (double)b->rotation_bytes ? (double)b->rotation_bytes : all;
}

/* --- memory of older banks --- */

/* Pages of a virtual machine that nobody touched before may take a second per quarter of a
 * gigabyte, packing and copying a twentieth of that. So a bank begins in the memory of the one
 * that was not used for longest, as long as packing again what was given up that way costs less
 * than fresh memory would. */
static bool is_reuse_cheaper(const kt_banks *b, double bytes) {
    return b->mapped > 0 && b->again_ns < bytes * b->map_ns / b->mapped;
}

static void note_given_up(kt_banks *b, int i) {
    const int at = b->n_given_up++ % KT_MAX_BANKS;
    b->given_up[at].problem = b->entry[i].problem;
    memcpy(b->given_up[at].layout, b->entry[i].layout, sizeof b->given_up[at].layout);
}

/* Was it there before? It is not given up any more then. */
static bool take_back(kt_banks *b, const kt_problem *problem, const char *layout) {
    for (int i = 0; i < KT_MAX_BANKS && i < b->n_given_up; i++)
        if (is_same(&b->given_up[i].problem, problem) &&
            strcmp(b->given_up[i].layout, layout) == 0) {
            memset(&b->given_up[i], 0, sizeof b->given_up[i]);
            return true;
        }
    return false;
}

/* The slot of an older bank, which is gone, with the new one's memory in *out; -1 = none fits,
 * or none is to go. */
static int reuse(kt_banks *b, const kt_problem *problem, const kt_variant *v, int64_t min_slots,
                 kt_cold_bank *out) {
    const int i = oldest(b, false);

    if (i < 0 || !is_reuse_cheaper(b, bank_bytes(b, problem, v, min_slots)) ||
        kt_cold_bank_create_in(&b->entry[i].bank.buffer, v->packed_bytes(problem), min_slots,
                               b->rotation_bytes, out, NULL) != KT_OK)
        return -1;
    note_given_up(b, i);
    drop(b, i);
    b->n_reused++;
    return i;
}

/* Fresh memory in an empty slot, or in that of the bank that was not used for longest. */
static kt_status map(kt_banks *b, const kt_problem *problem, const kt_variant *v, int64_t min_slots,
                     int *slot, kt_cold_bank *out, kt_err *err) {
    const double all = bank_bytes(b, problem, v, min_slots);
    int64_t start = kt_clock_ns();

    *slot = oldest(b, true);
    if (*slot < 0)
        return kt_fail(err, KT_E_NOMEM, "%s: more than %d layouts in one cell", v->name,
                       KT_MAX_BANKS);
    drop(b, *slot);
    KT_TRY(make_room(b, all, v, err));
    KT_TRY(kt_cold_bank_create(NULL, v->packed_bytes(problem), min_slots, b->rotation_bytes, out,
                               err));
    b->mapped += all;
    b->map_ns += (double)(kt_clock_ns() - start);
    b->again_ns = 0;
    return KT_OK;
}

/* Packed where it stays: large matrices would fault in twice their pages. */
static kt_status fill(kt_banks *b, const kt_problem *problem, const kt_variant *v,
                      int64_t min_slots, int *slot, kt_err *err) {
    const double all = bank_bytes(b, problem, v, min_slots);
    int64_t start = kt_clock_ns(), packing;
    kt_cold_bank bank = {0};
    kt_status st = KT_OK;

    KT_TRY(in_time(b, all, v, err));
    *slot = reuse(b, problem, v, min_slots, &bank);
    if (*slot < 0) KT_TRY(map(b, problem, v, min_slots, slot, &bank, err));
    packing = kt_clock_ns();
    st = kt_synthetic_pack_into(problem, v, 1, bank.buffer.data, err);
    if (st == KT_OK)
        kt_cold_bank_copy(&bank);
    else
        kt_cold_bank_destroy(&bank);
    if (take_back(b, problem, layout_of(v))) b->again_ns += (double)(kt_clock_ns() - packing);
    b->entry[*slot].bank = bank;
    b->packed += all;
    b->pack_ns += (double)(kt_clock_ns() - start);
    return st;
}

/* The entry that serves, or -1. */
static int find(const kt_banks *b, const kt_problem *problem, const kt_variant *v,
                int64_t min_slots) {
    for (int i = 0; i < KT_MAX_BANKS; i++)
        if (b->entry[i].used != 0 && is_same(&b->entry[i].problem, problem) &&
            strcmp(b->entry[i].layout, layout_of(v)) == 0 && b->entry[i].bank.n_slots >= min_slots)
            return i;
    return -1;
}

double kt_banks_cost_ns(const kt_banks *b, const kt_problem *problem, const kt_variant *v,
                        int64_t min_slots) {
    return find(b, problem, v, min_slots) >= 0 ? 0
                                               : pack_ns(b, bank_bytes(b, problem, v, min_slots));
}

kt_status kt_banks_get(kt_banks *b, const kt_problem *problem, const kt_variant *v,
                       int64_t min_slots, kt_cold_bank **out, kt_err *err) {
    int slot = find(b, problem, v, min_slots);

    *out = NULL;
    if (slot >= 0) {
        b->entry[slot].used = ++b->clock;
        *out = &b->entry[slot].bank;
        return KT_OK;
    }
    KT_TRY(fill(b, problem, v, min_slots, &slot, err));
    b->entry[slot].problem = *problem;
    strncpy(b->entry[slot].layout, layout_of(v), sizeof b->entry[slot].layout - 1);
    b->entry[slot].used = ++b->clock;
    *out = &b->entry[slot].bank;
    return KT_OK;
}

void kt_banks_deinit(kt_banks *b) {
    if (!b) return;
    for (int i = 0; i < KT_MAX_BANKS; i++) drop(b, i);
}
