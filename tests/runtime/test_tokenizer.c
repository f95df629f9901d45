/* Tokenizer against published vectors, its own laws, and damaged files.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/rng.h"
#include "dispatch/model/gguf_meta.h"
#include "runtime/token/normalize.h"
#include "runtime/token/tokenizer_impl.h"
#include "runtime/token/utf8_scan.h"
#include "tests/support/guard.h"

#define TINY KT_SOURCE_DIR "/datasets/models/tiny-moe"
#define GPT_2 "data/tokenizers/ggml-vocab-gpt-2.gguf"
#define NOT_SHARED "%s: the shared data is absent"

static kt_tokenizer *load(const char *path) {
    kt_tokenizer *t = NULL;
    kt_err err = {0};
    cr_assert_eq(kt_tokenizer_load(path, &t, &err), KT_OK, "%s", err.message);
    return t;
}

static kt_tokenizer *load_shared(const char *relative) {
    char path[1024];
    if (!kt_shared_path(relative, path, sizeof path)) {
        cr_skip_test(NOT_SHARED, relative);
    }
    return load(path);
}

static kt_tokenizer *load_tiny(void) {
    return load(TINY "/tokenizer.json");
}

static size_t encode(const kt_tokenizer *t, const char *text, size_t n, bool special,
                     int32_t **ids) {
    size_t count = 0;
    kt_err err = {0};
    kt_status st = kt_tokenizer_encode(t, text, n, special, ids, &count, &err);
    cr_assert_eq(st, KT_OK, "%s", err.message);
    return count;
}

static char *read_text(const char *path, size_t *n) {
    char *text = NULL;
    kt_err err = {0};
    cr_assert_eq(kt_file_read(path, 1 << 28, &text, n, &err), KT_OK, "%s", err.message);
    return text;
}

/* ---- the 47 strings of llama.cpp ---- */

/* One case: the text up to the separator line, and the ids on one line of the other file. */
static bool one_case(const kt_tokenizer *t, const char *name, int number, const char *text,
                     size_t n, char **want_line) {
    int32_t *ids;
    size_t count = encode(t, text, n, false, &ids), i = 0;
    char *at = *want_line, *end = at + strcspn(at, "\n"), *next;
    bool same = true;

    for (;; at = next, i++) {
        long want = strtol(at, &next, 10);
        if (next == at || next > end) break;
        same = same && i < count && ids[i] == want;
    }
    same = same && i == count;
    if (!same) {
        fprintf(stderr, "%s case %d: want %.*s\n got", name, number,
                end - *want_line < 80 ? (int)(end - *want_line) : 80, *want_line);
        for (i = 0; i < count && i < 12; i++) fprintf(stderr, " %d", ids[i]);
        fprintf(stderr, "\n");
    }
    *want_line = *end ? end + 1 : end;
    free(ids);
    return same;
}

/* Destroys the tokenizer. */
static void check_vectors_of(kt_tokenizer *t, const char *name, int want_cases, int want_good) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char path[1024], relative[256];
    char *in, *out, *at, *line;
    size_t n;
    int cases = 0, good = 0;

    snprintf(relative, sizeof relative, "data/tokenizers/ggml-vocab-%s.gguf.inp", name);
    if (!kt_shared_path(relative, path, sizeof path)) cr_skip_test(NOT_SHARED, relative);
    in = read_text(path, &n);
    memcpy(path + strlen(path) - 3, "out", 3);
    out = read_text(path, &n);
    line = out;
    for (at = in; at;) {
        char *end = strstr(at, separator); /* the last text is the one after the last separator */
        size_t size = end ? (size_t)(end - at) : strlen(at);
        good += one_case(t, name, cases++, at, size, &line);
        at = end ? end + strlen(separator) : NULL;
    }
    cr_assert_eq(cases, want_cases, "%s: %d cases", name, cases);
    cr_assert_eq(good, want_good, "%s: %d of %d", name, good, want_cases);
    kt_tokenizer_destroy(t);
    free(in);
    free(out);
}

static void check_vectors(const char *name, const char *vocabulary) {
    check_vectors_of(load_shared(vocabulary), name, 47, 47);
}

