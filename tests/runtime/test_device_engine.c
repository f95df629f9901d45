/* Engines that a device takes part in, on the emulated one: the same numbers as the CPU's within
 * what BF16 may lose, the same experts, whatever share of them lies there; and what happens when
 * there is no room or the device is lost. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/buffer.h"
#include "base/json.h"

#include "dispatch/table/table.h"
#include "runtime/device/device_impl.h"
#include "runtime/exec/engine_impl.h"
#include "tests/support/qwen3_ref.h"
#include "tests/support/temp.h"

enum { TOKENS = 9 };

/* What the published implementation says of a folder of tests/data/golden. */
typedef struct golden {
    char folder[PATH_MAX];
    kt_checkpoint *file;
    const int32_t *tokens;
    const float *logits, *hidden;
    int64_t vocab, size, layers, n;
    double bound;
} golden;

static const kt_tensor *need(const golden *g, const char *name) {
    const kt_tensor *t = kt_checkpoint_find(g->file, name);
    cr_assert(t, "%s: no tensor %s", g->folder, name);
    return t;
}

static golden open_golden(const char *name) {
    golden g;
    char path[PATH_MAX + 32], *text;
    kt_json_doc *doc;
    size_t size;
    kt_err err = {KT_OK, ""};

    snprintf(g.folder, sizeof g.folder, "%s/golden/%s", KT_TEST_DATA, name);
    snprintf(path, sizeof path, "%s/expected.safetensors", g.folder);
    cr_assert_eq(kt_checkpoint_open_file(path, &g.file, &err), KT_OK, "%s", err.message);
    snprintf(path, sizeof path, "%s/bounds.json", g.folder);
    cr_assert_eq(kt_file_read(path, 1 << 20, &text, &size, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_json_parse(text, size, NULL, &doc, &err), KT_OK, "%s", err.message);
    g.bound = 1.5 * kt_json_double(kt_json_get(kt_json_root(doc), "error_bf16_reference"), NAN);
    kt_json_destroy(doc);
    free(text);
    g.tokens = (const int32_t *)(const void *)need(&g, "tokens")->data;
    g.logits = (const float *)(const void *)need(&g, "logits")->data;
    g.hidden = (const float *)(const void *)need(&g, "hidden")->data;
    g.n = need(&g, "tokens")->shape[0];
    g.vocab = need(&g, "logits")->shape[1];
    g.layers = need(&g, "hidden")->shape[0] - 1;
    g.size = need(&g, "hidden")->shape[2];
    return g;
}

static double error_of(const float *got, const float *want, int64_t count) {
    double *w = malloc((size_t)count * sizeof *w), error;

    for (int64_t i = 0; i < count; i++) w[i] = want[i];
    error = kt_relative_error(got, w, count);
    free(w);
    return error;
}

static kt_engine *load(const char *folder, kt_engine_options o) {
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    o.model_dir = folder;
    if (!o.table_path) o.table_path = "";
    o.tokenizer_optional = true;
    o.n_threads = 2;
    o.max_context = 64;
    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    return e;
}

/* Logits of TOKENS tokens; malloc'd. record: a file of what was routed where, or NULL. */
static float *forward(kt_engine *e, const int32_t *tokens, int64_t chunk, float *hidden,
                      const char *record) {
    kt_engine_info info;
    kt_sequence *s;
    float *logits;
    kt_err err = {KT_OK, ""};

    kt_engine_describe(e, &info);
    logits = calloc((size_t)(TOKENS * info.vocab), sizeof *logits);
    kt_engine_set_chunk(e, chunk);
    if (record) cr_assert_eq(kt_engine_record(e, record, 0, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_sequence_create(e, TOKENS, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, tokens, TOKENS, TOKENS, logits, hidden, NULL, NULL, &err),
                 KT_OK, "%s", err.message);
    kt_sequence_destroy(s);
    if (record) kt_engine_record(e, NULL, 0, &err);
    return logits;
}

/* The recorded layers of the only step. */
static char *routing_of(const char *record) {
    char *text, *at;
    size_t size;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_file_read(record, 1 << 20, &text, &size, &err), KT_OK, "%s", err.message);
    at = strstr(text, "\"layers\":");
    cr_assert(at, "%s has no step", record);
    memmove(text, at, strlen(at) + 1);
    return text;
}

/* routing: what it must be, or NULL; returns what it was. */
static char *check_share(const golden *g, const char *share, bool experts_only, const char *routing,
                         const char *temp) {
    char record[PATH_MAX];
    kt_engine *e = load(g->folder, (kt_engine_options){.device = "emulated:lazy,races",
                                                       .gpu_experts = share,
                                                       .experts_only = experts_only});
    const int64_t row = g->n * g->size;
    float *hidden = calloc((size_t)((g->layers + 1) * TOKENS * g->size), sizeof *hidden), *logits;
    char *got;
    double error;

    snprintf(record, sizeof record, "%s/device", temp);
    logits = forward(e, g->tokens, TOKENS, hidden, record);
    error = error_of(logits, g->logits, TOKENS * g->vocab);
    cr_expect_leq(error, g->bound, "%s, %s of the experts: off by %g, bound %g", g->folder, share,
                  error, g->bound);
    for (int64_t l = 0; l <= g->layers; l++) {
        error = error_of(hidden + l * TOKENS * g->size, g->hidden + l * row, TOKENS * g->size);
        cr_expect_leq(error, g->bound, "%s, %s: hidden %lld is off by %g, bound %g", g->folder,
                      share, (long long)l, error, g->bound);
    }
    got = routing_of(record);
    if (routing) cr_expect_str_eq(got, routing, "%s, %s: other experts", g->folder, share);
    free(logits);
    free(hidden);
    kt_engine_destroy(e);
    return got;
}

/* With all but experts on the CPU the rows choose as they do there. Else attention rounds in other
 * places, and a near tie may fall to the other expert; but never does that depend on the share. */
Test(device_engine, any_share_of_experts_gives_the_same_numbers, .timeout = 120) {
    static const char *const shares[] = {"0", "25%", "50%", "75%", "100%"};
    golden g = open_golden("qwen3_moe-a");
    kt_engine *cpu = load(g.folder, (kt_engine_options){0});
    char temp[256], record[PATH_MAX], *routing;

    kt_temp_make(temp, sizeof temp);
    snprintf(record, sizeof record, "%s/cpu", temp);
    free(forward(cpu, g.tokens, TOKENS, NULL, record));
    routing = routing_of(record);
    for (size_t i = 1; i < sizeof shares / sizeof *shares; i += 2)
        free(check_share(&g, shares[i], true, routing, temp));
    free(routing);
    routing = NULL;
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        char *got = check_share(&g, shares[i], false, routing, temp);
        free(routing);
        routing = got;
    }
    free(routing);
    kt_engine_destroy(cpu);
    kt_temp_remove(temp);
    kt_checkpoint_close(g.file);
}

