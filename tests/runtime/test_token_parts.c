/* The parts of a tokenizer one by one, with vocabularies made here.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "runtime/token/added.h"
#include "runtime/token/bpe.h"
#include "runtime/token/normalize.h"
#include "runtime/token/splitter.h"
#include "runtime/token/tokenizer_impl.h"
#include "runtime/token/utf8_scan.h"
#include "tests/support/temp.h"

/* ---- UTF-8 ---- */

Test(token_parts, every_character_is_read_and_every_cut_of_it_is_noticed) {
    for (uint32_t cp = 1; cp < 0x110000; cp += cp < 0x3000 ? 1 : 97) {
        char text[8];
        uint32_t got = 0;
        int n;
        if (cp >= 0xd800 && cp < 0xe000) continue;
        n = kt_utf8_put(text, cp);
        cr_assert_eq(kt_utf8_next(text, (size_t)n, &got), n, "U+%04X", cp);
        cr_assert_eq(got, cp, "U+%04X is read as U+%04X", cp, got);
        for (int k = 1; k < n; k++)
            cr_assert_eq(kt_utf8_next(text, (size_t)k, &got), 0, "U+%04X, %d bytes", cp, k);
    }
}

/* Table 3-7 of the Unicode standard: at each border of a second byte, the last outside and the
 * first inside. */
Test(token_parts, ill_formed_beginnings_are_as_long_as_unicode_says) {
    static const struct {
        const char *text;
        int length;
    } cases[] = {
        {"\x80", -1},
        {"\xbf", -1},
        {"\xc0\x80", -1},
        {"\xc1\xbf", -1},
        {"\xc2\x7f", -1},
        {"\xc2\x80", 2},
        {"\xc2\xc0", -1},
        {"\xe0\x9f\xbf", -1},
        {"\xe0\xa0\x80", 3},
        {"\xed\x9f\xbf", 3},
        {"\xed\xa0\x80", -1},
        {"\xee\x80\x80", 3},
        {"\xe6\x88\x41", -2},
        {"\xe6\x41", -1},
        {"\xf0\x8f\xbf\xbf", -1},
        {"\xf0\x90\x80\x80", 4},
        {"\xf4\x8f\xbf\xbf", 4},
        {"\xf4\x90\x80\x80", -1},
        {"\xf5\x80\x80\x80", -1},
        {"\xf0\x9f\xa6\x41", -3},
        {"\xf0\x9f\x41", -2},
        {"\xff", -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t cp;
        int got = kt_utf8_next(cases[i].text, strlen(cases[i].text), &cp);
        cr_expect_eq(got, cases[i].length, "case %zu: %d, expected %d", i, got, cases[i].length);
    }
}

/* ---- normal forms ---- */

Test(token_parts, marks_are_ordered_by_class_and_otherwise_stay) {
    static const struct {
        const char *in, *out;
    } cases[] = {
        /* U+0301 and U+0300 have class 230, U+0323 has 220, U+031B has 216 */
        {"x\xcc\x81\xcc\x80", "x\xcc\x81\xcc\x80"},
        {"x\xcc\x80\xcc\x81", "x\xcc\x80\xcc\x81"},
        {"x\xcc\x81\xcc\xa3", "x\xcc\xa3\xcc\x81"},
        {"x\xcc\x81\xcc\x80\xcc\xa3\xcc\x9b", "x\xcc\x9b\xcc\xa3\xcc\x81\xcc\x80"},
        {"x\xcc\xa3\xcc\x81\xcc\xa3\xcc\x80", "x\xcc\xa3\xcc\xa3\xcc\x81\xcc\x80"},
        {"ab\xcc\x81y\xcc\xa3z", "ab\xcc\x81y\xcc\xa3z"},
    };
    kt_text out = {0};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = strlen(cases[i].out);
        cr_assert_eq(kt_normalize(KT_NORMAL_NFD, cases[i].in, strlen(cases[i].in), &out, NULL),
                     KT_OK);
        cr_expect(out.size == n && memcmp(out.data, cases[i].out, n) == 0, "case %zu: '%.*s'", i,
                  (int)out.size, out.data);
    }
    free(out.data);
}

