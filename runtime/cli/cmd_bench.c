/* kt bench. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/rng.h"
#include "dispatch/plan/plan.h"
#include "kt/version.h"
#include "runtime/cli/bench_drafts.h"
#include "runtime/cli/bench_group.h"
#include "runtime/cli/bench_hybrid.h"
#include "runtime/cli/bench_load.h"
#include "runtime/cli/bench_report.h"
#include "runtime/cli/bench_serve.h"
#include "runtime/cli/command.h"
#include "runtime/cli/engine_flags.h"
#include "runtime/cli/interrupt.h"
#include "runtime/exec/perplexity.h"
#include "runtime/model/synthetic_model.h"

#define MAX_TEXT_BYTES ((size_t)1 << 30)

static const kt_usage usage = {
    .command = "bench",
    .arguments = "(MODEL | --synthetic NAME | serve URL | compare URL_A URL_B)",
    .about =
        "Measure prompt processing (pp) and text generation (tg) in tokens per second, mean and "
        "standard deviation over\nrepetitions after one warm-up, as llama-bench does; or the "
        "perplexity of a text. --synthetic measures a model of\na published shape with random "
        "weights: qwen3-30b, deepseek-v3, glm-4.7, minimax-m2, qwen3-next ...\nbench serve loads a "
        "running server, bench compare two of them; both have a --help of their own. --hybrid "
        "holds steps "
        "that the CPU\nand a --device share against what each of them takes alone, with 0 to 100 % "
        "of the experts "
        "on the device.",
    .examples =
        "  kt bench datasets/models/tiny-moe --weights int8\n"
        "  kt bench --synthetic qwen3-30b --layers 8 --weights int4 --threads 1\n"
        "  kt bench --synthetic qwen3-30b --layers 8 --weights q4_k\n"
        "  kt bench MODEL --load -r 5\n"
        "  kt bench MODEL --speculate ngram --draft-text main.c\n"
        "  kt bench --synthetic qwen3-30b --layers 8 --weights int4 -p 0 --parallel 16\n"
        "  kt bench --synthetic qwen3-30b --layers 8 --weights int4 --device cuda --hybrid -p 0\n"
        "  kt bench MODEL -p 0 -n 0 --perplexity datasets/models/tiny-moe/sample.txt\n"};

typedef struct flags {
    kt_engine_flags engine;
    kt_draft_flags drafts;
    const char *perplexity, *draft_text, *out;
    int64_t n_prompt, n_generate, depth, repetitions, window, parallel;
    bool json, ops, load, hybrid;
} flags;

typedef struct bench {
    kt_engine *engine;
    kt_engine_info info;
    kt_sequence *sequence;
    kt_bench_group *group; /* of --parallel, or NULL */
    int32_t *tokens;
    float *logits;
    double *step_ns; /* of the last measurement */
    int n_speeds;
    kt_bench_speed speeds[2];
    kt_roofline roofline;
    kt_perplexity perplexity; /* windows = 0: not measured */
} bench;

/* n tokens at once, or one by one, after the first `depth` tokens, which the sequence holds
 * already; one by one of each sequence where there are several. */
static kt_status run_steps(bench *b, int64_t depth, int64_t n, int one_by_one, double *step_ns,
                           kt_err *err) {
    const int64_t step = one_by_one ? 1 : n;

    if (one_by_one && b->group) return kt_bench_group_run(b->group, n, step_ns, err);
    kt_sequence_truncate(b->sequence, depth);
    for (int64_t done = 0; done < n; done += step) {
        const int64_t start = kt_clock_ns();
        KT_TRY(kt_engine_forward(b->engine, b->sequence, b->tokens + depth + done, step, 1,
                                 b->logits, NULL, kt_interrupted, NULL, err));
        *step_ns++ = (double)(kt_clock_ns() - start);
    }
    return KT_OK;
}

