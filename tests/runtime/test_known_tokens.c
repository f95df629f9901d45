/* Tokenizers held against the models they come with. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/buffer.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "runtime/exec/engine.h"
#include "runtime/token/check_text.h"
#include "runtime/token/known_tokens.h"
#include "tests/support/guard.h"
#include "tests/support/random_model.h"
#include "tests/support/temp.h"

#define KT KT_BUILD_DIR "/kt "

/* A tokenizer.json of all bytes (id = byte) and added tokens. */
static void write_tokenizer(const char *folder, const char *added) {
    char *json = malloc(16384);
    size_t n = (size_t)sprintf(json,
                               "{\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{"
                               "\"type\":\"ByteLevel\"},\"added_tokens\":[%s],\"model\":{"
                               "\"type\":\"BPE\",\"vocab\":{",
                               added);
    uint32_t next = 0x100;

    for (int b = 0; b < 256; b++) {
        bool is_plain = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        n += (size_t)sprintf(json + n, "%s\"%s", b ? "," : "", b == '"' || b == '\\' ? "\\" : "");
        n += (size_t)kt_utf8_put(json + n, is_plain ? (uint32_t)b : next++);
        n += (size_t)sprintf(json + n, "\":%d", b);
    }
    n += (size_t)sprintf(json + n, "},\"merges\":[]}}");
    kt_temp_write(folder, "tokenizer.json", json, n);
    free(json);
}

#define ADDED(id, text) "{\"id\":" #id ",\"content\":\"" text "\",\"special\":true}"

static const kt_known_token known[] = {
    {1000, "<end>", 300}, {1000, "<start>", 301}, {1000, NULL, 302}, {2000, "<end>", 900}};
static const kt_family family = {.name = "parrot", .tokens = known, .n_tokens = 4};

/* Check a tokenizer with these added tokens for a model of that vocabulary; the message goes to
 * err. */
static kt_status check(const char *added, int64_t vocab, kt_err *err) {
    char folder[PATH_MAX];
    kt_tokenizer *t = NULL;
    kt_status st;

    kt_temp_make(folder, sizeof folder);
    write_tokenizer(folder, added);
    cr_assert_eq(kt_tokenizer_load(folder, &t, err), KT_OK, "%s", err->message);
    st = kt_tokenizer_check(t, &family, vocab, err);
    kt_tokenizer_destroy(t);
    kt_temp_remove(folder);
    return st;
}

/* The two digests of a message. */
static void digests_of(const kt_err *err, char found[17], char expected[17]) {
    const char *a = strstr(err->message, "digest is "), *b = strstr(err->message, " has ");
    cr_assert(a && b, "%s", err->message);
    snprintf(found, 17, "%s", a + 10);
    snprintf(expected, 17, "%s", b + 5);
}

Test(known_tokens, the_published_ids_pass) {
    kt_err err = {KT_OK, ""};
    const char *good = ADDED(300, "<end>") "," ADDED(301, "<start>") "," ADDED(302, "<other>");

    cr_expect_eq(check(good, 1000, &err), KT_OK, "%s", err.message);
    cr_expect_eq(check("", 999, &err), KT_OK, "of other sizes nothing is known: %s", err.message);
}

Test(known_tokens, both_digests_and_the_first_difference_are_named) {
    static const struct {
        const char *added, *words;
    } cases[] = {
        {ADDED(300, "<end>") "," ADDED(303, "<start>") "," ADDED(302, "<other>"),
         "token '<start>' is 303, expected 301"},
        {ADDED(301, "<end>") "," ADDED(300, "<start>") "," ADDED(302, "<other>"),
         "token '<end>' is 301, expected 300"},
        {ADDED(300, "<end>") "," ADDED(301, "<start>") "," ADDED(303, "<other>"),
         "token '(added)' is missing, expected 302"},
        {"", "token '<end>' is missing, expected 300"},
    };
    char found[4][17], expected[4][17];

    for (int i = 0; i < 4; i++) {
        kt_err err = {KT_OK, ""};
        cr_expect_eq(check(cases[i].added, 1000, &err), KT_E_MISMATCH);
        cr_expect(strstr(err.message, cases[i].words), "'%s' lacks '%s'", err.message,
                  cases[i].words);
        cr_expect(strstr(err.message, "parrot model with vocab_size 1000"), "%s", err.message);
        digests_of(&err, found[i], expected[i]);
        cr_expect_str_eq(expected[i], expected[0]);
        cr_expect_str_neq(found[i], expected[i]);
        for (int k = 0; k < i; k++) cr_expect_str_neq(found[i], found[k]);
    }
}