/* Rows in other steps, and steps of one row. */
Test(device_engine, chunks_give_the_same_numbers, .timeout = 120) {
    static const int64_t chunks[] = {1, 4, 8};
    golden g = open_golden("qwen3_moe-a");
    kt_engine *e = load(g.folder, (kt_engine_options){.device = "emulated", .gpu_experts = "50%"});
    float *whole = forward(e, g.tokens, TOKENS, NULL, NULL);

    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        float *logits = forward(e, g.tokens, chunks[i], NULL, NULL);
        const double error = error_of(logits, whole, TOKENS * g.vocab);
        cr_expect_leq(error, g.bound, "chunks of %lld: off by %g, bound %g", (long long)chunks[i],
                      error, g.bound);
        free(logits);
    }
    free(whole);
    kt_engine_destroy(e);
    kt_checkpoint_close(g.file);
}

/* Launches for norms, rotations and pages of each layer, and how many nodes these are. */
static void expect_heads(const char *name, int launches, int nodes) {
    golden g = open_golden(name);
    kt_engine *e = load(g.folder, (kt_engine_options){.device = "emulated"});
    const kt_device_step *d = e->step.device;
    int n = 0, n_launches = 0, n_joined = 0;

    for (int i = 0; i < d->graph->n_nodes; i++) {
        const kt_device_node *node = &d->home->node[i];
        const kt_node_kind kind = node->node->kind;
        if (node->node->layer != 0) continue;
        if (kind != KT_NODE_RMS_HEADS && kind != KT_NODE_ROPE && kind != KT_NODE_KEEP) continue;
        n++;
        n_launches += node->op && node->op->init;
        n_joined += node->op && node->op != kt_device_op_find(kind);
    }
    cr_expect(n == nodes && n_launches == launches && n_joined == (launches < n ? n : 0),
              "%s: %d nodes, %d launches, %d joined", name, n, n_launches, n_joined);
    kt_engine_destroy(e);
    kt_checkpoint_close(g.file);
}

