/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "kernels/cuda/emulator_stacks.h"

#include <pthread.h>
#include <sys/mman.h>

enum { PAGE = 4096, STEP = PAGE + KT_STACK_BYTES };

/* Stacks of launches that have ended, for those to come: to make them takes as long as a small
 * launch runs. */
static struct {
    pthread_mutex_t lock;
    struct {
        uint8_t *base;
        size_t n;
    } set[8];
} idle = {.lock = PTHREAD_MUTEX_INITIALIZER};
enum { IDLE_SETS = sizeof idle.set / sizeof *idle.set };

uint8_t *kt_stacks_take(size_t n, size_t *made) {
    uint8_t *base = NULL;
    void *fresh;

    pthread_mutex_lock(&idle.lock);
    for (int i = 0; i < IDLE_SETS && !base; i++) {
        if (idle.set[i].n < n) continue;
        base = idle.set[i].base, *made = idle.set[i].n;
        idle.set[i].base = NULL, idle.set[i].n = 0;
    }
    pthread_mutex_unlock(&idle.lock);
    if (base) return base;
    fresh = mmap(NULL, n * STEP, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fresh == MAP_FAILED) return NULL;
    base = fresh, *made = n;
    for (size_t i = 0; i < n; i++) mprotect(base + i * STEP, PAGE, PROT_NONE);
    return base;
}

/* Keeps them in place of the smallest set that is kept, which may be none. */
void kt_stacks_give(uint8_t *base, size_t n) {
    int least = 0;

    pthread_mutex_lock(&idle.lock);
    for (int i = 1; i < IDLE_SETS; i++)
        if (idle.set[i].n < idle.set[least].n) least = i;
    if (n > idle.set[least].n) {
        uint8_t *other = idle.set[least].base;
        const size_t n_other = idle.set[least].n;
        idle.set[least].base = base, idle.set[least].n = n;
        base = other, n = n_other;
    }
    pthread_mutex_unlock(&idle.lock);
    if (base) munmap(base, n * STEP);
}

uint8_t *kt_stack_at(uint8_t *base, int i) {
    return base + (size_t)i * STEP + PAGE;
}
