/* Which variants this machine can run, and why the others cannot. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_REGISTRY_H
#define KT_DISPATCH_REGISTRY_H

#include "kt/variant.h"

typedef struct kt_registry kt_registry; /* immutable after creation; thread-safe */

/* Take variants from a table (the built-in one or a caller's own, borrowed), drop those whose ISA the
 * mask lacks, run the usable() checks of the rest. Never fails because a variant is unusable. */
kt_status kt_registry_create(const kt_variant *const *variants, size_t count, kt_isa isa,
                             kt_registry **out, kt_err *err);
void kt_registry_destroy(kt_registry *r);

size_t kt_registry_count(const kt_registry *r); /* usable ones, in name order */
const kt_variant *kt_registry_at(const kt_registry *r, size_t i);
const kt_variant *kt_registry_find(const kt_registry *r, const char *name); /* usable, or NULL */

size_t kt_registry_refused_count(const kt_registry *r);
const kt_variant *kt_registry_refused_at(const kt_registry *r, size_t i, const char **reason);

/* The initial value of every parameter. */
kt_config kt_config_initial(const kt_variant *v);
/* "rows=4,prefetch=2048" (empty for none); parse is its inverse and refuses unknown names and
 * values outside the list. A name that is missing stands for its initial value: that of a parameter
 * which a variant got without a new version is what it did before. */
char *kt_config_format(const kt_variant *v, const kt_config *c, char *text, size_t text_bytes);
kt_status kt_config_parse(const kt_variant *v, const char *text, kt_config *out, kt_err *err);
/* Number of configurations and the i-th of them (mixed radix over the lists). */
int64_t kt_config_count(const kt_variant *v);
kt_config kt_config_at(const kt_variant *v, int64_t i);

/* May v run this problem with this config (NULL = initial values)? Checks op, formats and sizes,
 * then accepts(). Also for variants whose ISA is not here. why may be NULL. */
kt_status kt_variant_accepts(const kt_variant *v, const kt_problem *p, const kt_config *c,
                             kt_err *why);

/* May a deterministic plan take v (kt_variant.bits)? Else KT_E_UNSUPPORTED with the reason. */
kt_status kt_variant_keeps_bits(const kt_variant *v, kt_err *why);

/* The activation encoding that weights of this format are multiplied with fastest here: a8p where its
 * vector kernels are of as wide an instruction set as those of the format's own encoding, else the
 * latter (kt_format.acts). Both keep the accuracy of kernels/encode/README.md; the own one loses less. */
kt_act_format kt_registry_acts(const kt_registry *r, kt_op op, kt_weight_format weights);

#endif
