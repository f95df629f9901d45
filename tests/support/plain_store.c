/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/plain_store.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/numeric.h"
#include "tests/support/plain_impl.h"
#include "tests/support/temp.h"

const char *const kt_plain_encoding_names[KT_PLAIN_ENCODINGS] = {
    "floats", "fp8 block", "fp8 channel", "mxfp8", "int4",  "int4 with zeros",
    "awq",    "gptq",      "gptq_v2",     "mxfp4", "nvfp4", "nvfp4 compressed"};

typedef struct store {
    kt_plain_model *model;
    kt_plain_encoding encoding;
    int64_t group; /* of INT4 */
    kt_rng rng;
    uint64_t salt;
    kt_tensor_out *out;
    size_t n, room;
} store;

static void *room_for(int64_t count, size_t each) {
    void *p = calloc((size_t)count + 8, each);

    if (!p) abort();
    return p;
}

static void put(store *s, const char *matrix, const char *part, kt_dtype dtype, int rank,
                const int64_t dims[2], void *data) {
    char published[240], *name = room_for(300, 1);
    kt_tensor_out *t;

    if (s->n == s->room) {
        s->room = 2 * s->room + 64;
        s->out = realloc(s->out, s->room * sizeof *s->out);
        if (!s->out) abort();
    }
    snprintf(name, 300, "%s%s", matrix, part);
    snprintf(published, sizeof published, "%s",
             kt_plain_published_name(&s->model->shape, name, (char[240]){0}));
    snprintf(name, 300, "%s", published);
    t = &s->out[s->n++];
    *t = (kt_tensor_out){.name = name, .dtype = dtype, .rank = rank, .data = data};
    memcpy(t->shape, dims, sizeof *dims * (size_t)rank);
}

/* ---- floats ---- */

static void *floats(const double *x, int64_t count, kt_dtype dtype) {
    uint16_t *halves = room_for(count, 8);
    float *single = (float *)(void *)halves;
    int64_t *ids = (int64_t *)(void *)halves;

    for (int64_t i = 0; i < count; i++) {
        if (dtype == KT_DTYPE_F32)
            single[i] = (float)x[i];
        else if (dtype == KT_DTYPE_I64)
            ids[i] = (int64_t)x[i];
        else
            halves[i] =
                dtype == KT_DTYPE_F16 ? kt_f32_to_f16((float)x[i]) : kt_f32_to_bf16((float)x[i]);
    }
    return halves;
}

static double half_value(uint16_t h) {
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    const double x = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);

    return h & 0x8000 ? -x : x;
}

/* A number that the type holds. */
static double rounded(double x, kt_dtype dtype) {
    if (dtype == KT_DTYPE_F16) return half_value(kt_f32_to_f16((float)x));
    if (dtype == KT_DTYPE_BF16) return kt_bf16_to_f32(kt_f32_to_bf16((float)x));
    return (float)x;
}

/* ---- codes of small floats ---- */

static double e4m3_value(int code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double x = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);

    return code & 128 ? -x : x;
}

/* The nearest code; 448 is the largest. */
static uint8_t e4m3_code(double x) {
    int low = 0, high = 126;

    while (low < high) {
        const int middle = (low + high) / 2;
        if (e4m3_value(middle) + e4m3_value(middle + 1) < 2 * fabs(x))
            low = middle + 1;
        else
            high = middle;
    }
    return (uint8_t)(low | (x < 0 ? 128 : 0));
}

static double e2m1_value(int code) {
    static const double of[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

    return code & 8 ? -of[code & 7] : of[code & 7];
}

static int e2m1_code(double x) {
    int best = 0;

    for (int c = 1; c < 8; c++)
        if (fabs(fabs(x) - e2m1_value(c)) < fabs(fabs(x) - e2m1_value(best))) best = c;
    return best | (x < 0 ? 8 : 0);
}

static double largest(const double *x, int64_t rows, int64_t stride, int64_t k) {
    double most = 1e-3;

    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < k; i++) most = fmax(most, fabs(x[r * stride + i]));
    return most;
}

