/* The `kt` program as a user meets it: exit codes, messages, files.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/buffer.h"
#include "base/json.h"
#include "dispatch/model/checkpoint.h"
#include "tests/support/guard.h"
#include "tests/support/temp.h"

#define KT KT_BUILD_DIR "/kt "
#define MODEL KT_SOURCE_DIR "/datasets/models/tiny-moe"
#define GOLDEN KT_TEST_DATA "/golden/qwen3_moe-c"

/* Run a shell command; returns the exit code, *out gets both streams (malloc'd). */
static int run(const char *command, char **out) {
    char line[4096];
    size_t size = 0, got;
    FILE *pipe;
    int status;

    snprintf(line, sizeof line, "%s 2>&1", command);
    pipe = popen(line, "r");
    cr_assert(pipe);
    *out = calloc(1, 1 << 20);
    while ((got = fread(*out + size, 1, (1 << 20) - 1 - size, pipe)) > 0) size += got;
    status = pclose(pipe);
    cr_assert(WIFEXITED(status), "%s: did not exit", command);
    return WEXITSTATUS(status);
}

static void expect(const char *command, int code, const char *words) {
    char *out;
    int got = run(command, &out);

    cr_expect_eq(got, code, "%s: exit code %d, expected %d: %s", command, got, code, out);
    cr_expect(strstr(out, words), "%s: '%s' lacks '%s'", command, out, words);
    free(out);
}

/* Rates of the same bytes, and the words that people read. */
Test(kt_commands, bench_load_compares_loading_with_reading, .timeout = 60) {
    static const char *const rates[] = {"read_gbs", "copied_gbs", "loaded_gbs"};
    kt_json_doc *doc = NULL;
    kt_err err = {KT_OK, ""};
    char *out;

    cr_assert_eq(run("(" KT "bench " MODEL " --load -r 2 --table '' --json 2>/dev/null)", &out), 0,
                 "%s", out);
    cr_assert_eq(kt_json_parse(out, strlen(out), NULL, &doc, &err), KT_OK, "%s: %s", err.message,
                 out);
    for (int i = 0; i < 3; i++)
        cr_expect(kt_json_double(kt_json_get(kt_json_root(doc), rates[i]), 0) > 0, "%s: %s",
                  rates[i], out);
    cr_expect_gt(kt_json_int(kt_json_get(kt_json_root(doc), "stored_bytes"), 0), 1 << 20);
    cr_expect_eq(kt_json_int(kt_json_get(kt_json_root(doc), "turns"), 0), 2);
    kt_json_destroy(doc);
    free(out);
    expect(KT "bench " MODEL " --load -r 1 --table ''", 0, " % of copying; ");
    expect(KT "bench --synthetic qwen3-30b --layers 1 --load", 2, "--load reads files");
    expect(KT "bench nobody --load", 1, "nobody");
}

