/* kttune new: a variant file to start from, right from the first build on.
 *
 * It is the plain variant of the op, narrowed to one instruction set and, where the op multiplies
 * matrices, to one weight format and one encoding; such a file is a kernel over panels, which the
 * build registers as a dense product and as an expert (kernels/p64). Everything comes from the
 * source tree itself (the plain variant's file, the format's file), so what is written follows the
 * tree as it changes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/cpu.h"
#include "base/err.h"
#include "base/json.h"
#include "kernels/formats/format.h"
#include "tuner/cli/tune_options.h"
#include "tuner/cli/verb.h"

enum { PATH_BYTES = 1024, WORD_BYTES = 64, VARIANT_BYTES = 80, MAX_FILE_BYTES = 1 << 20 };

/* "w8c_a8_mine__avx2" taken apart. */
typedef struct variant_words {
    const char *name, *op;
    char plain[WORD_BYTES];  /* the variant it starts as */
    const kt_format *format; /* NULL where the op has none */
    char acts[WORD_BYTES];   /* "a8" */
    int acts_id;
    char format_id[WORD_BYTES]; /* KT_W_INT8_CHANNEL */
    char isa_id[WORD_BYTES];    /* KT_ISA_AVX2 */
} variant_words;

/* What names of an op begin with, its plain variant, and where the new file's work is. */
static const struct {
    const char *op, *prefix; /* NULL: <weights>_<acts> */
    const char *plain;       /* NULL: <acts>_rows__scalar */
    const char *example, *work;
    const char *folder; /* of kernels; NULL: the op's name */
    const char *infix;  /* of a kernel over panels: what its variant's name has before the ISA */
} ops[] = {
    {"gemm", NULL, "any_any__scalar", "w8c_a8_mine__avx2",
     "the sums of one row and panel are kt_p64_row: replace it, several rows at a time", "p64",
     "_p64"},
    {"moe_ffn", NULL, "any_any__scalar", "w4g32_a8_mine__avx2",
     "the sums of one row and panel are kt_p64_row: replace it, several rows at a time", "p64",
     "_moe64"},
    {"attn", "bf16", "bf16_online__scalar", "bf16_mine__avx2",
     "the walk over the cache is kt_attn_walk; the functions it is given are the work", NULL, ""},
    {"norm", "rms", "rms_rows__scalar", "rms_mine__avx2", "norm_row is the work", NULL, ""},
    {"rope", "rotate", "rotate_heads__scalar", "rotate_mine__avx2",
     "rotate_halves and rotate_pairs are the work", NULL, ""},
    {"router", "logits", "logits_rows__scalar", "logits_mine__avx2",
     "dot_bf16 and dot_f32 are the work", NULL, ""},
    {"conv", "conv", "conv_rows__scalar", "conv_mine__avx2",
     "conv_columns of conv_lanes.h is the work", "linattn", ""},
    {"delta", "delta", "delta_rows__scalar", "delta_mine__avx2",
     "recur_columns of delta_lanes.h is the work", "linattn", ""},
    {"index", "index", "index_dots__scalar", "index_mine__avx2", "score is the work", "indexer",
     ""},
    {"encode", "", NULL, "a8_mine__avx2",
     "the loop over a row is the work; all variants of an encoding write the same bits", NULL, ""}};

enum { N_OPS = sizeof ops / sizeof *ops };

static int find_op(const char *op) {
    for (int i = 0; i < N_OPS; i++)
        if (strcmp(ops[i].op, op) == 0) return i;
    return -1;
}

static const char *folder_of(int op) {
    return ops[op].folder ? ops[op].folder : ops[op].op;
}

static bool is_plain_word(const char *name) {
    return strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(name);
}

/* The longest format name that the variant's name begins with. */
static const kt_format *find_format(const char *name) {
    const kt_format *best = NULL;
    for (size_t i = 0; i < kt_builtin_format_count; i++) {
        const kt_format *f = kt_builtin_formats[i];
        size_t size = strlen(f->name);
        if (strncmp(f->name, name, size) != 0 || name[size] != '_') continue;
        if (!best || size > strlen(best->name)) best = f;
    }
    return best;
}

/* The enumerator behind a format: the `.id` of its descriptor's file. */
static kt_status read_format_id(variant_words *w, kt_err *err) {
    char path[PATH_BYTES], *text = NULL;
    const char *id;
    size_t size;

    snprintf(path, sizeof path, KT_SOURCE_DIR "/kernels/formats/%s.c", w->format->name);
    KT_TRY(kt_file_read(path, MAX_FILE_BYTES, &text, &size, err));
    id = strstr(text, ".id = ");
    if (id) snprintf(w->format_id, sizeof w->format_id, "%.*s", (int)strcspn(id + 6, ","), id + 6);
    free(text);
    return id ? KT_OK : kt_fail(err, KT_E_INTERNAL, "%s: no '.id = ' in it", path);
}

