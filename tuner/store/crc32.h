/* CRC-32 (IEEE 802.3, reflected, as in zlib). SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_CRC32_H
#define KT_TUNER_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* Checksum of size bytes; "123456789" gives 0xcbf43926. */
uint32_t kt_crc32(const void *data, size_t size);

#endif
