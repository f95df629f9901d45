/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "dispatch/model/resolve.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "dispatch/model/nested.h"

#define MODELS KT_SOURCE_DIR "/datasets/models"
#define WORKLOADS KT_SOURCE_DIR "/datasets/workloads"

enum { PATH_BYTES = 4096, MAX_NAMES = 64, NAME_BYTES = 64, HASH_DIGITS = 32 };

/* ---- identity ---- */

uint64_t kt_model_hash(const char *text) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *text; text++) h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return h;
}

/* Each size by the names that families have for it. */
uint64_t kt_model_shape_id(const kt_json *config) {
    static const char *const sizes[][3] = {
        {"hidden_size"},         {"num_hidden_layers"},
        {"vocab_size"},          {"num_attention_heads"},
        {"num_key_value_heads"}, {"num_experts", "n_routed_experts", "num_local_experts"},
        {"num_experts_per_tok"}, {"moe_intermediate_size", "intermediate_size"}};
    const kt_json *text_config = kt_nested_text(config);
    char text[256] = "";
    size_t used = 0, found = 0;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t value = 0;
        for (int j = 0; j < 3 && sizes[i][j] && value == 0; j++)
            value = kt_json_int(kt_json_get(text_config, sizes[i][j]), 0);
        found += value != 0;
        used += (size_t)snprintf(text + used, sizeof text - used, "%lld,", (long long)value);
    }
    return found ? kt_model_hash(text) : 0;
}

/* ---- names of folders ---- */

static int is_hash(const char *part, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (!isxdigit((unsigned char)part[i])) return 0;
    return size >= HASH_DIGITS;
}

/* "models--org--Name" is Name. */
static const char *repository_of(const char *part, size_t *size) {
    const size_t begin = sizeof "models--" - 1;
    size_t at = *size;

    if (*size <= begin || memcmp(part, "models--", begin) != 0) return part;
    while (at > begin && !(part[at - 1] == '-' && part[at - 2] == '-')) at--;
    if (at == *size) return part;
    *size -= at;
    return part + at;
}

/* The last part of a real path that is no hash and no "snapshots" above one. */
static void name_folder(const char *real, char *out, size_t bytes) {
    const char *end = real + strlen(real), *part;
    size_t size;

    for (int above_hash = 0;; end = part - 1) {
        part = memrchr(real, '/', (size_t)(end - real));
        part = part ? part + 1 : real;
        size = (size_t)(end - part);
        if (is_hash(part, size))
            above_hash = 1;
        else if (!above_hash || size != 9 || memcmp(part, "snapshots", 9) != 0)
            break;
        if (part <= real + 1) break;
    }
    part = repository_of(part, &size);
    if (size == 0) part = "model", size = 5;
    if (size < bytes) {
        snprintf(out, bytes, "%.*s", (int)size, part);
        return;
    }
    /* not in the middle of a character */
    for (size = bytes - 10; size > 0 && ((unsigned char)part[size] & 0xc0) == 0x80;) size--;
    snprintf(out, bytes, "%.*s-%08" PRIx32, (int)size, part, (uint32_t)kt_model_hash(part));
}

/* ---- paths ---- */

static int has_file(const char *folder, const char *name) {
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    return n > 0 && n < PATH_BYTES && access(path, F_OK) == 0;
}

/* The snapshot that refs/main names, or the only one. */
static int enter_cache(char *folder) {
    char ref[128] = "", path[PATH_BYTES];
    const struct dirent *entry;
    int n_found = 0;
    DIR *list;
    FILE *f;

    if (snprintf(path, sizeof path, "%s/refs/main", folder) >= PATH_BYTES) return 0;
    f = fopen(path, "r");
    if (f && fscanf(f, "%100s", ref) != 1) ref[0] = '\0';
    if (f) fclose(f);
    if (snprintf(path, sizeof path, "%s/snapshots", folder) >= PATH_BYTES) return 0;
    list = opendir(path);
    while (!ref[0] && list && (entry = readdir(list)))
        if (entry->d_name[0] != '.' && n_found++ == 0)
            snprintf(ref, sizeof ref, "%.100s", entry->d_name);
    if (list) closedir(list);
    if (!ref[0] || n_found > 1 || strchr(ref, '/')) return 0;
    if (strlen(path) + strlen(ref) + 2 > PATH_BYTES) return 0;
    strcat(path, "/");
    strcat(path, ref);
    if (access(path, F_OK) != 0) return 0;
    strcpy(folder, path);
    return 1;
}

/* A folder or file of that path: 1 found, 0 not, -1 no memory to look. */
static int find_path(const char *word, unsigned kinds, kt_model_ref *out) {
    struct stat info;
    char *real = *word ? realpath(word, NULL) : NULL;
    int fits = real && strlen(real) < sizeof out->path && stat(real, &info) == 0;

    if (!real && *word && errno == ENOMEM) return -1;
    if (fits) strcpy(out->path, real);
    free(real);
    if (!fits) return 0;
    out->kind = S_ISDIR(info.st_mode) ? KT_MODEL_FOLDER : KT_MODEL_FILE;
    if (out->kind == KT_MODEL_FOLDER && !has_file(out->path, "config.json") &&
        has_file(out->path, "snapshots"))
        enter_cache(out->path);
    name_folder(out->path, out->name, sizeof out->name);
    return (kinds & 1u << out->kind) != 0;
}

/* ---- bundled names ---- */

typedef struct bundled {
    char name[NAME_BYTES];
    kt_model_kind kind;
} bundled;

typedef struct name_list {
    int n;
    bundled at[MAX_NAMES];
} name_list;

