/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/packed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/checkpoint_impl.h"
#include "dispatch/model/needs.h"
#include "kernels/formats/format.h"
#include "kernels/formats/p64.h"

enum { PATH_BYTES = 4096 };

/* ---- names ---- */

/* Role and layer; the second of that role in a layer is ".2", the second run ":2". */
static void name_piece(const kt_graph *g, int weight, int run, char out[KT_PACKED_NAME]) {
    const kt_weight *w = &g->weights[weight];
    char layer[32] = "", number[16] = "", part[16] = "";
    int same = 1;

    for (int i = 0; i < weight; i++)
        same += g->weights[i].layer == w->layer && strcmp(g->weights[i].role, w->role) == 0;
    if (w->layer >= 0) snprintf(layer, sizeof layer, "layers.%d.", w->layer);
    if (same > 1) snprintf(number, sizeof number, ".%d", same);
    if (run > 0) snprintf(part, sizeof part, ":%d", run + 1);
    snprintf(out, KT_PACKED_NAME, "%s%.20s%s%s", layer, w->role, number, part);
}

void kt_packed_weight_name(const kt_graph *g, int weight, char out[KT_PACKED_NAME]) {
    name_piece(g, weight, 0, out);
}

/* ---- pieces ---- */

int kt_packed_count(const kt_graph *g, int weight, kt_quant quant) {
    kt_run runs[KT_WEIGHT_PARTS];
    const int n = kt_weight_runs(&g->weights[weight], quant, runs);

    return n ? n : 1;
}

static size_t round_up(size_t bytes) {
    return bytes > SIZE_MAX - 63 ? SIZE_MAX : (bytes + 63) / 64 * 64;
}

static size_t kept_bytes(const kt_packed_piece *p) {
    size_t data, scales;

    if (kt_format_sizes(kt_format_find(p->format), p->n, p->k, &data, &scales, NULL) != KT_OK)
        return SIZE_MAX;
    return round_up(data);
}

void kt_packed_piece_of(const kt_graph *g, int weight, int run, kt_quant quant,
                        kt_packed_piece *out) {
    const kt_weight *w = &g->weights[weight];
    kt_run runs[KT_WEIGHT_PARTS];
    const int n_runs = kt_weight_runs(w, quant, runs);
    kt_problem down;

    *out = (kt_packed_piece){.is_panels = n_runs > 0, .count = 1};
    name_piece(g, weight, run, out->name);
    if (n_runs == 0) {
        out->format = kt_weight_kept_as(w);
        out->n = w->n;
        out->k = w->kind == KT_WEIGHT_VECTOR ? 1 : w->k;
        out->bytes = kept_bytes(out);
        return;
    }
    down = runs[run].problem;
    out->format = down.weights;
    out->n = down.n;
    out->k = down.k;
    if (w->kind != KT_WEIGHT_MATRIX) out->count = w->count;
    if (w->kind != KT_WEIGHT_EXPERTS) {
        out->bytes = round_up(kt_p64_gemm_bytes(&runs[run].problem));
        return;
    }
    out->down = down.down != KT_W_NONE ? down.down : down.weights;
    down.weights = out->down;
    out->bytes = round_up(kt_p64_gate_up_bytes(&runs[run].problem) + kt_p64_down_bytes(&down));
}

static int version(const kt_packed_piece *p) {
    const int up = kt_p64_version(p->format), down = kt_p64_version(p->down);

    if (!p->is_panels) return 1;
    return up > down ? up : down;
}

char *kt_packed_text(const kt_packed_piece *p, char *out, size_t out_bytes) {
    snprintf(out, out_bytes, "layout=%s version=%d format=%s%s%s n=%lld k=%lld count=%lld",
             p->is_panels ? "p64" : "rows", version(p), kt_weight_format_name(p->format),
             p->down ? " down=" : "", p->down ? kt_weight_format_name(p->down) : "",
             (long long)p->n, (long long)p->k, (long long)p->count);
    return out;
}

/* ---- --to ---- */

static const char *const quant_words[KT_QUANT_FORMAT] = {"native", "bf16", "int8", "int4"};

const char *kt_packed_quant_word(kt_quant quant) {
    return quant < KT_QUANT_FORMAT ? quant_words[quant]
                                   : kt_weight_format_name(kt_quant_format(quant));
}

