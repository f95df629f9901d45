/* Kernels of kernels/cuda to machine code of a GPU: NVRTC, opened at run time, and a cache on disk.
 *
 * No header and no library of a toolkit is needed to build or to start. NVRTC is looked for as
 * $KT_NVRTC (a path; nothing else is tried then), where `./quickstart gpu` puts it, as libnvrtc.so.13 and .12 where the dynamic
 * linker looks, and below /usr/local/cuda. It needs no GPU and no driver.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_DEVICE_CUDA_COMPILER_H
#define KT_DEVICE_CUDA_COMPILER_H

#include <stddef.h>
#include <stdint.h>

#include "dispatch/device/cubin.h"
#include "kernels/cuda/cuda_kernel.h"

typedef struct kt_cuda_compiler kt_cuda_compiler;

/* KT_E_NOT_FOUND: no NVRTC, with the names that were tried. KT_E_UNSUPPORTED: one that lacks a
 * function or is older than 12.0. Several threads may compile by one compiler at the same time:
 * NVRTC takes no turns between programs (two threads need the time of one, by NVRTC 13.0). */
kt_status kt_cuda_compiler_open(kt_cuda_compiler **out, kt_err *err);
void kt_cuda_compiler_close(kt_cuda_compiler *compiler); /* accepts NULL */
/* "NVRTC 13.0 of PATH". */
const char *kt_cuda_compiler_name(const kt_cuda_compiler *compiler);
/* Whether this NVRTC makes code for the target. */
bool kt_cuda_compiler_knows(const kt_cuda_compiler *compiler, const kt_cuda_target *target);

/* One kernel's machine code. Owned by the caller. */
typedef struct kt_cubin {
    uint8_t *data;
    size_t bytes;
    bool is_cached; /* it was found on disk */
    bool is_serial; /* the compiler said that products of warpgroups run one after the other: right,
                       but slow, and not kept on disk */
    double ms;      /* to compile or to read */
} kt_cubin;

/* Code of `kernel` with the constants of `config` for `target`. With `folder` (NULL = none) it is
 * taken from there, or kept there: a file per content, whose name is a checksum of the sources,
 * constants, target and compiler, and which holds all of these and is compared whole, so that
 * nothing else can be taken for it. It appears at once or not at all; two processes may do this
 * side by side, and a file that is damaged is made anew. KT_E_UNSUPPORTED: the kernel refuses the
 * config, or NVRTC does not know the target. KT_E_FORMAT: it does not compile; the message has the
 * first error. */
kt_status kt_cuda_compile(kt_cuda_compiler *compiler, const kt_cuda_kernel *kernel,
                          const kt_config *config, const kt_cuda_target *target, const char *folder,
                          kt_cubin *out, kt_err *err);
/* The same as PTX of compute_80, a text that drivers make code of for any GPU from sm_80 on: for
 * those that this NVRTC does not know. KT_E_UNSUPPORTED: the kernel is not for sm_80. */
kt_status kt_cuda_compile_ptx(kt_cuda_compiler *compiler, const kt_cuda_kernel *kernel,
                              const kt_config *config, const char *folder, kt_cubin *out,
                              kt_err *err);
void kt_cubin_free(kt_cubin *cubin); /* accepts a zeroed one */

/* $XDG_CACHE_HOME/kt/cubin or ~/.cache/kt/cubin, made if it is not there. KT_E_IO when it cannot
 * be. */
kt_status kt_cubin_folder(char *out, size_t bytes, kt_err *err);

#endif