static void add_name(name_list *l, const char *name, size_t size, kt_model_kind kind) {
    if (l->n == MAX_NAMES || size == 0 || size >= NAME_BYTES) return;
    for (int i = 0; i < l->n; i++)
        if (strlen(l->at[i].name) == size && strncasecmp(l->at[i].name, name, size) == 0) return;
    snprintf(l->at[l->n].name, NAME_BYTES, "%.*s", (int)size, name);
    l->at[l->n++].kind = kind;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const bundled *)a)->name, ((const bundled *)b)->name);
}

/* Models first: a workload of the same name is the same model without weights. */
static void list_names(name_list *l, unsigned kinds) {
    const struct dirent *entry;
    DIR *folder = kinds & 1u << KT_MODEL_FOLDER ? opendir(MODELS) : NULL;

    l->n = 0;
    while (folder && (entry = readdir(folder))) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", MODELS, entry->d_name);
        if (entry->d_name[0] != '.' && has_file(path, "config.json"))
            add_name(l, entry->d_name, strlen(entry->d_name), KT_MODEL_FOLDER);
    }
    if (folder) closedir(folder);
    folder = kinds & 1u << KT_MODEL_WORKLOAD ? opendir(WORKLOADS) : NULL;
    while (folder && (entry = readdir(folder))) {
        size_t size = strlen(entry->d_name);
        if (size > 5 && strcmp(entry->d_name + size - 5, ".json") == 0)
            add_name(l, entry->d_name, size - 5, KT_MODEL_WORKLOAD);
    }
    if (folder) closedir(folder);
    qsort(l->at, (size_t)l->n, sizeof *l->at, by_name);
}

int kt_model_list_shapes(char (*names)[64], int most) {
    name_list l;
    int n = 0;

    _Static_assert(NAME_BYTES == 64, "as the header says");
    list_names(&l, 1u << KT_MODEL_WORKLOAD);
    for (; n < l.n && n < most; n++) memcpy(names[n], l.at[n].name, NAME_BYTES);
    return n;
}

/* Insertions, deletions and changes that make one of the other, in any case. */
static int distance(const char *a, const char *b) {
    int row[NAME_BYTES + 1], n = (int)strlen(b);

    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]);
            int best = corner + !same;
            corner = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

/* " Did you mean X?", when there is something near. A word may lack the end of a name
 * for nothing. */
static void propose(const name_list *l, const char *word, char *out, size_t bytes) {
    int best = -1, least = (int)strlen(word) / 3 + 1;

    out[0] = '\0';
    for (int i = 0; i < l->n && *word && strlen(word) < NAME_BYTES; i++) {
        char start[NAME_BYTES];
        int whole = distance(word, l->at[i].name), part;
        snprintf(start, sizeof start, "%.*s", (int)strlen(word), l->at[i].name);
        part = distance(word, start);
        if (part < whole) whole = part;
        if (whole < least) least = whole, best = i;
    }
    if (best >= 0) snprintf(out, bytes, "; did you mean %s?", l->at[best].name);
}

static kt_status take_name(const name_list *l, int i, kt_model_ref *out) {
    out->kind = l->at[i].kind;
    snprintf(out->name, sizeof out->name, "%s", l->at[i].name);
    snprintf(out->path, sizeof out->path, "%s/%s%s",
             out->kind == KT_MODEL_FOLDER ? MODELS : WORKLOADS, l->at[i].name,
             out->kind == KT_MODEL_FOLDER ? "" : ".json");
    return KT_OK;
}

static kt_status find_name(const char *word, unsigned kinds, kt_model_ref *out, kt_err *err) {
    name_list l;
    char hint[120], several[200] = "";
    size_t size = strlen(word), used = 0;
    int n_found = 0, found = 0;

    list_names(&l, kinds);
    for (int i = 0; i < l.n && size > 0; i++) {
        if (strncasecmp(l.at[i].name, word, size) != 0) continue;
        if (!l.at[i].name[size]) return take_name(&l, i, out);
        found = i;
        if (used < sizeof several)
            used += (size_t)snprintf(several + used, sizeof several - used, "%s%s",
                                     n_found ? ", " : "", l.at[i].name);
        n_found++;
    }
    if (n_found == 1) return take_name(&l, found, out);
    if (n_found > 1)
        return kt_fail(err, KT_E_NOT_FOUND, "model '%.60s': more than one begins so: %s", word,
                       several);
    propose(&l, word, hint, sizeof hint);
    return kt_fail(err, KT_E_NOT_FOUND,
                   "model '%.200s': no such folder, and no bundled model or workload of that "
                   "name%s (`kttune list models` shows them)",
                   word, hint);
}

kt_status kt_model_resolve(const char *word, unsigned kinds, kt_model_ref *out, kt_err *err) {
    kt_model_ref found = {0};
    int is_path = find_path(word, kinds, &found);

    memset(out, 0, sizeof *out);
    if (is_path < 0)
        return kt_fail(err, KT_E_NOMEM, "model '%.300s': no memory for its path", word);
    if (is_path &&
        (found.kind == KT_MODEL_FILE || strchr(word, '/') || has_file(found.path, "config.json"))) {
        *out = found;
        return KT_OK;
    }
    if (!strchr(word, '/') && find_name(word, kinds, out, is_path ? NULL : err) == KT_OK)
        return KT_OK;
    if (is_path) {
        *out = found;
        return KT_OK;
    }
    if (!strchr(word, '/')) return KT_E_NOT_FOUND;
    return kt_fail(err, KT_E_NOT_FOUND,
                   "model '%.300s': no such folder (`kttune list models` shows bundled names)",
                   word);
}
