/* kt convert. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "dispatch/model/packed.h"
#include "dispatch/topology/topology.h"
#include "runtime/cli/command.h"
#include "runtime/cli/engine_flags.h"
#include "runtime/cli/interrupt.h"
#include "runtime/cli/text_perplexity.h"
#include "runtime/model/convert.h"

#define GIB (1024.0 * 1024.0 * 1024.0)

static const kt_usage usage = {
    .command = "convert",
    .arguments = "MODEL -o DIR --to FORMAT | --budget SIZE",
    .about =
        "Write a model as this program runs it: safetensors whose bytes are used in place on the "
        "next start, with config\nand tokenizer beside them. MODEL may be in any form that kt "
        "loads; it is only read. What was interrupted, or killed, goes\non with the same command. "
        "DIR/conversion.jsonl says what each tensor lost (as `kt quality` measures it).\nWith "
        "--budget a format is chosen for each weight, for least error in so many bytes of files, "
        "which are what weights take in\nmemory; caches come on top (`kt plan DIR`). Experts of "
        "one layer share their formats.",
    .examples = "  kt convert datasets/models/tiny-moe -o /tmp/tiny-int4 --to int4\n"
                "  kt convert model.gguf -o model-packed --to native\n"
                "  kt convert MODEL -o DIR --to w4g64 --importance importance.safetensors "
                "--max-ram 8G\n"
                "  kt convert MODEL -o DIR --budget 96G --importance importance.safetensors "
                "--expert-load load.jsonl\n"
                "  kt convert MODEL -o DIR --budget 75% --text sample.txt   # of the machine's "
                "memory; perplexity before and after\n"};

typedef struct flags {
    const char *out, *to, *importance, *max_ram, *budget, *load, *text;
    int64_t threads, window;
    bool json, without_draft_head;
} flags;

/* What is asked, out of the words. */
typedef struct wish {
    kt_quant quant;
    size_t max_ram, budget; /* 0 = default; none */
} wish;

/* Perplexity before and after, with --text. */
typedef struct text_check {
    kt_perplexity before, after; /* windows = 0: not measured */
    kt_err why_not;              /* before */
} text_check;

typedef struct view {
    bool is_terminal;
    int64_t begun_ns, told_ns;
    size_t bytes_before; /* what an earlier run had written */
    bool has_begun;
} view;

/* "8G", "512M", "1.5G", or bytes; 0 = not a size. */
static size_t parse_size(const char *text) {
    static const char units[] = "KMGT";
    char *end;
    double value = strtod(text, &end);

    if (*end && strchr(units, *end)) {
        value *= ldexp(1, 10 * (int)(strchr(units, *end) - units + 1));
        end++;
        if (*end == 'i') end++;
        if (*end == 'B') end++;
    }
    return end != text && *end == '\0' && value >= 1 && value < 0x1p62 ? (size_t)value : 0;
}

/* "96G", or "75%" of this machine's memory; 0 = neither. */
static size_t parse_budget(const char *text) {
    kt_topology topology;
    char *end;
    const double part = strtod(text, &end);

    if (end == text || strcmp(end, "%") != 0) return parse_size(text);
    if (!(part > 0 && part <= 100) || kt_topology_probe(&topology, NULL) != KT_OK) return 0;
    return (size_t)((double)topology.memory_bytes * part / 100);
}

/* A line that is written over, several times a second. */
static void show_progress(void *arg, const kt_convert_progress *p) {
    view *v = arg;
    const int64_t now = kt_clock_ns();
    double seconds, rate, left;

    if (!v->has_begun) {
        v->has_begun = true;
        v->begun_ns = now;
        v->bytes_before = p->bytes_done;
    }
    if (!v->is_terminal || now - v->told_ns < 200000000) return;
    v->told_ns = now;
    seconds = (double)(now - v->begun_ns) * 1e-9;
    rate = seconds > 0.5 ? (double)(p->bytes_done - v->bytes_before) / seconds : 0;
    left = rate > 0 ? (double)(p->bytes_total - p->bytes_done) / rate : 0;
    fprintf(stderr, "\rshard %d of %d, %.2f of %.2f GiB, %.0f %%", p->shards_done + 1, p->shards,
            (double)p->bytes_done / GIB, (double)p->bytes_total / GIB,
            100.0 * (double)p->bytes_done / (double)p->bytes_total);
    if (rate > 0)
        fprintf(stderr, ", %.0f MB/s, %d:%02d left   ", rate * 1e-6, (int)(left / 60),
                (int)left % 60);
}

