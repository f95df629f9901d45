/* Plain formats and conversions: every code, wrong sizes, what encoding loses.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/numeric.h"
#include "base/rng.h"
#include "kernels/formats/format.h"
#include "kernels/formats/int4_scores.h"
#include "kernels/formats/int4_search.h"
#include "tests/support/guard.h"

/* --- scalar conversions --------------------------------------------------------------------- */

static double half_value(int bits) {
    int e = bits >> 10 & 31, m = bits & 1023;
    double v = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
    if (e == 31) v = m ? (double)NAN : (double)INFINITY;
    return bits & 0x8000 ? -v : v;
}

Test(numeric, every_half_has_its_value_and_comes_back) {
    for (int bits = 0; bits < 65536; bits++) {
        double want = half_value(bits);
        float got = kt_f16_to_f32((uint16_t)bits);
        if (isnan(want)) {
            cr_assert(isnan(got) && isnan(kt_f16_to_f32(kt_f32_to_f16(got))), "%04x", bits);
            continue;
        }
        cr_assert((double)got == want, "%04x: %g, want %g", bits, got, want);
        cr_assert_eq(kt_f32_to_f16(got), bits, "%04x", bits);
    }
}

/* The nearest of two neighbours, ties to the even code. */
Test(numeric, rounding_to_half_takes_the_nearest_and_ties_to_even) {
    for (int bits = 0; bits < 0x7c00; bits++) {
        double low = half_value(bits), high = bits == 0x7bff ? 65536 : half_value(bits + 1);
        double middle = (low + high) / 2;
        cr_assert_eq(kt_f32_to_f16((float)middle), bits + (bits & 1), "%04x", bits);
        cr_assert_eq(kt_f32_to_f16(nextafterf((float)middle, 0)), bits, "%04x", bits);
        cr_assert_eq(kt_f32_to_f16(-nextafterf((float)middle, INFINITY)), 0x8000 | (bits + 1),
                     "%04x", bits);
    }
    cr_assert_eq(kt_f32_to_f16(INFINITY), 0x7c00);
    cr_assert_eq(kt_f32_to_f16(1e30f), 0x7c00);
    cr_assert_eq(kt_f32_to_f16(0x1p-26f), 0);
}

static double e4m3_value(int bits) {
    int e = bits >> 3 & 15, m = bits & 7;
    double v = e == 0 ? ldexp(m, -9) : ldexp(8 + m, e - 10);
    if ((bits & 0x7f) == 0x7f) return (double)NAN;
    return bits & 0x80 ? -v : v;
}

Test(numeric, every_e4m3_code_has_its_value_and_comes_back) {
    for (int bits = 0; bits < 256; bits++) {
        double want = e4m3_value(bits);
        float got = kt_f8e4m3_to_f32((uint8_t)bits);
        if (isnan(want)) {
            cr_assert(isnan(got), "%02x", bits);
            continue;
        }
        cr_assert((double)got == want, "%02x: %g, want %g", bits, got, want);
        cr_assert_eq(kt_f32_to_f8e4m3(got), bits, "%02x", bits);
        cr_assert((double)kt_bf16_to_f32(kt_f32_to_bf16(got)) == want, "exact in bfloat16");
        if ((bits & 0x7f) == 0x7e) continue;
        got = (float)((want + e4m3_value(bits + 1)) / 2);
        cr_assert_eq(kt_f32_to_f8e4m3(got), bits + (bits & 1), "%02x", bits);
        cr_assert_eq(kt_f32_to_f8e4m3(nextafterf(got, 0)), bits, "%02x", bits);
        cr_assert_eq(kt_f32_to_f8e4m3(got * (1 + 0x1p-20f)), bits + 1, "%02x", bits);
    }
    cr_assert_eq(kt_f32_to_f8e4m3(1e9f), 0x7e);
    cr_assert_eq(kt_f32_to_f8e4m3(-INFINITY), 0xfe);
    cr_assert_eq(kt_f32_to_f8e4m3(NAN) & 0x7f, 0x7f);
    cr_assert_eq(kt_f8e4m3_to_f32(0x38), 1.0f);
    cr_assert_eq(kt_f8e4m3_to_f32(0x7e), 448.0f);
    cr_assert_eq(kt_f8e4m3_to_f32(0xb8), -1.0f);
}

