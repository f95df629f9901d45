/* kt bench. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/rng.h"
#include "kt/version.h"
#include "runtime/cli/command.h"
#include "runtime/cli/engine_flags.h"
#include "runtime/cli/interrupt.h"
#include "runtime/exec/perplexity.h"

#define MAX_TEXT_BYTES ((size_t)1 << 30)
#define MAX_KINDS 16

static const kt_usage usage = {
    .command = "bench",
    .arguments = "MODEL",
    .about =
        "Measure prompt processing (pp) and text generation (tg) in tokens per second, mean and "
        "standard deviation over\nrepetitions after one warm-up, as llama-bench does; or the "
        "perplexity of a text.",
    .examples = "  kt bench datasets/models/tiny-moe --weights int8\n"
                "  kt bench MODEL -p 0 -n 0 --perplexity datasets/models/tiny-moe/sample.txt\n"};

typedef struct flags {
    kt_engine_flags engine;
    const char *perplexity;
    int64_t n_prompt, n_generate, repetitions, window;
    bool json;
} flags;

/* One measured line: pp512, tg128. */
typedef struct speed {
    char name[32];
    double mean, deviation; /* tokens per second */
    int n_kinds;
    struct {
        const char *name;
        double share; /* of the time */
    } kind[MAX_KINDS];
} speed;

typedef struct bench {
    kt_engine *engine;
    kt_engine_info info;
    kt_sequence *sequence;
    int32_t *tokens;
    float *logits;
    int n_speeds;
    speed speeds[2];
    kt_perplexity perplexity; /* windows = 0: not measured */
} bench;

/* n tokens at once, or one by one. */
static kt_status run_once(bench *b, int64_t n, int one_by_one, double *seconds, kt_err *err) {
    int64_t start = kt_clock_ns(), step = one_by_one ? 1 : n;

    kt_sequence_truncate(b->sequence, 0);
    for (int64_t done = 0; done < n; done += step) {
        KT_TRY(kt_engine_forward(b->engine, b->sequence, b->tokens + done, step, 1, b->logits, NULL,
                                 kt_interrupted, NULL, err));
    }
    *seconds = (double)(kt_clock_ns() - start) * 1e-9;
    return KT_OK;
}

static void read_profile(const bench *b, speed *s) {
    const char *name;
    int64_t time_ns, total = 0;

    for (int i = 0; i < MAX_KINDS && kt_engine_profile_read(b->engine, i, &name, &time_ns); i++) {
        s->kind[i].name = name;
        s->kind[i].share = (double)time_ns;
        s->n_kinds = i + 1;
        total += time_ns;
    }
    for (int i = 0; i < s->n_kinds && total > 0; i++) s->kind[i].share /= (double)total;
}

static kt_status measure(bench *b, const flags *f, const char *prefix, int64_t n, int one_by_one,
                         kt_err *err) {
    speed *s = &b->speeds[b->n_speeds];
    double sum = 0, squares = 0, seconds, r = (double)f->repetitions;

    if (n == 0) return KT_OK;
    snprintf(s->name, sizeof s->name, "%s%lld", prefix, (long long)n);
    KT_TRY(run_once(b, n, one_by_one, &seconds, err)); /* warm-up */
    kt_engine_profile(b->engine, true);
    for (int64_t i = 0; i < f->repetitions; i++) {
        double rate;
        KT_TRY(run_once(b, n, one_by_one, &seconds, err));
        rate = (double)n / seconds;
        sum += rate;
        squares += rate * rate;
    }
    kt_engine_profile(b->engine, false);
    read_profile(b, s);
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
    int64_t longest = f->n_prompt > f->n_generate ? f->n_prompt : f->n_generate;
    kt_rng rng;

    kt_engine_describe(b->engine, &b->info);
    if (longest == 0) return KT_OK;
    KT_TRY(kt_sequence_create(b->engine, longest, &b->sequence, err));
    b->tokens = malloc((size_t)longest * sizeof *b->tokens);
    b->logits = malloc((size_t)b->info.vocab * sizeof *b->logits);
    if (!b->tokens || !b->logits) return kt_fail(err, KT_E_NOMEM, "no memory for the benchmark");
    kt_rng_seed(&rng, 1);
    for (int64_t i = 0; i < longest; i++)
        b->tokens[i] = (int32_t)kt_rng_below(&rng, (uint64_t)b->info.vocab);
    return KT_OK;
}

static void print_text(const bench *b, const flags *f) {
    printf("%s, weights %s (%.1f MiB), %lld threads, kt %s\n%s\n", b->info.model_name,
           f->engine.weights, (double)b->info.weight_bytes / (1 << 20),
           (long long)b->info.n_threads, KT_VERSION, b->info.table_line);
    for (int i = 0; i < b->n_speeds; i++) {
        const speed *s = &b->speeds[i];
        printf("%-8s %10.2f ± %.2f tokens/s  ", s->name, s->mean, s->deviation);
        for (int k = 0; k < s->n_kinds; k++)
            printf(" %s %.0f%%", s->kind[k].name, 100 * s->kind[k].share);
        putchar('\n');
    }
    if (b->perplexity.windows)
        printf("perplexity %.6f  nll %.6f  tokens %lld  windows %lld  counted %lld\n",
               b->perplexity.perplexity, b->perplexity.nll, (long long)b->perplexity.tokens,
               (long long)b->perplexity.windows, (long long)b->perplexity.counted);
}

