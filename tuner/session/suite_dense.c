/* Dense rows of the bench suites: our fastest GEMM, as it is served, against each library at its
 * best.
 *
 * The libraries multiply the whole matrix in one call, on dense rows, without scales
 * (kt_probe_call): less work than ours, which encodes activations with a scale per group and
 * applies all scales. So the comparison errs in their favour, in speed; in accuracy an INT8
 * product without group scales is several times worse.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/numeric.h"
#include "tuner/measure/trial.h"
#include "tuner/session/suite_impl.h"
#include "tuner/space/candidates.h"

enum { OURS, MAX_LIBRARIES = 7 };

typedef struct library {
    const kt_variant *probe;
    kt_cold_bank bank;
    void *session; /* the library's objects, made before the clock runs */
} library;

typedef struct dense {
    kt_stopwatch ours;
    kt_problem problem; /* of the libraries */
    library library[MAX_LIBRARIES];
    int n;
    void *a, *c;
    volatile int *in_library; /* while a library is at work */
} dense;

static double sample(void *arg, int contender) {
    dense *d = arg;
    library *l;
    kt_probe_call call = {.repeats = 1, .problem = &d->problem, .a = d->a, .c = d->c};
    int64_t start, ns;
    double done;

    if (contender == OURS) return d->ours.sample(d->ours.arg, 0);
    l = &d->library[contender - 1];
    call.data = kt_cold_bank_next(&l->bank);
    call.session = &l->session;
    *d->in_library = 1;
    start = kt_clock_ns();
    done = l->probe->probe(&call);
    ns = kt_clock_ns() - start;
    *d->in_library = 0;
    if (done <= 0) return 1e18; /* refused: never the best */
    return ns > 0 ? (double)ns : 1;
}

static int64_t disturbances(void *arg) {
    dense *d = arg;
    return d->ours.disturbances(d->ours.arg);
}

/* Bytes below 128, or bfloat16 of small integers: valid as signed and as unsigned, no denormals. */
static void fill(void *out, size_t count, bool as_bytes, uint64_t seed) {
    kt_rng rng;
    kt_rng_seed(&rng, seed);
    for (size_t i = 0; i < count; i++) {
        const uint64_t x = kt_rng_below(&rng, 128);
        if (as_bytes)
            ((uint8_t *)out)[i] = (uint8_t)x;
        else
            ((uint16_t *)out)[i] = kt_f32_to_bf16((float)x - 63.5f);
    }
}

static kt_status add_library(dense *d, const kt_variant *v, const kt_matrix *w, kt_err *err) {
    library *l = &d->library[d->n];
    const size_t bytes = v->packed_bytes(&d->problem);
    void *content = aligned_alloc(64, (bytes + 63) / 64 * 64);
    kt_status st;

    if (!content) return kt_fail(err, KT_E_NOMEM, "bench: no memory for %s", v->name);
    *d->in_library = 1;
    v->pack_gemm(&d->problem, w, content);
    *d->in_library = 0;
    l->probe = v;
    st = kt_cold_bank_create(content, bytes, 1, KT_SUITE_ROTATION, &l->bank, err);
    free(content);
    d->n += st == KT_OK;
    return st;
}

static kt_status add_libraries(dense *d, const kt_suite_bench *s, kt_err *err) {
    const kt_problem *q = &d->problem;
    const bool as_bytes = q->weights == KT_W_INT8_CHANNEL;
    const size_t each = as_bytes ? 1 : 2, count = (size_t)(q->n * q->k);
    void *weights = malloc(count * each);
    const kt_matrix w = {.format = q->weights, .n = q->n, .k = q->k, .data = weights};
    kt_status st = KT_OK;

    d->a = aligned_alloc(64, ((size_t)(q->m * q->k) * each + 63) / 64 * 64);
    d->c = aligned_alloc(64, ((size_t)(q->m * q->n) * 4 + 63) / 64 * 64);
    if (!weights || !d->a || !d->c) st = kt_fail(err, KT_E_NOMEM, "bench: no memory for a GEMM");
    if (st == KT_OK) fill(weights, count, as_bytes, 1);
    if (st == KT_OK) fill(d->a, (size_t)(q->m * q->k), as_bytes, 2);
    for (size_t i = 0; st == KT_OK && i < kt_registry_count(s->registry); i++) {
        const kt_variant *v = kt_registry_at(s->registry, i);
        if (v->op == KT_OP_PROBE && v->pack_gemm && v->weights >> q->weights & 1 &&
            d->n < MAX_LIBRARIES)
            st = add_library(d, v, &w, err);
    }
    free(weights);
    if (st == KT_OK && d->n == 0) st = kt_fail(err, KT_E_UNSUPPORTED, "no library is usable here");
    return st;
}

