/* From panels back to plain rows, for kernels that want another layout than p64.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/formats/p64.h"

/* Item i of row r lies at slot i, row r. */
static void gather(const uint8_t *panel, int64_t count, size_t item_bytes, int r, void *dst) {
    const uint8_t *from = panel + (size_t)r * item_bytes;
    uint8_t *to = dst;

    for (int64_t i = 0; i < count; i++, from += KT_P64_ROWS * item_bytes, to += item_bytes)
        memcpy(to, from, item_bytes);
}

static void unpack_w8c(const uint8_t *panel, int64_t k, int r, uint8_t *codes, uint8_t *scale) {
    gather(panel, k / 4, 4, r, codes);
    for (int64_t i = 0; i < k; i++) codes[i] ^= 0x80;
    gather(panel + (size_t)k * KT_P64_ROWS, 1, 4, r, scale);
}

/* Packed bytes hold inputs (e, 16 + e) of a group of 32, plain ones (2i, 2i + 1). */
static void unpack_w4g32(const uint8_t *panel, int64_t k, int r, uint8_t *codes, uint8_t *scales) {
    const size_t group_bytes = kt_p64_panel_bytes(KT_W_INT4_G32, 32);

    for (int64_t g = 0; g < k / 32; g++, panel += group_bytes, codes += 16) {
        uint8_t packed[16];
        gather(panel, 4, 4, r, packed);
        for (int i = 0; i < 8; i++) {
            codes[i] = (uint8_t)((packed[2 * i] & 15) | (packed[2 * i + 1] & 15) << 4);
            codes[8 + i] = (uint8_t)(packed[2 * i] >> 4 | (packed[2 * i + 1] & 0xf0));
        }
        gather(panel + 16 * KT_P64_ROWS, 1, 2, r, scales + 2 * g);
    }
}

bool kt_p64_can_unpack(kt_weight_format format) {
    return format == KT_W_BF16 || format == KT_W_F16 || format == KT_W_F32 ||
           format == KT_W_INT8_CHANNEL || format == KT_W_INT4_G32;
}

void kt_p64_unpack_rows(kt_weight_format format, int64_t k, const void *panels, int64_t row_begin,
                        int64_t row_end, void *data, void *scales) {
    const size_t panel_bytes = kt_p64_panel_bytes(format, k);
    uint8_t *to = data, *scales_to = scales;

    for (int64_t row = row_begin; row < row_end; row++) {
        const uint8_t *panel = (const uint8_t *)panels + (size_t)(row / KT_P64_ROWS) * panel_bytes;
        const int r = (int)(row % KT_P64_ROWS);
        switch (format) {
        case KT_W_BF16:
        case KT_W_F16: gather(panel, k / 2, 4, r, to + 2 * row * k); break;
        case KT_W_F32: gather(panel, k, 4, r, to + 4 * row * k); break;
        case KT_W_INT8_CHANNEL: unpack_w8c(panel, k, r, to + row * k, scales_to + 4 * row); break;
        case KT_W_INT4_G32:
            unpack_w4g32(panel, k, r, to + row * (k / 2), scales_to + 2 * row * (k / 32));
            break;
        default: break;
        }
    }
}