/* The enumerators of encodings; an array, so that a new encoding shows as a hole in the test. */
static const char *const act_ids[KT_A_COUNT] = {[KT_A_BF16] = "KT_A_BF16",
                                                [KT_A_INT8_G32] = "KT_A_INT8_G32",
                                                [KT_A_F32] = "KT_A_F32",
                                                [KT_A_INT8_G16P2] = "KT_A_INT8_G16P2"};

/* Encodings by name, the longest that `text` begins with before an underscore; -1 = none. */
static int find_acts(const char *text) {
    int best = -1;
    size_t best_size = 0;
    for (int id = 0; id < KT_A_COUNT; id++) {
        const char *name = act_ids[id] ? kt_act_format_name((kt_act_format)id) : NULL;
        size_t size = name ? strlen(name) : 0;
        if (size <= best_size || strncmp(name, text, size) != 0 || text[size] != '_') continue;
        best = id;
        best_size = size;
    }
    return best;
}

/* <weights>_<acts>[_<trait>]: which encodings go with a format, its kernels' accepts say. */
static kt_status take_matrix(variant_words *w, const char *isa, kt_err *err) {
    const char *rest, *native;

    w->format = find_format(w->name);
    if (!w->format)
        return kt_fail(err, KT_E_INVALID, "'%s' begins with no weight format such as w8c_",
                       w->name);
    rest = w->name + strlen(w->format->name) + 1;
    native = kt_act_format_name(w->format->acts);
    w->acts_id = find_acts(rest);
    if (w->acts_id != (int)w->format->acts &&
        !(w->acts_id == KT_A_INT8_G16P2 && w->format->acts == KT_A_INT8_G32))
        return kt_fail(err, KT_E_INVALID,
                       "'%s': kernels of %s read '%s' activations; expected %s_%s[_<trait>]%s",
                       w->name, w->format->name, native, w->format->name, native, isa);
    snprintf(w->acts, sizeof w->acts, "%s", kt_act_format_name((kt_act_format)w->acts_id));
    return read_format_id(w, err);
}

/* <prefix>_<trait>, or <acts>_<trait> for an encoder. */
static kt_status take_row_op(variant_words *w, int op, const char *isa, kt_err *err) {
    char prefix[WORD_BYTES];
    size_t size;

    snprintf(prefix, sizeof prefix, "%s", ops[op].prefix);
    if (!ops[op].plain) {
        w->acts_id = find_acts(w->name);
        if (w->acts_id < 0)
            return kt_fail(err, KT_E_INVALID, "'%s' begins with no encoding such as a8_ or abf16_",
                           w->name);
        snprintf(prefix, sizeof prefix, "%s", kt_act_format_name((kt_act_format)w->acts_id));
        snprintf(w->acts, sizeof w->acts, "%s", prefix);
    }
    size = strlen(prefix);
    if (strncmp(w->name, prefix, size) != 0 || w->name[size] != '_' || w->name + size + 1 >= isa)
        return kt_fail(err, KT_E_INVALID, "'%s': expected %s_<trait>%s, such as %s", w->name,
                       prefix, isa, ops[op].example);
    return KT_OK;
}

static kt_status take_apart(int op, const char *name, variant_words *w, kt_err *err) {
    const char *isa = strstr(name, "__");
    int bit;

    memset(w, 0, sizeof *w);
    w->name = name;
    w->op = ops[op].op;
    if (!isa || !is_plain_word(name) || strlen(name) >= WORD_BYTES)
        return kt_fail(err, KT_E_INVALID, "'%s': expected %s%s__<isa> in lower case, such as %s",
                       name, ops[op].prefix ? ops[op].prefix : "<weights>_<acts>",
                       !ops[op].prefix   ? "[_<trait>]"
                       : *ops[op].prefix ? "_<trait>"
                                         : "<acts>_<trait>",
                       ops[op].example);
    bit = kt_isa_parse(isa + 2);
    if (bit < 0 && strcmp(isa + 2, "scalar") != 0)
        return kt_fail(err, KT_E_INVALID, "'%s': '%s' is no instruction set known here", name,
                       isa + 2);
    snprintf(w->isa_id, sizeof w->isa_id, "KT_ISA_%s", isa + 2);
    for (char *c = w->isa_id; *c; c++)
        if (*c >= 'a' && *c <= 'z') *c = (char)(*c - 'a' + 'A');
    KT_TRY(ops[op].prefix ? take_row_op(w, op, isa, err) : take_matrix(w, isa, err));
    if (ops[op].plain)
        snprintf(w->plain, sizeof w->plain, "%s", ops[op].plain);
    else
        snprintf(w->plain, sizeof w->plain, "%.40s_rows__scalar", w->acts);
    return KT_OK;
}