/* Five shares, a row of each, also in the file; wrong numbers are called wrong. */
Test(kt_commands, bench_hybrid_holds_steps_against_their_parts, .timeout = 120) {
    const kt_json *rows;
    kt_json_doc *doc = NULL;
    char folder[256], command[1024], *out, *text;
    size_t size;
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    snprintf(command, sizeof command,
             KT "bench " KT_TEST_DATA "/golden/qwen3_moe-a --device emulated --hybrid -n 1 -r 1 "
                "-c 64 --table '' --out %s/x.json",
             folder);
    cr_assert_eq(run(command, &out), 0, "%s", out);
    cr_expect_not_null(strstr(out, "compute wrong numbers"), "%s", out);
    cr_expect_not_null(strstr(out, "hybrid_decode_75 "), "%s", out);
    free(out);
    snprintf(command, sizeof command, "%s/x.json", folder);
    cr_assert_eq(kt_file_read(command, 1 << 20, &text, &size, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_json_parse(text, size, NULL, &doc, &err), KT_OK, "%s", err.message);
    rows = kt_json_get(kt_json_root(doc), "rows");
    cr_assert_eq(kt_json_length(rows), 5);
    for (size_t i = 0; i < 5; i++) {
        const kt_json *row = kt_json_at(rows, i);
        const double whole = kt_json_double(kt_json_get(row, "whole_ms"), 0),
                     device = kt_json_double(kt_json_get(row, "without_cpu_ms"), 0),
                     cpu = kt_json_double(kt_json_get(row, "without_device_ms"), 0),
                     measured = kt_json_double(kt_json_get(row, "measured"), 0);
        cr_expect(whole > 0 && device > 0 && cpu > 0, "%s", text);
        cr_expect_float_eq(measured, whole / (device > cpu ? device : cpu), 1e-3, "%s", text);
        cr_expect_eq(kt_json_bool(kt_json_get(row, "ok"), false), measured <= 1.1, "%s", text);
    }
    kt_json_destroy(doc);
    free(text);
    kt_temp_remove(folder);
    expect(KT "bench " MODEL " --hybrid", 2, "--hybrid needs a --device");
    expect(KT "bench " MODEL " --hybrid --device emulated --gpu-experts 4", 2, "no --gpu-experts");
    expect(KT "bench " MODEL " --hybrid --device emulated --load", 2, "measures nothing else");
    expect(KT "bench " MODEL " --out x", 2, "--out goes with --hybrid");
}

/* Both ways make the same tokens; members that scripts read. */
Test(kt_commands, bench_shows_generating_with_drafts_and_without, .timeout = 60) {
    static const char *const above_0[] = {"plain_tokens_per_second", "drafted_tokens_per_second",
                                          "steps", "gain"};
    kt_json_doc *doc = NULL;
    char *out;

    cr_assert_eq(run("(" KT "bench " MODEL " --speculate ngram --draft 4 --draft-text " MODEL
                     "/sample.txt -p 40 -n 30 -r 1 --deterministic --table '' --json 2>/dev/null)",
                     &out),
                 0, "%s", out);
    cr_assert_eq(kt_json_parse(out, strlen(out), NULL, &doc, NULL), KT_OK, "%s", out);
    for (size_t i = 0; i < sizeof above_0 / sizeof *above_0; i++)
        cr_expect_gt(kt_json_double(kt_json_get(kt_json_root(doc), above_0[i]), 0), 0, "%s: %s",
                     above_0[i], out);
    cr_expect_eq(kt_json_int(kt_json_get(kt_json_root(doc), "first_difference"), 0), -1, "%s", out);
    kt_json_destroy(doc);
    free(out);
    expect(KT "bench " MODEL " --speculate ngram", 2, "--speculate goes with --draft-text");
    expect(KT "generate " MODEL " -p a --speculate much", 2,
           "--speculate is 'much', expected off, ngram, mtp or auto");
    expect(KT "generate " MODEL " -p a --speculate ngram --draft 17", 2, "expected 1 to 16");
}

Test(kt_commands, wrong_command_lines_exit_with_2) {
    expect(KT "parrot", 2, "'parrot' is not a command");
    expect(KT "generate", 2, "no model folder");
    expect(KT "generate " MODEL, 2, "give one of --prompt");
    expect(KT "generate " MODEL " -p a --prompt-file b", 2, "give one of --prompt");
    expect(KT "generate " MODEL " more -p a", 2, "'more' is one argument too many");
    expect(KT "generate " MODEL " --colour -p a", 2, "there is no option '--colour'");
    expect(KT "generate " MODEL " --kt-weight-path x -p a", 2, "a model is one folder");
    expect(KT "generate " MODEL " --kt-cpuinfer=x -p a", 2, "--threads is 'x'");
    expect(KT "generate " MODEL " --temp=x -p a", 2, "--temperature is 'x'");
    expect(KT "generate -m", 2, "-m needs a value (MODEL)");
    expect(KT "generate --model /a " MODEL " -p a", 2, "is one argument too many");
    expect(KT "generate -m /a --model-path /b -p a", 2, "--model-path is '/b', but MODEL is '/a'");
    expect(KT "generate " MODEL " -ngl 99 -p a", 2, "no option '-ngl 99': --device cuda takes");
    expect(KT "generate " MODEL " --tp", 2, "--tp needs a value");
    expect(KT "generate " MODEL " --tp=2 -p a", 2, "several devices take layers");
    expect(KT "generate " MODEL " --n-cpu-moe 3 -p a", 2, "--gpu-experts says how many");
    expect(KT "generate " MODEL " --max-num-seqs 3 -p a", 2, "no option '--max-num-seqs'");
    expect(KT "models --model " MODEL, 2, "there is no option '--model'");
    expect(KT "generate " MODEL " --device gpu -p a", 2, "device 'gpu', expected cpu, cuda");
    expect(KT "generate " MODEL " -p a -n x", 2, "--max-tokens is 'x', expected a whole number");
    expect(KT "generate " MODEL " -p a -n 0", 2, "--max-tokens is 0, expected 1 to");
    expect(KT "generate " MODEL " -p a --top-p 1.5", 2, "--top-p is 1.5, expected 0 to 1");
    expect(KT "generate " MODEL " -p a --weights q4", 2, "--weights is 'q4'");
    expect(KT "generate " MODEL " -p a --weights wf32", 2, "--weights is 'wf32', expected native");
    expect(KT "generate " MODEL " -p a --weights w4g32w4g32w4g32w4g32", 2, "--weights is");
    expect(KT "generate " MODEL " -p a --weights Q4_K", 1, "wq4_k: GGUF blocks are multiplied as");
    expect(KT "bench --synthetic qwen3-30b --layers 49", 1, "expected 1 to 48");
    expect(KT "generate " MODEL " -p a --numa 1", 2, "--numa is '1', expected auto, off or 2 to");
    expect(KT "generate " MODEL " -p a --numa 2x", 2, "--numa is '2x'");
    expect(KT "generate " MODEL " -p", 2, "--prompt needs a value");
    expect(KT "generate " MODEL " --raw=yes -p a", 2, "--raw takes no value");
    expect(KT "logits " MODEL " --tokens 1", 2, "--out is missing");
    expect(KT "bench " MODEL " --synthetic qwen3-30b", 2, "either a model folder or --synthetic");
    expect(KT "bench " MODEL " --layers 2", 2, "--layers goes with --synthetic");
    expect(KT "bench --synthetic qwen3-30b --layers 1 --perplexity x", 2, "no tokenizer");
    expect(KT "bench " MODEL " --parallel 0", 2, "--parallel is 0, expected 1 to 256");
    expect(KT "serve", 2, "MODEL is missing");
    expect(KT "serve " MODEL " --synthetic qwen3-30b", 2, "either MODEL or --synthetic");
    expect(KT "serve " MODEL " --layers 2", 2, "--layers goes with --synthetic");
    expect(KT "serve --synthetic qwen3-30b --chat-template x", 2, "no chat for --chat-template");
    expect(KT "version --help", 0, "usage: kt version");
    expect(KT "help bench", 0, "usage: kt bench");
    expect(KT "--version", 0, "kt 0.");
    expect(KT, 0, "generate");
}

Test(kt_commands, failures_exit_with_1_and_name_the_culprit) {
    expect(KT "generate /no/such/model -p a", 1, "/no/such/model");
    expect(KT "generate " GOLDEN " -p a", 1, "tokenizer.json");
    expect(KT "logits " GOLDEN " --tokens 1,,2 --out /tmp/x", 1, "expected ids between commas");
    expect(KT "logits " GOLDEN " --tokens 256 --out /tmp/x", 1,
           "token 0 is 256, expected 0 to 255");
    expect(KT "logits " GOLDEN " --tokens-from /no/file --out /tmp/x", 1, "/no/file");
    expect(KT "logits " GOLDEN " --tokens 1 --table '' --out /no/folder/x", 1, "/no/folder/x");
    expect(KT "doctor /no/such/model", 1, "no such folder");
    expect(KT "generate " MODEL "/config.json -p a", 1, "a file, expected the folder");
}

/* The road of a user: which inputs count, what the format then loses, and a model served so. */
Test(kt_commands, importance_is_written_reported_and_used, .timeout = 180) {
    char folder[PATH_MAX], command[2 * PATH_MAX];

    expect(KT "quality", 2, "no model folder");
    expect(KT "quality " MODEL " -w q7", 2, "--weights is 'q7', expected native");
    expect(KT "quality " MODEL " -w native", 1, "nothing is lost");
    expect(KT "quality " MODEL " -w q4_k", 1, "never made");
    expect(KT "quality " MODEL " --importance /no/file", 1, "/no/file");
    expect(KT "quality " MODEL, 0, "model.layers.3.mlp.experts.*.down_proj.weight");
    expect(KT "quality " MODEL " --all", 0, "model.layers.3.mlp.experts.15.down_proj.weight");
    expect(KT "importance " MODEL " --out /tmp/x", 2, "--text is missing");
    expect(KT "importance " MODEL " --text /no/file --out /tmp/x --table ''", 1, "/no/file");
    expect(KT "importance " MODEL " --text /no/file --out /tmp/x --max-tokens 50", 2,
           "--max-tokens is 50, expected at least a --window (512)");
    expect(KT "importance " MODEL " --text " MODEL "/sample.txt --out /no/folder/x --max-tokens 600"
              " --table ''",
           1, "/no/folder/x");
    kt_temp_make(folder, sizeof folder);
    snprintf(command, sizeof command,
             KT "importance " MODEL " --text " MODEL
                "/sample.txt --max-tokens 1100 --table '' --out %s/i",
             folder);
    expect(command, 0, "2 windows of 512 tokens, perplexity");
    snprintf(command, sizeof command, KT "quality " MODEL " --importance %s/i", folder);
    expect(command, 0, "weighted");
    snprintf(command, sizeof command,
             KT "generate " MODEL " -p 'In that day' -n 6 -w int4 --table '' --importance %s/i",
             folder);
    expect(command, 0, "6 tokens");
    snprintf(command, sizeof command,
             KT "generate " MODEL " -p 'In that day' -n 6 --table '' --importance %s/i", folder);
    expect(command, 1, "not quantised");
    kt_temp_remove(folder);
}

Test(kt_commands, generate_answers_and_stops_at_eos) {
    expect(
        "printf '<|im_start|>user\\nWho wrote Hamlet?<|im_end|>\\n<|im_start|>assistant\\n' | " KT
        "generate " MODEL " --quiet -f /dev/stdin",
        0, "William Shakespeare.\n");
    expect(KT "generate " MODEL " -p 'In that day shall' -n 6 --table ''", 0, "6 tokens");
}

/* A GGUF file has no generation_config.json beside it, nor is it a folder. */
Test(kt_commands, generate_takes_gguf_files) {
    char path[PATH_MAX], command[PATH_MAX + 200];

    if (!kt_shared_path("data/gguf/qwen3moe-q2_k/model.gguf", path, sizeof path))
        cr_skip_test("the shared data is absent");
    snprintf(command, sizeof command, KT "generate %s -p a -n 2 --table '' --context 64", path);
    expect(command, 0, "1 prompt tokens");
}

Test(kt_commands, json_outputs_parse) {
    static const char *const commands[] = {
        KT "generate " MODEL " -p 'Blessed are the' -n 5 --json --quiet",
        KT "generate " MODEL
           " -p 'Blessed' -n 5 --json --quiet --temperature 1 --top-k 50 --seed 3",
        "KT_LOG=off " KT "bench " MODEL " -p 16 -n 4 -r 2 --json --table ''",
        "KT_LOG=off " KT "bench " MODEL " -p 16 -n 4 -r 1 --ops --json --table ''",
        "KT_LOG=off " KT "bench " MODEL " -p 0 -n 4 -r 1 --parallel 3 -d 70 --json --table ''",
        KT "doctor " MODEL " --json",
        KT "quality " MODEL " --weights w4g64 --json",
        KT "version --json"};

    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char *out;
        kt_json_doc *doc = NULL;
        kt_err err = {KT_OK, ""};
        cr_expect_eq(run(commands[i], &out), 0, "%s: %s", commands[i], out);
        cr_expect_eq(kt_json_parse(out, strlen(out), NULL, &doc, &err), KT_OK, "%s: %s in %s",
                     commands[i], err.message, out);
        if (strstr(commands[i], "--parallel")) cr_expect(strstr(out, "\"tg4x3@d70\""), "%s", out);
        kt_json_destroy(doc);
        free(out);
    }
}

