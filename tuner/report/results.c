/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/report/results.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buffer.h"
#include "base/err.h"
#include "base/json.h"

enum { PATH_BYTES = 1024, README_BYTES = 4096 };
static const size_t max_copy_bytes = (size_t)1 << 30;

static kt_status make_folder(const char *path, kt_err *err) {
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return KT_OK;
    return kt_fail(err, KT_E_IO, "%s: %s", path, strerror(errno));
}

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static kt_status copy_into(const char *folder, const char *path, kt_err *err) {
    char to[PATH_BYTES], *data = NULL;
    size_t size = 0;
    kt_status st;

    if (snprintf(to, sizeof to, "%s/%s", folder, last_part(path)) >= (int)sizeof to)
        return kt_fail(err, KT_E_INVALID, "%s: path too long", folder);
    KT_TRY(kt_file_read(path, max_copy_bytes, &data, &size, err));
    st = kt_file_write(to, data, size, err);
    free(data);
    return st;
}

static kt_status write_machine(const char *folder, const kt_topology *t, const kt_fingerprint *f,
                               kt_err *err) {
    char path[PATH_BYTES];
    kt_json_writer w = {.indent = 2};
    const char *text;
    size_t size;
    kt_status st;

    snprintf(path, sizeof path, "%s/machine.json", folder);
    kt_json_begin_object(&w);
    kt_json_key(&w, "class");
    kt_json_put_string(&w, last_part(folder));
    kt_json_key(&w, "cpu");
    kt_json_put_string(&w, t->cpu.brand);
    kt_json_key(&w, "kernel");
    kt_json_put_string(&w, t->kernel);
    kt_json_key(&w, "huge_pages");
    kt_json_put_string(&w, t->thp);
    kt_json_key(&w, "fingerprint");
    kt_fingerprint_write(f, &w);
    kt_json_end_object(&w);
    text = kt_json_writer_text(&w, &size);
    st = text ? kt_file_write(path, text, size, err)
              : kt_fail(err, KT_E_NOMEM, "%s: no memory", path);
    kt_json_writer_deinit(&w);
    return st;
}

/* The model as a stranger can name it: the last part of a path says nothing of this machine. */
static kt_status write_readme(const char *folder, const char *model, const char *format,
                              const char *table, const char *journal, const kt_fingerprint *f,
                              kt_err *err) {
    char path[PATH_BYTES], text[README_BYTES];
    const kt_ceilings *c = &f->ceilings;
    int size;

    snprintf(path, sizeof path, "%s/README.md", folder);
    size = snprintf(
        text, sizeof text,
        "# %s\n\n"
        "%s family %d model %d stepping %d, %d usable cores, %.0f GiB.\n"
        "Read stream %.1f GB/s on one thread, %.1f on %d (4 KiB pages: %.1f); A/A noise p95 %.2f "
        "%%.\n\n"
        "| file | what |\n|---|---|\n"
        "| %s | the dispatch table |\n"
        "| %s | every gate, sample and decision behind it, with a checksum per line |\n"
        "| machine.json | the machine and its measured ceilings |\n\n"
        "Repeat:\n\n```\nkttune probe\nkttune run --model %s --format %s --fresh --results "
        "results\n```\n",
        last_part(folder), f->vendor, f->family, f->model, f->stepping, f->usable_cores,
        (double)f->memory_bytes / 1073741824.0, c->stream_gbs_1t, c->stream_gbs_all, c->threads_all,
        c->stream_small_gbs_1t, 100 * c->aa_noise_p95, last_part(table), last_part(journal),
        last_part(model), format);
    if (size < 0 || size >= (int)sizeof text)
        return kt_fail(err, KT_E_INTERNAL, "%s: text too long", path);
    return kt_file_write(path, text, (size_t)size, err);
}

kt_status kt_results_write(const char *folder, const char *class_name, const char *model,
                           const char *format, const char *table_path, const char *journal_path,
                           const kt_topology *topology, const kt_fingerprint *machine,
                           kt_err *err) {
    char into[PATH_BYTES / 2];

    if (snprintf(into, sizeof into, "%s/%s", folder, class_name) >= (int)sizeof into)
        return kt_fail(err, KT_E_INVALID, "%s: path too long", folder);
    KT_TRY(make_folder(folder, err));
    KT_TRY(make_folder(into, err));
    KT_TRY(copy_into(into, table_path, err));
    KT_TRY(copy_into(into, journal_path, err));
    KT_TRY(write_machine(into, topology, machine, err));
    return write_readme(into, model, format, table_path, journal_path, machine, err);
}
