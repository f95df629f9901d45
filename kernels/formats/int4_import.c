/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/int4_import.h"

#include <emmintrin.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/formats/p64_turn.h"

static int has_known_types(const kt_int4_source *s) {
    return s->scale_type == KT_W_BF16 || s->scale_type == KT_W_F16 || s->scale_type == KT_W_F32;
}

static int is_transposed(const kt_int4_source *s) {
    return s->packing != KT_INT4_ROWS;
}

kt_weight_format kt_int4_import_format(const kt_int4_source *s) {
    static const struct {
        int64_t group;
        kt_weight_format symmetric, with_zeros;
    } formats[] = {{32, KT_W_INT4_G32, KT_W_INT4Z_G32},
                   {64, KT_W_INT4_G64, KT_W_INT4Z_G64},
                   {128, KT_W_INT4_G128, KT_W_INT4Z_G128}};
    const int is_symmetric = !s->zeros && !is_transposed(s) && s->scale_type == KT_W_BF16;

    for (size_t i = 0; i < sizeof formats / sizeof *formats && has_known_types(s); i++)
        if (formats[i].group == s->group)
            return is_symmetric ? formats[i].symmetric : formats[i].with_zeros;
    return KT_W_NONE;
}

static float scale_at(const kt_int4_source *s, int64_t i) {
    const char *scales = s->scales;
    uint16_t half;
    float single;

    if (s->scale_type == KT_W_F32) {
        memcpy(&single, scales + 4 * i, 4);
        return single;
    }
    memcpy(&half, scales + 2 * i, 2);
    return s->scale_type == KT_W_BF16 ? kt_bf16_to_f32(half) : kt_f16_to_f32(half);
}

static uint32_t word_at(const void *words, int64_t i) {
    uint32_t word;
    memcpy(&word, (const char *)words + 4 * i, 4);
    return word;
}

/* Where AWQ puts row 8j + i of a word: the inverse of 0 2 4 6 1 3 5 7. */
static const uint8_t awq_place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/* 16 is GPTQ's 15 + 1. */
static int zero_at(const kt_int4_source *s, int64_t row, int64_t g) {
    int place = (int)(row % 8);

    if (!s->zeros) return 8;
    if (!is_transposed(s))
        return (int)(word_at(s->zeros, row / 8 * (s->k / s->group) + g) >> 4 * place & 15);
    if (s->packing == KT_INT4_AWQ) place = awq_place[place];
    return (int)(word_at(s->zeros, g * (s->n / 8) + row / 8) >> 4 * place & 15) +
           (s->packing == KT_INT4_GPTQ);
}

/* The scale of a group as an IEEE half; -1 when that cannot hold it. */
static int half_scale(const kt_int4_source *s, int64_t i) {
    uint16_t bits;
    float scale;

    if (s->scale_type == KT_W_F16) {
        memcpy(&bits, (const char *)s->scales + 2 * i, 2);
        return bits;
    }
    scale = scale_at(s, i);
    bits = kt_f32_to_f16(scale);
    return kt_f16_to_f32(bits) == scale ? bits : -1;
}

/* One row of w4zg*: halves, then zero points. */
static kt_status import_row(const kt_int4_source *s, int64_t row, uint8_t *out, kt_err *err) {
    const int64_t groups = s->k / s->group;

    for (int64_t g = 0; g < groups; g++) {
        const int64_t at = is_transposed(s) ? g * s->n + row : row * groups + g;
        const int half = half_scale(s, at), zero = zero_at(s, row, g);
        const uint16_t bits = (uint16_t)half;
        if (half < 0)
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "scale of row %lld group %lld is %.9g, which half precision cannot hold",
                           (long long)row, (long long)g, (double)scale_at(s, at));
        if (zero > 15)
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "zero point of row %lld group %lld is 16, expected 0 to 15",
                           (long long)row, (long long)g);
        memcpy(out + 2 * g, &bits, 2);
        out[2 * groups + g] = (uint8_t)zero;
    }
    return KT_OK;
}

static __m128i load_words(const void *words, int64_t i) {
    return _mm_loadu_si128((const __m128i *)(const void *)((const char *)words + 4 * i));
}

/* Rows [row, row + count) of GPTQ's codes, count a multiple of 8: word j of these rows, which lie
 * side by side, is four bytes of each. Four words at a time; k is a multiple of 32. */
