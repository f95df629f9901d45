/* Attention variants against the double reference; how work is cut does not change a bit.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/numeric.h"
#include "base/rng.h"
#include "kernels/attn/attn_common.h"
#include "kernels/attn/attn_gate.h"
#include "tests/kernels/variants_of.h"
#include "tests/support/guard.h"

static kt_config config_at(const kt_variant *v, int i) {
    kt_config c = {{0}};
    for (int p = 0; p < v->n_params; p++) c.value[p] = v->params[p].values[i];
    return c;
}

ParameterizedTestParameters(attn, every_variant_is_within_its_bound) {
    return kt_variants_of(KT_OP_ATTN);
}

ParameterizedTest(size_t *index, attn, every_variant_is_within_its_bound) {
    /* rows, heads, kv heads, head size, context */
    static const int64_t shapes[][5] = {
        {1, 1, 1, 16, 1},    {1, 4, 1, 32, 63},   {1, 8, 1, 128, 64},  {2, 3, 1, 48, 65},
        {5, 7, 7, 64, 70},   {9, 6, 2, 80, 131},  {67, 4, 1, 32, 200}, {3, 16, 2, 256, 257},
        {40, 8, 1, 128, 90}, {1, 5, 1, 32, 1024}, {4, 5, 1, 32, 1026}, {1, 8, 1, 64, 2500},
        {3, 2, 2, 16, 3100}, {5, 3, 1, 37, 90},   {1, 2, 1, 1, 66}};
    const kt_variant *v = kt_builtin_variants[*index];
    kt_err err;

    KT_SKIP_WITHOUT_ISA(v);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int c = 0; c < v->params[0].count; c++) {
            const int64_t *s = shapes[i];
            kt_config config = config_at(v, c);
            kt_problem p = {.op = KT_OP_ATTN,
                            .m = s[0],
                            .n = s[1],
                            .kv_heads = s[2],
                            .k = s[3],
                            .context = s[4]};
            if (s[3] % 16 != 0 && v->accepts(&p, &config, NULL) == KT_E_UNSUPPORTED) continue;
            for (uint64_t seed = 1; seed <= 2; seed++)
                cr_assert(kt_attn_gate(v, &config, &p, seed, NULL, &err) == KT_OK, "queries=%d: %s",
                          config.value[0], err.message);
        }
}

/* q, cache and result of one problem, ending at inaccessible pages. */
typedef struct fixture {
    kt_problem p;
    kt_config config;
    float *q, *out;
    uint16_t *k, *v;
    int32_t *position;
    void *scratch;
} fixture;

static fixture fixture_make(const kt_variant *v, kt_problem p) {
    fixture f = {.p = p, .config = config_at(v, 0)};
    size_t cache = (size_t)(p.context * p.k) * sizeof *f.k,
           width = (size_t)(p.n * p.k) * sizeof *f.q;
    kt_rng rng;

    f.q = kt_guard_alloc((size_t)p.m * width, 4, 0);
    f.out = kt_guard_alloc((size_t)p.m * width, 4, 0x11);
    f.k = kt_guard_alloc(cache, 2, 0);
    f.v = kt_guard_alloc(cache, 2, 0);
    f.position = kt_guard_alloc((size_t)p.m * sizeof *f.position, 4, 0);
    f.scratch = kt_guard_alloc(v->workspace_bytes(&p, &f.config), 64, 0xff);
    kt_rng_seed(&rng, 7);
    for (int64_t i = 0; i < p.m * p.n * p.k; i++) f.q[i] = kt_rng_normal(&rng);
    for (int64_t i = 0; i < p.context * p.k; i++) {
        f.k[i] = kt_f32_to_bf16(kt_rng_normal(&rng));
        f.v[i] = kt_f32_to_bf16(kt_rng_normal(&rng));
    }
    for (int64_t r = 0; r < p.m; r++) f.position[r] = (int32_t)(p.context - p.m + r);
    return f;
}

static void fixture_free(fixture *f) {
    kt_guard_free(f->q);
    kt_guard_free(f->out);
    kt_guard_free(f->k);
    kt_guard_free(f->v);
    kt_guard_free(f->position);
    kt_guard_free(f->scratch);
}

