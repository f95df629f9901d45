/* kt plan: the memory a model needs, what of it fits, and how fast it can be at most, before
 * anything is loaded. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/buffer.h"
#include "base/err.h"
#include "base/json.h"
#include "dispatch/model/resolve.h"
#include "dispatch/plan/machine_ceilings.h"
#include "runtime/cli/command.h"
#include "runtime/cli/engine_flags.h"
#include "runtime/cli/plan_families.h"
#include "runtime/device/device_plan.h"
#include "dispatch/device/device_word.h"
#include "runtime/model/memory_plan.h"
#include "runtime/model/model_dir.h"
#include "runtime/model/node_bytes.h"
#include "runtime/model/speed_bound.h"
#include "runtime/model/synthetic_model.h"
#include "runtime/model/weights.h"
#include "runtime/sched/scheduler.h"

#define GIB (1024.0 * 1024.0 * 1024.0)
#define MOST_CORES 1024

/* What was asked, and what it is asked of. */
typedef struct asked {
    const char *model, *weights, *kv, *numa;
    int64_t context, threads, parallel;
    size_t kv_memory;   /* 0 = what the context takes */
    size_t kv_host;     /* behind a device's pages */
    const char *device; /* NULL or "cpu" = none */
    kt_device_wish wish;
    bool json, with_draft_head;
    size_t machine; /* bytes of memory instead of this machine's, less the system's; 0 = none */
    bool is_families;
    kt_weight_format cache;
    kt_model_dir dir;
    kt_topology topology;
    kt_node_plan nodes;
    kt_ceilings ceilings; /* of `kttune probe` */
    bool is_probed;
    uint64_t available;
    kt_registry *registry;
    kt_planner *planner;
    kt_json_writer w;
    bool fits; /* some weights that were asked for */
    kt_device *beside[KT_DEVICES_MOST];
    int n_beside;
} asked;

/* ---- finding out ---- */

/* A bundled shape has no checkpoint, and need not have one to be counted. */
static kt_status read_model(asked *a, kt_err *err) {
    kt_model_ref ref;

    KT_TRY(kt_model_resolve(a->model, KT_MODEL_ANY, &ref, err));
    if (ref.kind == KT_MODEL_WORKLOAD && a->with_draft_head)
        return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: a bundled shape is without its draft head",
                       a->model);
    if (ref.kind == KT_MODEL_WORKLOAD) return kt_published_dir(a->model, &a->dir, err);
    if (!a->with_draft_head) return kt_model_dir_read(a->model, &a->dir, err);
    KT_TRY(kt_model_dir_read_drafting(a->model, &a->dir, err));
    if (a->dir.graph.draft_hidden) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: no draft head (MTP) that is known of '%s'",
                   a->dir.name, a->dir.graph.family->name);
}

/* As the engine would share out the threads that are asked for. */
static kt_status plan_nodes(asked *a, kt_err *err) {
    int core_nodes[MOST_CORES];
    const int n = kt_topology_core_nodes(core_nodes, MOST_CORES);

    return kt_node_plan_make(kt_numa_parse(a->numa), core_nodes, n, (int)a->threads, &a->nodes,
                             err);
}

static kt_status open_device(asked *a, kt_err *err) {
    return kt_devices_open(a->device, NULL, a->beside, &a->n_beside, err);
}

/* What of a machine's memory is a model's. */
static uint64_t machine_bytes(size_t memory) {
    return memory > KT_FIT_RESERVE ? memory - KT_FIT_RESERVE : 0;
}

static kt_status look_around(asked *a, kt_err *err) {
    const kt_fingerprint unknown = {0}; /* kernels as kt_memory_survey chooses them */

    KT_TRY(read_model(a, err));
    if (a->context > a->dir.graph.numbers.max_context)
        return kt_fail(err, KT_E_INVALID, "context of %lld tokens: %.200s allows 1 to %lld",
                       (long long)a->context, a->dir.name,
                       (long long)a->dir.graph.numbers.max_context);
    if (!a->context) a->context = a->dir.graph.numbers.max_context;
    KT_TRY(kt_topology_probe(&a->topology, err));
    if (!a->threads) a->threads = a->topology.usable_cores;
    KT_TRY(plan_nodes(a, err));
    a->is_probed =
        kt_machine_load(&a->topology, &a->ceilings, NULL) == KT_OK && a->ceilings.stream_gbs_1t > 0;
    a->available = a->machine ? machine_bytes(a->machine) : kt_memory_available_bytes();
    KT_TRY(open_device(a, err));
    KT_TRY(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, a->topology.cpu.isa,
                              &a->registry, err));
    return kt_planner_create(a->registry, NULL, &unknown, NULL, &a->planner, err);
}