static void import_gptq(const kt_int4_source *s, int64_t row, int64_t count, uint8_t *out) {
    const int64_t row_bytes = s->k / 2;

    for (int64_t j = 0; j < s->k / 8; j += 4)
        for (int64_t four = 0; four < count; four += 4) {
            __m128i v[4];
            for (int i = 0; i < 4; i++) v[i] = load_words(s->packed, (j + i) * s->n + row + four);
            kt_turn_words(v);
            for (int i = 0; i < 4; i++)
                _mm_storeu_si128((__m128i *)(void *)(out + (four + i) * row_bytes + 4 * j), v[i]);
        }
}

/* 16 vectors of 16 bytes: byte i of vector j becomes byte j of vector i. */
static void turn_bytes(__m128i v[16]) {
    __m128i t[16];

    for (int step = 0; step < 4;
         step++) { /* each sends bit 3 of the vector's number to the byte's */
        for (int i = 0; i < 8; i++) {
            t[2 * i] = _mm_unpacklo_epi8(v[i], v[i + 8]);
            t[2 * i + 1] = _mm_unpackhi_epi8(v[i], v[i + 8]);
        }
        memcpy(v, t, sizeof t);
    }
}

/* Rows [row, row + 32) of AWQ's codes: words of an input hold eight rows each. Nibbles of two
 * inputs make one byte of each row, and 16 such pairs 16 bytes of each. */
static void import_awq(const kt_int4_source *s, int64_t row, uint8_t *out) {
    static const uint8_t low_row[4] = {0, 4, 1, 5}, high_row[4] = {2, 6, 3, 7};
    const __m128i mask = _mm_set1_epi8(15);
    const int64_t row_bytes = s->k / 2, words = s->n / 8;

    for (int64_t j = 0; j < row_bytes; j += 16) {
        __m128i low[16], high[16];
        for (int i = 0; i < 16; i++) {
            const __m128i even = load_words(s->packed, 2 * (j + i) * words + row / 8);
            const __m128i odd = load_words(s->packed, (2 * (j + i) + 1) * words + row / 8);
            low[i] = _mm_or_si128(_mm_and_si128(even, mask),
                                  _mm_slli_epi16(_mm_and_si128(odd, mask), 4));
            high[i] = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(even, 4), mask),
                                   _mm_andnot_si128(mask, odd));
        }
        turn_bytes(low);
        turn_bytes(high);
        for (int i = 0; i < 16; i++) {
            uint8_t *eight = out + (i / 4 * 8) * row_bytes + j;
            _mm_storeu_si128((__m128i *)(void *)(eight + low_row[i % 4] * row_bytes), low[i]);
            _mm_storeu_si128((__m128i *)(void *)(eight + high_row[i % 4] * row_bytes), high[i]);
        }
    }
}

/* Eight rows of AWQ's codes, input by input. */
static void import_awq_eight(const kt_int4_source *s, int64_t row, uint8_t *out) {
    const size_t row_bytes = (size_t)s->k / 2;

    for (int64_t j = 0; j < s->k / 2; j++) {
        uint32_t even = word_at(s->packed, 2 * j * (s->n / 8) + row / 8);
        uint32_t odd = word_at(s->packed, (2 * j + 1) * (s->n / 8) + row / 8);
        for (int i = 0; i < 8; i++) {
            uint32_t low = even >> 4 * awq_place[i] & 15, high = odd >> 4 * awq_place[i] & 15;
            out[(size_t)i * row_bytes + (size_t)j] = (uint8_t)(low | high << 4);
        }
    }
}

/* Codes of rows [begin, end), multiples of 8. */
static void import_transposed(const kt_int4_source *s, int64_t begin, int64_t end, uint8_t *data) {
    const int64_t row_bytes = s->k / 2;

    for (int64_t row = begin; row < end;) {
        uint8_t *out = data + row * row_bytes;
        if (s->packing != KT_INT4_AWQ) {
            const int64_t count = end - row >= 16 ? 16 : 8; /* a line of words */
            import_gptq(s, row, count, out);
            row += count;
        } else if (end - row >= 32) {
            import_awq(s, row, out);
            row += 32;
        } else {
            import_awq_eight(s, row, out);
            row += 8;
        }
    }
}

