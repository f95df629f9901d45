/* Where tables are looked for and written. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "dispatch/model/resolve.h"
#include "dispatch/plan/plan.h"

enum { PATH_BYTES = 4096, MOST_STEM = 100 };

/* Last component of a model's name or path ("org/Name", "/models/name/") as a plain file name. Where that
 * loses something, what was lost is told apart by a digest. */
static void file_stem(const char *model_name, char *out, size_t bytes) {
    size_t end = strlen(model_name), begin, n = 0;
    int is_faithful;

    while (end > 0 && model_name[end - 1] == '/') end--;
    for (begin = end; begin > 0 && model_name[begin - 1] != '/';) begin--;
    is_faithful = end - begin <= MOST_STEM;
    for (size_t i = begin; i < end && n < MOST_STEM; i++) {
        char c = model_name[i];
        int plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '_' || c == '-' || (c == '.' && n > 0);
        is_faithful &= plain;
        out[n++] = plain ? c : '-';
    }
    out[n] = '\0';
    if (n == 0) snprintf(out, bytes, "model");
    if (!is_faithful && n > 0)
        snprintf(out + n, bytes - n, "-%08" PRIx32, (uint32_t)kt_model_hash(model_name + begin));
}

/* The user's data folder into out; 0 when the environment names none. The XDG specification asks to
 * ignore a relative path. */
static int data_folder(char *out, size_t bytes) {
    const char *xdg = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    int n = -1;

    if (xdg && xdg[0] == '/')
        n = snprintf(out, bytes, "%s/kt", xdg);
    else if (home && home[0] == '/')
        n = snprintf(out, bytes, "%s/.local/share/kt", home);
    return n > 0 && (size_t)n < bytes;
}

/* <folder>/<class>/<model>[-<shape>].kttable.json; 0 when it does not fit. */
static int table_path(const char *folder, const kt_fingerprint *machine, const char *model_name,
                      uint64_t shape_id, char *out, size_t bytes) {
    char machine_class[64], stem[128], shape[16] = "";
    int n;

    kt_machine_class(machine, machine_class, sizeof machine_class);
    file_stem(model_name, stem, sizeof stem);
    if (shape_id) snprintf(shape, sizeof shape, "-%08" PRIx32, (uint32_t)(shape_id >> 32));
    n = snprintf(out, bytes, "%s/%s/%s%s.kttable.json", folder, machine_class, stem, shape);
    return n > 0 && (size_t)n < bytes;
}

/* Is there a table, and is it known to be of another model? One that cannot be read is nobody's. */
static int is_other_model(const char *path, uint64_t shape_id) {
    kt_table *table;
    int is_other;

    if (!shape_id || access(path, R_OK) != 0 || kt_table_load(path, &table, NULL) != KT_OK)
        return 0;
    is_other = table->shape_id && table->shape_id != shape_id;
    kt_table_destroy(table);
    return is_other;
}

/* A table of the source tree is an offer: taken only when it is readable and this machine's. */
static int is_offer(const char *path, const kt_fingerprint *machine) {
    kt_table *table;
    int fits;

    if (access(path, R_OK) != 0 || kt_table_load(path, &table, NULL) != KT_OK) return 0;
    fits = kt_fingerprint_compare(&table->fingerprint, machine, NULL) != KT_MATCH_OTHER;
    kt_table_destroy(table);
    return fits;
}

/* The cores that a class name gives behind "<microarch>-", or 0: "zen4-8c-64g" has 8 for zen4. */
static long cores_of(const char *class_name, const char *microarch) {
    const size_t size = strlen(microarch);
    char *end;
    long cores;

    if (strncmp(class_name, microarch, size) != 0 || class_name[size] != '-' ||
        class_name[size + 1] < '0' || class_name[size + 1] > '9')
        return 0;
    cores = strtol(class_name + size + 1, &end, 10);
    return strncmp(end, "c-", 2) == 0 ? cores : 0;
}