Test(tokenizer, gpt_2_vectors) {
    check_vectors("gpt-2", GPT_2);
}
Test(tokenizer, deepseek_coder_vectors) {
    check_vectors("deepseek-coder", "data/tokenizers/ggml-vocab-deepseek-coder.gguf");
}
Test(tokenizer, deepseek_llm_vectors) {
    check_vectors("deepseek-llm", "data/tokenizers/ggml-vocab-deepseek-llm.gguf");
}
Test(tokenizer, qwen2_vectors) {
    check_vectors("qwen2", "data/tokenizers/qwen3-reconstructed/tokenizer.json");
}
Test(tokenizer, deepseek_r1_qwen_vectors) {
    check_vectors("deepseek-r1-qwen", "data/tokenizers/qwen3-reconstructed/tokenizer.json");
}
Test(tokenizer, falcon_vectors) {
    check_vectors("falcon", "data/tokenizers/ggml-vocab-falcon.gguf");
}
Test(tokenizer, mpt_vectors_with_its_runs_of_spaces) {
    check_vectors("mpt", "data/tokenizers/ggml-vocab-mpt.gguf");
}

/* ---- merging by rank ---- */

/* A vocabulary of Qwen as tiktoken keeps it, with one of the named pre-tokenizers. */
static kt_tokenizer *load_ranks(const char *pre) {
    static const char vocabulary[] = "data/tokenizers/qwen.tiktoken";
    char path[1024], *text;
    kt_tokenizer *t = calloc(1, sizeof *t);
    kt_err err = {0};
    size_t n;

    if (!kt_shared_path(vocabulary, path, sizeof path)) cr_skip_test(NOT_SHARED, vocabulary);
    text = read_text(path, &n);
    kt_bpe_init(&t->bpe);
    cr_assert_eq(kt_tokenizer_set_pre(t, pre, strlen(pre), &err), KT_OK, "%s", err.message);
    t->bpe.by_rank = true;
    cr_assert_eq(kt_tiktoken_parse(t, text, n, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_bpe_index(&t->bpe, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_bpe_finish(&t->bpe, &err), KT_OK, "%s", err.message);
    free(text);
    return t;
}

Test(tokenizer, qwen2_vectors_by_rank) {
    check_vectors_of(load_ranks("qwen2"), "qwen2", 47, 47);
}

/* The file has llama.cpp's ids, which leaves the normal form out: three texts of decomposed
 * letters differ. */
Test(tokenizer, qwen35_vectors_by_rank) {
    kt_tokenizer *t = load_ranks("qwen35");
    t->n_forms = 0;
    check_vectors_of(t, "qwen35", 51, 51);
    check_vectors_of(load_ranks("qwen35"), "qwen35", 51, 48);
}

/* The list of merges was derived from the ranks: a whole book gives the same tokens either way. */
Test(tokenizer, a_book_by_rank_and_by_merges_is_the_same, .timeout = 120) {
    static const char book[] = "data/tokenizers/war-and-peace.txt";
    kt_tokenizer *by_rank = load_ranks("qwen2");
    kt_tokenizer *by_merges = load_shared("data/tokenizers/qwen3-reconstructed/tokenizer.json");
    char path[1024], *text;
    int32_t *a, *b;
    size_t n, n_a, n_b;

    if (!kt_shared_path(book, path, sizeof path)) cr_skip_test(NOT_SHARED, book);
    text = read_text(path, &n);
    n_a = encode(by_rank, text, n, false, &a);
    n_b = encode(by_merges, text, n, false, &b);
    cr_assert(n_a == n_b && memcmp(a, b, n_a * sizeof *a) == 0, "%zu and %zu tokens", n_a, n_b);
    free(text);
    free(a);
    free(b);
    kt_tokenizer_destroy(by_rank);
    kt_tokenizer_destroy(by_merges);
}

/* ---- fingerprints of the published tokenizers ---- */

static uint32_t rotate(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

/* SHA-256 (FIPS 180-4) of one padded block after another; the constants are computed, not
 * listed. */
static void sha256(const char *text, size_t n, char hex[65]) {
    uint32_t h[8], k[64];
    size_t blocks = (n + 8) / 64 + 1;
    unsigned char *data = calloc(blocks, 64);

    for (int i = 0, prime = 2; i < 64; prime++) {
        bool is_prime = true;
        for (int d = 2; d * d <= prime; d++) is_prime = is_prime && prime % d;
        if (!is_prime) continue;
        long double root = sqrtl((long double)prime), cube = cbrtl((long double)prime);
        if (i < 8) h[i] = (uint32_t)((root - floorl(root)) * 4294967296.0L);
        k[i++] = (uint32_t)((cube - floorl(cube)) * 4294967296.0L);
    }
    memcpy(data, text, n);
    data[n] = 0x80;
    for (int i = 0; i < 8; i++) data[blocks * 64 - 1 - (size_t)i] = (unsigned char)(n * 8 >> 8 * i);
    for (size_t b = 0; b < blocks; b++) {
        uint32_t w[64], v[8];
        for (int i = 0; i < 16; i++) {
            const unsigned char *p = data + b * 64 + i * 4;
            w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
        }
        for (int i = 16; i < 64; i++) {
            uint32_t x = w[i - 15], y = w[i - 2];
            w[i] = w[i - 16] + (rotate(x, 7) ^ rotate(x, 18) ^ x >> 3) + w[i - 7] +
                   (rotate(y, 17) ^ rotate(y, 19) ^ y >> 10);
        }
        memcpy(v, h, sizeof v);
        for (int i = 0; i < 64; i++) {
            uint32_t t1 = v[7] + (rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25)) +
                          ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
            uint32_t t2 = (rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22)) +
                          ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
            memmove(v + 1, v, 7 * sizeof *v);
            v[4] += t1;
            v[0] = t1 + t2;
        }
        for (int i = 0; i < 8; i++) h[i] += v[i];
    }
    for (int i = 0; i < 8; i++) sprintf(hex + 8 * i, "%08x", h[i]);
    free(data);
}

Test(tokenizer, sha256_is_right) {
    char hex[65];
    sha256("abc", 3, hex);
    cr_assert_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

typedef struct {
    const char *vocabulary, *prefix, *hash, *suffix;
} published_hash;

/* Converters publish the hash of "[1, 2, 3]", the ids that the original tokenizer gives a check
 * text. */
static void check_hashes(const published_hash *cases, size_t n_cases) {
    static const char check_text[] = "data/tokenizers/chktxt.txt";
    char path[1024], hex[65];
    size_t n;
    char *text;

    if (!kt_shared_path(check_text, path, sizeof path)) cr_skip_test(NOT_SHARED, check_text);
    text = read_text(path, &n);
    for (size_t c = 0; c < n_cases; c++) {
        kt_tokenizer *t = load_shared(cases[c].vocabulary);
        int32_t *ids;
        size_t count = encode(t, text, n, true, &ids), at;
        char *list = malloc(count * 12 + 96);
        at = (size_t)sprintf(list, "[%s", cases[c].prefix);
        for (size_t i = 0; i < count; i++) {
            at += (size_t)sprintf(list + at, "%s%d", i ? ", " : "", ids[i]);
        }
        at += (size_t)sprintf(list + at, "%s]", cases[c].suffix);
        sha256(list, at, hex);
        cr_assert_str_eq(hex, cases[c].hash, "%s", cases[c].vocabulary);
        free(list);
        free(ids);
        kt_tokenizer_destroy(t);
    }
    free(text);
}

Test(tokenizer, ids_of_the_check_text_have_the_published_hash) {
    static const published_hash cases[] = {
        {GPT_2, "", "3ce83efda5659b07b1ad37ca97ca5797ea4285d9b9ab0dc679e4a720c9da7454", ""},
        {"data/tokenizers/qwen3-reconstructed/tokenizer.json", "",
         "e636dc30a262dcc0d8c323492e32ae2b70728f4df7dfe9737d9f920a282b8aea", ""},
        {"data/tokenizers/qwen3-reconstructed/tokenizer.json", "151646, ",
         "b3f499bb4255f8ca19fccd664443283318f2fd2414d5e0b040fbdd0cc195d6c5", ""},
    };
    check_hashes(cases, sizeof cases / sizeof *cases);
}

Test(tokenizer, ids_of_the_check_text_have_the_published_hash_deepseek) {
    static const published_hash cases[] = {
        {"data/tokenizers/ggml-vocab-deepseek-llm.gguf", "100000, ",
         "049ecf7629871e3041641907f3de7c733e4dbfdc736f57d882ba0b0845599754", ""},
        {"data/tokenizers/ggml-vocab-deepseek-coder.gguf", "32013, ",
         "347715f544604f9118bb75ed199f68779f423cabb20db6de6f31b908d04d7821", ""},
    };
    check_hashes(cases, sizeof cases / sizeof *cases);
}

/* ---- our own model ---- */

Test(tokenizer, tiny_model_ids) {
    static const struct {
        const char *text;
        int32_t ids[16];
        size_t n;
    } cases[] = {
        {"In that day shall", {897, 306, 464, 323}, 4},
        {"Genesis, Chapter 1\n\n", {2800, 11, 709, 220, 16, 304}, 6},
        {"And it came to pass in those days, that",
         {307, 352, 522, 290, 675, 294, 977, 759, 11, 306},
         10},
        {"", {0}, 0},
    };
    kt_tokenizer *t = load_tiny();
    int32_t *ids;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = encode(t, cases[i].text, strlen(cases[i].text), true, &ids);
        cr_assert_eq(n, cases[i].n, "'%s': %zu ids", cases[i].text, n);
        cr_assert(n == 0 || memcmp(ids, cases[i].ids, n * sizeof *ids) == 0, "'%s'", cases[i].text);
        free(ids);
    }
    cr_assert_eq(kt_tokenizer_size(t), 4096);
    cr_assert_eq(kt_tokenizer_find(t, "<|im_end|>"), 4095);
    cr_assert_eq(kt_tokenizer_find(t, "no such token"), -1);
    kt_tokenizer_destroy(t);
}

Test(tokenizer, special_tokens_only_when_asked) {
    static const char text[] = "<|im_start|>user\nHi<|im_end|>";
    kt_tokenizer *t = load_tiny();
    int32_t *ids;
    size_t n = encode(t, text, sizeof text - 1, true, &ids), size;
    char *back;

    cr_assert_eq(ids[0], 4094);
    cr_assert_eq(ids[n - 1], 4095);
    cr_assert_eq(kt_tokenizer_decode(t, ids, n, false, &back, &size, NULL), KT_OK);
    cr_assert_str_eq(back, text);
    free(back);
    cr_assert_eq(kt_tokenizer_decode(t, ids, n, true, &back, &size, NULL), KT_OK);
    cr_assert_str_eq(back, "user\nHi");
    free(back);
    free(ids);

    n = encode(t, text, sizeof text - 1, false, &ids);
    for (size_t i = 0; i < n; i++) cr_assert_lt(ids[i], 4093);
    cr_assert_eq(kt_tokenizer_decode(t, ids, n, true, &back, &size, NULL), KT_OK);
    cr_assert_str_eq(back, text);
    free(back);
    free(ids);
    kt_tokenizer_destroy(t);
}

Test(tokenizer, the_recorded_beginning_of_the_sample) {
    static const int32_t want[16] = {2800, 11,  709,  220, 16,  23,  304, 307,
                                     258,  372, 3389, 339, 344, 294, 258, 922};
    kt_tokenizer *t = load_tiny();
    size_t n, count;
    char *text = read_text(TINY "/sample.txt", &n);
    int32_t *ids;

    count = encode(t, text, n, false, &ids);
    cr_assert_eq(count, 25486, "%zu tokens", count);
    cr_assert_eq(memcmp(ids, want, sizeof want), 0);
    free(ids);
    free(text);
    kt_tokenizer_destroy(t);
}

/* ---- laws ---- */

/* Random text of characters that are their own NFC and do not combine. */
static size_t random_text(kt_rng *rng, char *out, size_t max) {
    static const char *const parts[] = {
        "a",   "Z",    "the", " ", "  ", "\n", "\r\n", "\t",   "'s",       "é", "ж", "我",
        "か",  "🦙", "½",   "7", "42", "!",  "//",   "\x7f", "\xc2\xa0", "ſ", "ǅ", "\xe1\xa0\x8e",
        "\x01"};
    size_t n = 0;
    for (;;) {
        const char *p = parts[kt_rng_below(rng, sizeof parts / sizeof *parts)];
        if (n + strlen(p) > max) return n;
        memcpy(out + n, p, strlen(p));
        n += strlen(p);
    }
}

static void check_round_trip(const kt_tokenizer *t, const char *text, size_t n) {
    kt_detokenizer d = {{0}, 0};
    char out[4096], *back, *streamed = malloc(n * 3 + 16);
    int32_t *ids;
    size_t count = encode(t, text, n, false, &ids), size, at = 0, got;

    cr_assert_eq(kt_tokenizer_decode(t, ids, count, false, &back, &size, NULL), KT_OK);
    cr_assert(size == n && memcmp(back, text, n) == 0, "'%.*s' came back as '%s'", (int)n, text,
              back);
    for (size_t i = 0; i < count; i++) {
        cr_assert_eq(kt_detokenizer_push(t, &d, ids[i], false, out, sizeof out, &got), KT_OK);
        cr_assert_eq(kt_utf8_valid_prefix(out, got), got, "an incomplete character was streamed");
        memcpy(streamed + at, out, got);
        at += got;
    }
    at += kt_detokenizer_flush(&d, streamed + at, 3);
    cr_assert(at == n && memcmp(streamed, text, n) == 0, "streamed text differs");
    free(streamed);
    free(back);
    free(ids);
}

/* 200 random texts; destroys the tokenizer. */
static void check_round_trips(kt_tokenizer *t) {
    char text[2000];
    kt_rng rng;

    kt_rng_seed(&rng, 7);
    for (int i = 0; i < 200; i++) {
        size_t n = random_text(&rng, text, kt_rng_below(&rng, sizeof text));
        check_round_trip(t, text, n);
    }
    kt_tokenizer_destroy(t);
}

Test(tokenizer, text_comes_back) {
    check_round_trips(load_tiny());
    check_round_trips(load_shared(GPT_2));
    check_round_trips(load_shared("data/tokenizers/ggml-vocab-falcon.gguf"));
}

Test(tokenizer, text_comes_back_deepseek) {
    check_round_trips(load_shared("data/tokenizers/ggml-vocab-deepseek-coder.gguf"));
    check_round_trips(load_shared("data/tokenizers/ggml-vocab-deepseek-llm.gguf"));
}

/* What a decoder makes of bytes: well-formed characters, and U+FFFD per maximal ill-formed part. */
static size_t reference_clean(const char *s, size_t n, char *out) {
    size_t used = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = kt_utf8_next(s + i, n - i, &cp);
        if (len > 0) {
            memcpy(out + used, s + i, (size_t)len);
            used += (size_t)len;
            i += (size_t)len;
            continue;
        }
        memcpy(out + used, KT_UTF8_REPLACEMENT, 3);
        used += 3;
        i = len == 0 ? n : i + (size_t)-len;
    }
    return used;
}

