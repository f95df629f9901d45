/* Roofline: the larger of the time to read and the time to multiply. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/cost/cost.h"

#include "kernels/formats/acts.h"
#include "kernels/formats/format.h"

/* Used where nothing was measured; on the slow side for every machine that has the ISA, so that an
 * estimate does not promise more than the machine holds. Peaks: the MAC instruction once per cycle
 * at 2 GHz; scalar: one multiply-add per cycle. Stream: one DDR4 channel. */
static const double fallback_stream_gbs_1t = 10, fallback_stream_gbs_all = 20;
static const double fallback_scalar_gops = 4;
static const double fallback_peak_gops[KT_ISA_COUNT] = {
    32,   /* avx2: 8 f32 */
    128,  /* avxvnni: 32 int8 */
    64,   /* avx512: 16 f32 */
    256,  /* avx512vnni: 64 int8 */
    128,  /* avx512bf16: 32 bf16 */
    256,  /* avx512vbmi: multiplies with avx512vnni */
    128,  /* avx512fp16: 32 f16 */
    4096, /* amxint8: 16 x 16 x 64 int8 in 16 cycles */
    2048, /* amxbf16: half of it */
};

/* Plain bytes of one matrix; formats that only we compute with are float. */
static double matrix_bytes(kt_weight_format id, int64_t n, int64_t k) {
    const kt_format *format = kt_format_find(id);
    size_t data = 0, scales = 0;

    if (!format) return (id == KT_W_NONE ? 0.0 : 4.0) * (double)n * (double)k;
    format->plain_bytes(n, k, &data, &scales);
    return (double)data + (double)scales;
}

void kt_problem_work(const kt_problem *p, double *weight_bytes, double *operations) {
    double m = (double)p->m, n = (double)p->n, k = (double)p->k;
    double bytes = 0, operations_done = 0;

    switch (p->op) {
    case KT_OP_MOE_FFN:
        bytes = 2 * matrix_bytes(p->weights, p->n, p->k) + matrix_bytes(p->weights, p->k, p->n);
        operations_done = 6 * m * n * k;
        break;
    case KT_OP_GEMM:
    case KT_OP_ROUTER:
        bytes = matrix_bytes(p->weights, p->n, p->k);
        operations_done = 2 * m * n * k;
        break;
    case KT_OP_ATTN: /* the cache is what is streamed: keys and values */
        bytes = 2 * matrix_bytes(p->weights == KT_W_NONE ? KT_W_BF16 : p->weights,
                                 p->context * p->kv_heads, p->k);
        operations_done = 4 * m * n * k * (double)p->context;
        break;
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
    case KT_OP_PROBE:
    case KT_OP_COUNT: break;
    }
    *weight_bytes = bytes;
    *operations = operations_done;
}

/* One core streams at most its own rate, all together at most what the memory gives. */
static double stream_gbs(const kt_ceilings *c, int threads) {
    double one = c->stream_gbs_1t > 0 ? c->stream_gbs_1t : fallback_stream_gbs_1t;
    double all = c->stream_gbs_all > 0 ? c->stream_gbs_all : fallback_stream_gbs_all;
    double together = one * threads;

    if (all < one) all = one;
    return together < all ? together : all;
}

/* The best MAC instruction among the ISA steps the variant names. VBMI beside another step is there for its
 * shuffles: what multiplies is the other's. */
static double peak_gops(kt_isa isa, const kt_ceilings *c) {
    double best = 0;

    if (isa & ~KT_ISA_AVX512VBMI) isa &= ~KT_ISA_AVX512VBMI;
    for (int bit = 0; bit < KT_ISA_COUNT; bit++) {
        double peak = c->peak_gops[bit] > 0 ? c->peak_gops[bit] : fallback_peak_gops[bit];
        if ((isa >> bit & 1) && peak > best) best = peak;
    }
    if (best > 0) return best;
    return c->peak_scalar_gops > 0 ? c->peak_scalar_gops : fallback_scalar_gops;
}

/* --- tiles --- */

#define TILES (KT_ISA_AMXINT8 | KT_ISA_AMXBF16)
#define TILE_ROWS 16

/* What a kernel on tiles can have of their peak (kernels/gemm/README.md): exact products per group of 32 go
 * half as deep as tiles do and are scaled by vectors, which is what takes the time; INT8 activations in two
 * planes, and halves as two bfloat16, multiply twice. */
static double share_of_tiles(kt_numerics numerics) {
    switch (numerics) {
    case KT_NUM_EXACT_INT32: return 0.2;
    case KT_NUM_F32:
    case KT_NUM_REQUANT:
    case KT_NUM_ACTS16: return 0.5;
    case KT_NUM_ACTS8:
    case KT_NUM_BF16_F32: break;
    }
    return 1;
}

/* Weights come to tiles 16 rows of activations at a time or not at all: fewer take as long. Where memory is
 * what takes the time both wait for it, but vectors fetch ahead: a tie goes to them, by a thousandth. */
static void account_for_tiles(const kt_problem *p, const kt_variant *v, double *read_ns,
                              double *multiply_ns) {
    if (p->op != KT_OP_GEMM && p->op != KT_OP_MOE_FFN) return;
    if (p->m > 0 && p->m < TILE_ROWS) *multiply_ns *= (double)TILE_ROWS / (double)p->m;
    *multiply_ns /= share_of_tiles(v->numerics);
    *read_ns *= 1.001;
}

double kt_cost_ns(const kt_problem *p, const kt_variant *v, const kt_ceilings *c, int threads) {
    double bytes, operations, read_ns, multiply_ns;

    if (threads < 1) threads = 1;
    kt_problem_work(p, &bytes, &operations);
    read_ns = bytes / stream_gbs(c, threads); /* 1 GB/s is one byte per ns */
    multiply_ns = operations / (peak_gops(v->isa, c) * threads);
    if (v->isa & TILES) account_for_tiles(p, v, &read_ns, &multiply_ns);
    return read_ns > multiply_ns ? read_ns : multiply_ns;
}
