/* Every function of kt_dev.h on values that the host chose, so that a GPU and the emulator can be
 * compared. A block is KT_CONFORM_THREADS threads; each reads its own words and writes its own.
 *
 * The emulator is what all other kernels are tested by: where it is wrong about the hardware, they
 * may be, too. This is run on each kind of GPU that is met (tests/gpu).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/conformance_calls.h"
#include "kernels/cuda/kt_dev_weights.h"

#define OUT KT_CONFORM_OUT

KT_DEVICE void place(const uint32_t *in, uint32_t *out) {
    (void)in;
    out[0] = (uint32_t)kt_thread();
    out[1] = (uint32_t)kt_lane();
    out[2] = (uint32_t)kt_warp();
    out[3] = (uint32_t)kt_block_x();
    out[4] = (uint32_t)kt_block_y();
}

KT_DEVICE void bits(const uint32_t *in, uint32_t *out) {
    out[0] = kt_bits_float(kt_float_bits(in[0]) * 2.0f);
    out[1] = kt_bits_float(kt_bf16_low(in[1]));
    out[2] = kt_bits_float(kt_bf16_high(in[1]));
    out[3] = kt_and_or(in[2], in[3], in[4]);
}

/* A number to which products of bytes are added without overflow. */
KT_DEVICE int32_t small(uint32_t v) {
    return (int32_t)(v & 0xffffffu) - 0x800000;
}

KT_DEVICE void numbers(int which, const uint32_t *in, uint32_t *out) {
    for (int i = 0; i < 4; i++) {
        const float a = kt_float_bits(in[i]), b = kt_float_bits(in[4 + i]);
        if (which == KT_CONFORM_BF16_PAIR) out[i] = kt_bf16_pair(a, b);
        if (which == KT_CONFORM_FMA) out[i] = kt_bits_float(kt_fma(a, b, kt_float_bits(in[8 + i])));
        if (which == KT_CONFORM_EXP2) out[i] = kt_bits_float(kt_exp2(a));
        if (which == KT_CONFORM_SILU) out[i] = kt_bits_float(i < 3 ? kt_silu(a) : kt_divide(a, b));
        if (which == KT_CONFORM_DOT4)
            out[i] = (uint32_t)kt_dot4(in[i], in[4 + i], small(in[8 + i]));
    }
}

KT_DEVICE void load(const uint32_t *in, uint32_t *out) {
    const kt_u128 a = kt_load_stream(in), b = kt_load_stream(in + 12);

    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}

/* What another thread wrote, of another warp and of the same. */
KT_DEVICE void shared_words(const uint32_t *in, uint32_t *out) {
    const int other = KT_CONFORM_THREADS - 1 - kt_thread();

    kt_set_shared_u32((uint32_t)kt_thread() * 4, in[0]);
    kt_set_shared_u32((uint32_t)(KT_CONFORM_THREADS + other) * 4, in[1]);
    kt_sync();
    out[0] = kt_shared_u32((uint32_t)other * 4);
    out[1] = kt_shared_u32((uint32_t)(KT_CONFORM_THREADS + kt_thread()) * 4);
    out[2] = kt_shared_u32((uint32_t)(kt_thread() ^ 1) * 4);
}

KT_DEVICE void shared_chunks(const uint32_t *in, uint32_t *out) {
    const uint32_t other = (uint32_t)(KT_CONFORM_THREADS - 1 - kt_thread());
    const kt_u128 v = kt_load_stream(in);
    kt_u128 w;

    kt_set_shared_u128((uint32_t)kt_thread() * 16, v);
    kt_sync();
    w = kt_shared_u128(other * 16);
    out[0] = w.x, out[1] = w.y, out[2] = w.z, out[3] = w.w;
    out[4] = kt_shared_u32(other * 16 + 8); /* words of a chunk lie in order */
}

/* Three groups, of which the last may still be under way when the first two are read; a copy of no
 * bytes writes zeros. */
