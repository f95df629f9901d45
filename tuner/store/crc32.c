/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/store/crc32.h"

#include <zlib.h>

uint32_t kt_crc32(const void *data, size_t size) {
    return (uint32_t)crc32_z(0, data, size);
}
