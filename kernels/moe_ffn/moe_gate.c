/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/moe_ffn/moe_gate.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/format.h"
#include "kernels/formats/p64.h"
#include "kernels/moe_ffn/moe_ref.h"

#define CANARY 0xA5
#define GAP 3   /* floats between rows of out */
#define SPARE 3 /* tokens that no row uses */

struct kt_moe_case {
    kt_problem problem;
    uint64_t seed;
    int64_t tokens;
    kt_gate_matrix gate, up, down;
    kt_gate_acts a;
    kt_guard rows, route_weight;            /* int32 and float [m] */
    kt_guard gate_bias, up_bias, down_bias; /* float [n], [n], [k] */
    kt_ref_sum *want_gate, *want_up;        /* [tokens, n] */
    /* Down depends on the h a variant wrote. Rows of a variant have the same h for every m, so the
     * reference is kept with the h bytes it was computed from. */
    char *down_h;          /* [tokens, h_stride] */
    kt_ref_sum *want_down; /* [tokens, k] */
    double *h_row, *w_row; /* scratch: [n], [max(n, k)] */
    const kt_variant *packed_for;
    kt_guard packed;
    /* FP8: the same with NaN codes in gate and up, for gate_up alone: all of its outputs are NaN. */
    kt_moe_case *spoilt;
};

/* Row i works on token (step * i + 1) mod tokens: every row another token, not in order. */
static kt_status make_routing(kt_moe_case *c, kt_err *err) {
    int64_t m = c->problem.m, step = c->tokens > 2 ? c->tokens / 2 + 1 : 1;

    while (step > 1) { /* made coprime with tokens */
        int64_t x = step, y = c->tokens;
        while (y) {
            int64_t r = x % y;
            x = y, y = r;
        }
        if (x == 1) break;
        step--;
    }
    KT_TRY(kt_guard_create((size_t)m * sizeof(int32_t), 4, CANARY, &c->rows, err));
    KT_TRY(kt_guard_create((size_t)m * sizeof(float), 4, CANARY, &c->route_weight, err));
    for (int64_t i = 0; i < m; i++) {
        ((int32_t *)c->rows.data)[i] = (int32_t)((step * i + 1) % c->tokens);
        ((float *)c->route_weight.data)[i] = i % 5 == 4 ? 0.0f : 0.3f + 0.13f * (float)(i % 7);
    }
    return KT_OK;
}

/* Numbers on both sides of the limit that endings are checked with; none is 0. */
static kt_status make_bias(int64_t n, int64_t step, kt_guard *out, kt_err *err) {
    KT_TRY(kt_guard_create((size_t)n * sizeof(float), 4, CANARY, out, err));
    for (int64_t i = 0; i < n; i++)
        ((float *)out->data)[i] = 0.17f * (float)((step * i) % 23 - 11) + 0.05f;
    return KT_OK;
}

static kt_status make_biases(kt_moe_case *c, kt_err *err) {
    KT_TRY(make_bias(c->problem.n, 7, &c->gate_bias, err));
    KT_TRY(make_bias(c->problem.n, 5, &c->up_bias, err));
    return make_bias(c->problem.k, 3, &c->down_bias, err);
}

static kt_status make_reference(kt_moe_case *c, kt_err *err) {
    const kt_problem *q = &c->problem;
    size_t t = (size_t)c->tokens, n = (size_t)q->n, k = (size_t)q->k;

    c->want_gate = malloc(t * n * sizeof *c->want_gate);
    c->want_up = malloc(t * n * sizeof *c->want_up);
    c->down_h = calloc(t, kt_act_row_bytes(q->acts, q->n));
    c->want_down = calloc(t * k, sizeof *c->want_down);
    c->h_row = malloc(n * sizeof *c->h_row);
    c->w_row = malloc((n > k ? n : k) * sizeof *c->w_row);
    if (!c->want_gate || !c->want_up || !c->down_h || !c->want_down || !c->h_row || !c->w_row)
        return kt_fail(err, KT_E_NOMEM, "moe gate: no memory for the reference");
    kt_gemm_ref(&c->gate.matrix, c->a.decoded, c->tokens, c->w_row, c->want_gate);
    kt_gemm_ref(&c->up.matrix, c->a.decoded, c->tokens, c->w_row, c->want_up);
    /* down_h is all zero bytes, and want_down valid from the start: what comes of an h of zeros. */
    memset(c->h_row, 0, n * sizeof *c->h_row);
    kt_gemm_ref(&c->down.matrix, c->h_row, 1, c->w_row, c->want_down);
    for (size_t i = 1; i < t; i++)
        memcpy(c->want_down + i * k, c->want_down, k * sizeof *c->want_down);
    return KT_OK;
}

