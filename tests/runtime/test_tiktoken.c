/* tiktoken.model with tokenizer_config.json, and merging by rank.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/json.h"
#include "base/rng.h"
#include "dispatch/model/gguf_meta.h"
#include "runtime/token/tokenizer_impl.h"
#include "tests/support/guard.h"
#include "tests/support/temp.h"

/* ---- the merge rule ---- */

enum { LETTERS = 3, WORDS = 60, IDS = 256 + WORDS };

typedef struct ranks {
    kt_bpe bpe;
    char text[IDS][16];
    size_t size[IDS];
} ranks;

/* All bytes in a shuffled order, then random words of a, b and c; some of them no merges reach. */
static void make_ranks(ranks *r, uint64_t seed) {
    kt_rng rng;

    memset(r, 0, sizeof *r);
    kt_bpe_init(&r->bpe);
    kt_rng_seed(&rng, seed);
    for (int i = 0; i < 256; i++) r->text[i][0] = (char)(i * 77 + (int)seed), r->size[i] = 1;
    for (int id = 256; id < IDS;) {
        bool is_new = true;
        r->size[id] = 2 + kt_rng_below(&rng, 5);
        for (size_t k = 0; k < r->size[id]; k++)
            r->text[id][k] = (char)('a' + kt_rng_below(&rng, LETTERS));
        for (int i = 256; i < id; i++)
            is_new &= r->size[i] != r->size[id] || memcmp(r->text[i], r->text[id], r->size[id]);
        id += is_new;
    }
    for (int id = 0; id < IDS; id++)
        cr_assert_eq(kt_bpe_add_token(&r->bpe, id, r->text[id], r->size[id], KT_TOKEN_PIECE, NULL),
                     KT_OK);
    r->bpe.by_rank = true;
    cr_assert_eq(kt_bpe_index(&r->bpe, NULL), KT_OK);
    cr_assert_eq(kt_bpe_finish(&r->bpe, NULL), KT_OK);
}

static int rank_of(const ranks *r, const char *text, size_t n) {
    for (int id = 0; id < IDS; id++)
        if (r->size[id] == n && memcmp(r->text[id], text, n) == 0) return id;
    return IDS;
}

/* The definition: join the neighbours whose bytes together are the token of lowest rank,
 * leftmost first. */
static size_t merge_by_definition(const ranks *r, const char *text, size_t n, int32_t *ids) {
    size_t at[200], parts = n;

    for (size_t i = 0; i <= n; i++) at[i] = i;
    for (;;) {
        int best = IDS;
        size_t where = 0;
        for (size_t i = 0; i + 2 <= parts; i++) {
            int rank = rank_of(r, text + at[i], at[i + 2] - at[i]);
            if (rank < best) best = rank, where = i;
        }
        if (best == IDS) break;
        memmove(at + where + 1, at + where + 2, (parts - where - 1) * sizeof *at);
        parts--;
    }
    for (size_t i = 0; i < parts; i++) ids[i] = rank_of(r, text + at[i], at[i + 1] - at[i]);
    return parts;
}

/* Short pieces and long ones, which take other paths. */
Test(tiktoken, merges_are_those_of_the_definition, .timeout = 60) {
    ranks *r = malloc(sizeof *r);
    kt_bpe_work work = {0};
    kt_ids got = {0};

    for (uint64_t seed = 1; seed <= 20; seed++) {
        kt_rng rng;
        make_ranks(r, seed);
        kt_rng_seed(&rng, seed);
        for (int round = 0; round < 60; round++) {
            char text[150];
            int32_t want[150];
            size_t n = 1 + kt_rng_below(&rng, sizeof text - 1), count;
            for (size_t i = 0; i < n; i++) text[i] = (char)('a' + kt_rng_below(&rng, LETTERS));
            count = merge_by_definition(r, text, n, want);
            got.size = 0;
            cr_assert_eq(kt_bpe_encode(&r->bpe, &work, text, n, &got, NULL), KT_OK);
            cr_assert(got.size == count && memcmp(got.data, want, count * sizeof *want) == 0,
                      "seed %d: '%.*s' gives %zu tokens, expected %zu", (int)seed, (int)n, text,
                      got.size, count);
        }
        kt_bpe_deinit(&r->bpe);
    }
    kt_bpe_work_deinit(&work);
    free(got.data);
    free(r);
}

