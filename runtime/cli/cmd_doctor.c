/* kt doctor. SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/buffer.h"
#include "base/shell_word.h"
#include "base/err.h"
#include "base/json.h"
#include "dispatch/device/gpu_view.h"
#include "dispatch/device/nvml.h"
#include "dispatch/plan/plan.h"
#include "kt/version.h"
#include "runtime/cli/command.h"
#include "runtime/cli/engine_flags.h"
#include "runtime/cli/options.h"
#include "dispatch/model/checkpoint.h"
#include "runtime/exec/engine.h"
#include "runtime/model/memory_plan.h"
#include "runtime/model/model_dir.h"
#include "runtime/model/node_plan.h"
#include "runtime/sched/scheduler.h"
#include "runtime/token/tokenizer.h"

#define GIB (1024.0 * 1024.0 * 1024.0)
#define MAX_LINES 32

static const kt_usage usage = {
    .command = "doctor",
    .arguments = "[MODEL]",
    .about =
        "Say what this machine has and lacks for running models, and whether a model fits it.\n"
        "Exits with 1 when something will not work; warnings do not count.",
    .examples = "  kt doctor\n  kt doctor datasets/models/tiny-moe --json\n"};

typedef enum verdict { OK, WARN, BAD } verdict;

/* What was found, line by line. */
typedef struct report {
    int n;
    struct {
        verdict verdict;
        char name[24], text[400];
    } line[MAX_LINES];
} report;

