/* Deterministic engines: the same bits in any chunks and on any number of threads, with enough tokens that
 * experts have 64 rows and more, without a table and with one whose rows change the class of bits with m and
 * with the threads. Without the promise such a table does change bits: that is asserted too, or the rest
 * would test nothing. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "dispatch/registry/registry.h"
#include "dispatch/table/table.h"
#include "kernels/formats/format.h"
#include "runtime/exec/engine.h"
#include "runtime/model/model_plan.h"
#include "tests/support/amx_emulator.h"
#include "tests/support/random_model.h"
#include "tests/support/temp.h"

enum { TOKENS = 160 }; /* two of four experts each: 80 rows of an expert on average */
#define AMX (KT_ISA_AMXINT8 | KT_ISA_AMXBF16)

static const kt_model_shape shape = {.layers = 2,
                                     .hidden = 96,
                                     .vocab = 130,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 32,
                                     .experts = 4,
                                     .topk = 2,
                                     .expert_size = 64,
                                     .dense_size = 96,
                                     .dense_layer = 1,
                                     .is_normalised = 1,
                                     .dtype = KT_DTYPE_BF16};

/* --- a table that changes classes --- */

static kt_registry *registry_of(kt_isa isa) {
    kt_registry *r;
    cr_assert_eq(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, isa, &r, NULL),
                 KT_OK);
    return r;
}

/* The variant that rows prefer: stable, of the widest instruction set, with tiles only from 16 rows on. */
static const kt_variant *fast_one(const kt_registry *r, const kt_problem *q) {
    const kt_variant *best = NULL;

    for (size_t i = 0; i < kt_registry_count(r); i++) {
        const kt_variant *v = kt_registry_at(r, i);
        if (!kt_variant_is_stable(v) || kt_variant_accepts(v, q, NULL, NULL) != KT_OK) continue;
        if (v->isa & AMX && q->m < 16) continue;
        if (!best || v->isa > best->isa) best = v;
    }
    cr_assert(best);
    return best;
}

static void put_row(kt_table *t, const kt_problem *q, int threads, const kt_variant *winner,
                    const kt_variant *second) {
    kt_table_row r = {.problem = *q,
                      .threads = threads,
                      .version = winner->version,
                      .time_ns = 1000.0 * (double)q->m,
                      .ci_low = 1,
                      .ci_high = 1,
                      .rounds = 8,
                      .default_ns = 1500.0 * (double)q->m,
                      .status = "tuned"};
    const kt_config initial = kt_config_initial(winner), other = kt_config_initial(second);
    kt_err err = {KT_OK, ""};

    snprintf(r.variant, sizeof r.variant, "%s", winner->name);
    kt_config_format(winner, &initial, r.config, sizeof r.config);
    snprintf(r.default_variant, sizeof r.default_variant, "%s", second->name);
    kt_config_format(second, &other, r.default_config, sizeof r.default_config);
    cr_assert_eq(kt_table_put(t, &r, &err), KT_OK, "%s", err.message);
}

/* For a matrix on one, two and three threads: plain C and the fast variant take turns with m and threads. With
 * the format's own encoding, whose steps are no powers of two: coarser ones hide a last bit again. */
static void put_matrix(kt_table *t, const kt_registry *r, kt_problem q) {
    const kt_variant *plain =
        kt_registry_find(r, q.op == KT_OP_GEMM ? "any_any_p64__scalar" : "any_any_moe64__scalar");

    q.acts = kt_format_find(q.weights)->acts;
    cr_assert(plain);
    for (int i = 0; i < kt_m_bucket_count && kt_m_buckets[i] <= 256; i++)
        for (int threads = 1; threads <= 3; threads++) {
            const kt_variant *fast;
            q.m = kt_m_buckets[i];
            fast = fast_one(r, &q);
            if ((i + threads) % 3)
                put_row(t, &q, threads, fast, plain);
            else
                put_row(t, &q, threads, plain, fast);
        }
}

