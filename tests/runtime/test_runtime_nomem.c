/* Loaders, tokenizers and model folders with every allocation failing once.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "runtime/exec/expert_map.h"
#include "runtime/exec/importance.h"
#include "runtime/exec/recorder.h"
#include "runtime/kv/page_tier.h"
#include "runtime/kv/pages.h"
#include "dispatch/model/gguf_tensors.h"
#include "dispatch/model/checkpoint.h"
#include "runtime/model/memory_plan.h"
#include "runtime/model/model_dir.h"
#include "runtime/model/synthetic_model.h"
#include "runtime/model/weight_source.h"
#include "runtime/sample/sampler.h"
#include "runtime/token/splitter.h"
#include "runtime/token/tokenizer_impl.h"
#include "tests/support/nomem.h"
#include "tests/support/random_model.h"
#include "tests/support/temp.h"

static const kt_model_shape small = {.layers = 2,
                                     .hidden = 64,
                                     .vocab = 128,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .head_dim = 32,
                                     .experts = 4,
                                     .topk = 2,
                                     .expert_size = 64,
                                     .dense_size = 128,
                                     .dense_layer = 0,
                                     .is_normalised = 1,
                                     .dtype = KT_DTYPE_BF16};

static char folder[256];
static kt_model_dir dir; /* of read_dir */

static void make_model(void) {
    static const char generation[] = "{\"eos_token_id\": [5, 7]}";

    kt_temp_make(folder, sizeof folder);
    kt_random_model(&small, 3, folder);
    kt_temp_write(folder, "generation_config.json", generation, sizeof generation - 1);
}
static void remove_model(void) {
    kt_model_dir_deinit(&dir);
    kt_temp_remove(folder);
}
TestSuite(runtime_nomem, .init = make_model, .fini = remove_model, .timeout = 120);

static kt_model_dir *read_dir(void) {
    kt_err err = {KT_OK, ""};
    cr_assert_eq(kt_model_dir_read(folder, &dir, &err), KT_OK, "%s", err.message);
    return &dir;
}

/* ---- checkpoints ---- */

static kt_status open_folder(void *out, const void *with, kt_err *err) {
    return kt_checkpoint_open(with, out, err);
}
static kt_status open_file(void *out, const void *with, kt_err *err) {
    return kt_checkpoint_open_file(with, out, err);
}
static void close_checkpoint(void *out) {
    kt_checkpoint_close(*(kt_checkpoint **)out);
}

static kt_status open_memory(void *out, const void *with, kt_err *err) {
    static const kt_tensor tensors[] = {
        {.name = "a", .dtype = KT_DTYPE_F32, .rank = 1, .shape = {4}, .bytes = 16},
        {.name = "b", .dtype = KT_DTYPE_F32, .rank = 1, .shape = {4}, .bytes = 16}};
    kt_tensor list[2] = {tensors[0], tensors[1]};
    kt_buffer memory;
    kt_status st = kt_buffer_create(64, KT_PAGES_SMALL, -1, &memory, err);

    (void)with;
    if (st != KT_OK) return st;
    for (int i = 0; i < 2; i++) list[i].data = (uint8_t *)memory.data + 16 * i;
    return kt_checkpoint_of_memory("numbers", list, 2, &memory, out, err);
}

Test(runtime_nomem, a_checkpoint_is_open_or_closed) {
    char path[400];
    kt_nomem_case c = {.out_bytes = sizeof(kt_checkpoint *), .unmake = close_checkpoint};

    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    c.function = "kt_checkpoint_open_file", c.make = open_file, c.with = path;
    c.says = "model.safetensors";
    kt_nomem_check(&c);
    c.function = "kt_checkpoint_open", c.make = open_folder, c.with = folder;
    kt_nomem_check(&c);
    c.with = KT_TEST_DATA "/golden/qwen3_moe-b", c.says = "qwen3_moe-b"; /* shards, index */
    kt_nomem_check(&c);
    c.function = "kt_checkpoint_of_memory", c.make = open_memory, c.with = NULL;
    c.says = "memory"; /* the label, or the buffer */
    kt_nomem_check(&c);
}

