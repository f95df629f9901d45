/* safetensors: what is written reads back; what is wrong is refused with one clear message.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "runtime/loader/matrix_source.h"
#include "dispatch/model/checkpoint.h"
#include "tests/support/temp.h"

/* A file with this header text and data_bytes zero bytes behind it; returns its size. */
static size_t make_file(const char *folder, const char *name, const char *header,
                        size_t data_bytes) {
    size_t n = strlen(header), size = 8 + n + data_bytes;
    unsigned char *file = calloc(1, size);

    for (int i = 0; i < 8; i++) file[i] = (unsigned char)((uint64_t)n >> (8 * i));
    memcpy(file + 8, header, n);
    kt_temp_write(folder, name, file, size);
    free(file);
    return size;
}

static void expect_refused(const char *header, size_t data_bytes, kt_status status,
                           const char *words) {
    char folder[PATH_MAX], path[PATH_MAX + 16];
    kt_checkpoint *c = NULL;
    kt_err err = {KT_OK, ""};
    kt_status st;

    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/x.safetensors", folder);
    make_file(folder, "x.safetensors", header, data_bytes);
    st = kt_checkpoint_open_file(path, &c, &err);
    cr_expect(st == status, "%s: got %s (%s), expected %s", header, kt_status_name(st), err.message,
              kt_status_name(status));
    cr_expect_null(c);
    cr_expect(strstr(err.message, words), "%s: message '%s' lacks '%s'", header, err.message,
              words);
    cr_expect(strstr(err.message, "x.safetensors"), "message '%s' lacks the file", err.message);
    kt_checkpoint_close(c);
    kt_temp_remove(folder);
}

Test(safetensors, what_is_written_reads_back) {
    char folder[PATH_MAX], path[PATH_MAX + 16];
    const float f[6] = {1, 2, 3, 4, 5, 6};
    const int32_t ids[3] = {7, -8, 9};
    const kt_tensor_out out[] = {
        {.name = "b.weight", .dtype = KT_DTYPE_F32, .rank = 2, .shape = {2, 3}, .data = f},
        {.name = "a", .dtype = KT_DTYPE_I32, .rank = 1, .shape = {3}, .data = ids},
        {.name = "empty", .dtype = KT_DTYPE_BF16, .rank = 2, .shape = {0, 4}, .data = NULL},
        {.name = "scalar", .dtype = KT_DTYPE_F32, .rank = 0, .data = f + 5}};
    const int64_t shape[] = {2, 3}, wrong[] = {3, 2};
    kt_checkpoint *c;
    const kt_tensor *t;
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/x.safetensors", folder);
    cr_assert_eq(kt_safetensors_write(path, out, 4, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_checkpoint_open_file(path, &c, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_checkpoint_count(c), 4u);
    cr_expect_str_eq(kt_checkpoint_at(c, 0)->name, "a");
    cr_expect_null(kt_checkpoint_at(c, 4));
    cr_assert_eq(kt_checkpoint_need(c, "b.weight", 2, shape, &t, &err), KT_OK, "%s", err.message);
    cr_expect_eq(memcmp(t->data, f, sizeof f), 0);
    cr_expect_eq(memcmp(kt_checkpoint_find(c, "a")->data, ids, sizeof ids), 0);
    cr_expect_eq(kt_checkpoint_find(c, "empty")->bytes, 0u);
    cr_expect_eq(kt_checkpoint_find(c, "scalar")->bytes, 4u);
    cr_expect_eq(kt_checkpoint_need(c, "b.weight", 2, wrong, &t, &err), KT_E_MISMATCH);
    cr_expect(strstr(err.message, "[2, 3]") && strstr(err.message, "[3, 2]"), "%s", err.message);
    cr_expect_eq(kt_checkpoint_need(c, "absent", 2, shape, &t, &err), KT_E_NOT_FOUND);
    cr_expect(strstr(err.message, "'absent' is missing"), "%s", err.message);
    kt_checkpoint_close(c);
    kt_temp_remove(folder);
}

/* Tensors without elements lie where others begin, whatever their order in the header. */
Test(safetensors, empty_tensors_overlap_nothing) {
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                                 "\"b\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
                                 "\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]},"
                                 "\"d\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[8,8]}}";
    char folder[PATH_MAX], path[PATH_MAX + 16];
    kt_checkpoint *c = NULL;
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/x.safetensors", folder);
    make_file(folder, "x.safetensors", header, 12);
    cr_assert_eq(kt_checkpoint_open_file(path, &c, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_checkpoint_count(c), 4u);
    kt_checkpoint_close(c);
    kt_temp_remove(folder);
}

Test(safetensors, headers_that_lie_are_refused) {
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4,
                   KT_E_FORMAT, "truncated");
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 12,
                   KT_E_FORMAT, "after the last");
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
                   KT_E_FORMAT, "before tensor");
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                   "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
                   12, KT_E_FORMAT, "overlap");
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8,
                   KT_E_FORMAT, "needs 12");
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8,
                   KT_E_FORMAT, "not a size");
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,8]}}", 8,
                   KT_E_FORMAT, "not a size");
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4],"
                   "\"data_offsets\":[0,8]}}",
                   8, KT_E_FORMAT, "overflows");
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],"
                   "\"data_offsets\":[0,0]}}",
                   0, KT_E_FORMAT, "overflows");
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],"
                   "\"data_offsets\":[0,8]}}",
                   8, KT_E_FORMAT, "at most 8");
    expect_refused("{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
                   KT_E_UNSUPPORTED, "'F33' is not known");
    expect_refused("{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, KT_E_FORMAT,
                   "no dtype");
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8,
                   KT_E_FORMAT, "[begin, end]");
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 8,
                   KT_E_FORMAT, "[begin, end]");
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],"
                   "\"data_offsets\":[0,18446744073709551624]}}",
                   8, KT_E_FORMAT, "[begin, end]");
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
                   "\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                   0, KT_E_FORMAT, "header");
    expect_refused("{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
                   KT_E_FORMAT, "NUL");
    expect_refused("[]", 0, KT_E_FORMAT, "not a JSON object");
    expect_refused("{\"a\":[[[[1]]]]}", 0, KT_E_FORMAT, "header");
    expect_refused("{\"a\":", 0, KT_E_FORMAT, "header");
}