/* What combines with an ASCII character combines with the last one of a run. */
Test(token_parts, a_mark_belongs_to_the_last_letter_before_it) {
    kt_text out = {0};

    cr_assert_eq(kt_normalize(KT_NORMAL_NFC, "cafe\xcc\x81s", 7, &out, NULL), KT_OK);
    cr_expect(out.size == 6 && memcmp(out.data, "caf\xc3\xa9s", 6) == 0, "'%.*s'", (int)out.size,
              out.data);
    cr_expect(kt_normalize_is_plain(KT_NORMAL_NFC, "\xc3\xa9", 2));
    cr_expect(!kt_normalize_is_plain(KT_NORMAL_NFD, "\xc3\xa9", 2));
    cr_expect(!kt_normalize_is_plain(KT_NORMAL_NFKC, "\xc2\xbd", 2));
    cr_expect(!kt_normalize_is_plain(KT_NORMAL_NFC, "e\xcc\x81", 3));
    free(out.data);
}

/* ---- added tokens ---- */

static void insert(kt_added *a, const char *text, int32_t id, kt_added_flags flags) {
    cr_assert_eq(kt_added_insert(a, text, strlen(text), id, flags, NULL), KT_OK);
}

/* All matches as "begin-end=id "; special ones only if asked for. */
static const char *matches(const kt_added *a, const char *text, bool special) {
    static char out[256];
    kt_added_match m;
    size_t at = 0, n = 0;

    out[0] = '\0';
    while (kt_added_next(a, text, strlen(text), at, special, NULL, &m)) {
        n += (size_t)snprintf(out + n, sizeof out - n, "%zu-%zu=%d ", m.begin, m.end, m.id);
        at = m.end;
    }
    return out;
}

Test(token_parts, added_tokens_match_leftmost_and_longest) {
    const kt_added_flags none = {0}, special = {.special = true}, word = {.single_word = true};
    const kt_added_flags left = {.lstrip = true}, right = {.rstrip = true};
    kt_added a = {0};

    insert(&a, "ab", 1, none);
    insert(&a, "abcd", 2, none);
    insert(&a, "<s>", 3, special);
    insert(&a, "to", 4, word);
    insert(&a, "L", 5, left);
    insert(&a, "R", 6, right);
    cr_expect_str_eq(matches(&a, "xabcdabcab", false), "1-5=2 5-7=1 8-10=1 ");
    cr_expect_str_eq(matches(&a, "<s>ab", false), "3-5=1 ");
    cr_expect_str_eq(matches(&a, "<s>ab", true), "0-3=3 3-5=1 ");
    cr_expect_str_eq(matches(&a, "to a to_ stop to, \xc3\xa9to", false), "0-2=4 14-16=4 ");
    cr_expect_str_eq(matches(&a, "a  L b", false), "1-4=5 ");
    cr_expect_str_eq(matches(&a, "ab \xc2\xa0L", false), "0-2=1 2-6=5 ");
    cr_expect_str_eq(matches(&a, "a R \n b", false), "2-6=6 ");
    cr_expect_str_eq(matches(&a, "R  L", false), "0-3=6 3-4=5 "); /* what is taken is gone */
    cr_expect_eq(kt_added_find(&a, "ab", 2), 1);
    cr_expect_eq(kt_added_find(&a, "abc", 3), -1);
    kt_added_deinit(&a);
}

/* ---- pieces ---- */

static kt_status note_piece(void *arg, const char *piece, size_t size, kt_err *err) {
    kt_text *out = arg;
    KT_TRY(kt_text_append(out, piece, size, err));
    return kt_text_append(out, "|", 1, err);
}

static void check_pieces(const kt_splitter *s, const char *text, const char *want) {
    kt_split_work *work;
    kt_text out = {0};

    cr_assert_eq(kt_split_work_create(&work, NULL), KT_OK);
    cr_assert_eq(kt_splitter_run(s, work, text, strlen(text), note_piece, &out, NULL), KT_OK);
    cr_expect(out.size == strlen(want) && memcmp(out.data, want, out.size) == 0,
              "'%s': '%.*s', expected '%s'", text, (int)out.size, out.data, want);
    kt_split_work_destroy(work);
    free(out.data);
}