static void put_roles(kt_json_writer *w, const kt_convert_result *r) {
    kt_json_key(w, "roles");
    kt_json_begin_array(w);
    for (int i = 0; i < r->n_roles; i++) {
        const kt_convert_role *role = &r->roles[i];
        kt_json_begin_object(w);
        kt_json_add_string(w, "role", role->role);
        kt_json_add_string(w, "formats", role->formats);
        kt_json_add_int(w, "numbers", role->numbers);
        kt_json_add_int(w, "bytes", (int64_t)role->bytes);
        kt_json_add_double(w, "estimated_error", role->error);
        kt_json_end_object(w);
    }
    kt_json_end_array(w);
}

static void print_json(const flags *f, const char *model, const wish *asked,
                       const kt_convert_result *r, const text_check *text, double seconds) {
    kt_json_writer w = {0};

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "model", model);
    kt_json_add_string(&w, "out", f->out);
    kt_json_add_string(&w, "weights",
                       asked->budget ? "budget" : kt_packed_quant_word(asked->quant));
    kt_json_add_int(&w, "shards", r->shards);
    kt_json_add_int(&w, "resumed", r->resumed);
    kt_json_add_int(&w, "bytes", (int64_t)r->bytes);
    if (asked->budget) {
        kt_json_add_int(&w, "budget", (int64_t)asked->budget);
        put_roles(&w, r);
    }
    kt_json_add_int(&w, "tensors_encoded", r->tensors);
    kt_json_add_double(&w, "error", r->error);
    if (f->importance) kt_json_add_double(&w, "weighted_error", r->weighted_error);
    kt_json_add_double(&w, "worst_error", r->worst);
    kt_json_add_string(&w, "worst_tensor", r->worst_name);
    if (text->before.windows) kt_json_add_double(&w, "perplexity_before", text->before.perplexity);
    if (text->why_not.status != KT_OK)
        kt_json_add_string(&w, "perplexity_before_missing", text->why_not.message);
    if (text->after.windows) kt_json_add_double(&w, "perplexity_after", text->after.perplexity);
    kt_json_add_fixed(&w, "seconds", seconds, 3);
    kt_json_end_object(&w);
    kt_json_writer_print(&w, stdout);
}

static void print_roles(const kt_convert_result *r) {
    printf("%-14s %10s %6s %8s  %s\n", "role", "GiB", "bits", "error", "formats");
    for (int i = 0; i < r->n_roles; i++) {
        const kt_convert_role *role = &r->roles[i];
        printf("%-14s %10.3f %6.2f %6.2f %%  %s\n", role->role, (double)role->bytes / GIB,
               role->numbers ? 8 * (double)role->bytes / (double)role->numbers : 0,
               100 * role->error, role->formats);
    }
}

static void print_text(const flags *f, const wish *asked, const kt_convert_result *r,
                       double seconds) {
    printf("%s: %.2f GiB as %s in %d shards", f->out, (double)r->bytes / GIB,
           asked->budget ? "the budget's formats" : kt_packed_quant_word(asked->quant), r->shards);
    if (r->was_complete)
        printf(", was complete\n");
    else if (r->resumed)
        printf(", %d of them from before, %.1f s\n", r->resumed, seconds);
    else
        printf(", %.1f s\n", seconds);
    if (asked->budget) print_roles(r);
    if (r->tensors == 0) {
        printf("every tensor is what it was\n");
        return;
    }
    printf("%lld tensors encoded: error %.3f %%", (long long)r->tensors, 100 * r->error);
    if (f->importance) printf(" (weighted %.3f %%)", 100 * r->weighted_error);
    printf(", the worst %.3f %% (%s); all of them in %s/" KT_CONVERT_JOURNAL "\n", 100 * r->worst,
           r->worst_name, f->out);
}

static void print_perplexity(const text_check *text) {
    if (text->before.windows)
        printf("perplexity before %.4f, after %.4f (%+.2f %%), %lld tokens of the text\n",
               text->before.perplexity, text->after.perplexity,
               100 * (text->after.perplexity / text->before.perplexity - 1),
               (long long)text->after.counted);
    else
        printf("perplexity after %.4f, %lld tokens of the text; before: not measured (%s)\n",
               text->after.perplexity, (long long)text->after.counted, text->why_not.message);
}

/* The source may be larger than this machine; the result may not. */
static kt_status measure_text(const flags *f, const char *model, text_check *out, kt_err *err) {
    kt_text_perplexity_request r = {
        .model = model, .text = f->text, .window = f->window, .n_threads = (int)f->threads};

    if (kt_text_perplexity(&r, &out->before, &out->why_not) == KT_E_CANCELLED)
        return kt_fail(err, KT_E_CANCELLED, "%s", out->why_not.message);
    r.model = f->out;
    return kt_text_perplexity(&r, &out->after, err);
}