static kt_memory_request request_of(const asked *a, const kt_model_plan *plan) {
    return (kt_memory_request){.plan = plan,
                               .n_nodes = a->nodes.n,
                               .context = a->context,
                               .kv_memory = a->kv_memory,
                               .logit_rows = kt_scheduler_logit_rows((int)a->parallel),
                               .available = a->available};
}

/* ---- text ---- */

static void print_bytes(const char *name, double bytes) {
    printf("  %-22s %10.2f GiB\n", name, bytes / GIB);
}

/* Pages are taken as they are written, so the pool may be more than what is needed. */
static void print_pool(const kt_memory_plan *p) {
    if (!p->pool.pages) return;
    printf("  %-22s %10.2f GiB, %lld pages for %lld tokens\n", "page pool",
           (double)p->pool.bytes / GIB, (long long)p->pool.pages,
           (long long)p->pool.pages * KT_PAGE_TOKENS);
}

static void print_memory(const asked *a, const char *weights, const kt_memory_plan *p) {
    const double left = (double)p->available - (double)p->needed;

    printf("%s, --weights %s: context %lld tokens, cache %s, %lld threads\n", a->dir.name, weights,
           (long long)p->context, kt_kv_name(a->cache), (long long)a->threads);
    for (int i = 0; i < KT_MEMORY_PARTS; i++) {
        if (i == KT_MEMORY_STAGING) print_bytes("weights together", (double)p->weights);
        if (p->bytes[i]) print_bytes(kt_memory_part_name((kt_memory_part)i), (double)p->bytes[i]);
    }
    if (p->cached < p->context)
        printf("  the cache holds %lld tokens, fewer than the context (--kv-memory)\n",
               (long long)p->cached);
    print_bytes("needed at most", (double)p->needed);
    print_pool(p);
    print_bytes("available", (double)p->available);
    print_bytes(left < 0 ? "missing" : "would remain", left < 0 ? -left : left);
}

/* The node's own memory, or 0 when the machine does not have such a node. */
static uint64_t memory_of(const asked *a, int i) {
    const int node = a->nodes.memory[i];

    return node >= 0 && node < a->topology.numa_nodes && node < KT_MAX_NODES
               ? a->topology.node_memory_bytes[node]
               : 0;
}

static void print_nodes(const asked *a, const size_t *bytes) {
    if (a->nodes.n < 2 && *a->nodes.note) printf("  %s\n", a->nodes.note);
    for (int i = 0; a->nodes.n > 1 && i < a->nodes.n; i++) {
        const uint64_t memory = memory_of(a, i);
        printf("  node %d, %d thread%s: %9.2f GiB of experts", a->nodes.memory[i],
               a->nodes.threads[i], a->nodes.threads[i] == 1 ? "" : "s", (double)bytes[i] / GIB);
        if (memory) printf(" in %.2f GiB of memory", (double)memory / GIB);
        if (memory && bytes[i] > memory) printf(": the rest goes to other nodes");
        printf("\n");
    }
}

static void print_speed(const asked *a, const kt_speed_bound *s) {
    if (!a->is_probed) {
        printf("  speed: not known, as this machine was not measured: run `kttune probe`\n");
        return;
    }
    printf("  speed, upper bound from the roofline: decode %.1f tokens/s (%.2f GB read for each), "
           "prefill %.1f tokens/s\n",
           s->decode_tps, s->decode_bytes * 1e-9, s->prefill_tps);
}

static void print_choices(const kt_memory_choice *c) {
    printf("%-10s %12s %12s  %-5s %s\n", "--weights", "weights GiB", "needed GiB", "fits",
           "longest context");
    for (int q = 0; q < KT_MEMORY_CHOICES; q++) {
        const kt_memory_plan *p = &c[q].plan;
        if (c[q].why.status != KT_OK)
            printf("%-10s %s\n", kt_quant_word((kt_quant)q), c[q].why.message);
        else
            printf("%-10s %12.2f %12.2f  %-5s %lld\n", kt_quant_word((kt_quant)q),
                   (double)p->weights / GIB, (double)p->needed / GIB,
                   kt_memory_fits(p) ? "yes" : "no", (long long)p->longest);
    }
}

/* ---- JSON ---- */

