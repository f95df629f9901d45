/* Making an engine out of a model folder and this machine. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/exec/engine.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/shell_word.h"
#include "dispatch/model/needs.h"
#include "runtime/device/device_run.h"
#include "runtime/exec/engine_device.h"
#include "runtime/exec/engine_draft.h"
#include "runtime/exec/engine_impl.h"
#include "runtime/exec/roofline.h"
#include "runtime/model/synthetic_model.h"
#include "runtime/token/known_tokens.h"

#define MAX_CPUS 1024
#define GIB (1024.0 * 1024.0 * 1024.0)
#define MOST_WORD 300 /* of a path in a command: the message has 511 bytes */

/* ---- the folder ---- */

static kt_status check_draft_head(const kt_engine *e, kt_err *err) {
    const kt_model_dir *m = &e->model;

    if (kt_engine_has_draft_head(e)) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED,
                   "%.200s: no draft head (MTP) that is known of '%s'; drafts can be looked up "
                   "in the text instead",
                   m->name, m->graph.family->name);
}

static kt_status read_model(kt_engine *e, const kt_engine_options *o, kt_err *err) {
    e->is_synthetic = o->synthetic != NULL;
    if (e->is_synthetic)
        return kt_synthetic_dir(o->synthetic, o->synthetic_layers, kt_quant_format(o->weights),
                                &e->model, &e->layers_of_all, err);
    if (o->with_draft_head)
        KT_TRY(kt_model_dir_read_drafting(o->model_dir, &e->model, err));
    else
        KT_TRY(kt_model_dir_read(o->model_dir, &e->model, err));
    e->layers_of_all = e->model.graph.numbers.layers;
    return o->with_draft_head ? check_draft_head(e, err) : KT_OK;
}

/* A tokenizer that is not the published one may still be meant (somebody's own tokens): a
 * warning, unless asked. */
static kt_status check_tokenizer(const kt_engine *e, bool is_strict, kt_err *err) {
    const kt_model_dir *m = &e->model;
    const int64_t vocab = m->graph.numbers.vocab;
    kt_err why = {KT_OK, ""};
    kt_status st = kt_tokenizer_fits(e->tokenizer, vocab, err);

    if (st != KT_OK) return kt_fail_prefix(err, st, "%.200s", m->folder);
    st = kt_tokenizer_check(e->tokenizer, m->graph.family, vocab, &why);
    if (st == KT_OK) return KT_OK;
    if (is_strict) return kt_fail(err, st, "%.200s: %s", m->folder, why.message);
    kt_log_write(&e->log, KT_LOG_WARN, "tokenizer", "%.200s: %s", m->folder, why.message);
    return KT_OK;
}

static kt_status read_tokenizer(kt_engine *e, const kt_engine_options *o, kt_err *err) {
    const kt_model_dir *m = &e->model;
    kt_err why = {KT_OK, ""};
    kt_status st = KT_E_NOT_FOUND;

    if (!e->is_synthetic)
        st = kt_tokenizer_load(m->graph.is_gguf ? kt_checkpoint_file(m->checkpoint, 0) : m->folder,
                               &e->tokenizer, &why);
    if (st == KT_E_NOT_FOUND && o->made_up_tokens)
        return kt_tokenizer_make_up(m->graph.numbers.vocab, &e->tokenizer, err);
    if (st == KT_E_NOT_FOUND && (e->is_synthetic || o->tokenizer_optional)) return KT_OK;
    if (st != KT_OK) return kt_fail(err, st, "%s", why.message);
    return check_tokenizer(e, o->strict_tokenizer, err);
}

/* ---- the machine ---- */

/* Where experts are cut changes the order of sums. How many nodes the threads' cores belong to
 * depends on the number of threads, so a deterministic engine cuts only where it is told to,
 * into equal parts. */
