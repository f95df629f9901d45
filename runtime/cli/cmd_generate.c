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
#include "runtime/cli/engine_flags.h"
#include "runtime/cli/interrupt.h"
#include "runtime/sample/sampler.h"

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
    const char *prompt, *prompt_file;
    int64_t max_tokens, top_k, seed;
    double temperature, top_p, min_p, repetition_penalty;
    bool raw, json, quiet;
} flags;

/* One generation: what it needs and what it found. */
typedef struct generation {
    kt_engine *engine;
    kt_engine_info info;
    const kt_tokenizer *tokenizer;
    kt_sequence *sequence;
    kt_sampler sampler;
    float *logits;
    int32_t *prompt, *tokens;
    size_t n_prompt, n_tokens;
    const char *stop; /* "eos", "length" */
    int64_t prefill_ns, decode_ns;
    char *text; /* all output, for --json */
    size_t text_bytes, text_capacity;
} generation;

static kt_status read_prompt(const flags *f, generation *g, kt_err *err) {
    char *file = NULL;
    size_t size;
    kt_status st;

    if (f->prompt_file) KT_TRY(kt_file_read(f->prompt_file, MAX_PROMPT_BYTES, &file, &size, err));
    if (!f->prompt_file) size = strlen(f->prompt);
    st = kt_tokenizer_encode(g->tokenizer, file ? file : f->prompt, size, !f->raw, &g->prompt,
                             &g->n_prompt, err);
    free(file);
    if (st == KT_OK && g->n_prompt == 0) st = kt_fail(err, KT_E_INVALID, "the prompt is empty");
    return st;
}

static kt_status prepare(const flags *f, generation *g, kt_err *err) {
    kt_sampling sampling = KT_SAMPLING_GREEDY;
    int64_t room;

    kt_engine_describe(g->engine, &g->info);
    g->tokenizer = kt_engine_tokenizer(g->engine);
    KT_TRY(read_prompt(f, g, err));
    room = g->info.max_context - (int64_t)g->n_prompt;
    if (room < 1)
        return kt_fail(err, KT_E_INVALID, "the prompt has %zu tokens, the context %lld",
                       g->n_prompt, (long long)g->info.max_context);
    if (f->max_tokens < room) room = f->max_tokens;
    sampling.temperature = (float)f->temperature;
    sampling.top_k = (int32_t)f->top_k;
    sampling.top_p = (float)f->top_p;
    sampling.min_p = (float)f->min_p;
    sampling.repetition_penalty = (float)f->repetition_penalty;
    sampling.seed = (uint64_t)f->seed;
    g->tokens = malloc((size_t)room * sizeof *g->tokens);
    g->logits = malloc((size_t)g->info.vocab * sizeof *g->logits);
    if (!g->tokens || !g->logits || kt_sampler_init(&g->sampler, &sampling, g->info.vocab) != 0)
        return kt_fail(err, KT_E_NOMEM, "no memory for the sampler");
    return kt_sequence_create(g->engine, (int64_t)g->n_prompt + room, &g->sequence, err);
}

static bool is_stop(const generation *g, int32_t token) {
    for (int i = 0; i < g->info.n_eos; i++)
        if (g->info.eos[i] == token) return true;
    return false;
}

/* Print a piece of text, or keep it for --json. */
static kt_status emit(generation *g, const flags *f, const char *text, size_t size, kt_err *err) {
    if (!f->json) {
        if (fwrite(text, 1, size, stdout) == size && fflush(stdout) == 0) return KT_OK;
        return kt_fail(err, KT_E_IO, "standard output: cannot be written");
    }
    if (g->text_bytes + size > g->text_capacity) {
        size_t capacity = 2 * g->text_capacity + size;
        char *grown = realloc(g->text, capacity);
        if (!grown) return kt_fail(err, KT_E_NOMEM, "no memory for the text");
        g->text = grown;
        g->text_capacity = capacity;
    }
    memcpy(g->text + g->text_bytes, text, size);
    g->text_bytes += size;
    return KT_OK;
}

