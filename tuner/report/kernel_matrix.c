/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/report/kernel_matrix.h"

#include <string.h>

#include "base/cpu.h"
#include "kernels/formats/format.h"
#include "kernels/formats/p64_spec.h"

static bool is_library(const kt_variant *v) {
    const size_t size = strlen(v->name);
    return size >= 5 && strcmp(v->name + size - 5, "__lib") == 0;
}

static int highest_step(kt_isa isa) {
    int bit = KT_MATRIX_SCALAR;
    while (isa >> (bit + 1)) bit++;
    return bit;
}

bool kt_cell_is_filled(kt_op op, kt_weight_format format, int isa_bit) {
    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        if (v->op == op && v->weights >> format & 1 && !is_library(v) &&
            highest_step(v->isa) == isa_bit)
            return true;
    }
    return false;
}

/* --- reasons ---------------------------------------------------------------------------------- */

#define BIT(format) KT_W_BIT(KT_W_##format)
#define F32 BIT(F32)
#define FP8 (BIT(FP8_CHANNEL) | BIT(FP8_B128) | BIT(MXFP8))
#define FLOATS (BIT(BF16) | BIT(F16) | FP8)
#define CODES (~(FLOATS | F32))
#define INTEGER_STEPS (KT_ISA_AVXVNNI | KT_ISA_AVX512VNNI | KT_ISA_AMXINT8)
#define GEMM (1u << KT_OP_GEMM)
#define MOE (1u << KT_OP_MOE_FFN)

/* Rates are multiply-adds per cycle and core; figures of kernels/gemm/NOTES.md. */
static const struct {
    uint32_t ops;
    uint64_t formats; /* of KT_W_BIT */
    kt_isa steps;
    bool scalar;
    const char *reason;
} gaps[] = {
    {MOE, F32, ~(kt_isa)0, true, "no model has f32 experts"},
    {GEMM, F32, ~(kt_isa)0, false,
     "f32 weights are norms and routers, which are ops of their own; a matrix of them is left to "
     "plain C "
     "and to the libraries"},
    {GEMM | MOE, FLOATS, INTEGER_STEPS, false,
     "multiplies integers only; these weights are floating and take the steps with FMA or BF16"},
    {GEMM | MOE, CODES, KT_ISA_AVX512BF16, false,
     "VDPBF16PS does half of VPDPBUSD's work on Zen 4 and an eighth on Granite Rapids, every CPU "
     "that has it has VNNI, and codes would be rounded to 8 bits of bfloat16"},
    {GEMM | MOE, FP8, KT_ISA_AVX512BF16, false,
     "VDPBF16PS needs E4M3 widened, which VBMI does in five instructions for 64: the kernel is in "
     "the column avx512vbmi; every CPU with BF16 but one (Cooper Lake) has VBMI. Where VDPBF16PS "
     "does less than FMA (Granite Rapids: half) the column avx512 is the faster one"},
    {GEMM | MOE, BIT(F16), KT_ISA_AVX512BF16, false,
     "a half is not a bfloat16 but the sum of two: twice the VDPBF16PS come to the rate of FMA on "
     "Zen 4 and to a quarter of it on Granite Rapids, and FMA needs no taking apart"},
    {GEMM | MOE, CODES & ~KT_POINT_MASK, KT_ISA_AVX512VBMI, false,
     "adds byte permutes to VNNI; these codes unpack with shifts and masks, and their tables with "
     "VPSHUFB"},
    {GEMM | MOE, BIT(BF16) | BIT(F16), KT_ISA_AVX512VBMI, false,
     "adds byte permutes; these weights are multiplied as they are"},
    {GEMM | MOE, CODES, KT_ISA_AVX512FP16, false,
     "VFMADDPH does 64 in half precision, VPDPBUSD 128 exactly"},
    {GEMM | MOE, FLOATS, KT_ISA_AVX512FP16, false,
     "VFMADDPH does 64, but sums in 11 bits: 32 terms between widenings may lose 1.6 % where f32 "
     "loses 0.02 % "
     "over k = 2048, and a half overflows at 65504, which bfloat16 activations do not; decode "
     "waits for memory "
     "either way, and every server CPU that has it has AMX-BF16, which does 256 with halves, "
     "exactly"},
    {GEMM | MOE, KT_GRID_MASK, KT_ISA_AVX512VNNI, false,
     "points of grids are looked up with VPERMI2B of VBMI, which every CPU with VNNI but two "
     "(Cascade Lake, Cooper Lake) has: the kernel is in the column avx512vbmi, and those two take "
     "the column avx512"},
};

