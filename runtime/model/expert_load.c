/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/expert_load.h"

#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/err.h"
#include "base/json.h"

#define LOAD_BYTES ((size_t)1 << 30)

typedef struct counts {
    int64_t *rows; /* [layers][most] */
    int64_t layers, most;
} counts;

static kt_status count_step(const kt_json *step, const char *path, int64_t line, counts *c,
                            kt_err *err) {
    const kt_json *layers = kt_json_get(step, "layers");

    if ((int64_t)kt_json_length(layers) > c->layers)
        return kt_fail(err, KT_E_FORMAT,
                       "%.200s: line %lld has %zu layers with experts, expected %lld", path,
                       (long long)line, kt_json_length(layers), (long long)c->layers);
    for (size_t l = 0; l < kt_json_length(layers); l++) {
        const kt_json *pairs = kt_json_at(layers, l);
        for (size_t i = 0; i + 1 < kt_json_length(pairs); i += 2) {
            const int64_t id = kt_json_int(kt_json_at(pairs, i), -1);
            const int64_t rows = kt_json_int(kt_json_at(pairs, i + 1), 0);
            if (id < 0 || id >= c->most || rows < 0 || rows > 1 << 20)
                return kt_fail(err, KT_E_FORMAT,
                               "%.200s: line %lld: expert %lld, expected 0 to %lld", path,
                               (long long)line, (long long)id, (long long)c->most - 1);
            c->rows[(int64_t)l * c->most + id] += rows;
        }
    }
    return KT_OK;
}

static kt_status count_line(const char *text, size_t size, const char *path, int64_t line,
                            counts *c, kt_err *err) {
    kt_json_doc *doc;
    kt_status st = kt_json_parse(text, size, NULL, &doc, err);

    if (st != KT_OK) return kt_fail_prefix(err, st, "%.200s: line %lld", path, (long long)line);
    if (line == 1 && strcmp(kt_json_text(kt_json_root(doc), "schema"), "kt-trace-1") != 0)
        st = kt_fail(err, KT_E_FORMAT, "%.200s: not a recorded load (kt-trace-1)", path);
    else if (line > 1)
        st = count_step(kt_json_root(doc), path, line, c, err);
    kt_json_destroy(doc);
    return st;
}

kt_status kt_expert_load_read(const char *path, int64_t layers, int64_t most, int64_t *rows,
                              kt_err *err) {
    counts c = {rows, layers, most};
    char *text, *at, *end;
    size_t bytes;
    kt_status st = KT_OK;
    int64_t line = 0;

    KT_TRY(kt_file_read(path, LOAD_BYTES, &text, &bytes, err));
    for (at = text; at < text + bytes && st == KT_OK; at = end + 1) {
        end = memchr(at, '\n', (size_t)(text + bytes - at));
        if (!end) break; /* a line that was cut when its writer was killed */
        st = count_line(at, (size_t)(end - at), path, ++line, &c, err);
    }
    free(text);
    if (st == KT_OK && line < 2) st = kt_fail(err, KT_E_FORMAT, "%.200s: no recorded steps", path);
    return st;
}
