/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/store/crc32.h"

/* Remainders of the sixteen nibbles: lines are short, so the small table wins over speed. */
static const uint32_t nibble[16] = {
    0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
    0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};

uint32_t kt_crc32(const void *data, size_t size) {
    const uint8_t *p = data;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < size; i++) {
        crc = nibble[(crc ^ p[i]) & 15] ^ (crc >> 4);
        crc = nibble[(crc ^ (p[i] >> 4)) & 15] ^ (crc >> 4);
    }
    return ~crc;
}
