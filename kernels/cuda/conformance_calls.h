/* What conformance.cu is asked, the same for hosts and for devices.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_CONFORMANCE_CALLS_H
#define KT_CUDA_CONFORMANCE_CALLS_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

enum {
    KT_CONFORM_THREADS = 128,
    KT_CONFORM_IN = 16,      /* words a thread reads */
    KT_CONFORM_OUT = 8,      /* words a thread writes */
    KT_CONFORM_SHARED = 8192 /* bytes of shared memory */
};

/* One function, or a few that only mean something together, of kt_dev.h. */
typedef enum kt_conform_case {
    KT_CONFORM_PLACE = 0, /* kt_thread, kt_lane, kt_warp, kt_block_x, kt_block_y */
    KT_CONFORM_BITS,      /* kt_float_bits, kt_bits_float, kt_bf16_low, kt_bf16_high, kt_and_or */
    KT_CONFORM_BF16_PAIR,
    KT_CONFORM_FMA,
    KT_CONFORM_EXP2,
    KT_CONFORM_SILU,
    KT_CONFORM_DOT4,
    KT_CONFORM_LOAD_STREAM,
    KT_CONFORM_SHARED_U32,  /* kt_set_shared_u32, kt_shared_u32, kt_sync */
    KT_CONFORM_SHARED_U128, /* kt_set_shared_u128, kt_shared_u128 */
    KT_CONFORM_COPY,        /* kt_copy16, kt_copy_commit, KT_COPY_WAIT */
    KT_CONFORM_WARP_XOR,
    KT_CONFORM_WARP_FROM,
    KT_CONFORM_WARP_SUM,
    KT_CONFORM_LDMATRIX,
    KT_CONFORM_MMA_BF16,
    KT_CONFORM_MMA_S8,
    KT_CONFORM_ROUNDED,      /* kt_mul, kt_max, kt_max_nan, kt_sqrt, kt_turn */
    KT_CONFORM_INTEGERS,     /* kt_round, kt_bit_count of two, kt_e4m3 */
    KT_CONFORM_EXPONENTIALS, /* kt_exp, kt_log1p, kt_sigmoid, kt_exp_double */
    KT_CONFORM_SHARED_F32,   /* kt_set_shared_f32, kt_shared_f32, kt_shared_f32x2, kt_shared_add,
                                kt_set_f32x2 */
    KT_CONFORM_COPY_SMALL,   /* kt_copy8, kt_copy4 */
    KT_CONFORM_VOTES,        /* kt_warp_match, kt_warp_ballot, kt_warp_max, kt_warp_sync */
    KT_CONFORM_LARGEST,      /* kt_warp_max_nan */
    KT_CONFORM_BLOCK_SUM,
    KT_CONFORM_LDMATRIX_TRANS,
    KT_CONFORM_WEIGHTS, /* of kt_dev_weights.h: kt_fma_bf16, kt_f16_float, kt_bytes, kt_load_cached,
                           kt_load_stream8 */
    KT_CONFORM_MMA_E4M3, /* for sm_89 and newer */
    KT_CONFORM_COUNT
} kt_conform_case;

typedef struct kt_conform {
    const uint32_t *in; /* [blocks * KT_CONFORM_THREADS, KT_CONFORM_IN], aligned to 16 bytes */
    uint32_t *out;      /* [blocks * KT_CONFORM_THREADS, KT_CONFORM_OUT] */
    int32_t which;      /* kt_conform_case */
    int32_t zero;       /* for padding */
} kt_conform;

#endif
