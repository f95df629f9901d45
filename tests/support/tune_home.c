/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/support/tune_home.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "dispatch/plan/plan.h"
#include "tests/support/temp.h"

static const char config[] =
    "{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"num_hidden_layers\":2,\"vocab_size\":96,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":32,\"num_experts\":4,"
    "\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,\"max_position_embeddings\":64,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0}";

/* machine.json as `kttune probe` keeps it, as far as it is read again. */
static void write_machine(const kt_tune_home *h) {
    kt_json_writer w = {0};
    char folder[512];
    const char *text;
    size_t size;

    kt_json_begin_object(&w);
    kt_json_key(&w, "fingerprint");
    kt_fingerprint_write(&h->machine, &w);
    kt_json_end_object(&w);
    text = kt_json_writer_text(&w, &size);
    cr_assert(text);
    snprintf(folder, sizeof folder, "%s", h->table);
    *strrchr(folder, '/') = '\0';
    kt_temp_write(folder, "machine.json", text, size);
    kt_json_writer_deinit(&w);
}

void kt_tune_home_make(kt_tune_home *h) {
    kt_ceilings ceilings = {.stream_gbs_1t = 20,
                            .stream_gbs_all = 25,
                            .stream_small_gbs_1t = 18,
                            .cache_knee_bytes = 1 << 20,
                            .peak_scalar_gops = 8,
                            .aa_noise_p95 = 0.01,
                            .threads_all = 2};
    kt_topology topology;
    kt_err err;

    for (int i = 0; i < KT_ISA_COUNT; i++) ceilings.peak_gops[i] = 100;
    memset(h, 0, sizeof *h);
    kt_temp_make(h->folder, sizeof h->folder);
    setenv("XDG_DATA_HOME", h->folder, 1);
    unsetenv("KT_TABLE");
    cr_assert_eq(kt_topology_probe(&topology, &err), KT_OK, "%s", err.message);
    kt_fingerprint_make(&topology, &ceilings, &h->machine);
    cr_assert_eq(kt_table_default_path(&h->machine, "mini", 0, h->table, sizeof h->table, &err),
                 KT_OK, "%s", err.message);
    snprintf(h->journal, sizeof h->journal, "%.*s.journal.jsonl",
             (int)(strlen(h->table) - strlen(".kttable.json")), h->table);
    write_machine(h);
    snprintf(h->model, sizeof h->model, "%s/mini", h->folder);
    cr_assert_eq(mkdir(h->model, 0777), 0);
    kt_temp_write(h->model, "config.json", config, sizeof config - 1);
}

void kt_tune_home_remove(kt_tune_home *h) {
    kt_temp_remove(h->folder);
}

int kt_tune_home_run(const char *command, char **out) {
    enum { MOST = 1 << 22 };
    char line[4096];
    size_t size = 0, got;
    FILE *pipe;
    int status;

    snprintf(line, sizeof line, "{ %s; } 2>&1", command);
    pipe = popen(line, "r");
    cr_assert(pipe);
    *out = calloc(1, MOST);
    while ((got = fread(*out + size, 1, MOST - 1 - size, pipe)) > 0) size += got;
    status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
