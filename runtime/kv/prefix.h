/* Which pages hold which beginning of a text: a page is known by its 64 tokens and the page before
 * it.
 *
 * Keys are a hash chain, key = hash(key of the page before, 64 tokens), in an open table; tokens
 * and the page before are compared too, so that two texts with one key are never mixed up. A page
 * is not forgotten before those that follow it, so "the page before" stays what it was.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_KV_PREFIX_H
#define KT_RUNTIME_KV_PREFIX_H

#include <stdbool.h>
#include <stdint.h>

#include "kt/status.h"

#define KT_PREFIX_TOKENS 64 /* of a page */
#define KT_PREFIX_NONE (-1)

typedef struct kt_prefix kt_prefix;

/* For page numbers below n_pages. seed: of the keys, what else pages depend on. key_bits: of a key
 * that count, 64; tests take fewer so that keys collide. */
kt_status kt_prefix_create(int64_t n_pages, uint64_t seed, int key_bits, kt_prefix **out,
                           kt_err *err);
void kt_prefix_destroy(kt_prefix *p); /* accepts NULL */

/* The page of these tokens behind page `before` (KT_PREFIX_NONE = they begin the text), or
 * KT_PREFIX_NONE. */
int64_t kt_prefix_find(const kt_prefix *p, int64_t before, const int32_t *tokens);
/* Make a page known that is not; nobody else may be found there, `before` must be known. */
void kt_prefix_add(kt_prefix *p, uint32_t page, int64_t before, const int32_t *tokens);
bool kt_prefix_has(const kt_prefix *p, uint32_t page);
/* Forget a known page that no other known page follows. */
void kt_prefix_remove(kt_prefix *p, uint32_t page);

/* A known page has no user any more, or has one again. Of a text the last page becomes idle first,
 * so that pages that follow are always idle for longer than the one before them. */
void kt_prefix_set_idle(kt_prefix *p, uint32_t page, bool is_idle);
int64_t kt_prefix_idle(const kt_prefix *p); /* how many are */
/* The one that is idle for longest, or KT_PREFIX_NONE. */
int64_t kt_prefix_oldest(const kt_prefix *p);

#endif