int kt_packed_quant_parse(const char *word) {
    int format = kt_weight_format_parse(word);

    for (int i = 0; i < KT_QUANT_FORMAT; i++)
        if (strcmp(word, quant_words[i]) == 0) return i;
    return format > KT_W_NONE ? (int)KT_QUANT_FORMAT + format : -1;
}

/* ---- the source's tensors ---- */

/* Tensors are sorted by name, so those with a common beginning lie together. */
static void leave_out(const kt_checkpoint *c, const char *prefix, uint8_t *is_listed) {
    const size_t size = strlen(prefix), count = kt_checkpoint_count(c);
    size_t low = 0, high = count;

    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (strcmp(kt_checkpoint_at(c, middle)->name, prefix) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < count && strncmp(kt_checkpoint_at(c, low)->name, prefix, size) == 0; low++)
        is_listed[low] = 0;
}

kt_status kt_packed_list_source(const kt_graph *g, const kt_checkpoint *c, uint8_t *is_listed,
                                kt_err *err) {
    char name[240], first[240];

    memset(is_listed, 1, kt_checkpoint_count(c));
    for (int i = 0; i < g->n_weights; i++) {
        const kt_weight *w = &g->weights[i];
        if (w->kind != KT_WEIGHT_EXPERTS || w->count > (1 << 20)) continue;
        for (int part = 0; part < w->n_parts; part++) {
            kt_weight_name(g, w, part, 0, false, first, sizeof first - 1);
            for (int64_t e = 1; e < w->count; e++) {
                kt_weight_name(g, w, part, e, false, name, sizeof name - 1);
                if (strcmp(name, first) == 0) break; /* one tensor for all */
                strcat(name, ".");
                leave_out(c, name, is_listed);
            }
        }
    }
    if (kt_checkpoint_count(c) > 0) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "%.200s: no tensors", kt_checkpoint_file(c, 0));
}

void kt_packed_put_source(kt_json_writer *w, const kt_checkpoint *c, const uint8_t *is_listed) {
    kt_json_begin_array(w);
    for (size_t i = 0; i < kt_checkpoint_count(c); i++) {
        const kt_tensor *t = kt_checkpoint_at(c, i);
        if (!is_listed[i]) continue;
        kt_json_begin_array(w);
        kt_json_put_string(w, t->name);
        kt_json_put_string(w, t->blocks != KT_W_NONE ? kt_weight_format_name(t->blocks)
                                                     : kt_dtype_name(t->dtype));
        kt_json_begin_array(w);
        for (int d = 0; d < t->rank; d++) kt_json_put_int(w, t->shape[d]);
        kt_json_end_array(w);
        kt_json_end_array(w);
    }
    kt_json_end_array(w);
}

/* ---- formats chosen by weight ---- */

static bool may_be_chosen(const kt_weight *w) {
    return w->kind == KT_WEIGHT_MATRIX || w->kind == KT_WEIGHT_EXPERTS;
}

void kt_packed_put_formats(kt_json_writer *w, const kt_graph *g) {
    char name[KT_PACKED_NAME];

    kt_json_begin_object(w);
    for (int i = 0; i < g->n_weights; i++) {
        const kt_weight *of = &g->weights[i];
        if (!may_be_chosen(of) || of->part[0].chosen == KT_W_NONE) continue;
        kt_packed_weight_name(g, i, name);
        kt_json_key(w, name);
        kt_json_begin_array(w);
        kt_json_put_string(w, kt_weight_format_name(of->part[0].chosen));
        if (of->kind == KT_WEIGHT_EXPERTS)
            kt_json_put_string(w, kt_weight_format_name(of->part[2].chosen));
        kt_json_end_array(w);
    }
    kt_json_end_object(w);
}

/* Word i of a list as a format that we make of other weights. */
static kt_status read_format(const kt_json *words, size_t i, const char *name,
                             kt_weight_format *out, kt_err *err) {
    const char *said = kt_json_string(kt_json_at(words, i), NULL), *word = said ? said : "";
    const int id = kt_weight_format_parse(word);
    const kt_format *format = id > 0 ? kt_format_find((kt_weight_format)id) : NULL;

    if (!format || !format->encode_rows)
        return kt_fail(err, KT_E_FORMAT,
                       "'formats': '%.60s' has '%.20s', expected a format that is encoded, such as "
                       "w4g64",
                       name, word);
    *out = format->id;
    return KT_OK;
}

