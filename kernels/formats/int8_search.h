/* Searched scales of 8-bit codes: what w8c and w8g128 share. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_INT8_SEARCH_H
#define KT_KERNELS_INT8_SEARCH_H

#include <stdint.h>

/* The scale of least (weighted) squared error for x[count] among `points` candidates (8 or 25); 0 for
 * zeros and for what is not finite. count is a multiple of 8. importance may be NULL. */
float kt_int8_search(const float *x, int64_t count, const float *importance, int points);

/* x[count] as codes -127..127 of this scale (all 0 if it is 0). Returns the squared error: not finite
 * when an element is not. */
double kt_int8_round(const float *x, int64_t count, float scale, int8_t *out);

#endif