/* GPTQ's inputs must be in the order of their groups. */
static kt_status check_order(const kt_int4_source *s, kt_err *err) {
    for (int64_t g = 0; s->group_index && g < s->k / s->group; g++) {
        uint32_t differing = 0;
        for (int64_t i = g * s->group; i < (g + 1) * s->group; i++)
            differing |= word_at(s->group_index, i) ^ (uint32_t)g;
        for (int64_t i = g * s->group; differing; i++)
            if ((int32_t)word_at(s->group_index, i) != g)
                return kt_fail(
                    err, KT_E_UNSUPPORTED,
                    "g_idx: input %lld is of group %d, expected %lld: a checkpoint quantised with "
                    "desc_act (act-order) is not supported, use one without",
                    (long long)i, (int)(int32_t)word_at(s->group_index, i), (long long)g);
    }
    return KT_OK;
}

static kt_status check_shape(const kt_int4_source *s, int64_t row_begin, int64_t row_end,
                             kt_err *err) {
    if (kt_int4_import_format(s) == KT_W_NONE || s->k % s->group != 0 || row_begin < 0 ||
        row_end > s->n)
        return kt_fail(
            err, KT_E_UNSUPPORTED,
            "INT4 matrix of %lld x %lld: groups of %lld with %s scales, expected 32, 64 or "
            "128 that divide the inputs, with BF16, F16 or F32 scales",
            (long long)s->n, (long long)s->k, (long long)s->group,
            kt_weight_format_name(s->scale_type));
    return KT_OK;
}

static kt_status check(const kt_int4_source *s, int64_t row_begin, int64_t row_end, kt_err *err) {
    KT_TRY(check_shape(s, row_begin, row_end, err));
    if (!is_transposed(s)) return KT_OK;
    if (s->n % 8 || row_begin % 8 || row_end % 8 || !s->zeros)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "INT4 matrix of %lld x %lld: rows %lld to %lld %s zero points, expected "
                       "multiples of 8 and zero points",
                       (long long)s->n, (long long)s->k, (long long)row_begin, (long long)row_end,
                       s->zeros ? "with" : "without");
    return check_order(s, err);
}

/* Words of eight nibbles, least significant first, are our bytes: even input low. */
kt_status kt_int4_import(const kt_int4_source *s, int64_t row_begin, int64_t row_end, void *data,
                         void *scales, kt_err *err) {
    const kt_weight_format format = kt_int4_import_format(s);
    const size_t row_bytes = (size_t)s->k / 2;
    const int has_zeros = format >= KT_W_INT4Z_G32 && format <= KT_W_INT4Z_G128;
    int64_t groups;

    KT_TRY(check(s, row_begin, row_end, err));
    groups = s->k / s->group;
    if (is_transposed(s)) import_transposed(s, row_begin, row_end, data);
    for (int64_t row = row_begin; row < row_end; row++) {
        uint8_t *out = (uint8_t *)data + (size_t)row * row_bytes;
        if (!is_transposed(s))
            memcpy(out, (const char *)s->packed + (size_t)row * row_bytes, row_bytes);
        if (has_zeros)
            KT_TRY(import_row(s, row, (uint8_t *)scales + 3 * row * groups, err));
        else
            memcpy((uint16_t *)scales + row * groups, (const char *)s->scales + 2 * row * groups,
                   2 * (size_t)groups);
    }
    return KT_OK;
}

static int code_at(const kt_int4_source *s, int64_t row, int64_t i) {
    if (s->packing == KT_INT4_ROWS)
        return (int)(word_at(s->packed, row * (s->k / 8) + i / 8) >> 4 * (i % 8) & 15);
    if (s->packing == KT_INT4_AWQ)
        return (int)(word_at(s->packed, i * (s->n / 8) + row / 8) >> 4 * awq_place[row % 8] & 15);
    return (int)(word_at(s->packed, i / 8 * s->n + row) >> 4 * (i % 8) & 15);
}

kt_status kt_int4_decode_row(const kt_int4_source *s, int64_t row, float *out, kt_err *err) {
    int64_t group = -1, groups;
    float scale = 0;
    int zero = 0;

    KT_TRY(check_shape(s, row, row + 1, err));
    groups = s->k / s->group;
    for (int64_t i = 0; i < s->k; i++) {
        const int64_t g = s->group_index ? (int32_t)word_at(s->group_index, i) : i / s->group;
        if (g < 0 || g >= groups)
            return kt_fail(err, KT_E_FORMAT,
                           "g_idx: input %lld is of group %lld, expected 0 to %lld", (long long)i,
                           (long long)g, (long long)groups - 1);
        if (g != group) {
            scale = scale_at(s, is_transposed(s) ? g * s->n + row : row * groups + g);
            zero = zero_at(s, row, g);
            group = g;
        }
        out[i] = (float)(code_at(s, row, i) - zero) * scale;
    }
    return KT_OK;
}