static kt_status read_choice(kt_weight *w, const char *name, const kt_json *words, kt_err *err) {
    const size_t n = w->kind == KT_WEIGHT_EXPERTS ? 2 : 1;
    kt_weight_format format[2];

    if (kt_json_length(words) != n)
        return kt_fail(err, KT_E_FORMAT, "'formats': '%.60s' has %zu formats, expected %zu", name,
                       kt_json_length(words), n);
    for (size_t i = 0; i < n; i++) KT_TRY(read_format(words, i, name, &format[i], err));
    for (int part = 0; part < w->n_parts; part++)
        w->part[part].chosen = format[n == 2 && part == 2];
    return KT_OK;
}

/* A weight of the draft head, which the graph may be without. */
static bool is_of_draft(const kt_graph *g, const char *name) {
    char layer[40];

    snprintf(layer, sizeof layer, "layers.%lld.", (long long)g->numbers.layers);
    return strncmp(name, layer, strlen(layer)) == 0 || strcmp(name, "draft_join") == 0;
}

kt_status kt_packed_read_formats(kt_graph *g, const kt_json *formats, kt_err *err) {
    size_t n_read = 0;

    if (kt_json_type_of(formats) != KT_JSON_OBJECT)
        return kt_fail(err, KT_E_FORMAT, "'formats' is not an object of lists of formats");
    for (size_t i = 0; i < kt_json_length(formats) && !g->draft_hidden; i++) {
        const char *name;
        kt_json_member(formats, i, &name, NULL);
        n_read += is_of_draft(g, name);
    }
    for (int i = 0; i < g->n_weights; i++) {
        char name[KT_PACKED_NAME];
        const kt_json *words;
        if (!may_be_chosen(&g->weights[i])) continue;
        kt_packed_weight_name(g, i, name);
        words = kt_json_get(formats, name);
        if (!words) continue;
        KT_TRY(read_choice(&g->weights[i], name, words, err));
        n_read++;
    }
    if (n_read == kt_json_length(formats)) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "'formats' names %zu matrices, of which the model has %zu",
                   kt_json_length(formats), n_read);
}

static void settle(kt_graph *g, kt_quant quant) {
    for (int i = 0; i < g->n_weights; i++) {
        kt_weight *w = &g->weights[i];
        kt_weight_format becomes[KT_WEIGHT_PARTS];
        if (w->kind != KT_WEIGHT_MATRIX && w->kind != KT_WEIGHT_HEADS &&
            w->kind != KT_WEIGHT_EXPERTS)
            continue;
        for (int part = 0; part < w->n_parts; part++)
            becomes[part] = kt_weight_becomes(w, part, quant);
        for (int part = 0; part < w->n_parts; part++) {
            w->part[part].stored = becomes[part];
            w->part[part].encoding = KT_STORED_PACKED;
        }
    }
}

kt_status kt_packed_settle(kt_graph *g, const kt_checkpoint *c, kt_err *err) {
    if (c->formats) {
        const kt_status st = kt_packed_read_formats(g, kt_json_root(c->formats), err);
        if (st != KT_OK) return kt_fail_prefix(err, st, "%.200s", kt_checkpoint_file(c, 0));
    }
    settle(g, kt_checkpoint_packed_as(c));
    return KT_OK;
}

/* ---- opening ---- */

static kt_status read_entry(kt_checkpoint *c, const kt_json *entry, kt_err *err) {
    size_t size = 0, n_dtype = 0;
    const char *name = kt_json_string(kt_json_at(entry, 0), &size);
    const char *dtype = kt_json_string(kt_json_at(entry, 1), &n_dtype);
    const kt_json *shape = kt_json_at(entry, 2);
    kt_tensor t = {.rank = (int)kt_json_length(shape)};
    int known = 0;

    if (!name || !dtype || strlen(name) != size || kt_json_type_of(shape) != KT_JSON_ARRAY ||
        kt_json_length(shape) > KT_TENSOR_MAX_RANK)
        return kt_fail(err, KT_E_FORMAT, "'source' is not a list of [name, dtype, shape]");
    while (known < KT_DTYPE_COUNT && strcmp(kt_dtype_name((kt_dtype)known), dtype) != 0) known++;
    t.dtype = known < KT_DTYPE_COUNT ? (kt_dtype)known : KT_DTYPE_U8;
    if (known == KT_DTYPE_COUNT) {
        const int blocks = kt_weight_format_parse(dtype);
        const kt_format *format = blocks > 0 ? kt_format_find((kt_weight_format)blocks) : NULL;
        if (!format || !format->block_bytes)
            return kt_fail(err, KT_E_FORMAT, "tensor '%.100s': dtype '%.20s' is not known", name,
                           dtype);
        t.blocks = format->id;
    }
    for (int d = 0; d < t.rank; d++) {
        t.shape[d] = kt_json_int(kt_json_at(shape, (size_t)d), -1);
        if (t.shape[d] < 0)
            return kt_fail(err, KT_E_FORMAT, "tensor '%.100s': shape[%d] is not a size", name, d);
    }
    t.name = kt_arena_strndup(&c->arena, name, size);
    if (!t.name) return kt_fail(err, KT_E_NOMEM, "no memory for tensor names");
    c->tensors[c->n_tensors++] = t;
    return KT_OK;
}