Test(tokenizer, ill_formed_bytes_become_replacement_characters) {
    static const struct {
        const char *in, *out;
    } cases[] = {{"a\xff"
                  "b",
                  "a\xef\xbf\xbd"
                  "b"},
                 {"\xe6\x88", "\xef\xbf\xbd"},
                 {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xf0\x9f\xa6x", "\xef\xbf\xbdx"},
                 {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}};
    kt_tokenizer *t = load_tiny();
    kt_rng rng;
    int32_t *ids;
    char *back;
    size_t size, count;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        count = encode(t, cases[i].in, strlen(cases[i].in), false, &ids);
        cr_assert_eq(kt_tokenizer_decode(t, ids, count, false, &back, &size, NULL), KT_OK);
        cr_assert_str_eq(back, cases[i].out);
        free(back);
        free(ids);
    }
    kt_rng_seed(&rng, 11);
    for (int i = 0; i < 500; i++) { /* bytes 128.. without combining marks: NFC changes nothing */
        char text[64], want[192];
        size_t n = kt_rng_below(&rng, sizeof text);
        for (size_t k = 0; k < n; k++) {
            static const unsigned char bytes[] = {'a',  ' ',  0xff, 0xc0, 0x80, 0xbf, 0xe6,
                                                  0x88, 0x91, 0xf0, 0x9f, 0xa6, 0xc3, 0xed};
            text[k] = (char)bytes[kt_rng_below(&rng, sizeof bytes)];
        }
        size = reference_clean(text, n, want);
        count = encode(t, text, n, false, &ids);
        cr_assert_eq(kt_tokenizer_decode(t, ids, count, false, &back, &n, NULL), KT_OK);
        cr_assert(n == size && memcmp(back, want, n) == 0, "round %d", i);
        free(back);
        free(ids);
    }
    kt_tokenizer_destroy(t);
}