/* The first round is a warm-up that is not taken (kt_suite_rounds): sessions are open from then
 * on. */
static void end_library(library *l, const kt_problem *problem) {
    const kt_probe_call end = {.problem = problem, .session = &l->session};

    if (l->session) (void)l->probe->probe(&end);
    kt_cold_bank_destroy(&l->bank);
}

static void fill_row(const dense *d, const kt_samples *samples, const kt_choice *ours,
                     kt_suite_row *row) {
    const kt_problem *q = &d->problem;
    const double operations = 2.0 * (double)q->m * (double)q->n * (double)q->k;
    char name[sizeof row->contender];
    int best = 1;

    for (int i = 2; i <= d->n; i++)
        if (kt_samples_p25(samples, i) < kt_samples_p25(samples, best)) best = i;
    kt_suite_ratio(samples, best, OURS, row);
    row->rate = operations / kt_samples_p25(samples, OURS);
    row->ceiling = operations / kt_samples_p25(samples, best);
    kt_contender_name(ours, name, sizeof name);
    snprintf(row->contender, sizeof row->contender, "%.110s against %.50s", name,
             d->library[best - 1].probe->name);
}

static kt_status compare(dense *d, const kt_suite_bench *s, const kt_choice *ours, double seconds,
                         kt_suite_row *row, kt_err *err) {
    kt_stopwatch watch = {.arg = d, .sample = sample, .disturbances = disturbances};
    kt_samples samples;
    kt_status st;

    KT_TRY(kt_samples_create(1 + MAX_LIBRARIES, &samples, err));
    st = kt_suite_rounds(s, &watch, 1 + d->n, seconds, &samples, err);
    if (st == KT_OK) fill_row(d, &samples, ours, row);
    kt_samples_destroy(&samples);
    return st;
}

kt_status kt_suite_dense(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                         kt_suite_row *row, kt_err *err) {
    kt_problem problem;
    kt_banks banks = {.rotation_bytes = KT_SUITE_ROTATION};
    kt_pool_options one = {.n_threads = 1};
    kt_choice best, encoder;
    kt_trial_setup setup = {.banks = &banks, .choices = &best, .n_choices = 1};
    const kt_variant **table = NULL;
    kt_registry *own = NULL;
    kt_trial *trial = NULL;
    dense d = {.problem = kt_suite_problem(s->registry, s->machine, spec),
               .in_library = s->in_library};
    kt_status st = add_libraries(&d, s, err);

    snprintf(row->unit, sizeof row->unit, "of the best library");
    if (st == KT_OK) st = kt_suite_own(~(kt_isa)0, &table, &own, err);
    if (st == KT_OK) problem = kt_suite_problem(own, s->machine, spec);
    if (st == KT_OK) st = kt_suite_pick(s, own, &problem, 1, &best, err);
    if (st == KT_OK) st = kt_suite_encoder(s, own, &problem, 1, &encoder, err);
    if (st == KT_OK) st = kt_pool_create(&one, &setup.pool, err);
    if (st == KT_OK) {
        setup.problem = problem;
        setup.encode = encoder.variant;
        st = kt_trial_create(&setup, &trial, err);
    }
    if (st == KT_OK) {
        d.ours = kt_trial_stopwatch(trial);
        st = compare(&d, s, &best, seconds, row, err);
    }
    kt_trial_destroy(trial);
    kt_pool_destroy(setup.pool);
    kt_banks_deinit(&banks);
    kt_registry_destroy(own);
    free((void *)table);
    for (int i = 0; i < d.n; i++) end_library(&d.library[i], &d.problem);
    free(d.a);
    free(d.c);
    return st;
}

/* --- all shapes ------------------------------------------------------------------------------- */

/* Queries, keys and values in one matrix; of the head, which makes logits of a few rows only, a
 * quarter: its panels are all alike, and packing 300 to 600 MB for each library would take a
 * minute. */
