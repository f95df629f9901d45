/* kt models: what this build can load, out of the tables that loading uses.
 * SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/json.h"
#include "dispatch/model/family.h"
#include "dispatch/model/needs.h"
#include "dispatch/model/stored_kinds.h"
#include "kernels/formats/format.h"
#include "kt/variant.h"
#include "runtime/cli/command.h"
#include "runtime/cli/options.h"

enum { WORDS = 160 };

/* ---- what the tables say ---- */

/* Architectures of its GGUF files, of its own or another family's; "" = none. */
static const char *archs_of(const kt_family *f) {
    return *f->archs || !f->gguf_as ? f->archs : f->gguf_as;
}

static const char *family_status(const kt_family *f) {
    return *archs_of(f) ? "safetensors and GGUF" : "safetensors";
}

/* An encoding: a row of kt_stored_kinds, or a GGUF block type. */
typedef struct encoding {
    char name[40];
    const char *tensors;
    kt_weight_format formats[KT_STORED_FORMATS]; /* of the loaded matrix */
} encoding;

/* What a matrix stored so is multiplied as, without --weights. */
static kt_weight_format loaded_as(kt_weight_format stored) {
    kt_weight w = {.kind = KT_WEIGHT_MATRIX, .use = KT_USE_LINEAR, .n_parts = 1};

    w.part[0].stored = stored;
    return kt_weight_becomes(&w, 0, KT_QUANT_NATIVE);
}

/* Encoding number i; false behind the last. */
static bool encoding_at(size_t i, encoding *out) {
    *out = (encoding){.tensors = "GGUF blocks"};
    if (i < kt_stored_kind_count) {
        const kt_stored_kind *kind = &kt_stored_kinds[i];
        snprintf(out->name, sizeof out->name, "%s", kind->name);
        out->tensors = kind->tensors;
        for (int k = 0; k < KT_STORED_FORMATS && kind->formats[k] != KT_W_NONE; k++)
            out->formats[k] = loaded_as(kind->formats[k]);
        return true;
    }
    i -= kt_stored_kind_count;
    for (size_t f = 0; f < kt_builtin_format_count; f++) {
        const kt_format *format = kt_builtin_formats[f];
        if (format->block_bytes == 0 || i--) continue;
        for (size_t k = 0; format->name[k + 1] && k + 1 < sizeof out->name; k++)
            out->name[k] = (char)toupper((unsigned char)format->name[k + 1]);
        out->formats[0] = loaded_as(format->id);
        return true;
    }
    return false;
}

static bool is_for(const kt_variant *v, kt_op op, kt_weight_format format, const char *isa) {
    const char *word = strstr(v->name, "__");
    return v->op == op && v->weights >> format & 1 && word && strcmp(word + 2, isa) == 0;
}

/* Is there a variant of that instruction set? */
static bool has_kernel(kt_op op, kt_weight_format format, const char *isa) {
    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (is_for(kt_builtin_variants[i], op, format, isa)) return true;
    return false;
}

/* Instruction sets with kernels, for experts and for the rest, that read all formats of e: "avx2
 * avx512". */
static char *isa_words(const encoding *e, char out[WORDS]) {
    size_t used = 0;

    out[0] = '\0';
    for (int bit = 0; bit < KT_ISA_COUNT; bit++) {
        const char *isa = kt_isa_name(bit);
        bool has_all = true;
        for (int i = 0; i < KT_STORED_FORMATS && e->formats[i] != KT_W_NONE; i++)
            has_all = has_all && has_kernel(KT_OP_MOE_FFN, e->formats[i], isa) &&
                      has_kernel(KT_OP_GEMM, e->formats[i], isa);
        if (has_all && used + strlen(isa) + 2 < WORDS)
            used += (size_t)snprintf(out + used, WORDS - used, "%s%s", used ? " " : "", isa);
    }
    return out;
}

static const char *encoding_status(const encoding *e) {
    char words[WORDS];
    return *isa_words(e, words) ? "vector kernels" : "plain C kernels";
}

/* "a|b" as "a, b". */
static char *listed(const char *words, char out[WORDS]) {
    size_t n = 0;

    for (; *words && n + 3 < WORDS; words++) {
        out[n++] = *words == '|' ? ',' : *words;
        if (*words == '|') out[n++] = ' ';
    }
    out[n] = '\0';
    return out;
}

/* ---- printing ---- */

static void print_text(void) {
    char types[WORDS], archs[WORDS];
    encoding e;

    printf("Families\n");
    for (size_t i = 0; i < kt_builtin_family_count; i++) {
        const kt_family *f = kt_builtin_families[i];
        printf("  %-14s %s\n  %-14s model_type %s; GGUF %s; %s\n", f->name, f->models, "",
               listed(f->types, types), *archs_of(f) ? listed(archs_of(f), archs) : "none",
               family_status(f));
    }
    printf("\nContainers\n");
    for (size_t i = 0; i < kt_container_kind_count; i++)
        printf("  %-22s %s\n", kt_container_kinds[i].name, kt_container_kinds[i].files);
    printf("\nEncodings\n");
    for (size_t i = 0; encoding_at(i, &e); i++)
        printf("  %-24s %-48s %s: %s\n", e.name, e.tensors, encoding_status(&e),
               *isa_words(&e, types) ? types : "any x86-64");
}