static kt_status write_tensors(void *out, const void *with, kt_err *err) {
    static const float numbers[4] = {1, 2, 3, 4};
    static const kt_tensor_out tensors[] = {
        {.name = "a", .dtype = KT_DTYPE_F32, .rank = 1, .shape = {4}, .data = numbers},
        {.name = "b", .dtype = KT_DTYPE_F32, .rank = 2, .shape = {2, 2}, .data = numbers}};
    (void)out;
    return kt_safetensors_write(with, tensors, 2, err);
}

Test(runtime_nomem, a_checkpoint_is_written_or_left) {
    char path[400];
    const kt_nomem_case c = {
        .function = "kt_safetensors_write", .make = write_tensors, .with = path, .says = path};

    snprintf(path, sizeof path, "%s/new.safetensors", folder);
    kt_nomem_check(&c);
}

/* ---- GGUF ---- */

typedef struct gguf {
    uint8_t bytes[1 << 16];
    size_t n;
} gguf;

static void put(gguf *f, uint64_t v, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) f->bytes[f->n++] = (uint8_t)(v >> 8 * i);
}

static void put_text(gguf *f, const char *s) {
    put(f, strlen(s), 8);
    memcpy(f->bytes + f->n, s, strlen(s));
    f->n += strlen(s);
}

enum { GGUF_STRING = 8, GGUF_ARRAY = 9, LETTERS = 26 };

static void put_string(gguf *f, const char *key, const char *value) {
    put_text(f, key);
    put(f, GGUF_STRING, 4);
    put_text(f, value);
}

/* Byte b as the vocabulary files of GPT-2 write it. */
static const char *letter(int b) {
    static char text[3];
    const bool is_plain = (b > 32 && b < 127) || (b > 160 && b != 173);
    int c = b;

    for (int i = 0, n = 0; !is_plain && i <= b; i++)
        if (i <= 32 || (i >= 127 && i <= 160) || i == 173) c = 256 + n++;
    text[0] = (char)(c < 128 ? c : 0xc0 | c >> 6);
    text[1] = (char)(c < 128 ? 0 : 0x80 | (c & 0x3f));
    return text;
}

/* A tokenizer of all bytes, 26 pairs with "a" and their merges, and two tensors. */
static void make_gguf(gguf *f) {
    char text[8];

    f->n = 0;
    memcpy(f->bytes, "GGUF", 4);
    f->n = 4;
    put(f, 3, 4), put(f, 2, 8), put(f, 5, 8);
    put_string(f, "general.architecture", "qwen3moe");
    put_string(f, "tokenizer.ggml.model", "gpt2");
    put_string(f, "tokenizer.ggml.pre", "qwen2");
    put_text(f, "tokenizer.ggml.tokens");
    put(f, GGUF_ARRAY, 4), put(f, GGUF_STRING, 4), put(f, 256 + LETTERS, 8);
    for (int b = 0; b < 256; b++) put_text(f, letter(b));
    for (int i = 0; i < LETTERS; i++)
        snprintf(text, sizeof text, "%ca", 'a' + i), put_text(f, text);
    put_text(f, "tokenizer.ggml.merges");
    put(f, GGUF_ARRAY, 4), put(f, GGUF_STRING, 4), put(f, LETTERS, 8);
    for (int i = 0; i < LETTERS; i++)
        snprintf(text, sizeof text, "%c a", 'a' + i), put_text(f, text);
    for (int i = 0; i < 2; i++) {
        put_text(f, i ? "v" : "w");
        put(f, 2, 4), put(f, 64, 8), put(f, 4, 8), put(f, 2, 4), put(f, (uint64_t)(160 * i), 8);
    }
    f->n = (f->n + 31) / 32 * 32 + 160 + 144;
}

static kt_status make_meta(void *out, const void *with, kt_err *err) {
    const gguf *f = with;
    return kt_gguf_meta_init(out, f->bytes, f->n, err);
}
static void unmake_meta(void *out) {
    kt_gguf_meta_deinit(out);
}