Test(tiktoken, a_token_too_long_to_merge_is_refused) {
    char text[1025];
    kt_err err = {KT_OK, ""};
    kt_bpe b;

    memset(text, 'a', sizeof text);
    for (size_t n = sizeof text - 1; n <= sizeof text; n++) {
        kt_bpe_init(&b);
        for (int i = 0; i < 256; i++) {
            char byte = (char)i;
            cr_assert_eq(kt_bpe_add_token(&b, i, &byte, 1, KT_TOKEN_PIECE, NULL), KT_OK);
        }
        cr_assert_eq(kt_bpe_add_token(&b, 256, text, n, KT_TOKEN_PIECE, NULL), KT_OK);
        b.by_rank = true;
        cr_assert_eq(kt_bpe_index(&b, NULL), KT_OK);
        cr_assert_eq(kt_bpe_finish(&b, &err), n == sizeof text ? KT_E_FORMAT : KT_OK);
        kt_bpe_deinit(&b);
    }
    cr_assert(strstr(err.message, "token 256 has 1025 bytes"), "%s", err.message);
}

/* ---- files ---- */

/* 300 ranks: the bytes (rank = byte), then 44 of these. */
static const char *const words[] = {
    "in",       "he",           "th",           "the",
    "er",       "on",           " t",           " the",
    "an",       "ing",          "12",           "123",
    "\xe6\xbc", "\xe6\xbc\xa2", "\xe5\xad\x97", "\xe6\xbc\xa2\xe5\xad\x97",
    "  ",       "\n\n",         "ab",           "bc",
    "cd",       "abcd",         "zyzyz"};

enum { N_RANKS = 300, N_WORDS = sizeof words / sizeof *words };

static void put_base64(FILE *f, const unsigned char *s, size_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < n; i += 3) {
        unsigned v = (unsigned)s[i] << 16;
        if (i + 1 < n) v |= (unsigned)s[i + 1] << 8;
        if (i + 2 < n) v |= s[i + 2];
        fprintf(f, "%c%c%c%c", digits[v >> 18], digits[v >> 12 & 63],
                i + 1 < n ? digits[v >> 6 & 63] : '=', i + 2 < n ? digits[v & 63] : '=');
    }
}

/* The text of a tiktoken.model; malloc'd. */
static char *make_model(size_t *size) {
    char *text, word[16];
    FILE *f = open_memstream(&text, size);

    for (int rank = 0; rank < N_RANKS; rank++) {
        unsigned char byte = (unsigned char)rank;
        if (rank < 256) {
            put_base64(f, &byte, 1);
        } else if (rank - 256 < N_WORDS) {
            put_base64(f, (const unsigned char *)words[rank - 256], strlen(words[rank - 256]));
        } else {
            sprintf(word, "q%d", rank);
            put_base64(f, (const unsigned char *)word, strlen(word));
        }
        fprintf(f, " %d\n", rank);
    }
    fclose(f);
    return text;
}

static const char config[] =
    "{\"tokenizer_class\":\"TikTokenTokenizer\",\"added_tokens_decoder\":{"
    "\"300\":{\"content\":\"[BOS]\",\"special\":true},"
    "\"302\":{\"content\":\"<|im_end|>\",\"special\":true},"
    "\"303\":{\"content\":\"<|tool|>\",\"special\":false,\"rstrip\":true}}}";

static kt_status load(const char *model, size_t size, const char *json, kt_tokenizer **t,
                      kt_err *err) {
    char folder[64];
    kt_status st;

    kt_temp_make(folder, sizeof folder);
    kt_temp_write(folder, "tiktoken.model", model, size);
    if (json) kt_temp_write(folder, "tokenizer_config.json", json, strlen(json));
    st = kt_tokenizer_load(folder, t, err);
    kt_temp_remove(folder);
    return st;
}

static kt_tokenizer *load_good(void) {
    kt_tokenizer *t = NULL;
    kt_err err = {KT_OK, ""};
    size_t size;
    char *model = make_model(&size);

    cr_assert_eq(load(model, size, config, &t, &err), KT_OK, "%s", err.message);
    free(model);
    return t;
}

static void expect_ids(const kt_tokenizer *t, const char *text, bool special, const int32_t *want,
                       size_t n) {
    int32_t *ids;
    size_t count;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_tokenizer_encode(t, text, strlen(text), special, &ids, &count, &err), KT_OK,
                 "%s", err.message);
    cr_expect(count == n && (n == 0 || memcmp(ids, want, n * sizeof *ids) == 0),
              "'%s': %zu ids, first %d", text, count, count ? ids[0] : -1);
    free(ids);
}