static kt_status plan_nodes(kt_engine *e, const kt_engine_options *o, const int *nodes, int n_nodes,
                            int threads, kt_err *err) {
    const int is_auto = o->numa == KT_NUMA_AUTO;
    kt_node_plan found;

    KT_TRY(kt_node_plan_make(o->numa, nodes, n_nodes, threads, &e->nodes, err));
    if (!o->deterministic) return KT_OK;
    found = e->nodes;
    e->nodes.has_equal_shares = 1;
    if (!is_auto || found.n < 2) return KT_OK;
    kt_node_plan_undo(&e->nodes, threads,
                      "--deterministic does so only with a number of nodes (--numa)");
    return KT_OK;
}

static kt_status make_pool(kt_engine *e, const kt_engine_options *o, kt_err *err) {
    const int wanted = o->n_threads;
    int cpus[MAX_CPUS], nodes[MAX_CPUS];
    int n = kt_topology_core_cpus(cpus, MAX_CPUS), threads = wanted ? wanted : kt_usable_cores();
    int n_nodes = kt_topology_core_nodes(nodes, MAX_CPUS);
    kt_pool_options options = {.n_threads = threads, .cpus = threads <= n ? cpus : NULL};

    KT_TRY(plan_nodes(e, o, nodes, n_nodes, threads, err));
    return kt_pool_create(&options, &e->pool, err);
}

/* A linked library's OpenMP run-time obeys this variable before main begins. */
static void warn_if_bound(const kt_engine *e) {
    const char *bind = getenv("OMP_PROC_BIND");
    if (bind && e->topology.usable_cores == 1 && e->topology.cores > 1)
        kt_log_write(&e->log, KT_LOG_WARN, "threads",
                     "OMP_PROC_BIND=%.20s has bound this process to one of %d cores; unset it",
                     bind, e->topology.cores);
}

static kt_status probe_machine(kt_engine *e, const kt_engine_options *o, kt_err *err) {
    KT_TRY(kt_topology_probe(&e->topology, err));
    warn_if_bound(e);
    kt_fingerprint_make(&e->topology, NULL, &e->machine);
    KT_TRY(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count,
                              o->isa ? o->isa : e->topology.cpu.isa, &e->registry, err));
    return make_pool(e, o, err);
}

/* Whose rows are they? Those of other matrices serve by their likeness only, which is worth
 * knowing. */
static void warn_of_other_model(const kt_engine *e) {
    const kt_table *t = e->table;

    if (!t || !e->model.shape_id || t->shape_id == e->model.shape_id) return;
    if (t->shape_id)
        kt_log_write(&e->log, KT_LOG_WARN, "table",
                     "%.400s was made for another model, '%s', whose matrices differ from those of "
                     "'%s': few of its rows count here",
                     e->table_path, t->workload, e->model.name);
    else
        kt_log_write(&e->log, KT_LOG_WARN, "table",
                     "%.400s has no shape digest; made for '%s' by name only", e->table_path,
                     t->workload);
}

/* A table that was asked for must load; one that was merely found may be bad, which is said. */
static kt_status find_table(kt_engine *e, const char *asked, kt_err *err) {
    kt_err why = {KT_OK, ""};

    if (asked) {
        if (!*asked) return KT_OK;
        snprintf(e->table_path, sizeof e->table_path, "%s", asked);
        KT_TRY(kt_table_load(asked, &e->table, err));
        warn_of_other_model(e);
        return KT_OK;
    }
    kt_table_locate(&e->machine, e->model.name, e->model.shape_id, e->table_path,
                    sizeof e->table_path);
    if (*e->table_path && kt_table_load(e->table_path, &e->table, &why) != KT_OK) {
        kt_log_write(&e->log, KT_LOG_WARN, "table", "not used: %s", why.message);
        *e->table_path = '\0';
    }
    warn_of_other_model(e);
    return KT_OK;
}

