/* The output folder of a conversion: whose it is, whether its disk has room, and what lies in it
 * beside the shards. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/err.h"
#include "runtime/model/convert_impl.h"

#define INDEX "model.safetensors.index.json"
#define GGUF "metadata.gguf"
#define MOST_BYTES ((size_t)256 << 20) /* of a tokenizer's file */
#define GIB (1024.0 * 1024.0 * 1024.0)

const char *kt_convert_path(kt_convert_work *w, const char *name, const char *ending) {
    snprintf(w->path, sizeof w->path, "%s/%.100s%.10s", w->folder, name, ending);
    return w->path;
}

static kt_status status_of_errno(void) {
    return errno == ENOMEM ? KT_E_NOMEM : KT_E_IO;
}

/* ---- whose folder ---- */

/* The folder that the source lies in: a GGUF file's, too. */
static void source_folder(const kt_convert_work *w, char *out, size_t out_bytes) {
    struct stat info;

    snprintf(out, out_bytes, "%s", w->model.folder);
    if (stat(out, &info) == 0 && !S_ISDIR(info.st_mode) && strrchr(out, '/'))
        *strrchr(out, '/') = '\0';
}

/* Only a conversion's own folder may hold anything. */
static kt_status check_empty(const kt_convert_work *w, kt_err *err) {
    DIR *list = opendir(w->folder);
    const struct dirent *entry;
    char other[160] = "";
    bool is_ours = false;

    if (!list)
        return kt_fail(err, status_of_errno(), "%.300s: cannot read the folder: %s", w->folder,
                       strerror(errno));
    while ((entry = readdir(list))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        is_ours |= strcmp(entry->d_name, KT_CONVERT_JOURNAL) == 0;
        snprintf(other, sizeof other, "%.150s", entry->d_name);
    }
    closedir(list);
    if (is_ours || !*other) return KT_OK;
    return kt_fail(err, KT_E_INVALID,
                   "%.200s: holds '%.100s' and no conversion that could go on; expected a new or "
                   "empty folder",
                   w->folder, other);
}

kt_status kt_convert_take_folder(kt_convert_work *w, kt_err *err) {
    const char *asked = w->request->out;
    char source[KT_MODEL_PATH_BYTES], *real;

    if (mkdir(asked, 0777) != 0 && errno != EEXIST)
        return kt_fail(err, KT_E_IO, "%.300s: cannot create the folder: %s", asked,
                       strerror(errno));
    real = realpath(asked, NULL);
    if (!real || strlen(real) >= sizeof w->folder) {
        const kt_status st = real ? KT_E_IO : status_of_errno();
        kt_fail(err, st, "%.300s: cannot find the folder: %s", asked,
                real ? "path too long" : strerror(errno));
        free(real);
        return st;
    }
    strcpy(w->folder, real);
    free(real);
    source_folder(w, source, sizeof source);
    if (strcmp(source, w->folder) == 0)
        return kt_fail(err, KT_E_INVALID, "%.200s: is the source's folder, expected another one",
                       w->folder);
    return check_empty(w, err);
}

kt_status kt_convert_check_disk(const kt_convert_work *w, size_t bytes, kt_err *err) {
    struct statvfs disk;
    double room;

    if (statvfs(w->folder, &disk) != 0) return KT_OK; /* then writing says it */
    room = (double)disk.f_bavail * (double)disk.f_frsize;
    if (room >= (double)bytes) return KT_OK;
    return kt_fail(err, KT_E_IO, "%.200s: %.2f GiB are to be written, the disk has room for %.2f",
                   w->folder, (double)bytes / GIB, room / GIB);
}

/* ---- what is copied ---- */

static bool ends_with(const char *name, const char *ending) {
    const size_t n = strlen(name), m = strlen(ending);
    return n > m && strcmp(name + n - m, ending) == 0;
}

/* Configuration, tokenizer, templates, licence: no weights and no list of them. */
static bool is_copied(const char *name) {
    static const char *const endings[] = {".json", ".jinja", ".txt", ".model", ".tiktoken"};

    if (name[0] == '.' || ends_with(name, ".index.json")) return false;
    if (strncmp(name, "LICENSE", 7) == 0 || strncmp(name, "NOTICE", 6) == 0) return true;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (ends_with(name, endings[i])) return true;
    return false;
}