/* --- decoding ------------------------------------------------------------------------------- */

Test(formats, fp8_blocks_and_channels_scale_every_code) {
    enum { N = 130, K = 288 }; /* blocks cut off on both sides: 2 x 3 scales */
    uint8_t *data = kt_guard_alloc(N * K, 4, 0);
    float block_scales[6] = {1, -0.5f, 3, 0x1p-140f, 0, 7}, channel_scales[N];
    kt_matrix block = {KT_W_FP8_B128, N, K, data, block_scales};
    kt_matrix channel = {KT_W_FP8_CHANNEL, N, K, data, channel_scales};
    size_t data_bytes, scale_bytes;
    double got[K];

    for (int i = 0; i < N * K; i++) data[i] = (uint8_t)(i * 7 + i / K);
    for (int i = 0; i < N; i++) channel_scales[i] = ldexpf(i % 2 ? -1.1f : 1.1f, i - 140);
    kt_format_find(KT_W_FP8_B128)->plain_bytes(N, K, &data_bytes, &scale_bytes);
    cr_assert_eq(data_bytes, N * K);
    cr_assert_eq(scale_bytes, sizeof block_scales);
    for (int row = 0; row < N; row++)
        for (int which = 0; which < 2; which++) {
            const kt_matrix *w = which ? &channel : &block;
            kt_format_find(w->format)->decode_row(w, row, got);
            for (int j = 0; j < K; j++) {
                double scale = which ? channel_scales[row] : block_scales[row / 128 * 3 + j / 128];
                double want = scale * e4m3_value(data[row * K + j]);
                cr_assert(isnan(want) ? isnan(got[j]) : got[j] == want, "row %d input %d", row, j);
            }
        }
    kt_guard_free(data);
}

Test(formats, int4_formats_decode_every_byte_under_scales_of_either_sign) {
    static const struct {
        kt_weight_format id;
        int group, zeros;
    } forms[] = {{KT_W_INT4_G32, 32, 0},  {KT_W_INT4_G64, 64, 0},  {KT_W_INT4_G128, 128, 0},
                 {KT_W_INT4Z_G32, 32, 1}, {KT_W_INT4Z_G64, 64, 1}, {KT_W_INT4Z_G128, 128, 1}};
    static const float scale[] = {0.75f, -0.75f, 0, 0x1p-20f};
    enum { K = 512 };
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (int zero = 0; zero <= (forms[f].zeros ? 16 : 0); zero++) {
            int group = forms[f].group, groups = K / group;
            uint8_t data[2 * K / 2], scales[2 * 3 * K / 32]; /* two rows */
            double got[K];
            kt_matrix w = {forms[f].id, 2, K, data, scales};
            for (int i = 0; i < K; i++) data[i] = (uint8_t)(i * 37); /* all 256 bytes, twice */
            for (int g = 0; g < 2 * groups; g++) {
                float s = scale[g % 4];
                uint16_t bits = forms[f].zeros ? kt_f32_to_f16(s) : kt_f32_to_bf16(s);
                int row = g / groups, at = g % groups;
                memcpy(scales + (forms[f].zeros ? row * 3 * groups : row * 2 * groups) + 2 * at,
                       &bits, 2);
                if (forms[f].zeros) scales[row * 3 * groups + 2 * groups + at] = (uint8_t)zero;
            }
            for (int row = 0; row < 2; row++) {
                kt_format_find(w.format)->decode_row(&w, row, got);
                for (int i = 0; i < K; i++) {
                    int code = data[(row * K + i) / 2] >> i % 2 * 4 & 15;
                    double s = scale[(row * groups + i / group) % 4];
                    cr_assert(got[i] == s * (code - (forms[f].zeros ? zero : 8)),
                              "%s zero %d row %d input %d", kt_weight_format_name(w.format), zero,
                              row, i);
                }
            }
        }
}

/* Kimi-K2: the packed word 0x76543210 is -8 .. -1, and 0xfedcba98 is 0 .. 7. */
Test(formats, w4g32_reads_compressed_tensors_words_as_they_are) {
    uint32_t words[4] = {0x76543210u, 0xfedcba98u, 0x76543210u, 0xfedcba98u};
    uint16_t scale = kt_f32_to_bf16(0.5f);
    double got[32];
    kt_matrix w = {KT_W_INT4_G32, 1, 32, words, &scale};
    kt_format_find(KT_W_INT4_G32)->decode_row(&w, 0, got);
    for (int i = 0; i < 32; i++) cr_assert(got[i] == 0.5 * (i % 16 - 8));
}