typedef struct tensor_list {
    kt_gguf_tensor *list;
    size_t count;
} tensor_list;

static kt_status make_tensors(void *out, const void *with, kt_err *err) {
    tensor_list *t = out;
    return kt_gguf_tensors_read(with, &t->list, &t->count, err);
}
static void unmake_tensors(void *out) {
    free(((tensor_list *)out)->list);
}

static kt_status load_tokenizer(void *out, const void *with, kt_err *err) {
    return kt_tokenizer_load(with, out, err);
}
static void unload_tokenizer(void *out) {
    kt_tokenizer_destroy(*(kt_tokenizer **)out);
}

/* kt_tokenizer_load ends in kt_tokenizer_read_gguf or kt_tokenizer_read_json. */
Test(runtime_nomem, a_gguf_file_is_read_or_refused) {
    static gguf file;
    char path[400];
    kt_gguf_meta meta;
    kt_err err = {KT_OK, ""};
    kt_nomem_case c = {.function = "kt_gguf_meta_init",
                       .make = make_meta,
                       .unmake = unmake_meta,
                       .with = &file,
                       .out_bytes = sizeof(kt_gguf_meta),
                       .says = "memory"};

    make_gguf(&file);
    kt_nomem_check(&c);
    cr_assert_eq(kt_gguf_meta_init(&meta, file.bytes, file.n, &err), KT_OK, "%s", err.message);
    c.function = "kt_gguf_tensors_read", c.make = make_tensors, c.unmake = unmake_tensors;
    c.with = &meta, c.out_bytes = sizeof(tensor_list);
    kt_nomem_check(&c);
    kt_gguf_meta_deinit(&meta);

    kt_temp_write(folder, "letters.gguf", file.bytes, file.n);
    snprintf(path, sizeof path, "%s/letters.gguf", folder);
    c.function = "kt_tokenizer_load, GGUF", c.make = load_tokenizer, c.unmake = unload_tokenizer;
    c.with = path, c.says = "letters.gguf", c.out_bytes = sizeof(kt_tokenizer *);
    kt_nomem_check(&c);
}

/* ---- tokenizers ---- */

#define TINY KT_SOURCE_DIR "/datasets/models/tiny-moe"

Test(runtime_nomem, a_tokenizer_is_loaded_or_not) {
    const kt_nomem_case c = {.function = "kt_tokenizer_load, JSON",
                             .make = load_tokenizer,
                             .unmake = unload_tokenizer,
                             .with = TINY,
                             .out_bytes = sizeof(kt_tokenizer *),
                             .says = "tokenizer.json"};
    kt_nomem_check(&c);
}

static kt_status make_up_tokenizer(void *out, const void *with, kt_err *err) {
    return kt_tokenizer_make_up(*(const int64_t *)with, out, err);
}

Test(runtime_nomem, a_vocabulary_is_made_up_or_not) {
    static const int64_t n_tokens = 300;
    const kt_nomem_case c = {.function = "kt_tokenizer_make_up",
                             .make = make_up_tokenizer,
                             .unmake = unload_tokenizer,
                             .with = &n_tokens,
                             .out_bytes = sizeof(kt_tokenizer *),
                             .says = "memory"};
    kt_nomem_check(&c);
}

/* All bytes by rank, and two pairs of them: kt_tokenizer_load ends in
 * kt_tokenizer_read_tiktoken. */
Test(runtime_nomem, a_tiktoken_vocabulary_is_loaded_or_not) {
    static const char config[] = "{\"added_tokens_decoder\":{\"258\":{\"content\":\"[BOS]\"}}}";
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char path[320], lines[4096];
    kt_nomem_case c = {.function = "kt_tokenizer_load, tiktoken",
                       .make = load_tokenizer,
                       .unmake = unload_tokenizer,
                       .with = path,
                       .out_bytes = sizeof(kt_tokenizer *),
                       .says = "memory"};
    size_t n = 0;

    for (int i = 0; i < 256; i++)
        n += (size_t)sprintf(lines + n, "%c%c== %d\n", digits[i >> 2], digits[(i & 3) << 4], i);
    n += (size_t)sprintf(lines + n, "YWI= 256\nYWJh 257\n"); /* ab, aba */
    kt_temp_write(folder, "tiktoken.model", lines, n);
    kt_temp_write(folder, "tokenizer_config.json", config, sizeof config - 1);
    snprintf(path, sizeof path, "%s/tiktoken.model", folder);
    kt_nomem_check(&c);
}

