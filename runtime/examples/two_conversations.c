/* Two texts continued at once, one row of each in every step:
 *
 *   two_conversations MODEL TOKENS FIRST SECOND
 *
 * prints what the model makes of each, one after the other. Greedy, so that `kt generate
 * --deterministic` says the same.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kt/kt.h>

enum { TALKS = 2 };

typedef struct talk {
    kt_sequence *seq;
    kt_sampler *sampler;
    int32_t *ids;     /* the prompt, then what was generated */
    int64_t n, fed;   /* of ids; those that are in the sequence */
    int64_t n_prompt; /* ids of the prompt */
    bool is_over;
} talk;

static void need(kt_status st, const kt_err *err) {
    if (st == KT_OK) return;
    fprintf(stderr, "%s: %s\n", kt_status_name(st), err->message);
    exit(1);
}

static kt_engine *load(const char *model) {
    kt_model_options options;
    kt_engine *engine;
    kt_err err;

    kt_model_options_init(&options, sizeof options);
    options.model = model;
    options.deterministic = true;
    need(kt_engine_load(&options, &engine, &err), &err);
    return engine;
}

static void begin(talk *t, kt_engine *engine, int64_t vocab, const char *prompt, int64_t most) {
    kt_sampling greedy;
    int32_t *ids;
    size_t n;
    kt_err err;

    kt_sampling_init(&greedy);
    need(kt_tokenizer_encode(kt_engine_tokenizer(engine), prompt, strlen(prompt), true, &ids, &n,
                             &err),
         &err);
    t->n = t->n_prompt = (int64_t)n;
    t->ids = malloc((n + (size_t)most) * sizeof *t->ids);
    if (!t->ids) exit(1);
    memcpy(t->ids, ids, n * sizeof *ids);
    kt_free(ids);
    need(kt_sampler_create(&greedy, NULL, 0, vocab, &t->sampler, &err), &err);
    need(kt_sequence_create(engine, t->n + most, &t->seq, &err), &err);
}

/* One step with rows of every text that is not over: its next token, or a part of its prompt. */
static void step(kt_engine *engine, const kt_model_info *model, talk *talks, int64_t most,
                 int32_t *token, float *logits) {
    kt_span spans[TALKS] = {{0}};
    int32_t out_row[TALKS];
    talk *of_span[TALKS], *of_out[TALKS];
    kt_batch batch = {.token = token, .spans = spans, .out_row = out_row};
    kt_err err;

    for (int i = 0; i < TALKS; i++) {
        talk *t = &talks[i];
        int64_t rows = t->n - t->fed, room = model->step_rows / TALKS;
        if (t->is_over) continue;
        if (rows > room) rows = room;
        of_span[batch.n_spans] = t;
        spans[batch.n_spans++] = (kt_span){.seq = t->seq, .first_row = batch.rows, .rows = rows};
        memcpy(token + batch.rows, t->ids + t->fed, (size_t)rows * sizeof *token);
        batch.rows += rows;
        t->fed += rows;
        if (t->fed < t->n) continue; /* more of the prompt comes */
        of_out[batch.n_out] = of_span[batch.n_spans - 1];
        out_row[batch.n_out++] = (int32_t)batch.rows - 1;
    }
    need(kt_engine_step(engine, &batch, logits, NULL, &err), &err);
    for (int64_t i = 0; i < batch.n_out; i++) {
        talk *t = of_out[i];
        int32_t id;
        need(kt_sampler_next(t->sampler, logits + i * model->vocab, NULL, &id, &err), &err);
        for (int e = 0; e < model->n_eos; e++) t->is_over |= id == model->eos[e];
        if (!t->is_over) t->ids[t->n++] = id;
        t->is_over |= t->n - t->n_prompt == most;
    }
}

static void finish(talk *t, kt_engine *engine) {
    char *text;
    size_t size;
    kt_err err;

    need(kt_tokenizer_decode(kt_engine_tokenizer(engine), t->ids + t->n_prompt,
                             (size_t)(t->n - t->n_prompt), true, &text, &size, &err),
         &err);
    printf("%s\n", text);
    kt_free(text);
    kt_sequence_destroy(t->seq);
    kt_sampler_destroy(t->sampler);
    free(t->ids);
}

int main(int argc, char **argv) {
    kt_model_info model = {.size = sizeof model};
    talk talks[TALKS] = {{0}};
    kt_engine *engine;
    int64_t most;
    int32_t *token;
    float *logits;
    kt_err err;

    if (argc != 3 + TALKS || (most = atoll(argv[2])) < 1 || kt_abi_version() != KT_ABI_VERSION) {
        fprintf(stderr, "usage: two_conversations MODEL TOKENS FIRST SECOND\n");
        return 2;
    }
    engine = load(argv[1]);
    need(kt_engine_model(engine, &model, &err), &err);
    token = malloc((size_t)model.step_rows * sizeof *token);
    logits = malloc(TALKS * (size_t)model.vocab * sizeof *logits);
    if (!token || !logits) return 1;
    for (int i = 0; i < TALKS; i++) begin(&talks[i], engine, model.vocab, argv[3 + i], most);
    while (!talks[0].is_over || !talks[1].is_over) step(engine, &model, talks, most, token, logits);
    for (int i = 0; i < TALKS; i++) finish(&talks[i], engine);
    free(token);
    free(logits);
    kt_engine_destroy(engine);
    return 0;
}