const char *kt_cell_gap_reason(kt_op op, kt_weight_format format, int isa_bit) {
    for (size_t i = 0; i < sizeof gaps / sizeof *gaps; i++) {
        const bool here =
            isa_bit == KT_MATRIX_SCALAR ? gaps[i].scalar : gaps[i].steps >> isa_bit & 1;
        if (here && gaps[i].ops >> op & 1 && gaps[i].formats >> format & 1) return gaps[i].reason;
    }
    return NULL;
}

/* Figures: Zen 4, one thread, Gop/s at 1, 16, 64 and 512 rows; kernels/gemm/NOTES.md. */
const kt_library_gap kt_library_gaps[] = {
    {"aocl", "u8s8s32", KT_OP_GEMM, BIT(INT8_CHANNEL) | BIT(INT4_G32),
     "activations have a scale per 32 inputs, this product none: one call per group, in L2, does "
     "26, 164, 223, 246 "
     "Gop/s before any scale is applied, where sym_quant, which races, does 30, 284, 311, 307 with "
     "them, from memory; "
     "without scales it is the probe dense_aocl"},
    {"aocl", "s8s8s32", KT_OP_GEMM, BIT(INT8_CHANNEL) | BIT(INT4_G32),
     "u8s8s32 after 128 is added to the activations, in every call; its grouped form is sym_quant"},
    {"aocl", "BF16, INT8, INT4", KT_OP_MOE_FFN, BIT(INT8_CHANNEL) | BIT(INT4_G32) | BIT(BF16),
     "its panels are a reordering of its own, scales beside them, and the walk over an expert "
     "steps through p64 "
     "panels, which gate and up share; as a GEMM it is behind our kernels (INT8, INT4) or level "
     "with them (BF16)"},
    {"onednn", "INT8, INT4", KT_OP_MOE_FFN, BIT(INT8_CHANNEL) | BIT(INT4_G32),
     "its panels are plain [k][64], scales beside them, not p64; as a GEMM weight decompression "
     "does 7 to 125 Gop/s, "
     "a third of our kernels at best"},
};
const size_t kt_library_gap_count = sizeof kt_library_gaps / sizeof *kt_library_gaps;

/* --- the table -------------------------------------------------------------------------------- */

static const kt_op matrix_ops[2] = {KT_OP_GEMM, KT_OP_MOE_FFN};

/* The footnote of a reason: its place among the reasons that any cell has, from 1. */
static int footnote(const char *reason) {
    for (size_t i = 0; i < sizeof gaps / sizeof *gaps; i++)
        if (gaps[i].reason == reason) return (int)i + 1;
    return 0;
}

/* "x" both ops, "gemm" or "moe" one of them, else the footnote; "?" is a gap without a reason. */
static void print_cell(FILE *out, kt_weight_format format, int isa_bit) {
    const bool gemm = kt_cell_is_filled(KT_OP_GEMM, format, isa_bit);
    const bool moe = kt_cell_is_filled(KT_OP_MOE_FFN, format, isa_bit);
    const char *reason;

    if (gemm && moe) {
        fputs(" x |", out);
        return;
    }
    reason = kt_cell_gap_reason(matrix_ops[gemm], format, isa_bit);
    if (gemm || moe) fputs(gemm ? " gemm" : " moe", out);
    if (reason)
        fprintf(out, " %d |", footnote(reason));
    else
        fputs(" ? |", out);
}

void kt_matrix_print(FILE *out) {
    fputs("| weights |", out);
    for (int isa = KT_MATRIX_SCALAR; isa < KT_ISA_COUNT; isa++)
        fprintf(out, " %s |", isa == KT_MATRIX_SCALAR ? "scalar" : kt_isa_name(isa));
    fputs("\n|---|", out);
    for (int isa = KT_MATRIX_SCALAR; isa < KT_ISA_COUNT; isa++) fputs("---|", out);
    for (int f = 1; f < KT_W_COUNT; f++) {
        fprintf(out, "\n| `%s` |", kt_weight_format_name((kt_weight_format)f));
        for (int isa = KT_MATRIX_SCALAR; isa < KT_ISA_COUNT; isa++)
            print_cell(out, (kt_weight_format)f, isa);
    }
    fputs("\n\nx: kernels of `gemm` and `moe_ffn`. Numbers: none, because\n\n", out);
    for (size_t i = 0; i < sizeof gaps / sizeof *gaps; i++)
        fprintf(out, "%zu. %s\n", i + 1, gaps[i].reason);
}