static void put_totals(kt_json_writer *w, const kt_memory_plan *p) {
    kt_json_add_int(w, "weight_bytes", (int64_t)p->weights);
    kt_json_add_int(w, "needed_bytes", (int64_t)p->needed);
    kt_json_add_bool(w, "fits", kt_memory_fits(p));
    kt_json_add_int(w, "longest_context", p->longest);
    kt_json_add_int(w, "cached_tokens", p->cached);
    kt_json_add_int(w, "pool_pages", p->pool.pages);
    kt_json_add_int(w, "pool_tokens", p->pool.pages * KT_PAGE_TOKENS);
    kt_json_add_int(w, "pool_bytes", (int64_t)p->pool.bytes);
}

static void put_nodes(asked *a, const size_t *bytes) {
    kt_json_key(&a->w, "nodes");
    kt_json_begin_array(&a->w);
    for (int i = 0; a->nodes.n > 1 && i < a->nodes.n; i++) {
        kt_json_begin_object(&a->w);
        kt_json_add_int(&a->w, "node", a->nodes.memory[i]);
        kt_json_add_int(&a->w, "threads", a->nodes.threads[i]);
        kt_json_add_int(&a->w, "expert_bytes", (int64_t)bytes[i]);
        kt_json_add_int(&a->w, "memory_bytes", (int64_t)memory_of(a, i));
        kt_json_end_object(&a->w);
    }
    kt_json_end_array(&a->w);
}

static bool fits_there(const kt_device_plan *p) {
    for (int i = 0; i < p->n_devices; i++)
        if (p->memory[i].needed > p->memory[i].available) return false;
    return true;
}

static void put_device(asked *a, const kt_device_plan *p, int i) {
    const kt_device_memory_plan *m = &p->memory[i];

    kt_json_begin_object(&a->w);
    kt_json_add_string(&a->w, "name", kt_device_about(a->beside[i])->name);
    if (p->n_devices > 1) {
        kt_json_add_int(&a->w, "first_layer", p->first_layer[i]);
        kt_json_add_int(&a->w, "end_layer",
                        i + 1 < p->n_devices ? p->first_layer[i + 1] : p->end_layer);
    }
    kt_json_add_int(&a->w, "dense_bytes", (int64_t)m->dense);
    kt_json_add_int(&a->w, "cache_bytes", (int64_t)m->cache);
    kt_json_add_int(&a->w, "cache_pages", m->cache ? m->pool.pages : 0);
    kt_json_add_int(&a->w, "state_slots", m->cache ? m->pool.slots : 0);
    kt_json_add_int(&a->w, "working_bytes", (int64_t)m->working);
    kt_json_add_int(&a->w, "experts", m->n_experts);
    kt_json_add_int(&a->w, "expert_bytes", (int64_t)m->experts);
    kt_json_add_int(&a->w, "staging_bytes", (int64_t)m->staging);
    if (p->stream.from_rows < INT64_MAX)
        kt_json_add_int(&a->w, "prefill_rows", p->stream.from_rows);
    kt_json_add_int(&a->w, "needed_bytes", (int64_t)m->needed);
    kt_json_add_int(&a->w, "available_bytes", (int64_t)m->available);
    kt_json_add_bool(&a->w, "fits", m->needed <= m->available);
    kt_json_end_object(&a->w);
}

/* "device" of one, "devices" of several. */
static void put_devices(asked *a, const kt_device_plan *p) {
    kt_json_key(&a->w, p->n_devices > 1 ? "devices" : "device");
    if (p->n_devices > 1) kt_json_begin_array(&a->w);
    for (int i = 0; i < p->n_devices; i++) put_device(a, p, i);
    if (p->n_devices > 1) kt_json_end_array(&a->w);
}

static void tell_device(asked *a, const kt_device_plan *p) {
    char line[1024], name[160];

    if (a->json) {
        put_devices(a, p);
        return;
    }
    for (int i = 0; i < p->n_devices; i++) {
        kt_device_plan_name(p, a->beside, i, name, sizeof name);
        printf("  %s%s\n", kt_device_memory_line(&p->memory[i], name, line, sizeof line),
               p->memory[i].needed <= p->memory[i].available ? "" : ": does not fit");
    }
    if (*kt_placement_line(&p->placement, &a->dir.graph, line, sizeof line)) printf("  %s\n", line);
    if (*kt_stream_plan_line(&p->stream, line, sizeof line)) printf("  %s\n", line);
}