/* An exponent under which the largest number becomes at most `top`. */
static int exponent_for(double most, double top) {
    return (int)ceil(log2(most / top));
}

static void scaled_e4m3(double *x, uint8_t *code, int64_t rows, int64_t stride, int64_t k,
                        double scale) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < k; i++) {
            const uint8_t c = e4m3_code(x[r * stride + i] / scale);
            code[r * stride + i] = c;
            x[r * stride + i] = e4m3_value(c) * scale;
        }
}

/* ---- FP8 ---- */

static void put_fp8_block(store *s, const char *matrix, plain_tensor *t) {
    const int64_t rows = (t->rows + 127) / 128, blocks = (t->k + 127) / 128;
    const kt_dtype types[] = {KT_DTYPE_F32, KT_DTYPE_BF16, KT_DTYPE_F8_E8M0};
    const kt_dtype type = types[kt_rng_below(&s->rng, 3)];
    const bool is_exponent = type == KT_DTYPE_F8_E8M0;
    uint8_t *codes = room_for(t->rows * t->k, 1), *exponents = room_for(rows * blocks, 1);
    double *scales = room_for(rows * blocks, sizeof *scales);

    for (int64_t r = 0; r < rows; r++)
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t n = t->rows - 128 * r < 128 ? t->rows - 128 * r : 128;
            const int64_t k = t->k - 128 * b < 128 ? t->k - 128 * b : 128;
            double *at = t->value + 128 * r * t->k + 128 * b;
            const double most = largest(at, n, t->k, k);
            double scale = rounded(most / 440, type);
            if (is_exponent) scale = ldexp(1, exponent_for(most, 448));
            scales[r * blocks + b] = scale;
            exponents[r * blocks + b] = (uint8_t)(127 + lround(log2(scale)));
            scaled_e4m3(at, codes + 128 * r * t->k + 128 * b, n, t->k, k, scale);
        }
    put(s, matrix, ".weight", KT_DTYPE_F8_E4M3, 2, (int64_t[]){t->rows, t->k}, codes);
    put(s, matrix, ".weight_scale_inv", type, 2, (int64_t[]){rows, blocks},
        is_exponent ? (void *)exponents : floats(scales, rows * blocks, type));
    if (!is_exponent) free(exponents);
    free(scales);
}

/* One scale per row, as [n] or [n, 1], or one for all. */
static void put_fp8_channel(store *s, const char *matrix, plain_tensor *t) {
    const kt_dtype type = kt_rng_below(&s->rng, 2) ? KT_DTYPE_F32 : KT_DTYPE_BF16;
    const uint64_t form = kt_rng_below(&s->rng, 4);
    const bool is_single = form == 0;
    uint8_t *codes = room_for(t->rows * t->k, 1);
    double *scales = room_for(t->rows, sizeof *scales);

    for (int64_t r = 0; r < t->rows; r++) {
        scales[r] = rounded(
            largest(t->value + (is_single ? 0 : r) * t->k, is_single ? t->rows : 1, t->k, t->k) /
                440,
            type);
        if (is_single) scales[r] = scales[0];
    }
    if (is_single) scales[0] = rounded(largest(t->value, t->rows, t->k, t->k) / 440, type);
    for (int64_t r = 0; r < t->rows; r++)
        scaled_e4m3(t->value + r * t->k, codes + r * t->k, 1, t->k, t->k,
                    scales[is_single ? 0 : r]);
    put(s, matrix, ".weight", KT_DTYPE_F8_E4M3, 2, (int64_t[]){t->rows, t->k}, codes);
    put(s, matrix, ".weight_scale", type,
        is_single   ? 1
        : form == 1 ? 1
                    : 2,
        (int64_t[]){is_single ? 1 : t->rows, 1}, floats(scales, is_single ? 1 : t->rows, type));
    free(scales);
}

