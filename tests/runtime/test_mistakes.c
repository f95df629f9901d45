/* What people give to `kt` and `kttune` by mistake, and values that nothing would obey: named as
 * what they are. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch/model/mistakes.h"
#include "tests/support/temp.h"
#include "tests/support/tune_home.h"

#define KT KT_BUILD_DIR "/kt "
#define KTTUNE KT_BUILD_DIR "/kttune "
#define TINY KT_SOURCE_DIR "/datasets/models/tiny-moe"

static char folder[256];

/* $F is a copy of tiny-moe. */
static void make_folder(void) {
    char *out;

    kt_temp_make(folder, sizeof folder);
    setenv("F", folder, 1);
    setenv("XDG_DATA_HOME", folder, 1);
    cr_assert_eq(kt_tune_home_run("cp " TINY "/*.json " TINY "/*.safetensors $F", &out), 0);
    free(out);
}

static void remove_folder(void) {
    kt_temp_remove(folder);
}

TestSuite(mistakes, .init = make_folder, .fini = remove_folder, .timeout = 120);

static void expect(const char *command, int code, const char *words) {
    char *out;
    int got = kt_tune_home_run(command, &out);

    cr_expect(got == code && strstr(out, words), "%s: exit code %d, expected %d and '%s': %s",
              command, got, code, words, out);
    free(out);
}

Test(mistakes, files_are_told_by_their_beginning) {
    static const struct {
        const char *text, *what;
    } cases[] = {{"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"},
                 {"\n <!DOCTYPE html>", "HTML"},
                 {"<HTML>", "HTML"},
                 {"GGUF", "GGUF"},
                 {"PK\x03\x04", "zip"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *what = kt_model_mistake(cases[i].text, strlen(cases[i].text));
        cr_expect(what && strstr(what, cases[i].what), "%s", cases[i].what);
        for (size_t n = 0; n < 4; n++)
            cr_expect_null(kt_model_mistake(cases[i].text, n), "%zu bytes", n);
    }
    cr_expect_null(kt_model_mistake("{}", 2));
}

Test(mistakes, pointers_and_pages_instead_of_weights) {
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n";
    static const char page[] = "<!DOCTYPE html><html><body>404</body></html>";
    char says[600];

    kt_temp_write(folder, "model-00002-of-00002.safetensors", lfs, sizeof lfs - 1);
    snprintf(says, sizeof says, "kt: %s/model-00002-of-00002.safetensors: a Git LFS pointer",
             folder);
    expect(KT "generate $F -p a", 1, says);
    kt_temp_write(folder, "model-00002-of-00002.safetensors", page, sizeof page - 1);
    expect(KT "generate $F -p a", 1, "an HTML page; the download failed, expected safetensors");
    kt_temp_write(folder, "tokenizer.json", lfs, sizeof lfs - 1);
    expect(KT "generate $F -p a", 1, "tokenizer.json: a Git LFS pointer");
    expect(KT "generate $F/tokenizer.json -p a", 1, "a Git LFS pointer instead of the file");
}

Test(mistakes, folders_that_lack_something) {
    expect("rm $F/model.safetensors.index.json; " KT "generate $F -p a", 1,
           "model.safetensors.index.json is missing, though 2 safetensors files are there "
           "(model-00001-of-00002.safetensors)");
    expect("rm $F/*.safetensors; " KT "generate $F -p a", 1,
           "no weights, expected model.safetensors");
    expect("touch $F/pytorch_model.bin; " KT "generate $F -p a", 1,
           "no weights, only pytorch_model.bin");
    expect("rm $F/config.json; " KT "generate $F -p a", 1,
           "no config.json, expected the folder of a checkpoint");
    expect(KTTUNE "run --model $F --dry-run", 2, "no config.json, expected the folder");
    expect("touch $F/x.safetensors; " KT "doctor $F", 1,
           "config.json is missing beside x.safetensors");
    kt_temp_write(folder, "big.gguf", "GGUF", 4);
    expect(KT "generate $F -p a", 1, "big.gguf: the version at byte 4 needs 4 bytes");
    expect(KTTUNE "run --model $F --dry-run", 2, "big.gguf: the version at byte 4 needs 4 bytes");
}

/* Version 3, no tensors, "split.no" = 1 and "split.count" = 2 as 16-bit numbers. */
Test(mistakes, the_second_part_of_a_gguf) {
    static const char part[] = "GGUF\x03\0\0\0"
                               "\0\0\0\0\0\0\0\0"
                               "\x02\0\0\0\0\0\0\0"
                               "\x08\0\0\0\0\0\0\0split.no"
                               "\x02\0\0\0"
                               "\x01\0"
                               "\x0b\0\0\0\0\0\0\0split.count"
                               "\x02\0\0\0"
                               "\x02\0";

    kt_temp_write(folder, "b.gguf", part, sizeof part - 1);
    expect(KT "generate $F/b.gguf -p a", 1, "part 2 of 2 of a GGUF file, give the first");
}

Test(mistakes, values_of_the_environment) {
    static const char *const programs[] = {KT "version", KTTUNE "list strategies"};
    char line[600];

    for (size_t i = 0; i < 2; i++) {
        snprintf(line, sizeof line, "KT_DISABLE_ISA=foo %s", programs[i]);
        expect(line, 2, "KT_DISABLE_ISA has 'foo', expected names between commas: avx2, ");
        snprintf(line, sizeof line, "KT_DISABLE_ISA=avx512,amx_int8 %s", programs[i]);
        expect(line, 2, "'amx_int8'");
        snprintf(line, sizeof line, "KT_DISABLE_ISA=amxint8,amxbf16, %s", programs[i]);
        expect(line, 0, "");
        snprintf(line, sizeof line, "KT_LOG=verbose %s", programs[i]);
        expect(line, 2, "KT_LOG is 'verbose', expected debug, info, warn or off");
        snprintf(line, sizeof line, "KT_LOG= KT_DISABLE_ISA= %s", programs[i]);
        expect(line, 0, "");
    }
}

Test(mistakes, fields_of_a_workload) {
    const char *sed = "sed 's/%s/%s/' " KT_SOURCE_DIR
                      "/datasets/workloads/Qwen3-30B-A3B.json > $F/w.json; " KTTUNE
                      "run --workload $F/w.json --dry-run";
    char line[1200];

    snprintf(line, sizeof line, sed, "\"native_weights\": *\"[a-z0-9]*\"",
             "\"native_weights\": \"wxyz\"");
    expect(line, 2, "'native_weights' is 'wxyz', expected one of ");
    snprintf(line, sizeof line, sed, "\"hidden\": *2048", "\"hidden\": 2047");
    expect(line, 2, "'hidden' is 2047, expected a multiple of 32");
}

Test(mistakes, output_that_cannot_be_written) {
    expect(KT "generate $F -p a -n 2 --table '' > /dev/full", 1,
           "standard output: cannot be written");
    expect(KT "generate $F -p a -n 2 --table '' --json > /dev/full", 1, "standard output");
    expect(KT "help > /dev/full", 1, "standard output");
    /* both streams in one file: the text's line is over before the statistics */
    expect(KT "generate $F -p 'In that day' -n 3 --table ''", 0, "\n3 prompt tokens (");
}