#define EXPECT_IDS(t, text, special, ...)                                  \
    do {                                                                   \
        const int32_t want_[] = {__VA_ARGS__};                             \
        expect_ids(t, text, special, want_, sizeof want_ / sizeof *want_); \
    } while (0)

/* Ranks: in 256, he 257, th 258, the 259, er 260, on 261, " t" 262, " the" 263, an 264, ing 265,
 * 12 266, 123 267, half of a letter 268, 269, 270, both letters 271, two spaces 272, two line
 * ends 273, ab 274, bc, cd, abcd 277. */
Test(tiktoken, a_folder_is_read_as_kimi_reads_it) {
    kt_tokenizer *t = load_good();

    cr_expect_eq(kt_tokenizer_size(t), N_RANKS + 256);
    EXPECT_IDS(t, "the", false, 259);
    EXPECT_IDS(t, "there", false, 259, 'r', 'e'); /* he, then t and he; "er" comes too late */
    EXPECT_IDS(t, "12345", false, 267, '4', '5'); /* digits by three */
    EXPECT_IDS(t, "abcd", false, 277);            /* a piece that is a token */
    EXPECT_IDS(t, "xabcd", false, 'x', 277);
    EXPECT_IDS(t, "xbcd", false, 'x', 275, 'd');
    EXPECT_IDS(t, "zyzyz", false, 278); /* no merges lead there */
    EXPECT_IDS(t, "zyzyzz", false, 'z', 'y', 'z', 'y', 'z', 'z');
    EXPECT_IDS(t, "\xe6\xbc\xa2\xe5\xad\x97", false, 271);
    EXPECT_IDS(t, "an\xe6\xbc\xa2", false, 264, 269); /* Han letters are pieces of their own */
    EXPECT_IDS(t, "in\n\n", false, 256, 273);
    expect_ids(t, "", false, NULL, 0);
    kt_tokenizer_destroy(t);
}

Test(tiktoken, special_ids_follow_the_ranks) {
    kt_tokenizer *t = load_good();
    bool special;
    size_t n;

    EXPECT_IDS(t, "[BOS]in<|im_end|>", true, 300, 256, 302);
    EXPECT_IDS(t, "in<|tool|>  on", false, 256, 303, 261);
    EXPECT_IDS(t, "<|reserved_token_301|><|reserved_token_555|>", true, 301, 555);
    cr_expect_eq(kt_tokenizer_find(t, "<|im_end|>"), 302);
    cr_expect_eq(kt_tokenizer_find(t, "<|reserved_token_302|>"), -1);
    cr_expect_eq(kt_tokenizer_find(t, "<|reserved_token_556|>"), -1);
    cr_expect(kt_tokenizer_bytes(t, 302, &n, &special) && n == 10 && special);
    cr_expect(kt_tokenizer_bytes(t, 303, &n, &special) && n == 8 && !special);
    cr_expect(kt_tokenizer_bytes(t, 555, &n, &special) && special);
    kt_tokenizer_destroy(t);
}

/* Lines in any order, CR LF, an empty line, no line end behind the last. */
Test(tiktoken, lines_may_stand_in_any_order) {
    size_t size, used = 0, n_lines = 0;
    char *model = make_model(&size), *mixed = malloc(2 * size), *lines[N_RANKS];
    kt_tokenizer *t = NULL;
    kt_err err = {KT_OK, ""};

    for (char *p = strtok(model, "\n"); p; p = strtok(NULL, "\n")) lines[n_lines++] = p;
    cr_assert_eq(n_lines, N_RANKS);
    for (size_t i = 0; i < n_lines; i++)
        used += (size_t)sprintf(mixed + used, "%s%s",
                                i == 7 ? "\n"
                                : i    ? "\r\n"
                                       : "",
                                lines[(i * 7 + 5) % n_lines]);
    cr_assert_eq(load(mixed, used, config, &t, &err), KT_OK, "%s", err.message);
    EXPECT_IDS(t, "the", false, 259);
    kt_tokenizer_destroy(t);
    free(model);
    free(mixed);
}

