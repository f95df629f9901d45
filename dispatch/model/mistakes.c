/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "dispatch/model/mistakes.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/err.h"

const char *kt_model_mistake(const void *data, size_t bytes) {
    static const struct {
        const char *begin, *what;
    } known[] = {
        {"version https://git-lfs",
         "a Git LFS pointer instead of the file; `git lfs pull` in its folder fetches it"},
        {"<!doctype", "an HTML page; the download failed"},
        {"<html", "an HTML page; the download failed"},
        {"GGUF", "a GGUF file"},
        {"PK\x03\x04", "a zip archive, perhaps PyTorch weights"},
    };
    const char *text = data;

    while (bytes > 0 && (*text == ' ' || *text == '\n' || *text == '\r' || *text == '\t'))
        text++, bytes--;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n = strlen(known[i].begin);
        if (bytes >= n && strncasecmp(text, known[i].begin, n) == 0) return known[i].what;
    }
    return NULL;
}

int kt_model_count_files(const char *folder, const char *end, char *name, size_t name_bytes) {
    const struct dirent *entry;
    DIR *list = opendir(folder);
    int n = 0;

    if (name_bytes) name[0] = '\0';
    while (list && (entry = readdir(list))) {
        size_t size = strlen(entry->d_name), tail = strlen(end);
        if (size <= tail || strcmp(entry->d_name + size - tail, end) != 0) continue;
        if (name_bytes && (n == 0 || strcmp(entry->d_name, name) < 0))
            snprintf(name, name_bytes, "%s", entry->d_name);
        n++;
    }
    if (list) closedir(list);
    return n;
}

kt_status kt_model_need_config(const char *folder, kt_err *err) {
    char path[4200], name[256];

    if (snprintf(path, sizeof path, "%s/config.json", folder) < (int)sizeof path &&
        access(path, F_OK) == 0)
        return KT_OK;
    if (kt_model_count_files(folder, ".gguf", name, sizeof name) > 0)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%.200s: a folder with a GGUF file (%.100s) and no config.json, expected "
                       "the folder of a safetensors checkpoint",
                       folder, name);
    if (kt_model_count_files(folder, ".safetensors", name, sizeof name) > 0)
        return kt_fail(err, KT_E_NOT_FOUND,
                       "%.200s: config.json is missing beside %.100s; download it too", folder,
                       name);
    return kt_fail(err, KT_E_NOT_FOUND,
                   "%.300s: no config.json, expected the folder of a checkpoint", folder);
}

int kt_model_is_gguf(const char *path) {
    char magic[4] = "";
    FILE *f = fopen(path, "rb");
    int is_gguf;

    if (!f) return 0;
    is_gguf = fread(magic, 1, sizeof magic, f) == sizeof magic && memcmp(magic, "GGUF", 4) == 0;
    fclose(f);
    return is_gguf;
}