static kt_status case_create(const kt_problem *q, uint64_t seed, int spoil, kt_moe_case **out,
                             kt_err *err) {
    kt_moe_case *c;
    kt_status st;

    *out = NULL;
    if (q->m < 1) return kt_fail(err, KT_E_INVALID, "moe gate: m=%lld", (long long)q->m);
    c = calloc(1, sizeof *c);
    if (!c) return kt_fail(err, KT_E_NOMEM, "moe gate: no memory");
    c->problem = *q;
    c->seed = seed;
    c->tokens = q->m + SPARE;
    st = kt_gate_matrix_create(q->weights, q->n, q->k, 3 * seed, &c->gate, err);
    if (st == KT_OK) st = kt_gate_matrix_create(q->weights, q->n, q->k, 3 * seed + 1, &c->up, err);
    if (st == KT_OK)
        st = kt_gate_matrix_create(q->weights, q->k, q->n, 3 * seed + 2, &c->down, err);
    if (st == KT_OK) st = kt_gate_acts_create(q->acts, c->tokens, q->k, seed, &c->a, err);
    if (st == KT_OK) st = make_routing(c, err);
    if (st == KT_OK) st = make_biases(c, err);
    if (st == KT_OK) {
        kt_gate_matrix_spoil(&c->down, seed);
        if (spoil) kt_gate_matrix_spoil(&c->gate, seed + 1);
        if (spoil) kt_gate_matrix_spoil(&c->up, seed + 2);
        st = make_reference(c, err);
    }
    if (st != KT_OK) {
        kt_moe_case_destroy(c);
        return st;
    }
    *out = c;
    return KT_OK;
}

kt_status kt_moe_case_create(const kt_problem *q, uint64_t seed, kt_moe_case **out, kt_err *err) {
    const int is_fp8 =
        q->weights == KT_W_FP8_B128 || q->weights == KT_W_FP8_CHANNEL || q->weights == KT_W_MXFP8;

    KT_TRY(case_create(q, seed, 0, out, err));
    if (!is_fp8) return KT_OK;
    kt_status st = case_create(q, seed, 1, &(*out)->spoilt, err);
    if (st == KT_OK) return KT_OK;
    kt_moe_case_destroy(*out);
    *out = NULL;
    return st;
}

void kt_moe_case_destroy(kt_moe_case *c) {
    if (!c) return;
    kt_moe_case_destroy(c->spoilt);
    kt_gate_matrix_destroy(&c->gate);
    kt_gate_matrix_destroy(&c->up);
    kt_gate_matrix_destroy(&c->down);
    kt_gate_acts_destroy(&c->a);
    kt_guard_destroy(&c->rows);
    kt_guard_destroy(&c->route_weight);
    kt_guard_destroy(&c->gate_bias);
    kt_guard_destroy(&c->up_bias);
    kt_guard_destroy(&c->down_bias);
    kt_guard_destroy(&c->packed);
    free(c->want_gate);
    free(c->want_up);
    free(c->down_h);
    free(c->want_down);
    free(c->h_row);
    free(c->w_row);
    free(c);
}

static kt_status pack(kt_moe_case *c, const kt_gate_run *run, kt_err *err) {
    const kt_variant *v = run->variant;
    size_t bytes = v->packed_bytes(run->problem);

    if (c->packed_for == v) return KT_OK;
    c->packed_for = NULL;
    kt_guard_destroy(&c->packed);
    KT_TRY(kt_guard_create(bytes, 64, CANARY, &c->packed, err));
    v->pack_expert(run->problem, &c->gate.matrix, &c->up.matrix, &c->down.matrix, c->packed.data);
    if (!kt_guard_intact(&c->packed))
        return kt_gate_refuse(run, err, "pack_expert wrote outside its %zu bytes", bytes);
    c->packed_for = v;
    return KT_OK;
}