/* The example of the reference tokenizers' documentation, and its inversions. */
Test(token_parts, delimiters_go_where_their_behaviour_says) {
    static const struct {
        kt_split_behavior behavior;
        bool invert;
        const char *pieces;
    } cases[] = {
        {KT_SPLIT_REMOVED, false, "the|final|countdown|"},
        {KT_SPLIT_ISOLATED, false, "the|-|final|-|-|countdown|"},
        {KT_SPLIT_MERGED_PREVIOUS, false, "the-|final-|-|countdown|"},
        {KT_SPLIT_MERGED_NEXT, false, "the|-final|-|-countdown|"},
        {KT_SPLIT_CONTIGUOUS, false, "the|-|final|--|countdown|"},
        {KT_SPLIT_REMOVED, true, "-|-|-|"},
        {KT_SPLIT_MERGED_PREVIOUS, true, "the|-final|-|-countdown|"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_splitter s = {0};
        cr_assert_eq(kt_splitter_add(&s, "-", 1, true, cases[i].behavior, cases[i].invert, NULL),
                     KT_OK);
        check_pieces(&s, "the-final--countdown", cases[i].pieces);
        kt_splitter_deinit(&s);
    }
}

/* What Perl makes of the published patterns of gpt-oss, GLM and Qwen3.5: letters with case and
 * marks, runs of digits and white space. */
Test(token_parts, named_pre_tokenizers_cut_as_their_patterns_do) {
    static const char *const names[] = {"gpt-4o", "glm4", "qwen35"};
    static const struct {
        const char *text, *pieces[3];
    } cases[] = {{"I'M fine, HelloWorld's\n\n",
                  {"I'M| fine|,| Hello|World's|\n\n|", "I|'M| fine|,| HelloWorld|'s|\n\n|",
                   "I|'M| fine|,| HelloWorld|'s|\n\n|"}},
                 {"parseHTTPResponse2024 //x\n/y",
                  {"parse|HTTPResponse|202|4| //|x|\n|/y|", "parseHTTPResponse|202|4| //|x|\n|/y|",
                   "parseHTTPResponse|2|0|2|4| //|x|\n|/y|"}},
                 {"a?\n/b", {"a|?\n/|b|", "a|?\n|/b|", "a|?\n|/b|"}},
                 {"  a   b \t\n c12345",
                  {" | a|  | b| \t\n| c|123|45|", " | a|  | b| \t\n| c|123|45|",
                   " | a|  | b| \t\n| c|1|2|3|4|5|"}},
                 {"re\314\201sume\314\201 "
                  "\340\244\250\340\244\256\340\244\270\340\245\215\340\244\244\340\245\207 "
                  "\344\270\226\347\225\2141",
                  {"re\314\201sume\314\201| "
                   "\340\244\250\340\244\256\340\244\270\340\245\215\340\244\244\340\245\207| "
                   "\344\270\226\347\225\214|1|",
                   "re|\314\201sume|\314\201| "
                   "\340\244\250\340\244\256\340\244\270|\340\245\215\340\244\244|\340\245\207| "
                   "\344\270\226\347\225\214|1|",
                   "re\314\201sume\314\201| "
                   "\340\244\250\340\244\256\340\244\270\340\245\215\340\244\244\340\245\207| "
                   "\344\270\226\347\225\214|1|"}},
                 {"\307\205abc \312\260Word $x_y??\r\n  ",
                  {"\307\205abc| \312\260Word| $|x|_y|??\r\n|  |",
                   "\307\205abc| \312\260Word| $|x|_y|??\r\n|  |",
                   "\307\205abc| \312\260Word| $|x|_y|??\r\n|  |"}}};

    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        kt_tokenizer *t = calloc(1, sizeof *t);
        cr_assert_not_null(t);
        cr_assert_eq(kt_tokenizer_set_pre(t, names[n], strlen(names[n]), NULL), KT_OK);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            check_pieces(&t->splitter, cases[i].text, cases[i].pieces[n]);
        kt_splitter_deinit(&t->splitter);
        free(t);
    }
}

Test(token_parts, a_step_sees_each_piece_as_a_text_of_its_own) {
    kt_splitter s = {0};

    cr_assert_eq(kt_splitter_add(&s, ";", 1, true, KT_SPLIT_REMOVED, false, NULL), KT_OK);
    cr_assert_eq(kt_splitter_add_prefix_space(&s, NULL), KT_OK);
    cr_assert_eq(kt_splitter_add(&s, "\\s(?=a)", 7, false, KT_SPLIT_ISOLATED, false, NULL), KT_OK);
    check_pieces(&s, "a;b; a a", " |a| b| |a| |a|");
    kt_splitter_deinit(&s);
}

/* ---- merges ---- */

