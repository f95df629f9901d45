/* Layers: their life, calls, and what may change meanwhile. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "base/err.h"
#include "runtime/api/sized.h"
#include "runtime/exec/option_words.h"
#include "runtime/moe/moe_impl.h"

#define MAX_SIZE ((int64_t)1 << 20) /* of a token, an expert, or the number of experts */

/* ---- life ---- */

void kt_moe_options_init(kt_moe_options *options, size_t size) {
    const kt_moe_options initial = {.size = size, .weights = "native", .activation = "swiglu"};

    memset(options, 0, size);
    memcpy(options, &initial, size < sizeof initial ? size : sizeof initial);
}

static kt_status check_size(const char *name, int64_t value, int64_t most, kt_err *err) {
    if (value >= 1 && value <= most) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "kt_moe_options: %s is %lld, expected 1 to %lld", name,
                   (long long)value, (long long)most);
}

/* The rule of an activation's word and numbers. */
static kt_status read_activation(const kt_moe_options *o, kt_glu_rule *out, kt_err *err) {
    const char *word = o->activation ? o->activation : "";
    const bool is_oai = strcmp(word, "swigluoai") == 0;

    if (!is_oai && strcmp(word, "swiglu") != 0)
        return kt_fail(err, KT_E_UNSUPPORTED, "activation '%.40s', expected swiglu or swigluoai",
                       word);
    if (!(o->swiglu_limit >= 0 && o->swiglu_limit < INFINITY) ||
        !(o->swiglu_alpha >= 0 && o->swiglu_alpha < INFINITY) ||
        (is_oai ? o->swiglu_limit == 0 || o->swiglu_alpha == 0 : o->swiglu_alpha != 0))
        return kt_fail(err, KT_E_INVALID,
                       "activation %s with swiglu_limit %g and swiglu_alpha %g, expected %s", word,
                       (double)o->swiglu_limit, (double)o->swiglu_alpha,
                       is_oai ? "both over 0" : "a limit of 0 or more and no alpha");
    out->kind = is_oai ? KT_GLU_OAI : o->swiglu_limit > 0 ? KT_GLU_CLAMP_SILU : KT_GLU_SILU;
    out->limit = o->swiglu_limit;
    out->alpha = o->swiglu_alpha;
    return KT_OK;
}

static kt_status read_options(const kt_moe_options *from, kt_moe_options *o, int *quant,
                              kt_err *err) {
    kt_moe_options_init(o, sizeof *o);
    KT_TRY(kt_sized_take(o, sizeof *o, from, "kt_moe_options", err));
    if (!o->max_tokens) o->max_tokens = 512;
    KT_TRY(check_size("experts", o->experts, MAX_SIZE, err));
    KT_TRY(check_size("topk", o->topk, KT_MOE_MAX_TOPK, err));
    KT_TRY(check_size("hidden", o->hidden, MAX_SIZE, err));
    KT_TRY(check_size("intermediate", o->intermediate, MAX_SIZE, err));
    KT_TRY(check_size("max_tokens", o->max_tokens, 65536, err));
    if (o->topk > o->experts)
        return kt_fail(err, KT_E_INVALID, "kt_moe_options: topk is %lld of %lld experts",
                       (long long)o->topk, (long long)o->experts);
    *quant = o->weights ? kt_quant_parse(o->weights) : -1;
    if (*quant >= 0) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "weights '%.40s', expected " KT_QUANT_WORDS,
                   o->weights ? o->weights : "");
}

kt_status kt_moe_create(kt_moe_team *team, const kt_moe_options *options, kt_moe **out,
                        kt_err *err) {
    kt_moe_options o;
    kt_glu_rule glu;
    kt_moe *m;
    int quant = -1;

    *out = NULL;
    if (!team) return kt_fail(err, KT_E_INVALID, "kt_moe_create: team is NULL");
    KT_TRY(read_options(options, &o, &quant, err));
    KT_TRY(read_activation(&o, &glu, err));
    m = calloc(1, sizeof *m);
    if (m) m->rows_of = calloc((size_t)o.experts, sizeof *m->rows_of);
    if (!m || !m->rows_of) {
        free(m);
        return kt_fail(err, KT_E_NOMEM, "no memory for a layer of %lld experts",
                       (long long)o.experts);
    }
    m->team = team;
    m->experts = m->n_ids = o.experts;
    m->topk = o.topk;
    m->hidden = o.hidden;
    m->intermediate = o.intermediate;
    m->max_tokens = o.max_tokens;
    m->quant = (kt_quant)quant;
    m->glu = glu;
    atomic_fetch_add(&team->references, 1);
    *out = m;
    return KT_OK;
}

