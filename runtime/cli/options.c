/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/command.h"
#include "runtime/cli/foreign_options.h"

int kt_usage_fail(const kt_usage *usage, const char *format, ...) {
    va_list args;

    fprintf(stderr, "kt %s: ", usage->command);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "; see `kt %s --help`\n", usage->command);
    return KT_EXIT_USAGE;
}

static int print_help(const kt_usage *usage, const kt_option *options, size_t n_options) {
    printf("usage: kt %s %s%s[OPTION]...\n\n%s\n\n", usage->command, usage->arguments,
           *usage->arguments ? " " : "", usage->about);
    for (size_t i = 0; i < n_options; i++) {
        const kt_option *o = &options[i];
        char left[64];
        char letter[8] = "";
        if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, o->value ? " " : "",
                 o->value ? o->value : "");
        printf("  %-30s %s\n", left, o->help);
    }
    printf("  %-30s %s\n", "-h, --help", "show this text");
    if (usage->examples) printf("\nExamples:\n%s", usage->examples);
    return KT_EXIT_OK;
}

/* The command line as it is read. */
typedef struct parse {
    const kt_usage *usage;
    const kt_option *options;
    size_t n_options;
    int argc;
    char **argv;
    int at; /* the word in hand */
    const char **positional;
    int n_positional, max_positional;
    bool has_model; /* positional[0] came with an option */
} parse;

static const kt_option *find_name(const parse *p, const char *name, size_t size) {
    for (size_t i = 0; i < p->n_options; i++)
        if (strlen(p->options[i].name) == size && memcmp(p->options[i].name, name, size) == 0)
            return &p->options[i];
    return NULL;
}

static const kt_option *find(const parse *p, const char *word) {
    if (word[1] == '-') return find_name(p, word + 2, strcspn(word + 2, "="));
    for (size_t i = 0; i < p->n_options; i++)
        if (p->options[i].letter && p->options[i].letter == word[1] && word[2] == '\0')
            return &p->options[i];
    return NULL;
}

static int set_int(const kt_usage *usage, const kt_option *o, const char *text) {
    char *end;
    long long v;

    errno = 0;
    v = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno)
        return kt_usage_fail(usage, "--%s is '%s', expected a whole number", o->name, text);
    if ((double)v < o->min || (double)v > o->max)
        return kt_usage_fail(usage, "--%s is %lld, expected %.0f to %.0f", o->name, v, o->min,
                             o->max);
    *(int64_t *)o->target = v;
    return -1;
}

static int set_double(const kt_usage *usage, const kt_option *o, const char *text) {
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end != '\0' || !isfinite(v))
        return kt_usage_fail(usage, "--%s is '%s', expected a number", o->name, text);
    if (v < o->min || v > o->max)
        return kt_usage_fail(usage, "--%s is %g, expected %g to %g", o->name, v, o->min, o->max);
    *(double *)o->target = v;
    return -1;
}

static int set_value(const kt_usage *usage, const kt_option *o, const char *text) {
    if (o->kind == KT_OPT_INT) return set_int(usage, o, text);
    if (o->kind == KT_OPT_DOUBLE) return set_double(usage, o, text);
    *(const char **)o->target = text;
    return -1;
}

/* The value behind '=' or in the next word; NULL at the end of the line. */
static const char *take_value(parse *p) {
    const char *equals = strchr(p->argv[p->at], '=');

    if (equals) return equals + 1;
    return p->at + 1 < p->argc ? p->argv[++p->at] : NULL;
}

static int take_option(parse *p, const kt_option *o) {
    const char *value;

    if (o->kind == KT_OPT_FLAG) {
        if (strchr(p->argv[p->at], '='))
            return kt_usage_fail(p->usage, "--%s takes no value", o->name);
        *(bool *)o->target = true;
        return -1;
    }
    value = take_value(p);
    if (!value) return kt_usage_fail(p->usage, "--%s needs a value (%s)", o->name, o->value);
    return set_value(p->usage, o, value);
}