Test(formats, sizes_that_a_format_cannot_have_are_refused) {
    for (int id = 1; id < KT_W_COUNT; id++) {
        const kt_format *f = kt_format_find((kt_weight_format)id);
        size_t data, scales;
        kt_err err = {0};
        cr_assert_eq(kt_format_sizes(f, 3, 256, &data, &scales, &err), KT_OK, "%s", err.message);
        cr_assert_gt(data, 0);
        if (f->block > 1) {
            cr_assert_eq(kt_format_sizes(f, 3, 256 + f->block / 2, &data, &scales, &err),
                         KT_E_INVALID, "%s", f->name);
            cr_assert_not_null(strstr(err.message, f->name), "%s", err.message);
        }
        cr_assert_eq(kt_format_sizes(f, 0, 256, &data, &scales, &err), KT_E_INVALID);
        cr_assert_eq(kt_format_sizes(f, 3, -256, &data, &scales, &err), KT_E_INVALID);
        cr_assert_eq(kt_format_sizes(f, (int64_t)1 << 40, (int64_t)1 << 40, &data, &scales, &err),
                     KT_E_INVALID);
        cr_assert_eq(data, 0);
    }
}

/* --- encoding ------------------------------------------------------------------------------- */

static const kt_weight_format searched[] = {KT_W_INT4_G32,  KT_W_INT4_G64,    KT_W_INT4_G128,
                                            KT_W_INT4Z_G32, KT_W_INT4Z_G64,   KT_W_INT4Z_G128,
                                            KT_W_INT8_G128, KT_W_INT8_CHANNEL};

typedef struct trial {
    float *src, *importance;
    void *data, *scales;
    kt_matrix w;
    kt_format_loss loss;
} trial;

enum { N = 24, K = 1024 };

/* Student-like rows; every 97th input is an outlier channel. */
static trial make(kt_weight_format id, int weighted, uint64_t seed) {
    const kt_format *f = kt_format_find(id);
    size_t data_bytes, scale_bytes;
    trial t = {0};
    double row[K];
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    f->plain_bytes(N, K, &data_bytes, &scale_bytes);
    t.src = malloc(N * K * sizeof *t.src);
    t.importance = malloc(K * sizeof *t.importance);
    t.data = kt_guard_alloc(data_bytes, 4, 0xAA);
    t.scales = kt_guard_alloc(scale_bytes, 4, 0xAA);
    for (int i = 0; i < N * K; i++) t.src[i] = kt_rng_normal(&rng) * (1 + (float)(i % 97 == 0));
    for (int i = 0; i < K; i++) t.importance[i] = expf(2 * kt_rng_normal(&rng));
    f->encode_rows(t.src, N, K, weighted ? t.importance : NULL, 0, N, t.data, t.scales, NULL);
    t.w = (kt_matrix){id, N, K, t.data, t.scales};
    kt_format_loss_rows(&t.w, t.src, t.importance, 0, N, row, &t.loss);
    return t;
}

static void unmake(trial *t) {
    free(t->src);
    free(t->importance);
    kt_guard_free(t->data);
    kt_guard_free(t->scales);
}

/* Relative RMS of rounding with the scale that the extremes call for, in double. */
static double plain_rms(const trial *t, int64_t group, int low, int high, int zero) {
    double error = 0;
    for (int64_t g = 0; g < N * K / group; g++) {
        const float *x = t->src + g * group;
        double least = 0, most = 0, scale, z = 0;
        for (int i = 0; i < group; i++) {
            least = fmin(least, x[i]);
            most = fmax(most, x[i]);
        }
        scale = zero ? (most - least) / 15 : fmax(most, -least) / high;
        if (zero) z = nearbyint(-least / scale);
        for (int i = 0; i < group; i++) {
            double q = fmin(high, fmax(low, nearbyint(x[i] / scale + z))) - z;
            error += (x[i] - scale * q) * (x[i] - scale * q);
        }
    }
    return sqrt(error / t->loss.energy);
}