/* What makes the rows that this engine would look up. People copy it. */
static void make_tune_command(const kt_engine *e, kt_quant weights, char *out, size_t bytes) {
    static const char *const format[] = {"", " --format bf16", " --format int8", " --format int4"};
    char folder[MOST_WORD + 1];
    int threads = kt_pool_threads(e->pool);
    char count[32] = "";

    if (weights > KT_QUANT_FORMAT) {
        snprintf(out, bytes, "no run does (kttune takes native, bf16, int8 and int4)");
        return;
    }
    kt_shell_word(e->is_synthetic ? e->model.name : e->model.folder, folder, sizeof folder);
    if (threads != 1 && threads != e->topology.usable_cores)
        snprintf(count, sizeof count, " --threads %d", threads);
    snprintf(out, bytes, "kttune run --model %s%s%s", folder, format[weights], count);
}

/* What the table's plan cells say, in a few words. */
static void append_plan(kt_engine *e) {
    const kt_layer_plan *p = &e->plan.layer;
    size_t used = strlen(e->table_line), room = sizeof e->table_line - used;

    if (p->n_ignored) kt_log_write(&e->log, KT_LOG_WARN, "table", "plan cell %s", p->note);
    if (p->n_cells == 0) return;
    snprintf(e->table_line + used, room, "; %d plan cells: %d thread%s to decode, %d cuts, spin %s",
             p->n_cells, kt_layer_plan_threads(p, 1, kt_pool_threads(e->pool)),
             kt_layer_plan_threads(p, 1, kt_pool_threads(e->pool)) == 1 ? "" : "s", p->cuts.n,
             p->spin_ns ? "measured" : "default");
}

/* What the plan said beside its cells: that bits are kept, and by which classes. */
static void append_bits(kt_engine *e) {
    static const struct {
        const char *role, *where;
    } roles[] = {{"experts", "experts"},
                 {"dense_ffn", "dense layers"},
                 {"qkv", "attention"},
                 {"lm_head", "the head"}};
    const char *before = "; deterministic: bits";
    size_t used = strlen(e->table_line);

    for (size_t i = 0; i < sizeof roles / sizeof *roles && used < sizeof e->table_line; i++) {
        const kt_problem_plan *p = kt_model_plan_role(&e->plan, roles[i].role);
        if (!p) continue;
        used += (size_t)snprintf(e->table_line + used, sizeof e->table_line - used, "%s '%s' in %s",
                                 before, p->source.bits, roles[i].where);
        before = ",";
    }
}

static kt_status make_plan(kt_engine *e, const kt_engine_options *o, kt_err *err) {
    const kt_quant weights = o->weights;
    const kt_weight_format kv = o->kv ? o->kv : KT_W_BF16;
    kt_planner *planner = NULL;
    kt_plan_totals cells;
    char command[KT_ERR_SIZE];
    kt_status st;

    make_tune_command(e, weights, command, sizeof command);
    st = kt_planner_create_for(e->registry, e->table, &e->machine, command, &e->log, &planner, err);

    if (st != KT_OK) return st;
    if (o->exact_acts) kt_planner_prefer_exact(planner);
    if (o->deterministic) kt_planner_keep_bits(planner);
    st = kt_model_plan_make(planner, &e->model.graph, weights, kv, kt_pool_threads(e->pool),
                            e->max_chunk, e->max_context, &e->plan, err);
    if (st == KT_OK && o->expand_rows)
        kt_model_plan_set_expand(&e->plan, o->expand_rows > 0 ? o->expand_rows : 0);
    cells = kt_planner_totals(planner);
    kt_planner_destroy(planner);
    if (e->table)
        snprintf(e->table_line, sizeof e->table_line,
                 "table %.400s: %d cells tuned, %d between them, %d estimated", e->table_path,
                 cells.tuned, cells.between, cells.estimated);
    else
        snprintf(e->table_line, sizeof e->table_line,
                 "no table: all %d cells are chosen by an estimate", cells.estimated);
    if (st != KT_OK) return st;
    kt_pool_spin(e->pool, e->plan.layer.spin_ns);
    append_plan(e);
    if (o->deterministic) append_bits(e);
    return st;
}