KT_DEVICE void copies(const uint32_t *in, uint32_t *out) {
    const int other = KT_CONFORM_THREADS - 1 - kt_thread();
    kt_u128 v;

    for (int g = 0; g < 3; g++) {
        const int valid = g == 1 && (in[12] & 1) ? 0 : 16;
        kt_copy16((uint32_t)(g * KT_CONFORM_THREADS + kt_thread()) * 16, in + 4 * g, valid);
        kt_copy_commit();
    }
    KT_COPY_WAIT(1);
    kt_sync();
    v = kt_shared_u128((uint32_t)other * 16);
    out[0] = v.x ^ v.y, out[1] = v.z ^ v.w;
    v = kt_shared_u128((uint32_t)(KT_CONFORM_THREADS + other) * 16);
    out[2] = v.x ^ v.y, out[3] = v.z ^ v.w;
    KT_COPY_WAIT(0);
    kt_sync();
    v = kt_shared_u128((uint32_t)(2 * KT_CONFORM_THREADS + other) * 16);
    out[4] = v.x, out[5] = v.y, out[6] = v.z, out[7] = v.w;
}

KT_DEVICE void warps(int which, const uint32_t *in, uint32_t *out) {
    for (int i = 0; i < 5; i++) {
        const float v = kt_float_bits(in[i]);
        if (which == KT_CONFORM_WARP_XOR) out[i] = kt_bits_float(kt_warp_xor(v, 1 << i));
        if (which == KT_CONFORM_WARP_FROM) out[i] = kt_warp_from(in[i], (int)(in[8 + i] & 31));
        if (which == KT_CONFORM_WARP_SUM) out[i] = kt_bits_float(kt_warp_sum(v));
    }
}

/* Lane l writes row l of the warp's 32 rows, and names a row that the input chose. */
KT_DEVICE void matrices(const uint32_t *in, uint32_t *out) {
    const uint32_t mine = (uint32_t)kt_warp() * 32 * 16;

    kt_set_shared_u128(mine + (uint32_t)kt_lane() * 16, kt_load_stream(in));
    kt_sync();
    kt_ldmatrix(out, mine + (in[4] & 31) * 16);
    kt_ldmatrix(out + 4, mine + (uint32_t)kt_lane() * 16);
}

KT_DEVICE void products(int which, const uint32_t *in, uint32_t *out) {
    float c[4];
    int32_t d[4];

    for (int i = 0; i < 4; i++) {
        c[i] = kt_float_bits(in[8 + i]);
        d[i] = small(in[8 + i]);
    }
    if (which == KT_CONFORM_MMA_BF16) {
        kt_mma_bf16(c, in, in[4], in[5]);
        kt_mma_bf16(c, in + 4, in[0], in[1]);
    } else {
        kt_mma_s8(d, in, in[4], in[5]);
        kt_mma_s8(d, in + 4, in[0], in[1]);
    }
    for (int i = 0; i < 4; i++)
        out[i] = which == KT_CONFORM_MMA_BF16 ? kt_bits_float(c[i]) : (uint32_t)d[i];
}

KT_DEVICE void more_numbers(int which, const uint32_t *in, uint32_t *out) {
    const float plus = kt_float_bits(in[0] & 0x7fffffffu);
    float a = kt_float_bits(in[0]), b = kt_float_bits(in[1]);

    if (which == KT_CONFORM_ROUNDED) {
        out[0] = kt_bits_float(kt_mul(a, b));
        out[1] = kt_bits_float(kt_max(a, b));
        out[2] = kt_bits_float(kt_max_nan(a, b));
        out[3] = kt_bits_float(kt_sqrt(plus));
        kt_turn(&a, &b, kt_float_bits(in[2]), kt_float_bits(in[3]));
        out[4] = kt_bits_float(a);
        out[5] = kt_bits_float(b);
    } else if (which == KT_CONFORM_INTEGERS) {
        out[0] = (uint32_t)kt_round(a);
        out[1] = (uint32_t)kt_bit_count(in[1]);
        out[2] = (uint32_t)kt_bit_count(in[2]);
        out[3] = kt_e4m3(a);
        out[4] = kt_e4m3(kt_float_bits(in[3]));
    } else {
        out[0] = kt_bits_float(kt_exp(a));
        out[1] = kt_bits_float(kt_log1p(plus));
        out[2] = kt_bits_float(kt_sigmoid(a));
        out[3] = kt_bits_float((float)kt_exp_double((double)a));
    }
}