Test(tokenizer, streams_ill_formed_tokens_like_it_decodes_them) {
    kt_tokenizer *t = load_tiny();
    kt_rng rng;

    kt_rng_seed(&rng, 3);
    for (int round = 0; round < 300; round++) {
        kt_detokenizer d = {{0}, 0};
        int32_t ids[40];
        char streamed[4096], *back;
        size_t n = kt_rng_below(&rng, 40), at = 0, got, size;
        for (size_t i = 0; i < n; i++) ids[i] = (int32_t)kt_rng_below(&rng, 256); /* bytes */
        for (size_t i = 0; i < n; i++) {
            cr_assert_eq(kt_detokenizer_push(t, &d, ids[i], false, streamed + at,
                                             sizeof streamed - at, &got),
                         KT_OK);
            at += got;
        }
        at += kt_detokenizer_flush(&d, streamed + at, 3);
        cr_assert_eq(kt_tokenizer_decode(t, ids, n, false, &back, &size, NULL), KT_OK);
        cr_assert(size == at && memcmp(back, streamed, at) == 0, "round %d", round);
        free(back);
    }
    kt_tokenizer_destroy(t);
}

Test(tokenizer, ids_outside_of_the_vocabulary_are_nothing) {
    kt_tokenizer *t = load_tiny();
    kt_detokenizer d = {{0}, 0};
    char out[16];
    size_t n = 99;

    cr_assert_null(kt_tokenizer_bytes(t, -1, &n, NULL));
    cr_assert_null(kt_tokenizer_bytes(t, 4096, &n, NULL));
    cr_assert_eq(n, 0);
    cr_assert_eq(kt_detokenizer_push(t, &d, 1 << 30, true, out, sizeof out, &n), KT_OK);
    cr_assert_eq(n, 0);
    cr_assert_eq(kt_detokenizer_push(t, &d, 258, true, out, 3, &n), KT_E_INVALID);
    kt_tokenizer_destroy(t);
}

