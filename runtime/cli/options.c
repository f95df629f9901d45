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

/* Ours, for a name that others have for it; *why says why there is none. */
static const kt_option *find_foreign(const kt_option *options, size_t n_options, const char *word,
                                     const char **value, const char **why) {
    const size_t size = strcspn(word + 2, "=");
    const kt_foreign_option *f = kt_foreign_option_find(word + 2, size);

    if (f) *why = f->why;
    if (word[2 + size] == '=') *value = word + 3 + size;
    for (size_t i = 0; f && f->ours && i < n_options; i++)
        if (strcmp(options[i].name, f->ours) == 0) return &options[i];
    return NULL;
}

static const kt_option *find(const kt_option *options, size_t n_options, const char *word,
                             const char **value, const char **why) {
    *value = *why = NULL;
    if (word[1] != '-') {
        for (size_t i = 0; i < n_options; i++)
            if (options[i].letter && options[i].letter == word[1] && word[2] == '\0')
                return &options[i];
        return NULL;
    }
    for (size_t i = 0; i < n_options; i++) {
        size_t size = strlen(options[i].name);
        if (strncmp(word + 2, options[i].name, size) != 0) continue;
        if (word[2 + size] == '=') *value = word + 3 + size;
        if (word[2 + size] == '\0' || word[2 + size] == '=') return &options[i];
    }
    return find_foreign(options, n_options, word, value, why);
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

int kt_options_parse(const kt_usage *usage, const kt_option *options, size_t n_options, int argc,
                     char **argv, const char **positional, int max_positional, int *n_positional) {
    int count = 0, only_words = 0;

    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *value, *why;
        const kt_option *o;
        int code;

        if (only_words || word[0] != '-' || word[1] == '\0') {
            if (count == max_positional)
                return kt_usage_fail(usage, "'%s' is one argument too many", word);
            positional[count++] = word;
            continue;
        }
        if (strcmp(word, "--") == 0) {
            only_words = 1;
            continue;
        }
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
            return print_help(usage, options, n_options);
        o = find(options, n_options, word, &value, &why);
        if (!o && why) return kt_usage_fail(usage, "there is no option '%s': %s", word, why);
        if (!o) return kt_usage_fail(usage, "there is no option '%s'", word);
        if (o->kind == KT_OPT_FLAG) {
            if (value) return kt_usage_fail(usage, "--%s takes no value", o->name);
            *(bool *)o->target = true;
            continue;
        }
        if (!value && ++i == argc)
            return kt_usage_fail(usage, "--%s needs a value (%s)", o->name, o->value);
        code = set_value(usage, o, value ? value : argv[i]);
        if (code >= 0) return code;
    }
    if (n_positional) *n_positional = count;
    return -1;
}
