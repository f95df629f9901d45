/* Expert layers for other engines: right in every format, from memory and from checkpoints, maps,
 * masks, deferred experts, many threads, any order of ends, no leak.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/formats/format.h"
#include "kt/moe.h"
#include "runtime/model/synthetic_blocks.h"

enum { E = 4, TOPK = 2, H = 256, N = 256, T = 7, LAYERS = 8, CALLERS = 64 };

/* ---- layers of random weights ---- */

typedef struct layer {
    kt_moe *m;
    uint16_t *w[3]; /* BF16: gate, up [E, N, H], down [E, H, N] */
    uint8_t *blocks[3];
} layer;

static kt_moe_team *team_over(bool deterministic, int threads, int memory_nodes) {
    kt_moe_team_options o;
    kt_moe_team *t;
    kt_err err = {KT_OK, ""};

    kt_moe_team_options_init(&o, sizeof o);
    o.n_threads = threads, o.deterministic = deterministic, o.memory_nodes = memory_nodes;
    cr_assert_eq(kt_moe_team_create(&o, &t, &err), KT_OK, "%s", err.message);
    return t;
}

static kt_moe_team *team(bool deterministic, int threads) {
    return team_over(deterministic, threads, 0);
}

/* What layers and their reference do behind gate and up. */
static kt_glu_rule glu;

static kt_moe *create(kt_moe_team *t, const char *weights) {
    kt_moe_options o;
    kt_moe *m;
    kt_err err = {KT_OK, ""};

    kt_moe_options_init(&o, sizeof o);
    o.experts = E, o.topk = TOPK, o.hidden = H, o.intermediate = N, o.max_tokens = 4;
    o.weights = weights;
    o.swiglu_limit = glu.limit, o.swiglu_alpha = glu.alpha;
    if (glu.kind == KT_GLU_OAI) o.activation = "swigluoai";
    cr_assert_eq(kt_moe_create(t, &o, &m, &err), KT_OK, "%s", err.message);
    return m;
}

