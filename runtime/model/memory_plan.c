/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/memory_plan.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/needs.h"
#include "dispatch/topology/topology.h"
#include "runtime/exec/step_bytes.h"
#include "runtime/exec/batch.h"
#include "runtime/kv/kv_plan.h"
#include "runtime/model/bytes.h"
#include "runtime/model/model_dir.h"
#include "runtime/model/staging.h"

#define GIB (1024.0 * 1024.0 * 1024.0)
#define HUGE_PAGE ((size_t)2 << 20) /* what base/buffer.c maps by */

const char *kt_memory_part_name(kt_memory_part part) {
    static const char *const names[] = {"embedding",
                                        "attention",
                                        "routed experts",
                                        "shared experts",
                                        "dense feed-forward",
                                        "head",
                                        "routers and norms",
                                        "rounding to pages",
                                        "staging while loading",
                                        "working memory",
                                        "cache",
                                        "logits"};

    _Static_assert(sizeof names / sizeof *names == KT_MEMORY_PARTS, "every part has a name");
    return names[part];
}

const char *kt_quant_word(kt_quant quant) {
    static const char *const words[KT_MEMORY_CHOICES] = {"native", "bf16", "int8", "int4"};
    return quant < KT_MEMORY_CHOICES ? words[quant] : "this format";
}

/* ---- one count ---- */

static kt_memory_part part_of(const kt_graph *g, const kt_weight *w) {
    if (w->kind == KT_WEIGHT_TABLE) return KT_MEMORY_EMBEDDING;
    if (w->kind == KT_WEIGHT_VECTOR || w->kind == KT_WEIGHT_ROUTER) return KT_MEMORY_SMALL;
    if (w->use == KT_USE_EXPERTS) return KT_MEMORY_EXPERTS;
    if (w->use == KT_USE_HEAD) return KT_MEMORY_HEAD;
    if (w->use != KT_USE_FFN) return KT_MEMORY_ATTENTION;
    return kt_graph_experts(g, w->layer) ? KT_MEMORY_SHARED : KT_MEMORY_DENSE;
}

/* The loader takes one buffer for each layer and one for what is outside. */
static void count_weights(const kt_model_plan *plan, kt_memory_plan *out) {
    const kt_graph *g = plan->graph;
    size_t layer[KT_MAX_LAYERS + 1] = {0}, *rounding = &out->bytes[KT_MEMORY_ROUNDING];

    for (int i = 0; i < g->n_weights; i++) {
        const kt_weight *w = &g->weights[i];
        const size_t bytes = kt_model_plan_bytes(plan, i);
        size_t *part = &out->bytes[part_of(g, w)];
        size_t *of = &layer[w->layer < 0 ? KT_MAX_LAYERS : w->layer];
        *part = kt_bytes_add(*part, bytes);
        *of = kt_bytes_add(*of, bytes);
        out->weights = kt_bytes_add(out->weights, bytes);
    }
    for (int i = 0; i <= KT_MAX_LAYERS; i++)
        *rounding += (HUGE_PAGE - layer[i] % HUGE_PAGE) % HUGE_PAGE;
    out->weights = kt_bytes_add(out->weights, *rounding);
}

/* What is there beside the weights while sequences of this length run. */
static kt_status count_running(const kt_memory_request *r, int64_t context, kt_memory_plan *out,
                               size_t *sum, kt_err *err) {
    const kt_graph *g = r->plan->graph;
    kt_kv_shape shape;
    kt_kv_sizes sizes;
    kt_kv_plan kv;

    KT_TRY(kt_model_kv_shape(g, r->plan->kv, &shape, err));
    sizes = kt_kv_sizes_of(&shape, kt_model_state_floats(g));
    KT_TRY(kt_step_bytes(r->plan, r->n_nodes, context, &out->bytes[KT_MEMORY_STEP], err));
    if (r->kv_memory)
        kt_kv_plan_within(sizes, r->kv_memory, &kv);
    else if (!kt_kv_plan_least(sizes, context, &kv))
        kv.bytes = SIZE_MAX;
    out->bytes[KT_MEMORY_CACHE] = r->is_cache_away ? r->behind : kv.bytes;
    out->cached = r->kv_memory ? kv.pages * KT_PAGE_TOKENS : context;
    out->bytes[KT_MEMORY_LOGITS] = kt_bytes_times(
        kt_bytes_times(sizeof(float), r->logit_rows > 0 ? r->logit_rows : 1), g->numbers.vocab);
    *sum = kt_bytes_add(out->bytes[KT_MEMORY_STEP], out->bytes[KT_MEMORY_CACHE]);
    *sum = kt_bytes_add(*sum, out->bytes[KT_MEMORY_LOGITS]);
    return KT_OK;
}

