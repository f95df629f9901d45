/* kttune compile: every GPU kernel for every GPU, without one. SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "dispatch/device/cuda_compiler.h"
#include "tuner/cli/tune_options.h"
#include "tuner/cli/verb.h"

enum { MOST_REGISTERS = 255 };

typedef struct compile_report {
    const char *targets, *only;
    bool all, json;
    char folder[512]; /* "" = no cache */
    kt_cuda_compiler *compiler;
    kt_json_writer w;
    int n, n_bad, n_cached;
    double ms;
} compile_report;

static bool is_listed(const char *list, const char *name) {
    const size_t size = strlen(name);

    if (!list) return true;
    for (const char *at = list; *at;) {
        const size_t n = strcspn(at, ",");
        if (n == size && memcmp(at, name, n) == 0) return true;
        at += n + (at[n] == ',');
    }
    return false;
}

/* One figure with its bar. */
static void row(compile_report *r, const char *name, double measured, double bar, bool at_least,
                const char *unit) {
    const bool ok = at_least ? measured >= bar : measured <= bar;

    r->n++;
    r->n_bad += !ok;
    if (r->json) {
        kt_json_begin_object(&r->w);
        kt_json_add_string(&r->w, "name", name);
        kt_json_add_fixed(&r->w, "measured", measured, 0);
        kt_json_add_fixed(&r->w, "bar", bar, 0);
        kt_json_add_string(&r->w, "unit", unit);
        kt_json_add_bool(&r->w, "ok", ok);
        kt_json_end_object(&r->w);
    } else if (!ok || !r->all) {
        printf("%-76s %4.0f %-13s bar %s %3.0f  %s\n", name, measured, unit,
               at_least ? ">=" : "<=", bar, ok ? "ok" : "MISSED");
    }
}

static void config_text(const kt_cuda_kernel *k, const kt_config *c, char *out, size_t bytes) {
    size_t n = 0;

    out[0] = 0;
    for (int32_t i = 0; i < k->param_count && n < bytes; i++)
        n += (size_t)snprintf(out + n, bytes - n, "%s%s=%d", i ? "," : "", k->params[i].name,
                              (int)c->value[i]);
}

static kt_status report_entries(compile_report *r, const kt_cuda_kernel *k, const kt_config *c,
                                const kt_cuda_target *t, const kt_cubin *code, kt_err *err) {
    static const char *const opcode_names[KT_OPCODE_COUNT] = {"HMMA", "IMMA", "QMMA", "HGMMA",
                                                              "QGMMA", "ACQBULK"};
    char config[96], name[200], unit[32];
    kt_cubin_facts facts;

    config_text(k, c, config, sizeof config);
    for (int i = 0; i < k->entry_count; i++) {
        KT_TRY(kt_cubin_inspect(code->data, code->bytes, k->entry[i].name, &facts, err));
        snprintf(name, sizeof name, "sm_%s %s{%s}", t->name, k->entry[i].name, config);
        row(r, name, facts.frame_bytes, 0, false, "bytes spilled");
        row(r, name, facts.registers, MOST_REGISTERS, false, "registers");
        if (t->sm >= KT_OVERLAP_SM)
            row(r, name, facts.opcodes[KT_OPCODE_ACQBULK], 1, true, "x ACQBULK");
        if (i == 0 && code->is_serial) row(r, name, 1, 0, false, "serial products");
        for (int o = 0; i == 0 && o < KT_OPCODE_COUNT; o++) {
            if (!(k->needs_opcodes >> o & 1)) continue;
            snprintf(unit, sizeof unit, "x %s", opcode_names[o]);
            row(r, name, facts.opcodes[o], 1, true, unit);
        }
    }
    return KT_OK;
}

static kt_status compile_one(compile_report *r, const kt_cuda_kernel *k, const kt_config *c,
                             const kt_cuda_target *t, kt_err *err) {
    kt_cubin code;
    kt_status st;

    KT_TRY(kt_cuda_compile(r->compiler, k, c, t, *r->folder ? r->folder : NULL, &code, err));
    r->n_cached += code.is_cached;
    r->ms += code.ms;
    st = report_entries(r, k, c, t, &code, err);
    kt_cubin_free(&code);
    return st;
}

/* The next config in the order of the values; false after the last. */
static bool next_config(const kt_cuda_kernel *k, int32_t *index, kt_config *c) {
    for (int32_t i = 0; i < k->param_count; i++) {
        if (++index[i] < k->params[i].count) {
            c->value[i] = k->params[i].values[index[i]];
            return true;
        }
        index[i] = 0;
        c->value[i] = k->params[i].values[0];
    }
    return false;
}