typedef struct ids {
    int32_t *list;
    size_t count;
} ids;

typedef struct words {
    char *text;
    size_t size;
} words;

static char long_text[20000];

static kt_status encode(void *out, const void *with, kt_err *err) {
    ids *i = out;
    return kt_tokenizer_encode(with, long_text, strlen(long_text), true, &i->list, &i->count, err);
}
static void unencode(void *out) {
    free(((ids *)out)->list);
}

static kt_status decode(void *out, const void *with, kt_err *err) {
    static const int32_t tokens[] = {897, 306, 464, 323, 307, 352, 522, 290, 675, 294};
    words *w = out;
    return kt_tokenizer_decode(with, tokens, 10, false, &w->text, &w->size, err);
}
static void undecode(void *out) {
    free(((words *)out)->text);
}

static kt_status make_split_work(void *out, const void *with, kt_err *err) {
    (void)with;
    return kt_split_work_create(out, err);
}
static void unmake_split_work(void *out) {
    kt_split_work_destroy(*(kt_split_work **)out);
}

/* Long pieces without a space take the slow way of merging, which has a heap. */
Test(runtime_nomem, text_is_encoded_and_decoded_or_not) {
    kt_tokenizer *t;
    kt_err err = {KT_OK, ""};
    kt_nomem_case c = {.function = "kt_tokenizer_encode",
                       .make = encode,
                       .unmake = unencode,
                       .out_bytes = sizeof(ids),
                       .says = "memory"};

    for (size_t i = 0; i + 1 < sizeof long_text; i++)
        long_text[i] = i < 3000 ? (char)('a' + i * i % 26) : " day shall\xc3\xa9<|"[i % 14];
    cr_assert_eq(kt_tokenizer_load(TINY, &t, &err), KT_OK, "%s", err.message);
    c.with = t;
    kt_nomem_check(&c);
    c.function = "kt_tokenizer_decode", c.make = decode, c.unmake = undecode;
    c.out_bytes = sizeof(words);
    kt_nomem_check(&c);
    kt_tokenizer_destroy(t);
    c.function = "kt_split_work_create", c.make = make_split_work, c.unmake = unmake_split_work;
    c.out_bytes = sizeof(kt_split_work *);
    cr_assert_eq(kt_nomem_check(&c), 3);
}

static kt_status make_alphabet(void *out, const void *with, kt_err *err) {
    bool ok;
    return kt_byte_alphabet_read(with, strlen(with), out, &ok, err);
}
static void unmake_text(void *out) {
    free(((kt_text *)out)->data);
}

Test(runtime_nomem, bytes_of_the_alphabet_are_read_or_not) {
    const kt_nomem_case c = {.function = "kt_byte_alphabet_read",
                             .make = make_alphabet,
                             .unmake = unmake_text,
                             .with = "some\xc4\xa0words",
                             .out_bytes = sizeof(kt_text),
                             .says = "memory"};
    kt_nomem_check(&c);
}

/* ---- model folders ---- */

static kt_status make_dir(void *out, const void *with, kt_err *err) {
    return kt_model_dir_read(with, out, err);
}
static void unmake_dir(void *out) {
    kt_model_dir_deinit(out);
}

typedef struct shape {
    kt_model_dir dir;
    int64_t layers_of_all;
} shape;

static kt_status make_synthetic_dir(void *out, const void *with, kt_err *err) {
    shape *s = out;
    (void)with;
    return kt_synthetic_dir("qwen3-30b", 1, KT_W_NONE, &s->dir, &s->layers_of_all, err);
}
static void unmake_synthetic_dir(void *out) {
    kt_model_dir_deinit(&((shape *)out)->dir);
}