/* The longest context in [1, the model's] whose memory is there; more tokens never take less. */
static kt_status find_longest(const kt_memory_request *r, kt_memory_plan *out, kt_err *err) {
    int64_t fits = 0, too_long = r->plan->graph->numbers.max_context + 1;

    if (kt_bytes_add(out->weights, out->bytes[KT_MEMORY_STAGING]) > r->available) return KT_OK;
    while (too_long - fits > 1) {
        const int64_t middle = fits + (too_long - fits) / 2;
        kt_memory_plan with = {0};
        size_t running;
        KT_TRY(count_running(r, middle, &with, &running, err));
        if (kt_bytes_add(out->weights, running) <= r->available && middle <= with.cached)
            fits = middle;
        else
            too_long = middle;
    }
    out->longest = fits;
    return KT_OK;
}

/* Of what weights, a step and logits leave. After find_longest. */
static kt_status count_pool(const kt_memory_request *r, kt_memory_plan *p, kt_err *err) {
    const kt_graph *g = r->plan->graph;
    const size_t fixed = p->weights + p->bytes[KT_MEMORY_STEP] + p->bytes[KT_MEMORY_LOGITS];
    const uint64_t rest = fixed < r->available ? r->available - fixed : 0;
    const bool is_longer = r->takes_longest && p->longest > r->context;
    kt_kv_shape shape;

    if (!kt_memory_fits(p)) return KT_OK;
    KT_TRY(kt_model_kv_shape(g, r->plan->kv, &shape, err));
    if (!kt_kv_plan_pool(kt_kv_sizes_of(&shape, kt_model_state_floats(g)),
                         is_longer ? p->longest : r->context, r->kv_memory, rest, &p->pool))
        p->pool = (kt_kv_plan){0};
    return KT_OK;
}

static kt_status count(const kt_memory_request *r, kt_memory_plan *p, kt_err *err) {
    kt_staging staging;
    size_t running;

    count_weights(r->plan, p);
    kt_staging_count(r->plan, r->n_nodes, r->plan->threads, &staging);
    p->bytes[KT_MEMORY_STAGING] = staging.total;
    KT_TRY(count_running(r, r->context, p, &running, err));
    p->needed = kt_bytes_add(p->weights, staging.total > running ? staging.total : running);
    if (p->needed == SIZE_MAX)
        return kt_fail(err, KT_E_UNSUPPORTED, "%s: its memory is too large to count",
                       r->plan->graph->family->name);
    KT_TRY(find_longest(r, p, err));
    return count_pool(r, p, err);
}

kt_status kt_memory_plan_make(const kt_memory_request *r, kt_memory_plan *out, kt_err *err) {
    kt_memory_plan p = {.available = r->available, .context = r->context};

    memset(out, 0, sizeof *out);
    KT_TRY(count(r, &p, err));
    *out = p;
    return KT_OK;
}

/* ---- other weights ---- */

static kt_status count_choice(const kt_memory_request *r, kt_planner *planner, kt_quant quant,
                              kt_memory_plan *out, kt_err *err) {
    const kt_model_plan *p = r->plan;
    kt_memory_request with = *r;
    kt_model_plan plan;
    kt_status st;

    KT_TRY(kt_graph_check_quant(p->graph, quant, "the model", err));
    KT_TRY(kt_model_plan_make(planner, p->graph, quant, p->kv, p->threads, p->max_rows,
                              p->max_context, &plan, err));
    with.plan = &plan;
    st = kt_memory_plan_make(&with, out, err);
    kt_model_plan_deinit(&plan);
    return st;
}