static void put_mxfp8(store *s, const char *matrix, plain_tensor *t) {
    const bool is_inverse = kt_rng_below(&s->rng, 2);
    uint8_t *codes = room_for(t->rows * t->k, 1), *exponents = room_for(t->rows * t->k / 32, 1);

    for (int64_t g = 0; g < t->rows * t->k / 32; g++) {
        double *at = t->value + 32 * g;
        const int exponent = exponent_for(largest(at, 1, 0, 32), 448);
        exponents[g] = (uint8_t)(127 + exponent);
        scaled_e4m3(at, codes + 32 * g, 1, 32, 32, ldexp(1, exponent));
    }
    put(s, matrix, ".weight", KT_DTYPE_F8_E4M3, 2, (int64_t[]){t->rows, t->k}, codes);
    put(s, matrix, is_inverse ? ".weight_scale_inv" : ".weight_scale",
        kt_rng_below(&s->rng, 2) ? KT_DTYPE_U8 : KT_DTYPE_F8_E8M0, 2,
        (int64_t[]){t->rows, t->k / 32}, exponents);
}

/* ---- FP4 ---- */

/* Two codes to a byte, the first in the low nibble. */
static void put_pair(uint8_t *codes, int64_t i, int code) {
    codes[i / 2] = (uint8_t)(codes[i / 2] | code << 4 * (i % 2));
}

static void put_mxfp4(store *s, const char *matrix, plain_tensor *t) {
    const int64_t count = t->rows * t->k;
    const bool is_named = kt_rng_below(&s->rng, 2);
    uint8_t *codes = room_for(count / 2, 1), *exponents = room_for(count / 32, 1);

    for (int64_t g = 0; g < count / 32; g++) {
        const int exponent = exponent_for(largest(t->value + 32 * g, 1, 0, 32), 6);
        exponents[g] = (uint8_t)(127 + exponent);
        for (int64_t i = 32 * g; i < 32 * g + 32; i++) {
            const int code = e2m1_code(ldexp(t->value[i], -exponent));
            put_pair(codes, i, code);
            t->value[i] = ldexp(e2m1_value(code), exponent);
        }
    }
    put(s, matrix, is_named ? ".weight_packed" : ".weight", KT_DTYPE_U8, 2,
        (int64_t[]){t->rows, t->k / 2}, codes);
    put(s, matrix, is_named ? ".weight_scale" : ".scale", KT_DTYPE_U8, 2,
        (int64_t[]){t->rows, t->k / 32}, exponents);
}

static void put_nvfp4(store *s, const char *matrix, plain_tensor *t) {
    const int64_t count = t->rows * t->k;
    const bool is_divisor = s->encoding == KT_PLAIN_NVFP4_COMPRESSED;
    const double most = largest(t->value, t->rows, t->k, t->k);
    float stored = (float)(is_divisor ? 6 * 448 / most : most / (6 * 448));
    const double factor = is_divisor ? (double)(float)(1 / (double)stored) : (double)stored;
    uint8_t *codes = room_for(count / 2, 1), *scales = room_for(count / 16, 1);
    float *number = room_for(1, sizeof *number);

    for (int64_t g = 0; g < count / 16; g++) {
        double scale;
        scales[g] = e4m3_code(fmax(largest(t->value + 16 * g, 1, 0, 16) / 6 / factor, 1));
        scale = e4m3_value(scales[g]) * factor;
        for (int64_t i = 16 * g; i < 16 * g + 16; i++) {
            const int code = e2m1_code(t->value[i] / scale);
            put_pair(codes, i, code);
            t->value[i] = e2m1_value(code) * scale;
        }
    }
    *number = stored;
    put(s, matrix, is_divisor ? ".weight_packed" : ".weight", KT_DTYPE_U8, 2,
        (int64_t[]){t->rows, t->k / 2}, codes);
    put(s, matrix, ".weight_scale", KT_DTYPE_F8_E4M3, 2, (int64_t[]){t->rows, t->k / 16}, scales);
    put(s, matrix, is_divisor ? ".weight_global_scale" : ".weight_scale_2", KT_DTYPE_F32,
        is_divisor ? 1 : 0, (int64_t[]){1, 0}, number);
}

