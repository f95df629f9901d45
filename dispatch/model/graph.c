/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/packed.h"
#include "dispatch/model/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/build_impl.h"
#include "dispatch/model/nested.h"

void kt_graph_deinit(kt_graph *g) {
    free(g->weights);
    free(g->nodes);
    free(g->planes);
    free(g->slots);
    free(g->rotations);
    free(g->width);
    kt_arena_deinit(&g->arena);
    memset(g, 0, sizeof *g);
}

static void append(char *out, size_t bytes, size_t *used, const char *text, size_t size) {
    size_t room = bytes - 1 - *used;

    if (size > room) size = room;
    memcpy(out + *used, text, size);
    *used += size;
    out[*used] = '\0';
}

/* What a safetensors name begins with; g = NULL: no prefix. Returns what follows of `name`. */
static const char *begin_json(const kt_graph *g, const kt_weight *w, const char *name, char *out,
                              size_t bytes) {
    const char *body = g && g->body ? g->body : "model.", *above = g && g->above ? g->above : "";
    const size_t model = sizeof "model." - 1;
    char layer[32];
    size_t used = 0;

    if (g && g->draft_body && w->layer == g->numbers.layers) {
        append(out, bytes, &used, g->draft_body, strlen(g->draft_body));
    } else if (w->layer >= 0) {
        snprintf(layer, sizeof layer, "layers.%d.", w->layer);
        append(out, bytes, &used, body, strlen(body));
        append(out, bytes, &used, layer, strlen(layer));
    } else if (strncmp(name, "model.", model) == 0) {
        append(out, bytes, &used, body, strlen(body));
        return name + model;
    } else if (strncmp(name, "lm_head", 7) == 0) {
        append(out, bytes, &used, above, strlen(above));
    }
    return name;
}

char *kt_weight_name(const kt_graph *g, const kt_weight *w, int part, int64_t expert, bool is_json,
                     char *out, size_t out_bytes) {
    const bool as_json = is_json || !g->is_gguf;
    const kt_name *name = &w->part[part].name;
    const char *p = as_json ? name->json : name->gguf;
    size_t used = 0;
    char number[32];

    out[0] = '\0';
    if (!p) return out;
    if (as_json) {
        p = begin_json(is_json ? NULL : g, w, p, out, out_bytes);
        used = strlen(out);
    } else if (w->layer >= 0) {
        snprintf(number, sizeof number, "blk.%d.", w->layer);
        append(out, out_bytes, &used, number, strlen(number));
    }
    while (*p) {
        size_t plain = strcspn(p, "{");
        append(out, out_bytes, &used, p, plain);
        p += plain;
        if (strncmp(p, "{e}", 3) != 0) {
            if (*p) append(out, out_bytes, &used, p++, 1);
            continue;
        }
        snprintf(number, sizeof number, "%lld", (long long)expert);
        append(out, out_bytes, &used, number, strlen(number));
        p += 3;
    }
    return out;
}

const kt_weight *kt_graph_find(const kt_graph *g, const char *role, int layer) {
    for (int i = 0; i < g->n_weights; i++)
        if (g->weights[i].layer == layer && strcmp(g->weights[i].role, role) == 0)
            return &g->weights[i];
    return NULL;
}

const kt_weight *kt_graph_experts(const kt_graph *g, int layer) {
    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].layer == layer && g->nodes[i].kind == KT_NODE_EXPERTS &&
            g->nodes[i].is_routed)
            return &g->weights[g->nodes[i].weight];
    return NULL;
}

/* ---- finding the family and building ---- */

static bool lists(const char *words, const char *word) {
    const size_t size = strlen(word);

    while (*words) {
        size_t n = strcspn(words, "|");
        if (n == size && memcmp(words, word, n) == 0) return true;
        words += n + (words[n] == '|');
    }
    return false;
}

static kt_status find_family(const kt_config_source *s, const kt_family **out, kt_err *err) {
    const bool is_wrapped = kt_json_string(kt_json_get(s->outer, "model_type"), NULL) != NULL;
    const kt_json *holder = is_wrapped ? s->outer : s->json;
    const char *type = s->arch;
    char known[256] = "";
    size_t used = 0;

    if (s->json) KT_TRY(kt_json_need_string(holder, "model_type", s->where, &type, err));
    for (size_t i = 0; i < kt_builtin_family_count; i++) {
        const kt_family *f = kt_builtin_families[i];
        const char *words = s->json ? f->types : f->archs;
        *out = f;
        if (lists(words, type)) return KT_OK;
        for (const char *p = words; *p && used + 40 < sizeof known;) {
            size_t n = strcspn(p, "|");
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%.*s", used ? ", " : "",
                                     (int)n, p);
            p += n + (p[n] == '|');
        }
    }
    return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: %s '%.60s' is not supported (known: %s)",
                   s->where, s->json ? "model_type" : "general.architecture", type, known);
}

static void add_eos(kt_model_numbers *out, int64_t id) {
    for (int i = 0; i < out->n_eos; i++)
        if (out->eos[i] == id) return;
    if (out->n_eos < KT_MAX_EOS) out->eos[out->n_eos++] = id;
}

void kt_numbers_add_eos(const kt_json *root, kt_model_numbers *out) {
    const kt_json *eos = kt_json_get(root, "eos_token_id");

    if (kt_json_is_integer(eos)) add_eos(out, kt_json_int(eos, -1));
    for (size_t i = 0; i < kt_json_length(eos); i++) {
        const kt_json *item = kt_json_at(eos, i);
        if (kt_json_is_integer(item)) add_eos(out, kt_json_int(item, -1));
    }
}

