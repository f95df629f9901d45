/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/store/machine_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "dispatch/plan/plan.h"

static const char *pages_name(kt_pages pages) {
    static const char *const names[] = {"4 KiB", "2 MiB advised", "2 MiB reserved"};
    return (size_t)pages < 3 ? names[pages] : "unknown";
}

static void put_topology(kt_json_writer *w, const kt_topology *t) {
    kt_json_key(w, "topology");
    kt_json_begin_object(w);
    kt_json_add_string(w, "cpu", t->cpu.brand);
    kt_json_add_int(w, "packages", t->packages);
    kt_json_add_int(w, "cores", t->cores);
    kt_json_add_int(w, "llc_groups", t->llc_groups);
    kt_json_add_int(w, "l2_bytes", (int64_t)t->l2_bytes);
    kt_json_add_int(w, "llc_bytes", (int64_t)t->llc_bytes);
    kt_json_add_bool(w, "hypervisor", t->cpu.hypervisor);
    kt_json_add_string(w, "kernel", t->kernel);
    kt_json_add_string(w, "huge_pages", t->thp);
    kt_json_end_object(w);
}

char *kt_machine_text(const kt_topology *topology, const kt_machine_report *r, size_t *size) {
    kt_json_writer w = {.indent = 2};
    kt_fingerprint f;
    char class_name[64], *copy = NULL;
    const char *text;

    kt_fingerprint_make(topology, &r->ceilings, &f);
    kt_machine_class(&f, class_name, sizeof class_name);
    kt_json_begin_object(&w);
    kt_json_add_string(&w, "class", class_name);
    kt_json_add_string(&w, "identity", topology->cpu.identity);
    kt_json_key(&w, "fingerprint");
    kt_fingerprint_write(&f, &w);
    put_topology(&w, topology);
    kt_json_add_string(&w, "pages", pages_name(r->pages));
    kt_json_add_fixed(&w, "timer_read_ns", r->timer.read_ns, 1);
    kt_json_add_fixed(&w, "timer_step_ns", r->timer.step_ns, 1);
    kt_json_add_int(&w, "stream_prefetch_1t_bytes", r->stream_ahead[0]);
    kt_json_add_int(&w, "stream_prefetch_all_bytes", r->stream_ahead[1]);
    kt_json_key(&w, "read_curve");
    kt_json_begin_array(&w);
    for (int i = 0; i < r->n_points; i++) {
        kt_json_begin_object(&w);
        kt_json_add_int(&w, "bytes", (int64_t)r->curve[i].bytes);
        kt_json_add_fixed(&w, "gbs", r->curve[i].gbs, 2);
        kt_json_end_object(&w);
    }
    kt_json_end_array(&w);
    kt_json_add_fixed(&w, "seconds", r->seconds, 2);
    kt_json_end_object(&w);
    text = kt_json_writer_text(&w, size);
    if (text) copy = malloc(*size + 2);
    if (copy) {
        memcpy(copy, text, *size);
        memcpy(copy + *size, "\n", 2);
        *size += 1;
    }
    kt_json_writer_deinit(&w);
    return copy;
}

kt_status kt_machine_save(const kt_topology *topology, const kt_machine_report *report, char *path,
                          size_t path_bytes, kt_err *err) {
    kt_fingerprint f;
    size_t size = 0;
    char *text;
    kt_status st;

    kt_fingerprint_make(topology, &report->ceilings, &f);
    KT_TRY(kt_machine_path(&f, path, path_bytes, err));
    text = kt_machine_text(topology, report, &size);
    if (!text) return kt_fail(err, KT_E_NOMEM, "%s: no memory for the text", path);
    st = kt_file_write(path, text, size, err);
    free(text);
    return st;
}

static int keep_larger(double before, double *now) {
    if (!(before > *now)) return 0;
    *now = before;
    return 1;
}

int kt_ceilings_keep_best(const kt_ceilings *before, kt_ceilings *now) {
    const double knee = now->cache_knee_bytes;
    int n = 0;

    if (before->stream_gbs_1t > now->stream_gbs_1t && before->cache_knee_bytes > 0)
        now->cache_knee_bytes = before->cache_knee_bytes;
    n += now->cache_knee_bytes != knee;
    n += keep_larger(before->stream_gbs_1t, &now->stream_gbs_1t);
    if (before->threads_all == now->threads_all)
        n += keep_larger(before->stream_gbs_all, &now->stream_gbs_all);
    n += keep_larger(before->stream_small_gbs_1t, &now->stream_small_gbs_1t);
    n += keep_larger(before->peak_scalar_gops, &now->peak_scalar_gops);
    for (int bit = 0; bit < KT_ISA_COUNT; bit++)
        n += keep_larger(before->peak_gops[bit], &now->peak_gops[bit]);
    if (before->aa_noise_p95 > 0 && before->aa_noise_p95 < now->aa_noise_p95) {
        now->aa_noise_p95 = before->aa_noise_p95;
        n++;
    }
    return n;
}

int kt_machine_keep_best(const kt_topology *topology, kt_machine_report *report) {
    kt_ceilings before;

    if (kt_machine_load(topology, &before, NULL) != KT_OK) return 0;
    return kt_ceilings_keep_best(&before, &report->ceilings);
}