Test(known_tokens, an_id_that_the_model_lacks_is_refused) {
    char folder[PATH_MAX];
    kt_tokenizer *t = NULL;
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    write_tokenizer(folder, ADDED(300, "<end>"));
    cr_assert_eq(kt_tokenizer_load(folder, &t, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_tokenizer_fits(t, 301, &err), KT_OK);
    cr_expect_eq(kt_tokenizer_fits(t, 5000, &err), KT_OK);
    cr_expect_eq(kt_tokenizer_fits(t, 300, &err), KT_E_MISMATCH);
    cr_expect(strstr(err.message, "ids up to 300") && strstr(err.message, "vocab_size is 300"),
              "%s", err.message);
    kt_tokenizer_destroy(t);
    kt_temp_remove(folder);
}

/* Every family's list: ids within its vocabulary, no text twice, and texts that a message can
 * hold. */
Test(known_tokens, families_list_what_can_be) {
    int listed = 0;

    for (size_t f = 0; f < kt_builtin_family_count; f++) {
        const kt_family *x = kt_builtin_families[f];
        for (size_t i = 0; i < x->n_tokens; i++, listed++) {
            const kt_known_token *a = &x->tokens[i];
            cr_expect(a->id >= 0 && a->id < a->vocab, "%s: %d", x->name, a->id);
            cr_expect(!a->text || strlen(a->text) < 60, "%s: %d", x->name, a->id);
            for (size_t k = 0; k < i; k++)
                cr_expect(x->tokens[k].vocab != a->vocab || x->tokens[k].id != a->id, "%s: %d",
                          x->name, a->id);
        }
    }
    cr_expect_gt(listed, 0);
}

/* ---- the hash of the check text ---- */

Test(known_tokens, the_check_text_is_the_published_one) {
    char hex[65];

    kt_sha256(kt_check_text(), kt_check_text_bytes(), hex);
    cr_expect_str_eq(hex, "a36179c1e2b1cfcfbfad1dc779addad2ffc778201e4cf0d538bddeafa2c526da");
}

/* Bytes are ids in this tokenizer, so what is hashed can be written down without it. */
static void hash_of_bytes(const char *first, char hex[65]) {
    const char *text = kt_check_text();
    char *list = malloc(16 * kt_check_text_bytes() + 64);
    size_t n = (size_t)sprintf(list, "[%s", first);

    for (size_t i = 0; i < kt_check_text_bytes(); i++)
        n += (size_t)sprintf(list + n, "%s%d", i ? ", " : "", (unsigned char)text[i]);
    n += (size_t)sprintf(list + n, "]");
    kt_sha256(list, n, hex);
    free(list);
}

Test(known_tokens, a_tokenizer_is_held_against_the_published_hashes) {
    char plain[65], with[65], folder[PATH_MAX];
    const kt_known_hash one[] = {{1000, plain, 0, {0}}};
    const kt_known_hash prefixed[] = {{1000, "of another", 0, {0}}, {1000, with, 2, {7, 300}}};
    const kt_known_hash other[] = {{1000, "0123", 1, {7}}, {2000, plain, 0, {0}}};
    const struct {
        const kt_known_hash *hashes;
        size_t n;
        kt_status status;
    } cases[] = {
        {one, 1, KT_OK}, {prefixed, 2, KT_OK}, {other, 2, KT_E_MISMATCH}, {NULL, 0, KT_OK}};
    kt_tokenizer *t = NULL;
    kt_err err = {KT_OK, ""};

    hash_of_bytes("32, ", plain); /* ByteLevel puts a space first */
    hash_of_bytes("7, 300, 32, ", with);
    kt_temp_make(folder, sizeof folder);
    write_tokenizer(folder, ADDED(300, "<end>"));
    cr_assert_eq(kt_tokenizer_load(folder, &t, &err), KT_OK, "%s", err.message);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kt_family f = {.name = "parrot", .hashes = cases[i].hashes, .n_hashes = cases[i].n};
        cr_expect_eq(kt_tokenizer_check(t, &f, 1000, &err), cases[i].status, "case %zu", i);
        cr_expect_eq(kt_tokenizer_check(t, &f, 999, &err), KT_OK, "case %zu", i);
        if (cases[i].status == KT_OK) continue;
        kt_tokenizer_check(t, &f, 1000, &err);
        cr_expect(strstr(err.message, plain) && strstr(err.message, "have 0123"), "%s",
                  err.message);
    }
    kt_tokenizer_destroy(t);
    kt_temp_remove(folder);
}

/* What families expect stands in the list that converters know vocabularies by. */
Test(known_tokens, hashes_of_families_are_published_ones) {
    char path[PATH_MAX], *text;
    size_t size, n = 0;
    kt_err err = {KT_OK, ""};

    if (!kt_shared_path("data/tokenizers/chkhsh.json", path, sizeof path))
        cr_skip_test("the shared data is absent");
    cr_assert_eq(kt_file_read(path, 1 << 20, &text, &size, &err), KT_OK, "%s", err.message);
    for (size_t f = 0; f < kt_builtin_family_count; f++)
        for (size_t i = 0; i < kt_builtin_families[f]->n_hashes; i++, n++)
            cr_expect(strstr(text, kt_builtin_families[f]->hashes[i].sha256), "%s: hash %zu",
                      kt_builtin_families[f]->name, i);
    cr_expect_geq(n, 11);
    free(text);
}

