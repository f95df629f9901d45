/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tuner/report/results.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/err.h"
#include "base/json.h"
#include "dispatch/table/table.h"
#include "tuner/report/export.h"
#include "tuner/report/results_merge.h"
#include "base/sha256.h"
#include "tuner/store/journal.h"
#include "tuner/store/machine_file.h"

enum { PATH_BYTES = 1024, MAX_TABLES = 256 };
static const size_t max_copy_bytes = (size_t)1 << 30;
static const char table_end[] = ".kttable.json";

static kt_status make_folder(const char *path, kt_err *err) {
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return KT_OK;
    return kt_fail(err, KT_E_IO, "%s: %s", path, strerror(errno));
}

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* A file that lies there already stays as it is. */
static kt_status copy_into(const char *folder, const char *path, kt_err *err) {
    char to[PATH_BYTES], *data = NULL;
    struct stat from_stat, to_stat;
    size_t size = 0;
    kt_status st;

    if (snprintf(to, sizeof to, "%s/%s", folder, last_part(path)) >= (int)sizeof to)
        return kt_fail(err, KT_E_INVALID, "%s: path too long", folder);
    if (stat(path, &from_stat) == 0 && stat(to, &to_stat) == 0 &&
        from_stat.st_ino == to_stat.st_ino && from_stat.st_dev == to_stat.st_dev)
        return KT_OK;
    KT_TRY(kt_file_read(path, max_copy_bytes, &data, &size, err));
    st = kt_file_write(to, data, size, err);
    free(data);
    return st;
}

/* --- exchange formats and checksums --- */

static kt_status export_into(const char *path, const kt_exporter *exporter,
                             const kt_export_input *in, kt_err *err) {
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    kt_status st;

    if (!to) return kt_fail(err, KT_E_NOMEM, "%s: no memory for the text", path);
    st = exporter->write(in, to, err);
    if (fclose(to) != 0 && st == KT_OK)
        st = kt_fail(err, KT_E_NOMEM, "%s: no memory for the text", path);
    if (st == KT_OK) st = kt_file_write(path, text, size, err);
    free(text);
    return st;
}

/* <stem>.t1.json beside the copies. Samples in T4 are as large as the journal that gives them at
 * any time, and are not filed. */
static kt_status write_exchange(const char *folder, const char *table_path,
                                const char *journal_path, kt_err *err) {
    int stem = (int)(strlen(last_part(table_path)) - strlen(table_end));
    kt_table *table = NULL;
    kt_journal *journal = NULL;
    char path[PATH_BYTES];
    kt_status st = kt_table_load(table_path, &table, err);

    if (st == KT_OK) st = kt_journal_read(journal_path, &journal, err);
    if (st == KT_OK && snprintf(path, sizeof path, "%s/%.*s.t1.json", folder, stem,
                                last_part(table_path)) >= (int)sizeof path)
        st = kt_fail(err, KT_E_INVALID, "%s: path too long", folder);
    if (st == KT_OK) {
        const kt_export_input in = {.table = table, .journal = journal};
        st = export_into(path, &kt_export_t1, &in, err);
    }
    kt_journal_close(journal);
    kt_table_destroy(table);
    return st;
}

static bool ends_with(const char *name, const char *end) {
    size_t size = strlen(name), tail = strlen(end);
    return size > tail && strcmp(name + size - tail, end) == 0;
}

/* Every file but the sums themselves: also what people add beside the tuner's, once they file again. */
static int summed_only(const struct dirent *e) {
    return e->d_name[0] != '.' && strcmp(e->d_name, "SHA256SUMS") != 0 &&
           !ends_with(e->d_name, ".tmp");
}

static int by_file_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name); /* not by locale: the same everywhere */
}

