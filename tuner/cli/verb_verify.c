/* kttune verify: is a table still right, and still fast? SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "tuner/cli/run_plans.h"
#include "tuner/cli/table_choice.h"
#include "tuner/cli/tune_options.h"
#include "tuner/cli/verify_layers.h"
#include "tuner/report/plan_words.h"
#include "tuner/search/contest.h"
#include "tuner/session/duels.h"
#include "tuner/space/candidates.h"

typedef struct verify_state {
    const kt_verb_context *context;
    kt_workbench bench;
    kt_table *table;
    kt_duels duels;
    bool gates_only, e2e;
    const char *model; /* whose layers, for e2e */
    kt_layers_verdict layers;
    kt_json_writer *json; /* NULL = text */
    double sample;
    int64_t seed;
    int checked, skipped, wrong, outdated, slower;
} verify_state;

static bool stop_asked(void *arg) {
    const kt_verb_context *context = arg;
    return *context->stop != 0;
}

/* A row's choice on this build and machine; false when its variant or version is not here. */
static bool row_choice(const verify_state *v, const kt_table_row *row, const char *variant,
                       const char *config, kt_choice *out) {
    memset(out, 0, sizeof *out);
    out->variant = kt_registry_find(v->bench.registry, variant);
    return out->variant && (variant != row->variant || out->variant->version == row->version) &&
           kt_config_parse(out->variant, config, &out->config, NULL) == KT_OK &&
           kt_variant_accepts(out->variant, &row->problem, &out->config, NULL) == KT_OK;
}

/* One row that is not as it should be. */
static void tell(const verify_state *v, const kt_table_row *row, const char *finding,
                 const char *message) {
    char key[KT_CELL_KEY_BYTES];
    const char *const pairs[] = {
        "finding", finding,
        "cell",    kt_cell_key(&row->problem, row->threads, key, sizeof key),
        "variant", row->variant,
        "message", message};
    if (!v->json) {
        printf("%-8s %s: %s: %s\n", finding, key, row->variant, message);
        return;
    }
    kt_json_begin_object(v->json);
    for (int i = 0; i < 8; i += 2) kt_json_add_string(v->json, pairs[i], pairs[i + 1]);
    kt_json_end_object(v->json);
}

/* The holdout once more: is the default faster than the row's winner now? */
static kt_status race(verify_state *v, const kt_table_row *row, const kt_choice pair[2],
                      kt_err *err) {
    kt_duel_result r;
    char message[160];

    KT_TRY(kt_duels_race(&v->duels, &row->problem, row->threads, pair, KT_HOLDOUT_ROUNDS, &r, err));
    if (r.ratio.low <= 0 || r.ratio.point < log1p(KT_MIN_GAIN)) return KT_OK;
    snprintf(message, sizeof message, "%.1f %% slower than the default %s",
             100 * expm1(r.ratio.point), row->default_variant);
    tell(v, row, "slower", message);
    v->slower++;
    return KT_OK;
}

static kt_status verify_row(verify_state *v, const kt_table_row *row, kt_err *err) {
    const kt_gate_result *g;
    kt_choice pair[2];

    if (!row_choice(v, row, row->variant, row->config, &pair[0])) {
        char message[96];
        snprintf(message, sizeof message, "version %d is not in this build or not usable here",
                 (int)row->version);
        tell(v, row, "outdated", message);
        v->outdated++;
        return KT_OK;
    }
    KT_TRY(kt_duels_gate(&v->duels, &row->problem, &pair[0], &g, err));
    v->checked++;
    if (!g->passed) {
        tell(v, row, g->outcome, g->message);
        v->wrong++;
        return KT_OK;
    }
    if (v->gates_only || strcmp(row->status, "tuned") != 0 ||
        !row_choice(v, row, row->default_variant, row->default_config, &pair[1]))
        return KT_OK;
    KT_TRY(kt_duels_gate(&v->duels, &row->problem, &pair[1], &g, err));
    return g->passed ? race(v, row, pair, err) : KT_OK;
}

static size_t rotation_of(const verify_state *v) {
    return kt_duels_rotation(&v->bench.machine.ceilings, v->bench.topology.llc_bytes, v->table);
}

static kt_status verify_all(verify_state *v, kt_err *err) {
    kt_err why = {0};
    kt_rng rng;

    if (kt_fingerprint_compare(&v->table->fingerprint, &v->bench.machine, &why) == KT_MATCH_OTHER)
        return kt_fail(err, KT_E_MISMATCH, "the table is another machine's: %s", why.message);
    v->duels = (kt_duels){.registry = v->bench.registry,
                          .machine = &v->bench.machine,
                          .seed = (uint64_t)v->seed,
                          .stop = stop_asked,
                          .stop_arg = (void *)(uintptr_t)v->context,
                          .banks = {.rotation_bytes = rotation_of(v)}};
    kt_rng_seed(&rng, (uint64_t)v->seed);
    for (size_t i = 0; i < v->table->n_rows; i++) {
        if (*v->context->stop) return kt_fail(err, KT_E_CANCELLED, "verify: stopped");
        if (kt_rng_double(&rng) >= v->sample) {
            v->skipped++;
            continue;
        }
        KT_TRY(verify_row(v, &v->table->rows[i], err));
    }
    return KT_OK;
}

static void tell_layer(void *arg, const kt_table_plan *plan) {
    verify_state *v = arg;
    double noise = v->bench.machine.ceilings.aa_noise_p95;

    if (v->json)
        kt_write_table_plan(plan, noise, v->json);
    else
        kt_print_table_plan(plan, noise);
}