Test(device_engine, heads_are_ready_for_attention_by_one_launch, .timeout = 60) {
    expect_heads("qwen3_moe-a", 1, 5);
    expect_heads("qwen3_moe-b", 1, 5);
}

/* A step that is put whole, with letters and answers, is the same step as one that the host leads
 * part by part, or from letter to letter, to the bit; and one that comes again is replayed. The
 * lazy device does no more than what the letters demand; the other shares a core with the host and
 * goes before it. */
static void check_whole_steps(const golden *g, const char *device, bool experts_only) {
    static const char *const ways[] = {"off", "mapped", "functions"};
    float *logits[3];
    kt_engine *e[3];

    for (int w = 0; w < 3; w++) {
        setenv("KT_MAILBOX", ways[w], 1);
        e[w] = load(g->folder, (kt_engine_options){.device = device,
                                                   .gpu_experts = "50%",
                                                   .experts_only = experts_only});
    }
    setpriority(PRIO_PROCESS, 0, 19); /* this thread alone */
    for (int w = 0; w < 3; w++) {
        kt_device_gathered did;
        logits[w] = forward(e[w], g->tokens, TOKENS / 3, NULL, NULL);
        did = kt_device_step_gathered(e[w]->step.device);
        cr_expect(w == 1 ? did.pieces == 3 && did.captured == 1 && did.replayed == 3
                         : did.pieces > 6 && did.replayed > 0,
                  "%s: %d pieces, %d captured, %d replayed", ways[w], (int)did.pieces,
                  (int)did.captured, (int)did.replayed);
        cr_expect_arr_eq(logits[w], logits[0], (size_t)(TOKENS * g->vocab) * sizeof **logits,
                         "%s, %s, %d", device, ways[w], experts_only);
    }
    for (int w = 0; w < 3; w++) free(logits[w]), kt_engine_destroy(e[w]);
    unsetenv("KT_MAILBOX");
}

Test(device_engine, whole_steps_give_the_same_bits_as_their_parts, .timeout = 120) {
    golden g = open_golden("qwen3_moe-a");
    cpu_set_t one = {{0}};

    CPU_SET((size_t)sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    check_whole_steps(&g, "emulated", false);
    check_whole_steps(&g, "emulated:lazy", true);
    kt_checkpoint_close(g.file);
}

/* The fork has rows in a page of its own: they are copied where they lie. Then the first sequence
 * goes on with other tokens. */
Test(device_engine, a_fork_goes_on_from_its_own_rows, .timeout = 60) {
    enum { BEFORE = 6 };
    golden g = open_golden("qwen3_moe-a");
    kt_engine *e = load(g.folder, (kt_engine_options){.device = "emulated", .gpu_experts = "50%"});
    float *logits = calloc((size_t)(TOKENS * g.vocab), sizeof *logits);
    kt_sequence *s, *fork;
    kt_err err = {KT_OK, ""};
    double error;

    cr_assert_eq(kt_sequence_create(e, TOKENS, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, g.tokens, BEFORE, 0, NULL, NULL, NULL, NULL, &err), KT_OK);
    cr_assert_eq(kt_sequence_fork(s, &fork, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, g.tokens, 3, 0, NULL, NULL, NULL, NULL, &err), KT_OK);
    cr_assert_eq(kt_engine_forward(e, fork, g.tokens + BEFORE, TOKENS - BEFORE, TOKENS - BEFORE,
                                   logits, NULL, NULL, NULL, &err),
                 KT_OK, "%s", err.message);
    error = error_of(logits, g.logits + BEFORE * g.vocab, (TOKENS - BEFORE) * g.vocab);
    cr_expect_leq(error, g.bound, "off by %g, bound %g", error, g.bound);
    kt_sequence_destroy(fork);
    kt_sequence_destroy(s);
    free(logits);
    kt_engine_destroy(e);
    kt_checkpoint_close(g.file);
}

/* Both sides have the same INT4 weights; the CPU encodes activations in 8 bits (1.1 % of these
 * logits), the device in BF16. */
Test(device_engine, int4_experts_are_those_of_the_cpu, .timeout = 120) {
    static const char *const shares[] = {"50%", "100%"};
    golden g = open_golden("qwen3_moe-a");
    kt_engine *cpu =
        load(g.folder, (kt_engine_options){.weights = KT_QUANT_INT4, .exact_acts = true});
    float *want = forward(cpu, g.tokens, TOKENS, NULL, NULL);

    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        kt_engine *e = load(g.folder, (kt_engine_options){.weights = KT_QUANT_INT4,
                                                          .exact_acts = true,
                                                          .device = "emulated",
                                                          .gpu_experts = shares[i],
                                                          .expert_placement = "random"});
        float *logits = forward(e, g.tokens, TOKENS, NULL, NULL);
        const double error = error_of(logits, want, TOKENS * g.vocab);
        cr_expect_leq(error, 2 * g.bound, "%s: off by %g, bound %g", shares[i], error, 2 * g.bound);
        free(logits);
        kt_engine_destroy(e);
    }
    free(want);
    kt_engine_destroy(cpu);
    kt_checkpoint_close(g.file);
}