Test(tiktoken, tokenizer_json_comes_first) {
    static const char json[] = "{}";
    char folder[64];
    kt_tokenizer *t;
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    cr_expect_eq(kt_tokenizer_load(folder, &t, &err), KT_E_NOT_FOUND);
    cr_expect(strstr(err.message, "tokenizer.json") && strstr(err.message, "tiktoken.model") &&
                  strstr(err.message, folder),
              "%s", err.message);
    kt_temp_write(folder, "tiktoken.model", "x", 1);
    cr_expect_eq(kt_tokenizer_load(folder, &t, &err), KT_E_FORMAT);
    cr_expect(strstr(err.message, "tiktoken.model"), "%s", err.message);
    kt_temp_write(folder, "tokenizer.json", json, sizeof json - 1);
    cr_expect_eq(kt_tokenizer_load(folder, &t, &err), KT_E_FORMAT);
    cr_expect(strstr(err.message, "tokenizer.json"), "%s", err.message);
    cr_expect_null(t);
    kt_temp_remove(folder);
}

static const char empty[] = "{\"added_tokens_decoder\":{}}";

static void expect_refused(const char *model, size_t size, const char *json, const char *words_) {
    kt_tokenizer *t = NULL;
    kt_err err = {KT_OK, ""};
    kt_status st = load(model, size, json, &t, &err);

    cr_expect(st != KT_OK && !t, "accepted, expected '%s'", words_);
    cr_expect(strstr(err.message, words_), "'%s' lacks '%s'", err.message, words_);
}

Test(tiktoken, lines_that_are_wrong_are_named) {
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"AA== 0\nAQ==\n", "line 2: 'AQ==', expected base64, a space and a rank"},
        {"AA== 0\nA!== 1\n", "line 2"},
        {"AA= 0\n", "line 1: 'AA= 0', expected base64"},
        {"AAAAA 0\n", "line 1: 'AAAAA 0', expected base64"},
        {"A=A= 0\n", "line 1"},
        {"==== 0\n", "line 1"},
        {" 0\n", "line 1"},
        {"AA== -1\n", "line 1"},
        {"AA== 1x\n", "line 1"},
        {"AA== \n", "line 1"},
        {"AA== 0 1\n", "line 1"},
        {"AA== 99999999\n", "token id 99999999"},
        {"AA== 9999999999\n", "line 1"},
        {"AA== 0\nAQ== 0\n", "occurs twice"},
        {"AA== 0\nAQ== 2\n", "2 tokens with ranks up to 2, expected each rank once"},
        {"", "tiktoken.model"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n", "Git LFS pointer"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused(cases[i].text, strlen(cases[i].text), config, cases[i].words);
    expect_refused("AA== 0\nAA== 1\n", 14, empty, "same text");
    expect_refused("AA== 0\n", 7, empty, "not a byte-level BPE");
}

Test(tiktoken, a_config_that_is_wrong_is_named) {
    static const struct {
        const char *json, *words;
    } cases[] = {
        {NULL, "tokenizer_config.json: missing"},
        {"{", "tokenizer_config.json"},
        {"{}", "added_tokens_decoder is null, expected an object"},
        {"{\"tokenizer_class\":\"QWenTokenizer\"}", "'QWenTokenizer' is not supported"},
        {"{\"added_tokens_decoder\":{\"300\":{}}}", "'300' has no content"},
        {"{\"added_tokens_decoder\":{\"300\":{\"content\":\"\"}}}", "'300' has no content"},
        {"{\"added_tokens_decoder\":{\"299\":{\"content\":\"x\"}}}", "expected 300 to 555"},
        {"{\"added_tokens_decoder\":{\"556\":{\"content\":\"x\"}}}", "has id '556'"},
        {"{\"added_tokens_decoder\":{\"a\":{\"content\":\"x\"}}}", "has id 'a'"},
    };
    size_t size;
    char *model = make_model(&size);
    kt_tokenizer *t;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused(model, size, cases[i].json, cases[i].words);
    cr_expect_eq(load(model, size, empty, &t, NULL), KT_OK);
    kt_tokenizer_destroy(t);
    free(model);
}