/* ---- INT4 ---- */

/* Code and zero point of each packing, by models.md 9. */
static void put_nibble(uint32_t *words, int64_t word, int64_t place, int value) {
    words[word] |= (uint32_t)value << 4 * place;
}

static void pack_code(const store *s, const plain_tensor *t, uint32_t *words, int64_t r, int64_t i,
                      int code) {
    static const int place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

    if (s->encoding == KT_PLAIN_AWQ)
        put_nibble(words, i * (t->rows / 8) + r / 8, place[r % 8], code);
    else if (s->encoding == KT_PLAIN_GPTQ || s->encoding == KT_PLAIN_GPTQ_V2)
        put_nibble(words, i / 8 * t->rows + r, i % 8, code);
    else
        put_nibble(words, r * (t->k / 8) + i / 8, i % 8, code);
}

static void pack_zero(const store *s, const plain_tensor *t, uint32_t *words, int64_t r, int64_t g,
                      int64_t groups, int zero) {
    static const int place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

    if (s->encoding == KT_PLAIN_AWQ)
        put_nibble(words, g * (t->rows / 8) + r / 8, place[r % 8], zero);
    else if (s->encoding == KT_PLAIN_GPTQ || s->encoding == KT_PLAIN_GPTQ_V2)
        put_nibble(words, g * (t->rows / 8) + r / 8, r % 8, zero - (s->encoding == KT_PLAIN_GPTQ));
    else
        put_nibble(words, r / 8 * groups + g, r % 8, zero);
}

static void put_int4(store *s, const char *matrix, plain_tensor *t) {
    const bool is_rows = s->encoding == KT_PLAIN_INT4 || s->encoding == KT_PLAIN_INT4_ZEROS;
    const bool has_zeros = s->encoding != KT_PLAIN_INT4;
    const bool is_awq = s->encoding == KT_PLAIN_AWQ;
    const int64_t n = t->rows, k = t->k, groups = k / s->group;
    const kt_dtype type = has_zeros ? KT_DTYPE_F16 : KT_DTYPE_BF16;
    uint32_t *words = room_for(n * k / 8, 4), *zeros = room_for((n + 7) / 8 * groups, 4);
    double *scales = room_for(n * groups, sizeof *scales);
    int32_t *index = room_for(k, 4);
    int64_t *shape = room_for(2, 8);

    for (int64_t r = 0; r < n; r++)
        for (int64_t g = 0; g < groups; g++) {
            double *at = t->value + r * k + g * s->group, scale;
            const int zero = has_zeros ? 5 + (int)kt_rng_below(&s->rng, 6) : 8;
            scale = rounded(largest(at, 1, 0, s->group) / (zero < 8 ? zero : 15 - zero), type);
            scales[is_rows ? r * groups + g : g * n + r] = scale;
            if (has_zeros) pack_zero(s, t, zeros, r, g, groups, zero);
            for (int64_t i = 0; i < s->group; i++) {
                const int code = (int)fmin(fmax(round(at[i] / scale) + zero, 0), 15);
                pack_code(s, t, words, r, g * s->group + i, code);
                at[i] = (code - zero) * scale;
            }
        }
    for (int64_t i = 0; i < k; i++) index[i] = (int32_t)(i / s->group);
    shape[0] = n;
    shape[1] = k;
    if (is_rows) {
        put(s, matrix, ".weight_packed", KT_DTYPE_I32, 2, (int64_t[]){n, k / 8}, words);
        put(s, matrix, ".weight_shape", KT_DTYPE_I64, 1, (int64_t[]){2, 0}, shape);
    } else {
        put(s, matrix, ".qweight", KT_DTYPE_I32, 2,
            (int64_t[]){is_awq ? k : k / 8, is_awq ? n / 8 : n}, words);
        free(shape);
    }
    put(s, matrix, is_rows ? ".weight_scale" : ".scales", type, 2,
        (int64_t[]){is_rows ? n : groups, is_rows ? groups : n}, floats(scales, n * groups, type));
    if (has_zeros)
        put(s, matrix, is_rows ? ".weight_zero_point" : ".qzeros", KT_DTYPE_I32, 2,
            (int64_t[]){is_rows ? (n + 7) / 8 : groups, is_rows ? groups : n / 8}, zeros);
    else
        free(zeros);
    if (!is_rows && !is_awq)
        put(s, matrix, ".g_idx", KT_DTYPE_I32, 1, (int64_t[]){k, 0}, index);
    else
        free(index);
    free(scales);
}

