/* Memory of an emulated device: allocations with a limit, each before an inaccessible page.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEVICE_EMULATED_MEMORY_H
#define KT_DEVICE_EMULATED_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kt/status.h"

enum { KT_EMULATED_ALIGN = 256 };

typedef struct kt_emulated_block {
    uint8_t *data;
    size_t bytes; /* as asked for; data + bytes rounded up to the alignment is the page */
    uint8_t *mapped;
    size_t mapped_bytes;
    bool is_host;   /* the host may follow its address */
    bool is_pinned; /* it was there before: nothing is around it */
} kt_emulated_block;

/* Used by the host's thread alone. Zeroed but for its limit = empty. */
typedef struct kt_emulated_memory {
    uint64_t limit, used; /* bytes of the device; memory of the host does not count */
    kt_emulated_block *block;
    size_t n, capacity; /* in the order of their addresses */
} kt_emulated_memory;

/* KT_E_NOMEM behind `name`, with what is free. */
kt_status kt_emulated_alloc(kt_emulated_memory *m, const char *name, size_t bytes, bool is_host,
                            void **out, kt_err *err);
/* Memory of the host that exists already. KT_E_INVALID: a part of it is known already. */
kt_status kt_emulated_pin(kt_emulated_memory *m, const char *name, void *p, size_t bytes,
                          kt_err *err);
/* false: nothing was allocated there. *damaged: bytes beside the block were written. */
bool kt_emulated_free(kt_emulated_memory *m, void *p, bool *damaged);
void kt_emulated_free_all(kt_emulated_memory *m);

/* The block that holds the address; NULL = none. */
const kt_emulated_block *kt_emulated_find(const kt_emulated_memory *m, const void *p);
/* [p, p + bytes) of a copy or a clear (`what`) must lie in one block; on the host's side of a copy
 * also outside of all, but not in the device's own memory. KT_E_INVALID behind `name`. */
kt_status kt_emulated_check(const kt_emulated_memory *m, const char *name, const char *what,
                            const void *p, size_t bytes, kt_err *err);
kt_status kt_emulated_check_host(const kt_emulated_memory *m, const char *name, const char *what,
                                 const void *p, size_t bytes, kt_err *err);
/* The first block beside which bytes were written; NULL = none. */
const kt_emulated_block *kt_emulated_damaged(const kt_emulated_memory *m);
/* Is it memory of this process outside of all blocks? For words that may be addresses. */
bool kt_emulated_is_foreign(const kt_emulated_memory *m, uint64_t address);

#endif
