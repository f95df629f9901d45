/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kv/prefix.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* Of one page. Links are page numbers, KT_PREFIX_NONE at an end. */
typedef struct known {
    uint64_t key;
    int32_t before, followers;
    int32_t next;           /* in its bucket */
    int32_t older, younger; /* among the idle */
    bool is_known, is_idle;
    int32_t token[KT_PREFIX_TOKENS];
} known;

struct kt_prefix {
    uint64_t seed, mask;
    int64_t n_buckets; /* a power of two */
    int32_t *bucket;   /* [n_buckets] */
    known *page;       /* [pages] */
    int32_t oldest, youngest;
    int64_t n_idle;
};

kt_status kt_prefix_create(int64_t n_pages, uint64_t seed, int key_bits, kt_prefix **out,
                           kt_err *err) {
    kt_prefix *p = calloc(1, sizeof *p);

    *out = NULL;
    if (!p) return kt_fail(err, KT_E_NOMEM, "no memory for the index of prefixes");
    p->seed = seed;
    p->mask = key_bits >= 64 ? UINT64_MAX : ((uint64_t)1 << key_bits) - 1;
    p->oldest = p->youngest = KT_PREFIX_NONE;
    for (p->n_buckets = 64; p->n_buckets < n_pages; p->n_buckets *= 2) {
    }
    p->bucket = malloc((size_t)p->n_buckets * sizeof *p->bucket);
    p->page = calloc((size_t)n_pages, sizeof *p->page);
    if (!p->bucket || !p->page) {
        kt_prefix_destroy(p);
        return kt_fail(err, KT_E_NOMEM, "no memory for the index of prefixes over %lld pages",
                       (long long)n_pages);
    }
    memset(p->bucket, 0xff, (size_t)p->n_buckets * sizeof *p->bucket); /* KT_PREFIX_NONE */
    *out = p;
    return KT_OK;
}

void kt_prefix_destroy(kt_prefix *p) {
    if (!p) return;
    free(p->bucket);
    free(p->page);
    free(p);
}

/* Steps of SplitMix64 (Steele, Lea and Flood 2014) over the tokens. */
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t key_of(const kt_prefix *p, int64_t before, const int32_t *tokens) {
    uint64_t key = before == KT_PREFIX_NONE ? p->seed : p->page[before].key;

    for (int i = 0; i < KT_PREFIX_TOKENS; i++) key = mix(key ^ (uint32_t)tokens[i]);
    return key & p->mask;
}

static int32_t *bucket_of(const kt_prefix *p, uint64_t key) {
    return &p->bucket[key & (uint64_t)(p->n_buckets - 1)];
}

int64_t kt_prefix_find(const kt_prefix *p, int64_t before, const int32_t *tokens) {
    const uint64_t key = key_of(p, before, tokens);

    for (int32_t i = *bucket_of(p, key); i != KT_PREFIX_NONE; i = p->page[i].next)
        if (p->page[i].key == key && p->page[i].before == before &&
            memcmp(p->page[i].token, tokens, sizeof p->page[i].token) == 0)
            return i;
    return KT_PREFIX_NONE;
}

void kt_prefix_add(kt_prefix *p, uint32_t page, int64_t before, const int32_t *tokens) {
    known *k = &p->page[page];
    int32_t *bucket;

    k->key = key_of(p, before, tokens);
    k->before = (int32_t)before;
    k->followers = 0;
    k->is_known = true;
    k->is_idle = false;
    memcpy(k->token, tokens, sizeof k->token);
    bucket = bucket_of(p, k->key);
    k->next = *bucket;
    *bucket = (int32_t)page;
    if (before != KT_PREFIX_NONE) p->page[before].followers++;
}

bool kt_prefix_has(const kt_prefix *p, uint32_t page) {
    return p->page[page].is_known;
}

void kt_prefix_remove(kt_prefix *p, uint32_t page) {
    known *k = &p->page[page];
    int32_t *link = bucket_of(p, k->key);

    kt_prefix_set_idle(p, page, false);
    while (*link != (int32_t)page) link = &p->page[*link].next;
    *link = k->next;
    if (k->before != KT_PREFIX_NONE) p->page[k->before].followers--;
    k->is_known = false;
}

static void join(kt_prefix *p, int32_t older, int32_t younger) {
    if (older == KT_PREFIX_NONE)
        p->oldest = younger;
    else
        p->page[older].younger = younger;
    if (younger == KT_PREFIX_NONE)
        p->youngest = older;
    else
        p->page[younger].older = older;
}

void kt_prefix_set_idle(kt_prefix *p, uint32_t page, bool is_idle) {
    known *k = &p->page[page];

    if (k->is_idle == is_idle) return;
    k->is_idle = is_idle;
    p->n_idle += is_idle ? 1 : -1;
    if (!is_idle) {
        join(p, k->older, k->younger);
        return;
    }
    join(p, p->youngest, (int32_t)page);
    join(p, (int32_t)page, KT_PREFIX_NONE);
}

int64_t kt_prefix_idle(const kt_prefix *p) {
    return p->n_idle;
}

/* What follows a page became idle before it, so the oldest has no followers. */
int64_t kt_prefix_oldest(const kt_prefix *p) {
    return p->oldest;
}
