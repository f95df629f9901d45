/* kt importance. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/err.h"
#include "runtime/cli/command.h"
#include "runtime/cli/engine_flags.h"
#include "runtime/cli/interrupt.h"
#include "runtime/exec/perplexity.h"

#define MAX_TEXT_BYTES ((size_t)1 << 30)

static const kt_usage usage = {
    .command = "importance",
    .arguments = "MODEL --text FILE --out FILE.safetensors",
    .about = "Run a model over a text and write the mean square of every input of every matrix. "
             "With that file "
             "as --importance,\nINT4 and INT8 scales are searched for least error where inputs are "
             "large. Thousands of tokens of the kind of text that\nthe model is for are enough; an "
             "expert that none of them chose is encoded as without.",
    .examples =
        "  kt importance datasets/models/tiny-moe --text datasets/models/tiny-moe/sample.txt "
        "--out /tmp/importance.safetensors\n"
        "  kt serve datasets/models/tiny-moe --weights int4 --importance "
        "/tmp/importance.safetensors\n"};

typedef struct flags {
    kt_engine_flags engine;
    const char *text, *out;
    int64_t window, tokens;
} flags;

static int show_progress(void *arg, const kt_perplexity *so_far) {
    (void)arg;
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%lld windows, perplexity %.4f ", (long long)so_far->windows,
                so_far->perplexity);
    return kt_interrupted(NULL);
}

static kt_status observe(kt_engine *e, const flags *f, kt_perplexity *seen, kt_err *err) {
    char *text = NULL;
    size_t size = 0, n = 0;
    int32_t *ids = NULL;
    kt_status st;

    KT_TRY(kt_engine_observe_inputs(e, err));
    KT_TRY(kt_file_read(f->text, MAX_TEXT_BYTES, &text, &size, err));
    st = kt_tokenizer_encode(kt_engine_tokenizer(e), text, size, true, &ids, &n, err);
    if (st == KT_OK && n > (size_t)f->tokens) n = (size_t)f->tokens;
    if (st == KT_OK)
        st = kt_perplexity_measure(e, ids, (int64_t)n, f->window, show_progress, NULL, seen, err);
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r%40s\r", "");
    free(ids);
    free(text);
    return st;
}

static int run(int argc, char **argv) {
    flags f = {.engine = KT_ENGINE_FLAGS_INITIAL, .window = 512, .tokens = 1 << 24};
    const kt_option options[] = {
        KT_OPTION_STRING("text", 0, &f.text, "FILE", "what to run the model over"),
        KT_OPTION_STRING("out", 'o', &f.out, "FILE", "safetensors file to write"),
        KT_OPTION_INT("window", 0, &f.window, 2, 1 << 24, "tokens per window (default 512)"),
        KT_OPTION_INT("max-tokens", 0, &f.tokens, 2, 1 << 24, "of the text (default: all)"),
        KT_ENGINE_OPTIONS(f.engine)};
    const char *model = NULL;
    int n_words = 0;
    int code = kt_options_parse(&usage, options, sizeof options / sizeof *options, argc, argv,
                                &model, 1, &n_words);
    kt_log log = kt_command_log();
    kt_perplexity seen;
    kt_engine *e = NULL;
    kt_err err = {KT_OK, ""};

    if (code >= 0) return code;
    if (!n_words) return kt_usage_fail(&usage, "no model folder given");
    if (!f.text || !f.out)
        return kt_usage_fail(&usage, "%s is missing", f.text ? "--out" : "--text");
    if (f.tokens < f.window)
        return kt_usage_fail(&usage, "--max-tokens is %lld, expected at least a --window (%lld)",
                             (long long)f.tokens, (long long)f.window);
    kt_interrupt_watch();
    code = kt_engine_flags_load(&f.engine, &usage, model, &log, &e);
    if (code != 0) return code;
    if (observe(e, &f, &seen, &err) != KT_OK || kt_engine_write_importance(e, f.out, &err) != KT_OK)
        code = kt_command_fail(&err);
    else
        printf("%s: %lld windows of %lld tokens, perplexity %.4f\n", f.out, (long long)seen.windows,
               (long long)f.window, seen.perplexity);
    kt_engine_destroy(e);
    return code;
}

const kt_command kt_command_importance = {
    .name = "importance", .summary = "find which inputs count, for searched scales", .run = run};