static void put_plan(asked *a, const char *weights, const kt_memory_plan *p,
                     const kt_speed_bound *s, const size_t *nodes, const kt_device_plan *beside) {
    kt_json_begin_object(&a->w);
    kt_json_add_string(&a->w, "weights", weights);
    put_totals(&a->w, p);
    kt_json_key(&a->w, "bytes");
    kt_json_begin_object(&a->w);
    for (int i = 0; i < KT_MEMORY_PARTS; i++)
        kt_json_add_int(&a->w, kt_memory_part_name((kt_memory_part)i), (int64_t)p->bytes[i]);
    kt_json_end_object(&a->w);
    put_nodes(a, nodes);
    if (beside) tell_device(a, beside);
    if (a->is_probed) {
        kt_json_add_double(&a->w, "decode_tokens_per_second_at_most", s->decode_tps);
        kt_json_add_double(&a->w, "prefill_tokens_per_second_at_most", s->prefill_tps);
    }
    kt_json_end_object(&a->w);
}

static void put_head(asked *a) {
    kt_json_begin_object(&a->w);
    kt_json_add_string(&a->w, "model", a->dir.name);
    kt_json_add_string(&a->w, "family", a->dir.graph.family->name);
    kt_json_add_int(&a->w, "context", a->context);
    kt_json_add_string(&a->w, "cache", kt_kv_name(a->cache));
    kt_json_add_int(&a->w, "threads", a->threads);
    kt_json_add_int(&a->w, "available_bytes", (int64_t)a->available);
    kt_json_key(&a->w, "plans");
    kt_json_begin_array(&a->w);
}

static void put_choices(asked *a, const kt_memory_choice *c) {
    kt_json_end_array(&a->w);
    kt_json_key(&a->w, "choices");
    kt_json_begin_array(&a->w);
    for (int q = 0; q < KT_MEMORY_CHOICES; q++) {
        kt_json_begin_object(&a->w);
        kt_json_add_string(&a->w, "weights", kt_quant_word((kt_quant)q));
        if (c[q].why.status != KT_OK)
            kt_json_add_string(&a->w, "why_not", c[q].why.message);
        else
            put_totals(&a->w, &c[q].plan);
        kt_json_end_object(&a->w);
    }
    kt_json_end_array(&a->w);
    kt_json_end_object(&a->w);
}

/* ---- both ---- */

/* Experts too small to be cut stay whole, unless the user insists. */
static kt_status settle_nodes(asked *a, const kt_model_plan *plan, kt_err *err) {
    kt_err why = {KT_OK, ""};
    const kt_status st = kt_weights_check_nodes(plan, &a->nodes, &why);

    if (st != KT_OK && kt_numa_parse(a->numa) != KT_NUMA_AUTO)
        return kt_fail(err, st, "%s", why.message);
    if (st != KT_OK) kt_node_plan_undo(&a->nodes, (int)a->threads, why.message);
    return KT_OK;
}

/* Both together: what the device has the CPU has not. */
static kt_status tell_plan(asked *a, const char *weights, const kt_model_plan *plan,
                           const kt_device_plan *beside, kt_err *err) {
    size_t nodes[KT_MOE_MAX_NODES];
    kt_memory_request request;
    kt_memory_plan memory;
    kt_speed_bound speed = {0};

    KT_TRY(settle_nodes(a, plan, err));
    request = request_of(a, plan);
    request.behind = a->kv_host;
    request.is_cache_away = beside && kt_device_keeps_all(&beside->placement, plan->graph);
    KT_TRY(kt_memory_plan_make(&request, &memory, err));
    KT_TRY(kt_node_bytes_count(plan, &a->nodes, nodes, err));
    if (a->is_probed) KT_TRY(kt_speed_bound_count(plan, a->context, &a->ceilings, &speed, err));
    a->fits |= kt_memory_fits(&memory) && (!beside || fits_there(beside));
    if (a->json) {
        put_plan(a, weights, &memory, &speed, nodes, beside);
        return KT_OK;
    }
    print_memory(a, weights, &memory);
    print_nodes(a, nodes);
    if (beside) tell_device(a, beside);
    print_speed(a, &speed);
    return KT_OK;
}