/* In the form that `sha256sum -c SHA256SUMS` reads. */
static kt_status write_sums(const char *folder, kt_err *err) {
    struct dirent **list = NULL;
    int n = scandir(folder, &list, summed_only, by_file_name);
    char path[PATH_BYTES], hex[65], *text = NULL;
    size_t size = 0;
    FILE *to = n >= 0 ? open_memstream(&text, &size) : NULL;
    kt_status st = to ? KT_OK : kt_fail(err, KT_E_IO, "%s: cannot be listed", folder);

    for (int i = 0; i < n; i++) {
        char *data = NULL;
        size_t bytes = 0;
        if (snprintf(path, sizeof path, "%s/%s", folder, list[i]->d_name) >= (int)sizeof path)
            st = kt_fail(err, KT_E_INVALID, "%s: path too long", folder);
        if (st == KT_OK) st = kt_file_read(path, max_copy_bytes, &data, &bytes, err);
        if (st == KT_OK) {
            kt_sha256(data, bytes, hex);
            fprintf(to, "%s  %s\n", hex, list[i]->d_name);
        }
        free(data);
        free(list[i]);
    }
    free(list);
    if (to && fclose(to) != 0) st = kt_fail(err, KT_E_NOMEM, "%s: no memory", folder);
    if (snprintf(path, sizeof path, "%s/SHA256SUMS", folder) >= (int)sizeof path)
        st = kt_fail(err, KT_E_INVALID, "%s: path too long", folder);
    if (st == KT_OK) st = kt_file_write(path, text, size, err);
    free(text);
    return st;
}

/* --- README.md --- */

enum { MOST_COMMANDS = 16 };

/* What made the table: the commands of the journal's sessions, each once; none where there is no
 * journal. */
static kt_status put_commands(FILE *to, const char *folder, const char *stem, kt_err *err) {
    const char *known[MOST_COMMANDS];
    char path[PATH_BYTES];
    kt_journal *j = NULL;
    kt_status st;
    int n = 0;

    if (snprintf(path, sizeof path, "%s/%s.journal.jsonl", folder, stem) >= (int)sizeof path)
        return KT_OK;
    st = kt_journal_read(path, &j, err);
    if (st != KT_OK) return st == KT_E_NOMEM ? st : KT_OK;
    for (size_t i = 0; i < kt_journal_count(j) && n < MOST_COMMANDS; i++) {
        const char *command = kt_json_string(kt_json_get(kt_journal_at(j, i), "command"), NULL);
        int k = 0;
        while (command && k < n && strcmp(known[k], command) != 0) k++;
        if (!command || k < n) continue;
        known[n++] = command;
        fprintf(to, "%s%s --fresh --results results\n", n == 1 ? "\n```\n" : "", command);
    }
    if (n) fputs("```\n", to);
    kt_journal_close(j);
    return KT_OK;
}