Test(safetensors, files_too_short_for_their_header_are_refused) {
    const unsigned char huge[] = {255, 255, 255, 255, 255, 255, 255, 255, '{', '}'};
    const unsigned char long_header[] = {64, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    const unsigned char no_room[] = {4, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, zeros[7] = {0};
    const struct {
        const unsigned char *data;
        size_t size;
        const char *words;
    } cases[] = {{huge, 0, "truncated"},
                 {huge, 5, "truncated"},
                 {huge, sizeof huge, "truncated"},
                 {zeros, sizeof zeros, "7 bytes are too few"},
                 {no_room, sizeof no_room, "should have 4 bytes"},
                 {long_header, sizeof long_header, "64 bytes"}};
    char folder[PATH_MAX], path[PATH_MAX + 16];
    kt_checkpoint *c;
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/x.safetensors", folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_temp_write(folder, "x.safetensors", cases[i].data, cases[i].size);
        cr_expect_neq(kt_checkpoint_open_file(path, &c, &err), KT_OK, "case %zu", i);
        cr_expect(strstr(err.message, cases[i].words), "case %zu: '%s'", i, err.message);
    }
    kt_temp_remove(folder);
}

static const char tensor_a[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";

static void check_index(const char *index, kt_status status, const char *words) {
    char folder[PATH_MAX];
    kt_checkpoint *c;
    kt_err err = {KT_OK, ""};
    kt_status st;

    kt_temp_make(folder, sizeof folder);
    make_file(folder, "one.safetensors", tensor_a, 8);
    make_file(folder, "two.safetensors",
              "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8);
    make_file(folder, "again.safetensors", tensor_a, 8);
    kt_temp_write(folder, "model.safetensors.index.json", index, strlen(index));
    st = kt_checkpoint_open(folder, &c, &err);
    cr_expect(st == status, "%s: got %s (%s)", index, kt_status_name(st), err.message);
    if (st == KT_OK) cr_expect_eq(kt_checkpoint_count(c), 2u);
    if (words)
        cr_expect(strstr(err.message, words), "%s: '%s' lacks '%s'", index, err.message, words);
    kt_checkpoint_close(c);
    kt_temp_remove(folder);
}

Test(safetensors, an_index_is_checked_against_its_shards) {
    check_index("{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}", KT_OK,
                NULL);
    check_index("{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"gone.safetensors\"}}",
                KT_E_NOT_FOUND, "gone.safetensors");
    check_index("{\"weight_map\":{\"a\":\"two.safetensors\",\"b\":\"two.safetensors\"}}",
                KT_E_MISMATCH, "'a' should be in two.safetensors");
    check_index("{\"weight_map\":{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}}",
                KT_E_MISMATCH, "'a' should be in two.safetensors, is in one.safetensors");
    check_index("{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"one.safetensors\"}}",
                KT_E_MISMATCH, "'b'");
    check_index("{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"again.safetensors\"}}",
                KT_E_FORMAT, "both");
    check_index("{\"weight_map\":{\"a\":\"../one.safetensors\"}}", KT_E_FORMAT, "same folder");
    check_index("{\"weight_map\":{\"a\":\"/etc/passwd\"}}", KT_E_FORMAT, "same folder");
    check_index("{\"weight_map\":{\"a\":\"..\"}}", KT_E_FORMAT, "same folder");
    check_index("{\"weight_map\":{\"a\":3}}", KT_E_FORMAT, "same folder");
    check_index("{\"weight_map\":{}}", KT_E_FORMAT, "weight_map");
    check_index("{}", KT_E_FORMAT, "weight_map");
    check_index("{", KT_E_FORMAT, "index.json");
}

/* Whatever bytes change, opening either fails cleanly or yields tensors inside the file. */
Test(safetensors, mutated_files_never_reach_outside, .timeout = 120) {
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"},"
                         "\"a\":{\"dtype\":\"BF16\",\"shape\":[4,8],\"data_offsets\":[0,64]},"
                         "\"b\":{\"dtype\":\"F32\",\"shape\":[2,4],\"data_offsets\":[64,96]},"
                         "\"c\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[96,97]}}";
    static const char alphabet[] = "0123456789{}[],:\"-.eaFIB\\ \xff";
    char folder[PATH_MAX], path[PATH_MAX + 16];
    size_t n = strlen(header), size = 8 + n + 97;
    unsigned char *file = calloc(1, size), *mutant = malloc(size);
    kt_rng rng;
    int opened = 0;

    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/x.safetensors", folder);
    file[0] = (unsigned char)n, file[1] = (unsigned char)(n >> 8);
    memcpy(file + 8, header, n);
    kt_rng_seed(&rng, 3);
    for (int i = 0; i < 4000; i++) {
        size_t kept = i % 7 == 0 ? kt_rng_below(&rng, size + 1) : size;
        kt_checkpoint *c = NULL;
        memcpy(mutant, file, size);
        for (uint64_t j = kt_rng_below(&rng, 4); j > 0; j--) {
            uint64_t at = kt_rng_below(&rng, 8 + n);
            mutant[at] = at < 8 ? (unsigned char)kt_rng_u64(&rng)
                                : (unsigned char)alphabet[kt_rng_below(&rng, sizeof alphabet - 1)];
        }
        kt_temp_write(folder, "x.safetensors", mutant, kept);
        if (kt_checkpoint_open_file(path, &c, NULL) != KT_OK) continue;
        opened++;
        for (size_t t = 0; t < kt_checkpoint_count(c); t++) {
            const kt_tensor *x = kt_checkpoint_at(c, t);
            unsigned sum = 0;
            for (size_t b = 0; b < x->bytes; b++) sum += x->data[b];
            cr_expect_eq(sum, 0u, "tensor %s reads header bytes", x->name);
        }
        kt_checkpoint_close(c);
    }
    cr_expect_gt(opened, 0, "every mutant was refused: the test shows nothing");
    kt_temp_remove(folder);
    free(file);
    free(mutant);
}

Test(safetensors, every_half_reads_as_its_value) {
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        uint16_t h = (uint16_t)bits;
        kt_tensor t = {.dtype = KT_DTYPE_F16, .data = (const uint8_t *)&h};
        int exponent = (int)(bits >> 10 & 31), mantissa = (int)(bits & 1023);
        double want =
            exponent ? (1024 + mantissa) * 0x1p-25 * (double)(1u << exponent) : mantissa * 0x1p-24;
        float got;
        if (exponent == 31) continue; /* infinities and NaN are refused later as not finite */
        if (bits & 0x8000) want = -want;
        kt_tensor_read_f32(&t, 0, 1, &got);
        cr_assert((double)got == want, "half %04x: got %g, want %g", bits, got, want);
    }
}

/* Data that starts at an odd address is copied instead of borrowed, and reads the same. */
Test(safetensors, unaligned_data_is_read) {
    char folder[PATH_MAX], path[PATH_MAX + 16];
    const char *header = "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2, 32],\"data_offsets\":[0,128]}}";
    kt_checkpoint *c;
    kt_matrix_source source = {0};
    kt_matrix w;
    kt_err err = {KT_OK, ""};
    float values[64];

    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/x.safetensors", folder);
    cr_assert_eq(strlen(header) % 2, 1u); /* so the data starts at an odd address */
    make_file(folder, "x.safetensors", header, 128);
    cr_assert_eq(kt_checkpoint_open_file(path, &c, &err), KT_OK, "%s", err.message);
    kt_matrix_source_add(&source, kt_checkpoint_at(c, 0), 0, 2);
    cr_expect_eq(kt_matrix_source_borrow(&source, KT_W_BF16, &w), 0);
    kt_tensor_read_f32(kt_checkpoint_at(c, 0), 0, 64, values);
    for (int i = 0; i < 64; i++) cr_expect_eq(values[i], 0.0f);
    kt_checkpoint_close(c);
    kt_temp_remove(folder);
}