Test(encoders, searched_scales_lose_less_than_plain_rounding) {
    for (size_t i = 0; i < sizeof searched / sizeof *searched; i++) {
        const kt_format *f = kt_format_find(searched[i]);
        int bits = f->bits < 8 ? 4 : 8, zero = strncmp(f->name, "w4z", 3) == 0;
        int64_t group = f->group ? f->group : K;
        trial t = make(f->id, 0, 17);
        double rms = kt_format_loss_rms(&t.loss);
        double plain = zero        ? plain_rms(&t, group, 0, 15, 1)
                       : bits == 4 ? plain_rms(&t, group, -7, 7, 0)
                                   : plain_rms(&t, group, -127, 127, 0);
        /* Symmetric 4 bits gain most. A zero point leaves no room for the sign of the scale to help. A
         * bfloat16 scale of 8-bit codes is off by 2^-9 at most, and codes cannot absorb all of it. */
        double limit = bits == 8 ? 1.01 : zero ? 1.0 : 0.95;
        cr_assert_lt(rms, plain * limit, "%s: %.5f, plain %.5f", f->name, rms, plain);
        cr_assert_gt(rms, plain * 0.5, "%s: too good to be true", f->name);
        unmake(&t);
    }
}

/* <y, q> and <q, q> of one candidate, in four sums that are added crosswise. */
static void score_one(const kt_int4_group *x, float t, float *yq, float *qq) {
    float a[4] = {0}, b[4] = {0};

    for (int i = 0; i < x->group; i++) {
        float q = fminf(fmaxf(nearbyintf(x->y[i] * t), -8), 7),
              w = x->is_weighted ? x->v[i] * q : q;
        a[i % 4] += x->y[i] * w;
        b[i % 4] += q * w;
    }
    *yq = (a[0] + a[2]) + (a[1] + a[3]);
    *qq = (b[0] + b[2]) + (b[1] + b[3]);
}

static void fill_group(kt_int4_group *x, int group, int is_weighted, kt_rng *rng) {
    x->group = group;
    x->is_weighted = is_weighted;
    for (int i = 0; i < group; i++) {
        x->y[i] = kt_rng_uniform(rng, -1, 1);
        x->v[i] = kt_rng_uniform(rng, 0, 1);
    }
    x->y[group / 3] = group % 64 ? 1 : -1; /* the largest: either sign has the eighth code */
}

/* Every width scores as one candidate after the other does, bit by bit. */
Test(encoders, every_width_scores_int4_scales_alike) {
    static const kt_isa steps[] = {KT_ISA_SCALAR, KT_ISA_AVX2, KT_ISA_AVX512};
    kt_int4_group x;
    kt_int4_sums got;
    kt_rng rng;

    kt_rng_seed(&rng, 7);
    for (int test = 0; test < 3 * 3 * 2 * 20; test++) {
        const kt_isa isa = kt_isa_closure(steps[test % 3]);
        if (isa & ~kt_isa_available()) continue;
        fill_group(&x, 32 << test / 3 % 3, test / 9 % 2, &rng);
        kt_int4_scores_best(isa)(&x, &got);
        for (int i = 0; i < 2 * KT_INT4_POINTS; i++) {
            const float t = 6.8f + 0.1f * (float)(i / 2);
            float yq, qq;
            score_one(&x, i % 2 ? t : -t, &yq, &qq);
            cr_assert_float_eq(got.sum[i / 2][i % 2 * 2], yq, 0, "isa %d, candidate %d", test % 3,
                               i);
            cr_assert_float_eq(got.sum[i / 2][i % 2 * 2 + 1], qq, 0);
        }
    }
}

/* The first candidate whose quotient no later one exceeds, by scales that the encoder stored. */
Test(encoders, int4_takes_the_best_of_all_its_candidates) {
    const kt_format *f = kt_format_find(KT_W_INT4_G32);
    kt_rng rng;

    kt_rng_seed(&rng, 8);
    for (int test = 0; test < 500; test++) {
        float best = 0, scale = 0, yq, qq, importance[32];
        uint8_t codes[16];
        uint16_t stored;
        kt_int4_group x;
        fill_group(&x, 32, test % 2, &rng);
        if (x.is_weighted) {
            kt_search_weights(memcpy(importance, x.v, sizeof importance), 32, x.v);
            f->encode_rows(x.y, 1, 32, importance, 0, 1, codes, &stored, NULL);
        } else {
            f->encode_rows(x.y, 1, 32, NULL, 0, 1, codes, &stored, NULL);
        }
        for (int i = 0; i < 2 * KT_INT4_POINTS; i++) {
            const float t = 6.8f + 0.1f * (float)(i / 2);
            score_one(&x, i % 2 ? t : -t, &yq, &qq);
            if (yq * yq > best * qq) best = yq * yq / qq, scale = yq / qq;
        }
        cr_assert_eq(stored, kt_f32_to_bf16(scale), "test %d", test);
    }
}

