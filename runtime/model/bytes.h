/* Counting bytes of sizes that come from files: what overflows stays SIZE_MAX, "too large to
 * count". SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_BYTES_H
#define KT_RUNTIME_BYTES_H

#include <stddef.h>
#include <stdint.h>

#include "base/numeric.h"

static inline size_t kt_bytes_add(size_t a, size_t b) {
    uint64_t sum;
    return kt_add_overflow(a, b, &sum) ? SIZE_MAX : (size_t)sum;
}

/* A negative count is as wrong as one that is too large. */
static inline size_t kt_bytes_times(size_t bytes, int64_t count) {
    uint64_t product;
    if (count < 0 || kt_mul_overflow(bytes, (uint64_t)count, &product)) return SIZE_MAX;
    return (size_t)product;
}

/* Up to the next multiple of 64. */
static inline size_t kt_bytes_round(size_t bytes) {
    return bytes > SIZE_MAX - 63 ? SIZE_MAX : (bytes + 63) / 64 * 64;
}

#endif
