/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/engine_flags.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/command.h"
#include "runtime/cli/interrupt.h"
#include "dispatch/device/device_word.h"
#include "runtime/model/node_plan.h"

int kt_size_parse(const char *text, size_t *out) {
    static const char units[] = "KMGT";
    const char *unit;
    char *end;
    double bytes;

    errno = 0;
    bytes = strtod(text, &end);
    unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (errno || end == text || !unit || !isdigit((unsigned char)*text)) return -1;
    end++;
    if (strcmp(end, "") != 0 && strcmp(end, "B") != 0 && strcmp(end, "iB") != 0) return -1;
    for (const char *u = units; u <= unit; u++) bytes *= 1024;
    if (!(bytes >= 1 && bytes < 0x1p62)) return -1;
    *out = (size_t)bytes;
    return 0;
}

char *kt_kv_line(const kt_engine_info *info, char *out, size_t out_bytes) {
    snprintf(out, out_bytes, "cache %s: %.1f MB for %lld tokens", kt_kv_name(info->cache_format),
             (double)info->cache_bytes * 1e-6, (long long)info->max_context);
    if (info->cache_format != KT_W_BF16) {
        size_t used = strlen(out);
        snprintf(out + used, out_bytes - used, ", %.0f %% of bf16 (saves %.1f MB)",
                 100.0 * (double)info->cache_bytes / (double)info->cache_bytes_bf16,
                 (double)(info->cache_bytes_bf16 - info->cache_bytes) * 1e-6);
    }
    return out;
}

int kt_device_flags_check(const kt_usage *usage, const char *device, const kt_device_wish *wish) {
    const kt_hot_request request = {
        .amount = wish->gpu_experts, .strategy = wish->expert_placement, .load = wish->expert_load};
    kt_device_options options[KT_DEVICES_MOST] = {{0}};
    kt_stream_word prefill;
    kt_err err = {KT_OK, ""};
    int n;

    if (kt_device_words_parse(device, options, &n, &err) != KT_OK ||
        kt_hot_request_check(&request, &err) != KT_OK ||
        kt_stream_word_parse(wish->prefill_offload, &prefill, &err) != KT_OK)
        return kt_usage_fail(usage, "%s", err.message);
    return 0;
}

int kt_engine_flags_options(const kt_engine_flags *flags, const kt_usage *usage,
                            const char *model_dir, const kt_log *log, kt_engine_options *out) {
    int quant = kt_quant_parse(flags->weights);

    *out = (kt_engine_options){.model_dir = model_dir,
                               .importance = flags->importance,
                               .table_path = flags->table,
                               .n_threads = (int)flags->threads,
                               .max_context = flags->context,
                               .max_chunk = flags->chunk,
                               .tokenizer_optional = flags->tokenizer_optional,
                               .exact_acts = flags->exact_acts,
                               .expand_rows = flags->expand_rows,
                               .deterministic = flags->deterministic,
                               .allow_nonfinite = flags->allow_nonfinite,
                               .strict_tokenizer = flags->strict_tokenizer,
                               .device = flags->device,
                               .gpu_experts = flags->wish.gpu_experts,
                               .expert_placement = flags->wish.expert_placement,
                               .expert_load = flags->wish.expert_load,
                               .prefill_offload = flags->wish.prefill_offload,
                               .device_split = flags->wish.split,
                               .experts_only = flags->wish.experts_only,
                               .synthetic = flags->synthetic,
                               .synthetic_layers = flags->layers,
                               .log = log};
    if (quant < 0)
        return kt_usage_fail(usage, "--weights is '%s', expected " KT_QUANT_WORDS, flags->weights);
    out->weights = (kt_quant)quant;
    out->kv = kt_kv_parse(flags->kv);
    if (out->kv == KT_W_NONE)
        return kt_usage_fail(usage, "--kv is '%s', expected bf16, fp8 or int8", flags->kv);
    if (flags->kv_memory && kt_size_parse(flags->kv_memory, &out->kv_memory) != 0)
        return kt_usage_fail(usage, "--kv-memory is '%s', expected a size such as 512M or 24G",
                             flags->kv_memory);
    if (flags->kv_host && kt_size_parse(flags->kv_host, &out->kv_host) != 0)
        return kt_usage_fail(usage, "--kv-host is '%s', expected a size such as 512M or 24G",
                             flags->kv_host);
    out->numa = kt_numa_parse(flags->numa);
    if (out->numa < 0)
        return kt_usage_fail(usage, "--numa is '%s', expected auto, off or 2 to %d", flags->numa,
                             KT_MOE_MAX_NODES);
    return kt_device_flags_check(usage, flags->device, &flags->wish);
}

int kt_engine_flags_load(const kt_engine_flags *flags, const kt_usage *usage, const char *model_dir,
                         const kt_log *log, kt_engine **out) {
    kt_engine_options options;
    kt_err err = {KT_OK, ""};
    int code = kt_engine_flags_options(flags, usage, model_dir, log, &options);

    *out = NULL;
    if (code != 0) return code;
    options.cancel = kt_interrupted;
    return kt_engine_create(&options, out, &err) == KT_OK ? 0 : kt_command_fail(&err);
}