/* ---- kernels by the table ---- */

static void note_device(void *arg, kt_log_level level, const char *area, const char *message) {
    char *all = arg;
    (void)level;
    if (strcmp(area, "device") == 0) strncat(all, message, 2000 - strlen(all));
}

/* A table of this class of machines with one row of a device. */
static void write_table(const char *path, const kt_table_device_row *row) {
    kt_table *t;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_table_create(&t, &err), KT_OK);
    t->fingerprint = (kt_fingerprint){.vendor = "AuthenticAMD",
                                      .microarch = "zen4",
                                      .usable_cores = 2,
                                      .numa_nodes = 1,
                                      .memory_bytes = UINT64_C(24) << 30};
    cr_assert_eq(kt_table_put_device_row(t, row, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_table_save(t, path, &err), KT_OK, "%s", err.message);
    kt_table_destroy(t);
}

/* What a table says of a cell of tiny experts; times in ns. */
static kt_table_device_row row_of(const char *cell, const char *variant, const char *config) {
    kt_table_device_row r = {.device = "emulated",
                             .target = "80",
                             .row = {.problem = {.op = KT_OP_MOE_FFN,
                                                 .weights = KT_W_INT4_G32,
                                                 .acts = KT_A_INT8_G32,
                                                 .m = 12,
                                                 .n = 64,
                                                 .k = 96,
                                                 .experts = 12,
                                                 .topk = 4},
                                     .threads = 1,
                                     .version = 1,
                                     .time_ns = 100,
                                     .ci_low = 100,
                                     .ci_high = 100,
                                     .default_ns = 200,
                                     .status = "tuned"}};

    snprintf(r.cell, sizeof r.cell, "%s", cell);
    snprintf(r.row.variant, sizeof r.row.variant, "%s", variant);
    snprintf(r.row.default_variant, sizeof r.row.default_variant, "%s", variant);
    snprintf(r.row.config, sizeof r.row.config, "%s", config);
    return r;
}

/* A table that has experts of many rows go by 8-bit products. */
static void write_kernel_row(const char *path) {
    kt_table_device_row row =
        row_of("kernel", "moe_s8_tiles", "bm=16,bn=64,warps_m=1,warps_n=1,stages=2");

    snprintf(row.row.default_variant, sizeof row.row.default_variant, "moe_tiles");
    write_table(path, &row);
}

Test(device_engine, the_table_names_kernels_but_not_against_exact_rows, .timeout = 120) {
    golden g = open_golden("qwen3_moe-a");
    char folder[512], path[PATH_MAX];
    float *logits[3];

    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/x.kttable.json", folder);
    write_kernel_row(path);
    for (int i = 0; i < 3; i++) {
        char said[2048] = "";
        const kt_log log = {.sink = note_device, .sink_arg = said, .level = KT_LOG_INFO};
        kt_engine *e = load(g.folder, (kt_engine_options){.weights = KT_QUANT_INT4,
                                                          .exact_acts = i == 2,
                                                          .table_path = i ? path : NULL,
                                                          .log = &log,
                                                          .device = "emulated",
                                                          .gpu_experts = "50%"});
        logits[i] = forward(e, g.tokens, TOKENS, NULL, NULL);
        cr_expect_eq(strstr(said, "3 rows of the table choose") != NULL, i == 1, "%s", said);
        cr_expect_eq(strstr(said, "rounds rows to 8 bits") != NULL, i == 2, "%s", said);
        kt_engine_destroy(e);
    }
    cr_expect_leq(error_of(logits[1], logits[0], TOKENS * g.vocab), 2 * g.bound);
    cr_expect_gt(error_of(logits[1], logits[0], TOKENS * g.vocab), 0);
    for (int i = 0; i < 3; i++) free(logits[i]);
    kt_checkpoint_close(g.file);
    kt_temp_remove(folder);
}