static const struct {
    const char *name;
    int64_t n, k, most_m;
} shapes[] = {{"qkv", 5120, 2048, 512},
              {"o", 2048, 4096, 512},
              {"router", 128, 2048, 512},
              {"lm_head", 38016, 2048, 16}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
static const int64_t shape_rows[] = {1, 16, 64, 512};
#define SHAPE_ROWS "m=1, 16, 64, 512 of each: "

static kt_status shape(kt_suite_bench *s, const kt_suite_spec *spec, int i, int64_t m,
                       double seconds, kt_suite_row *cell, kt_err *err) {
    kt_suite_spec one = *spec;
    char name[sizeof cell->contender];
    kt_status st;

    one.kind = KT_ROW_DENSE;
    one.intermediate = shapes[i].n;
    one.hidden = shapes[i].k;
    one.m = m;
    st = kt_suite_dense(s, &one, seconds, cell, err);
    memcpy(name, cell->contender, sizeof name);
    snprintf(cell->contender, sizeof cell->contender, "%s m=%lld: %.140s", shapes[i].name,
             (long long)m, name);
    return st;
}

/* Keep it when it is among the least. */
static void keep_worst(kt_suite_memory *memory, const kt_suite_cell *cell) {
    int at = memory->n_worst;

    while (at > 0 && memory->worst[at - 1].row.measured > cell->row.measured) at--;
    if (at == KT_SUITE_WORST) return;
    if (memory->n_worst < KT_SUITE_WORST) memory->n_worst++;
    memmove(&memory->worst[at + 1], &memory->worst[at],
            sizeof *cell * (size_t)(memory->n_worst - 1 - at));
    memory->worst[at] = *cell;
}

/* Every shape for a moment; the worst three are kept in mind, with their choices. */
static kt_status find_worst(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                            const kt_suite_row *row, kt_err *err) {
    kt_suite_bench cell_bench = *s;
    char detail[sizeof s->memory->detail] = SHAPE_ROWS;
    size_t used = sizeof SHAPE_ROWS - 1;

    for (int i = 0; i < N_SHAPES; i++) {
        used += (size_t)snprintf(detail + used, sizeof detail - used, "%s%s", i ? "; " : "",
                                 shapes[i].name);
        for (size_t j = 0; j < sizeof shape_rows / sizeof *shape_rows; j++) {
            kt_suite_memory memory = {0};
            kt_suite_cell cell = {.shape = i, .m = shape_rows[j], .row = *row};
            if (cell.m > shapes[i].most_m) continue;
            cell_bench.memory = &memory;
            KT_TRY(shape(&cell_bench, spec, i, cell.m, seconds, &cell.row, err));
            cell.choice = memory.choice;
            used +=
                (size_t)snprintf(detail + used, sizeof detail - used, " %.2f", cell.row.measured);
            keep_worst(s->memory, &cell);
        }
    }
    for (int i = 0; i < s->memory->n_worst; i++) /* chosen by it, so not counted */
        s->memory->worst[i].row = *row;
    memcpy(s->memory->detail, detail, sizeof detail);
    return KT_OK;
}

/* The least of many short measurements is partly bad luck: the three worst are measured on every
 * placement, and the least of their medians is the row. */
kt_status kt_suite_shapes(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                          kt_suite_row *row, kt_err *err) {
    kt_suite_memory *memory = s->memory;
    kt_suite_bench cell_bench = *s;
    const kt_suite_cell *least;

    if (memory->n_worst == 0) KT_TRY(find_worst(s, spec, seconds / 2, row, err));
    for (int i = 0; i < memory->n_worst; i++) {
        kt_suite_cell *cell = &memory->worst[i];
        kt_suite_memory chosen = {.has_choice = true, .choice = cell->choice};
        kt_suite_row one = *row;
        cell_bench.memory = &chosen;
        KT_TRY(shape(&cell_bench, spec, cell->shape, cell->m, seconds, &one, err));
        kt_suite_add(&cell->tally, &cell->row, &one);
    }
    least = &memory->worst[0];
    for (int i = 1; i < memory->n_worst; i++)
        if (memory->worst[i].row.measured < least->row.measured) least = &memory->worst[i];
    *row = least->row;
    memcpy(row->detail, memory->detail, sizeof row->detail);
    return KT_OK;
}