static kt_attn_call fixture_call(const fixture *f) {
    return (kt_attn_call){.problem = &f->p,
                          .config = &f->config,
                          .q = f->q,
                          .ldq = f->p.n * f->p.k,
                          .k = f->k,
                          .v = f->v,
                          .ldkv = f->p.k,
                          .scale = 0.2f,
                          .position = f->position,
                          .row_begin = 0,
                          .row_end = f->p.m,
                          .out = f->out,
                          .ldo = f->p.n * f->p.k,
                          .scratch = f->scratch};
}

ParameterizedTestParameters(attn, rows_in_any_grouping_give_the_same_bits) {
    return kt_variants_of(KT_OP_ATTN);
}

ParameterizedTest(size_t *index, attn, rows_in_any_grouping_give_the_same_bits) {
    const kt_variant *v = kt_builtin_variants[*index];
    kt_problem p = {.op = KT_OP_ATTN, .m = 150, .n = 3, .kv_heads = 1, .k = 48, .context = 150};
    size_t bytes = (size_t)(p.m * p.n * p.k) * sizeof(float);
    float *want = malloc(bytes);

    KT_SKIP_WITHOUT_ISA(v);
    for (int c = 0; c < v->params[0].count; c++) {
        fixture f = fixture_make(v, p);
        kt_guard_free(f.scratch);
        f.config = config_at(v, c);
        f.scratch = kt_guard_alloc(v->workspace_bytes(&p, &f.config), 64, 0xff);
        for (int64_t step = 1; step <= p.m; step = step * 3 + 1) {
            memset(f.out, 0, bytes);
            for (int64_t row = 0; row < p.m; row += step) {
                kt_attn_call call = fixture_call(&f);
                call.row_begin = row;
                call.row_end = row + step < p.m ? row + step : p.m;
                v->attn(&call);
            }
            if (c == 0 && step == 1) memcpy(want, f.out, bytes);
            cr_assert(memcmp(want, f.out, bytes) == 0, "%s: %lld rows at a time, queries=%d",
                      v->name, (long long)step, f.config.value[0]);
        }
        fixture_free(&f);
    }
    free(want);
}

ParameterizedTestParameters(attn, reads_no_key_past_the_position_and_stays_inside) {
    return kt_variants_of(KT_OP_ATTN);
}

ParameterizedTest(size_t *index, attn, reads_no_key_past_the_position_and_stays_inside) {
    const kt_variant *v = kt_builtin_variants[*index];

    KT_SKIP_WITHOUT_ISA(v);
    for (int64_t context = 1; context <= 140; context += 3)
        for (int64_t d = 16; d <= 112; d += 32) {
            kt_problem p = {.op = KT_OP_ATTN,
                            .m = context < 3 ? 1 : 3,
                            .n = 5,
                            .kv_heads = 1,
                            .k = d,
                            .context = context};
            fixture f = fixture_make(v, p);
            float canary = f.out[0];
            kt_attn_call call = fixture_call(&f);
            call.row_begin = p.m - 1;
            v->attn(&call);
            for (int64_t i = 0; i < p.m * p.n * d; i++)
                cr_assert((f.out[i] == canary) == (i < (p.m - 1) * p.n * d),
                          "%s: d=%lld index %lld", v->name, (long long)d, (long long)i);
            fixture_free(&f);
        }
}

static void write_one_value(const kt_attn_call *call) {
    int64_t width = call->ldo;
    for (int64_t r = call->row_begin; r < call->row_end; r++)
        for (int64_t i = 0; i < width; i++) call->out[r * width + i] = kt_bf16_to_f32(call->v[0]);
}

Test(attn, the_gate_rejects_a_wrong_kernel) {
    kt_problem p = {.op = KT_OP_ATTN, .m = 2, .n = 2, .kv_heads = 1, .k = 32, .context = 80};
    kt_config config = {{16}};
    kt_variant wrong = *kt_builtin_variants[0];
    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (!strcmp(kt_builtin_variants[i]->name, "bf16_online__scalar"))
            wrong = *kt_builtin_variants[i];
    cr_assert_eq(kt_attn_gate(&wrong, &config, &p, 2, NULL, NULL), KT_OK);
    wrong.attn = write_one_value;
    cr_assert_eq(kt_attn_gate(&wrong, &config, &p, 2, NULL, NULL), KT_E_MISMATCH);
}
