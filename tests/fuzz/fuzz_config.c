/* config.json: a model is described from it, or it is refused with a message.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "dispatch/model/needs.h"
#include "runtime/model/model_dir.h"
#include "tests/fuzz/scratch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static kt_model_dir dir;
    kt_need *needs = NULL;
    kt_err err = {KT_OK, ""};
    int n = 0;

    kt_scratch_write("config.json", data, size);
    if (kt_model_dir_read(kt_scratch_folder, &dir, &err) == KT_OK) {
        if (kt_graph_needs(&dir.graph, 0, &needs, &n, &err) == KT_OK) free(needs);
        kt_model_state_floats(&dir.graph);
        kt_model_count_experts(&dir.graph);
    } else if (!err.message[0]) {
        abort();
    }
    kt_model_dir_deinit(&dir);
    memset(&dir, 0, sizeof dir);
    return 0;
}
