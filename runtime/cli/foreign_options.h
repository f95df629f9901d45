/* Options by the names that users of kt-kernel, SGLang, vLLM and llama.cpp bring along, so that
 * their command lines run as they are. What is not needed here is said and left out; what would
 * mean something else here is refused, with what to write instead.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_FOREIGN_OPTIONS_H
#define KT_RUNTIME_FOREIGN_OPTIONS_H

#include <stdbool.h>

typedef enum kt_foreign_kind {
    KT_FOREIGN_SAME,    /* `ours` by another name */
    KT_FOREIGN_SETS,    /* a flag: `ours` with the value `detail` */
    KT_FOREIGN_MODEL,   /* its value is MODEL; one that differs from MODEL is refused by `detail` */
    KT_FOREIGN_FLAG,    /* left out; `detail` says why it can be */
    KT_FOREIGN_VALUE,   /* likewise, with its value */
    KT_FOREIGN_SWITCH,  /* likewise, with on, off or auto when that follows */
    KT_FOREIGN_REFUSED, /* `detail` says what to write instead */
} kt_foreign_kind;

typedef struct kt_foreign_option {
    const char *name; /* with its dashes */
    kt_foreign_kind kind;
    const char *ours;   /* SAME, SETS: an option of ours, without the dashes */
    const char *detail; /* see the kinds */
    const char *only;  /* VALUE: the values that can be left out, with spaces between; NULL = any */
    const char *other; /* VALUE with `only`: what to write for any other value */
} kt_foreign_option;

/* The entry of a word, up to its end or '=', or NULL: nobody's. */
const kt_foreign_option *kt_foreign_option_find(const char *word);

/* Does a VALUE of this entry go without? */
bool kt_foreign_value_is_dropped(const kt_foreign_option *option, const char *value);

#endif
