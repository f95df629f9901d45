/* Fields of a request's JSON body: typed, with refusals that name the parameter, what it is and
 * what it should be. Null means absent. Nothing here knows a route.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_API_FIELDS_H
#define KT_RUNTIME_API_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"

/* Why a request is refused; message is complete, status != 0. */
typedef struct kt_api_error {
    int status;
    const char *type, *code; /* static; code may be NULL */
    char param[64];          /* "" = none */
    char message[512];
} kt_api_error;

/* Values in a body, 72 bytes each: more ids and members than any request has that fits a context.
 */
#define KT_MAX_BODY_VALUES ((size_t)2 << 20)
#define KT_MAX_BODY_DEPTH 64

/* Fill e; always false, for "return kt_api_refuse(...)". param may be NULL; code is static, or
 * NULL. */
bool kt_api_refuse(kt_api_error *e, int status, const char *param, const char *code,
                   const char *format, ...) __attribute__((format(printf, 5, 6)));
/* 400 invalid_type: "'param' is a number, expected a string". v may be NULL: missing. */
bool kt_api_wrong_type(kt_api_error *e, const char *param, const kt_json *v, const char *expected);
/* 503 out_of_memory. */
bool kt_api_no_memory(kt_api_error *e);

/* The parameter, or NULL when it is absent or null. body may be NULL. */
const kt_json *kt_field(const kt_json *body, const char *param);

/* Each leaves *out when the parameter is absent; false with *e when it is of another type or out of
 * range. */
bool kt_field_number(const kt_json *body, const char *param, double min, double max, float *out,
                     kt_api_error *e);
bool kt_field_integer(const kt_json *body, const char *param, int64_t min, int64_t max,
                      int64_t *out, kt_api_error *e);
bool kt_field_bool(const kt_json *body, const char *param, bool *out, kt_api_error *e);
/* *out is borrowed from the body. */
bool kt_field_string(const kt_json *body, const char *param, const char **out, size_t *size,
                     kt_api_error *e);

/* "response_format.type" for members of members: param of an error is cut to what fits. */
void kt_field_path(char *out, size_t size, const char *parent, const char *child);

#endif