/* The source's metadata, where it was a GGUF file. */
static kt_status read_gguf(kt_checkpoint *c, const char *folder, const char *file, kt_err *err) {
    kt_shard *s = &c->shards[0];
    char path[PATH_BYTES];

    if (strchr(file, '/') || *file == '.' || !*file)
        return kt_fail(err, KT_E_FORMAT, "'gguf' is not the name of a file in the same folder");
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path)
        return kt_fail(err, KT_E_INVALID, "path too long");
    s->path = kt_arena_strndup(&c->arena, path, strlen(path));
    if (!s->path) return kt_fail(err, KT_E_NOMEM, "no memory for a path");
    KT_TRY(kt_mapping_open(path, &s->mapping, err));
    c->is_gguf = true;
    return kt_gguf_meta_init(&c->meta, s->mapping.data, s->mapping.bytes, err);
}

/* "formats" outlives the index: a document of its own. */
static kt_status keep_formats(kt_checkpoint *c, const kt_json *formats, kt_err *err) {
    kt_json_writer w = {0};
    const char *text;
    size_t size = 0;
    kt_status st;

    kt_json_put_value(&w, formats);
    text = kt_json_writer_text(&w, &size);
    st = text ? kt_json_parse(text, size, NULL, &c->formats, err)
              : kt_fail(err, KT_E_NOMEM, "no memory for a list of formats");
    kt_json_writer_deinit(&w);
    return st;
}

static kt_status read_packed(kt_checkpoint *c, const char *folder, const char *index,
                             const kt_json *packed, kt_err *err) {
    const kt_json *source = kt_json_get(packed, "source");
    const char *gguf = kt_json_string(kt_json_get(packed, "gguf"), NULL);
    const int64_t version = kt_json_int(kt_json_get(packed, "version"), 0);
    const int quant = kt_packed_quant_parse(kt_json_text(packed, "weights"));
    const kt_json *formats = kt_json_get(packed, "formats");
    const int expected = formats ? KT_PACKED_CHOSEN_VERSION : KT_PACKED_VERSION;

    if (version != expected)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "packed weights of version %lld, expected %d: convert the source again",
                       (long long)version, expected);
    if (quant < 0)
        return kt_fail(err, KT_E_FORMAT, "'weights' is '%.20s', expected a format",
                       kt_json_text(packed, "weights"));
    c->packed_as = (kt_quant)quant;
    if (formats) KT_TRY(keep_formats(c, formats, err));
    if (gguf) {
        KT_TRY(read_gguf(c, folder, gguf, err));
    } else {
        c->shards[0].path = kt_arena_strndup(&c->arena, index, strlen(index));
        if (!c->shards[0].path) return kt_fail(err, KT_E_NOMEM, "no memory for a path");
    }
    if (kt_json_type_of(source) != KT_JSON_ARRAY)
        return kt_fail(err, KT_E_FORMAT, "no list 'source'");
    KT_TRY(kt_checkpoint_reserve(c, kt_json_length(source), err));
    for (size_t i = 0; i < kt_json_length(source); i++)
        KT_TRY(read_entry(c, kt_json_at(source, i), err));
    return kt_checkpoint_finish(c, err);
}

kt_status kt_packed_open(const char *folder, const char *index, const kt_json *packed,
                         kt_checkpoint *panels, kt_checkpoint **out, kt_err *err) {
    kt_checkpoint *c = kt_checkpoint_create(1);
    kt_status st;

    if (!c) {
        kt_checkpoint_close(panels);
        return kt_fail(err, KT_E_NOMEM, "no memory for a checkpoint");
    }
    c->panels = panels;
    st = read_packed(c, folder, index, packed, err);
    if (st != KT_OK) {
        kt_checkpoint_close(c);
        return st;
    }
    *out = c;
    return KT_OK;
}