/* The weights that lie there are not here. */
Test(device_engine, experts_are_held_once, .timeout = 60) {
    golden g = open_golden("qwen3_moe-a");
    kt_engine *cpu = load(g.folder, (kt_engine_options){0});
    kt_engine *half =
        load(g.folder,
             (kt_engine_options){.device = "emulated", .gpu_experts = "50%", .experts_only = true});
    kt_engine *all = load(
        g.folder,
        (kt_engine_options){.device = "emulated", .gpu_experts = "100%", .experts_only = true});
    kt_engine_info with, without, some;

    kt_engine_describe(cpu, &without);
    kt_engine_describe(half, &some);
    kt_engine_describe(all, &with);
    cr_expect_lt(with.weight_bytes, without.weight_bytes, "%zu bytes with a device, %zu without",
                 with.weight_bytes, without.weight_bytes);
    cr_expect(with.weight_bytes < some.weight_bytes && some.weight_bytes < without.weight_bytes,
              "%zu bytes with half of them", some.weight_bytes);
    cr_expect_str_empty(without.device_line);
    cr_expect(strstr(with.device_line, "36 experts"), "%s", with.device_line);
    kt_engine_destroy(half);
    kt_engine_destroy(all);
    kt_engine_destroy(cpu);
    kt_checkpoint_close(g.file);
}

Test(device_engine, a_lost_device_ends_calls_with_an_error, .timeout = 60) {
    golden g = open_golden("qwen3_moe-a");
    kt_engine *e = load(
        g.folder, (kt_engine_options){.device = "emulated:fail-after=3", .gpu_experts = "50%"});
    float *logits = calloc((size_t)(TOKENS * g.vocab), sizeof *logits);

    for (int i = 0; i < 2; i++) {
        kt_err err = {KT_OK, ""};
        kt_sequence *s;
        cr_assert_eq(kt_sequence_create(e, TOKENS, &s, &err), KT_OK, "%s", err.message);
        cr_expect_neq(
            kt_engine_forward(e, s, g.tokens, TOKENS, TOKENS, logits, NULL, NULL, NULL, &err),
            KT_OK);
        cr_expect(strstr(err.message, "lost"), "call %d says: %s", i, err.message);
        kt_sequence_destroy(s);
    }
    free(logits);
    kt_engine_destroy(e);
    kt_checkpoint_close(g.file);
}

static void expect_refusal(const char *folder, kt_engine_options o, kt_status want,
                           const char *says) {
    kt_engine *e = NULL;
    kt_err err = {KT_OK, ""};

    o.model_dir = folder;
    o.table_path = "";
    o.tokenizer_optional = true;
    o.n_threads = 1;
    cr_expect_eq(kt_engine_create(&o, &e, &err), want, "%s", err.message);
    cr_expect(strstr(err.message, says), "'%s' does not say '%s'", err.message, says);
    kt_engine_destroy(e);
}

Test(device_engine, what_cannot_be_is_refused_with_the_reason, .timeout = 60) {
    golden g = open_golden("qwen3_moe-a");

    expect_refusal(g.folder,
                   (kt_engine_options){.device = "emulated:memory=9M", .gpu_experts = "100%"},
                   KT_E_NOMEM, "GiB are free");
    expect_refusal(g.folder, (kt_engine_options){.device = "gpu"}, KT_E_INVALID, "'gpu'");
    expect_refusal(g.folder, (kt_engine_options){.device = "emulated:memory=x"}, KT_E_INVALID,
                   "memory=x");
    expect_refusal(g.folder, (kt_engine_options){.device = "emulated", .gpu_experts = "many"},
                   KT_E_INVALID, "'many'");
    expect_refusal(g.folder,
                   (kt_engine_options){.device = "emulated", .expert_placement = "frequency"},
                   KT_E_INVALID, "--expert-load");
    expect_refusal(g.folder, (kt_engine_options){.device = "emulated", .deterministic = true},
                   KT_E_UNSUPPORTED, "--deterministic");
    expect_refusal(g.folder, (kt_engine_options){.device = "emulated*2", .device_split = "1,0"},
                   KT_E_INVALID, "expected 2 positive numbers");
    expect_refusal(g.folder, (kt_engine_options){.device = "emulated*4"}, KT_E_UNSUPPORTED,
                   "expected at most 3");
    expect_refusal(
        g.folder,
        (kt_engine_options){.device = "emulated+emulated:memory=9M", .device_split = "1,9"},
        KT_E_NOMEM, "device 1 of 2, layers");
    kt_checkpoint_close(g.file);
}