/* One call's surroundings: guarded h, out and scratch. */
typedef struct bench {
    const kt_gate_run *run;
    kt_moe_case *inputs;
    kt_guard h, out, scratch;
    size_t h_stride;
    int64_t ldo;
    kt_glu_rule glu;
    int has_bias;
} bench;

/* What out holds before: small numbers that differ by place. */
static float old_value(int64_t token, int64_t column) {
    return 0.25f * (float)((token * 31 + column * 7) % 17 - 8);
}

static void preset_out(const bench *b) {
    for (int64_t t = 0; t < b->inputs->tokens; t++)
        for (int64_t j = 0; j < b->run->problem->k; j++)
            ((float *)b->out.data)[t * b->ldo + j] = old_value(t, j);
}

static kt_status bench_init(bench *b, const kt_gate_run *run, kt_moe_case *inputs, kt_err *err) {
    const kt_problem *q = run->problem;
    size_t floats, scratch_bytes = 0;

    *b = (bench){.run = run,
                 .inputs = inputs,
                 .h_stride = kt_act_row_bytes(q->acts, q->n),
                 .ldo = q->k + GAP};
    floats = (size_t)((inputs->tokens - 1) * b->ldo + q->k);
    if (run->variant->workspace_bytes)
        scratch_bytes = run->variant->workspace_bytes(q, run->config);
    KT_TRY(kt_guard_create((size_t)q->m * b->h_stride, 64, CANARY, &b->h, err));
    KT_TRY(kt_guard_create(floats * sizeof(float), 4, CANARY, &b->out, err));
    KT_TRY(kt_guard_create(scratch_bytes, 64, CANARY, &b->scratch, err));
    preset_out(b);
    return KT_OK;
}

static void bench_deinit(bench *b) {
    kt_guard_destroy(&b->h);
    kt_guard_destroy(&b->out);
    kt_guard_destroy(&b->scratch);
}

typedef enum stage { GATE_UP, DOWN } stage;

/* Run rows [row, row + m) over panels [begin, end). As in serving, call.problem carries no m. */
static void run_rows(const bench *b, stage s, int64_t row, int64_t m, int64_t begin, int64_t end,
                     const void *next) {
    kt_moe_case *c = b->inputs;
    kt_problem q = *b->run->problem;
    kt_moe_call call = {.problem = &q,
                        .config = b->run->config,
                        .weights = (const char *)c->packed.data +
                                   (s == DOWN ? kt_p64_gate_up_bytes(&q) : 0),
                        .a = c->a.rows.data,
                        .a_stride = c->a.stride,
                        .rows = (const int32_t *)c->rows.data + row,
                        .route_weight = (const float *)c->route_weight.data + row,
                        .m = m,
                        .panel_begin = begin,
                        .panel_end = end,
                        .h = (char *)b->h.data + (size_t)row * b->h_stride,
                        .h_stride = b->h_stride,
                        .out = b->out.data,
                        .ldo = b->ldo,
                        .next = next,
                        .scratch = b->scratch.bytes ? b->scratch.data : NULL,
                        .glu = b->glu};
    if (b->has_bias) {
        call.gate_bias = c->gate_bias.data;
        call.up_bias = c->up_bias.data;
        call.down_bias = c->down_bias.data;
    }
    q.m = 0;
    if (s == GATE_UP)
        b->run->variant->moe_gate_up(&call);
    else
        b->run->variant->moe_down(&call);
}

static int64_t panels_of(const kt_problem *q, stage s) {
    return s == GATE_UP ? q->n / 32 : kt_p64_panels(q->k);
}

