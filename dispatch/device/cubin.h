/* What a cubin says of its kernels: registers, stack, shared memory and counts of instructions,
 * read from the ELF file itself, so that no tool of a toolkit is needed.
 *
 * As read off what NVRTC 13.0 writes, which nobody documents: section .nv.info holds {format 4,
 * attribute, u16 size, payload}; 0x2f = symbol and registers, 0x11 = symbol and frame. Instructions
 * are 16 bytes, the opcode in the low 12 bits of the first word.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_DEVICE_CUBIN_H
#define KT_DEVICE_CUBIN_H

#include <stddef.h>

#include "kernels/cuda/cuda_kernel.h"

typedef struct kt_cubin_facts {
    int sm;           /* of the file: 80, 90 .. */
    int registers;    /* of a thread */
    int frame_bytes;  /* of a thread's stack: spills and arrays that found no registers */
    int shared_bytes; /* static, with what the hardware reserves for itself */
    size_t code_bytes;
    int opcodes[KT_OPCODE_COUNT];
} kt_cubin_facts;

/* The facts of one entry. KT_E_FORMAT: not a cubin, or cut off; KT_E_NOT_FOUND: no such entry.
 * Every offset is checked: bytes may come from anywhere. */
kt_status kt_cubin_inspect(const void *data, size_t bytes, const char *entry, kt_cubin_facts *out,
                           kt_err *err);

#endif
