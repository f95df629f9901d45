/* Names of models: what finds what, what they are called, and that two models never share a table.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dispatch/model/resolve.h"
#include "dispatch/plan/plan.h"
#include "tests/support/temp.h"

static char home[256];

static void make_home(void) {
    kt_temp_make(home, sizeof home);
    setenv("XDG_DATA_HOME", home, 1);
    unsetenv("KT_TABLE");
    cr_assert_eq(chdir(home), 0);
}

static void remove_home(void) {
    cr_assert_eq(chdir("/"), 0);
    kt_temp_remove(home);
}

TestSuite(resolve, .init = make_home, .fini = remove_home);

/* home/path and the folders above it. */
static void make_folder(const char *path) {
    char full[600];

    snprintf(full, sizeof full, "%s/%s/", home, path);
    for (char *slash = strchr(full + strlen(home) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0777);
        *slash = '/';
    }
}

static void make_model(const char *path, const char *config) {
    char full[600];

    make_folder(path);
    snprintf(full, sizeof full, "%s/%s", home, path);
    kt_temp_write(full, "config.json", config, strlen(config));
}

static void expect_name(const char *word, kt_model_kind kind, const char *name) {
    kt_model_ref ref;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_model_resolve(word, KT_MODEL_ANY, &ref, &err), KT_OK, "'%s': %s", word,
                 err.message);
    cr_expect(ref.kind == kind && strcmp(ref.name, name) == 0, "'%s': kind %d, '%s', expected %s",
              word, (int)ref.kind, ref.name, name);
    cr_expect_eq(access(ref.path, R_OK), 0, "'%s': %s", word, ref.path);
}

static void expect_refused(const char *word, const char *words) {
    kt_model_ref ref;
    kt_err err = {KT_OK, ""};

    cr_expect_eq(kt_model_resolve(word, KT_MODEL_ANY, &ref, &err), KT_E_NOT_FOUND, "'%s'", word);
    cr_expect(strstr(err.message, words), "'%s' lacks '%s'", err.message, words);
}

Test(resolve, bundled_names_in_any_case_and_by_their_beginning) {
    expect_name("tiny-moe", KT_MODEL_FOLDER, "tiny-moe");
    expect_name("TINY-moe", KT_MODEL_FOLDER, "tiny-moe");
    expect_name("tiny", KT_MODEL_FOLDER, "tiny-moe");
    expect_name("qwen3-30b", KT_MODEL_WORKLOAD, "Qwen3-30B-A3B");
    expect_name("Qwen3-30B-A3B", KT_MODEL_WORKLOAD, "Qwen3-30B-A3B");
    expect_name("deepseek-v3", KT_MODEL_WORKLOAD, "DeepSeek-V3"); /* not V3.2 */
    expect_refused("qwen3", "more than one begins so: ");
    expect_refused("qwen3", "Qwen3-235B-A22B");
    expect_refused("qwen3-31b", "did you mean Qwen3-30B-A3B?");
    expect_refused("tinymoe", "did you mean tiny-moe?");
    expect_refused("mixtral-8x7b",
                   "no such folder, and no bundled model or workload of that name (");
    expect_refused("", "model ''");
    expect_refused("/no/such/folder", "model '/no/such/folder': no such folder");
}