static void do_end(void *arg) {
    kt_moe *m = arg;

    kt_moe_weights_destroy(m->weights);
    free(m->map);
    free(m->mask);
    free(m->rows_of);
    kt_moe_records_free(m);
}

void kt_moe_destroy(kt_moe *m) {
    kt_moe_team *team;

    if (!m) return;
    team = m->team;
    kt_moe_team_do(team, do_end, m);
    free(m);
    kt_moe_team_release(team);
}

/* ---- calls ---- */

static kt_status check_types(const kt_moe *m, const kt_moe_rows *r, kt_err *err) {
    if (r->tokens < 0 || r->tokens > (int64_t)1 << 30)
        return kt_fail(err, KT_E_INVALID, "%lld tokens, expected 0 to %d", (long long)r->tokens,
                       1 << 30);
    if (r->tokens && (!r->x || !r->expert_id || !r->route_weight || !r->out))
        return kt_fail(err, KT_E_INVALID, "x, expert_id, route_weight or out is NULL");
    if ((r->x_type != KT_MOE_F32 && r->x_type != KT_MOE_BF16) ||
        (r->out_type != KT_MOE_F32 && r->out_type != KT_MOE_BF16) ||
        (r->id_bytes != 4 && r->id_bytes != 8))
        return kt_fail(err, KT_E_INVALID,
                       "x_type %d, out_type %d, id_bytes %d, expected F32 or BF16 and 4 or 8",
                       (int)r->x_type, (int)r->out_type, (int)r->id_bytes);
    if ((r->ldx && r->ldx < m->hidden) || (r->ldo && r->ldo < m->hidden))
        return kt_fail(err, KT_E_INVALID, "ldx %lld, ldo %lld, expected 0 or at least %lld",
                       (long long)r->ldx, (long long)r->ldo, (long long)m->hidden);
    if (r->n_deferred < 0 || r->n_deferred > m->topk || (r->n_deferred && !r->deferred_out))
        return kt_fail(err, KT_E_INVALID,
                       "n_deferred %d with deferred_out %s, expected 0 to %lld and a place",
                       (int)r->n_deferred, r->deferred_out ? "given" : "NULL", (long long)m->topk);
    return KT_OK;
}

/* Ids that the map of now does not have are told here; one that a later map takes away is skipped.
 */
static kt_status check_ids(const kt_moe *m, const kt_moe_rows *r, int64_t n_ids, kt_err *err) {
    for (int64_t i = 0; i < r->tokens * m->topk; i++) {
        const int64_t id = r->id_bytes == 8 ? ((const int64_t *)r->expert_id)[i]
                                            : ((const int32_t *)r->expert_id)[i];
        if (id < -1 || id >= n_ids)
            return kt_fail(err, KT_E_INVALID,
                           "token %lld: expert_id %lld, expected -1 (none) to %lld",
                           (long long)(i / m->topk), (long long)id, (long long)n_ids - 1);
    }
    return KT_OK;
}

kt_status kt_moe_submit(kt_moe *m, const kt_moe_rows *rows, uint64_t *ticket, kt_err *err) {
    kt_moe_item item = {
        .moe = m, .rows = *rows, .part = rows->n_deferred ? KT_MOE_NOW : KT_MOE_ALL};
    kt_moe_item later;
    bool is_loaded;
    int64_t n_ids;

    KT_TRY(check_types(m, rows, err));
    pthread_mutex_lock(&m->team->lock);
    is_loaded = m->weights != NULL;
    n_ids = m->n_ids;
    pthread_mutex_unlock(&m->team->lock);
    if (!is_loaded) return kt_fail(err, KT_E_INVALID, "the layer has no weights yet (kt_moe_load)");
    later = item;
    later.part = KT_MOE_LATER;
    later.rows.out = rows->deferred_out;
    later.rows.accumulate = false;
    if (rows->stream) return kt_moe_stream_submit(m, &item, &later, ticket, err);
    KT_TRY(check_ids(m, rows, n_ids, err));
    *ticket = kt_moe_team_put(m->team, &item, rows->n_deferred ? &later : NULL);
    return KT_OK;
}