/* ---- experts that cross ---- */

/* Steps of 9 rows are long, those of 1 row are not; 12 experts cross in groups of 3. */
static void check_crossing(const golden *g, const char *device, const char *share,
                           const char *prefill, bool experts_only, bool is_again,
                           const char *routing, const char *temp) {
    char record[PATH_MAX], *got;
    kt_engine *e = load(g->folder, (kt_engine_options){.device = device,
                                                       .gpu_experts = share,
                                                       .prefill_offload = prefill,
                                                       .experts_only = experts_only});
    float *logits;
    double error;

    snprintf(record, sizeof record, "%s/crossing", temp);
    logits = forward(e, g->tokens, TOKENS, NULL, record);
    error = error_of(logits, g->logits, TOKENS * g->vocab);
    cr_expect_leq(error, g->bound, "%s, %s there, prefill %s: off by %g, bound %g", device, share,
                  prefill, error, g->bound);
    if (is_again) { /* layers begin with what crossed the last time, for other rows */
        free(logits);
        logits = forward(e, g->tokens, 5, NULL, NULL);
    }
    error = error_of(logits, g->logits, TOKENS * g->vocab);
    cr_expect_leq(error, g->bound, "%s, %s there, prefill %s, again: off by %g, bound %g", device,
                  share, prefill, error, g->bound);
    got = routing_of(record);
    if (routing) cr_expect_str_eq(got, routing, "%s, %s: other experts", share, prefill);
    free(got);
    free(logits);
    kt_engine_destroy(e);
}

Test(device_engine, experts_that_cross_give_the_same_numbers, .timeout = 120) {
    static const struct {
        const char *device, *share, *prefill;
        bool experts_only, is_again;
    } cases[] = {
        {"emulated:lazy,races", "0", "2:100%", false, false},
        {"emulated", "25%", "2:100%", true, true},
        {"emulated", "0", "2:0%", true, false},
        {"emulated", "50%", "9", true, false},
    };
    golden g = open_golden("qwen3_moe-a");
    kt_engine *cpu = load(g.folder, (kt_engine_options){0});
    char temp[256], record[PATH_MAX], *routing;

    kt_temp_make(temp, sizeof temp);
    snprintf(record, sizeof record, "%s/cpu", temp);
    free(forward(cpu, g.tokens, TOKENS, NULL, record));
    routing = routing_of(record);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_crossing(&g, cases[i].device, cases[i].share, cases[i].prefill, cases[i].experts_only,
                       cases[i].is_again, cases[i].experts_only ? routing : NULL, temp);
    free(routing);
    kt_engine_destroy(cpu);
    kt_temp_remove(temp);
    kt_checkpoint_close(g.file);
}

/* One row a step: the CPU alone, as without the option, to the bit. */
Test(device_engine, short_steps_stay_on_the_cpu, .timeout = 60) {
    static const char *const prefill[] = {"off", "2:100%"};
    golden g = open_golden("qwen3_moe-a");
    float *logits[2];

    for (int i = 0; i < 2; i++) {
        kt_engine *e = load(g.folder, (kt_engine_options){.device = "emulated",
                                                          .gpu_experts = "0",
                                                          .experts_only = true,
                                                          .prefill_offload = prefill[i]});
        logits[i] = forward(e, g.tokens, 1, NULL, NULL);
        kt_engine_destroy(e);
    }
    cr_expect_arr_eq(logits[0], logits[1], (size_t)(TOKENS * g.vocab) * sizeof(float));
    for (int i = 0; i < 2; i++) free(logits[i]);
    kt_checkpoint_close(g.file);
}

/* INT4 panels of the CPU are INT4 records there. */
Test(device_engine, int4_experts_cross_as_they_are, .timeout = 60) {
    golden g = open_golden("qwen3_moe-a");
    kt_engine *cpu =
        load(g.folder, (kt_engine_options){.weights = KT_QUANT_INT4, .exact_acts = true});
    kt_engine *e = load(g.folder, (kt_engine_options){.weights = KT_QUANT_INT4,
                                                      .exact_acts = true,
                                                      .device = "emulated",
                                                      .gpu_experts = "25%",
                                                      .prefill_offload = "2:100%"});
    float *want = forward(cpu, g.tokens, TOKENS, NULL, NULL);
    float *logits = forward(e, g.tokens, TOKENS, NULL, NULL);
    const double error = error_of(logits, want, TOKENS * g.vocab);

    cr_expect_leq(error, 2 * g.bound, "off by %g, bound %g", error, 2 * g.bound);
    free(want);
    free(logits);
    kt_engine_destroy(e);
    kt_engine_destroy(cpu);
    kt_checkpoint_close(g.file);
}