/* ---- which ---- */

typedef void put_matrix(store *s, const char *matrix, plain_tensor *t);

static put_matrix *const writers[KT_PLAIN_ENCODINGS] = {
    NULL,     put_fp8_block, put_fp8_channel, put_mxfp8, put_int4,  put_int4,
    put_int4, put_int4,      put_int4,        put_mxfp4, put_nvfp4, put_nvfp4};

bool kt_plain_is_matrix(const plain_tensor *t) {
    static const char *const none[] = {"embed",      "conv1d", "gate.weight", "shared_expert_gate",
                                       "compressor", "hc_"};
    const char *end = strrchr(t->name, '.');

    if (!t->rows || !end || strcmp(end, ".weight") != 0 || t->dtype != KT_DTYPE_BF16) return false;
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (strstr(t->name, none[i])) return false;
    return true;
}

uint64_t kt_plain_role(const char *name, bool is_pair) {
    uint64_t hash = 1469598103934665603u;
    const char *expert = strstr(name, ".experts.");

    for (const char *c = name; *c; c++) {
        if (expert && c > expert + 8 && *c >= '0' && *c <= '9' && c[-1] != 'w') continue;
        if (is_pair && (strncmp(c, "up_proj", 7) == 0)) {
            hash = (hash ^ 'g') * 1099511628211u;
            hash = (hash ^ 'a') * 1099511628211u;
            hash = (hash ^ 't') * 1099511628211u;
            hash = (hash ^ 'e') * 1099511628211u;
            c += 1;
            continue;
        }
        hash =
            (hash ^ (uint64_t)(is_pair && c[0] == '3' && c[-1] == 'w' ? '1' : *c)) * 1099511628211u;
    }
    return hash ^ hash >> 31;
}

/* Three of four roles. */
static bool is_encoded(const store *s, const plain_tensor *t) {
    const bool is_int4 = writers[s->encoding] == put_int4;
    const uint64_t role = (kt_plain_role(t->name, true) ^ s->salt) * 0x9e3779b97f4a7c15u;

    if (!writers[s->encoding] || !kt_plain_is_matrix(t) || (role >> 40) % 4 == 0) return false;
    if (is_int4 && t->k % s->group) return false;
    if (is_int4 && s->encoding != KT_PLAIN_INT4 && s->encoding != KT_PLAIN_INT4_ZEROS)
        return t->rows % 8 == 0;
    return t->k % 32 == 0;
}

static void put_floats(store *s, const plain_tensor *t) {
    static const kt_dtype types[] = {KT_DTYPE_BF16, KT_DTYPE_F16, KT_DTYPE_F32};
    int64_t dims[4], count = (t->rows ? t->rows : 1) * t->k;
    kt_dtype type = t->dtype;
    int rank = 0;

    if (s->encoding == KT_PLAIN_FLOATS && kt_plain_is_matrix(t)) {
        type = types[((kt_plain_role(t->name, true) ^ s->salt) * 0x9e3779b97f4a7c15u >> 40) % 3];
        for (int64_t i = 0; type == KT_DTYPE_F16 && i < count; i++)
            t->value[i] = rounded(t->value[i], type);
    }
    if (t->rows) dims[rank++] = t->rows;
    if (strstr(t->name, "conv1d")) dims[rank++] = 1;
    dims[rank++] = t->k;
    put(s, t->name, "", type, rank, dims, floats(t->value, count, type));
}

