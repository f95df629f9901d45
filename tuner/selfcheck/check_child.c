/* Other processes: load on the machine, and this program in a home of its own.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/err.h"
#include "tuner/selfcheck/goal.h"

/* --- load --- */

/* Works in the caches and a little beyond: memory traffic disturbs more than arithmetic. */
static void spin(void) {
    static volatile uint64_t words[1 << 17];
    for (uint64_t i = 0;; i++) words[(i * 8191) & ((1 << 17) - 1)] += i;
}

kt_status kt_hogs_start(kt_hogs *h, int n, kt_err *err) {
    pid_t parent = getpid();

    memset(h, 0, sizeof *h);
    for (int i = 0; i < n && i < 16; i++) {
        pid_t child = fork();
        if (child < 0) {
            kt_hogs_stop(h);
            return kt_fail(err, KT_E_NOMEM, "no process for background load");
        }
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* never outlives us */
            if (getppid() != parent) _exit(0);
            spin();
        }
        h->pid[h->n++] = (int)child;
    }
    return KT_OK;
}

void kt_hogs_stop(kt_hogs *h) {
    for (int i = 0; i < h->n; i++) {
        kill((pid_t)h->pid[i], SIGKILL);
        waitpid((pid_t)h->pid[i], NULL, 0);
    }
    h->n = 0;
}

/* --- a home --- */

static const char mini_config[] =
    "{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"num_hidden_layers\":2,\"vocab_size\":96,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":32,\"num_experts\":4,"
    "\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,\"max_position_embeddings\":64,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0}";

/* machine.json as `kttune probe` keeps it, as far as it is read again; the rotation is kept
 * small. */
static kt_status write_machine(const kt_check *c, const char *folder, kt_err *err) {
    char path[2 * KT_CHECK_PATH_BYTES];
    kt_json_writer w = {0};
    kt_status st;
    const char *text;
    size_t size = 0;

    kt_json_begin_object(&w);
    kt_json_key(&w, "fingerprint");
    kt_fingerprint_write(c->machine, &w);
    kt_json_end_object(&w);
    text = kt_json_writer_text(&w, &size);
    snprintf(path, sizeof path, "%.900s/machine.json", folder);
    st =
        text ? kt_file_write(path, text, size, err) : kt_fail(err, KT_E_NOMEM, "selfcheck: memory");
    kt_json_writer_deinit(&w);
    return st;
}

kt_status kt_check_home_make(const kt_check *c, const char *name, kt_check_home *h, kt_err *err) {
    char class_name[64], path[2 * KT_CHECK_PATH_BYTES];

    kt_machine_class(c->machine, class_name, sizeof class_name);
    if (snprintf(h->folder, sizeof h->folder, "%s/%s", c->scratch, name) >= (int)sizeof h->folder ||
        snprintf(h->model, sizeof h->model, "%s/mini", h->folder) >= (int)sizeof h->model)
        return kt_fail(err, KT_E_INVALID, "%s: path too long", c->scratch);
    mkdir(h->folder, 0777);
    mkdir(h->model, 0777);
    snprintf(h->tables, sizeof h->tables, "%s/kt", h->folder);
    mkdir(h->tables, 0777);
    snprintf(h->tables, sizeof h->tables, "%s/kt/%s", h->folder, class_name);
    mkdir(h->tables, 0777);
    snprintf(h->table, sizeof h->table, "%.900s/mini.kttable.json", h->tables);
    snprintf(h->journal, sizeof h->journal, "%.900s/mini.journal.jsonl", h->tables);
    KT_TRY(write_machine(c, h->tables, err));
    snprintf(path, sizeof path, "%s/config.json", h->model);
    return kt_file_write(path, mini_config, sizeof mini_config - 1, err);
}

static void become(const kt_check *c, const kt_check_home *home, const char *const *arguments) {
    const char *argv[32] = {c->program};
    int nowhere = open("/dev/null", O_RDWR), n = 1;

    while (n < 31 && arguments[n - 1]) {
        argv[n] = arguments[n - 1];
        n++;
    }
    if (nowhere < 0 || dup2(nowhere, 0) < 0 || dup2(nowhere, 1) < 0 || dup2(nowhere, 2) < 0)
        _exit(99);
    setenv("XDG_DATA_HOME", home->folder, 1);
    unsetenv("KT_TABLE");
    execv(c->program, (char *const *)(uintptr_t)argv);
    _exit(98);
}

/* Its end, or that of the goal's time: then it is killed. */
static void await(const kt_check *c, pid_t child, int *status) {
    static const struct timespec nap = {.tv_nsec = 1000000};
    while (waitpid(child, status, WNOHANG) == 0) {
        if (kt_check_stopped(c)) {
            kill(child, SIGKILL);
            waitpid(child, status, 0);
            return;
        }
        nanosleep(&nap, NULL);
    }
}

int kt_check_run(const kt_check *c, const kt_check_home *home, const char *const *arguments,
                 int kill_after_ms, double *seconds) {
    struct timespec nap = {.tv_sec = kill_after_ms / 1000,
                           .tv_nsec = (long)(kill_after_ms % 1000) * 1000000};
    int64_t start = kt_clock_ns();
    int status = 0;
    pid_t child = fork();

    if (child < 0) return -2;
    if (child == 0) become(c, home, arguments);
    if (kill_after_ms >= 0) {
        nanosleep(&nap, NULL);
        kill(child, SIGKILL);
    }
    await(c, child, &status);
    if (seconds) *seconds = (double)(kt_clock_ns() - start) * 1e-9;
    if (!WIFEXITED(status)) return -1;
    return WEXITSTATUS(status) >= 98 ? -2 : WEXITSTATUS(status);
}
