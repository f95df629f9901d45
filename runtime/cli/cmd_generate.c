/* kt generate. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "dispatch/plan/plan.h"
#include "runtime/cli/command.h"
#include "runtime/cli/draft_flags.h"
#include "runtime/cli/engine_flags.h"
#include "runtime/cli/interrupt.h"
#include "runtime/model/model_dir.h"
#include "runtime/sched/scheduler.h"

#define MAX_PROMPT_BYTES ((size_t)64 << 20)

static const kt_usage usage = {
    .command = "generate",
    .arguments = "MODEL (-p TEXT | --prompt-file FILE)",
    .about =
        "Continue a text and print it as it comes, until a stop token or --max-tokens. Special "
        "tokens in the prompt\nare recognised. Which table is used and the speed go to standard "
        "error.",
    .examples = "  kt generate datasets/models/tiny-moe -p 'In the beginning God created'\n"
                "  kt generate MODEL --weights int4 -p $'<|im_start|>user\\nWho wrote "
                "Hamlet?<|im_end|>\\n<|im_start|>assistant\\n'\n"};

typedef struct flags {
    kt_engine_flags engine;
    kt_draft_flags drafts;
    kt_speculation speculate;
    const char *prompt, *prompt_file;
    int64_t max_tokens, top_k, seed;
    double temperature, top_p, min_p, repetition_penalty;
    bool raw, json, quiet;
} flags;

/* One generation: what it needs and what it found. */
typedef struct generation {
    const flags *flags;
    kt_engine *engine;
    kt_engine_info info;
    kt_backend backend;
    kt_scheduler *scheduler;
    kt_request request;
    kt_text text; /* all output, for --json */
    bool is_done;
    const char *stop; /* "eos", "length" */
    kt_status status; /* of the request, or of its output */
    kt_err why;
} generation;

static kt_status read_prompt(generation *g, kt_err *err) {
    const flags *f = g->flags;
    kt_prompt *p = calloc(1, sizeof *p);
    char *file = NULL;
    size_t size;
    kt_status st;

    if (!p) return kt_fail(err, KT_E_NOMEM, "no memory for the prompt");
    g->request.prompts = p;
    g->request.n_prompts = 1;
    if (f->prompt_file) KT_TRY(kt_file_read(f->prompt_file, MAX_PROMPT_BYTES, &file, &size, err));
    if (!f->prompt_file) size = strlen(f->prompt);
    st = kt_tokenizer_encode(g->backend.tokenizer, file ? file : f->prompt, size, !f->raw, &p->ids,
                             &p->n_ids, err);
    if (st == KT_OK && !f->raw)
        st = kt_tokenizer_begin(g->backend.tokenizer, &p->ids, &p->n_ids, err);
    free(file);
    if (st == KT_OK && p->n_ids == 0) st = kt_fail(err, KT_E_INVALID, "the prompt is empty");
    if (st == KT_OK && (int64_t)p->n_ids >= g->info.max_context)
        st = kt_fail(err, KT_E_INVALID, "the prompt has %zu tokens, the context %lld", p->n_ids,
                     (long long)g->info.max_context);
    return st;
}

/* ---- the request's client ---- */

/* Print a piece of text, or keep it for --json. */
static kt_status emit(generation *g, const char *text, size_t size, kt_err *err) {
    if (g->flags->json) return kt_text_append(&g->text, text, size, err);
    if (fwrite(text, 1, size, stdout) == size && fflush(stdout) == 0) return KT_OK;
    return kt_fail(err, KT_E_IO, "standard output: cannot be written");
}

static void take_event(void *arg, const kt_event *e) {
    generation *g = arg;

    if (g->status != KT_OK) return;
    if (e->kind == KT_EVENT_TEXT) g->status = emit(g, e->text, e->size, &g->why);
    if (e->kind == KT_EVENT_FINISH)
        g->stop = e->as.finish.reason == KT_FINISH_STOP ? "eos" : "length";
}

static bool is_gone(void *arg) {
    (void)arg;
    return kt_interrupted(NULL);
}

static void take_end(void *arg, kt_status st, const kt_err *why) {
    generation *g = arg;

    g->is_done = true;
    if (g->status != KT_OK || st == KT_OK) return;
    g->status = st;
    g->why = *why;
    if (st == KT_E_CANCELLED) kt_fail(&g->why, st, "interrupted");
}

/* ---- */

static kt_status prepare(generation *g, const char *model, kt_err *err) {
    const flags *f = g->flags;
    kt_request *r = &g->request;
    kt_scheduler_options options = {.backend = &g->backend,
                                    .max_running = 1,
                                    .speculate = f->speculate,
                                    .draft = (int)f->drafts.draft,
                                    .is_manual = true};

    kt_request_init(r);
    kt_engine_describe(g->engine, &g->info);
    KT_TRY(kt_backend_from_engine(g->engine, model, f->engine.weights, &g->backend, err));
    KT_TRY(read_prompt(g, err));
    r->max_tokens = f->max_tokens;
    r->sampling.temperature = (float)f->temperature;
    r->sampling.top_k = (int32_t)f->top_k;
    r->sampling.top_p = (float)f->top_p;
    r->sampling.min_p = (float)f->min_p;
    r->sampling.repetition_penalty = (float)f->repetition_penalty;
    r->sampling.seed = (uint64_t)f->seed;
    r->show_special = f->raw;
    r->client =
        (kt_request_client){.arg = g, .event = take_event, .is_gone = is_gone, .done = take_end};
    return kt_scheduler_create(&options, &g->scheduler, err);
}

