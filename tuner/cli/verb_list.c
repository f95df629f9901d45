/* kttune list: what there is to choose from. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/err.h"
#include "base/json.h"
#include "tuner/cli/list_variants.h"
#include "tuner/cli/tune_options.h"
#include "tuner/cli/workbench.h"
#include "tuner/search/strategy.h"
#include "tuner/session/encodings.h"

typedef struct list_options {
    const char *model, *workload, *mix, *routing, *format;
    kt_variant_filter filter;
    bool why_invalid, json;
} list_options;

static void finish(kt_json_writer *w) {
    kt_json_end_array(w);
    kt_json_writer_print(w, stdout);
}

static int list_variants(const list_options *o) {
    kt_variant_filter filter = o->filter;
    kt_workbench b = {0};
    kt_err err;
    kt_status st = kt_workbench_init(&b, false, &err);

    if (st == KT_OK) st = kt_list_variants(b.registry, &filter, o->why_invalid, o->json, &err);
    kt_workbench_deinit(&b);
    return st == KT_OK ? KT_TUNE_OK : kt_verb_fail(&err);
}

static int list_matrix(const list_options *o) {
    kt_list_matrix(o->json);
    return KT_TUNE_OK;
}

/* What list cells shows: the list, and where its weights come from. */
typedef struct cells_state {
    kt_workbench bench;
    kt_workload workload;
    kt_cell_list cells;
    kt_plan_cells plans;
    bool has_mix;
} cells_state;

static kt_status gather_cells(const list_options *o, cells_state *s, kt_err *err) {
    int format = kt_serving_format_parse(o->format),
        threads[2] = {1, s->bench.topology.usable_cores};
    int n = threads[1] > 1 ? 2 : 1;
    kt_workload_request request = {o->workload,
                                   o->workload ? o->model
                                   : o->model  ? o->model
                                               : "tiny-moe",
                                   o->mix, o->routing};

    if (format < 0)
        return kt_fail(err, KT_E_INVALID, "--format '%s': expected native, bf16, int8 or int4",
                       o->format);
    KT_TRY(kt_workload_find(&request, &s->workload, err));
    s->has_mix = o->workload || o->mix || o->routing;
    if (!s->has_mix)
        return kt_cells_of_shapes(&s->workload.shapes, (kt_serving_format)format, KT_PROFILE_FULL,
                                  threads, n, &s->cells, err);
    if (s->workload.n_threads > 0)
        return kt_cells_of_workload(&s->workload, (kt_serving_format)format, KT_PROFILE_FULL,
                                    s->workload.threads, s->workload.n_threads, &s->cells, err);
    return kt_cells_of_workload(&s->workload, (kt_serving_format)format, KT_PROFILE_FULL, threads,
                                n, &s->cells, err);
}

static kt_status make_cells(const list_options *o, cells_state *s, kt_err *err) {
    KT_TRY(gather_cells(o, s, err));
    kt_plan_cells_of(&s->workload.shapes, (kt_serving_format)kt_serving_format_parse(o->format),
                     KT_PROFILE_FULL, s->bench.topology.usable_cores, &s->plans);
    return kt_take_encodings(s->bench.registry, &s->bench.machine, NULL, false, &s->cells,
                             &s->plans, err);
}

static void show_origin(const cells_state *s) {
    char routing[KT_ROUTING_NAME_BYTES];

    if (!s->has_mix) {
        printf(
            "weights: half decode, half prompts, every bucket of a band alike (no --workload)\n");
        return;
    }
    printf("weights: %.0f %% by mix '%s', routing %s; the rest over all buckets\n",
           100 * KT_MIX_SHARE, s->workload.mix.name,
           kt_routing_name(&s->workload.routing, routing, sizeof routing));
    for (int i = 0; i < s->workload.mix.n; i++)
        printf("  %4.1f %% of the time in steps of %lld tokens\n",
               100 * s->workload.mix.step[i].share, (long long)s->workload.mix.step[i].tokens);
}

static void show_cell(const cells_state *s, const kt_tune_cell *c, kt_json_writer *w) {
    char key[KT_CELL_KEY_BYTES], routing[KT_ROUTING_NAME_BYTES];

    kt_cell_key(&c->problem, c->threads, key, sizeof key);
    if (!w) {
        printf("%-12s %-58s weight %.5f", c->role, key, c->weight);
        if (s->has_mix) printf("  %.5f by the mix", c->mix_weight);
        printf("\n");
        return;
    }
    kt_json_begin_object(w);
    kt_json_add_string(w, "role", c->role);
    kt_json_add_string(w, "cell", key);
    kt_json_add_fixed(w, "weight", c->weight, 6);
    if (s->has_mix) {
        kt_json_add_fixed(w, "mix_weight", c->mix_weight, 6);
        kt_json_add_string(w, "mix", s->workload.mix.name);
        kt_json_add_string(w, "routing",
                           kt_routing_name(&s->workload.routing, routing, sizeof routing));
    }
    kt_json_add_string(w, "numa", "local");
    kt_json_add_string(w, "cache", kt_cache_state_name(s->workload.cache));
    kt_json_end_object(w);
}

