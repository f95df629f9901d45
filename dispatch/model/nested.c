/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/nested.h"

#include <string.h>

#include "base/err.h"

const kt_json *kt_nested_text(const kt_json *root) {
    const kt_json *text = kt_json_get(root, "text_config");

    return kt_json_type_of(text) == KT_JSON_OBJECT ? text : root;
}

kt_config_source kt_nested_source(const kt_config_source *source) {
    kt_config_source s = *source;

    if (!s.json || s.outer) return s;
    s.json = kt_nested_text(source->json);
    if (s.json != source->json) s.outer = source->json;
    return s;
}

/* ---- names ---- */

/* Parts of a name that belong to something else than the body of the language model. */
static const char *const aside[] = {
    "layers",      "mtp",          "visual",          "vision_tower",         "vision_model",
    "audio_tower", "mm_projector", "patch_merge_mlp", "multi_modal_projector"};

static bool is_aside(const char *name, size_t size) {
    for (size_t at = 0; at < size;) {
        const size_t part = strcspn(name + at, ".");
        for (size_t i = 0; i < sizeof aside / sizeof *aside; i++)
            if (strlen(aside[i]) == part && memcmp(aside[i], name + at, part) == 0) return true;
        at += part + 1;
    }
    return false;
}

/* Does a name end in `end`, as whole parts? Then what is before, its bytes. */
static bool has_end(const char *name, const char *end, size_t *before) {
    const size_t size = strlen(name), tail = strlen(end);

    if (size < tail || strcmp(name + size - tail, end) != 0) return false;
    *before = size - tail;
    return *before == 0 || name[*before - 1] == '.';
}

/* The tensor of that end outside of other towers, or NULL. */
static kt_status find_end(const kt_checkpoint *c, const char *end, const char **name,
                          size_t *before, kt_err *err) {
    *name = NULL;
    for (size_t i = 0; i < kt_checkpoint_count(c); i++) {
        const char *here = kt_checkpoint_at(c, i)->name;
        size_t size;
        if (!has_end(here, end, &size) || is_aside(here, size)) continue;
        if (*name)
            return kt_fail(err, KT_E_FORMAT,
                           "%.200s: tensors '%.100s' and '%.100s', expected one that ends in %s",
                           kt_checkpoint_file(c, 0), *name, here, end);
        *name = here;
        *before = size;
    }
    return KT_OK;
}

static kt_status keep(kt_graph *g, const char *name, size_t size, const char **out, kt_err *err) {
    *out = kt_arena_strndup(&g->arena, name, size);
    return *out ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for the names of a model");
}

kt_status kt_nested_names(kt_graph *g, const kt_checkpoint *c, kt_err *err) {
    static const char *const heads[] = {"lm_head.weight", "lm_head.weight_packed",
                                        "lm_head.qweight"};
    const char *name;
    size_t before = 0;

    KT_TRY(find_end(c, "embed_tokens.weight", &name, &before, err));
    if (!name) KT_TRY(find_end(c, "embed.weight", &name, &before, err));
    if (name) KT_TRY(keep(g, name, before, &g->body, err));
    name = NULL;
    for (size_t i = 0; !name && i < sizeof heads / sizeof *heads; i++)
        KT_TRY(find_end(c, heads[i], &name, &before, err));
    return name ? keep(g, name, before, &g->above, err) : KT_OK;
}