enum { LETTERS = 3, MERGES = 40, IDS = 256 + MERGES };

typedef struct toy {
    kt_bpe bpe;
    int pair[MERGES][2], n; /* merge i makes token 256 + i */
    char text[IDS][64];
    size_t size[IDS];
} toy;

/* Random merges of a, b and c and of what earlier ones made; texts are unique. */
static void make_toy(toy *t, uint64_t seed) {
    kt_rng rng;

    memset(t, 0, sizeof *t);
    kt_bpe_init(&t->bpe);
    kt_rng_seed(&rng, seed);
    for (int i = 0; i < 256; i++) t->text[i][0] = (char)i, t->size[i] = 1;
    while (t->n < MERGES) {
        int side[2], id = 256 + t->n;
        bool is_new = true;
        for (int k = 0; k < 2; k++) {
            int x = (int)kt_rng_below(&rng, (uint64_t)(LETTERS + t->n));
            side[k] = x < LETTERS ? 'a' + x : 256 + x - LETTERS;
        }
        t->size[id] = t->size[side[0]] + t->size[side[1]];
        if (t->size[id] > sizeof t->text[id]) continue;
        memcpy(t->text[id], t->text[side[0]], t->size[side[0]]);
        memcpy(t->text[id] + t->size[side[0]], t->text[side[1]], t->size[side[1]]);
        for (int i = 256; i < id; i++)
            is_new &= t->size[i] != t->size[id] || memcmp(t->text[i], t->text[id], t->size[id]);
        if (!is_new) continue;
        t->pair[t->n][0] = side[0], t->pair[t->n++][1] = side[1];
    }
    for (int id = 0; id < IDS; id++)
        cr_assert_eq(kt_bpe_add_token(&t->bpe, id, t->text[id], t->size[id], KT_TOKEN_PIECE, NULL),
                     KT_OK);
    cr_assert_eq(kt_bpe_add_token(&t->bpe, IDS, "cccbbbaaa", 9, KT_TOKEN_PIECE, NULL), KT_OK);
    cr_assert_eq(kt_bpe_index(&t->bpe, NULL), KT_OK);
    for (int twice = 0; twice < 2; twice++) /* a merge given again keeps its first rank */
        for (int i = 0; i < MERGES; i++) {
            int at = twice ? MERGES - 1 - i : i;
            const int *p = t->pair[at];
            cr_assert_eq(kt_bpe_add_merge(&t->bpe, t->text[p[0]], t->size[p[0]], t->text[p[1]],
                                          t->size[p[1]], NULL),
                         KT_OK);
        }
    cr_assert_eq(kt_bpe_finish(&t->bpe, NULL), KT_OK);
}

