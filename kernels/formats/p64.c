/* Packing into p64. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/p64.h"

#include <string.h>

#include "base/err.h"
#include "kernels/formats/blocks.h"

/* One source row, or a row of padding when data is NULL. */
typedef struct plain_row {
    const void *data;
    const void *scales;
} plain_row;

static plain_row row_of(const kt_matrix *w, int64_t row) {
    plain_row r = {NULL, NULL};
    const char *data = w->data, *scales = w->scales;

    if (row >= w->n) return r;
    switch (w->format) {
    case KT_W_BF16:
    case KT_W_F16: r.data = data + 2 * row * w->k; break;
    case KT_W_F32: r.data = data + 4 * row * w->k; break;
    case KT_W_FP8_B128:
        r.data = data + row * w->k;
        r.scales = scales + 4 * (row / 128 * ((w->k + 127) / 128));
        break;
    case KT_W_INT8_CHANNEL:
    case KT_W_FP8_CHANNEL:
        r.data = data + row * w->k;
        r.scales = scales + 4 * row;
        break;
    case KT_W_INT4_G32:
        r.data = data + row * (w->k / 2);
        r.scales = scales + 2 * row * (w->k / 32);
        break;
    default: break;
    }
    return r;
}

/* Spread `count` items of item_bytes of row r over the panel: item i goes to slot i, row r. */
static void scatter(const void *src, int64_t count, size_t item_bytes, uint8_t *panel, int r) {
    const uint8_t *from = src;
    uint8_t *to = panel + (size_t)r * item_bytes;
    for (int64_t i = 0; i < count; i++, to += KT_P64_ROWS * item_bytes) {
        if (from)
            memcpy(to, from + (size_t)i * item_bytes, item_bytes);
        else
            memset(to, 0, item_bytes);
    }
}

static void pack_row_w8c(plain_row row, int64_t k, uint8_t *panel, int r) {
    const uint8_t *codes = row.data;
    uint8_t *to = panel + 4 * r;

    for (int64_t i = 0; i < k / 4; i++, to += 4 * KT_P64_ROWS) {
        uint32_t four = 0;
        if (codes) memcpy(&four, codes + 4 * i, 4);
        four ^= 0x80808080u; /* value + 128 */
        memcpy(to, &four, 4);
    }
    scatter(row.scales, 1, 4, panel + (size_t)k * KT_P64_ROWS, r);
}

/* Plain bytes hold inputs (2i, 2i + 1); packed bytes hold (e, 16 + e). With L and H the halves of
 * the group, even e come from the low nibbles of L and H, odd e from the high ones. */
static void pack_row_w4g32(plain_row row, int64_t k, uint8_t *panel, int r) {
    const uint64_t low = 0x0f0f0f0f0f0f0f0fu;
    const uint8_t *codes = row.data;
    const uint8_t *scales = row.scales;

    for (int64_t g = 0; g < k / 32; g++, panel += 32 * KT_P64_ROWS / 2 + 2 * KT_P64_ROWS) {
        uint64_t l = 0x8888888888888888u, h = l, even, odd;
        uint8_t packed[16];
        if (codes) memcpy(&l, codes + 16 * g, 8), memcpy(&h, codes + 16 * g + 8, 8);
        even = (l & low) | (h & low) << 4;
        odd = (l >> 4 & low) | (h & ~low);
        for (int i = 0; i < 8; i++) {
            packed[2 * i] = (uint8_t)(even >> 8 * i);
            packed[2 * i + 1] = (uint8_t)(odd >> 8 * i);
        }
        scatter(packed, 4, 4, panel, r);
        scatter(scales ? scales + 2 * g : NULL, 1, 2, panel + 16 * KT_P64_ROWS, r);
    }
}

/* E4M3 bytes: four rows with two inputs each, then the same rows with the next two. */
static void pack_row_fp8(plain_row row, int64_t k, uint8_t *panel, int r) {
    const uint8_t *x = row.data;
    uint8_t *to = panel + r / 4 * 16 + r % 4 * 2;

    for (int64_t i = 0; i < k / 4; i++, to += 4 * KT_P64_ROWS) {
        uint16_t pair[2] = {0, 0};
        if (x) memcpy(pair, x + 4 * i, 4);
        memcpy(to, &pair[0], 2);
        memcpy(to + 8, &pair[1], 2);
    }
}