static void write_table(const char *path, kt_quant weights, kt_isa isa) {
    const int64_t width = shape.heads * shape.head_dim;
    kt_registry *r = registry_of(isa);
    kt_weight_format dense = weights == KT_QUANT_BF16 ? KT_W_BF16 : KT_W_INT8_CHANNEL;
    kt_weight_format expert = weights == KT_QUANT_INT4 ? KT_W_INT4_G32 : dense;
    kt_topology topology;
    kt_table *t;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_topology_probe(&topology, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_table_create(&t, &err), KT_OK);
    kt_fingerprint_make(&topology, NULL, &t->fingerprint);
    snprintf(t->workload, sizeof t->workload, "random");
    put_matrix(t, r,
               (kt_problem){.op = KT_OP_GEMM,
                            .weights = dense,
                            .n = width + 2 * shape.kv_heads * shape.head_dim,
                            .k = shape.hidden});
    put_matrix(t, r,
               (kt_problem){.op = KT_OP_GEMM, .weights = dense, .n = shape.hidden, .k = width});
    put_matrix(t, r,
               (kt_problem){.op = KT_OP_MOE_FFN,
                            .weights = expert,
                            .n = shape.expert_size,
                            .k = shape.hidden,
                            .experts = shape.experts,
                            .topk = shape.topk});
    cr_assert_eq(kt_table_save(t, path, &err), KT_OK, "%s", err.message);
    kt_table_destroy(t);
    kt_registry_destroy(r);
}

/* --- engines --- */

static float *logits_of(kt_engine_options o, int threads, int64_t chunk) {
    float *logits = calloc((size_t)(TOKENS * shape.vocab), sizeof *logits);
    int32_t tokens[TOKENS];
    kt_sequence *s;
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    for (int i = 0; i < TOKENS; i++) tokens[i] = (int32_t)((97 * i * i + 31 * i + 5) % shape.vocab);
    o.n_threads = threads;
    o.max_chunk = chunk; /* as --prefill-chunk: the plan is made for so many rows */
    o.tokenizer_optional = true;
    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_sequence_create(e, TOKENS, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, tokens, TOKENS, TOKENS, logits, NULL, NULL, NULL, &err),
                 KT_OK, "%s", err.message);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
    return logits;
}

static const struct {
    int threads;
    int64_t chunk;
} ways[] = {{2, TOKENS}, {1, TOKENS}, {3, TOKENS}, {2, 100}, {1, 17}, {2, 1}};
enum { N_WAYS = sizeof ways / sizeof *ways };

/* In how many ways do the bits differ from the first one's? */
static int ways_that_differ(const kt_engine_options *o) {
    const size_t bytes = (size_t)(TOKENS * shape.vocab) * sizeof(float);
    float *first = logits_of(*o, ways[0].threads, ways[0].chunk);
    int n = 0;

    for (int i = 1; i < N_WAYS; i++) {
        float *again = logits_of(*o, ways[i].threads, ways[i].chunk);
        const int differs = memcmp(again, first, bytes) != 0;
        if (differs)
            cr_log_info("weights %d%s: %d threads in chunks of %d differ", (int)o->weights,
                        o->deterministic ? ", deterministic" : "", ways[i].threads,
                        (int)ways[i].chunk);
        n += differs;
        free(again);
    }
    free(first);
    return n;
}

static void check(kt_quant weights, kt_isa isa) {
    char folder[PATH_MAX], path[PATH_MAX + 32];
    kt_engine_options o = {.weights = weights, .isa = isa};

    kt_temp_make(folder, sizeof folder);
    kt_random_model(&shape, 5, folder);
    snprintf(path, sizeof path, "%s/table.json", folder);
    write_table(path, weights, isa ? isa : kt_isa_available());
    o.model_dir = folder;
    for (int has_table = 0; has_table < 2; has_table++) {
        o.table_path = has_table ? path : "";
        o.exact_acts = has_table;
        o.deterministic = true;
        cr_expect_eq(ways_that_differ(&o), 0, "weights %d, %s table", (int)weights,
                     has_table ? "with a" : "no");
        o.deterministic = false;
        if (has_table)
            cr_expect_gt(ways_that_differ(&o), 0,
                         "weights %d: the table changes no bit, so it tests nothing", (int)weights);
    }
    kt_temp_remove(folder);
}

