/* Names of models and workloads become shapes. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/err.h"
#include "tuner/space/shapes.h"

enum { PATH_BYTES = 1024, MAX_CONFIG_BYTES = 1 << 24 };

/* The last component of a path without trailing slashes: what serving calls the model. "." and ".."
 * are resolved first, as a folder's own name is meant. */
static void name_of_folder(const char *folder, char *out, size_t out_bytes) {
    char *full = realpath(folder, NULL);
    const char *path = full ? full : folder, *slash;
    size_t size = strlen(path);

    while (size > 1 && path[size - 1] == '/') size--;
    slash = memrchr(path, '/', size);
    if (slash && slash + 1 < path + size) {
        size -= (size_t)(slash + 1 - path);
        path = slash + 1;
    }
    snprintf(out, out_bytes, "%.*s", (int)size, path);
    free(full);
}

typedef kt_status (*shape_reader)(const kt_json *root, const char *where, kt_shapes *out,
                                  kt_err *err);

static kt_status read_file(const char *path, shape_reader reader, kt_shapes *out, kt_err *err) {
    char *text = NULL;
    size_t size = 0;
    kt_json_doc *doc = NULL;
    kt_status st;

    KT_TRY(kt_file_read(path, MAX_CONFIG_BYTES, &text, &size, err));
    st = kt_json_parse(text, size, NULL, &doc, err);
    if (st != KT_OK)
        kt_fail_prefix(err, st, "%s", path);
    else
        st = reader(kt_json_root(doc), path, out, err);
    kt_json_destroy(doc);
    free(text);
    return st;
}

static bool is_plain_name(const char *name) {
    return *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

kt_status kt_shapes_find(const char *model, kt_shapes *out, char *path, size_t path_bytes,
                         kt_err *err) {
    static const struct {
        const char *before, *after;
        bool is_workload;
    } places[] = {{"", "/config.json", false},
                  {KT_SOURCE_DIR "/datasets/models/", "/config.json", false},
                  {KT_SOURCE_DIR "/datasets/workloads/", ".json", true}};

    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char candidate[PATH_BYTES];
        kt_status st;
        int size = snprintf(candidate, sizeof candidate, "%s%s%s", places[i].before, model,
                            places[i].after);
        if (size < 0 || (size_t)size >= sizeof candidate) continue;
        if ((i > 0 && !is_plain_name(model)) || access(candidate, R_OK) != 0) continue;
        st = read_file(candidate,
                       places[i].is_workload ? kt_shapes_from_workload : kt_shapes_from_config, out,
                       err);
        if (st != KT_OK) return st;
        name_of_folder(model, out->name, sizeof out->name);
        if (path) snprintf(path, path_bytes, "%s", candidate);
        return KT_OK;
    }
    return kt_fail(err, KT_E_NOT_FOUND,
                   "model '%s': no %s/config.json, and no bundled model or workload of that name "
                   "(`kttune list models` shows them)",
                   model, model);
}