/* Block scales: one for each half of the panel. Every row of a half has the same, and padding none.
 */
static void pack_row_f8b128(plain_row row, int64_t k, uint8_t *panel, int r) {
    const int64_t blocks = (k + 127) / 128;
    uint8_t *scales = panel + 64 * k;

    pack_row_fp8(row, k, panel, r);
    if (r % 32 != 0) return;
    if (r == 0) memset(scales, 0, (size_t)(blocks * 8 + 63) / 64 * 64);
    for (int64_t b = 0; b < blocks && row.scales; b++)
        memcpy(scales + 8 * b + r / 32 * 4, (const char *)row.scales + 4 * b, 4);
}

static void pack_row(const kt_matrix *w, int64_t row_id, uint8_t *panel, int r) {
    const plain_row row = row_of(w, row_id);
    const int64_t k = w->k;

    switch (w->format) {
    case KT_W_BF16:
    case KT_W_F16: scatter(row.data, k / 2, 4, panel, r); break;
    case KT_W_F32: scatter(row.data, k, 4, panel, r); break;
    case KT_W_INT8_CHANNEL: pack_row_w8c(row, k, panel, r); break;
    case KT_W_FP8_CHANNEL:
        pack_row_fp8(row, k, panel, r);
        scatter(row.scales, 1, 4, panel + (size_t)k * KT_P64_ROWS, r);
        break;
    case KT_W_FP8_B128: pack_row_f8b128(row, k, panel, r); break;
    case KT_W_INT4_G32: pack_row_w4g32(row, k, panel, r); break;
    default: kt_blocks_pack_row(w, row_id, panel, r); break;
    }
}

static void pack_matrix(const kt_matrix *w, uint8_t *dst) {
    size_t panel_bytes = kt_p64_panel_bytes(w->format, w->k);
    for (int64_t p = 0; p < kt_p64_panels(w->n); p++, dst += panel_bytes)
        for (int r = 0; r < KT_P64_ROWS; r++) pack_row(w, KT_P64_ROWS * p + r, dst, r);
}

kt_status kt_p64_accepts(const kt_problem *q, const kt_config *config, kt_err *why) {
    const kt_format *format = kt_format_find(q->weights);
    const int64_t multiple = kt_p64_k_multiple(q->weights);

    (void)config;
    if (!format)
        return kt_fail(why, KT_E_UNSUPPORTED, "no weight format %s",
                       kt_weight_format_name(q->weights));
    if (q->n <= 0 || q->k <= 0 || q->k % multiple != 0)
        return kt_fail(why, KT_E_UNSUPPORTED, "n=%lld k=%lld: k must be a multiple of %lld",
                       (long long)q->n, (long long)q->k, (long long)multiple);
    if (q->op == KT_OP_MOE_FFN && q->n % multiple != 0)
        return kt_fail(why, KT_E_UNSUPPORTED,
                       "n=%lld: the intermediate size must be a multiple of %lld", (long long)q->n,
                       (long long)multiple);
    if (q->acts != format->acts && !(q->acts == KT_A_INT8_G16P2 && format->acts == KT_A_INT8_G32))
        return kt_fail(why, KT_E_UNSUPPORTED, "%s weights do not go with %s activations",
                       kt_weight_format_name(q->weights), kt_act_format_name(q->acts));
    return KT_OK;
}

size_t kt_p64_gemm_bytes(const kt_problem *q) {
    return (size_t)kt_p64_panels(q->n) * kt_p64_panel_bytes(q->weights, q->k);
}

void kt_p64_pack_gemm(const kt_problem *q, const kt_matrix *w, void *dst) {
    (void)q;
    pack_matrix(w, dst);
}

size_t kt_p64_expert_bytes(const kt_problem *q) {
    return kt_p64_gate_up_bytes(q) + kt_p64_down_bytes(q);
}

void kt_p64_pack_expert(const kt_problem *q, const kt_matrix *gate, const kt_matrix *up,
                        const kt_matrix *down, void *dst) {
    uint8_t *panel = dst;
    size_t panel_bytes = kt_p64_panel_bytes(q->weights, q->k);

    for (int64_t p = 0; gate && p < q->n / 32; p++, panel += panel_bytes)
        for (int r = 0; r < 32; r++) {
            pack_row(gate, 32 * p + r, panel, r);
            pack_row(up, 32 * p + r, panel, 32 + r);
        }
    if (down) pack_matrix(down, panel);
}
