/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/api/fields.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

bool kt_api_refuse(kt_api_error *e, int status, const char *param, const char *code,
                   const char *format, ...) {
    va_list args;

    e->status = status;
    e->type = status == 501   ? "not_supported_error"
              : status >= 500 ? "server_error"
              : status == 404 ? "not_found_error"
                              : "invalid_request_error";
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(e->message, sizeof e->message, format, args);
    va_end(args);
    return false;
}

bool kt_api_wrong_type(kt_api_error *e, const char *param, const kt_json *v, const char *expected) {
    static const char *const found[] = {"null",     "a boolean", "a number",
                                        "a string", "an array",  "an object"};
    return kt_api_refuse(e, 400, param, "invalid_type", "'%s' is %s, expected %s", param,
                         v ? found[kt_json_type_of(v)] : "missing", expected);
}

bool kt_api_no_memory(kt_api_error *e) {
    return kt_api_refuse(e, 503, NULL, "out_of_memory", "no memory for the request");
}

const kt_json *kt_field(const kt_json *body, const char *param) {
    const kt_json *v = kt_json_get(body, param);
    return kt_json_type_of(v) == KT_JSON_NULL ? NULL : v;
}

bool kt_field_number(const kt_json *body, const char *param, double min, double max, float *out,
                     kt_api_error *e) {
    const kt_json *v = kt_field(body, param);
    char expected[80];
    double d;

    if (!v) return true;
    snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    if (kt_json_type_of(v) != KT_JSON_NUMBER) return kt_api_wrong_type(e, param, v, expected);
    d = kt_json_double(v, NAN);
    if (!(d >= min && d <= max))
        return kt_api_refuse(e, 400, param, "invalid_value", "'%s' is %.40s, expected %s", param,
                             kt_json_lexeme(v), expected);
    *out = (float)d;
    return true;
}

bool kt_field_integer(const kt_json *body, const char *param, int64_t min, int64_t max,
                      int64_t *out, kt_api_error *e) {
    const kt_json *v = kt_field(body, param);
    char expected[80];
    int64_t i;

    if (!v) return true;
    snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)min,
             (long long)max);
    if (kt_json_type_of(v) != KT_JSON_NUMBER) return kt_api_wrong_type(e, param, v, expected);
    i = kt_json_int(v, 0);
    if (!kt_json_is_integer(v) || i < min || i > max)
        return kt_api_refuse(e, 400, param, "invalid_value", "'%s' is %.40s, expected %s", param,
                             kt_json_lexeme(v), expected);
    *out = i;
    return true;
}

bool kt_field_bool(const kt_json *body, const char *param, bool *out, kt_api_error *e) {
    const kt_json *v = kt_field(body, param);

    if (!v) return true;
    if (kt_json_type_of(v) != KT_JSON_BOOL) return kt_api_wrong_type(e, param, v, "a boolean");
    *out = kt_json_bool(v, false);
    return true;
}

bool kt_field_string(const kt_json *body, const char *param, const char **out, size_t *size,
                     kt_api_error *e) {
    const kt_json *v = kt_field(body, param);

    if (!v) return true;
    if (kt_json_type_of(v) != KT_JSON_STRING) return kt_api_wrong_type(e, param, v, "a string");
    *out = kt_json_string(v, size);
    return true;
}

void kt_field_path(char *out, size_t size, const char *parent, const char *child) {
    snprintf(out, size, "%s.%s", parent, child);
}
