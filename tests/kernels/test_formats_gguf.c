/* GGUF block formats: the values of ggml's reference, and every code byte.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/numeric.h"
#include "kernels/formats/format.h"
#include "dispatch/model/checkpoint.h"
#include "tests/support/guard.h"

static const struct {
    const char *name;
    kt_weight_format id;
} types[] = {
    {"Q4_0", KT_W_Q4_0},   {"Q4_1", KT_W_Q4_1}, {"Q5_0", KT_W_Q5_0},     {"Q5_1", KT_W_Q5_1},
    {"Q8_0", KT_W_Q8_0},   {"Q2_K", KT_W_Q2_K}, {"Q3_K", KT_W_Q3_K},     {"Q4_K", KT_W_Q4_K},
    {"Q5_K", KT_W_Q5_K},   {"Q6_K", KT_W_Q6_K}, {"IQ4_NL", KT_W_IQ4_NL}, {"IQ4_XS", KT_W_IQ4_XS},
    {"MXFP4", KT_W_MXFP4},
};

static const kt_tensor *tensor(const kt_checkpoint *c, const char *type, const char *what) {
    char name[32];
    const kt_tensor *t;
    snprintf(name, sizeof name, "%s.%s", type, what);
    t = kt_checkpoint_find(c, name);
    cr_assert_not_null(t, "%s", name);
    return t;
}

Test(formats_gguf, blocks_have_the_values_of_the_reference_bit_by_bit) {
    kt_checkpoint *c = NULL;
    kt_err err = {0};

    cr_assert_eq(kt_checkpoint_open(KT_TEST_DATA "/gguf_blocks", &c, &err), KT_OK, "%s",
                 err.message);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const kt_format *f = kt_format_find(types[i].id);
        const kt_tensor *blocks = tensor(c, types[i].name, "blocks");
        const kt_tensor *values = tensor(c, types[i].name, "values");
        int64_t n = blocks->shape[0];
        uint8_t *data = kt_guard_alloc(blocks->bytes, 4, 0);
        kt_matrix w = {f->id, n, values->shape[1], data, NULL};

        cr_assert_eq(blocks->shape[1], f->block_bytes);
        memcpy(data, blocks->data, blocks->bytes);
        for (int64_t row = 0; row < n; row++) {
            double got[256];
            f->decode_row(&w, row, got);
            for (int64_t j = 0; j < w.k; j++) {
                float want;
                memcpy(&want, values->data + 4 * (row * w.k + j), 4);
                cr_assert((float)got[j] == want, "%s block %lld value %lld: %.9g, want %.9g",
                          types[i].name, (long long)row, (long long)j, got[j], (double)want);
            }
        }
        kt_guard_free(data);
    }
    kt_checkpoint_close(c);
}

/* Of 2048 blocks of random bytes, decoded by the `gguf` package: the digest of the values' f32
 * bits, with all that is not a number as 0x7fc00000, and in formats that have zero that without a
 * sign. */
static const struct {
    kt_weight_format id;
    int bytes;
    uint64_t digest;
    bool has_zero;
} lowbit[] = {
    {KT_W_IQ2_XXS, 66, 0xdc3bdfe5001b9585u, false}, {KT_W_IQ2_XS, 74, 0xed8078a728ade879u, false},
    {KT_W_IQ2_S, 82, 0x525814e9fe934491u, false},   {KT_W_IQ3_XXS, 98, 0xca739a64c25063edu, false},
    {KT_W_IQ3_S, 110, 0xcd5f54a129ea6d75u, false},  {KT_W_IQ1_S, 50, 0x31bc5caa0471f325u, true},
    {KT_W_IQ1_M, 56, 0x87163da153920de5u, true},    {KT_W_TQ1_0, 54, 0xf56ec2fa83972325u, true},
    {KT_W_TQ2_0, 66, 0xb49342ba25024325u, true},    {KT_W_NVFP4, 36, 0x7301914b16662325u, true},
};

static uint64_t digest_row(const double *value, int64_t n, bool has_zero, uint64_t h) {
    for (int64_t i = 0; i < n; i++) {
        const float x = has_zero ? (float)value[i] + 0.0f : (float)value[i];
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (isnan(x)) bits = 0x7fc00000;
        h = (h ^ bits) * 0x100000001b3u;
    }
    return h;
}

