/* The options every command that loads a model has. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_ENGINE_FLAGS_H
#define KT_RUNTIME_ENGINE_FLAGS_H

#include "base/log.h"
#include "runtime/cli/options.h"
#include "runtime/device/device_plan.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/option_words.h"

typedef struct kt_engine_flags {
    const char *weights, *importance, *kv, *kv_memory, *kv_host, *table, *numa,
        *synthetic;      /* synthetic: instead of a model folder */
    const char *device;  /* NULL = the CPU alone */
    kt_device_wish wish; /* memory and logits are not flags of it */
    int64_t threads, context, chunk, layers, expand_rows;
    bool tokenizer_optional, exact_acts, deterministic, allow_nonfinite, strict_tokenizer;
} kt_engine_flags;

#define KT_ENGINE_FLAGS_INITIAL \
    ((kt_engine_flags){.weights = "native", .kv = "bf16", .numa = "auto"})

#define KT_KV_MEMORY_HELP                                                                    \
    "memory for the cache of all sequences, such as 512M or 24G (default: what one context " \
    "takes, "                                                                                \
    "and more where memory is free)"

#define KT_KV_HOST_HELP                                                                     \
    "the host's memory for pages behind those that a device keeps, such as 8G: what is no " \
    "longer there comes back from here (default: none)"

/* A device beside the CPU; wish is a kt_device_wish. */
#define KT_DEVICE_OPTIONS(device, wish)                                                            \
    KT_OPTION_STRING("device", 0, &(device), "DEVICE",                                             \
                     "what computes beside the CPU: cpu (default: nothing), cuda, cuda:N, "        \
                     "cuda:0,1, cuda:all or emulated (runtime/device/README.md)"),                 \
        KT_OPTION_STRING("device-split", 0, &(wish).split, "SHARES",                               \
                         "of several devices: shares of the layers, such as 3,1 (default: as "     \
                         "their memory is free)"),                                                 \
        KT_OPTION_STRING("gpu-experts", 0, &(wish).gpu_experts, "N",                               \
                         "experts on the device: a number of each layer, a part such as 25%, or "  \
                         "auto (default: what fits)"),                                             \
        KT_OPTION_STRING("expert-placement", 0, &(wish).expert_placement, "HOW",                   \
                         "which: uniform (default), frequency, front-loading, random or learned"), \
        KT_OPTION_STRING("expert-load", 0, &(wish).expert_load, "FILE",                            \
                         "of `kt serve --record-workload`: how often each expert was chosen"),     \
        KT_OPTION_STRING("prefill-offload", 0, &(wish).prefill_offload, "ROWS",                    \
                         "steps of so many rows send experts of the CPU to the device: auto "      \
                         "(default: as the table says), off, or rows such as 512"),                \
        KT_OPTION_FLAG("gpu-experts-only", &(wish).experts_only,                                   \
                       "everything but routed experts stays on the CPU")

/* To be placed inside a kt_option array; f is a kt_engine_flags. */
#define KT_ENGINE_OPTIONS(f)                                                                     \
    KT_OPTION_STRING("weights", 'w', &(f).weights, "FORMAT",                                     \
                     "native (as stored, the default), bf16, int8, int4; fp8, f16, w4g64 ... "   \
                     "(runtime/WEIGHTS.md)"),                                                    \
        KT_OPTION_STRING("importance", 0, &(f).importance, "FILE",                               \
                         "of `kt importance`: search INT4 and INT8 scales where inputs count"),  \
        KT_OPTION_STRING("kv", 0, &(f).kv, "FORMAT",                                             \
                         "cache of keys and values: bf16 (default), fp8 or int8"),               \
        KT_OPTION_STRING("kv-memory", 0, &(f).kv_memory, "SIZE", KT_KV_MEMORY_HELP),             \
        KT_OPTION_STRING("kv-host", 0, &(f).kv_host, "SIZE", KT_KV_HOST_HELP),                   \
        KT_OPTION_STRING("table", 0, &(f).table, "FILE",                                         \
                         "dispatch table; \"\" = none (default: this machine's)"),               \
        KT_OPTION_INT("threads", 't', &(f).threads, 0, 1024, "threads (default: one per core)"), \
        KT_OPTION_STRING("numa", 0, &(f).numa, "NODES",                                          \
                         "cut each expert over the memory nodes: auto (default: those of the "   \
                         "threads' cores), off, or 2 to 16 groups of threads"),                  \
        KT_OPTION_FLAG("exact-acts", &(f).exact_acts,                                            \
                       "activations in their finest encoding, weights never rounded again; "     \
                       "slower in prefill"),                                                     \
        KT_OPTION_INT("chunk", 0, &(f).chunk, 0, 1 << 20,                                        \
                      "most rows of a step (default: 512, 2048 where the CPU has tiles)"),       \
        KT_OPTION_INT("expand-rows", 0, &(f).expand_rows, -1, 1 << 20,                           \
                      "latent attention (MLA): make keys and values wide for a sequence with "   \
                      "so many rows in a step (default 0: by estimate; -1: never)"),             \
        KT_OPTION_FLAG("deterministic", &(f).deterministic,                                      \
                       "the same bits in any prefill chunks and on any number of threads"),      \
        KT_OPTION_FLAG("allow-nonfinite", &(f).allow_nonfinite,                                  \
                       "load weights that are NaN or infinite, to look at them"),                \
        KT_OPTION_FLAG("strict-tokenizer", &(f).strict_tokenizer,                                \
                       "refuse a tokenizer that is not the published model's (default: warn)"),  \
        KT_DEVICE_OPTIONS((f).device, (f).wish),                                                 \
        KT_OPTION_INT("context", 'c', &(f).context, 0, 1 << 24,                                  \
                      "longest sequence in tokens (default: the model's)")

/* Are these words of KT_DEVICE_OPTIONS? Prints what is wrong with them; 0 or the exit code to leave
 * with. */
int kt_device_flags_check(const kt_usage *usage, const char *device, const kt_device_wish *wish);

/* What these flags ask for, into *out; nothing is loaded. Prints what is wrong with them; 0 or
 * the exit code to leave with. */
int kt_engine_flags_options(const kt_engine_flags *flags, const kt_usage *usage,
                            const char *model_dir, const kt_log *log, kt_engine_options *out);

/* Load the model with these flags; Ctrl-C, if it is watched (interrupt.h), ends that. Prints
 * what went wrong; 0 or the exit code to leave with. */
int kt_engine_flags_load(const kt_engine_flags *flags, const kt_usage *usage, const char *model_dir,
                         const kt_log *log, kt_engine **out);

/* A number of bytes with its unit, K, M, G or T (powers of 1024, also as MiB or MB), into *out. 0,
 * or -1 when it is none or does not fit. */
int kt_size_parse(const char *text, size_t *out);

/* "cache fp8: 12.3 MB for 4096 tokens, 51 % of bf16": one line about an engine's cache. */
char *kt_kv_line(const kt_engine_info *info, char *out, size_t out_bytes);

#endif