/* ---- config.json ---- */

static void say_encoding(const store *s, char *out, size_t room) {
    const int group = (int)s->group;

    switch (s->encoding) {
    case KT_PLAIN_FP8_BLOCK:
        snprintf(out, room,
                 "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"activation_scheme\":"
                 "\"dynamic\",\"weight_block_size\":[128,128]}");
        break;
    case KT_PLAIN_FP8_CHANNEL:
        snprintf(out, room,
                 "{\"quant_method\":\"compressed-tensors\",\"format\":"
                 "\"float-quantized\"}");
        break;
    case KT_PLAIN_MXFP8: snprintf(out, room, "{\"quant_method\":\"mxfp8\"}"); break;
    case KT_PLAIN_INT4:
    case KT_PLAIN_INT4_ZEROS:
        snprintf(out, room,
                 "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\","
                 "\"config_groups\":{\"group_0\":{\"weights\":{\"num_bits\":4,\"group_size\":%d,"
                 "\"symmetric\":%s}}}}",
                 group, s->encoding == KT_PLAIN_INT4 ? "true" : "false");
        break;
    case KT_PLAIN_AWQ:
        snprintf(out, room,
                 "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":%d,"
                 "\"zero_point\":true,\"version\":\"gemm\"}",
                 group);
        break;
    case KT_PLAIN_GPTQ:
    case KT_PLAIN_GPTQ_V2:
        snprintf(out, room,
                 "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":%d,"
                 "\"desc_act\":false,\"sym\":false,\"checkpoint_format\":\"%s\"}",
                 group, kt_plain_encoding_names[s->encoding]);
        break;
    case KT_PLAIN_MXFP4:
        snprintf(out, room,
                 "{\"quant_method\":\"compressed-tensors\",\"format\":"
                 "\"mxfp4-pack-quantized\"}");
        break;
    case KT_PLAIN_NVFP4:
        snprintf(out, room, "{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\"}");
        break;
    default:
        snprintf(out, room,
                 "{\"quant_method\":\"compressed-tensors\",\"format\":"
                 "\"nvfp4-pack-quantized\"}");
    }
}

static void write_config(const store *s, const char *folder) {
    char path[4200], declared[512], *text, *whole;
    size_t size;
    kt_err err = {KT_OK, ""};

    if (s->encoding == KT_PLAIN_FLOATS) return;
    snprintf(path, sizeof path, "%s/config.json", folder);
    if (kt_file_read(path, 1 << 20, &text, &size, &err) != KT_OK) abort();
    say_encoding(s, declared, sizeof declared);
    whole = room_for((int64_t)(size + sizeof declared + 64), 1);
    snprintf(whole, size + sizeof declared + 64, "%.*s,\"quantization_config\":%s}",
             (int)(size - 1), text, declared);
    kt_temp_write(folder, "config.json", whole, strlen(whole));
    free(text), free(whole);
}

void kt_plain_store(kt_plain_model *m, kt_plain_encoding encoding, uint64_t seed,
                    const char *folder) {
    store s = {.model = m, .encoding = encoding};
    char path[4200], matrix[240];
    kt_err err = {KT_OK, ""};

    kt_rng_seed(&s.rng, seed);
    s.salt = kt_rng_u64(&s.rng);
    s.group = 32 << kt_rng_below(&s.rng, 3);
    for (int i = 0; i < m->count; i++) {
        plain_tensor *t = &m->tensor[i];
        if (!is_encoded(&s, t)) {
            put_floats(&s, t);
            continue;
        }
        snprintf(matrix, sizeof matrix, "%.*s", (int)(strlen(t->name) - strlen(".weight")),
                 t->name);
        writers[encoding](&s, matrix, t);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (kt_safetensors_write(path, s.out, s.n, &err) != KT_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    write_config(&s, folder);
    for (size_t i = 0; i < s.n; i++) {
        free((void *)(uintptr_t)s.out[i].name);
        free((void *)(uintptr_t)s.out[i].data);
    }
    free(s.out);
}
