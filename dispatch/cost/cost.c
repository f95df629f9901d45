/* Roofline: the larger of the time to read and the time to multiply.
 * SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/cost/cost.h"

#include <stdbool.h>

#include "kernels/attn/attn_common.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/format.h"
#include "kernels/formats/p64_spec.h"

/* Used where nothing was measured; on the slow side for every machine that has the ISA, so that an
 * estimate does not promise more than the machine holds. Stream: one DDR4 channel. Scalar: one
 * multiply-add per cycle at 2 GHz. Peaks: the multiply-add of 2 operations once per cycle at 2 GHz,
 * except for two that were measured to be slower beside it (Granite Rapids, kttune probe):
 * VDPBF16PS does an eighth of VPDPBUSD's work there (on Zen 4 half of it), so without a measurement
 * it is never preferred to FMA; and tiles with real data do 5.8 (TDPBUSD) and 2.9 times (TDPBF16PS)
 * VPDPBUSD's. */
static const double fallback_stream_gbs_1t = 10, fallback_stream_gbs_all = 20;
static const double fallback_scalar_gops = 4;
static const double fallback_peak_gops[KT_ISA_COUNT] = {
    32,   /* avx2: 8 f32 */
    128,  /* avxvnni: 32 int8 */
    64,   /* avx512: 16 f32 */
    256,  /* avx512vnni: 64 int8 */
    32,   /* avx512bf16: 112 of 894 */
    256,  /* avx512vbmi: multiplies with avx512vnni */
    128,  /* avx512fp16: 32 f16 */
    1500, /* amxint8: 5220 of 894 */
    730,  /* amxbf16: 2556 of 894 */
};

/* Plain bytes of one matrix; formats that only we compute with are float. */
static double matrix_bytes(kt_weight_format id, int64_t n, int64_t k) {
    const kt_format *format = kt_format_find(id);
    size_t data = 0, scales = 0;

    if (!format) return (id == KT_W_NONE ? 0.0 : 4.0) * (double)n * (double)k;
    format->plain_bytes(n, k, &data, &scales);
    return (double)data + (double)scales;
}

int64_t kt_problem_keys(const kt_problem *p) {
    return p->window > 0 && p->window < p->context ? p->window : p->context;
}

/* The cache is what is streamed: keys, and values unless they are the beginning of keys. The rows
 * are the last ones of the context, each sees one key more than the one before it. */
static void attn_work(const kt_problem *p, double *bytes, double *operations) {
    const kt_weight_format cache = p->weights == KT_W_NONE ? KT_W_BF16 : p->weights;
    const int64_t keys = kt_problem_keys(p), v = kt_attn_value_size(p);
    const double m = (double)p->m;
    double met = m * (double)keys;

    if (keys == p->context && p->m <= keys) met -= m * (m - 1) / 2;
    *bytes = matrix_bytes(cache, keys * p->kv_heads, p->k);
    if (!kt_attn_is_latent(p)) *bytes += matrix_bytes(cache, keys * p->kv_heads, v);
    *operations = 2 * (double)p->n * (double)(p->k + v) * met;
}

void kt_problem_work(const kt_problem *p, double *weight_bytes, double *operations) {
    double m = (double)p->m, n = (double)p->n, k = (double)p->k;
    double bytes = 0, operations_done = 0;

    switch (p->op) {
    case KT_OP_MOE_FFN:
        bytes = 2 * matrix_bytes(p->weights, p->n, p->k) +
                matrix_bytes(p->down == KT_W_NONE ? p->weights : p->down, p->k, p->n);
        operations_done = 6 * m * n * k;
        break;
    case KT_OP_GEMM:
    case KT_OP_ROUTER:
        bytes = matrix_bytes(p->weights, p->n, p->k);
        operations_done = 2 * m * n * k;
        break;
    case KT_OP_ATTN: attn_work(p, &bytes, &operations_done); break;
    case KT_OP_NORM: /* f32 rows in and out; square, sum, two products */
        bytes = 8 * m * k;
        operations_done = 4 * m * k;
        break;
    case KT_OP_ROPE: /* each pair: four products, two sums */
        bytes = 8 * m * n * k;
        operations_done = 3 * m * n * k;
        break;
    case KT_OP_ENCODE: /* magnitude, product, rounding, sum */
        bytes = 4 * m * k + m * (double)kt_act_row_bytes(p->acts, p->k);
        operations_done = 4 * m * k;
        break;
    case KT_OP_CONV: /* f32 rows in and out, taps, and k - 1 inputs read and written */
        bytes = 8 * m * n + 4 * n * (3 * k - 2);
        operations_done = 2 * m * n * k;
        break;
    case KT_OP_DELTA: /* the state in and out; per row decay, read-out, update and output */
        bytes = 8 * n * k * (double)p->v;
        operations_done = 7 * m * n * k * (double)p->v;
        break;
    case KT_OP_INDEX: /* a BF16 key of each token */
        bytes = 2 * k * (double)p->context;
        operations_done = 2 * m * n * k * (double)p->context;
        break;
    case KT_OP_PROBE:
    case KT_OP_COUNT: break;
    }
    *weight_bytes = bytes;
    *operations = operations_done;
}

