/* What a kernel for GPUs is: one file kernels/cuda/<name>.cu that ends in
 *
 *     KT_CUDA_KERNEL(<name>) = {...};
 *
 * The build embeds its text for NVRTC, compiles it for the emulator and lists it in
 * kt_builtin_cuda_kernels. Device code comes first, inside no condition; the descriptor, and what
 * only hosts need, stand in #ifndef __CUDACC_RTC__.
 *
 * Build constants (tile sizes, threads) are the values of `params`, in order: KT_CONSTANT(0) in
 * device code is value[0] of the config.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_CUDA_KERNEL_H
#define KT_CUDA_KERNEL_H

#include "kernels/cuda/emulator.h"
#include "kt/variant.h"

/* Targets of the compiler: a set of bits, in the order of kt_cuda_targets. */
typedef uint32_t kt_cuda_target_set;
typedef struct kt_cuda_target {
    const char *name; /* "80", "90a": what follows sm_ */
    int sm;           /* 80, 90 */
    int shared_bytes; /* a block may have at most, with the opt-in */
} kt_cuda_target;

extern const kt_cuda_target kt_cuda_targets[];
extern const size_t kt_cuda_target_count;
/* sm_80, whose PTX is for all that came later, too. */
const kt_cuda_target *kt_cuda_baseline(void);
/* All targets: kernels of mma.sync and cp.async alone. */
#define KT_CUDA_BASELINE 0xffffffffu
/* All but 103, whose integer tensor cores are slow. */
#define KT_CUDA_FAST_INT8 (KT_CUDA_BASELINE & ~(1u << 7))
#define KT_CUDA_WGMMA (1u << 5) /* 90a */
/* Those whose mma.sync multiplies E4M3 by an instruction of its own: 89, 120, 121. */
#define KT_CUDA_E4M3 (1u << 3 | 1u << 9 | 1u << 10)

/* From here on (sm_) launches may begin while what is before them in the stream goes on: every
 * entry waits for it before it does anything (kt_dev.h). */
enum { KT_OVERLAP_SM = 90 };

/* Machine instructions that a kernel's code is counted by (cubin_elf.h). */
typedef enum kt_cuda_opcode {
    KT_OPCODE_HMMA = 0, /* tensor core, 16-bit floats */
    KT_OPCODE_IMMA,     /* tensor core, 8-bit integers */
    KT_OPCODE_QMMA,     /* tensor core, 8-bit floats */
    KT_OPCODE_HGMMA,    /* tensor core, 16-bit floats out of shared memory */
    KT_OPCODE_QGMMA,    /* tensor core, 8-bit floats out of shared memory */
    KT_OPCODE_ACQBULK,  /* the wait of an entry that may begin early, from KT_OVERLAP_SM on */
    KT_OPCODE_COUNT
} kt_cuda_opcode;

/* What a kernel can be started for in a model (dispatch/device/device_ways.h), as bits, and how it
 * wants its rows. FEW: at most 8 rows a call, as floats; MANY: any number, encoded before. A kernel
 * of a job has the job's calls (gemm_calls.h, moe_calls.h, a8_calls.h) and entries: of GEMM the
 * first (of 8-bit activations the second), of EXPERTS gate and up, then down. */
enum {
    KT_CUDA_GEMM_FEW = 1,
    KT_CUDA_GEMM_MANY = 2,
    KT_CUDA_EXPERTS_FEW = 4,
    KT_CUDA_EXPERTS_MANY = 8
};
enum { KT_CUDA_ROWS_BF16 = 1, KT_CUDA_ROWS_INT8 = 2, KT_CUDA_ROWS_E4M3 = 4 };

typedef struct kt_cuda_entry {
    const char *name; /* of the symbol */
    kt_emulated_entry *emulated;
} kt_cuda_entry;

enum { KT_CUDA_MAX_ENTRIES = 4 };

typedef struct kt_cuda_kernel {
    const char *name; /* also its file */
    const char *about;
    int version;
    kt_cuda_target_set targets;
    const kt_param *params;
    int32_t param_count;
    int32_t entry_count;
    kt_cuda_entry entry[KT_CUDA_MAX_ENTRIES];
    uint32_t jobs;          /* KT_CUDA_*_FEW and _MANY; 0 = none of these */
    uint32_t rows;          /* KT_CUDA_ROWS_*: the one that it takes */
    uint32_t needs_opcodes; /* bits of kt_cuda_opcode: each must occur in the code of entry[0] */
    /* NULL when a block of this config can exist on the target; else why not. */
    const char *(*refuse)(const kt_config *config, const kt_cuda_target *target);
    int (*threads)(const kt_config *config);
    /* Of a kernel whose entries differ in it: threads of this one. NULL: all have `threads`. */
    int (*entry_threads)(const kt_config *config, int entry);
    /* Dynamic shared memory of a block for rows of k inputs. */
    size_t (*shared_bytes)(const kt_config *config, int64_t k);
} kt_cuda_kernel;

/* Of a kernel whose blocks are one warp each, of any config, without dynamic shared memory. */
static inline const char *kt_cuda_refuse_none(const kt_config *config,
                                              const kt_cuda_target *target) {
    (void)config, (void)target;
    return NULL;
}
static inline int kt_cuda_one_warp(const kt_config *config) {
    (void)config;
    return 32;
}
static inline size_t kt_cuda_nothing_shared(const kt_config *config, int64_t k) {
    (void)config, (void)k;
    return 0;
}
#define KT_CUDA_ONE_WARP                                        \
    .refuse = kt_cuda_refuse_none, .threads = kt_cuda_one_warp, \
    .shared_bytes = kt_cuda_nothing_shared

/* Threads of a block of the entry. */
static inline int kt_cuda_threads(const kt_cuda_kernel *kernel, const kt_config *config,
                                  int entry) {
    return kernel->entry_threads ? kernel->entry_threads(config, entry) : kernel->threads(config);
}

#define KT_CUDA_KERNEL(stem)                    \
    extern const kt_cuda_kernel kt_cuda_##stem; \
    const kt_cuda_kernel kt_cuda_##stem

extern const kt_cuda_kernel *const kt_builtin_cuda_kernels[];
extern const size_t kt_builtin_cuda_kernel_count;

/* The text of a file that device code is made of as it was at build time, or NULL: those of
 * kernels/cuda, and the points of grids. By its name without folders. */
const char *kt_cuda_source(const char *file);

/* The config with every parameter's initial value. */
kt_config kt_cuda_initial(const kt_cuda_kernel *kernel);

#endif
