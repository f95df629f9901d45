/* kt convert. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "dispatch/model/packed.h"
#include "runtime/cli/command.h"
#include "runtime/cli/engine_flags.h"
#include "runtime/cli/interrupt.h"
#include "runtime/model/convert.h"

#define GIB (1024.0 * 1024.0 * 1024.0)

static const kt_usage usage = {
    .command = "convert",
    .arguments = "MODEL -o DIR --to FORMAT",
    .about =
        "Write a model as this program runs it: safetensors whose bytes are used in place on the "
        "next start, with config\nand tokenizer beside them. MODEL may be in any form that kt "
        "loads; it is only read. What was interrupted, or killed, goes\non with the same command. "
        "DIR/conversion.jsonl says what each tensor lost (as `kt quality` measures it).",
    .examples = "  kt convert datasets/models/tiny-moe -o /tmp/tiny-int4 --to int4\n"
                "  kt convert model.gguf -o model-packed --to native\n"
                "  kt convert MODEL -o DIR --to w4g64 --importance importance.safetensors "
                "--max-ram 8G\n"};

typedef struct flags {
    const char *out, *to, *importance, *max_ram;
    int64_t threads;
    bool json;
} flags;

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

static void print_json(const flags *f, const char *model, kt_quant quant,
                       const kt_convert_result *r, double seconds) {
    kt_json_writer w = {0};

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "model", model);
    kt_json_add_string(&w, "out", f->out);
    kt_json_add_string(&w, "weights", kt_packed_quant_word(quant));
    kt_json_add_int(&w, "shards", r->shards);
    kt_json_add_int(&w, "resumed", r->resumed);
    kt_json_add_int(&w, "bytes", (int64_t)r->bytes);
    kt_json_add_int(&w, "tensors_encoded", r->tensors);
    kt_json_add_double(&w, "error", r->error);
    if (f->importance) kt_json_add_double(&w, "weighted_error", r->weighted_error);
    kt_json_add_double(&w, "worst_error", r->worst);
    kt_json_add_string(&w, "worst_tensor", r->worst_name);
    kt_json_add_fixed(&w, "seconds", seconds, 3);
    kt_json_end_object(&w);
    kt_json_writer_print(&w, stdout);
}

static void print_text(const flags *f, kt_quant quant, const kt_convert_result *r, double seconds) {
    printf("%s: %.2f GiB as %s in %d shards", f->out, (double)r->bytes / GIB,
           kt_packed_quant_word(quant), r->shards);
    if (r->was_complete)
        printf(", was complete\n");
    else if (r->resumed)
        printf(", %d of them from before, %.1f s\n", r->resumed, seconds);
    else
        printf(", %.1f s\n", seconds);
    if (r->tensors == 0) {
        printf("every tensor is what it was\n");
        return;
    }
    printf("%lld tensors encoded: error %.3f %%", (long long)r->tensors, 100 * r->error);
    if (f->importance) printf(" (weighted %.3f %%)", 100 * r->weighted_error);
    printf(", the worst %.3f %% (%s); all of them in %s/" KT_CONVERT_JOURNAL "\n", 100 * r->worst,
           r->worst_name, f->out);
}

static int convert(const flags *f, const char *model, kt_quant quant, size_t max_ram) {
    view v = {.is_terminal = isatty(STDERR_FILENO)};
    kt_log log = kt_command_log();
    const kt_convert_request request = {.model = model,
                                        .out = f->out,
                                        .quant = quant,
                                        .importance = f->importance,
                                        .max_ram = max_ram,
                                        .n_threads = (int)f->threads,
                                        .cancel = kt_interrupted,
                                        .progress = show_progress,
                                        .progress_arg = &v,
                                        .log = &log};
    const int64_t begun = kt_clock_ns();
    kt_convert_result result;
    kt_err err = {KT_OK, ""};
    kt_status st = kt_convert(&request, &result, &err);
    const double seconds = (double)(kt_clock_ns() - begun) * 1e-9;

    if (v.is_terminal) fprintf(stderr, "\r%70s\r", "");
    if (st != KT_OK) return kt_command_fail(&err);
    if (f->json)
        print_json(f, model, quant, &result, seconds);
    else
        print_text(f, quant, &result, seconds);
    return KT_EXIT_OK;
}

static int run(int argc, char **argv) {
    flags f = {0};
    const kt_option options[] = {
        KT_OPTION_STRING("out", 'o', &f.out, "DIR", "folder to write: new, empty, or interrupted"),
        KT_OPTION_STRING("to", 0, &f.to, "FORMAT",
                         "native, int4, int8, bf16, fp8, w4g64 ... (runtime/WEIGHTS.md)"),
        KT_OPTION_STRING("importance", 0, &f.importance, "FILE",
                         "of `kt importance`: search scales by it"),
        KT_OPTION_STRING("max-ram", 0, &f.max_ram, "SIZE",
                         "memory for buffers, such as 8G (default 2G)"),
        KT_OPTION_INT("threads", 't', &f.threads, 0, 1024, "threads (default: one per core)"),
        KT_OPTION_FLAG("json", &f.json, "print a JSON object")};
    const char *model = NULL;
    size_t max_ram = 0;
    int n_words = 0, quant;
    int code = kt_options_parse(&usage, options, sizeof options / sizeof *options, argc, argv,
                                &model, 1, &n_words);

    if (code >= 0) return code;
    if (!n_words) return kt_usage_fail(&usage, "no model given");
    if (!f.out || !*f.out) return kt_usage_fail(&usage, "--out is missing");
    if (!f.to) return kt_usage_fail(&usage, "--to is missing, expected " KT_QUANT_WORDS);
    quant = kt_quant_parse(f.to);
    if (quant < 0) return kt_usage_fail(&usage, "--to is '%s', expected " KT_QUANT_WORDS, f.to);
    if (f.max_ram) max_ram = parse_size(f.max_ram);
    if (f.max_ram && !max_ram)
        return kt_usage_fail(&usage, "--max-ram is '%s', expected a size such as 8G", f.max_ram);
    kt_interrupt_watch();
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow further is an error of writing */
    return convert(&f, model, (kt_quant)quant, max_ram);
}

const kt_command kt_command_convert = {
    .name = "convert", .summary = "write a model as it is run, to start faster", .run = run};