/* --- what others call their options --- */

static bool is_same_path(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b);

    while (n > 1 && a[n - 1] == '/') n--;
    while (m > 1 && b[m - 1] == '/') m--;
    return n == m && memcmp(a, b, n) == 0;
}

static int take_model(parse *p, const kt_foreign_option *f) {
    const char *value = take_value(p);

    if (!value) return kt_usage_fail(p->usage, "%s needs a value (MODEL)", f->name);
    if (p->n_positional > 0 && !is_same_path(p->positional[0], value))
        return kt_usage_fail(p->usage, "%s is '%s', but MODEL is '%s': %s", f->name, value,
                             p->positional[0], f->detail);
    if (p->n_positional == 0) p->positional[p->n_positional++] = value;
    p->has_model = true;
    return -1;
}

static int leave_out(const parse *p, const kt_foreign_option *f) {
    fprintf(stderr, "kt %s: %s is left out: %s\n", p->usage->command, f->name, f->detail);
    return -1;
}

static int take_foreign(parse *p, const char *word) {
    const kt_foreign_option *f = kt_foreign_option_find(word);
    const kt_option *ours = f && f->ours ? find_name(p, f->ours, strlen(f->ours)) : NULL;
    const bool has_model = p->max_positional > 0 && strstr(p->usage->arguments, "MODEL");
    const char *value;

    if (!f || (f->ours && !ours) || (f->kind == KT_FOREIGN_MODEL && !has_model))
        return kt_usage_fail(p->usage, "there is no option '%s'", word);
    switch (f->kind) {
    case KT_FOREIGN_SAME: return take_option(p, ours);
    case KT_FOREIGN_SETS: return set_value(p->usage, ours, f->detail);
    case KT_FOREIGN_MODEL: return take_model(p, f);
    case KT_FOREIGN_FLAG: return leave_out(p, f);
    case KT_FOREIGN_SWITCH:
        value = p->at + 1 < p->argc ? p->argv[p->at + 1] : "";
        if (strcmp(value, "on") == 0 || strcmp(value, "off") == 0 || strcmp(value, "auto") == 0)
            p->at++;
        return leave_out(p, f);
    case KT_FOREIGN_VALUE:
        value = take_value(p);
        if (!value) return kt_usage_fail(p->usage, "%s needs a value", f->name);
        if (kt_foreign_value_is_dropped(f, value)) return leave_out(p, f);
        return kt_usage_fail(p->usage, "there is no option '%s %s': %s", f->name, value, f->other);
    case KT_FOREIGN_REFUSED: break;
    }
    return kt_usage_fail(p->usage, "there is no option '%s': %s", word, f->detail);
}

/* --- all of it --- */

static int take_word(parse *p, const char *word) {
    if (p->has_model && is_same_path(word, p->positional[0])) return -1;
    if (p->n_positional == p->max_positional)
        return kt_usage_fail(p->usage, "'%s' is one argument too many", word);
    p->positional[p->n_positional++] = word;
    return -1;
}

int kt_options_parse(const kt_usage *usage, const kt_option *options, size_t n_options, int argc,
                     char **argv, const char **positional, int max_positional, int *n_positional) {
    parse p = {.usage = usage,
               .options = options,
               .n_options = n_options,
               .argc = argc,
               .argv = argv,
               .positional = positional,
               .max_positional = max_positional};
    bool only_words = false;

    for (p.at = 1; p.at < argc; p.at++) {
        const char *word = argv[p.at];
        const kt_option *o;
        int code;

        if (!only_words && strcmp(word, "--") == 0) {
            only_words = true;
            continue;
        }
        if (!only_words && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0))
            return print_help(usage, options, n_options);
        if (only_words || word[0] != '-' || word[1] == '\0')
            code = take_word(&p, word);
        else if ((o = find(&p, word)))
            code = take_option(&p, o);
        else
            code = take_foreign(&p, word);
        if (code >= 0) return code;
    }
    if (n_positional) *n_positional = p.n_positional;
    return -1;
}