static kt_status make_synthetic(void *out, const void *with, kt_err *err) {
    return kt_synthetic_checkpoint(with, 1, out, err);
}

Test(runtime_nomem, a_model_folder_is_read_or_not) {
    kt_nomem_case c = {.function = "kt_model_dir_read",
                       .make = make_dir,
                       .unmake = unmake_dir,
                       .with = folder,
                       .out_bytes = sizeof(kt_model_dir),
                       .says = folder};
    kt_nomem_check(&c); /* the end tokens of generation_config.json must not be lost, either */
}

Test(runtime_nomem, a_synthetic_model_is_made_or_not) {
    static shape s;
    kt_err err = {KT_OK, ""};
    kt_nomem_case c = {.function = "kt_synthetic_dir",
                       .make = make_synthetic_dir,
                       .unmake = unmake_synthetic_dir,
                       .out_bytes = sizeof(shape),
                       .says = "memory"};

    kt_nomem_check(&c);
    cr_assert_eq(make_synthetic_dir(&s, NULL, &err), KT_OK, "%s", err.message);
    c.function = "kt_synthetic_checkpoint", c.make = make_synthetic, c.unmake = close_checkpoint;
    c.with = &s.dir, c.out_bytes = sizeof(kt_checkpoint *), c.most = 40;
    c.says = "memory";
    c.n_optional = 1; /* huge pages */
    kt_nomem_check(&c);
    kt_model_dir_deinit(&s.dir);
}

typedef struct survey {
    kt_memory_choice choice[KT_MEMORY_CHOICES];
} survey;

static kt_status make_survey(void *out, const void *with, kt_err *err) {
    return kt_memory_survey(with, ((survey *)out)->choice, err);
}

static kt_status make_memory_plan(void *out, const void *with, kt_err *err) {
    return kt_memory_plan_make(with, out, err);
}

Test(runtime_nomem, memory_is_counted_or_not) {
    kt_model_dir *d = read_dir();
    kt_registry *registry;
    kt_planner *planner;
    kt_model_plan plan;
    const kt_fingerprint machine = {0};
    kt_memory_request r = {.plan = &plan, .n_nodes = 1, .context = 10, .available = UINT64_MAX};
    kt_err err = {KT_OK, ""};
    kt_nomem_case c = {.with = &r, .says = "memory"};

    cr_assert_eq(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count,
                                    kt_isa_available(), &registry, &err),
                 KT_OK);
    cr_assert_eq(kt_planner_create(registry, NULL, &machine, NULL, &planner, &err), KT_OK);
    cr_assert_eq(kt_model_plan_make(planner, &d->graph, KT_QUANT_INT8, KT_W_BF16, 2, 8,
                                    d->graph.numbers.max_context, &plan, &err),
                 KT_OK, "%s", err.message);
    c.function = "kt_memory_plan_make", c.make = make_memory_plan;
    c.out_bytes = sizeof(kt_memory_plan);
    kt_nomem_check(&c);
    c.function = "kt_memory_survey", c.make = make_survey, c.out_bytes = sizeof(survey);
    c.n_optional = 20; /* libraries that cannot be tried are not used */
    kt_nomem_check(&c);
    kt_model_plan_deinit(&plan);
    kt_planner_destroy(planner);
    kt_registry_destroy(registry);
}

static kt_status make_finder(void *out, const void *with, kt_err *err) {
    const kt_model_dir *d = with;
    return kt_weight_finder_init(out, d->checkpoint, &d->graph, err);
}
static void unmake_finder(void *out) {
    kt_weight_finder_deinit(out);
}

static kt_status make_importance(void *out, const void *with, kt_err *err) {
    const kt_model_dir *d = with;
    return kt_importance_create(&d->graph, out, err);
}
static void unmake_importance(void *out) {
    kt_importance_destroy(*(kt_importance **)out);
}

typedef struct importance_file {
    const kt_importance *importance;
    const char *path;
} importance_file;

