/* kt logits. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/cli/command.h"
#include "runtime/cli/engine_flags.h"
#include "dispatch/model/checkpoint.h"

static const kt_usage usage = {
    .command = "logits",
    .arguments = "MODEL (--tokens 3,17,4 | --tokens-from FILE.safetensors) --out OUT.safetensors",
    .about =
        "Write the model's logits for each of the given tokens: tensor `logits` F32 [tokens, "
        "vocabulary] and, with\n--hidden, `hidden` F32 [layers + 1, tokens, hidden size] "
        "(embeddings, each layer's output, the last after\nthe final norm). Runs the kernels "
        "that serving runs.\n--against FILE says how far these logits are from an earlier run's, "
        "with another chunk or number of threads.",
    .examples =
        "  kt logits datasets/models/tiny-moe --tokens 897,306,464 --out /tmp/logits.safetensors\n"
        "  kt logits MODEL --tokens-from expected.safetensors --weights int4 --out "
        "out.safetensors\n"
        "  kt logits MODEL --tokens-from t.safetensors --prefill-chunk 1 -o b.safetensors "
        "--against "
        "a.safetensors\n"};

typedef struct flags {
    kt_engine_flags engine;
    const char *tokens, *tokens_from, *out, *against;
    int64_t chunk;
    bool hidden;
} flags;

/* "3,17,4" into malloc'd ids. */
static kt_status parse_tokens(const char *text, int32_t **ids, int64_t *count, kt_err *err) {
    int32_t *out = malloc((strlen(text) + 1) * sizeof *out); /* more than there can be */
    int64_t n = 0;

    if (!out) return kt_fail(err, KT_E_NOMEM, "no memory for the tokens");
    for (const char *p = text;; p++) {
        char *end;
        long long id;
        errno = 0;
        id = strtoll(p, &end, 10);
        if (end == p || errno || id < 0 || id > INT32_MAX || (*end != ',' && *end != '\0')) {
            free(out);
            return kt_fail(err, KT_E_INVALID, "--tokens '%.40s': expected ids between commas", p);
        }
        out[n++] = (int32_t)id;
        p = end;
        if (*end == '\0') break;
    }
    *ids = out;
    *count = n;
    return KT_OK;
}

static kt_status read_tokens(const char *path, int32_t **ids, int64_t *count, kt_err *err) {
    kt_checkpoint *file;
    const kt_tensor *t;
    kt_status st = kt_checkpoint_open_file(path, &file, err);

    if (st != KT_OK) return st;
    t = kt_checkpoint_find(file, "tokens");
    if (!t)
        st = kt_fail(err, KT_E_NOT_FOUND, "%s: tensor 'tokens' is missing", path);
    else if (t->dtype != KT_DTYPE_I32 || t->rank != 1 || t->shape[0] < 1)
        st = kt_tensor_fail(file, t, KT_E_FORMAT, err, "expected I32 of rank 1, not empty");
    else if (!(*ids = malloc(t->bytes)))
        st = kt_fail(err, KT_E_NOMEM, "no memory for the tokens");
    else {
        memcpy(*ids, t->data, t->bytes);
        *count = t->shape[0];
    }
    kt_checkpoint_close(file);
    return st;
}

/* Two runs over the same tokens. */
typedef struct logits_change {
    double relative;      /* root mean square of the differences over that of the earlier logits */
    double largest;       /* of the differences, each over the largest magnitude of its row */
    int64_t argmax;       /* rows whose likeliest token is another one */
    double perplexity[2]; /* of the given tokens, by the earlier run and by this one */
} logits_change;

/* -log of the probability that a row of logits gives to a token. */
static double loss_of(const float *row, int64_t vocab, int32_t token) {
    double top = row[0], sum = 0;

    for (int64_t v = 1; v < vocab; v++) top = row[v] > top ? row[v] : top;
    for (int64_t v = 0; v < vocab; v++) sum += exp(row[v] - top);
    return log(sum) + top - row[token];
}

static int64_t likeliest(const float *row, int64_t vocab) {
    int64_t best = 0;
    for (int64_t v = 1; v < vocab; v++)
        if (row[v] > row[best]) best = v;
    return best;
}

static logits_change compare(const float *before, const float *now, const int32_t *ids, int64_t n,
                             int64_t vocab) {
    double error = 0, energy = 0, loss[2] = {0, 0};
    logits_change d = {0};

    for (int64_t i = 0; i < n; i++) {
        const float *a = before + i * vocab, *b = now + i * vocab;
        double size = 0, most = 0;
        for (int64_t v = 0; v < vocab; v++) {
            const double off = fabs((double)b[v] - (double)a[v]);
            error += off * off;
            energy += (double)a[v] * a[v];
            size = fmax(size, fabs((double)a[v]));
            most = fmax(most, off);
        }
        if (most > 0) d.largest = fmax(d.largest, most / size);
        d.argmax += likeliest(a, vocab) != likeliest(b, vocab);
        if (i + 1 == n) continue;
        loss[0] += loss_of(a, vocab, ids[i + 1]);
        loss[1] += loss_of(b, vocab, ids[i + 1]);
    }
    d.relative = error > 0 ? sqrt(error / energy) : 0;
    for (int i = 0; i < 2; i++) d.perplexity[i] = exp(loss[i] / (double)(n > 1 ? n - 1 : 1));
    return d;
}

