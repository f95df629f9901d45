/* What people call a model, and where it is: one rule for both programs.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_RESOLVE_H
#define KT_DISPATCH_RESOLVE_H

#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "kt/status.h"

typedef enum kt_model_kind {
    KT_MODEL_FOLDER,  /* of a checkpoint, or of a config.json alone */
    KT_MODEL_FILE,    /* some file: a GGUF, or a mistake */
    KT_MODEL_WORKLOAD /* a published shape of datasets/workloads: no weights */
} kt_model_kind;

typedef struct kt_model_ref {
    kt_model_kind kind;
    char path[4096]; /* real path of the folder or file */
    char name[64];   /* what the API, tables and messages call it; never empty */
} kt_model_ref;

/* Find a model by, first hit wins:
 *   a path: a folder, a file, or a folder `models--org--name` of the Hugging Face cache
 *     (its main snapshot)
 *   the name of a bundled model or workload, in any case
 *   the beginning of exactly one such name ("qwen3-30b")
 * A folder without config.json in the working directory does not hide a name. kinds: bits 1 <<
 * kind; what they leave out is not looked for. KT_E_NOT_FOUND proposes the nearest name.
 *
 * A folder's name is its last part; in the Hugging Face cache, where that is a hash, the
 * repository's. One over 63 bytes is cut and ends with a digest. */
kt_status kt_model_resolve(const char *word, unsigned kinds, kt_model_ref *out, kt_err *err);
#define KT_MODEL_ANY ((1u << KT_MODEL_FOLDER) | (1u << KT_MODEL_FILE) | (1u << KT_MODEL_WORKLOAD))

/* Names of the bundled shapes (KT_MODEL_WORKLOAD) in the order of their letters: at most `most` of
 * 64 bytes each, NUL included. Returns how many. */
int kt_model_list_shapes(char (*names)[64], int most);

/* A number that tells models of different matrices apart: of the sizes in config.json, which a copy
 * or a fine-tuned model shares. 0 when there are none. */
uint64_t kt_model_shape_id(const kt_json *config);

/* FNV-1a of a text. */
uint64_t kt_model_hash(const char *text);

#endif