static void put_speed(kt_json_writer *w, const speed *s, int64_t repetitions) {
    kt_json_begin_object(w);
    kt_json_key(w, "test");
    kt_json_put_string(w, s->name);
    kt_json_key(w, "tokens_per_second");
    kt_json_put_fixed(w, s->mean, 3);
    kt_json_key(w, "deviation");
    kt_json_put_fixed(w, s->deviation, 3);
    kt_json_key(w, "repetitions");
    kt_json_put_int(w, repetitions);
    kt_json_key(w, "time_share");
    kt_json_begin_object(w);
    for (int k = 0; k < s->n_kinds; k++) {
        kt_json_key(w, s->kind[k].name);
        kt_json_put_fixed(w, s->kind[k].share, 4);
    }
    kt_json_end_object(w);
    kt_json_end_object(w);
}

static void print_json(const bench *b, const flags *f) {
    kt_json_writer w = {0};

    kt_json_begin_object(&w);
    kt_json_key(&w, "model");
    kt_json_put_string(&w, b->info.model_name);
    kt_json_key(&w, "weights");
    kt_json_put_string(&w, f->engine.weights);
    kt_json_key(&w, "weight_bytes");
    kt_json_put_int(&w, (int64_t)b->info.weight_bytes);
    kt_json_key(&w, "threads");
    kt_json_put_int(&w, b->info.n_threads);
    kt_json_key(&w, "version");
    kt_json_put_string(&w, KT_VERSION);
    kt_json_key(&w, "table");
    kt_json_put_string(&w, b->info.table_line);
    kt_json_key(&w, "results");
    kt_json_begin_array(&w);
    for (int i = 0; i < b->n_speeds; i++) put_speed(&w, &b->speeds[i], f->repetitions);
    kt_json_end_array(&w);
    if (b->perplexity.windows) {
        kt_json_key(&w, "perplexity");
        kt_json_put_double(&w, b->perplexity.perplexity);
        kt_json_key(&w, "nll");
        kt_json_put_double(&w, b->perplexity.nll);
        kt_json_key(&w, "tokens");
        kt_json_put_int(&w, b->perplexity.tokens);
        kt_json_key(&w, "windows");
        kt_json_put_int(&w, b->perplexity.windows);
    }
    kt_json_end_object(&w);
    if (kt_json_writer_text(&w, NULL)) puts(kt_json_writer_text(&w, NULL));
    kt_json_writer_deinit(&w);
}

static kt_status run_all(bench *b, const flags *f, kt_err *err) {
    KT_TRY(prepare(b, f, err));
    KT_TRY(measure(b, f, "pp", f->n_prompt, 0, err));
    KT_TRY(measure(b, f, "tg", f->n_generate, 1, err));
    return measure_perplexity(b, f, err);
}

static int run(int argc, char **argv) {
    flags f = {.engine = KT_ENGINE_FLAGS_INITIAL,
               .n_prompt = -1,
               .n_generate = -1,
               .repetitions = 3,
               .window = 512};
    const kt_option options[] = {
        KT_OPTION_INT("prompt", 'p', &f.n_prompt, 0, 1 << 24,
                      "prompt tokens (default 512; 0 = skip)"),
        KT_OPTION_INT("generate", 'n', &f.n_generate, 0, 1 << 24,
                      "generated tokens (default 128; 0 = skip)"),
        KT_OPTION_INT("repetitions", 'r', &f.repetitions, 1, 10000, "runs of each (default 3)"),
        KT_OPTION_STRING("perplexity", 0, &f.perplexity, "FILE",
                         "perplexity of a text; skips the other two unless -p or -n is given"),
        KT_OPTION_INT("window", 0, &f.window, 2, 1 << 24,
                      "tokens per perplexity window (default 512)"),
        KT_OPTION_FLAG("json", &f.json, "print one JSON object"),
        KT_ENGINE_OPTIONS(f.engine)};
    bench b = {0};
    const char *model = NULL;
    int n_words = 0;
    kt_log log = kt_command_log();
    kt_err err = {KT_OK, ""};
    int code = kt_options_parse(&usage, options, sizeof options / sizeof *options, argc, argv,
                                &model, 1, &n_words);

    if (code >= 0) return code;
    if (n_words < 1) return kt_usage_fail(&usage, "no model folder given");
    if (f.n_prompt < 0) f.n_prompt = f.perplexity ? 0 : 512;
    if (f.n_generate < 0) f.n_generate = f.perplexity ? 0 : 128;
    f.engine.tokenizer_optional = !f.perplexity;
    kt_interrupt_watch();
    code = kt_engine_flags_load(&f.engine, &usage, model, &log, &b.engine);
    if (code != 0) return code;
    if (run_all(&b, &f, &err) != KT_OK)
        code = kt_command_fail(&err);
    else if (f.json)
        print_json(&b, &f);
    else
        print_text(&b, &f);
    kt_sequence_destroy(b.sequence);
    kt_engine_destroy(b.engine);
    free(b.tokens);
    free(b.logits);
    return code;
}

const kt_command kt_command_bench = {
    .name = "bench", .summary = "measure tokens per second and perplexity", .run = run};