/* Floats that another thread wrote, and a sum to which all threads add. */
KT_DEVICE void shared_floats(const uint32_t *in, uint32_t *out) {
    const uint32_t counter = KT_CONFORM_THREADS * 8, other = KT_CONFORM_THREADS - 1;
    const uint32_t at = (other - (uint32_t)kt_thread()) * 8;
    float both[2];

    kt_set_shared_f32((uint32_t)kt_thread() * 8, kt_float_bits(in[0]));
    kt_set_shared_f32((uint32_t)kt_thread() * 8 + 4, kt_float_bits(in[1]));
    if (kt_thread() == 0) kt_set_shared_u32(counter, 5);
    kt_sync();
    kt_shared_add(counter, in[2] & 0xffffu);
    out[0] = kt_bits_float(kt_shared_f32(at));
    kt_shared_f32x2(at, both);
    out[1] = kt_bits_float(both[0]);
    out[2] = kt_bits_float(both[1]);
    kt_sync();
    out[3] = kt_shared_u32(counter);
    kt_set_f32x2((float *)(out + 4), kt_float_bits(in[3]), kt_float_bits(in[4]));
}

KT_DEVICE void small_copies(const uint32_t *in, uint32_t *out) {
    const uint32_t mine = (uint32_t)kt_thread() * 16;
    const uint32_t other = (uint32_t)(KT_CONFORM_THREADS - 1 - kt_thread()) * 16;

    kt_copy8(mine, in + 2, in[12] & 1 ? 0 : 8);
    kt_copy4(mine + 8, in + 5, 4);
    kt_copy4(mine + 12, in + 6, in[12] & 2 ? 0 : 4);
    kt_copy_commit();
    KT_COPY_WAIT(0);
    kt_sync();
    for (int i = 0; i < 4; i++) out[i] = kt_shared_u32(other + (uint32_t)i * 4);
}

/* Lanes that agree, lanes that say yes, the largest of all lanes, and what a lane wrote for the
 * next one. */
KT_DEVICE void votes(const uint32_t *in, uint32_t *out) {
    const uint32_t base = (uint32_t)kt_warp() * 128;

    out[0] = kt_warp_match(in[0] & 3);
    out[1] = kt_warp_ballot((int)(in[1] & 1));
    kt_set_shared_u32(base + (uint32_t)kt_lane() * 4, in[2]);
    kt_warp_sync();
    out[2] = kt_shared_u32(base + (uint32_t)((kt_lane() + 1) & 31) * 4);
    out[3] = (uint32_t)kt_warp_max((int32_t)in[3]);
}

KT_DEVICE void whole(int which, const uint32_t *in, uint32_t *out) {
    const float v = kt_float_bits(in[0]);

    if (which == KT_CONFORM_BLOCK_SUM) {
        out[0] = kt_bits_float(kt_block_sum(v, 0, KT_CONFORM_THREADS / 32));
        return;
    }
    out[0] = kt_bits_float(kt_warp_max_nan(v, 32));
    out[1] = kt_bits_float(kt_warp_max_nan(v, 8));
    out[2] = kt_bits_float(kt_warp_max_nan(v, 1));
}

KT_DEVICE void turned(const uint32_t *in, uint32_t *out) {
    const uint32_t mine = (uint32_t)kt_warp() * 32 * 16;

    kt_set_shared_u128(mine + (uint32_t)kt_lane() * 16, kt_load_stream(in));
    kt_sync();
    kt_ldmatrix_trans(out, mine + (in[4] & 31) * 16);
    kt_ldmatrix_trans(out + 4, mine + (uint32_t)kt_lane() * 16);
}

/* Two whole numbers of -8 to 7 as bfloat16: sums of their products are exact. */
KT_DEVICE uint32_t whole_pair(uint32_t v) {
    return kt_bf16_pair((float)(int)(v & 15) - 8.0f, (float)(int)(v >> 4 & 15) - 8.0f);
}

