/* Rows as kt_table_save writes them, read without a document in between.
 *
 * A server waits for its table, and a row of ours is always spelled the same way: these members
 * in this order, no spaces, no escapes. Whatever is spelled otherwise is left to the JSON
 * reader, which also knows how to complain; so nothing here fails, it only declines.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "dispatch/table/table_rows.h"

typedef struct scanner {
    const char *at, *end;
} scanner;

static bool skip(scanner *s, const char *text, size_t size) {
    if ((size_t)(s->end - s->at) < size || memcmp(s->at, text, size) != 0) return false;
    s->at += size;
    return true;
}
#define SKIP(s, literal) skip(s, literal, sizeof(literal) - 1)

/* "plain", with room for its end. */
static bool text(scanner *s, char *out, size_t out_bytes) {
    const char *begin = s->at + 1;
    size_t size = 0;

    if (s->at == s->end || *s->at != '"') return false;
    while (begin + size < s->end && begin[size] != '"') {
        unsigned char c = (unsigned char)begin[size];
        if (c < 0x20 || c >= 0x7f || c == '\\' || ++size >= out_bytes) return false;
    }
    if (begin + size == s->end) return false;
    memcpy(out, begin, size);
    out[size] = '\0';
    s->at = begin + size + 1;
    return true;
}

static bool digits(scanner *s, uint64_t *value, int *count) {
    *count = 0;
    for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++, ++*count)
        *value = *value * 10 + (uint64_t)(*s->at - '0');
    return *count > 0;
}

/* 0 or digits without a leading zero, up to `most`. */
static bool integer(scanner *s, int64_t least, int64_t most, int64_t *out) {
    const char *begin = s->at;
    uint64_t v = 0;
    int n;
    if (!digits(s, &v, &n) || n > 18 || (*begin == '0' && n > 1)) return false;
    *out = (int64_t)v;
    return *out >= least && *out <= most;
}

/* Mantissas below 2^53 and powers of ten up to 22 are exact doubles, so that one operation rounds
 * correctly; the JSON reader does the same. */