static uint16_t bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static float f32(uint16_t v) {
    const uint32_t bits = (uint32_t)v << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static const char *const part_name[] = {"gate_proj", "up_proj", "down_proj"};

/* Tensors of all experts: of `dtype`, `bytes` each. */
static kt_status load_parts(kt_moe *m, const char *dtype, uint8_t *const data[3], size_t bytes,
                            kt_err *err) {
    kt_moe_tensor tensors[3 * E];
    char names[3 * E][40];

    memset(tensors, 0, sizeof tensors);
    for (int e = 0; e < E; e++)
        for (int p = 0; p < 3; p++) {
            kt_moe_tensor *t = &tensors[3 * e + p];
            snprintf(names[3 * e + p], sizeof *names, "%d.%s.weight", e, part_name[p]);
            t->name = names[3 * e + p], t->dtype = dtype, t->rank = 2;
            t->shape[0] = p < 2 ? N : H, t->shape[1] = p < 2 ? H : N;
            t->data = data[p] + (size_t)e * bytes;
        }
    return kt_moe_load_from_tensors(m, tensors, 3 * E, NULL, err);
}

static layer make(kt_moe_team *t, const char *weights, uint64_t seed) {
    layer l = {.m = create(t, weights)};
    kt_rng rng;
    kt_err err = {KT_OK, ""};

    kt_rng_seed(&rng, seed);
    for (int p = 0; p < 3; p++) {
        l.w[p] = malloc(sizeof *l.w[p] * E * N * H);
        for (int i = 0; i < E * N * H; i++) l.w[p][i] = bf16(0.05f * kt_rng_normal(&rng));
    }
    cr_assert_eq(
        load_parts(l.m, "BF16",
                   (uint8_t *const[]){(uint8_t *)l.w[0], (uint8_t *)l.w[1], (uint8_t *)l.w[2]},
                   2 * N * H, &err),
        KT_OK, "%s: %s", weights, err.message);
    return l;
}

static void end(layer *l) {
    kt_moe_destroy(l->m);
    for (int p = 0; p < 3; p++) free(l->w[p]), free(l->blocks[p]);
}

/* ---- calls ---- */

typedef struct call {
    float x[T * H], weight[T * TOPK], out[T * H];
    int32_t id[T * TOPK];
    kt_moe_rows rows;
} call;

static call *make_call(uint64_t seed) {
    call *c = calloc(1, sizeof *c);
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    for (int i = 0; i < T * H; i++) c->x[i] = kt_rng_normal(&rng);
    for (int t = 0; t < T; t++) {
        c->id[t * TOPK] = (int32_t)kt_rng_below(&rng, E);
        c->id[t * TOPK + 1] = (c->id[t * TOPK] + 1 + (int32_t)kt_rng_below(&rng, E - 1)) % E;
        for (int i = 0; i < TOPK; i++) c->weight[t * TOPK + i] = kt_rng_uniform(&rng, 0.1f, 0.9f);
    }
    c->rows = (kt_moe_rows){.tokens = T,
                            .x = c->x,
                            .expert_id = c->id,
                            .route_weight = c->weight,
                            .out = c->out,
                            .id_bytes = 4};
    return c;
}

static void forward(kt_moe *m, call *c) {
    kt_err err = {KT_OK, ""};
    cr_assert_eq(kt_moe_forward(m, &c->rows, &err), KT_OK, "%s", err.message);
}

/* ---- the reference ---- */

/* A matrix of `rows` rows as the format holds it, in double. */
static double *decoded(const kt_format *f, const uint16_t *w, const uint8_t *blocks, int64_t rows,
                       int64_t k) {
    double *out = malloc(sizeof *out * (size_t)(rows * k));
    float *source = malloc(sizeof *source * (size_t)(rows * k));
    size_t data_bytes, scale_bytes;
    kt_matrix m = {.format = f->id, .n = rows, .k = k};
    uint8_t *data, *scales;

    cr_assert_eq(kt_format_sizes(f, rows, k, &data_bytes, &scale_bytes, NULL), KT_OK);
    data = aligned_alloc(64, (data_bytes + 63) / 64 * 64);
    scales = aligned_alloc(64, (scale_bytes + 64) / 64 * 64);
    for (int64_t i = 0; w && i < rows * k; i++) source[i] = f32(w[i]);
    if (w) f->encode_rows(source, rows, k, NULL, 0, rows, data, scale_bytes ? scales : NULL, NULL);
    m.data = w ? data : blocks, m.scales = w && scale_bytes ? scales : NULL;
    for (int64_t r = 0; r < rows; r++) f->decode_row(&m, r, out + r * k);
    free(data), free(scales), free(source);
    return out;
}

static void add_expert(const double *gate, const double *up, const double *down, const float *x,
                       double weight, double *out) {
    double h[N];

    for (int n = 0; n < N; n++) {
        double g = 0, u = 0;
        for (int i = 0; i < H; i++) g += gate[n * H + i] * x[i], u += up[n * H + i] * x[i];
        if (glu.kind != KT_GLU_SILU)
            g = fmin(g, glu.limit), u = fmax(fmin(u, glu.limit), -glu.limit);
        h[n] = glu.kind == KT_GLU_OAI ? (u + 1) * g / (1 + exp(-glu.alpha * g))
                                      : g / (1 + exp(-g)) * u;
    }
    for (int i = 0; i < H; i++) {
        double sum = 0;
        for (int n = 0; n < N; n++) sum += down[i * N + n] * h[n];
        out[i] += weight * sum;
    }
}

/* mean |out - want| / mean |want|, the measure that other engines' tests use. */
static double error_of(const layer *l, const kt_format *f, const call *c) {
    const size_t bytes = f->block_bytes ? (size_t)(N * H / f->block * f->block_bytes) : 0;
    double *w[E][3], *want = calloc(T * H, sizeof *want), off = 0, size = 0;

    for (int e = 0; e < E; e++)
        for (int p = 0; p < 3; p++)
            w[e][p] = decoded(f, l->w[p] ? l->w[p] + (size_t)e * N * H : NULL,
                              l->blocks[p] ? l->blocks[p] + (size_t)e * bytes : NULL, p < 2 ? N : H,
                              p < 2 ? H : N);
    for (int t = 0; t < T; t++)
        for (int i = 0; i < TOPK; i++) {
            double **x = w[c->id[t * TOPK + i]];
            add_expert(x[0], x[1], x[2], c->x + t * H, c->weight[t * TOPK + i], want + t * H);
        }
    for (int i = 0; i < T * H; i++) off += fabs(c->out[i] - want[i]), size += fabs(want[i]);
    for (int e = 0; e < E; e++)
        for (int p = 0; p < 3; p++) free(w[e][p]);
    free(want);
    return off / size;
}

/* Weights count as their format holds them, so what is left is what activations lose, x in two
 * factors and h in one. In BF16 a number loses 2^-9 at most, all three together 0.34 %. In INT8 the
 * largest of 16 or 32 normal numbers, about 2.1 deviations, takes 127 steps, or 64 where scales are
 * powers of two: a step's root mean square is at most 2.1 / 64 / sqrt(12) = 0.95 %, all three
 * sqrt(3) of it = 1.65 %. */
static double allowed(const kt_format *f) {
    return f->acts == KT_A_BF16 ? 0.0034 : 0.0165;
}

static void load_blocks(layer *l, const kt_format *f) {
    const size_t count = (size_t)(N * H / f->block), bytes = count * (size_t)f->block_bytes;
    kt_rng rng;
    kt_err err = {KT_OK, ""};

    kt_rng_seed(&rng, 9);
    for (int p = 0; p < 3; p++) {
        l->blocks[p] = malloc(E * bytes);
        kt_synthetic_blocks(f, E * count, 0.05, &rng, l->blocks[p]);
    }
    cr_assert_eq(load_parts(l->m, f->name + 1, l->blocks, bytes, &err), KT_OK, "%s: %s", f->name,
                 err.message);
}

Test(moe, every_format_is_as_near_to_the_reference_as_its_activations, .timeout = 300) {
    kt_moe_team *t = team(false, 2);
    call *c = make_call(1);
    int n = 0;

    for (size_t i = 0; i < kt_builtin_format_count; i++) {
        const kt_format *f = kt_builtin_formats[i];
        layer l = {0};
        double error;
        if (f->id == KT_W_F32 || f->id == KT_W_INT8_G16M) continue; /* of no whole matrix */
        if (f->block_bytes) {
            l.m = create(t, "native");
            load_blocks(&l, f);
        } else {
            l = make(t, f->name, 5);
        }
        forward(l.m, c);
        error = error_of(&l, f, c);
        cr_expect_lt(error, allowed(f), "%s: %.4f", f->name, error);
        cr_expect_gt(error, 0);
        end(&l);
        n++;
    }
    cr_expect_geq(n, 25);
    free(c);
    kt_moe_team_destroy(t);
}

/* On one memory node and on two. x loses at most 2^-9 in each of its two factors, and h as much:
 * clamped sums do not make that less by being many. */
Test(moe, activations_are_what_their_words_say) {
    static const kt_glu_rule rules[] = {{KT_GLU_CLAMP_SILU, 0.5f, 0}, {KT_GLU_OAI, 0.75f, 1.702f}};
    call *c = make_call(1);

    for (int i = 0; i < 4; i++) {
        kt_moe_team *t = team_over(false, 2, 1 + i / 2);
        double error;
        layer l;
        glu = rules[i % 2];
        l = make(t, "bf16", 5);
        forward(l.m, c);
        error = error_of(&l, kt_format_find(KT_W_BF16), c);
        cr_expect_lt(error, 3 * 0x1p-9, "rule %d: %.5f", i % 2, error);
        end(&l);
        kt_moe_team_destroy(t);
    }
    glu = (kt_glu_rule){KT_GLU_SILU, 0, 0};
    free(c);
}

static int64_t nodes_of(kt_moe *m) {
    kt_moe_counts counts = {.size = sizeof counts};
    cr_assert_eq(kt_moe_count(m, &counts, NULL, NULL), KT_OK);
    return counts.memory_nodes;
}

static kt_status nodes_of_team_error(int nodes, int threads, kt_err *err) {
    kt_moe_team_options o;
    kt_moe_team *t;

    kt_moe_team_options_init(&o, sizeof o);
    o.n_threads = threads, o.memory_nodes = nodes;
    return kt_moe_team_create(&o, &t, err);
}

/* Slices in the memory of made-up nodes give what whole experts give; a deterministic team the same
 * bits with any number of threads. */
Test(moe, experts_are_cut_over_memory_nodes, .timeout = 60) {
    static const char *const words[] = {"int4", "int8"};
    static const kt_weight_format formats[] = {KT_W_INT4_G32, KT_W_INT8_CHANNEL};
    call *c = make_call(1);
    float first[T * H];
    kt_moe_counts counts = {.size = sizeof counts};
    int64_t rows[E];

    for (int i = 0; i < 2; i++) {
        kt_moe_team *t = team_over(false, 3, 2);
        layer l = make(t, words[i], 5);
        cr_expect_eq(nodes_of(l.m), 2);
        forward(l.m, c);
        cr_expect_lt(error_of(&l, kt_format_find(formats[i]), c), 0.0165, "%s", words[i]);
        cr_assert_eq(kt_moe_count(l.m, &counts, rows, NULL), KT_OK);
        cr_expect_eq(counts.rows_run, T * TOPK);
        end(&l);
        kt_moe_team_destroy(t);
    }
    for (int threads = 2; threads <= 3; threads++) {
        kt_moe_team *t = team_over(true, threads, 2);
        layer l = make(t, "int4", 5);
        forward(l.m, c);
        if (threads == 2) memcpy(first, c->out, sizeof first);
        cr_expect_arr_eq(c->out, first, sizeof first, "%d threads", threads);
        end(&l);
        kt_moe_team_destroy(t);
    }
    free(c);
}

/* A machine of two nodes as hwloc describes it; and experts of one block of channels. */
Test(moe, memory_nodes_are_the_machines_or_as_many_as_asked_for) {
    static uint16_t w[2 * 64 * 64];
    const kt_moe_tensor small[2] = {{"gate_up_proj", "BF16", 3, {1, 128, 64}, 0, w},
                                    {"down_proj", "BF16", 3, {1, 64, 64}, 0, w}};
    kt_err err = {KT_OK, ""};

    setenv("HWLOC_SYNTHETIC", "pack:2 [numa] core:1 pu:1", 1);
    for (int wish = 0; wish <= 2; wish++) {
        kt_moe_team *t = team_over(false, 2, wish);
        layer l = {.m = NULL};
        kt_moe_options o;
        kt_moe *m;
        cr_expect_eq(nodes_of((l = make(t, "int8", 5)).m), wish == 1 ? 1 : 2);
        kt_moe_options_init(&o, sizeof o);
        o.experts = o.topk = 1, o.hidden = o.intermediate = 64;
        cr_assert_eq(kt_moe_create(t, &o, &m, &err), KT_OK, "%s", err.message);
        cr_expect_eq(nodes_of(m), 0);
        if (wish < 2) {
            cr_expect_eq(kt_moe_load_from_tensors(m, small, 2, NULL, &err), KT_OK, "%s",
                         err.message);
            cr_expect_eq(nodes_of(m), 1);
        } else {
            cr_expect_eq(kt_moe_load_from_tensors(m, small, 2, NULL, &err), KT_E_UNSUPPORTED);
            cr_expect(strstr(err.message, "64 intermediate channels"), "%s", err.message);
        }
        kt_moe_destroy(m);
        end(&l);
        kt_moe_team_destroy(t);
    }
    cr_expect_eq(nodes_of_team_error(3, 2, &err), KT_E_INVALID);
    cr_expect(strstr(err.message, "3 memory nodes with 2 threads"), "%s", err.message);
}

Test(moe, bf16_rows_and_long_ids_are_the_same_numbers_rounded) {
    kt_moe_team *t = team(true, 2);
    layer l = make(t, "native", 5);
    call *c = make_call(2);
    uint16_t x[T][H + 3], out[T][H + 5];
    int64_t id[T * TOPK];
    kt_moe_rows rows = c->rows;
    kt_err err = {KT_OK, ""};

    for (int i = 0; i < T; i++)
        for (int j = 0; j < H; j++) x[i][j] = bf16(c->x[i * H + j]), c->x[i * H + j] = f32(x[i][j]);
    for (int i = 0; i < T * TOPK; i++) id[i] = c->id[i];
    id[0] = c->id[0] = -1;
    memset(out, 0x5a, sizeof out);
    forward(l.m, c);
    rows.x = x, rows.ldx = H + 3, rows.x_type = KT_MOE_BF16;
    rows.out = out, rows.ldo = H + 5, rows.out_type = KT_MOE_BF16;
    rows.expert_id = id, rows.id_bytes = 8;
    cr_assert_eq(kt_moe_forward(l.m, &rows, &err), KT_OK, "%s", err.message);
    for (int i = 0; i < T; i++) {
        for (int j = 0; j < H; j++)
            cr_assert_lt(fabsf(f32(out[i][j]) - c->out[i * H + j]),
                         fabsf(c->out[i * H + j]) / 256 + 1e-30f, "token %d, %d", i, j);
        for (int j = H; j < H + 5; j++) cr_assert_eq(out[i][j], 0x5a5a, "past a row's end");
    }
    free(c);
    end(&l);
    kt_moe_team_destroy(t);
}

/* ---- while serving ---- */

Test(moe, maps_masks_and_deferred_experts_change_what_they_say) {
    static const int32_t map[6] = {2, 0, 3, 1, 2, 0};
    static const uint8_t mask[6] = {1, 0, 0, 1, 0, 0};
    kt_moe_team *t = team(true, 2);
    layer l = make(t, "int8", 5);
    call *plain = make_call(3), *c = make_call(3), *rest = make_call(3);
    kt_moe_counts counts = {.size = sizeof counts};
    int64_t rows[E], sum = 0;
    kt_err err = {KT_OK, ""};

    for (int i = 0; i < T * TOPK; i++) plain->id[i] = map[c->id[i]];
    forward(l.m, plain);
    cr_assert_eq(kt_moe_set_map(l.m, map, 6, &err), KT_OK, "%s", err.message);
    forward(l.m, c);
    cr_expect_arr_eq(c->out, plain->out, sizeof c->out);
    c->id[0] = 0, c->id[1] = 4; /* both are expert 2: its weights together */
    plain->id[0] = 2, plain->id[1] = -1, plain->weight[0] += plain->weight[1];
    cr_assert_eq(kt_moe_set_map(l.m, NULL, 0, &err), KT_OK);
    forward(l.m, plain);
    cr_assert_eq(kt_moe_set_map(l.m, map, 6, &err), KT_OK);
    forward(l.m, c);
    cr_expect_arr_eq(c->out, plain->out, sizeof c->out);

    /* What one side computes and what the other does are the whole. */
    cr_assert_eq(kt_moe_set_mask(l.m, mask, &err), KT_OK);
    memcpy(rest->id, c->id, sizeof c->id);
    forward(l.m, rest);
    cr_assert_eq(kt_moe_count(l.m, &counts, rows, &err), KT_OK);
    cr_expect_gt(counts.rows_elsewhere, 0);
    cr_expect_eq(counts.calls, 5);
    cr_expect_eq(counts.tokens, 5 * T);
    for (int e = 0; e < E; e++) sum += rows[e];
    cr_expect_eq(sum, counts.rows_run);
    cr_expect_eq(sum + counts.rows_elsewhere, 5 * T * TOPK - 2, "one -1, one merged");
    for (int i = 0; i < T * TOPK; i++)
        if (!mask[c->id[i]]) c->id[i] = -1;
    cr_assert_eq(kt_moe_set_mask(l.m, NULL, &err), KT_OK);
    c->rows.accumulate = true;
    memcpy(c->out, rest->out, sizeof c->out);
    forward(l.m, c);
    for (int i = 0; i < T * H; i++)
        cr_assert_lt(fabsf(c->out[i] - plain->out[i]), 1e-5f, "%d: %g %g", i, (double)c->out[i],
                     (double)plain->out[i]);
    free(plain), free(c), free(rest);
    end(&l);
    kt_moe_team_destroy(t);
}

Test(moe, deferred_experts_are_those_of_least_weight) {
    kt_moe_team *t = team(true, 2);
    layer l = make(t, "native", 5);
    call *c = make_call(4), *now = make_call(4), *later = make_call(4);
    float deferred[T * H];
    kt_moe_counts counts = {.size = sizeof counts};

    for (int i = 0; i < T; i++) {
        const int least = c->weight[2 * i] < c->weight[2 * i + 1] ? 0 : 1;
        now->id[2 * i + least] = later->id[2 * i + 1 - least] = -1;
    }
    forward(l.m, now);
    forward(l.m, later);
    c->rows.n_deferred = 1, c->rows.deferred_out = deferred;
    forward(l.m, c);
    cr_expect_arr_eq(c->out, now->out, sizeof c->out);
    cr_expect_arr_eq(deferred, later->out, sizeof deferred);
    cr_assert_eq(kt_moe_count(l.m, &counts, NULL, NULL), KT_OK);
    cr_expect_eq(counts.rows_deferred, T);
    cr_expect_eq(counts.calls, 3);
    free(c), free(now), free(later);
    end(&l);
    kt_moe_team_destroy(t);
}

/* ---- many threads ---- */

typedef struct caller {
    layer *layers;
    const float *want; /* [LAYERS, T * H] */
    int number;
    int wrong;
} caller;

static void *call_all(void *arg) {
    caller *me = arg;
    call *c[LAYERS];
    uint64_t ticket[LAYERS];

    for (int i = 0; i < LAYERS; i++) { /* all in flight, each thread from another layer on */
        const int at = (i + me->number) % LAYERS;
        c[at] = make_call(100 + (uint64_t)at);
        if (kt_moe_submit(me->layers[at].m, &c[at]->rows, &ticket[at], NULL) != KT_OK) me->wrong++;
    }
    for (int i = 0; i < LAYERS; i++) {
        kt_moe_sync(me->layers[i].m, ticket[i]);
        me->wrong += memcmp(c[i]->out, me->want + i * T * H, sizeof c[i]->out) != 0;
        free(c[i]);
    }
    return NULL;
}

Test(moe, sixty_four_threads_call_eight_layers, .timeout = 300) {
    kt_moe_team *t = team(true, 2);
    layer layers[LAYERS];
    float *want = malloc(sizeof *want * LAYERS * T * H);
    caller callers[CALLERS];
    pthread_t thread[CALLERS];

    for (int i = 0; i < LAYERS; i++) {
        call *c = make_call(100 + (uint64_t)i);
        layers[i] = make(t, i % 2 ? "int4" : "native", 20 + (uint64_t)i);
        forward(layers[i].m, c);
        memcpy(want + i * T * H, c->out, sizeof c->out);
        free(c);
    }
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (caller){layers, want, i, 0};
        cr_assert_eq(pthread_create(&thread[i], NULL, call_all, &callers[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(thread[i], NULL);
        cr_expect_eq(callers[i].wrong, 0, "thread %d: %d calls", i, callers[i].wrong);
    }
    kt_moe_team_destroy(t); /* before its layers */
    for (int i = LAYERS - 1; i >= 0; i--) end(&layers[i]);
    free(want);
}

/* ---- life ---- */

static long resident_kib(void) {
    FILE *f = fopen("/proc/self/statm", "r");
    long total, resident = 0;

    cr_assert(f && fscanf(f, "%ld %ld", &total, &resident) == 2);
    fclose(f);
    return resident * 4;
}

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { LIVES = 300, HAS_OWN_ALLOCATOR = 1 }; /* which keeps what is freed */
#else
enum { LIVES = 2000, HAS_OWN_ALLOCATOR = 0 };
#endif

/* KT_TEST_LIVES=10000 has as many of them. */
Test(moe, two_thousand_lives_leave_nothing, .timeout = 300) {
    const char *wish = getenv("KT_TEST_LIVES");
    const int lives = wish && atoi(wish) > LIVES ? atoi(wish) : LIVES;
    kt_moe_options o;
    static uint16_t w[2 * 64 * 64];
    const kt_moe_tensor tensors[2] = {{"gate_up_proj", "BF16", 3, {1, 128, 64}, 0, w},
                                      {"down_proj", "BF16", 3, {1, 64, 64}, 0, w}};
    float x[64] = {1}, out[64];
    const int32_t id = 0;
    const float weight = 1;
    const kt_moe_rows rows = {
        .tokens = 1, .x = x, .expert_id = &id, .route_weight = &weight, .out = out, .id_bytes = 4};
    kt_moe_team *t = NULL;
    long before = 0;
    kt_err err = {KT_OK, ""};

    for (int i = 0; i < 2 * 64 * 64; i++) w[i] = bf16(0.01f * (float)(i % 7));
    kt_moe_options_init(&o, sizeof o);
    o.experts = o.topk = 1, o.hidden = o.intermediate = 64, o.max_tokens = 1;
    for (int i = 0; i <= lives; i++) {
        kt_moe *m;
        uint64_t ticket;
        if (i % 100 == 0) { /* a team's handle ends while its last layer lives */
            kt_moe_team_destroy(t);
            t = team(false, 1);
        }
        if (i == 200) before = resident_kib();
        if (i == lives) break; /* after 1,800 more, with as little in use */
        cr_assert_eq(kt_moe_create(t, &o, &m, &err), KT_OK, "%s", err.message);
        cr_assert_eq(kt_moe_load_from_tensors(m, tensors, 2, NULL, &err), KT_OK, "%s", err.message);
        cr_assert_eq(kt_moe_submit(m, &rows, &ticket, &err), KT_OK, "%s", err.message);
        if (i % 2) kt_moe_sync(m, ticket); /* the end waits for what nobody waited for */
        kt_moe_destroy(m);
    }
    cr_expect(HAS_OWN_ALLOCATOR || resident_kib() < before + 512, "grew from %ld to %ld KiB",
              before, resident_kib());
    kt_moe_team_destroy(t);
}

/* ---- checkpoints and mistakes ---- */

#define TINY KT_SOURCE_DIR "/datasets/models/tiny-moe"

static void refuses(kt_status got, kt_status want, const kt_err *err, const char *says) {
    cr_expect_eq(got, want, "%s", err->message);
    cr_expect(strstr(err->message, says), "'%s' does not say '%s'", err->message, says);
}

Test(moe, a_checkpoints_layer_is_loaded_or_refused_by_name) {
    kt_moe_team *t = team(true, 1);
    kt_moe_options o;
    kt_moe *m;
    float x[256], out[2][256] = {{0}};
    const int32_t id[4] = {3, 9, 0, 15};
    const float weight[4] = {0.1f, 0.2f, 0.3f, 0.4f};
    kt_moe_rows rows = {
        .tokens = 1, .x = x, .expert_id = id, .route_weight = weight, .out = out[0], .id_bytes = 4};
    kt_err err = {KT_OK, ""};

    for (int i = 0; i < 256; i++) x[i] = sinf((float)i);
    kt_moe_options_init(&o, sizeof o);
    o.experts = 16, o.topk = 4, o.hidden = 256, o.intermediate = 128;
    cr_assert_eq(kt_moe_create(t, &o, &m, &err), KT_OK, "%s", err.message);
    refuses(kt_moe_forward(m, &rows, &err), KT_E_INVALID, &err, "no weights yet");
    refuses(kt_moe_load(m, TINY, 99, &err), KT_E_NOT_FOUND, &err, "layer 99");
    refuses(kt_moe_load(m, "/nowhere", 0, &err), KT_E_NOT_FOUND, &err, "/nowhere");
    cr_assert_eq(kt_moe_load(m, TINY, 1, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_moe_forward(m, &rows, &err), KT_OK, "%s", err.message);
    rows.out = out[1];
    cr_assert_eq(kt_moe_load(m, TINY, 2, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_moe_forward(m, &rows, &err), KT_OK, "%s", err.message);
    cr_expect(memcmp(out[0], out[1], sizeof out[0]) != 0, "two layers of a model are equal");
    kt_moe_destroy(m);
    o.hidden = 128;
    cr_assert_eq(kt_moe_create(t, &o, &m, &err), KT_OK, "%s", err.message);
    refuses(kt_moe_load(m, TINY, 1, &err), KT_E_MISMATCH, &err, "hidden size 256");
    kt_moe_destroy(m);
    kt_moe_team_destroy(t);
}

Test(moe, calls_and_options_that_cannot_be_are_refused) {
    kt_moe_team *t = team(false, 1);
    layer l = make(t, "native", 5);
    call *c = make_call(6);
    kt_moe_rows r = c->rows;
    kt_moe_options o;
    kt_moe *m;
    const int32_t bad_map[1] = {E};
    kt_err err = {KT_OK, ""};

    r.stream = t, refuses(kt_moe_forward(l.m, &r, &err), KT_E_INVALID, &err, "expected NULL");
    r = c->rows, r.ldx = H - 1;
    refuses(kt_moe_forward(l.m, &r, &err), KT_E_INVALID, &err, "ldx 255");
    r = c->rows, r.id_bytes = 2;
    refuses(kt_moe_forward(l.m, &r, &err), KT_E_INVALID, &err, "id_bytes 2");
    r = c->rows, r.n_deferred = 1;
    refuses(kt_moe_forward(l.m, &r, &err), KT_E_INVALID, &err, "deferred_out NULL");
    c->id[5] = E;
    refuses(kt_moe_forward(l.m, &c->rows, &err), KT_E_INVALID, &err, "token 2: expert_id 4");
    refuses(kt_moe_set_map(l.m, bad_map, 1, &err), KT_E_INVALID, &err, "map[0] is 4");
    kt_moe_options_init(&o, sizeof o);
    o.experts = 4, o.topk = 5, o.hidden = o.intermediate = 64;
    refuses(kt_moe_create(t, &o, &m, &err), KT_E_INVALID, &err, "topk is 5 of 4");
    o.topk = 2, o.weights = "int3";
    refuses(kt_moe_create(t, &o, &m, &err), KT_E_INVALID, &err, "weights 'int3'");
    o.weights = "int4", o.activation = "gelu";
    refuses(kt_moe_create(t, &o, &m, &err), KT_E_UNSUPPORTED, &err, "'gelu'");
    o.activation = "swigluoai", o.swiglu_limit = 7;
    refuses(kt_moe_create(t, &o, &m, &err), KT_E_INVALID, &err, "expected both over 0");
    o.activation = "swiglu", o.swiglu_alpha = 1;
    refuses(kt_moe_create(t, &o, &m, &err), KT_E_INVALID, &err, "and no alpha");
    refuses(kt_moe_load_from_tensors(l.m, &(kt_moe_tensor){"a", "F5", 1, {1}, 0, c}, 1, NULL, &err),
            KT_E_UNSUPPORTED, &err, "dtype 'F5'");
    refuses(kt_moe_load_from_tensors(l.m, NULL, 0, NULL, &err), KT_E_NOT_FOUND, &err, "gate_proj");
    refuses(kt_moe_load_from_tensors(l.m, NULL, 0, "hqq", &err), KT_E_INVALID, &err, "'hqq'");
    c->id[5] = 0;
    forward(l.m, c); /* after all that the weights are there */
    free(c);
    end(&l);
    kt_moe_team_destroy(t);
}