static kt_status run_once(bench *b, int64_t depth, int64_t n, int one_by_one, double *step_ns,
                          double *seconds, kt_err *err) {
    const int64_t start = kt_clock_ns();

    KT_TRY(run_steps(b, depth, n, one_by_one, step_ns, err));
    *seconds = (double)(kt_clock_ns() - start) * 1e-9;
    return KT_OK;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The larger of two measurements: other work on the machine only slows a probe down. */
static kt_status measure_roofline(bench *b, const flags *f, kt_err *err) {
    kt_roofline now;

    if (!f->ops) return KT_OK;
    KT_TRY(kt_engine_measure_roofline(b->engine, &now, err));
    if (now.stream_gbs < b->roofline.stream_gbs) now.stream_gbs = b->roofline.stream_gbs;
    for (int u = 0; u < KT_UNIT_COUNT; u++)
        if (now.peak_gops[u] < b->roofline.peak_gops[u]) {
            now.peak_gops[u] = b->roofline.peak_gops[u];
            now.probe[u] = b->roofline.probe[u];
        }
    b->roofline = now;
    return KT_OK;
}

static kt_status measure(bench *b, const flags *f, const char *prefix, int64_t n, int one_by_one,
                         kt_err *err) {
    kt_bench_speed *s = &b->speeds[b->n_speeds];
    const int64_t side = one_by_one ? f->parallel : 1;
    const size_t n_steps = (size_t)(f->repetitions * (one_by_one ? n : 1));
    double sum = 0, squares = 0, seconds, r = (double)f->repetitions;
    char times[24] = "", depth[24] = "";

    if (n == 0) return KT_OK;
    if (side > 1) snprintf(times, sizeof times, "x%lld", (long long)side);
    if (f->depth) snprintf(depth, sizeof depth, "@d%lld", (long long)f->depth);
    snprintf(s->name, sizeof s->name, "%s%lld%s%s", prefix, (long long)n, times, depth);
    s->repetitions = f->repetitions;
    s->threads = b->info.n_threads;
    s->is_decode = one_by_one;
    b->step_ns = realloc(b->step_ns, n_steps * sizeof *b->step_ns);
    if (!b->step_ns) return kt_fail(err, KT_E_NOMEM, "no memory for the benchmark");
    KT_TRY(run_once(b, f->depth, n, one_by_one, b->step_ns, &seconds, err)); /* warm-up */
    kt_engine_profile(b->engine, true);
    for (int64_t i = 0; i < f->repetitions; i++) {
        double rate;
        KT_TRY(run_once(b, f->depth, n, one_by_one, b->step_ns + i * (one_by_one ? n : 1), &seconds,
                        err));
        rate = (double)(n * side) / seconds;
        sum += rate;
        squares += rate * rate;
    }
    kt_engine_profile(b->engine, false);
    kt_engine_profile_read(b->engine, &s->profile);
    qsort(b->step_ns, n_steps, sizeof *b->step_ns, ascending);
    s->step_ms = b->step_ns[n_steps / 2] * 1e-6;
    if (one_by_one) {
        double experts_ns = 0;
        s->expected_ms = kt_engine_expected_ns(b->engine, side, side, &experts_ns) * 1e-6;
        s->expected_experts_ms = experts_ns * 1e-6;
    }
    s->mean = sum / r;
    s->deviation = r > 1 ? sqrt(fmax(0, (squares - sum * sum / r) / (r - 1))) : 0;
    b->n_speeds++;
    return KT_OK;
}

static int show_progress(void *arg, const kt_perplexity *so_far) {
    (void)arg;
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%lld windows, perplexity %.4f ", (long long)so_far->windows,
                so_far->perplexity);
    return kt_interrupted(NULL);
}

static kt_status measure_perplexity(bench *b, const flags *f, kt_err *err) {
    const kt_tokenizer *tokenizer = kt_engine_tokenizer(b->engine);
    char *text = NULL;
    size_t size = 0, n = 0;
    int32_t *ids = NULL;
    kt_status st;

    if (!f->perplexity) return KT_OK;
    if (!tokenizer)
        return kt_fail(err, KT_E_NOT_FOUND, "%s has no tokenizer.json, which --perplexity needs",
                       b->info.model_name);
    KT_TRY(kt_file_read(f->perplexity, MAX_TEXT_BYTES, &text, &size, err));
    st = kt_tokenizer_encode(tokenizer, text, size, true, &ids, &n, err);
    if (st == KT_OK)
        st = kt_perplexity_measure(b->engine, ids, (int64_t)n, f->window, show_progress, NULL,
                                   &b->perplexity, err);
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r%40s\r", "");
    free(ids);
    free(text);
    return st;
}