/* NFC of sequences whose composed form is known; ordering of marks is stable. */
Test(tokenizer, normal_forms) {
    static const struct {
        kt_normal_form form;
        const char *in, *out;
    } cases[] = {{KT_NORMAL_NFC, "e\xcc\x81", "\xc3\xa9"},
                 {KT_NORMAL_NFC, "Cu\xcc\x9b\xcc\x89\x61", "C\xe1\xbb\xad\x61"},
                 {KT_NORMAL_NFC, "Cu\xcc\x89\xcc\x9b\x61", "C\xe1\xbb\xad\x61"},
                 {KT_NORMAL_NFC, "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"},
                 {KT_NORMAL_NFC, "\xe2\x84\xab", "\xc3\x85"},
                 {KT_NORMAL_NFC, "plain \xc3\xa9t\xc3\xa9 a\xcc\xa3\xcc\x87",
                  "plain \xc3\xa9t\xc3\xa9 \xe1\xba\xa1\xcc\x87"},
                 {KT_NORMAL_NFD, "\xc3\xa9", "e\xcc\x81"},
                 {KT_NORMAL_NFKC, "\xef\xac\x81", "fi"},
                 {KT_NORMAL_NFKD, "\xc2\xbd", "1\xe2\x81\x84\x32"}};
    kt_text out = {0};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = strlen(cases[i].out);
        cr_assert_eq(kt_normalize(cases[i].form, cases[i].in, strlen(cases[i].in), &out, NULL),
                     KT_OK);
        cr_assert(out.size == n && memcmp(out.data, cases[i].out, n) == 0, "case %zu: '%.*s'", i,
                  (int)out.size, out.data);
    }
    free(out.data);
}