static kt_status check_canaries(const bench *b, kt_err *err) {
    const kt_problem *q = b->run->problem;
    const kt_moe_case *c = b->inputs;
    const unsigned char *out = b->out.data, *h = b->h.data;
    size_t h_bytes = q->acts == KT_A_BF16       ? 2 * (size_t)q->n
                     : q->acts == KT_A_INT8_G32 ? (size_t)(q->n + q->n / 4)
                                                : (size_t)(q->n + q->n / 16 * 12);

    for (int64_t t = 0; t + 1 < c->tokens; t++)
        for (size_t g = 0; g < GAP * sizeof(float); g++)
            if (out[(size_t)(t * b->ldo + q->k) * sizeof(float) + g] != CANARY)
                return kt_gate_refuse(b->run, err, "wrote past column k of token %lld",
                                      (long long)t);
    for (int64_t i = 0; i < q->m; i++)
        for (size_t g = h_bytes; g < b->h_stride; g++)
            if (h[(size_t)i * b->h_stride + g] != CANARY)
                return kt_gate_refuse(b->run, err, "wrote past the end of h row %lld",
                                      (long long)i);
    if (!kt_guard_intact(&b->h)) return kt_gate_refuse(b->run, err, "wrote outside h");
    if (!kt_guard_intact(&b->out)) return kt_gate_refuse(b->run, err, "wrote outside out");
    if (!kt_guard_intact(&b->scratch)) return kt_gate_refuse(b->run, err, "wrote outside scratch");
    if (!kt_guard_intact(&c->packed) || !kt_guard_intact(&c->a.rows) ||
        !kt_guard_intact(&c->rows) || !kt_guard_intact(&c->route_weight) ||
        !kt_guard_intact(&c->gate_bias) || !kt_guard_intact(&c->up_bias) ||
        !kt_guard_intact(&c->down_bias))
        return kt_gate_refuse(b->run, err, "wrote around an input");
    return KT_OK;
}

/* The parts of an INT8 group that have no tolerance. */
static kt_status check_group(const bench *b, int64_t row, int64_t g, const kt_ref_value want[32],
                             kt_err *err) {
    int64_t n = b->run->problem->n;
    const char *h = (const char *)b->h.data + (size_t)row * b->h_stride;
    const int8_t *q = (const int8_t *)h + 32 * g;
    double scale = kt_a8_scales(h, n)[g], low = 0, high = 0;
    int sum = 0, largest = 0;

    for (int i = 0; i < 32; i++) {
        sum += q[i];
        largest = abs(q[i]) > largest ? abs(q[i]) : largest;
        low = fmax(low, fabs(want[i].value) - want[i].bound);
        high = fmax(high, fabs(want[i].value) + want[i].bound);
    }
    if (kt_a8_comps(h, n)[g] != -8 * sum)
        return kt_gate_refuse(b->run, err, "h[%lld] group %lld: compensation %d, codes sum to %d",
                              (long long)row, (long long)g, kt_a8_comps(h, n)[g], sum);
    if (largest != (scale > 0 ? 127 : 0))
        return kt_gate_refuse(b->run, err, "h[%lld] group %lld: largest code %d with scale %.9g",
                              (long long)row, (long long)g, largest, scale);
    if (scale == 0 && low <= 127 / (double)FLT_MAX * (1 + 0x1p-22)) return KT_OK;
    if (!(scale >= low / 127 * (1 - 0x1p-22) && scale <= high / 127 * (1 + 0x1p-22)))
        return kt_gate_refuse(b->run, err, "h[%lld] group %lld: scale %.9g, want %.9g to %.9g",
                              (long long)row, (long long)g, scale, low / 127, high / 127);
    return KT_OK;
}

/* The same for the two groups of 16 of a8p. The largest code shows that the scale is the least: 63.75
 * or more of the group before rounding, unless the scale is the smallest there is. */
static kt_status check_half(const bench *b, int64_t row, int64_t g, kt_err *err) {
    const int64_t n = b->run->problem->n;
    const char *h = (const char *)b->h.data + (size_t)row * b->h_stride;
    const int8_t *q = (const int8_t *)h + 16 * g;
    const float bias = kt_a8p_biases(h, n)[g];
    int32_t bits, sum = 0, largest = 0;

    memcpy(&bits, &bias, sizeof bits);
    for (int i = 0; i < 16; i++) {
        sum += q[i];
        largest = abs(q[i]) > largest ? abs(q[i]) : largest;
    }
    if (kt_a8p_starts8(h, n)[g] != bits - 8 * sum || kt_a8p_starts128(h, n)[g] != bits - 128 * sum)
        return kt_gate_refuse(b->run, err,
                              "h[%lld] group %lld: starts at bias %d and %d, codes sum to %d",
                              (long long)row, (long long)g, kt_a8p_starts8(h, n)[g] - bits,
                              kt_a8p_starts128(h, n)[g] - bits, (int)sum);
    if ((bits & 0x7fffff) != 0x400000 || largest > 127 || (largest < 64 && bias > 0x1.8p-103f))
        return kt_gate_refuse(b->run, err, "h[%lld] group %lld: largest code %d with bias %.9g",
                              (long long)row, (long long)g, (int)largest, bias);
    return KT_OK;
}

