/* Numbers of a model by table, once for both containers: config.json and GGUF metadata.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_NUMBERS_H
#define KT_DISPATCH_NUMBERS_H

#include <stdbool.h>

#include "base/json.h"
#include "dispatch/model/gguf_meta.h"

/* Where numbers come from: exactly one of json and gguf is set. Borrowed. */
typedef struct kt_config_source {
    const kt_json *json;      /* object of config.json: its text_config, where it has one */
    const kt_gguf_meta *gguf; /* keys begin with "<arch>." */
    const char *arch;         /* general.architecture; "" with json */
    const char *where;        /* file, for messages */
    const kt_json *modelopt;  /* "quantization" of hf_quant_config.json beside json, or NULL */
    const kt_json *outer;     /* what json is the text_config of; NULL = json is the whole */
} kt_config_source;

typedef enum kt_number_type { KT_NUMBER_INT, KT_NUMBER_DOUBLE, KT_NUMBER_BOOL } kt_number_type;

#define KT_NUMBER_NEEDED (-1e300) /* fallback: absent is an error */

/* One number: where it goes (int64_t, double or bool), its keys, what it is when absent, its
 * range. */
typedef struct kt_number {
    size_t at;
    kt_number_type type;
    const char *json; /* spellings separated by '|'; null counts as absent */
    const char *gguf; /* behind "<arch>."; NULL = not in GGUF: the fallback */
    double fallback;  /* or KT_NUMBER_NEEDED */
    double least, most;
} kt_number;

/* Read all into `out`, which has a member at each `at`. Errors name file, key, found and
 * expected. What a text_config does not say is looked for around it. */
kt_status kt_numbers_read(const kt_config_source *source, const kt_number *table, size_t count,
                          void *out, kt_err *err);

/* One of a GGUF file's numbers, of any type; fallback when absent. Key behind "<arch>.". */
double kt_config_gguf_number(const kt_config_source *source, const char *key, double fallback);

#endif