/* The definition: merge the pair of lowest rank, leftmost first, until there is none. */
static size_t merge_by_definition(const toy *t, const char *text, size_t n, int32_t *ids) {
    for (size_t i = 0; i < n; i++) ids[i] = (unsigned char)text[i];
    for (;;) {
        int best = MERGES;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (int m = 0; m < best; m++)
                if (t->pair[m][0] == ids[i] && t->pair[m][1] == ids[i + 1]) best = m, at = i;
        if (best == MERGES) return n;
        ids[at] = 256 + best;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

/* Short pieces and long ones, which take other paths. */
Test(token_parts, merges_are_those_of_the_definition, .timeout = 60) {
    toy *t = malloc(sizeof *t);
    kt_bpe_work work = {0};
    kt_ids got = {0};

    for (uint64_t seed = 1; seed <= 20; seed++) {
        kt_rng rng;
        make_toy(t, seed);
        kt_rng_seed(&rng, seed);
        for (int round = 0; round < 200; round++) {
            char text[160];
            int32_t want[160];
            size_t n = 1 + kt_rng_below(&rng, sizeof text - 1), count;
            for (size_t i = 0; i < n; i++) text[i] = (char)('a' + kt_rng_below(&rng, LETTERS));
            count = merge_by_definition(t, text, n, want);
            got.size = 0;
            cr_assert_eq(kt_bpe_encode(&t->bpe, &work, text, n, &got, NULL), KT_OK);
            cr_assert(got.size == count && memcmp(got.data, want, count * sizeof *want) == 0,
                      "seed %d: '%.*s' gives %zu tokens, expected %zu", (int)seed, (int)n, text,
                      got.size, count);
        }
        got.size = 0; /* in the vocabulary, but no merges lead there */
        cr_assert_eq(kt_bpe_encode(&t->bpe, &work, "cccbbbaaa", 9, &got, NULL), KT_OK);
        cr_assert(got.size > 1 || got.data[0] != IDS, "seed %d", (int)seed);
        t->bpe.ignore_merges = true;
        got.size = 0;
        cr_assert_eq(kt_bpe_encode(&t->bpe, &work, "cccbbbaaa", 9, &got, NULL), KT_OK);
        cr_assert(got.size == 1 && got.data[0] == IDS, "seed %d", (int)seed);
        kt_bpe_deinit(&t->bpe);
    }
    kt_bpe_work_deinit(&work);
    free(got.data);
    free(t);
}

/* ---- tokenizer.json ---- */

/* Write the byte as GPT-2's alphabet does: printable ones of Latin-1 as themselves, the others from
 * U+0100 on. */
static size_t put_byte(char *out, int byte) {
    uint32_t next = 0x100;

    for (int b = 0; b <= byte; b++) {
        bool is_plain = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte) return (size_t)kt_utf8_put(out, is_plain ? (uint32_t)b : next);
        next += !is_plain;
    }
    return 0;
}

/* Load a file whose tokens are the 256 bytes (id = byte), "12" = 256 and " a" = 257, with further
 * members, and unless it is NULL `config` as tokenizer_config.json beside it. */
static kt_status load_beside(const char *members, const char *merges, const char *config,
                             kt_tokenizer **t, kt_err *err) {
    char folder[64], path[96], *json = malloc(16384);
    size_t n = (size_t)sprintf(json, "{%s,\"model\":{\"type\":\"BPE\",\"vocab\":{", members);
    kt_status st;

    for (int b = 0; b < 256; b++) {
        n += (size_t)sprintf(json + n, "\"%s", b == '"' || b == '\\' ? "\\" : "");
        n += put_byte(json + n, b);
        n += (size_t)sprintf(json + n, "\":%d,", b);
    }
    sprintf(json + n,
            "\"12\":256,\"\xc4\xa0"
            "a\":257},\"merges\":%s}}",
            merges);
    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    kt_temp_write(folder, "tokenizer.json", json, strlen(json));
    if (config) kt_temp_write(folder, "tokenizer_config.json", config, strlen(config));
    st = kt_tokenizer_load(path, t, err);
    kt_temp_remove(folder);
    free(json);
    return st;
}

static kt_status load_json(const char *members, const char *merges, kt_tokenizer **t, kt_err *err) {
    return load_beside(members, merges, NULL, t, err);
}

#define MERGED "[\"1 2\",[\"\xc4\xa0\",\"a\"]]"
#define DECODER "\"decoder\":{\"type\":\"ByteLevel\"}"
#define PLAIN_BYTES "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"

/* The ids of a text as "1 2 3 ". */
static void check_ids(const char *members, const char *text, const char *want) {
    kt_tokenizer *t = NULL;
    kt_err err = {0};
    int32_t *ids;
    size_t n;
    char got[256] = "";

    cr_assert_eq(load_json(members, MERGED, &t, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_tokenizer_encode(t, text, strlen(text), true, &ids, &n, &err), KT_OK);
    for (size_t i = 0; i < n; i++) sprintf(got + strlen(got), "%d ", ids[i]);
    cr_expect_str_eq(got, want, "%s: '%s' gives %s", members, text, got);
    free(ids);
    kt_tokenizer_destroy(t);
}

Test(token_parts, files_say_how_text_is_cut) {
    check_ids(DECODER ",\"pre_tokenizer\":" PLAIN_BYTES, "12", "256 ");
    check_ids(DECODER ",\"pre_tokenizer\":{\"type\":\"ByteLevel\"}", "a", "257 "); /* by default */
    check_ids(DECODER ",\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}", "a",
              "97 ");
    check_ids(DECODER ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
                      "\"Digits\",\"individual_digits\":true}," PLAIN_BYTES "]}",
              "12", "49 50 ");
    check_ids(DECODER ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
                      "\"Digits\"}," PLAIN_BYTES "]}",
              "12", "256 ");
}

/* What stands in front of every text, "1 2 " of ids, with a tokenizer_config.json or without. */
static void check_first(const char *members, const char *config, const char *want) {
    kt_tokenizer *t = NULL;
    kt_err err = {0};
    char got[64] = "";
    const int32_t *first;
    int32_t *ids;
    size_t n;

    cr_assert_eq(load_beside(members, MERGED, config, &t, &err), KT_OK, "%s", err.message);
    first = kt_tokenizer_first_ids(t, &n);
    for (size_t i = 0; i < n; i++) sprintf(got + strlen(got), "%d ", first[i]);
    cr_expect_str_eq(got, want, "%s, %s", members, config ? config : "alone");
    for (int again = 0; again < 2; again++) { /* a text that has it already gets no second one */
        const size_t was = n;
        cr_assert_eq(kt_tokenizer_encode(t,
                                         again && n ? "\xc3\xa9"
                                                      "b"
                                                    : "b",
                                         again && n ? 3 : 1, true, &ids, &n, &err),
                     KT_OK);
        cr_assert_eq(kt_tokenizer_begin(t, &ids, &n, &err), KT_OK);
        cr_expect(n == was + 1 && ids[n - 1] == 'b' && (was == 0 || ids[0] == 300), "%zu ids", n);
        free(ids);
        n = was;
    }
    kt_tokenizer_destroy(t);
}

Test(token_parts, files_say_what_stands_in_front_of_a_text) {
#define WITH_BOS                              \
    DECODER ",\"pre_tokenizer\":" PLAIN_BYTES \
            ",\"added_tokens\":[{\"id\":300,\"content\":\"\xc3\xa9\",\"special\":true}]"
#define TEMPLATE                                                                            \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"B\"}},"       \
    "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"E\"}}],\"special_tokens\":{" \
    "\"B\":{\"ids\":[300]},\"E\":{\"ids\":[98]}}}"
    check_first(WITH_BOS, NULL, "");
    check_first(WITH_BOS ",\"post_processor\":" TEMPLATE, NULL, "300 ");
    check_first(WITH_BOS ",\"post_processor\":{\"type\":\"Sequence\",\"processors\":["
                         "{\"type\":\"ByteLevel\"}," TEMPLATE "]}",
                "{}", "300 ");
    check_first(WITH_BOS ",\"post_processor\":" TEMPLATE, "{\"add_bos_token\":false}", "");
    check_first(WITH_BOS, "{\"add_bos_token\":true,\"bos_token\":\"\xc3\xa9\"}", "300 ");
    check_first(WITH_BOS, "{\"add_bos_token\":true,\"bos_token\":{\"content\":\"\xc3\xa9\"}}",
                "300 ");
    check_first(WITH_BOS, "{\"add_bos_token\":true,\"bos_token\":null}", "");
    check_first(WITH_BOS, "{\"add_bos_token\":true,\"bos_token\":\"nowhere\"}", "");
    check_first(WITH_BOS, "no JSON", "");
}

/* Unless a file says otherwise, added tokens are looked for in the normalised text, special ones in
 * the raw. */
Test(token_parts, added_tokens_meet_the_text_they_were_written_for) {
#define NFC_WITH_ADDED(flags)                                                   \
    DECODER ",\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":" PLAIN_BYTES \
            ",\"added_tokens\":[{\"id\":300,\"content\":\"\xc3\xa9\"" flags "}]"
    check_ids(NFC_WITH_ADDED(""), "e\xcc\x81", "300 ");
    check_ids(NFC_WITH_ADDED(",\"special\":true"), "e\xcc\x81", "195 169 ");
    check_ids(NFC_WITH_ADDED(",\"special\":true,\"normalized\":true"), "e\xcc\x81", "300 ");
    check_ids(NFC_WITH_ADDED(",\"normalized\":false"),
              "e\xcc\x81"
              "\xc3\xa9",
              "195 169 300 ");
}

Test(token_parts, merges_have_two_halves) {
    static const char *const bad[] = {
        "[[\"1\",\"2\",\"3\"]]", "[[\"1\"]]", "[\"12\"]", "[\"\"]", "[7]", "[[\"1\",2]]", "{}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kt_tokenizer *t = NULL;
        kt_err err = {0};
        cr_expect_neq(load_json(DECODER ",\"pre_tokenizer\":" PLAIN_BYTES, bad[i], &t, &err), KT_OK,
                      "%s", bad[i]);
        cr_expect(strstr(err.message, "merges"), "%s: %s", bad[i], err.message);
        cr_expect_null(t);
    }
}