static kt_status tell_beside(asked *a, const char *weights, kt_model_plan *plan, kt_err *err) {
    kt_device_ask ask = {
        .graph = plan->graph, .plan = plan, .max_rows = plan->max_rows, .max_context = a->context};
    kt_device_plan beside;
    kt_status st;

    KT_TRY(kt_model_kv_shape(plan->graph, a->cache, &ask.kv, err));
    a->wish.kv_memory = a->kv_memory;
    a->wish.logit_rows = kt_scheduler_logit_rows((int)a->parallel);
    a->wish.is_cut = a->nodes.n > 1;
    KT_TRY(kt_device_plan_make(a->beside, a->n_beside, &ask, &a->wish, &beside, err));
    plan->away = beside.placement.away;
    st = tell_plan(a, weights, plan, &beside, err);
    plan->away = NULL;
    kt_device_plan_deinit(&beside);
    return st;
}

static kt_status tell_weights(asked *a, const char *weights, kt_quant quant, kt_err *err) {
    const kt_model_numbers *n = &a->dir.graph.numbers;
    const int64_t rows = kt_default_chunk(a->context);
    kt_model_plan plan;
    kt_status st;

    KT_TRY(kt_model_plan_make(a->planner, &a->dir.graph, quant, a->cache, (int)a->threads, rows,
                              n->max_context, &plan, err));
    st =
        a->n_beside ? tell_beside(a, weights, &plan, err) : tell_plan(a, weights, &plan, NULL, err);
    kt_model_plan_deinit(&plan);
    return st;
}

/* The four choices. */
static kt_status survey(asked *a, kt_memory_choice *choices, kt_err *err) {
    const int64_t rows = kt_default_chunk(a->context);
    kt_model_plan plan;
    kt_memory_request request;
    kt_status st;

    KT_TRY(kt_model_plan_make(a->planner, &a->dir.graph, KT_QUANT_NATIVE, a->cache, (int)a->threads,
                              rows, a->dir.graph.numbers.max_context, &plan, err));
    request = request_of(a, &plan);
    st = kt_memory_survey(&request, choices, err);
    kt_model_plan_deinit(&plan);
    return st;
}

static kt_status tell(asked *a, int quant, kt_err *err) {
    kt_memory_choice choices[KT_MEMORY_CHOICES];
    const bool is_all = quant < 0;

    KT_TRY(look_around(a, err));
    KT_TRY(survey(a, choices, err));
    if (!is_all && quant < KT_MEMORY_CHOICES && choices[quant].why.status != KT_OK)
        return kt_fail(err, choices[quant].why.status, "%.100s, --weights %s: %.300s", a->dir.name,
                       a->weights, choices[quant].why.message);
    if (a->json) put_head(a);
    for (int q = 0; is_all && q < KT_MEMORY_CHOICES; q++)
        if (choices[q].why.status == KT_OK)
            KT_TRY(tell_weights(a, kt_quant_word((kt_quant)q), (kt_quant)q, err));
    if (!is_all) KT_TRY(tell_weights(a, a->weights, (kt_quant)quant, err));
    if (a->json)
        put_choices(a, choices);
    else
        print_choices(choices);
    return KT_OK;
}

static int answer(asked *a, int quant) {
    kt_err err = {KT_OK, ""};
    const kt_status st = tell(a, quant, &err);
    const char *text = a->json && st == KT_OK ? kt_json_writer_text(&a->w, NULL) : NULL;

    if (text) puts(text);
    kt_json_writer_deinit(&a->w);
    while (a->n_beside > 0) kt_device_close(a->beside[--a->n_beside]);
    kt_planner_destroy(a->planner);
    kt_registry_destroy(a->registry);
    kt_model_dir_deinit(&a->dir);
    if (st != KT_OK) return kt_command_fail(&err);
    return a->fits ? KT_EXIT_OK : KT_EXIT_RESOURCE;
}

/* --families: two usual machines, or the one that was named. */
static int answer_families(const asked *a) {
    kt_shape_fit_request request = {.machines = {(uint64_t)192 << 30, (uint64_t)512 << 30},
                                    .n_machines = 2,
                                    .context = a->context ? a->context : 32768,
                                    .cache = a->cache,
                                    .threads = a->threads ? (int)a->threads : kt_usable_cores(),
                                    .logit_rows = kt_scheduler_logit_rows((int)a->parallel)};

    if (a->machine) {
        request.machines[0] = a->machine;
        request.n_machines = 1;
    }
    return kt_plan_families(&request, a->json);
}