void kt_numbers_read_eos(const kt_json *root, kt_model_numbers *out) {
    kt_model_numbers own = {0};

    kt_numbers_add_eos(root, &own);
    if (own.n_eos == 0) return;
    out->n_eos = own.n_eos;
    memcpy(out->eos, own.eos, sizeof own.eos);
}

/* Ids at which a GGUF's text ends. */
static void read_gguf_eos(const kt_gguf_meta *m, kt_model_numbers *out) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const int64_t id = kt_gguf_int(m, keys[i], -1);
        if (id >= 0) add_eos(out, id);
    }
}

static const kt_number model_numbers[] = {
    {offsetof(kt_model_numbers, layers), KT_NUMBER_INT, "num_hidden_layers", "block_count",
     KT_NUMBER_NEEDED, 1, KT_MAX_LAYERS},
    {offsetof(kt_model_numbers, hidden), KT_NUMBER_INT, "hidden_size", "embedding_length",
     KT_NUMBER_NEEDED, 32, 1 << 20},
    {offsetof(kt_model_numbers, vocab), KT_NUMBER_INT, "vocab_size", "vocab_size", 0, 1, 1 << 24},
    {offsetof(kt_model_numbers, max_context), KT_NUMBER_INT, "max_position_embeddings",
     "context_length", KT_NUMBER_NEEDED, 1, 1 << 24}};

static kt_status read_numbers(const kt_config_source *s, kt_model_numbers *n, kt_err *err) {
    const kt_gguf_value *tokens;
    double aside;

    KT_TRY(kt_numbers_read(s, model_numbers, sizeof model_numbers / sizeof *model_numbers, n, err));
    if (s->json) {
        kt_numbers_read_eos(s->json, n);
        kt_numbers_add_eos(s->outer, n);
    } else {
        aside = kt_config_gguf_number(s, "nextn_predict_layers", 0);
        if (!(aside >= 0 && aside < (double)n->layers))
            return kt_fail(err, KT_E_FORMAT, "%.200s: nextn_predict_layers is %g of %lld layers",
                           s->where, aside, (long long)n->layers);
        n->layers -= (int64_t)aside;
        tokens = kt_gguf_find(s->gguf, "tokenizer.ggml.tokens");
        if (n->vocab == 0 && tokens) n->vocab = (int64_t)tokens->count;
        read_gguf_eos(s->gguf, n);
    }
    if (n->layers < 1 || n->vocab < 1)
        return kt_fail(err, KT_E_FORMAT, "%.200s: %lld layers and a vocabulary of %lld", s->where,
                       (long long)n->layers, (long long)n->vocab);
    if (n->hidden % 32 == 0) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: %s is %lld, expected a multiple of 32", s->where,
                   s->json ? "hidden_size" : "embedding_length", (long long)n->hidden);
}

/* Layers of the draft head that the model says it has. */
static int64_t declared_drafts(const kt_config_source *s) {
    if (s->json) return kt_json_int(kt_json_get(s->json, "num_nextn_predict_layers"), 0);
    return (int64_t)kt_config_gguf_number(s, "nextn_predict_layers", 0);
}

static kt_status describe(kt_build *b, const kt_config_source *s, kt_err *err) {
    kt_graph *g = b->graph;
    const kt_family *family = g->family;
    void *numbers = kt_arena_alloc(&g->arena, family->numbers_bytes + 1, sizeof(double));

    if (!numbers) return kt_fail(err, KT_E_NOMEM, "no memory for the numbers of a model");
    KT_TRY(kt_numbers_read(s, family->numbers, family->n_numbers, numbers, err));
    KT_TRY(family->settle(s, &g->numbers, numbers, err));
    kt_build_begin(b);
    for (b->layer = 0; b->layer < g->numbers.layers && b->status == KT_OK; b->layer++)
        family->layer(b, numbers, b->layer);
    b->layer = -1;
    if (b->status == KT_OK) family->end(b, numbers);
    g->main_nodes = g->n_nodes;
    b->layer = (int)g->numbers.layers;
    if (b->status == KT_OK && b->wants_draft)
        family->draft(b, numbers, b->layer, declared_drafts(s));
    b->layer = -1;
    if (g->main_nodes == g->n_nodes) g->draft_hidden = 0;
    return b->status;
}

kt_status kt_graph_build(const kt_graph_request *request, kt_graph *out, kt_err *err) {
    kt_build b = {.graph = out, .checkpoint = request->checkpoint, .layer = -1, .err = err};
    const kt_config_source source = kt_nested_source(&request->source), *s = &source;
    kt_status st;

    memset(out, 0, sizeof *out);
    out->is_gguf = s->gguf != NULL;
    b.declared.floats = b.declared.linear = b.declared.experts = b.declared.ffn = KT_W_BF16;
    st = find_family(s, &out->family, err);
    if (st == KT_OK) st = read_numbers(s, &out->numbers, err);
    if (st == KT_OK && s->json) st = kt_declared_read(&request->source, &b.declared, err);
    out->packing = b.declared.packing;
    b.wants_draft = st == KT_OK && request->with_draft && out->family->draft &&
                    out->numbers.layers < KT_MAX_LAYERS; /* its layer is one more */
    if (st == KT_OK && s->json && b.checkpoint) st = kt_nested_names(out, b.checkpoint, err);
    if (st == KT_OK) st = describe(&b, s, err);
    if (st == KT_OK && b.checkpoint && kt_checkpoint_panels(b.checkpoint))
        st = kt_packed_settle(out, b.checkpoint, err);
    if (st == KT_E_NOMEM) kt_fail_prefix(err, st, "%.200s", s->where);
    if (st != KT_OK) kt_graph_deinit(out);
    return st;
}
