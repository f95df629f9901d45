/* kttune probe: what this machine can do. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "tuner/cli/tune_options.h"
#include "tuner/cli/verb.h"
#include "tuner/store/machine_file.h"

static void print_report(const kt_topology *t, const kt_machine_report *r, int n_kept,
                         const char *path) {
    const kt_ceilings *c = &r->ceilings;
    kt_fingerprint f;
    char class_name[64], isa[160];

    kt_fingerprint_make(t, c, &f);
    kt_machine_class(&f, class_name, sizeof class_name);
    printf("machine   %s  (%s family %d model %d stepping %d%s)\n", class_name, f.vendor, f.family,
           f.model, f.stepping, t->cpu.hypervisor ? ", virtual" : "");
    printf("named     %s, %s\n", t->cpu.microarch, t->cpu.identity);
    printf("isa       %s\n", kt_isa_format(f.isa, isa, sizeof isa));
    printf("cores     %d usable of %d, %d NUMA node%s, %d LLC group%s\n", t->usable_cores, t->cores,
           t->numa_nodes, t->numa_nodes == 1 ? "" : "s", t->llc_groups,
           t->llc_groups == 1 ? "" : "s");
    printf("caches    L1d %zu KiB  L2 %zu KiB  LLC %zu MiB, memory from %.0f MiB on (measured)\n",
           t->cpu.l1d_bytes >> 10, t->l2_bytes >> 10, t->llc_bytes >> 20,
           c->cache_knee_bytes / 1048576.0);
    printf("read      ");
    for (int i = 0; i < r->n_points; i++)
        printf("%s%zu MiB %.0f", i ? ", " : "", r->curve[i].bytes >> 20, r->curve[i].gbs);
    printf(" GB/s\nmemory    1 thread %.1f GB/s, %d threads %.1f GB/s; 4 KiB pages %.1f GB/s\n",
           c->stream_gbs_1t, c->threads_all, c->stream_gbs_all, c->stream_small_gbs_1t);
    printf("          each with its best prefetch: %d bytes ahead, with all threads %d\n",
           (int)r->stream_ahead[0], (int)r->stream_ahead[1]);
    printf("peak      scalar %.1f Gop/s", c->peak_scalar_gops);
    for (int bit = 0; bit < KT_ISA_COUNT; bit++)
        if (c->peak_gops[bit] > 0) printf(", %s %.0f", kt_isa_name(bit), c->peak_gops[bit]);
    printf(" (one core)\ntimer     %.0f ns per read, step %.0f ns\n", r->timer.read_ns,
           r->timer.step_ns);
    printf("noise     A/A p95 %.2f %%: smaller effects are not effects here\n",
           100 * c->aa_noise_p95);
    if (r->pages == KT_PAGES_SMALL)
        printf("advice    huge pages are off (transparent_hugepage = %s): set it to madvise\n",
               t->thp);
    if (n_kept)
        printf("kept      %d better figure%s of an earlier probe of this machine; --fresh forgets "
               "it\n",
               n_kept, n_kept == 1 ? "" : "s");
    printf("wrote     %s (%.1f s)\n", path, r->seconds);
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    bool quick = false, fresh = false, json = false;
    const kt_switch switches[] = {
        {"quick", KT_SWITCH_FLAG, &quick, NULL, "at most 3 s instead of 8"},
        {"fresh", KT_SWITCH_FLAG, &fresh, NULL,
         "keep only this probe; else better figures of an earlier one stay"},
        {"json", KT_SWITCH_FLAG, &json, NULL, "print machine.json"},
    };
    const kt_verb_usage usage = {
        "probe", "",
        "Measure this machine: caches, read bandwidth, peak of each instruction set, noise of an\n"
        "A/A comparison. The result is kept for run, bench and serving; what an earlier probe of "
        "this\n"
        "machine found better stays, since a busy minute only makes figures worse.",
        "  kttune probe --quick --json\n"};
    kt_registry *registry = NULL;
    kt_topology topology;
    kt_machine_report report;
    int n_kept = 0;
    char path[1024];
    kt_err err;
    kt_status st;
    int code = kt_switches_parse(&usage, switches, 3, argc, argv, NULL, 0, NULL);

    (void)context;
    if (code >= 0) return code;
    st = kt_topology_probe(&topology, &err);
    if (st == KT_OK)
        st = kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, topology.cpu.isa,
                                &registry, &err);
    if (st == KT_OK) st = kt_ceilings_measure(registry, &topology, quick, &report, &err);
    kt_registry_destroy(registry);
    if (st != KT_OK) return kt_verb_fail(&err);
    if (!fresh) n_kept = kt_machine_keep_best(&topology, &report);
    st = kt_machine_save(&topology, &report, path, sizeof path, &err);
    if (st != KT_OK) snprintf(path, sizeof path, "nothing");
    if (json) {
        size_t size;
        char *text = kt_machine_text(&topology, &report, &size);
        if (text) fwrite(text, 1, size, stdout);
        free(text);
    } else {
        print_report(&topology, &report, n_kept, path);
    }
    return st == KT_OK ? KT_TUNE_OK : kt_verb_fail(&err);
}

const kt_verb kt_verb_probe = {
    .name = "probe", .summary = "measure this machine's ceilings and noise", .run = run};