/* Whole layers, after the rows. */
static kt_status verify_layers(verify_state *v, kt_err *err) {
    int threads = v->table->n_rows ? v->table->rows[0].threads : 1;
    kt_layer_session_setup setup = {.registry = v->bench.registry,
                                    .machine = &v->bench.machine,
                                    .table = v->table,
                                    .rotation_bytes = rotation_of(v),
                                    .deadline_ns = INT64_MAX,
                                    .seed = (uint64_t)v->seed,
                                    .stop = stop_asked,
                                    .stop_arg = (void *)(uintptr_t)v->context};

    for (size_t i = 0; i < v->table->n_rows; i++)
        if (v->table->rows[i].threads > threads) threads = v->table->rows[i].threads;
    setup.threads =
        threads < v->bench.topology.usable_cores ? threads : v->bench.topology.usable_cores;
    if (v->json) {
        kt_json_end_array(v->json);
        kt_json_key(v->json, "layers");
        kt_json_begin_array(v->json);
    }
    return kt_verify_layers(&setup, v->model, tell_layer, v, &v->layers, err);
}

static void print_end(const verify_state *v, const char *where) {
    const struct {
        const char *name;
        int value;
    } counts[] = {{"verified", v->checked},
                  {"not_sampled", v->skipped},
                  {"wrong", v->wrong},
                  {"slower", v->slower},
                  {"outdated", v->outdated},
                  {"layers_checked", v->layers.checked},
                  {"layers_unconfirmed", v->layers.unconfirmed},
                  {"layers_slower", v->layers.slower}};
    if (!v->json && v->e2e)
        printf("%d layers: %d gain less than %.0f %% of what their cells promise, %d are slower "
               "than with the defaults\n",
               v->layers.checked, v->layers.unconfirmed, 100 * KT_LEAST_REALISED, v->layers.slower);
    if (!v->json) {
        printf("%s: %d rows verified, %d not sampled: %d wrong, %d slower than the default, %d "
               "outdated\n",
               where, v->checked, v->skipped, v->wrong, v->slower, v->outdated);
        return;
    }
    kt_json_end_array(v->json);
    kt_json_add_string(v->json, "table", where);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        kt_json_add_int(v->json, counts[i].name, counts[i].value);
    kt_json_end_object(v->json);
    if (kt_json_writer_text(v->json, NULL)) puts(kt_json_writer_text(v->json, NULL));
}

static void begin_json(kt_json_writer *w) {
    kt_json_begin_object(w);
    kt_json_key(w, "findings");
    kt_json_begin_array(w);
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    verify_state v = {.context = context, .sample = 1, .seed = 1};
    const char *model = "tiny-moe", *word[1], *path = NULL;
    kt_json_writer w = {.indent = 1, .line_at_depth = 1 << 2};
    bool json = false, is_layer_error = false;
    const kt_switch switches[] = {
        {"model", KT_SWITCH_TEXT, &model, "NAME", "without TABLE: the one serving would use"},
        {"gates-only", KT_SWITCH_FLAG, &v.gates_only, NULL, "correctness only, no timing"},
        {"e2e", KT_SWITCH_FLAG, &v.e2e, NULL,
         "also run two whole layers of the model: do they gain what the rows promise?"},
        {"sample", KT_SWITCH_SHARE, &v.sample, "SHARE", "of the rows, 10% or 0.1; default all"},
        {"seed", KT_SWITCH_COUNT, &v.seed, "N", "of inputs and sampling; default 1"},
        {"json", KT_SWITCH_FLAG, &json, NULL, "print a JSON object"},
    };
    const kt_verb_usage usage = {
        "verify", "[TABLE] ",
        "Run the correctness gate on every winner of a table, and the holdout race of each tuned "
        "row\n"
        "against its default. Exit code 4: a winner computes wrong results; 5: one is slower now, "
        "or "
        "a layer (--e2e) does not gain 80 % of what its rows promise.",
        "  kttune verify --model tiny-moe --gates-only\n"
        "  kttune verify mine.kttable.json --gates-only --e2e\n"
        "  kttune verify mine.kttable.json --sample "
        "10%\n"};
    char where[1024];
    kt_err err;
    kt_status st;
    int n = 0, code = kt_switches_parse(&usage, switches, 6, argc, argv, word, 1, &n);

    if (code >= 0) return code;
    if (n == 1) path = word[0];
    st = kt_workbench_init(&v.bench, false, &err);
    if (st == KT_OK)
        st = kt_table_choose(&v.bench, path, model, where, sizeof where, &v.table, &err);
    if (json) begin_json(v.json = &w);
    if (st == KT_OK) v.model = strchr(model, '/') ? model : v.table->workload;
    if (st == KT_OK) st = verify_all(&v, &err);
    if (st == KT_OK && v.e2e) {
        st = verify_layers(&v, &err);
        is_layer_error = st != KT_OK;
    }
    if (st == KT_OK) print_end(&v, where);
    kt_json_writer_deinit(&w);
    kt_duels_deinit(&v.duels);
    kt_table_destroy(v.table);
    kt_workbench_deinit(&v.bench);
    if (is_layer_error) return kt_verb_fail(&err);
    if (st != KT_OK) return kt_table_verb_fail(&err);
    if (v.wrong) return KT_TUNE_GATE;
    return v.slower || v.outdated || v.layers.unconfirmed || v.layers.slower ? KT_TUNE_REGRESSION
                                                                             : KT_TUNE_OK;
}

const kt_verb kt_verb_verify = {.name = "verify",
                                .summary = "re-check a table: right and still fast",
                                .run = run,
                                .finishes_on_signal = true};