/* One line of the plain variant's descriptor, narrowed where the new variant is narrower. */
static void write_line(FILE *to, const char *line, size_t size, const variant_words *w) {
    static const char *const keys[] = {"    .name = ", "    .isa = ", "KT_VARIANT(",
                                       "    .bits = ", "    .rank = "};
    const int n_keys = sizeof keys / sizeof *keys;
    int k = 0;
    while (k < n_keys && strncmp(line, keys[k], strlen(keys[k])) != 0) k++;
    switch (k) {
    case 0: fprintf(to, "    .name = \"%s\",\n", w->name); return;
    case 1: fprintf(to, "    .isa = %s,\n", w->isa_id); return;
    case 2: fprintf(to, "KT_VARIANT(%s) = {\n", w->name); return;
    case 3: /* a class of its own; encoders of one encoding all write the same bits */
        fprintf(to, "    .bits = \"%s\",\n", *w->acts ? w->acts : w->name);
        return;
    case 4:
        fputs("    .rank = 0, /* unproven: 1 once it is filed as faster somewhere */\n", to);
        return;
    default: fprintf(to, "%.*s\n", (int)size, line);
    }
}

/* Behind the code of a variant that one macro registers, a kernel over panels or a walk over the
 * cache: that macro. */
static void write_kernel(FILE *to, const variant_words *w) {
    const char *isa = strstr(w->name, "__");

    fputs("/* Rank 0: unproven; 1 once it is filed as faster somewhere. */\n", to);
    if (!w->format) {
        fprintf(to,
                "KT_ATTN_VARIANT(%s, .weights = KT_ATTN_CACHES, .isa = %s,\n"
                "                .numerics = KT_NUM_F32, .bits = \"%s\", .version = 1,\n"
                "                .rank = 0, .params = kt_attn_params, .accepts = "
                "kt_attn_accepts);\n",
                w->name, w->isa_id, w->name);
        return;
    }
    fprintf(to,
            "KT_P64_KERNEL(%.*s, %s, 1, 1, .weights = KT_W_BIT(%s),\n"
            "              .acts = 1u << %s, .isa = %s,\n"
            "              .numerics = KT_NUM_EXACT_INT32, .bits = \"%s\",\n"
            "              .rank = 0, .accepts = kt_p64_accepts);\n",
            (int)(isa - w->name), w->name, isa + 2, w->format_id, act_ids[w->acts_id], w->isa_id,
            w->name);
}

/* The new file's text from the plain variant's. The opening comment is ours, the rest its. */
static void write_variant(FILE *to, const char *plain, int op, const variant_words *w) {
    const char *at = strstr(plain, "#include"), *end;

    fprintf(to, "/* %s", w->op);
    if (w->format) fprintf(to, " of %s weights and %s activations", w->format->name, w->acts);
    if (!w->format && *w->acts) fprintf(to, " of %s rows", w->acts);
    fprintf(
        to,
        " on %s: plain code, to start from.\n"
        " *\n"
        " * Here %s.\n"
        " * Say above how the new code computes it and why that is right; bump version with every\n"
        " * change of speed or numbers.\n"
        " *\n"
        " * SPDX-License-Identifier: Apache-2.0 */\n",
        strstr(w->name, "__") + 2, ops[op].work);
    end = at ? strstr(at, w->format ? "KT_P64_KERNEL_APART(" : "KT_ATTN_VARIANT(") : NULL;
    if (w->format || end) {
        fprintf(to, "%.*s", end ? (int)(end - at) : 0, at);
        write_kernel(to, w);
        return;
    }
    while (at && *at) {
        size_t size = strcspn(at, "\n");
        write_line(to, at, size, w);
        at += size + (at[size] == '\n');
    }
}

/* The variant that the file registers with op. */
static void variant_name(const variant_words *w, int op, char made[VARIANT_BYTES]) {
    const char *isa = strstr(w->name, "__");

    snprintf(made, VARIANT_BYTES, "%.*s%s%s", (int)(isa - w->name), w->name, ops[op].infix, isa);
}

static kt_status refuse_taken(int op, const variant_words *w, kt_err *err) {
    char made[VARIANT_BYTES];

    for (int i = 0; i < N_OPS; i++) {
        if (i != op && (!w->format || !*ops[i].infix)) continue;
        variant_name(w, i, made);
        for (size_t v = 0; v < kt_builtin_variant_count; v++) {
            const char *name = kt_builtin_variants[v]->name;
            if (strcmp(name, made) == 0 || strcmp(name, w->name) == 0)
                return kt_fail(err, KT_E_INVALID, "%s: there is a variant of that name already",
                               name);
        }
    }
    return KT_OK;
}

