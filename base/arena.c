/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "base/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct kt_arena_block {
    struct kt_arena_block *next;
    size_t size; /* usable bytes after this header */
    size_t used;
} kt_arena_block;

static const size_t first_block_bytes = 64 << 10;
static const size_t largest_block_bytes = (4 << 20) - sizeof(kt_arena_block);
static const size_t huge_page_bytes = 2 << 20;
static const size_t max_align = 4096;

/* Where in the block an allocation of this alignment starts, counted from the end of the header. */
static size_t aligned_start(const kt_arena_block *b, size_t align) {
    uintptr_t at = (uintptr_t)(b + 1) + b->used;
    return b->used + (size_t)(-at & (align - 1));
}

static int fits(const kt_arena_block *b, size_t start, size_t size) {
    return start <= b->size && size <= b->size - start;
}

/* Every block is twice as large as the one before, up to a bound: what takes many, takes few. */
static size_t next_block_bytes(const kt_arena *arena) {
    if (arena->block_bytes) return arena->block_bytes;
    if (!arena->head) return first_block_bytes;
    if (arena->head->size >= largest_block_bytes / 2) return largest_block_bytes;
    return 2 * arena->head->size;
}

/* Fresh pages of 4 KiB cost more than what is written to them: large blocks ask for huge ones. */
static kt_arena_block *new_block(size_t size) {
    const size_t bytes = sizeof(kt_arena_block) + size;
    kt_arena_block *b;

    if (size < largest_block_bytes) return malloc(bytes);
    b = aligned_alloc(huge_page_bytes, (bytes + huge_page_bytes - 1) & -huge_page_bytes);
    if (b) (void)madvise(b, bytes, MADV_HUGEPAGE);
    return b;
}

/* A block that certainly holds size bytes at this alignment, put in front; NULL without memory. */
static kt_arena_block *add_block(kt_arena *arena, size_t size, size_t align) {
    size_t want = next_block_bytes(arena);
    kt_arena_block *b;

    if (size > SIZE_MAX / 2 - align) return NULL;
    if (want < size + align) want = size + align;
    b = arena->spare;
    if (b && b->size >= want) {
        arena->spare = b->next;
        want = b->size;
    } else {
        b = new_block(want);
    }
    if (!b) return NULL;
    b->next = arena->head;
    b->size = want;
    b->used = 0;
    arena->head = b;
    return b;
}

void *kt_arena_alloc(kt_arena *arena, size_t size, size_t align) {
    kt_arena_block *b = arena->head;
    size_t start;
    char *p;

    if (align == 0 || align > max_align || (align & (align - 1))) return NULL;
    if (!b || !fits(b, aligned_start(b, align), size)) b = add_block(arena, size, align);
    if (!b) return NULL;
    start = aligned_start(b, align);
    b->used = start + size;
    p = (char *)(b + 1) + start;
    memset(p, 0, size); /* blocks are reused after a reset, so calloc would not be enough */
    return p;
}

char *kt_arena_strndup(kt_arena *arena, const char *s, size_t size) {
    char *copy = size < SIZE_MAX ? kt_arena_alloc(arena, size + 1, 1) : NULL;
    if (copy && size) memcpy(copy, s, size);
    return copy;
}

kt_arena_mark kt_arena_here(const kt_arena *arena) {
    return (kt_arena_mark){arena->head, arena->head ? arena->head->used : 0};
}

void kt_arena_rewind(kt_arena *arena, kt_arena_mark mark) {
    while (arena->head != mark.block) {
        kt_arena_block *b = arena->head;
        arena->head = b->next;
        b->next = arena->spare;
        arena->spare = b;
    }
    if (mark.block) mark.block->used = mark.used;
}

static void free_blocks(kt_arena_block *b, const kt_arena_block *but) {
    kt_arena_block *next;

    for (; b; b = next) {
        next = b->next;
        if (b != but) free(b);
    }
}

void kt_arena_reset(kt_arena *arena) {
    kt_arena_block *largest = arena->head;

    for (kt_arena_block *b = arena->head; b; b = b->next)
        if (b->size > largest->size) largest = b;
    free_blocks(arena->head, largest);
    free_blocks(arena->spare, NULL);
    arena->head = largest;
    arena->spare = NULL;
    if (largest) {
        largest->next = NULL;
        largest->used = 0;
    }
}

void kt_arena_deinit(kt_arena *arena) {
    free_blocks(arena->head, NULL);
    free_blocks(arena->spare, NULL);
    arena->head = arena->spare = NULL;
}
