/* GGUF's low-bit blocks: the values of ggml's reference, bit by bit.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <strings.h>

#include "base/numeric.h"
#include "kernels/formats/format.h"
#include "kernels/formats/lowbit.h"
#include "tests/support/guard.h"

enum { BLOCKS = 2048 };

/* Of 2048 blocks of random bytes (random_bytes below, seeded with 6 and so on), decoded
 * by the `gguf` package: the digest of the values' f32 bits, with all that is not a number as
 * 0x7fc00000 and zero without a sign. */
static const struct {
    kt_lowbit type;
    int inputs, bytes;
    uint64_t digest;
} types[] = {
    {KT_LOWBIT_IQ1_S, 256, 50, 0x31bc5caa0471f325u},
    {KT_LOWBIT_IQ1_M, 256, 56, 0x87163da153920de5u},
    {KT_LOWBIT_TQ1_0, 256, 54, 0xf56ec2fa83972325u},
    {KT_LOWBIT_TQ2_0, 256, 66, 0xb49342ba25024325u},
    {KT_LOWBIT_NVFP4, 64, 36, 0x7301914b16662325u},
};

static void random_bytes(uint64_t seed, uint8_t *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        out[i] = (uint8_t)(seed >> 56);
    }
}

static uint64_t digest(const int8_t *code, const float *terms, int64_t n) {
    uint64_t h = 0xcbf29ce484222325u;

    for (int64_t i = 0; i < n; i++) {
        const float value = terms[i / 16 * 2] * (float)code[i] + 0.0f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (isnan(value)) bits = 0x7fc00000;
        h = (h ^ bits) * 0x100000001b3u;
    }
    return h;
}

Test(lowbit, random_blocks_have_the_values_of_the_reference) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const kt_lowbit_type *t = kt_lowbit_of(types[i].type);
        const int64_t n = BLOCKS * (int64_t)types[i].inputs;
        const size_t size = (size_t)BLOCKS * (size_t)types[i].bytes;
        uint8_t *blocks = kt_guard_alloc(size, 1, 0);
        int8_t *code = kt_guard_alloc((size_t)n, 1, 0);
        float *terms = kt_guard_alloc((size_t)n / 8 * sizeof *terms, 4, 0);
        int n_finite = 0;

        cr_assert(t && t->inputs == types[i].inputs && t->bytes == types[i].bytes);
        cr_assert_eq(kt_lowbit_of_ggml(t->ggml_type), types[i].type);
        random_bytes(i + 6, blocks, size);
        kt_lowbit_rows(types[i].type, blocks, 8, n / 8, code, terms);
        cr_expect_eq(digest(code, terms, n), types[i].digest, "%s", t->name);
        for (int b = 0; b < BLOCKS; b++) {
            const int finite = kt_lowbit_is_finite(types[i].type, blocks + b * t->bytes);
            for (int g = 0; g < t->inputs / 16; g++) {
                const float *of = terms + 2 * (b * (t->inputs / 16) + g);
                cr_assert_eq(isfinite(of[0]) != 0, finite != 0, "%s block %d", t->name, b);
                cr_assert_eq(of[1], 0.0f);
            }
            n_finite += finite;
        }
        cr_expect(n_finite > BLOCKS / 2 && (n_finite < BLOCKS || t->inputs == 64), "%s: %d",
                  t->name, n_finite);
        kt_guard_free(blocks);
        kt_guard_free(code);
        kt_guard_free(terms);
    }
}

/* Types that have a weight format of their own: the same numbers, for the same blocks. Where
 * kt_lowbit_rows has not a number, so has the format. */
Test(lowbit, formats_of_their_own_have_the_same_values) {
    int n_formats = 0;

    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const int64_t k = types[i].inputs;
        const size_t size = (size_t)BLOCKS * (size_t)types[i].bytes;
        const kt_format *f = NULL;
        for (size_t j = 0; j < kt_builtin_format_count; j++)
            if (strcasecmp(kt_builtin_formats[j]->name + 1, kt_lowbit_of(types[i].type)->name) == 0)
                f = kt_builtin_formats[j];
        if (!f) continue;
        uint8_t *blocks = kt_guard_alloc(size, 1, 0);
        const kt_matrix w = {.format = f->id, .n = BLOCKS, .k = k, .data = blocks};
        int8_t code[256];
        float terms[32];
        double got[256];

        n_formats++;
        cr_assert_eq(f->block_bytes, types[i].bytes);
        random_bytes(i + 1, blocks, size);
        for (int b = 0; b < BLOCKS; b++) {
            kt_lowbit_rows(types[i].type, blocks + b * types[i].bytes, 1, k, code, terms);
            f->decode_row(&w, b, got);
            for (int j = 0; j < k; j++) {
                const double want = (double)terms[j / 16 * 2] * code[j];
                cr_assert(isnan(want) ? isnan(got[j]) : got[j] == want,
                          "%s block %d value %d: %.17g, want %.17g", f->name, b, j, got[j], want);
            }
        }
        kt_guard_free(blocks);
    }
    cr_assert_geq(n_formats, 5);
}

Test(lowbit, what_is_none_is_told) {
    cr_assert_null(kt_lowbit_of(KT_LOWBIT_NONE));
    cr_assert_null(kt_lowbit_of(KT_LOWBIT_COUNT));
    cr_assert_eq(kt_lowbit_of_ggml(2), KT_LOWBIT_NONE);
    cr_assert_eq(kt_lowbit_of_ggml(99), KT_LOWBIT_NONE);
}
