/* SHA-256 (FIPS 180-4), for checksums of shared files. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_SHA256_H
#define KT_BASE_SHA256_H

#include <stddef.h>

/* The digest of size bytes as 64 lower-case digits and a NUL. */
void kt_sha256(const void *data, size_t size, char hex[65]);

#endif
