/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/bench_hybrid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/rng.h"
#include "kt/version.h"
#include "runtime/cli/command.h"
#include "runtime/cli/interrupt.h"

static const int shares[] = {0, 25, 50, 75, 100};
enum { SHARES = sizeof shares / sizeof *shares, KINDS = 2 };
enum { WARM_UPS = 2 }; /* rounds: a piece becomes a graph when it comes again */
static const double decode_bar = 1.10;

/* What takes turns. */
typedef enum way { WHOLE, DEVICE_ALONE, CPU_ALONE, WAYS } way;
static const kt_left_out left_out[WAYS] = {
    [WHOLE] = KT_LEFT_NONE, [DEVICE_ALONE] = KT_LEFT_CPU, [CPU_ALONE] = KT_LEFT_DEVICE};

/* One measured row. */
typedef struct hybrid_row {
    char name[48];
    double ms[WAYS]; /* medians */
    double measured, bar;
    int64_t samples; /* of each way */
    bool ok;
} hybrid_row;

typedef struct hybrid_bench {
    const kt_bench_hybrid *ask;
    kt_engine *engine; /* of the share in hand */
    kt_engine_info info;
    char name[160], device[1024]; /* of the model, and what the devices hold now */
    kt_sequence *sequence;
    int32_t *token; /* owned, as what follows */
    float *logits;
    double *ms[WAYS];
    hybrid_row row[SHARES * KINDS];
    int n_rows;
} hybrid_bench;