static bool number(scanner *s, double *out) {
    static const double power[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                   1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                   1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const char *begin = s->at;
    uint64_t v = 0, e = 0;
    int whole, part = 0, n, exponent;
    bool minus = false;

    if (!digits(s, &v, &whole) || (*begin == '0' && whole > 1)) return false;
    if (SKIP(s, ".") && !digits(s, &v, &part)) return false;
    if (whole + part > 18 || v >> 53) return false;
    exponent = -part;
    if (SKIP(s, "e")) {
        if (!SKIP(s, "+")) minus = SKIP(s, "-");
        if (!digits(s, &e, &n) || n > 3) return false;
        exponent += minus ? -(int)e : (int)e;
    }
    if (exponent < -22 || exponent > 22) return false;
    *out = exponent < 0 ? (double)v / power[-exponent] : (double)v * power[exponent];
    return true;
}

static bool name(scanner *s, int (*parse)(const char *), int *out) {
    char word[64];
    if (!text(s, word, sizeof word)) return false;
    *out = parse(word);
    return *out >= 0;
}

/* [variant, config, ns] */
static bool timed(scanner *s, char variant[64], char config[96], double *ns) {
    return SKIP(s, "[") && text(s, variant, 64) && SKIP(s, ",") && text(s, config, 96) &&
           SKIP(s, ",") && number(s, ns) && SKIP(s, "]");
}

static bool down_and_act(scanner *s, kt_problem *p) {
    int down = KT_W_NONE, act = KT_FFN_SWIGLU;

    if (SKIP(s, ",\"down\":") && !name(s, kt_weight_format_parse, &down)) return false;
    if (SKIP(s, ",\"act\":") && !name(s, kt_ffn_act_parse, &act)) return false;
    p->down = (kt_weight_format)down;
    p->act = (kt_ffn_act)act;
    return true;
}

static bool problem(scanner *s, kt_problem *p) {
    int op, weights, acts;

    if (!SKIP(s, "{\"op\":") || !name(s, kt_op_parse, &op) || !SKIP(s, ",\"weights\":") ||
        !name(s, kt_weight_format_parse, &weights) || !SKIP(s, ",\"acts\":") ||
        !name(s, kt_act_format_parse, &acts) || !SKIP(s, ",\"n\":") ||
        !integer(s, 1, INT64_MAX, &p->n) || !SKIP(s, ",\"k\":") || !integer(s, 1, INT64_MAX, &p->k))
        return false;
    p->op = (kt_op)op;
    p->weights = (kt_weight_format)weights;
    p->acts = (kt_act_format)acts;
    return (!SKIP(s, ",\"experts\":") || integer(s, 0, INT64_MAX, &p->experts)) &&
           (!SKIP(s, ",\"topk\":") || integer(s, 0, INT64_MAX, &p->topk)) &&
           (!SKIP(s, ",\"kv_heads\":") || integer(s, 0, INT64_MAX, &p->kv_heads)) &&
           (!SKIP(s, ",\"context\":") || integer(s, 0, INT64_MAX, &p->context)) &&
           down_and_act(s, p) && (!SKIP(s, ",\"v\":") || integer(s, 0, INT64_MAX, &p->v)) &&
           (!SKIP(s, ",\"window\":") || integer(s, 0, INT64_MAX, &p->window));
}

static bool runners(scanner *s, kt_table_row *row) {
    if (!SKIP(s, ",\"runners\":[")) return false;
    while (!SKIP(s, "]")) {
        int i = row->n_runners;
        if (i == KT_TABLE_RUNNERS || (i > 0 && !SKIP(s, ",")) ||
            !timed(s, row->runner[i].variant, row->runner[i].config, &row->runner[i].time_ns))
            return false;
        row->n_runners++;
    }
    return true;
}

/* [bits, variant, version, config, ns] */
static bool others(scanner *s, kt_table_row *row) {
    if (!SKIP(s, ",\"others\":[")) return true;
    while (!SKIP(s, "]")) {
        int i = row->n_others;
        int64_t version;
        if (i == KT_TABLE_OTHERS || (i > 0 && !SKIP(s, ",")) || !SKIP(s, "[") ||
            !text(s, row->other[i].bits, sizeof row->other[i].bits) || !SKIP(s, ",") ||
            !text(s, row->other[i].variant, sizeof row->other[i].variant) || !SKIP(s, ",") ||
            !integer(s, 0, INT32_MAX, &version) || !SKIP(s, ",") ||
            !text(s, row->other[i].config, sizeof row->other[i].config) || !SKIP(s, ",") ||
            !number(s, &row->other[i].time_ns) || !SKIP(s, "]"))
            return false;
        row->other[i].version = (int32_t)version;
        row->n_others++;
    }
    return true;
}

bool kt_table_scan_row(const char *line, size_t size, kt_table_row *row) {
    scanner s = {line, line + size};
    int64_t threads, version, rounds;

    memset(row, 0, sizeof *row);
    if (!problem(&s, &row->problem) || !SKIP(&s, ",\"threads\":") ||
        !integer(&s, 1, INT32_MAX, &threads) || !SKIP(&s, ",\"m\":") ||
        !integer(&s, 1, INT64_MAX, &row->problem.m) || !SKIP(&s, ",\"variant\":") ||
        !text(&s, row->variant, sizeof row->variant) || !SKIP(&s, ",\"config\":") ||
        !text(&s, row->config, sizeof row->config) || !SKIP(&s, ",\"version\":") ||
        !integer(&s, 0, INT32_MAX, &version) ||
        (SKIP(&s, ",\"bits\":") && !text(&s, row->bits, sizeof row->bits)) ||
        !SKIP(&s, ",\"time_ns\":") || !number(&s, &row->time_ns) || !SKIP(&s, ",\"ci\":[") ||
        !number(&s, &row->ci_low) || !SKIP(&s, ",") || !number(&s, &row->ci_high) ||
        !SKIP(&s, "],\"rounds\":") || !integer(&s, 0, INT32_MAX, &rounds) ||
        !SKIP(&s, ",\"default\":") ||
        !timed(&s, row->default_variant, row->default_config, &row->default_ns) ||
        !SKIP(&s, ",\"status\":") || !text(&s, row->status, sizeof row->status) ||
        !runners(&s, row) || !others(&s, row) || !SKIP(&s, ",\"error\":") ||
        !number(&s, &row->error) || !SKIP(&s, "}") || s.at != s.end)
        return false;
    row->threads = (int)threads;
    row->version = (int32_t)version;
    row->rounds = (int)rounds;
    return kt_table_check_row(row, NULL) == KT_OK;
}
