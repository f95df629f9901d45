/* kt template: a template's variables on standard input, the rendering on standard output.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/chat/messages.h"
#include "runtime/cli/command.h"
#include "runtime/cli/options.h"

static kt_status read_input(char **out, size_t *out_size, kt_err *err) {
    char *text = NULL;
    size_t size = 0, capacity = 0, got;

    do {
        if (capacity - size < 65536) {
            char *grown = realloc(text, capacity = capacity * 2 + 65536);
            if (!grown) {
                free(text);
                return kt_fail(err, KT_E_NOMEM, "standard input: no memory for %zu bytes",
                               capacity);
            }
            text = grown;
        }
        size += got = fread(text + size, 1, capacity - size, stdin);
    } while (got > 0);
    if (ferror(stdin)) {
        free(text);
        return kt_fail(err, KT_E_IO, "standard input: %s", strerror(errno));
    }
    *out = text;
    *out_size = size;
    return KT_OK;
}

static kt_status render(const kt_chat_format *f, const kt_json *variables,
                        const kt_template_options *options, kt_err *err) {
    kt_rendered r = {0};

    KT_TRY(kt_chat_render_variables(f, variables, options, &r, err));
    fwrite(r.text, 1, r.size, stdout);
    kt_rendered_deinit(&r);
    return KT_OK;
}

static bool is_template_file(const char *path) {
    const char *end = strrchr(path, '.');
    return end &&
           (strcmp(end, ".jinja") == 0 || strcmp(end, ".jinja2") == 0 || strcmp(end, ".j2") == 0);
}

static int run(int argc, char **argv) {
    int64_t now = -1;
    kt_chat_source source = {0};
    const kt_option options[] = {
        KT_OPTION_INT("now", 0, &now, 0, (int64_t)1 << 40,
                      "clock of strftime_now, seconds since 1970, read as UTC (default: now)"),
        KT_OPTION_STRING("name", 'n', &source.template_name, "NAME",
                         "which of several templates (default: default)"),
        KT_OPTION_STRING("chat-template", 0, &source.template_file, "FILE",
                         "use this template with the special tokens of MODEL"),
    };
    const kt_usage usage = {
        .command = "template",
        .arguments = "MODEL|FILE.jinja < CONTEXT.json",
        .about =
            "Print what a chat template makes of its variables, a JSON object on standard input\n"
            "(messages, tools, add_generation_prompt, ...), and nothing else. Special tokens of\n"
            "MODEL are variables unless the input sets them. Errors name line and column: exit\n"
            "code 2.",
        .examples = "  echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}' |\n"
                    "      kt template datasets/models/tiny-moe\n"
                    "  kt template chat_template.jinja --now 1767225598 < context.json\n"};
    const char *word = NULL;
    char *text = NULL;
    size_t size = 0;
    int n_words = 0;
    kt_template_options how = {0};
    kt_chat_format *format = NULL;
    kt_json_doc *doc = NULL;
    kt_err err = {KT_OK, ""};
    kt_status st;
    int code = kt_options_parse(&usage, options, sizeof options / sizeof *options, argc, argv,
                                &word, 1, &n_words);

    if (code >= 0) return code;
    if (n_words != 1) return kt_usage_fail(&usage, "MODEL or FILE.jinja is missing");
    if (is_template_file(word) && !source.template_file)
        source.template_file = word;
    else
        source.model = word;
    how.has_now = now >= 0;
    how.now = now;
    st = kt_chat_format_load(&source, &format, &err);
    if (st == KT_OK) st = read_input(&text, &size, &err);
    if (st == KT_OK) {
        st = kt_json_parse(text, size, NULL, &doc, &err);
        if (st != KT_OK) st = kt_fail_prefix(&err, st, "standard input");
    }
    if (st == KT_OK) st = render(format, kt_json_root(doc), &how, &err);
    free(text);
    kt_json_destroy(doc);
    kt_chat_format_destroy(format);
    if (st == KT_OK) return KT_EXIT_OK;
    code = kt_command_fail(&err);
    return code == KT_EXIT_FAILURE ? KT_EXIT_USAGE : code;
}

const kt_command kt_command_template = {
    .name = "template", .summary = "render a model's chat template", .run = run};