Test(formats_gguf, random_low_bit_blocks_have_the_values_of_the_reference) {
    enum { BLOCKS = 2048 };

    for (size_t t = 0; t < sizeof lowbit / sizeof *lowbit; t++) {
        const kt_format *f = kt_format_find(lowbit[t].id);
        const size_t size = (size_t)BLOCKS * (size_t)lowbit[t].bytes;
        const int64_t k = BLOCKS / 8 * (int64_t)f->block;
        uint8_t *blocks = kt_guard_alloc(size, 1, 0);
        double *row = kt_guard_alloc((size_t)k * sizeof *row, 8, 0);
        const kt_matrix w = {lowbit[t].id, 8, k, blocks, NULL};
        uint64_t seed = t + 1, h = 0xcbf29ce484222325u;

        cr_assert_eq(f->block_bytes, lowbit[t].bytes);
        for (size_t i = 0; i < size; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            blocks[i] = (uint8_t)(seed >> 56);
        }
        for (int64_t r = 0; r < 8; r++) {
            f->decode_row(&w, r, row);
            h = digest_row(row, k, lowbit[t].has_zero, h);
        }
        cr_expect_eq(h, lowbit[t].digest, "%s", f->name);
        kt_guard_free(blocks);
        kt_guard_free(row);
    }
}

/* Value of nibble n under scale d and minimum m (or the zero of Q4_0) by the formulas of the
 * types. */
static double nibble_value(kt_weight_format id, int n, double d, double m) {
    static const double t[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                               1,    13,   25,  38,  53,  69,  89,  113};
    static const double f[] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6};
    if (id == KT_W_Q4_1) return d * n + m;
    if (id == KT_W_IQ4_NL) return d * t[n];
    if (id == KT_W_MXFP4) return d * f[n];
    return d * (n - 8);
}

Test(formats_gguf, every_code_byte_under_scales_of_either_sign_zero_and_subnormal) {
    static const struct {
        kt_weight_format id;
        int m_at;
    } forms[] = {{KT_W_Q4_0, -1}, {KT_W_Q4_1, 2}, {KT_W_IQ4_NL, -1}, {KT_W_MXFP4, -1}};
    static const float scales[] = {1.5f, -1.5f, 0.0f, -0.0f, 0x1p-24f, -0x1.8p-20f, 65504.0f};
    static const uint8_t exponents[] = {127, 128, 1, 0, 64, 100, 254};

    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        for (int byte = 0; byte < 256; byte++)
            for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
                uint8_t block[20];
                double got[32], d = scales[s], m = -0.25;
                uint16_t d_bits = kt_f32_to_f16(scales[s]), m_bits = kt_f32_to_f16(-0.25f);
                kt_matrix w = {forms[i].id, 1, 32, block, NULL};

                memset(block, byte, sizeof block);
                if (forms[i].id == KT_W_MXFP4)
                    block[0] = exponents[s], d = ldexp(1, exponents[s] - 127);
                else
                    memcpy(block, &d_bits, 2);
                if (forms[i].m_at > 0) memcpy(block + forms[i].m_at, &m_bits, 2);
                kt_format_find(w.format)->decode_row(&w, 0, got);
                for (int j = 0; j < 32; j++) {
                    double want = nibble_value(w.format, j < 16 ? byte & 15 : byte >> 4, d, m);
                    cr_assert(got[j] == want, "%s byte %d value %d: %g, want %g",
                              kt_weight_format_name(w.format), byte, j, got[j], want);
                }
            }
}

Test(formats_gguf, mxfp4_with_the_exponent_255_is_not_a_number) {
    uint8_t block[17];
    double got[32];
    kt_matrix w = {KT_W_MXFP4, 1, 32, block, NULL};

    memset(block, 0x21, sizeof block);
    block[0] = 255;
    kt_format_find(KT_W_MXFP4)->decode_row(&w, 0, got);
    for (int j = 0; j < 32; j++) cr_assert(isnan(got[j]));
}
