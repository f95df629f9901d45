/* `kt models` says what the tables say, and the tables know all that is read.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "dispatch/model/family.h"
#include "dispatch/model/stored_kinds.h"
#include "kernels/formats/format.h"

/* What a command prints; malloc'd. */
static char *output_of(const char *command, size_t *size) {
    char *out = calloc(1, 1 << 17);
    FILE *pipe = popen(command, "r");

    cr_assert(pipe);
    *size = fread(out, 1, (1 << 17) - 1, pipe);
    cr_assert_eq(pclose(pipe), 0, "%s", out);
    return out;
}

static kt_json_doc *read_models(void) {
    kt_json_doc *doc;
    kt_err err = {KT_OK, ""};
    size_t size;
    char *text = output_of(KT_BUILD_DIR "/kt models --json", &size);

    cr_assert_eq(kt_json_parse(text, size, NULL, &doc, &err), KT_OK, "%s", err.message);
    free(text);
    return doc;
}

static bool holds(const kt_json *list, const char *word) {
    for (size_t i = 0; i < kt_json_length(list); i++) {
        const char *s = kt_json_string(kt_json_at(list, i), NULL);
        if (s && strcmp(s, word) == 0) return true;
    }
    return false;
}

/* The element of a list with that name, or NULL. */
static const kt_json *named(const kt_json *list, const char *name) {
    for (size_t i = 0; i < kt_json_length(list); i++)
        if (strcmp(kt_json_text(kt_json_at(list, i), "name"), name) == 0)
            return kt_json_at(list, i);
    return NULL;
}

static void expect_words(const kt_json *list, const char *words, const char *where) {
    char copy[256];
    size_t n = 0;

    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok(copy, "|"); word; word = strtok(NULL, "|"), n++)
        cr_expect(holds(list, word), "%s lacks %s", where, word);
    cr_expect_eq(kt_json_length(list), n, "%s", where);
}

Test(models_command, families_are_those_that_load) {
    kt_json_doc *doc = read_models();
    const kt_json *list = kt_json_get(kt_json_root(doc), "families");

    cr_expect_eq(kt_json_length(list), kt_builtin_family_count);
    for (size_t i = 0; i < kt_builtin_family_count; i++) {
        const kt_family *f = kt_builtin_families[i];
        const kt_json *row = named(list, f->name);
        cr_assert(f->models && *f->models, "%s names no published model", f->name);
        cr_assert(row, "%s", f->name);
        cr_expect_str_eq(kt_json_text(row, "models"), f->models);
        expect_words(kt_json_get(row, "model_types"), f->types, f->name);
        expect_words(kt_json_get(row, "gguf_architectures"),
                     *f->archs || !f->gguf_as ? f->archs : f->gguf_as, f->name);
        cr_expect(strstr(kt_json_text(row, "status"), "safetensors"), "%s", f->name);
        cr_expect_eq(strstr(kt_json_text(row, "status"), "GGUF") != NULL, *f->archs || f->gguf_as);
    }
    kt_json_destroy(doc);
}

Test(models_command, every_encoding_has_its_row) {
    kt_json_doc *doc = read_models();
    const kt_json *list = kt_json_get(kt_json_root(doc), "encodings");
    size_t n = kt_stored_kind_count;

    for (size_t i = 0; i < kt_stored_kind_count; i++)
        cr_expect(named(list, kt_stored_kinds[i].name), "%s", kt_stored_kinds[i].name);
    for (size_t i = 0; i < kt_builtin_format_count; i++) {
        const kt_format *f = kt_builtin_formats[i];
        const kt_json *row = NULL;
        for (size_t k = 0; k < kt_json_length(list); k++)
            if (strcasecmp(kt_json_text(kt_json_at(list, k), "name"), f->name + 1) == 0)
                row = kt_json_at(list, k);
        if (f->block_bytes == 0) continue;
        n++;
        cr_assert(row, "%s", f->name);
        cr_expect(holds(kt_json_get(row, "loaded_as"), f->name), "%s", f->name);
        cr_expect(holds(kt_json_get(row, "isa"), "avx2"), "%s", f->name);
        cr_expect(!holds(kt_json_get(row, "isa"), "avx512bf16"), "%s", f->name);
        cr_expect_str_eq(kt_json_text(row, "status"), "vector kernels");
    }
    cr_expect_eq(kt_json_length(list), n);
    cr_expect(holds(kt_json_get(named(list, "F32"), "loaded_as"), "wbf16"), "F32 becomes BF16");
    cr_expect_eq(kt_json_length(kt_json_get(kt_json_root(doc), "containers")), 5);
    kt_json_destroy(doc);
}

/* What detect.c can answer stands in the table; blocks are named by their formats, and packed is a
 * container. */
Test(models_command, the_table_of_encodings_is_complete) {
    static const int64_t groups[] = {32, 64, 128};
    static const kt_weight_format scales[] = {KT_W_BF16, KT_W_F16, KT_W_F32};
    static const uint32_t zeros = 0;
    unsigned seen = 1u << KT_STORED_BLOCKS | 1u << KT_STORED_PACKED, packings = 0;

    for (size_t i = 0; i < kt_stored_kind_count; i++) {
        const kt_stored_kind *kind = &kt_stored_kinds[i];
        seen |= 1u << kind->encoding;
        cr_expect_neq(kind->formats[0], KT_W_NONE, "%s", kind->name);
        if (kind->encoding != KT_STORED_INT4) continue;
        packings |= 1u << kind->packing;
        for (int g = 0; g < 3; g++)
            for (int s = 0; s < 3; s++)
                for (int z = 0; z < 2; z++) {
                    kt_int4_source source = {.n = 128,
                                             .k = 128,
                                             .group = groups[g],
                                             .packing = kind->packing,
                                             .scale_type = scales[s],
                                             .zeros = z ? &zeros : NULL};
                    kt_weight_format f = kt_int4_import_format(&source);
                    bool is_listed = f == KT_W_NONE;
                    for (int k = 0; k < KT_STORED_FORMATS; k++) is_listed |= kind->formats[k] == f;
                    cr_expect(is_listed, "%s lacks %s", kind->name, kt_weight_format_name(f));
                }
    }
    cr_expect_eq(seen, (1u << KT_STORED_ENCODINGS) - 1);
    cr_expect_eq(packings, (1u << (KT_INT4_GPTQ_V2 + 1)) - 1);
}

Test(models_command, text_and_markdown_name_the_same) {
    static const char *const commands[] = {"/kt models", "/kt models --markdown"};

    for (size_t c = 0; c < 2; c++) {
        char line[1024];
        size_t size;
        char *text;
        snprintf(line, sizeof line, KT_BUILD_DIR "%s", commands[c]);
        text = output_of(line, &size);
        for (size_t i = 0; i < kt_builtin_family_count; i++)
            cr_expect(strstr(text, kt_builtin_families[i]->models), "%s", line);
        for (size_t i = 0; i < kt_container_kind_count; i++)
            cr_expect(strstr(text, kt_container_kinds[i].files), "%s", line);
        for (size_t i = 0; i < kt_stored_kind_count; i++)
            cr_expect(strstr(text, kt_stored_kinds[i].name), "%s", line);
        cr_expect(strstr(text, "Q4_K") && strstr(text, "MXFP4"), "%s", line);
        free(text);
    }
}
