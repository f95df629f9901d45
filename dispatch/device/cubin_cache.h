/* Cubins on disk, one file each, named by a checksum of their key.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEVICE_CUBIN_CACHE_H
#define KT_DEVICE_CUBIN_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kt/status.h"

/* The code that was kept under exactly this key, malloc'd; false when there is none, or when its
 * file is damaged. */
bool kt_cubin_cache_get(const char *folder, const char *key, size_t key_bytes, uint8_t **data,
                        size_t *bytes);
/* Keep it: the file appears whole or not at all. */
kt_status kt_cubin_cache_put(const char *folder, const char *key, size_t key_bytes,
                             const uint8_t *data, size_t bytes, kt_err *err);

#endif