/* A table in which the link takes half as long as the CPU at 8 rows. */
static void check_crossover(const golden *g) {
    kt_table_device_row row = row_of("prefill_offload", "prefill_offload", "rows=8");
    char folder[512], path[PATH_MAX];
    kt_engine *e;

    row.row.threads = 2;
    row.row.version = 0;
    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/x.kttable.json", folder);
    write_table(path, &row);
    e = load(g->folder, (kt_engine_options){.weights = KT_QUANT_INT4,
                                            .table_path = path,
                                            .device = "emulated",
                                            .gpu_experts = "25%",
                                            .experts_only = true});
    cr_expect_eq(e->beside.stream.from_rows, 4, "%lld", (long long)e->beside.stream.from_rows);
    cr_expect_eq(e->beside.stream.crossover, 4);
    kt_engine_destroy(e);
    kt_temp_remove(folder);
}

/* The plan counts the buffers, and says what is missing for them. */
Test(device_engine, buffers_for_experts_that_cross_are_counted, .timeout = 60) {
    golden g = open_golden("qwen3_moe-a");
    kt_engine *e =
        load(g.folder,
             (kt_engine_options){.device = "emulated", .gpu_experts = "0", .prefill_offload = "2"});
    kt_engine_info info;

    kt_engine_describe(e, &info);
    cr_expect(strstr(info.device_line, "prefill staging"), "%s", info.device_line);
    cr_expect_eq(kt_device_step_bytes(e->step.device).staging, e->beside.stream.bytes);
    kt_engine_destroy(e);
    check_crossover(&g);
    expect_refusal(g.folder,
                   (kt_engine_options){
                       .device = "emulated:memory=8M", .gpu_experts = "0", .prefill_offload = "2"},
                   KT_E_NOMEM, "prefill staging");
    expect_refusal(g.folder, (kt_engine_options){.device = "emulated", .prefill_offload = "soon"},
                   KT_E_INVALID, "'soon'");
    kt_checkpoint_close(g.file);
}

/* Wherever it is lost, between copies and launches of groups too. */
Test(device_engine, a_device_lost_while_experts_cross_is_an_error, .timeout = 60) {
    static const int launches[] = {17, 41};
    golden g = open_golden("qwen3_moe-a");
    float *logits = calloc((size_t)(TOKENS * g.vocab), sizeof *logits);

    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) {
        char device[64];
        kt_err err = {KT_OK, ""};
        kt_sequence *s;
        kt_engine *e;
        snprintf(device, sizeof device, "emulated:fail-after=%d", launches[i]);
        e = load(g.folder, (kt_engine_options){.device = device,
                                               .gpu_experts = "0",
                                               .experts_only = true,
                                               .prefill_offload = "2:100%"});
        cr_assert_eq(kt_sequence_create(e, TOKENS, &s, &err), KT_OK, "%s", err.message);
        cr_expect_neq(
            kt_engine_forward(e, s, g.tokens, TOKENS, TOKENS, logits, NULL, NULL, NULL, &err),
            KT_OK);
        cr_expect(strstr(err.message, "lost"), "after %d launches: %s", launches[i], err.message);
        kt_sequence_destroy(s);
        kt_engine_destroy(e);
    }
    free(logits);
    kt_checkpoint_close(g.file);
}

/* ---- experts that move ---- */

/* The same tokens again and again: those that they choose come to the device, and nothing changes
 * but where they are computed. */
