/* Where chat formats come from. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/chat/chat_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/err.h"
#include "dispatch/model/gguf_meta.h"
#include "dispatch/model/mistakes.h"
#include "dispatch/model/resolve.h"

enum { MAX_PATH = 4352 };
#define MAX_FILE_BYTES ((size_t)64 << 20)

void kt_chat_format_destroy(kt_chat_format *f) {
    if (!f) return;
    kt_template_destroy(f->t);
    kt_json_destroy(f->tokens);
    free(f->text);
    free(f->origin);
    free(f);
}

const char *kt_chat_format_text(const kt_chat_format *f) {
    return f->is_built_in ? "" : f->text;
}

const char *kt_chat_format_origin(const kt_chat_format *f) {
    return f->origin;
}

static kt_status set_text(kt_chat_format *f, const char *text, size_t size, const char *origin,
                          kt_err *err) {
    f->text = malloc(size + 1);
    f->origin = strdup(origin);
    if (!f->text || !f->origin)
        return kt_fail(err, KT_E_NOMEM, "%.200s: no memory for the template", origin);
    memcpy(f->text, text, size);
    f->text[size] = '\0';
    return kt_template_create(text, size, origin, &f->t, err);
}

/* ---- special tokens ---- */

static bool names_token(const char *key, size_t n) {
    return n > 6 && memcmp(key + n - 6, "_token", 6) == 0;
}

/* The members *_token of an object: strings, or objects with `content`. */
static kt_status set_tokens(kt_chat_format *f, const kt_json *from, kt_err *err) {
    kt_json_writer w = {0};
    const char *text;
    size_t size;
    kt_status st;

    kt_json_begin_object(&w);
    for (size_t i = 0; i < kt_json_length(from); i++) {
        const char *key, *value;
        size_t n, n_value;
        const kt_json *member = kt_json_member(from, i, &key, &n);
        value = kt_json_string(member, &n_value);
        if (!value) value = kt_json_string(kt_json_get(member, "content"), &n_value);
        if (!key || !value || !names_token(key, n)) continue;
        kt_json_key_n(&w, key, n);
        kt_json_put_string_n(&w, value, n_value);
    }
    kt_json_end_object(&w);
    text = kt_json_writer_text(&w, &size);
    st = text ? kt_json_parse(text, size, NULL, &f->tokens, err)
              : kt_fail(err, KT_E_NOMEM, "%.200s: no memory for special tokens",
                        f->origin ? f->origin : "chat template");
    kt_json_writer_deinit(&w);
    return st;
}

/* ---- folders ---- */

static kt_status join(const char *folder, const char *file, char out[MAX_PATH], kt_err *err) {
    int n = snprintf(out, MAX_PATH, "%s/%s", folder, file);
    if (n >= 0 && n < MAX_PATH) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "%.200s: the path is too long", folder);
}

/* A file of JSON in the folder; KT_E_NOT_FOUND leaves *out NULL. */
static kt_status read_json(const char *folder, const char *file, char path[MAX_PATH],
                           kt_json_doc **out, kt_err *err) {
    char *text = NULL;
    size_t size = 0;
    kt_status st;

    *out = NULL;
    KT_TRY(join(folder, file, path, err));
    KT_TRY(kt_file_read(path, MAX_FILE_BYTES, &text, &size, err));
    st = kt_json_parse(text, size, NULL, out, err);
    free(text);
    return st == KT_OK ? KT_OK : kt_fail_prefix(err, st, "%.200s", path);
}

static kt_status use_file(kt_chat_format *f, const char *path, kt_err *err) {
    char *text = NULL;
    size_t size = 0;
    kt_status st;

    KT_TRY(kt_file_read(path, MAX_FILE_BYTES, &text, &size, err));
    st = set_text(f, text, size, path, err);
    free(text);
    return st;
}

/* chat_template of a JSON file: text, or a list of {name, template}. */
static kt_status use_member(kt_chat_format *f, const kt_json *root, const char *path,
                            const char *wanted, kt_err *err) {
    const kt_json *member = kt_json_get(root, "chat_template");
    size_t size = 0;
    const char *text = kt_json_string(member, &size);
    char origin[MAX_PATH + 80];

    snprintf(origin, sizeof origin, "%s: chat_template", path);
    for (size_t i = 0; !text && i < kt_json_length(member); i++) {
        const kt_json *one = kt_json_at(member, i);
        if (strcmp(kt_json_text(one, "name"), wanted ? wanted : "default") == 0)
            text = kt_json_string(kt_json_get(one, "template"), &size);
    }
    if (text) return set_text(f, text, size, origin, err);
    if (kt_json_type_of(member) == KT_JSON_ARRAY)
        return kt_fail(err, KT_E_NOT_FOUND, "%.200s: none of %zu templates is called '%.60s'",
                       origin, kt_json_length(member), wanted ? wanted : "default");
    return KT_E_NOT_FOUND;
}