/* ---- time ---- */

static double encode_seconds(const kt_tokenizer *t, const char *text, size_t n) {
    int32_t *ids;
    int64_t start = kt_clock_ns();
    encode(t, text, n, true, &ids);
    free(ids);
    return (double)(kt_clock_ns() - start) * 1e-9;
}

/* Each of these is a megabyte on which a naive step is quadratic: hours instead of a second. The
 * bound leaves a factor of twenty for a busy machine and sanitizers. */
Test(tokenizer, a_megabyte_of_anything_takes_about_a_second, .timeout = 300) {
    static const char *const units[] = {
        "a",         " ",    "ab", "1", "\n ", "!", "<|", "\xe6\x88\x91", "\xcc\x81\xcc\xa3",
        "a\xcc\x81", "\xff", "'"};
    const size_t n = 1 << 20;
    kt_tokenizer *t = load_tiny();
    char *text = malloc(n);

    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t unit = strlen(units[u]);
        double seconds;
        for (size_t i = 0; i < n; i++) text[i] = units[u][i % unit];
        seconds = encode_seconds(t, text, n);
        cr_assert_lt(seconds, 20.0, "1 MB of '%s' took %.1f s", units[u], seconds);
    }
    free(text);
    kt_tokenizer_destroy(t);
}

/* ---- files that are wrong ---- */

