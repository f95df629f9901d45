/* Calls with the first, the second, ... allocation failing. Programs of tests whose name ends in
 * _nomem are linked so that their calls of the allocator, of mmap, of pthread_create and of the
 * constructors of libraries come here first (tests/CMakeLists.txt names them all).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_NOMEM_H
#define KT_TESTS_NOMEM_H

#include <stdbool.h>
#include <stddef.h>

#include "kt/status.h"

typedef struct kt_nomem_case {
    const char *function; /* what is tested, for messages */
    /* Call it with its output in `out`; `with` is the case's own. */
    kt_status (*make)(void *out, const void *with, kt_err *err);
    void (*unmake)(void *out); /* after success; NULL = nothing to release */
    const void *with;
    size_t out_bytes;   /* zero before the call, and still zero after it failed */
    const char *says;   /* what every message must hold: the object's name */
    int n_optional;     /* allocations that only make it better: without them KT_OK is right too */
    bool may_need_none; /* no allocation at all is right too */
    int most;           /* calls with a failure, at most; 0 = 400 */
} kt_nomem_case;

/* Once without a failure, then with allocation 1, 2, ... failing, and once more without. Where
 * there are more allocations than `most`, all of the first half of `most` fail, and of the rest
 * every x-th. After each failure: KT_E_NOMEM with a message that names the object, `out` untouched,
 * and as many blocks, streams, mapped bytes, threads, objects of libraries and open files as
 * before. Fails the running test otherwise. Returns the number of failures tried. */
long kt_nomem_check(const kt_nomem_case *c);

/* By hand: the allocation after `n` more fails, once; -1 = none does. */
void kt_nomem_after(long n);
/* Did it fail? Asked after the call; then none does any more. */
bool kt_nomem_failed(void);
/* Allocations of the calling thread neither fail nor count from now on. */
void kt_nomem_spare_me(void);
/* Everything held now, as one number that is equal when nothing leaked. */
long kt_nomem_held(void);

#endif
