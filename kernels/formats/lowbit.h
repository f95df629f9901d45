/* GGUF's low-bit blocks that have no panels of their own (1.56 to 4.5 bits a weight; grid.h has
 * those of IQ2 and IQ3), decoded exactly into w8g16m: each weight is a small integer times a scale
 * of 16 or more inputs, so codes are int8 and scales f32.
 *
 *     code   of 16 inputs in a row share a scale; IQ1's codes are 8 times a grid's -1, 0, 1 plus or
 *            minus 1, E2M1's are doubled
 *     scale  d (f16, 11 bits) times an odd number of at most 5 bits times a power of two: 16 bits,
 *            and d is at least 2^-24, so f32 holds it; NVFP4's is an E4M3 number
 *
 * These are types of files, not weight formats: no kernel multiplies them as they lie there.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_LOWBIT_H
#define KT_KERNELS_LOWBIT_H

#include <stdint.h>

typedef enum kt_lowbit {
    KT_LOWBIT_NONE = 0,
    KT_LOWBIT_IQ1_S,
    KT_LOWBIT_IQ1_M,
    KT_LOWBIT_TQ1_0,
    KT_LOWBIT_TQ2_0,
    KT_LOWBIT_NVFP4,
    KT_LOWBIT_COUNT
} kt_lowbit;

typedef struct kt_lowbit_type {
    const char *name;
    uint32_t ggml_type; /* its number in files */
    int inputs, bytes;  /* of a block */
} kt_lowbit_type;

/* Constant data; NULL for NONE and what is none. */
const kt_lowbit_type *kt_lowbit_of(kt_lowbit type);
kt_lowbit kt_lowbit_of_ggml(uint32_t ggml_type); /* KT_LOWBIT_NONE when it is another */

/* Decode n rows of k inputs (a multiple of the block's) to the plain form of w8g16m.
 *
 * blocks  the rows' blocks, one row after another, any alignment; borrowed
 * code    int8 [n, k], overwritten
 * terms   float [n, k / 16, 2], aligned to 4: scale, and 0 as the minimum; overwritten
 *
 * scale * code is the weight that the type defines, exactly; a d that is infinite or not a number
 * gives scales that are. Never fails. Thread-safe. */
void kt_lowbit_rows(kt_lowbit type, const void *blocks, int64_t n, int64_t k, int8_t *code,
                    float *terms);

/* Is the scale of every weight of the block finite? */
int kt_lowbit_is_finite(kt_lowbit type, const void *block);

#endif