static kt_status copy_file(kt_convert_work *w, const char *name, kt_err *err) {
    char from[KT_MODEL_PATH_BYTES + 260];
    struct stat info;
    char *text;
    size_t size;
    kt_status st;

    snprintf(from, sizeof from, "%s/%.255s", w->model.folder, name);
    if (stat(from, &info) != 0 || !S_ISREG(info.st_mode)) return KT_OK;
    KT_TRY(kt_file_read(from, MOST_BYTES, &text, &size, err));
    snprintf(w->path, sizeof w->path, "%s/%.120s", w->folder, name);
    st = strlen(name) > 120 ? KT_OK : kt_file_write(w->path, text, size, err);
    free(text);
    return st;
}

static kt_status copy_all(kt_convert_work *w, kt_err *err) {
    DIR *list = opendir(w->model.folder);
    const struct dirent *entry;
    kt_status st = KT_OK;

    if (!list)
        return kt_fail(err, status_of_errno(), "%.300s: cannot read the folder: %s",
                       w->model.folder, strerror(errno));
    while (st == KT_OK && (entry = readdir(list)))
        if (is_copied(entry->d_name)) st = copy_file(w, entry->d_name, err);
    closedir(list);
    return st;
}

/* The first part up to its tensors, of which there are none now. */
static kt_status write_gguf(kt_convert_work *w, kt_err *err) {
    const kt_gguf_meta *meta = kt_checkpoint_gguf(w->model.checkpoint);
    uint8_t *bytes = malloc(meta->tensors_offset);
    kt_status st;

    if (!bytes) return kt_fail(err, KT_E_NOMEM, "%s: no memory to write it", GGUF);
    memcpy(bytes, meta->bytes, meta->tensors_offset);
    memset(bytes + 8, 0, 8); /* behind magic and version: the count of tensors */
    st = kt_file_write(kt_convert_path(w, GGUF, ""), bytes, meta->tensors_offset, err);
    free(bytes);
    return st;
}

kt_status kt_convert_copy_files(kt_convert_work *w, kt_err *err) {
    return w->model.graph.is_gguf ? write_gguf(w, err) : copy_all(w, err);
}

/* ---- the index ---- */

static void put_index(kt_json_writer *j, const kt_convert_work *w, const uint8_t *is_listed) {
    kt_json_begin_object(j);
    kt_json_key(j, "metadata");
    kt_json_begin_object(j);
    kt_json_add_int(j, "total_size", (int64_t)w->bytes_total);
    kt_json_key(j, "kt_packed");
    kt_json_begin_object(j);
    kt_json_add_int(j, "version",
                    w->request->budget ? KT_PACKED_CHOSEN_VERSION : KT_PACKED_VERSION);
    kt_json_add_string(j, "weights", kt_packed_quant_word(w->request->quant));
    if (w->request->budget) {
        kt_json_key(j, "formats");
        kt_packed_put_formats(j, &w->model.graph);
    }
    if (w->model.graph.is_gguf) kt_json_add_string(j, "gguf", GGUF);
    kt_json_key(j, "source");
    kt_packed_put_source(j, w->model.checkpoint, is_listed);
    kt_json_end_object(j);
    kt_json_end_object(j);
    kt_json_key(j, "weight_map");
    kt_json_begin_object(j);
    for (int s = 0; s < w->n_shards; s++)
        for (int i = w->shards[s].first; i < w->shards[s].first + w->shards[s].n; i++)
            kt_json_add_string(j, w->pieces[i].piece.name, w->shards[s].name);
    kt_json_end_object(j);
    kt_json_end_object(j);
}

kt_status kt_convert_write_index(kt_convert_work *w, kt_err *err) {
    uint8_t *is_listed = malloc(kt_checkpoint_count(w->model.checkpoint) + 1);
    kt_json_writer j = {0};
    const char *text;
    size_t size = 0;
    kt_status st = is_listed
                       ? kt_packed_list_source(&w->model.graph, w->model.checkpoint, is_listed, err)
                       : kt_fail(err, KT_E_NOMEM, "%s: no memory to write it", INDEX);

    if (st == KT_OK) {
        put_index(&j, w, is_listed);
        text = kt_json_writer_text(&j, &size);
        st = text ? kt_file_write(kt_convert_path(w, INDEX, ""), text, size, err)
                  : kt_fail(err, KT_E_NOMEM, "%s: no memory to write it", INDEX);
    }
    kt_json_writer_deinit(&j);
    free(is_listed);
    return st;
}

bool kt_convert_has_index(kt_convert_work *w) {
    return access(kt_convert_path(w, INDEX, ""), F_OK) == 0;
}
