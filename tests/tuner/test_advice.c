/* Commands that messages propose work as they are printed: each is taken out of a real message and
 * run, for a model at a path that a shell would take apart. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/shell_word.h"
#include "tests/support/temp.h"
#include "tests/support/tune_home.h"

#define BIN KT_BUILD_DIR "/"

/* $M is the model's folder, quoted. */
static kt_tune_home home;
static char model[600];

static void make_home(void) {
    char command[2000], word[900], *out;

    kt_tune_home_make(&home);
    snprintf(model, sizeof model, "%s/a b/it's $HOME", home.folder);
    kt_shell_word(model, word, sizeof word);
    snprintf(command, sizeof command,
             "mkdir -p %s && cp " KT_SOURCE_DIR "/datasets/models/tiny-moe/*.json " KT_SOURCE_DIR
             "/datasets/models/tiny-moe/*.safetensors %s",
             word, word);
    cr_assert_eq(kt_tune_home_run(command, &out), 0, "%s", out);
    free(out);
    setenv("M", model, 1);
    setenv("H", home.folder, 1);
}

static void remove_home(void) {
    kt_tune_home_remove(&home);
}

TestSuite(advice, .init = make_home, .fini = remove_home, .timeout = 120);

/* What stands between the marker and a back quote or the end of the line. */
static void take_command(const char *text, const char *marker, char *out, size_t bytes) {
    const char *at = strstr(text, marker);
    size_t size;

    cr_assert(at, "'%s' lacks '%s'", text, marker);
    at += strlen(marker);
    size = strcspn(at, "`\n");
    cr_assert(strncmp(at, "kt", 2) == 0 && size < bytes, "no command behind '%s': %.200s", marker,
              at);
    snprintf(out, bytes, "%.*s", (int)size, at);
}

/* Run a command, take the one that it proposes, run that with `more` behind it. */
static void follow(const char *command, const char *marker, const char *more) {
    char line[3000], proposed[2000], *out;

    snprintf(line, sizeof line, BIN "%s", command);
    kt_tune_home_run(line, &out);
    take_command(out, marker, proposed, sizeof proposed);
    free(out);
    snprintf(line, sizeof line, BIN "%s%s", proposed, more);
    cr_expect_eq(kt_tune_home_run(line, &out), 0, "%s proposes %s: %s", command, line, out);
    free(out);
}

static void expect_no_proposal(const char *command, const char *words) {
    char line[3000], *out;

    snprintf(line, sizeof line, BIN "%s", command);
    cr_expect_neq(kt_tune_home_run(line, &out), 0, "%s", out);
    cr_expect(strstr(out, words), "%s: '%s' lacks '%s'", command, out, words);
    cr_expect(!strstr(out, "kttune run"), "%s proposes what would be refused: %s", command, out);
    free(out);
}

Test(advice, of_kt_runs_as_printed) {
    follow("kt doctor \"$M\"", "make one: ", " --dry-run");
    follow("kt doctor \"$M\"", " not built (`", "");
    follow("kt doctor", "make one: ", " --dry-run");
    follow("kt generate \"$M\" -p a -n 1", "; to tune: ", " --dry-run");
    follow("kt generate \"$M\" -p a -n 1 --weights int4 --threads 1", "; to tune: ", " --dry-run");
    follow("kt bench --synthetic qwen3-30b --layers 1 -p 2 -n 1 -r 1 --table ''",
           "; to tune: ", " --dry-run");
    follow("kt serve qwen3-30b", "checkpoint (`", " --layers 1 -p 2 -n 1 -r 1");
    follow("kt generate qwen3-31b -p a", "Qwen3-30B-A3B? (`", "");
}

Test(advice, of_kttune_runs_as_printed) {
    follow("kttune show --model \"$M\"", "make one with `", " --dry-run");
    follow("kttune show --model nobody", "(`", "");
    follow("kttune explain --model \"$M\" --m 4", "to tune: ", " --dry-run");
    follow("kttune run --model $H/mini --cells m=1,threads=1 --noisy-ok", "to see it: ", "");
}

/* What kt would refuse is not proposed for tuning. */
Test(advice, is_not_given_where_it_could_not_help) {
    kt_temp_write(home.folder, "x.gguf", "GGUF", 4);
    kt_temp_write(model, "config.json", "{\"model_type\":\"parrot\"}", 23);
    expect_no_proposal("kt doctor \"$H/x.gguf\"", "x.gguf");
    expect_no_proposal("kt generate \"$H/x.gguf\" -p a", "x.gguf");
    expect_no_proposal("kt doctor \"$M\"", "parrot");
}

