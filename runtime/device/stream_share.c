/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/stream_share.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { MOST_ROWS = 1 << 30 };

/* ---- words ---- */

/* Digits up to a character of `ends`, at most MOST_ROWS. */
static bool read_number(const char *text, const char *ends, char **end, long *out) {
    errno = 0;
    *out = strtol(text, end, 10);
    return !errno && *text >= '0' && *text <= '9' && strchr(ends, **end) != NULL &&
           *out <= MOST_ROWS;
}

kt_status kt_stream_word_parse(const char *text, kt_stream_word *out, kt_err *err) {
    char *end;
    long rows, percent = -1;

    *out = (kt_stream_word){.is_auto = true, .rows = INT64_MAX, .percent = -1};
    if (!text || strcmp(text, "auto") == 0) return KT_OK;
    out->is_auto = false;
    if (strcmp(text, "off") == 0) return KT_OK;
    if (read_number(text, ":", &end, &rows) && rows >= 1 &&
        (*end == '\0' ||
         (read_number(end + 1, "%", &end, &percent) && percent <= 100 && strcmp(end, "%") == 0))) {
        out->rows = rows;
        out->percent = (int)percent;
        return KT_OK;
    }
    return kt_fail(
        err, KT_E_INVALID,
        "prefill on the device: '%.40s', expected auto, off, rows of a step such as 512, "
        "or rows and a part of the experts such as 512:50%%",
        text);
}

/* ---- choosing ---- */

/* Those with rows that the device lacks, most rows first; then by number. Insertion keeps equal
 * ones in their order, and there are some hundred. */
static int64_t sort_candidates(const kt_stream_call *c, int32_t *list) {
    int64_t n = 0;

    for (int64_t e = 0; e < c->experts; e++) {
        int64_t at = n;
        if (c->place[e] >= 0 || c->rows[e] == 0) continue;
        for (; at > 0 && c->rows[list[at - 1]] < c->rows[e]; at--) list[at] = list[at - 1];
        list[at] = (int32_t)e;
        n++;
    }
    return n;
}

int64_t kt_stream_choose(const kt_stream_call *c, int32_t *list) {
    const int64_t n = sort_candidates(c, list);
    const double of_expert = 1 / (double)c->experts;
    const double of_row = 1 / ((double)c->crossover * (double)c->topk);
    double left = 0; /* the CPU's time for those that do not cross */
    int64_t taken = 0;

    if (c->percent >= 0) return (n * c->percent + 50) / 100;
    for (int64_t i = 0; i < n; i++) left += (double)c->rows[list[i]] * of_row;
    while (taken < n && (double)(taken + 1) * of_expert < left)
        left -= (double)c->rows[list[taken++]] * of_row;
    return taken;
}