/* Changed and cut files load, or are refused with a message. */
Test(tiktoken, survives_damaged_files, .timeout = 60) {
    size_t size;
    char *model = make_model(&size), *bad = malloc(size), text[sizeof config];
    kt_rng rng;

    kt_rng_seed(&rng, 9);
    for (int round = 0; round < 300; round++) {
        size_t n = round % 3 ? size : kt_rng_below(&rng, size);
        kt_tokenizer *t = NULL;
        kt_err err = {KT_OK, ""};
        memcpy(bad, model, size);
        memcpy(text, config, sizeof config);
        if (round % 2)
            bad[kt_rng_below(&rng, size)] = (char)kt_rng_below(&rng, 256);
        else
            text[kt_rng_below(&rng, sizeof config - 1)] = (char)(1 + kt_rng_below(&rng, 127));
        if (load(bad, n, text, &t, &err) == KT_OK) {
            int32_t *ids = NULL;
            size_t count;
            cr_expect_eq(kt_tokenizer_encode(t, "the 12\n", 7, true, &ids, &count, &err), KT_OK);
            free(ids);
            kt_tokenizer_destroy(t);
        } else {
            cr_expect(err.message[0] && !t, "round %d", round);
        }
    }
    free(model);
    free(bad);
}

/* ---- a Kimi GGUF without its list of merges ---- */

/* A copy of a GGUF's metadata that lacks a key. */
static char *copy_without(const kt_gguf_meta *m, const char *key, size_t *size) {
    char *out = calloc(1, m->tensors_offset);
    uint64_t left = m->n_values - 1;

    *size = 24;
    memcpy(out, m->bytes, 8); /* magic and version; no tensors */
    memcpy(out + 16, &left, 8);
    for (size_t i = 0; i < m->n_values; i++) {
        const kt_gguf_value *v = &m->values[i];
        const char *begin = v->key - 8; /* its length stands before it */
        const char *end = i + 1 < m->n_values ? m->values[i + 1].key - 8
                                              : (const char *)m->bytes + m->tensors_offset;
        if (v->key_size == strlen(key) && memcmp(v->key, key, v->key_size) == 0) continue;
        memcpy(out + *size, begin, (size_t)(end - begin));
        *size += (size_t)(end - begin);
    }
    return out;
}

static void check_pairs(const kt_tokenizer *t, const kt_json *pairs) {
    cr_assert_gt(kt_json_length(pairs), 0);
    for (size_t i = 0; i < kt_json_length(pairs); i++) {
        const kt_json *pair = kt_json_at(pairs, i), *list = kt_json_at(pair, 1);
        size_t size, n = kt_json_length(list);
        const char *text = kt_json_string(kt_json_at(pair, 0), &size);
        int32_t want[100];
        cr_assert(text && n <= 100);
        for (size_t k = 0; k < n; k++) want[k] = (int32_t)kt_json_int(kt_json_at(list, k), -1);
        expect_ids(t, text, true, want, n);
    }
}

Test(tiktoken, a_kimi_gguf_without_merges_merges_by_id) {
    static const char model[] = "data/gguf/deepseek2-kimi-q4_0/model.gguf";
    static const char bounds[] = "data/gguf/deepseek2-kimi-q4_0/bounds.json";
    char path[1024], folder[64], *text, *cut;
    kt_mapping file = {0};
    kt_gguf_meta meta;
    kt_json_doc *doc;
    kt_tokenizer *t;
    kt_err err = {KT_OK, ""};
    size_t size;

    if (!kt_shared_path(bounds, path, sizeof path))
        cr_skip_test("%s: the shared data is absent", bounds);
    cr_assert_eq(kt_file_read(path, 1 << 24, &text, &size, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_json_parse(text, size, NULL, &doc, &err), KT_OK, "%s", err.message);
    free(text);
    cr_assert(kt_shared_path(model, path, sizeof path));
    cr_assert_eq(kt_tokenizer_load(path, &t, &err), KT_OK, "%s", err.message);
    check_pairs(t, kt_json_get(kt_json_root(doc), "tokenizer_check"));
    kt_tokenizer_destroy(t);

    cr_assert_eq(kt_mapping_open(path, &file, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_gguf_meta_init(&meta, file.data, file.bytes, &err), KT_OK, "%s", err.message);
    cut = copy_without(&meta, "tokenizer.ggml.merges", &size);
    kt_temp_make(folder, sizeof folder);
    kt_temp_write(folder, "cut.gguf", cut, size);
    snprintf(path, sizeof path, "%s/cut.gguf", folder);
    cr_assert_eq(kt_tokenizer_load(path, &t, &err), KT_OK, "%s", err.message);
    check_pairs(t, kt_json_get(kt_json_root(doc), "tokenizer_check"));
    kt_tokenizer_destroy(t);
    kt_temp_remove(folder);
    kt_gguf_meta_deinit(&meta);
    kt_mapping_close(&file);
    kt_json_destroy(doc);
    free(cut);
}