static int convert(const flags *f, const char *model, const wish *asked) {
    view v = {.is_terminal = isatty(STDERR_FILENO)};
    kt_log log = kt_command_log();
    const kt_convert_request request = {.model = model,
                                        .out = f->out,
                                        .quant = asked->quant,
                                        .budget = asked->budget,
                                        .load = f->load,
                                        .importance = f->importance,
                                        .without_draft_head = f->without_draft_head,
                                        .max_ram = asked->max_ram,
                                        .n_threads = (int)f->threads,
                                        .cancel = kt_interrupted,
                                        .progress = show_progress,
                                        .progress_arg = &v,
                                        .log = &log};
    const int64_t begun = kt_clock_ns();
    text_check text = {.why_not = {KT_OK, ""}};
    kt_convert_result result;
    kt_err err = {KT_OK, ""};
    kt_status st = kt_convert(&request, &result, &err);
    const double seconds = (double)(kt_clock_ns() - begun) * 1e-9;

    if (v.is_terminal) fprintf(stderr, "\r%70s\r", "");
    if (st == KT_OK && !f->json) print_text(f, asked, &result, seconds);
    if (st == KT_OK && f->text) st = measure_text(f, model, &text, &err);
    if (st != KT_OK) return kt_command_fail(&err);
    if (f->json)
        print_json(f, model, asked, &result, &text, seconds);
    else if (f->text)
        print_perplexity(&text);
    return KT_EXIT_OK;
}

/* -1 to go on, or the exit code after a message. */
static int check(const flags *f, wish *asked) {
    const int quant = f->to ? kt_quant_parse(f->to) : KT_QUANT_NATIVE;

    if (!f->out || !*f->out) return kt_usage_fail(&usage, "--out is missing");
    if (!f->to && !f->budget)
        return kt_usage_fail(&usage, "--to is missing, expected " KT_QUANT_WORDS ", or --budget");
    if (f->to && f->budget) return kt_usage_fail(&usage, "--to and --budget: expected one of them");
    if (f->load && !f->budget)
        return kt_usage_fail(&usage, "--expert-load is of --budget, which is missing");
    if (quant < 0) return kt_usage_fail(&usage, "--to is '%s', expected " KT_QUANT_WORDS, f->to);
    *asked = (wish){.quant = (kt_quant)quant};
    if (f->max_ram) asked->max_ram = parse_size(f->max_ram);
    if (f->max_ram && !asked->max_ram)
        return kt_usage_fail(&usage, "--max-ram is '%s', expected a size such as 8G", f->max_ram);
    if (f->budget) asked->budget = parse_budget(f->budget);
    if (f->budget && !asked->budget)
        return kt_usage_fail(&usage,
                             "--budget is '%s', expected a size such as 96G, or a part of this "
                             "machine's memory such as 75%%",
                             f->budget);
    return -1;
}

static int run(int argc, char **argv) {
    flags f = {.window = 512};
    const kt_option options[] = {
        KT_OPTION_STRING("out", 'o', &f.out, "DIR", "folder to write: new, empty, or interrupted"),
        KT_OPTION_STRING("to", 0, &f.to, "FORMAT",
                         "native, int4, int8, bf16, fp8, w4g64 ... (runtime/WEIGHTS.md)"),
        KT_OPTION_STRING("budget", 0, &f.budget, "SIZE",
                         "instead: bytes of all weights, such as 96G, or 75% of the memory"),
        KT_OPTION_STRING("importance", 0, &f.importance, "FILE",
                         "of `kt importance`: search scales and count errors by it"),
        KT_OPTION_STRING("expert-load", 0, &f.load, "FILE",
                         "of `kt serve --record-workload`: --budget counts experts by it"),
        KT_OPTION_STRING("text", 0, &f.text, "FILE", "say its perplexity before and after"),
        KT_OPTION_INT("window", 0, &f.window, 2, 1 << 24,
                      "tokens of a window of --text (default 512)"),
        KT_OPTION_STRING("max-ram", 0, &f.max_ram, "SIZE",
                         "memory for buffers, such as 8G (default 2G)"),
        KT_OPTION_INT("threads", 't', &f.threads, 0, 1024, "threads (default: one per core)"),
        KT_OPTION_FLAG("without-draft-head", &f.without_draft_head,
                       "leave the draft head (MTP) out (default: it is converted, too)"),
        KT_OPTION_FLAG("json", &f.json, "print a JSON object")};
    const char *model = NULL;
    wish asked = {0};
    int n_words = 0;
    int code = kt_options_parse(&usage, options, sizeof options / sizeof *options, argc, argv,
                                &model, 1, &n_words);

    if (code >= 0) return code;
    if (!n_words) return kt_usage_fail(&usage, "no model given");
    code = check(&f, &asked);
    if (code >= 0) return code;
    kt_interrupt_watch();
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow further is an error of writing */
    return convert(&f, model, &asked);
}

const kt_command kt_command_convert = {
    .name = "convert", .summary = "write a model as it is run, to start faster", .run = run};