/* A table that cannot be read is left out; only memory can be lacking. */
static kt_status describe_table(FILE *to, const char *folder, const char *stem, kt_err *err) {
    char path[PATH_BYTES];
    kt_table *t = NULL;
    double log_gain = 0;
    size_t tuned = 0, undecided = 0;
    kt_status st;

    if (snprintf(path, sizeof path, "%s/%s%s", folder, stem, table_end) >= (int)sizeof path)
        return KT_OK;
    st = kt_table_load(path, &t, err);
    if (st != KT_OK) return st == KT_E_NOMEM ? st : KT_OK;
    for (size_t i = 0; i < t->n_rows; i++) {
        undecided += kt_row_is_undecided(&t->rows[i]);
        if (strcmp(kt_row_status(&t->rows[i]), "tuned") != 0) continue;
        log_gain += log(t->rows[i].default_ns / t->rows[i].time_ns);
        tuned++;
    }
    fprintf(to,
            "\n## %s\n\n%zu cells on %s (%s): %zu tuned, %+.1f %% geomean over the default; "
            "%zu undecided (half their interval is over %.0f %%); the others kept the default.\n"
            "`%s%s` is the table, `%s.journal.jsonl.gz` (for `zcat`) every gate, sample and "
            "decision behind it; `%s.t1.json` has its parameters in the exchange format T1, and "
            "`kttune export results/%s/%s%s --to t4` prints its samples in T4.\n",
            t->workload, t->n_rows, t->created, t->build, tuned,
            tuned ? 100 * expm1(log_gain / (double)tuned) : 0, undecided, 100 * KT_ROW_WIDE, stem,
            table_end, stem, stem, last_part(folder), stem, table_end);
    st = put_commands(to, folder, stem, err);
    kt_table_destroy(t);
    return st;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Stems of the folder's tables, sorted; owned by the caller. */
static size_t find_tables(const char *folder, char *stems[MAX_TABLES]) {
    DIR *d = opendir(folder);
    struct dirent *e;
    size_t n = 0;

    while (d && n < MAX_TABLES && (e = readdir(d))) {
        size_t size = strlen(e->d_name), end = sizeof table_end - 1;
        if (size <= end || strcmp(e->d_name + size - end, table_end) != 0) continue;
        stems[n] = strndup(e->d_name, size - end);
        if (stems[n]) n++;
    }
    if (d) closedir(d);
    qsort(stems, n, sizeof *stems, by_name);
    return n;
}

/* Files that people add to a folder of results. */
static const struct {
    const char *file, *what;
} by_hand[] = {
    {"bench-line.txt", "`bench-line.txt` and `bench-line.json`: `kttune bench --suite line` and "
                       "the same with `--json`."},
    {"bench-cpu.txt", "`bench-cpu.txt`: `kttune bench --suite cpu`."},
    {"bench-cpu.json", "`bench-cpu.json`: the same run with its samples (`--out`)."},
    {"bench-gpu.txt", "`bench-gpu.txt`: `kttune bench --suite gpu`."},
    {"bench-gpu.json", "`bench-gpu.json`: the same run (`--out`)."},
    {"gpu-report.txt", "`gpu-*.txt` and `gpu-*.json`: `tests/gpu/run`, what a GPU was checked for "
                       "and how it was measured."},
    {"kt-kernel-1.json", "`kt-kernel-1.json` and `kt-kernel-2.json`: `tests/sglang/run`, kt-kernel "
                         "with one thread and with two."},
    {"llama.json", "`llama*.json`: `tests/llama/run`, llama.cpp and ik_llama.cpp on the same "
                   "GGUF files."},
    {"selfcheck.txt", "`selfcheck.txt`: `kttune selfcheck`."},
    {"selfcheck.json", "`selfcheck.json`: the same run (`--out`)."},
};

static void describe_machine(FILE *to, const char *folder, const kt_fingerprint *f) {
    const kt_ceilings *c = &f->ceilings;
    char isa[160];

    fprintf(to,
            "# %s\n\nWritten by `kttune run --results`.\n\n"
            "%s family %d model %d stepping %d (%s), %d usable cores, %.0f GiB.\n"
            "Read stream %.1f GB/s on one thread, %.1f on %d (4 KiB pages: %.1f); A/A noise p95 "
            "%.2f %%.\n`machine.json` has the whole description (`kttune probe`), `SHA256SUMS` the "
            "checksums (`sha256sum -c SHA256SUMS`).\n",
            last_part(folder), f->vendor, f->family, f->model, f->stepping,
            kt_isa_format(f->isa, isa, sizeof isa), f->usable_cores,
            (double)f->memory_bytes / 1073741824.0, c->stream_gbs_1t, c->stream_gbs_all,
            c->threads_all, c->stream_small_gbs_1t, 100 * c->aa_noise_p95);
    for (size_t i = 0; i < sizeof by_hand / sizeof *by_hand; i++) {
        char path[PATH_BYTES];
        if (snprintf(path, sizeof path, "%s/%s", folder, by_hand[i].file) < (int)sizeof path &&
            access(path, R_OK) == 0)
            fprintf(to, "%s\n", by_hand[i].what);
    }
}

/* A machine.json, or NULL where there is none that can be read; only memory can be lacking. */
static kt_status read_description(const char *path, kt_json_doc **doc, kt_err *err) {
    char *text = NULL;
    size_t size = 0;
    kt_status st = kt_file_read(path, 1 << 24, &text, &size, err);

    *doc = NULL;
    if (st == KT_OK) st = kt_json_parse(text, size, NULL, doc, err);
    free(text);
    return st == KT_E_NOMEM ? st : KT_OK;
}

/* As machine.json of the folder has it; unchanged when that cannot be read. */
static kt_status read_machine(const char *folder, kt_fingerprint *f, kt_err *err) {
    char path[PATH_BYTES];
    kt_json_doc *doc;
    kt_fingerprint found;

    if (snprintf(path, sizeof path, "%s/machine.json", folder) >= (int)sizeof path) return KT_OK;
    KT_TRY(read_description(path, &doc, err));
    if (doc && kt_fingerprint_read(kt_json_get(kt_json_root(doc), "fingerprint"), path, &found,
                                   NULL) == KT_OK)
        *f = found;
    kt_json_destroy(doc);
    return KT_OK;
}

static kt_status write_readme(const char *folder, const kt_fingerprint *f, kt_err *err) {
    char path[PATH_BYTES], *stems[MAX_TABLES], *text = NULL;
    size_t size = 0, n = find_tables(folder, stems);
    FILE *to = open_memstream(&text, &size);
    kt_fingerprint described = *f;
    kt_status st = read_machine(folder, &described, err);

    snprintf(path, sizeof path, "%s/README.md", folder);
    if (to) {
        describe_machine(to, folder, &described);
        for (size_t i = 0; i < n && st == KT_OK; i++)
            st = describe_table(to, folder, stems[i], err);
    }
    if ((!to || fclose(to) != 0) && st == KT_OK)
        st = kt_fail(err, KT_E_NOMEM, "%s: no memory for the text", path);
    if (st == KT_OK) st = kt_file_write(path, text, size, err);
    for (size_t i = 0; i < n; i++) free(stems[i]);
    free(text);
    return st;
}

/* A table from elsewhere comes without its machine's description, which may lie there already. */
static bool has_machine(const char *folder) {
    char path[PATH_BYTES];
    return snprintf(path, sizeof path, "%s/machine.json", folder) < (int)sizeof path &&
           access(path, R_OK) == 0;
}

/* Of the noise self-test in a machine.json; infinite where there is none, or nought, which is no
 * measurement. */
static kt_status read_noise(const char *path, double *out, kt_err *err) {
    kt_json_doc *doc;
    double noise;

    KT_TRY(read_description(path, &doc, err));
    noise = kt_json_double(
        kt_json_get(kt_json_get(kt_json_get(kt_json_root(doc), "fingerprint"), "ceilings"),
                    "aa_noise_p95"),
        0);
    kt_json_destroy(doc);
    *out = noise > 0 ? noise : INFINITY;
    return KT_OK;
}

/* Of one class's descriptions the one measured with the least noise says most about it. */
static kt_status is_quieter(const char *description, const char *folder, bool *out, kt_err *err) {
    char path[PATH_BYTES];
    double ours, theirs;

    *out = false;
    if (access(description, R_OK) != 0 ||
        snprintf(path, sizeof path, "%s/machine.json", folder) >= (int)sizeof path)
        return KT_OK;
    KT_TRY(read_noise(description, &ours, err));
    KT_TRY(read_noise(path, &theirs, err));
    *out = ours < theirs;
    return KT_OK;
}

kt_status kt_results_write(const char *folder, const char *table_path, const char *journal_path,
                           const kt_fingerprint *machine, kt_err *err) {
    char into[PATH_BYTES / 2], description[PATH_BYTES], class_name[64];
    char table[PATH_BYTES], journal[PATH_BYTES];
    bool replaces;

    kt_machine_class(machine, class_name, sizeof class_name);
    if (snprintf(into, sizeof into, "%s/%s", folder, class_name) >= (int)sizeof into)
        return kt_fail(err, KT_E_INVALID, "%s: path too long", folder);
    KT_TRY(make_folder(folder, err));
    KT_TRY(make_folder(into, err));
    if (snprintf(table, sizeof table, "%s/%s", into, last_part(table_path)) >= (int)sizeof table ||
        snprintf(journal, sizeof journal, "%s/%s", into, last_part(journal_path)) >=
            (int)sizeof journal)
        return kt_fail(err, KT_E_INVALID, "%s: path too long", into);
    KT_TRY(kt_results_merge_table(table_path, table, err));
    KT_TRY(kt_results_merge_journal(journal_path, journal, err));
    KT_TRY(kt_machine_path(machine, description, sizeof description, err));
    KT_TRY(is_quieter(description, into, &replaces, err));
    if (!has_machine(into) || replaces) KT_TRY(copy_into(into, description, err));
    KT_TRY(write_exchange(into, table, journal, err));
    KT_TRY(write_readme(into, machine, err));
    return write_sums(into, err);
}