Test(resolve, folders_and_files_are_found_first) {
    make_model("models/My Model", "{}");
    make_model("qwen3-30b", "{}");
    make_folder("tiny-moe"); /* such a folder of something else hides no model */
    kt_temp_write(home, "a.gguf", "GGUF", 4);
    expect_name("models/My Model", KT_MODEL_FOLDER, "My Model");
    expect_name("models/My Model///", KT_MODEL_FOLDER, "My Model");
    expect_name("qwen3-30b", KT_MODEL_FOLDER, "qwen3-30b");
    expect_name("./tiny-moe", KT_MODEL_FOLDER, "tiny-moe");
    expect_name("a.gguf", KT_MODEL_FILE, "a.gguf");
    expect_name("tiny-moe", KT_MODEL_FOLDER, "tiny-moe");
    cr_assert_eq(chdir("models/My Model"), 0);
    expect_name(".", KT_MODEL_FOLDER, "My Model");
    cr_assert_eq(chdir(home), 0);
    kt_model_ref ref;
    cr_assert_eq(kt_model_resolve("tiny-moe", KT_MODEL_ANY, &ref, NULL), KT_OK);
    cr_expect(strstr(ref.path, "datasets/models/tiny-moe"), "%s", ref.path);
    /* only what is asked for */
    cr_expect_eq(kt_model_resolve("qwen3-235b", 1u << KT_MODEL_FOLDER, &ref, NULL), KT_E_NOT_FOUND);
    cr_assert_eq(kt_model_resolve("tiny-moe", 1u << KT_MODEL_WORKLOAD, &ref, NULL), KT_OK);
    cr_expect_eq(ref.kind, KT_MODEL_WORKLOAD);
}

/* A hash is no name: the repository has one. */
Test(resolve, a_snapshot_of_the_cache_has_its_repository_s_name) {
    static const char hash[] = "ad44e777bcd18fa416d9da3bd8f70d33ebb85d39";
    char path[400], longest[300] = "models/";
    kt_model_ref ref;

    snprintf(path, sizeof path, "hub/models--Qwen--Qwen3-30B-A3B/snapshots/%s", hash);
    make_model(path, "{}");
    expect_name(path, KT_MODEL_FOLDER, "Qwen3-30B-A3B");
    expect_name("hub/models--Qwen--Qwen3-30B-A3B", KT_MODEL_FOLDER, "Qwen3-30B-A3B");
    cr_assert_eq(kt_model_resolve("hub/models--Qwen--Qwen3-30B-A3B", KT_MODEL_ANY, &ref, NULL),
                 KT_OK);
    cr_expect(strstr(ref.path, hash), "%s", ref.path);
    /* two snapshots: the one that refs/main names */
    make_model("hub/models--Qwen--Qwen3-30B-A3B/snapshots/bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
               "{}");
    make_folder("hub/models--Qwen--Qwen3-30B-A3B/refs");
    kt_temp_write("hub/models--Qwen--Qwen3-30B-A3B/refs", "main", hash, strlen(hash));
    cr_assert_eq(kt_model_resolve("hub/models--Qwen--Qwen3-30B-A3B", KT_MODEL_ANY, &ref, NULL),
                 KT_OK);
    cr_expect(strstr(ref.path, hash), "%s", ref.path);
    snprintf(path, sizeof path, "models/Some/%s", hash);
    make_model(path, "{}");
    expect_name(path, KT_MODEL_FOLDER, "Some");
    make_model("models/one--two", "{}");
    expect_name("models/one--two", KT_MODEL_FOLDER, "one--two");
    for (int i = 0; i < 50; i++) strcat(longest, "\xe6\xa8\xa1"); /* 150 bytes of UTF-8 */
    make_model(longest, "{}");
    cr_assert_eq(kt_model_resolve(longest, KT_MODEL_ANY, &ref, NULL), KT_OK);
    cr_expect_lt(strlen(ref.name), sizeof ref.name);
    cr_expect_eq((strlen(ref.name) - 9) % 3, 0, "cut inside a character: %s", ref.name);
}

static uint64_t shape_of(const char *config) {
    kt_json_doc *doc;
    uint64_t id;

    cr_assert_eq(kt_json_parse(config, strlen(config), NULL, &doc, NULL), KT_OK);
    id = kt_model_shape_id(kt_json_root(doc));
    kt_json_destroy(doc);
    return id;
}

#define SIZES "\"hidden_size\":64,\"num_hidden_layers\":2,\"vocab_size\":96,\"num_experts\":4"

