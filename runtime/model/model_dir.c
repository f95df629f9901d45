/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/model/model_dir.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/err.h"
#include "dispatch/model/mistakes.h"
#include "dispatch/model/nested.h"
#include "dispatch/model/resolve.h"
#include "kernels/attn/attn_common.h"
#include "kernels/compress/entries.h"

#define MAX_CONFIG_BYTES ((size_t)16 << 20)

/* A path that is no folder: people try the file itself. */
static kt_status refuse_file(const char *path, kt_err *err) {
    kt_mapping file;
    const char *what;
    kt_status st;

    KT_TRY(kt_mapping_open(path, &file, err));
    what = kt_model_mistake(file.data, file.bytes);
    st = kt_fail(err, KT_E_INVALID, "%.200s: %s, expected the folder of a checkpoint", path,
                 what ? what : "a file");
    kt_mapping_close(&file);
    return st;
}

/* Is it a GGUF file, or a folder with one and no config.json? */
static int is_gguf_model(const char *path) {
    char config[KT_MODEL_PATH_BYTES + 16];

    if (kt_model_is_gguf(path)) return 1;
    snprintf(config, sizeof config, "%s/config.json", path);
    return kt_model_count_files(path, ".gguf", NULL, 0) > 0 && access(config, F_OK) != 0;
}

static kt_status find_folder(kt_model_dir *d, const char *word, kt_err *err) {
    kt_model_ref ref;

    KT_TRY(kt_model_resolve(word ? word : "", KT_MODEL_ANY, &ref, err));
    strcpy(d->folder, ref.path);
    strcpy(d->name, ref.name);
    if (ref.kind == KT_MODEL_FILE)
        return kt_model_is_gguf(ref.path) ? KT_OK : refuse_file(ref.path, err);
    if (ref.kind == KT_MODEL_FOLDER)
        return is_gguf_model(ref.path) ? KT_OK : kt_model_need_config(ref.path, err);
    return kt_fail(err, KT_E_NOT_FOUND,
                   "model '%.100s': %s is bundled as a shape, without weights; expected a folder "
                   "with its checkpoint (`kt bench --synthetic %s` runs it with random ones)",
                   word, ref.name, ref.name);
}

static kt_status read_json(const kt_model_dir *d, const char *file, char path[PATH_MAX],
                           kt_json_doc **out, kt_err *err) {
    char *text = NULL;
    size_t size = 0;
    kt_status st;

    *out = NULL;
    if (snprintf(path, PATH_MAX, "%s/%s", d->folder, file) >= PATH_MAX)
        return kt_fail(err, KT_E_INVALID, "%.200s: path too long", d->folder);
    KT_TRY(kt_file_read(path, MAX_CONFIG_BYTES, &text, &size, err));
    st = kt_json_parse(text, size, NULL, out, err);
    free(text);
    return st == KT_OK ? KT_OK : kt_fail_prefix(err, st, "%.200s", path);
}

static kt_status read_gguf(kt_model_dir *d, bool with_draft, kt_err *err) {
    char arch[64];
    const char *text;
    size_t size;
    kt_graph_request request = {.checkpoint = d->checkpoint, .with_draft = with_draft};
    const kt_gguf_meta *meta = kt_checkpoint_gguf(d->checkpoint);

    if (kt_gguf_need_string(meta, "general.architecture", &text, &size, err) != KT_OK)
        return kt_fail_prefix(err, KT_E_FORMAT, "%.200s", d->folder);
    snprintf(arch, sizeof arch, "%.*s", (int)(size < 60 ? size : 60), text);
    request.source = (kt_config_source){.gguf = meta, .arch = arch, .where = d->folder};
    return kt_graph_build(&request, &d->graph, err);
}

/* How the weights are stored, where modelopt says so in a file of its own; else *out is NULL. */
static kt_status read_modelopt(const kt_model_dir *d, kt_json_doc **out, kt_err *err) {
    char path[PATH_MAX];

    *out = NULL;
    if (snprintf(path, sizeof path, "%s/hf_quant_config.json", d->folder) >= PATH_MAX ||
        access(path, F_OK) != 0)
        return KT_OK;
    return read_json(d, "hf_quant_config.json", path, out, err);
}

static kt_status read_config(kt_model_dir *d, bool with_draft, kt_err *err) {
    char path[PATH_MAX];
    kt_graph_request request = {.checkpoint = d->checkpoint, .with_draft = with_draft};
    kt_json_doc *doc, *modelopt;
    kt_err why;
    kt_status st;
    bool is_nested;

    KT_TRY(read_json(d, "config.json", path, &doc, err));
    is_nested = kt_nested_text(kt_json_root(doc)) != kt_json_root(doc);
    request.source = (kt_config_source){.json = kt_json_root(doc), .arch = "", .where = path};
    st = read_modelopt(d, &modelopt, err);
    if (modelopt) request.source.modelopt = kt_json_get(kt_json_root(modelopt), "quantization");
    if (st == KT_OK) st = kt_graph_build(&request, &d->graph, err);
    d->shape_id = kt_model_shape_id(kt_json_root(doc));
    kt_json_destroy(modelopt);
    kt_json_destroy(doc);
    KT_TRY(st);
    st = read_json(d, "generation_config.json", path, &doc, &why); /* optional */
    if (st == KT_E_NOMEM) return kt_fail(err, st, "%s", why.message);
    if (st != KT_OK) return KT_OK;
    if (is_nested) /* a wrapper and its text part name different ids: all of them end a text */
        kt_numbers_add_eos(kt_json_root(doc), &d->graph.numbers);
    else
        kt_numbers_read_eos(kt_json_root(doc), &d->graph.numbers);
    kt_json_destroy(doc);
    return KT_OK;
}

