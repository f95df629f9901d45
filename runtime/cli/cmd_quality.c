/* kt quality. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "runtime/cli/command.h"
#include "runtime/cli/engine_flags.h"
#include "runtime/cli/interrupt.h"
#include "runtime/model/weight_loss.h"

static const kt_usage usage = {
    .command = "quality",
    .arguments = "MODEL",
    .about =
        "Say what a weight format loses of each tensor: relative root mean square error of its "
        "weights, the same with\nerrors weighed by the mean squares of inputs (--importance), "
        "and the largest error. Experts of a layer share a\nline unless --all.",
    .examples = "  kt quality datasets/models/tiny-moe --weights int4\n"
                "  kt quality MODEL --weights w4g128 --importance importance.safetensors --all\n"};

typedef struct flags {
    const char *weights, *importance;
    int64_t threads;
    bool all, json;
} flags;

/* A line: one matrix, or all of a role in a layer, or all. */
typedef struct line {
    kt_format_loss loss;
    double worst; /* of its matrices */
    int64_t matrices;
} line;

static void add(line *l, const kt_weight_loss *m) {
    double rms = kt_format_loss_rms(&m->loss);

    kt_format_loss_add(&l->loss, &m->loss);
    if (rms > l->worst) l->worst = rms;
    l->matrices++;
}

static void print_line(const line *l, const char *name, const char *format, int is_weighted) {
    printf("%-58s %-8s %8.3f %%", name, format, 100 * kt_format_loss_rms(&l->loss));
    if (is_weighted)
        printf(" %8.3f %%", 100 * kt_format_loss_weighted_rms(&l->loss));
    else
        printf(" %10s", "");
    printf(" %10.3g of %.3g", l->loss.error_max, l->loss.source_max);
    if (l->matrices > 1)
        printf("  %lld matrices, the worst %.3f %%", (long long)l->matrices, 100 * l->worst);
    putchar('\n');
}

/* Experts of one role in one layer; their name has a * for the number. */
static void print_experts(const line *l, const kt_weight_loss *m, int is_weighted) {
    char number[32], name[200];
    const char *at;

    snprintf(number, sizeof number, ".%lld.", (long long)m->expert);
    at = strstr(m->name, "experts") ? strstr(strstr(m->name, "experts"), number) : NULL;
    if (at)
        snprintf(name, sizeof name, "%.*s.*.%s", (int)(at - m->name), m->name, at + strlen(number));
    print_line(l, at ? name : m->name, m->format->name, is_weighted);
}

static void print_text(const kt_weight_losses *l, const flags *f) {
    const size_t n = kt_weight_losses_count(l);
    line experts[3] = {{{0}, 0, 0}}, total = {{0}, 0, 0};

    printf("%-58s %-8s %10s %10s  largest error\n", "tensor", "format", "error",
           f->importance ? "weighted" : "");
    for (size_t i = 0; i < n; i++) {
        const kt_weight_loss *m = kt_weight_losses_at(l, i);
        line alone = {{0}, 0, 0};
        add(&total, m);
        if (f->all || m->expert < 0) {
            add(&alone, m);
            print_line(&alone, m->name, m->format->name, f->importance != NULL);
            continue;
        }
        add(&experts[m->part], m);
        /* The last expert's three matrices end the layer. */
        if (m->part != 2 || (i + 1 < n && kt_weight_losses_at(l, i + 1)->expert >= 0)) continue;
        for (int j = 2; j >= 0; j--) {
            const kt_weight_loss *last = kt_weight_losses_at(l, i - (size_t)j);
            print_experts(&experts[last->part], last, f->importance != NULL);
            experts[last->part] = (line){{0}, 0, 0};
        }
    }
    print_line(&total, "all", f->weights, f->importance != NULL);
}

static void print_json(const kt_weight_losses *l, const flags *f) {
    kt_json_writer w = {0};

    kt_json_begin_array(&w);
    for (size_t i = 0; i < kt_weight_losses_count(l); i++) {
        const kt_weight_loss *m = kt_weight_losses_at(l, i);
        kt_json_begin_object(&w);
        kt_json_add_string(&w, "tensor", m->name);
        kt_json_add_string(&w, "format", m->format->name);
        kt_json_add_int(&w, "rows", m->rows);
        kt_json_add_int(&w, "inputs", m->k);
        kt_json_add_double(&w, "error", kt_format_loss_rms(&m->loss));
        if (f->importance)
            kt_json_add_double(&w, "weighted_error", kt_format_loss_weighted_rms(&m->loss));
        kt_json_add_double(&w, "largest_error", m->loss.error_max);
        kt_json_add_double(&w, "largest_weight", m->loss.source_max);
        kt_json_end_object(&w);
    }
    kt_json_end_array(&w);
    kt_json_writer_print(&w, stdout);
}

/* dir is the caller's to end: names of roles are in its memory. */
static kt_status measure(const char *model, const flags *f, kt_quant quant, kt_model_dir *dir,
                         kt_weight_losses **out, kt_err *err) {
    kt_pool_options options = {.n_threads = (int)f->threads};
    kt_checkpoint *importance = NULL;
    kt_pool *pool = NULL;
    kt_status st = kt_model_dir_read(model, dir, err);

    if (st == KT_OK && f->importance) st = kt_checkpoint_open_file(f->importance, &importance, err);
    if (st == KT_OK) st = kt_pool_create(&options, &pool, err);
    if (st == KT_OK)
        st = kt_weight_losses_measure(dir, quant, importance, pool, kt_interrupted, out, err);
    kt_pool_destroy(pool);
    kt_checkpoint_close(importance);
    if (st != KT_OK) kt_model_dir_deinit(dir);
    return st;
}

static int run(int argc, char **argv) {
    flags f = {.weights = "int4"};
    const kt_option options[] = {
        KT_OPTION_STRING("weights", 'w', &f.weights, "FORMAT",
                         "int4 (default), int8, bf16, fp8, w4g64 ... (runtime/WEIGHTS.md)"),
        KT_OPTION_STRING("importance", 0, &f.importance, "FILE", "of `kt importance`"),
        KT_OPTION_INT("threads", 't', &f.threads, 0, 1024, "threads (default: one per core)"),
        KT_OPTION_FLAG("all", &f.all, "a line for every expert"),
        KT_OPTION_FLAG("json", &f.json, "print a JSON array with every tensor")};
    const char *model = NULL;
    kt_weight_losses *losses = NULL;
    kt_model_dir dir = {0};
    kt_err err = {KT_OK, ""};
    int n_words = 0, quant;
    int code = kt_options_parse(&usage, options, sizeof options / sizeof *options, argc, argv,
                                &model, 1, &n_words);

    if (code >= 0) return code;
    if (!n_words) return kt_usage_fail(&usage, "no model folder given");
    quant = kt_quant_parse(f.weights);
    if (quant < 0)
        return kt_usage_fail(&usage, "--weights is '%s', expected " KT_QUANT_WORDS, f.weights);
    kt_interrupt_watch();
    if (measure(model, &f, (kt_quant)quant, &dir, &losses, &err) != KT_OK)
        return kt_command_fail(&err);
    if (f.json)
        print_json(losses, &f);
    else
        print_text(losses, &f);
    kt_weight_losses_destroy(losses);
    kt_model_dir_deinit(&dir);
    return KT_EXIT_OK;
}

const kt_command kt_command_quality = {
    .name = "quality", .summary = "what a weight format loses of each tensor", .run = run};