Test(device_engine, experts_that_are_chosen_move_to_the_device, .timeout = 120) {
    enum { STEPS = 12 };
    golden g = open_golden("qwen3_moe-a");
    kt_engine *e = load(g.folder, (kt_engine_options){.device = "emulated:lazy",
                                                      .gpu_experts = "2",
                                                      .expert_placement = "learned",
                                                      .experts_only = true});
    int64_t there = 0, before = 0;

    for (int i = 0; i < STEPS; i++) {
        float *logits = forward(e, g.tokens, TOKENS, NULL, NULL);
        const double error = error_of(logits, g.logits, TOKENS * g.vocab);
        cr_expect_leq(error, g.bound, "step %d, %lld moved: off by %g, bound %g", i,
                      (long long)kt_device_step_moved(e->step.device), error, g.bound);
        free(logits);
    }
    cr_expect_geq(kt_device_step_moved(e->step.device), 1, "%lld moved",
                  (long long)kt_device_step_moved(e->step.device));
    for (int w = 0; w < e->model.graph.n_weights; w++) {
        const int32_t *place = e->beside.placement.place[w];
        for (int64_t i = 0; place && i < e->model.graph.weights[w].count; i++) {
            there += place[i] >= 0;
            before += place[i] >= 0 && i < 2;
        }
    }
    cr_expect_leq(there, 6, "%lld experts in 6 places", (long long)there);
    cr_expect_lt(before, there, "all of them were there before");
    kt_engine_destroy(e);
    kt_checkpoint_close(g.file);
}

/* ---- pages behind the device's ---- */

/* The last logits of a text of the first 9 tokens again and again. */
static void run_text(kt_engine *e, const golden *g, int64_t n, int shift, bool is_computed,
                     int64_t want_known, float *logits) {
    int32_t tokens[128];
    kt_sequence *s;
    int64_t known;
    kt_err err = {KT_OK, ""};

    for (int64_t t = 0; t < n; t++) tokens[t] = g->tokens[(t + shift) % 9];
    cr_assert_eq(kt_sequence_create(e, 0, &s, &err), KT_OK, "%s", err.message);
    known = kt_sequence_reuse(s, tokens, n);
    cr_expect_eq(known, want_known, "shifted by %d: %lld known", shift, (long long)known);
    cr_assert_eq(kt_sequence_reserve(s, n, &err), KT_OK, "%s", err.message);
    if (is_computed)
        cr_assert_eq(
            kt_engine_forward(e, s, tokens + known, n - known, 1, logits, NULL, NULL, NULL, &err),
            KT_OK, "%s", err.message);
    kt_sequence_destroy(s);
}

/* Room for one text of 66 tokens, in 8 bits: another one takes its pages, which then come back from
 * the host; of two devices each has its layers' part of a page. */
static float *run_from_host(const golden *g, const char *device, const float *want) {
    enum { TEXT = 66 };
    kt_engine_options o = {.model_dir = g->folder,
                           .table_path = "",
                           .tokenizer_optional = true,
                           .n_threads = 2,
                           .max_context = 128,
                           .kv = KT_W_INT8_CHANNEL,
                           .kv_host = 1 << 20,
                           .device = device,
                           .gpu_experts = "100%"};
    float *logits[2];
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    o.kv_memory = 2 * kt_kv_page_bytes(&e->kv);
    kt_engine_destroy(e);
    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    cr_assert_eq(e->pages.n, 2);
    for (int i = 0; i < 2; i++) logits[i] = calloc((size_t)g->vocab, sizeof *logits[i]);
    run_text(e, g, TEXT, 0, true, 0, logits[0]);
    run_text(e, g, TEXT, 1, false, 0, NULL);
    run_text(e, g, TEXT, 0, true, 64, logits[1]);
    kt_engine_destroy(e);
    for (int i = 0; i < 2; i++) {
        const double error = error_of(logits[i], want, g->vocab);
        cr_expect_leq(error, 2 * g->bound, "%s, text %d is off by %g, bound %g", device, i, error,
                      2 * g->bound);
    }
    free(logits[0]);
    return logits[1];
}

Test(device_engine, keys_and_values_come_back_from_the_host, .timeout = 60) {
    enum { TEXT = 66 };
    golden g = open_golden("qwen3_moe-a");
    const kt_engine_options o = {.model_dir = g.folder,
                                 .table_path = "",
                                 .tokenizer_optional = true,
                                 .n_threads = 2,
                                 .max_context = 128,
                                 .kv = KT_W_INT8_CHANNEL};
    float *logits = calloc((size_t)g.vocab, sizeof *logits), *one, *two;
    kt_engine *cpu;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_create(&o, &cpu, &err), KT_OK, "%s", err.message);
    run_text(cpu, &g, TEXT, 0, true, 0, logits);
    kt_engine_destroy(cpu);
    one = run_from_host(&g, "emulated", logits);
    two = run_from_host(&g, "emulated*2:lazy", logits);
    cr_expect_arr_eq(two, one, (size_t)g.vocab * sizeof *one);
    free(one), free(two), free(logits);
    kt_checkpoint_close(g.file);
}
