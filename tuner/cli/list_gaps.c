/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cli/list_gaps.h"

#include "kernels/formats/format.h"

bool kt_cell_is_filled(kt_op op, kt_weight_format format, int isa_bit) {
    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        if (v->op == op && v->weights >> format & 1 && v->isa >> isa_bit == 1) return true;
    }
    return false;
}

/* Steps that only multiply integers, and steps that only multiply bfloat16. */
#define INTEGERS (KT_ISA_AVXVNNI | KT_ISA_AVX512VNNI | KT_ISA_AMXINT8)
#define BFLOATS (KT_ISA_AVX512BF16 | KT_ISA_AMXBF16)

const char *kt_cell_gap_reason(kt_weight_format format, int isa_bit) {
    const kt_format *f = kt_format_find(format);
    const kt_isa step = (kt_isa)1 << isa_bit;
    const bool is_float = f && f->acts != KT_A_INT8_G32;

    if (format == KT_W_F32) return "f32 weights are small matrices: the scalar kernel takes them";
    if (step & INTEGERS && is_float) return "multiplies integers; floating weights use FMA or BF16";
    if (step & BFLOATS && !is_float)
        return "multiplies bfloat16; integer kernels multiply these codes exactly and faster";
    if (step & BFLOATS && format == KT_W_F16)
        return "would round the 11 bits of half precision to the 8 of bfloat16";
    if (step == KT_ISA_AVX512VBMI && !is_float)
        return "adds byte permutes; these codes unpack by shift and mask without them";
    if (step == KT_ISA_AVX512VBMI) return "adds byte permutes; these weights need none";
    if (step == KT_ISA_AVX512FP16)
        return "sums in half precision would round: not admitted by the error bounds";
    return "not written: kernels of lower steps serve it";
}
