/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cli/tune_options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tuner/cli/verb.h"

int kt_switch_fail(const kt_verb_usage *usage, const char *format, ...) {
    va_list args;

    fprintf(stderr, "kttune %s: ", usage->verb);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "; see `kttune %s --help`\n", usage->verb);
    return KT_TUNE_USAGE;
}

enum { HELP_COLUMNS = 79, HELP_INDENT = 27 };

void kt_print_words(const char *text, size_t size, int at, int indent) {
    const char *end = text + size;
    bool is_first = true;

    while (text < end) {
        size_t word = strcspn(text, " \n");
        if (text + word > end) word = (size_t)(end - text);
        if (!is_first && at + 1 + (int)word > HELP_COLUMNS) {
            printf("\n%*s", indent, "");
            at = indent;
        } else if (!is_first) {
            putchar(' ');
            at++;
        }
        printf("%.*s", (int)word, text);
        at += (int)word;
        is_first = false;
        text += word;
        while (text < end && (*text == ' ' || *text == '\n')) text++;
    }
    putchar('\n');
}

/* Lines that begin at the margin are one paragraph; indented ones keep their form, and what is too long of
 * them goes on below their second column. */
static void print_about(const char *text) {
    while (*text) {
        size_t size = 0, lead = strspn(text, " ");
        if (lead > 0) {
            size_t word = strcspn(text + lead, " \n");
            size_t gap = strspn(text + lead + word, " ");
            int head = (int)(lead + word + gap);
            size = strcspn(text, "\n");
            printf("%.*s", head, text);
            kt_print_words(text + head, size - (size_t)head, head, head);
        } else {
            do size += strcspn(text + size, "\n") + 1;
            while (text[size - 1] && text[size] && text[size] != ' ');
            size--;
            kt_print_words(text, size, 0, 0);
        }
        text += size + (text[size] == '\n');
    }
}

static int print_help(const kt_verb_usage *usage, const kt_switch *switches, size_t n) {
    printf("usage: kttune %s %s[OPTION]...\n\n", usage->verb, usage->arguments);
    print_about(usage->about);
    putchar('\n');
    for (size_t i = 0; i < n; i++) {
        char left[64];
        int width =
            snprintf(left, sizeof left, "--%s%s%s", switches[i].name, switches[i].value ? " " : "",
                     switches[i].value ? switches[i].value : "");
        printf("  %-24s ", left);
        kt_print_words(switches[i].help, strlen(switches[i].help),
                       width > 24 ? width + 3 : HELP_INDENT, HELP_INDENT);
    }
    printf("  %-24s %s\n", "--help", "show this text");
    if (usage->examples) printf("\nExamples:\n%s", usage->examples);
    return KT_TUNE_OK;
}

double kt_duration_parse(const char *text) {
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}};
    char *end;
    double v = strtod(text, &end);

    if (end == text || !isfinite(v) || v < 0) return -1;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].unit) == 0) return v * units[i].seconds;
    return -1;
}

static bool parse_count(const char *text, char stop, int64_t *out, const char **end) {
    char *last;
    if (*text < '0' || *text > '9') return false;
    errno = 0;
    *out = strtoll(text, &last, 10);
    if (errno != 0 || (*last != '\0' && *last != stop)) return false;
    *end = last;
    return true;
}

static bool parse_size(const char *text, int64_t out[2]) {
    const char *end;
    out[1] = 0;
    if (!parse_count(text, '/', &out[0], &end)) return false;
    return *end == '\0' || parse_count(end + 1, '\0', &out[1], &end);
}

static bool parse_share(const char *text, double *out) {
    char *end;
    double v = strtod(text, &end);
    if (end == text || !isfinite(v)) return false;
    if (strcmp(end, "%") == 0)
        v /= 100;
    else if (*end != '\0')
        return false;
    *out = v;
    return v >= 0 && v <= 1;
}

/* Store a value; returns what was expected instead, or NULL when it fits. */
static const char *store(const kt_switch *s, const char *text) {
    const char *end;
    double seconds;
    switch (s->kind) {
    case KT_SWITCH_TEXT: *(const char **)s->target = text; return NULL;
    case KT_SWITCH_COUNT: return parse_count(text, '\0', s->target, &end) ? NULL : "a whole number";
    case KT_SWITCH_SHARE: return parse_share(text, s->target) ? NULL : "a share such as 10% or 0.1";
    case KT_SWITCH_DURATION:
        seconds = kt_duration_parse(text);
        if (seconds < 0) return "a duration such as 60s, 10m or 2h";
        *(double *)s->target = seconds;
        return NULL;
    case KT_SWITCH_SIZE:
        return parse_size(text, s->target) ? NULL : "a number or a pair such as 128/8";
    case KT_SWITCH_FLAG: break;
    }
    return "no value";
}

static const kt_switch *find(const kt_switch *switches, size_t n, const char *word,
                             const char **value) {
    for (size_t i = 0; i < n; i++) {
        size_t size = strlen(switches[i].name);
        if (strncmp(word, switches[i].name, size) != 0) continue;
        *value = word[size] == '=' ? word + size + 1 : NULL;
        if (word[size] == '=' || word[size] == '\0') return &switches[i];
    }
    return NULL;
}

int kt_switches_parse(const kt_verb_usage *usage, const kt_switch *switches, size_t n_switches,
                      int argc, char **argv, const char **words, int max_words, int *n_words) {
    int n = 0;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *value = NULL, *expected;
        const kt_switch *s;
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
            return print_help(usage, switches, n_switches);
        if (strcmp(word, "-v") == 0 && find(switches, n_switches, "verbose", &value))
            word = "--verbose";
        if (strncmp(word, "--", 2) != 0) {
            if (n == max_words) return kt_switch_fail(usage, "'%s' is one argument too many", word);
            words[n++] = word;
            continue;
        }
        s = find(switches, n_switches, word + 2, &value);
        if (!s) return kt_switch_fail(usage, "'%s' is not an option", word);
        if (s->kind == KT_SWITCH_FLAG) {
            if (value) return kt_switch_fail(usage, "--%s takes no value", s->name);
            *(bool *)s->target = true;
            continue;
        }
        if (!value && ++i == argc)
            return kt_switch_fail(usage, "--%s needs a value (%s)", s->name, s->value);
        if (!value) value = argv[i];
        expected = store(s, value);
        if (expected)
            return kt_switch_fail(usage, "--%s: '%s', expected %s", s->name, value, expected);
    }
    if (n_words) *n_words = n;
    return -1;
}