/* The one published vocabulary at hand. */
Test(known_tokens, qwen3_has_its_published_hash) {
    static const char vocabulary[] = "data/tokenizers/qwen3-reconstructed/tokenizer.json";
    char path[PATH_MAX];
    kt_tokenizer *t = NULL;
    kt_err err = {KT_OK, ""};
    size_t f = 0;

    if (!kt_shared_path(vocabulary, path, sizeof path))
        cr_skip_test("%s is not in the folder that KT_SHARED names", vocabulary);
    while (strcmp(kt_builtin_families[f]->name, "qwen3_moe") != 0) f++;
    cr_assert_eq(kt_tokenizer_load(path, &t, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_tokenizer_check(t, kt_builtin_families[f], 151936, &err), KT_OK, "%s",
                 err.message);
    kt_tokenizer_destroy(t);
}

/* ---- an engine ---- */

/* A Qwen3 model of the published vocabulary size. */
static const kt_model_shape model = {.layers = 1,
                                     .hidden = 32,
                                     .vocab = 151936,
                                     .heads = 1,
                                     .kv_heads = 1,
                                     .head_dim = 32,
                                     .experts = 2,
                                     .topk = 1,
                                     .expert_size = 32,
                                     .dense_layer = -1,
                                     .dtype = KT_DTYPE_BF16};

#define GOOD                                                        \
    ADDED(151643, "<|endoftext|>")                                  \
    "," ADDED(151644, "<|im_start|>") "," ADDED(151645, "<|im_end|" \
                                                        ">")
#define SWAPPED                                                     \
    ADDED(151643, "<|endoftext|>")                                  \
    "," ADDED(151645, "<|im_start|>") "," ADDED(151644, "<|im_end|" \
                                                        ">")
#define TOO_LARGE GOOD "," ADDED(151936, "<more>")

/* Make an engine; *log gets what it logged (malloc'd). */
static kt_status create(const char *folder, bool is_strict, char **log, kt_err *err) {
    size_t size;
    kt_log sink = {.stream = open_memstream(log, &size), .level = KT_LOG_WARN};
    kt_engine_options o = {.model_dir = folder,
                           .table_path = "",
                           .n_threads = 1,
                           .strict_tokenizer = is_strict,
                           .log = &sink};
    kt_engine *e = NULL;
    kt_status st = kt_engine_create(&o, &e, err);

    kt_engine_destroy(e);
    fclose(sink.stream);
    return st;
}

static int count(const char *text, const char *word) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, word)); p++) n++;
    return n;
}

static void expect_command(const char *folder, const char *command, int code, const char *word) {
    char line[2 * PATH_MAX], out[4096] = "";
    FILE *pipe;
    int status;
    size_t n;

    snprintf(line, sizeof line, KT "%s %s --table '' --threads 1 2>&1", command, folder);
    pipe = popen(line, "r");
    cr_assert(pipe);
    n = fread(out, 1, sizeof out - 1, pipe);
    while (fgetc(pipe) != EOF) continue;
    status = pclose(pipe);
    cr_expect(n > 0 || code == 0);
    cr_expect_eq(WEXITSTATUS(status), code, "%s: %s", line, out);
    cr_expect_eq(count(out, word), 1, "%s: %s", line, out);
}

Test(known_tokens, an_engine_warns_once_or_refuses, .timeout = 120) {
    char folder[PATH_MAX], *log;
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    kt_random_model(&model, 1, folder);
    write_tokenizer(folder, GOOD); /* the known tokens of another vocabulary */
    cr_expect_eq(create(folder, false, &log, &err), KT_OK, "%s", err.message);
    cr_expect_eq(count(log, "digest"), 0, "%s", log);
    cr_expect_eq(count(log, "SHA-256"), 1, "%s", log);
    free(log);
    cr_expect_eq(create(folder, true, &log, &err), KT_E_MISMATCH);
    cr_expect(strstr(err.message, "SHA-256") && strstr(err.message, folder), "%s", err.message);
    free(log);

    write_tokenizer(folder, SWAPPED);
    cr_expect_eq(create(folder, false, &log, &err), KT_OK, "%s", err.message);
    cr_expect_eq(count(log, "digest"), 1, "%s", log);
    cr_expect(strstr(log, "'<|im_start|>' is 151645, expected 151644"), "%s", log);
    free(log);
    cr_expect_eq(create(folder, true, &log, &err), KT_E_MISMATCH);
    cr_expect(strstr(err.message, "digest") && strstr(err.message, folder), "%s", err.message);
    free(log);
    expect_command(folder, "generate --strict-tokenizer -p a -n 1", 1, "digest");
    expect_command(folder, "logits --strict-tokenizer --tokens 1 -o /dev/null", 1, "digest");
    expect_command(folder, "generate -p a -n 1 --raw", 0, "digest");

    write_tokenizer(folder, TOO_LARGE);
    cr_expect_eq(create(folder, false, &log, &err), KT_E_MISMATCH);
    cr_expect(strstr(err.message, "ids up to 151936") && strstr(err.message, folder), "%s",
              err.message);
    free(log);
    kt_temp_remove(folder);
}
