/* Status codes and the error message that travels with them.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_STATUS_H
#define KT_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* What every fallible function returns. KT_OK is zero; all others are errors. */
typedef enum kt_status {
    KT_OK = 0,
    KT_E_INVALID,     /* the caller passed something meaningless (flag, argument, request) */
    KT_E_FORMAT,      /* a file or message is malformed */
    KT_E_UNSUPPORTED, /* well-formed, but outside what this build or machine can do */
    KT_E_NOMEM,       /* memory could not be had */
    KT_E_IO,          /* the operating system refused a read, write, map or socket call */
    KT_E_NOT_FOUND,   /* a named thing (file, tensor, variant, model) does not exist */
    KT_E_MISMATCH,    /* two things that must agree do not (table and machine, shapes, checksums) */
    KT_E_CANCELLED,   /* the caller asked to stop */
    KT_E_INTERNAL     /* a bug of ours */
} kt_status;

#define KT_ERR_SIZE 512

/* The message a person reads: names the object, what was found and what was expected.
 * Placed by the caller; valid after a call that returned an error. Always NUL-terminated. */
typedef struct kt_err {
    kt_status status;
    char message[KT_ERR_SIZE];
} kt_err;

/* Short stable name of a status, e.g. "KT_E_FORMAT". Never NULL; static storage. */
const char *kt_status_name(kt_status status);

#ifdef __cplusplus
}
#endif
#endif
