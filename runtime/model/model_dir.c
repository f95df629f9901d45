/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/model/model_dir.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/err.h"
#include "dispatch/model/mistakes.h"
#include "dispatch/model/resolve.h"
#include "runtime/loader/gguf_tensors.h"
#include "runtime/model/model_plan.h"

#define MAX_CONFIG_BYTES ((size_t)16 << 20)

#define MOST_LAYERS 4096

/* Expert layers, and the formats that they mix. */
static kt_status look_at_experts(const kt_gguf_tensor *list, size_t count, int64_t *layers,
                                 unsigned *formats, kt_err *err) {
    *layers = 0;
    *formats = 0;
    for (int64_t l = 0; l < MOST_LAYERS; l++) {
        kt_gguf_experts e;
        kt_status st = kt_gguf_experts_find(list, count, l, &e, err);
        if (st == KT_E_NOT_FOUND) continue;
        KT_TRY(st);
        *formats |= 1u << e.gate->format | 1u << e.down->format;
        ++*layers;
    }
    return KT_OK;
}

/* What a GGUF file is, and that it is not the way to a model here. */
static kt_status refuse_gguf(const char *path, const kt_mapping *file, kt_err *err) {
    kt_gguf_meta meta;
    kt_gguf_tensor *list = NULL;
    const char *family = "";
    char names[200] = "";
    size_t count = 0, size = 0, used = 0;
    int64_t layers = 0;
    unsigned formats = 0;
    kt_status st = kt_gguf_meta_init(&meta, file->data, file->bytes, err);

    if (st != KT_OK) return kt_fail_prefix(err, st, "%.200s", path);
    if (kt_gguf_int(&meta, "split.no", 0) > 0) {
        st = kt_fail(err, KT_E_UNSUPPORTED,
                     "%.200s: part %lld of %lld of a GGUF file, give the first", path,
                     (long long)kt_gguf_int(&meta, "split.no", 0) + 1,
                     (long long)kt_gguf_int(&meta, "split.count", 0));
        kt_gguf_meta_deinit(&meta);
        return st;
    }
    st = kt_gguf_tensors_read(&meta, &list, &count, err);
    if (st == KT_OK) st = look_at_experts(list, count, &layers, &formats, err);
    if (st == KT_OK) st = kt_gguf_need_string(&meta, "general.architecture", &family, &size, err);
    if (st != KT_OK) kt_fail_prefix(err, st, "%.200s", path);
    for (int f = 0; f < KT_W_COUNT && used < sizeof names - 32; f++)
        if (formats & 1u << f)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "",
                                     kt_weight_format_name((kt_weight_format)f));
    if (st == KT_OK)
        st =
            kt_fail(err, KT_E_UNSUPPORTED,
                    "%.200s: a GGUF file (%.*s, %lld layers of experts%s%s): expected the folder "
                    "of a safetensors checkpoint; kernels for these formats exist, loading a whole "
                    "model from such a file does not",
                    path, (int)(size < 40 ? size : 40), family, (long long)layers,
                    *names ? " in " : "", names);
    free(list);
    kt_gguf_meta_deinit(&meta);
    return st;
}

/* A path that is no folder: people try the file itself. */
static kt_status refuse_file(const char *path, kt_err *err) {
    kt_mapping file;
    const char *what;
    kt_status st;

    KT_TRY(kt_mapping_open(path, &file, err));
    what = kt_model_mistake(file.data, file.bytes);
    if (file.bytes >= 4 && memcmp(file.data, "GGUF", 4) == 0)
        st = refuse_gguf(path, &file, err);
    else
        st = kt_fail(err, KT_E_INVALID, "%.200s: %s, expected the folder of a checkpoint", path,
                     what ? what : "a file");
    kt_mapping_close(&file);
    return st;
}

static kt_status find_folder(kt_model_dir *d, const char *word, kt_err *err) {
    kt_model_ref ref;

    KT_TRY(kt_model_resolve(word ? word : "", KT_MODEL_ANY, &ref, err));
    strcpy(d->folder, ref.path);
    strcpy(d->name, ref.name);
    if (ref.kind == KT_MODEL_FILE) return refuse_file(ref.path, err);
    if (ref.kind == KT_MODEL_FOLDER) return kt_model_need_config(ref.path, err);
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

static kt_status read_dir(const char *folder, kt_model_dir *out, kt_err *err) {
    char path[PATH_MAX];
    kt_json_doc *doc;
    kt_err why;
    kt_status st;

    KT_TRY(find_folder(out, folder, err));
    KT_TRY(read_json(out, "config.json", path, &doc, err));
    st = kt_family_find(kt_json_root(doc), path, &out->family, err);
    if (st == KT_OK) st = out->family->configure(kt_json_root(doc), path, &out->config, err);
    out->shape_id = kt_model_shape_id(kt_json_root(doc));
    kt_json_destroy(doc);
    KT_TRY(st);
    st = read_json(out, "generation_config.json", path, &doc, &why); /* optional */
    if (st == KT_E_NOMEM) return kt_fail(err, st, "%s", why.message);
    if (st != KT_OK) return KT_OK;
    kt_config_read_eos(kt_json_root(doc), &out->config);
    kt_json_destroy(doc);
    return KT_OK;
}

kt_status kt_model_dir_read(const char *folder, kt_model_dir *out, kt_err *err) {
    kt_status st;

    memset(out, 0, sizeof *out);
    st = read_dir(folder, out, err);
    if (st != KT_OK) memset(out, 0, sizeof *out);
    return st;
}

kt_kv_shape kt_model_dir_kv(const kt_model_dir *dir, kt_weight_format format) {
    const kt_model_config *c = &dir->config;
    return (kt_kv_shape){format, c->layers, c->kv_heads, c->head_dim};
}

static kt_status plan_needs(const kt_model_dir *dir, kt_planner *planner, kt_model_needs *out,
                            kt_err *err) {
    kt_model_plan *plan = malloc(sizeof *plan);
    kt_status st = plan ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for a plan");

    for (int q = KT_QUANT_NATIVE; q <= KT_QUANT_INT4 && st == KT_OK; q++) {
        st = kt_model_plan_make(planner, &dir->config, (kt_quant)q, KT_W_BF16, 1, 1, 1, plan, err);
        if (st == KT_OK) out->weight_bytes[q] = kt_model_plan_weight_bytes(plan, &dir->config);
    }
    if (st != KT_OK) memset(out, 0, sizeof *out);
    free(plan);
    return st;
}

kt_status kt_model_dir_needs(const kt_model_dir *dir, kt_model_needs *out, kt_err *err) {
    kt_kv_shape cache = kt_model_dir_kv(dir, KT_W_BF16);
    kt_registry *registry = NULL;
    kt_planner *planner = NULL;
    kt_fingerprint machine = {0};
    kt_status st;

    memset(out, 0, sizeof *out);
    st = kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, kt_isa_available(),
                            &registry, err);
    if (st == KT_OK) st = kt_planner_create(registry, NULL, &machine, NULL, &planner, err);
    if (st == KT_OK) st = plan_needs(dir, planner, out, err);
    if (st == KT_OK) out->cache_bytes_per_token = kt_kv_cache_bytes(&cache, 1);
    kt_planner_destroy(planner);
    kt_registry_destroy(registry);
    return st;
}