void kt_table_of_like_machine(const char *results, const kt_fingerprint *machine,
                              const char *model_name, uint64_t shape_id, char *out,
                              size_t out_bytes) {
    DIR *folder = machine->microarch[0] ? opendir(results) : NULL;
    const struct dirent *entry;
    double nearest = INFINITY;
    char stem[128], path[PATH_BYTES];

    out[0] = '\0';
    if (!folder) return;
    file_stem(model_name, stem, sizeof stem);
    while ((entry = readdir(folder)) != NULL) {
        const long cores = cores_of(entry->d_name, machine->microarch);
        const double far = cores > 0 ? fabs(log((double)cores / machine->usable_cores)) : INFINITY;
        const int n =
            snprintf(path, sizeof path, "%s/%s/%s.kttable.json", results, entry->d_name, stem);
        if (n < 0 || (size_t)n >= sizeof path || (size_t)n >= out_bytes) continue;
        /* Readdir knows no order: of two as near the first by name. */
        if (far > nearest || (far == nearest && strcmp(path, out) >= 0)) continue;
        if (isinf(far) || is_other_model(path, shape_id) || !is_offer(path, machine)) continue;
        nearest = far;
        memcpy(out, path, (size_t)n + 1);
    }
    closedir(folder);
}

/* The readable file of this model in a folder: under its name, or under its name and shape. */
static int find_in(const char *folder, const kt_fingerprint *machine, const char *model_name,
                   uint64_t shape_id, char *out, size_t bytes) {
    if (table_path(folder, machine, model_name, 0, out, bytes) && access(out, R_OK) == 0 &&
        !is_other_model(out, shape_id))
        return 1;
    return shape_id && table_path(folder, machine, model_name, shape_id, out, bytes) &&
           access(out, R_OK) == 0 && !is_other_model(out, shape_id);
}

void kt_table_locate(const kt_fingerprint *machine, const char *model_name, uint64_t shape_id,
                     char *out, size_t out_bytes) {
    const char *named = getenv("KT_TABLE");
    char folder[PATH_BYTES];

    out[0] = '\0';
    /* A table the user named is the answer even if it is missing: loading it then says so. */
    if (named && named[0]) {
        if (strlen(named) < out_bytes) memcpy(out, named, strlen(named) + 1);
        return;
    }
    if (data_folder(folder, sizeof folder) &&
        find_in(folder, machine, model_name, shape_id, out, out_bytes))
        return;
    if (find_in(KT_SOURCE_DIR "/results", machine, model_name, shape_id, out, out_bytes) &&
        is_offer(out, machine))
        return;
    kt_table_of_like_machine(KT_SOURCE_DIR "/results", machine, model_name, shape_id, out,
                             out_bytes);
}

/* Make every folder above the last '/' of path. */
static kt_status make_folders(char *path, kt_err *err) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        int made;
        *slash = '\0';
        made = mkdir(path, 0777) == 0 || errno == EEXIST;
        if (!made)
            return kt_fail(err, KT_E_IO,
                           "%s: cannot make the folder: %m; XDG_DATA_HOME may name one that can be "
                           "written",
                           path);
        *slash = '/';
    }
    return KT_OK;
}

kt_status kt_table_default_path(const kt_fingerprint *machine, const char *model_name,
                                uint64_t shape_id, char *out, size_t out_bytes, kt_err *err) {
    char folder[PATH_BYTES], path[PATH_BYTES];
    int fits;

    if (out_bytes) out[0] = '\0';
    if (!data_folder(folder, sizeof folder))
        return kt_fail(err, KT_E_NOT_FOUND,
                       "no folder for tables: neither XDG_DATA_HOME nor HOME is an absolute path");
    fits = table_path(folder, machine, model_name, 0, path, sizeof path);
    if (fits && is_other_model(path, shape_id))
        fits = table_path(folder, machine, model_name, shape_id, path, sizeof path);
    if (!fits || strlen(path) >= out_bytes)
        return kt_fail(err, KT_E_INVALID, "%s: the path of the table is too long", folder);
    KT_TRY(make_folders(path, err));
    memcpy(out, path, strlen(path) + 1);
    return KT_OK;
}