static kt_status make_file(int op, const variant_words *w, const char *folder,
                           char path[PATH_BYTES], kt_err *err) {
    char plain_path[PATH_BYTES], *plain = NULL, *text = NULL;
    size_t plain_size = 0, size = 0;
    FILE *to;
    kt_status st;

    if (snprintf(path, PATH_BYTES, "%s/%s.c", folder, w->name) >= PATH_BYTES)
        return kt_fail(err, KT_E_INVALID, "%s: path too long", folder);
    if (access(path, F_OK) == 0)
        return kt_fail(err, KT_E_INVALID, "%s: there is such a file already", path);
    KT_TRY(refuse_taken(op, w, err));
    snprintf(plain_path, sizeof plain_path, KT_SOURCE_DIR "/kernels/%s/%s.c", folder_of(op),
             w->plain);
    KT_TRY(kt_file_read(plain_path, MAX_FILE_BYTES, &plain, &plain_size, err));
    to = open_memstream(&text, &size);
    if (to) write_variant(to, plain, op, w);
    st = to && fclose(to) == 0 ? kt_file_write(path, text, size, err)
                               : kt_fail(err, KT_E_NOMEM, "%s: no memory for the text", path);
    free(plain);
    free(text);
    return st;
}

static void print_json(const char *op, const char *name, const char *path) {
    const char *const pairs[] = {"op", op, "variant", name, "wrote", path};
    kt_json_writer j = {0};

    kt_json_begin_object(&j);
    for (int i = 0; i < 6; i += 2) kt_json_add_string(&j, pairs[i], pairs[i + 1]);
    kt_json_end_object(&j);
    kt_json_writer_print(&j, stdout);
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    const char *folder = NULL, *words[2];
    bool json = false;
    char path[PATH_BYTES], own[PATH_BYTES], made[VARIANT_BYTES];
    const kt_switch switches[] = {{"folder", KT_SWITCH_TEXT, &folder, "DIR",
                                   "default kernels/<op>, or p64, of the source tree"},
                                  {"json", KT_SWITCH_FLAG, &json, NULL, "print a JSON object"}};
    const kt_verb_usage usage = {
        "new", "OP NAME ",
        "Write a variant file to start from. It is right from the first build on, and tests, list "
        "and\n"
        "races know it; then make it fast (kernels/WALKTHROUGH.md shows how). OP and NAME:\n"
        "  gemm, moe_ffn   <weights>_<acts>[_<trait>]__<isa>: one file for both, of variants\n"
        "                  <weights>_<acts>_<trait>_p64__<isa> and .._moe64__<isa>\n"
        "  encode          <acts>_<trait>__<isa>\n"
        "  attn            bf16_<trait>__<isa>\n"
        "  norm            rms_<trait>__<isa>\n"
        "  rope            rotate_<trait>__<isa>\n"
        "  router          logits_<trait>__<isa>\n"
        "  conv, delta     conv_<trait>__<isa>, delta_<trait>__<isa>\n"
        "  index           index_<trait>__<isa>",
        "  kttune new gemm w8c_a8_mine__avx2\n"
        "  cmake --build build/release && build/release/kttune bench --op gemm --weights w8c \\\n"
        "      --m 4 --n 768 --k 2048 --variant w8c_a8_mine_p64__avx2 --against "
        "w8c_a8_p64__avx2\n"};
    variant_words w;
    kt_err err = {0};
    kt_status st;
    int n = 0, op, code = kt_switches_parse(&usage, switches, 2, argc, argv, words, 2, &n);

    (void)context;
    if (code >= 0) return code;
    if (n != 2) return kt_switch_fail(&usage, "expected an operation and a name");
    op = find_op(words[0]);
    if (op < 0)
        return kt_switch_fail(
            &usage,
            "'%s': expected gemm, moe_ffn, attn, norm, rope, router, conv, delta, index or "
            "encode",
            words[0]);
    snprintf(own, sizeof own, KT_SOURCE_DIR "/kernels/%s", folder_of(op));
    st = take_apart(op, words[1], &w, &err);
    if (st == KT_OK) st = make_file(op, &w, folder ? folder : own, path, &err);
    if (st != KT_OK) return kt_verb_fail(&err);
    variant_name(&w, op, made);
    if (json)
        print_json(words[0], made, path);
    else
        printf("wrote %s\nnext: cmake --build build/release; build/release/kttune list variants\n",
               path);
    return KT_TUNE_OK;
}

const kt_verb kt_verb_new = {
    .name = "new", .summary = "write a variant file to start from", .run = run};