static void put_words(kt_json_writer *w, const char *key, const char *words, const char *between) {
    kt_json_key(w, key);
    kt_json_begin_array(w);
    while (*words) {
        size_t n = strcspn(words, between);
        kt_json_put_string_n(w, words, n);
        words += n + (words[n] != '\0');
    }
    kt_json_end_array(w);
}

static void put_encoding(kt_json_writer *w, const encoding *e) {
    char words[WORDS];

    kt_json_begin_object(w);
    kt_json_add_string(w, "name", e->name);
    kt_json_add_string(w, "tensors", e->tensors);
    kt_json_key(w, "loaded_as");
    kt_json_begin_array(w);
    for (int i = 0; i < KT_STORED_FORMATS && e->formats[i] != KT_W_NONE; i++)
        kt_json_put_string(w, kt_weight_format_name(e->formats[i]));
    kt_json_end_array(w);
    put_words(w, "isa", isa_words(e, words), " ");
    kt_json_add_string(w, "status", encoding_status(e));
    kt_json_end_object(w);
}

static void print_json(void) {
    kt_json_writer w = {.indent = 2, .line_at_depth = 1u << 2};
    encoding e;

    kt_json_begin_object(&w);
    kt_json_key(&w, "families");
    kt_json_begin_array(&w);
    for (size_t i = 0; i < kt_builtin_family_count; i++) {
        const kt_family *f = kt_builtin_families[i];
        kt_json_begin_object(&w);
        kt_json_add_string(&w, "name", f->name);
        kt_json_add_string(&w, "models", f->models);
        put_words(&w, "model_types", f->types, "|");
        put_words(&w, "gguf_architectures", archs_of(f), "|");
        kt_json_add_string(&w, "status", family_status(f));
        kt_json_end_object(&w);
    }
    kt_json_end_array(&w);
    kt_json_key(&w, "containers");
    kt_json_begin_array(&w);
    for (size_t i = 0; i < kt_container_kind_count; i++) {
        kt_json_begin_object(&w);
        kt_json_add_string(&w, "name", kt_container_kinds[i].name);
        kt_json_add_string(&w, "files", kt_container_kinds[i].files);
        kt_json_add_string(&w, "status", "read");
        kt_json_end_object(&w);
    }
    kt_json_end_array(&w);
    kt_json_key(&w, "encodings");
    kt_json_begin_array(&w);
    for (size_t i = 0; encoding_at(i, &e); i++) put_encoding(&w, &e);
    kt_json_end_array(&w);
    kt_json_end_object(&w);
    kt_json_writer_print(&w, stdout);
}

/* Names of the encodings with these tensors and that status, in one line; GGUF's block types
 * share a row so. */
static void print_row(size_t first, const encoding *like) {
    encoding e;

    printf("| %s", like->name);
    for (size_t i = first + 1; encoding_at(i, &e); i++)
        if (strcmp(e.tensors, like->tensors) == 0 && encoding_status(&e) == encoding_status(like))
            printf(", %s", e.name);
    printf(" | %s | %s |\n", like->tensors, encoding_status(like));
}

static bool is_listed_before(size_t at, const encoding *like) {
    encoding e;

    for (size_t i = 0; i < at && encoding_at(i, &e); i++)
        if (strcmp(e.tensors, like->tensors) == 0 && encoding_status(&e) == encoding_status(like))
            return true;
    return false;
}

/* The tables of README.md, which results/models.sh writes there. */
static void print_markdown(void) {
    char types[WORDS], archs[WORDS];
    encoding e;

    printf(
        "| family | models | `model_type` | GGUF architecture | from |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < kt_builtin_family_count; i++) {
        const kt_family *f = kt_builtin_families[i];
        printf("| `%s` | %s | %s | %s | %s |\n", f->name, f->models, listed(f->types, types),
               listed(archs_of(f), archs), family_status(f));
    }
    printf("\n| container | files |\n|---|---|\n");
    for (size_t i = 0; i < kt_container_kind_count; i++)
        printf("| %s | %s |\n", kt_container_kinds[i].name, kt_container_kinds[i].files);
    printf("\n| encodings of weights | stored as | read by |\n|---|---|---|\n");
    for (size_t i = 0; encoding_at(i, &e); i++)
        if (!is_listed_before(i, &e)) print_row(i, &e);
}

static int run(int argc, char **argv) {
    bool json = false, markdown = false;
    const kt_option options[] = {
        KT_OPTION_FLAG("json", &json, "print a JSON object"),
        KT_OPTION_FLAG("markdown", &markdown, "print the tables of README.md")};
    const kt_usage usage = {.command = "models",
                            .arguments = "",
                            .about =
                                "List the model families, containers and encodings of weights "
                                "that load, and which\ninstruction sets have kernels for them."};
    int code = kt_options_parse(&usage, options, sizeof options / sizeof *options, argc, argv, NULL,
                                0, NULL);

    if (code >= 0) return code;
    if (json && markdown) return kt_usage_fail(&usage, "give one of --json and --markdown");
    if (json)
        print_json();
    else if (markdown)
        print_markdown();
    else
        print_text();
    return KT_EXIT_OK;
}

const kt_command kt_command_models = {
    .name = "models", .summary = "list the models and files that load", .run = run};