static void say(report *r, verdict v, const char *name, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void say(report *r, verdict v, const char *name, const char *format, ...) {
    va_list args;

    if (r->n == MAX_LINES) return;
    r->line[r->n].verdict = v;
    snprintf(r->line[r->n].name, sizeof r->line[r->n].name, "%s", name);
    va_start(args, format);
    vsnprintf(r->line[r->n].text, sizeof r->line[r->n].text, format, args);
    va_end(args);
    r->n++;
}

static void look_at_nodes(report *r, const kt_topology *t) {
    int of_core[1024], n = kt_topology_core_nodes(of_core, 1024);
    kt_node_plan plan;
    char line[256];

    if (t->numa_nodes == 1) {
        say(r, OK, "memory nodes", "one: nothing to cut experts over");
    } else if (kt_node_plan_make(KT_NUMA_AUTO, of_core, n, n, &plan, NULL) == KT_OK && plan.n > 1) {
        say(r, OK, "memory nodes", "%s (--numa off: not)",
            kt_node_plan_format(&plan, line, sizeof line));
    } else {
        say(r, WARN, "memory nodes", "%d, %s", t->numa_nodes,
            *plan.note ? plan.note : "but all usable cores are of one");
    }
}

/* What holds a GPU's clock down now, behind a comma; "" = nothing that is known. */
static const char *gpu_state(const kt_nvml *n, const kt_gpu *gpu, char *out, size_t bytes) {
    kt_gpu_state s;
    char held[128];

    out[0] = 0;
    if (!n) return out;
    s = kt_nvml_look(n, gpu->bus);
    kt_gpu_throttle_text(s.throttle, held, sizeof held);
    if (s.temperature_c >= 0)
        snprintf(out, bytes, ", %d C%s%s", s.temperature_c, *held ? ", clock held down by " : "",
                 held);
    return out;
}

static void look_at_gpus(report *r) {
    char why[320], state[200];
    kt_gpu_view v;
    kt_nvml *n;

    kt_gpu_view_take(&v);
    n = v.gpus.n > 0 ? kt_nvml_start(why, sizeof why) : NULL;
    if (v.gpus.n == 0) say(r, OK, "gpu", "%s", v.gpus.why);
    for (int i = 0; i < v.gpus.n; i++) {
        const kt_gpu *g = &v.gpus.gpu[i];
        say(r, OK, "gpu",
            "%s, sm_%d, %.0f GiB, driver of CUDA %d.%d%s: models use it with --device cuda",
            g->name, g->sm, (double)g->memory_bytes / GIB, v.gpus.driver / 1000,
            v.gpus.driver % 1000 / 10, gpu_state(n, g, state, sizeof state));
        say(r, OK, "gpu kernels", "%d of %zu run on it%s", kt_gpu_runs(&v, i),
            kt_builtin_cuda_kernel_count,
            kt_gpu_runs(&v, i) < (int)kt_builtin_cuda_kernel_count
                ? "; kttune list --why-invalid says why not the others"
                : "");
    }
    if (v.compiler)
        say(r, OK, "gpu compiler", "%s", kt_cuda_compiler_name(v.compiler));
    else if (v.gpus.n > 0)
        say(r, OK, "gpu compiler", "%s", v.no_compiler);
    kt_nvml_stop(n);
    kt_gpu_view_drop(&v);
}

static void look_at_machine(report *r, const kt_topology *t) {
    const kt_cpu *cpu = &t->cpu;
    char isa[160];
    uint64_t free_bytes = kt_memory_available_bytes();

    say(r, OK, "processor", "%s (%s), %d of %d cores usable, %d LLC groups, %d NUMA nodes%s",
        cpu->brand, cpu->microarch, t->usable_cores, t->cores, t->llc_groups, t->numa_nodes,
        cpu->hypervisor ? ", virtual" : "");
    say(r, OK, "named", "%s, %s", cpu->microarch, cpu->identity);
    kt_isa_format(cpu->isa, isa, sizeof isa);
    say(r, cpu->isa & KT_ISA_AVX2 ? OK : WARN, "instruction sets", "%s%s", isa,
        cpu->isa & KT_ISA_AVX2 ? "" : ": only scalar kernels run, expect little speed");
    if (cpu->isa != cpu->isa_hardware)
        say(r, WARN, "instruction sets", "KT_DISABLE_ISA hides some that the processor has");
    say(r, OK, "memory", "%.1f GiB, %.1f GiB available", (double)t->memory_bytes / GIB,
        (double)free_bytes / GIB);
    look_at_nodes(r, t);
    look_at_gpus(r);
    if (strcmp(t->thp, "never") == 0)
        say(r, WARN, "huge pages",
            "transparent huge pages are off; reading weights is slower: echo madvise > "
            "/sys/kernel/mm/transparent_hugepage/enabled");
    else
        say(r, OK, "huge pages", "transparent, %s", t->thp);
}

static void look_at_registry(report *r, const kt_topology *t) {
    kt_registry *registry = NULL;
    kt_err err = {KT_OK, ""};

    if (kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, t->cpu.isa, &registry,
                           &err) != KT_OK) {
        say(r, BAD, "kernels", "%s", err.message);
        return;
    }
    say(r, OK, "kernels",
        "%zu usable, %zu refused, %zu not built (`kttune list --why-invalid` says why)",
        kt_registry_count(registry), kt_registry_refused_count(registry), kt_builtin_absent_count);
    kt_registry_destroy(registry);
}

/* dir: of the model that was asked for, without a family when that could not be read. */
static void look_at_table(report *r, const kt_topology *t, const kt_model_dir *dir, bool is_asked) {
    const char *model = dir->name;
    kt_fingerprint machine;
    kt_table *table = NULL;
    char class[64], path[4096], word[KT_SHELL_WORD_BYTES] = "";
    const char *proposal = "";
    kt_err err = {KT_OK, ""};

    if (!is_asked)
        kt_shell_word("tiny-moe", word, sizeof word);
    else if (dir->graph.family) /* else there is nothing to be tuned for */
        kt_shell_word(dir->folder, word, sizeof word);
    if (*word) proposal = "; make one: kttune run --model ";
    kt_fingerprint_make(t, NULL, &machine);
    kt_machine_class(&machine, class, sizeof class);
    say(r, OK, "machine class", "%s", class);
    kt_table_locate(&machine, model, dir->shape_id, path, sizeof path);
    if (!*path)
        say(r, WARN, "dispatch table", "none for %s%s%s", class, proposal, word);
    else if (kt_table_load(path, &table, &err) != KT_OK)
        say(r, BAD, "dispatch table", "%s", err.message);
    else {
        kt_match match = kt_fingerprint_compare(&table->fingerprint, &machine, &err);
        say(r, match == KT_MATCH_SAME ? OK : WARN, "dispatch table",
            "%.200s: %zu rows, %zu plan cells%s%.100s", path, table->n_rows, table->n_plans,
            match == KT_MATCH_SAME ? "" : ", ", match == KT_MATCH_SAME ? "" : err.message);
    }
    kt_table_destroy(table);
}