static int check(const kt_usage *usage, asked *a, int n_models, const char *memory,
                 const char *machine, int *quant) {
    if (a->is_families ? n_models != 0 : n_models != 1)
        return kt_usage_fail(usage, a->is_families ? "--families is of all models: expected no "
                                                     "MODEL"
                                                   : "MODEL is missing");
    a->cache = kt_kv_parse(a->kv);
    if (a->cache == KT_W_NONE)
        return kt_usage_fail(usage, "--kv is '%s', expected bf16, fp8 or int8", a->kv);
    if (kt_numa_parse(a->numa) < 0)
        return kt_usage_fail(usage, "--numa is '%s', expected auto, off or 2 to %d", a->numa,
                             KT_MOE_MAX_NODES);
    if (memory && kt_size_parse(memory, &a->kv_memory) != 0)
        return kt_usage_fail(usage, "--kv-memory is '%s', expected a size such as 512M or 24G",
                             memory);
    if (machine && kt_size_parse(machine, &a->machine) != 0)
        return kt_usage_fail(usage, "--machine is '%s', expected a size such as 192G", machine);
    if (strcmp(a->weights, "all") != 0) {
        *quant = kt_quant_parse(a->weights);
        if (*quant < 0)
            return kt_usage_fail(usage, "--weights is '%s', expected all, " KT_QUANT_WORDS,
                                 a->weights);
    }
    return kt_device_flags_check(usage, a->device, &a->wish);
}

static int run(int argc, char **argv) {
    asked a = {.weights = "native", .kv = "bf16", .numa = "auto"};
    const char *memory = NULL, *machine = NULL, *behind = NULL;
    const kt_option options[] = {
        KT_OPTION_STRING("weights", 'w', &a.weights, "FORMAT",
                         "native (default), bf16, int8, int4 and others, or all"),
        KT_OPTION_INT("context", 'c', &a.context, 0, 1 << 24,
                      "tokens of the sequence (default: the model's)"),
        KT_OPTION_STRING("kv", 0, &a.kv, "FORMAT", "cache: bf16 (default), fp8 or int8"),
        KT_OPTION_STRING("kv-memory", 0, &memory, "SIZE", KT_KV_MEMORY_HELP),
        KT_OPTION_STRING("machine", 0, &machine, "SIZE",
                         "memory of another machine, such as 192G, instead of what is free here"),
        KT_OPTION_FLAG("families", &a.is_families,
                       "instead: what machines of 192 and 512 GiB, or --machine, can run"),
        KT_OPTION_STRING("kv-host", 0, &behind, "SIZE", KT_KV_HOST_HELP),
        KT_OPTION_INT("parallel", 0, &a.parallel, 1, 256,
                      "answers side by side, whose logits are counted (default: 64, as kt serve)"),
        KT_OPTION_INT("threads", 't', &a.threads, 0, 1024, "threads (default: one per core)"),
        KT_OPTION_STRING("numa", 0, &a.numa, "NODES",
                         "experts over memory nodes: auto (default), off, or 2 to 16"),
        KT_DEVICE_OPTIONS(a.device, a.wish),
        KT_OPTION_FLAG("draft-head", &a.with_draft_head, "with its draft head: --speculate mtp"),
        KT_OPTION_FLAG("json", &a.json, "print a JSON object; of --families an array")};
    const kt_usage usage = {
        .command = "plan",
        .arguments = "MODEL | --families",
        .about =
            "Count the memory a model needs before it is loaded, what of it fits this machine, and "
            "how\nfast it can be at most. MODEL: a folder (its config.json is enough), a GGUF "
            "file, or the\nname of a bundled shape, whose native weights are those of the "
            "published checkpoint. Exits "
            "with 8 when\nit does not fit.",
        .examples = "  kt plan datasets/models/tiny-moe --weights all\n"
                    "  kt plan DeepSeek-V3 --weights int4 --context 32768 --kv fp8 --json\n"
                    "  kt plan DeepSeek-V4-Flash --machine 192G --context 131072\n"
                    "  kt plan --families\n"};
    int n_models = 0, quant = -1;
    int code = kt_options_parse(&usage, options, sizeof options / sizeof *options, argc, argv,
                                &a.model, 1, &n_models);

    if (code >= 0) return code;
    if (behind && kt_size_parse(behind, &a.kv_host) != 0)
        return kt_usage_fail(&usage, "--kv-host is '%s', expected a size such as 512M or 24G",
                             behind);
    code = check(&usage, &a, n_models, memory, machine, &quant);
    if (code) return code;
    return a.is_families ? answer_families(&a) : answer(&a, quant);
}

const kt_command kt_command_plan = {
    .name = "plan", .summary = "memory a model needs, what fits, how fast at most", .run = run};
