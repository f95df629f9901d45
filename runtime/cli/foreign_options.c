/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/foreign_options.h"

#include <string.h>

#define SAME(name_, ours_) \
    { .name = (name_), .kind = KT_FOREIGN_SAME, .ours = (ours_) }
#define SETS(name_, ours_, value_) \
    { .name = (name_), .kind = KT_FOREIGN_SETS, .ours = (ours_), .detail = (value_) }
#define MODEL(name_) \
    { .name = (name_), .kind = KT_FOREIGN_MODEL, .detail = "MODEL is one folder or file" }
#define FLAG(name_, why_) \
    { .name = (name_), .kind = KT_FOREIGN_FLAG, .detail = (why_) }
#define SWITCH(name_, why_) \
    { .name = (name_), .kind = KT_FOREIGN_SWITCH, .detail = (why_) }
#define VALUE(name_, why_) \
    { .name = (name_), .kind = KT_FOREIGN_VALUE, .detail = (why_) }
#define ONLY(name_, values_, why_, other_)                                              \
    {                                                                                   \
        .name = (name_), .kind = KT_FOREIGN_VALUE, .only = (values_), .detail = (why_), \
        .other = (other_)                                                               \
    }
#define REFUSED(name_, instead_) \
    { .name = (name_), .kind = KT_FOREIGN_REFUSED, .detail = (instead_) }

static const char by_table[] = "kernels are chosen by the dispatch table (kttune)";
static const char counted[] = "memory is counted before loading (kt plan)";
static const char always[] = "it is always so";
static const char by_layers[] = "several devices take layers: --device cuda:0,1 and --device-split";
static const char on_devices[] =
    "--device cuda takes the dense layers, --gpu-experts says how many experts";
static const char by_log[] = "KT_LOG=debug, info or off says what is logged";
static const char packed[] = "weights are packed into memory of their own";