/* ---- measuring ---- */

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int64_t n) {
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* Numbers that are none are no failure: without a side's experts they are wrong anyway. */
static kt_status forward(hybrid_bench *b, way w, int64_t at, int64_t n, double *ms, kt_err *err) {
    kt_err why = {KT_OK, ""};
    int64_t begin;
    kt_status st;

    KT_TRY(kt_engine_leave_out(b->engine, left_out[w], err));
    begin = kt_clock_ns();
    st = kt_engine_forward(b->engine, b->sequence, b->token + at, n, 1, b->logits, NULL,
                           kt_interrupted, NULL, &why);
    *ms = (double)(kt_clock_ns() - begin) * 1e-6;
    return st == KT_OK || st == KT_E_FORMAT ? KT_OK : kt_fail(err, st, "%s", why.message);
}

/* Steps of one token, a way after the other: what comes in one round is of about one length. */
static kt_status decode(hybrid_bench *b, int64_t rounds, int64_t kept, kt_err *err) {
    const int64_t depth = b->ask->depth;

    kt_sequence_truncate(b->sequence, depth);
    for (int64_t r = 0; r < rounds; r++)
        for (int w = 0; w < WAYS; w++)
            KT_TRY(forward(b, (way)w, depth + r * WAYS + w, 1, &b->ms[w][kept + r], err));
    return KT_OK;
}

static kt_status prefill(hybrid_bench *b, int64_t kept, kt_err *err) {
    for (int w = 0; w < WAYS; w++) {
        kt_sequence_truncate(b->sequence, b->ask->depth);
        KT_TRY(forward(b, (way)w, b->ask->depth, b->ask->n_prompt, &b->ms[w][kept], err));
    }
    return KT_OK;
}

/* The ratio is of the whole to the longer part. */
static void add_row(hybrid_bench *b, const char *what, int share, double bar, int64_t samples) {
    hybrid_row *r = &b->row[b->n_rows++];
    double longer;

    *r = (hybrid_row){.bar = bar, .samples = samples};
    snprintf(r->name, sizeof r->name, "hybrid_%s_%d", what, share);
    for (int w = 0; w < WAYS; w++) r->ms[w] = median(b->ms[w], samples);
    longer = r->ms[DEVICE_ALONE] > r->ms[CPU_ALONE] ? r->ms[DEVICE_ALONE] : r->ms[CPU_ALONE];
    r->measured = longer > 0 ? r->ms[WHOLE] / longer : 0;
    r->ok = bar == 0 || r->measured <= bar;
}

static kt_status measure(hybrid_bench *b, int share, kt_err *err) {
    const kt_bench_hybrid *ask = b->ask;

    if (ask->n_prompt) {
        KT_TRY(prefill(b, 0, err));
        for (int64_t i = 0; i < ask->repetitions; i++) KT_TRY(prefill(b, i, err));
        add_row(b, "prefill", share, 0, ask->repetitions);
    }
    if (!ask->n_generate) return KT_OK;
    KT_TRY(decode(b, WARM_UPS < ask->n_generate ? WARM_UPS : ask->n_generate, 0, err));
    for (int64_t i = 0; i < ask->repetitions; i++)
        KT_TRY(decode(b, ask->n_generate, i * ask->n_generate, err));
    add_row(b, "decode", share, decode_bar, ask->repetitions * ask->n_generate);
    return KT_OK;
}

/* ---- one share ---- */

static kt_status take_memory(hybrid_bench *b, int64_t longest, kt_err *err) {
    const kt_bench_hybrid *ask = b->ask;
    const int64_t most = ask->n_generate > 1 ? ask->n_generate : 1;
    kt_rng rng;

    if (b->token) return KT_OK; /* since the first share */
    b->token = malloc((size_t)longest * sizeof *b->token);
    b->logits = malloc((size_t)b->info.vocab * sizeof *b->logits);
    for (int w = 0; w < WAYS; w++)
        b->ms[w] = malloc((size_t)(ask->repetitions * most) * sizeof **b->ms);
    if (!b->token || !b->logits || !b->ms[WHOLE] || !b->ms[DEVICE_ALONE] || !b->ms[CPU_ALONE])
        return kt_fail(err, KT_E_NOMEM, "no memory for the benchmark");
    kt_rng_seed(&rng, 1);
    for (int64_t i = 0; i < longest; i++)
        b->token[i] = (int32_t)kt_rng_below(&rng, (uint64_t)b->info.vocab);
    return KT_OK;
}

static kt_status run_engine(hybrid_bench *b, int share, kt_err *err) {
    const kt_bench_hybrid *ask = b->ask;
    const int64_t steps = ask->n_generate * WAYS;
    const int64_t longest = ask->depth + (steps > ask->n_prompt ? steps : ask->n_prompt);

    kt_engine_describe(b->engine, &b->info);
    snprintf(b->name, sizeof b->name, "%s", b->info.model_name);
    snprintf(b->device, sizeof b->device, "%s", b->info.device_line);
    KT_TRY(take_memory(b, longest, err));
    KT_TRY(kt_sequence_create(b->engine, longest, &b->sequence, err));
    if (ask->depth)
        KT_TRY(kt_engine_forward(b->engine, b->sequence, b->token, ask->depth, 0, NULL, NULL,
                                 kt_interrupted, NULL, err));
    return measure(b, share, err);
}

/* The exit code; 0 goes on. */
static int run_share(hybrid_bench *b, int share, const kt_usage *usage, const char *model,
                     const kt_log *log) {
    kt_engine_flags flags = *b->ask->engine;
    kt_err err = {KT_OK, ""};
    char word[16];
    int code;

    snprintf(word, sizeof word, "%d%%", share);
    flags.wish.gpu_experts = word;
    code = kt_engine_flags_load(&flags, usage, model, log, &b->engine);
    if (code != 0) return code;
    if (run_engine(b, share, &err) != KT_OK) code = kt_command_fail(&err);
    kt_sequence_destroy(b->sequence);
    kt_engine_destroy(b->engine);
    b->sequence = NULL;
    b->engine = NULL;
    return code;
}

/* ---- words ---- */

static void print_row(const hybrid_row *r) {
    printf("%-22s %.3f of the longer part", r->name, r->measured);
    if (r->bar > 0) printf(", bar <= %.2f %s", r->bar, r->ok ? "ok" : "MISSED");
    printf("  (%lld of each)  whole %.3f ms, without the CPU's experts %.3f ms, without the "
           "device's %.3f ms\n",
           (long long)r->samples, r->ms[WHOLE], r->ms[DEVICE_ALONE], r->ms[CPU_ALONE]);
}

static void print_head(const hybrid_bench *b) {
    printf("%s, weights %s, %lld threads, kt %s\n%s\nSteps without one side's experts compute "
           "wrong numbers: their time alone means something.\n",
           b->name, b->ask->engine->weights, (long long)b->info.n_threads, KT_VERSION,
           b->info.table_line);
}

static void put_json(const hybrid_bench *b, kt_json_writer *w) {
    static const char *const names[WAYS] = {"whole_ms", "without_cpu_ms", "without_device_ms"};

    kt_json_begin_object(w);
    kt_json_add_string(w, "model", b->name);
    kt_json_add_string(w, "weights", b->ask->engine->weights);
    kt_json_add_string(w, "device", b->ask->engine->device);
    kt_json_add_string(w, "devices", b->device);
    kt_json_add_int(w, "threads", b->info.n_threads);
    kt_json_add_int(w, "layers", b->info.layers);
    kt_json_add_int(w, "layers_of_all", b->info.layers_of_all);
    kt_json_add_string(w, "version", KT_VERSION);
    kt_json_add_string(w, "note", "steps without one side's experts compute wrong numbers");
    kt_json_key(w, "rows");
    kt_json_begin_array(w);
    for (int i = 0; i < b->n_rows; i++) {
        const hybrid_row *r = &b->row[i];
        kt_json_begin_object(w);
        kt_json_add_string(w, "name", r->name);
        kt_json_add_fixed(w, "measured", r->measured, 4);
        kt_json_add_fixed(w, "bar", r->bar, 4);
        kt_json_add_string(w, "unit", "of the longer part");
        kt_json_add_bool(w, "ok", r->ok);
        kt_json_add_int(w, "samples", r->samples);
        for (int k = 0; k < WAYS; k++) kt_json_add_fixed(w, names[k], r->ms[k], 4);
        kt_json_end_object(w);
    }
    kt_json_end_array(w);
    kt_json_end_object(w);
}

/* What there is so far, whole: 0 or an exit code. */
static int write_json(const hybrid_bench *b) {
    kt_json_writer w = {.indent = 2};
    kt_err err = {KT_OK, ""};
    const char *text;
    size_t size = 0;

    if (!b->ask->out) return 0;
    put_json(b, &w);
    text = kt_json_writer_text(&w, &size);
    if (!text)
        kt_fail(&err, KT_E_NOMEM, "no memory for the benchmark");
    else
        kt_file_write(b->ask->out, text, size, &err);
    kt_json_writer_deinit(&w);
    return err.status == KT_OK ? 0 : kt_command_fail(&err);
}

static void tell(const hybrid_bench *b, int before) {
    if (b->ask->json) return;
    if (before == 0 && b->n_rows) print_head(b);
    printf("%s\n", b->device);
    for (int i = before; i < b->n_rows; i++) print_row(&b->row[i]);
}

int kt_bench_hybrid_run(const kt_bench_hybrid *ask, const kt_usage *usage, const char *model,
                        const kt_log *log) {
    hybrid_bench b = {.ask = ask};
    int code = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < SHARES && code == 0; i++) {
        const int before = b.n_rows;
        code = run_share(&b, shares[i], usage, model, log);
        if (b.n_rows == before) continue;
        tell(&b, before);
        if (code == 0) code = write_json(&b);
    }
    if (ask->json && b.n_rows) {
        kt_json_writer w = {.indent = 2};
        put_json(&b, &w);
        kt_json_writer_print(&w, stdout);
    }
    free(b.token);
    free(b.logits);
    for (int w = 0; w < WAYS; w++) free(b.ms[w]);
    return code;
}
