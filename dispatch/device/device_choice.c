/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/device/device_choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "kernels/cuda/device_weights.h"
#include "kernels/cuda/kt_dev_weights.h"
#include "kernels/formats/format.h"

enum { EIGHT_BIT_INPUTS = 32 }; /* n and k of 8-bit rows are multiples of it */

/* ---- jobs ---- */

static bool is_int8_on_cpu(kt_weight_format format) {
    const kt_format *f = kt_format_find(format);
    return f && f->acts == KT_A_INT8_G32;
}

static bool is_e4m3(kt_weight_format format) {
    return kt_weight_spec_of((int)format).values == KT_CODE_E4M3;
}

kt_device_job kt_device_job_of(const kt_problem *p, bool is_exact) {
    const bool is_gemm = p->op == KT_OP_GEMM;
    const kt_weight_format down = is_gemm || p->down == KT_W_NONE ? p->weights : p->down;
    kt_device_job j = {.op = p->op,
                       .weights = kt_device_weight_format(p->weights),
                       .down = kt_device_weight_format(down),
                       .n = p->n,
                       .k = p->k,
                       .experts = is_gemm || p->experts < 1 ? 1 : p->experts,
                       .topk = is_gemm || p->topk < 1 ? 1 : p->topk,
                       .encodings = KT_CUDA_ROWS_BF16};

    if (is_exact) return j;
    if (is_int8_on_cpu(p->weights) && is_int8_on_cpu(down)) j.encodings |= KT_CUDA_ROWS_INT8;
    if (is_e4m3(j.weights) && is_e4m3(j.down)) j.encodings |= KT_CUDA_ROWS_E4M3;
    return j;
}

static uint32_t job_bit(const kt_device_job *j, bool is_few) {
    if (j->op == KT_OP_GEMM) return is_few ? KT_CUDA_GEMM_FEW : KT_CUDA_GEMM_MANY;
    return is_few ? KT_CUDA_EXPERTS_FEW : KT_CUDA_EXPERTS_MANY;
}

static int64_t most_few(const kt_device_job *j) {
    return j->op == KT_OP_GEMM ? KT_DEVICE_TURNS : KT_DEVICE_FEW;
}

/* ---- choices ---- */

static int format_at(const kt_cuda_kernel *k) {
    for (int i = 0; i < k->param_count; i++)
        if (strcmp(k->params[i].name, "format") == 0) return i;
    return -1;
}

static bool has_value(const kt_param *p, int32_t value) {
    for (int i = 0; i < p->count; i++)
        if (p->values[i] == value) return true;
    return false;
}

/* A kernel without such a parameter is for bfloat16. */
static bool takes_format(const kt_cuda_kernel *k, kt_weight_format format) {
    const int at = format_at(k);
    return at < 0 ? format == KT_W_BF16 : has_value(&k->params[at], (int32_t)format);
}

kt_device_choice kt_device_choice_for(const kt_device_choice *choice, kt_weight_format format) {
    kt_device_choice c = *choice;
    const int at = format_at(c.kernel);

    if (at >= 0) c.config.value[at] = (int32_t)format;
    return c;
}

static const char *refuse_kernel(const kt_cuda_kernel *k, const kt_device_job *j, int64_t rows,
                                 const kt_cuda_target *target) {
    const bool is_few = (k->jobs & job_bit(j, true)) != 0;

    if (!is_few && !(k->jobs & job_bit(j, false))) return "it is not for this job";
    if (is_few && rows > most_few(j)) return "it takes no more than few rows";
    if (!(k->targets >> (target - kt_cuda_targets) & 1)) return "it is not for this GPU";
    if (!takes_format(k, j->weights) || !takes_format(k, j->down))
        return "it does not read these weights";
    if (!(k->rows & j->encodings)) return "it rounds rows to 8 bits where the CPU does not";
    if (k->rows == KT_CUDA_ROWS_BF16) return NULL;
    if (j->has_heads) return "it takes one matrix at a time";
    return j->n % EIGHT_BIT_INPUTS || j->k % EIGHT_BIT_INPUTS ? "sizes are no multiples of 32"
                                                              : NULL;
}