static kt_status read_dir(const char *folder, bool with_draft, kt_model_dir *out, kt_err *err) {
    KT_TRY(find_folder(out, folder, err));
    if (kt_checkpoint_open(out->folder, &out->checkpoint, &out->why) == KT_E_NOMEM)
        return kt_fail(err, KT_E_NOMEM, "%s", out->why.message);
    if (!is_gguf_model(out->folder)) return read_config(out, with_draft, err);
    if (out->checkpoint) return read_gguf(out, with_draft, err);
    return kt_fail(err, out->why.status, "%s", out->why.message);
}

static kt_status read_whole(const char *folder, bool with_draft, kt_model_dir *out, kt_err *err) {
    kt_status st;

    memset(out, 0, sizeof *out);
    st = read_dir(folder, with_draft, out, err);
    if (st != KT_OK) kt_model_dir_deinit(out);
    return st;
}

kt_status kt_model_dir_read(const char *folder, kt_model_dir *out, kt_err *err) {
    return read_whole(folder, false, out, err);
}

kt_status kt_model_dir_read_drafting(const char *folder, kt_model_dir *out, kt_err *err) {
    return read_whole(folder, true, out, err);
}

void kt_model_dir_deinit(kt_model_dir *dir) {
    kt_checkpoint_close(dir->checkpoint);
    kt_graph_deinit(&dir->graph);
    memset(dir, 0, sizeof *dir);
}

/* Of one plane, but where it begins. */
static kt_entry_layout layout_of(const kt_plane *p, kt_weight_format format) {
    const size_t rooms = p->ratio ? (size_t)kt_entry_rooms(p->ratio) : 0;
    kt_entry_layout l = {.row_bytes = (size_t)p->k * kt_attn_item_bytes(format)};

    l.scales_at = (rooms * l.row_bytes + 63) / 64 * 64;
    l.index_at = l.scales_at + (rooms * sizeof(float) + 63) / 64 * 64;
    l.bytes = l.index_at + (rooms * (size_t)p->index * sizeof(uint16_t) + 63) / 64 * 64;
    return l;
}

kt_entry_layout kt_model_entry_layout(const kt_graph *g, kt_weight_format format, int plane) {
    kt_entry_layout l = layout_of(&g->planes[plane], format);

    for (int i = 0; i < plane; i++) l.at += layout_of(&g->planes[i], format).bytes;
    return l;
}

kt_status kt_model_kv_shape(const kt_graph *g, kt_weight_format format, kt_kv_shape *out,
                            kt_err *err) {
    int64_t n_entries = 0;

    for (int i = 0; i < g->n_planes; i++) n_entries += g->planes[i].ratio > 0;
    *out = (kt_kv_shape){.format = format, .layers = g->n_planes};
    if (g->n_planes == n_entries) /* no rows of single tokens: the least cache of them there is */
        *out = (kt_kv_shape){.format = format, .layers = 1, .kv_heads = 1, .head_dim = 1};
    for (int i = 0; n_entries == g->n_planes && i < g->n_planes; i++)
        out->entry_bytes += layout_of(&g->planes[i], format).bytes;
    if (n_entries == g->n_planes) return KT_OK;
    for (int i = 0; i < g->n_planes; i++) {
        const kt_plane *p = &g->planes[i], *first = &g->planes[0];
        if (p->heads != first->heads || p->k != first->k || p->v != first->v ||
            (p->index && out->index_dim && p->index != out->index_dim) || p->ratio ||
            (p->v && p->v != p->k))
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "%s: layer %d keeps %lld heads of %lld and %lld numbers, layer %d keeps "
                           "%lld of %lld and %lld: caches of one kind are built so far",
                           g->family->name, p->layer, (long long)p->heads, (long long)p->k,
                           (long long)p->v, first->layer, (long long)first->heads,
                           (long long)first->k, (long long)first->v);
        out->kv_heads = p->heads;
        out->head_dim = p->k;
        out->has_shared_rows = p->v == 0;
        if (p->index) out->index_dim = p->index;
    }
    for (int i = 0; i < g->n_planes && out->index_dim; i++)
        if (!g->planes[i].index) out->bare[i / 64] |= (uint64_t)1 << (i % 64);
    return KT_OK;
}

_Static_assert(KT_KV_LAYERS >= KT_MAX_LAYERS, "every layer has a bit");

int64_t kt_model_slot_floats(const kt_graph *g, int slot) {
    return (g->slots[slot] + 15) / 16 * 16;
}

int64_t kt_model_state_floats(const kt_graph *g) {
    int64_t floats = 0;

    for (int i = 0; i < g->n_slots; i++) floats += kt_model_slot_floats(g, i);
    return floats;
}

kt_model_experts kt_model_count_experts(const kt_graph *g) {
    kt_model_experts e = {0};

    for (int i = 0; i < g->n_weights; i++) {
        const kt_weight *w = &g->weights[i];
        if (w->kind != KT_WEIGHT_EXPERTS || w->use != KT_USE_EXPERTS) continue;
        e.experts = w->count;
        e.topk = w->topk;
        e.layers++;
    }
    return e;
}