KT_DEVICE void weights(const uint32_t *in, uint32_t *out) {
    const kt_u128 v = kt_load_cached(in + 8);

    out[0] = kt_fma_bf16(whole_pair(in[0]), whole_pair(in[1]), whole_pair(in[2]));
    out[1] = kt_bits_float(kt_f16_float(in[3] & 0xffffu));
    out[2] = kt_bytes(in[4], in[5], in[6] & 0x7777u);
    out[3] = v.x ^ v.y;
    out[4] = v.z ^ v.w;
    kt_load_stream8(in + 14, out + 5, out + 6);
}

KT_DEVICE void products_e4m3(const uint32_t *in, uint32_t *out) {
    float c[4];

    for (int i = 0; i < 4; i++) c[i] = kt_float_bits(in[8 + i]);
#if !defined(__CUDACC_RTC__) || __CUDA_ARCH__ >= 890
    kt_mma_e4m3(c, in, in[4], in[5]);
    kt_mma_e4m3(c, in + 4, in[0], in[1]);
#endif
    for (int i = 0; i < 4; i++) out[i] = kt_bits_float(c[i]);
}

KT_DEVICE void conform_more(int which, const uint32_t *in, uint32_t *out) {
    if (which <= KT_CONFORM_EXPONENTIALS) more_numbers(which, in, out);
    if (which == KT_CONFORM_SHARED_F32) shared_floats(in, out);
    if (which == KT_CONFORM_COPY_SMALL) small_copies(in, out);
    if (which == KT_CONFORM_VOTES) votes(in, out);
    if (which == KT_CONFORM_LARGEST || which == KT_CONFORM_BLOCK_SUM) whole(which, in, out);
    if (which == KT_CONFORM_LDMATRIX_TRANS) turned(in, out);
    if (which == KT_CONFORM_WEIGHTS) weights(in, out);
    if (which == KT_CONFORM_MMA_E4M3) products_e4m3(in, out);
}

KT_DEVICE void conform(const kt_conform *p) {
    const int64_t row = (int64_t)kt_block_x() * KT_CONFORM_THREADS + kt_thread();
    const uint32_t *in = p->in + row * KT_CONFORM_IN;
    const int which = p->which;
    uint32_t out[OUT];

    for (int i = 0; i < OUT; i++) out[i] = 0;
    if (which == KT_CONFORM_PLACE) place(in, out);
    if (which == KT_CONFORM_BITS) bits(in, out);
    if (which >= KT_CONFORM_BF16_PAIR && which <= KT_CONFORM_DOT4) numbers(which, in, out);
    if (which == KT_CONFORM_LOAD_STREAM) load(in, out);
    if (which == KT_CONFORM_SHARED_U32) shared_words(in, out);
    if (which == KT_CONFORM_SHARED_U128) shared_chunks(in, out);
    if (which == KT_CONFORM_COPY) copies(in, out);
    if (which >= KT_CONFORM_WARP_XOR && which <= KT_CONFORM_WARP_SUM) warps(which, in, out);
    if (which == KT_CONFORM_LDMATRIX) matrices(in, out);
    if (which == KT_CONFORM_MMA_BF16 || which == KT_CONFORM_MMA_S8) products(which, in, out);
    if (which >= KT_CONFORM_ROUNDED) conform_more(which, in, out);
    for (int i = 0; i < OUT; i++) p->out[row * OUT + i] = out[i];
}

KT_ENTRY(conformance, kt_conform, conform, KT_CONFORM_THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)config, (void)target;
    return NULL;
}

static int threads(const kt_config *config) {
    (void)config;
    return KT_CONFORM_THREADS;
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    (void)config, (void)k;
    return KT_CONFORM_SHARED;
}

KT_CUDA_KERNEL(conformance) = {
    .name = "conformance",
    .about = "every function of device code on chosen values, to compare a GPU with the emulator",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .entry_count = 1,
    .entry = {{"conformance", conformance}},
    .needs_opcodes = 1u << KT_OPCODE_HMMA | 1u << KT_OPCODE_IMMA,
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