/* ---- the model ---- */

static kt_status load_checkpoint(kt_engine *e, const kt_engine_options *o,
                                 const kt_checkpoint *checkpoint, const kt_checkpoint *importance,
                                 kt_err *err) {
    kt_weights_request request = {.checkpoint = checkpoint,
                                  .graph = &e->model.graph,
                                  .plan = &e->plan,
                                  .importance = importance,
                                  .allow_nonfinite = o->allow_nonfinite,
                                  .cancel = o->cancel,
                                  .cancel_arg = o->cancel_arg,
                                  .has_twins = e->is_synthetic,
                                  .pool = e->pool,
                                  .nodes = &e->nodes,
                                  .log = &e->log};
    return kt_weights_load(&request, &e->weights, err);
}

/* The CPU's and the device's part, both from the checkpoint. */
static kt_status load_parts(kt_engine *e, const kt_engine_options *o,
                            const kt_checkpoint *importance, kt_err *err) {
    KT_TRY(load_checkpoint(e, o, e->model.checkpoint, importance, err));
    KT_TRY(kt_step_init(&e->step, &e->model.graph, &e->plan, e->weights, &e->nodes,
                        e->n_devices ? &e->beside.placement : NULL, e->pool, e->max_context, err));
    return kt_engine_load_device(e, o, importance, err);
}

static kt_status load_weights(kt_engine *e, const kt_engine_options *o, kt_err *err) {
    kt_checkpoint *importance = NULL;
    kt_status st = KT_OK;

    if (e->is_synthetic) st = kt_synthetic_checkpoint(&e->model, 1, &e->model.checkpoint, err);
    if (st == KT_OK && o->importance) st = kt_checkpoint_open_file(o->importance, &importance, err);
    e->load_ns = kt_clock_ns();
    if (st == KT_OK) st = load_parts(e, o, importance, err);
    e->load_ns = kt_clock_ns() - e->load_ns;
    kt_checkpoint_close(importance);
    kt_checkpoint_close(e->model.checkpoint); /* what is packed needs it no more */
    e->model.checkpoint = NULL;
    return st;
}

static kt_status set_limits(kt_engine *e, const kt_engine_options *o, kt_err *err) {
    const int64_t most = e->model.graph.numbers.max_context;

    e->max_context = o->max_context ? o->max_context : most;
    if (e->max_context < 1 || e->max_context > most)
        return kt_fail(err, KT_E_INVALID, "context of %lld tokens: %.200s allows 1 to %lld",
                       (long long)o->max_context, e->model.name, (long long)most);
    e->max_chunk = o->max_chunk > 0 ? o->max_chunk : kt_default_chunk(e->max_context);
    if (e->max_chunk > e->max_context) e->max_chunk = e->max_context;
    e->chunk = e->max_chunk;
    return KT_OK;
}

/* Experts too small to be cut stay whole, unless the user insists. Over nodes all threads take
 * part in every step, as each has its node's share. */
static kt_status settle_nodes(kt_engine *e, int numa, kt_err *err) {
    kt_err why = {KT_OK, ""};
    kt_status st = kt_weights_check_nodes(&e->plan, &e->nodes, &why);

    if (st != KT_OK && numa != KT_NUMA_AUTO) return kt_fail(err, st, "%s", why.message);
    if (st != KT_OK) kt_node_plan_undo(&e->nodes, kt_pool_threads(e->pool), why.message);
    if (e->nodes.n > 1) e->plan.layer.n_threads = 0;
    return KT_OK;
}

/* Whether the model fits is arithmetic: told before anything is opened, with what would. A context
 * that nobody asked for is cut to what fits, in memory and in the pages that were asked for. */