/* With the context that `kt serve` would take when none is asked for. */
static void survey(const kt_model_dir *dir, kt_planner *planner, size_t kv_memory,
                   kt_memory_choice *choices, kt_err *err) {
    const int64_t most = dir->graph.numbers.max_context;
    kt_model_plan plan;
    kt_memory_request request = {.plan = &plan,
                                 .n_nodes = 1,
                                 .context = most < KT_LEAST_CONTEXT ? most : KT_LEAST_CONTEXT,
                                 .kv_memory = kv_memory,
                                 .logit_rows = kt_scheduler_logit_rows(0),
                                 .takes_longest = true,
                                 .available = kt_memory_available_bytes()};

    if (kt_model_plan_make(planner, &dir->graph, KT_QUANT_NATIVE, KT_W_BF16, kt_usable_cores(),
                           kt_default_chunk(most), most, &plan, err) != KT_OK)
        return;
    kt_memory_survey(&request, choices, err);
    kt_model_plan_deinit(&plan);
}

static void look_at_choices(report *r, const kt_memory_choice *choices) {
    bool fits = false;

    for (int q = KT_QUANT_NATIVE; q < KT_MEMORY_CHOICES; q++) {
        const kt_memory_plan *p = &choices[q].plan;
        const char *name = kt_quant_word((kt_quant)q);
        if (choices[q].why.status != KT_OK) {
            say(r, OK, name, "not possible: %.200s", choices[q].why.message);
            continue;
        }
        fits |= kt_memory_fits(p);
        if (kt_memory_fits(p))
            say(r, OK, name,
                "%.3f GiB of weights, context up to %lld tokens, page pool for %lld (%.3f GiB)",
                (double)p->weights / GIB, (long long)p->longest,
                (long long)p->pool.pages * KT_PAGE_TOKENS, (double)p->pool.bytes / GIB);
        else if (p->cached < p->context)
            say(r, WARN, name, "the cache holds %lld tokens, expected %lld (--kv-memory)",
                (long long)p->cached, (long long)p->context);
        else
            say(r, WARN, name, "%.3f GiB of weights, %.3f GiB needed: more than is available",
                (double)p->weights / GIB, (double)p->needed / GIB);
    }
    if (!fits) say(r, BAD, "memory", "the model does not fit in any format");
}

static void look_at_needs(report *r, const kt_model_dir *dir, const kt_topology *t,
                          size_t kv_memory) {
    kt_memory_choice choices[KT_MEMORY_CHOICES];
    kt_registry *registry = NULL;
    kt_planner *planner = NULL;
    kt_fingerprint machine;
    kt_kv_shape cache;
    kt_err err = {KT_OK, ""};

    kt_fingerprint_make(t, NULL, &machine);
    if (kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, t->cpu.isa, &registry,
                           &err) == KT_OK &&
        kt_planner_create(registry, NULL, &machine, NULL, &planner, &err) == KT_OK)
        survey(dir, planner, kv_memory, choices, &err);
    kt_planner_destroy(planner);
    kt_registry_destroy(registry);
    if (err.status != KT_OK) {
        say(r, BAD, "kernels", "%s", err.message);
        return;
    }
    look_at_choices(r, choices);
    if (kt_model_kv_shape(&dir->graph, KT_W_BF16, &cache, &err) == KT_OK)
        say(r, OK, "cache", "%.3f GiB per 1000 tokens, context %lld (`kt plan` counts the rest)",
            (double)kt_kv_page_bytes(&cache) / KT_PAGE_TOKENS * 1000 / GIB,
            (long long)dir->graph.numbers.max_context);
}