kt_status kt_memory_survey(const kt_memory_request *r, kt_memory_choice out[KT_MEMORY_CHOICES],
                           kt_err *err) {
    kt_registry *registry = NULL;
    kt_planner *planner = NULL;
    kt_fingerprint machine = {0};
    kt_status st = kt_registry_create(kt_builtin_variants, kt_builtin_variant_count,
                                      kt_isa_available(), &registry, err);

    memset(out, 0, KT_MEMORY_CHOICES * sizeof *out);
    if (st == KT_OK) st = kt_planner_create(registry, NULL, &machine, NULL, &planner, err);
    for (int q = 0; q < KT_MEMORY_CHOICES && st == KT_OK; q++) {
        kt_err why = {KT_OK, ""};
        out[q].quant = (kt_quant)q;
        st = count_choice(r, planner, (kt_quant)q, &out[q].plan, &why);
        out[q].why = why;
        if (st != KT_E_NOMEM) st = KT_OK;
        if (st != KT_OK) kt_fail(err, st, "%s", why.message);
    }
    if (st != KT_OK) memset(out, 0, KT_MEMORY_CHOICES * sizeof *out);
    kt_planner_destroy(planner);
    kt_registry_destroy(registry);
    return st;
}

/* ---- words ---- */

static double gib(size_t bytes) {
    return (double)bytes / GIB;
}

/* Which other weights would fit, and how much then. */
static void advise(const kt_memory_request *r, char *out, size_t out_bytes) {
    const char *before = "; try --weights ";
    kt_memory_choice choices[KT_MEMORY_CHOICES];
    size_t used = 0;

    snprintf(out, out_bytes, "; no format is small enough");
    if (kt_memory_survey(r, choices, NULL) != KT_OK) return;
    for (int q = KT_QUANT_BF16; q < KT_MEMORY_CHOICES && used < out_bytes; q++) {
        const kt_memory_plan *p = &choices[q].plan;
        if ((kt_quant)q == r->plan->quant || choices[q].why.status != KT_OK || p->longest == 0)
            continue;
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s (%.1f GiB", before,
                                 kt_quant_word((kt_quant)q), gib(p->weights));
        if (p->longest < r->context && used < out_bytes)
            used += (size_t)snprintf(out + used, out_bytes - used, ", --context %lld",
                                     (long long)p->longest);
        if (used < out_bytes) used += (size_t)snprintf(out + used, out_bytes - used, ")");
        before = " or ";
    }
}

kt_status kt_memory_check(const kt_memory_request *r, const char *name, kt_err *err) {
    kt_memory_plan p;
    char advice[200];

    KT_TRY(kt_memory_plan_make(r, &p, err));
    if (kt_memory_fits(&p)) return KT_OK;
    if (p.longest)
        snprintf(advice, sizeof advice, "; try --context %lld", (long long)p.longest);
    else
        advise(r, advice, sizeof advice);
    return kt_fail(err, KT_E_NOMEM,
                   "%.100s: needs %.1f GiB of memory (weights %.1f, staging while loading %.1f, or "
                   "then working memory %.1f, cache of %lld tokens %.1f), %.1f GiB are available%s",
                   name, gib(p.needed), gib(p.weights), gib(p.bytes[KT_MEMORY_STAGING]),
                   gib(p.bytes[KT_MEMORY_STEP]), (long long)p.context,
                   gib(p.bytes[KT_MEMORY_CACHE]), (double)p.available / GIB, advice);
}

char *kt_memory_line(const kt_memory_plan *p, char *out, size_t out_bytes) {
    const double available = (double)p->available / GIB;

    snprintf(
        out, out_bytes,
        "memory: %.2f GiB (weights %.2f, working memory %.2f, cache of %lld tokens %.2f, logits "
        "%.2f); %.2f of %.2f GiB remain; pool of %lld pages: %lld tokens, %.2f GiB",
        gib(p->needed), gib(p->weights), gib(p->bytes[KT_MEMORY_STEP]), (long long)p->cached,
        gib(p->bytes[KT_MEMORY_CACHE]), gib(p->bytes[KT_MEMORY_LOGITS]), available - gib(p->needed),
        available, (long long)p->pool.pages, (long long)p->pool.pages * KT_PAGE_TOKENS,
        gib(p->pool.bytes));
    return out;
}
