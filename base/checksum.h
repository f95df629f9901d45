/* Finding damage in files: 64 bits per piece of data, at the speed of memory. Not for adversaries.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_CHECKSUM_H
#define KT_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of bytes at any alignment; the same on every machine. Data that differ in one
 * aligned word of 8 bytes always have different checksums, others by chance alike in one of 2^64
 * cases. */
uint64_t kt_checksum(const void *data, size_t bytes);

#endif