static void look_at_model(report *r, const char *folder, const kt_topology *t, size_t kv_memory,
                          kt_model_dir *dir) {
    kt_model_experts experts;
    kt_tokenizer *tokenizer = NULL;
    kt_err err = {KT_OK, ""};

    if (kt_model_dir_read(folder, dir, &err) != KT_OK) {
        say(r, BAD, "model", "%s", err.message);
        return;
    }
    experts = kt_model_count_experts(&dir->graph);
    say(r, OK, "model", "%s: %s, %lld layers, hidden %lld, %lld experts, top %lld", dir->name,
        dir->graph.family->name, (long long)dir->graph.numbers.layers,
        (long long)dir->graph.numbers.hidden, (long long)experts.experts, (long long)experts.topk);
    if (!dir->checkpoint)
        say(r, BAD, "checkpoint", "%s", dir->why.message);
    else
        say(r, OK, "checkpoint", "%zu tensors", kt_checkpoint_count(dir->checkpoint));
    if (kt_tokenizer_load(dir->graph.is_gguf ? kt_checkpoint_file(dir->checkpoint, 0) : dir->folder,
                          &tokenizer, &err) != KT_OK)
        say(r, BAD, "tokenizer", "%s", err.message);
    else
        say(r, OK, "tokenizer", "%d tokens", kt_tokenizer_size(tokenizer));
    kt_tokenizer_destroy(tokenizer);
    look_at_needs(r, dir, t, kv_memory);
}

static int print(const report *r, bool json) {
    static const char *const words[] = {"ok", "warn", "bad"};
    kt_json_writer w = {0};
    int code = KT_EXIT_OK;

    kt_json_begin_array(&w);
    for (int i = 0; i < r->n; i++) {
        const char *word = words[r->line[i].verdict];
        if (r->line[i].verdict == BAD) code = KT_EXIT_FAILURE;
        if (!json) printf("%-5s %-17s %s\n", word, r->line[i].name, r->line[i].text);
        kt_json_begin_object(&w);
        kt_json_add_string(&w, "check", r->line[i].name);
        kt_json_add_string(&w, "verdict", word);
        kt_json_add_string(&w, "text", r->line[i].text);
        kt_json_end_object(&w);
    }
    kt_json_end_array(&w);
    if (json && kt_json_writer_text(&w, NULL)) puts(kt_json_writer_text(&w, NULL));
    kt_json_writer_deinit(&w);
    return code;
}

static int run(int argc, char **argv) {
    bool json = false;
    const char *model = NULL, *memory = NULL;
    const kt_option options[] = {
        KT_OPTION_STRING("kv-memory", 0, &memory, "SIZE", KT_KV_MEMORY_HELP),
        KT_OPTION_FLAG("json", &json, "print a JSON array")};
    size_t kv_memory = 0;
    int n_words = 0, code;
    kt_model_dir dir = {0};
    kt_topology topology;
    report r = {0};
    kt_err err = {KT_OK, ""};

    code = kt_options_parse(&usage, options, 2, argc, argv, &model, 1, &n_words);
    if (code >= 0) return code;
    if (memory && kt_size_parse(memory, &kv_memory) != 0)
        return kt_usage_fail(&usage, "--kv-memory is '%s', expected a size such as 512M or 24G",
                             memory);
    if (kt_topology_probe(&topology, &err) != KT_OK) return kt_command_fail(&err);
    say(&r, OK, "kt", "%s", KT_VERSION);
    look_at_machine(&r, &topology);
    look_at_registry(&r, &topology);
    if (model) look_at_model(&r, model, &topology, kv_memory, &dir);
    look_at_table(&r, &topology, &dir, model != NULL);
    kt_model_dir_deinit(&dir);
    return print(&r, json);
}

const kt_command kt_command_doctor = {
    .name = "doctor", .summary = "check this machine, and whether a model fits it", .run = run};