const char *kt_device_choice_refuse(const kt_device_choice *c, const kt_device_job *j, int64_t rows,
                                    const kt_cuda_target *target) {
    const char *why = refuse_kernel(c->kernel, j, rows, target);
    const kt_device_choice up = kt_device_choice_for(c, j->weights),
                           down = kt_device_choice_for(c, j->down);

    if (!why) why = c->kernel->refuse(&up.config, target);
    return why ? why : c->kernel->refuse(&down.config, target);
}

/* The next config in the order of the values, the format apart; false after the last. */
static bool next_config(const kt_cuda_kernel *k, int32_t *index, kt_config *c) {
    const int format = format_at(k);

    for (int i = 0; i < k->param_count; i++) {
        if (i == format) continue;
        if (++index[i] < k->params[i].count) {
            c->value[i] = k->params[i].values[index[i]];
            return true;
        }
        index[i] = 0;
        c->value[i] = k->params[i].values[0];
    }
    return false;
}

int kt_device_choices_of(const kt_device_job *job, int64_t rows, const kt_cuda_target *target,
                         kt_device_choice *out, int most) {
    int n = 0;

    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++) {
        int32_t index[KT_MAX_PARAMS] = {0};
        kt_device_choice c = {.kernel = kt_builtin_cuda_kernels[i]};
        if (refuse_kernel(c.kernel, job, rows, target)) continue;
        for (int v = 0; v < c.kernel->param_count; v++)
            c.config.value[v] = c.kernel->params[v].values[0];
        c = kt_device_choice_for(&c, job->weights);
        do {
            if (kt_device_choice_refuse(&c, job, rows, target)) continue;
            if (out && n < most) out[n] = c;
            n++;
        } while (next_config(c.kernel, index, &c.config));
    }
    return n;
}

bool kt_device_choice_equal(const kt_device_choice *a, const kt_device_choice *b) {
    return a->kernel == b->kernel && memcmp(&a->config, &b->config, sizeof a->config) == 0;
}

/* ---- words ---- */

char *kt_device_config_format(const kt_device_choice *c, char *out, size_t out_bytes) {
    const int format = format_at(c->kernel);
    size_t n = 0;

    out[0] = '\0';
    for (int i = 0; i < c->kernel->param_count && n < out_bytes; i++)
        if (i != format)
            n += (size_t)snprintf(out + n, out_bytes - n, "%s%s=%d", n ? "," : "",
                                  c->kernel->params[i].name, (int)c->config.value[i]);
    return out;
}

static kt_status parse_value(const kt_cuda_kernel *k, const char **at, bool *is_set,
                             kt_config *config, kt_err *err) {
    const size_t name = strcspn(*at, "=,");
    char *end;

    for (int i = 0; i < k->param_count && (*at)[name] == '='; i++) {
        long value;
        if (strlen(k->params[i].name) != name || memcmp(k->params[i].name, *at, name) != 0 ||
            i == format_at(k))
            continue;
        value = strtol(*at + name + 1, &end, 10);
        if (end == *at + name + 1 || (*end && *end != ',') || value < INT32_MIN ||
            value > INT32_MAX || !has_value(&k->params[i], (int32_t)value))
            return kt_fail(err, KT_E_FORMAT, "%s: '%.60s' is no value of it", k->name, *at);
        config->value[i] = (int32_t)value;
        is_set[i] = true;
        *at = *end ? end + 1 : end;
        return KT_OK;
    }
    return kt_fail(err, KT_E_FORMAT, "%s: no parameter '%.40s'", k->name, *at);
}