static kt_status write_importance(void *out, const void *with, kt_err *err) {
    const importance_file *f = with;
    (void)out;
    return kt_importance_write(f->importance, f->path, err);
}

Test(runtime_nomem, what_hangs_on_a_model_folder_is_made_or_not) {
    kt_model_dir *d = read_dir();
    kt_importance *m;
    char path[400];
    importance_file file;
    kt_err err = {KT_OK, ""};
    kt_nomem_case c = {.with = d, .says = "memory"};

    c.function = "kt_importance_create", c.make = make_importance, c.unmake = unmake_importance;
    c.out_bytes = sizeof(kt_importance *);
    kt_nomem_check(&c);
    cr_assert_eq(kt_importance_create(&d->graph, &m, &err), KT_OK);
    snprintf(path, sizeof path, "%s/i.safetensors", folder);
    file = (importance_file){m, path};
    c.function = "kt_importance_write", c.make = write_importance, c.with = &file;
    c.unmake = NULL, c.out_bytes = 0;
    kt_nomem_check(&c);
    kt_importance_destroy(m);
}

Test(runtime_nomem, a_finder_of_weights_is_made_or_not) {
    const kt_nomem_case c = {.function = "kt_weight_finder_init",
                             .make = make_finder,
                             .unmake = unmake_finder,
                             .with = read_dir(),
                             .out_bytes = sizeof(kt_weight_finder),
                             .says = "memory"};

    cr_assert_eq(kt_nomem_check(&c), 1);
}

/* ---- small ones ---- */

static kt_status make_pages(void *out, const void *with, kt_err *err) {
    return kt_pages_init(out, with, 3, NULL, err);
}
static void unmake_pages(void *out) {
    kt_pages_deinit(out);
}

Test(runtime_nomem, pages_are_made_or_not) {
    static const kt_kv_shape shapes[] = {{KT_W_BF16, 2, 2, 64, 0, 0, {0}, 0},
                                         {KT_W_INT8_CHANNEL, 2, 2, 64, 0, 0, {0}, 0}};

    for (int i = 0; i < 2; i++) {
        const kt_nomem_case c = {.function = "kt_pages_init",
                                 .make = make_pages,
                                 .unmake = unmake_pages,
                                 .with = &shapes[i],
                                 .out_bytes = sizeof(kt_page_pool),
                                 .says = "memory"};
        kt_nomem_check(&c);
    }
}

/* Behind a pool that somebody else keeps. */
static void save_nothing(void *arg, uint32_t page, uint8_t *to) {
    (void)arg, (void)page, (void)to;
}
static kt_status make_tier(void *out, const void *with, kt_err *err) {
    kt_page_pool *p = out;
    kt_status st;

    *p = *(const kt_page_pool *)with;
    st = kt_page_tier_create(p, 5, err);
    if (st != KT_OK) memset(p, 0, sizeof *p);
    return st;
}
static void unmake_tier(void *out) {
    kt_page_tier_destroy(((kt_page_pool *)out)->tier);
}

Test(runtime_nomem, pages_behind_a_pool_are_made_or_not) {
    const kt_kv_shape two_layers = {KT_W_BF16, 2, 2, 64, 0, 0, {0}, 0};
    kt_page_pool pool;
    const kt_nomem_case c = {.function = "kt_page_tier_create",
                             .make = make_tier,
                             .unmake = unmake_tier,
                             .with = &pool,
                             .out_bytes = sizeof pool,
                             .says = "memory"};
    kt_err err;

    cr_assert_eq(kt_pages_init(&pool, &two_layers, 3, NULL, &err), KT_OK, "%s", err.message);
    pool.elsewhere = (kt_kept_elsewhere){.arg = &pool, .has_all = true, .save_page = save_nothing};
    kt_nomem_check(&c);
    kt_pages_deinit(&pool);
}

static kt_status make_prefix(void *out, const void *with, kt_err *err) {
    (void)with;
    return kt_prefix_create(100, 0, 64, out, err);
}
static void unmake_prefix(void *out) {
    kt_prefix_destroy(*(kt_prefix **)out);
}