/* A Qwen3-MoE of so many layers of 0.75 GiB in BF16; only its config is there. */
static void write_config(int64_t layers, int64_t experts) {
    char text[1000];

    snprintf(text, sizeof text,
             "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":%lld,\"hidden_size\":4096,"
             "\"vocab_size\":4096,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
             "\"head_dim\":64,\"num_experts\":%lld,\"num_experts_per_tok\":2,"
             "\"moe_intermediate_size\":4096,\"intermediate_size\":4096,\"decoder_sparse_step\":1,"
             "\"mlp_only_layers\":[],\"norm_topk_prob\":true,\"attention_bias\":false,"
             "\"tie_word_embeddings\":false,\"max_position_embeddings\":256,"
             "\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,\"hidden_act\":\"silu\"}",
             (long long)layers, (long long)experts);
    kt_temp_write(model, "config.json", text, strlen(text));
}

/* The refusal is arithmetic, so it comes before the checkpoint is looked for; it proposes what
 * fits. */
Test(advice, about_memory_is_counted) {
    const double layer_bytes = 8 * 3 * 4096.0 * 4096.0 * 2;
    const int64_t layers = (int64_t)(1.5 * (double)kt_memory_available_bytes() / layer_bytes) + 1;
    char *out;

    write_config(layers, 8);
    cr_assert_eq(kt_tune_home_run("rm \"$M\"/model*", &out), 0);
    free(out);
    cr_expect_eq(kt_tune_home_run(BIN "kt logits \"$M\" --tokens 1 -o $H/x", &out), 8, "%s", out);
    cr_expect(strstr(out, " GiB are available; try --weights int8 (") && strstr(out, " or int4 ("),
              "%s", out);
    free(out);
    cr_expect_eq(kt_tune_home_run(BIN "kt logits \"$M\" --tokens 1 -o $H/x -w int8", &out), 1,
                 "the proposed format is refused for memory too: %s", out);
    free(out);
    cr_expect_eq(kt_tune_home_run(BIN "kt logits \"$M\" --tokens 1 -o $H/x -w f16", &out), 8);
    cr_expect(strstr(out, "try --weights int8 ("), "%s", out);
    free(out);
    write_config(1000, 4096);
    cr_expect_eq(kt_tune_home_run(BIN "kt logits \"$M\" --tokens 1 -o $H/x", &out), 8, "%s", out);
    cr_expect(strstr(out, "; no format is small enough"), "%s", out);
    cr_expect(!strstr(out, "try "), "%s", out);
    free(out);
}

Test(advice, lists_say_what_is_missing_by_reason) {
    char *out;

    cr_expect_eq(kt_tune_home_run(BIN "kttune list", &out), 0);
    cr_expect(strstr(out, "usage: kttune list"), "%s", out);
    free(out);
    cr_expect_eq(kt_tune_home_run("KT_DISABLE_ISA=avx2 " BIN "kttune list --why-invalid", &out), 0);
    cr_expect(strncmp(out, "not usable here\n", 16) == 0, "%.200s", out);
    cr_expect(strstr(out, "\n  needs avx2; "), "%.400s", out);
    cr_expect_null(strstr(strstr(out, "\n  needs avx2; ") + 1, "\n  needs avx2; "), "said twice");
    free(out);
    cr_expect_eq(kt_tune_home_run(BIN "kttune help run", &out), 0);
    cr_expect(strstr(out, "usage: kttune run"), "%s", out);
    free(out);
}

Test(advice, words_come_back_from_a_shell) {
    static const char *const words[] = {
        "plain/path-1.0", "a b", "it's", "''", "$HOME", "",
        "a\nb",           "-x",  "*",    "\\", "~/x",   "\xe6\xa8\xa1"};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char word[KT_SHELL_WORD_BYTES], command[2000], *out;
        snprintf(command, sizeof command, "printf '[%%s]' %s",
                 kt_shell_word(words[i], word, sizeof word));
        cr_expect_eq(kt_tune_home_run(command, &out), 0);
        cr_expect(out[0] == '[' && strncmp(out + 1, words[i], strlen(words[i])) == 0 &&
                      strcmp(out + 1 + strlen(words[i]), "]") == 0,
                  "'%s' came back as %s", words[i], out);
        free(out);
    }
}