static const char *write_temporary(const char *text, size_t n, const char *suffix) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/kt-test-tokenizer-%d%s", (int)getpid(), suffix);
    FILE *f = fopen(path, "wb");
    cr_assert_not_null(f);
    cr_assert_eq(fwrite(text, 1, n, f), n);
    fclose(f);
    return path;
}

static void check_refused(const char *json, const char *expect) {
    const char *path = write_temporary(json, strlen(json), ".json");
    kt_tokenizer *t = NULL;
    kt_err err = {0};
    kt_status st = kt_tokenizer_load(path, &t, &err);

    unlink(path);
    cr_assert_neq(st, KT_OK, "accepted: %s", json);
    cr_assert_null(t);
    cr_assert_not_null(strstr(err.message, expect), "'%s' lacks '%s'", err.message, expect);
    cr_assert_not_null(strstr(err.message, path), "'%s' names no file", err.message);
}

#define BYTE_LEVEL                                                                                 \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":" \
    "\"ByteLevel\"}"

Test(tokenizer, refuses_what_it_cannot_do_by_name) {
    check_refused("", ".json");
    check_refused("{}", "not a tokenizer.json");
    check_refused("{\"model\":{\"type\":\"Unigram\"}}", "Unigram");
    check_refused("{\"model\":{\"type\":\"WordPiece\"}}", "WordPiece");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", "SentencePiece");
    check_refused("{\"model\":{\"type\":\"BPE\"},\"normalizer\":{\"type\":\"Lowercase\"}}",
                  "Lowercase");
    check_refused("{\"model\":{\"type\":\"BPE\"},\"pre_tokenizer\":{\"type\":\"Metaspace\"}}",
                  "Metaspace");
    check_refused("{\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\"}}", "</w>");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}," BYTE_LEVEL "}",
                  "byte 0x20");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}," BYTE_LEVEL
                  "}",
                  "id -1");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1e9},\"merges\":[]}," BYTE_LEVEL
                  "}",
                  "1000000000");
    check_refused(
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}," BYTE_LEVEL
        "}",
        "result of merge 0");
    check_refused(
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}," BYTE_LEVEL "}",
        "twice");
    check_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]},\"pre_tokenizer\":{"
                  "\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}}",
                  "pattern '('");
    check_refused(
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]},\"pre_tokenizer\":{"
        "\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&[b]]\"},\"behavior\":\"Isolated\"}}",
        "&&");
}

Test(tokenizer, a_missing_file_is_named) {
    kt_tokenizer *t;
    kt_err err = {0};
    cr_assert_eq(kt_tokenizer_load("/nonexistent/tokenizer.json", &t, &err), KT_E_NOT_FOUND, "%s",
                 err.message);
    cr_assert_not_null(strstr(err.message, "/nonexistent/tokenizer.json"));
}