Test(runtime_nomem, an_index_of_prefixes_is_made_or_not) {
    const kt_nomem_case c = {.function = "kt_prefix_create",
                             .make = make_prefix,
                             .unmake = unmake_prefix,
                             .out_bytes = sizeof(kt_prefix *),
                             .says = "prefixes"};
    kt_nomem_check(&c);
}

static kt_status make_states(void *out, const void *with, kt_err *err) {
    (void)with;
    return kt_states_init(out, 3, 100, 5, err);
}
static void unmake_states(void *out) {
    kt_states_deinit(out);
}

Test(runtime_nomem, states_are_made_or_not) {
    const kt_nomem_case c = {.function = "kt_states_init",
                             .make = make_states,
                             .unmake = unmake_states,
                             .out_bytes = sizeof(kt_states),
                             .says = "memory"};
    kt_nomem_check(&c);
}

static kt_status make_recorder(void *out, const void *with, kt_err *err) {
    const kt_recorder_options o = {.path = with,
                                   .model = "small",
                                   .experts = 4,
                                   .topk = 2,
                                   .moe_layers = 1,
                                   .threads = 1,
                                   .max_rows = 16};
    return kt_recorder_open(&o, out, err);
}
static void unmake_recorder(void *out) {
    kt_recorder_close(*(kt_recorder **)out);
}

Test(runtime_nomem, a_recorder_is_open_or_closed) {
    char path[400];
    const kt_nomem_case c = {.function = "kt_recorder_open",
                             .make = make_recorder,
                             .unmake = unmake_recorder,
                             .with = path,
                             .out_bytes = sizeof(kt_recorder *),
                             .says = "steps.jsonl"};

    snprintf(path, sizeof path, "%s/steps.jsonl", folder);
    kt_nomem_check(&c);
}

static kt_status make_expert_map(void *out, const void *with, kt_err *err) {
    (void)with;
    return kt_expert_map_create(3, 8, out, err);
}
static void unmake_expert_map(void *out) {
    kt_expert_map_destroy(*(kt_expert_map **)out);
}

Test(runtime_nomem, rows_by_expert_are_counted_or_not) {
    const kt_nomem_case c = {.function = "kt_expert_map_create",
                             .make = make_expert_map,
                             .unmake = unmake_expert_map,
                             .out_bytes = sizeof(kt_expert_map *),
                             .says = "3 x 8 experts"};
    kt_nomem_check(&c);
}

/* A sampler, the tokens it counts and what a pick works with: each allocation fails once. */
static int use_sampler(kt_sampler *s, kt_sampler_scratch *w) {
    static const kt_token_bias bias[] = {{3, 1.0f}, {5, -1.0f}};
    static const int32_t prompt[] = {1, 2, 3};
    kt_sampling options = {.temperature = 1, .top_p = 0.5f, .repetition_penalty = 1.1f};
    float logits[100] = {0};

    if (kt_sampler_init(s, &options, bias, 2, 100) != 0) return -1;
    if (kt_sampler_accept_prompt(s, prompt, 3) != 0 || kt_sampler_accept(s, 7) != 0) return -1;
    return kt_sampler_pick(s, logits, NULL, w) == -2 ? -1 : 0;
}

Test(runtime_nomem, a_sampler_says_when_memory_is_short) {
    const long before = kt_nomem_held();
    int n_failed = 0;

    for (int i = 0; i < 12; i++) {
        kt_sampler_scratch w = {0};
        kt_sampler s;
        int rc;
        bool did_fail;
        kt_nomem_after(i);
        rc = use_sampler(&s, &w);
        did_fail = kt_nomem_failed();
        cr_assert_eq(rc, did_fail ? -1 : 0, "allocation %d: %d", i, rc);
        n_failed += did_fail;
        kt_sampler_deinit(&s); /* allowed after a failure too */
        kt_sampler_scratch_deinit(&w);
        cr_assert_eq(kt_nomem_held(), before, "allocation %d", i);
    }
    cr_assert_geq(n_failed, 5, "%d", n_failed);
}
