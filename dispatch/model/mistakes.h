/* What people take for a model by mistake, named as what it is.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_MISTAKES_H
#define KT_DISPATCH_MISTAKES_H

#include <stddef.h>

#include "kt/status.h"

/* What a file is whose beginning is no weights, tokenizer or config: "a Git LFS pointer ..."; NULL
 * when it is nothing known. Static text. */
const char *kt_model_mistake(const void *data, size_t bytes);

/* Refuse a folder without config.json by what it has instead. */
kt_status kt_model_need_config(const char *folder, kt_err *err);

/* The first (by name) of the files in folder that end so, into name, which may be NULL; returns how
 * many. */
int kt_model_count_files(const char *folder, const char *end, char *name, size_t name_bytes);

/* Is path a file that begins as GGUF files do? */
int kt_model_is_gguf(const char *path);

#endif