static kt_status check_memory(kt_engine *e, const kt_engine_options *o, kt_err *err) {
    const int64_t asked = o->max_context;
    const int64_t least = e->max_chunk < KT_LEAST_CONTEXT ? e->max_chunk : KT_LEAST_CONTEXT;
    kt_memory_request request = {.plan = &e->plan,
                                 .n_nodes = e->nodes.n,
                                 .context = e->max_context,
                                 .kv_memory = o->kv_memory,
                                 .logit_rows = o->logit_rows,
                                 .is_cache_away = kt_engine_cache_is_away(e),
                                 .behind = o->kv_host,
                                 .available = kt_memory_available_bytes()};

    KT_TRY(kt_memory_plan_make(&request, &e->memory, err));
    if (e->memory.cached < (asked ? asked : least))
        return kt_fail(
            err, KT_E_NOMEM,
            "%.200s: %.3f GiB of keys and values hold %lld tokens, expected room for %lld "
            "(--kv-memory, --context)",
            e->model.name, (double)o->kv_memory / GIB, (long long)e->memory.cached,
            (long long)(asked ? asked : least));
    if (kt_memory_fits(&e->memory)) return KT_OK;
    if (asked || e->memory.longest < least) return kt_memory_check(&request, e->model.name, err);
    kt_log_write(&e->log, KT_LOG_WARN, "memory",
                 "a context of %lld tokens does not fit, %lld do (--context)",
                 (long long)e->max_context, (long long)e->memory.longest);
    e->max_context = request.context = e->memory.longest;
    return kt_memory_plan_make(&request, &e->memory, err);
}

/* Memory for pages: what the plan left for them, or less where others have taken some meanwhile. */
static uint64_t rest_for_pages(const kt_engine *e) {
    const kt_memory_plan *m = &e->memory;
    const uint64_t now = kt_memory_available_bytes(),
                   fixed = m->weights + m->bytes[KT_MEMORY_STEP] + m->bytes[KT_MEMORY_LOGITS],
                   planned = m->available > fixed ? m->available - fixed : 0;

    return planned < now ? planned : now;
}

static kt_status make_cache(kt_engine *e, size_t asked, size_t behind, kt_err *err) {
    const int64_t floats = kt_model_state_floats(&e->model.graph);
    const size_t rows = (size_t)e->max_chunk;
    kt_kv_plan kv;

    if (!kt_kv_plan_pool(kt_kv_sizes_of(&e->kv, floats), e->max_context, asked, rest_for_pages(e),
                         &kv))
        return kt_fail(err, KT_E_INVALID, "a cache of %lld tokens is not possible",
                       (long long)e->max_context);
    kt_engine_fit_pool(e, &kv);
    e->memory.pool = kv;
    e->state_floats = floats;
    e->out_row = malloc(rows * sizeof *e->out_row);
    e->next_state = malloc(rows * sizeof *e->next_state);
    if (kt_engine_has_draft_head(e)) e->draft_token = malloc(rows * sizeof *e->draft_token);
    if (!e->out_row || !e->next_state || (kt_engine_has_draft_head(e) && !e->draft_token))
        return kt_fail(err, KT_E_NOMEM, "no memory for the rows of a step");
    if (floats) KT_TRY(kt_states_init(&e->states, kv.slots, floats, kv.pages, err));
    KT_TRY(kt_pages_init(&e->pages, &e->kv, kv.pages, floats ? &e->states : NULL, err));
    e->step.pages = &e->pages;
    KT_TRY(kt_engine_keep_on_device(e, err));
    return kt_engine_add_tier(e, behind, err);
}

static kt_status make_expert_map(kt_engine *e, kt_err *err) {
    const kt_model_experts c = kt_model_count_experts(&e->model.graph);

    if (c.layers < 1 || c.experts < 1) return KT_OK;
    KT_TRY(kt_expert_map_create(c.layers, c.experts, &e->expert_map, err));
    e->step.expert_map = e->expert_map;
    return KT_OK;
}