static kt_status decode(generation *g, const flags *f, int64_t most, kt_err *err) {
    kt_detokenizer detokenizer = {0};
    char piece[4096];
    size_t size;

    g->stop = "length";
    while ((int64_t)g->n_tokens < most) {
        int32_t token = kt_sampler_pick(&g->sampler, g->logits, NULL);
        kt_sampler_accept(&g->sampler, token);
        g->tokens[g->n_tokens++] = token;
        if (is_stop(g, token)) {
            g->stop = "eos";
            break;
        }
        if (kt_detokenizer_push(g->tokenizer, &detokenizer, token, !f->raw, piece, sizeof piece,
                                &size) != KT_OK)
            return kt_fail(err, KT_E_INTERNAL, "token %d is not in the tokenizer", token);
        KT_TRY(emit(g, f, piece, size, err));
        if (kt_interrupted(NULL)) return kt_fail(err, KT_E_CANCELLED, "interrupted");
        if ((int64_t)g->n_tokens < most)
            KT_TRY(kt_engine_forward(g->engine, g->sequence, &token, 1, KT_SERVED_LOGIT_ROWS,
                                     g->logits, NULL, NULL, NULL, err));
    }
    size = kt_detokenizer_flush(&detokenizer, piece, sizeof piece);
    return emit(g, f, piece, size, err);
}

static kt_status generate(generation *g, const flags *f, kt_err *err) {
    int64_t start = kt_clock_ns(), middle, room;
    kt_status st;

    room = g->info.max_context - (int64_t)g->n_prompt;
    KT_TRY(kt_engine_forward(g->engine, g->sequence, g->prompt, (int64_t)g->n_prompt,
                             KT_SERVED_LOGIT_ROWS, g->logits, NULL, kt_interrupted, NULL, err));
    for (size_t i = 0; i < g->n_prompt; i++) kt_sampler_accept(&g->sampler, g->prompt[i]);
    middle = kt_clock_ns();
    st = decode(g, f, f->max_tokens < room ? f->max_tokens : room, err);
    g->prefill_ns = middle - start;
    g->decode_ns = kt_clock_ns() - middle;
    return st;
}

static double per_second(size_t n, int64_t ns) {
    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

static void report(const generation *g, const flags *f) {
    kt_json_writer w = {0};

    if (!f->json) {
        putchar('\n');
        fflush(stdout); /* before what goes to standard error */
        if (!f->quiet)
            fprintf(stderr, "%zu prompt tokens (%.1f/s), %zu tokens (%.1f/s), stopped by %s\n",
                    g->n_prompt, per_second(g->n_prompt, g->prefill_ns), g->n_tokens,
                    per_second(g->n_tokens, g->decode_ns), g->stop);
        return;
    }
    kt_json_begin_object(&w);
    kt_json_key(&w, "text");
    kt_json_put_string_n(&w, g->text ? g->text : "", g->text_bytes);
    kt_json_key(&w, "tokens");
    kt_json_begin_array(&w);
    for (size_t i = 0; i < g->n_tokens; i++) kt_json_put_int(&w, g->tokens[i]);
    kt_json_end_array(&w);
    kt_json_add_string(&w, "stop", g->stop);
    kt_json_add_int(&w, "prompt_tokens", (int64_t)g->n_prompt);
    kt_json_add_fixed(&w, "prompt_tokens_per_second", per_second(g->n_prompt, g->prefill_ns), 2);
    kt_json_add_fixed(&w, "tokens_per_second", per_second(g->n_tokens, g->decode_ns), 2);
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
        KT_ENGINE_OPTIONS(f.engine)};
    generation g = {0};
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
    kt_interrupt_watch();
    if (f.quiet) log.stream = NULL;
    code = kt_engine_flags_load(&f.engine, &usage, model, &log, &g.engine);
    if (code != 0) return code;
    if (prepare(&f, &g, &err) != KT_OK)
        code = kt_command_fail(&err);
    else {
        if (!f.quiet && !f.json) fprintf(stderr, "%s\n", g.info.table_line);
        if (generate(&g, &f, &err) != KT_OK)
            code = kt_command_fail(&err);
        else
            report(&g, &f);
    }
    kt_sampler_deinit(&g.sampler);
    kt_sequence_destroy(g.sequence);
    kt_engine_destroy(g.engine);
    free(g.prompt);
    free(g.tokens);
    free(g.logits);
    free(g.text);
    return code;
}

const kt_command kt_command_generate = {
    .name = "generate", .summary = "continue a text", .run = run};