static kt_status use_folder(kt_chat_format *f, const char *folder, const kt_json *config,
                            const char *config_path, const char *wanted, kt_err *err) {
    char path[MAX_PATH], file[160];
    kt_json_doc *doc;
    kt_status st = KT_E_NOT_FOUND;

    snprintf(file, sizeof file, "additional_chat_templates/%.100s.jinja", wanted ? wanted : "");
    if (wanted && !strchr(wanted, '/')) {
        KT_TRY(join(folder, file, path, err));
        st = use_file(f, path, err);
        if (st != KT_E_NOT_FOUND) return st;
    }
    if (!wanted || strcmp(wanted, "default") == 0) {
        KT_TRY(join(folder, "chat_template.jinja", path, err));
        st = use_file(f, path, err);
    }
    if (st != KT_E_NOT_FOUND) return st;
    st = read_json(folder, "chat_template.json", path, &doc, err);
    if (st != KT_OK && st != KT_E_NOT_FOUND) return st;
    if (st == KT_OK) st = use_member(f, kt_json_root(doc), path, wanted, err);
    kt_json_destroy(doc);
    if (st != KT_E_NOT_FOUND) return st;
    return use_member(f, config, config_path, wanted, err);
}

/* Encoders of families that publish no template. */
typedef struct built_in {
    const char *model_type, *arch; /* in config.json; in a GGUF file */
    const char *origin, *text;
} built_in;

static const built_in built_ins[] = {
    {"deepseek_v32", "deepseek32", "built-in encoder of DeepSeek-V3.2", kt_chat_deepseek_v32},
    {"deepseek_v4", "deepseek4", "built-in encoder of DeepSeek-V4", kt_chat_deepseek_v4},
};
enum { N_BUILT_INS = sizeof built_ins / sizeof *built_ins };

static const built_in *built_in_of_folder(const char *folder) {
    char path[MAX_PATH];
    kt_json_doc *doc = NULL;
    const built_in *found = NULL;
    kt_err unused;

    if (read_json(folder, "config.json", path, &doc, &unused) != KT_OK) return NULL;
    for (int i = 0; i < N_BUILT_INS; i++)
        if (strcmp(kt_json_text(kt_json_root(doc), "model_type"), built_ins[i].model_type) == 0)
            found = &built_ins[i];
    kt_json_destroy(doc);
    return found;
}

static const built_in *built_in_of_arch(const char *arch, size_t n) {
    for (int i = 0; i < N_BUILT_INS; i++)
        if (n == strlen(built_ins[i].arch) && memcmp(arch, built_ins[i].arch, n) == 0)
            return &built_ins[i];
    return NULL;
}

static kt_status use_built_in(kt_chat_format *f, const built_in *b, kt_err *err) {
    f->is_built_in = true;
    return set_text(f, b->text, strlen(b->text), b->origin, err);
}

static kt_status refuse_without(const char *model, kt_err *err) {
    return kt_fail(err, KT_E_NOT_FOUND,
                   "%.250s: the model has no chat template; expected chat_template.jinja or "
                   "chat_template in tokenizer_config.json, or give --chat-template FILE",
                   model);
}

static kt_status read_folder(kt_chat_format *f, const char *folder, const kt_chat_source *source,
                             kt_err *err) {
    char path[MAX_PATH] = "";
    kt_json_doc *config = NULL;
    kt_err why = {KT_OK, ""};
    kt_status st = read_json(folder, "tokenizer_config.json", path, &config, err);

    if (st != KT_OK && st != KT_E_NOT_FOUND) return st;
    st = KT_OK;
    if (!source->template_file) {
        st = use_folder(f, folder, kt_json_root(config), path, source->template_name, &why);
        const built_in *own = st == KT_E_NOT_FOUND ? built_in_of_folder(folder) : NULL;
        if (own)
            st = use_built_in(f, own, &why);
        else if (st == KT_E_NOT_FOUND && !source->template_name)
            st = refuse_without(folder, &why);
        if (st != KT_OK) kt_fail(err, st, "%s", why.message);
    }
    if (st == KT_OK) st = set_tokens(f, kt_json_root(config), err);
    kt_json_destroy(config);
    return st;
}

/* ---- GGUF files ---- */

static kt_status gguf_tokens(kt_chat_format *f, const kt_gguf_meta *m, kt_err *err) {
    static const char *const names[] = {"bos", "eos", "unknown", "padding"};
    static const char *const variables[] = {"bos_token", "eos_token", "unk_token", "pad_token"};
    const kt_gguf_value *tokens;
    kt_json_writer w = {0};
    const char *text;
    size_t size;
    kt_status st;

    KT_TRY(kt_gguf_need_array(m, "tokenizer.ggml.tokens", KT_GGUF_STRING, &tokens, err));
    kt_json_begin_object(&w);
    for (size_t k = 0; k < 4; k++) {
        char key[64];
        int64_t id;
        const uint8_t *at = tokens->data;
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", names[k]);
        id = kt_gguf_int(m, key, -1);
        if (id < 0 || (uint64_t)id >= tokens->count) continue;
        for (int64_t i = 0; i <= id; i++) text = kt_gguf_next_string(&at, &size);
        kt_json_key(&w, variables[k]);
        kt_json_put_string_n(&w, text, size);
    }
    kt_json_end_object(&w);
    text = kt_json_writer_text(&w, &size);
    st = text ? kt_json_parse(text, size, NULL, &f->tokens, err)
              : kt_fail(err, KT_E_NOMEM, "no memory for special tokens");
    kt_json_writer_deinit(&w);
    return st;
}

