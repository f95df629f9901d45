/* Model folders with damage in any of their files: an engine is made and runs, or it is refused with a
 * message; it never crashes, reads outside or hangs. Worth most under the sanitizers.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/rng.h"
#include "runtime/exec/engine.h"
#include "tests/support/random_model.h"
#include "tests/support/temp.h"

#define TINY KT_SOURCE_DIR "/datasets/models/tiny-moe"

static const kt_model_shape shape = {.layers = 2,
                                     .hidden = 64,
                                     .vocab = 50,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .head_dim = 32,
                                     .experts = 4,
                                     .topk = 2,
                                     .expert_size = 32,
                                     .dense_size = 64,
                                     .dense_layer = 1,
                                     .has_bias = 1,
                                     .dtype = KT_DTYPE_BF16};

/* One file of a good folder, and the folder. */
typedef struct victim {
    char folder[PATH_MAX];
    const char *name;
    char *good;
    size_t size;
    int is_tokenizer_optional, n_refused, n_made;
} victim;

static victim open_victim(const char *name) {
    victim v = {.name = name, .is_tokenizer_optional = 1};
    char path[PATH_MAX + 32];
    kt_err err = {KT_OK, ""};

    kt_temp_make(v.folder, sizeof v.folder);
    kt_random_model(&shape, 1, v.folder);
    snprintf(path, sizeof path, "%s/%s", v.folder, name);
    cr_assert_eq(kt_file_read(path, 1 << 24, &v.good, &v.size, &err), KT_OK, "%s", err.message);
    return v;
}

static void close_victim(victim *v) {
    kt_temp_remove(v->folder);
    free(v->good);
}

/* Make an engine of the folder with these bytes as the file, and run it when it can be made. */
static void try_bytes(victim *v, const char *bytes, size_t size) {
    const int32_t tokens[3] = {1, 2, 3};
    kt_engine_options o = {.model_dir = v->folder,
                           .table_path = "",
                           .n_threads = 1,
                           .max_chunk = 2,
                           .tokenizer_optional = v->is_tokenizer_optional};
    kt_engine_info info;
    kt_engine *e = NULL;
    kt_sequence *s = NULL;
    float *logits;
    kt_err err = {KT_OK, ""};

    kt_temp_write(v->folder, v->name, bytes, size);
    if (kt_engine_create(&o, &e, &err) != KT_OK) {
        cr_assert_null(e);
        cr_assert(err.message[0], "refused without a word");
        v->n_refused++;
        return;
    }
    v->n_made++;
    kt_engine_describe(e, &info);
    logits = malloc((size_t)info.vocab * sizeof *logits);
    if (kt_sequence_create(e, 3, &s, &err) == KT_OK)
        kt_engine_forward(e, s, tokens, 3, 1, logits, NULL, NULL, NULL, &err);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
    free(logits);
}

/* A few random bytes of the first `head`, or a cut. */
static void damage_bytes(victim *v, int rounds, size_t head) {
    char *bad = malloc(v->size);
    kt_rng rng;

    if (head > v->size) head = v->size;
    kt_rng_seed(&rng, 11);
    for (int i = 0; i < rounds; i++) {
        size_t size = v->size, changes = 1 + kt_rng_below(&rng, 4);
        memcpy(bad, v->good, v->size);
        for (size_t c = 0; c < changes; c++)
            bad[kt_rng_below(&rng, head)] = kt_rng_below(&rng, 2)
                                                ? (char)kt_rng_below(&rng, 256)
                                                : "0123456789{}[]\",:-eE."[kt_rng_below(&rng, 21)];
        if (kt_rng_below(&rng, 8) == 0) size = kt_rng_below(&rng, v->size);
        try_bytes(v, bad, size);
    }
    free(bad);
}

/* Each value of config.json in turn by each of these. */
Test(damage, config_values_of_any_kind) {
    static const char *const values[] = {"0",      "-1",
                                         "1",      "31",
                                         "33",     "96",
                                         "1024",   "65537",
                                         "2.5",    "1e300",
                                         "-0.0",   "1e-320",
                                         "\"\"",   "null",
                                         "[1,2]",  "[-1]",
                                         "{}",     "true",
                                         "1e18",   "4096",
                                         "[1e99]", "9223372036854775808"};
    victim v = open_victim("config.json");
    char *bad = malloc(v.size + 64);

    for (size_t at = 0; at < v.size; at++) {
        size_t begin = at + 1, end = begin, n;
        int depth = 0;
        if (at == 0 || v.good[at] != ':' || v.good[at - 1] != '"') continue;
        while (depth || !strchr(",}", v.good[end])) {
            depth += (v.good[end] == '[') - (v.good[end] == ']');
            end++;
        }
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            n = strlen(values[i]);
            memcpy(bad, v.good, begin);
            memcpy(bad + begin, values[i], n);
            memcpy(bad + begin + n, v.good + end, v.size - end);
            try_bytes(&v, bad, v.size - (end - begin) + n);
        }
    }
    cr_expect_gt(v.n_refused, 100);
    cr_expect_gt(v.n_made, 20); /* a change of rope_theta or eos_token_id still makes a model */
    free(bad);
    close_victim(&v);
}

Test(damage, config_bytes) {
    victim v = open_victim("config.json");
    damage_bytes(&v, 400, v.size);
    cr_expect_gt(v.n_refused, 100);
    close_victim(&v);
}

Test(damage, checkpoint_bytes) {
    victim v = open_victim("model.safetensors");
    uint64_t header;
    memcpy(&header, v.good, sizeof header);
    damage_bytes(&v, 400, 8 + (size_t)header); /* the header is where the lies are */
    cr_expect_gt(v.n_refused, 100);
    close_victim(&v);
}

/* The bytes of the weights: anything goes, also infinities and NaN. */
Test(damage, weight_bytes) {
    victim v = open_victim("model.safetensors");
    char *bad = malloc(v.size);
    uint64_t header;
    kt_rng rng;

    memcpy(&header, v.good, sizeof header);
    kt_rng_seed(&rng, 12);
    for (int i = 0; i < 40; i++) {
        memcpy(bad, v.good, v.size);
        for (size_t c = 8 + (size_t)header; c < v.size; c++)
            if (kt_rng_below(&rng, 64) == 0) bad[c] = (char)kt_rng_below(&rng, 256);
        try_bytes(&v, bad, v.size);
    }
    free(bad);
    close_victim(&v);
}

Test(damage, tokenizer_bytes) {
    victim v = open_victim("config.json");
    char path[PATH_MAX];
    kt_err err = {KT_OK, ""};

    free(v.good);
    v.name = "tokenizer.json";
    v.is_tokenizer_optional = 0;
    snprintf(path, sizeof path, "%s/tokenizer.json", TINY);
    cr_assert_eq(kt_file_read(path, 1 << 24, &v.good, &v.size, &err), KT_OK, "%s", err.message);
    damage_bytes(&v, 20, 4000);
    damage_bytes(&v, 20, v.size);
    close_victim(&v);
}