Test(resolve, shapes_are_told_apart_by_their_sizes) {
    cr_expect_eq(shape_of("{" SIZES "}"), shape_of("{\"eos_token_id\":7," SIZES "}"));
    cr_expect_neq(shape_of("{" SIZES "}"), shape_of("{" SIZES ",\"num_experts_per_tok\":2}"));
    cr_expect_neq(shape_of("{\"hidden_size\":64}"), shape_of("{\"hidden_size\":65}"));
    cr_expect_neq(shape_of("{\"hidden_size\":64}"), shape_of("{\"vocab_size\":64}"));
    cr_expect_eq(shape_of("{\"num_experts\":4}"), shape_of("{\"n_routed_experts\":4}"));
    cr_expect_eq(shape_of("{}"), 0);
    cr_expect_eq(shape_of("[]"), 0);
}

/* ---- tables ---- */

static const kt_fingerprint machine = {.vendor = "test",
                                       .microarch = "test",
                                       .usable_cores = 1,
                                       .numa_nodes = 1,
                                       .memory_bytes = (uint64_t)1 << 30};

static void default_path(const char *name, uint64_t shape, char *out, size_t bytes) {
    kt_err err = {KT_OK, ""};
    cr_assert_eq(kt_table_default_path(&machine, name, shape, out, bytes, &err), KT_OK, "%s",
                 err.message);
}

static void save_table(const char *path, uint64_t shape) {
    kt_table *t;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_table_create(&t, &err), KT_OK);
    t->fingerprint = machine;
    t->shape_id = shape;
    cr_assert_eq(kt_table_save(t, path, &err), KT_OK, "%s", err.message);
    kt_table_destroy(t);
    cr_assert_eq(kt_table_load(path, &t, &err), KT_OK, "%s", err.message);
    cr_expect_eq(t->shape_id, shape);
    kt_table_destroy(t);
}

Test(resolve, tables_of_unicode_names_are_apart) {
    static const char *const names[] = {
        "\xe6\xa8\xa1\xe5\x9e\x8b", "\xe6\xa8\xa1\xe5\x9e\x8c", "--", "a b", "a-b", "a+b"};
    char path[8][600];

    for (size_t i = 0; i < 6; i++) {
        default_path(names[i], 0, path[i], sizeof path[i]);
        for (size_t j = 0; j < i; j++)
            cr_expect_str_neq(path[i], path[j], "'%s' and '%s'", names[i], names[j]);
    }
    cr_expect(strstr(path[4], "/a-b.kttable.json"), "a plain name stays: %s", path[4]);
}

Test(resolve, tables_of_equal_names_and_other_shapes_are_apart) {
    char first[600], second[600], found[600];

    default_path("main", 0x1111111122222222u, first, sizeof first);
    cr_expect(strstr(first, "/main.kttable.json"), "%s", first);
    save_table(first, 0x1111111122222222u);
    default_path("main", 0x3333333344444444u, second, sizeof second);
    cr_expect(strstr(second, "/main-33333333.kttable.json"), "%s", second);
    kt_table_locate(&machine, "main", 0x3333333344444444u, found, sizeof found);
    cr_expect_str_eq(found, "", "the first's table for the second");
    save_table(second, 0x3333333344444444u);
    kt_table_locate(&machine, "main", 0x3333333344444444u, found, sizeof found);
    cr_expect_str_eq(found, second);
    kt_table_locate(&machine, "main", 0x1111111122222222u, found, sizeof found);
    cr_expect_str_eq(found, first);
    default_path("main", 0x1111111122222222u, found, sizeof found);
    cr_expect_str_eq(found, first);
}

/* Tables from before shapes were written, and names without a model. */
Test(resolve, a_table_without_a_shape_is_found_by_its_name) {
    char path[600], found[600];

    default_path("Old", 0, path, sizeof path);
    save_table(path, 0);
    kt_table_locate(&machine, "Old", 0x1111111122222222u, found, sizeof found);
    cr_expect_str_eq(found, path);
    default_path("Old", 0x1111111122222222u, found, sizeof found);
    cr_expect_str_eq(found, path);
    save_table(path, 0x5555555566666666u);
    kt_table_locate(&machine, "Old", 0, found, sizeof found);
    cr_expect_str_eq(found, path);
}