kt_status kt_device_choice_parse(const char *kernel, const char *config, const kt_device_job *job,
                                 kt_device_choice *out, kt_err *err) {
    bool is_set[KT_MAX_PARAMS] = {false};
    kt_device_choice c = {.kernel = NULL};

    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, kernel) == 0)
            c.kernel = kt_builtin_cuda_kernels[i];
    if (!c.kernel) return kt_fail(err, KT_E_FORMAT, "this build has no kernel '%.40s'", kernel);
    for (const char *at = config; *at;) KT_TRY(parse_value(c.kernel, &at, is_set, &c.config, err));
    for (int i = 0; i < c.kernel->param_count; i++)
        if (!is_set[i] && i != format_at(c.kernel))
            return kt_fail(err, KT_E_FORMAT, "%s: '%.60s' lacks '%s'", kernel, config,
                           c.kernel->params[i].name);
    *out = kt_device_choice_for(&c, job->weights);
    return KT_OK;
}

/* ---- ladders ---- */

static kt_device_choice initial(const char *name, kt_weight_format format) {
    kt_device_choice c = {.kernel = NULL};

    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, name) == 0)
            c.kernel = kt_builtin_cuda_kernels[i];
    c.config = kt_cuda_initial(c.kernel);
    return kt_device_choice_for(&c, format);
}

/* `values`, in order of the parameters, for at most `rows` rows of an expert. */
static void add_rung(const kt_device_job *j, const char *name, const int32_t *values, int n,
                     int64_t rows, kt_device_ladder *out) {
    kt_device_choice c = initial(name, j->weights);
    const int64_t most = rows == INT64_MAX ? rows : rows * j->experts / j->topk;

    memcpy(c.config.value, values, (size_t)n * sizeof *values);
    out->choice[out->n] = c;
    out->most[out->n] = most;
    out->n += most > out->most[out->n - 1];
}

/* Warpgroups: tiles that are twice as wide where weights need no opening, twice as long where they
 * do, so that each is opened half as often; a dense product has fewer tiles, and takes the smaller
 * ones for longer. */
static void add_wide(const kt_device_job *j, const char *name, kt_device_ladder *out) {
    static const int32_t some[] = {128, 128, 4}, wide[] = {128, 256, 4}, tall[] = {256, 128, 4};

    add_rung(j, name, some, 3, j->op == KT_OP_GEMM ? 1024 : 256, out);
    add_rung(j, name, j->weights == KT_W_BF16 ? wide : tall, 3, INT64_MAX, out);
}

bool kt_device_is_few(const kt_cuda_kernel *k) {
    return (k->jobs & (KT_CUDA_GEMM_FEW | KT_CUDA_EXPERTS_FEW)) != 0;
}

void kt_device_ladder_default(const kt_device_job *j, const kt_cuda_target *target,
                              kt_device_ladder *out) {
    static const int32_t tiles[][5] = {{16, 128, 1, 4, 3}, {32, 128, 1, 4, 3}, {64, 128, 2, 2, 3}};
    const bool is_gemm = j->op == KT_OP_GEMM;
    const char *tile_name = is_gemm ? "gemm_tiles" : "moe_tiles";
    const char *wide_name = is_gemm ? "gemm_wgmma" : "moe_wgmma";
    const kt_device_choice by_groups = initial(wide_name, j->weights);
    const bool has_groups = !kt_device_choice_refuse(&by_groups, j, INT64_MAX, target);

    *out = (kt_device_ladder){.n = 1, .most = {most_few(j)}};
    out->choice[0] = initial(is_gemm ? "gemm_decode" : "moe_decode", j->weights);
    if (!is_gemm) add_rung(j, tile_name, tiles[0], 5, 10, out);
    add_rung(j, tile_name, tiles[1], 5, is_gemm ? 32 : 20, out);
    add_rung(j, tile_name, tiles[2], 5, !has_groups ? INT64_MAX : is_gemm ? 128 : 64, out);
    if (has_groups) add_wide(j, wide_name, out);
}

int kt_device_ladder_rung(const kt_device_ladder *l, int64_t rows) {
    int i = 0;

    while (i < l->n - 1 && rows > l->most[i]) i++;
    return i;
}