/* What is asked of channel j of h. */
static kt_moe_ending ending_of(const bench *b, int64_t j) {
    kt_moe_ending ending = {b->glu, 0, 0};

    if (!b->has_bias) return ending;
    ending.gate_bias = ((const float *)b->inputs->gate_bias.data)[j];
    ending.up_bias = ((const float *)b->inputs->up_bias.data)[j];
    return ending;
}

static const char *const glu_names[KT_GLU_COUNT] = {"h", "h, clamped", "h, clamped, up + 1"};

static kt_status check_h(const bench *b, kt_gate_sums *sums, kt_err *err) {
    kt_gate_run run = *b->run;
    const kt_problem *q = run.problem;
    const kt_moe_case *c = b->inputs;

    run.what = glu_names[b->glu.kind];
    for (int64_t i = 0; i < q->m; i++) {
        int64_t token = ((const int32_t *)c->rows.data)[i];
        const char *h = (const char *)b->h.data + (size_t)i * b->h_stride;
        kt_act_decode_row(q->acts, h, q->n, c->h_row);
        for (int64_t g = 0; g < q->n / 32; g++) {
            kt_ref_value want[32];
            for (int j = 0; j < 32; j++) {
                const int64_t at = token * q->n + 32 * g + j;
                const kt_moe_ending ending = ending_of(b, 32 * g + j);
                want[j] = kt_moe_ref_h(q, run.variant->numerics, &c->want_gate[at], &c->want_up[at],
                                       &ending);
            }
            if (q->acts == KT_A_INT8_G32) KT_TRY(check_group(b, i, g, want, err));
            for (int half = 0; half < 2 && q->acts == KT_A_INT8_G16P2; half++)
                KT_TRY(check_half(b, i, 2 * g + half, err));
            kt_moe_ref_encode(q->acts, want);
            for (int j = 0; j < 32; j++)
                KT_TRY(kt_gate_element(&run, i, 32 * g + j, c->h_row[32 * g + j], want[j].value,
                                       want[j].bound, sums, err));
        }
    }
    return KT_OK;
}

/* want_down for the h of row i, computed anew only when its bytes are new. */
static const kt_ref_sum *down_reference(const bench *b, int64_t i, int64_t token) {
    const kt_problem *q = b->run->problem;
    kt_moe_case *c = b->inputs;
    const char *h = (const char *)b->h.data + (size_t)i * b->h_stride;
    char *known = c->down_h + (size_t)token * b->h_stride;

    if (memcmp(h, known, b->h_stride) != 0) {
        memcpy(known, h, b->h_stride);
        kt_act_decode_row(q->acts, h, q->n, c->h_row);
        kt_gemm_ref(&c->down.matrix, c->h_row, 1, c->w_row, c->want_down + token * q->k);
    }
    return c->want_down + token * q->k;
}

static kt_status check_out(const bench *b, kt_gate_sums *sums, kt_err *err) {
    kt_gate_run run = *b->run;
    const kt_problem *q = run.problem;
    const kt_moe_case *c = b->inputs;
    const float *out = b->out.data;
    kt_problem product = kt_moe_down_problem(q);
    char *used = calloc((size_t)c->tokens, 1);
    kt_status st = used ? KT_OK : kt_fail(err, KT_E_NOMEM, "moe gate: no memory");

    run.what = b->has_bias ? "out with a bias" : "out";
    for (int64_t i = 0; i < q->m && st == KT_OK; i++) {
        int64_t t = ((const int32_t *)c->rows.data)[i];
        double weight = ((const float *)c->route_weight.data)[i];
        const kt_ref_sum *sum = down_reference(b, i, t);
        used[t] = 1;
        for (int64_t j = 0; j < q->k && st == KT_OK; j++) {
            double bound = kt_gemm_bound(&product, run.variant->numerics, &sum[j]);
            kt_ref_value want = {sum[j].value, bound};
            if (b->has_bias) want = kt_moe_ref_bias(want, ((const float *)c->down_bias.data)[j]);
            want = kt_moe_ref_add(old_value(t, j), weight, want);
            st =
                kt_gate_element(&run, t, j, out[t * b->ldo + j], want.value, want.bound, sums, err);
        }
    }
    for (int64_t t = 0; t < c->tokens && st == KT_OK; t++)
        for (int64_t j = 0; j < q->k && !used[t] && st == KT_OK; j++)
            if (out[t * b->ldo + j] != old_value(t, j))
                st = kt_gate_refuse(&run, err, "out[%lld, %lld] changed, but no row is token %lld",
                                    (long long)t, (long long)j, (long long)t);
    free(used);
    return st;
}