Test(encoders, importance_lowers_the_error_where_it_counts) {
    for (size_t i = 0; i < sizeof searched / sizeof *searched; i++) {
        const kt_format *f = kt_format_find(searched[i]);
        trial plain = make(f->id, 0, 5), weighted = make(f->id, 1, 5);
        double before = kt_format_loss_weighted_rms(&plain.loss);
        double after = kt_format_loss_weighted_rms(&weighted.loss);
        cr_assert_leq(after, before * (f->bits < 8 ? 0.97 : 1.0), "%s: %.5f, without %.5f", f->name,
                      after, before);
        cr_assert_geq(kt_format_loss_rms(&weighted.loss), kt_format_loss_rms(&plain.loss) * 0.999,
                      "%s", f->name);
        unmake(&plain), unmake(&weighted);
    }
}

Test(encoders, importance_of_zeros_changes_nothing) {
    for (size_t i = 0; i < sizeof searched / sizeof *searched; i++) {
        const kt_format *f = kt_format_find(searched[i]);
        trial t = make(f->id, 0, 3);
        float none[K] = {0};
        size_t data_bytes, scale_bytes;
        void *data, *scales;
        f->plain_bytes(N, K, &data_bytes, &scale_bytes);
        data = kt_guard_alloc(data_bytes, 4, 0x55), scales = kt_guard_alloc(scale_bytes, 4, 0x55);
        f->encode_rows(t.src, N, K, none, 0, N, data, scales, NULL);
        cr_assert_eq(memcmp(data, t.data, data_bytes), 0, "%s", f->name);
        cr_assert_eq(memcmp(scales, t.scales, scale_bytes), 0, "%s", f->name);
        kt_guard_free(data), kt_guard_free(scales);
        unmake(&t);
    }
}

Test(encoders, groups_that_are_not_finite_become_zeros_and_show_in_the_error) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t f = 0; f < sizeof searched / sizeof *searched; f++)
        for (int b = 0; b < 3; b++) {
            const kt_format *format = kt_format_find(searched[f]);
            float src[128];
            uint8_t data[128], scales[512];
            double row[128];
            kt_matrix w = {searched[f], 1, 128, data, scales};
            for (int i = 0; i < 128; i++) src[i] = (float)i;
            src[77] = bad[b];
            cr_assert_not(
                isfinite(format->encode_rows(src, 1, 128, NULL, 0, 1, data, scales, NULL)), "%s",
                format->name);
            format->decode_row(&w, 0, row);
            cr_assert_eq(row[77], 0.0, "%s", format->name);
            cr_assert(isfinite(row[0]), "%s", format->name);
        }
}

Test(encoders, losses_of_parts_add_up) {
    trial t = make(KT_W_INT4_G64, 0, 9);
    kt_format_loss parts = {0}, more = {0};
    double row[K], error_max = 0;

    kt_format_loss_rows(&t.w, t.src, t.importance, 0, 5, row, &parts);
    kt_format_loss_rows(&t.w, t.src, t.importance, 5, N, row, &more);
    kt_format_loss_add(&parts, &more);
    cr_assert_float_eq(kt_format_loss_rms(&parts), kt_format_loss_rms(&t.loss), 1e-12);
    cr_assert_float_eq(kt_format_loss_weighted_rms(&parts), kt_format_loss_weighted_rms(&t.loss),
                       1e-12);
    for (int r = 0; r < N; r++) {
        kt_format_find(t.w.format)->decode_row(&t.w, r, row);
        for (int i = 0; i < K; i++)
            error_max = fmax(error_max, fabs((double)t.src[r * K + i] - row[i]));
    }
    cr_assert_eq(parts.error_max, error_max);
    cr_assert_eq(kt_format_loss_rms(&(kt_format_loss){0}), 0);
    unmake(&t);
}
