/* Text files that gzip may have packed: filed journals are a sixth of their size so, and `zcat`
 * reads them. Nothing here keeps state; any thread may call it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_ZIPPED_H
#define KT_TUNER_ZIPPED_H

#include <stddef.h>

#include "kt/status.h"

#define KT_ZIPPED_END ".gz"

/* Where the text of `path` lies: path itself or, where only that exists, path.gz; path when neither
 * does. KT_E_INVALID when that is longer than out. */
kt_status kt_zipped_find(const char *path, char *out, size_t out_bytes, kt_err *err);

/* The text that kt_zipped_find finds, unpacked into malloc'd, NUL-terminated memory that the caller
 * owns. KT_E_FORMAT when it is damaged, or over max_bytes packed or not. */
kt_status kt_zipped_read(const char *path, size_t max_bytes, char **out, size_t *size, kt_err *err);

/* Write `text` packed to `path`, atomically; equal texts give equal bytes with one zlib. */
kt_status kt_zipped_write(const char *path, const char *text, size_t size, kt_err *err);

#endif
