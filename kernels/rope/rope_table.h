/* Angles of rotary position embeddings. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ROPE_TABLE_H
#define KT_KERNELS_ROPE_TABLE_H

#include <stdint.h>

/* For each position first .. first + positions - 1 write rotary_dim/2 cosines, then rotary_dim/2 sines
 * of position * base^(-2i / rotary_dim): rotary_dim floats per position, computed in double and
 * rounded once. The table of kt_rope_call starts at position 0 unless its positions are relative. */
void kt_rope_table(double base, int64_t rotary_dim, int64_t first, int64_t positions,
                   float *cos_sin);

#endif