/* One core streams at most its own rate, all together at most what the memory gives. */
double kt_stream_gbs(const kt_ceilings *c, int threads) {
    double one = c->stream_gbs_1t > 0 ? c->stream_gbs_1t : fallback_stream_gbs_1t;
    double all = c->stream_gbs_all > 0 ? c->stream_gbs_all : fallback_stream_gbs_all;
    double together = one * threads;

    if (all < one) all = one;
    return together < all ? together : all;
}

/* The best MAC instruction among the ISA steps the variant names. VBMI beside another step is
 * there for its shuffles: what multiplies is the other's. */
double kt_peak_gops(kt_isa isa, const kt_ceilings *c) {
    double best = 0;

    if (isa & ~KT_ISA_AVX512VBMI) isa &= ~KT_ISA_AVX512VBMI;
    for (int bit = 0; bit < KT_ISA_COUNT; bit++) {
        double peak = c->peak_gops[bit] > 0 ? c->peak_gops[bit] : fallback_peak_gops[bit];
        if ((isa >> bit & 1) && peak > best) best = peak;
    }
    if (best > 0) return best;
    return c->peak_scalar_gops > 0 ? c->peak_scalar_gops : fallback_scalar_gops;
}

static bool is_matrix(const kt_problem *p) {
    return p->op == KT_OP_GEMM || p->op == KT_OP_MOE_FFN;
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

/* Bytes multiplied without VNNI: by VPMADDUBSW or VPMADDWD, and additions. What libraries (usable)
 * multiply with is theirs. */
static bool adds_words(const kt_variant *v) {
    const uint32_t bytes = 1u << KT_A_INT8_G32 | 1u << KT_A_INT8_G16P2;

    return (v->op == KT_OP_GEMM || v->op == KT_OP_MOE_FFN) && !v->usable && v->acts &&
           !(v->acts & ~bytes) && (v->isa == KT_ISA_AVX2 || v->isa == KT_ISA_AVX512);
}

/* The peaks of AVX2 and AVX-512 are those of FMA. VPMADDUBSW with its addition does three times
 * as much by 32 bytes (kttune probe, one core: Zen 3 102 and 300 Gop/s, Zen 4 118 and 356), by 64
 * at least twice: on Intel products and additions have the same two ports. */
double kt_variant_gops(const kt_variant *v, const kt_ceilings *c) {
    const double times = !adds_words(v) ? 1 : v->isa == KT_ISA_AVX2 ? 3 : 2;

    return kt_peak_gops(v->isa, c) * times;
}

static double read_ns(double bytes, const kt_ceilings *c, int threads) {
    return bytes / kt_stream_gbs(c, threads); /* 1 GB/s is one byte per ns */
}

/* --- tiles --- */

#define TILES (KT_ISA_AMXINT8 | KT_ISA_AMXBF16)
#define TILE_ROWS 16

/* Rows that tiles multiply for so many: a product takes as long with one row of activations as with
 * 16. */
static double tile_rows(int64_t m) {
    return (double)((m + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS);
}

/* Products per product of the problem: exact ones per group of 32 go half as deep as tiles do; INT8
 * activations in two planes, and halves as two bfloat16, multiply twice. */
static double tile_products(kt_numerics numerics) {
    const bool is_single = numerics == KT_NUM_BF16_F32 || numerics == KT_NUM_OPENED;
    return is_single || numerics == KT_NUM_ACTS8 ? 1 : 2;
}

double kt_cost_ns(const kt_problem *p, const kt_variant *v, const kt_ceilings *c, int threads) {
    double bytes, operations;

    if (threads < 1) threads = 1;
    kt_problem_work(p, &bytes, &operations);
    if (v->isa & TILES && is_matrix(p) && p->m > 0)
        operations *= tile_rows(p->m) / (double)p->m * tile_products(v->numerics);
    return larger(read_ns(bytes, c, threads), operations / (kt_variant_gops(v, c) * threads));
}

/* --- what to expect --- */

/* What today's kernels have of a peak, and what they do once for all rows (opening weights), in
 * rows. */
typedef struct habit {
    double share, opening_rows;
} habit;

/* Fitted to one core of Granite Rapids with `kttune bench` (experts 2048 x 768, cold, 1 to 512 rows
 * per expert; peaks 249 FMA, 996 VPDPBUSD, 6792 TDPBUSD, 3351 TDPBF16PS Gop/s). Vectors: BF16 149
 * Gop/s at 64 rows and 45 at 4; INT4 498 and 285 at 8, INT8 547 and 170. Tiles in Gop/s at 16, 32
 * and 128 rows: */
static habit tiles_habit(const kt_problem *p, kt_numerics numerics) {
    const bool is_float = p->acts == KT_A_BF16 || p->acts == KT_A_F32;
    const kt_p64_spec spec = kt_p64_spec_of(p->weights);

    switch (numerics) {
    case KT_NUM_EXACT_INT32: return (habit){0.084, 9}; /* INT4 358, 503, 547 */
    case KT_NUM_REQUANT:
    case KT_NUM_ACTS16: return (habit){0.118, 16}; /* two planes: 241, 452, 695 */
    case KT_NUM_F32: return (habit){0.114, 31};    /* halves, twice BF16's products: unmeasured */
    case KT_NUM_OPENED: break;
    case KT_NUM_ACTS8:
    case KT_NUM_BF16_F32:
        if (p->weights != KT_W_BF16) return (habit){0.19, 33}; /* FP8 218, 370, 524 */
        return (habit){0.27, 48}; /* 217, 336, 597; dense 224, 346, 705 */
    }
    if (p->weights == KT_W_BF16) /* copied: 204, 366, 772; dense 187, 321, 673 */
        return p->op == KT_OP_GEMM ? (habit){0.24, 60} : (habit){0.38, 83};
    if (is_float) return (habit){0.5, 104};                         /* FP8 311, 553, 1163 */
    if (spec.scale == KT_P64_IQ1) return (habit){0.28, 131};        /* 106, 191, 471 */
    if (spec.grid) return (habit){0.34, 48};                        /* IQ3_S 243, 333, 715 */
    return (habit){0.5, 16 + 5 * kt_format_find(p->weights)->bits}; /* INT4 536, 835, 1328;
                                                                     * INT8 380, 632, 1184 */
}

/* Vectors that multiply integers spend longer on few rows of wider codes. AVX2 on one core of Zen
 * 3, Gop/s at 128 rows: INT4 176, Q4_K 157, INT8 112, Q6_K 103. With one row all are faster than
 * this says, AVX2 (INT4 147) no less than the others: it must not look better than VNNI there. */
static habit habit_of(const kt_problem *p, const kt_variant *v) {
    const kt_format *format = kt_format_find(p->weights);

    if (v->isa & TILES) return tiles_habit(p, v->numerics);
    if (p->acts == KT_A_BF16 || p->acts == KT_A_F32) return (habit){0.58, 7};
    if (adds_words(v) && v->isa == KT_ISA_AVX2)
        return format && format->bits > 5 ? (habit){0.35, 5} : (habit){0.55, 4};
    return (habit){0.45, format && format->bits > 6 ? 8 : 4};
}

/* Attention, in queries that meet each key: what they share is that keys are turned round and
 * 8-bit ones widened. Fitted with 32 heads over 4 of 128, 8 and 4096 queries to a key. Granite
 * Rapids, in Gop/s: FMA 80 and 151, VDPBF16PS 72 and 100, VPDPBUSD 137 and 301, tiles 79 and 455
 * (352 at 64); Zen 4: FMA 92, VDPBF16PS 189, VPDPBUSD 277. Zen 3 with 8, 64 and 512: FMA 65, 67
 * and 69 of BF16, 51, 57 and 60 of 8-bit caches; VPMADDWD 50, 86 and 93 of BF16, 82, 96 and 99 of
 * INT8, where the peak, that of FMA, is 103. VPDPWSSD on Zen 5, where VPDPBUSD has 554, does half
 * of it: with 8 and 512 queries 138 and 186 of INT8, with 512 183 of BF16. Of BF16 with few it is
 * unmeasured, and low here, so that decode stays with FMA. */
static habit attention_habit(const kt_problem *p, const kt_variant *v) {
    const bool is_wide = !kt_attn_has_scales(p->weights), has_words = v->numerics == KT_NUM_ACTS16;

    if (v->isa & TILES) return (habit){0.14, 32};
    if (v->numerics == KT_NUM_ACTS8) return (habit){0.55, 8};
    if (v->numerics == KT_NUM_BF16_F32) return (habit){0.8, 4};
    if (v->isa == KT_ISA_AVX2 && has_words) return is_wide ? (habit){0.93, 7} : (habit){0.97, 2};
    if (v->isa == KT_ISA_AVX2) return is_wide ? (habit){0.67, 0.5} : (habit){0.6, 1.7};
    if (has_words) return is_wide ? (habit){0.3, 10} : (habit){0.43, 4};
    return (habit){0.7, 7};
}

static double attention_ns(const kt_problem *p, const kt_variant *v, const kt_ceilings *c,
                           int threads, double operations) {
    const double queries = (double)p->m * (double)p->n / (double)p->kv_heads;
    const habit h = attention_habit(p, v);

    return operations / queries * (queries + h.opening_rows) /
           (h.share * kt_peak_gops(v->isa, c) * threads);
}

/* Without a measurement of all cores together each is taken to have its own rate. What reads
 * slower than that costs every variant alike; taking memory for slower than it is hides what
 * tiles cost with one row, and decode would go to them. */
static double expected_read_ns(double bytes, const kt_ceilings *c, int threads) {
    kt_ceilings all = *c;
    if (all.stream_gbs_all <= 0)
        all.stream_gbs_all = threads * larger(all.stream_gbs_1t, fallback_stream_gbs_1t);
    return read_ns(bytes, &all, threads);
}

double kt_cost_expected_ns(const kt_problem *p, const kt_variant *v, const kt_ceilings *c,
                           int threads) {
    double bytes, operations, rows, multiply_ns;
    habit h;

    if (threads < 1) threads = 1;
    kt_problem_work(p, &bytes, &operations);
    if (p->op == KT_OP_ATTN && p->m > 0 && p->kv_heads > 0)
        return larger(expected_read_ns(bytes, c, threads),
                      attention_ns(p, v, c, threads, operations));
    if (!is_matrix(p) || p->m < 1) return kt_cost_ns(p, v, c, threads);
    h = habit_of(p, v);
    rows = v->isa & TILES ? tile_rows(p->m) : (double)p->m;
    multiply_ns = operations / (double)p->m * (rows + h.opening_rows) /
                  (h.share * kt_variant_gops(v, c) * threads);
    return larger(expected_read_ns(bytes, c, threads), multiply_ns);
}

const char *kt_cost_excess(const kt_problem *p, const kt_variant *v, const kt_ceilings *c,
                           int threads, double time_ns) {
    double bytes, operations;

    if (kt_cost_ns(p, v, c, threads) <= time_ns) return "";
    kt_problem_work(p, &bytes, &operations);
    if (read_ns(bytes, c, threads < 1 ? 1 : threads) > time_ns)
        return " (over 100: weights came from a cache)";
    return " (over 100: the peak was measured at a lower clock)";
}