static kt_status prepare(bench *b, const flags *f, kt_err *err) {
    int64_t longest = f->depth + (f->n_prompt > f->n_generate ? f->n_prompt : f->n_generate);
    kt_rng rng;

    kt_engine_describe(b->engine, &b->info);
    if (longest == f->depth) return KT_OK;
    KT_TRY(kt_sequence_create(b->engine, longest, &b->sequence, err));
    b->tokens = malloc((size_t)longest * sizeof *b->tokens);
    b->logits = malloc((size_t)b->info.vocab * sizeof *b->logits);
    if (!b->tokens || !b->logits) return kt_fail(err, KT_E_NOMEM, "no memory for the benchmark");
    kt_rng_seed(&rng, 1);
    for (int64_t i = 0; i < longest; i++)
        b->tokens[i] = (int32_t)kt_rng_below(&rng, (uint64_t)b->info.vocab);
    if (f->depth)
        return kt_engine_forward(b->engine, b->sequence, b->tokens, f->depth, 0, NULL, NULL,
                                 kt_interrupted, NULL, err);
    return KT_OK;
}

static void print_synthetic(const bench *b) {
    const kt_engine_info *i = &b->info;

    printf("random weights: embedding N(0, %g), router N(0, %g), others N(0, %g); %lld of %lld "
           "layers, vocabulary %lld\nthe whole model runs at about %.4g of these speeds\n",
           KT_SYNTHETIC_EMBEDDING, KT_SYNTHETIC_ROUTER, KT_SYNTHETIC_OTHER, (long long)i->layers,
           (long long)i->layers_of_all, (long long)i->vocab,
           (double)i->layers / (double)i->layers_of_all);
}

static void print_text(const bench *b, const flags *f) {
    const kt_roofline *r = &b->roofline;
    char cache[160];

    printf("%s, weights %s (%.1f MiB), %lld threads, kt %s\n%s\n%s\n", b->info.model_name,
           f->engine.weights, (double)b->info.weight_bytes / (1 << 20),
           (long long)b->info.n_threads, KT_VERSION, b->info.table_line,
           kt_kv_line(&b->info, cache, sizeof cache));
    if (*b->info.node_line) printf("%s\n", b->info.node_line);
    if (f->engine.synthetic) print_synthetic(b);
    if (f->ops)
        printf("ceilings: read stream %.1f GB/s, int8 %.0f Gop/s (%s), bf16 %.0f (%s), f32 %.0f "
               "(%s)\n",
               r->stream_gbs, r->peak_gops[KT_UNIT_INT8], r->probe[KT_UNIT_INT8],
               r->peak_gops[KT_UNIT_BF16], r->probe[KT_UNIT_BF16], r->peak_gops[KT_UNIT_F32],
               r->probe[KT_UNIT_F32]);
    for (int i = 0; i < b->n_speeds; i++) kt_bench_print(&b->speeds[i], f->ops);
    if (b->perplexity.windows)
        printf("perplexity %.6f  nll %.6f  tokens %lld  windows %lld  counted %lld\n",
               b->perplexity.perplexity, b->perplexity.nll, (long long)b->perplexity.tokens,
               (long long)b->perplexity.windows, (long long)b->perplexity.counted);
}

static void print_json(const bench *b, const flags *f) {
    kt_json_writer w = {0};

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "model", b->info.model_name);
    kt_json_add_string(&w, "weights", f->engine.weights);
    kt_json_add_int(&w, "weight_bytes", (int64_t)b->info.weight_bytes);
    kt_json_add_string(&w, "cache", f->engine.kv);
    kt_json_add_int(&w, "cache_bytes", (int64_t)b->info.cache_bytes);
    kt_json_add_int(&w, "threads", b->info.n_threads);
    kt_json_add_int(&w, "nodes", b->info.n_nodes);
    kt_json_add_int(&w, "layers", b->info.layers);
    kt_json_add_int(&w, "layers_of_all", b->info.layers_of_all);
    kt_json_add_bool(&w, "is_synthetic", f->engine.synthetic != NULL);
    if (f->engine.synthetic) kt_json_add_double(&w, "embedding_deviation", KT_SYNTHETIC_EMBEDDING);
    kt_json_add_string(&w, "version", KT_VERSION);
    kt_json_add_string(&w, "table", b->info.table_line);
    kt_json_key(&w, "results");
    kt_json_begin_array(&w);
    for (int i = 0; i < b->n_speeds; i++) kt_bench_put(&b->speeds[i], &w);
    kt_json_end_array(&w);
    if (b->perplexity.windows) {
        kt_json_add_double(&w, "perplexity", b->perplexity.perplexity);
        kt_json_add_double(&w, "nll", b->perplexity.nll);
        kt_json_add_int(&w, "tokens", b->perplexity.tokens);
        kt_json_add_int(&w, "windows", b->perplexity.windows);
    }
    kt_json_end_object(&w);
    kt_json_writer_print(&w, stdout);
}

