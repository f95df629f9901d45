/* Which of two encodings activations get. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/registry/registry.h"
#include "kernels/formats/format.h"

/* The widest instruction set among the vector kernels; steps are numbered by width. Tiles do not count: they
 * take few rows to no purpose, and an encoding must suit any number. Nor do unproven variants. */
static kt_isa widest(const kt_registry *r, kt_op op, kt_weight_format weights, kt_act_format acts) {
    kt_isa isa = 0;

    for (size_t i = 0; i < kt_registry_count(r); i++) {
        const kt_variant *v = kt_registry_at(r, i);
        if (v->isa & (KT_ISA_AMXINT8 | KT_ISA_AMXBF16) || v->rank == 0) continue;
        if (v->op == op && v->weights & KT_W_BIT(weights) && v->acts & 1u << acts && v->isa > isa)
            isa = v->isa;
    }
    return isa;
}

kt_act_format kt_registry_acts(const kt_registry *r, kt_op op, kt_weight_format weights) {
    const kt_format *format = kt_format_find(weights);
    kt_isa faster;

    if (!format) return KT_A_NONE;
    if (format->acts != KT_A_INT8_G32) return format->acts;
    faster = widest(r, op, weights, KT_A_INT8_G16P2);
    return faster && faster >= widest(r, op, weights, format->acts) ? KT_A_INT8_G16P2
                                                                    : format->acts;
}