static kt_status use_gguf(kt_chat_format *f, const kt_gguf_meta *m, const char *path,
                          const char *wanted, kt_err *err) {
    char key[160], origin[MAX_PATH + 200];
    const char *text, *arch = "";
    size_t size, n = 0;
    bool named = wanted && strcmp(wanted, "default") != 0;

    snprintf(key, sizeof key, "tokenizer.chat_template%s%.100s", named ? "." : "",
             named ? wanted : "");
    if (kt_gguf_find(m, "general.architecture"))
        KT_TRY(kt_gguf_need_string(m, "general.architecture", &arch, &n, err));
    if (!kt_gguf_find(m, key)) {
        const built_in *own = built_in_of_arch(arch, n);
        if (own) return use_built_in(f, own, err);
        return kt_fail(err, KT_E_NOT_FOUND,
                       "the model has no chat template ('%s'); give --chat-template FILE", key);
    }
    KT_TRY(kt_gguf_need_string(m, key, &text, &size, err));
    snprintf(origin, sizeof origin, "%s: %s", path, key);
    return set_text(f, text, size, origin, err);
}

static kt_status read_gguf(kt_chat_format *f, const char *path, const kt_chat_source *source,
                           kt_err *err) {
    kt_mapping file = {0};
    kt_gguf_meta meta = {0};
    bool own_template = !source->template_file;
    kt_status st;

    KT_TRY(kt_mapping_open(path, &file, err));
    st = kt_gguf_meta_init(&meta, file.data, file.bytes, err);
    if (st == KT_OK && own_template) st = use_gguf(f, &meta, path, source->template_name, err);
    if (st == KT_OK) st = gguf_tokens(f, &meta, err);
    kt_gguf_meta_deinit(&meta);
    kt_mapping_close(&file);
    return st == KT_OK || f->origin ? st : kt_fail_prefix(err, st, "%.200s", path);
}

/* ---- all of them ---- */

static kt_status read_model(kt_chat_format *f, const kt_chat_source *source, kt_err *err) {
    kt_model_ref ref;
    char path[MAX_PATH], name[256], config[MAX_PATH];

    KT_TRY(kt_model_resolve(source->model, KT_MODEL_ANY, &ref, err));
    if (ref.kind == KT_MODEL_FILE) {
        if (kt_model_is_gguf(ref.path)) return read_gguf(f, ref.path, source, err);
        return kt_fail(err, KT_E_INVALID,
                       "%.200s: a file that is no GGUF, expected a model; for a template: "
                       "--chat-template FILE",
                       ref.path);
    }
    KT_TRY(join(ref.path, "config.json", config, err));
    if (kt_model_count_files(ref.path, ".gguf", name, sizeof name) > 0 &&
        kt_model_count_files(ref.path, "config.json", NULL, 0) == 0) {
        KT_TRY(join(ref.path, name, path, err));
        return read_gguf(f, path, source, err);
    }
    return read_folder(f, ref.path, source, err);
}

static kt_status fill(kt_chat_format *f, const kt_chat_source *source, kt_err *err) {
    if (!source->model && !source->template_file)
        return kt_fail(err, KT_E_INVALID, "neither a model nor a template is given");
    if (source->template_file) KT_TRY(use_file(f, source->template_file, err));
    if (source->model) KT_TRY(read_model(f, source, err));
    return kt_chat_probe(f, err);
}

kt_status kt_chat_format_load(const kt_chat_source *source, kt_chat_format **out, kt_err *err) {
    kt_chat_format *f = calloc(1, sizeof *f);
    kt_status st = f ? fill(f, source, err)
                     : kt_fail(err, KT_E_NOMEM, "%.200s: no memory for the chat format",
                               source->model ? source->model : source->template_file);

    *out = NULL;
    if (st == KT_OK)
        *out = f;
    else
        kt_chat_format_destroy(f);
    return st;
}

kt_status kt_chat_format_create(const char *text, size_t size, const char *name,
                                const kt_json *tokens, kt_chat_format **out, kt_err *err) {
    kt_chat_format *f = calloc(1, sizeof *f);
    kt_status st = f ? set_text(f, text, size, name, err)
                     : kt_fail(err, KT_E_NOMEM, "%.200s: no memory for the chat format", name);

    *out = NULL;
    if (st == KT_OK) st = set_tokens(f, tokens, err);
    if (st == KT_OK) st = kt_chat_probe(f, err);
    if (st == KT_OK)
        *out = f;
    else
        kt_chat_format_destroy(f);
    return st;
}
