/* Bump allocator: many allocations, one release. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_ARENA_H
#define KT_BASE_ARENA_H

#include <stddef.h>

/* Zero-initialise, then use. Not thread-safe. */
typedef struct kt_arena {
    struct kt_arena_block *head, *spare; /* blocks in use, and those left behind by a rewind */
    size_t block_bytes;                  /* of every block; 0 = 64 KiB, then more */
} kt_arena;

/* size bytes, aligned to align (a power of two <= 4096), zeroed; NULL when memory is short. Owned
 * by the arena until reset or deinit. */
void *kt_arena_alloc(kt_arena *arena, size_t size, size_t align);
char *kt_arena_strndup(kt_arena *arena, const char *s, size_t size); /* NUL-terminated copy */
/* Where the arena is; going back there forgets all that was allocated since, and only that, and
 * keeps its blocks for what comes next. Marks taken since are void, as are all after a reset. */
typedef struct kt_arena_mark {
    struct kt_arena_block *block;
    size_t used;
} kt_arena_mark;

kt_arena_mark kt_arena_here(const kt_arena *arena);
void kt_arena_rewind(kt_arena *arena, kt_arena_mark mark);
void kt_arena_reset(kt_arena *arena);  /* forget all; keep the largest block for reuse */
void kt_arena_deinit(kt_arena *arena); /* release all */

#endif