static kt_status print_change(const char *path, const float *logits, const int32_t *ids, int64_t n,
                              int64_t vocab, kt_err *err) {
    const int64_t shape[] = {n, vocab};
    kt_checkpoint *file;
    const kt_tensor *t;
    logits_change d;
    kt_status st;

    KT_TRY(kt_checkpoint_open_file(path, &file, err));
    st = kt_checkpoint_need(file, "logits", 2, shape, &t, err);
    if (st == KT_OK && t->dtype != KT_DTYPE_F32)
        st = kt_tensor_fail(file, t, KT_E_FORMAT, err, "expected F32");
    if (st == KT_OK) {
        d = compare((const float *)(const void *)t->data, logits, ids, n, vocab);
        printf("against %s: off by %.3g of the logits (root mean square), at most by %.3g of a "
               "token's largest; %lld of %lld tokens have another likeliest successor",
               path, d.relative, d.largest, (long long)d.argmax, (long long)n);
        if (n > 1) printf("; perplexity %.6g instead of %.6g", d.perplexity[1], d.perplexity[0]);
        putchar('\n');
    }
    kt_checkpoint_close(file);
    return st;
}

static kt_status write_tensors(const flags *f, const kt_engine_info *info, int64_t n,
                               const float *logits, const float *hidden, kt_err *err) {
    kt_tensor_out tensors[2] = {
        {.name = "logits", .dtype = KT_DTYPE_F32, .rank = 2, .data = logits},
        {.name = "hidden", .dtype = KT_DTYPE_F32, .rank = 3, .data = hidden}};

    tensors[0].shape[0] = n, tensors[0].shape[1] = info->vocab;
    tensors[1].shape[0] = info->layers + 1, tensors[1].shape[1] = n;
    tensors[1].shape[2] = info->hidden;
    return kt_safetensors_write(f->out, tensors, hidden ? 2 : 1, err);
}

static kt_status run_and_write(kt_engine *e, const flags *f, const int32_t *ids, int64_t n,
                               kt_err *err) {
    kt_sequence *s = NULL;
    kt_engine_info info;
    float *logits, *hidden = NULL;
    bool was_run;
    kt_status st;

    kt_engine_describe(e, &info);
    logits = calloc((size_t)n, sizeof *logits * (size_t)info.vocab);
    if (f->hidden)
        hidden = calloc((size_t)n, sizeof *hidden * (size_t)((info.layers + 1) * info.hidden));
    if (!logits || (f->hidden && !hidden))
        st = kt_fail(err, KT_E_NOMEM, "no memory for the logits of %lld tokens", (long long)n);
    else
        st = kt_sequence_create(e, n, &s, err);
    if (st == KT_OK) st = kt_engine_forward(e, s, ids, n, n, logits, hidden, NULL, NULL, err);
    if (st == KT_OK && f->against) st = print_change(f->against, logits, ids, n, info.vocab, err);
    was_run = s && kt_sequence_length(s) == n; /* also when logits are not finite */
    if (st == KT_OK || (f->engine.allow_nonfinite && was_run)) {
        kt_status written = write_tensors(f, &info, n, logits, hidden, st == KT_OK ? err : NULL);
        st = st == KT_OK ? written : st;
    }
    kt_sequence_destroy(s);
    free(logits);
    free(hidden);
    return st;
}

static int run(int argc, char **argv) {
    flags f = {.engine = KT_ENGINE_FLAGS_INITIAL};
    const kt_option options[] = {
        KT_OPTION_STRING("tokens", 0, &f.tokens, "IDS", "token ids between commas"),
        KT_OPTION_STRING("tokens-from", 0, &f.tokens_from, "FILE", "tensor `tokens` I32 of a file"),
        KT_OPTION_STRING("out", 'o', &f.out, "FILE", "safetensors file to write"),
        KT_OPTION_FLAG("hidden", &f.hidden, "write the hidden states too"),
        KT_OPTION_STRING("against", 0, &f.against, "FILE",
                         "an earlier --out of the same tokens: print how far off these logits are"),
        KT_OPTION_INT("prefill-chunk", 0, &f.chunk, 1, 1 << 20, "the same as --chunk"),
        KT_ENGINE_OPTIONS(f.engine)};
    const char *model = NULL;
    int n_words = 0;
    int code = kt_options_parse(&usage, options, sizeof options / sizeof *options, argc, argv,
                                &model, 1, &n_words);
    kt_log log = kt_command_log();
    kt_err err = {KT_OK, ""};
    kt_engine *e = NULL;
    int32_t *ids = NULL;
    int64_t n = 0;
    kt_status st;

    if (code >= 0) return code;
    if (n_words < 1) return kt_usage_fail(&usage, "no model folder given");
    if (!f.out) return kt_usage_fail(&usage, "--out is missing");
    if (!f.tokens == !f.tokens_from)
        return kt_usage_fail(&usage, "give one of --tokens and --tokens-from");
    st = f.tokens ? parse_tokens(f.tokens, &ids, &n, &err)
                  : read_tokens(f.tokens_from, &ids, &n, &err);
    if (st != KT_OK) return kt_command_fail(&err);
    f.engine.tokenizer_optional = true;
    if (f.chunk) f.engine.chunk = f.chunk;
    code = kt_engine_flags_load(&f.engine, &usage, model, &log, &e);
    if (code == 0 && run_and_write(e, &f, ids, n, &err) != KT_OK) code = kt_command_fail(&err);
    kt_engine_destroy(e);
    free(ids);
    return code;
}

const kt_command kt_command_logits = {
    .name = "logits", .summary = "write a model's logits for given tokens", .run = run};
