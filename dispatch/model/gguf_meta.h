/* Metadata of a GGUF file: typed values by key. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_GGUF_META_H
#define KT_DISPATCH_GGUF_META_H

#include <stddef.h>
#include <stdint.h>

#include "kt/status.h"

typedef enum kt_gguf_type {
    KT_GGUF_U8,
    KT_GGUF_I8,
    KT_GGUF_U16,
    KT_GGUF_I16,
    KT_GGUF_U32,
    KT_GGUF_I32,
    KT_GGUF_F32,
    KT_GGUF_BOOL,
    KT_GGUF_STRING,
    KT_GGUF_ARRAY,
    KT_GGUF_U64,
    KT_GGUF_I64,
    KT_GGUF_F64
} kt_gguf_type;

/* One value; all pointers go into the file's bytes. */
typedef struct kt_gguf_value {
    const char *key; /* key_size bytes, not terminated */
    size_t key_size;
    kt_gguf_type type;         /* KT_GGUF_ARRAY: see element_type */
    kt_gguf_type element_type; /* of an array; never itself KT_GGUF_ARRAY */
    uint64_t count;            /* elements of an array, bytes of a string, else 1 */
    const uint8_t *data;       /* first byte of the string, number or first element */
} kt_gguf_value;

/* Metadata of one file, checked to the last byte. The values live as long as this. */
typedef struct kt_gguf_meta {
    const uint8_t *bytes; /* borrowed */
    size_t n_bytes;
    uint32_t version;
    uint64_t n_tensors;
    size_t tensors_offset; /* where the tensor list begins */
    kt_gguf_value *values; /* owned, in the order of the file */
    size_t n_values;
} kt_gguf_meta;

/* Read the metadata in bytes[n_bytes], which must outlive *out. Every length and offset is checked;
 * duplicate keys, nested arrays and unknown types are refused. Pair with kt_gguf_meta_deinit. */
kt_status kt_gguf_meta_init(kt_gguf_meta *out, const uint8_t *bytes, size_t n_bytes, kt_err *err);
void kt_gguf_meta_deinit(kt_gguf_meta *meta);

const char *kt_gguf_type_name(kt_gguf_type type);

/* The value of a key, or NULL. */
const kt_gguf_value *kt_gguf_find(const kt_gguf_meta *meta, const char *key);

/* A value of that type (element_type of an array), or an error that names key, found and
 * expected. */
kt_status kt_gguf_need_string(const kt_gguf_meta *meta, const char *key, const char **out,
                              size_t *size, kt_err *err);
kt_status kt_gguf_need_array(const kt_gguf_meta *meta, const char *key, kt_gguf_type element_type,
                             const kt_gguf_value **out, kt_err *err);

/* Any integer or boolean type as int64; fallback when absent, of another type or too large. */
int64_t kt_gguf_int(const kt_gguf_meta *meta, const char *key, int64_t fallback);
/* Any number as double. */
double kt_gguf_double(const kt_gguf_meta *meta, const char *key, double fallback);

/* Walk an array of strings: start with *at = value->data, call count times. Returns the string. */
const char *kt_gguf_next_string(const uint8_t **at, size_t *size);
/* Element i of an array of 32-bit integers. */
int32_t kt_gguf_i32(const kt_gguf_value *array, uint64_t i);

#endif