Test(deterministic, bf16, .timeout = 120) {
    if (!(kt_isa_available() & KT_ISA_AVX512BF16))
        cr_skip_test("plain C and FMA give the same bits of BF16: no two classes here");
    check(KT_QUANT_BF16, 0);
}

Test(deterministic, int8, .timeout = 120) {
    check(KT_QUANT_INT8, 0);
}

Test(deterministic, int4, .timeout = 120) {
    check(KT_QUANT_INT4, 0);
}

/* Without a table too: from 64 rows of an expert on INT4 is rounded once more (AVX-512 VNNI), one class of
 * which each chunk takes its own part. */
Test(deterministic, int4_differs_by_default_from_64_rows_on, .timeout = 120) {
    char folder[PATH_MAX];
    kt_engine_options o = {.weights = KT_QUANT_INT4, .table_path = ""};

    if (!(kt_isa_available() & KT_ISA_AVX512VNNI)) cr_skip_test("needs AVX-512 VNNI");
    kt_temp_make(folder, sizeof folder);
    kt_random_model(&shape, 5, folder);
    o.model_dir = folder;
    cr_expect_gt(ways_that_differ(&o), 0);
    kt_temp_remove(folder);
}

/* A table of attention alone: one row by plain C, many by the fast variant. */
static void write_attn_table(const char *path) {
    kt_registry *r = registry_of(kt_isa_available());
    const kt_variant *plain = kt_registry_find(r, "bf16_online__scalar"), *fast;
    kt_topology topology;
    kt_problem q = {.op = KT_OP_ATTN,
                    .weights = KT_W_BF16,
                    .n = shape.heads,
                    .k = shape.head_dim,
                    .kv_heads = shape.kv_heads,
                    .context = 2048};
    kt_table *t;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_topology_probe(&topology, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_table_create(&t, &err), KT_OK);
    kt_fingerprint_make(&topology, NULL, &t->fingerprint);
    snprintf(t->workload, sizeof t->workload, "random");
    fast = fast_one(r, &q);
    for (int threads = 1; threads <= 3; threads++) {
        q.m = 1;
        put_row(t, &q, threads, plain, fast);
        q.m = 64;
        put_row(t, &q, threads, fast, plain);
    }
    cr_assert_eq(kt_table_save(t, path, &err), KT_OK, "%s", err.message);
    kt_table_destroy(t);
    kt_registry_destroy(r);
}

/* Chunks of one row take the row of the table for one: other bits, unless these are promised. */
Test(deterministic, attention_takes_rows_of_the_table, .timeout = 120) {
    char folder[PATH_MAX], path[PATH_MAX + 32];
    kt_engine_options o = {.weights = KT_QUANT_BF16, .model_dir = folder, .table_path = path};

    if (!(kt_isa_available() & KT_ISA_AVX2)) cr_skip_test("plain C is all there is");
    kt_temp_make(folder, sizeof folder);
    kt_random_model(&shape, 5, folder);
    snprintf(path, sizeof path, "%s/table.json", folder);
    write_attn_table(path);
    cr_expect_gt(ways_that_differ(&o), 0, "the table's rows of attention run nothing");
    o.deterministic = true;
    cr_expect_eq(ways_that_differ(&o), 0);
    kt_temp_remove(folder);
}

/* Tiles, by the emulator where there are none. */
static void check_tiles(kt_quant weights) {
    kt_err err = {KT_OK, ""};

    if (!(kt_isa_available() & KT_ISA_AVX512VBMI))
        cr_skip_test("tiles are used together with AVX-512 VBMI");
    if (kt_amx_start(&err) != KT_OK) cr_skip_test("%s", err.message);
    check(weights, kt_isa_available() | AMX);
    cr_expect_gt(kt_amx_executed(), 0, "no tile instruction ran");
}

Test(deterministic, bf16_with_tiles, .timeout = 240) {
    check_tiles(KT_QUANT_BF16);
}

Test(deterministic, int8_with_tiles, .timeout = 240) {
    check_tiles(KT_QUANT_INT8);
}

Test(deterministic, int4_with_tiles, .timeout = 240) {
    check_tiles(KT_QUANT_INT4);
}