void kt_moe_sync(kt_moe *m, uint64_t ticket) {
    kt_moe_team_wait(m->team, ticket);
}

kt_status kt_moe_forward(kt_moe *m, const kt_moe_rows *rows, kt_err *err) {
    uint64_t ticket;

    if (rows->stream)
        return kt_fail(err, KT_E_INVALID,
                       "kt_moe_forward: stream %p, expected NULL (kt_moe_submit takes one)",
                       rows->stream);
    KT_TRY(kt_moe_submit(m, rows, &ticket, err));
    kt_moe_team_wait(m->team, ticket + (rows->n_deferred > 0));
    return KT_OK;
}

/* ---- while serving ---- */

typedef struct change {
    kt_moe *moe;
    int32_t *map;
    uint8_t *mask;
    int64_t n_ids;
} change;

static void do_set_map(void *arg) {
    change *c = arg;
    kt_moe *m = c->moe;

    free(m->map);
    free(m->mask);
    m->mask = NULL;
    pthread_mutex_lock(&m->team->lock);
    m->map = c->map;
    m->n_ids = c->n_ids;
    pthread_mutex_unlock(&m->team->lock);
}

kt_status kt_moe_set_map(kt_moe *m, const int32_t *map, int64_t n, kt_err *err) {
    change c = {.moe = m, .n_ids = map ? n : m->experts};

    for (int64_t i = 0; map && i < n; i++)
        if (map[i] < 0 || map[i] >= m->experts)
            return kt_fail(err, KT_E_INVALID, "map[%lld] is %d, expected 0 to %lld", (long long)i,
                           map[i], (long long)m->experts - 1);
    if (map && (n < 1 || n > MAX_SIZE))
        return kt_fail(err, KT_E_INVALID, "a map of %lld ids, expected 1 to %lld", (long long)n,
                       (long long)MAX_SIZE);
    if (map) {
        c.map = malloc((size_t)n * sizeof *c.map);
        if (!c.map)
            return kt_fail(err, KT_E_NOMEM, "no memory for a map of %lld ids", (long long)n);
        memcpy(c.map, map, (size_t)n * sizeof *c.map);
    }
    kt_moe_team_do(m->team, do_set_map, &c);
    return KT_OK;
}

static void do_set_mask(void *arg) {
    change *c = arg;

    free(c->moe->mask);
    c->moe->mask = c->mask;
}

kt_status kt_moe_set_mask(kt_moe *m, const uint8_t *mask, kt_err *err) {
    change c = {.moe = m};

    pthread_mutex_lock(&m->team->lock);
    c.n_ids = m->n_ids;
    pthread_mutex_unlock(&m->team->lock);
    if (mask) {
        c.mask = malloc((size_t)c.n_ids);
        if (!c.mask)
            return kt_fail(err, KT_E_NOMEM, "no memory for a mask of %lld ids", (long long)c.n_ids);
        memcpy(c.mask, mask, (size_t)c.n_ids);
    }
    kt_moe_team_do(m->team, do_set_mask, &c);
    return KT_OK;
}

typedef struct counting {
    kt_moe *moe;
    kt_moe_counts counts;
    int64_t *rows;
} counting;

static void do_count(void *arg) {
    counting *c = arg;

    c->counts = c->moe->counts;
    c->counts.memory_nodes = c->moe->weights ? c->moe->weights->n_nodes : 0;
    if (c->rows) memcpy(c->rows, c->moe->rows_of, (size_t)c->moe->experts * sizeof *c->rows);
}

kt_status kt_moe_count(kt_moe *m, kt_moe_counts *out, int64_t *rows, kt_err *err) {
    counting c = {.moe = m, .rows = rows};

    kt_moe_team_do(m->team, do_count, &c);
    return kt_sized_give(out, &c.counts, sizeof c.counts, "kt_moe_counts", err);
}