static kt_status build(kt_engine *e, const kt_engine_options *o, kt_err *err) {
    KT_TRY(read_model(e, o, err));
    e->quant = o->weights;
    KT_TRY(kt_model_kv_shape(&e->model.graph, o->kv ? o->kv : KT_W_BF16, &e->kv, err));
    if (!e->is_synthetic)
        KT_TRY(kt_graph_check_quant(&e->model.graph, o->weights, e->model.name, err));
    if (o->importance && o->weights <= KT_QUANT_BF16)
        return kt_fail(err, KT_E_INVALID,
                       "importance %.200s: these weights are not quantised; expected int8, int4 or "
                       "another format with searched scales",
                       o->importance);
    KT_TRY(set_limits(e, o, err));
    KT_TRY(read_tokenizer(e, o, err));
    KT_TRY(probe_machine(e, o, err));
    KT_TRY(find_table(e, o->table_path, err));
    KT_TRY(make_plan(e, o, err));
    KT_TRY(settle_nodes(e, o->numa, err));
    KT_TRY(kt_engine_place(e, o, err));
    KT_TRY(check_memory(e, o, err));
    if (!e->is_synthetic && !e->model.checkpoint)
        return kt_fail(err, e->model.why.status, "%s", e->model.why.message);
    KT_TRY(load_weights(e, o, err));
    KT_TRY(make_expert_map(e, err));
    return make_cache(e, o->kv_memory, o->kv_host, err);
}

kt_status kt_engine_create(const kt_engine_options *options, kt_engine **out, kt_err *err) {
    kt_engine *e = calloc(1, sizeof *e);
    kt_status st;

    *out = NULL;
    if (!e) return kt_fail(err, KT_E_NOMEM, "no memory for the engine");
    if (options->log) e->log = *options->log;
    st = build(e, options, err);
    if (st != KT_OK) {
        kt_engine_destroy(e);
        return st;
    }
    *out = e;
    return KT_OK;
}

void kt_engine_destroy(kt_engine *e) {
    if (!e) return;
    kt_recorder_close(e->recorder);
    kt_importance_destroy(e->importance);
    kt_expert_map_destroy(e->expert_map);
    kt_engine_close_device(e); /* before the memory that it may still copy to */
    kt_pages_deinit(&e->pages);
    kt_states_deinit(&e->states);
    free(e->out_row);
    free(e->next_state);
    free(e->draft_token);
    kt_step_deinit(&e->step);
    kt_weights_destroy(e->weights);
    kt_model_plan_deinit(&e->plan);
    kt_model_dir_deinit(&e->model);
    kt_pool_destroy(e->pool);
    kt_table_destroy(e->table);
    kt_registry_destroy(e->registry);
    kt_tokenizer_destroy(e->tokenizer);
    free(e);
}

void kt_engine_describe(const kt_engine *e, kt_engine_info *out) {
    const kt_model_numbers *n = &e->model.graph.numbers;
    kt_kv_shape bf16 = e->kv;

    bf16.format = KT_W_BF16;
    *out = (kt_engine_info){.model_name = e->model.name,
                            .family = e->model.graph.family->name,
                            .vocab = n->vocab,
                            .hidden = n->hidden,
                            .layers = n->layers,
                            .max_context = e->max_context,
                            .n_threads = kt_pool_threads(e->pool),
                            .layers_of_all = e->layers_of_all,
                            .load_ns = e->load_ns,
                            .n_nodes = e->nodes.n,
                            .n_eos = n->n_eos,
                            .weight_bytes = kt_weights_bytes(e->weights),
                            .cache_format = e->kv.format,
                            .cache_bytes = kt_kv_bytes(&e->kv, e->max_context),
                            .cache_bytes_bf16 = kt_kv_bytes(&bf16, e->max_context)};
    memcpy(out->eos, n->eos, sizeof out->eos);
    memcpy(out->table_line, e->table_line, sizeof out->table_line);
    kt_node_plan_format(&e->nodes, out->node_line, sizeof out->node_line);
    kt_memory_line(&e->memory, out->memory_line, sizeof out->memory_line);
    if (e->step.device) kt_engine_device_line(e, out->device_line, sizeof out->device_line);
}

