/* Where keys, values and their scales lie. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdint.h>
#include <string.h>

#include "kernels/attn/attn_common.h"
#include "runtime/kv/kv_cache.h"

static const kt_weight_format formats[] = {KT_W_BF16, KT_W_INT8_CHANNEL, KT_W_FP8_CHANNEL};

Test(kv_cache, has_the_bytes_of_its_rows_and_scales) {
    static const struct {
        kt_weight_format format;
        size_t bytes; /* of 2 layers, 3 heads of 8, 5 positions: 60 rows */
    } cases[] = {{KT_W_BF16, 960}, {KT_W_INT8_CHANNEL, 512 + 240}, {KT_W_FP8_CHANNEL, 512 + 240}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_kv_shape s = {cases[i].format, 2, 3, 8, 0, 0};
        size_t got = kt_kv_cache_bytes(&s, 5);
        cr_expect_eq(got, cases[i].bytes, "%s: %zu bytes", kt_weight_format_name(s.format), got);
    }
}

Test(kv_cache, refuses_what_cannot_be) {
    static const struct {
        kt_kv_shape shape;
        int64_t capacity;
    } bad[] = {{{KT_W_BF16, 2, 3, 8, 0, 0}, 0},
               {{KT_W_BF16, 2, 3, 8, 0, 0}, -1},
               {{KT_W_BF16, 0, 3, 8, 0, 0}, 5},
               {{KT_W_BF16, 2, 0, 8, 0, 0}, 5},
               {{KT_W_BF16, 2, 3, 0, 0, 0}, 5},
               {{KT_W_BF16, 2, 3, 8, 0, 0}, INT64_MAX},
               {{KT_W_BF16, (int64_t)1 << 31, (int64_t)1 << 31, 8, 0, 0}, 5},
               {{KT_W_INT8_CHANNEL, 2, 3, 8, 0, 0}, INT64_MAX / 8},
               {{KT_W_INT8_CHANNEL, 1, 1, (int64_t)1 << 40, 0, 0}, (int64_t)1 << 30}};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kt_kv_cache c;
        kt_err err = {0};
        cr_expect_eq(kt_kv_cache_bytes(&bad[i].shape, bad[i].capacity), 0, "case %zu", i);
        cr_expect_eq(kt_kv_cache_init(&c, &bad[i].shape, bad[i].capacity, &err), KT_E_INVALID,
                     "case %zu", i);
        cr_expect(strstr(err.message, "not possible"), "case %zu: %s", i, err.message);
        kt_kv_cache_deinit(&c);
    }
}

/* The value of a row's element as the cache holds it. */
static float element(const kt_kv_cache *c, int64_t layer, int which, int64_t head, int64_t at,
                     int64_t i) {
    const float *scales = kt_kv_cache_scales(c, layer, which, head);
    float x = kt_attn_item(c->shape.format, kt_kv_cache_rows(c, layer, which, head),
                           at * c->shape.head_dim + i);
    return scales ? x * scales[at] : x;
}

/* A number of its own for every row, exact in each format: a power of two times a small whole
 * number. */
static float value_of(int64_t layer, int which, int64_t head, int64_t at) {
    return (float)(1 + which + 2 * (head % 2)) * (float)(1 << (layer * 6 + head * 2 + at % 2)) *
           (at >= 2 ? 0.25f : 1);
}

/* Every row is written once; none disturbs another, and scales lie behind all rows on a line of
 * their own. */
Test(kv_cache, rows_and_scales_do_not_overlap) {
    enum { LAYERS = 2, HEADS = 3, DIM = 8, CAPACITY = 5 };

    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        kt_kv_shape shape = {formats[f], LAYERS, HEADS, DIM, 0, 0};
        const char *name = kt_weight_format_name(formats[f]);
        kt_kv_cache c;
        kt_err err = {0};

        cr_assert_eq(kt_kv_cache_init(&c, &shape, CAPACITY, &err), KT_OK, "%s", err.message);
        cr_assert_eq(c.scales != NULL, kt_attn_has_scales(formats[f]) != 0);
        if (c.scales) cr_expect_eq((uintptr_t)c.scales % 64, 0, "%s", name);
        for (int64_t row = 0; row < LAYERS * 2 * HEADS * CAPACITY; row++) {
            int64_t at = row % CAPACITY, head = row / CAPACITY % HEADS;
            int64_t layer = row / CAPACITY / HEADS / 2;
            int which = (int)(row / CAPACITY / HEADS % 2);
            float x[DIM];
            for (int i = 0; i < DIM; i++) x[i] = value_of(layer, which, head, at);
            kt_kv_cache_put(&c, layer, which, head, at, x);
        }
        for (int64_t row = 0; row < LAYERS * 2 * HEADS * CAPACITY; row++) {
            int64_t at = row % CAPACITY, head = row / CAPACITY % HEADS;
            int64_t layer = row / CAPACITY / HEADS / 2;
            int which = (int)(row / CAPACITY / HEADS % 2);
            float want = value_of(layer, which, head, at);
            for (int i = 0; i < DIM; i++) {
                float got = element(&c, layer, which, head, at, i);
                cr_assert_float_eq(
                    got, want, 1e-6f * want, "%s: layer %d %c head %d position %d: %g, expected %g",
                    name, (int)layer, "kv"[which], (int)head, (int)at, (double)got, (double)want);
            }
        }
        kt_kv_cache_deinit(&c);
    }
}

/* Keys of values' rows and index keys: shared rows are half of the bytes, index keys lie behind
 * rows and scales. */
Test(kv_cache, shared_rows_and_index_keys_have_their_bytes) {
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        const kt_kv_shape shape = {formats[f], 2, 1, 64, 1, 32};
        kt_kv_shape plain = shape, apart = shape;
        kt_kv_cache c;
        const uint8_t *end;

        plain.index_dim = 0;
        apart.index_dim = 0, apart.has_shared_rows = 0;
        cr_expect_eq(2 * kt_kv_cache_bytes(&plain, 64), kt_kv_cache_bytes(&apart, 64));
        cr_expect_eq(kt_kv_cache_bytes(&shape, 64),
                     kt_kv_cache_bytes(&plain, 64) + 2 * 64 * 32 * sizeof(uint16_t));
        cr_assert_eq(kt_kv_cache_init(&c, &shape, 64, NULL), KT_OK);
        end = (const uint8_t *)kt_kv_cache_rows(&c, 1, 0, 0) +
              (size_t)(64 * 64) * kt_attn_item_bytes(formats[f]);
        if (c.scales) end = (const uint8_t *)(kt_kv_cache_scales(&c, 1, 0, 0) + 64);
        cr_expect((const uint8_t *)c.index_keys >= end);
        cr_expect((const uint8_t *)(c.index_keys + 2 * 64 * 32) <=
                  (const uint8_t *)c.buffer.data + c.buffer.bytes);
        kt_kv_cache_deinit(&c);
    }
}