static kt_status run_all(bench *b, const flags *f, kt_err *err) {
    KT_TRY(prepare(b, f, err));
    KT_TRY(measure_roofline(b, f, err));
    KT_TRY(measure(b, f, "pp", f->n_prompt, 0, err));
    if (f->parallel > 1 && f->n_generate > 0)
        KT_TRY(kt_bench_group_create(b->engine, (int)f->parallel, f->depth, f->n_generate,
                                     &b->group, err));
    KT_TRY(measure(b, f, "tg", f->n_generate, 1, err));
    KT_TRY(measure_roofline(b, f, err));
    for (int i = 0; i < b->n_speeds; i++) b->speeds[i].roofline = b->roofline;
    return measure_perplexity(b, f, err);
}

/* Of --hybrid; 0 or an exit code. */
static int check_hybrid(const flags *f) {
    if (!f->hybrid) return f->out ? kt_usage_fail(&usage, "--out goes with --hybrid") : 0;
    if (!f->engine.device || strcmp(f->engine.device, "cpu") == 0)
        return kt_usage_fail(&usage, "--hybrid needs a --device beside the CPU");
    if (f->engine.wish.gpu_experts)
        return kt_usage_fail(&usage, "--hybrid takes five shares of the experts in turn, expected "
                                     "no --gpu-experts");
    if (f->load || f->perplexity || f->draft_text || f->parallel > 1)
        return kt_usage_fail(&usage, "--hybrid measures nothing else: expected no --load, "
                                     "--perplexity, --draft-text or --parallel");
    return 0;
}

/* What the flags cannot mean, else what they leave open; 0 or an exit code. */
static int settle_flags(flags *f, bool has_model) {
    if (has_model == (f->engine.synthetic != NULL))
        return kt_usage_fail(&usage, "%s",
                             has_model ? "give either a model folder or --synthetic"
                                       : "no model folder given");
    if (f->load && f->engine.synthetic)
        return kt_usage_fail(&usage, "--load reads files, which a synthetic model has not");
    if (f->engine.layers && !f->engine.synthetic)
        return kt_usage_fail(&usage, "--layers goes with --synthetic");
    if (f->perplexity && f->engine.synthetic)
        return kt_usage_fail(&usage, "a synthetic model has no tokenizer for --perplexity");
    if (!f->drafts.speculate != !f->draft_text || (f->draft_text && f->engine.synthetic))
        return kt_usage_fail(&usage,
                             "--speculate goes with --draft-text, both with a model folder");
    if (check_hybrid(f) != 0) return KT_EXIT_USAGE;
    f->ops |= f->engine.synthetic != NULL;
    if (f->n_prompt < 0) f->n_prompt = f->perplexity || f->hybrid ? 0 : 512;
    if (f->n_generate < 0) f->n_generate = f->perplexity ? 0 : 128;
    f->engine.tokenizer_optional = !f->perplexity && !f->draft_text;
    return 0;
}

static int compare_drafts(const flags *f, const char *model, const kt_log *log) {
    kt_bench_drafts ask = {.engine = &f->engine,
                           .word = f->drafts.speculate,
                           .text = f->draft_text,
                           .draft = f->drafts.draft,
                           .n_prompt = f->n_prompt ? f->n_prompt : 1,
                           .n_generate = f->n_generate > 2 ? f->n_generate : 2,
                           .repetitions = f->repetitions,
                           .json = f->json};
    const int code = kt_draft_flags_settle(&f->drafts, &usage, &ask.speculate);

    return code != 0 ? code : kt_bench_drafts_run(&ask, &usage, model, log);
}

static int measure_hybrid(const flags *f, const char *model, const kt_log *log) {
    const kt_bench_hybrid ask = {.engine = &f->engine,
                                 .n_prompt = f->n_prompt,
                                 .n_generate = f->n_generate,
                                 .depth = f->depth,
                                 .repetitions = f->repetitions,
                                 .out = f->out,
                                 .json = f->json};

    return kt_bench_hybrid_run(&ask, &usage, model, log);
}