const kt_tokenizer *kt_engine_tokenizer(const kt_engine *e) {
    return e->tokenizer;
}

struct kt_pool *kt_engine_pool(const kt_engine *e) {
    return e->pool;
}

void kt_engine_set_chunk(kt_engine *e, int64_t rows) {
    e->chunk = rows < 1 ? 1 : rows > e->max_chunk ? e->max_chunk : rows;
}

void kt_engine_profile(kt_engine *e, bool is_on) {
    e->step.is_profiled = is_on;
    if (is_on) kt_step_profile_reset(&e->step);
}

void kt_engine_profile_read(const kt_engine *e, kt_profile *out) {
    *out = e->step.profile;
    for (int i = 0; i < e->step.n_threads; i++) out->busy_ns += e->step.busy[i].ns;
}

/* As the command line names them; formats beyond these by their own name. */
static const char *weights_word(kt_quant quant) {
    static const char *const words[] = {"native", "bf16", "int8", "int4"};
    return quant < KT_QUANT_FORMAT ? words[quant] : kt_weight_format_name(kt_quant_format(quant));
}
static const char *kv_word(kt_weight_format format) {
    return format == KT_W_BF16           ? "bf16"
           : format == KT_W_FP8_CHANNEL  ? "fp8"
           : format == KT_W_INT8_CHANNEL ? "int8"
                                         : kt_weight_format_name(format);
}

kt_status kt_engine_record(kt_engine *e, const char *path, int64_t max_bytes, kt_err *err) {
    const kt_model_experts c = kt_model_count_experts(&e->model.graph);
    kt_recorder_options options = {.path = path,
                                   .max_bytes = max_bytes,
                                   .model = e->model.name,
                                   .weights = weights_word(e->quant),
                                   .kv = kv_word(e->kv.format),
                                   .experts = c.experts,
                                   .topk = c.topk,
                                   .moe_layers = c.layers,
                                   .threads = kt_pool_threads(e->pool),
                                   .max_rows = e->max_chunk,
                                   .log = &e->log};

    kt_recorder_close(e->recorder);
    e->recorder = e->step.recorder = NULL;
    if (!path) return KT_OK;
    KT_TRY(kt_recorder_open(&options, &e->recorder, err));
    e->step.recorder = e->recorder;
    return KT_OK;
}

void kt_engine_recorded(const kt_engine *e, int64_t *steps, int64_t *lost) {
    *steps = e->recorder ? kt_recorder_steps(e->recorder) : 0;
    *lost = e->recorder ? kt_recorder_lost(e->recorder) : 0;
}

kt_status kt_engine_measure_roofline(kt_engine *e, kt_roofline *out, kt_err *err) {
    return kt_roofline_measure(e->registry, e->pool, out, err);
}

/* ---- importance ---- */

kt_status kt_engine_observe_inputs(kt_engine *e, kt_err *err) {
    if (e->step.device)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "what a device multiplies is not observed, expected the CPU alone (--device "
                       "cpu)");
    if (e->nodes.n > 1)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "experts are cut over %d memory nodes, expected whole ones (--numa off)",
                       e->nodes.n);
    kt_importance_destroy(e->importance);
    e->step.importance = e->importance = NULL;
    KT_TRY(kt_importance_create(&e->model.graph, &e->importance, err));
    e->step.importance = e->importance;
    return KT_OK;
}

kt_status kt_engine_write_importance(const kt_engine *e, const char *path, kt_err *err) {
    if (!e->importance) return kt_fail(err, KT_E_INVALID, "%.200s: no inputs were observed", path);
    return kt_importance_write(e->importance, path, err);
}
