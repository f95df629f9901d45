/* Names of models and workloads become shapes. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/err.h"
#include "dispatch/model/mistakes.h"
#include "dispatch/model/resolve.h"
#include "tuner/space/shapes.h"

enum { MAX_CONFIG_BYTES = 1 << 24, MAX_INDEX_BYTES = 100000000 };

typedef kt_status (*shape_reader)(const kt_json *root, const char *where, kt_shapes *out,
                                  kt_err *err);

static kt_status parse_file(const char *path, size_t max_bytes, kt_json_doc **out, kt_err *err) {
    char *text = NULL;
    size_t size = 0;
    kt_status st;

    *out = NULL;
    KT_TRY(kt_file_read(path, max_bytes, &text, &size, err));
    st = kt_json_parse(text, size, NULL, out, err);
    if (st != KT_OK) kt_fail_prefix(err, st, "%s", path);
    free(text);
    return st;
}

static kt_status read_file(const char *path, shape_reader reader, kt_shapes *out, kt_err *err) {
    kt_json_doc *doc;
    kt_status st = parse_file(path, MAX_CONFIG_BYTES, &doc, err);

    if (st == KT_OK) st = reader(kt_json_root(doc), path, out, err);
    kt_json_destroy(doc);
    return st;
}

/* Did `kt convert` write this folder? Its index says so. Only memory can be lacking: an index that
 * cannot be read is for the loader to complain of. */
static kt_status is_packed(const char *folder, bool *out, kt_err *err) {
    char path[4200];
    kt_json_doc *doc;
    kt_status st;

    *out = false;
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    if (access(path, F_OK) != 0) return KT_OK;
    st = parse_file(path, MAX_INDEX_BYTES, &doc, err);
    if (st != KT_OK) return st == KT_E_NOMEM ? st : KT_OK;
    *out = kt_json_get(kt_json_get(kt_json_root(doc), "metadata"), "kt_packed") != NULL;
    kt_json_destroy(doc);
    return KT_OK;
}

static kt_status read_packed(const char *folder, const char *config, kt_shapes *out, kt_err *err) {
    kt_checkpoint *c;
    kt_json_doc *doc = NULL;
    kt_status st;

    KT_TRY(kt_checkpoint_open(folder, &c, err));
    st = parse_file(config, MAX_CONFIG_BYTES, &doc, err);
    if (st == KT_OK) st = kt_shapes_from_packed(kt_json_root(doc), config, c, out, err);
    kt_json_destroy(doc);
    kt_checkpoint_close(c);
    return st;
}

/* A GGUF file, or a folder with one and no config.json. */
static bool is_gguf_model(const kt_model_ref *ref) {
    char config[sizeof ref->path + 16];

    if (ref->kind == KT_MODEL_FILE) return kt_model_is_gguf(ref->path);
    if (ref->kind != KT_MODEL_FOLDER) return false;
    snprintf(config, sizeof config, "%s/config.json", ref->path);
    return access(config, F_OK) != 0 && kt_model_count_files(ref->path, ".gguf", NULL, 0) > 0;
}

kt_status kt_shapes_find(const char *model, kt_shapes *out, char *path, size_t path_bytes,
                         kt_err *err) {
    kt_model_ref ref;
    char file[sizeof ref.path + 16];
    bool is_workload, packed = false;

    KT_TRY(kt_model_resolve(model, KT_MODEL_ANY, &ref, err));
    is_workload = ref.kind == KT_MODEL_WORKLOAD;
    if (ref.kind == KT_MODEL_FILE && !kt_model_is_gguf(ref.path))
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "model '%.300s': a file; expected a GGUF file, a folder with a config.json, "
                       "or a name (`kttune list models` shows them)",
                       model);
    if (is_gguf_model(&ref)) {
        KT_TRY(kt_shapes_from_gguf(ref.path, out, err));
        snprintf(out->name, sizeof out->name, "%s", ref.name);
        if (path) snprintf(path, path_bytes, "%s", ref.path);
        return KT_OK;
    }
    if (!is_workload) KT_TRY(kt_model_need_config(ref.path, err));
    snprintf(file, sizeof file, "%s%s", ref.path, is_workload ? "" : "/config.json");
    if (!is_workload) KT_TRY(is_packed(ref.path, &packed, err));
    if (packed)
        KT_TRY(read_packed(ref.path, file, out, err));
    else
        KT_TRY(read_file(file, is_workload ? kt_shapes_from_workload : kt_shapes_from_config, out,
                         err));
    snprintf(out->name, sizeof out->name, "%s", ref.name);
    if (path) snprintf(path, path_bytes, "%s", file);
    return KT_OK;
}