/* A random change of a valid file either loads, and then encodes, or is refused with a message. */
static void check_mutants(const char *source, const char *suffix, int rounds, size_t head) {
    size_t n;
    char *good = read_text(source, &n), *bad = malloc(n + 1);
    kt_rng rng;

    kt_rng_seed(&rng, 5);
    for (int i = 0; i < rounds; i++) {
        size_t size = n, changes = 1 + kt_rng_below(&rng, 8);
        kt_tokenizer *t;
        kt_err err = {0};
        int32_t *ids;
        size_t count;
        memcpy(bad, good, n);
        for (size_t c = 0; c < changes; c++) {
            size_t at = kt_rng_below(&rng, kt_rng_below(&rng, 2) && head < n ? head : n);
            bad[at] = (char)kt_rng_below(&rng, 256);
        }
        if (kt_rng_below(&rng, 4) == 0) size = kt_rng_below(&rng, n);
        if (kt_tokenizer_load(write_temporary(bad, size, suffix), &t, &err) != KT_OK) {
            cr_assert_neq(err.message[0], '\0');
            continue;
        }
        if (kt_tokenizer_encode(t, "Hello, world 42\n", 16, true, &ids, &count, &err) == KT_OK) {
            free(ids);
        }
        kt_tokenizer_destroy(t);
    }
    unlink(write_temporary("", 0, suffix));
    free(good);
    free(bad);
}

Test(tokenizer, survives_damaged_json, .timeout = 300) {
    check_mutants(TINY "/tokenizer.json", ".json", 150, 1200);
}

Test(tokenizer, survives_damaged_gguf, .timeout = 300) {
    char path[1024];
    if (!kt_shared_path(GPT_2, path, sizeof path)) cr_skip_test(NOT_SHARED, GPT_2);
    check_mutants(path, ".gguf", 100, 1500);
}

Test(gguf_meta, counts_that_overflow_are_refused) {
    /* magic, version 3, 0 tensors, 1 value: key "k", array of <type> with <count> elements */
    static const uint32_t element[] = {KT_GGUF_U8,    KT_GGUF_F64, KT_GGUF_STRING,
                                       KT_GGUF_ARRAY, 13,          99};
    static const uint64_t counts[] = {1, 2, UINT64_MAX, UINT64_MAX / 8 + 1, (uint64_t)1 << 61};

    for (size_t e = 0; e < sizeof element / sizeof *element; e++) {
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            uint8_t *file = kt_guard_alloc(49, 1, 0), *p = file;
            const uint64_t one = 1;
            const uint32_t version = 3, type = KT_GGUF_ARRAY;
            kt_gguf_meta meta;
            kt_err err = {0};
            memcpy(p, "GGUF", 4);
            memcpy(p + 4, &version, 4);
            memcpy(p + 16, &one, 8);
            memcpy(p + 24, &one, 8);
            p[32] = 'k';
            memcpy(p + 33, &type, 4);
            memcpy(p + 37, &element[e], 4);
            memcpy(p + 41, &counts[c], 8);
            cr_assert_neq(kt_gguf_meta_init(&meta, file, 49, &err), KT_OK, "%u x %llu", element[e],
                          (unsigned long long)counts[c]);
            cr_assert_neq(err.message[0], '\0');
            kt_guard_free(file);
        }
    }
}

Test(gguf_meta, every_truncation_is_refused) {
    char path[1024];
    size_t n;
    char *text;
    kt_gguf_meta meta;

    if (!kt_shared_path(GPT_2, path, sizeof path)) cr_skip_test(NOT_SHARED, GPT_2);
    text = read_text(path, &n);
    for (size_t size = 0; size < n; size += size < 2000 ? 1 : 100003) {
        uint8_t *end = kt_guard_alloc(size ? size : 1, 1, 0);
        memcpy(end, text, size);
        cr_assert_neq(kt_gguf_meta_init(&meta, end, size, NULL), KT_OK, "%zu bytes", size);
        kt_guard_free(end);
    }
    cr_assert_eq(kt_gguf_meta_init(&meta, (const uint8_t *)text, n, NULL), KT_OK);
    cr_assert_eq(kt_gguf_int(&meta, "gpt2.block_count", -1), 12);
    cr_assert_eq(kt_gguf_double(&meta, "gpt2.block_count", -1), 12.0);
    kt_gguf_meta_deinit(&meta);
    free(text);
}