static kt_status generate(generation *g, kt_err *err) {
    if (kt_scheduler_submit(g->scheduler, &g->request) != KT_SUBMIT_TAKEN)
        return kt_fail(err, KT_E_NOMEM, "no memory for the request");
    while (!g->is_done && g->status == KT_OK) kt_scheduler_step(g->scheduler);
    if (g->status == KT_OK) return KT_OK;
    return kt_fail(err, g->status, "%s", g->why.message);
}

static double per_second(int64_t n, int64_t ns) {
    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

static void report(const generation *g) {
    const kt_request *r = &g->request;
    const double prompt = per_second(r->prompt_tokens, r->prompt_ns - r->start_ns);
    const double tokens = per_second(r->completion_tokens, r->end_ns - r->prompt_ns);
    kt_json_writer w = {0};
    const int32_t *ids;
    size_t n;

    if (!g->flags->json) {
        putchar('\n');
        fflush(stdout); /* before what goes to standard error */
        if (!g->flags->quiet)
            fprintf(stderr, "%lld prompt tokens (%.1f/s), %lld tokens (%.1f/s), stopped by %s\n",
                    (long long)r->prompt_tokens, prompt, (long long)r->completion_tokens, tokens,
                    g->stop);
        if (!g->flags->quiet && r->draft_tokens > 0)
            fprintf(stderr, "%lld of %lld drafted tokens came true\n", (long long)r->draft_hits,
                    (long long)r->draft_tokens);
        return;
    }
    ids = kt_request_tokens(r, 0, &n);
    kt_json_begin_object(&w);
    kt_json_key(&w, "text");
    kt_json_put_string_n(&w, g->text.data ? g->text.data : "", g->text.size);
    kt_json_key(&w, "tokens");
    kt_json_begin_array(&w);
    for (size_t i = 0; i < n; i++) kt_json_put_int(&w, ids[i]);
    kt_json_end_array(&w);
    kt_json_add_string(&w, "stop", g->stop);
    kt_json_add_int(&w, "prompt_tokens", r->prompt_tokens);
    kt_json_add_fixed(&w, "prompt_tokens_per_second", prompt, 2);
    kt_json_add_fixed(&w, "tokens_per_second", tokens, 2);
    if (r->draft_tokens > 0) {
        kt_json_add_int(&w, "draft_tokens", r->draft_tokens);
        kt_json_add_int(&w, "draft_tokens_accepted", r->draft_hits);
    }
    kt_json_add_string(&w, "table", g->info.table_line);
    kt_json_end_object(&w);
    kt_json_writer_print(&w, stdout);
}

static int run(int argc, char **argv) {
    flags f = {
        .engine = KT_ENGINE_FLAGS_INITIAL, .max_tokens = 128, .top_p = 1, .repetition_penalty = 1};
    const kt_option options[] = {
        KT_OPTION_STRING("prompt", 'p', &f.prompt, "TEXT", "text to continue"),
        KT_OPTION_STRING("prompt-file", 'f', &f.prompt_file, "FILE", "the same from a file"),
        KT_OPTION_INT("max-tokens", 'n', &f.max_tokens, 1, 1 << 24, "most tokens (default 128)"),
        KT_OPTION_DOUBLE("temperature", &f.temperature, 0, 100, "0 = greedy, the default"),
        KT_OPTION_INT("top-k", 0, &f.top_k, 0, 1 << 24, "most likely tokens kept (default all)"),
        KT_OPTION_DOUBLE("top-p", &f.top_p, 0, 1, "probability mass kept (default 1)"),
        KT_OPTION_DOUBLE("min-p", &f.min_p, 0, 1, "least share of the best kept (default 0)"),
        KT_OPTION_DOUBLE("repetition-penalty", &f.repetition_penalty, 0.01, 100, "default 1: off"),
        KT_OPTION_INT("seed", 0, &f.seed, 0, INT64_C(1) << 53, "of the sampler (default 0)"),
        KT_OPTION_FLAG("raw", &f.raw,
                       "special tokens are plain text in the prompt, shown in the output"),
        KT_OPTION_FLAG("json", &f.json, "print one JSON object at the end"),
        KT_OPTION_FLAG("quiet", &f.quiet, "nothing on standard error but errors"),
        KT_DRAFT_OPTIONS(f.drafts),
        KT_ENGINE_OPTIONS(f.engine)};
    generation g = {.flags = &f};
    const char *model = NULL;
    int n_words = 0;
    kt_log log = kt_command_log();
    kt_err err = {KT_OK, ""};
    int code = kt_options_parse(&usage, options, sizeof options / sizeof *options, argc, argv,
                                &model, 1, &n_words);

    if (code >= 0) return code;
    if (n_words < 1) return kt_usage_fail(&usage, "no model folder given");
    if (!f.prompt == !f.prompt_file)
        return kt_usage_fail(&usage, "give one of --prompt and --prompt-file");
    code = kt_draft_flags_settle(&f.drafts, &usage, &f.speculate);
    if (code != 0) return code;
    kt_interrupt_watch();
    if (f.quiet) log.stream = NULL;
    code = kt_draft_flags_load(&f.drafts, &f.engine, &usage, model, &log, &g.engine);
    if (code != 0) return code;
    if (prepare(&g, model, &err) != KT_OK)
        code = kt_command_fail(&err);
    else {
        if (!f.quiet && !f.json) fprintf(stderr, "%s\n", g.info.table_line);
        if (generate(&g, &err) != KT_OK)
            code = kt_command_fail(&err);
        else
            report(&g);
    }
    kt_scheduler_destroy(g.scheduler);
    kt_request_deinit(&g.request);
    kt_engine_destroy(g.engine);
    free(g.text.data);
    return code;
}

const kt_command kt_command_generate = {
    .name = "generate", .summary = "continue a text", .run = run};