/* The same bytes; of bfloat16 rows, which may hold NaN, the same bits or NaN both. */
static int same_h(const bench *b, const bench *other, int64_t row) {
    const size_t at = (size_t)row * b->h_stride;
    const char *x = (const char *)b->h.data + at, *y = (const char *)other->h.data + at;
    const uint16_t *p = (const void *)x, *r = (const void *)y;

    if (memcmp(x, y, b->h_stride) == 0) return 1;
    for (int64_t j = 0; b->run->problem->acts == KT_A_BF16 && j < b->run->problem->n; j++) {
        const float f = kt_bf16_to_f32(p[j]), g = kt_bf16_to_f32(r[j]);
        if (!kt_gate_same(&f, &g)) return 0;
    }
    return b->run->problem->acts == KT_A_BF16;
}

/* Rows [row, row + m) of h, and their tokens' outputs, are the same bits in both. */
static kt_status check_same(const bench *b, const bench *other, stage s, int64_t row, int64_t m,
                            const char *how, kt_err *err) {
    const kt_problem *q = b->run->problem;

    for (int64_t i = row; i < row + m; i++) {
        int64_t t = ((const int32_t *)b->inputs->rows.data)[i];
        const float *x = (const float *)b->out.data + t * b->ldo;
        const float *y = (const float *)other->out.data + t * b->ldo;
        if (!same_h(b, other, i))
            return kt_gate_refuse(b->run, err, "h row %lld has other bits %s", (long long)i, how);
        for (int64_t j = 0; j < q->k && s == DOWN; j++)
            if (!kt_gate_same(&x[j], &y[j]))
                return kt_gate_refuse(b->run, err, "out[%lld, %lld] = %.9g, but %.9g %s",
                                      (long long)t, (long long)j, x[j], y[j], how);
    }
    return KT_OK;
}

/* First, middle and last row by themselves, when the variant takes single rows and promises their bits. */
static kt_status check_rows_alone(const bench *whole, const bench *part, stage s, kt_err *err) {
    kt_problem one = *whole->run->problem;
    int64_t m = one.m, panels = panels_of(&one, s), rows[3] = {0, m / 2, m - 1};

    one.m = 1;
    if (m < 3 || !kt_variant_is_stable(whole->run->variant) ||
        kt_gate_accepts(whole->run->variant, &one, whole->run->config, NULL) != KT_OK)
        return KT_OK;
    preset_out(part);
    for (int i = 0; i < 3; i++) {
        run_rows(part, s, rows[i], 1, 0, panels, NULL);
        KT_TRY(check_same(whole, part, s, rows[i], 1, "as a row alone", err));
    }
    return KT_OK;
}

static kt_status check_stage(const bench *whole, const bench *part, stage s, kt_gate_sums *sums,
                             kt_err *err) {
    const kt_problem *q = whole->run->problem;
    const void *next = whole->inputs->packed.data;
    int64_t panels = panels_of(q, s);

    run_rows(whole, s, 0, q->m, 0, panels, NULL);
    KT_TRY(check_canaries(whole, err));
    KT_TRY(s == GATE_UP ? check_h(whole, sums, err) : check_out(whole, sums, err));
    for (int64_t p = panels - 1; p >= 0; p--) {
        run_rows(part, s, 0, q->m, p, p + 1, next);
        KT_TRY(check_canaries(part, err));
    }
    KT_TRY(check_same(whole, part, s, 0, q->m, "by single panels", err));
    preset_out(part);
    run_rows(part, s, 0, q->m, 0, panels / 2, NULL);
    run_rows(part, s, 0, q->m, panels / 2, panels, next);
    KT_TRY(check_same(whole, part, s, 0, q->m, "in halves", err));
    return check_rows_alone(whole, part, s, err);
}

/* Down with a bias for the h that is there; then the other endings of gate and up, with biases. They
 * know nothing of rows beyond the loop over them: some numbers of rows stand for all. */
