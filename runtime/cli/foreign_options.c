/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/foreign_options.h"

#include <string.h>

static const kt_foreign_option options[] = {
    {"kt-num-gpu-experts", "gpu-experts", NULL},
    {"kt-expert-placement-strategy", "expert-placement", NULL},
    {"tensor-split", "device-split", NULL},
    {"kt-cpuinfer", "threads", NULL},
    {"kt-method", "weights", NULL},
    {"kt-gpu-experts-ratio", NULL, "expected --gpu-experts with a part such as 25%"},
    {"kt-weight-path", NULL, "a model is one folder, expected it as MODEL"},
    {"kt-threadpool-count", NULL,
     "threads follow the machine's memory nodes, or --numa says into how many groups"},
    {"kt-numa-nodes", NULL, "expected --numa auto, off or a number of groups"},
    {"kt-max-deferred-experts-per-token", NULL,
     "experts are not deferred, which would change results"},
    {"kt-gpu-prefill-token-threshold", "prefill-offload", NULL},
    {"kt-enable-dynamic-expert-update", NULL, "expected --expert-placement learned"},
    {"init-expert-location", NULL, "expected --expert-load FILE of kt serve --record-workload"},
    {"model-path", NULL, "expected the folder as MODEL, without an option"},
    {"context-length", "context", NULL},
    {"chunked-prefill-size", "chunk", NULL},
    {"max-running-requests", "parallel", NULL},
    {"served-model-name", "model-name", NULL},
    {"tool-call-parser", "tool-parser", NULL},
    {"kv-cache-dtype", "kv", NULL},
};

const kt_foreign_option *kt_foreign_option_find(const char *name, size_t size) {
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (strlen(options[i].name) == size && memcmp(options[i].name, name, size) == 0)
            return &options[i];
    return NULL;
}