/* Decisions about layers and steps, with those that this machine cannot make. */
static void show_plan_cells(const cells_state *s, kt_json_writer *w) {
    for (int i = 0; i < s->plans.n; i++) {
        const kt_plan_cell *c = &s->plans.list[i];
        char key[KT_PLAN_KEY_BYTES];
        kt_plan_cell_key(c, key, sizeof key);
        if (!w) {
            printf("%-12s %s\n", "plan", key);
            if (c->refused) {
                printf("%-15srefused: ", "");
                kt_print_words(c->refused, strlen(c->refused), 24, 24);
            }
            continue;
        }
        kt_json_begin_object(w);
        kt_json_add_string(w, "role", "plan");
        kt_json_add_string(w, "cell", key);
        kt_json_add_string(w, "refused", c->refused ? c->refused : "");
        kt_json_end_object(w);
    }
}

static int list_cells(const list_options *o) {
    cells_state s = {0};
    kt_json_writer w = {.indent = 2};
    kt_err err;
    kt_status st = kt_workbench_init(&s.bench, false, &err);

    if (st == KT_OK) st = make_cells(o, &s, &err);
    if (st == KT_OK && o->json) kt_json_begin_array(&w);
    if (st == KT_OK && !o->json) show_origin(&s);
    for (size_t i = 0; st == KT_OK && i < s.cells.n; i++)
        show_cell(&s, &s.cells.cells[i], o->json ? &w : NULL);
    if (st == KT_OK) show_plan_cells(&s, o->json ? &w : NULL);
    if (st == KT_OK && o->json) finish(&w);
    kt_cell_list_deinit(&s.cells);
    kt_workload_deinit(&s.workload);
    kt_workbench_deinit(&s.bench);
    return st == KT_OK ? KT_TUNE_OK : kt_verb_fail(&err);
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names that --model takes besides folders: bundled models, then workloads that are not the same. */
static int list_models(const list_options *o) {
    static const char *const folders[] = {KT_SOURCE_DIR "/datasets/models",
                                          KT_SOURCE_DIR "/datasets/workloads"};
    char *names[256];
    size_t n = 0;
    kt_json_writer w = {.indent = 2};
    kt_err err;

    for (int f = 0; f < 2; f++) {
        DIR *d = opendir(folders[f]);
        struct dirent *e;
        if (!d) {
            kt_fail(
                &err, KT_E_NOT_FOUND,
                "%s: %s; bundled models are looked for in the source tree that this program was "
                "built from: has it moved? --model takes any model's folder",
                folders[f], strerror(errno));
            for (size_t i = 0; i < n; i++) free(names[i]);
            return kt_verb_fail(&err);
        }
        while ((e = readdir(d)) && n < sizeof names / sizeof *names) {
            char *dot = strstr(e->d_name, ".json");
            kt_shapes shapes;
            if (e->d_name[0] == '.' || (f == 1 && !dot)) continue;
            if (dot) *dot = '\0';
            if (kt_shapes_find(e->d_name, &shapes, NULL, 0, NULL) == KT_OK &&
                (names[n] = strdup(e->d_name)))
                n++;
        }
        closedir(d);
    }
    qsort(names, n, sizeof *names, by_name);
    if (o->json) kt_json_begin_array(&w);
    for (size_t i = 0; i < n; i++) {
        kt_shapes s;
        if (i > 0 && strcmp(names[i], names[i - 1]) == 0) continue;
        if (kt_shapes_find(names[i], &s, NULL, 0, NULL) != KT_OK) continue;
        if (o->json)
            kt_json_put_string(&w, names[i]);
        else
            printf("%-22s hidden %lld, experts %lld/%lld of %lld, %lld layers, native %s\n",
                   names[i], (long long)s.hidden, (long long)s.experts, (long long)s.topk,
                   (long long)s.intermediate, (long long)s.layers, kt_weight_format_name(s.native));
    }
    if (o->json) finish(&w);
    for (size_t i = 0; i < n; i++) free(names[i]);
    return KT_TUNE_OK;
}

/* Tables of a folder with what they hold; another machine's are listed as such. */
static void show_tables(const char *folder, const kt_workbench *b, kt_json_writer *w) {
    static const char *const match_names[] = {"same", "stale", "another machine's"};
    static const char table_end[] = ".kttable.json";
    DIR *d = opendir(folder);
    struct dirent *e;

    while (d && (e = readdir(d))) {
        size_t size = strlen(e->d_name), end = sizeof table_end - 1;
        char path[1280];
        kt_table *t = NULL;
        kt_err err = {0};
        const char *match;
        if (size <= end || strcmp(e->d_name + size - end, table_end) != 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (kt_table_load(path, &t, &err) != KT_OK) {
            fprintf(stderr, "kttune: %s\n", err.message);
            continue;
        }
        match = match_names[kt_fingerprint_compare(&t->fingerprint, &b->machine, NULL)];
        if (w) {
            kt_json_begin_object(w);
            kt_json_add_string(w, "path", path);
            kt_json_add_string(w, "workload", t->workload);
            kt_json_add_string(w, "created", t->created);
            kt_json_add_string(w, "match", match);
            kt_json_add_int(w, "cells", (int64_t)t->n_rows);
            kt_json_end_object(w);
        } else {
            printf("%-22s %4zu cells  %s  %s\n  %s\n", t->workload, t->n_rows, t->created, match,
                   path);
        }
        kt_table_destroy(t);
    }
    if (d) closedir(d);
}

/* Where serving looks on this machine: the user's tables first, then those of the source tree. */
static int list_tables(const list_options *o) {
    kt_workbench b = {0};
    kt_json_writer w = {.indent = 2};
    char folder[1024];
    kt_err err;
    kt_status st = kt_workbench_init(&b, false, &err);

    if (st == KT_OK) st = kt_table_default_path(&b.machine, "x", 0, folder, sizeof folder, &err);
    if (st == KT_OK) {
        if (o->json) kt_json_begin_array(&w);
        *strrchr(folder, '/') = '\0';
        show_tables(folder, &b, o->json ? &w : NULL);
        snprintf(folder, sizeof folder, KT_SOURCE_DIR "/results/%s", b.class_name);
        show_tables(folder, &b, o->json ? &w : NULL);
        if (o->json) finish(&w);
    }
    kt_workbench_deinit(&b);
    return st == KT_OK ? KT_TUNE_OK : kt_verb_fail(&err);
}

static int list_strategies(const list_options *o) {
    kt_json_writer w = {.indent = 2};
    if (o->json) kt_json_begin_array(&w);
    for (size_t i = 0; i < kt_builtin_strategy_count; i++) {
        if (o->json)
            kt_json_put_string(&w, kt_builtin_strategies[i]->name);
        else
            printf("%-12s %s\n", kt_builtin_strategies[i]->name, kt_builtin_strategies[i]->summary);
    }
    if (o->json) finish(&w);
    return KT_TUNE_OK;
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    list_options o = {.format = "native"};
    const kt_switch switches[] = {
        {"model", KT_SWITCH_TEXT, &o.model, "DIR|NAME", "whose cells; default tiny-moe"},
        {"workload", KT_SWITCH_TEXT, &o.workload, "NAME|FILE",
         "cells weighted by its serving mix and routing"},
        {"mix", KT_SWITCH_TEXT, &o.mix, "NAME", "one of its mixes; default its choice, or all"},
        {"routing", KT_SWITCH_TEXT, &o.routing, "R",
         "uniform, zipf:0.6, dirichlet:0.3 or trace:FILE; default the workload's"},
        {"format", KT_SWITCH_TEXT, &o.format, "F", "native, bf16, int8 or int4; default native"},
        {"op", KT_SWITCH_TEXT, &o.filter.op, "OP", "variants of one operation: gemm, moe_ffn, ..."},
        {"weights", KT_SWITCH_TEXT, &o.filter.weights, "W",
         "variants that take this weight format: w4g32, w8c, ..."},
        {"isa", KT_SWITCH_TEXT, &o.filter.isa, "ISA",
         "variants whose highest instruction set is this: scalar, avx2, ..."},
        {"why-invalid", KT_SWITCH_FLAG, &o.why_invalid, NULL,
         "what cannot run here, was not built or has no kernel, by reason"},
        {"json", KT_SWITCH_FLAG, &o.json, NULL, "print a JSON array"},
    };
    const kt_verb_usage usage = {
        "list", "variants|cells|models|tables|strategies|matrix ",
        "What there is to tune and to choose from.",
        "  kttune list variants --op moe_ffn --weights w4g32\n"
        "  kttune list --why-invalid\n"
        "  kttune list matrix\n"
        "  kttune list cells --model Qwen3-30B-A3B --format int4\n"
        "  kttune list cells --workload Qwen3-30B-A3B --mix chat-8 --routing zipf:1.0\n"};
    static const struct {
        const char *name;
        int (*list)(const list_options *);
    } kinds[] = {{"variants", list_variants}, {"matrix", list_matrix},
                 {"cells", list_cells},       {"models", list_models},
                 {"tables", list_tables},     {"strategies", list_strategies}};
    const char *word[1];
    int n = 0, code = kt_switches_parse(&usage, switches, sizeof switches / sizeof *switches, argc,
                                        argv, word, 1, &n);

    (void)context;
    if (code >= 0) return code;
    if (n == 0 && o.why_invalid) return list_variants(&o);
    if (n == 0) {
        char help[] = "--help", *words[] = {argv[0], help, NULL};
        return kt_switches_parse(&usage, switches, sizeof switches / sizeof *switches, 2, words,
                                 word, 1, &n);
    }
    for (size_t i = 0; n == 1 && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, word[0]) == 0) return kinds[i].list(&o);
    return kt_switch_fail(&usage,
                          "%s%s%sexpected variants, cells, models, tables, strategies or matrix",
                          n == 1 ? "'" : "", n == 1 ? word[0] : "", n == 1 ? "': " : "");
}

const kt_verb kt_verb_list = {.name = "list",
                              .summary =
                                  "variants, their matrix, cells, models, tables, strategies",
                              .run = run};