static float *read_logits(const char *path, const char *name, int rank, const int64_t *shape) {
    kt_checkpoint *c;
    const kt_tensor *t;
    float *copy;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_checkpoint_open_file(path, &c, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_checkpoint_need(c, name, rank, shape, &t, &err), KT_OK, "%s", err.message);
    cr_assert_eq(t->dtype, KT_DTYPE_F32);
    copy = malloc(t->bytes);
    memcpy(copy, t->data, t->bytes);
    kt_checkpoint_close(c);
    return copy;
}

/* The published tokens through the program: same shapes as expected.safetensors; with
 * --deterministic neither chunks nor threads change a bit of the file. */
/* No expert can have more rows than a step. */
Test(kt_commands, steps_have_the_rows_that_were_asked_for) {
    static const char rows[] = " rows each, ";
    const char *most;
    char *out;

    cr_assert_eq(run(KT "bench " MODEL " -p 64 -n 1 -r 1 --ops --table '' --chunk 16", &out), 0,
                 "%s", out);
    most = strstr(out, rows);
    cr_assert(most, "%s", out);
    cr_expect_leq(atoi(most + strlen(rows)), 16, "%s", out);
    free(out);
}

Test(kt_commands, logits_writes_what_was_asked) {
    const int64_t shape[] = {40, 256}, hidden[] = {5, 40, 64}, two[] = {2, 256};
    char folder[PATH_MAX], command[3 * PATH_MAX], path[PATH_MAX + 32], *out;
    float *whole, *parts, *h, *few;

    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/out.safetensors", folder);
    snprintf(command, sizeof command,
             KT "logits " GOLDEN " --tokens-from " GOLDEN "/expected.safetensors --hidden "
                "--weights int8 --deterministic --out %s",
             path);
    cr_expect_eq(run(command, &out), 0, "%s", out);
    free(out);
    whole = read_logits(path, "logits", 2, shape);
    h = read_logits(path, "hidden", 3, hidden);
    snprintf(command + strlen(command), sizeof command - strlen(command),
             " --prefill-chunk 7 --threads 1 --against %s", path);
    cr_expect_eq(run(command, &out), 0, "%s", out);
    cr_expect(strstr(out, "off by 0 of") && strstr(out, "; 0 of 40 tokens"), "%s", out);
    free(out);
    parts = read_logits(path, "logits", 2, shape);
    cr_expect_eq(memcmp(whole, parts, sizeof *whole * 40 * 256), 0);
    snprintf(command, sizeof command,
             KT "logits " GOLDEN " --tokens-from " GOLDEN "/expected.safetensors -w int4 -o "
                "%s.int4 --against %s",
             path, path);
    cr_expect_eq(run(command, &out), 0, "%s", out);
    cr_expect(!strstr(out, "off by 0 of") && strstr(out, "; perplexity"), "%s", out);
    free(out);
    snprintf(command, sizeof command,
             KT "logits " GOLDEN " --tokens 3 -w int8 -o %s.one --against %s", path, path);
    cr_expect_neq(run(command, &out), 0, "one token against forty: %s", out);
    free(out);
    snprintf(command, sizeof command, KT "logits " GOLDEN " --tokens 3,17 -w int8 -o %s", path);
    cr_expect_eq(run(command, &out), 0, "%s", out);
    free(out);
    few = read_logits(path, "logits", 2, two);
    free(whole);
    free(parts);
    free(h);
    free(few);
    kt_temp_remove(folder);
}
