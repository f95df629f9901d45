/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/api/chat_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

struct kt_loaded_chat {
    kt_chat_format *format;
    kt_vocabulary *vocabulary;
    const kt_tokenizer *tokenizer;
    kt_chat_model model;
};

/* The text and its ids change hands, the rest of p is released. */
static void take_prompt(kt_chat_prompt *p, kt_model_prompt *out) {
    *out = (kt_model_prompt){.text = p->rendered.text,
                             .size = p->rendered.size,
                             .ids = p->ids,
                             .n_ids = p->n_ids,
                             .starts_in_reasoning = p->starts_in_reasoning,
                             .first_turn = p->first_turn,
                             .last_turn = p->last_turn};
    p->rendered.text = NULL;
    p->ids = NULL;
    kt_chat_prompt_deinit(p);
}

static kt_status make_prompt(const void *self, const kt_chat_request *request, bool with_ids,
                             kt_model_prompt *out, kt_err *err) {
    const kt_loaded_chat *l = self;
    kt_chat_prompt p = {0};

    if (with_ids)
        KT_TRY(kt_chat_encode(l->format, l->tokenizer, request, &p, err));
    else
        KT_TRY(kt_chat_render(l->format, request, &p.rendered, err));
    take_prompt(&p, out);
    if (with_ids)
        out->starts_in_reasoning = kt_parser_starts_inside(&l->model.parsers, out->text, out->size);
    return KT_OK;
}

static kt_status make_vocabulary(kt_loaded_chat *l, const kt_backend *b, kt_err *err) {
    int32_t ends[8];
    size_t n = 0;

    /* masks are made for the model's logits: without a vocabulary no grammar is accepted */
    if ((kt_tokenizer_size(b->tokenizer) + 63) / 64 > (b->vocab + 63) / 64) return KT_OK;
    for (int i = 0; i < b->n_eos && n < sizeof ends / sizeof *ends; i++)
        if (b->eos[i] < kt_tokenizer_size(b->tokenizer)) ends[n++] = (int32_t)b->eos[i];
    return kt_vocabulary_from_tokenizer(b->tokenizer, ends, n, &l->vocabulary, err);
}

static kt_status load(kt_loaded_chat *l, const kt_chat_source *source,
                      const kt_parser_evidence *evidence, const kt_backend *b, kt_err *err) {
    kt_parser_evidence all = *evidence;

    l->model.self = l;
    l->model.template_text = "";
    if (source) {
        KT_TRY(kt_chat_format_load(source, &l->format, err));
        l->model.make_prompt = make_prompt;
        l->model.template_text = all.template_text = kt_chat_format_text(l->format);
        all.template_size = strlen(all.template_text);
        KT_TRY(kt_parser_choose(&all, &l->model.parsers, err));
    }
    KT_TRY(make_vocabulary(l, b, err));
    l->tokenizer = b->tokenizer;
    l->model.vocabulary = l->vocabulary;
    return KT_OK;
}

kt_status kt_loaded_chat_create(const kt_chat_source *source, const kt_parser_evidence *evidence,
                                const kt_backend *backend, kt_loaded_chat **out, kt_err *err) {
    kt_loaded_chat *l = calloc(1, sizeof *l);
    kt_status st;

    *out = NULL;
    if (!l) return kt_fail(err, KT_E_NOMEM, "no memory for the chat template");
    st = load(l, source, evidence, backend, err);
    if (st != KT_OK) {
        kt_loaded_chat_destroy(l);
        return st;
    }
    *out = l;
    return KT_OK;
}

void kt_loaded_chat_destroy(kt_loaded_chat *l) {
    if (!l) return;
    kt_vocabulary_destroy(l->vocabulary);
    kt_chat_format_destroy(l->format);
    free(l);
}

const kt_chat_model *kt_loaded_chat_model(const kt_loaded_chat *l) {
    return &l->model;
}

char *kt_loaded_chat_line(const kt_loaded_chat *l, char *out, size_t out_bytes) {
    if (!l->format)
        snprintf(out, out_bytes, "chat template: none, /v1/completions only");
    else
        snprintf(out, out_bytes, "chat template: %s, tool calls %s, reasoning %s",
                 kt_chat_format_origin(l->format), kt_parser_calls_name(&l->model.parsers),
                 kt_parser_reasoning_name(&l->model.parsers));
    return out;
}
