/* Stacks of the emulator's threads. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_EMULATOR_STACKS_H
#define KT_CUDA_EMULATOR_STACKS_H

#include <stddef.h>
#include <stdint.h>

enum { KT_STACK_BYTES = 64 * 1024 };

/* At least n stacks, each above a page that nobody may touch; NULL = no memory. *made: how many.
 * Those of launches that have ended come first. Thread-safe. */
uint8_t *kt_stacks_take(size_t n, size_t *made);

/* What kt_stacks_take gave, with *made. Thread-safe. */
void kt_stacks_give(uint8_t *base, size_t n);

/* The lowest byte of stack i. */
uint8_t *kt_stack_at(uint8_t *base, int i);

#endif