static const kt_foreign_option options[] = {
    /* kt-kernel under SGLang */
    {.name = "--kt-weight-path",
     .kind = KT_FOREIGN_MODEL,
     .detail = "a model is one folder, as it was published; --weights says how the CPU keeps it"},
    SAME("--kt-method", "weights"),
    SAME("--kt-cpuinfer", "threads"),
    SAME("--kt-num-gpu-experts", "gpu-experts"),
    SAME("--kt-expert-placement-strategy", "expert-placement"),
    SAME("--kt-gpu-prefill-token-threshold", "prefill-offload"),
    SETS("--kt-enable-dynamic-expert-update", "expert-placement", "learned"),
    VALUE("--kt-threadpool-count", "threads follow the machine's memory nodes (--numa)"),
    VALUE("--kt-max-deferred-experts-per-token",
          "experts are never deferred, which would change results"),
    REFUSED("--kt-gpu-experts-ratio", "expected --gpu-experts with a part such as 25%"),
    REFUSED("--kt-numa-nodes", "expected --numa auto, off or a number of groups"),
    REFUSED("--init-expert-location", "expected --expert-load FILE of kt serve --record-workload"),
    /* SGLang */
    MODEL("--model-path"),
    MODEL("--model"),
    SAME("--context-length", "context"),
    SAME("--chunked-prefill-size", "chunk"),
    SAME("--max-running-requests", "parallel"),
    SAME("--served-model-name", "model-name"),
    SAME("--tool-call-parser", "tool-parser"),
    SAME("--kv-cache-dtype", "kv"),
    VALUE("--attention-backend", by_table),
    VALUE("--moe-runner-backend", by_table),
    VALUE("--sampling-backend", by_table),
    VALUE("--mem-fraction-static", counted),
    VALUE("--max-total-tokens", "--kv-memory limits the cache"),
    VALUE("--watchdog-timeout", "there is no watchdog"),
    VALUE("--log-level", by_log),
    FLAG("--trust-remote-code", "a model's code is never run"),
    FLAG("--enable-mixed-chunk", always),
    FLAG("--enable-metrics", "/metrics is always there"),
    FLAG("--enable-p2p-check", by_layers),
    FLAG("--disable-shared-experts-fusion", by_table),
    FLAG("--disable-cuda-graph", "graphs are used where they pay"),
    ONLY("--tensor-parallel-size", "1", "one process serves", by_layers),
    ONLY("--tp-size", "1", "one process serves", by_layers),
    ONLY("--tp", "1", "one process serves", by_layers),
    ONLY("--dtype", "auto bfloat16 half float16", "weights stay as they are stored",
         "expected --weights with a format"),
    /* vLLM */
    SAME("--max-model-len", "context"),
    SAME("--max-num-seqs", "parallel"),
    SAME("--max-num-batched-tokens", "chunk"),
    FLAG("--enable-auto-tool-choice", "tool calls are read whenever the model has a parser"),
    FLAG("--enable-prefix-caching", always),
    FLAG("--enable-chunked-prefill", always),
    FLAG("--enforce-eager", "graphs are used where they pay"),
    FLAG("--disable-log-requests", by_log),
    VALUE("--gpu-memory-utilization", counted),
    VALUE("--swap-space", "there is no swap space"),
    /* llama.cpp and ik_llama.cpp */
    MODEL("-m"),
    SAME("--ctx", "context"),
    SAME("--ctx-size", "context"),
    SAME("-np", "parallel"),
    SAME("-ub", "chunk"),
    SAME("--ubatch-size", "chunk"),
    SAME("-a", "model-name"),
    SAME("--alias", "model-name"),
    SAME("-ctk", "kv"),
    SAME("-ctv", "kv"),
    SAME("--cache-type-k", "kv"),
    SAME("--cache-type-v", "kv"),
    SAME("--chat-template-file", "chat-template"),
    SAME("--predict", "max-tokens"),
    SAME("--n-predict", "max-tokens"),
    SAME("--temp", "temperature"),
    SAME("--repeat-penalty", "repetition-penalty"),
    SAME("-ts", "device-split"),
    SAME("--tensor-split", "device-split"),
    SWITCH("-fa", by_table),
    SWITCH("--flash-attn", by_table),
    FLAG("-fmoe", by_table),
    FLAG("-rtr", packed),
    FLAG("--run-time-repack", packed),
    FLAG("--jinja", always),
    FLAG("--mlock", packed),
    FLAG("--no-mmap", packed),
    FLAG("-cb", always),
    FLAG("--cont-batching", always),
    FLAG("--metrics", "/metrics is always there"),
    FLAG("--no-warmup", "nothing is warmed up"),
    FLAG("--no-context-shift", always),
    FLAG("--log-disable", by_log),
    VALUE("-b", "--chunk is the number of rows of a step"),
    VALUE("--batch-size", "--chunk is the number of rows of a step"),
    VALUE("-tb", "prompts and answers are computed by the same threads"),
    VALUE("--threads-batch", "prompts and answers are computed by the same threads"),
    VALUE("--cache-reuse", "what requests have in common is computed once"),
    ONLY("-ngl", "0", "the CPU computes unless --device is given", on_devices),
    ONLY("--gpu-layers", "0", "the CPU computes unless --device is given", on_devices),
    ONLY("--n-gpu-layers", "0", "the CPU computes unless --device is given", on_devices),
    REFUSED("-cmoe", on_devices),
    REFUSED("--cpu-moe", on_devices),
    REFUSED("-ncmoe", on_devices),
    REFUSED("--n-cpu-moe", on_devices),
    REFUSED("-ot", on_devices),
    REFUSED("--override-tensor", on_devices),
    REFUSED("-hf", "download the model first; its folder, or its file, is MODEL"),
    REFUSED("--hf-repo", "download the model first; its folder, or its file, is MODEL"),
};

const kt_foreign_option *kt_foreign_option_find(const char *word) {
    const size_t size = strcspn(word, "=");

    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (strlen(options[i].name) == size && memcmp(options[i].name, word, size) == 0)
            return &options[i];
    return NULL;
}

bool kt_foreign_value_is_dropped(const kt_foreign_option *option, const char *value) {
    const size_t size = strlen(value);

    if (!option->only) return true;
    for (const char *at = option->only; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == size && memcmp(at, value, size) == 0) return true;
    return false;
}