static kt_status check_endings(bench *whole, int stages, kt_gate_sums *sums, kt_err *err) {
    const kt_problem *q = whole->run->problem;

    if (q->m % 4 != 1) return KT_OK;
    whole->has_bias = 1;
    if (stages > 1) {
        preset_out(whole);
        run_rows(whole, DOWN, 0, q->m, 0, panels_of(q, DOWN), NULL);
        KT_TRY(check_canaries(whole, err));
        KT_TRY(check_out(whole, sums, err));
    }
    for (int kind = KT_GLU_CLAMP_SILU; kind < KT_GLU_COUNT; kind++) {
        whole->glu = (kt_glu_rule){(kt_glu)kind, 1.25f, 1.702f};
        run_rows(whole, GATE_UP, 0, q->m, 0, panels_of(q, GATE_UP), NULL);
        KT_TRY(check_canaries(whole, err));
        KT_TRY(check_h(whole, sums, err));
    }
    return KT_OK;
}

/* The first `stages` of the two. */
static kt_status case_check(kt_moe_case *c, const kt_variant *v, const kt_config *config, int64_t m,
                            int stages, kt_gate_sums *sums, kt_err *err) {
    kt_gate_sums unused = {0};
    kt_problem q = c->problem;
    kt_gate_run run = {v, config, &q, c->seed, ""};
    bench whole = {0}, part = {0};
    kt_status st;

    if (m < 1 || m > c->problem.m)
        return kt_fail(err, KT_E_INVALID, "moe gate: %lld rows of a case of %lld", (long long)m,
                       (long long)c->problem.m);
    if (!sums) sums = &unused;
    q.m = m;
    KT_TRY(kt_gate_accepts(v, &q, config, err));
    KT_TRY(pack(c, &run, err));
    st = bench_init(&whole, &run, c, err);
    if (st == KT_OK) st = bench_init(&part, &run, c, err);
    if (st == KT_OK) st = check_stage(&whole, &part, GATE_UP, sums, err);
    if (st == KT_OK && stages > 1) st = check_stage(&whole, &part, DOWN, sums, err);
    if (st == KT_OK) st = check_endings(&whole, stages, sums, err);
    bench_deinit(&whole);
    bench_deinit(&part);
    return st;
}

kt_status kt_moe_case_check(kt_moe_case *c, const kt_variant *v, const kt_config *config, int64_t m,
                            kt_gate_sums *sums, kt_err *err) {
    KT_TRY(case_check(c, v, config, m, 2, sums, err));
    return c->spoilt ? case_check(c->spoilt, v, config, m, 1, sums, err) : KT_OK;
}

kt_status kt_moe_case_rows(kt_moe_case *c, const kt_variant *v, const kt_config *config, int64_t m,
                           float *out, kt_err *err) {
    kt_problem q = c->problem;
    kt_gate_run run = {v, config, &q, c->seed, ""};
    bench b = {0};
    kt_status st;

    if (m < 1 || m > c->problem.m)
        return kt_fail(err, KT_E_INVALID, "moe gate: %lld rows of a case of %lld", (long long)m,
                       (long long)c->problem.m);
    q.m = m;
    KT_TRY(kt_gate_accepts(v, &q, config, err));
    KT_TRY(pack(c, &run, err));
    st = bench_init(&b, &run, c, err);
    if (st == KT_OK) {
        run_rows(&b, GATE_UP, 0, m, 0, panels_of(&q, GATE_UP), NULL);
        run_rows(&b, DOWN, 0, m, 0, panels_of(&q, DOWN), NULL);
        for (int64_t i = 0; i < m; i++)
            memcpy(out + i * q.k,
                   (const float *)b.out.data + ((const int32_t *)c->rows.data)[i] * b.ldo,
                   (size_t)q.k * sizeof *out);
    }
    bench_deinit(&b);
    return st;
}

kt_status kt_moe_gate(const kt_variant *v, const kt_config *config, const kt_problem *q,
                      uint64_t seed, kt_gate_report *report, kt_err *err) {
    kt_gate_sums sums = {0};
    kt_moe_case *c;
    kt_status st;

    KT_TRY(kt_gate_accepts(v, q, config, err));
    KT_TRY(kt_moe_case_create(q, seed, &c, err));
    st = kt_moe_case_check(c, v, config, q->m, &sums, err);
    kt_moe_case_destroy(c);
    kt_gate_finish(&sums, report);
    return st;
}