/* Load what was asked for and measure it. */
static int load_and_measure(const flags *f, const char *model) {
    bench b = {0};
    kt_log log = kt_command_log();
    kt_err err = {KT_OK, ""};
    int code;

    kt_interrupt_watch();
    if (f->load) return kt_bench_load(&f->engine, &usage, model, f->repetitions, f->json, &log);
    if (f->draft_text) return compare_drafts(f, model, &log);
    if (f->hybrid) return measure_hybrid(f, model, &log);
    code = kt_engine_flags_load(&f->engine, &usage, model, &log, &b.engine);
    if (code != 0) return code;
    if (run_all(&b, f, &err) != KT_OK)
        code = kt_command_fail(&err);
    else if (f->json)
        print_json(&b, f);
    else
        print_text(&b, f);
    kt_sequence_destroy(b.sequence);
    kt_bench_group_destroy(b.group);
    kt_engine_destroy(b.engine);
    free(b.tokens);
    free(b.step_ns);
    free(b.logits);
    return code;
}

static int run_engine(int argc, char **argv) {
    flags f = {.engine = KT_ENGINE_FLAGS_INITIAL,
               .n_prompt = -1,
               .n_generate = -1,
               .repetitions = 3,
               .parallel = 1,
               .window = 512};
    const kt_option options[] = {
        KT_OPTION_INT("prompt", 'p', &f.n_prompt, 0, 1 << 24,
                      "prompt tokens (default 512; 0 = skip)"),
        KT_OPTION_INT("generate", 'n', &f.n_generate, 0, 1 << 24,
                      "generated tokens (default 128; 0 = skip)"),
        KT_OPTION_INT("depth", 'd', &f.depth, 0, 1 << 24, "tokens in the cache before (default 0)"),
        KT_OPTION_INT("repetitions", 'r', &f.repetitions, 1, 10000, "runs of each (default 3)"),
        KT_OPTION_INT("parallel", 0, &f.parallel, 1, 256,
                      "sequences generated side by side, a row of each in a step (default 1)"),
        KT_OPTION_STRING("perplexity", 0, &f.perplexity, "FILE",
                         "perplexity of a text; skips the other two unless -p or -n is given"),
        KT_OPTION_INT("window", 0, &f.window, 2, 1 << 24,
                      "tokens per perplexity window (default 512)"),
        KT_OPTION_STRING("synthetic", 0, &f.engine.synthetic, "NAME",
                         "random weights of a shape of datasets/workloads; includes --ops"),
        KT_OPTION_INT("layers", 0, &f.engine.layers, 0, 4096,
                      "of the synthetic model (default all)"),
        KT_OPTION_FLAG("ops", &f.ops, "each kind of work against this machine's ceilings"),
        KT_OPTION_FLAG("load", &f.load,
                       "instead: how fast the model is loaded, against reading its files"),
        KT_OPTION_FLAG(
            "hybrid", &f.hybrid,
            "instead: steps that a device and the CPU share, against what each takes alone "
            "(skips prompts unless -p is given)"),
        KT_OPTION_STRING("out", 0, &f.out, "FILE", "of --hybrid: also write the JSON object there"),
        KT_OPTION_STRING("draft-text", 0, &f.draft_text, "FILE",
                         "instead: continue this text with and without --speculate"),
        KT_OPTION_FLAG("json", &f.json, "print one JSON object"),
        KT_DRAFT_OPTIONS(f.drafts),
        KT_ENGINE_OPTIONS(f.engine)};
    const char *model = NULL;
    int n_words = 0;
    int code = kt_options_parse(&usage, options, sizeof options / sizeof *options, argc, argv,
                                &model, 1, &n_words);

    if (code >= 0) return code;
    code = settle_flags(&f, n_words > 0);
    if (code != 0) return code;
    return load_and_measure(&f, model);
}

static int run(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "serve") == 0) return kt_bench_serve(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "compare") == 0) return kt_bench_compare(argc - 1, argv + 1);
    return run_engine(argc, argv);
}

const kt_command kt_command_bench = {
    .name = "bench", .summary = "measure tokens per second and perplexity", .run = run};