static kt_status compile_configs(compile_report *r, const kt_cuda_kernel *k,
                                 const kt_cuda_target *t, const volatile sig_atomic_t *stop,
                                 kt_err *err) {
    int32_t index[KT_MAX_PARAMS] = {0};
    kt_config c = kt_cuda_initial(k);

    if (!r->all) return compile_one(r, k, &c, t, err);
    for (int32_t i = 0; i < k->param_count; i++) c.value[i] = k->params[i].values[0];
    do {
        if (*stop) return kt_fail(err, KT_E_CANCELLED, "interrupted");
        if (!k->refuse(&c, t)) KT_TRY(compile_one(r, k, &c, t, err));
    } while (next_config(k, index, &c));
    return KT_OK;
}

static kt_status compile_all(compile_report *r, const volatile sig_atomic_t *stop, kt_err *err) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        for (size_t t = 0; t < kt_cuda_target_count; t++) {
            const kt_cuda_kernel *k = kt_builtin_cuda_kernels[i];
            if (!is_listed(r->only, k->name) || !is_listed(r->targets, kt_cuda_targets[t].name) ||
                !(k->targets >> t & 1) || !kt_cuda_compiler_knows(r->compiler, &kt_cuda_targets[t]))
                continue;
            KT_TRY(compile_configs(r, k, &kt_cuda_targets[t], stop, err));
        }
    if (r->n == 0)
        return kt_fail(err, KT_E_INVALID,
                       "nothing to compile: --kernel and --sm name no kernel and target together "
                       "that %s knows",
                       kt_cuda_compiler_name(r->compiler));
    return KT_OK;
}

static int finish(compile_report *r, kt_status st, const kt_err *err) {
    if (st != KT_OK) {
        const bool is_compiler = st == KT_E_NOT_FOUND || st == KT_E_UNSUPPORTED;
        kt_json_writer_deinit(&r->w);
        return is_compiler ? (kt_verb_fail(err), KT_TUNE_RESOURCE) : kt_verb_fail(err);
    }
    if (r->json) {
        kt_json_end_array(&r->w);
        printf("%s\n", kt_json_writer_text(&r->w, NULL));
    } else {
        printf("%s: %d figures, %d missed; %.1f s, %d from the cache\n",
               kt_cuda_compiler_name(r->compiler), r->n, r->n_bad, r->ms * 1e-3, r->n_cached);
    }
    kt_json_writer_deinit(&r->w);
    return r->n_bad ? KT_TUNE_REGRESSION : KT_TUNE_OK;
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    compile_report r = {0};
    bool no_cache = false;
    const kt_switch switches[] = {
        {"sm", KT_SWITCH_TEXT, &r.targets, "LIST", "only these GPUs: 80,89,90a,120; default all"},
        {"kernel", KT_SWITCH_TEXT, &r.only, "LIST", "only these kernels; default all"},
        {"all-configs", KT_SWITCH_FLAG, &r.all, NULL,
         "every legal combination of parameters, not the initial one; prints what is missed"},
        {"no-cache", KT_SWITCH_FLAG, &no_cache, NULL, "compile anew, and keep nothing"},
        {"json", KT_SWITCH_FLAG, &r.json, NULL, "print a JSON array of the rows"}};
    const kt_verb_usage usage = {
        "compile", "",
        "Compile the GPU kernels for every GPU they are for. It needs NVRTC, but no GPU: what is\n"
        "printed is read from the machine code. Exit code 5: a bar is missed (a kernel spills,\n"
        "or lacks the tensor core instructions that it is for); 8: there is no NVRTC.",
        "  kttune compile --sm 80,120\n  kttune compile --kernel moe_decode --all-configs\n"};
    kt_err err = {KT_OK, ""};
    int code = kt_switches_parse(&usage, switches, 5, argc, argv, NULL, 0, NULL);
    kt_status st;

    if (code >= 0) return code;
    st = kt_cuda_compiler_open(&r.compiler, &err);
    if (st == KT_OK && !no_cache && kt_cubin_folder(r.folder, sizeof r.folder, NULL) != KT_OK)
        r.folder[0] = 0;
    if (r.json) kt_json_begin_array(&r.w);
    if (st == KT_OK) st = compile_all(&r, context->stop, &err);
    code = finish(&r, st, &err);
    kt_cuda_compiler_close(r.compiler);
    return code;
}

const kt_verb kt_verb_compile = {.name = "compile",
                                 .summary = "compile the GPU kernels for every GPU, without one",
                                 .run = run,
                                 .finishes_on_signal = true};
